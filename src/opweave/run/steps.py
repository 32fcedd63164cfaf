"""What a program is made of: compiled segments, steps, and values without a shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..backends import Runner
from ..errors import OperationError
from ..graph import Builder, Desc, Node, Operand
from ..memory import NOT_IN_PLACE, copies
from ..memory.spaces import Cell, Memory, Space


class Unsized(Operand):
    """A value whose data type and shape are known only once it is computed; its memory is a `Cell`."""

    __slots__ = ()

    def __init__(self, builder: Builder, name: str = "", value: Cell | None = None) -> None:
        super().__init__(builder, Desc("uint8", (0,)), name=name, value=value)


@dataclass(frozen=True, eq=False, slots=True)
class Part:
    """A segment of a graph, compiled.

    Attributes:
        runner: what computes it.
        space: where the memory that it reads and writes must lie.
        device: the name of the device that it runs on.
        nodes: the nodes of the graph that it computes; none for a part of an ONNX model, which names its nodes in errors.
        compiled: the same nodes, in the graph that the runner was compiled from.
        reads: the operands that it reads, in the order in which the runner takes them.
        writes: the operands that it writes, likewise.
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


@dataclass(frozen=True, eq=False, slots=True)
class Step:
    """One thing that a program does.

    Attributes:
        title: the operations that it computes, or what it copies.
        space: where the memory that it reads and writes must lie.
        reads: the numbers of the values that it reads.
        writes: the numbers of the values that it writes.
        bind: ties it to memory, in the order of `reads` and `writes`; what is returned runs it once.
        segment: the number of the segment of the graph that it computes, or copies for.
        read_bytes: how many bytes it reads, weights included.
        written_bytes: how many bytes it writes.
        part: what it computes; None for copies.
        copied: the sizes in bytes of inputs that its engine copies, since it does not update them in place.
    """

    title: str
    space: Space
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    bind: Callable[[Sequence[Memory], Sequence[Memory]], Callable[[], None]]
    segment: int
    read_bytes: int
    written_bytes: int
    part: Part | None = None
    copied: tuple[int, ...] = ()

    def tie(self, memory: Sequence[Memory]) -> Callable[[], None]:
        """Bind it to its part of the memory of a run, which is given by number.

        Raises:
            OperationError: it cannot be bound; the message names the operations.
        """
        try:
            call = self.bind([memory[at] for at in self.reads], [memory[at] for at in self.writes])
        except OperationError as error:
            failed = self.failed(error)
            raise failed from failed.__cause__
        return _counting(call, self.copied) if self.copied else call

    def run(self, reads: Sequence[Memory], writes: Sequence[Memory]) -> None:
        """Run it once: what `bind(reads, writes)()` does."""
        if self.part is None:
            self.bind(reads, writes)()
        else:
            self.part.runner.run(reads, writes)
            if self.copied:
                _count(self.copied)

    def failed(self, error: OperationError) -> OperationError:
        """The error of a run, which names the operations."""
        text = str(error)
        if self.part is None or not self.part.nodes or text.startswith(self.title):
            return error
        made = OperationError(f"{self.title}: {text.removeprefix(f'{self.part.runner.name}: ')}")
        made.__cause__ = error
        return made


class CountingRunner:
    """A runner whose inputs are not updated in place; it counts what its engine copies.

    Args:
        runner: the runner.
        copied: the sizes in bytes of these inputs.
    """

    def __init__(self, runner: Runner, copied: Sequence[int]) -> None:
        self._runner, self._copied = runner, copied

    def bind(self, inputs: Sequence[Memory], outputs: Sequence[Memory]) -> Callable[[], None]:
        """`Runner.bind`."""
        return _counting(self._runner.bind(inputs, outputs), self._copied)

    def run(self, inputs: Sequence[Memory], outputs: Sequence[Memory]) -> None:
        """`Runner.run`."""
        self._runner.run(inputs, outputs)
        _count(self._copied)

    def run_new(self, inputs: Sequence[Memory], outputs: Sequence[int]) -> list[Memory] | None:
        """`Runner.run_new`."""
        found = self._runner.run_new(inputs, outputs)
        if found is not None:
            _count(self._copied)
        return found


def _count(copied: Sequence[int]) -> None:
    copies.add(sum(copied), NOT_IN_PLACE, len(copied))


def _counting(call: Callable[[], None], copied: Sequence[int]) -> Callable[[], None]:
    def run() -> None:
        call()
        _count(copied)

    return run


def title(nodes: Sequence[Node]) -> str:
    """The operations of a segment, for messages and tables."""
    return ", ".join(node.title for node in nodes[:3]) + (", …" if len(nodes) > 3 else "")
