"""Write the weights of a model in fewer bits, as constants that a node widens again under the old name."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Literal

import numpy as np

from ..composites.packing import pack_codes
from ..onnx.model.protobuf import NodeProto, TensorProto, node, sub_graphs
from ..onnx.model.scopes import all_nodes, free_names
from ..support.formatting import size
from ..support.names import printable
from ..support.records import record
from .blocks import BITS_4, BITS_8, NarrowWeights, block_size_for, narrow_blocks, narrow_channels
from .contents import MIN_ELEMENTS, GraphContents, ModelContents, integers_of
from .result import KeptWeights
from .tables import LEAST_HALF_SCALE, is_table, write_table

DEFAULT_BLOCK = 32
"""Elements of a block in 4 bits; ONNX Runtime's tools and llama.cpp's formats have blocks of this size."""

CONVOLUTION_BLOCK = 64
"""Elements of a block in 4 bits for convolutions. PP-OCRv5 cls takes 0.164x of its file with 64, and 0.181x with 32; the
errors of its layers are 0.10 to 0.12 in both."""

FLOATS = {TensorProto.FLOAT: "float32", TensorProto.FLOAT16: "float16"}
"""Types of weights that become narrower."""

Width = Literal["int8", "int4", "float16", "bfloat16"]

LARGEST = {"float16": 65504.0, "bfloat16": 3.3895314e38}
"""The largest finite number of each type."""

WORTHWHILE = 0.75
"""Weights stay as they are if the narrow ones would take more than this share of their bytes."""


@record
class NarrowedLayer:
    """A node that reads narrow weights: its title and result, the weights and their form as text, and their error.

    `new_result` is the value in the new model that is to be compared with the result; empty for that of the same name.
    """

    title: str
    result: str
    weights: str
    form: str
    error: float
    new_result: str = ""


@record
class _WeightReader:
    node: NodeProto
    channel_axis: int
    block_axis: int


def narrow_weights(
    contents: ModelContents,
    width: Width,
    block_size: int | None,
    exclude: Sequence[str] = (),
    operators: Collection[str] | None = None,
) -> tuple[list[NarrowedLayer], list[KeptWeights]]:
    """Narrow the weights of products, convolutions, recurrent layers and tables; with 16 bits, all large weights.

    Args:
        contents: the model, which is changed.
        width: the new type.
        block_size: elements of a block along the summed axis; None for one scale for each channel, or blocks of 32 in 4 bits.
        exclude: patterns of names of nodes and weights that stay as they are.
        operators: the operators whose weights become narrower; None for all of these.

    Returns:
        The nodes that read narrow weights, and the weights that stay.
    """
    layers, kept = list[NarrowedLayer](), list[KeptWeights]()
    inner = list(contents.inner_graphs())
    for part in reversed(inner):  # inner graphs first, since the nodes around them are copied
        part.take_constants()
        _narrow_graph(part, width, block_size, exclude, operators, layers, kept)
    _narrow_graph(contents, width, block_size, exclude, operators, layers, kept)
    return layers, kept


def _narrow_graph(
    contents: GraphContents,
    width: Width,
    block_size: int | None,
    exclude: Sequence[str],
    operators: Collection[str] | None,
    layers: list[NarrowedLayer],
    kept: list[KeptWeights],
) -> None:
    """Narrow the weights of one graph, and add to `layers` and `kept`."""
    graph = contents.graph
    overridable = {info.name for info in graph.input}
    readers: dict[str, list[tuple[NodeProto, int]]] = {}
    nested = (reader for outer in graph.node for inner in sub_graphs(outer) for reader in all_nodes(inner.node))
    for reader in (*graph.node, *nested):  # weights may be read inside of branches, too
        for position, name in enumerate(reader.input):
            readers.setdefault(name, []).append((reader, position))
    captured = {name for outer in graph.node for inner in sub_graphs(outer) for name in free_names(inner)}
    captured.update(info.name for info in graph.output)
    widening: list[NodeProto] = []
    for tensor in list(graph.initializer):
        name, tensor_type = tensor.name, tensor.data_type  # the tensor itself may be removed below
        array = contents.arrays.get(name)
        if array is None or array.dtype.kind != "f" or array.size < MIN_ELEMENTS:
            continue
        reads = readers.get(name, [])
        reason = _reason_to_keep(array, tensor_type, name, reads, exclude, name in overridable, width)
        if not reason and width in ("int8", "int4"):
            reader = next(_layers_of(reads, array.ndim, operators), None)
            if reader is None:
                reason = _readers_text(reads)
            else:
                looks_up = name not in captured and is_table(reads, array.shape)
                narrow = _narrow(array, reader, width, block_size, looks_up)
                widened = narrow.widen()
                if narrow.nbytes > WORTHWHILE * array.nbytes:
                    reason = "which would become no smaller"
                elif not np.abs(widened).max() <= np.finfo(array.dtype).max:
                    reason = "some of which would be rounded to infinity"
                else:
                    if looks_up:
                        write_table(contents, name, narrow, tensor_type)
                    else:
                        widening.append(_write_integers(contents, name, narrow))
                    error = relative_error(widened, array)
                    layers.append(_layer(reader.node, name, array, _form_of(narrow), error))
        elif not reason:
            stored = array.astype(np.float16) if width == "float16" else _as_bfloat16(array)
            widening.append(_write_halves(contents, name, stored, tensor_type))
            error = relative_error(stored.astype(np.float32), array)
            reading = reads[0][0] if reads else NodeProto(op_type="no node")
            layers.append(_layer(reading, name, array, width, error))
        if reason and (operators is None or any(node.op_type in operators for node, _ in reads)):
            kept.append(KeptWeights(name, array.nbytes, reason))
    contents.insert_first(widening)


def relative_error(actual: np.ndarray, expected: np.ndarray) -> float:
    """The root mean square of the difference relative to that of the expected numbers, without infinities and NaN.

    >>> relative_error(np.float32([1, 3]), np.float32([1, 2]))
    0.4472135954999579
    """
    is_finite = np.isfinite(expected)
    wide = expected[is_finite].astype(np.float64)
    off = float(np.square(actual[is_finite].astype(np.float64) - wide).sum())
    total = float(np.square(wide).sum())
    return float(np.sqrt(off / total)) if total else (0.0 if not off else float("inf"))


def is_excluded(names: Sequence[str], patterns: Sequence[str]) -> bool:
    """Whether a name matches one of some patterns, in which "*" and "?" are wildcards.

    >>> is_excluded(["/encoder/layer.0/MatMul"], ["/encoder/*"]), is_excluded(["/layers[0]/MatMul"], ["/layers[0]/*"])
    (True, True)
    """
    # For fnmatch, brackets are sets of characters; exporters number layers with them.
    literal = [pattern.replace("[", "[[]") for pattern in patterns]
    return any(fnmatchcase(name, pattern) for name in names for pattern in literal)


def title_of(reader: NodeProto) -> str:
    """The operator and the name of a node, for people."""
    return f"{reader.op_type} {printable(reader.name or next(iter(reader.output), ''))}".rstrip()


def layer_axes(reader: NodeProto, position: int, rank: int) -> tuple[int, int] | None:
    """The axes of channels and of summed elements of the weights that a node reads; None if it takes no weights there."""
    if reader.domain not in ("", "ai.onnx"):
        return None
    match reader.op_type:
        case "MatMul" if rank >= 2:
            return (rank - 1, rank - 2) if position == 1 else (rank - 2, rank - 1)
        case "Gemm" if rank == 2 and position < 2:
            is_flipped = bool(integers_of(reader, "transB" if position == 1 else "transA", 0))
            return (1, 0) if is_flipped != (position == 1) else (0, 1)
        case "Conv" if rank >= 3 and position == 1:
            return 0, 1
        case "ConvTranspose" if rank >= 3 and position == 1:
            return 1, 0
        case "LSTM" | "GRU" | "RNN" if rank == 3 and position in (1, 2):
            return 1, 2
        case "Gather" if rank >= 2 and position == 0:
            axis = integers_of(reader, "axis", 0) % rank
            return axis, rank - 1 if axis != rank - 1 else rank - 2
    return None


def _layers_of(
    reads: Sequence[tuple[NodeProto, int]], rank: int, operators: Collection[str] | None
) -> Iterator[_WeightReader]:
    for reader, position in reads:
        if operators is None or reader.op_type in operators:
            axes = layer_axes(reader, position, rank)
            if axes is not None:
                yield _WeightReader(reader, *axes)


def _reason_to_keep(
    array: np.ndarray,
    element_type: int,
    name: str,
    reads: Sequence[tuple[NodeProto, int]],
    exclude: Sequence[str],
    is_overridable: bool,
    width: Width,
) -> str:
    """The reason for which weights stay as they are; empty if they may become narrower."""
    if element_type not in FLOATS or (width in ("float16", "bfloat16") and element_type != TensorProto.FLOAT):
        return f"of type {array.dtype}"
    if is_overridable:
        return "inputs that a call may replace"
    if is_excluded([name, *(reader.name for reader, _ in reads)], exclude):
        return "excluded"
    if width in ("int8", "int4") and not np.isfinite(array).all():
        return "with NaN or infinite elements"
    if largest := LARGEST.get(width):
        finite = array[np.isfinite(array)]
        if finite.size and max(finite.max(), -finite.min()) > largest:
            number = f"{largest:,.0f}" if width == "float16" else f"{largest:.3g}"
            return f"with elements beyond {number}, the largest {width}"
    return ""


def _readers_text(reads: Sequence[tuple[NodeProto, int]]) -> str:
    operators = list(dict.fromkeys(reader.op_type for reader, _ in reads))
    return f"read by {' and '.join(operators[:3])}" if operators else "read by no node"


def _narrow(
    array: np.ndarray, reader: _WeightReader, width: Width, block_size: int | None, looks_up: bool
) -> NarrowWeights:
    """The weights in few bits; rows of a table that is looked up have one scale in 8 bits, and scales of 16 bits in 4."""
    size = array.shape[reader.block_axis]
    is_convolution = reader.node.op_type in ("Conv", "ConvTranspose")
    if width == "int8":
        divisor = block_size_for(size, block_size) if block_size and not looks_up else 0
        if divisor:
            return narrow_blocks(array, reader.block_axis, divisor, BITS_8)
    elif divisor := block_size_for(
        size, block_size or (CONVOLUTION_BLOCK if is_convolution else DEFAULT_BLOCK), is_convolution
    ):
        narrow = narrow_blocks(array, reader.block_axis, divisor, BITS_4)
        has_half_scales = np.median(narrow.scale) >= LEAST_HALF_SCALE and narrow.scale.max() <= LARGEST["float16"]
        if looks_up and array.dtype == np.float32 and has_half_scales:
            return narrow_blocks(array, reader.block_axis, divisor, BITS_4, np.dtype(np.float16))
        return narrow
    return narrow_channels(array, reader.channel_axis)


def _form_of(narrow: NarrowWeights) -> str:
    parts = f"blocks of {narrow.block_size}" if narrow.block_size else "channels"
    return f"int{narrow.bits}, {parts}"


def _layer(reader: NodeProto, name: str, array: np.ndarray, form: str, error: float) -> NarrowedLayer:
    result = next(iter(reader.output), "")
    return NarrowedLayer(title_of(reader), result, f"{printable(name)} {list(array.shape)}", form, error)


def _write_integers(contents: GraphContents, name: str, narrow: NarrowWeights) -> NodeProto:
    """Replace an initializer by integers and scales; return the node that widens them under the old name."""
    element_type = TensorProto.FLOAT16 if narrow.scale.dtype == np.float16 else TensorProto.FLOAT
    contents.drop(name)
    inputs = [contents.new_name(f"{name}_quantized"), contents.new_name(f"{name}_scale")]
    if narrow.zero_point is None:
        contents.add(inputs[0], narrow.values, TensorProto.INT8)
    else:
        contents.add_bytes(inputs[0], narrow.values.shape, _pack(narrow.values), TensorProto.UINT4)
        inputs.append(contents.new_name(f"{name}_zero_point"))
        contents.add_bytes(inputs[2], narrow.zero_point.shape, _pack(narrow.zero_point), TensorProto.UINT4)
    contents.add(inputs[1], narrow.scale, element_type)
    attributes = {"axis": narrow.axis} | ({"block_size": narrow.block_size} if narrow.block_size else {})
    widening = node("DequantizeLinear", inputs, [name], **attributes)
    widening.name = f"{name}_DequantizeLinear"
    return widening


def _pack(numbers: np.ndarray) -> np.ndarray:
    """Numbers of 4 bits as ONNX stores them: two in a byte, across all rows."""
    return pack_codes(numbers.reshape(-1), BITS_4)


def _write_halves(contents: GraphContents, name: str, stored: np.ndarray, element_type: int) -> NodeProto:
    """Replace an initializer by one of 16 bits; return the node that casts it under the old name."""
    contents.drop(name)
    half = contents.new_name(f"{name}_{stored.dtype.name}")
    contents.add(half, stored, TensorProto.FLOAT16 if stored.dtype == np.float16 else TensorProto.BFLOAT16)
    widening = node("Cast", [half], [name], to=element_type)
    widening.name = f"{name}_Cast"
    return widening


def _as_bfloat16(array: np.ndarray) -> np.ndarray:
    import ml_dtypes

    return array.astype(ml_dtypes.bfloat16)


def describe_kept(kept: Sequence[KeptWeights]) -> str:
    """Weights that stay, in one line of an error."""
    parts = [f"{printable(weights.name)} ({size(weights.bytes)}, {weights.reason})" for weights in kept[:3]]
    return ", ".join([*parts, f"{len(kept) - 3} more"] if len(kept) > 3 else parts)
