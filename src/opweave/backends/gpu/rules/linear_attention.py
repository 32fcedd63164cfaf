"""Linear attention of many tokens: products of matrices for chunks of tokens, instead of a step for each token.

Let d(j, i) = Σ decay(t) for j < t <= i, where t numbers the tokens of a chunk from 1, and S the state before the chunk.
Token i reads from the tokens j <= i of its chunk, and from S:

    out(i) = exp(d(0, i)) q(i) S + Σ exp(d(j, i)) (q(i) k(j)) v(j)
    S'     = exp(d(0, end)) S + Σ exp(d(j, end)) k(j) v(j)

All sums are products of matrices, and only S passes from chunk to chunk. For the delta rules, v(j) is the change that token j
makes, which depends on earlier tokens of the chunk: the changes C solve (I + A) C = beta (V - exp(d(0, i)) K S), where
A(i, j) is beta(i) exp(d(j, i)) k(i) k(j) for j < i.

S. Yang et al.: Parallelizing Linear Transformers with the Delta Rule over Sequence Length (2024),
https://arxiv.org/abs/2406.06484, and Gated Delta Networks (2024), https://arxiv.org/abs/2412.06464.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ....composites.recurrences import attend, carry, linear_attention, scan_heads, selective_scan
from ....core.graph import Operand
from ....core.guards import estimate
from ....core.size_bounds import names_in_empty
from ....core.sizes import Size, is_multiple, is_same_size, is_symbolic
from ....expr import Traced, clamp, compute, exp, sum_over, where
from ....expr.gpu import Local, Workgroups
from ....expr.ir import Input
from ....expr.tracing import of_input
from ..contraction.problem import View
from ..table import gpu
from .products import product_of
from .reduction import dot, narrow, widen
from .repetition import recurrent_form
from .results import Products, Staged, Stages, source_of

CHUNK, DELTA_CHUNK = 64, 32
"""Tokens of a chunk. The triangular matrix of a chunk of a delta rule is in workgroup memory."""

MIN_TOKENS = 128
"""The smallest number of tokens that run in chunks; fewer take a few steps. An estimate."""

BLOCK = 8
"""Tokens of a block of sums of decays."""

TILES = 16, 8, 4
"""Columns of a state for each workgroup, for the delta rules: the largest number that gives each unit a workgroup."""

MAX_DELTA_KEY = 192
"""The longest keys of the delta rules: a part of the state must fit into workgroup memory."""


def _suits(
    query: Operand,
    key: Operand,
    value: Operand,
    decay: Operand | None,
    beta: Operand | None,
    heads: int,
    groups: int,
) -> bool:
    """Whether tokens may run in chunks: many of them, or a named number; with a decay for each group rather than each key."""
    width, values = query.shape[2], value.shape[2]
    if is_symbolic((width, values, *(decay.shape[2:] if decay is not None else ()))) or 0 in (width, values):
        return False
    size, (batches, tokens, _) = width // heads, query.shape
    if is_same_size(batches, 0) or (not isinstance(tokens, Size) and tokens < MIN_TOKENS):
        return False
    if beta is not None and size > MAX_DELTA_KEY:
        return False
    types = {x.data_type for x in (query, key, value, decay, beta) if x is not None}
    return types <= {"float32", "float16"} and (decay is None or size == 1 or decay.shape[2] == groups)


@gpu.lower(linear_attention, when=_suits)
def _(
    query: Traced,
    key: Traced,
    value: Traced,
    past_state: Traced | None,
    decay: Traced | None,
    beta: Traced | None,
    heads: int,
    groups: int,
    scale: float,
) -> Staged:
    def plan(stages: Stages) -> list[Traced]:
        is_half = past_state is not None and past_state.data_type == "float16"
        first = stages.store(widen(past_state), "the first state") if past_state is not None and is_half else past_state
        # Its columns may have a name that equals this number.
        key_columns = stages.view(key, (*key.shape[:2], query.shape[2] // heads * groups))
        chunks = _Chunks(stages, query, key_columns, value, first, decay, beta, groups, heads // groups, 1, scale)
        if estimate(query.shape[1]) < MIN_TOKENS:
            out, last = chunks.results_of_steps()
        else:
            out, last = chunks.results((heads * chunks.values,), query)
        last = stages.store(narrow(last, past_state), "the last state") if past_state is not None and is_half else last
        return [out, last]

    return Staged(plan, lambda _: (set(), names_in_empty(query.shape)), may_exceed_limits=True)


def _suits_scan(input: Operand, delta: Operand, a: Operand, b: Operand, c: Operand, d: Operand | None) -> bool:
    """Whether the tokens of Mamba 2 may run in chunks. The state of a channel of Mamba has a decay for each element."""
    if input.rank < 4 or is_symbolic((*input.shape[2:], *b.shape[2:])) or 0 in (*input.shape[2:], *b.shape[2:]):
        return False
    batches, tokens = input.shape[:2]
    if is_same_size(batches, 0) or (not isinstance(tokens, Size) and tokens < MIN_TOKENS):
        return False
    return {x.data_type for x in (input, delta, a, b, c, d) if x is not None} <= {"float32", "float16"}


@gpu.lower(selective_scan, when=_suits_scan)
def _(
    input: Traced, delta: Traced, a: Traced, b: Traced, c: Traced, d: Traced | None, initial_state: Traced | None
) -> Staged:
    batches, tokens, heads, width = input.shape
    groups, size = b.shape[2:]
    inner = heads // groups
    x, step, rate = widen(input), widen(delta), widen(a)

    lines = batches, tokens

    def skip(n: Traced, t: Traced, h: Traced, p: Traced) -> Traced:
        assert d is not None
        return x[n, t, h, p] * widen(d)[h]

    def in_steps(stages: Stages) -> list[Traced]:
        shape = (batches, groups, inner, width, size)
        first = initial_state
        if first is None or first.data_type == "float16":
            values = compute(shape, lambda *_: 0.0) if first is None else widen(first)
            first = stages.store(values, "the first state")
        staged = recurrent_form(scan_heads)(
            state=stages.view(first, shape),
            x=stages.view(input, (*lines, groups, inner, width)),
            delta=stages.view(delta, (*lines, groups, inner)),
            b=b,
            c=c,
            a=stages.view(a, (groups, inner)),
            axis=1,
            direction="forward",
        )
        last, y = staged.plan(stages)

        def output(n: Traced, t: Traced, h: Traced, p: Traced) -> Traced:
            value = y[n, t, h // inner, h % inner, p]
            return narrow(value if d is None else value + skip(n, t, h, p), input)

        def state(n: Traced, h: Traced, p: Traced, k: Traced) -> Traced:
            return last[n, h // inner, h % inner, p, k]

        return [stages.store(compute(input.shape, output), "outputs"), compute((batches, heads, width, size), state)]

    def in_chunks(stages: Stages) -> list[Traced]:
        values = compute(
            (*lines, heads * width), lambda n, t, k: x[n, t, k // width, k % width] * step[n, t, k // width]
        )
        decay = stages.store(compute((*lines, heads), lambda n, t, h: step[n, t, h] * rate[h]), "decays")
        first = None
        if initial_state is not None:
            old = widen(initial_state)
            transposed = compute((batches, heads, size, width), lambda n, h, k, p: old[n, h, p, k])
            first = stages.store(transposed, "the first state")
        query, key = (stages.view(array, (*lines, groups * size)) for array in (c, b))
        value = stages.store(values, "values")
        chunks = _Chunks(stages, query, key, value, first, decay, None, groups, 1, inner, 1.0)
        out, last = chunks.results((heads, width), input, None if d is None else skip)
        return [out, compute((batches, heads, width, size), lambda n, h, p, k: last[n, h, k, p])]

    def plan(stages: Stages) -> list[Traced]:
        out, state = (in_chunks if estimate(tokens) >= MIN_TOKENS else in_steps)(stages)
        return [out, stages.store(state if initial_state is None else narrow(state, initial_state), "the last state")]

    return Staged(plan, lambda _: (set(), names_in_empty(input.shape)), may_exceed_limits=True)


class _Chunks:
    """The stages of linear attention.

    Tokens are numbered by chunk and place. Axes of arrays are batch, chunk, group of keys, head of the group, then rows and
    columns of a matrix. A group has `queries` heads that share a state, or `inner` heads that share a query and have a state
    each.
    """

    def __init__(
        self,
        stages: Stages,
        query: Traced,
        key: Traced,
        value: Traced,
        first: Traced | None,
        decay: Traced | None,
        beta: Traced | None,
        groups: int,
        queries: int,
        inner: int,
        scale: float,
    ) -> None:
        self.stages, self.scale, self.first, self.beta = stages, scale, first, beta
        self.batches, self.tokens, _ = query.shape
        self.groups, self.queries, self.inner, self.states = groups, queries, inner, groups * inner
        self.heads = max(queries, inner)
        self.size, self.values = key.shape[2] // groups, value.shape[2] // self.states
        self.chunk = CHUNK if beta is None else DELTA_CHUNK
        self.chunks = -(-self.tokens // self.chunk)
        self.query, self.key, self.value, self.decay = query, key, value, decay
        self.decays: _Decays | None = None

    def state_of(self, g: Traced, h: Traced) -> Traced:
        """The number of the state of a head."""
        return g if self.inner == 1 else g * self.inner + h

    @property
    def _is_whole(self) -> bool:
        """Whether the last chunk is full."""
        return is_multiple(self.tokens, self.chunk)

    @property
    def stack(self) -> tuple[int, int, int]:
        return self.batches, self.chunks, self.groups

    @property
    def state_stack(self) -> tuple[int, int, int]:
        return self.batches, self.chunks, self.states

    def of_token(self, x: Traced, b: Traced, c: Traced, g: Traced, t: Traced) -> Traced:
        """A number of each token, from an array [batches, tokens, groups or 1]; 0 behind the last token."""
        x, at, column = widen(x), c * self.chunk + t, g if x.shape[2] > 1 else 0
        return x[b, at, column] if self._is_whole else where(at < self.tokens, x.clamped[b, at, column], 0)

    def _whole_chunks(self, x: Traced) -> Traced:
        """The array [batches, tokens, columns], with tokens of zeros until the last chunk is full."""
        if self._is_whole:
            return x
        shape = (self.batches, self.chunks * self.chunk, x.shape[2])
        padded = compute(shape, lambda b, t, c: where(t < self.tokens, x.clamped[b, t, c], 0))
        return self.stages.store(padded, "whole chunks")

    def _vectors(self, x: Traced, heads: int, copies: int = 1) -> View:
        """The matrices of a chunk in an array [batches, tokens, groups * heads * size]: a row for each token.

        Each head is repeated `copies` times, by a stride of 0.
        """
        line = x.shape[2]
        size = line // (self.groups * heads)
        strides = (
            self.chunks * self.chunk * line,
            self.chunk * line,
            heads * size,
            size if copies == 1 else 0,
            line,
            1,
        )
        return View(source_of(x), (*self.stack, heads * copies, self.chunk, size), strides)

    def _multiply(
        self,
        title: str,
        a: View,
        b: View,
        finish: Callable[[Traced], Traced] = lambda total: total,
        *,
        a_transpose: bool = False,
        b_transpose: bool = False,
    ) -> Traced:
        """Store the products of matrices."""
        problem = product_of(a, b, a_transpose, b_transpose)
        target = self.stages.array("float32", problem.layout.shape)
        return self.stages.add(Products(problem, finish), target, title)

    def results_of_steps(self) -> list[Traced]:
        """The outputs and the last state, step by step, for few tokens."""
        stages, tokens = self.stages, (self.batches, self.tokens)
        sizes = {"query": (self.queries, self.size), "key": (self.size,), "value": (self.values,)}
        arrays = {"query": self.query, "key": self.key, "value": self.value}
        if self.decay is not None:
            arrays["decay"], sizes["decay"] = self.decay, (1,)
        operands = {name: stages.view(x, (*tokens, self.groups, *sizes[name])) for name, x in arrays.items()}
        staged = recurrent_form(attend)(
            state=self._first_state(),
            decay=operands.pop("decay", None),
            beta=self.beta,
            scale=self.scale,
            axis=1,
            direction="forward",
            **operands,
        )
        last, steps = staged.plan(stages)

        def element(b: Traced, t: Traced, column: Traced) -> Traced:
            head = column // self.values
            return steps[b, t, head // self.queries, head % self.queries, column % self.values]

        shape = (*tokens, self.groups * self.queries * self.values)
        return [stages.store(compute(shape, element), "outputs"), last]

    def results(self, columns: Sequence[int], like: Traced, more: Callable[..., Traced] | None = None) -> list[Traced]:
        """The outputs [batches, tokens, *columns] in the data type of `like`, plus `more`, and the last state."""
        self.stages.remark = f"in chunks of {self.chunk} tokens"
        self.query, self.key, self.value = map(self._whole_chunks, (self.query, self.key, self.value))
        self.decays = decays = None if self.decay is None else _Decays(self, self.decay)
        keys, values = self._vectors(self.key, 1), self._vectors(self.value, self.inner)
        queries = self._vectors(self.query, self.queries, self.inner)
        states, last, added = (self._states if self.beta is None else self._delta_states)(keys, values)

        def mask_later(total: Traced) -> Traced:
            def element(b: Traced, c: Traced, g: Traced, h: Traced, i: Traced, j: Traced) -> Traced:
                score = total[b, c, g, h, i, j]
                if decays is not None:
                    score = score * exp(decays.between(b, c, self.state_of(g, h), j, i))
                return where(j <= i, score, 0)

            return compute(total.shape, element)

        def apply_decay(total: Traced) -> Traced:
            def element(b: Traced, c: Traced, g: Traced, h: Traced, i: Traced, v: Traced) -> Traced:
                read = total[b, c, g, h, i, v]
                return read if decays is None else read * decays.until(b, c, self.state_of(g, h), i)

            return compute(total.shape, element)

        scores = self._multiply("scores in chunks", queries, keys, mask_later, b_transpose=True)
        read = self._multiply("reads of states before chunks", queries, states, apply_decay)
        return [self._outputs(scores, added, read, columns, like, more), last]

    def _outputs(
        self,
        scores: Traced,
        added: View,
        read: Traced,
        columns: Sequence[int],
        like: Traced,
        more: Callable[..., Traced] | None,
    ) -> Traced:
        def finish(total: Traced) -> Traced:
            def element(b: Traced, at: Traced, *column: Traced) -> Traced:
                head, v = column if len(column) == 2 else (column[0] // self.values, column[0] % self.values)
                c, t, g, h = at // self.chunk, at % self.chunk, head // self.heads, head % self.heads
                value = (widen(total)[(b, at, *column)] + read[b, c, g, h, t, v]) * self.scale
                # `more` has no elements for tokens of the padding.
                return narrow(value if more is None else value + more(b, self._within(at), *column), like)

            return compute(total.shape, element)

        heads = self.groups * self.heads
        shape = (self.batches, self.chunks * self.chunk, *columns)
        problem = product_of(View.of(source_of(scores)), added).with_rows_before(heads, shape)
        target = self.stages.array("float16" if like.data_type == "float16" else "float32", shape)
        out = self.stages.add(Products(problem, finish), target, "outputs")
        if self._is_whole:
            return out
        return self.stages.store(compute((shape[0], self.tokens, *columns), lambda *place: out[place]), "tokens")

    def _within(self, at: Traced) -> Traced:
        return at if self._is_whole else clamp(at, None, self.tokens - 1)

    # States ----------------------------------------------------------------------------------------------------------

    def _first_state(self) -> Traced:
        if self.first is not None:
            return self.first
        shape = (self.batches, self.states, self.size, self.values)
        return self.stages.store(compute(shape, lambda *_: 0.0), "the first state")

    def _states(self, keys: View, values: View) -> tuple[View, Traced, View]:
        """The states before chunks, the last state, and the vectors that tokens add: their values."""
        decays, v = self.decays, widen(self.value)
        remaining, whole = values, None
        if decays is not None:

            def element(b: Traced, at: Traced, column: Traced) -> Traced:
                place = at // self.chunk, column // self.values, at % self.chunk
                return v[b, at, column] * decays.after(b, *place)

            scaled = self.stages.store(compute(v.shape, element), "values at the ends of chunks")
            remaining = self._vectors(scaled, self.inner)
            whole = decays.whole
        added = self._multiply("sums of chunks", keys, remaining, a_transpose=True)
        added = self.stages.view(added, (*self.state_stack, self.size, self.values))
        staged = recurrent_form(carry)(
            state=self._first_state(), added=added, factor=whole, axis=1, direction="forward"
        )
        last, states = staged.plan(self.stages)
        return self._of_chunks(states), last, values

    def _of_chunks(self, states: Traced) -> View:
        return View.of(source_of(self.stages.view(states, (*self.stack, self.inner, self.size, self.values))))

    # Delta rules -----------------------------------------------------------------------------------------------------

    def _delta_states(self, keys: View, values: View) -> tuple[View, Traced, View]:
        """The states before chunks, the last state, and the vectors that tokens add: changes."""
        decays, beta = self.decays, self.beta
        assert beta is not None

        def mask_earlier(total: Traced) -> Traced:
            def element(b: Traced, c: Traced, g: Traced, h: Traced, i: Traced, j: Traced) -> Traced:
                share = total[b, c, g, h, i, j] * self.of_token(beta, b, c, g, i)
                return where(j < i, share if decays is None else share * exp(decays.between(b, c, g, j, i)), 0)

            return compute(total.shape, element)

        shares = self._multiply("shares of earlier tokens", keys, keys, mask_earlier, b_transpose=True)
        of_values, of_states = map(View.of, self._inverses(shares))
        changes = self._multiply("changes from zero states", of_values, values)
        reads = self._multiply("reads of changes", of_states, keys)
        return self._carry_changes(changes, reads)

    def _inverses(self, shares: Traced) -> tuple[Input, Input]:
        """The inverses of I + `shares`, times beta of each column; and these times the decays until each column.

        A program inverts by blocks on the diagonal, from blocks of one row on: with X and Y, the inverses of P and Q, that of
        [[P, 0], [A, Q]] is [[X, 0], [-Y A X, Y]].
        """
        count, beta, decays = self.chunk, self.beta, self.decays
        assert beta is not None
        program = Workgroups([*self.stack])
        b, c, g = program.positions
        a, x, y = (program.shared_array([count, count]) for _ in range(3))
        product = program.shared_array([count // 2, count // 2])
        program.fill(a, lambda i, j: shares[b, c, g, 0, i, j])
        program.fill(x, lambda i, j: where(i == j, 1.0, 0.0))
        size = 1
        while size < count:
            program.fill(product, _right_factor(program, a, x, size), [count // 2, size])
            program.fill(y, _join_blocks(program, product, x, size))
            x, y, size = y, x, 2 * size

        def of_values(i: Traced, j: Traced) -> Traced:
            return program[x][i, j] * self.of_token(beta, b, c, g, j)

        def of_states(i: Traced, j: Traced) -> Traced:
            return of_values(i, j) if decays is None else of_values(i, j) * decays.until(b, c, g, j)

        targets = [self.stages.array("float32", (*self.stack, 1, count, count)) for _ in range(2)]
        for target, element in zip(targets, (of_values, of_states), strict=True):
            program.write(target, [count, count], lambda i, j: (b, c, g, 0, i, j), element)
        self.stages.add(program, targets[0], "inverses of chunks")
        return targets[0], targets[1]

    def _carry_changes(self, changes: Traced, reads: Traced) -> tuple[View, Traced, View]:
        """Run the chunks in order: subtract `reads` times the state before a chunk from its `changes`; update the state."""
        count, size, decays, key, first = self.chunk, self.size, self.decays, widen(self.key), self._first_state()
        features, lines = self.stages.features, estimate(self.batches) * self.groups
        width = next((n for n in TILES if lines * -(-self.values // n) >= features.units), TILES[-1])
        program = Workgroups([self.batches, self.groups, -(-self.values // width)])
        b, g, tile = program.positions
        state, change, kept = (program.shared_array([n, width]) for n in (size, count, count))
        # Rows are padded by one element to avoid bank conflicts: invocations of a warp read adjacent rows.
        rows = [program.shared_array([count, size + 1]) for _ in range(2)]
        is_copied = program.shared_bytes <= features.max_shared
        if not is_copied:
            program.locals = program.locals[:3]

        def column(j: Traced) -> Traced:
            return clamp(tile * width + j, None, self.values - 1)

        states, last, target = (
            self.stages.array("float32", shape)
            for shape in (
                (*self.stack, size, self.values),
                (self.batches, self.groups, size, self.values),
                (*self.stack, 1, count, self.values),
            )
        )
        program.fill(state, lambda i, j: first[b, g, i, column(j)])
        with program.repeat(self.chunks) as c:

            def read_of(t: Traced, i: Traced) -> Traced:
                return reads[b, c, g, 0, t, i]

            def key_of(t: Traced, i: Traced) -> Traced:
                return key[b, c * count + t, g * size + i]

            of_read: Callable[[Traced, Traced], Traced] = read_of
            of_key: Callable[[Traced, Traced], Traced] = key_of
            if is_copied:
                of_read, of_key = _copy(program, rows[0], read_of), _copy(program, rows[1], key_of)
            program.write(
                states, [size, width], lambda i, j: (b, c, g, i, column(j)), lambda i, j: program[state][i, j]
            )

            def difference(t: Traced, j: Traced) -> Traced:
                read = dot(size, lambda i: of_read(t, i) * program[state][i, j])
                return changes[b, c, g, 0, t, column(j)] - read

            def at_the_end(t: Traced, j: Traced) -> Traced:
                own = program[change][t, j]
                return own if decays is None else own * decays.after(b, c, g, t)

            def next_state(i: Traced, j: Traced) -> Traced:
                old = program[state][i, j]
                old = old if decays is None else old * decays.until(b, c, g, count - 1)
                return old + dot(count, lambda t: of_key(t, i) * program[kept][t, j])

            program.fill(change, difference)
            program.write(
                target, [count, width], lambda t, j: (b, c, g, 0, t, column(j)), lambda t, j: program[change][t, j]
            )
            program.fill(kept, at_the_end)
            program.fill(state, next_state)
        program.write(last, [size, width], lambda i, j: (b, g, i, column(j)), lambda i, j: program[state][i, j])
        self.stages.add(program, states, "changes and states of chunks")
        return self._of_chunks(of_input(states)), of_input(last), View.of(target)


def _copy(
    program: Workgroups, local: Local, element: Callable[[Traced, Traced], Traced]
) -> Callable[[Traced, Traced], Traced]:
    """Copy a matrix to `local`, whose rows are padded by one element; return a function that reads its elements."""
    rows, columns = local.desc.shape
    program.fill(local, element, [rows, columns - 1])
    return lambda t, i: program[local][t, i]


def _right_factor(program: Workgroups, a: Local, x: Local, size: int) -> Callable[[Traced, Traced], Traced]:
    """The product A X for each pair of blocks of `size` rows; `r` numbers the rows of all second blocks."""

    def element(r: Traced, j: Traced) -> Traced:
        first = r // size * (2 * size)
        return dot(size, lambda k: program[a][first + size + r % size, first + k] * program[x][first + k, first + j])

    return element


def _join_blocks(program: Workgroups, product: Local, x: Local, size: int) -> Callable[[Traced, Traced], Traced]:
    """The inverses of blocks of 2 * `size` rows, from the inverses of their halves, and the products A X."""

    def element(i: Traced, j: Traced) -> Traced:
        pair, row, column = i // (2 * size), i % (2 * size), clamp(j - i // (2 * size) * (2 * size), 0, 2 * size - 1)
        first, below = pair * (2 * size), clamp(column, None, size - 1)
        corner = dot(size, lambda k: program[x][i, first + size + k] * program[product][pair * size + k, below])
        is_corner = (row >= size) & (j >= first) & (j < first + size)
        return where(is_corner, -corner, program[x][i, j])

    return element


class _Decays:
    """Sums of decays in chunks, as logarithms, and factors.

    No sum is a difference of prefix sums: a large decay would cancel the digits of later ones. Sums of tokens of a block of 8
    are added to sums of blocks.

    Attributes:
        whole: the factors of whole chunks, [batches, chunks, states].
    """

    def __init__(self, chunks: _Chunks, decay: Traced) -> None:
        count, stages = chunks.chunk, chunks.stages
        blocks = count // BLOCK
        program = Workgroups([*chunks.state_stack])
        b, c, g = program.positions
        decays, within, between = (
            program.shared_array(shape) for shape in ((count,), (count, BLOCK + 1), (blocks + 1, blocks + 1))
        )
        program.fill(decays, lambda t: chunks.of_token(decay, b, c, g, t))

        def in_block(t: Traced, first: Traced) -> Traced:
            """The sum of the tokens behind `first` in the block until `t`; if it is 8, from the block's first token on."""

            def term(k: Traced) -> Traced:
                is_inside = (k <= t % BLOCK) & ((k > first) | (first == BLOCK))
                return where(is_inside, program[decays][t // BLOCK * BLOCK + k], 0)

            return sum_over(BLOCK, term)

        def of_blocks(first: Traced, end: Traced) -> Traced:
            """The sum of the blocks from `first` to `end`, exclusive."""

            def term(k: Traced) -> Traced:
                return where((k >= first) & (k < end), program[within][k * BLOCK + (BLOCK - 1), BLOCK], 0)

            return sum_over(blocks, term)

        def until(t: Traced) -> Traced:
            return exp(program[between][0, t // BLOCK] + program[within][t, BLOCK])

        def after(t: Traced) -> Traced:
            rest = program[within][t // BLOCK * BLOCK + (BLOCK - 1), t % BLOCK]
            return exp(rest + program[between][t // BLOCK + 1, blocks])

        program.fill(within, in_block)
        program.fill(between, of_blocks)
        parts: list[tuple[tuple[int, ...], Callable[..., Traced]]] = [
            (within.desc.shape, lambda t, first: program[within][t, first]),
            (between.desc.shape, lambda first, end: program[between][first, end]),
            # One array: the kernel that carries states binds all 8 buffers that WebGPU guarantees.
            ((2, count), lambda side, t: where(side == 0, until(t), after(t))),
            ((1,), lambda _: exp(program[between][0, blocks])),
        ]
        targets = []
        for shape, element in parts:
            targets.append(stages.array("float32", (*chunks.state_stack, *shape)))
            program.write(targets[-1], shape, lambda *place: (b, c, g, *place), element)
        stages.add(program, targets[0], "decays of chunks")
        self._within, self._blocks, self._factors, whole = map(of_input, targets)
        self.whole = stages.view(whole, chunks.state_stack)

    def between(self, b: Traced, c: Traced, g: Traced, j: Traced, i: Traced) -> Traced:
        """The sum of the tokens behind `j` until `i`, where j <= i."""
        start, end = j // BLOCK, i // BLOCK
        rest = self._within[b, c, g, start * BLOCK + (BLOCK - 1), j % BLOCK]
        blocks = rest + self._blocks[b, c, g, start + 1, end]
        return where(start == end, self._within[b, c, g, i, j % BLOCK], blocks + self._within[b, c, g, i, BLOCK])

    def until(self, b: Traced, c: Traced, g: Traced, t: Traced | int) -> Traced:
        """The factor of the tokens of the chunk until `t`."""
        return self._factors[b, c, g, 0, t]

    def after(self, b: Traced, c: Traced, g: Traced, t: Traced) -> Traced:
        """The factor of the tokens of the chunk behind `t`."""
        return self._factors[b, c, g, 1, t]
