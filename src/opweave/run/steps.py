"""Parts of a program: compiled segments, steps, and values without a shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from ..backends import Runner
from ..core.graph import Builder, Desc, Node, Operand
from ..core.size_values import at
from ..memory.spaces import Cell, Memory, Space
from ..support.errors import OperationError
from ..support.records import record


class Unsized(Operand):
    """A value whose data type and shape are known only once it is computed; its memory is a `Cell`."""

    __slots__ = ()

    def __init__(self, builder: Builder, name: str = "", value: Cell | None = None) -> None:
        super().__init__(builder, Desc("uint8", (0,)), name=name, value=value)


@record
class CompiledSegment:
    """A segment of a graph, compiled.

    Attributes:
        space: the space of the memory that it reads and writes.
        nodes: the nodes of the graph that it computes; none for a part of an ONNX model, which names its nodes in errors.
        compiled: the same nodes, in the graph that the runner was compiled from.
        reads: the operands that the step reads, in the order in which the runner takes them.
        writes: the operands that the step writes, in the order in which the runner takes them.
        title: what it computes, for messages; empty for the names of `nodes`.
    """

    runner: Runner
    space: Space
    device: str
    nodes: Sequence[Node]
    compiled: Sequence[Node]
    reads: Sequence[Operand]
    writes: Sequence[Operand]
    title: str = ""


@record
class Step:
    """A step of a program: a compiled segment, or copies.

    Attributes:
        space: the space of the memory that it reads and writes.
        reads: the numbers of the values that it reads.
        writes: the numbers of the values that it writes.
        bind: binds the step to memory, in the order of `reads` and `writes`, and returns a function that runs it once.
        segment: the number of the segment of the graph that the step computes, or whose operands it copies.
        read_bytes: bytes that it reads, weights included.
        part: the compiled segment; None for copies.
    """

    title: str
    space: Space
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    bind: Callable[[Sequence[Memory], Sequence[Memory]], Callable[[], None]]
    segment: int
    read_bytes: int
    written_bytes: int
    part: CompiledSegment | None = None

    def between(self, reads: tuple[int, ...], writes: tuple[int, ...]) -> Step:
        """The step for other slots."""
        numbers = self.segment, self.read_bytes, self.written_bytes
        return Step(self.title, self.space, reads, writes, self.bind, *numbers, self.part)

    def at(self, sizes: Mapping[str, int], follow: Callable[[Operand], Operand]) -> Step:
        """The step for certain sizes; `follow` returns an operand with numbers in place of sizes."""
        part = self.part
        assert part is not None
        part = CompiledSegment(
            part.runner.at(sizes), part.space, part.device, part.nodes, part.compiled,
            list(map(follow, part.reads)), list(map(follow, part.writes)), part.title,
        )  # fmt: skip
        bytes_at = at(self.read_bytes, sizes), at(self.written_bytes, sizes)
        return Step(self.title, self.space, self.reads, self.writes, part.runner.bind, self.segment, *bytes_at, part)

    def tie(self, memory: Sequence[Memory]) -> Callable[[], None]:
        """Bind the step to its slots of a run's memory. Errors name the operations."""
        try:
            return self.bind([memory[slot] for slot in self.reads], [memory[slot] for slot in self.writes])
        except OperationError as error:
            self.reraise(error)

    def run(self, reads: Sequence[Memory], writes: Sequence[Memory]) -> None:
        """Run the step once, like `bind(reads, writes)()`."""
        if self.part is None:
            self.bind(reads, writes)()
        else:
            self.part.runner.run(reads, writes)

    def reraise(self, error: OperationError) -> NoReturn:
        """Raise the error of a run, with the names of the operations."""
        text = str(error)
        if self.part is None or not self.part.nodes or text.startswith(self.title):
            raise error from error.__cause__
        raise OperationError(f"{self.title}: {text.removeprefix(f'{self.part.runner.name}: ')}") from error


def title(nodes: Sequence[Node]) -> str:
    """The operations of a segment, for messages and tables."""
    return ", ".join(node.title for node in nodes[:3]) + (", …" if len(nodes) > 3 else "")
