"""The Open Inference Protocol v2 over HTTP, without a server: convert bytes to arrays and back.

The protocol: https://github.com/kserve/open-inference-protocol. Tensors are JSON, or binary data after the JSON, as in
Triton's extension "binary_tensor_data". The header Inference-Header-Content-Length gives the size of the JSON; 0 means that
the body is the data of the only input, without JSON.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from .. import memory
from ..onnx.model.arguments import Argument, shape_text
from ..onnx.model.model import Model
from ..onnx.model.protobuf import ModelProto
from ..support import formatting
from ..support.errors import NotSupportedError, ValidationError, require
from ..support.hints import require_names
from ..support.names import first_surrogate, short_repr
from . import json_text
from .json_text import Numbers, flatten

ModelFile: TypeAlias = "str | os.PathLike[str] | bytes | ModelProto"

HEADER_LENGTH = "Inference-Header-Content-Length"
VERSION = "1"
"""The version of a model that has one version alone."""

EXTENSIONS = ["binary_tensor_data", "statistics"]

DATATYPES = {
    "bool": "BOOL",
    **{f"{sign}int{bits}": f"{sign}int{bits}".upper() for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float16": "FP16",
    "bfloat16": "BF16",
    "float32": "FP32",
    "float64": "FP64",
    "object": "BYTES",
}
"""The protocol's data types by NumPy's names. BF16 is Triton's; "object" holds strings."""

MAX_BODY_BYTES = 1 << 28
"""Maximum size of the body of a request, also after decompression: kilobytes of gzip can expand to gigabytes."""

MAX_JSON_BYTES = 1 << 28
"""Maximum memory for reading the JSON of a request."""

MAX_MEMBERS = 4096
"""Maximum number of members of a gzip body: tools that compress in parallel write one per 64 KiB or more."""

SLICE_BYTES = 1 << 18
"""Size of the slices in which data are decompressed."""

MAX_DIGITS = 18
"""Maximum digits of a size: Python takes seconds to read a million digits, and refuses to write them."""

MAX_DIMENSIONS = 64

REFUSED = ("classification", "sequence_", "shared_memory_")
"""Prefixes of parameters that would change results or the location of data. Others are ignored, as the protocol allows."""

UNALIGNED = "binary data of a request that are not aligned"
"""The reason for copying an input: the size of the preceding JSON is not a multiple of the item size."""

_encode = json.JSONEncoder(separators=(",", ":")).encode

_JSON_KINDS = {"b": "b", "i": "iu", "u": "iu", "f": "iuf", "V": "iuf"}
"""Kinds of numbers in JSON that are accepted for each kind of data type. bfloat16 is "V"."""


@dataclass(frozen=True, slots=True)
class InferenceRequest:
    """An inference request.

    Arrays of binary data in `feed` are read-only, and views of the body if aligned there. `outputs` are the names of the
    requested outputs, and whether each is to be binary.
    """

    id: str | None
    feed: Mapping[str, np.ndarray]
    outputs: Mapping[str, bool]


@dataclass(frozen=True, slots=True)
class Interface:
    """The inputs and outputs of a model under the name by which clients know it.

    Args:
        name: letters, digits, ".", "_" and "-".
        inputs: the declared inputs.
        outputs: the declared outputs.
        max_json: maximum bytes of memory for the JSON of a request; 0 for `MAX_JSON_BYTES`.
        version: the version of the model.
    """

    name: str
    inputs: Sequence[Argument]
    outputs: Sequence[Argument]
    max_json: int = 0
    version: str = VERSION

    def __post_init__(self) -> None:
        is_name = isinstance(self.name, str) and re.fullmatch(r"[\w.-]+", self.name, re.ASCII)
        _require(bool(is_name), "name must be letters, digits, '.', '_' and '-'", self.name)
        for kind, arguments in (("input", self.inputs), ("output", self.outputs)):
            for argument in arguments:
                if not argument.element_type or argument.dtype.name not in DATATYPES:
                    text = f"{kind} {argument.name!r} is {argument.type}, for which the Open Inference Protocol has no type"
                    raise NotSupportedError(text)

    @classmethod
    def load(cls, model: ModelFile, name: str | None = None) -> Interface:
        """Read the inputs and outputs that a model declares, without compiling it.

        The default name is that of the file, with "-" for characters that requests cannot have.
        """
        loaded = Model.load(model)
        if name is None:
            name = default_name(model) if isinstance(model, (str, os.PathLike)) else "model"
        inputs, outputs = loaded.required_inputs, loaded.proto.graph.output
        return cls(name, [Argument.of(info) for info in inputs], [Argument.of(info) for info in outputs])

    def metadata(self, versions: Sequence[str] = ()) -> dict[str, Any]:
        """The model's metadata in the form of the protocol; dynamic dimensions are -1. Default: one version."""

        def describe(arguments: Sequence[Argument]) -> list[dict[str, Any]]:
            return [{"name": a.name, "datatype": datatype(a), "shape": protocol_shape(a)} for a in arguments]

        about = {"name": self.name, "versions": [*versions] or [self.version], "platform": "onnx_onnxv1"}
        return {**about, "inputs": describe(self.inputs), "outputs": describe(self.outputs)}

    def parse(self, body: bytes, header_length: str | None = None) -> InferenceRequest:
        """Read an uncompressed inference request. Its arrays have the declared data types, but not yet the declared shapes."""
        size = len(body)
        if header_length is not None:
            _require(header_length.isdecimal(), f"{HEADER_LENGTH} must be a whole number of bytes", header_length)
            is_size = len(header_length) <= MAX_DIGITS and int(header_length) <= len(body)
            _require(is_size, f"{HEADER_LENGTH} must be at most {len(body)}, the size of the body", header_length)
            size = int(header_length)
            if not size:
                return self._parse_raw(body)
        max_bytes = self.max_json or MAX_JSON_BYTES
        message = _parse_json(body[:size], header_length is not None, max_bytes)
        arguments, feed = {a.name: a for a in self.inputs}, {}
        binary = _Binary(memoryview(body)[size:], max_bytes)
        for entry in _entries(message, "inputs"):
            name = entry["name"]
            if name not in arguments:
                raise ValidationError(f"there is no input {short_repr(name)}; the model has {list(arguments)}")
            require(name not in feed, f"input {name!r} is given twice")
            feed[name] = _array(entry, arguments[name], binary)
        binary.check_end()
        require_names("inputs", feed, arguments)
        id = message.get("id")
        _require(id is None or isinstance(id, str), "id must be a string", id)
        return InferenceRequest(id, feed, self._requested_outputs(message))

    def respond(self, request: InferenceRequest, results: Mapping[str, np.ndarray]) -> tuple[bytes, dict[str, str]]:
        """Write the body and headers of the response. An output in JSON must be finite."""
        entries, parts = [], []
        types = {a.name: datatype(a) for a in self.outputs}
        for name, is_binary in request.outputs.items():
            array = results[name]
            entry: dict[str, Any] = {"name": name, "datatype": types[name], "shape": list(array.shape)}
            if is_binary:
                parts.append(_binary_data(array))
                entry["parameters"] = {"binary_data_size": len(parts[-1])}
            else:
                entry["data"] = _json_data(array, name)
            entries.append(entry)
        message: dict[str, Any] = {"model_name": self.name, "model_version": self.version, "outputs": entries}
        if request.id is not None:
            message["id"] = request.id
        header = _encode(message).encode()
        if not parts:
            return header, {"Content-Type": "application/json"}
        headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(header))}
        return b"".join([header, *parts]), headers

    def _parse_raw(self, body: bytes) -> InferenceRequest:
        """Read a request whose body is the data of the only input; all outputs are returned as binary."""
        one = "a body without JSON is for models with one input of numbers and at most one dynamic dimension"
        require(len(self.inputs) == 1, f"{one}; this model has {len(self.inputs)} inputs")
        argument = self.inputs[0]
        shape = protocol_shape(argument)
        text = f"{argument.name!r} is {datatype(argument)} of shape {shape_text(argument.dims or ())}"
        fits = argument.dims is not None and argument.dtype.kind != "O" and shape.count(-1) <= 1
        require(fits, f"{one}; {text}")
        fixed_bytes = prod(size for size in shape if size >= 0) * argument.dtype.itemsize
        whole = len(body) == fixed_bytes if -1 not in shape else fixed_bytes > 0 and len(body) % fixed_bytes == 0
        require(whole, f"input {text}, got {len(body)} bytes")
        array = _view(memoryview(body), argument.dtype).reshape(shape)
        return InferenceRequest(None, {argument.name: array}, {output.name: True for output in self.outputs})

    def _requested_outputs(self, message: Mapping[str, Any]) -> dict[str, bool]:
        """The outputs that a request names, or else all, and whether each is to be binary."""
        names = [output.name for output in self.outputs]
        default = _flag(_parameters(message, "the request"), "binary_data_output", False)
        wanted: dict[str, bool] = {}
        for entry in _entries(message, "outputs") if message.get("outputs") is not None else ():
            name = entry["name"]
            if name not in names:
                raise ValidationError(f"there is no output {short_repr(name)}; the model has {names}")
            require(name not in wanted, f"output {name!r} is asked for twice")
            wanted[name] = _flag(_parameters(entry, f"output {name!r}"), "binary_data", default)
        return wanted or dict.fromkeys(names, default)


def default_name(path: str | os.PathLike[str]) -> str:
    """The name of a model in requests by its file's name, with "-" for characters that requests cannot have.

    >>> default_name("models/a model.onnx")
    'a-model'
    """
    return re.sub(r"[^\w.-]+", "-", Path(path).stem, flags=re.ASCII)


def datatype(argument: Argument) -> str:
    """The protocol's data type of an input or output."""
    return _datatype(argument.dtype)


@cache  # NumPy builds the name each time, which takes microseconds
def _datatype(dtype: np.dtype[Any]) -> str:
    return DATATYPES[dtype.name]


def protocol_shape(argument: Argument) -> list[int]:
    """The shape of an input or output, with -1 for dynamic dimensions."""
    return [size if isinstance(size, int) else -1 for size in argument.dims or ()]


def decompress(body: bytes, encoding: str | None, limit: int | None = None) -> bytes:
    """Decompress a body by the HTTP header `Content-Encoding`, to at most `limit` bytes."""
    name, limit = (encoding or "").strip().lower(), MAX_BODY_BYTES if limit is None else limit
    bits = {"gzip": 31, "x-gzip": 31, "deflate": 15}
    if name in ("", "identity"):
        return body
    _require(name in bits, "Content-Encoding must be gzip or deflate", encoding)
    parts: list[bytes] = []
    rest, left = memoryview(body), limit
    for _ in range(MAX_MEMBERS):
        stream = zlib.decompressobj(bits[name])
        # In slices, since a stream copies all data behind its end.
        while rest and not stream.eof:
            try:
                part = stream.decompress(stream.unconsumed_tail + rest[:SLICE_BYTES], left + 1)
            except zlib.error as error:
                raise ValidationError(f"the body is not {name}: {error}") from None
            rest, left = rest[SLICE_BYTES:], left - len(part)
            parts.append(part)
            require(left >= 0, f"the uncompressed body is larger than the limit of {formatting.size(limit)}")
        if stream.eof:
            rest = memoryview(body)[len(body) - len(rest) - len(stream.unused_data) :]
        is_next = name != "deflate" and bytes(rest[:2]) == b"\x1f\x8b"
        require(stream.eof and (not rest or is_next), f"the body is not {name}: it does not end where the data end")
        if not rest:
            return b"".join(parts)
    raise ValidationError(f"a gzip body must have at most {MAX_MEMBERS:,} parts")


def _require(holds: bool, rule: str, got: Any) -> None:
    """Raise `ValidationError` unless `holds`. `got` is formatted only then, since this runs for each request."""
    if not holds:
        raise ValidationError(f"{rule}, got {short_repr(got)}")


class _Binary:
    def __init__(self, data: memoryview, max_bytes: int) -> None:
        self._data, self._position, self._max_bytes = data, 0, max_bytes

    def check_memory(self, needed: int, label: str) -> None:
        """Require that the Python objects made from the data fit the memory limit of JSON."""
        if needed > self._max_bytes:
            rule = f"more than the limit of {formatting.size(self._max_bytes)}"
            raise ValidationError(f"{label}: its strings would take about {formatting.size(needed)} of memory, {rule}")

    def take(self, size: Any, label: str) -> memoryview:
        """Take the next `size` bytes."""
        left = len(self._data) - self._position
        if not (type(size) is int and 0 <= size <= left):
            rule = f"{label}: binary_data_size must be at most {left}, the bytes that are left"
            raise ValidationError(f"{rule}, got {short_repr(size)}")
        self._position += size
        return self._data[self._position - size : self._position]

    def check_end(self) -> None:
        """Require that all bytes were taken."""
        left = len(self._data) - self._position
        require(not left, f"{left} bytes after the JSON belong to no input: their binary_data_size are too small")


def _parse_json(data: bytes, has_header: bool, max_bytes: int) -> dict[str, Any]:
    require(bool(data), "the body is empty")
    try:
        message = json_text.loads(data, max_bytes)
    except ValidationError:
        raise
    except (ValueError, RecursionError) as error:
        is_text = isinstance(error, json.JSONDecodeError) and error.msg != "Extra data" and b"\0" not in data
        is_binary = not has_header and not is_text and not isinstance(error, RecursionError)
        hint = f"; for binary data send the header {HEADER_LENGTH}" if is_binary else ""
        raise ValidationError(f"the request is not JSON: {error}{hint}") from None
    _require(isinstance(message, dict), "the request must be a JSON object", message)
    return dict(message)


def _entries(message: Mapping[str, Any], key: str) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of a list in a request; each has a name."""
    require(key in message, f"{key!r} is missing")
    listing = message[key]
    _require(isinstance(listing, list), f"{key!r} must be a list of objects", listing)
    for entry in listing:
        fits = isinstance(entry, dict) and isinstance(entry.get("name"), str)
        _require(fits, f"each of {key!r} must be an object with a name", entry)
        yield entry


def _parameters(entry: Mapping[str, Any], label: str) -> Mapping[str, Any]:
    parameters = entry.get("parameters")
    parameters = {} if parameters is None else parameters
    _require(isinstance(parameters, dict), f"{label}: 'parameters' must be an object", parameters)
    if refused := [name for name in parameters if name.startswith(REFUSED)]:
        raise ValidationError(f"{label}: the parameters {short_repr(refused)} are not supported")
    return dict(parameters)


def _flag(parameters: Mapping[str, Any], name: str, default: bool) -> bool:
    value = parameters.get(name, default)
    _require(isinstance(value, bool), f"{name} must be true or false", value)
    return bool(value)


def _array(entry: Mapping[str, Any], argument: Argument, binary: _Binary) -> np.ndarray:
    label, expected = f"input {argument.name!r}", datatype(argument)
    got, shape = entry.get("datatype"), entry.get("shape")
    if got is None or shape is None:
        raise ValidationError(f"{label}: {'datatype' if got is None else 'shape'!r} is missing")
    _require(got == expected, f"{label} must be {expected}, which is {argument.type}", got)
    sizes: list[Any] = shape if isinstance(shape, list) else [None]
    fits = all(isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in sizes)
    _require(fits, f"{label}: 'shape' must be a list of sizes", shape)
    if len(sizes) > MAX_DIMENSIONS or max(sizes, default=0) >= 10**MAX_DIGITS:  # their product would take seconds
        raise ValidationError(f"{label}: no array can have the shape {short_repr(shape)}")
    try:
        values = _values(entry, sizes, argument, binary)
    except ValidationError:
        if argument.takes(sizes):
            raise
        # The number of values follows from the shape, which is checked when the request has been read.
        raise ValidationError(f"{label} must have shape {shape_text(argument.dims or ())}, got {sizes}") from None
    try:
        return values.reshape(sizes)
    except (ValueError, OverflowError):  # too many dimensions, or their product overflows even if one of them is 0
        raise ValidationError(f"{label}: no array can have the shape {short_repr(shape)}") from None


def _values(entry: Mapping[str, Any], sizes: list[int], argument: Argument, binary: _Binary) -> np.ndarray:
    """Read the elements of an input; `_array` reshapes them."""
    label, dtype = f"input {argument.name!r}", argument.dtype
    parameters = _parameters(entry, label)
    if "binary_data_size" not in parameters:
        require("data" in entry, f"{label}: 'data' is missing")
        return _from_json(entry["data"], sizes, dtype, label)
    if "data" in entry:
        raise ValidationError(f"{label} has both 'data' and binary_data_size")
    data = binary.take(parameters["binary_data_size"], label)
    if dtype.kind == "O":
        most = min(prod(sizes), len(data) // 4)
        binary.check_memory(json_text.WEIGHTS[ord(",")] * most, label)
        texts = list(_strings(data, prod(sizes), label))
        require(len(texts) == prod(sizes), f"{label}: shape {sizes} needs {prod(sizes)} strings, got {len(texts)}")
        return np.array(texts, object)
    byte_length = prod(sizes) * dtype.itemsize
    if len(data) != byte_length:
        needed = f"{datatype(argument)} of shape {sizes} needs {byte_length} bytes"
        raise ValidationError(f"{label}: {needed}, got {len(data)}")
    return _view(data, dtype)


def _view(data: memoryview, dtype: np.dtype[Any]) -> np.ndarray:
    """View binary data as an array. Data that are not aligned for the type are copied, and the copy is counted.

    `bytes` makes the copy: NumPy would release the GIL, and get it back after milliseconds.
    """
    array = np.frombuffer(data, dtype)
    if array.flags.aligned:
        return array
    memory.copies.add(len(data), UNALIGNED)
    return np.frombuffer(bytes(data), dtype)


def _from_json(data: Any, shape: list[int], dtype: np.dtype[Any], label: str) -> np.ndarray:
    """Convert 'data', nested or flat, to an array. Conversions must keep each value, except for rounding of floats."""
    _require(isinstance(data, (list, Numbers)), f"{label}: 'data' must be a list", data)
    nested_shape, elements = flatten(data, label)
    fits = nested_shape == shape if len(nested_shape) > 1 else len(elements) == prod(shape)
    got = f"lists of shape {nested_shape}" if len(nested_shape) > 1 else f"{len(elements)} values"
    require(fits, f"{label}: 'data' must have shape {shape} or {prod(shape)} values, got {got}")
    name, kinds = DATATYPES[dtype.name], {float} if isinstance(elements, np.ndarray) else set(map(type, elements))
    if dtype.kind == "O":
        odd = [item for item in elements if not isinstance(item, str)]
        _require(not odd, f"{label}: 'data' must hold strings", odd[:1])
        if text := next(filter(None, map(first_surrogate, elements)), ""):
            raise ValidationError(f"{label}: strings must be Unicode, got {text}")
        return np.array(elements, object)
    # NumPy would make an array of fixed-width strings, each as wide as the longest.
    _require(kinds <= {bool, int, float}, f"{label}: 'data' must hold {name}", data)
    numbers = np.asarray(elements)
    if not numbers.size:
        return np.empty(0, dtype)
    if dtype == np.uint64 and numbers.dtype.kind == "f":  # NumPy's choice for integers from 2**63 on
        exact = np.array(elements, object)
        numbers = (
            exact.astype(dtype) if all(type(item) is int and 0 <= item < 2**64 for item in exact.flat) else numbers
        )
    elif numbers.dtype.kind == "O" and dtype.kind in "fV":  # integers of more than 64 bits, as JavaScript writes 1e20
        with suppress(OverflowError):  # beyond float64
            numbers = np.array([float(item) for item in elements])
    _require(numbers.dtype.kind in _JSON_KINDS[dtype.kind], f"{label}: 'data' must hold {name}", data)
    with np.errstate(over="ignore"):
        array = numbers.astype(dtype)
    if dtype.kind in "iu":
        fits = bool((array == numbers).all())
    else:
        fits = bool((np.isfinite(array) == np.isfinite(numbers)).all())
    require(fits, f"{label}: 'data' has values that {name} cannot hold")
    return array


def _strings(data: memoryview, count: int, label: str) -> Iterator[str]:
    """Yield the strings of binary BYTES, at most `count + 1`. Each has its length in four bytes, then UTF-8."""
    position = total = 0
    while position < len(data) and total <= count:
        total += 1
        start = position + 4
        position = start + int.from_bytes(data[position:start], "little")
        require(position <= len(data), f"{label}: a string of BYTES ends after the data")
        try:
            yield str(data[start:position], "utf-8")
        except UnicodeDecodeError as error:
            raise ValidationError(f"{label}: strings must be UTF-8 ({error})") from None


def _binary_data(array: np.ndarray) -> bytes:
    if array.dtype.kind not in "OUS":
        return array.tobytes()
    texts = [text if isinstance(text, bytes) else str(text).encode() for text in array.flat]
    return b"".join(len(text).to_bytes(4, "little") + text for text in texts)


def _json_data(array: np.ndarray, name: str) -> list[Any]:
    if array.dtype.kind in "OUS":
        return [text.decode() if isinstance(text, bytes) else str(text) for text in array.flat]
    if array.dtype.kind in "fV" and not np.isfinite(array).all():
        text = f"output {name!r} has NaN or infinity, which JSON cannot hold; ask for it with binary_data"
        raise NotSupportedError(text)
    return array.ravel().tolist()
