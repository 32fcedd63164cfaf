"""Quantisation. 32-bit integers are added and subtracted exactly, without 64-bit integers, which few devices have."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ....composites import gather_n_bits, matmul_n_bits
from ....core.dtypes import INFO
from ....expr import Traced, cast, clamp, compute, round_even, where
from ....expr.ir import storage
from ....ops import quantization as ops
from ..contraction.problem import Matrix, View, product
from ..contraction.quantized import Quantized
from ..table import gpu
from .positions import position_from
from .reduction import narrow, widen
from .results import Products, source_of


def _repeat_blocks(operand: Traced, shape: tuple[int, ...]) -> Traced:
    """Repeat each element of `operand` over its block of `shape`."""
    blocks = [whole // part for part, whole in zip(operand.shape, shape, strict=True)]
    return compute(shape, lambda *p: operand[tuple(k // size for k, size in zip(p, blocks, strict=True))])


@gpu.lower(ops.dequantize_linear)
def _(input: Traced, scale: Traced, zero_point: Traced) -> Traced:
    s, z = (_repeat_blocks(operand, input.shape) for operand in (scale, zero_point))
    if INFO[storage(input.data_type)].bits == 8:
        difference = cast(cast(input, "int32") - cast(z, "int32"), "float32")
    else:
        # A difference of 32-bit integers has 33 bits: a sign, and a magnitude that fits uint32.
        x, y = cast(input, "uint32"), cast(z, "uint32")
        difference = where(input >= z, cast(x - y, "float32"), -cast(y - x, "float32"))
    return narrow(difference * widen(s), scale)


@gpu.lower(ops.quantize_linear)
def _(input: Traced, scale: Traced, zero_point: Traced) -> Traced:
    s, z = (_repeat_blocks(operand, input.shape) for operand in (scale, zero_point))
    data_type = storage(zero_point.data_type)
    info = INFO[data_type]
    steps = round_even(widen(input) / widen(s))
    if info.bits == 8:
        return cast(clamp(steps + cast(z, "float32"), info.lowest, info.highest), data_type)
    # Offsets from the lowest value are unsigned. The cast saturates the magnitude of the steps.
    offset = cast(z, "uint32") - info.lowest % 2**32
    magnitude = cast(abs(steps), "uint32")
    more, less = offset + magnitude, offset - magnitude
    moved = where(steps < 0, where(magnitude > offset, 0, less), where(more < offset, 2**32 - 1, more))
    return cast(moved + info.lowest % 2**32, data_type)


@gpu.lower(matmul_n_bits)
def _(
    input: Traced,
    weight: Traced,
    scale: Traced,
    zero_point: Traced | None,
    bias: Traced | None,
    minimum: Traced | None,
    bits: int,
    block_size: int,
) -> Products:
    """A product whose kernels read the packed weight."""
    columns, numbers = weight.shape[0], prod(weight.shape[1:]) * 8 // bits
    matrix = View(source_of(weight), (columns, input.shape[-1]), (numbers, 1))
    problem = product(View.of(source_of(input)), matrix, b_transpose=True)
    quantized = Quantized(
        bits,
        storage(input.data_type),
        block_terms=block_size,
        block_lines=columns // scale.shape[0],
        scale=source_of(scale),
        zero_point=None if zero_point is None else source_of(zero_point),
        minimum=None if minimum is None else source_of(minimum),
    )
    assert isinstance(problem.right, Matrix)
    problem = replace(problem, right=replace(problem.right, quantized=quantized))
    return Products(problem, lambda total: total if bias is None else total + bias)


@gpu.lower(gather_n_bits)
def _(
    weight: Traced, scale: Traced, indices: Traced, zero_point: Traced | None, width: int, bits: int, block_size: int
) -> Traced:
    """Rows of a packed table: only these rows are read, and expanded."""
    rows, _, row_bytes = weight.shape
    in_byte = 8 // bits

    def number(byte: Traced, place: Traced) -> Traced:
        """One of the numbers of a byte, as float32; `place` is its index in the row of numbers."""
        if in_byte == 1:
            return cast(byte, "float32")
        shift = cast(place % in_byte * bits, "uint32")
        return cast((cast(byte, "uint32") >> shift) & 2**bits - 1, "float32")

    def element(*p: Traced) -> Traced:
        row, k = position_from(indices[p[:-1]], rows), p[-1]
        group, block, at = row // (rows // scale.shape[0]), k // block_size, k // in_byte
        value = number(weight[row, at // row_bytes, at % row_bytes], k)
        zero = 2.0 ** (bits - 1) if zero_point is None else number(zero_point[group, block // in_byte], block)
        return narrow((value - zero) * widen(scale)[group, block], scale)

    return compute((*indices.shape, width), element)
