"""The messages of the protocol `opweave.webnn.1`, their fields, and the numbers that JSON lacks."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeAlias

from ..support.errors import (
    DataError,
    InvalidStateError,
    MissingExtraError,
    NotSupportedError,
    OperationError,
    ValidationError,
)
from ..support.names import short_repr

VERSION = 1

PROTOCOL = f"opweave.webnn.{VERSION}"
"""The name of the protocol, as a subprotocol of WebSocket."""

MAX_SAFE_INTEGER = 2**53
"""JavaScript's numbers hold every integer up to this one."""

Message: TypeAlias = "dict[str, Any]"

ERROR_NAMES: dict[type[Exception], str] = {
    ValidationError: "TypeError",
    InvalidStateError: "InvalidStateError",
    NotSupportedError: "NotSupportedError",
    MissingExtraError: "NotSupportedError",
    OperationError: "OperationError",
    DataError: "DataError",
    MemoryError: "OperationError",
}
"""Names of errors in JavaScript; all others are an UnknownError there."""


class ProtocolError(Exception):
    """A message that no correct client sends; the connection ends."""


def error_name(error: BaseException) -> str:
    """The name of an error in JavaScript.

    >>> error_name(ValidationError("no")), error_name(ZeroDivisionError())
    ('TypeError', 'UnknownError')
    """
    return next((name for kind, name in ERROR_NAMES.items() if isinstance(error, kind)), "UnknownError")


def is_id(value: Any) -> bool:
    """Whether a value is the id of an object: a positive integer that JavaScript's numbers can hold."""
    return type(value) is int and 0 < value <= MAX_SAFE_INTEGER


def _is_index(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_SAFE_INTEGER


def _is(kind: type) -> Callable[[Any], bool]:
    return lambda value: type(value) is kind


def _is_list_of_ids(value: Any) -> bool:
    return type(value) is list and all(map(is_id, value))


def _is_map_of_ids(value: Any) -> bool:
    return type(value) is dict and all(map(is_id, value.values()))


_CONTEXT = {"c": is_id}
_REQUEST = {**_CONTEXT, "r": _is_index}
_TENSOR = {"id": is_id, "dataType": _is(str), "shape": _is(list)}
_LOG = {"b": is_id, "log": _is(list)}

REQUIRED: dict[str, dict[str, Callable[[Any], bool]]] = {
    "hello": {**_REQUEST, "options": _is(dict)},
    "tensor": {**_REQUEST, **_TENSOR},
    "write": {**_CONTEXT, "id": is_id, "bin": is_id},
    "read": {**_REQUEST, "id": is_id},
    "const": {**_CONTEXT, **_TENSOR, "b": is_id, "bin": is_id},
    "build": {**_REQUEST, **_LOG, "g": is_id, "outs": _is_map_of_ids},
    "save": {**_REQUEST, "g": is_id, "key": _is(str)},
    "load": {**_REQUEST, "g": is_id, "key": _is(str)},
    "list": {**_REQUEST},
    "delete": {**_REQUEST, "key": _is(str)},
    "dispatch": {**_CONTEXT, "g": is_id, "inputs": _is_map_of_ids, "outputs": _is_map_of_ids},
    "free": {**_CONTEXT},
    "destroy": {**_CONTEXT},
}
"""The messages, and the fields that each must have."""

OPTIONAL: dict[str, dict[str, Callable[[Any], bool]]] = {
    "tensor": {"readable": _is(bool), "writable": _is(bool), "constant": _is(bool), "bin": is_id},
    "read": {"apart": _is(bool)},
    "free": {"tensors": _is_list_of_ids, "graphs": _is_list_of_ids, "builders": _is_list_of_ids},
}

SYNC = {"session": _is(str), **_CONTEXT, **_LOG}
"""The fields of the body of `POST /sync` for operations of a builder."""

COMPUTE_SHAPES = {"session": _is(str), **_CONTEXT, "g": is_id, "shapes": _is(dict)}
"""The fields of the body of `POST /sync` for the shapes of a graph's outputs."""


def parse(text: bytes) -> Any:
    """Parse a JSON text."""
    try:
        return _DECODER.decode(text.decode())
    except RecursionError:
        raise ProtocolError("the JSON is nested too deeply") from None
    except ValueError as error:
        raise ProtocolError(f"not JSON: {error}") from None


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# With options, `json.loads` and `json.dumps` would make a decoder and an encoder for each text.
_DECODER = json.JSONDecoder(parse_constant=_refuse)
_ENCODER = json.JSONEncoder(separators=(",", ":"), check_circular=False)


def text_of(fields: Message) -> bytes:
    """Encode a message."""
    return _ENCODER.encode(fields).encode()


def parse_message(text: bytes) -> Message:
    """Parse a message, and check its fields."""
    message: Message = parse(text)
    kind = message.get("m") if isinstance(message, dict) else None
    if not isinstance(kind, str) or kind not in REQUIRED:
        raise ProtocolError(f"m must be one of {', '.join(REQUIRED)}, got {short_repr(kind)}")
    check_fields(kind, message, REQUIRED[kind], OPTIONAL.get(kind, {}))
    if "bin" in message and "bin" not in REQUIRED[kind] and not (kind == "tensor" and message.get("constant")):
        raise ProtocolError(f"{kind}: there is no payload")
    return message


def check_fields(
    kind: str,
    message: Message,
    required: Mapping[str, Callable[[Any], bool]],
    optional: Mapping[str, Callable[[Any], bool]],
) -> None:
    """Require fields and their types."""
    for name in required:
        if name not in message:
            raise ProtocolError(f"{kind}: the field {name} is missing")
    for name, is_valid in {**required, **optional}.items():
        if name in message and not is_valid(message[name]):
            raise ProtocolError(f"{kind}: the field {name} must not be {short_repr(message[name])}")


_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf, "-0": -0.0}


def number(text: Any) -> float | int:
    """Parse a number that JSON lacks, sent as `{"n": text}`.

    >>> number("-0"), number("-Infinity"), number("12n"), number("1e300")
    (-0.0, -inf, 12, 1e+300)
    """
    if isinstance(text, str):
        if text in _SPECIAL:
            return _SPECIAL[text]
        try:
            return int(text[:-1]) if text.endswith("n") else float(text)
        except ValueError:
            pass
    raise ProtocolError(f"{short_repr(text)} is not a number")
