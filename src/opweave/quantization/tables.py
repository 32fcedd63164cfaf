"""Tables of vectors, such as embeddings of tokens: the vectors are looked up in few bits, and then widened.

An engine would widen a whole table at each run if `DequantizeLinear` came before `Gather`. `Gather` takes no integers of
4 bits, so two of them are in a byte: element k of a vector in the lower half, and element k + size / 2 in the upper one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..onnx.model.protobuf import AttributeProto, NodeProto, TensorProto, ValueInfoProto, copy_of, node
from .blocks import NarrowWeights
from .contents import GraphContents, integers_of

LEAST_HALF_SCALE = 1e-3
"""Scales of a table are stored in float16 if their median is at least this, 16 times the smallest normal number."""


def is_table(reads: Sequence[tuple[NodeProto, int]], shape: Sequence[int]) -> bool:
    """Whether weights are rows that `Gather` nodes, and nothing else, look up."""
    lookups = all(reader.op_type == "Gather" and position == 0 for reader, position in reads)
    rank = len(shape)
    return rank == 2 and shape[1] % 2 == 0 and lookups and all(integers_of(r, "axis", 0) % rank == 0 for r, _ in reads)


def write_table(contents: GraphContents, name: str, narrow: NarrowWeights, element_type: int) -> None:
    """Replace a table, and the nodes that look up its rows.

    `narrow` has a scale for each row, or blocks along the rows in 4 bits. Vectors have `element_type`, as before.
    """
    contents.drop(name)
    values, scale = contents.new_name(f"{name}_quantized"), contents.new_name(f"{name}_scale")
    is_packed = narrow.zero_point is not None
    scales = narrow.scale.reshape(len(narrow.values), -1)
    scale_type = TensorProto.FLOAT16 if narrow.scale.dtype == np.float16 else TensorProto.FLOAT
    extra: dict[str, str] = {}
    if is_packed:
        half = narrow.values.shape[1] // 2
        contents.add(values, narrow.values[:, :half] | (narrow.values[:, half:] << 4), TensorProto.UINT8)
        for key, number in (("mask", 15), ("shift", 4)):
            extra[key] = contents.new_name(f"{name}_{key}")
            contents.add(extra[key], np.array(number, np.uint8), TensorProto.UINT8)
        extra["zero"] = contents.new_name(f"{name}_zero_point")
        assert narrow.zero_point is not None
        contents.add(extra["zero"], narrow.zero_point, TensorProto.UINT8)
    else:
        contents.add(values, narrow.values, TensorProto.INT8)
    contents.add(scale, scales, scale_type)
    declared = [*contents.graph.input, *contents.graph.value_info]
    ranks = {info.name: _rank_of(info) for info in declared} | {n: a.ndim for n, a in contents.arrays.items()}
    nodes: list[NodeProto] = []
    for lookup in contents.graph.node:
        if lookup.op_type != "Gather" or lookup.input[0] != name:
            nodes.append(copy_of(lookup))
            continue
        indices, result = lookup.input[1], lookup.output[0]
        # ONNX Runtime takes the scale of the only block of a vector, which a scalar looks up, for that of all elements.
        may_be_scalar = is_packed and scales.shape[1] == 1 and not ranks.get(indices)

        def step(op_type: str, inputs: Sequence[str], stem: str, **attributes: int) -> str:
            output = contents.new_name(f"{result}_{stem}")  # noqa: B023  (called in this turn only)
            nodes.append(node(op_type, inputs, [output], **attributes))
            nodes[-1].name = output
            return output

        if may_be_scalar:
            if "axis" not in extra:
                extra["axis"] = contents.new_name(f"{name}_axis")
                contents.add(extra["axis"], np.array([0], np.int64), TensorProto.INT64)
            indices = step("Unsqueeze", [indices, extra["axis"]], "indices")
        rows = step("Gather", [values, indices], "rows", axis=0)
        steps = step("Gather", [scale, indices], "scales", axis=0)
        if scale_type != element_type:
            steps = step("Cast", [steps], "wide_scales", to=element_type)
        if is_packed:
            zeros = step("Gather", [extra["zero"], indices], "zero_points", axis=0)
            low = step("BitwiseAnd", [rows, extra["mask"]], "low")
            high = step("BitShift", [rows, extra["shift"]], "high")
            nodes[-1].attribute.append(AttributeProto(name="direction", type=AttributeProto.STRING, s=b"RIGHT"))
            whole = step("Concat", [low, high], "values", axis=-1)
            operands, blocks = [whole, steps, zeros], {"axis": -1, "block_size": narrow.block_size}
            if may_be_scalar:
                last = node(
                    "Squeeze", [step("DequantizeLinear", operands, "vectors", **blocks), extra["axis"]], [result]
                )
            else:
                last = node("DequantizeLinear", operands, [result], **blocks)
        else:
            whole = step("Cast", [rows], "values", to=element_type)
            last = node("Mul", [whole, steps], [result])
        last.name = lookup.name
        nodes.append(last)
    contents.replace_nodes(nodes)


def _rank_of(info: ValueInfoProto) -> int:
    """The rank of a value; 0 if it is not declared."""
    return len(info.type.tensor_type.shape.dim)
