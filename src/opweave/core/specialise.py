"""The static graph of a graph with names, for the sizes of one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..support.errors import ValidationError
from .graph import MAX_DIMENSION, Builder, Desc, Graph, Node, Operand, map_operands
from .operation import descs_of
from .reals import evaluate, formula_without_value, formulas_in
from .shapes import Shape
from .size_calls import UnknownName
from .size_evaluation import SizesOfCall, function_of, source_of
from .size_values import at, sizes_in, values_at, variables_in
from .sizes import Size, is_static, unknown_name


def sizes_of(descs: Mapping[str, Desc], shapes: Mapping[str, Shape], subject: str) -> dict[str, int]:
    """The size of each name, given the shapes of inputs whose descriptors have names.

    Raises:
        ValidationError: a rank or a dimension does not fit, or a name has two sizes.

    >>> n = Size("n")
    >>> descs = {"x": Desc("float32", (n, 3)), "y": Desc("float32", (n,))}
    >>> sizes_of(descs, {"x": (2, 3), "y": (2,)}, "dispatch")
    {'n': 2}
    >>> sizes_of(descs, {"x": (2, 3), "y": (5,)}, "dispatch")
    Traceback (most recent call last):
    opweave.support.errors.ValidationError: dispatch: n is 2 in input 'x' and 5 in input 'y'
    """
    sizes = SizesOfCall()
    origins: dict[str, str] = {}
    for name, desc in descs.items():
        shape = shapes[name]
        fits = len(shape) == len(desc.shape)
        for declared, size in zip(desc.shape, shape, strict=False):
            if not isinstance(declared, Size):
                fits = fits and declared == size
            elif sizes.setdefault(declared.name, size) != size:
                first = origins[declared.name]
                raise ValidationError(
                    f"{subject}: {declared} is {sizes[declared.name]} in {first} and {size} in input {name!r}"
                )
            else:
                origins.setdefault(declared.name, f"input {name!r}")
        if not fits:
            raise ValidationError(f"{subject}: input {name!r} must be {desc}, got the shape {list(shape)}")
    return sizes


def specialise(graph: Graph, shapes: Sequence[Shape], sizes: dict[str, Any], max_byte_length: int) -> Graph:
    """The graph for inputs of these shapes: the functions of the operations check them again.

    Args:
        graph: the graph with names.
        shapes: the shapes of the inputs, in order. Shapes with names give the formulas for the answers of `Guards.deciding`.
        sizes: the size of each name. Sizes without a formula are added.
        max_byte_length: the largest tensor, in bytes.

    Raises:
        ValidationError: an operation does not accept these sizes; the message names it, and the sizes.
    """
    builder = _Checking(max_byte_length)
    copies: dict[Operand, Operand] = {}
    for (name, operand), shape in zip(graph.inputs.items(), shapes, strict=True):
        copies[operand] = builder.inputs[name] = Operand(builder, Desc(operand.data_type, shape), name=name)

    def follow(operand: Operand) -> Operand:
        return copies.get(operand, operand)  # graphs share constants

    try:
        for node in graph.nodes:
            try:
                outputs = builder.add(node, map_operands(node.inputs, follow), sizes)
            except (ValidationError, ZeroDivisionError) as error:
                formula = formula_without_value(tuple(node.attributes.values()), sizes)
                if isinstance(error, ZeroDivisionError):
                    reason = f"{formula or 'a formula'} divides a size by 0"
                else:
                    reason = f"{formula} = {error}" if formula else str(error)
                kind = type(error) if isinstance(error, ValidationError) else ValidationError
                raise kind(f"{graph.title_of(node)}: {reason}") from None
            for symbolic, static in zip(node.outputs, outputs, strict=True):
                copies[symbolic] = static
                _check_rank(node, symbolic.desc, static.desc)
                for size, number in zip(symbolic.shape, static.shape, strict=True):
                    if (unknown := unknown_name(size)) is not None:
                        sizes.setdefault(unknown, number)
                    elif node.op.is_draft and (expected := at(size, sizes)) != number:
                        raise ValidationError(
                            f"{node.title}: {size} is {expected}, but an integer type of the operands makes it {number}"
                        )
    except ValidationError as error:
        listed = ", ".join(f"{name} = {size}" for name, size in sizes.items() if not isinstance(name, UnknownName))
        raise type(error)(f"{error}; the sizes are {listed}") from None
    return Graph.reaching({name: copies[operand] for name, operand in graph.outputs.items()})


class SizeLimits:
    """The limits of shapes and attributes of a graph with names, as a function of the sizes.

    Where all comparisons of the operations have the same answers as for sizes that were checked, nothing else can fail.

    >>> x = Operand(Builder(), Desc("float32", (Size("n") - 2,)), name="x")
    >>> limits = SizeLimits(Graph({"x": x}, {"x": x}, ()), 16)
    >>> [limits.hold({"n": n}) for n in (2, 3, 6, 7)]
    [False, True, True, False]
    """

    def __init__(self, graph: Graph, max_byte_length: int) -> None:
        operands = [*graph.inputs.values(), *(output for node in graph.nodes for output in node.outputs)]
        descs = dict.fromkeys(operand.desc for operand in operands if not is_static(operand.shape))
        arguments = sizes_in(tuple(value for node in graph.nodes for value in node.attributes.values()))
        least = dict.fromkeys(arguments, 0) | {size: 1 for desc in descs for size in sizes_in(desc.shape)}
        bounds: dict[Any, tuple[int, int]] = {size: (low, MAX_DIMENSION) for size, low in least.items()}
        for desc in descs:
            for count, limit in ((desc.element_count, MAX_DIMENSION), (desc.byte_length, max_byte_length)):
                low, high = bounds.get(count, (1, limit))
                bounds[count] = low, min(high, limit)
        self._bounds = list(bounds.values())
        self._values = function_of([source_of(size) for size in bounds])
        self._formulas = [f for node in graph.nodes for f in formulas_in(tuple(node.attributes.values()))]

    def hold(self, sizes: Mapping[str, int]) -> bool:
        """Whether a graph with these sizes, without dimensions of 0, is within the limits."""
        try:
            values = self._values(sizes)
            for formula in self._formulas:
                evaluate(values_at(formula, sizes))
        except (ArithmeticError, ValidationError):  # a division by 0
            return False
        return all(low <= value <= high for value, (low, high) in zip(values, self._bounds, strict=True))


def check_sizes(graph: Graph) -> None:
    """Require that each size in an attribute depends on names of the graph's inputs, and on results of nodes before."""
    available = variables_in(tuple(operand.shape for operand in graph.inputs.values()))
    for node in graph.nodes:
        used = variables_in(tuple(node.attributes.values()))
        for name in sorted(used - available):
            raise ValidationError(
                f"{graph.title_of(node)}: the size {name!r} is no dimension of the inputs {list(graph.inputs)}, which the "
                "outputs need"
            )
        available |= variables_in(tuple(output.shape for output in node.outputs))


def node_at(node: Node, sizes: Mapping[str, int]) -> Node:
    """A checked node, with numbers in place of sizes."""
    builder = Builder()
    copies: dict[Operand, Operand] = {}

    def follow(operand: Operand) -> Operand:
        desc = Desc(operand.data_type, values_at(operand.shape, sizes))
        return copies.setdefault(operand, Operand(builder, desc, name=operand.name, value=operand.value))

    attributes = {name: values_at(value, sizes) for name, value in node.attributes.items()}
    inputs, outputs = map_operands(node.inputs, follow), tuple(map(follow, node.outputs))
    return Node(node.op, inputs, attributes, node.label, node.serial, outputs)


def _check_rank(node: Node, built: Desc, desc: Desc) -> None:
    """Require the rank that the result had when the graph was built: `squeeze` without axes drops all sizes of 1."""
    if built.rank != desc.rank:
        raise ValidationError(
            f"{node.title}: the rank of the result must not depend on sizes: it was built as {built}, "
            f"and a size of 1 makes it {desc}"
        )


class _Checking(Builder):
    """Adds the nodes of another graph, with other sizes."""

    takes_empty = True

    def __init__(self, max_byte_length: int) -> None:
        super().__init__()
        self._max_byte_length = max_byte_length

    def add(self, node: Node, inputs: Mapping[str, Any], sizes: Mapping[str, Any]) -> tuple[Operand, ...]:
        attributes = {
            name: node.op.convert(name, values_at(value, sizes)) if sizes_in(value) else value
            for name, value in node.attributes.items()
        }
        filled, result = node.op.infer(self, inputs, attributes, node.label)
        return self._add_node(node.op, inputs, filled, node.label, descs_of(result))
