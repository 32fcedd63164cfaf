"""Quantisation. 32-bit integers are added and subtracted exactly, without 64-bit integers, which few devices have."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from operator import add

from ....composites import matmul_n_bits
from ....core.dtypes import INFO
from ....expr import Traced, cast, clamp, compute, round_even, sum_over, where
from ....expr.gpu import Workgroups
from ....expr.ir import Input, storage
from ....ops import quantization as ops
from ..contraction.problem import View, product, strides_of
from ..table import gpu
from .reduction import dot, narrow, widen
from .results import Products, Staged, Stages, source_of


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


# Weights of few bits --------------------------------------------------------------------------------------------------

MAX_DIRECT_ROWS = 8
"""Most rows of the input for which the product unpacks weights on the fly. Each row unpacks the weights again, but reads a
fraction of the bytes, and memory bandwidth limits the product of few rows."""
TEAM = 32
"""Invocations that share a column, and read adjacent words of weights."""
COLUMNS = 8


@dataclass(frozen=True)
class _Packed:
    """A weight of few bits per number, in 32-bit words [columns, blocks, words of a block]."""

    words: Traced
    scale: Traced
    zero_point: Traced | None
    minimum: Traced | None
    bits: int

    @property
    def numbers(self) -> int:
        return 32 // self.bits

    def at(self, column: Traced, word: Traced, number: Traced | int) -> Traced:
        """A number of the matrix, as float32; `word` is the index of the word in its column."""
        block, within = word // self.words.shape[2], word % self.words.shape[2]
        shift = number * self.bits if isinstance(number, int) else cast(number * self.bits, "uint32")
        value = cast((self.words[column, block, within] >> shift) & 2**self.bits - 1, "float32")
        scale = widen(self.scale)[column, block]
        if self.minimum is not None:
            return value * scale + widen(self.minimum)[column, block]
        if self.zero_point is None:
            return (value - 2.0 ** (self.bits - 1)) * scale
        in_byte = 8 // self.bits
        byte = cast(self.zero_point[column, block // in_byte], "uint32")
        zero = (byte >> cast(block % in_byte * self.bits, "uint32")) & 2**self.bits - 1
        return (value - cast(zero, "float32")) * scale


def _few_rows(flat: Traced, packed: _Packed, bias: Traced | None, result: Input) -> Workgroups:
    """The product of a few rows [rows, inner]; each workgroup computes `COLUMNS` columns."""
    (rows, inner), (columns, blocks, of_block) = flat.shape, packed.words.shape
    words, x = blocks * of_block, widen(flat)
    team = min(TEAM, 1 << (words - 1).bit_length())
    program = Workgroups([-(-columns // COLUMNS)], width=COLUMNS * team * rows)
    (tile,) = program.positions
    partial = program.shared_array([rows, COLUMNS, team])
    is_whole = words % team == 0 and words * packed.numbers == inner

    # The last tile may repeat the last column.
    def column(c: Traced) -> Traced:
        return clamp(tile * COLUMNS + c, 0, columns - 1)

    def of_word(row: Traced, c: Traced, word: Traced) -> Traced:
        def one(number: int) -> Traced:
            k = word * packed.numbers + number
            value = x.clamped[row, k] * packed.at(column(c), clamp(word, 0, words - 1), number)
            return value if is_whole else where(k < inner, value, 0)

        return reduce(add, map(one, range(packed.numbers)))

    def share(row: Traced, c: Traced, member: Traced) -> Traced:
        return dot(-(-words // team), lambda step: of_word(row, c, step * team + member))

    def total(row: Traced, c: Traced) -> Traced:
        value = sum_over(team, lambda member: program[partial][row, c, member])
        return value if bias is None else value + widen(bias)[column(c)]

    outer = result.desc.shape[:-1]

    def place(row: Traced, c: Traced) -> list[Traced]:
        return [*(row // stride % size for stride, size in zip(strides_of(outer), outer, strict=True)), column(c)]

    program.fill(partial, share)
    program.write(result, [rows, COLUMNS], place, total)
    return program


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
) -> Staged:
    (columns, blocks), inner = scale.shape, input.shape[-1]
    rows = math.prod(input.shape[:-1])

    def plan(stages: Stages) -> list[Traced]:
        words = stages.view(weight, [columns, blocks, block_size * bits // 32], "uint32")
        packed = _Packed(words, scale, zero_point, minimum, bits)
        result = stages.array(storage(input.data_type), [*input.shape[:-1], columns])
        if rows <= MAX_DIRECT_ROWS:
            return [stages.add(_few_rows(stages.view(input, [rows, inner]), packed, bias, result), result)]
        numbers = packed.numbers
        matrix = compute([columns, inner], lambda c, k: packed.at(c, k // numbers, k % numbers))
        unpacked = stages.store(matrix, "the weights", fold=False)
        problem = product(View.of(source_of(input)), View.of(source_of(unpacked)), b_transpose=True)
        return [stages.add(Products(problem, lambda total: total if bias is None else total + bias), result)]

    return Staged(plan)
