"""Replay the log of a builder, which JavaScript recorded: operations by name, arguments and options."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from ..context.builder import MLGraphBuilder
from ..core.graph import MLOperand, title
from ..core.operation import Op
from ..ops import Operations
from ..support.errors import ValidationError
from ..support.names import camel_case, short_repr
from .messages import MAX_SAFE_INTEGER, ProtocolError, number


@cache
def operations() -> dict[str, Op[..., Any]]:
    """The operations by their names in JavaScript, those of drafts too: builders refuse these where they are not offered."""
    return {camel_case(name): op for name, op in (Operations.listing() | Operations.drafts()).items()}


@cache
def _parameters(op: Op[..., Any]) -> dict[str, str]:
    return {camel_case(name): name for name in op.parameters if name not in op.positional}


@cache
def _words() -> re.Pattern[str]:
    """A pattern for names of operations and parameters that differ in JavaScript."""
    names = {name for op in operations().values() for name in (op.name, *op.parameters)}
    names |= {"data_type", "data_types"}
    return re.compile(rf"\b({'|'.join(sorted(name for name in names if '_' in name))})\b")


def in_javascript(message: str, heading: str = "") -> str:
    """Convert the names in an error message to camelCase, but not in `heading`, which may have a user's label.

    >>> in_javascript("conv2d 'input_layout': input_layout must be 'nchw'", "conv2d 'input_layout'")
    "conv2d 'input_layout': inputLayout must be 'nchw'"
    """
    if not message.startswith(heading):
        heading = ""
    return heading + _words().sub(lambda match: camel_case(match[0]), message[len(heading) :])


def decode(value: Any, operand: Callable[[int], MLOperand], depth: int = 0) -> Any:
    """Decode an argument: references to operands, and numbers that JSON lacks."""
    if depth > 2:
        raise ProtocolError("the lists of an argument are nested too deeply")
    if isinstance(value, dict):
        match value:
            case {"$": int(operand_id)} if len(value) == 1:
                return operand(operand_id)
            case {"n": text} if len(value) == 1:
                return number(text)
        raise ProtocolError(f"an argument must not be {short_repr(value)}")
    if isinstance(value, list):
        return [decode(item, operand, depth + 1) for item in value]
    if type(value) is not int or abs(value) <= MAX_SAFE_INTEGER:
        return value
    try:
        return float(value)  # JSON.stringify writes the shortest digits that round-trip
    except OverflowError:
        raise ProtocolError(f"{short_repr(value)} is not a number of JavaScript") from None


def call(builder: MLGraphBuilder, name: str, arguments: Sequence[Any], options: dict[str, Any]) -> Sequence[MLOperand]:
    """Add an operation to a builder. Options have their JavaScript names, in errors, too; values are decoded."""
    op = operations().get(name)
    if op is None:
        raise ProtocolError(f"there is no operation {short_repr(name)}")
    parameters = _parameters(op)
    unknown = next((option for option in options if option not in parameters), None)
    if unknown is not None:
        raise ProtocolError(f"{name} has no option {short_repr(unknown)}")
    keywords = {parameters[option]: value for option, value in options.items()}
    try:
        result = op(builder, *arguments, **keywords)
    except ValidationError as error:
        label = keywords.get("label", "")
        heading = camel_title = ""
        if isinstance(label, str):
            heading, camel_title = title(op.name, label), title(name, label)
        text = str(error)
        if heading and text.startswith(heading):
            text = camel_title + text[len(heading) :]
        raise ValidationError(in_javascript(text, camel_title)) from None
    return result if isinstance(result, tuple) else (result,)
