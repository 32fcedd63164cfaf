"""Formulas of operations that move, select, multiply or reduce elements, against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opweave as ow
from opweave import ops
from opweave.core.graph import Desc
from opweave.core.guards import Guards
from opweave.core.sizes import Size
from opweave.expr import ir, kernels
from opweave.expr.tracing import inputs_of
from opweave.kernels.expression import program_of_nodes
from opweave.ops.formulas import FORMULAS, reshape_array

REFERENCE = ow.ml.create_context(device="reference")
RNG = np.random.default_rng(3)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


INDICES = np.int32([[2, -1], [0, 9]])

CALLS: list[tuple[Any, list[Any], dict[str, Any]]] = [
    (ops.concat, [[floats(2, 3), floats(2, 1), floats(2, 4)]], {"axis": 1}),
    (ops.expand, [floats(3, 1)], {"new_shape": [2, 3, 4]}),
    (ops.pad, [floats(3, 4), [1, 0], [2, 3]], {"value": 2.0}),
    (ops.pad, [floats(3, 4), [1, 2], [2, 3]], {"mode": "edge"}),
    (ops.pad, [floats(3, 4), [1, 2], [2, 3]], {"mode": "reflection"}),
    (ops.reshape, [floats(6, 4), [2, 3, 1, 4]], {}),
    (ops.reshape, [floats(2, 3, 4), [4, 6]], {}),
    (ops.reverse, [floats(2, 3)], {"axes": [1]}),
    (ops.slice, [floats(5, 6), [1, 2], [4, 3]], {"strides": [2, 1]}),
    (ops.split, [floats(6, 2), [1, 2, 3]], {"axis": 0}),
    (ops.tile, [floats(2, 3), [2, 3]], {}),
    (ops.transpose, [floats(2, 3, 4)], {"permutation": [2, 0, 1]}),
    (ops.triangular, [floats(4, 5)], {"upper": False, "diagonal": 1}),
    (ops.gather, [floats(3, 4), INDICES], {"axis": 0}),
    (ops.gather_elements, [floats(3, 2), INDICES], {"axis": 0}),
    (ops.gather_nd, [floats(3, 2, 4), INDICES], {}),
    (ops.matmul, [floats(2, 1, 3, 4), floats(5, 4, 2)], {}),
    *(
        (op, [floats(3, 4, 5)], {"axes": axes, "keep_dimensions": keep})
        for op in (ops.reduce_max, ops.reduce_mean, ops.reduce_min, ops.reduce_sum)
        for axes, keep in (([1], True), ([0, 2], False), ([], False))
    ),
    (ops.reduce_sum, [np.int32([[2**31 - 1, 1], [3, 4]])], {"axes": [1]}),
]


def test_all_formulas_have_calls() -> None:
    assert {op for op, _, _ in CALLS} == set(FORMULAS)


@pytest.mark.parametrize("data_type", ["float32", "float16"])
@pytest.mark.parametrize(
    ("op", "values", "options"), CALLS, ids=[f"{op.name}{k}" for k, (op, _, _) in enumerate(CALLS)]
)
def test_formula_agrees_with_the_reference(op: Any, values: list[Any], options: dict[str, Any], data_type: str) -> None:
    builder, arrays = ow.MLGraphBuilder(REFERENCE), dict[str, np.ndarray]()

    def operand_of(value: Any) -> Any:
        if isinstance(value, list) and isinstance(value[0], np.ndarray):
            return [operand_of(item) for item in value]
        if not isinstance(value, np.ndarray):
            return value
        array = value.astype(data_type) if value.dtype == np.float32 else value
        name = f"x{len(arrays)}"
        arrays[name] = array
        return builder.input(name, array.dtype.name, array.shape)

    result = op(builder, *map(operand_of, values), **options)
    results = list(result) if isinstance(result, (tuple, list)) else [result]
    node = results[0].node
    program, reads, _ = program_of_nodes(
        [node], list(node.operands), list(node.outputs), rounds=True, formula_of=FORMULAS.__getitem__
    )
    own = [np.empty(operand.shape, operand.data_type) for operand in node.outputs]
    kernels.compile(program, "numpy").run([arrays[operand.name] for operand in reads], own)
    graph = builder.build({f"y{k}": y for k, y in enumerate(results)})
    expected = REFERENCE.compute(graph, arrays)
    for ours, wanted in zip(own, expected.values(), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-5 if data_type == "float32" else 2e-3, atol=1e-5)


def test_positions_of_reshapes_are_within_bounds_where_sizes_may_be_0() -> None:
    """A kernel runs only where no size is 0; a formula of sizes does not show that."""
    h, w = Size("h"), Size("w")
    last = ((w - 1) // 4 - 1) // 2 + 1
    _, (x,) = inputs_of([Desc("float32", (h, last))])
    guards = Guards({"h": 1, "w": 25})
    with guards.deciding():
        joined, alone = reshape_array(x, [h * last]), reshape_array(x, [last])
    assert ir.text(joined.body) == f"x0[i // {last}, i % {last}]"
    assert ir.text(alone.body) == "x0[0, i]"
    assert not guards.hold({"h": 2, "w": 25}), "only one of the reshapes takes all sizes"
