"""Attention as one kernel, or as two kernels if keys are divided among workgroups.

A workgroup loops over blocks of keys, and keeps for each query the running maximum m of the scores s, the sum of exp(s - m),
and the sum of exp(s - m) * value (Dao et al., FlashAttention-2 (2023), arXiv:2307.08691). If there are too few queries to keep
the device busy, as for single tokens, each workgroup takes a part of the keys, and a second kernel combines the parts.
`flash_tensor` computes many queries on tensor cores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ....core.graph import Desc
from ....core.guards import estimate
from ....core.size_bounds import names_in_empty
from ....core.size_values import variables_in
from ....core.sizes import is_multiple, is_same_size, is_static, is_symbolic
from ....expr import Traced, clamp, exp, max as larger_of, max_over, min as lesser_of, sum_over, tanh, where
from ....expr.gpu import Features, Local, Workgroups
from ....expr.gpu.types import layout
from ....expr.gpu.workgroups import UNROLLED_ELEMENTS
from ....expr.ir import Input
from ....expr.tracing import of_input
from .flash_tensor import on_tensor_cores
from .reduction import dot
from .results import Stages

MAX_LINES = 32
"""The largest number of queries of a workgroup: all queries of the heads that share keys, or some queries of one head."""
KEYS = (64, 32, 16, 8)
"""Block sizes to try, in keys; larger blocks need fewer barriers."""
NEIGHBOURS = 8
"""Scores per invocation in the first step of a maximum: one invocation per query would leave most idle."""
KEYS_OF_PART = 32
"""Fewest keys of a part, and most keys of a block in a part. For one token with 1,024 keys and 8 groups of heads, an H200
takes 5 us with parts of 32 keys, 12 us with parts of 64 keys, and 1 us more to combine twice as many parts."""
BUSY_SHARE = 4
"""Divide keys if at most 1 / BUSY_SHARE of the device's units would have work."""
BUSY_SHARE_OF_NAMES = 2
"""`BUSY_SHARE` where sizes have names: smaller later sizes lose more without parts than larger ones lose with them. Without
parts, a conformer takes 1.19 times the static time on an H200 with WebGPU, at 32 workgroups after a first sound with 64."""
MIN_PARTS = 4
"""Fewest parts of the keys: with fewer, the second kernel takes longer than the first one saves. An estimate."""
MAX_PARTS = 64
WORKGROUPS_OF_UNIT = 4
"""Workgroups that a unit runs concurrently if each part of the keys is one block."""
MAX_HELD = 64
"""The largest number of elements that an invocation preloads into registers. An estimate: with this many, the workgroups of
all parts still run concurrently. With heads of 64 and 4 queries for a key, 40 are held in 64 registers (sm_90)."""
MAX_SUMS = 16
"""The largest number of sums of the result per invocation, in registers."""

Element = Callable[..., Traced]
Place = Callable[..., Sequence[Traced | int]]


@dataclass(frozen=True)
class AttentionSizes:
    """The sizes of attention.

    Attributes:
        groups: number of heads of keys and values.
        size: size of queries and keys, [0, size) are positions `s`.
        values: size of values, [0, values) are positions `d`.
    """

    batches: int
    heads: int
    groups: int
    queries: int
    keys: int
    size: int
    values: int

    @property
    def share(self) -> int:
        return self.heads // self.groups


@dataclass(frozen=True)
class NewKeys:
    """New keys and values, which a kernel writes to the KV cache, behind the past ones.

    Attributes:
        key: `key(batch, group, i, s)` of new key `i`, rounded to the data type of the cache.
        value: `value(batch, group, i, d)`, also rounded.
        position: `position(batch, i)` of new key `i` among all keys.
        targets: the cached keys and the cached values.
        count: number of new keys.
    """

    key: Element
    value: Element
    position: Element
    targets: tuple[Input, Input]
    count: int

    def program(self) -> Workgroups:
        """The kernel that only writes the new keys and values."""
        (batches, groups, _, size), (*_, values) = (target.desc.shape for target in self.targets)
        program = Workgroups([batches, self.count], width=groups * max(size, values))
        batch, i = program.positions
        for target, element in zip(self.targets, (self.key, self.value), strict=True):
            program.write(
                target,
                [groups, target.desc.shape[3]],
                lambda g, s: (batch, g, self.position(batch, i), s),
                lambda g, s, element=element: element(batch, g, i, s),
            )
        return program


@dataclass(frozen=True)
class Attention(AttentionSizes):
    """Attention of any kind. All functions return float32, or conditions.

    Attributes:
        query: `query(batch, head, query, s)`, scaled.
        key: `key(batch, group, key, s)`.
        value: `value(batch, group, key, d)`.
        visible: `visible(batch, head, query, key)`: whether the query sees the key; None if all queries see all keys.
        adjust: `adjust(score, batch, head, query, key)`: the adjusted score; None to keep scores.
        sink: `sink(head)`: the score of an additional key without a value; None for no such key.
        softcap: softcap of the scores; 0 for none.
        first: `first(batch, query)`: the first key visible to this query or any later one.
        end: `end(batch, query)`: one past the last key visible to this query or any earlier one.
        empty: the result for a query that sees no key.
        zeroes: whether a query with a score that is NaN or infinite counts as one that sees no key.
        has_room: whether invisible values may be arbitrary, including NaN.
        new_keys: keys and values that are not yet in the memory that `key` and `value` read; None if all are.
    """

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
    zeroes: bool = False
    has_room: bool = False
    new_keys: NewKeys | None = None


@dataclass(frozen=True)
class _FlashTile:
    """The tile of a workgroup: some queries of `heads` that share keys, and blocks of keys.

    Attributes:
        queries: queries per head.
        stores: whether the queries and a block of keys fit workgroup memory, and are copied there.
        parts: number of workgroups that divide the keys.
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
        """Size of the workgroup memory, in 32-bit words."""
        stored = self.lines * size + self.keys * (size + 1) if self.stores else 0
        return stored + self.lines * (self.keys + self.keys // NEIGHBOURS + 4)


def names_needed(problem: AttentionSizes) -> tuple[set[str], set[str]]:
    """The names that need numbers for all sizes, and those that need numbers for the sizes of this run only.

    Kernels take names of batches, heads, queries and keys.
    """
    sizes = problem.batches, problem.heads, problem.groups, problem.queries, problem.keys
    names = variables_in((*sizes, problem.size, problem.values))
    if not names:
        return set(), set()
    if empty := names_in_empty(sizes):
        return set(), empty
    return set() if is_static((problem.share, problem.size, problem.values)) else names, set()


def _at_estimates(p: AttentionSizes) -> AttentionSizes:
    """The sizes of the first run, on which only speed depends."""
    return AttentionSizes(*map(estimate, (p.batches, p.heads, p.groups, p.queries, p.keys, p.size, p.values)))


def _tile(problem: AttentionSizes, features: Features, busy_share: int) -> _FlashTile:
    whole = problem.share * problem.queries
    tiles = [(problem.share, problem.queries)] if whole <= MAX_LINES else []
    tiles += [(1, min(problem.queries, lines)) for lines in (16, 8, 4, 2, 1)]
    room, most = features.max_shared // 4, MAX_SUMS * min(256, features.max_invocations)
    blocks_of = [count for count in KEYS if count < 2 * problem.keys] or [KEYS[-1]]
    candidates = [_FlashTile(h, q, k, stores) for stores in (True, False) for h, q in tiles for k in blocks_of]
    # A tile of queries is worth more than a long block of keys.
    tile = next((t for t in candidates if t.numbers(problem.size) <= room and t.lines * problem.values <= most), None)
    tile = tile or _FlashTile(1, 1, KEYS[-1], False)
    keys = min(tile.keys, KEYS_OF_PART)
    blocks = -(-problem.keys // keys)
    workgroups = problem.batches * (problem.heads // tile.heads) * -(-problem.queries // tile.queries)
    parts = min(2 * features.units // workgroups, MAX_PARTS, blocks)
    if blocks <= min(WORKGROUPS_OF_UNIT * features.units // workgroups, MAX_PARTS):
        parts = blocks  # a part of one block has no loop, and loads queries, keys and values together
    if parts < MIN_PARTS or workgroups > features.units // busy_share:
        return tile
    return replace(tile, keys=keys, parts=-(-blocks // -(-blocks // parts)))


def attend(stages: Stages, problem: Attention, result: Input, place: Place) -> Traced:
    """Add the stages of attention, and return the result.

    `place(batch, head, query, d)` is the position of an element in `result`.
    """
    features, target = stages.features, result
    has_names = is_symbolic((problem.batches, problem.heads, problem.queries, problem.keys))
    tile = _tile(_at_estimates(problem), features, BUSY_SHARE_OF_NAMES if has_names else BUSY_SHARE)
    new_keys = problem.new_keys
    if new_keys is not None and not _writes_new_key(problem, new_keys, tile, features):
        stages.add(new_keys.program(), new_keys.targets[0], "the new keys and values")
        problem = replace(problem, new_keys=None)
    kernel = on_tensor_cores(problem, features, result, place)
    if kernel is not None:
        return stages.add(kernel, result)
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


def _writes_new_key(problem: Attention, new_keys: NewKeys, tile: _FlashTile, features: Features) -> bool:
    """Whether the kernel of parts of the keys also writes the new key and value, for a single new key.

    Each workgroup holds the new key, so there cannot be many.

    A kernel that only writes a key takes about 2 us on an H200, most of it to start and to drain (an estimate).
    """
    # Elements that share a word are written by atomic operations, and a kernel cannot also read an array of atomics.
    is_plain = all(layout(target.desc.data_type, features).lanes == 1 for target in new_keys.targets)
    if tile.parts == 1 or not tile.stores or not is_same_size(new_keys.count, 1) or not is_plain:
        return False
    shape = [problem.batches, problem.heads, problem.queries, tile.parts, problem.values + 2]
    return _blocks(problem, tile, Input(-1, Desc("float32", tuple(shape))), None, features).fits(features)


def _preload(
    program: Workgroups, features: Features, count: int, shape: Sequence[int], value: Callable[..., Traced]
) -> list[Local]:
    """Load `value(k, *position)` for each k into registers, before the factors are computed.

    The list is empty if the dialect keeps no elements in registers, or if there are too many.
    """
    if not features.dialect.kept or count * _registers(program, features, shape) > MAX_HELD:
        return []
    held = [program.private_array(shape) for _ in range(count)]
    for k, local in enumerate(held):
        program.fill(local, lambda *position, k=k: value(k, *position))
    return held


def _registers(program: Workgroups, features: Features, shape: Sequence[int]) -> int:
    """Elements of an array of this shape that an invocation holds."""
    return -(-math.prod(shape) // program.invocations(features))


def _total(terms: Sequence[Traced]) -> Traced:
    """Pairwise sum of terms."""
    while len(terms) > 1:
        pairs = [a + b for a, b in zip(terms[::2], terms[1::2], strict=False)]
        terms = [*pairs, *terms[len(terms) - len(terms) % 2 :]]
    return terms[0]


def _blocks(problem: Attention, tile: _FlashTile, target: Input, place: Place | None, features: Features) -> Workgroups:
    """Loop over blocks of keys. Without a `place`, store the sums, the largest score and the weight of a part."""
    heads, queries, count, values = tile.heads, tile.queries, tile.keys, problem.values
    blocks = -(-problem.keys // count)
    of_part = -(-blocks // tile.parts)
    sizes = [problem.batches, problem.heads // heads, -(-problem.queries // queries), tile.parts]
    program = Workgroups(sizes, width=tile.lines * max(count, values))
    batch, row, tile_number, part = program.positions
    group = row if heads == problem.share else row // problem.share

    def head(h: Traced) -> Traced:
        return row * heads + h

    # The last tile may repeat the last query.
    def query(i: Traced | int) -> Traced:
        return clamp(tile_number * queries + i, 0, problem.queries - 1)

    lines, scores = [heads, queries], program.shared_array([heads, queries, count])
    largest, weight, larger, factor = (program.shared_array(lines) for _ in range(4))
    some = program.shared_array([*lines, count // NEIGHBOURS])
    sums = program.private_array([*lines, values])
    begins = None if problem.sink is None else (part == 0 if tile.parts > 1 else True)

    def at_first(value: Callable[[Traced], Traced | float], other: float) -> Callable[[Traced, Traced], Traced | float]:
        """The value of the sink, in one part of the keys; else `other`."""
        if begins is None:
            return lambda h, i: other
        return lambda h, i: value(h) if begins is True else where(begins, value(h), other)

    sink = problem.sink or (lambda h: h)
    program.fill(largest, at_first(lambda h: sink(head(h)), -math.inf))
    program.fill(weight, at_first(lambda h: 1.0, 0.0))
    program.fill(sums, lambda h, i, d: 0.0)
    of_query, of_key, new_keys = None, None, problem.new_keys
    if tile.stores:
        of_query = program.shared_array([*lines, problem.size])
        # Padded, so that adjacent keys are in different banks. The new key follows the keys of a block.
        of_key = program.shared_array([count + (new_keys is not None), problem.size + 1])
        stored = program[of_query]
    new_value = program.shared_array([values]) if new_keys is not None else None

    # If a part is a single block, load queries, keys and values into registers before the first store: a load after a store in
    # workgroup memory would start only when the stored element has arrived.
    is_single = tile.parts > 1 and is_same_size(of_part, 1) and features.dialect.kept > 0
    free = MAX_HELD - count * _registers(program, features, [*lines, values])
    loaded: list[tuple[Local, Local, int]] = []

    def load(target: Local, value: Callable[..., Traced], shape: Sequence[int], start: int = 0) -> None:
        if is_single and _registers(program, features, shape) <= free:
            register = program.private_array(shape)
            loaded.append((target, register, start))
            target, start = register, 0
        program.fill(target, value, shape, start)

    def load_queries() -> None:
        if of_query is not None:
            load(of_query, lambda h, i, s: problem.query(batch, head(h), query(i), s), of_query.desc.shape)
        if new_keys is not None and of_key is not None and new_value is not None:
            load(of_key, lambda _, s: new_keys.key(batch, group, 0, s), [1, problem.size], start=count)
            load(new_value, lambda d: new_keys.value(batch, group, 0, d), [values])

    if not is_single:
        load_queries()
    first, end = part * of_part, clamp((part + 1) * of_part, None, blocks)
    if problem.first is not None:
        first = larger_of(first, clamp(problem.first(batch, query(0)), 0, problem.keys - 1) // count)
    if problem.end is not None:
        last = clamp(problem.end(batch, query(queries - 1)), 0, problem.keys)
        end = lesser_of(end, (last + count - 1) // count)
    with program.repeat(blocks, first, end, most=of_part) as block:

        def key(k: Traced | int) -> Traced:
            return clamp(block * count + k, 0, problem.keys - 1)

        held: list[Local] = []
        if is_single:
            load_queries()
        if tile.parts > 1:
            of_value = lambda k, h, i, d: problem.value(batch, group, key(k), d)  # noqa: E731
            held = _preload(program, features, count, [*lines, values], of_value)
        if of_key is not None:
            load(of_key, lambda k, s: problem.key(batch, group, key(k), s), [count, problem.size])
        # Store the keys last: the barrier after the new key keeps compilers from moving loads of values after a store (sm_90).
        for local, register, start in loaded:
            program.fill(local, lambda *p, register=register: program[register][p], register.desc.shape, start)

        def is_new(k: Traced | int) -> Traced:
            assert new_keys is not None
            return block * count + k == new_keys.position(batch, 0)

        def score(h: Traced, i: Traced, k: Traced) -> Traced:
            place = k if new_keys is None else where(is_new(k), count, k)

            def product(s: Traced) -> Traced:
                if of_key is not None:
                    return stored[h, i, s] * program[of_key][place, s]
                return problem.query(batch, head(h), query(i), s) * problem.key(batch, group, key(k), s)

            total = dot(problem.size, product)
            if problem.softcap:
                total = tanh(total * (1 / problem.softcap)) * problem.softcap
            position = batch, head(h), query(i), key(k)
            if problem.adjust is not None:
                total = problem.adjust(total, *position)
            if problem.visible is not None:
                total = where(problem.visible(*position), total, -math.inf)
            if not is_multiple(problem.keys, count):
                total = where(block * count + k < problem.keys, total, -math.inf)
            return total

        def weigh(h: Traced, i: Traced, d: Traced, k: Traced | int) -> Traced:
            share = program[scores][h, i, k]
            value = program[held[k]][h, i, d] if isinstance(k, int) else problem.value(batch, group, key(k), d)
            if new_value is not None:
                value = where(is_new(k), program[new_value][d], value)
            product = share * value
            return where(share == 0, 0, product) if problem.has_room else product

        def exponential(h: Traced, i: Traced, value: Traced) -> Traced:
            """exp(value - largest score); 0 for an invisible key, even if all keys are invisible."""
            return where(value == -math.inf, 0, exp(value - program[larger][h, i]))

        def largest_of_some(h: Traced, i: Traced, part: Traced) -> Traced:
            return max_over(NEIGHBOURS, lambda k: program[scores][h, i, part * NEIGHBOURS + k])

        def largest_so_far(h: Traced, i: Traced) -> Traced:
            largest_new = max_over(count // NEIGHBOURS, lambda part: program[some][h, i, part])
            return larger_of(program[largest][h, i], largest_new)

        def weight_so_far(h: Traced, i: Traced) -> Traced:
            return program[weight][h, i] * program[factor][h, i] + sum_over(count, lambda k: program[scores][h, i, k])

        def sum_so_far(h: Traced, i: Traced, d: Traced) -> Traced:
            more = dot(count, lambda k: weigh(h, i, d, k))
            if held:
                more = _total([weigh(h, i, d, k) for k in range(count)])
            return program[sums][h, i, d] * program[factor][h, i] + more

        program.fill(scores, score)
        if new_keys is not None and of_key is not None and new_value is not None:
            # Of the workgroups that share these keys, the first writes, if its block contains the position of the new key.
            position, is_first = new_keys.position(batch, 0), row * heads % problem.share == 0
            with program.repeat(1, end=where((position // count == block) & is_first, 1, 0)):
                place_of = lambda s: (batch, group, position, s)  # noqa: E731
                keys_of, values_of = new_keys.targets
                program.write(keys_of, [problem.size], place_of, lambda s: program[of_key][count, s])
                program.write(values_of, [values], place_of, lambda d: program[new_value][d])
        program.fill(some, largest_of_some)
        program.fill(larger, largest_so_far)
        program.fill(factor, lambda h, i: exponential(h, i, program[largest][h, i]))
        program.fill(scores, lambda h, i, k: exponential(h, i, program[scores][h, i, k]))
        program.fill(largest, lambda h, i: program[larger][h, i])
        program.fill(weight, weight_so_far)
        program.fill(sums, sum_so_far)
    if place is not None:

        def mean(h: Traced, i: Traced, d: Traced) -> Traced:
            total = program[weight][h, i]
            return _mean(problem, program[sums][h, i, d], total)

        at_place = lambda h, i, d: place(batch, head(h), query(i), d)  # noqa: E731
        program.write(target, [*lines, values], at_place, mean)
        return program

    def at(h: Traced, i: Traced, d: Traced | int) -> Sequence[Traced | int]:
        return batch, head(h), query(i), part, d

    program.write(target, [*lines, values], at, lambda h, i, d: program[sums][h, i, d])
    for k, local in enumerate((largest, weight)):
        program.write(target, lines, lambda h, i, k=k: at(h, i, values + k), lambda h, i, of=local: program[of][h, i])
    return program


def _mean(problem: Attention, total: Traced, weight: Traced) -> Traced:
    """The result from the sum of weighted values and the sum of weights, which may be NaN."""
    if problem.zeroes:
        return where(weight > 0, total / weight, problem.empty)
    return where(weight == 0, problem.empty, total / weight)


def _combine(problem: Attention, parts: Traced, result: Input, place: Place, features: Features) -> Workgroups:
    count, values = parts.shape[3], problem.values
    sizes, unrolled = [problem.batches, problem.heads, problem.queries], UNROLLED_ELEMENTS
    if features.dialect.kept:
        unrolled = MAX_PARTS
    program = Workgroups(sizes, width=max(count, values), unrolled=unrolled)
    position = program.positions
    largest, weight, factor = (program.shared_array([count]) for _ in range(3))
    program.fill(largest, lambda part: parts[(*position, part, values)])
    program.fill(weight, lambda part: parts[(*position, part, values + 1)])
    held = _preload(program, features, count, [values], lambda part, d: parts[(*position, part, d)])

    def scale_of(part: Traced) -> Traced:
        # Each invocation computes the maximum and the total weight itself, which is faster than a barrier.
        of_all = max_over(count, lambda k: program[largest][k])
        return where(program[largest][part] == -math.inf, 0, exp(program[largest][part] - of_all))

    program.fill(factor, scale_of)

    def element(d: Traced) -> Traced:
        total = dot(count, lambda part: program[factor][part] * parts[(*position, part, d)])
        if held:
            total = _total([program[factor][k] * program[local][d] for k, local in enumerate(held)])
        total_weight = sum_over(count, lambda part: program[factor][part] * program[weight][part])
        return _mean(problem, total, total_weight)

    program.write(result, [values], lambda d: place(*position, d), element)
    return program
