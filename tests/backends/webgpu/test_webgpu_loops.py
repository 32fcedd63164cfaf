"""No kernel repeats loops more often than Mesa's software adapter allows, which ends them without an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from wgsl_loops import iterations

import opweave as ow
from opweave.backends.gpu.schedule import Schedule
from opweave.backends.webgpu import webgpu
from opweave.core.graph import Graph
from opweave.expr.gpu import Features

SOFTWARE = Features(is_software=True, max_buffers=16, max_invocations=1024, max_shared=32768)


@ow.recurrence
def total(h: Any, x: Any) -> Any:
    new = ow.expr.tanh(h + ow.expr.reduce_sum(x))
    return new, new


Build = Callable[[Any, Any, Any], Any]

CASES: dict[str, tuple[list[int], list[int], Build]] = {
    "a sum of columns": ([80000, 5000], [1], lambda b, x, _: b.reduce_sum(x, axes=[0])),
    "the largest of columns": ([80000, 5000], [1], lambda b, x, _: b.arg_max(x, 0)),
    "softmax of columns": ([80000, 5000], [1], lambda b, x, _: b.softmax(x, 0)),
    "softmax of long rows": ([65, 8000000], [1], lambda b, x, _: b.softmax(x, 1)),
    "a mean of pixels": ([1, 300, 300, 5000], [1], lambda b, x, _: b.average_pool2d(x, layout="nhwc")),
    "a deep product": ([16, 4000000], [4000000, 16], lambda b, x, y: b.matmul(x, y)),
    "a long recurrence": ([70003, 5], [], lambda b, x, y: total(y, x)[1]),
    "a long recurrence of sums": ([2000, 192], [], lambda b, x, y: total(y, x)[1]),
    "deep groups": ([1, 260000, 4, 4], [4, 130000, 3, 3], lambda b, x, y: b.conv2d(x, y, groups=2)),
}


@pytest.mark.parametrize("name", CASES)
def test_loops_are_divided(name: str) -> None:
    shape, other, build = CASES[name]
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
    y = build(builder, builder.input("x", "float32", shape), builder.input("y", "float32", other))
    kernels = [step.kernel for step in Schedule(Graph.reaching({"y": y}), webgpu, SOFTWARE).steps]
    counts = [iterations(kernel.source) for kernel in kernels]
    assert 0 < max(counts) <= SOFTWARE.max_iterations, list(zip(kernels, counts, strict=True))
