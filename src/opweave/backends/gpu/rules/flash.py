"""Attention as one kernel, or two where the keys are divided among workgroups.

A workgroup goes through blocks of keys and keeps, for each of its queries, the largest score so far, the sum of the
exponentials of the scores minus that, and the sum of the values that these weight (Dao et al., FlashAttention-2 (2023),
arXiv:2307.08691). Where there are too few queries to keep the device busy, as for single tokens, each workgroup takes a
part of the keys, and a second kernel combines the parts. Many queries are computed on tensor cores, if there are any
(`flash_tensor`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ....expr import Array, clamp, exp, max as larger_of, max_over, min as lesser_of, sum_over, tanh, where
from ....expr.gpu import Features, Local, Workgroups
from ....expr.gpu.workgroups import UNROLLED_ELEMENTS
from ....expr.ir import Input
from ....expr.tracing import of_input
from .flash_tensor import on_tensor_cores
from .reduction import dot
from .results import Stages

MAX_LINES = 32
"""Queries of a workgroup, at most: those of all heads that share keys, or some of one head."""
KEYS = (64, 32, 16, 8)
"""Numbers of keys of a block that are tried; with more, there are fewer barriers."""
NEIGHBOURS = 8
"""Scores of a query of which an invocation finds the largest, since few invocations would find it among all of a block."""
KEYS_OF_PART = 32
"""Fewest keys of a part, and most of its blocks. For one token with 1,024 keys and 8 groups of heads an H200 takes 5 us with
parts of 32 keys, 12 us with those of 64, and 1 us more to combine twice as many."""
MIN_SHARE_OF_UNITS = 4
"""Divide keys if fewer than 1 / MIN_SHARE_OF_UNITS of the device's units would have work."""
MIN_PARTS = 4
"""Fewest parts of the keys: with fewer, the kernel that combines them takes longer than they save. An estimate."""
MAX_PARTS = 64
"""Most parts that the keys of a query are divided into."""
MAX_HELD = 64
"""Most elements that an invocation loads before it knows their weights. An estimate: as many workgroups as there are parts of
keys still run at the same time."""
MAX_SUMS = 16
"""Most elements of the result that an invocation keeps in registers."""

Element = Callable[..., Array]
Place = Callable[..., Sequence[Array | int]]


@dataclass(frozen=True)
class Attention:
    """Attention of any kind. All functions return float32, or conditions.

    Attributes:
        batches: number of batches.
        heads: number of heads of the queries.
        groups: number of heads of keys and values.
        queries: number of queries.
        keys: number of keys.
        size: of queries and keys.
        values: size of the values.
        query: `query(batch, head, query, s)`, scaled.
        key: `key(batch, group, key, s)`.
        value: `value(batch, group, key, d)`.
        visible: `visible(batch, head, query, key)`: whether the query sees the key; None if all see all.
        adjusted: `adjusted(score, batch, head, query, key)`: the score that counts; None for what it is.
        sink: `sink(head)`: the score of one more key without a value; None for no such key.
        softcap: of the scores; 0 for none.
        first: `first(batch, query)`: the first key that this query or a later one may see.
        end: `end(batch, query)`: after the last key that this query or an earlier one may see.
        empty: the result for a query that sees no key.
        has_room: whether values that no query sees may be anything, NaN included.
    """

    batches: int
    heads: int
    groups: int
    queries: int
    keys: int
    size: int
    values: int
    query: Element
    key: Element
    value: Element
    visible: Element | None = None
    adjust: Element | None = None
    sink: Element | None = None
    softcap: float = 0.0
    first: Element | None = None
    end: Element | None = None
    empty: float = 0.0
    has_room: bool = False

    @property
    def share(self) -> int:
        """How many heads share keys."""
        return self.heads // self.groups


@dataclass(frozen=True)
class _Tile:
    """What a workgroup computes at a time.

    Attributes:
        heads: heads, which share keys.
        queries: queries of each of them.
        keys: keys of a block.
        stores: whether the queries and a block of keys are copied to workgroup memory, since they fit.
        parts: how many workgroups share the keys.
    """

    heads: int
    queries: int
    keys: int
    stores: bool
    parts: int = 1

    @property
    def lines(self) -> int:
        return self.heads * self.queries

    def numbers(self, size: int) -> int:
        """How many numbers of workgroup memory it takes."""
        stored = self.lines * size + self.keys * (size + 1) if self.stores else 0
        return stored + self.lines * (self.keys + self.keys // NEIGHBOURS + 4)


def _tile(problem: Attention, features: Features) -> _Tile:
    """The largest tile that fits."""
    whole = problem.share * problem.queries
    tiles = [(problem.share, problem.queries)] if whole <= MAX_LINES else []
    tiles += [(1, min(problem.queries, lines)) for lines in (16, 8, 4, 2, 1)]
    room, most = features.max_shared // 4, MAX_SUMS * min(256, features.max_invocations)
    blocks_of = [count for count in KEYS if count < 2 * problem.keys] or [KEYS[-1]]
    candidates = [_Tile(h, q, k, stores) for stores in (True, False) for h, q in tiles for k in blocks_of]
    # A tile of queries is worth more than a long block of keys.
    tile = next((t for t in candidates if t.numbers(problem.size) <= room and t.lines * problem.values <= most), None)
    tile = tile or _Tile(1, 1, KEYS[-1], False)
    keys = min(tile.keys, KEYS_OF_PART)
    blocks = -(-problem.keys // keys)
    workgroups = problem.batches * (problem.heads // tile.heads) * -(-problem.queries // tile.queries)
    parts = min(2 * features.units // workgroups, -(-problem.keys // KEYS_OF_PART), MAX_PARTS, blocks)
    if parts < MIN_PARTS or workgroups > features.units // MIN_SHARE_OF_UNITS:
        return tile
    return replace(tile, keys=keys, parts=-(-blocks // -(-blocks // parts)))


def attend(stages: Stages, problem: Attention, result: Input, place: Place) -> Array:
    """Add the stages of attention, and return the result.

    Args:
        stages: where to add them.
        problem: what to compute.
        result: the array to write.
        place: `place(batch, head, query, d)`: the position of an element in it.
    """
    kernel = on_tensor_cores(problem, stages.features, result, place)
    if kernel is not None:
        return stages.add(kernel, result)
    tile = _tile(problem, stages.features)
    features, target = stages.features, result
    while True:
        if tile.parts > 1:
            shape = [problem.batches, problem.heads, problem.queries, tile.parts, problem.values + 2]
            target = stages.array("float32", shape)
        program = _blocks(problem, tile, target, place if tile.parts == 1 else None, features)
        if program.iterations(features) <= features.max_iterations or tile.parts * tile.keys >= problem.keys:
            break
        tile = replace(tile, parts=2 * tile.parts)
    if tile.parts == 1:
        return stages.add(program, result)
    stages.add(program, target, "parts of the keys")
    return stages.add(_combine(problem, of_input(target), result, place, features), result, "all keys")


def _preload(
    program: Workgroups, features: Features, count: int, shape: Sequence[int], value: Callable[..., Array]
) -> list[Local]:
    """Load `value(k, *position)` for each k into registers, before it is known what they are multiplied by.

    Returns:
        An array for each k; none at all if the dialect does not keep elements in registers, or they are too many.
    """
    if not features.dialect.kept or count * -(-math.prod(shape) // program.invocations(features)) > MAX_HELD:
        return []
    held = [program.private(shape) for _ in range(count)]
    for k, local in enumerate(held):
        program.fill(local, lambda *position, k=k: value(k, *position))
    return held


def _total(terms: Sequence[Array]) -> Array:
    """A sum, whose terms are added in pairs."""
    while len(terms) > 1:
        pairs = [a + b for a, b in zip(terms[::2], terms[1::2], strict=False)]
        terms = [*pairs, *terms[len(terms) - len(terms) % 2 :]]
    return terms[0]


def _blocks(problem: Attention, tile: _Tile, target: Input, place: Place | None, features: Features) -> Workgroups:
    """Go through blocks of keys; without a `place`, store the sums, the largest score and the weight of a part."""
    heads, queries, count, values = tile.heads, tile.queries, tile.keys, problem.values
    blocks = -(-problem.keys // count)
    of_part = -(-blocks // tile.parts)
    sizes = [problem.batches, problem.heads // heads, -(-problem.queries // queries), tile.parts]
    program = Workgroups(sizes, width=tile.lines * max(count, values))
    batch, row, tile_number, part = program.positions
    group = row if heads == problem.share else row // problem.share

    def head(h: Array) -> Array:
        return row * heads + h

    def query(i: Array | int) -> Array:  # the last tile may have the last query several times
        return clamp(tile_number * queries + i, 0, problem.queries - 1)

    lines, scores = [heads, queries], program.shared([heads, queries, count])
    largest, weight, larger, factor = (program.shared(lines) for _ in range(4))
    some = program.shared([*lines, count // NEIGHBOURS])
    sums = program.private([*lines, values])
    begins = None if problem.sink is None else (part == 0 if tile.parts > 1 else True)

    def at_first(value: Callable[[Array], Array | float], other: float) -> Callable[[Array, Array], Array | float]:
        """The value that stands for the sink, in one part of the keys; else `other`."""
        if begins is None:
            return lambda h, i: other
        return lambda h, i: value(h) if begins is True else where(begins, value(h), other)

    sink = problem.sink or (lambda h: h)
    program.fill(largest, at_first(lambda h: sink(head(h)), -math.inf))
    program.fill(weight, at_first(lambda h: 1.0, 0.0))
    program.fill(sums, lambda h, i, d: 0.0)
    of_query, of_key = None, None
    if tile.stores:
        of_query = program.shared([*lines, problem.size])
        of_key = program.shared([count, problem.size + 1])  # a row more, so that adjacent keys lie in different banks
        stored = program[of_query]

    def fill_query() -> None:
        if of_query is not None:
            program.fill(of_query, lambda h, i, s: problem.query(batch, head(h), query(i), s))

    # If a part is a single block, its queries are loaded at the same time as its keys and values.
    is_single = tile.parts > 1 and of_part == 1 and features.dialect.kept > 0
    if not is_single:
        fill_query()
    first, end = part * of_part, clamp((part + 1) * of_part, None, blocks)
    if problem.first is not None:
        first = larger_of(first, clamp(problem.first(batch, query(0)), 0, problem.keys - 1) // count)
    if problem.end is not None:
        last = clamp(problem.end(batch, query(queries - 1)), 0, problem.keys)
        end = lesser_of(end, (last + count - 1) // count)
    with program.repeat(blocks, first, end, most=of_part) as block:

        def key(k: Array | int) -> Array:
            return clamp(block * count + k, 0, problem.keys - 1)

        if of_key is not None:
            shape = [count, problem.size]
            program.fill(of_key, lambda k, s: problem.key(batch, group, key(k), s), shape)
        held: list[Local] = []
        if is_single:
            fill_query()
            of_value = lambda k, h, i, d: problem.value(batch, group, key(k), d)  # noqa: E731
            held = _preload(program, features, count, [*lines, values], of_value)

        def score(h: Array, i: Array, k: Array) -> Array:
            def product(s: Array) -> Array:
                if of_key is not None:
                    return stored[h, i, s] * program[of_key][k, s]
                return problem.query(batch, head(h), query(i), s) * problem.key(batch, group, key(k), s)

            total = dot(problem.size, product)
            if problem.softcap:
                total = tanh(total * (1 / problem.softcap)) * problem.softcap
            position = batch, head(h), query(i), key(k)
            if problem.adjust is not None:
                total = problem.adjust(total, *position)
            if problem.visible is not None:
                total = where(problem.visible(*position), total, -math.inf)
            if problem.keys % count:
                total = where(block * count + k < problem.keys, total, -math.inf)
            return total

        def weigh(h: Array, i: Array, d: Array, k: Array | int) -> Array:
            share = program[scores][h, i, k]
            value = program[held[k]][h, i, d] if isinstance(k, int) else problem.value(batch, group, key(k), d)
            product = share * value
            return where(share == 0, 0, product) if problem.has_room else product

        def exponential(h: Array, i: Array, value: Array) -> Array:
            """exp(value - largest score); 0 for a key that is not seen, also where none is."""
            return where(value == -math.inf, 0, exp(value - program[larger][h, i]))

        def largest_of_some(h: Array, i: Array, part: Array) -> Array:
            return max_over(NEIGHBOURS, lambda k: program[scores][h, i, part * NEIGHBOURS + k])

        def largest_so_far(h: Array, i: Array) -> Array:
            largest_new = max_over(count // NEIGHBOURS, lambda part: program[some][h, i, part])
            return larger_of(program[largest][h, i], largest_new)

        def weight_so_far(h: Array, i: Array) -> Array:
            return program[weight][h, i] * program[factor][h, i] + sum_over(count, lambda k: program[scores][h, i, k])

        def sum_so_far(h: Array, i: Array, d: Array) -> Array:
            more = dot(count, lambda k: weigh(h, i, d, k))
            if held:
                more = _total([weigh(h, i, d, k) for k in range(count)])
            return program[sums][h, i, d] * program[factor][h, i] + more

        program.fill(scores, score)
        program.fill(some, largest_of_some)
        program.fill(larger, largest_so_far)
        program.fill(factor, lambda h, i: exponential(h, i, program[largest][h, i]))
        program.fill(scores, lambda h, i, k: exponential(h, i, program[scores][h, i, k]))
        program.fill(largest, lambda h, i: program[larger][h, i])
        program.fill(weight, weight_so_far)
        program.fill(sums, sum_so_far)
    if place is not None:

        def mean(h: Array, i: Array, d: Array) -> Array:
            total = program[weight][h, i]
            return where(total == 0, problem.empty, program[sums][h, i, d] / total)

        at_place = lambda h, i, d: place(batch, head(h), query(i), d)  # noqa: E731
        program.write(target, [*lines, values], at_place, mean)
        return program

    def at(h: Array, i: Array, d: Array | int) -> Sequence[Array | int]:
        return batch, head(h), query(i), part, d

    program.write(target, [*lines, values], at, lambda h, i, d: program[sums][h, i, d])
    for k, local in enumerate((largest, weight)):
        program.write(target, lines, lambda h, i, k=k: at(h, i, values + k), lambda h, i, of=local: program[of][h, i])
    return program


def _combine(problem: Attention, parts: Array, result: Input, place: Place, features: Features) -> Workgroups:
    """Add up the parts of all keys."""
    count, values = parts.shape[3], problem.values
    sizes, unrolled = [problem.batches, problem.heads, problem.queries], UNROLLED_ELEMENTS
    if features.dialect.kept:
        unrolled = MAX_PARTS
    program = Workgroups(sizes, width=max(count, values), unrolled=unrolled)
    position = program.positions
    largest, weight, factor = (program.shared([count]) for _ in range(3))
    program.fill(largest, lambda part: parts[(*position, part, values)])
    program.fill(weight, lambda part: parts[(*position, part, values + 1)])
    held = _preload(program, features, count, [values], lambda part, d: parts[(*position, part, d)])

    def scale_of(part: Array) -> Array:
        # Each invocation finds the largest of all, and adds up all weights, which takes less time than to wait for one.
        of_all = max_over(count, lambda k: program[largest][k])
        return where(program[largest][part] == -math.inf, 0, exp(program[largest][part] - of_all))

    program.fill(factor, scale_of)

    def element(d: Array) -> Array:
        total = dot(count, lambda part: program[factor][part] * parts[(*position, part, d)])
        if held:
            total = _total([program[factor][k] * program[local][d] for k, local in enumerate(held)])
        total_weight = sum_over(count, lambda part: program[factor][part] * program[weight][part])
        return where(total_weight == 0, problem.empty, total / total_weight)

    program.write(result, [values], lambda d: place(*position, d), element)
    return program


__all__ = ["Attention", "Element", "Place", "attend"]
