"""Selection of elements: the largest along an axis, and boxes that do not overlap."""

from __future__ import annotations

from math import inf, prod

from ....composites import selection as composites
from ....composites.placement import tensor_scatter
from ....composites.suppression import LOWEST, non_max_suppression
from ....core.dtypes import FLOATS, DataType
from ....core.size_bounds import names_in_empty
from ....core.sizes import is_same_size
from ....expr import (
    Traced,
    arg_max_over,
    cast,
    clamp,
    compute,
    equal,
    greater,
    is_nan,
    lesser,
    logical_and,
    logical_or,
    max as larger_of,
    min as lesser_of,
    sum_over,
    where,
)
from ....expr.array import as_array
from ....expr.ir import Cast
from ....expr.tracing import of_input
from ....ops.formulas import reshape_array
from ....support.errors import require
from ..table import gpu
from .reduction import widen
from .results import ResultStage, Scatter, Staged, Stages, source_of

CHUNK = 512
"""Fewest elements whose ranks are counted together: the comparisons of a chunk grow with its square. An estimate."""

MAX_NUMBER = 2**24
"""Largest number of a box that the state, which is float32, holds."""

SHARE = 4
"""A chunk has at least SHARE * k elements, so that each level leaves at most 1 / SHARE of them."""


@gpu.lower(composites.top_k)
def _(input: Traced, k: int, axis: int, largest: bool, index_type: DataType) -> Staged:
    return Staged(
        lambda stages: _top_k(stages, input, k, axis, largest, index_type),
        lambda _: (set(), names_in_empty((*input.shape, k))),
    )


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
    is_exact = is_same_size(chunks * chunk, count)

    def position(c: Traced, r: Traced) -> Traced:
        p = c * chunk + r
        return p if is_exact else clamp(p, 0, count - 1)

    def exists(o: Traced, c: Traced, r: Traced, i: Traced) -> Traced | None:
        inside = None if is_exact else c * chunk + r < count
        if places is None:
            return inside
        is_place = places[o, position(c, r), i] >= 0
        return is_place if inside is None else logical_and(inside, is_place)

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


# Boxes ---------------------------------------------------------------------------------------------------------------


@gpu.lower(non_max_suppression)
def _(
    boxes: Traced,
    scores: Traced,
    max_output_boxes: int,
    iou_threshold: float,
    score_threshold: float | None,
    center_point_box: bool,
) -> Staged:
    batches, classes, count = scores.shape
    groups, most = batches * classes, min(max_output_boxes, count)
    require(count + most <= MAX_NUMBER, f"kernels count at most {MAX_NUMBER} boxes, got {boxes.shape[1]}")

    def plan(stages: Stages) -> list[Traced]:
        sides = stages.store(_sides(widen(boxes), center_point_box), "the sides")
        values = widen(scores)

        # A row of the state: the scores of the boxes that are left, -inf for others; the chosen boxes; the number of the step.
        def start(g: Traced, p: Traced) -> Traced:
            key = _key(values[g // classes, g % classes, clamp(p, 0, count - 1)], score_threshold)
            return where(p < count, key, where(p < count + most, -1.0, 0.0))

        shape = (groups, count + most + 1)
        old = stages.store(compute(shape, start), "the scores")
        new, best = stages.array("float32", shape), stages.array("int32", (groups,))
        largest = compute((groups,), lambda g: cast(arg_max_over(count, lambda j: old[g, j]), "int32"))

        def step(g: Traced, p: Traced) -> Traced:
            chosen = _position(of_input(best)[g], count)
            is_left = old[g, chosen] > -inf
            box, batch = clamp(p, 0, count - 1), g // classes
            one, other = ([sides[batch, k, at] for k in range(5)] for at in (box, chosen))
            overlaps = _overlaps(one, other, iou_threshold)
            score = where(logical_or(box == chosen, overlaps), -inf, old[g, p])
            number = old[g, count + most]
            pick = where(is_left, cast(of_input(best)[g], "float32"), -1.0)
            picked = where(cast(p - count, "float32") == number, pick, old[g, p])
            return where(p < count, score, where(p < count + most, picked, number + 1))

        states = source_of(old), new
        kernels = [
            ResultStage(best, largest, "the best box"),
            ResultStage(new, compute(shape, step), "the boxes that are left"),
        ]
        stages.repeat(kernels, most, states)
        return _in_rows(stages, of_input(states[most % 2]), classes, count, most)

    return Staged(plan)


def _key(score: Traced, score_threshold: float | None) -> Traced:
    """The score of a candidate, -inf for others."""
    drops = is_nan(score)
    if score_threshold is not None:
        drops = logical_or(drops, score <= score_threshold)
    return where(drops, -inf, larger_of(score, LOWEST))


def _sides(boxes: Traced, center_point_box: bool) -> Traced:
    """The lowest and the highest y, the lowest and the highest x, and the area of boxes [batches, 5, boxes]."""
    batches, count, _ = boxes.shape

    def element(batch: Traced, k: Traced, box: Traced) -> Traced:
        a, c, d, e = (boxes[batch, box, n] for n in range(4))
        if center_point_box:
            x, y, half_width, half_height = a, c, d * 0.5, e * 0.5
            y1, y2, x1, x2 = y - half_height, y + half_height, x - half_width, x + half_width
        else:
            y1, y2, x1, x2 = lesser_of(a, d), larger_of(a, d), lesser_of(c, e), larger_of(c, e)
        result = (x2 - x1) * (y2 - y1)
        for number, side in enumerate((y1, y2, x1, x2)):
            result = where(k == number, side, result)
        return result

    return compute((batches, 5, count), element)


def _overlaps(one: list[Traced], other: list[Traced], iou_threshold: float) -> Traced:
    """Whether the intersection of boxes, divided by their union, is greater than `iou_threshold`."""
    height = lesser_of(one[1], other[1]) - larger_of(one[0], other[0])
    width = lesser_of(one[3], other[3]) - larger_of(one[2], other[2])
    both = width * height
    union = one[4] + other[4] - both
    has_areas = height > 0
    for value in (width, both, one[4], other[4], union):
        has_areas = logical_and(has_areas, value > 0)
    return logical_and(has_areas, both / union > iou_threshold)


def _in_rows(stages: Stages, state: Traced, classes: int, count: int, most: int) -> list[Traced]:
    """The chosen boxes of all groups as rows of batch, class and box, and their number."""
    groups = state.shape[0]
    total = groups * most
    picked = stages.store(compute((groups, most), lambda g, m: cast(state[g, count + m], "int32")), "the chosen boxes")

    def is_chosen(g: Traced, m: Traced) -> Traced:
        return where(picked[g, m] >= 0, as_array(1, "int32"), 0)

    counts = stages.store(compute((groups,), lambda g: sum_over(most, lambda m: is_chosen(g, m))), "their numbers")
    firsts = compute((groups,), lambda g: sum_over(groups, lambda h: where(h < g, counts[h], as_array(0, "int32"))))
    first = stages.store(firsts, "the first rows")

    def at(g: Traced, m: Traced, c: Traced) -> tuple[Traced, Traced]:
        # Entries without a box go to an additional row, which is dropped.
        return _position(where(picked[g, m] >= 0, first[g] + cast(m, "int32"), total), total + 1), c

    def value(g: Traced, m: Traced, c: Traced) -> Traced:
        group = where(c == 0, cast(g // classes, "int32"), cast(g % classes, "int32"))
        return where(c == 2, picked[g, m], group)

    none = compute((total + 1, 3), lambda *_: as_array(-1, "int32"))
    rows = stages.add(Scatter(none, (groups, most, 3), at, value), stages.array("int32", (total + 1, 3)), "the rows")
    selected = stages.store(compute((total, 3), lambda r, c: cast(rows[r, c], "int64")), "the result")
    number = compute((1,), lambda _: cast(sum_over(groups, lambda g: counts[g]), "int64"))
    return [selected, stages.store(number, "the number of boxes")]


# A part of a cache ---------------------------------------------------------------------------------------------------


@gpu.lower(tensor_scatter)
def _(past: Traced, update: Traced, start: Traced | None, axis: int, mode: str) -> Scatter:
    size, count = past.shape[axis], update.shape[axis]

    def at(*p: Traced) -> tuple[Traced, ...]:
        place = p[axis]
        if start is not None:
            first = clamp(start[p[0]], 0, size - count) if mode == "linear" else start[p[0]] % size
            place = _position(first, size) + place
            if mode == "circular":
                place = place % size
            place = clamp(place, 0, size - 1)
        return *p[:axis], place, *p[axis + 1 :]

    return Scatter(past, update.shape, at, lambda *p: update[p])
