"""The parts of a model that `quantize` changes: nodes and the bytes of weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import prod

import numpy as np

from ..onnx.model.model import Model
from ..onnx.model.protobuf import (
    PLAIN,
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    array_of,
    copy_of,
    sub_graphs,
    tensor_type,
)
from ..onnx.model.scopes import all_nodes
from ..support.errors import NotSupportedError

MIN_ELEMENTS = 128
"""Smaller weights stay as they are: their scales and names would take more than the weights."""

MAX_SHAPE_ELEMENTS = 1024
"""Constants up to this size may be shapes or axes, whose values the conversion between operator sets needs. An estimate."""

IR_OF_OPSETS = {6: 4, 13: 7, 19: 9, 21: 10}
"""Operator set -> a version of the file format for it, in which initializers need not be inputs."""

CHANGED_SOFTMAX = frozenset({"Hardmax", "LogSoftmax", "Softmax"})
"""Operators that compute something else from operator set 13 on, with the same attributes."""


class GraphContents:
    """A graph of a model, or of a branch or loop, whose nodes and weights may be changed.

    Attributes:
        arrays: the initializers by name, as NumPy arrays.
        stored: the initializers' bytes by name, as in a file; None for a branch or loop, whose tensors hold their data.
        names: the names of all values of the model, from which new names must differ.
    """

    def __init__(self, graph: GraphProto, names: set[str], stored: dict[str, np.ndarray] | None) -> None:
        self.graph, self.names, self.stored = graph, names, stored
        self.arrays: dict[str, np.ndarray] = {}

    def add(self, name: str, array: np.ndarray, element_type: int) -> TensorProto:
        """Add an initializer."""
        if element_type in PLAIN:
            raw = array
        else:
            from onnx import numpy_helper

            raw = np.frombuffer(numpy_helper.from_array(array, name).raw_data, np.uint8)
        self.arrays[name] = array
        return self.add_bytes(name, array.shape, raw, element_type)

    def add_bytes(self, name: str, shape: Iterable[int], raw: np.ndarray, element_type: int) -> TensorProto:
        """Add an initializer by its bytes."""
        tensor: TensorProto = self.graph.initializer.add(name=name, dims=shape, data_type=element_type)
        if self.stored is None:
            tensor.raw_data = raw.tobytes()
        else:
            self.stored[name] = raw
        self.names.add(name)
        return tensor

    def drop(self, name: str) -> None:
        """Remove an initializer."""
        for position, entry in enumerate(self.graph.initializer):
            if entry.name == name:
                del self.graph.initializer[position]
                break
        self.arrays.pop(name, None)
        if self.stored is not None:
            self.stored.pop(name, None)

    def new_name(self, stem: str) -> str:
        """Return a new name in the model, and reserve it."""
        name, number = stem, 1
        while name in self.names:
            name, number = f"{stem}_{number}", number + 1
        self.names.add(name)
        return name

    def insert_first(self, nodes: Iterable[NodeProto]) -> None:
        """Put nodes before all others."""
        self.replace_nodes([*nodes, *(copy_of(node) for node in self.graph.node)])

    def replace_nodes(self, nodes: Iterable[NodeProto]) -> None:
        """Replace all nodes."""
        del self.graph.node[:]
        self.graph.node.extend(nodes)

    def take_constants(self, read: Callable[[TensorProto], np.ndarray] = array_of) -> None:
        """Replace large Constant nodes by initializers; `read` returns the array of a tensor."""
        small = []
        for node in self.graph.node:
            is_tensor = node.op_type == "Constant" and len(node.attribute) == 1 and node.attribute[0].name == "value"
            tensor = node.attribute[0].t if is_tensor else None
            if tensor is None or tensor.data_type == TensorProto.STRING:
                small.append(node)
            elif tensor.data_location == TensorProto.EXTERNAL or prod(tensor.dims) >= MIN_ELEMENTS:
                self.add(node.output[0], read(tensor), tensor.data_type)
            else:
                small.append(node)
        if len(small) < len(self.graph.node):
            self.replace_nodes([copy_of(node) for node in small])


class ModelContents(GraphContents):
    """A copy of a model whose nodes and weights may be changed.

    Attributes:
        proto: the model; of its initializers, only strings hold their data.
        is_external: whether the original has weights in other files.
    """

    stored: dict[str, np.ndarray]

    def __init__(self, model: Model) -> None:
        arrays = dict(model.weights)
        self.is_external = any(map(_is_in_file, model.proto.graph.initializer))
        self.proto = copy_of(model.proto)
        graph = self.proto.graph
        super().__init__(graph, set(model.names), {})
        strings = [copy_of(tensor) for tensor in graph.initializer if tensor.data_type == TensorProto.STRING]
        others = [tensor for tensor in graph.initializer if tensor.data_type != TensorProto.STRING]
        headers = [(tensor.name, tensor.data_type, tensor.doc_string) for tensor in others]
        del graph.initializer[:]
        graph.initializer.extend(strings)
        for name, element_type, text in headers:
            self.add(name, arrays[name], element_type).doc_string = text
        self._drop_declared_weights()
        self.take_constants(model.array)
        for node in graph.node:
            for inner in sub_graphs(node):
                _embed(inner, model)

    def inner_graphs(self) -> Iterator[GraphContents]:
        """Yield the graphs of branches and loops, also nested ones. Their tensors hold their data.

        Replace the nodes of inner graphs before those of the outer graph: replacing copies the inner graphs.
        """
        for outer in all_nodes(self.graph.node):
            for graph in sub_graphs(outer):
                inner = GraphContents(graph, self.names, None)
                dense = [tensor for tensor in graph.initializer if tensor.data_type != TensorProto.STRING]
                inner.arrays = {tensor.name: array_of(tensor) for tensor in dense}
                yield inner

    def _drop_declared_weights(self) -> None:
        """Remove weights from the inputs, if all large weights are inputs: older exporters declared all initializers there.

        A model for adapters declares only the adapters' parameters as inputs, which calls may replace.
        """
        graph = self.proto.graph
        declared = {info.name for info in graph.input}
        large = [name for name, array in self.arrays.items() if array.size >= MIN_ELEMENTS and array.dtype.kind == "f"]
        if self.proto.ir_version < 4 or (large and declared.issuperset(large)):
            required = [copy_of(info) for info in graph.input if info.name not in self.arrays]
            del graph.input[:]
            graph.input.extend(required)
            self.proto.ir_version = max(self.proto.ir_version, 4)

    @property
    def has_halves(self) -> bool:
        """Whether there are float16 constants, in branches and loops, too."""
        nodes = list(all_nodes(self.proto.graph.node))
        graphs = [self.proto.graph, *(graph for node in nodes for graph in sub_graphs(node))]
        tensors = [tensor for graph in graphs for tensor in graph.initializer]
        tensors += [a.t for node in nodes if node.op_type == "Constant" for a in node.attribute if a.name == "value"]
        return any(tensor.data_type == TensorProto.FLOAT16 for tensor in tensors)

    @property
    def opset(self) -> int:
        """The version of ONNX's operator set."""
        return next((entry.version for entry in self.proto.opset_import if entry.domain in ("", "ai.onnx")), 1)

    def raise_opset(self, version: int, why: str) -> None:
        """Convert the model to an operator set of at least `version`, without its large weights.

        Raises:
            NotSupportedError: the `onnx` package cannot convert the model; the message names `why` this is needed.
        """
        current = self.opset
        if current < version:
            self._convert(current, version, why)
        self.proto.ir_version = max(self.proto.ir_version, IR_OF_OPSETS[version])

    def _convert(self, current: int, version: int, why: str) -> None:
        from onnx import version_converter

        graph = self.proto.graph
        inner = {node.op_type for outer in graph.node for sub in sub_graphs(outer) for node in sub.node}
        subject = f"quantize: {why} needs operator set {version}, and the model has {current}"
        if current < 13 and (changed := sorted(inner & CHANGED_SOFTMAX)):
            raise NotSupportedError(f"{subject}; {changed[0]} in a branch or loop cannot be converted")
        skeleton = copy_of(self.proto)
        declared = {info.name for info in skeleton.graph.input}
        del skeleton.graph.initializer[:]
        for tensor in graph.initializer:
            if tensor.name in self.stored and prod(tensor.dims) > MAX_SHAPE_ELEMENTS:
                if tensor.name not in declared:
                    type = tensor_type(tensor.data_type, list(tensor.dims))
                    skeleton.graph.input.append(ValueInfoProto(name=tensor.name, type=type))
                continue
            small = copy_of(tensor)
            if tensor.name in self.stored:
                small.raw_data = self.stored[tensor.name].tobytes()
            skeleton.graph.initializer.append(small)
        skeleton.ir_version = max(skeleton.ir_version, IR_OF_OPSETS[version])
        try:
            converted = version_converter.convert_version(skeleton, version)
        except Exception as error:  # the converter in C++ raises errors of many types
            first = (str(error).splitlines() or [type(error).__name__])[0]
            raise NotSupportedError(f"{subject}, which cannot be converted: {first}") from None
        nodes = [copy_of(node) for node in converted.graph.node]
        del graph.node[:]
        graph.node.extend(nodes)
        for tensor in converted.graph.initializer:
            if tensor.name not in self.stored and tensor.data_type != TensorProto.STRING:
                self.add(tensor.name, array_of(tensor), tensor.data_type)
        for entry in self.proto.opset_import:
            if entry.domain in ("", "ai.onnx"):
                entry.version = version
        for node in nodes:
            self.names.update(node.output)


def integers_of(node: NodeProto, name: str, default: int) -> int:
    """An integer attribute of a node."""
    return next((int(a.i) for a in node.attribute if a.name == name and a.type == AttributeProto.INT), default)


def _is_in_file(tensor: TensorProto) -> bool:
    from ..onnx.model.wire import HERE

    locations = [entry.value for entry in tensor.external_data if entry.key == "location"]
    return tensor.data_location == TensorProto.EXTERNAL and locations != [HERE]


def _embed(graph: GraphProto, model: Model) -> None:
    """Load external weights of branches and loops into the model: the new file may be in another folder."""
    from onnx import numpy_helper

    constants = [a.t for node in graph.node if node.op_type == "Constant" for a in node.attribute if a.name == "value"]
    for tensor in [*graph.initializer, *constants]:
        if tensor.data_location == TensorProto.EXTERNAL:
            tensor.CopyFrom(numpy_helper.from_array(model.array(tensor), tensor.name))
    for node in graph.node:
        for inner in sub_graphs(node):
            _embed(inner, model)


def external_files(proto: ModelProto) -> set[str]:
    """The files with the external weights of a model, relative to its folder."""
    tensors = [tensor for tensor in proto.graph.initializer if _is_in_file(tensor)]
    return {entry.value for tensor in tensors for entry in tensor.external_data if entry.key == "location"}
