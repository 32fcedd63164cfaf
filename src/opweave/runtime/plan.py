"""A graph that was asked for by operations on arrays, without its values: what is compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..compile.driver import compile
from ..graph import Graph, Operand
from ..ops import Operations
from .lazy import Array, Pending, Template

if TYPE_CHECKING:
    from ..context import MLContext
    from ..run.program import Program

Kept = tuple[int, int, Array]
"""A result to be written: the number of its call, which of the call's results, and the array that wants it."""


class Plan:
    """The calls of a graph.

    Attributes:
        templates: its calls, in order.
        refs: for each call its operands: the call and which of its results, or -1 and the number of an input.
        kept: the results to be written: call, and which of its results.
    """

    def __init__(self, context: MLContext, nodes: Sequence[Pending], kept: Sequence[Kept]) -> None:
        self.backend, self.device, self.power = context.backend, context.device.name, context.power_preference
        self.templates = [node.template for node in nodes]
        self.kept = [(number, position) for number, position, _ in kept]
        self.refs: list[list[tuple[int, int]]] = []
        numbers = {id(node): number for number, node in enumerate(nodes)}
        slots: dict[int, int] = {}
        for node in nodes:
            its = []
            for array in node.inputs:
                made = array._node
                if made is not None:
                    its.append((numbers[id(made)], position_of(array, made)))
                else:
                    its.append((-1, slots.setdefault(id(array), len(slots))))
            self.refs.append(its)

    @classmethod
    def of_one(cls, template: Template, context: MLContext) -> Plan:
        """A call on its own."""
        plan = cls(context, (), ())
        plan.templates, plan.refs = [template], [[(-1, k) for k in range(len(template.operands))]]
        plan.kept = [(0, k) for k in range(len(template.descs))]
        return plan

    def graph(self, constants: Mapping[int, np.ndarray] | None = None) -> Graph:
        """The calls as a graph with inputs `x0`, … and outputs `y0`, …; the label of a call is its number.

        Args:
            constants: the inputs that are constants of it, by their numbers.
        """
        builder = Operations()
        inputs: dict[int, Operand] = {}
        made: list[tuple[Operand, ...]] = []
        for place, (template, refs) in enumerate(zip(self.templates, self.refs, strict=True)):
            operands = []
            for (call, number), desc in zip(refs, template.operands, strict=True):
                if call < 0 and number not in inputs:
                    if constants is not None and number in constants:
                        inputs[number] = Operand(builder, desc, value=constants[number])
                    else:
                        inputs[number] = Operand(builder, desc, name=f"x{number}")
                operands.append(inputs[number] if call < 0 else made[call][number])
            made.append(template.add_to(builder, operands, f"@{place}"))
        builder.inputs.update((f"x{number}", inputs[number]) for number in sorted(inputs) if inputs[number].is_input)
        return Graph.reaching({f"y{k}": made[call][number] for k, (call, number) in enumerate(self.kept)})

    def compiled(self, constants: Mapping[int, np.ndarray] | None = None) -> Program:
        """Compile it, with constants in place of some inputs."""
        return compile(
            self.graph(constants), self.backend, device=self.device, power_preference=self.power, alone=False
        )


def position_of(array: Array, node: Pending) -> int:
    """Which of its call's results an array is."""
    if len(node.outputs) == 1:
        return 0
    return next(k for k, output in enumerate(node.outputs) if output() is array)


__all__ = ["Kept", "Plan", "position_of"]
