"""Bodies: graphs that an operation of another graph contains, such as the step of a loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .graph import Builder, Desc, Graph, Node, Operand, add_like, map_operands
from .size_values import HasSizes, values_at, variables_in
from .sizes import is_static

MAX_UNROLLED_STEPS = 256
"""The largest number of steps of a loop or a recurrence to unroll: a graph of some thousand operations takes seconds to
compile."""

MAX_UNROLLED_NODES = 20000
"""The largest number of nodes of an unrolled loop."""


class Body(HasSizes):
    """A graph that an attribute of a node holds. All inputs are listed, also those that no node reads.

    Each output is the result of a node, and no two outputs are the same (`body_of` sees to that).

    Attributes:
        graph: the graph, whose inputs and outputs are taken by position.

    >>> from opweave.ops.recorder import Recorder
    >>> body = make_body(Recorder(), [Desc("float32", (2,))], lambda b, x: [b.tanh(x), x])
    >>> print(body)
    graph(x0: float32[2]) -> (y0: float32[2], y1: float32[2]):
      %0 = tanh(x0)
      %1 = identity(x0)
      y0 = %0
      y1 = %1
    """

    __slots__ = ("__weakref__", "_versions", "graph")

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._versions: dict[Any, Body] = {}

    @property
    def inputs(self) -> tuple[Desc, ...]:
        """The descriptors of the inputs."""
        return tuple(operand.desc for operand in self.graph.inputs.values())

    @property
    def outputs(self) -> tuple[Desc, ...]:
        """The descriptors of the outputs."""
        return tuple(operand.desc for operand in self.graph.outputs.values())

    def __repr__(self) -> str:
        return str(self.graph)

    def call(self, builder: Builder, arguments: Sequence[Operand]) -> tuple[Operand, ...]:
        """Add copies of the nodes to a builder, on its operands `arguments`; return the outputs."""
        copies: dict[Operand, Operand] = dict(zip(self.graph.inputs.values(), arguments, strict=True))

        def follow(operand: Operand) -> Operand:
            if operand not in copies:  # a constant, which operators of decompositions need in their own builder
                copies[operand] = Operand(builder, operand.desc, value=operand.value)
            return copies[operand]

        for node in self.graph.nodes:
            copies.update(zip(node.outputs, add_like(builder, node, follow, node.label), strict=True))
        return tuple(map(follow, self.graph.outputs.values()))

    # Sizes -----------------------------------------------------------------------------------------------------------

    @property
    def shapes(self) -> tuple[Any, ...]:
        """The shapes of the inputs, and the attributes of the nodes."""
        attributes = (tuple(node.attributes.values()) for node in self.graph.nodes)
        return (tuple(desc.shape for desc in self.inputs), *attributes)

    def at(self, sizes: Mapping[str, Any]) -> Body:
        """The body for these sizes; itself if it has no names."""
        names = variables_in(self)
        if not names:
            return self
        key = tuple((name, sizes[name]) for name in sorted(names, key=str) if name in sizes)
        if key not in self._versions:
            self._versions[key] = self._specialise(dict(sizes))
        return self._versions[key]

    def _specialise(self, sizes: dict[str, Any]) -> Body:
        from .specialise import specialise  # bodies of known sizes do without its imports

        shapes = [values_at(desc.shape, sizes) for desc in self.inputs]
        graph = specialise(self.graph, shapes, sizes, 2**31 - 1)
        builder = next(iter(graph.outputs.values())).builder
        inputs = {
            name: graph.inputs[name]
            if name in graph.inputs
            else Operand(builder, Desc(operand.data_type, shape), name=name)
            for (name, operand), shape in zip(self.graph.inputs.items(), shapes, strict=True)
        }
        return Body(Graph(inputs, graph.outputs, graph.nodes))

    # Processes -------------------------------------------------------------------------------------------------------

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_message, (GraphMessage.of(self.graph),)


def add_input(builder: Builder, name: str, desc: Desc) -> Operand:
    """Declare an input whose dimensions may be formulas of names, which users cannot declare."""
    operand = builder.inputs[name] = Operand(builder, desc, name=name)
    builder.has_names = builder.has_names or not is_static(desc.shape)
    return operand


def body_of(builder: Any, inputs: Sequence[Operand], outputs: Sequence[Operand]) -> Body:
    """The body from inputs of a builder of operations to some of its operands.

    Outputs that are inputs, constants, or listed twice become an `identity` of them.
    """
    results: dict[Operand, None] = {}
    for output in outputs:
        results[output if output.node is not None and output not in results else builder.identity(output)] = None
    reached = Graph.reaching({f"y{k}": result for k, result in enumerate(results)})
    return Body(Graph({operand.name: operand for operand in inputs}, reached.outputs, reached.nodes))


def make_body(builder: Any, descs: Sequence[Desc], function: Callable[..., Sequence[Operand]]) -> Body:
    """The body that a function computes: it takes a new builder and an operand for each descriptor."""
    inputs = [add_input(builder, f"x{k}", desc) for k, desc in enumerate(descs)]
    return body_of(builder, inputs, function(builder, *inputs))


# ---------------------------------------------------------------------------------------------------------------------
# Messages

NodeMessage = tuple[Any, Mapping[str, Any], Mapping[str, Any], str, tuple[Desc, ...]]
"""A node: operation, operand numbers by parameter, attributes, label, and descriptors of the results."""


class GraphMessage:
    """A graph without references to its builder, which can be pickled.

    Operands are numbered: inputs, constants, then results of nodes. `outputs` has the operand number of each graph output.
    """

    __slots__ = ("constants", "inputs", "nodes", "outputs")

    def __init__(
        self,
        inputs: list[tuple[str, Desc]],
        constants: list[np.ndarray],
        nodes: list[NodeMessage],
        outputs: dict[str, int],
    ) -> None:
        self.inputs, self.constants, self.nodes, self.outputs = inputs, constants, nodes, outputs

    @classmethod
    def of(cls, graph: Graph) -> GraphMessage:
        constants = graph.constants
        constants += [o for o in graph.outputs.values() if o.is_constant and o not in constants]
        numbers = {operand: k for k, operand in enumerate([*graph.inputs.values(), *constants])}
        nodes: list[NodeMessage] = []
        for node in graph.nodes:
            inputs = map_operands(node.inputs, numbers.__getitem__)
            descs = tuple(output.desc for output in node.outputs)
            nodes.append((node.op, inputs, dict(node.attributes), node.label, descs))
            for output in node.outputs:
                numbers[output] = len(numbers)
        return cls(
            [(name, operand.desc) for name, operand in graph.inputs.items()],
            [np.asarray(operand.value) for operand in constants],
            nodes,
            {name: numbers[operand] for name, operand in graph.outputs.items()},
        )

    def graph(self) -> Graph:
        """The graph, in a new builder."""
        builder = Builder()
        operands = [Operand(builder, desc, name=name) for name, desc in self.inputs]
        inputs = {operand.name: operand for operand in operands}
        for array in self.constants:
            operands.append(Operand(builder, Desc(array.dtype.name, array.shape), value=array))  # type: ignore[arg-type]
        nodes = []
        for serial, (op, numbered, attributes, label, descs) in enumerate(self.nodes):
            node = Node(op, map_operands(numbered, operands.__getitem__), attributes, label, serial)
            node.outputs = tuple(Operand(builder, desc, node=node) for desc in descs)
            nodes.append(node)
            operands += node.outputs
        return Graph(inputs, {name: operands[number] for name, number in self.outputs.items()}, tuple(nodes))


def _from_message(message: GraphMessage) -> Body:
    return Body(message.graph())
