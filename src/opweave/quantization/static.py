"""Quantise a model throughout, from sample data: ONNX Runtime's tool measures ranges, and writes QuantizeLinear nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from ..onnx.files import write_model
from ..onnx.model.limits import ModelLimits
from ..onnx.model.model import Model
from ..onnx.model.protobuf import GraphProto, NodeProto, TensorProto, copy_of, node as new_node
from ..onnx.model.scopes import all_nodes
from ..support.errors import OperationError
from ..support.names import printable
from .contents import MIN_ELEMENTS, ModelContents, integers_of
from .result import KeptWeights
from .weights import NarrowedLayer, is_excluded, layer_axes, relative_error, title_of

PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")

AROUND_CONVOLUTIONS = (
    *(
        "Add",
        "AveragePool",
        "Clip",
        "Concat",
        "Flatten",
        "GlobalAveragePool",
        "MaxPool",
        "Mul",
        "Pad",
        "Relu",
        "Reshape",
    ),
    *("Resize", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"),
)
"""Operators that also compute on integers in networks of convolutions, so that tensors stay narrow between these.

Transformers add and normalise tensors with outliers: there, only the products with weights are quantised."""

LARGE_BYTES = 1_000_000_000
"""Models of more bytes are passed to ONNX Runtime's tool, and back, as two files."""

TOOL_METADATA = ("onnx.infer", "onnx.quant.pre_process")
"""Metadata by which ONNX Runtime's tools mark their files."""


def quantize_throughout(
    contents: ModelContents,
    feeds: Sequence[Mapping[str, np.ndarray]],
    exclude: Sequence[str],
    reduce_range: bool,
    limits: ModelLimits,
    folder: Path,
) -> tuple[ModelContents, list[NarrowedLayer], list[KeptWeights]]:
    """Quantise weights by channel and what products read, with the ranges that `feeds` lead to.

    Args:
        contents: the model.
        feeds: sample inputs.
        exclude: patterns of names of nodes and weights that stay as they are.
        reduce_range: whether weights have 7 bits, for processors that add up pairs of products in 16 bits.
        limits: bounds for loading the quantised model.
        folder: for temporary files.

    Returns:
        The quantised model, its nodes that compute on integers, and the nodes with weights that do not.
    """
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Samples(CalibrationDataReader):  # type: ignore[misc]
        """The sample inputs, one at a time."""

        def __init__(self) -> None:
            self._rest = iter(feeds)

        def get_next(self) -> Mapping[str, np.ndarray] | None:
            return next(self._rest, None)

    contents.raise_opset(13, "quantisation by channel")
    is_large = sum(array.nbytes for array in contents.stored.values()) > LARGE_BYTES
    _name_nodes(contents)
    graph = contents.proto.graph
    operators = [*PRODUCTS, *(AROUND_CONVOLUTIONS if _has_mostly_convolutions(graph) else ())]
    prepared, asked, excluded = _prepare(contents, exclude, folder, is_large)
    target = folder / "quantised.onnx"
    try:
        quantize_static(
            prepared,
            target,
            Samples(),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=operators,
            per_channel=True,
            reduce_range=reduce_range,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=[*asked, *excluded],
            use_external_data_format=is_large,
            extra_options={"MatMulConstBOnly": True},
        )
    except Exception as error:  # the tool raises errors of many types
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise OperationError(f"quantize: ONNX Runtime's tool failed to quantise the model: {first}") from error
    result = ModelContents(Model.load(target, limits))
    _keep_declared(result, {info.name for info in graph.value_info})
    result.is_external = contents.is_external
    for position in reversed(range(len(result.proto.metadata_props))):
        if result.proto.metadata_props[position].key in TOOL_METADATA:
            del result.proto.metadata_props[position]
    result.proto.producer_name = contents.proto.producer_name
    result.proto.producer_version = contents.proto.producer_version
    layers = list(_layers(result, contents.arrays))
    return result, layers, list(_weights_left(result, exclude, asked))


def _has_mostly_convolutions(graph: GraphProto) -> bool:
    convolutions = sum(node.op_type in ("Conv", "ConvTranspose") for node in graph.node)
    return convolutions > sum(node.op_type in ("Gemm", "MatMul") for node in graph.node)


def _adds_constants(node: NodeProto, constants: Collection[str]) -> bool:
    """Whether a node adds or multiplies by a bias or a factor, which would have a single scale."""
    return node.op_type in ("Add", "Mul") and any(name in constants for name in node.input)


def _keep_declared(result: ModelContents, names: Collection[str]) -> None:
    """Remove the inferred types of values, which take more space than the scales; the original's stay."""
    graph = result.proto.graph
    declared = [copy_of(info) for info in graph.value_info if info.name in names]
    del graph.value_info[:]
    graph.value_info.extend(declared)


def _name_nodes(contents: ModelContents) -> None:
    """Name all nodes: ONNX Runtime's tool tells them apart by their names."""
    taken = {node.name for node in contents.proto.graph.node}
    seen: set[str] = set()
    for number, node in enumerate(contents.proto.graph.node):
        if not node.name or node.name in seen:
            stem = node.name or f"{node.op_type}_{number}"
            while stem in taken:
                stem += "_"
            node.name = stem
            taken.add(stem)
        seen.add(node.name)


def _prepare(
    contents: ModelContents, exclude: Sequence[str], folder: Path, is_large: bool
) -> tuple[Path, list[str], list[str]]:
    """Write the model as ONNX Runtime's tool expects it: constants and batch normalisations folded, and shapes inferred.

    Returns:
        The file, the names of the nodes that `exclude` matches, and those of other nodes that stay as they are.
    """
    import onnx
    import onnxruntime
    from onnxruntime.quantization.quant_utils import add_pre_process_metadata

    from ..backends.onnxruntime.native import ENGINE_ERRORS, NativeSession

    source, folded, inferred = folder / "source.onnx", folder / "folded.onnx", folder / "inferred.onnx"
    write_model(copy_of(contents.proto), contents.stored, source, "quantize", is_large, MIN_ELEMENTS)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(folded)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    if is_large:
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_file_name", f"{folded.name}.data"
        )
        options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1024")
    try:
        NativeSession(str(source), options, providers=["CPUExecutionProvider"])
    except ENGINE_ERRORS as error:
        raise OperationError(f"quantize: ONNX Runtime does not take the model: {error}") from error
    onnx.shape_inference.infer_shapes_path(str(folded), str(inferred))
    proto = onnx.load(str(inferred), load_external_data=False)
    graph = proto.graph
    values = {name for node in graph.node for name in (*node.input, *node.output)}
    makers = {output: maker for maker in contents.proto.graph.node for output in maker.output}
    asked = [node.name for node in graph.node if _is_from_excluded(node, makers, values, exclude)]
    _move_biases(graph, {info.name for info in graph.input}, asked, folder)
    _copy_shared_weights(graph, asked, contents.arrays)
    constants = {tensor.name for tensor in graph.initializer}
    constants |= {node.output[0] for node in graph.node if node.op_type == "Constant"}
    others = [node.name for node in graph.node if _adds_constants(node, constants)]
    add_pre_process_metadata(proto)
    onnx.save(proto, str(inferred))
    return inferred, asked, others


def _is_from_excluded(
    node: NodeProto, makers: Mapping[str, NodeProto], values: Collection[str], exclude: Sequence[str]
) -> bool:
    """Whether a node, or one of those of the original that were fused to it, stays as it is.

    `makers` are the nodes of the original by their outputs, and `values` the names in the optimised graph: what the original
    computes between these was fused.
    """
    if is_excluded([node.name, *node.input], exclude):
        return True
    if not exclude:
        return False
    pending, seen = list(node.output), set(node.output)
    while pending:
        maker = makers.get(pending.pop())
        if maker is None:
            continue
        if is_excluded([maker.name, *maker.input], exclude):
            return True
        pending += [name for name in maker.input if name not in seen and name not in values]
        seen.update(maker.input)
    return False


def _move_biases(graph: GraphProto, overridable: Collection[str], excluded: Collection[str], folder: Path) -> None:
    """Make the constant biases of Gemm nodes vectors, without a factor: ONNX Runtime's tool takes all biases for such.

    A bias with several rows becomes the operand of an Add. The tool fails with other shapes, and forgets `beta`.
    """
    from onnx import numpy_helper

    tensors = {tensor.name: tensor for tensor in graph.initializer if tensor.name not in overridable}
    names = {*tensors, *(output for node in graph.node for output in node.output), *(node.name for node in graph.node)}
    nodes, replaced = list[NodeProto](), set[str]()
    for node in map(copy_of, graph.node):
        nodes.append(node)
        bias = tensors.get(node.input[2]) if node.op_type == "Gemm" and len(node.input) > 2 else None
        if bias is None or node.name in excluded:
            continue
        beta = next((attribute.f for attribute in node.attribute if attribute.name == "beta"), 1.0)
        values, weights = numpy_helper.to_array(bias, str(folder)), tensors.get(node.input[1])
        count = values.size if weights is None else weights.dims[not integers_of(node, "transB", 0)]
        if beta == 1 and values.shape == (count,):
            continue
        replaced.add(bias.name)
        others = [copy_of(attribute) for attribute in node.attribute if attribute.name != "beta"]
        del node.attribute[:]
        node.attribute.extend(others)
        scaled, name = (values * beta).astype(values.dtype), _new_name(f"{bias.name}_vector", names)
        if values.size in (1, count) and values.size == (*values.shape, 1)[max(values.ndim - 1, 0)]:
            scaled = np.array(np.broadcast_to(scaled.reshape(-1), count))
            node.input[2] = name
        else:
            result, node.output[0] = node.output[0], _new_name(f"{node.output[0]}_product", names)
            del node.input[2]
            nodes.append(new_node("Add", [node.output[0], name], [result]))
            nodes[-1].name = _new_name(f"{node.name}_bias", names)
        graph.initializer.append(numpy_helper.from_array(scaled, name))
    del graph.node[:]
    graph.node.extend(nodes)
    unread = replaced - {name for node in all_nodes(graph.node) for name in node.input}
    unread -= {info.name for info in graph.output}
    for position in reversed(range(len(graph.initializer))):
        if graph.initializer[position].name in unread:
            del graph.initializer[position]


def _copy_shared_weights(graph: GraphProto, excluded: Collection[str], arrays: dict[str, np.ndarray]) -> None:
    """Copy a matrix for products that read it along another axis, since it has scales for the channels of one axis only.

    Excluded products read the unquantised matrix, so they do not share it with other products.
    """
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    names = {*tensors, *(output for node in graph.node for output in node.output)}
    first, copies = dict[str, tuple[int, int] | None](), dict[tuple[str, tuple[int, int] | None], str]()
    # Excluded nodes come first, so that they keep the name of the matrix.
    for node in sorted(graph.node, key=lambda node: node.name not in excluded):
        if node.op_type not in PRODUCTS:
            continue
        for position, name in enumerate(node.input[:2]):
            axes = layer_axes(node, position, len(tensors[name].dims)) if name in tensors else None
            if axes is None:
                continue
            use = None if node.name in excluded else (position, axes[0])
            if first.setdefault(name, use) == use:
                continue
            if (name, use) not in copies:
                copied = copy_of(tensors[name])
                copies[name, use] = copied.name = _new_name(f"{name}_copy", names)
                graph.initializer.append(copied)
                if name in arrays:
                    arrays[copied.name] = arrays[name]
            node.input[position] = copies[name, use]


def _new_name(stem: str, names: set[str]) -> str:
    """A name that is not in `names`, to which it is added."""
    while stem in names:
        stem += "_"
    names.add(stem)
    return stem


def _layers(result: ModelContents, arrays: Mapping[str, np.ndarray]) -> Iterator[NarrowedLayer]:
    """The nodes that read dequantised values, with the error of their weights against those of the original."""
    graph = result.proto.graph
    widening = {node.output[0]: node for node in graph.node if node.op_type == "DequantizeLinear"}
    restored = {node.input[0]: node.output[0] for node in graph.node if node.op_type == "QuantizeLinear"}
    back = {node.input[0]: node.output[0] for node in widening.values()}
    for node in graph.node:
        reads = [name for name in node.input if name in widening]
        if not reads or node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            continue
        weights, form, error = "", "8 bits", float("nan")
        for name in reads:
            stored = result.arrays.get(widening[name].input[0])
            if stored is None or stored.dtype == np.int32:  # a bias
                continue
            stem = widening[name].input[0].removesuffix("_quantized")
            original = arrays.get(stem)
            weights, form = f"{printable(stem)} {list(stored.shape)}", "int8, channels"
            if original is not None and original.shape == stored.shape:
                error = relative_error(_widen(widening[name], result.arrays), original)
        # The tool leaves an activation to the range of the QuantizeLinear behind it, so the value is that after this node.
        # ONNX Runtime's tool renames the value before the nodes that quantise and dequantise an output of the model.
        output = node.output[0]
        final = back.get(restored.get(output, ""), "")
        is_output = any(info.name == final for info in graph.output)
        yield NarrowedLayer(title_of(node), final if is_output else output, weights, form, error, final or output)


def _widen(node: NodeProto, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """The elements that a DequantizeLinear by channel or tensor makes of constants, in NumPy."""
    values, scale, zero_point = (arrays[name] for name in node.input)
    if scale.size > 1:
        axis = next((int(a.i) for a in node.attribute if a.name == "axis"), 1) % values.ndim
        shape = [values.shape[axis] if k == axis else 1 for k in range(values.ndim)]
        scale, zero_point = scale.reshape(shape), zero_point.reshape(shape)
    widened: np.ndarray = (values.astype(np.float32) - zero_point.astype(np.float32)) * scale
    return widened


def _weights_left(result: ModelContents, exclude: Sequence[str], asked: Collection[str]) -> Iterator[KeptWeights]:
    """The weights of products that stayed as they were."""
    for inner in result.inner_graphs():
        for name, weights in inner.arrays.items():
            if weights.dtype.kind == "f" and weights.size >= MIN_ELEMENTS:
                yield KeptWeights(name, weights.nbytes, "read in a branch or loop")
    graph = result.proto.graph
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    for node in graph.node:
        for position, name in enumerate(node.input):
            array = result.arrays.get(name)
            is_float = types.get(name) in (TensorProto.FLOAT, TensorProto.FLOAT16)
            if array is None or not is_float or array.size < MIN_ELEMENTS:
                continue
            if layer_axes(node, position, array.ndim) is None or node.op_type not in PRODUCTS:
                continue
            is_asked = node.name in asked or is_excluded([name], exclude)
            reason = "excluded" if is_asked else "whose node ONNX Runtime's tool did not quantise"
            yield KeptWeights(name, array.nbytes, reason)
