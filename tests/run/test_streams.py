"""Streams: a recurrence that is called block by block, with its state in tensors of the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.every_device import DEVICES, context_on

import opweave as ow
from opweave import composites, memory

BLOCKS, STEPS, SIZE = 50, 4, 8
RNG = np.random.default_rng(4)
RATES = -abs(RNG.standard_normal((SIZE, 3))).astype("float32")


def scan(b: Any, x: Any, state: Any) -> tuple[Any, Any]:
    sides = (b.slice(x, [0, 0, k], [1, x.shape[1], 3]) for k in (0, 4))
    y, last = composites.selective_scan(b, x, b.abs(x), b.constant(RATES), *sides, initial_state=state)
    return y, last


def attend(b: Any, x: Any, state: Any) -> tuple[Any, Any]:
    decay = -b.abs(b.slice(x, [0, 0, 0], [1, x.shape[1], 2]))
    options: Any = {"heads": 2, "groups": 2, "update_rule": "gated"}
    y, last = composites.linear_attention(b, x * 0.2, x * 0.2, x, state, decay, **options)
    return y, last


def leak(b: Any, x: Any, state: Any) -> tuple[Any, Any]:
    y, last = composites.leaky_integrator(b, x, state, decay=0.9, axis=1)
    return y, last


CALLS: dict[str, tuple[Callable[..., Any], list[int]]] = {
    "scan": (scan, [1, SIZE, 3]), "attend": (attend, [1, 2, 4, 4]), "leak": (leak, [1, SIZE]),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("device", [name for name in DEVICES if not name.startswith("reference")])
def test_stream_equals_one_call_and_copies_nothing(device: str, name: str) -> None:
    call, shape = CALLS[name]
    context, x = context_on(device), RNG.standard_normal((1, BLOCKS * STEPS, SIZE)).astype("float32")
    graphs = []
    for steps in (STEPS, BLOCKS * STEPS):
        b = ow.MLGraphBuilder(context)
        y, last = call(b, b.input("x", "float32", [1, steps, SIZE]), b.input("state", "float32", shape))
        graphs.append(b.build({"y": y, "last": last}))
    block, whole = graphs
    first = np.zeros(shape, "float32")
    expected = context.compute(whole, {"x": x, "state": first})
    states = [context.create_tensor("float32", shape, readable=True, writable=True) for _ in range(2)]
    context.write_tensor(states[0], first)
    parts = np.split(x, BLOCKS, axis=1)
    slices = [context.create_tensor("float32", [1, STEPS, SIZE], writable=True) for _ in parts]
    for part, values in zip(slices, parts, strict=True):
        context.write_tensor(part, values)
    results = [context.create_tensor("float32", [1, STEPS, SIZE], readable=True) for _ in slices]
    memory.copies.reset()
    for k, (part, result) in enumerate(zip(slices, results, strict=True)):
        inputs, outputs = {"x": part, "state": states[k % 2]}, {"y": result, "last": states[1 - k % 2]}
        context.dispatch(block, inputs, outputs)
    if device == "cpu (onnxruntime)" or "gpu" in device:
        assert memory.copies.count == 0, memory.copies.by_reason
    joined = np.concatenate([np.asarray(context.read_tensor(result)) for result in results], axis=1)
    np.testing.assert_allclose(joined, expected["y"], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(context.read_tensor(states[BLOCKS % 2]), expected["last"], rtol=1e-3, atol=1e-4)
