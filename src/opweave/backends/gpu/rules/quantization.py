"""Quantisation. 32-bit integers are added and subtracted exactly, without 64-bit integers, which few devices have."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ....composites import gather_n_bits, matmul_n_bits
from ....core.dtypes import INFO
from ....expr import Traced, cast, clamp, compute, round_even, where
from ....expr.ir import storage
from ....ops import quantization as ops
from ....ops.formulas import position_from
from ..contraction.problem import Matrix, View, product
from ..contraction.quantized import Quantized
from ..table import gpu
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
    upper: Traced | None,
    scale_unit: Traced | None,
    minimum_unit: Traced | None,
    bits: int,
    block_size: int,
    upper_bits: int,
) -> Products:
    """A product whose kernels read the packed weight."""
    columns, numbers = weight.shape[0], prod(weight.shape[1:]) * 8 // bits
    matrix = View(source_of(weight), (columns, input.shape[-1]), (numbers, 1))
    problem = product(View.of(source_of(input)), matrix, b_transpose=True)
    others = {
        "zero_point": zero_point,
        "minimum": minimum,
        "upper": upper,
        "scale_unit": scale_unit,
        "minimum_unit": minimum_unit,
    }
    quantized = Quantized(
        bits,
        storage(input.data_type),
        block_terms=block_size,
        block_lines=columns // scale.shape[0],
        scale=source_of(scale),
        upper_bits=upper_bits,
        **{name: source_of(operand) for name, operand in others.items() if operand is not None},
    )
    assert isinstance(problem.right, Matrix)
    problem = replace(problem, right=replace(problem.right, quantized=quantized))
    return Products(problem, lambda total: total if bias is None else total + bias)


@gpu.lower(gather_n_bits)
def _(
    weight: Traced,
    scale: Traced,
    indices: Traced,
    zero_point: Traced | None,
    minimum: Traced | None,
    upper: Traced | None,
    scale_unit: Traced | None,
    minimum_unit: Traced | None,
    width: int,
    bits: int,
    block_size: int,
    upper_bits: int,
) -> Traced:
    """Rows of a packed table: only these rows are read, and expanded."""
    rows, (groups, blocks) = weight.shape[0], scale.shape
    result = scale if scale_unit is None else scale_unit

    def number(of: Traced, row: Traced, place: Traced, width: int) -> Traced:
        """The number at a place of a row, as uint32; `of` has numbers of `width` bits."""
        in_byte = 8 // width
        at = place // in_byte
        byte = cast(of[row, at] if of.rank == 2 else of[row, at // of.shape[2], at % of.shape[2]], "uint32")
        return byte if in_byte == 1 else (byte >> cast(place % in_byte * width, "uint32")) & 2**width - 1

    def value(of: Traced, unit: Traced | None, group: Traced, block: Traced) -> Traced:
        """A scale or minimum, as float32."""
        if unit is None:
            return widen(of)[group, block]
        return cast(of[group, block], "float32") * widen(unit)[group, block // (blocks // unit.shape[1])]

    def element(*p: Traced) -> Traced:
        row, k = position_from(indices[p[:-1]], rows), p[-1]
        group, block = row // (rows // groups), k // block_size
        code = number(weight, row, k, bits)
        if upper is not None:
            code = code + (number(upper, row, k, upper_bits) << bits)
        whole, factor = cast(code, "float32"), value(scale, scale_unit, group, block)
        if minimum is not None:
            return narrow(whole * factor + value(minimum, minimum_unit, group, block), result)
        zero: Traced | float = 2.0 ** (bits + upper_bits - 1)
        if zero_point is not None:
            zero = cast(number(zero_point, group, block, bits), "float32")
        return narrow((whole - zero) * factor, result)

    return compute((*indices.shape, width), element)
