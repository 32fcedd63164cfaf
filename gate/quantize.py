"""Quantise models of the catalogue with ONNX Runtime's own tools, as other projects do before they ship them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

BLOCK = 32
"""Block size of 4-bit weights: the tool's default is 128, exporters of language models take 32."""


def _dynamic(source: Path, target: Path, feeds: Sequence[Mapping[str, np.ndarray]]) -> None:
    """Weights of int8, and operands that are quantised while the model runs."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(source, target, weight_type=QuantType.QInt8, per_channel=True)


def _static(source: Path, target: Path, feeds: Sequence[Mapping[str, np.ndarray]]) -> None:
    """QuantizeLinear and DequantizeLinear around each operator, with ranges from the inputs of the gate."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.feeds: Iterator[Mapping[str, np.ndarray]] = iter(feeds)

        def get_next(self) -> Any:
            return next(self.feeds, None)

    quantize_static(
        source,
        target,
        Reader(),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )


def _few_bits(bits: int, form: str) -> Callable[[Path, Path, Sequence[Mapping[str, np.ndarray]]], None]:
    def quantize(source: Path, target: Path, feeds: Sequence[Mapping[str, np.ndarray]]) -> None:
        import onnx
        from onnxruntime.quantization import QuantFormat
        from onnxruntime.quantization.matmul_nbits_quantizer import (
            DefaultWeightOnlyQuantConfig,
            MatMulNBitsQuantizer,
        )

        is_symmetric = form == "QDQ"
        config = DefaultWeightOnlyQuantConfig(
            block_size=BLOCK, is_symmetric=is_symmetric, quant_format=QuantFormat[form], bits=bits
        )
        tool = MatMulNBitsQuantizer(onnx.load(source), algo_config=config)
        tool.process()
        tool.model.save_model_to_file(str(target), use_external_data_format=False)

    return quantize


TOOLS = {
    "dynamic": _dynamic,
    "static": _static,
    "4 bits": _few_bits(4, "QOperator"),
    "4 bits QDQ": _few_bits(4, "QDQ"),
    "8 bits": _few_bits(8, "QOperator"),
}
"""Name of a kind of quantisation -> what writes the model."""


def types_of(path: Path) -> dict[str, str]:
    """The types of the inputs of a model, as ONNX Runtime writes them."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return {i.name: i.type for i in session.get_inputs()}


def quantize(kind: str, source: Path, target: Path, feeds: Sequence[Mapping[str, np.ndarray]], tools: Path) -> None:
    """Write the quantised model; `tools` is a folder with packages that the tools import."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(".partial.onnx")
    sys.path.append(str(tools))
    try:
        with redirect_stdout(sys.stderr):
            TOOLS[kind](source, partial, feeds)
    finally:
        sys.path.remove(str(tools))
    partial.rename(target)
