"""ONNX's own backend tests (`onnx.backend.test`) through `InferenceSession`, on ONNX Runtime and on OpenVINO.

Two lists in `expect/`, both strict, made by `tools/onnx_expectations.py`: `onnx.toml` has the cases that cannot pass, and
`onnx_fallback.toml` those that need ONNX Runtime for operators that WebNN cannot express, with the reasons. All others pass on
WebNN graphs alone. Entries that hold for some versions of ONNX Runtime only are in tables named after these. The lists hold on
both back ends.
"""

from __future__ import annotations

import locale
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto
from support import onnx_cases
from support.onnx_nodes import node_model

import opweave as ow


@cache
def has_locale() -> bool:
    """Whether the machine has the locale that the engine's text operators need: not all have."""
    before = locale.setlocale(locale.LC_CTYPE)
    try:
        locale.setlocale(locale.LC_CTYPE, "en_US.UTF-8")
    except locale.Error:
        return False
    locale.setlocale(locale.LC_CTYPE, before)
    return True


FLOATS = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16}


def subject(case: onnx_cases.Case, backend: str) -> str:
    """Operators of a case's model, and whether it reads floats: one case of each is in the sample.

    OpenVINO compiles longer: its sample has one case of each operator, and one of each that is written as several.
    """
    if (model := case.source.model) is None:
        return "_".join(case.name.split("_")[:2])  # read from files when it runs
    operators = sorted({node.op_type for node in model.graph.node})
    if backend == "openvino":
        return operators[0] if len(operators) == 1 else case.name.split("_")[1]
    return " ".join([*operators, str(any(input.type.tensor_type.elem_type in FLOATS for input in model.graph.input))])


def rows() -> list[Any]:
    return [
        pytest.param(name, backend, id=name + suffix, marks=pytest.mark.covers(f"{backend} {subject(case, backend)}"))
        for backend, suffix in (("onnxruntime", ""), ("openvino", "-openvino"))
        for name, case in onnx_cases.cases().items()
    ]


@pytest.mark.parametrize(("name", "backend"), rows())
def test_onnx_backend_case(name: str, backend: str) -> None:
    if backend == "openvino":
        pytest.importorskip("openvino", reason="openvino is not installed")
    case = onnx_cases.cases()[name]
    reason = onnx_cases.expected("onnx").get(name)
    if reason is not None and "locale" in reason and has_locale():
        onnx_cases.run(case, backend)
        return
    if reason is not None:
        with pytest.raises((AssertionError, ow.MLError)):
            onnx_cases.run(case, backend)
        pytest.xfail(reason)
    fallen = {step.node.op_type for step in onnx_cases.run(case, backend)}
    listed = onnx_cases.expected("onnx_fallback").get(name, "")
    operators = {entry.partition(":")[0] for entry in listed.split("; ")} - {""}
    assert fallen == operators, "what falls back is not what the list says"


@pytest.mark.parametrize("length", [10, 16, 127])
def test_fourier_transforms_are_as_exact_as_the_tolerance_says(length: int) -> None:
    """Compared with float64: the tolerance that cases of transforms get is what float32 needs, and not much more."""
    signal = np.random.default_rng(length).uniform(-1, 1, (1, length, 1)).astype(np.float32)
    model, feed = node_model("DFT", [signal], {"axis": 1}, opset=19)
    (got,) = ow.InferenceSession(model, onnx_cases.context()).run(None, feed)
    wanted = np.fft.fft(signal[0, :, 0].astype(np.float64))
    error = np.abs(got[0].astype(np.float64) - np.stack([wanted.real, wanted.imag], -1)).max()
    tolerance = onnx_cases.transform_rounding(model, [signal])
    assert 0 < error <= tolerance <= 1e-7 * length**2


@pytest.mark.parametrize("name", ["onnx", "onnx_fallback"])
def test_expected_failures_of_versions_do_not_repeat_shared_ones(name: str) -> None:
    shared, *tables = onnx_cases.read_list(name).values()
    for table in tables:
        assert set(table) <= set(onnx_cases.cases())
        assert not set(table) & set(shared)


def test_expected_failures_name_each_existing_case_once() -> None:
    failing, falling = onnx_cases.expected("onnx"), onnx_cases.expected("onnx_fallback")
    assert set(failing) <= set(onnx_cases.cases())
    assert set(falling) <= set(onnx_cases.cases())
    assert not set(failing) & set(falling)


def test_onnx_backend_case_counts(record_property: Callable[[str, object], None]) -> None:
    total = len(onnx_cases.cases())
    failing, falling = len(onnx_cases.expected("onnx")), len(onnx_cases.expected("onnx_fallback"))
    counts = {"webnn": total - failing - falling, "with fallback": falling, "cannot pass": failing}
    for name, count in counts.items():
        record_property(name, count)
    assert counts["webnn"] > total / 2, counts
