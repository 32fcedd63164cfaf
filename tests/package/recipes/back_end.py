"""A back end for a device with memory of its own, as small as one can be: an accelerator that NumPy stands for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any
from weakref import WeakSet

import numpy as np

from opweave import memory
from opweave.backends import Backend, Device, How, PowerPreference, Runner, Spinning
from opweave.core import Desc, Graph, Node, Operand, ValidationError, require
from opweave.ops import elementwise, matrix


class Cell:
    """Memory of a tensor on the accelerator, which NumPy does not see."""

    def __init__(self, desc: Desc) -> None:
        self.values = np.zeros(desc.shape, desc.data_type)


class Card:
    """The memory of the accelerator: a `DeviceSpace`."""

    is_host = False
    device = None

    def __init__(self) -> None:
        self._contexts: WeakSet[Any] = WeakSet()

    def attach(self, context: Any) -> None:
        """Note a context."""
        self._contexts.add(context)

    def detach(self, context: Any) -> None:
        """Forget a context."""
        self._contexts.discard(context)

    def owns(self, given: Any, /) -> bool:
        """Whether memory lies here."""
        return isinstance(given, Cell)

    def allocate(self, desc: Desc) -> Cell:
        """New memory of zeros."""
        return Cell(desc)

    def adopt(self, given: Any, desc: Desc | None) -> Cell:
        """No other memory can become a tensor here."""
        raise ValidationError(f"tensor_from: a tensor here cannot be {type(given).__name__}")

    def carve(self, sizes: Sequence[int], homes: Sequence[int], descs: Sequence[Desc]) -> list[Cell]:
        """Memory for intermediates."""
        return [Cell(desc) for desc in descs]

    def arenas(self) -> None:
        """Memory here has one shape."""

    def check_overlap(self, inputs: Mapping[str, Cell], outputs: Mapping[str, Cell], constants: object = ()) -> None:
        """Require that no output is an input."""
        require(set(map(id, inputs.values())).isdisjoint(map(id, outputs.values())), "an output is an input")

    def write(self, target: Cell, source: np.ndarray, reason: str) -> None:
        """Copy an array to the accelerator."""
        memory.copy(target.values, source, reason)

    def read(self, sources: Sequence[Cell], targets: Sequence[np.ndarray], reason: str) -> None:
        """Copy from the accelerator into arrays."""
        for source, target in zip(sources, targets, strict=True):
            memory.copy(target, source.values, reason)

    def copy(self, target: Cell, source: Cell, reason: str) -> None:
        """Copy on the accelerator."""
        memory.copy(target.values, source.values, reason)

    def wait(self) -> None:
        """It is done when a call returns."""


class Accelerator(Backend):
    """Rules are functions of arrays."""

    name = "accelerator"

    def devices(self) -> list[Device]:
        """One is always there."""
        return [Device("accelerator", "npu", self.name, "an accelerator that NumPy stands for")]

    def open(self, device: Device, power_preference: PowerPreference) -> Accelerator:
        """The same rules, and memory for the tensors of a context."""
        made = copy(self)
        made.space = Card()
        return made

    def compile(
        self, graph: Graph, *, device: str, power_preference: PowerPreference, spinning: Spinning = "short"
    ) -> Interpreter:
        """Nothing is to be compiled."""
        return Interpreter(self, graph)


class Interpreter(Runner):
    """Runs one node after the other."""

    name = "accelerator"

    def __init__(self, backend: Accelerator, graph: Graph) -> None:
        self.backend, self.graph = backend, graph

    def bind(self, inputs: Sequence[Cell], outputs: Sequence[Cell]) -> Callable[[], None]:
        """Tie it to memory."""
        return partial(self.run, inputs, outputs)

    def run(self, inputs: Sequence[Cell], outputs: Sequence[Cell]) -> None:
        """Run the graph once."""
        known: dict[Operand, np.ndarray] = {
            operand: cell.values for operand, cell in zip(self.graph.inputs.values(), inputs, strict=True)
        }
        for node in self.graph.nodes:
            known.update((operand, operand.value) for operand in node.operands if operand.is_constant)
            rule = self.backend.rule(node)
            assert rule is not None
            operands = {name: known[operand] for name, operand in node.inputs.items() if isinstance(operand, Operand)}
            known[node.outputs[0]] = rule((), {**operands, **node.attributes})
        for operand, cell in zip(self.graph.outputs.values(), outputs, strict=True):
            cell.values[...] = known[operand]

    def describe(self, nodes: Sequence[Node]) -> tuple[How, str]:
        """What computes nodes."""
        return "native", "accelerator"


accelerator = Accelerator()


@accelerator.lower(elementwise.add)
def _(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a + b


@accelerator.lower(elementwise.max)
def _(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.maximum(a, b)


@accelerator.lower(matrix.matmul)
def _(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a @ b
