"""Random nodes of quantised operators on WebNN graphs, on all kinds of devices, against ONNX Runtime."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from support import webgpu_device
from support.onnx_nodes import node_model, run_engine
from support.quantized_nodes import MAKERS, Case

import opweave as ow
from opweave.onnx.session.session import InferenceSession

BATCHES, IN_BATCH = 20, 10


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
    results, expected = session.run(None, feed), run_engine(model, feed)
    for ours, theirs in zip(results, expected, strict=True):
        assert ours.dtype == theirs.dtype, message
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
    """Operators and batches; samples have the first batch of each operator."""
    return [
        pytest.param(name, batch, id=f"{name}-{batch}", marks=pytest.mark.covers(*([] if batch else [name])))
        for name in MAKERS
        for batch in range(BATCHES)
    ]


@pytest.mark.parametrize("device", ["cpu", "reference", "gpu-software"])
@pytest.mark.parametrize(("name", "batch"), rows())
def test_random_nodes(name: str, batch: int, device: str) -> None:
    for number in range(batch * IN_BATCH, (batch + 1) * IN_BATCH):
        case = MAKERS[name](np.random.default_rng([number, *name.encode()]))
        shapes = [None if value is None else f"{value.dtype}{list(value.shape)}" for value in case.inputs]
        check(case, context_on(device), f"{name} {number}: {shapes} {case.attributes}")
