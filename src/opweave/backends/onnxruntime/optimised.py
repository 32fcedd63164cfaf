"""Optimised graphs of ONNX Runtime in saved graphs.

While the engine makes a session, it folds constants and reorders the weights of convolutions. The engine can write the
optimised graph, and makes a session of this graph in less time (ResNet-50: an eighth). Weights that the engine leaves as they
are come from the constants of the saved graph. Other weights are tensors of the file.

The key of an optimised graph covers all that the graph is made from: the model with its small constants, options, the
processor, versions, and checksums of the large constants that the engine replaced.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnxruntime

from ... import __version__
from ...core.dtypes import INFO, ONNX_TYPES, numpy_type
from ...core.graph import Desc, Graph, Operand
from ...core.size_values import values_at
from ...core.sizes import is_static
from ...memory.host import allocate
from ...support import disk_cache
from ...support.digests import digest
from ...support.errors import OperationError
from ...support.processors import processors
from ...support.varint import read_varint
from .. import Runner
from ..exports import OPTIMISED, REPLACED, RUNS, Exported, checksum, machine, pack, random_inputs, unpack
from . import devices
from .native import ENGINE_ERRORS, NativeSession
from .options import FOLDED_BYTES, hand_over
from .protobuf import Change, fields, replace_fields
from .records import EMPTY_FILE, INLINE_BYTES_OF_RULES, external_fields, field

if TYPE_CHECKING:
    from onnxruntime import SessionOptions

    from .. import Precision
    from .emit import EmittedGraph, Emitter

GRAPH, WEIGHTS = "graph.onnx", "weights"
"""Names of the files that the engine writes."""

MIN_WEIGHT_BYTES = 4096
"""Size from which weights are outside of the optimised graph. A tensor of a file takes 200 bytes of header and padding."""

FAILURES: tuple[type[Exception], ...] = (*ENGINE_ERRORS, OSError, OperationError)
"""Errors of the engine, of a full disk, and of a run that the engine refuses."""

_MODEL_GRAPH, _GRAPH_NODE, _GRAPH_INITIALIZER = 7, 1, 5
_NODE_INPUT, _NODE_ATTRIBUTE, _ATTRIBUTE_GRAPHS = 1, 5, (6, 11)
_DIMS, _DATA_TYPE, _NAME, _RAW_DATA, _EXTERNAL_DATA, _DATA_LOCATION = 1, 2, 8, 9, 13, 14

_TYPE_NAMES = {number: name for name, number in ONNX_TYPES.items()}


class Optimised(NamedTuple):
    """An optimised graph of a file: the model, and its weights by name."""

    model: bytes
    weights: dict[str, np.ndarray]


def find(key: str, constants: Mapping[str, np.ndarray]) -> tuple[str, Optimised | None]:
    """The key of an optimised graph with checksums of constants, and the graph, if a file has it."""
    names = disk_cache.load(key, REPLACED)
    if names is None:
        return key, None
    key = _with_checksums(key, {name: constants[name] for name in json.loads(names)})
    data = disk_cache.load(key, OPTIMISED)
    if data is None:
        return key, None
    header, model = unpack(data)
    weights: dict[str, np.ndarray] = {}
    for name, entry in header["weights"].items():
        if entry is None:
            weights[name] = constants[name]
            continue
        data_type, shape, tensor = entry
        content = disk_cache.tensor(tensor)
        if content is None:
            return key, None
        weights[name] = content.view(numpy_type(data_type)).reshape(shape)
    return key, Optimised(bytes(model), weights)


def key_of(ctx: Emitter, options: SessionOptions, precision: Precision) -> str:
    """The key of an emitted model, without the contents of its large constants."""
    # Of `SessionOptions`, only the number of threads can be read here; other settings that change the graph are listed.
    words = (
        ctx.structure, sorted(ctx.disabled_optimizers), precision, options.intra_op_num_threads or processors(),
        FOLDED_BYTES, machine(), __version__, devices.version(), _build(),
    )  # fmt: skip
    return digest(repr(words).encode()).hexdigest()


def _with_checksums(key: str, constants: Mapping[str, np.ndarray]) -> str:
    checksums = [(name, checksum(array)) for name, array in constants.items()]
    return digest(f"{key} {checksums}".encode()).hexdigest()


def _bytes_of(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


@cache
def _build() -> str:
    return str(onnxruntime.get_build_info())


def load(graph: Optimised, options: SessionOptions) -> tuple[NativeSession, dict[str, Any]]:
    """Make a session of an optimised graph; also return values to keep alive as long as the session."""
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    # No pass reads the weights: kernels get them in place.
    values = hand_over(options, graph.weights, (), graph.weights if os.name == "posix" else ())
    return NativeSession(graph.model, options, providers=["CPUExecutionProvider"]), values


def export(
    graph: Graph,
    emit: Callable[[], EmittedGraph],
    new_options: Callable[[], SessionOptions],
    precision: Precision,
    sizes: Mapping[str, int],
    session: Runner,
    on: Callable[[NativeSession, Mapping[str, np.ndarray], Mapping[str, Any]], Runner],
) -> Exported:
    """The optimised graph of a session.

    Args:
        graph: the graph of the session.
        emit: emits it once more.
        new_options: makes the options of the session.
        precision: the precision of the session.
        sizes: numbers for names in shapes, for the comparison of the results.
        session: the session.
        on: makes a runner like `session` from another session of the engine, its weights, and values to keep alive.
    """
    ctx, emitted, _ = emit()
    proto, weights = ctx.finish(emitted)
    try:
        written = _write(proto, weights, new_options(), sorted(ctx.disabled_optimizers))
        stored, header, replaced = _divide(written, proto, ctx)
        native, values = load(stored, new_options())
        if not _gives_the_same(session, on(native, stored.weights, values), graph, sizes):
            return Exported(reason="ONNX Runtime computes other results from its optimised graph")
    except FAILURES as error:
        return Exported(reason=f"ONNX Runtime does not export its optimised graph: {error}")
    except NotExportableError as error:
        return Exported(reason=f"ONNX Runtime's optimised graph has {error}")
    key = key_of(ctx, new_options(), precision)
    full_key = _with_checksums(key, {name: ctx.constants[name] for name in replaced})
    return Exported(
        {
            (key, REPLACED): json.dumps(replaced).encode(),
            (full_key, OPTIMISED): pack({"weights": header}, stored.model),
        },
        {entry[2]: stored.weights[name] for name, entry in header.items() if entry is not None},
    )


def _gives_the_same(one: Runner, other: Runner, graph: Graph, sizes: Mapping[str, int]) -> bool:
    """Whether two sessions of a graph compute the same bits, in each of several runs."""

    def types(operands: Iterable[Operand]) -> list[tuple[np.dtype[Any], tuple[int, ...]]]:
        return [(numpy_type(operand.data_type), values_at(operand.shape, sizes)) for operand in operands]

    inputs, outputs = types(graph.inputs.values()), types(graph.outputs.values())
    if not all(is_static(shape) for _, shape in (*inputs, *outputs)):
        raise NotExportableError("shapes that only a run decides")
    sessions = [session.at(sizes) for session in (one, other)]
    for run in range(RUNS):
        feed = random_inputs(inputs, run)
        results = []
        for session in sessions:
            arrays = [np.zeros(shape, data_type) for data_type, shape in outputs]
            session.run([array.copy() for array in feed], arrays)  # some kernels update inputs
            results.append([array.tobytes() for array in arrays])
        if results[0] != results[1]:
            return False
    return True


class NotExportableError(Exception):
    """An optimised graph has something that files cannot hold."""


class _WrittenGraph(NamedTuple):
    """The files that the engine writes: a serialised model, and the weights outside of it."""

    model: bytes
    weights: bytes


def _write(
    proto: bytes, weights: Mapping[str, np.ndarray], options: SessionOptions, disabled: Sequence[str]
) -> _WrittenGraph:
    from tempfile import TemporaryDirectory  # loads many modules; most processes only load files

    with TemporaryDirectory(prefix="opweave-") as folder:
        options.optimized_model_filepath = os.path.join(folder, GRAPH)
        for key, value in (("file_name", WEIGHTS), ("min_size_in_bytes", str(MIN_WEIGHT_BYTES))):
            options.add_session_config_entry(f"session.optimized_model_external_initializers_{key}", value)
        values = hand_over(options, weights, None)
        NativeSession(proto, options, providers=["CPUExecutionProvider"], disabled_optimizers=disabled)
        del values
        place = Path(folder, WEIGHTS)
        return _WrittenGraph(Path(folder, GRAPH).read_bytes(), place.read_bytes() if place.exists() else b"")


def _divide(written: _WrittenGraph, proto: bytes, ctx: Emitter) -> tuple[Optimised, dict[str, Any], list[str]]:
    """Divide the weights of an optimised graph into constants and others.

    Returns:
        the graph; for each weight None if it is a constant, or data type, shape and name of its tensor; and the names of the
        large constants that the engine replaced.
    """
    weights: dict[str, np.ndarray] = {}
    header: dict[str, Any] = {}

    def change(data: memoryview, start: int, end: int) -> bytes | None:
        tensor = _external_tensor(data, start, end)
        if tensor is None:
            return None
        if not tensor.is_mapped:
            return tensor.declaration + field(_RAW_DATA, tensor.data(written.weights))
        constant, content = ctx.constants.get(tensor.name), tensor.array(written.weights)
        if constant is not None and _is_same(constant, content):
            weights[tensor.name], header[tensor.name] = constant, None
        else:
            weights[tensor.name] = content
            # Parts for several sizes share tensors with equal contents.
            name = digest(f"{tensor.data_type} {tensor.shape}".encode() + content.tobytes()).hexdigest()
            header[tensor.name] = tensor.data_type, tensor.shape, name
        place = EMPTY_FILE[1:] if os.name == "posix" else tensor.name
        return tensor.declaration + external_fields({"location": place})

    data = memoryview(written.model)
    model = replace_fields(data, 0, len(data), {_MODEL_GRAPH: partial(_replace_initializers, change)})
    before, after = _readers(memoryview(proto)), _readers(data)
    # A constant with fewer readers may have been folded into some of them: the optimised graph depends on its value.
    same = {name for name, entry in header.items() if entry is None and before[name] == after[name]}
    return Optimised(model or written.model, weights), header, [name for name in ctx.external if name not in same]


def _replace_initializers(change: Change, data: memoryview, start: int, end: int) -> bytes | None:
    return replace_fields(data, start, end, {_GRAPH_INITIALIZER: change})


def _is_same(one: np.ndarray, other: np.ndarray) -> bool:
    is_alike = (one.dtype, one.shape) == (other.dtype, other.shape)
    return is_alike and np.array_equal(_bytes_of(one), _bytes_of(other))


class _ExternalTensor(NamedTuple):
    """A tensor whose data are in the file of weights; `declaration` are its other fields."""

    name: str
    data_type: str
    shape: tuple[int, ...]
    offset: int
    length: int
    declaration: bytes

    @property
    def is_mapped(self) -> bool:
        """Whether files map the tensor. Others are part of the model: shape inference reads sizes, and elements are packed."""
        info = INFO.get(self.data_type)
        if info is None or info.bits < 8:
            return False
        return info.kind == "f" or info.bits == 8 or self.length > INLINE_BYTES_OF_RULES

    def data(self, weights: bytes) -> bytes:
        return weights[self.offset : self.offset + self.length]

    def array(self, weights: bytes) -> np.ndarray:
        """The array of the tensor, aligned as sections of files are."""
        array = allocate(Desc(INFO[self.data_type].name, self.shape))
        flat = array.reshape(-1).view(np.uint8)
        flat[:] = np.frombuffer(weights, np.uint8, len(flat), self.offset)
        return array


def _external_tensor(data: memoryview, start: int, end: int) -> _ExternalTensor | None:
    """The TensorProto between two positions; None if its data are part of the model."""
    name, number, shape, entries, kept = "", 0, [], {}, []
    for item, first, value, last in fields(data, start, end):
        if item == _EXTERNAL_DATA:
            key, text = (bytes(data[at:stop]).decode() for _, _, at, stop in fields(data, value, last))
            entries[key] = text
        elif item != -_DATA_LOCATION:
            kept.append(data[first:last])
        if item == _NAME:
            name = bytes(data[value:last]).decode()
        elif item == -_DATA_TYPE:
            number, _ = read_varint(data, value)
        elif abs(item) == _DIMS:  # packed, or one by one
            while value < last:
                size, value = read_varint(data, value)
                shape.append(size)
    if not entries:
        return None
    offset, length = (int(entries[key]) for key in ("offset", "length"))
    return _ExternalTensor(name, _TYPE_NAMES.get(number, ""), tuple(shape), offset, length, b"".join(kept))


def _readers(model: memoryview) -> Counter[str]:
    """The number of operands that read each value of a serialised model."""
    readers = Counter[str]()

    def count(start: int, end: int, is_inner: bool) -> None:
        for number, _, value, last in fields(model, start, end):
            if number == _GRAPH_NODE:
                count_in_node(value, last)
            elif number == _GRAPH_INITIALIZER and is_inner and _external_tensor(model, value, last) is not None:
                raise NotExportableError("weights in a loop or a branch")

    def count_in_node(start: int, end: int) -> None:
        for number, _, value, last in fields(model, start, end):
            if number == _NODE_INPUT:
                readers[bytes(model[value:last]).decode()] += 1
            elif number == _NODE_ATTRIBUTE:
                for inner, _, at, stop in fields(model, value, last):
                    if inner in _ATTRIBUTE_GRAPHS:
                        count(at, stop, True)

    for number, _, value, last in fields(model, 0, len(model)):
        if number == _MODEL_GRAPH:
            count(value, last, False)
    return readers
