"""The conformance and validation cases of the specification, on all back ends.

Known failures stand in `expect/<name>.toml` with the reason; an entry that passes fails the run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import wpt
from webgpu_device import gpu_context

import opweave as ow

DEVICES = ("onnxruntime", "reference", "webgpu")


@cache
def context_of(backend: str) -> ow.MLContext:
    if backend == "webgpu":
        return gpu_context()
    return ow.ml.create_context(device="cpu" if backend == "onnxruntime" else backend)


def strictly(expectations: str, case: wpt.Case, run: Callable[[], None]) -> None:
    """Run a case; one that is expected to fail must fail."""
    reason = wpt.expected_failures(expectations).get(case["id"])
    if reason is None:
        run()
        return
    with pytest.raises((AssertionError, ow.MLError)):
        run()
    pytest.xfail(reason)


def test_all_cases_are_here() -> None:
    counts = {name: len(wpt.cases(name)) for name in ("conformance", "validation")}
    assert counts == {"conformance": 1306, "validation": 574}


@pytest.mark.parametrize("backend", DEVICES)
@pytest.mark.parametrize("case", wpt.cases("conformance"), ids=lambda case: case["id"])
def test_conformance(backend: str, case: wpt.Case) -> None:
    context = context_of(backend)
    strictly(backend, case, lambda: wpt.check_conformance(case, wpt.run_conformance(context, case)))


@pytest.mark.parametrize("case", wpt.cases("validation"), ids=lambda case: case["id"])
def test_validation(case: wpt.Case) -> None:
    strictly("validation", case, lambda: wpt.run_validation(context_of("reference"), case))
