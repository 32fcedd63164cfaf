"""Random nodes of quantised operators, and of ONNX Runtime's own, on WebNN graphs and all kinds of devices.

Witnesses are ONNX Runtime, or formulas in NumPy where its CPU has no kernel.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from support import webgpu_device
from support.microsoft_nodes import MAKERS as OTHERS
from support.onnx_nodes import node_model, run_engine
from support.quantized_nodes import MAKERS as QUANTIZED, Case, Maker

import opweave as ow
from opweave.onnx.session.session import InferenceSession

DEVICES = ("cpu", "reference", "gpu-software")
NODES, FEW, IN_BATCH = 200, 2, 11


@cache
def context_on(device: str) -> ow.MLContext:
    return webgpu_device.gpu_context() if device == "gpu-software" else ow.ml.create_context(device=device)


def check(case: Case, context: ow.MLContext, message: str) -> None:
    model, feed = node_model(
        case.op_type,
        case.inputs,
        case.attributes,
        outputs=case.outputs,
        dynamic=case.dynamic,
        domain=case.domain,
    )
    session = InferenceSession(model, context, fallback="error", specialise="always")
    results, expected = session.run(None, feed), case.wanted or run_engine(model, feed)
    for ours, theirs in zip(results, expected, strict=True):
        assert case.wanted or ours.dtype == theirs.dtype, message
        assert ours.shape == theirs.shape, message
        if theirs.dtype.kind == "f":
            largest = float(np.abs(theirs).max(initial=case.least))
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=case.rtol * largest, err_msg=message)
            continue
        apart = np.abs(ours.astype(np.int64) - theirs)
        assert apart.max(initial=0) <= case.steps, message
        # Only quotients close to a tie may differ.
        assert (apart > 0).sum() <= max(1, apart.size // 50), message


def rows() -> list[Any]:
    """Operators, numbers of nodes, and devices; samples have a few nodes of each operator, on one of the devices."""
    made = []
    for place, (name, maker) in enumerate((QUANTIZED | OTHERS).items()):
        for device in DEVICES:
            for start, end in [(0, FEW), *((k, k + IN_BATCH) for k in range(FEW, NODES, IN_BATCH))]:
                covered = [name] if not start and device == DEVICES[place % len(DEVICES)] else []
                marks = pytest.mark.covers(*covered)
                made.append(pytest.param(maker, range(start, end), device, id=f"{name}-{start}-{device}", marks=marks))
    return made


@pytest.mark.parametrize(("maker", "numbers", "device"), rows())
def test_random_nodes(maker: Maker, numbers: range, device: str) -> None:
    for number in numbers:
        case = maker(np.random.default_rng([number, *maker.__name__.encode()]))
        shapes = [None if value is None else f"{value.dtype}{list(value.shape)}" for value in case.inputs]
        check(case, context_on(device), f"{case.op_type} {number}: {shapes} {case.attributes}")
