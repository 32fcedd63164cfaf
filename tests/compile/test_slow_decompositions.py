"""Formulas that read elements at computed positions, or combine bits: a loop or NumPy runs them, not their decomposition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from samples import Call
from support.agreement import outputs_of, record
from support.webgpu_device import gpu_context

import opweave as ow
from opweave import composites
from opweave.expr import kernels
from opweave.lazy.custom_call import CustomOp

CPU = ow.ml.create_context(device="cpu", backend="onnxruntime")
IMAGE, GRID = np.ones([1, 2, 5, 6], "float32"), np.zeros([1, 3, 4, 2], "float32")
ROIS = np.float32([[0, 0, 0, 2, 2], [0, 1, 1, 3, 3]])
KEY = np.uint32([1, 2, 3, 4])

CALLS: list[tuple[CustomOp[Any], Call]] = [
    (composites.grid_sample, Call(IMAGE, GRID, mode="cubic", padding_mode="border")),
    (composites.max_pool_with_indices, Call(IMAGE.astype("int32"), window_dimensions=[2, 2])),
    (composites.random_uniform, Call(KEY, [2, 3])),
    (composites.random_normal, Call(KEY, [2, 3])),
    (composites.bernoulli, Call(np.float32([0.5, 0.5]), KEY)),
    (composites.det, Call(np.eye(3, dtype="float16"))),
    (composites.inverse, Call(np.eye(3, dtype="float16"))),
]
"""Calls for which ONNX Runtime has no kernel."""

rows = pytest.mark.parametrize(("op", "call"), [pytest.param(*pair, id=pair[0].name) for pair in CALLS])


def how(context: ow.MLContext, op: CustomOp[Any], call: Call) -> str:
    builder, result, _ = record(context, op, call)
    (placement,) = builder.build(outputs_of(result)).placements()
    return f"{placement.how} {placement.detail}"


@rows
def test_cpu_runs_a_loop(op: CustomOp[Any], call: Call) -> None:
    assert how(CPU, op, call).startswith("expression ")


@rows
def test_cpu_without_compiler_runs_numpy(op: CustomOp[Any], call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "is_compiled", lambda: False)
    assert how(CPU, op, call).startswith("expression NumPy")


@rows
def test_gpu_runs_kernels(op: CustomOp[Any], call: Call) -> None:
    assert how(gpu_context(), op, call).startswith("native ")


@pytest.mark.skipif(not kernels.has_halide(), reason="no compiler of loops is installed")
@pytest.mark.parametrize("size", [5, "n"])
def test_loop_between_operations_of_the_engine_stays(size: int | str) -> None:
    context = ow.ml.create_context(device="cpu", backend="onnxruntime", drafts=True)
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [1, 2, size, 6])
    grid = builder.tanh(builder.matmul(builder.input("grid", "float32", [1, 3, 4, 2]), np.eye(2, dtype="float32")))
    y = composites.grid_sample(builder.softmax(x, 3), grid, mode="cubic", padding_mode="border")
    graph = builder.build({"y": builder.softmax(y, 1)})
    shapes = {"x": [1, 2, 5, 6], "grid": [1, 3, 4, 2]}
    context.compute(graph, {name: np.ones(shape, "float32") for name, shape in shapes.items()})
    (placement,) = [each for each in graph.placements() if each.op is composites.grid_sample]
    assert placement.how == "expression"
