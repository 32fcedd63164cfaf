"""Heuristic for graphs on a CPU: predict whether OpenVINO is faster than ONNX Runtime."""

from __future__ import annotations

from ...composites import is_composite
from ...core.graph import Graph, Node
from ...ops import convolution, matrix, normalization, recurrent
from ...support.formatting import size

MIN_PRODUCTS = 20_000_000
"""Fewest multiplications (in convolutions and matrix products) of a graph for OpenVINO: two cores compute this number in less
than a millisecond, an OpenVINO call takes 5 us longer, and compiling takes at least 26 ms."""

MAX_WIDE_ELEMENTS = 16_384
"""The largest number of 64-bit integers that an operation may compute on OpenVINO: its kernels have no 64-bit integers, so
rules emulate each by a pair of int32."""

MAX_CONSTANT_BYTES = 2**29
"""The largest number of bytes of constants of a graph for OpenVINO, which copies matrices several times while it compiles: a
process with 1 GiB of matrices took 3.3 GiB instead of 1.1 (`tests/onnx/test_onnx_large.py` without this limit)."""

RECURRENT = frozenset({recurrent.gru, recurrent.gru_cell, recurrent.lstm, recurrent.lstm_cell})
"""Operations that are slower on OpenVINO: a small GRU took 1.09 times as long as on ONNX Runtime."""

DECOMPOSED = frozenset({normalization.batch_normalization})
"""Operations whose decomposition is as fast as a kernel, since the engine fuses element-wise operations. PP-OCRv4's detector
has such normalisations, and takes 30% of ONNX Runtime's time."""


def gains(graph: Graph) -> tuple[bool, str]:
    """Predict whether OpenVINO runs a graph faster than ONNX Runtime. Return the prediction and the reason."""
    if updated := graph.in_place():
        return False, f"{next(iter(updated))} is updated in place"
    for node in graph.nodes:
        if node.op in RECURRENT:
            return False, f"{node.title} is recurrent"
        for operand in node.outputs:
            if operand.data_type in ("int64", "uint64") and operand.desc.element_count > MAX_WIDE_ELEMENTS:
                return False, f"{node.title} computes {operand.desc}"
    constants = {operand for node in graph.nodes for operand in node.operands if operand.is_constant}
    weight = sum(operand.desc.byte_length for operand in constants)
    if weight > MAX_CONSTANT_BYTES:
        return False, f"{size(weight)} of constants, more than {size(MAX_CONSTANT_BYTES)}"
    products = sum(map(_products, graph.nodes))
    if products < MIN_PRODUCTS:
        return False, f"{products / 1e6:.2g} million multiplications, fewer than {MIN_PRODUCTS / 1e6:.0f} million"
    return True, f"{products / 1e6:,.0f} million multiplications"


def _products(node: Node) -> int:
    arguments = node.arguments
    if node.op is convolution.conv2d or is_composite(node.op, "convolution"):
        filter, channels = arguments["filter"].desc, arguments.get("filter_layout", "oi").index("o")
        return int(node.outputs[0].desc.element_count * filter.element_count // filter.shape[channels])
    if node.op is convolution.conv_transpose2d or is_composite(node.op, "conv_transpose"):
        filter, channels = arguments["filter"].desc, arguments.get("filter_layout", "io").index("i")
        return int(arguments["input"].desc.element_count * filter.element_count // filter.shape[channels])
    if node.op is matrix.matmul or node.op is matrix.gemm:
        depth = arguments["a"].shape[-2 if arguments.get("a_transpose") else -1]
        return int(node.outputs[0].desc.element_count * depth)
    return 0
