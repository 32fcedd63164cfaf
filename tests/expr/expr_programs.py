"""Hypothesis strategies that make expressions, through the functions that users call.

A `Case` holds a function of a space of functions (`opweave.expr`, or `expr_plain.Space`, whose arrays have values) and of
arrays, and operands for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import opweave.expr
from opweave.core.dtypes import ANY, FLOATS, INFO, SIGNED
from opweave.core.graph import Desc
from opweave.expr import ir, trace

INTEGERS = tuple(t for t in ANY if t not in FLOATS)
SIZES = (1, 2, 3, 5, 7)


@dataclass
class Case:
    """An expression and operands for it.

    Attributes:
        function: takes a space and an array for each operand.
        arrays: the operands.
        exact: whether each function in it is rounded correctly everywhere, so that all engines agree on every bit
            (but the sign of zero).
        source: for messages.
    """

    function: Callable[..., Any]
    arrays: tuple[np.ndarray, ...]
    exact: bool
    source: Any

    def program(self, name: str = "case") -> opweave.expr.ir.Formula:
        descs = [Desc(array.dtype.name, array.shape) for array in self.arrays]
        return opweave.expr.trace(lambda *arrays: self.function(opweave.expr, *arrays), name, descs)

    def __repr__(self) -> str:
        return f"Case({self.source}, {[f'{a.dtype}{list(a.shape)} {a.tolist()}' for a in self.arrays]})"


# ---------------------------------------------------------------------------------------------------------------------
# Operands


def elements(data_type: str) -> st.SearchStrategy[Any]:
    """Numbers of a data type; special ones often."""
    info = INFO[data_type]
    if info.kind == "f":
        limits = np.finfo(data_type)
        tiny, large, least = (float(v) for v in (limits.smallest_normal, limits.max, limits.smallest_subnormal))
        special = [0.0, -0.0, 1.0, -1.0, 0.5, np.inf, -np.inf, np.nan, tiny, -tiny, least, large, -large, 2.5]
        return st.sampled_from(special) | st.floats(width=info.bits) | st.integers(-40, 40).map(lambda v: v / 8)
    special = [v for v in (0, 1, 2, 7, -1, -2, info.lowest, info.highest, info.highest - 1) if v >= info.lowest]
    return st.sampled_from(special) | st.integers(info.lowest, info.highest)


def grid(data_type: str, specials: bool = False) -> st.SearchStrategy[Any]:
    """Small numbers whose sums are exact in any order."""
    if data_type in FLOATS:
        numbers = st.integers(-32, 32).map(lambda v: v / 8)
        return numbers | st.sampled_from([np.nan, np.inf]) if specials else numbers
    return st.integers(max(INFO[data_type].lowest, -9), 9)


@st.composite
def shapes(draw: st.DrawFn, least: int = 0, most: int = 3) -> tuple[int, ...]:
    return tuple(draw(st.lists(st.sampled_from(SIZES), min_size=least, max_size=most)))


@st.composite
def broadcasting(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that stretches to `shape`."""
    own = shape[draw(st.integers(0, len(shape))) :]
    return tuple(draw(st.sampled_from([1, size])) for size in own)


# ---------------------------------------------------------------------------------------------------------------------
# Point-wise expressions: trees, as tuples

EXACT = ("add", "sub", "mul", "div", "max", "min", "abs", "neg", "sqrt", "reciprocal", "where")
STEPS = ("sign", "ceil", "floor", "round_even")  # jump, so that what goes in must be exact
SMOOTH = ("exp", "log", "sin", "cos", "tan", "erf", "sigmoid", "tanh", "pow")
GENTLE = ("mul", "div", "abs", "neg", "sqrt", "reciprocal", "where")  # keep relative errors small
WHOLE = (
    *("add", "sub", "mul", "div", "pow", "max", "min", "floor_div", "mod", "where"),
    *("bit_and", "bit_or", "bit_xor", "shift_left", "shift_right"),
)
COMPARISONS = ("equal", "not_equal", "greater", "greater_or_equal", "lesser", "lesser_or_equal")
ONE = {
    "abs",
    "neg",
    "sqrt",
    "reciprocal",
    "sign",
    "ceil",
    "floor",
    "round_even",
    "is_nan",
    "is_infinite",
    "logical_not",
}
ONE |= set(SMOOTH) - {"pow"}
ZERO_MATTERS = {"div", "reciprocal", "pow"}  # they tell 0 from -0; max(0, -0) may be either


def build(tree: tuple[Any, ...], space: Any, arrays: tuple[Any, ...]) -> Any:
    """What a tree stands for."""
    kind, *rest = tree
    if kind == "x":
        return arrays[rest[0]]
    if kind == "number":
        return rest[0]
    if kind == "cast":
        value = build(rest[1], space, arrays)
        return space.not_equal(value, 0) if rest[0] == "bool" else space.cast(value, rest[0])
    parts = [build(part, space, arrays) for part in rest[1]]
    if kind == "call" and rest[0] == "where":
        return space.where(*parts)
    bits = {"bit_and", "bit_or", "bit_xor", "shift_left", "shift_right", "floor_div", "mod"}
    if rest[0] in bits and space is opweave.expr:  # operators only
        return opweave.expr.array.apply(rest[0], *parts)
    return getattr(space, rest[0])(*parts)


@dataclass(frozen=True)
class _Growth:
    """Draws trees over operands of the given types."""

    draw: st.DrawFn
    types: tuple[str, ...]
    decomposable: bool = False

    def tree(self, type: str, depth: int, exact: bool = True, signed_zero: bool = False) -> tuple[Any, ...]:
        """A tree of a type. `signed_zero`: the sign of zero must be certain."""
        if depth == 0 or self.draw(st.integers(0, 5)) == 0:
            return self._leaf(type)
        if type == "bool":
            return self._condition(depth - 1)
        if self.draw(st.integers(0, 5)) == 0:
            source = self.draw(st.sampled_from([t for t in (*ANY, "bool") if t != type]))
            keep = exact or type not in FLOATS or source not in FLOATS or type == "float16"
            return "cast", type, self.tree(source, depth - 1, keep, signed_zero)
        if type in FLOATS:
            return self._of_floats(type, depth - 1, exact, signed_zero)
        names = WHOLE if type not in SIGNED else (*WHOLE, "abs", "neg", "sign")
        if self.decomposable:
            names = tuple(n for n in names if not n.startswith(("bit", "shift")))  # type: ignore[assignment]
        return self._call(self.draw(st.sampled_from(names)), type, depth - 1, True, False)

    def _of_floats(self, type: str, depth: int, exact: bool, signed_zero: bool) -> tuple[Any, ...]:
        names = (*EXACT, *STEPS) if exact else (*GENTLE, *SMOOTH, *SMOOTH)
        names = tuple(n for n in names if not (signed_zero and n in ("max", "min")))  # type: ignore[assignment]
        name = self.draw(st.sampled_from(names))
        return self._call(name, type, depth, exact or name not in GENTLE, signed_zero or name in ZERO_MATTERS)

    def _call(self, name: str, type: str, depth: int, exact: bool, signed_zero: bool) -> tuple[Any, ...]:
        first = self.tree(type, depth, exact, signed_zero)
        if name in ONE:
            return "call", name, (first,)
        if self.draw(st.integers(0, 3)) == 0:
            second: tuple[Any, ...] = ("number", self.draw(grid(type) if type in FLOATS else elements(type)))
        else:
            second = self.tree(type, depth, exact, signed_zero)
        if name == "where":
            return "call", name, (self.tree("bool", depth), first, second)
        return "call", name, (first, second)

    def _condition(self, depth: int) -> tuple[Any, ...]:
        name = self.draw(
            st.sampled_from(
                (*COMPARISONS, "is_nan", "is_infinite", "logical_and", "logical_or", "logical_xor", "logical_not")
            )
        )
        if name.startswith("logical"):
            count = 1 if name in ONE else 2
            return "call", name, tuple(self.tree("bool", depth) for _ in range(count))
        of = FLOATS if name.startswith("is_") else (*ANY, "bool")
        type = self.draw(st.sampled_from(of))
        count = 1 if name in ONE else 2
        return "call", name, tuple(self.tree(type, depth) for _ in range(count))

    def _leaf(self, type: str) -> tuple[Any, ...]:
        own = [k for k, t in enumerate(self.types) if t == type]
        if own:
            return "x", self.draw(st.sampled_from(own))
        k = self.draw(st.integers(0, len(self.types) - 1))
        return "cast", type, ("x", k)


@st.composite
def pointwise(draw: st.DrawFn, *, exact: bool | None = None, depth: int = 4, decomposable: bool = False) -> Case:
    """Functions of elements of any data types, of shapes that broadcast; one to three results."""
    exact = draw(st.booleans()) if exact is None else exact
    shape = draw(shapes())
    types = tuple(draw(st.lists(st.sampled_from(ANY), min_size=1, max_size=3)))
    arrays = tuple(
        draw(npst.arrays(t, shape if k == 0 else draw(broadcasting(shape)), elements=elements(t)))
        for k, t in enumerate(types)
    )
    growth = _Growth(draw, types, decomposable)
    wanted = st.sampled_from((*ANY, "bool") if exact else FLOATS)
    trees = tuple(growth.tree(draw(wanted), depth, exact) for _ in range(draw(st.integers(1, 3))))

    def function(space: Any, *operands: Any) -> Any:
        return tuple(build(tree, space, operands) for tree in trees)

    return Case(function, arrays, exact, trees)


# ---------------------------------------------------------------------------------------------------------------------
# Index form


@st.composite
def moved(draw: st.DrawFn) -> Case:
    """Elements at affine positions: permutations, strides, reversals, diagonals, constants."""
    data_type = draw(st.sampled_from(ANY))
    result = draw(shapes(1, 3))
    rank = draw(st.integers(1, 3))
    indices, sizes = [], []
    for _ in range(rank):
        factors = {k: draw(st.sampled_from([0, 0, 1, 1, 2, -1])) for k in range(len(result))}
        low = sum(min(0, f * (result[k] - 1)) for k, f in factors.items())
        high = sum(max(0, f * (result[k] - 1)) for k, f in factors.items())
        before, after = draw(st.integers(0, 2)), draw(st.integers(0, 2))
        indices.append((before - low, tuple((k, f) for k, f in factors.items() if f)))
        sizes.append(high - low + before + after + 1)

    def function(space: Any, x: Any) -> Any:
        def element(*position: Any) -> Any:
            at = []
            for constant, factors in indices:
                index: Any = constant
                for k, factor in factors:
                    index = index + position[k] * factor
                at.append(index)
            return x[tuple(at)]

        return space.compute(result, element)

    array = np.arange(np.prod(sizes)).astype(data_type).reshape(sizes)
    return Case(function, (array,), True, ("moved", result, indices))


@st.composite
def windows(draw: st.DrawFn) -> Case:
    """Reductions of windows, with what lies outside clamped or padded."""
    data_type = draw(st.sampled_from(ANY))
    h, w = draw(shapes(2, 2))
    kh, kw, dy, dx = (draw(st.integers(*r)) for r in ((1, 3), (1, 3), (-2, 2), (-2, 2)))
    reduction = draw(st.sampled_from(["sum", "max", "min"]))
    pad = draw(st.none() | st.sampled_from([0, 1, 3]))
    stored = draw(st.booleans())

    def function(space: Any, x: Any, k: Any) -> Any:
        doubled = x + x
        source = space.store(doubled) if stored else doubled

        def element(i: Any, j: Any) -> Any:
            def one(a: Any, b: Any) -> Any:
                access = source.clamped if pad is None else source.padded(pad)
                return access[i + a + dy, j * 2 + b + dx] * k[a, b]

            return getattr(space, f"{reduction}_over")((kh, kw), one)

        return space.compute((h, w), element)

    image = draw(npst.arrays(data_type, (h, w + 1), elements=grid(data_type)))
    taps = draw(npst.arrays(data_type, (kh, kw), elements=grid(data_type)))
    source = ("windows", reduction, pad, dy, dx, stored)
    return Case(function, (image, taps), True, source)


@st.composite
def reductions(draw: st.DrawFn, *, specials: bool = True) -> Case:
    """Reductions of whole arrays over axes, and what becomes of them."""
    data_type = draw(st.sampled_from(ANY))
    shape = draw(shapes(1, 3))
    axes = draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, unique=True))
    name = draw(st.sampled_from(["sum", "max", "min", "product", "arg_max", "arg_min"]))
    keep = draw(st.booleans())
    back = keep and draw(st.booleans())

    def function(space: Any, x: Any) -> Any:
        if name.startswith("arg_"):
            return getattr(space, name)(x, axes[0], keep_dimensions=keep)
        reduced = getattr(space, f"reduce_{name}")(x, axes, keep_dimensions=keep)
        return (space.max(x, reduced), reduced) if back else reduced

    ordered = name in ("max", "min", "arg_max", "arg_min") and specials
    array = draw(npst.arrays(data_type, shape, elements=grid(data_type, ordered)))
    return Case(function, (array,), name != "product", ("reduction", name, axes, keep, back))


@st.composite
def gathers(draw: st.DrawFn) -> Case:
    """Rows at positions that are data, in any integer type."""
    data_type, index_type = draw(st.sampled_from(ANY)), draw(st.sampled_from(INTEGERS))
    n, m = draw(shapes(2, 2))
    shape = draw(shapes(1, 2))
    pad = draw(st.booleans())

    def function(space: Any, table: Any, indices: Any) -> Any:
        access = table.padded(3) if pad else table.clamped
        return space.compute((*shape, m), lambda *p: access[indices[p[:-1]], p[-1]])

    table = np.arange(n * m).reshape(n, m).astype(data_type)
    indices = draw(npst.arrays(index_type, shape, elements=elements(index_type) | grid(index_type)))
    return Case(function, (table, indices), True, ("gather", pad))


@st.composite
def positions(draw: st.DrawFn) -> Case:
    """Triangles, flattened arrays, and numbers of positions."""
    data_type = draw(st.sampled_from(ANY))
    n, m = draw(shapes(2, 2))
    kind = draw(st.sampled_from(["triangle", "flat", "ranks"]))

    def function(space: Any, x: Any) -> Any:
        if kind == "triangle":
            number = lambda i, j: space.cast(i * m + j, data_type)  # noqa: E731
            return space.compute((n, m), lambda i, j: space.where(i < j, x[i, j], number(i, j)))
        if kind == "flat":
            return space.compute((n * m,), lambda i: x[i // m, i % m])
        below = lambda i, j: space.sum_over(n, lambda r: space.cast(x[r, j] < x[i, j], "int32"))  # noqa: E731
        return space.compute((n, m), below), space.compute((n,), lambda i: space.max_over(m, lambda r: i * r))

    array = draw(npst.arrays(data_type, (n, m), elements=grid(data_type)))
    return Case(function, (array,), True, ("positions", kind))


def index_form() -> st.SearchStrategy[Case]:
    """Expressions in index form."""
    return moved() | windows() | reductions() | gathers() | positions()


def programs() -> st.SearchStrategy[Case]:
    """All kinds of expressions."""
    return pointwise() | index_form()


def program_of(function: Callable[..., Any], *arrays: np.ndarray) -> ir.Formula:
    """Trace a function of arrays."""
    return trace(function, "sample", [Desc(a.dtype.name, a.shape) for a in arrays])  # type: ignore[arg-type]
