"""Calls of custom operations on small operands, for checks of their kernels."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from ..core.dtypes import ANY, DataType, check as check_data_type
from ..core.graph import Desc, Node, Operand, check_desc, iter_operands, map_operands
from ..core.operation import Limits
from ..custom import CustomOp
from ..kernels.expression import names_of
from ..ops.recorder import Recorder
from ..support.errors import (
    MLError,
    NoValueError,
    OperationError,
    SignatureError,
    ValidationError,
    require,
    user_line,
)
from ..support.hints import meant
from ..support.names import short_repr

RANKS = (2, 1, 3, 4, 0)
"""Ranks of operands that are tried, in this order."""

SIZE = 4
"""Each dimension of an operand: equal ones fit the most shape rules."""

MAX_BYTES = 2**31 - 1
"""Maximum size of an operand, in bytes."""

_NUMBERS: dict[str, Any] = {"int": 1, "float": 1.0, "bool": False}


def sample_calls(op: CustomOp[Any], arguments: Mapping[str, Any]) -> list[list[Node]]:
    """Return calls of an operation for each data type that it declares: those that its shape rule accepts.

    One of the calls for a data type suffices for a check, as a kernel may be for some ranks only.

    Args:
        op: the operation. Its examples replace absent arguments.
        arguments: operands, as a data type and a shape, a `Desc` or an array, a list of these for a sequence, or None; and
            attributes. Other operands get some ranks, and each data type that limits list; other attributes get their
            default, or a number.

    Raises:
        ValidationError: an argument is wrong, or no call is accepted.
        OperationError: the function raises an error with all operands, such as for a name that does not exist.
    """
    if not arguments and op.examples:
        return [nodes for example in op.examples for nodes in sample_calls(op, example)]
    names = (*op.operands, *op.attributes)
    for name in arguments:
        require(name in names, f"{op.name}: check: there is no parameter {name!r}{meant(name, names)}")
    operands = {name: _operand(op, name, arguments[name]) for name in op.operands if name in arguments}
    attributes = {name: arguments[name] for name in op.attributes if name in arguments}
    for name in op.attributes:
        if name not in attributes and name not in op.defaults:
            attributes[name] = _number(op, name)
    return [_calls(op, operands, attributes, data_type) for data_type in _data_types(op, operands)]


def _operand(op: CustomOp[Any], name: str, value: Any) -> Any:
    if name in op.sequences and isinstance(value, (list, tuple)) and not (value and isinstance(value[0], str)):
        return tuple(_desc(op, f"{name}[{k}]", item) for k, item in enumerate(value))
    if value is None and name in op.defaults:
        return None
    require(name not in op.sequences, f"{op.name}: check: {name} must be a list, got {short_repr(value)}")
    return _desc(op, name, value)


def _desc(op: CustomOp[Any], name: str, value: Any) -> Desc:
    title = f"{op.name}: check: {name}"
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        value = str(value.dtype), value.shape
    value = getattr(value, "desc", value)
    if isinstance(value, Desc):
        value = value.data_type, value.shape
    fits = isinstance(value, (list, tuple)) and len(value) == 2 and isinstance(value[1], (list, tuple))
    require(fits, f"{title} must be a data type and a shape, as in ('float32', [2, 3]), got {short_repr(value)}")
    data_type, shape = value
    fits = all(isinstance(size, int) and not isinstance(size, bool) for size in shape)
    require(fits, f"{title}: shape must be integers, got {short_repr(list(shape))}")
    try:
        return check_desc(Desc(check_data_type(data_type), tuple(shape)), MAX_BYTES)
    except ValidationError as error:
        raise ValidationError(f"{title}: {error}") from None


def _number(op: CustomOp[Any], name: str) -> Any:
    annotation = str(op.parameters[name].annotation).removesuffix(" | None")
    if annotation.startswith("Literal["):
        return ast.literal_eval(f"[{annotation[len('Literal[') : -1]}]")[0]
    require(annotation in _NUMBERS, f"{op.name}: check takes a value for {name}: check({name}=…)")
    return _NUMBERS[annotation]


def _data_types(op: CustomOp[Any], given: Mapping[str, Any]) -> Sequence[DataType]:
    """Return the data types to check: all that limits list for the first operand, if the caller chooses none."""
    descs = list(iter_operands(given))
    if descs:
        return [descs[0].data_type]
    listed = (op.limits[name].data_types for name in op.operands if name in op.limits)
    return next((types for types in listed if not isinstance(types, str) and types != ANY), ("float32",))


def _calls(
    op: CustomOp[Any], given: Mapping[str, Any], attributes: Mapping[str, Any], data_type: DataType
) -> list[Node]:
    calls: dict[tuple[Any, ...], Node] = {}
    refusal: Exception | None = None
    open_names = [name for name in op.operands if name not in given and op.defaults.get(name, op) is not None]
    for shape in _shapes(given) if open_names else [()]:
        descs = {**given, **{name: _default(op, name, shape, data_type, given) for name in open_names}}
        key = tuple(descs.items())
        if key in calls:
            continue
        try:
            calls[key] = _call(op, descs, attributes)
        except Exception as error:
            if _is_slip(error):
                text = f"the function raised {type(error).__name__}: {error}{user_line(error, op.source)}"
                raise OperationError(str(error) if isinstance(error, MLError) else f"{op.name}: {text}") from error
            refusal = refusal or error  # the shape rule may read dimensions that these operands do not have
    if not calls and not open_names and isinstance(refusal, MLError):
        raise refusal
    if not calls:
        names = ", ".join(f"{name}=({data_type!r}, […])" for name in open_names)
        problem = str(refusal).removeprefix(f"{op.name}: ")
        if refusal is not None and not isinstance(refusal, MLError):
            problem = f"{type(refusal).__name__}: {refusal}{user_line(refusal, op.source)}"
        problem = f"none of the calls that check tries is valid: {problem}; give operands to check or example: {names}"
        raise ValidationError(f"{op.name}: {problem}") from refusal
    return list(calls.values())


def _is_slip(error: Exception) -> bool:
    """Whether a function raises an error with all operands, such as for a wrong name or argument, or `if` on a value."""
    is_type_error = isinstance(error, TypeError) and not isinstance(error, MLError)
    return is_type_error or isinstance(error, (AttributeError, NameError, NoValueError, SignatureError))


def _shapes(given: Mapping[str, Any]) -> Iterator[tuple[int, ...]]:
    yield from dict.fromkeys(desc.shape for desc in iter_operands(given))
    for rank in RANKS:
        yield (SIZE,) * rank


def _default(
    op: CustomOp[Any], name: str, shape: tuple[int, ...], data_type: DataType, given: Mapping[str, Any]
) -> Desc | tuple[Desc, ...]:
    limit = op.limits.get(name, Limits())
    types: tuple[DataType, ...] = ANY if isinstance(limit.data_types, str) else limit.data_types
    other = given.get(limit.data_types) if isinstance(limit.data_types, str) else None
    if isinstance(other, Desc):
        data_type = other.data_type
    low, high = (0, len(shape)) if isinstance(limit.ranks, str) else limit.ranks
    if not low <= len(shape) <= high:
        shape = (SIZE,) * min(max(len(shape), low), high)
    desc = Desc(data_type if data_type in types else types[0], shape)
    return (desc, desc) if name in op.sequences else desc


def _call(op: CustomOp[Any], descs: Mapping[str, Any], attributes: Mapping[str, Any]) -> Node:
    recorder = Recorder()
    numbers = count()
    operands = map_operands(descs, lambda desc: Operand(recorder, desc, name=f"x{next(numbers)}"))
    result: Operand | tuple[Operand, ...] = op.add(recorder, (), {**operands, **attributes})
    outputs = (result,) if isinstance(result, Operand) else tuple(result)
    node = outputs[0].node
    assert node is not None
    return node


def operands_text(node: Node) -> str:
    """Return the operands of a node as text: "x float32[4, 4]"."""
    pairs = zip(names_of(node.inputs), node.operands, strict=True)
    return ", ".join(f"{name} {operand.desc}" for name, operand in pairs)
