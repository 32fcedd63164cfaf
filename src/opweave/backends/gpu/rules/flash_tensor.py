"""Attention on tensor cores, in Triton: the recurrence of `flash`, with both products of a block on tensor cores.

A program computes a tile of queries of one head. The directions of a tile are "row" (queries), "column" (keys), "depth" (terms
of scores) and "width" (elements of a value).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ....core.graph import Desc
from ....core.guards import estimate
from ....core.sizes import is_multiple
from ....expr import Traced, tanh, where
from ....expr.array import as_array
from ....expr.gpu import Features, GpuKernel, KernelProgram, TensorCores
from ....expr.gpu.forms import flat_position
from ....expr.gpu.triton import Position, Statements, UnsupportedError, type_of
from ....expr.ir import Expr, Index, Input, Load, walk
from ....expr.simplify import simplify_elements
from ..triton_kernel import TritonNumbers, mask_argument, triton_kernel

if TYPE_CHECKING:
    from .flash import Attention, AttentionSizes, Place

MIN_LINES = 16
"""Fewest queries and keys of a tile, and smallest size."""
MIN_PRODUCTS = 1 << 20
"""Fewest products of a call; for smaller calls, the kernel of `flash` compiles in a fraction of the time. Where queries and
values are long, its few workgroups are slow: 4 heads of 48 queries and keys of size 196, 3.6 million products, take 130 us on
an H200."""
MAX_SIZE = 256
"""Largest size of keys and values: a tile must fit shared memory, and the sums must fit registers."""


@dataclass(frozen=True, slots=True)
class _FlashTensorTile:
    """The tile of a program: queries (`rows`), keys per step, and the sizes of a key and a value as powers of two."""

    rows: int
    columns: int
    depth: int
    width: int
    warps: int
    stages: int


def suits(problem: AttentionSizes, features: Features) -> bool:
    """Whether attention is worth a kernel for tensor cores."""
    if features.tensor_cores is None or max(problem.size, problem.values) > MAX_SIZE:
        return False
    scores = estimate(problem.batches * problem.heads * problem.queries * problem.keys)
    small = any(estimate(size) < MIN_LINES for size in (problem.queries, problem.keys))
    return not small and scores * (problem.size + problem.values) >= MIN_PRODUCTS


def on_tensor_cores(problem: Attention, features: Features, result: Input, place: Place) -> TensorAttention | None:
    """The kernel on tensor cores; None if it does not suit, or if Triton cannot compute the problem."""
    cores = features.tensor_cores
    if cores is None or not suits(problem, features):
        return None
    try:
        return TensorAttention(problem, features, cores, result, place)
    except UnsupportedError:
        return None


def _power(size: int) -> int:
    return max(MIN_LINES, 1 << (size - 1).bit_length())


def _tile(problem: Attention, is_half: bool, features: Features) -> _FlashTensorTile:
    """A tile that fits registers, and is small enough to keep the device busy. The sizes are estimates."""
    depth, width = _power(problem.size), _power(problem.values)
    is_large = max(depth, width) > 128
    queries, keys, lines = map(estimate, (problem.queries, problem.keys, problem.batches * problem.heads))
    rows = min(128 if is_half and not is_large else 64, _power(queries))
    columns = min(64 if is_half and not is_large else 32, _power(keys))
    while rows > MIN_LINES and lines * -(-queries // rows) < features.units:
        rows //= 2
    return _FlashTensorTile(rows, columns, depth, width, 8 if rows == 128 else 4, 3 if is_half else 2)


class TensorAttention(KernelProgram):
    """The kernel of attention on tensor cores; `UnsupportedError` if Triton cannot compute an expression."""

    def __init__(self, problem: Attention, features: Features, cores: TensorCores, result: Input, place: Place) -> None:
        self.problem, self.result, self.cores = problem, result, cores
        p = problem
        sizes = (p.batches, p.heads, p.groups, p.queries, p.keys, p.size, p.values)
        self._batch, self._head, self._group, self._query, self._key, self._s, self._d = map(Index, sizes)
        b, h, g, i, k, s, d = (
            Traced((), index)
            for index in (self._batch, self._head, self._group, self._query, self._key, self._s, self._d)
        )
        self._total = Load(Input(-1, Desc("float32", (p.queries, p.keys))), (self._query, self._key))
        at = tuple(as_array(index, "index").body for index in place(b, h, i, d))
        bodies: dict[str, Traced] = {
            "query": p.query(b, h, i, s),
            "key": p.key(b, g, k, s),
            "value": p.value(b, g, k, d),
            "score": self._score(b, h, i, k),
            "at": Traced((), flat_position(at, result.desc.shape)),
        }
        if p.sink is not None:
            bodies["sink"] = p.sink(h)
        if p.first is not None:
            bodies["first"] = p.first(b, i)
        if p.end is not None:
            bodies["end"] = p.end(b, i)
        self._bodies = dict(zip(bodies, simplify_elements(*(x.body for x in bodies.values())), strict=True))
        loads = [n for n in walk(*self._bodies.values()) if isinstance(n, Load) and n is not self._total]
        self.sources = list(dict.fromkeys(n.source for n in loads if isinstance(n.source, Input)))
        self.sources = [source for source in self.sources if source is not self._total.source]
        self._names: dict[Any, str] = {source: f"x{k}" for k, source in enumerate(self.sources)}
        self._arguments = {**{name: source for source, name in self._names.items()}, "result": result}
        for array in self._arguments.values():
            type_of(array.desc)  # raises for arrays that kernels in Triton do not read
        self._is_half = {"float16"} == {result.desc.data_type, *self._types_of("key"), *self._types_of("value")}
        self.tile = _tile(problem, self._is_half, features)
        self._library: dict[str, None] = {}
        self._numbers = TritonNumbers()
        self._number = self._numbers.number
        self._lines = list(self._body())

    @property
    def targets(self) -> list[Input]:
        return [self.result]

    def kernel(self, title: str, features: Features, is_fixed: Callable[[Input], bool] = lambda _: False) -> GpuKernel:
        p, tile = self.problem, self.tile
        comment = f"tensor cores, tiles of {tile.rows} queries and {tile.columns} keys"
        return triton_kernel(
            title,
            comment,
            self._arguments,
            self._library,
            self._lines,
            programs=p.batches * p.heads * -(-p.queries // tile.rows),
            warps=tile.warps,
            stages=tile.stages,
            cores=self.cores,
            sizes=self._numbers.sizes,
        )

    def _score(self, *position: Traced) -> Traced:
        """The adjusted score, from the product of a query and a key."""
        problem, total = self.problem, Traced((), self._total)
        if problem.softcap:
            total = tanh(total * (1 / problem.softcap)) * problem.softcap
        if problem.adjust is not None:
            total = problem.adjust(total, *position)
        if problem.visible is not None:
            total = where(problem.visible(*position), total, float("-inf"))
        return total

    def _types_of(self, body: str) -> set[str]:
        return {n.type for n in walk(self._bodies[body]) if isinstance(n, Load) and str(n.type).startswith("float")}

    # Text ------------------------------------------------------------------------------------------------------------

    def _statements(
        self, body: str, name: str, axes: Mapping[Index, Position], texts: Mapping[Expr, str] | None = None
    ) -> list[str]:
        names = {self._batch: "batch", self._head: "head", self._group: "group"}
        fixed = {index: Position(text, frozenset()) for index, text in names.items()}
        inside, number = self._inside(axes), self._number
        statements = Statements(self._names, {**fixed, **axes}, inside, texts or {}, prefix=f"{name}_", number=number)
        value = statements.value(self._bodies[body])
        self._library |= dict.fromkeys(statements.library)
        return [*statements.lines, f"{name} = {value}"]

    def _inside(self, axes: Mapping[Index, Position]) -> dict[str, str]:
        """The condition that an element is inside the arrays, by direction."""
        p, tile = self.problem, self.tile
        limits = {
            self._query: ("row", p.queries, tile.rows),
            self._key: ("column", p.keys, tile.columns),
            self._s: ("depth", p.size, tile.depth),
            self._d: ("width", p.values, tile.width),
        }
        conditions = {}
        for index, position in axes.items():
            direction, size, step = limits[index]
            is_ragged = position.along and not is_multiple(size, step)
            conditions[direction] = f"{position.text} < {self._number(size)}" if is_ragged else ""
        return conditions

    def _body(self) -> Iterator[str]:
        p, tile, number = self.problem, self.tile, self._number
        tiles = number(-(-p.queries // tile.rows))
        row, depth = Position("row", frozenset({"row"})), Position("depth", frozenset({"depth"}))
        column, depth_down = Position("column", frozenset({"column"})), Position("depth_down", frozenset({"depth"}))
        column_down, width = Position("column_down", frozenset({"column"})), Position("width", frozenset({"width"}))
        yield "program = tl.program_id(0)"
        # If later queries see more keys, their tiles start first.
        if p.end is None:
            yield f"number = program % {tiles}"
        else:
            yield f"number = {number(-(-p.queries // tile.rows) - 1)} - program % {tiles}"
        yield f"head = program // {tiles} % {number(p.heads)}"
        yield f"batch = program // {number(-(-p.queries // tile.rows) * p.heads)}"
        yield f"group = head // {p.share}"
        yield f"row = number * {tile.rows} + tl.arange(0, {tile.rows})[:, None]"
        yield f"depth = tl.arange(0, {tile.depth})[None, :]"
        yield f"depth_down = tl.arange(0, {tile.depth})[:, None]"
        yield f"width = tl.arange(0, {tile.width})[None, :]"
        yield from self._statements("query", "query", {self._query: row, self._s: depth})
        yield from self._operand("query", "depth")
        yield from self._start()
        yield f"total = tl.zeros(({tile.rows}, {tile.width}), tl.float32)"
        yield from self._limits()
        yield "for block in range(start, stop):"
        yield from (f"    {line}" for line in self._step(row, column, depth_down, column_down, width))
        quotient = "tl.div_rn(total, tl.broadcast_to(weight, total.shape))"
        is_empty = "~(weight > 0)" if p.zeroes else "weight == 0"
        yield f'value = tl.where({is_empty}, float("{p.empty}"), {quotient})'
        yield from self._statements("at", "at", {self._query: row, self._d: width})
        mask = mask_argument(self._inside({self._query: row, self._d: width}).values())
        value = "tl.cast(value, tl.float16)" if self.result.desc.data_type == "float16" else "value"
        yield f"tl.store(result + at, {value}{mask})"

    def _start(self) -> Iterator[str]:
        rows = f"({self.tile.rows}, 1)"
        if self.problem.sink is None:
            yield f'largest = tl.full({rows}, float("-inf"), tl.float32)'
            yield f"weight = tl.zeros({rows}, tl.float32)"
            return
        yield from self._statements("sink", "sink", {})
        yield f"largest = tl.zeros({rows}, tl.float32) + sink"
        yield f"weight = tl.full({rows}, 1.0, tl.float32)"

    def _limits(self) -> Iterator[str]:
        """Define the blocks of keys that are visible to the tile."""
        p, tile, number = self.problem, self.tile, self._number
        start, stop = "0", number(-(-p.keys // tile.columns))
        if p.first is not None:
            yield f"first_row = number * {tile.rows}"
            yield from self._statements("first", "first", {self._query: Position("first_row", frozenset())})
            start = f"tl.maximum(tl.minimum(first, {number(p.keys - 1)}), 0) // {tile.columns}"
        if p.end is not None:
            yield f"last_row = tl.minimum(number * {tile.rows} + {tile.rows - 1}, {number(p.queries - 1)})"
            yield from self._statements("end", "end", {self._query: Position("last_row", frozenset())})
            stop = f"(tl.maximum(tl.minimum(end, {number(p.keys)}), 0) + {tile.columns - 1}) // {tile.columns}"
        yield f"start = {start}"
        yield f"stop = {stop}"

    def _step(
        self, row: Position, column: Position, depth_down: Position, column_down: Position, width: Position
    ) -> Iterator[str]:
        p, tile = self.problem, self.tile
        yield f"column = block * {tile.columns} + tl.arange(0, {tile.columns})[None, :]"
        yield f"column_down = block * {tile.columns} + tl.arange(0, {tile.columns})[:, None]"
        yield from self._statements("key", "key", {self._key: column, self._s: depth_down})
        yield from self._operand("key", "depth_down")
        yield f"product = {self._dot('query', 'key')}"
        yield from self._statements("score", "score", {self._query: row, self._key: column}, {self._total: "product"})
        if not is_multiple(p.keys, tile.columns):
            yield f'score = tl.where(column < {self._number(p.keys)}, score, float("-inf"))'
        yield "larger = tl.maximum(largest, tl.max(score, 1)[:, None])"
        yield 'factor = tl.where(largest == float("-inf"), 0.0, tl.exp(largest - larger))'
        yield 'share = tl.where(score == float("-inf"), 0.0, tl.exp(score - larger))'
        yield "weight = weight * factor + tl.sum(share, 1)[:, None]"
        yield from self._statements("value", "values", {self._key: column_down, self._d: width})
        if p.has_room:  # invisible values may be NaN
            yield "values = tl.where(tl.max(share, 0)[:, None] > 0, values, 0.0)"
        yield from self._operand("values")
        yield from self._operand("share")
        yield f"total = total * factor + {self._dot('share', 'values')}"
        yield "largest = larger"

    def _operand(self, name: str, depth: str = "") -> Iterator[str]:
        """Pad an operand of a product with zeros beyond its depth, and cast it to the type of the product."""
        if depth and self.problem.size % self.tile.depth:
            yield f"{name} = tl.where({depth} < {self.problem.size}, {name}, 0.0)"
        kind = "float16" if self._is_half else self.cores.float32
        if kind not in ("tf32", "tf32x3"):
            yield f"{name} = tl.cast({name}, tl.{kind})"

    def _dot(self, left: str, right: str) -> str:
        if self._is_half or self.cores.float32 not in ("tf32", "tf32x3"):
            return f"tl.dot({left}, {right})"
        return f'tl.dot({left}, {right}, input_precision="{self.cores.float32}")'
