"""Replace operations that a back end lacks by their decompositions, recursively.

The label of a node from a decomposition begins with the label of the node that it emulates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from ..core.graph import Desc, Graph, Node, Operand, add_like, map_operands
from ..core.operation import call_with
from ..core.size_possibilities import may_equal_shape
from ..core.sizes import is_same_shape, is_static
from ..ops.recorder import Recorder
from ..support.errors import NotSupportedError, OperationError, ValidationError

Decomposition: TypeAlias = Callable[..., Any]
"""`function(b, ...)` takes a builder, and operands and attributes by name."""


def _own_decomposition(node: Node) -> Decomposition | None:
    return node.op.decomposition


class _Rewriter(Recorder):
    takes_empty = True  # `fold_empty` removes what a decomposition makes

    def __init__(
        self,
        supports: Callable[[Node], bool],
        backend: str,
        decomposition_of: Callable[[Node], Decomposition | None],
        exceptions: Mapping[Node, Callable[[Node], bool]],
    ) -> None:
        super().__init__()
        self._supports, self.backend, self.decomposition_of = supports, backend, decomposition_of
        self._exceptions = exceptions
        self.origin: dict[Node, Node] = {}
        self._originals: dict[Operand, Operand] = {}
        self._source: Node | None = None
        self._prefix = ""

    def original_of(self, operand: Operand) -> Operand:
        return self._originals.get(operand, operand)

    def stand_for(self, operand: Operand, original: Operand) -> None:
        """Note that an operand replaces another one."""
        self._originals[operand] = original

    def _place(self, node: Node) -> tuple[Operand, ...]:
        op = node.op
        if self._prefix:
            node.label = f"{self._prefix}/{node.label or op.name}"
        is_supported = self._supports if self._source is None else self._exceptions.get(self._source, self._supports)
        if is_supported(node):
            if self._source is not None:
                self.origin[node] = self._source
            return super()._place(node)
        decomposition = self.decomposition_of(node)
        if decomposition is None:
            # An operation with kernels or a formula is here only if these do not serve this node.
            forms = "decomposition" if op.kernels or op.formula else "kernel, expression or decomposition"
            kernels = f"; its kernels are for {', '.join(map(repr, op.kernels))}" if op.kernels else ""
            # Some operations take no operands.
            types = ", ".join(str(operand.desc) for operand in node.operands) or "it"
            raise NotSupportedError(
                f"{node.title}: the back end {self.backend} has no rule for {types}, and the operation has no {forms}{kernels}"
            )
        outer, self._prefix = self._prefix, node.label or op.name
        try:
            result = call_with(decomposition, node.arguments, self)
            outputs: tuple[Operand, ...] = (result,) if isinstance(result, Operand) else tuple(result)
            # Outputs of a graph are results of operations, which a constant is not. No engine computes empty ones.
            outputs = tuple(
                self.identity(output) if output.is_constant and 0 not in output.shape else output for output in outputs
            )
        except NotSupportedError as error:
            # An operation inside the decomposition names its own label.
            if not str(error).startswith(f"{op.name}: "):
                raise
            raise NotSupportedError(f"{node.title}: {str(error).removeprefix(f'{op.name}: ')}") from error
        finally:
            self._prefix = outer
        descs, declared = (tuple(output.desc for output in operands) for operands in (outputs, node.outputs))
        if len(descs) != len(declared) or not all(map(_may_be, descs, declared)):
            raise OperationError(
                f"{node.title}: its decomposition yields {_text(descs)}, it must yield {_text(declared)}"
            )
        outputs = tuple(self._declare(node, *pair) for pair in zip(outputs, node.outputs, strict=True))
        for output, original in zip(outputs, node.outputs, strict=True):
            if output not in node.operands:  # a decomposition that changes nothing returns its operand
                self.stand_for(output, original)
        return outputs

    def _declare(self, node: Node, output: Operand, original: Operand) -> Operand:
        """A result of the decomposition of a node, with the declared dimensions.

        Formulas of dimensions may differ although they are equal for the sizes of a run. Operations that read the result
        were checked with the declared ones: shape chains, and `squeeze`, which looks for dimensions of 1.
        """
        if is_same_shape(output.shape, original.shape):
            return output
        if output.is_input or output in node.operands:
            output = self.identity(output)
        if not output.is_constant:
            output._desc = original.desc
        return output

    def add_all(self, nodes: Iterable[Node], replaced: dict[Operand, Operand]) -> None:
        """Add nodes like these, on the operands in `replaced`, which gets their results."""
        for node in nodes:
            self._source = node
            try:
                copies = add_like(self, node, replaced.__getitem__, node.label)
            except ValidationError as error:
                raise type(error)(f"{node.title}: {error}") from None
            replaced.update(zip(node.outputs, copies, strict=True))
        self._source = None


def _may_be(desc: Desc, declared: Desc) -> bool:
    """Whether descriptors may be equal for some sizes."""
    return desc == declared or (desc.data_type == declared.data_type and may_equal_shape(desc.shape, declared.shape))


def _text(descs: Iterable[Desc]) -> str:
    return ", ".join(map(str, descs))


def legalise(
    graph: Graph,
    supports: Callable[[Node], bool],
    backend: str = "given",
    *,
    has_results: bool = False,
    decomposition_of: Callable[[Node], Decomposition | None] = _own_decomposition,
    exceptions: Mapping[Node, Callable[[Node], bool]] = MappingProxyType({}),
) -> tuple[Graph, Mapping[Node, Node]]:
    """The graph in which every node satisfies `supports`, and for each of its nodes the one that it comes from.

    `backend` is for messages. With `has_results`, outputs that are inputs or constants after a decomposition become an
    `identity` of them: builders of WebNN require results of operations. `decomposition_of` returns the function by which a
    node is replaced. For some nodes of `graph` and their parts, `exceptions` has a predicate in place of `supports`.

    Raises:
        NotSupportedError: a node has neither a rule nor a decomposition.
    """
    rewriter = _Rewriter(supports, backend, decomposition_of, exceptions)
    # Inputs and constants get a stand-in of the rewriter, so that operators on them build here: the builder that they come
    # from is closed by now.
    replaced = {operand: Operand(rewriter, operand.desc, value=operand.value) for operand in graph.constants}
    for name, operand in graph.inputs.items():
        replaced[operand] = rewriter.inputs[name] = Operand(rewriter, operand.desc, name=name)
        rewriter.has_names = rewriter.has_names or not is_static(operand.shape)
        if operand.node is not None:  # a part of a graph
            rewriter.stand_for(replaced[operand], operand)
    rewriter.add_all(graph.nodes, replaced)
    outputs_by_name = map_operands(graph.outputs, replaced.__getitem__)
    if has_results:
        outputs_by_name = map_operands(outputs_by_name, lambda o: o if o.node is not None else rewriter.identity(o))
    reached = Graph.reaching(outputs_by_name)
    return Graph(rewriter.inputs, outputs_by_name, reached.nodes), rewriter.origin


def cut_out(inputs: Iterable[Operand], outputs: Iterable[Operand]) -> tuple[Graph, list[Operand]]:
    """The part of a graph that computes `outputs` from `inputs`, and the inputs that the part takes, in its order.

    If an input is computed in the graph, the part is a copy, in which rules find no node behind the input.
    """
    names = {operand: f"x{k}" for k, operand in enumerate(inputs)}
    part = Graph.reaching({f"y{k}": operand for k, operand in enumerate(outputs)}, names)
    takes = list(part.inputs.values())
    if all(operand.is_input for operand in takes):
        return part, takes
    return legalise(part, lambda node: True)[0], takes
