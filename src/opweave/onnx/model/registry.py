"""Converters: one function for each ONNX operator, ONNX attributes are its keyword arguments.

    @converts("Softmax")
    def _(b: MLGraphBuilder, input: Tensor, *, axis: int | None = None, opset: int) -> Tensor: ...

A converter gets the builder and the node's inputs in order, None for an absent one. An input annotated `MLOperand` is an
operand; one annotated `Tensor` is an array if its value is known. Attributes that several operators share are the fields of a
dataclass; a keyword argument has an instance as its default:

    @converts("Conv")
    def _(b: MLGraphBuilder, X: Tensor, W: Tensor, *, group: int = 1, window: WindowAttributes = WindowAttributes()): ...

Older operator sets have attributes in place of some inputs. `moved` names them, and the converter sees inputs:

    @converts("Squeeze", moved=["axes"])
    def _(b: MLGraphBuilder, data: Tensor, axes: Tensor | None = None) -> Tensor: ...

Besides attributes a converter may name `opset` (the version of the operator's domain), `outputs` (the number of outputs),
`types` (the ONNX element types of the inputs, by position), `label` (the node's name), and `stream` (a function of a seed or
None, which returns the number of the node's stream of random keys). It returns the output, or a tuple of outputs. It raises
`Unsupported` if WebNN cannot express the node; an error of the builder means the same.

Tensors of bool are uint8 operands that hold 0 and 1.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ...core.casts import cast_array
from ...core.dtypes import DataType, name_of
from ...core.graph import MLOperand
from ...core.sizes import Size
from .tables import (
    CONVERTERS as CONVERTERS,
    DATA_TYPES as DATA_TYPES,
    ELEMENT_TYPES as ELEMENT_TYPES,
    MICROSOFT as MICROSOFT,
    REGISTERED as REGISTERED,
    TRADITIONAL as TRADITIONAL,
    Key as Key,
    in_place as in_place,
    key_of as key_of,
)

if TYPE_CHECKING:
    from ...context.builder import MLGraphBuilder
    from ...core.operation import Op

Tensor: TypeAlias = "MLOperand | np.ndarray"

EXTRAS = frozenset({"opset", "outputs", "stream", "types"})
"""Keyword arguments of converters that are not attributes."""

MADE_ELEMENTS = 2**24
"""The largest number of elements in an array that a converter makes."""


class Unsupported(Exception):  # noqa: N818  (a property of a node, which users never see as an error)
    """A node that WebNN cannot express; the message is the reason that `explain()` shows."""


def unsupported_if(condition: Any, reason: str) -> None:
    """Raise `Unsupported` with `reason` if `condition` holds."""
    if condition:
        raise Unsupported(reason)


class NotConstant(Unsupported):
    """A node with an input that must be constant, but is an `operand`, which is computed when the graph runs."""

    def __init__(self, subject: str, operand: MLOperand) -> None:
        super().__init__(f"{subject} is not constant")
        self.operand = operand


class Converter:
    """Converts nodes of an ONNX operator to WebNN operations.

    Attributes:
        inputs: the largest number of inputs, None for any number; `required` is the smallest.
        op: the user's operation; None for Opweave's own converters.
        operands: for an operation, name of an input -> its declaration in the signature.
        falls_back: whether refused nodes run in the engine, which may have an operator of this name.
        updates: position of an output that may alias an input -> position of the input.
    """

    __slots__ = ("attributes", "extras", "falls_back", "function", "inputs", "op", "operands", "required", "updates")

    def __init__(
        self,
        function: Callable[..., Any],
        attributes: frozenset[str],
        inputs: int | None,
        required: int,
        op: Op[..., Any] | None,
        operands: Mapping[str, str] = MappingProxyType({}),
        falls_back: bool = True,
        updates: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        self.function, self.attributes, self.extras = function, attributes, attributes & EXTRAS
        self.inputs, self.required, self.updates = inputs, required, updates
        self.op, self.operands, self.falls_back = op, operands, falls_back

    @classmethod
    def of(
        cls, function: Callable[..., Any], moved: Collection[str] = (), updates: Op[..., Any] | None = None
    ) -> Converter:
        """Read the inputs and attributes from a function's signature; inputs in `moved` may also be attributes.

        `updates` is an operation with the same outputs, whose updated operands have the names of inputs.
        """
        from dataclasses import fields, is_dataclass

        parameters = list(inspect.signature(function).parameters.values())[1:]
        positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        keywords = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
        groups: dict[str, Any] = {p.name: type(p.default) for p in keywords if is_dataclass(p.default)}
        members = {name: {member.name for member in fields(group)} for name, group in groups.items()}
        operands = {k for k, p in enumerate(positional) if str(p.annotation).startswith("MLOperand")}
        takes_any = any(p.kind is p.VAR_POSITIONAL for p in parameters)

        def convert(b: MLGraphBuilder, *inputs: Tensor | None, **attributes: Any) -> Any:
            values = list(inputs)
            for k in operands:
                if k < len(values) and (value := values[k]) is not None:
                    values[k] = operand(b, value)
            for name in moved:
                if name in attributes:
                    attributes[name] = np.asarray(attributes[name])
            for name, group in groups.items():
                attributes[name] = group(**{m: attributes.pop(m) for m in members[name] & attributes.keys()})
            return function(b, *values, **attributes)

        return cls(
            convert,
            frozenset(p.name for p in keywords if p.name not in groups).union(moved, *members.values()),
            None if takes_any else len(positional),
            sum(p.default is p.empty for p in positional),
            None,
            updates=_updates(updates, [p.name for p in positional]),
        )

    @classmethod
    def of_op(
        cls, declared: Op[..., Any], /, function: Callable[..., Any], attributes: Iterable[str], **more: Any
    ) -> Converter:
        """The converter of an operation. `function` calls the operation with the node's inputs, in order."""
        if declared.sequences:  # any number of operands
            return cls(function, frozenset(attributes), None, 1, operands=_declarations_of(declared), **more)
        required = sum(name not in declared.defaults for name in declared.operands)
        updates = _updates(declared, declared.operands)
        inputs = len(declared.operands)
        return cls(
            function,
            frozenset(attributes),
            inputs,
            required,
            updates=updates,
            operands=_declarations_of(declared),
            **more,
        )


def _declarations_of(op: Op[..., Any]) -> dict[str, str]:
    """Name of an operand -> its declaration in the operation's signature, such as "limit: float = 1.0"."""
    declarations = {}
    for name in op.operands:
        parameter = op.parameters[name]
        kind = f": {parameter.annotation}" if parameter.annotation else ""
        equals = " = " if kind else "="
        declarations[name] = name + kind + (f"{equals}{op.defaults[name]!r}" if name in op.defaults else "")
    return declarations


def _updates(op: Op[..., Any] | None, inputs: Sequence[str]) -> dict[int, int]:
    """Position of a result that may alias an operand -> position of that operand in `inputs`, if the operand is there."""
    updates = {} if op is None else op.updates
    return {result: inputs.index(name) for result, name in updates.items() if name in inputs}


def converts(
    *op_types: str, domain: str = "", moved: Collection[str] = (), updates: Op[..., Any] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as the converter of ONNX operators; takes the arguments of `Converter.of`."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for op_type in op_types:
            CONVERTERS[domain, op_type] = Converter.of(function, moved, updates)
        return function

    return register


def by_name(*functions: Any, **others: Any) -> dict[str, Any]:
    """Name in ONNX -> operation or function: "ReduceL1" for `reduce_l1`; `others` have a different name in ONNX.

    >>> from opweave import ops
    >>> by_name(ops.add, ops.reduce_l1, Less=ops.lesser)
    {'Add': <Op add>, 'ReduceL1': <Op reduce_l1>, 'Less': <Op lesser>}
    """
    return {function.__name__.title().replace("_", ""): function for function in functions} | others


def register(operators: Mapping[str, Op[..., Any]], domain: str = "") -> None:
    """Register operators that have the same inputs, attributes and defaults as an operation."""
    for op_type, op in operators.items():
        CONVERTERS[domain, op_type] = Converter.of_op(op, op, op.attributes, op=None)


def constant_of(value: Tensor | None, subject: str) -> np.ndarray:
    """The value of an input that must be constant (a shape, axes); `Unsupported` if it is not."""
    if value is None:
        raise Unsupported(f"{subject} is missing")
    constant = constant_or_same(value)
    if isinstance(constant, MLOperand):
        raise NotConstant(subject, constant)
    return constant


def constant_or_same(value: Tensor) -> Tensor:
    """The array of a constant operand; anything else as it is."""
    return value.value if isinstance(value, MLOperand) and value.is_constant else value


def integers(value: Tensor | None, subject: str) -> list[int]:
    """The value of an input that must be a constant list of integers, or of sizes that are known when the graph runs."""
    sizes: list[Any] = [
        item if isinstance(item, Size) else int(item) for item in constant_of(value, subject).reshape(-1)
    ]
    return sizes


def integer(value: Tensor | None, subject: str) -> int:
    """The value of an input that must be a constant integer, as a scalar or as a list of one."""
    values = integers(value, subject)
    unsupported_if(len(values) != 1, f"{subject} has {len(values)} values")
    return values[0]


def check_count(count: int) -> int:
    """Return `count`; `Unsupported` if a converter may not make an array of that size."""
    unsupported_if(count > MADE_ELEMENTS, f"{count} elements are too many to make while the graph is built")
    return count


def operand(b: MLGraphBuilder, value: Tensor) -> MLOperand:
    """`value`, as a constant if it is an array."""
    return value if isinstance(value, MLOperand) else b.constant(value)


def data_type_of(value: Tensor) -> str:
    """The data type of an operand or array."""
    return value.data_type if isinstance(value, MLOperand) else name_of(value.dtype)


def as_type(b: MLGraphBuilder, value: Tensor, data_type: DataType) -> Tensor:
    """`value` in another data type; arrays stay arrays."""
    if isinstance(value, MLOperand):
        return value if value.data_type == data_type else b.cast(value, data_type)
    return cast_array(value, data_type)


def shape_of(value: Tensor) -> tuple[int, ...]:
    """The shape of an operand or array."""
    return tuple(value.shape)


def normalize_axis(axis: int, rank: int) -> int:
    """An axis in [0, rank); ONNX counts negative ones from the end."""
    if not -rank <= axis < max(rank, 1):  # this runs often, so build the message only on failure
        raise Unsupported(f"axis {axis} is out of range for rank {rank}")
    return axis % rank if rank else 0
