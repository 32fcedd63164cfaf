"""ONNX models as files or bytes: reading, checking, and weights by reference."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from ... import memory
from ...memory.arrays import is_mapped_or_bytes, owner_of
from ...support.errors import DataError, NotSupportedError, require
from ...support.names import short_repr
from ...support.records import field, record
from .booleans import check_bool
from .checks import (
    MAX_RANK,
    check_node,
    check_node_count,
    count_nodes,
    needs_inputs,
    needs_values,
    title_of,
    with_expected_names,
)
from .contents import LARGE_BYTES, Contents
from .limits import DEFAULT, ModelLimits
from .protobuf import (
    KNOWN_TYPES,
    PLAIN,
    GraphProto,
    ModelProto,
    NodeProto,
    SparseTensorProto,
    TensorProto,
    ValueInfoProto,
    array_of,
    attribute_value,
    sub_graphs,
)
from .scopes import flatten, initializer_names
from .tables import REGISTERED, Key, key_of
from .utf8 import is_text, other_format, with_text

if TYPE_CHECKING:
    from pathlib import Path

    from .registry import Converter

KNOWN_OPSET = 21
"""The newest operator set that every `onnx` package with support for NumPy 2 has."""

SMALL_BYTES = 4096
"""Weights up to this size are copied from mapped files: a read also maps many neighbouring pages, and they stay resident."""


@record(frozen=False, slots=False)
class Model:
    """An ONNX model whose external data stay in their files.

    Attributes:
        opsets: the version of each operator set, by domain ("" for ONNX's own).
        names: the names of all values, including values of sub-graphs.
        operations: the converters of the user's operations for its nodes, as registered when the model was read.
        surprising: the names of values whose shapes differ from ONNX's inference.
    """

    proto: ModelProto
    folder: str | None = None
    opsets: dict[str, int] = field(default_factory=dict)
    limits: ModelLimits = DEFAULT
    names: set[str] = field(default_factory=set, repr=False)
    operations: dict[Key, Converter] = field(default_factory=dict, repr=False)
    surprising: set[str] = field(default_factory=set, repr=False)
    _owned: bool = field(default=False, repr=False)  # whether the caller has no reference to the proto
    _weights: list[tuple[str, np.ndarray]] | None = field(default=None, repr=False)
    _lock: Lock = field(default_factory=Lock, repr=False)  # held while the weights are read
    _serialised: Contents | None = field(default=None, repr=False)  # the serialised model, which holds weights
    _files: dict[Path, Contents] = field(default_factory=dict, repr=False)
    # The files of `_files`, by their location in tensors.
    _locations: dict[str, Contents] = field(default_factory=dict, repr=False)
    _streams: dict[str, int] = field(default_factory=dict, repr=False)  # of random keys, by the name of a node's output
    _dense_bytes: int = 0  # the size of the sparse initializers so far
    # The arrays of Constant nodes that graphs still have, by the name of the output.
    _constants: WeakValueDictionary[str, np.ndarray] = field(default_factory=WeakValueDictionary, repr=False)

    @classmethod
    def load(cls, source: Any, limits: ModelLimits = DEFAULT) -> Model:
        """Read a model from a path or bytes, or take an `onnx.ModelProto`; `DataError` if it is invalid or exceeds a limit."""
        require(
            isinstance(limits, ModelLimits), f"limits must be an opweave.onnx.ModelLimits, got {type(limits).__name__}"
        )
        if isinstance(source, ModelProto):
            proto, folder, subject, contents, is_utf8 = source, None, "the model", None, False
        else:
            folder, subject, contents = _open(source)
            proto, is_utf8 = _parse(contents, subject)
            contents.forget()
        if not proto.graph.node and not proto.graph.output:
            raise DataError(f"{subject}: not an ONNX model (there is no graph in it)")
        if not is_utf8:
            proto = with_text(proto, subject, is_owned=proto is not source)
        nodes, is_flat = flatten(proto.graph)
        check_node_count(count_nodes(nodes, proto.functions), limits, subject)
        if proto.functions:
            from .functions import inline_functions

            try:
                proto = inline_functions(proto, limits, subject, is_owned=proto is not source)
            except DataError:
                raise
            except Exception as error:  # the C++ inliner raises errors of many types
                raise DataError(f"{subject}: its functions cannot be inlined ({_first_line(error)})") from None
            nodes, is_flat = flatten(proto.graph)
        proto, nodes = with_expected_names(proto, nodes)
        opsets = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in proto.opset_import}
        model = cls(proto, folder, opsets, limits, _owned=proto is not source, _serialised=contents)
        model.nodes, model.is_flat = nodes, is_flat
        model.check()
        if REGISTERED:
            model.operations = {key: converter for key, converter in dict(REGISTERED).items() if key in model.operators}
        return model

    @cached_property
    def nodes(self) -> list[NodeProto]:
        """All nodes, including nodes of sub-graphs."""
        return flatten(self.proto.graph)[0]

    @cached_property
    def is_flat(self) -> bool:
        """Whether no node has a sub-graph. Looking for sub-graphs takes longer than most other work on a node."""
        return flatten(self.proto.graph)[1]

    @cached_property
    def operators(self) -> frozenset[Key]:
        """The operators of all nodes; there are few."""
        return frozenset(map(key_of, self.nodes))

    @property
    def may_lack_operators(self) -> bool:
        """Whether an operator may be unknown. ONNX's own are known, unless the user's operations replace or precede them."""
        return bool(REGISTERED) or any(domain for domain, _ in self.operators)

    @property
    def updating(self) -> dict[Key, Converter]:
        """The converters of operators that may update an input. No operator of ONNX itself does."""
        keys = [key for key in self.operators if key[0] or key in self.operations]
        if not keys:
            return {}
        from ..convert.operators import CONVERTERS

        converters = {key: self.operations.get(key) or CONVERTERS.get(key) for key in keys}
        return {key: converter for key, converter in converters.items() if converter is not None and converter.updates}

    def converter(self, node: NodeProto) -> Converter | None:
        """The converter of a node: the user's operation, else Opweave's own; None if there is neither."""
        from ..convert.operators import CONVERTERS

        key = key_of(node)
        return self.operations.get(key) or CONVERTERS.get(key)

    def unknown_operators(self) -> frozenset[Key]:
        """The operators without a converter."""
        from ..convert.operators import CONVERTERS

        return self.operators - self.operations.keys() - CONVERTERS.keys()

    def operation(self, node: NodeProto) -> Converter | None:
        """The converter of the user's operation for a node."""
        return self.operations.get(key_of(node)) if self.operations else None

    def stream_of(self, output: str, seed: int | None) -> int:
        """Return the number of the stream of random keys for the node with this output. All shapes of a session share it."""
        from ...composites.random import new_stream

        with self._lock:
            if output not in self._streams:
                self._streams[output] = new_stream(seed)
            return self._streams[output]

    def without_overrides(self) -> Model:
        """A copy for tracing ONNX's definitions, in which the user's operations replace no operator of the engine."""
        if not self.operations:
            return self
        derived = copy(self)
        derived.operations = {key: converter for key, converter in self.operations.items() if not converter.falls_back}
        return derived

    @property
    def required_inputs(self) -> list[ValueInfoProto]:
        """The declared inputs without an initializer."""
        initialised = set(initializer_names(self.proto.graph))
        return [info for info in self.proto.graph.input if info.name not in initialised]

    @property
    def weights(self) -> list[tuple[str, np.ndarray]]:
        """The names and arrays of the main graph's initializers, read once, and shared by all compiled graphs."""
        with self._lock:
            if self._weights is None:
                self._weights = self._read_weights()
            else:
                for contents in self._contents():
                    contents.check_unchanged()
            return self._weights

    def _read_weights(self) -> list[tuple[str, np.ndarray]]:
        graph = self.proto.graph
        weights = []
        for tensor in graph.initializer:
            weights.append((tensor.name, self.array(tensor)))
            if self._owned:
                tensor.ClearField("raw_data")  # the array keeps the bytes
        for contents in self._contents():
            contents.forget()
        if self._serialised is not None and not self._serialised.is_fixed:
            self._serialised = None  # all weights were copied
        before = self._dense_bytes
        try:
            return weights + [(sparse.values.name, self.dense(sparse)) for sparse in graph.sparse_initializer]
        except DataError:
            self._dense_bytes = before  # weights that were not kept do not count at the next attempt
            raise

    def small_weights(self, max_bytes: int) -> dict[str, np.ndarray]:
        """The readable initializers of at most `max_bytes`, by name. They are neither kept nor counted against limits."""
        with self._lock:
            arrays = dict(self._weights or ())
        for tensor in self.proto.graph.initializer:
            if self._weights is None and math.prod(tensor.dims[:]) <= max_bytes:
                with suppress(DataError):
                    arrays[tensor.name] = self.array(tensor)
        names = {tensor.name for tensor in self.proto.graph.initializer}
        return {name: array for name, array in arrays.items() if name in names and array.nbytes <= max_bytes}

    def _contents(self) -> list[Contents]:
        return [*self._files.values(), *([self._serialised] if self._serialised is not None else [])]

    def check(self) -> None:
        """Check what tracing relies on: known operator sets, and named values that are defined once, before their use."""
        if not self.opsets:
            raise DataError("the model does not say which operator sets it uses (opset_import)")
        for domain, version in self.opsets.items():
            if domain and not 0 < version < 2**31:
                raise NotSupportedError(
                    f"operator set {domain[:200]!r}: the version must be in [1, {2**31 - 1}], got {version}"
                )
        if not 1 <= (opset := self.opsets.get("", 1)) <= KNOWN_OPSET:
            from onnx import defs

            newest = defs.onnx_opset_version()
            if not 1 <= opset <= newest:
                raise NotSupportedError(f"the version of ONNX's operator set must be in [1, {newest}], got {opset}")
        graph = self.proto.graph
        for subject, values in (("input", graph.input), ("output", graph.output)):
            for value in values:
                _check_value(value, subject)
        names = [value.name for value in graph.input]
        if len(set(names)) < len(names):
            raise DataError(f"inputs must have different names, got {sorted(names)}")
        if not graph.output:
            raise DataError("the model has no outputs")
        shapes = {tensor.name: tuple(tensor.dims[:]) for tensor in graph.initializer}
        for value in (*graph.input, *graph.value_info):
            if value.type.HasField("tensor_type"):
                dims = value.type.tensor_type.shape.dim
                if dims and all(dim.HasField("dim_value") for dim in dims):
                    shapes.setdefault(value.name, tuple(dim.dim_value for dim in dims))
        with suppress(DataError):
            self._check_nodes(graph, set(), "", shapes, {})
            return
        from .order import with_sorted_nodes

        self.proto, self._owned = with_sorted_nodes(self.proto), True  # not beforehand: nearly all models are in order
        del self.nodes
        self._check_nodes(self.proto.graph, set(), "", shapes, {})

    def _check_nodes(
        self,
        graph: GraphProto,
        outer: set[str],
        where: str,
        shapes: Mapping[str, tuple[int, ...]],
        constants: Mapping[str, TensorProto | NodeProto],
    ) -> None:
        """Check the nodes of a graph and of its sub-graphs.

        `outer` are the names that enclosing graphs define; `where` is the place of the graph, as the end of a title, "" for
        the model.
        """
        constants = {**constants, **{initializer.name: initializer for initializer in graph.initializer}}
        initialised = initializer_names(graph)
        if "" in initialised or len(set(initialised)) < len(initialised):
            names = sorted({name for name, count in Counter(initialised).items() if count > 1 or not name})
            raise DataError(f"initializers{where} need names of their own; without or used twice: {names}")
        defined = outer | {i.name for i in graph.input} | set(initialised)
        own = defined - outer
        for node in graph.node:
            if not node.op_type:
                raise DataError(f"each node must have an operator (op_type), got none for {node.name!r}{where}")
            inputs = node.input[:]
            for name in inputs:
                if name and name not in defined:
                    is_later = any(name in other.output for other in graph.node)
                    why = "which is made only after it" if is_later else "which nothing makes"
                    raise DataError(f"{title_of(node, where)} uses {name!r}, {why}")
            input_shapes = [shapes.get(name) for name in inputs] if shapes and needs_inputs(node) else ()
            # Tracing has the constants of the main graph; only constants of sub-graphs are read here.
            values = [self._value_of(constants.get(name)) for name in inputs] if where and needs_values(node) else ()
            check_node(node, where, input_shapes, values)
            if node.op_type == "Constant" and len(node.attribute) == len(node.output) == 1:
                constants[node.output[0]] = node
            for inner in () if self.is_flat else sub_graphs(node):
                self._check_nodes(inner, defined, f" inside of {title_of(node, where)[:500]}", {}, constants)
            for name in filter(None, node.output[:]):
                if name in own:
                    raise DataError(f"{title_of(node, where)} makes {name!r}, which exists already")
                defined.add(name)
                own.add(name)
        self.names |= own
        for value in graph.output:
            if value.name not in defined:
                raise DataError(f"nothing makes the output {value.name!r}{where}")

    def _value_of(self, source: TensorProto | NodeProto | None) -> np.ndarray | None:
        return self.constant(source) if isinstance(source, NodeProto) else source and self.array(source)

    def constant(self, node: NodeProto) -> np.ndarray | None:
        """The value of a Constant node; None if it holds strings or a sparse tensor."""
        if len(node.attribute) != 1:
            raise DataError(f"{title_of(node)} must have one attribute, got {len(node.attribute)}")
        (attribute,) = node.attribute
        match attribute.name:
            case "value":
                return self._share_constant(node.output[0], self.array(attribute.t))
            case "value_float" | "value_floats":
                return np.array(attribute_value(attribute), np.float32)
            case "value_int" | "value_ints":
                return np.array(attribute_value(attribute), np.int64)
        return None

    def _share_constant(self, name: str, array: np.ndarray) -> np.ndarray:
        """An equal array that a compiled graph has for a Constant node; `array` if there is none.

        Devices upload memory once. Nodes of several sub-graphs may have the same name.
        """
        owner = self._constants.get(name)
        if owner is not None and owner.dtype == array.dtype and owner.size == array.size and not owner.dtype.hasobject:
            shared = owner.reshape(array.shape)
            if shared.tobytes() == array.tobytes():
                return shared
        self._constants[name] = owner_of(array)
        return array

    def array(self, tensor: TensorProto) -> np.ndarray:
        """The array of an initializer; a view if its bytes are raw."""
        shape, name = tuple(tensor.dims[:]), PLAIN.get(tensor.data_type)
        subject = f"the tensor {tensor.name!r}"
        if name is None and tensor.data_type not in KNOWN_TYPES:
            raise DataError(f"{subject} must have a data type of ONNX, got {tensor.data_type}")
        elements = _element_count(shape, subject)
        external = tensor.data_location == TensorProto.EXTERNAL
        if name is None or not (external or tensor.HasField("raw_data")):
            return self._unpack(tensor, elements, subject)
        dtype = np.dtype(name)
        size = elements * dtype.itemsize
        data: Any = self._external(tensor, size) if external else tensor.raw_data
        if len(data) != size:
            raise DataError(f"{subject} must have {size} bytes for {name}{list(shape)}, got {len(data)}")
        array = np.frombuffer(data, dtype).reshape(shape)
        if external and not is_mapped_or_bytes(data.obj):  # the user may change the bytes
            own = np.empty(shape, dtype)
            memory.copy(own, array, "weights of a model in a bytearray")
            array = own
        if name == "bool":
            check_bool(array, subject, DataError)
        return array

    def _unpack(self, tensor: TensorProto, elements: int, subject: str) -> np.ndarray:
        """The array of a tensor with typed fields, or of an element type that NumPy lacks."""
        if tensor.data_location == TensorProto.EXTERNAL:
            data = self._external(tensor, None)
            raw = TensorProto(dims=tensor.dims, data_type=tensor.data_type, name=tensor.name, raw_data=bytes(data))
            tensor = raw
        try:
            array = array_of(tensor)
        except Exception as error:  # data that do not fit the shape raise errors of many types
            raise DataError(f"{subject} cannot be read: {_first_line(error)}") from None
        if array.size != elements or array.shape != tuple(tensor.dims):
            raise DataError(f"{subject} must have {elements} elements for {list(tensor.dims)}, got {array.size}")
        return array

    def dense(self, sparse: SparseTensorProto) -> np.ndarray:
        """The array of a sparse initializer."""
        subject = f"the sparse tensor {sparse.values.name!r}"
        shape = tuple(sparse.dims)
        values, indices = self.array(sparse.values), self.array(sparse.indices)
        elements = _element_count(shape, subject)
        fits = values.ndim == 1 and indices.shape in ((values.size,), (values.size, len(shape)))
        if not fits or indices.dtype != np.int64:
            raise DataError(f"{subject}: {values.shape} values and {indices.shape} indices do not fit {list(shape)}")
        self._dense_bytes += elements * values.itemsize
        self.limits.check(
            "dense_bytes", self._dense_bytes, f"{subject} has the shape {list(shape)}; bytes of such tensors"
        )
        try:
            positions = indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), shape)
            array = np.zeros(elements, values.dtype)
            array[positions] = values
        except (IndexError, ValueError) as error:
            raise DataError(f"{subject}: {error}") from None
        return array.reshape(shape)

    def _external(self, tensor: TensorProto, size: int | None) -> memoryview:
        from .wire import HERE

        entries: Mapping[str, str] = {entry.key: entry.value for entry in tensor.external_data[:]}
        where = f"the data of {tensor.name!r}"
        location = entries.get("location", "")
        try:
            offset = int(entries.get("offset", 0))
            length = int(entries["length"]) if "length" in entries else size
        except ValueError:
            raise DataError(f"{where}: offset and length must be integers, got {dict(entries)}") from None
        contents = (
            self._serialised if location == HERE and self._serialised is not None else self._file(location, where)
        )
        whole = contents.data
        length = len(whole) - offset if length is None else length
        if offset < 0 or length < 0 or offset + length > len(whole):
            name = "of the model" if contents.path is None else os.path.basename(contents.path)
            raise DataError(f"{where} end beyond the file {name}: {offset} + {length} of {len(whole)} bytes")
        data = whole[offset : offset + length]
        return memoryview(bytes(data)) if contents.path is not None and length <= SMALL_BYTES else data

    def _file(self, location: str, where: str) -> Contents:
        """Map a file in the model's folder, once."""
        if location in self._locations:
            return self._locations[location]
        if self.folder is None:
            raise DataError(f"{where} are in a file, and a model of bytes has no folder to look in")
        # Imported here: this takes as long as all other file access of small models.
        from pathlib import Path

        try:
            path = Path(self.folder, location).resolve()
        except (OSError, ValueError, RuntimeError) as error:
            raise DataError(f"{where}: {error}") from None
        if not path.is_relative_to(self.folder):
            raise DataError(f"{where} are outside of the model's folder: {location!r}")
        if path not in self._files:
            try:
                self._files[path] = Contents.map(path)
            except (OSError, ValueError) as error:  # an empty file cannot be mapped
                raise DataError(f"{where}: {path.name}: {getattr(error, 'strerror', None) or error}") from None
        self._locations[location] = self._files[path]
        return self._files[path]


def _open(source: Any) -> tuple[str | None, str, Contents]:
    """The folder of a model, its name in messages, and its bytes."""
    folder, subject = None, "the model"
    if isinstance(source, (str, os.PathLike)):
        subject = os.fsdecode(source)
        try:
            folder, contents = os.path.dirname(os.path.realpath(subject)), Contents.read(subject)
        except (OSError, ValueError) as error:
            raise DataError(f"{subject}: {getattr(error, 'strerror', None) or error}") from None
    elif isinstance(source, (bytes, bytearray, memoryview)):
        contents = Contents(memoryview(source).cast("B"))
    else:
        raise DataError(f"a model must be a path, bytes or an onnx.ModelProto, got {type(source).__name__}")
    if not contents.data:
        raise DataError(f"{subject}: it is empty")
    return folder, subject, contents


def _parse(contents: Contents, subject: str) -> tuple[ModelProto, bool]:
    """Parse a model without the weights of a large one, and return whether all text is UTF-8."""
    data = contents.data
    try:
        lean = None
        if len(data) >= LARGE_BYTES:
            from .wire import without_weights

            lean = without_weights(data, nodes=contents.is_fixed)
        serialised = lean or bytes(data)
        proto = ModelProto.FromString(serialised)
        return proto, is_text(proto, serialised)
    except Exception as error:
        raise DataError(f"{subject}: not an ONNX model ({other_format(data) or error})") from None


def _check_value(value: ValueInfoProto, subject: str) -> None:
    """Require a name and a data type of an input or output; outputs may be declared without a type."""
    if not value.name:
        raise DataError(f"an {subject} of the model has no name")
    kind = value.type.WhichOneof("value")
    element_type = value.type.tensor_type.elem_type
    is_known = element_type == TensorProto.UNDEFINED or element_type in KNOWN_TYPES
    if (kind == "tensor_type" and not is_known) or (kind is None and subject == "input"):
        got = f"the element type {element_type}" if kind == "tensor_type" else "none"
        raise DataError(f"the {subject} {value.name!r} must have a data type of ONNX, got {got}")


def _element_count(shape: Sequence[int], subject: str) -> int:
    count = -1 if len(shape) > MAX_RANK or min(shape, default=0) < 0 else math.prod(shape)
    if not 0 <= count < 2**63:
        rule = f"must have at most {MAX_RANK} axes of 0 or more, and fewer than 2**63 elements"
        raise DataError(f"{subject} {rule}, got the shape {short_repr(list(shape))}")
    return count


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
