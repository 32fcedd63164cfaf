"""ONNX models as files or bytes: reading, checking, and weights by reference."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from ..errors import DataError

_RAW: dict[int, str] = {
    TensorProto.FLOAT: "float32",
    TensorProto.FLOAT16: "float16",
    TensorProto.DOUBLE: "float64",
    TensorProto.INT8: "int8",
    TensorProto.INT16: "int16",
    TensorProto.INT32: "int32",
    TensorProto.INT64: "int64",
    TensorProto.UINT8: "uint8",
    TensorProto.UINT16: "uint16",
    TensorProto.UINT32: "uint32",
    TensorProto.UINT64: "uint64",
    TensorProto.BOOL: "bool",
}
"""Element types whose raw bytes NumPy reads as they are."""


@dataclass
class Model:
    """An ONNX model whose external data stay in their files.

    Attributes:
        proto: the model; initializers with external data hold no data.
        folder: where external data are looked for.
        opsets: the version of each operator set, by domain ("" for ONNX's own).
    """

    proto: onnx.ModelProto
    folder: Path | None = None
    opsets: dict[str, int] = field(default_factory=dict)
    _files: dict[Path, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def load(cls, source: Any) -> Model:
        """Read a model from a path, from bytes, or take an `onnx.ModelProto`.

        Raises:
            DataError: the file cannot be read, or holds no valid ONNX model.
        """
        folder = None
        if isinstance(source, onnx.ModelProto):
            proto = source
        else:
            if isinstance(source, (str, Path)):
                folder = Path(source).resolve().parent
                try:
                    data = Path(source).read_bytes()
                except OSError as error:
                    raise DataError(f"{source}: {error.strerror or error}") from None
            elif isinstance(source, (bytes, bytearray, memoryview)):
                data = bytes(source)
            else:
                raise DataError(f"a model is a path or bytes, got {type(source).__name__}")
            try:
                proto = onnx.ModelProto.FromString(data)
            except Exception as error:
                name = source if isinstance(source, (str, Path)) else "the model"
                raise DataError(f"{name}: not an ONNX model ({error})") from None
        if not proto.graph.node and not proto.graph.output:
            raise DataError("the model holds no graph")
        opsets = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in proto.opset_import}
        model = cls(proto, folder, opsets)
        model._check()
        return model

    def _check(self) -> None:
        """What must hold before a walk over the nodes: named values, each made once, before it is used."""
        graph = self.proto.graph
        made = {i.name for i in graph.input} | {i.name for i in graph.initializer}
        made |= {i.values.name for i in graph.sparse_initializer}
        for node in graph.node:
            for name in node.input:
                if name and name not in made:
                    raise DataError(f"{node.op_type} {node.name!r} uses {name!r}, which nothing before it makes")
            for name in node.output:
                if name and name in made:
                    raise DataError(f"{node.op_type} {node.name!r} makes {name!r}, which exists already")
                made.add(name)
        for value in graph.output:
            if value.name not in made:
                raise DataError(f"nothing makes the output {value.name!r}")

    def array(self, tensor: TensorProto) -> np.ndarray:
        """The array of an initializer, without a copy where its bytes are raw.

        Raises:
            DataError: the data are missing, too short, or in a file outside of the model's folder.
        """
        shape, name = tuple(tensor.dims), _RAW.get(tensor.data_type)
        if any(size < 0 for size in shape):
            raise DataError(f"the tensor {tensor.name!r} has the shape {list(shape)}")
        external = tensor.data_location == TensorProto.EXTERNAL
        if name is None or not (external or tensor.HasField("raw_data")):
            try:
                return onnx.numpy_helper.to_array(tensor, str(self.folder or ""))
            except Exception as error:
                raise DataError(f"the tensor {tensor.name!r} cannot be read: {error}") from None
        dtype = np.dtype(name)
        size = int(np.prod(shape, dtype=object)) * dtype.itemsize
        data: Any = self._external(tensor, size) if external else tensor.raw_data
        if len(data) != size:
            raise DataError(
                f"the tensor {tensor.name!r} must have {size} bytes for {name}{list(shape)}, got {len(data)}"
            )
        return np.frombuffer(data, dtype).reshape(shape)

    def _external(self, tensor: TensorProto, size: int) -> memoryview:
        entries: Mapping[str, str] = {entry.key: entry.value for entry in tensor.external_data}
        where = f"the data of {tensor.name!r}"
        if self.folder is None:
            raise DataError(f"{where} are in a file, and a model of bytes has no folder to look in")
        path = (self.folder / entries.get("location", "")).resolve()
        if not path.is_relative_to(self.folder):
            raise DataError(f"{where} are outside of the model's folder: {entries.get('location')!r}")
        try:
            offset, length = int(entries.get("offset", 0)), int(entries.get("length", size))
        except ValueError:
            raise DataError(f"{where} have a bad place: {dict(entries)}") from None
        if path not in self._files:
            try:
                with path.open("rb") as file:
                    self._files[path] = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            except (OSError, ValueError) as error:
                raise DataError(f"{where}: {error}") from None
        whole: memoryview = self._files[path]
        if offset < 0 or length < 0 or offset + length > len(whole):
            raise DataError(f"{where} end beyond the file {path.name}: {offset} + {length} of {len(whole)} bytes")
        return whole[offset : offset + length]
