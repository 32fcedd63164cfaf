"""The conformance and validation cases of the specification, on all back ends.

The sample has cases of each operation with floats and without them, and on ONNX Runtime all that differ by more than data
types. On OpenVINO and WebGPU, which compile longer, it has a case of each operation, and all data types.

Known failures stand in `expect/<name>.toml` with the reason; an entry that passes fails the run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from row_sample import typed
from support import wpt
from support.openvino_device import openvino_context
from support.webgpu_device import gpu_context

import opweave as ow

DEVICES = ("onnxruntime", "openvino", "reference", "webgpu")


@cache
def context_of(backend: str) -> ow.MLContext:
    if backend == "webgpu":
        return gpu_context()
    if backend == "openvino":
        return openvino_context()
    return ow.ml.create_context(backend=backend, accelerated=False)


def strictly(expectations: str, case: wpt.Case, run: Callable[[], None]) -> None:
    """Run a case; one that is expected to fail must fail."""
    reason = wpt.expected_failures(expectations).get(case["id"])
    if reason is None:
        run()
        return
    with pytest.raises((AssertionError, ow.MLError)):
        run()
    pytest.xfail(reason)


def test_wpt_case_counts() -> None:
    counts = {name: len(wpt.cases(name)) for name in ("conformance", "validation")}
    assert counts == {"conformance": 1533, "validation": 574}


def conformance_rows() -> list[Any]:
    rows = []
    for case in wpt.cases("conformance"):
        types = [tensor["dataType"] for part in ("inputs", "expected") for tensor in case[part].values()]
        for backend in DEVICES:
            subject = wpt.without_data_types(case) if backend == "onnxruntime" else case["op"]
            mark = typed(f"{backend} {subject}", types, family=f"{backend} {case['op']}")
            if backend in ("openvino", "webgpu"):
                mark = pytest.mark.covers(f"{backend} {subject}", *(f"{backend}: {data_type}" for data_type in types))
            elif backend == "reference" and wpt.is_large(case):
                mark = pytest.mark.covers()
            rows.append(pytest.param(backend, case, id=f"{case['id']}-{backend}", marks=mark))
    return rows


@pytest.mark.parametrize(("backend", "case"), conformance_rows())
def test_conformance(backend: str, case: wpt.Case) -> None:
    context = context_of(backend)
    strictly(backend, case, lambda: wpt.check_conformance(case, wpt.run_conformance(context, case)))


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case["id"], marks=pytest.mark.covers(case["op"])) for case in wpt.cases("validation")],
)
def test_validation(case: wpt.Case) -> None:
    strictly("validation", case, lambda: wpt.run_validation(context_of("reference"), case))
