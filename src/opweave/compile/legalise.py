"""Replace what a back end cannot do by its decomposition, recursively.

Requires nothing; ensures that `supports` holds for every node of the result. Nodes that come from a decomposition carry a
label that begins with that of the node they emulate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..errors import NotSupportedError, OperationError
from ..graph import Desc, Graph, Node, Operand, each
from ..operation import Op, call_with
from ..recorder import Recorder


class _Rewriter(Recorder):
    """A recorder that decomposes unsupported operations as they are added."""

    def __init__(self, supports: Callable[[Node], bool], backend: str) -> None:
        super().__init__()
        self.supports, self.backend = supports, backend
        self.origin: dict[Node, Node] = {}
        self._source: Node | None = None
        self._prefix = ""

    def add_node(
        self,
        op: Op[..., Any],
        inputs: Mapping[str, Operand | tuple[Operand, ...] | None],
        attributes: Mapping[str, Any],
        label: str,
        descs: tuple[Desc, ...],
    ) -> tuple[Operand, ...]:
        if self._prefix:
            label = f"{self._prefix}/{label or op.name}"
        candidate = self.make_node(op, inputs, attributes, label, descs)
        if self.supports(candidate):
            self._serial = candidate.serial
            if self._source is not None:
                self.origin[candidate] = self._source
            return candidate.outputs
        if op.decomposition is None:
            # What has one of these two is only asked here if it does not serve this node.
            forms = "decomposition" if op.kernels or op.formula else "kernel, expression or decomposition"
            kernels = f"; its kernels are for {', '.join(map(repr, op.kernels))}" if op.kernels else ""
            raise NotSupportedError(
                f"{candidate.title}: the back end {self.backend} has no rule for "
                f"{', '.join(str(o.desc) for o in candidate.operands)}, and the operation has no {forms}{kernels}"
            )
        outer, self._prefix = self._prefix, label or op.name
        try:
            result = call_with(op.decomposition, candidate.arguments, self)
            outputs: tuple[Operand, ...] = (result,) if isinstance(result, Operand) else tuple(result)
            # Outputs of a graph are results of operations, which a constant is not.
            outputs = tuple(self.identity(output) if output.is_constant else output for output in outputs)
        except NotSupportedError as error:
            if not str(error).startswith(f"{op.name}: "):  # of an operation inside, which says its own label
                raise
            raise NotSupportedError(f"{candidate.title}: {str(error).removeprefix(f'{op.name}: ')}") from error
        finally:
            self._prefix = outer
        got = tuple(output.desc for output in outputs)
        if got != descs:
            raise OperationError(f"{candidate.title}: its decomposition yields {got}, it must yield {descs}")
        return outputs


def legalise(
    graph: Graph, supports: Callable[[Node], bool], backend: str = "given"
) -> tuple[Graph, Mapping[Node, Node]]:
    """The graph in which every node satisfies `supports`, and for each of its nodes the one that it stems from.

    Raises:
        NotSupportedError: a node has neither a rule nor a decomposition.
    """
    rewriter = _Rewriter(supports, backend)
    # Inputs and constants get a stand-in of the rewriter, so that operators on them build here: the builder that they come
    # from is closed by now.
    replaced = {operand: Operand(rewriter, operand.desc, value=operand.value) for operand in graph.constants}
    for name, operand in graph.inputs.items():
        replaced[operand] = rewriter.inputs[name] = Operand(rewriter, operand.desc, name=name)
    for node in graph.nodes:
        rewriter._source = node
        inputs = each(node.inputs, replaced.__getitem__)
        descs = tuple(output.desc for output in node.outputs)
        outputs = rewriter.add_node(node.op, inputs, node.attributes, node.label, descs)
        replaced.update(zip(node.outputs, outputs, strict=True))
    outputs_by_name = {name: replaced[operand] for name, operand in graph.outputs.items()}
    reached = Graph.reaching(outputs_by_name)
    return Graph(rewriter.inputs, outputs_by_name, reached.nodes), rewriter.origin


def cut_out(inputs: Iterable[Operand], outputs: Iterable[Operand]) -> tuple[Graph, list[Operand]]:
    """A copy of the part of a graph that computes `outputs` from `inputs`, and which of these it takes, in its order.

    Rules that look at the node behind an operand see none behind the inputs of the copy: another engine runs that.
    """
    names = {operand: f"x{k}" for k, operand in enumerate(inputs)}
    part = Graph.reaching({f"y{k}": operand for k, operand in enumerate(outputs)}, names)
    return legalise(part, lambda node: True)[0], list(part.inputs.values())
