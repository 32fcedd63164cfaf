"""Recurrences with the element-wise operations beside them as one kernel, against the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from support.every_device import DEVICES, context_on
from support.recurrences import smooth

import opweave as ow

STEPS, ROWS, COLUMNS = 19, 40, 30
RNG = np.random.default_rng(2)


@ow.recurrence(constants="w")
def weighted(h: Any, x: Any, w: Any) -> Any:
    """Each element of the input is read by a row of the state."""
    new = ow.expr.compute(h.shape, lambda i, j: h[i, j] * 0.5 + x[i] * w[i, j])
    return new, ow.expr.reduce_sum(new, [1]), new


def around(b: Any, h: Any, x: Any, z: Any, v: Any, last: Any) -> Sequence[Any]:
    """Arrays, numbers and other sequences before and behind."""
    state, levels = smooth(h, (x * 2.0 + v) * z)
    return [state, b.relu((levels - v) * z)]


def of_two_types(b: Any, h: Any, x: Any, z: Any, v: Any, last: Any) -> Sequence[Any]:
    """A comparison is uint8, and float16 is rounded."""
    half = b.cast(b.cast(x, "float16"), "float32")
    state, levels = smooth(h, half + b.cast(b.greater(x, z), "float32"), axis=0)
    return [state, b.cast(b.lesser(levels, z), "float16")]


def read_twice(b: Any, h: Any, x: Any, z: Any, v: Any, last: Any) -> Sequence[Any]:
    """Others read what is between."""
    before = x + z
    state, levels = smooth(h, before)
    return [state, levels * z, levels + before, b.exp(before)]


def in_a_row(b: Any, h: Any, x: Any, z: Any, v: Any, last: Any) -> Sequence[Any]:
    """Two recurrences, whose neighbours read results of each other."""
    state, levels = smooth(h, b.sigmoid(x), direction="backward")
    other, more = smooth(state, b.tanh(levels * z), direction="backward")
    return [other, more * state]


def over_a_state(b: Any, h: Any, x: Any, z: Any, v: Any, last: Any) -> Sequence[Any]:
    """Functions of an element that a row reads stay outside; an operation of the last state comes behind."""
    sums = b.reduce_sum(x, axes=[2])
    state, rows, levels = weighted(h, b.softplus(sums), v)
    return [state, rows * b.neg(sums), levels + state]


def along_the_last_axis(b: Any, h: Any, x: Any, z: Any, v: Any, last: Any) -> Sequence[Any]:
    """Time is the last axis: an array of a row is a sequence, too."""
    moved = b.transpose(x, permutation=[1, 2, 0])
    state, levels = smooth(h, moved * last, axis=2)
    return [state, levels - last]


@ow.expression
def by_shape(x: Any) -> Any:
    return x * (x.shape[0] / x.rank)


@ow.expression
def by_position(x: Any, *, axis: int = 0) -> Any:
    return ow.expr.compute(x.shape, lambda *at: x[at] + at[axis] * 0.5)


def of_shapes(b: Any, h: Any, x: Any, z: Any, v: Any, last: Any) -> Sequence[Any]:
    """Formulas read the shapes of whole sequences, and positions in time, on an axis of the size of another one."""
    state, levels = smooth(h, by_shape(x))
    square, start = b.slice(x, [0, 0, 0], [STEPS, STEPS, COLUMNS]), b.slice(h, [0, 0], [STEPS, COLUMNS])
    other, more = smooth(start, by_position(square, axis=2), axis=1)
    return [state, by_position(levels), other, by_position(more, axis=1), by_shape(smooth(start, square, axis=1)[1])]


BUILDS: list[Callable[..., Sequence[Any]]] = [
    around, of_two_types, read_twice, in_a_row, over_a_state, along_the_last_axis, of_shapes,
]  # fmt: skip


def feed() -> dict[str, np.ndarray]:
    shapes = {
        "h": (ROWS, COLUMNS),
        "x": (STEPS, ROWS, COLUMNS),
        "z": (STEPS, 1, COLUMNS),
        "v": (ROWS, COLUMNS),
        "last": (STEPS,),
    }
    return {name: RNG.standard_normal(shape).astype("float32") for name, shape in shapes.items()}


@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.__name__)
@pytest.mark.parametrize("device", [name for name in DEVICES if not name.startswith("reference")])
def test_fused_recurrence_agrees_with_the_reference(device: str, build: Callable[..., Sequence[Any]]) -> None:
    arrays, results = feed(), []
    for context in (context_on(device), ow.ml.create_context(device="reference")):
        b = ow.MLGraphBuilder(context)
        inputs = {name: b.input(name, "float32", array.shape) for name, array in arrays.items()}
        graph = b.build({f"y{k}": y for k, y in enumerate(build(b, **inputs))})
        results.append(context.compute(graph, {name: arrays[name] for name in graph.inputs}))
    for name, wanted in results[1].items():
        np.testing.assert_allclose(results[0][name], wanted, rtol=2e-3, atol=2e-3, err_msg=name)


def test_fused_operations_have_no_memory_between() -> None:
    pytest.importorskip("halide", reason="halide is not installed")
    context = context_on("cpu (onnxruntime)")
    b = ow.MLGraphBuilder(context)
    h, x, z = (b.input(name, "float32", shape) for name, shape in (("h", [8]), ("x", [100, 8]), ("z", [8])))
    last, levels = smooth(h, x * 2.0)
    graph = b.build({"last": last, "levels": b.relu(levels + z)})
    text = graph.explain()
    assert text.count("a part of the step of a recurrence") == 3, text
    assert len(graph.profile(repeat=1).steps) == 1
