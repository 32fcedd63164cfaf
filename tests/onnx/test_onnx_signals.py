"""ONNX's weights of mel bands: random sizes, all types, and what has no result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator
from support.every_device import DEVICES, context_on
from support.onnx_nodes import node_model

from opweave.onnx.convert.operators import CONVERTERS
from opweave.onnx.model.registry import Unsupported
from opweave.onnx.session.session import InferenceSession

CONVERT: Any = CONVERTERS["", "MelWeightMatrix"].function


def drawn(random: np.random.Generator) -> tuple[int, int, int, float, float]:
    """Bands, the length of a transform, the sample rate, and the edges, of which the upper one is in the spectrum."""
    bands, length, rate = int(random.integers(1, 40)), int(random.integers(2, 600)), int(random.integers(100, 48000))
    low, high = np.sort(random.uniform(0, 0.49 * rate, 2))
    return bands, length, rate, float(np.float32(low)), float(np.float32(high))


def inputs_of(values: tuple[int, int, int, float, float], integers: str = "int64") -> list[np.ndarray]:
    return [np.array(value, integers if k < 3 else "float32") for k, value in enumerate(values)]


@pytest.mark.parametrize("number", range(50))
def test_mel_weights_are_those_of_the_evaluator(number: int) -> None:
    random = np.random.default_rng(number)
    inputs = inputs_of(drawn(random), ["int32", "int64"][number % 2])
    model, feed = node_model("MelWeightMatrix", inputs, dynamic=range(5))
    (expected,) = ReferenceEvaluator(model).run(None, feed)
    np.testing.assert_allclose(CONVERT(None, *inputs), expected, rtol=1e-6)
    for device in DEVICES:
        session = InferenceSession(model, context_on(device), fallback="error")
        (result,) = session.run(None, feed)
        assert result.dtype == np.float32
        np.testing.assert_allclose(result, expected, rtol=1e-6, err_msg=device)


@pytest.mark.parametrize("data_type", ["float64", "float16", "int32", "uint8"])
def test_mel_weights_of_types(data_type: str) -> None:
    inputs = inputs_of((5, 64, 8000, 100.0, 3500.0))
    to = TensorProto.DataType.Value({"float64": "DOUBLE"}.get(data_type, data_type.upper()))
    model, feed = node_model("MelWeightMatrix", inputs, {"output_datatype": to}, dynamic=range(5))
    (expected,) = ReferenceEvaluator(model).run(None, feed)
    (result,) = InferenceSession(model, context_on(DEVICES[0]), fallback="error").run(None, feed)
    assert result.dtype == data_type
    np.testing.assert_allclose(result, expected, rtol=1e-3)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ((0, 64, 8000, 0.0, 100.0), "0 bands"),
        ((4, 0, 8000, 0.0, 100.0), "0 samples"),
        ((4, 64, 0, 0.0, 100.0), "a rate of 0"),
        ((4, 64, 8000, 100.0, 0.0), "edges are 100 and 0"),
        ((4, 64, 8000, float("nan"), 100.0), "edges are nan"),
        ((4, 64, 8000, 0.0, float("inf")), "edges are 0 and inf"),
        ((4, 64, 8000, 0.0, 60000.0), "its edges exceed 33 frequencies"),
        ((2**31, 2**31, 8000, 0.0, 100.0), "too many"),
    ],
)
def test_mel_weights_refuse(values: Any, reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        CONVERT(None, *inputs_of(values))
