"""Add constants to ONNX models: small ones inline, large ones by reference, those in mapped files by their place there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime

from ... import memory
from ...core.dtypes import ONNX_TYPES, name_of
from ...memory.arrays import lasting
from .inline import INLINE_BYTES
from .options import hand_over

EXTERNAL = 1
"""TensorProto.EXTERNAL: the data of a tensor lie elsewhere."""


def add_constants(
    graph: Any,
    constants: Mapping[str, np.ndarray],
    options: onnxruntime.SessionOptions,
    nodes: Iterable[tuple[str, Sequence[str], Sequence[str]]],
) -> dict[str, Any]:
    """Declare constants as initializers of a graph, and register those passed by reference in a session's options.

    Args:
        graph: a GraphProto, which gets the initializers.
        constants: their arrays, by name.
        options: those of the session that will run the graph.
        nodes: what `readers` gives for the graph.

    Returns:
        The engine's values, by name; the caller must keep them as long as the session.
    """
    by_reference: dict[str, np.ndarray] = {}
    files = memory.mapped_files(constants.values())
    for name, array in constants.items():
        if not is_plain(array):
            from onnx import numpy_helper

            graph.initializer.append(numpy_helper.from_array(array, name))
            continue
        tensor = graph.initializer.add(name=name, dims=array.shape, data_type=ONNX_TYPES[name_of(array.dtype)])
        if array.nbytes <= INLINE_BYTES:
            tensor.raw_data = array.tobytes()
            continue
        tensor.data_location = EXTERNAL
        found = memory.find_in_files(array, files) if array.flags.c_contiguous else None
        if found is None:
            place = {"location": name}
            by_reference[name] = lasting(array)
        else:  # as `Emitter.finish` does it
            place = {"location": found[0][1:], "offset": str(found[1]), "length": str(array.nbytes)}
        for key, text in place.items():
            tensor.external_data.add(key=key, value=text)
    return hand_over(options, by_reference, nodes)


def readers(nodes: Iterable[Any], is_flat: bool = False) -> Iterator[tuple[str, Sequence[str], Sequence[str]]]:
    """NodeProtos and those of their sub-graphs, as `hand_over` wants them; results of sub-graphs are read, too.

    Args:
        nodes: the nodes.
        is_flat: whether it is known that they have no sub-graphs: to look for them takes longer than all else.
    """
    for node in nodes:
        yield node.op_type, node.input[:], node.output[:]
        for inner in () if is_flat else sub_graphs(node):
            yield node.op_type, [output.name for output in inner.output], ()
            yield from readers(inner.node)


def sub_graphs(node: Any) -> list[Any]:
    """The GraphProtos in the attributes of a NodeProto."""
    attributes = node.attribute[:]  # a list: to go through the field itself takes five times as long
    return [graph for a in attributes for graph in (*([a.g] if a.HasField("g") else ()), *a.graphs[:])]


def all_graphs(graph: Any) -> Iterator[Any]:
    """A GraphProto and all graphs inside of it."""
    yield graph
    for node in graph.node:
        for inner in sub_graphs(node):
            yield from all_graphs(inner)


def is_plain(array: np.ndarray) -> bool:
    """Whether NumPy itself knows the data type: bfloat16, float8, int4 and the like come from ml_dtypes."""
    return array.dtype.isbuiltin == 1 and array.dtype.kind in "fiub"
