"""Write WebNN graphs as ONNX models."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from .. import __version__
from ..backends.onnxruntime import ort
from ..backends.onnxruntime.emit import Emitter
from ..compile.legalise import legalise
from ..errors import InvalidStateError, ValidationError, require
from ..files import atomic_writer, resolved
from ..graph import Graph
from ..run.graph import MLGraph
from .messages import GraphProto, ModelProto, TensorProto

MAX_EMBEDDED_BYTES = 1_500_000_000
"""Weights up to this size are written into the model itself; a protocol buffer can hold at most 2 GB."""

_ALIGNMENT = 4096  # so that every tensor of a data file can be mapped into memory on its own


def save(graph: MLGraph, path: str | Path) -> None:
    """Write a graph as an ONNX model, for any engine that reads ONNX.

    Inputs and outputs keep their names. Weights are written into the file; beyond 1.5 GB they go into a second file beside
    it, whose name ends in `.data`. An existing file is replaced once the new one is complete. If `path` is
    a symbolic link, its target is replaced. A pipe or a device is written directly.

    Args:
        graph: as returned by `MLGraphBuilder.build`.
        path: the file to write.

    Raises:
        ValidationError: an input and an output have the same name, or a name cannot be encoded as UTF-8, as ONNX requires; or
            `path` is not a regular file, and the weights need a second one.
        InvalidStateError: the graph is destroyed.
        DataError: the file cannot be written.
    """
    require(isinstance(graph, MLGraph), f"save takes an MLGraph, got {type(graph).__name__}")
    graph.check_alive()
    if graph._graph is None:
        raise InvalidStateError("the graph is destroyed")
    model, weights = to_onnx(graph._graph)
    size = sum(array.nbytes for array in weights.values())
    (path, mode), given = resolved(path), path  # the data file goes beside the target of a link, not beside the link
    if size > MAX_EMBEDDED_BYTES:
        replaceable = mode is None or stat.S_ISREG(mode)
        message = f"save: {size} bytes of weights need a second file, so the path must be a regular file, got {given}"
        require(replaceable, message)
    with ExitStack() as stack:
        # Files are renamed in reverse order: the data file is in place before the model that refers to it.
        file = stack.enter_context(atomic_writer(given))
        if size > MAX_EMBEDDED_BYTES:
            location = f"{path.name}.data"
            data, end = stack.enter_context(atomic_writer(path.with_name(location))), 0
            for tensor in model.graph.initializer:
                array = weights.get(tensor.name)
                if array is not None:
                    start = -(-end // _ALIGNMENT) * _ALIGNMENT
                    data.write(bytes(start - end))
                    data.write(_bytes(array))
                    end = start + array.nbytes
                    _set_location(tensor, {"location": location, "offset": start, "length": array.nbytes})
        else:
            for tensor in model.graph.initializer:
                if tensor.name in weights:
                    tensor.ClearField("external_data")
                    tensor.ClearField("data_location")
                    tensor.raw_data = bytes(_bytes(weights[tensor.name]))
        file.write(model.SerializeToString())


def to_onnx(graph: Graph) -> tuple[ModelProto, dict[str, np.ndarray]]:
    """The ONNX model of a graph, and by name the arrays of the initializers that are stored outside it."""
    ctx = Emitter(portable=True)
    values, _ = ort.emit(ctx, legalise(graph, ort.is_portable, "ONNX")[0])
    descs = [operand.desc for operand in graph.outputs.values()]
    results = {f"o{k}": pair for k, pair in enumerate(zip(values.values(), descs, strict=True))}
    model = ModelProto.FromString(ctx.finish(results)[0])
    both = graph.inputs.keys() & graph.outputs.keys()
    if both:
        raise ValidationError(f"ONNX needs different names for inputs and outputs, got {min(both)!r} for both")
    for name in (*graph.inputs, *graph.outputs):
        if any("\ud800" <= character <= "\udfff" for character in name):
            raise ValidationError(f"ONNX names must be encodable in UTF-8, got {name!r}")
    model.producer_name, model.producer_version = "opweave", __version__
    # before `_rename`: `ctx.constants` has the emitter's names
    outside = [(t, ctx.constants[t.name]) for t in model.graph.initializer if t.data_location == TensorProto.EXTERNAL]
    inputs = {f"i{k}": name for k, name in enumerate(graph.inputs)}
    _rename(model.graph, inputs | {f"o{k}": name for k, name in enumerate(graph.outputs)})
    used = {node.domain for node in model.graph.node} | {""}
    kept = [entry for entry in model.opset_import if entry.domain in used]
    del model.opset_import[:]
    model.opset_import.extend(kept)
    return model, {tensor.name: array for tensor, array in outside}


def _rename(graph: GraphProto, names: Mapping[str, str]) -> None:
    """Give inputs and outputs their names; rename inner values that would clash with these."""
    inner = {name for node in graph.node for name in node.output} | {tensor.name for tensor in graph.initializer}
    taken, table = set(names.values()), dict(names)
    for name in inner - names.keys():
        fresh = name
        while fresh in taken:
            fresh += "_"  # the emitter's own names never end in an underscore
        table[name] = fresh
    for node in graph.node:
        node.input[:] = [table.get(name, name) for name in node.input]
        node.output[:] = [table.get(name, name) for name in node.output]
    for named in [*graph.initializer, *graph.input, *graph.output]:
        named.name = table.get(named.name, named.name)


def _set_location(tensor: TensorProto, place: Mapping[str, object]) -> None:
    """Set the location of a tensor's data."""
    del tensor.external_data[:]
    for key, value in place.items():
        tensor.external_data.add(key=key, value=str(value))


def _bytes(array: np.ndarray) -> Any:
    """The bytes of an array; copied only if it is not C-contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
