"""Check that the text in ONNX messages is UTF-8. Protobuf returns other bytes as `bytes` instead of `str`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from ..errors import DataError
from .messages import ModelProto

_DESCRIPTIVE = frozenset(
    {
        *("doc_string", "denotation", "producer_name", "producer_version"),
        *("GraphProto.name", "NodeProto.name", "ModelProto.domain"),
        *("StringStringEntryProto.key", "StringStringEntryProto.value"),  # metadata, and where external data are
    }
)
"""Fields that no other part of a model refers to: "field", or "Message.field"."""


def with_text(proto: ModelProto, what: str, is_owned: bool) -> ModelProto:
    """The model, or a copy, in which all text is `str`.

    In descriptive fields (doc strings, labels, metadata), bytes that are not UTF-8 become U+FFFD.

    Args:
        proto: the model.
        what: the model in messages.
        is_owned: whether it may be changed.

    Raises:
        DataError: a field that other parts of the model refer to, such as the name of a value, is not UTF-8.
    """
    found = list(_bytes_in(proto))
    if found and not is_owned:
        copy = ModelProto()
        copy.CopyFrom(proto)
        proto, found = copy, list(_bytes_in(copy))
    for message, field, value in found:
        full = f"{type(message).__name__}.{field}"
        if field not in _DESCRIPTIVE and full not in _DESCRIPTIVE:
            raise DataError(f"{what}: {full} must be text in UTF-8, got {value[:200]!r}")
        setattr(message, field, value.decode(errors="replace"))
    return proto


def _bytes_in(proto: ModelProto) -> Iterator[tuple[Any, str, bytes]]:
    """The text fields that hold bytes: message, name of the field, and bytes."""
    pending: list[Any] = [proto]
    while pending:
        message = pending.pop()
        texts, lists, messages, repeated = _fields(message.__class__)
        for name in texts:
            if isinstance(value := getattr(message, name), bytes):
                yield message, name, value
        for name in lists:
            for value in getattr(message, name):
                if isinstance(value, bytes):
                    yield message, name, value
        pending += [getattr(message, name) for name in messages if message.HasField(name)]
        for name in repeated:
            pending += getattr(message, name)


@cache
def _fields(kind: type[Any]) -> tuple[list[str], list[str], list[str], list[str]]:
    """The names of the fields of a class of messages: texts, lists of texts, messages, and lists of messages."""
    texts, lists, messages, repeated = found = [], [], [], []  # type: ignore[var-annotated]
    empty = kind()
    for field in kind.DESCRIPTOR.fields:
        value = getattr(empty, field.name)
        if field.type == field.TYPE_STRING:
            (texts if isinstance(value, str) else lists).append(field.name)
        elif field.type == field.TYPE_MESSAGE:
            (messages if hasattr(value, "DESCRIPTOR") else repeated).append(field.name)
    return found
