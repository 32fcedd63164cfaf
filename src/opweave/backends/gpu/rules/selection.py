"""Selection of elements: the largest along an axis, and boxes that do not overlap."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TypeAlias

from ....composites import selection as composites
from ....core.dtypes import FLOATS, DataType
from ....expr import Traced, cast, clamp, compute, equal, greater, is_nan, lesser, logical_and, logical_or, sum_over, where
from ....expr.array import as_array
from ....expr.ir import Cast
from ..table import gpu
from .positions import reshape_array
from .results import Scatter, Staged, Stages

CHUNK = 512
"""Fewest elements whose ranks are counted together: the comparisons of a chunk grow with its square. An estimate."""

SHARE = 4
"""A chunk has at least SHARE * k elements, so that each level leaves at most 1 / SHARE of them."""

Element: TypeAlias = Callable[..., Traced]


@gpu.lower(composites.top_k)
def _(input: Traced, k: int, axis: int, largest: bool, index_type: DataType) -> Staged:
    return Staged(lambda stages: _top_k(stages, input, k, axis, largest, index_type))


def _top_k(stages: Stages, input: Traced, k: int, axis: int, largest: bool, index_type: DataType) -> list[Traced]:
    """Count the elements before each one, in chunks, and keep the first `k` of each chunk until one chunk is left."""
    shape, size = input.shape, input.shape[axis]
    outer, inner = prod(shape[:axis]), prod(shape[axis + 1 :])
    lines = stages.store(reshape_array(input, [outer, size, inner]), "the lines")
    values, places, count = lines, None, size
    while True:
        chunk = min(count, max(CHUNK, SHARE * k))
        chunks = -(-count // chunk)
        places = _first_of_chunks(stages, values, places, count, chunk, k, largest)
        if chunks == 1:
            break
        count, old = chunks * k, places
        # Rows of the candidates: [outer, chunks * k, inner].
        joined = compute((outer, count, inner), lambda o, p, i, old=old: old[o, p // k, p % k, i])
        places = stages.store(joined, "the places of candidates")
        best = places
        values = stages.store(
            compute((outer, count, inner), lambda o, p, i, best=best: lines[o, _position(best[o, p, i], size), i]),
            "the candidates",
        )
    final = (*shape[:axis], k, *shape[axis + 1 :])
    first = compute((outer, k, inner), lambda o, p, i: places[o, 0, p, i])
    positions = stages.store(reshape_array(cast(first, index_type), final), "the positions")
    chosen = compute((outer, k, inner), lambda o, p, i: lines[o, _position(places[o, 0, p, i], size), i])
    return [stages.store(reshape_array(chosen, final), "the elements"), positions]


def _position(place: Traced, size: int) -> Traced:
    """A place read from memory as a position in [0, size); -1, for no element, becomes 0."""
    return Traced((), Cast(clamp(place, 0, size - 1).body, "index"))


def _first_of_chunks(
    stages: Stages, values: Traced, places: Traced | None, count: int, chunk: int, k: int, largest: bool
) -> Traced:
    """The places of the first `k` elements of each chunk, in order [outer, chunks, k + 1, inner], -1 for none.

    `values` are [outer, count, inner]. Their `places` in the input are None if they are their own positions. The last row of
    the result holds places that do not count.
    """
    outer, _, inner = values.shape
    chunks = -(-count // chunk)
    is_exact = chunks * chunk == count

    def position(c: Traced, r: Traced) -> Traced:
        p = c * chunk + r
        return p if is_exact else clamp(p, 0, count - 1)

    def exists(o: Traced, c: Traced, r: Traced, i: Traced) -> Traced | None:
        inside = None if is_exact else c * chunk + r < count
        if places is None:
            return inside
        known = places[o, position(c, r), i] >= 0
        return known if inside is None else logical_and(inside, known)

    def rank(o: Traced, c: Traced, r: Traced, i: Traced) -> Traced:
        this = values[o, position(c, r), i]

        def is_before(s: Traced) -> Traced:
            before = _is_before(values[o, position(c, s), i], s, this, r, largest)
            valid = exists(o, c, s, i)
            before = before if valid is None else logical_and(before, valid)
            return where(before, as_array(1, "int32"), 0)

        return sum_over(chunk, is_before)

    ranks = stages.store(compute((outer, chunks, chunk, inner), rank), "the ranks")
    rows = k + 1

    def at(o: Traced, c: Traced, r: Traced, i: Traced) -> tuple[Traced, ...]:
        row, valid = ranks[o, c, r, i], exists(o, c, r, i)
        return o, c, _position(row if valid is None else where(valid, row, k), rows), i

    def place(o: Traced, c: Traced, r: Traced, i: Traced) -> Traced:
        p = position(c, r)
        return cast(p, "int32") if places is None else places[o, p, i]

    none = compute((outer, chunks, rows, inner), lambda *_: as_array(-1, "int32"))
    target = stages.array("int32", (outer, chunks, rows, inner))
    return stages.add(Scatter(none, (outer, chunks, chunk, inner), at, place), target, "the places")


def _is_before(that: Traced, s: Traced, this: Traced, r: Traced, largest: bool) -> Traced:
    """Whether `that` element, at `s`, comes before `this`, at `r`. NaN counts as larger than positive infinity."""
    beyond, same = (greater if largest else lesser)(that, this), equal(that, this)
    if that.data_type in FLOATS:
        # Comparisons with NaN are not defined on all GPUs.
        that_is_nan, this_is_nan = is_nan(that), is_nan(this)
        both = logical_and(that_is_nan, this_is_nan)
        any_nan = logical_or(that_is_nan, this_is_nan)
        same = where(any_nan, both, same)
        only = logical_and(that_is_nan if largest else this_is_nan, logical_and(any_nan, ~both))
        beyond = where(any_nan, only, beyond)
    return logical_or(beyond, logical_and(same, s < r))
