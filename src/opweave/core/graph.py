"""Graphs: descriptors, operands, nodes, and the part of a builder that records them.

A graph is in static single assignment form: results never change. Serial numbers of nodes are in the order of their creation,
which is a topological order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from ..support import hints
from ..support.errors import NoValueError, ValidationError, caller_line, require
from ..support.names import listing, printable, short_repr
from ..support.records import record
from . import dtypes
from .desc import MAX_DIMENSION as MAX_DIMENSION, MAX_RANK as MAX_RANK, Desc as Desc
from .operators import Operators
from .questions import READ, Questionable
from .size_possibilities import may_equal_shape
from .size_terms import interval
from .sizes import Size, is_static

if TYPE_CHECKING:
    from .dtypes import DataType
    from .operation import Limits, Op

T = TypeVar("T")


def check_desc(desc: Desc, max_byte_length: int, subject: str = "shape", takes_empty: bool = False) -> Desc:
    """`desc` if its dimensions are valid, else `ValidationError` (https://www.w3.org/TR/webnn/#mloperanddescriptor-check-dimensions)."""
    rule, count = "", desc.element_count  # messages are made only for errors: every operation is checked here
    if isinstance(count, Size) or (count == 0 and not is_static(desc.shape)):
        return _check_names(desc, subject)
    if desc.rank > MAX_RANK:
        rule, got = f"have at most {MAX_RANK} dimensions", f"{desc.rank}: {short_repr(list(desc.shape))}"
    elif desc.shape and (min(desc.shape) < (not takes_empty) or max(desc.shape) > MAX_DIMENSION):
        rule, got = f"have dimensions in [{int(not takes_empty)}, {MAX_DIMENSION}]", short_repr(list(desc.shape))
    elif count > MAX_DIMENSION:
        rule, got = f"have at most {MAX_DIMENSION} elements", f"{list(desc.shape)}: {count}"
    elif count * dtypes.INFO[desc.data_type].byte_length > max_byte_length:
        rule, got = f"take at most {max_byte_length} bytes", f"{desc}: {desc.byte_length}"
    if rule:
        raise ValidationError(f"{subject} must {rule}, got {got}")
    return desc


def _check_names(desc: Desc, subject: str) -> Desc:
    """`desc` if its dimensions may be valid for some sizes; when the graph runs, the sizes are checked."""
    # Messages are written on errors alone: the texts of formulas take more time than their bounds.
    if desc.rank > MAX_RANK:
        raise ValidationError(f"{subject} must have at most {MAX_RANK} dimensions, got {desc.rank}: {desc}")
    for size in desc.shape:
        low, high = interval(size)
        if high < 0 or low > MAX_DIMENSION:
            raise ValidationError(f"{subject} must have dimensions in [0, {MAX_DIMENSION}], got {list(desc.shape)}")
    return desc


_COMPUTE = "an operand has no value while its graph is built; context.compute(graph, inputs) returns arrays"

_READERS = ("data", "item", "numpy", "tolist")
"""Names of what gives the values of arrays of NumPy and PyTorch."""


class MLOperand(Questionable, Operators):
    """A value in the graph of a builder: an input, a constant, or the result of an operation.

    Operands are created by builders only. Every operation of the builder is a method of its operands, too, with the operand
    as first argument (`x.reshape([2, 3])` is `builder.reshape(x, [2, 3])`), and Python's operators add operations:
    `+ - * / @ ** -x abs(x)` and `x[1:, ..., 0]`; comparisons are called by name (`x.greater(y)`).

    >>> import opweave as ow
    >>> builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
    >>> x = builder.input("x", "float32", [2, 3])
    >>> x.name, x.data_type, x.shape, x.rank, x.is_input
    ('x', 'float32', (2, 3), 2, True)
    >>> y = x[:, 0] * 2 + 1
    >>> print(y.desc, y.node.title, y.builder is builder)
    float32[2] add True
    >>> [operand.value.item() for operand in y.node.operands if operand.is_constant]
    [1.0]
    """

    __slots__ = ("__weakref__", "_builder", "_desc", "_name", "_node", "_value")
    _kind = "an operand"
    _takes_sizes = True

    def __init__(
        self, builder: Builder, desc: Desc, *, node: Node | None = None, name: str = "", value: Any = None
    ) -> None:
        self._builder, self._desc, self._node = builder, desc, node
        self._name, self._value = name, value

    @property
    def builder(self) -> Builder:
        """The builder of this operand, which cannot be used with another."""
        return self._builder

    @property
    def node(self) -> Node | None:
        """The operation that this operand is a result of; None for inputs and constants."""
        return self._node

    @property
    def name(self) -> str:
        """The name of a graph input; empty for all other operands."""
        return self._name

    @property
    def value(self) -> Any:
        """The array of a constant; None for all other operands."""
        return self._value

    @property
    def is_input(self) -> bool:
        """Whether this is an input of the graph."""
        return bool(self._name)

    @property
    def is_constant(self) -> bool:
        """Whether this is a constant of the graph."""
        return self._value is not None

    def __repr__(self) -> str:
        if self.is_input:
            origin = f"input {self._name!r}"
        elif self._node is None:
            origin = "constant"
        else:
            origin = self._node.title
        return f"<MLOperand {self._desc}, {origin}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an operand belongs to its builder and cannot be copied or pickled; pickle the function that builds the graph, "
            "or write the graph with opweave.onnx.save"
        )

    @property
    def _takes_empty(self) -> bool:
        return self._builder.takes_empty

    def _apply(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._builder, name)(*args, **kwargs)

    def _hint(self, name: str) -> str:
        return f"; {_COMPUTE}" if name in _READERS else hints.operation(name, dir(self), "builder.", dir(self._builder))

    def _refuse(self, question: str, advice: str) -> NoReturn:
        text = advice.format(self._place) if advice != READ else "context.compute(graph, inputs) returns arrays"
        raise NoValueError(
            f"{question}: an operand has no value while its graph is built, got {self!r}{caller_line()}; {text}"
        )

    def __len__(self) -> int:
        return super().__len__() if self.rank else self._refuse("len() of a scalar", READ)

    def _compares_identity(self, other: Any) -> bool:
        return isinstance(other, MLOperand)

    def _refuse_function(self, library: str, function: Any, method: str = "__call__") -> NoReturn:
        subject = f"{self!r}, which has no value while its graph is built{caller_line()}"
        raise NoValueError(
            hints.function(library, function, method, subject, dir(self._builder), "builder.{name}({all}) does that")
        )


Operand = MLOperand


def check_shape(shape: Sequence[int], why: str = "", /, **operands: Operand | None) -> None:
    """Require a shape of operands by parameter, if they are present; `why` says where it comes from."""
    for name, operand in operands.items():
        if operand is not None and not may_equal_shape(operand.shape, shape):
            raise ValidationError(f"{name} must have shape {list(shape)}{why and ', '}{why}, got {operand.desc}")


class Node:
    """One operation in a graph: the op, its operands and attributes by parameter name, and its results.

    `operands` are all operands in order, with sequences flattened and absent operands left out.
    """

    __slots__ = ("_memo", "attributes", "inputs", "label", "op", "operands", "outputs", "serial")

    def __init__(
        self,
        op: Op[..., Any],
        inputs: Mapping[str, Operand | tuple[Operand, ...] | None],
        attributes: Mapping[str, Any],
        label: str,
        serial: int,
        outputs: tuple[Operand, ...] = (),
    ) -> None:
        self.op, self.inputs, self.attributes = op, inputs, attributes
        self.label, self.serial, self.outputs = label, serial, outputs
        self.operands: tuple[Operand, ...] = tuple(iter_operands(inputs))
        self._memo: dict[Callable[[Node], Any], Any] = {}

    def remember(self, function: Callable[[Node], T]) -> T:
        """The result of a function of this node, which depends on nothing else. It is computed once."""
        if function not in self._memo:
            self._memo[function] = function(self)
        result: T = self._memo[function]
        return result

    @property
    def arguments(self) -> dict[str, Any]:
        return {**self.inputs, **self.attributes}

    @property
    def title(self) -> str:
        return title(self.op.name, self.label)

    @property
    def data_types(self) -> frozenset[str]:
        """The data types of operands and results. They are kept: back ends ask several times for each node."""
        return self.remember(_data_types_of)

    @property
    def has_further_types(self) -> bool:
        """Whether an operand or a result has a data type that the specification lacks."""
        return not self.data_types <= _SPECIFIED

    @property
    def updates(self) -> dict[Operand, Operand]:
        """Results that may use the memory of an operand, and these operands."""
        updates = {}
        for number, name in self.op.updates.items():
            source = self.inputs[name]
            if isinstance(source, Operand) and number < len(self.outputs):
                updates[self.outputs[number]] = source
        return updates


def iter_operands(operands: Mapping[str, Any]) -> Iterator[Any]:
    """Iterate over operands by parameter, in order: sequences are flattened, None is left out."""
    for value in operands.values():
        if isinstance(value, tuple):
            yield from value
        elif value is not None:
            yield value


def map_operands(operands: Mapping[str, Any], function: Callable[[Any], Any]) -> dict[str, Any]:
    """Apply a function to operands by parameter; sequences stay sequences, None stays None."""
    return {
        name: None if value is None else tuple(map(function, value)) if isinstance(value, tuple) else function(value)
        for name, value in operands.items()
    }


def title(name: str, label: str) -> str:
    """`conv2d 'stem'`, or `conv2d` without a label; `repr` escapes control and direction characters."""
    return f"{name} {label!r}" if label else name


@record(eq=True)
class Graph:
    """A graph from named inputs to named outputs, with nodes in topological order.

    `print(graph)` shows one line for each node::

        graph(x: float32[1, 4]) -> (y: float32[1, 4]):
          %0 = relu(x)
          %1 = softmax(%0, axis=1)  # 'head'
          y = %1
    """

    inputs: dict[str, Operand]
    outputs: dict[str, Operand]
    nodes: tuple[Node, ...]

    @classmethod
    def reaching(cls, outputs: Mapping[str, Operand], boundary: Mapping[Operand, str] | None = None) -> Graph:
        """The graph of everything that `outputs`, operands of one builder by name, depend on.

        Operands in `boundary` become inputs of these names, and nodes before them are left out; default: the builder's inputs.
        """
        nodes: dict[Node, None] = {}
        inputs: dict[str, Operand] = {}
        names = boundary or {}
        pending = list(outputs.values())
        while pending:
            operand = pending.pop()
            if name := names.get(operand, operand.name):
                first = inputs.setdefault(name, operand)
                require(first is operand, f"build: two inputs are named {name!r}: {first.desc} and {operand.desc}")
            elif (node := operand.node) is not None and node not in nodes:
                nodes[node] = None
                pending += node.operands
        order = names.values() or next(iter(outputs.values())).builder.inputs
        declared = {name: inputs[name] for name in order if name in inputs}
        return cls(declared, dict(outputs), tuple(sorted(nodes, key=lambda node: node.serial)))

    @property
    def constants(self) -> list[Operand]:
        used = chain(*(node.operands for node in self.nodes), self.outputs.values())
        return list(dict.fromkeys(operand for operand in used if operand.is_constant))

    @property
    def has_names(self) -> bool:
        """Whether a dimension of an input is known only when the graph runs."""
        return not all(is_static(operand.shape) for operand in self.inputs.values())

    def title_of(self, node: Node) -> str:
        """The title of a node for messages; that of the first reader for a node without operands, which no user has added."""
        if not node.op.operands and not node.label:
            reader = next((other for other in self.nodes if not set(node.outputs).isdisjoint(other.operands)), node)
            return reader.title
        return node.title

    def computing_nodes(self) -> set[Node]:
        """The nodes whose values an output depends on. Of the others, only shapes and numbers of the host are needed."""
        operands = set(self.outputs.values())
        nodes: set[Node] = set()
        for node in reversed(self.nodes):
            if not operands.isdisjoint(node.outputs):
                nodes.add(node)
                read = {name: value for name, value in node.inputs.items() if name not in node.op.size_operands}
                operands.update(iter_operands(read))
        return nodes

    def in_place(self) -> dict[str, str]:
        """For each output that may use the memory of an input (`Op.in_place`): the name of that input."""
        names: dict[Any, str] = {operand: name for name, operand in self.inputs.items()}
        sources: dict[str, str] = {}
        for name, output in self.outputs.items():
            if (node := output.node) is None:
                continue
            source = node.updates.get(output)
            if source is not None and source in names and source.desc == output.desc:
                sources[name] = names[source]
        return sources

    def __str__(self) -> str:
        names: dict[Operand, str] = {operand: printable(name) for name, operand in self.inputs.items()}

        def show(value: Any) -> str:
            if isinstance(value, Operand):
                return names.get(value) or f"const {value.desc}"
            if isinstance(value, tuple):
                return f"[{', '.join(map(show, value[:8]))}{', …' if len(value) > 8 else ''}]"
            return f"{value:.7g}" if isinstance(value, float) else repr(value)  # 0.1, although float32 has 0.100000001

        def listing(operands: Iterable[tuple[str, Operand]]) -> str:
            return ", ".join(f"{printable(name)}: {operand.desc}" for name, operand in operands)

        lines = [f"graph({listing(self.inputs.items())}) -> ({listing(self.outputs.items())}):"]
        for node in self.nodes:
            for operand in node.outputs:
                names[operand] = f"%{len(names) - len(self.inputs)}"
            bodies = node.op.bodies
            texts = [
                f"{n}=…" if n in bodies else show(v) if n in node.op.positional else f"{n}={show(v)}"
                for n, v in node.op.explicit_arguments(node.arguments)
            ]
            line = f"  {', '.join(names[o] for o in node.outputs)} = {node.op.name}({', '.join(texts)})"
            lines.append(line + (f"  # {node.label!r}" if node.label else ""))
            for name in bodies:
                lines += [f"    {text}" for text in f"{name}: {node.attributes[name]}".splitlines()]
        lines += [f"  {printable(name)} = {names[operand]}" for name, operand in self.outputs.items()]
        return "\n".join(lines)


_FOR_PASSES = (
    "drafts", "has_names", "listing", "original_of", "size_hints", "size_rules", "takes_all_types", "takes_empty"
)  # fmt: skip
"""Attributes of builders for passes, which `dir` does not list."""


class Builder:
    """Records operands and nodes. `opweave.ops.Operations` adds the operations.

    Attributes:
        inputs: the declared inputs, by name.
        has_names: whether an input has a dimension that is known only when the graph runs.
    """

    _max_byte_length: int = 2**31 - 1
    """The largest tensor, in bytes (`maxTensorByteLength`)."""
    takes_empty: bool = False
    """Whether dimensions may be 0, a draft."""
    takes_all_types: bool = True
    """Whether operands may have data types beyond the specification, which drafts and ONNX models have."""
    _operand_type: type[Operand] = Operand
    _kind = "a builder"

    def __init__(self) -> None:
        self._serial = 0
        self.inputs: dict[str, Operand] = {}
        self.has_names = False

    def __dir__(self) -> list[str]:
        return listing(self, _FOR_PASSES)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise hints.no_name(self, self._kind, name, lambda: self._hint(name))

    def _hint(self, name: str) -> str:
        """A hint for a missing attribute, as the end of a message; empty if there is none."""
        return hints.operation(name, dir(self))

    def __repr__(self) -> str:
        return f"<{self._kind}>"

    def _check_open(self) -> None:
        """Raise `InvalidStateError` if no node can be added any more."""

    def original_of(self, operand: Operand) -> Operand:
        """The operand that this one replaces, where a node was decomposed; else the operand itself.

        >>> builder = Builder()
        >>> x = Operand(builder, Desc("float32", (2,)), name="x")
        >>> builder.original_of(x) is x
        True
        """
        return operand

    def _limits(self, op: Op[..., Any]) -> Mapping[str, Limits]:
        return op.widened_limits if self.takes_all_types else op.limits

    def _as_operand(self, value: Any, data_type: DataType) -> Operand:
        """A constant for an array, or for a number (or nested sequences of numbers) in the data type `data_type`."""
        raise ValidationError(f"expected an operand, got {type(value).__name__}")

    def _add_node(
        self,
        op: Op[..., Any],
        inputs: Mapping[str, Operand | tuple[Operand, ...] | None],
        attributes: Mapping[str, Any],
        label: str,
        descs: tuple[Desc, ...],
    ) -> tuple[Operand, ...]:
        """Add a node with results of `descs`; the arguments are valid."""
        node = Node(op, inputs, attributes, label, self._serial + 1)
        node.outputs = tuple([self._operand_type(self, desc, node=node) for desc in descs])
        return self._place(node)

    def _place(self, node: Node) -> tuple[Operand, ...]:
        """Add a new node, and return its results, or those of its replacement."""
        self._serial = node.serial
        return node.outputs


_SPECIFIED = frozenset(dtypes.ANY)


def _data_types_of(node: Node) -> frozenset[str]:
    return frozenset([operand.data_type for operand in (*node.operands, *node.outputs)])


def is_widening(node: Node) -> bool:
    """Whether a node casts between a data type of 16 bits beyond the specification and the one that computes it."""
    if node.op.name != "cast":
        return False
    source, target = node.operands[0].data_type, node.outputs[0].data_type
    return dtypes.WIDENED.get(source) == target or dtypes.WIDENED.get(target) == source


def add_like(builder: Builder, node: Node, follow: Callable[[Operand], Operand], label: str) -> tuple[Operand, ...]:
    """Add a copy of another builder's node; `follow` maps its operands to operands of `builder`."""
    descs = tuple(output.desc for output in node.outputs)
    return add_node(builder, node.op, map_operands(node.inputs, follow), node.attributes, label, descs)


def add_node(
    builder: Builder,
    op: Op[..., Any],
    inputs: Mapping[str, Operand | tuple[Operand, ...] | None],
    attributes: Mapping[str, Any],
    label: str,
    descs: tuple[Desc, ...],
) -> tuple[Operand, ...]:
    """Add a node with results of `descs` to a builder, without checks."""
    return builder._add_node(op, inputs, attributes, label, descs)
