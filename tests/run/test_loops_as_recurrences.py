"""Loops whose bodies have products, reductions and movement, as one kernel of all steps, against NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from support.every_device import DEVICES, context_on

import opweave as ow
from opweave.compile import bodies
from opweave.composites.control import loop
from opweave.core.bodies import make_body
from opweave.core.graph import Desc
from opweave.ops.recorder import Recorder

STEPS, ROWS, SIZE = 20, 3, 8
MATRIX, ROW = Desc("float32", (ROWS, SIZE)), Desc("float32", (SIZE,))
SQUARE = Desc("float32", (SIZE, SIZE))


def product(b: Any, h: Any, x: Any, w: Any) -> Sequence[Any]:
    """A network with one gate, in whose output an axis is gone."""
    new = b.tanh(b.gemm(h, w, b_transpose=True) + x)
    return [new, b.reshape(b.matmul(new, b.reshape(x, [SIZE, 1])), [ROWS])]


def numpy_product(h: Any, x: Any, w: Any) -> Sequence[Any]:
    new = np.tanh(h @ w.T + x)
    return [new, new @ x]


def normalised(b: Any, h: Any, x: Any, w: Any) -> Sequence[Any]:
    new = b.softmax(b.reduce_mean(h, axes=[1], keep_dimensions=True) + b.matmul(h, w) * x, axis=1)
    return [new, b.transpose(b.layer_normalization(new))]


def numpy_normalised(h: Any, x: Any, w: Any) -> Sequence[Any]:
    e = np.exp(h.mean(1, keepdims=True) + h @ w * x)
    new = e / e.sum(1, keepdims=True)
    normal = (new - new.mean(1, keepdims=True)) / np.sqrt(new.var(1, keepdims=True) + 1e-5)
    return [new, normal.T]


def window(b: Any, h: Any, x: Any, w: Any) -> Sequence[Any]:
    """A row is shifted in; the step reads the oldest one, and the diagonal of a matrix."""
    new = b.concat([b.slice(h, [1, 0], [ROWS - 1, SIZE]), b.reshape(x, [1, SIZE])], 0)
    diagonal = b.reshape(b.slice(b.reshape(w, [SIZE * SIZE]), [0], [SIZE * SIZE], strides=[SIZE + 1]), [SIZE])
    oldest = b.gather(new, b.constant("int32", 0), axis=0)
    return [new, b.reduce_max(new, axes=[0]) - oldest * diagonal]


def numpy_window(h: Any, x: Any, w: Any) -> Sequence[Any]:
    new = np.concatenate([h[1:], x[None]])
    return [new, new.max(0) - new[0] * np.diag(w)]


STEP_PAIRS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "product": (product, numpy_product),
    "normalised": (normalised, numpy_normalised),
    "window": (window, numpy_window),
}


@pytest.fixture
def at_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MIN_ELEMENTS", "MIN_OPERATIONS"):
        monkeypatch.setattr(bodies, name, 0)


@pytest.mark.usefixtures("at_any_size")
@pytest.mark.parametrize("backward", [(0, 0), (1, 1)])
@pytest.mark.parametrize("name", STEP_PAIRS)
@pytest.mark.parametrize("device", [name for name in DEVICES if not name.startswith("reference")])
def test_loop_is_one_kernel(device: str, name: str, backward: tuple[int, int]) -> None:
    if device.startswith("cpu"):
        pytest.importorskip("halide", reason="halide is not installed")
    step, numpy_step = STEP_PAIRS[name]
    rng = np.random.default_rng(1)
    h, x, w = (rng.normal(size=size).astype("float32") / 2 for size in (MATRIX.shape, (STEPS, SIZE), SQUARE.shape))
    context = context_on(device)
    b = ow.MLGraphBuilder(context)
    feed = {"h": h, "x": x, "w": w}
    inputs = [b.input(key, "float32", array.shape) for key, array in feed.items()]
    repeated = make_body(Recorder(), [MATRIX, ROW, SQUARE], step)
    directions = {"backward": [backward[0]], "stacked_backward": [backward[1]]}
    results = loop(b, [inputs[0]], [inputs[1]], [inputs[2]], body=repeated, length=STEPS, **directions)
    graph = b.build({f"y{k}": y for k, y in enumerate(results)})
    if device == "cpu (onnxruntime)" or "gpu" in device:
        assert "recur" in graph.explain()
    ours = context.compute(graph, feed)
    state, elements = h.astype("float64"), []
    for row in x[::-1] if backward[0] else x:
        state, element = numpy_step(state, row, w)
        elements.append(element)
    stacked = np.stack(elements[::-1] if backward[1] else elements)
    for result, wanted in zip(ours.values(), [state, stacked], strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("at_any_size")
@pytest.mark.parametrize("device", DEVICES)
def test_loop_of_states_alone(device: str) -> None:
    """Nothing is scanned, and the number of the iteration is not read: Newton's square root."""
    step = make_body(Recorder(), [ROW, ROW], lambda b, x, a: [(x + a / x) * b.constant("float32", 0.5)])
    context = context_on(device)
    b = ow.MLGraphBuilder(context)
    a = np.linspace(0.5, 4, SIZE, dtype="float32")
    x, y = b.input("x", "float32", [SIZE]), b.input("a", "float32", [SIZE])
    (root,) = loop(b, [x], [], [y], body=step, length=12)
    (result,) = context.compute(b.build({"y": root}), {"x": np.ones(SIZE, "float32"), "a": a}).values()
    np.testing.assert_allclose(result, np.sqrt(a), rtol=1e-5)


def test_products_stay_with_the_engine_where_a_loop_gains_nothing() -> None:
    """A product and an activation take the engine as long as a compiled loop."""
    context = context_on("cpu (onnxruntime)")
    b = ow.MLGraphBuilder(context)
    inputs = [
        b.input(*item) for item in (("h", "float32", [64, 32]), ("x", "float32", [400, 32]), ("w", "float32", [32, 32]))
    ]
    descs = [Desc("float32", (64, 32)), Desc("float32", (32,)), Desc("float32", (32, 32))]
    step = make_body(Recorder(), descs, lambda b, h, x, w: [b.tanh(b.matmul(h, w) + x)])
    (last,) = loop(b, [inputs[0]], [inputs[1]], [inputs[2]], body=step, length=400)
    assert "recur" not in b.build({"y": last}).explain()
