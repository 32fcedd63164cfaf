"""Recurrences, and plain loops in float64 that they must equal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import opweave as ow

rng = np.random.default_rng(0)

Array = NDArray[Any]


def normal(*shape: int) -> Array:
    return rng.standard_normal(shape).astype("float32")


# Each of these has a plain loop in float64 below.


@ow.recurrence
def smooth(level: Any, x: Any, *, share: float = 0.5) -> Any:
    """Follow a signal slowly."""
    level = level + (x - level) * share
    return level, level


@ow.recurrence(states="h", constants="a")
def scan(h: Any, x: Any, dt: Any, a: Any, b: Any, c: Any) -> Any:
    d, n = h.shape
    new = ow.expr.compute((d, n), lambda i, k: ow.expr.exp(dt[i] * a[i, k]) * h[i, k] + dt[i] * b[k] * x[i])
    return new, ow.expr.compute((d,), lambda i: ow.expr.sum_over(n, lambda k: new[i, k] * c[k]))


@ow.recurrence
def delta(s: Any, q: Any, k: Any, v: Any, beta: Any) -> Any:
    heads, rows, size = s.shape
    stored = ow.expr.compute((heads, rows), lambda h, i: ow.expr.sum_over(size, lambda j: s[h, i, j] * k[h, j]))
    new = ow.expr.compute(s.shape, lambda h, i, j: s[h, i, j] + beta[h] * (v[h, i] - stored[h, i]) * k[h, j])
    return new, ow.expr.compute((heads, rows), lambda h, i: ow.expr.sum_over(size, lambda j: new[h, i, j] * q[h, j]))


@ow.recurrence(states=("a", "b"))
def fibonacci(a: Any, b: Any, x: Any) -> Any:
    return b, a + b + x


@ow.recurrence(constants="w")
def network(h: Any, x: Any, w: Any) -> Any:
    batches, size = h.shape
    new = ow.expr.compute(
        (batches, size),
        lambda i, j: ow.expr.tanh(x[i, j] + ow.expr.sum_over(size, lambda k: h[i, k] * w[j, k])),
    )
    return new, new


@ow.recurrence
def window(h: Any, x: Any) -> Any:
    """Shift a value in: elements read their neighbours."""
    (n,) = h.shape
    new = ow.expr.compute((n,), lambda i: ow.expr.where(i < n - 1, h.clamped[i + 1], x))
    return new, ow.expr.reduce_max(new) - ow.expr.reduce_min(h)


@ow.recurrence
def attention(s: Any, q: Any, k: Any, v: Any, decay: Any) -> Any:
    """Linear attention; the queries of a group of heads read one state."""
    groups, size, values = s.shape
    new = ow.expr.compute(
        s.shape, lambda g, i, j: s[g, i, j] * ow.expr.exp(-ow.expr.abs(decay[g, 0])) + k[g, i] * v[g, j]
    )
    shape = (groups, q.shape[1], values)
    return new, ow.expr.compute(shape, lambda g, h, j: ow.expr.sum_over(size, lambda i: new[g, i, j] * q[g, h, i]))


@ow.recurrence(states=("h", "total", "count"))
def moments(h: Any, total: Any, count: Any, x: Any, w: Any) -> Any:
    """States with an axis of a row and without one; outputs of rows, of their elements, and of elements before the step."""
    rows, size = h.shape
    new = ow.expr.compute((rows, size), lambda i, k: h[i, k] * 0.5 + x[i] * w[k] - total[i] * 0.1)
    highest = ow.expr.compute((rows,), lambda i: ow.expr.max_over(size, lambda k: new[i, k]))
    total = ow.expr.compute(
        (rows,), lambda i: total[i] * 0.5 + ow.expr.sum_over(size, lambda k: new[i, k] * w[k]) / (1 + highest[i] ** 2)
    )
    next_count = ow.expr.compute((rows,), lambda i: count[i] + ow.expr.cast(highest[i] > 0, "int32"))
    return new, total, next_count, highest, new * 2, h, count


@ow.recurrence
def hashes(h: Any, x: Any) -> Any:
    """Unsigned integers, whose products and sums wrap around, and positions in a row."""
    rows, size = h.shape
    new = ow.expr.compute((rows, size), lambda i, k: h[i, k] * 31 + x[i] + ow.expr.cast(k, "uint32"))
    return new, ow.expr.compute((rows,), lambda i: ow.expr.sum_over(size, lambda k: new[i, k]))


def numpy_smooth(state: Sequence[Array], x: Array, share: float = 0.5) -> tuple[Sequence[Array], Sequence[Array]]:
    level = state[0] + (x - state[0]) * share
    return [level], [level]


def numpy_scan(state: Sequence[Array], x: Array, dt: Array, a: Array, b: Array, c: Array) -> Any:
    h = np.exp(dt[:, None] * a) * state[0] + dt[:, None] * b * x[:, None]
    return [h], [h @ c]


def numpy_delta(state: Sequence[Array], q: Array, k: Array, v: Array, beta: Array) -> Any:
    (s,) = state
    error = beta[:, None] * (v - np.einsum("hij,hj->hi", s, k))
    s = s + error[:, :, None] * k[:, None, :]
    return [s], [np.einsum("hij,hj->hi", s, q)]


def numpy_attention(state: Sequence[Array], q: Array, k: Array, v: Array, decay: Array) -> Any:
    s = state[0] * np.exp(-np.abs(decay))[:, :, None] + k[:, :, None] * v[:, None]
    return [s], [np.einsum("gij,ghi->ghj", s, q)]


def numpy_moments(state: Sequence[Array], x: Array, w: Array) -> Any:
    h, total, count = state
    new = h * 0.5 + x[:, None] * w - total[:, None] * 0.1
    highest = new.max(1)
    last = [new, total * 0.5 + new @ w / (1 + highest**2), count + (highest > 0)]
    return last, [highest, new * 2, h, count]


def numpy_hashes(state: Sequence[Array], x: Array) -> Any:
    h = state[0] * np.uint32(31) + x[:, None] + np.arange(state[0].shape[1], dtype="uint32")
    return [h], [h.sum(1, dtype="uint32")]


def numpy_fibonacci(state: Sequence[Array], x: Array) -> Any:
    a, b = state
    return [b, a + b + x], []


def numpy_network(state: Sequence[Array], x: Array, w: Array) -> Any:
    h = np.tanh(x + state[0] @ w.T)
    return [h], [h]


def numpy_window(state: Sequence[Array], x: Array) -> Any:
    (h,) = state
    new = np.append(h[1:], x)
    return [new], [new.max() - h.min()]


def loop(
    step: Callable[..., Any],
    states: int,
    constants: Sequence[int],
    operands: Sequence[Array],
    axis: int = 0,
    direction: str = "forward",
    **attributes: Any,
) -> list[Array]:
    """A plain loop in float64, or in the type of integers: the witness."""
    wide = [o.astype("float64") if o.dtype.kind == "f" else o for o in operands]
    state, rest = wide[:states], wide[states:]
    sequences = [value if k in constants else np.moveaxis(value, axis, 0) for k, value in enumerate(rest)]
    length = next(len(value) for k, value in enumerate(sequences) if k not in constants)
    order = range(length) if direction == "forward" else range(length - 1, -1, -1)
    collected: dict[int, list[Array]] = {}
    for t in order:
        slices = [value if k in constants else value[t] for k, value in enumerate(sequences)]
        state, outputs = step(state, *slices, **attributes)
        collected[t] = outputs
    results = []
    for number in range(len(collected[0]) if collected else 0):
        results.append(np.moveaxis(np.stack([collected[t][number] for t in range(length)]), 0, axis))
    return [*state, *results]


def unit(array: Array) -> Array:
    return array / np.linalg.norm(array, axis=-1, keepdims=True)


CASES: dict[str, tuple[Any, Any, int, tuple[int, ...], Callable[[int], list[Array]]]] = {
    "smooth": (smooth, numpy_smooth, 1, (), lambda t: [normal(5, 7), normal(t, 5, 7)]),
    "broadcast": (smooth, numpy_smooth, 1, (), lambda t: [normal(5, 7), normal(t, 5, 1)]),
    "scalar": (smooth, numpy_smooth, 1, (), lambda t: [normal(), normal(t)]),
    "large": (smooth, numpy_smooth, 1, (), lambda t: [normal(300, 33), normal(t, 300, 33)]),
    "scan": (
        *(scan, numpy_scan, 1, (2,)),
        lambda t: [normal(37, 8), normal(t, 37), abs(normal(t, 37)), -abs(normal(37, 8)), normal(t, 8), normal(t, 8)],
    ),
    "square": (  # as many rows as elements in a row
        *(scan, numpy_scan, 1, (2,)),
        lambda t: [normal(8, 8), normal(t, 8), abs(normal(t, 8)), -abs(normal(8, 8)), normal(t, 8), normal(t, 8)],
    ),
    "ones": (  # axes of size 1, which rows do not have
        *(scan, numpy_scan, 1, (2,)),
        lambda t: [normal(1, 1), normal(t, 1), abs(normal(t, 1)), -abs(normal(1, 1)), normal(t, 1), normal(t, 1)],
    ),
    "column": (
        *(scan, numpy_scan, 1, (2,)),
        lambda t: [normal(7, 1), normal(t, 7), abs(normal(t, 7)), -abs(normal(7, 1)), normal(t, 1), normal(t, 1)],
    ),
    "odd": (
        *(scan, numpy_scan, 1, (2,)),
        lambda t: [normal(5, 17), normal(t, 5), abs(normal(t, 5)), -abs(normal(5, 17)), normal(t, 17), normal(t, 17)],
    ),
    "attention": (
        *(attention, numpy_attention, 1, ()),
        lambda t: [normal(3, 12, 5), normal(t, 3, 2, 12), normal(t, 3, 12), normal(t, 3, 5), normal(t, 3, 1)],
    ),
    "moments": (
        *(moments, numpy_moments, 3, ()),
        lambda t: [normal(6, 24), normal(6), np.arange(6, dtype="int32"), normal(t, 6), normal(t, 24) / 4],
    ),
    "hashes": (
        *(hashes, numpy_hashes, 1, ()),
        lambda t: [np.arange(48, dtype="uint32").reshape(6, 8), np.arange(6 * t, dtype="uint32").reshape(t, 6)],
    ),
    "delta": (
        *(delta, numpy_delta, 1, ()),
        lambda t: [normal(3, 10, 16), normal(t, 3, 16), unit(normal(t, 3, 16)), normal(t, 3, 10), normal(t, 3) % 1],
    ),
    "fibonacci": (
        *(fibonacci, numpy_fibonacci, 2, ()),
        lambda t: [np.int32([1, 2, 3]), np.int32([1, 5, 7]), np.arange(3 * t, dtype="int32").reshape(t, 3)],
    ),
    "network": (network, numpy_network, 1, (1,), lambda t: [normal(3, 24), normal(t, 3, 24), normal(24, 24) * 0.2]),
    "window": (window, numpy_window, 1, (), lambda t: [normal(5), normal(t)]),
}


def assert_close(results: Sequence[Any], expected: Sequence[Array], tolerance: float = 2e-4) -> None:
    assert len(results) >= len(expected)  # without a step, the loop has no outputs
    for result, value in zip(results, expected, strict=False):
        assert np.asarray(result).shape == value.shape
        np.testing.assert_allclose(np.asarray(result), value, rtol=tolerance, atol=tolerance)


# Steps that read and write in other ways, for states of rank 2 -------------------------------------------------------


def state_alone(h: Any, x: Any) -> Any:
    return h + x


def comparison(h: Any, x: Any) -> Any:
    return ow.expr.max(h, x), h > x


def reductions(h: Any, x: Any) -> Any:
    new = h * 0.5 + x
    return new, ow.expr.reduce_sum(new), ow.expr.arg_max(new, -1), ow.expr.reduce_max(new, [0])


def stored(h: Any, x: Any) -> Any:
    product = ow.expr.store(h * x)
    new = ow.expr.compute(h.shape, lambda i, j: product.clamped[i, j + 1] - h[i, j])
    return new, new


def normalised(h: Any, x: Any) -> Any:
    new = h + x
    new = new / ow.expr.sqrt(ow.expr.reduce_sum(new * new, [1], keep_dimensions=True) + 1e-3)
    return new, ow.expr.reduce_mean(new)


def columns(h: Any, x: Any) -> Any:
    """Elements read others along the first axis."""
    rows, _ = h.shape
    new = ow.expr.compute(
        h.shape, lambda i, j: ow.expr.tanh(ow.expr.sum_over(rows, lambda k: h[k, j] * x[i, j]) + h[(i + 1) % rows, j])
    )
    return new, new


def transposed(h: Any, x: Any) -> Any:
    rows, width = h.shape
    new = h * 0.5 + x
    return new, ow.expr.compute((width, rows), lambda j, i: new[i, j])


def replaced(h: Any, x: Any) -> Any:
    return x, h


def positions(h: Any, x: Any) -> Any:
    new = ow.expr.compute(h.shape, lambda i, j: h[i, j] + x[i, j] * ow.expr.cast(i, "float32"))
    return new, new


def checked(h: Any, x: Any) -> Any:
    new = h + x
    return new, ow.expr.compute((3,), lambda i: new.checked[ow.expr.cast(i, "int32"), 0])


STEPS = {
    step.__name__: step
    for step in (
        *(state_alone, comparison, reductions, stored, normalised, columns),
        *(transposed, replaced, positions, checked),
    )
}
