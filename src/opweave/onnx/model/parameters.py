"""The weights of a model: tensors, bytes, and a digest of the model without large weights."""

from __future__ import annotations

from contextlib import suppress
from itertools import chain
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from ...support.errors import DataError
from .model import Model
from .protobuf import PLAIN, AttributeProto, GraphProto, TensorProto, stored_bytes, sub_graphs

if TYPE_CHECKING:
    from ...support.digests import blake2b

QUANTISING = frozenset({"QuantizeLinear", "DynamicQuantizeLinear"})
"""Operators that quantise computed values."""

MOST_ELEMENTS = 2**62
"""The largest weight in estimates: the sizes in a damaged model may have a product of more digits than Python prints."""


def parameters(graph: GraphProto) -> list[TensorProto]:
    """The weights of a graph and its sub-graphs: initializers, and tensors of Constant nodes."""
    tensors = list(graph.initializer)
    for node in graph.node:
        if node.op_type == "Constant":
            tensors += [attribute.t for attribute in node.attribute if attribute.type == AttributeProto.TENSOR]
        for inner in sub_graphs(node):
            tensors += parameters(inner)
    return tensors


def weight_bytes(model: Model) -> tuple[int, int]:
    """The bytes of all weights, and of the weights in Constant nodes alone, which tracing copies."""
    sizes = {element_type: np.dtype(name).itemsize for element_type, name in PLAIN.items()}
    graph = model.proto.graph
    inner_graphs = () if model.is_flat else chain.from_iterable(map(sub_graphs, model.nodes))
    tensors = [tensor for inner in (graph, *inner_graphs) for tensor in inner.initializer]
    constants = [
        a.t for node in model.nodes if node.op_type == "Constant" for a in node.attribute[:] if a.HasField("t")
    ]
    first, second = (
        sum(min(prod(tensor.dims[:]), MOST_ELEMENTS) * sizes.get(tensor.data_type, 1) for tensor in group)
        for group in (tensors, constants)
    )
    return first + second, second


def has_roundings(model: Model) -> bool:
    """Whether a model computes in float16 or bfloat16, or quantises computed values."""
    if any(op_type in QUANTISING for _, op_type in model.operators):
        return True
    graph = model.proto.graph
    typed = (*graph.input, *graph.output, *graph.value_info)
    types = {info.type.tensor_type.elem_type for info in typed} | {tensor.data_type for tensor in parameters(graph)}
    types.update(a.i for node in model.nodes if node.op_type == "Cast" for a in node.attribute[:] if a.name == "to")
    return not types.isdisjoint((TensorProto.FLOAT16, TensorProto.BFLOAT16))


def digest_of(model: Model) -> str:
    """A digest of the nodes of a model, and of the names, data types and shapes of its weights.

    The digest includes the values of small constants (up to `digests.SMALL_BYTES`, as for graphs), and the names of the user's
    operations: with other operations, the engines get other nodes.
    """
    from ...support.digests import SMALL_BYTES, digest
    from .contents import LEAST_BYTES

    operations = [
        (key, converter.op.name if converter.op is not None else "")
        for key, converter in sorted(model.operations.items())
    ]
    described = digest(f"{sorted(model.opsets.items())} {operations}".encode())
    graph = model.proto.graph
    arrays = model.small_weights(SMALL_BYTES)
    for tensor in graph.initializer:
        _add(described, tensor, arrays.get(tensor.name))
    for node in graph.node:
        tensors = [(a.name, a.t) for a in node.attribute[:] if a.HasField("t")]
        if all(stored_bytes(tensor) < LEAST_BYTES for _, tensor in tensors):
            described.update(node.SerializeToString(deterministic=True))
            continue
        described.update(f"{node.op_type} {list(node.input)} {list(node.output)}".encode())
        for name, tensor in tensors:
            described.update(name.encode())
            array = None
            if stored_bytes(tensor) <= SMALL_BYTES:
                with suppress(DataError):  # the session refuses the model with this error
                    array = model.array(tensor)
            _add(described, tensor, array)
    return described.hexdigest()


def _add(described: blake2b, tensor: TensorProto, array: np.ndarray | None) -> None:
    """Add a weight to a digest, with its values if they are small. Strings have no comparable bytes."""
    described.update(f"{tensor.name} {tensor.data_type} {tensor.dims[:]}\n".encode())
    if array is not None and array.dtype.kind != "O":
        described.update(array.tobytes())
