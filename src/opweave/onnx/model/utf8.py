"""Check that the text in ONNX messages is UTF-8. Protobuf returns other bytes as `bytes` instead of `str`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from ...support.errors import DataError
from .protobuf import ModelProto, copy_of, message_class

_DESCRIPTIVE = frozenset(
    {
        *("doc_string", "denotation", "producer_name", "producer_version"),
        *("GraphProto.name", "NodeProto.name", "ModelProto.domain"),
        *("StringStringEntryProto.key", "StringStringEntryProto.value"),  # metadata, and places of external data
    }
)
"""Fields that no other part of a model refers to: "field", or "Message.field"."""

_SYNTAX = b"\x62\x06proto3"
"""The field `syntax` of a FileDescriptorProto; the last one of a message counts."""

FEW_BYTES = 4096
"""Models up to this size are checked field by field, which takes less time than making the strict class. An estimate."""

_OTHER_FORMATS = {
    b"version https://git-lfs": "it is a pointer of Git LFS: `git lfs pull` fetches the file itself",
    b"PK\x03\x04": "it is a ZIP archive, as files of PyTorch and Keras are: export the model as ONNX",
    b"\x80\x02": "it is a pickle, as files of PyTorch are: export the model as ONNX",
    b"\x89HDF": "it is an HDF5 file, as those of Keras are: export the model as ONNX",
    b"GGUF": "it is a GGUF file, which opweave.chat reads",
    b"<!DOCTYPE": "it is an HTML page: the download failed",
    b"<html": "it is an HTML page: the download failed",
}
"""First bytes of files that are mistaken for ONNX models -> explanation."""

_SAVED_GRAPH = b'{"__metadata__":{"format":"opweave"'


def other_format(data: bytes | memoryview) -> str:
    """Explain a file that is not an ONNX model, by its first bytes; empty if the format is unknown."""
    head = bytes(data[:64])
    if head[8:].startswith(_SAVED_GRAPH):  # behind the length of the header
        return "it is a saved graph of Opweave: MLContext.load, or `opweave run`, info, bench, profile and tune take it"
    return next((hint for start, hint in _OTHER_FORMATS.items() if head.lower().startswith(start.lower())), "")


def is_text(proto: ModelProto, serialised: bytes) -> bool:
    """Whether all text in a model is UTF-8. Protobuf itself checks this under the syntax proto3."""
    if len(serialised) <= FEW_BYTES:
        return next(_bytes_in(proto), None) is None
    try:
        _strict_model().FromString(serialised)
    except Exception:  # implementations of Protobuf raise errors of several types
        return False
    return True


@cache
def _strict_model() -> Any:
    """A class of ModelProto that refuses text that is not UTF-8."""
    descriptor = ModelProto.DESCRIPTOR
    pool = type(descriptor.file.pool)()  # importing this class takes longer than reading most models
    pool.AddSerializedFile(descriptor.file.serialized_pb + _SYNTAX)
    return message_class(pool.FindMessageTypeByName(descriptor.full_name), __name__)


def with_text(proto: ModelProto, subject: str, is_owned: bool) -> ModelProto:
    """The model, or a copy unless `is_owned`, in which all text is `str`.

    In descriptive fields (doc strings, labels, metadata), bytes that are not UTF-8 become U+FFFD. Other fields, such as the
    name of a value, are refused.
    """
    fields = list(_bytes_in(proto))
    if fields and not is_owned:
        proto = copy_of(proto)
        fields = list(_bytes_in(proto))
    for message, field, value in fields:
        full = f"{type(message).__name__}.{field}"
        if field not in _DESCRIPTIVE and full not in _DESCRIPTIVE:
            raise DataError(f"{subject}: {full} must be text in UTF-8, got {value[:200]!r}")
        setattr(message, field, value.decode(errors="replace"))
    return proto


def _bytes_in(proto: ModelProto) -> Iterator[tuple[Any, str, bytes]]:
    """The text fields that hold bytes: message, name of the field, and bytes."""
    pending: list[Any] = [proto]
    while pending:
        message = pending.pop()
        for field, value in message.ListFields():
            # Most fields; reading a field's type takes longer than reading its value.
            if isinstance(value, (str, int, float)):
                continue
            if field.type == field.TYPE_MESSAGE:
                pending += [value] if hasattr(value, "DESCRIPTOR") else value
            elif field.type == field.TYPE_STRING:
                texts = [value] if isinstance(value, bytes) else value
                yield from ((message, field.name, text) for text in texts if isinstance(text, bytes))
