"""The reference back end: every operation in NumPy, written for readability. It defines the results of each operation.

A rule takes arrays and attributes by the operation's parameter names, and returns an array or a tuple of arrays.
float32 and float16 arrays are passed as float64, and results are rounded once, to the operation's data type. Integers
keep their type and wrap around on overflow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...graph import Graph, Node, Operand
from .. import Backend, Device, Placement, PowerPreference

Array = np.ndarray


class Reference(Backend):
    """Evaluates one operation after the other with NumPy."""

    name = "reference"

    def devices(self) -> list[Device]:
        return [Device("reference", "cpu", self.name, f"NumPy {np.__version__}, float64 inside: slow and exact")]

    def compile(
        self, graph: Graph, *, device: str, power_preference: PowerPreference, alone: bool = True
    ) -> _Interpreter:
        from ...passes.legalise import legalise

        legal, origin = legalise(graph, self.supports, self.name)
        parts: dict[Node, list[Node]] = {node: [] for node in graph.nodes}
        for node in legal.nodes:
            parts[origin[node]].append(node)
        placements = [_placement(node, made) for node, made in parts.items()]
        return _Interpreter(self, legal, placements)

    def evaluate(self, node: Node, arrays: Mapping[Operand, Array]) -> tuple[Array, ...]:
        """Run one node on arrays of the declared data types; the results have the declared data types and shapes."""

        def widen(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(widen(item) for item in value)
            if value is None:
                return None
            array = arrays[value]
            return array.astype(np.float64) if array.dtype.kind == "f" else array

        rule = self.rule(node)
        assert rule is not None, node
        arguments = {**{name: widen(value) for name, value in node.inputs.items()}, **node.attributes}
        with np.errstate(all="ignore"):
            result = rule((), arguments)
            results = result if isinstance(result, tuple) else (result,)
            rounded = tuple(np.asarray(r).astype(o.data_type) for r, o in zip(results, node.outputs, strict=True))
        for array, output in zip(rounded, node.outputs, strict=True):
            assert array.shape == output.shape, f"{node.title}: {array.shape} computed, {output.desc} declared"
        return rounded


class _Interpreter:
    """A graph that is evaluated node by node."""

    def __init__(self, backend: Reference, graph: Graph, placements: list[Placement]) -> None:
        self.backend, self.graph, self._placements = backend, graph, placements

    def bind(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> _Call:
        return _Call(self, dict(inputs), dict(outputs))

    def run(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> None:
        self.bind(inputs, outputs)()

    def explain(self) -> list[Placement]:
        return self._placements

    def measured(self) -> None:
        return None


def _placement(node: Node, parts: list[Node]) -> Placement:
    """The placement of a node of the original graph, whose legal form is `parts`."""
    if len(parts) == 1 and parts[0].op is node.op:
        return Placement(node.title, "reference", "native", "NumPy")
    return Placement(node.title, "reference", "decomposed", f"NumPy: {', '.join(part.op.name for part in parts)}")


class _Call:
    """An interpreter bound to arrays."""

    def __init__(self, interpreter: _Interpreter, inputs: dict[str, Array], outputs: dict[str, Array]) -> None:
        self.interpreter, self.inputs, self.outputs = interpreter, inputs, outputs

    def __call__(self) -> None:
        graph, backend = self.interpreter.graph, self.interpreter.backend
        arrays: dict[Operand, Array] = {operand: self.inputs[name] for name, operand in graph.inputs.items()}
        last_use = {operand: node for node in graph.nodes for operand in node.operands}
        kept = set(graph.outputs.values())
        for node in graph.nodes:
            arrays.update((c, c.value) for c in node.operands if c.is_constant)
            arrays.update(zip(node.outputs, backend.evaluate(node, arrays), strict=True))
            for operand in {*node.operands, *node.outputs}:
                if last_use.get(operand, node) is node and operand not in kept:
                    del arrays[operand]
        for name, operand in graph.outputs.items():
            np.copyto(self.outputs[name], arrays[operand], casting="no")


reference = Reference()

from . import (  # noqa: E402  (the rules register themselves)
    activation as activation,
    convolution as convolution,
    elementwise as elementwise,
    indexing as indexing,
    logical as logical,
    matrix as matrix,
    movement as movement,
    normalization as normalization,
    pooling as pooling,
    quantization as quantization,
    recurrent as recurrent,
    reduction as reduction,
)
