"""Add constants to ONNX models: small ones inline, large ones by reference, mapped ones by file and offset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime

from ... import memory
from ...core.dtypes import ONNX_TYPES, name_of
from ...memory.arrays import constant_array
from .options import hand_over

QUOTIENTS = frozenset({"Div", "Mod"})
"""Operators that `quotients` guards for integers: models without them do without that module."""

MIXTURE = "QMoE"
"""The operator that `rewrites.complete_zero_points` rewrites: models without it do without that module."""

DEQUANTISES = "DequantizeLinear"
CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
READS_NARROW = frozenset({"Gather", "Gemm", "MatMul"}) | CONVOLUTIONS
"""Operators of models that `narrow_models` rewrites: models without them do without that module."""

EXTERNAL = 1
"""TensorProto.EXTERNAL: the data of the tensor are outside of the model."""


def add_constants(
    graph: Any,
    constants: Mapping[str, np.ndarray],
    options: onnxruntime.SessionOptions,
    nodes: Iterable[tuple[str, Sequence[str], Sequence[str]]],
) -> dict[str, Any]:
    """Declare constants as initializers of a GraphProto, and register the large ones in `options`; `nodes` as from `readers`.

    The caller must keep the returned values of the engine as long as the session.
    """
    if not constants:
        return {}
    from .records import INLINE_BYTES, external_data

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
        place = external_data(name, array, files)
        if "offset" not in place:
            by_reference[name] = constant_array(array)
        for key, text in place.items():
            tensor.external_data.add(key=key, value=text)
    return hand_over(options, by_reference, nodes)


def readers(nodes: Iterable[Any], is_flat: bool = False) -> Iterator[tuple[str, Sequence[str], Sequence[str]]]:
    """Yield (operator, inputs, outputs) of NodeProtos and of the nodes in their sub-graphs, for `hand_over`.

    A sub-graph's outputs count as inputs of the node that contains it. `is_flat` says that there are no sub-graphs: the search
    takes most of the time.
    """
    for node in nodes:
        yield node.op_type, node.input[:], node.output[:]
        for inner in () if is_flat else sub_graphs(node):
            yield node.op_type, [output.name for output in inner.output], ()
            yield from readers(inner.node)


def sub_graphs(node: Any) -> list[Any]:
    attributes = node.attribute[:]  # iterating over a list takes a fifth of the time
    return [graph for a in attributes for graph in (*([a.g] if a.HasField("g") else ()), *a.graphs[:])]


def all_graphs(graph: Any) -> Iterator[Any]:
    yield graph
    for node in graph.node:
        for inner in sub_graphs(node):
            yield from all_graphs(inner)


def is_plain(array: np.ndarray) -> bool:
    """Whether the data type is NumPy's own, unlike bfloat16, float8 and int4, which come from ml_dtypes."""
    return array.dtype.isbuiltin == 1 and array.dtype.kind in "fiub"
