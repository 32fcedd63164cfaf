"""Programs of workgroups: kernels whose invocations keep arrays between several steps.

An index expression defines one element of a result. That is not enough if a step needs all elements of the previous step:
the states of a recurrent network, or attention, which keeps a running maximum and sum for each query. In a program of
workgroups, each workgroup works on one position of `rows`. It executes statements in order, and keeps arrays in workgroup
memory or in registers. Statements compute elements by index expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property

from ...core.dtypes import DataType
from ...core.graph import Desc
from ...support.errors import require
from ..array import Traced, as_array
from ..ir import Cast, Expr, Index, Input, Load, Reduce, size_of, walk
from ..reductions import COMBINE
from ..tracing import of_input
from .kernel import Features, GpuKernel, KernelProgram
from .reductions import loop_iterations
from .statements import Fill, Local, Repeat, Statement, Write
from .workgroup_text import Text
from .writing import width_of

UNROLLED_ELEMENTS = 8
"""Reductions of up to this many elements are unrolled: their loads do not wait for each other."""


@dataclass(eq=False)
class Workgroups(KernelProgram):
    """A program of workgroups under construction: `sizes` of them along each axis.

    About `width` invocations of a workgroup have work at the same time. Reductions of up to `unrolled` elements are unrolled.

    >>> program = Workgroups([2])  # one workgroup for each of two rows
    >>> x, y = Input(0, Desc("float32", (2, 8))), Input(1, Desc("float32", (2, 8)))
    >>> (row,) = program.positions
    >>> total = program.shared_array([8])
    >>> program.fill(total, lambda i: 0)
    >>> with program.repeat(3):
    ...     program.fill(total, lambda i: program[total][i] + of_input(x)[row, i])
    >>> program.write(y, [8], lambda i: (row, i), lambda i: program[total][i])
    >>> print(program.kernel("three times", Features()).workgroups)
    (2, 1, 1)
    """

    sizes: Sequence[int]
    width: int = 256
    unrolled: int = UNROLLED_ELEMENTS
    statements: list[Statement] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rows = tuple(map(Index, self.sizes))
        self.locals: list[Local] = []
        self._kernels: dict[tuple[Features, frozenset[Input]], GpuKernel] = {}

    @property
    def positions(self) -> tuple[Traced, ...]:
        """The position of a workgroup along each axis."""
        return tuple(Traced((), row) for row in self.rows)

    @property
    def sources(self) -> list[Input]:
        """The arrays in memory that are read."""
        arrays: dict[Input, None] = {}
        for body in self._bodies(self.statements):
            loads = (node for node in walk(body) if isinstance(node, Load))
            sources = (load.source for load in loads if not isinstance(load.source, Local))
            arrays |= {source: None for source in sources if isinstance(source, Input)}
        return list(arrays)

    @property
    def targets(self) -> list[Input]:
        """The arrays in memory that are written."""
        return list(dict.fromkeys(s.target for s in _walk_statements(self.statements) if isinstance(s, Write)))

    def __getitem__(self, local: Local) -> Traced:
        return of_input(local)

    # Construction ----------------------------------------------------------------------------------------------------

    def shared_array(self, shape: Sequence[int], data_type: DataType = "float32") -> Local:
        """A new array in workgroup memory, which all invocations read; of float32, int32 or uint32."""
        self.locals.append(Local(-1, Desc(data_type, tuple(shape))))
        return self.locals[-1]

    def private_array(self, shape: Sequence[int], data_type: DataType = "float32") -> Local:
        """A new array in registers: an invocation reads those elements that it has computed, at the same position."""
        self.locals.append(Local(-1, Desc(data_type, tuple(shape)), private=True))
        return self.locals[-1]

    def fill(
        self,
        target: Local,
        value: Callable[..., Traced | float],
        shape: Sequence[int] | None = None,
        start: int = 0,
    ) -> None:
        """Compute the elements of a local array, or of a part of it.

        The part has this `shape`, and begins at `start` of the first axis. A part with `start` > 0 must not overlap parts that
        are already filled.
        """
        axes = tuple(map(Index, shape or target.desc.shape))
        self.statements.append(Fill(target, axes, _element(value, axes), start))

    def write(
        self,
        target: Input,
        shape: Sequence[int],
        at: Callable[..., Sequence[Traced | int]],
        value: Callable[..., Traced | float],
    ) -> None:
        """Write an element of an array in memory for each position in `shape`."""
        axes = tuple(map(Index, shape))
        positions = [Traced((), axis) for axis in axes]
        where = tuple(as_array(index, "index").body for index in at(*positions))
        body = _element(value, axes)
        if body.type != target.desc.data_type:
            body = Cast(body, target.desc.data_type)
        self.statements.append(Write(target, axes, where, body))

    @contextmanager
    def repeat(
        self, count: int, first: Traced | int = 0, end: Traced | int | None = None, *, most: int | None = None
    ) -> Iterator[Traced]:
        """Repeat the statements that are added in the `with` block, for positions from `first` to `end`, exclusive.

        `end` is at most `count`, which is the default; `most` is the maximum number of positions, if less than `count`.
        """
        outer, self.statements = self.statements, []
        variable = Index(count)
        try:
            yield Traced((), variable)
        finally:
            inner, self.statements = self.statements, outer
        start, stop = (as_array(index, "index").body for index in (first, count if end is None else end))
        self.statements.append(Repeat(variable, start, stop, most or count, inner))

    def _bodies(self, statements: Sequence[Statement]) -> Iterator[Expr]:
        for statement in _walk_statements(statements):
            if isinstance(statement, Repeat):
                yield from (statement.first, statement.end)
            else:
                yield statement.body
                yield from statement.at if isinstance(statement, Write) else ()

    # Text ------------------------------------------------------------------------------------------------------------

    @property
    def shared_bytes(self) -> int:
        """Workgroup memory that the program takes."""
        return sum(local.desc.byte_length for local in self.locals if not local.private)

    def iterations(self, features: Features) -> int:
        """Maximum number of loop iterations of an invocation, summed over all loops."""
        return self._iterations(self.statements, self.invocations(features))

    def invocations(self, features: Features) -> int:
        return width_of(self.width, features)

    def _iterations(self, statements: Sequence[Statement], width: int) -> int:
        total = 0
        for statement in statements:
            if isinstance(statement, Repeat):
                total += statement.most * (1 + self._iterations(statement.statements, width)) + 1
            else:
                total += -(-size_of(statement.axes) // width) * (1 + loop_iterations(statement.body, self.is_short)) + 1
        return total

    def is_short(self, node: Reduce) -> bool:
        return size_of(node.variables) <= self.unrolled and node.reduction in COMBINE

    def fits(self, features: Features) -> bool:
        """Whether a device has the workgroup memory, the buffers and the loop iterations that the program takes."""
        buffers = len({*self.sources, *self.targets})
        has_memory = self.shared_bytes <= features.max_shared and buffers <= features.max_buffers
        return has_memory and self.iterations(features) <= features.max_iterations

    def kernel(self, title: str, features: Features, is_fixed: Callable[[Input], bool] = lambda _: False) -> GpuKernel:
        """The kernel of the program; its bindings are `sources` and `targets`. See `KernelProgram`."""
        require(
            self.shared_bytes <= features.max_shared, f"{title} takes {self.shared_bytes} bytes of workgroup memory"
        )
        count = self.iterations(features)
        require(count <= features.max_iterations, f"{title} repeats loops {count} times, too often for this device")
        key = features, frozenset(filter(is_fixed, self._finished_sources))
        if key not in self._kernels:
            self._kernels[key] = Text(self, title, *key).kernel()
        return replace(self._kernels[key], title=title)

    @cached_property
    def _finished_sources(self) -> list[Input]:
        """`sources`, cached when all statements have been added."""
        return self.sources


def _walk_statements(statements: Sequence[Statement]) -> Iterator[Statement]:
    """Iterate over statements, each followed by the statements inside of it."""
    for statement in statements:
        yield statement
        if isinstance(statement, Repeat):
            yield from _walk_statements(statement.statements)


def _element(value: Callable[..., Traced | float], axes: tuple[Index, ...]) -> Expr:
    return as_array(value(*(Traced((), axis) for axis in axes)), "float32").body
