"""Forms of narrow weights that the engine's kernels for 4 and 8 bits compute right, and fast.

The kernels take blocks of a power of two along the inner axis, with a scale for each block of each column. Other products are
brought to these kernels:

- Blocks of a multiple of 16 are divided into such ones, and their scales and zero points repeated.
- Other blocks are padded to a multiple of 16, in the weight and in the input.
- For smaller blocks that columns share, the input is multiplied by the scales: each group of columns becomes one product.

The last two do not round the input to 8 bits. The kernels for 8 bits are slow without this rounding, so that a
product with numbers of 8 bits, 16 * high + low, becomes two products with numbers of 4 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any, Literal, Protocol, TypeVar

import numpy as np

from ...composites.packing import pack_codes, unpack_codes
from ...core.graph import Operand
from ...core.sizes import is_same_size, is_static
from ...support.records import record

FLOAT_LEVEL, INT8_LEVEL = 1, 4
"""Values of `accuracy_level` of MatMulNBits: float32 operands, and 8-bit operands."""

SMALLEST_BLOCK, LARGEST_BLOCK = 16, 256
"""Block sizes of the kernels."""

DIVIDED_BLOCK = 128
"""Largest blocks into which others are divided. The engine rounds the other operand in such blocks."""

SMALLEST_PADDED = 4
"""Smallest blocks that are padded. With smaller ones, the scales take more memory than the numbers in float32 would."""

LARGE_MATRIX = 2**11
"""The smallest matrix, or group of columns, in numbers, that is worth the additional nodes. An estimate."""

FEW_ROWS = 16
"""The largest number of rows for which two products of 4 bits are faster than one of 8 bits that is dequantised at each run.
With a matrix of 1,536 x 1,536 in blocks of 24, the two products took 1.0 to 1.6 times as long for 64 rows, and 0.3 times for
one row."""

MOST_GROUPS = 2048
"""The largest number of products into which one is divided. An estimate."""

KernelForm = Literal["", "blocks", "padded", "scaled"]
"""The form in which a product comes to the kernels; empty if it does not."""


def kernel_block(block_size: int) -> int:
    """The size of blocks of a kernel into which blocks can be divided; 0 if there is none.

    >>> kernel_block(32), kernel_block(48), kernel_block(24), kernel_block(2048)
    (32, 16, 0, 128)
    """
    power = block_size & -block_size
    if power < SMALLEST_BLOCK:
        return 0
    return power if power == block_size <= LARGEST_BLOCK else min(power, DIVIDED_BLOCK)


def padded_block(block_size: int) -> int:
    """The size to which blocks are padded, so that `kernel_block` has one.

    >>> padded_block(24), padded_block(7), padded_block(48)
    (32, 16, 48)
    """
    return -(-block_size // SMALLEST_BLOCK) * SMALLEST_BLOCK


@record(eq=True, slots=False)
class NarrowMatrix:
    """The columns of a product by narrow numbers, as `matmul_n_bits` takes them.

    Attributes:
        weight: packed numbers [columns, ...].
        scale: the scale of each block [groups of columns, blocks].
        zero_point: packed zero points [groups of columns, bytes], or None.
        width: the count of numbers of a column.
        bits: the bits of a number, 4 or 8.
        block_size: the count of numbers of a column that share a scale.
    """

    weight: np.ndarray
    scale: np.ndarray
    zero_point: np.ndarray | None
    width: int
    bits: int
    block_size: int

    @property
    def columns(self) -> int:
        return self.weight.shape[0]

    def form(self, rows: int | None, *, is_exact: bool) -> KernelForm:
        """The form in which the engine multiplies `rows` rows fast; None is an unknown number of rows.

        `is_exact` excludes forms whose sums cancel each other. The packed numbers are not read.
        """
        groups = len(self.scale)
        if kernel_block(self.block_size):
            return "blocks"
        if self.columns * self.width < LARGE_MATRIX or (is_exact and self.bits == 8):
            return ""
        if self.bits == 8 and rows is not None and rows > FEW_ROWS:
            return ""
        if self.block_size >= SMALLEST_PADDED:
            return "" if self.bits == 8 and rows is None else "padded"
        is_large = groups == 1 or (self.columns // groups) * self.width >= LARGE_MATRIX
        if not is_large or groups > MOST_GROUPS or self.columns // groups < SMALLEST_BLOCK:
            return ""
        return "" if is_exact and self.fixed_zeros() is None else "scaled"

    def zeros(self) -> np.ndarray:
        """The zero points, unpacked."""
        if self.zero_point is None:
            return np.full(self.scale.shape, 1 << (self.bits - 1), np.uint8)
        return unpack_codes(self.zero_point, self.scale.shape[1], self.bits)

    def fixed_zeros(self) -> np.ndarray | None:
        """The zero point of each group; None if it varies within a group."""
        zeros = self.zeros()
        return zeros[:, 0] if (zeros == zeros[:, :1]).all() else None

    def codes(self) -> np.ndarray:
        """The numbers of each column, unpacked, as far as they are stored."""
        flat = self.weight.reshape(self.columns, -1)
        return unpack_codes(flat, min(flat.shape[1] * 8 // self.bits, self.scale.shape[1] * self.block_size), self.bits)

    def pad(self) -> NarrowMatrix:
        """The matrix with padded blocks. The input of the product must be padded in the same way."""
        (_, blocks), size = self.scale.shape, padded_block(self.block_size)
        codes = self.codes()
        codes = np.pad(codes, [(0, 0), (0, blocks * self.block_size - codes.shape[1])])
        codes = np.pad(
            codes.reshape(self.columns, blocks, self.block_size), [(0, 0), (0, 0), (0, size - self.block_size)]
        )
        packed = np.ascontiguousarray(pack_codes(codes, self.bits))
        return replace(self, weight=packed, width=blocks * size, block_size=size)

    def halves(self) -> list[NarrowMatrix]:
        """Matrices of 4 bits and scales of float32, whose products add up to that of this matrix."""
        scale = self.scale.astype(np.float32)
        if self.bits == 4:
            return [replace(self, scale=scale)]
        halves = []
        for shift, factor in ((4, 16), (0, 1)):
            weight, zeros = (pack_codes(codes >> shift & 15, 4) for codes in (self.codes(), self.zeros()))
            halves.append(NarrowMatrix(weight, scale * factor, zeros, self.width, 4, self.block_size))
        return halves


def form_of(
    input: Operand,
    weight: Operand,
    scale: Operand,
    zero_point: Operand | None,
    bits: int,
    block_size: int,
    *,
    is_exact: bool,
) -> KernelForm:
    """The form of a `matmul_n_bits`. Kernels must take operands that are no constants as they are."""
    *rows, width = input.shape
    operands = (weight, scale) if zero_point is None else (weight, scale, zero_point)
    if isinstance(width, int) and all(operand.is_constant for operand in operands):
        arrays = (weight.value, scale.value, None if zero_point is None else zero_point.value)
        matrix = NarrowMatrix(*arrays, width, bits, block_size)
        return matrix.form(prod(rows) if is_static(rows) else None, is_exact=is_exact)
    return "blocks" if has_kernel_blocks(weight, scale, block_size) else ""


def has_kernel_blocks(weight: Operand, scale: Operand, block_size: int) -> bool:
    """Whether the blocks of operands are those of the kernels, so that operands may be computed."""
    is_power = block_size >= SMALLEST_BLOCK and not block_size & (block_size - 1)
    return is_power and is_same_size(scale.shape[0], weight.shape[0])


LARGE_TABLE = 2**16
"""The smallest table, in elements, from which a lookup of an unknown number of rows reads narrow numbers. An estimate."""


def gains_from_lookup(rows: int, width: int, indices: Sequence[int] | None) -> bool:
    """Whether a lookup dequantises less than the whole table; `indices` is the shape of the places, if it is known."""
    if indices is None or not is_static(indices):
        return rows * width >= LARGE_TABLE
    return prod(indices) <= rows


def kernel_matrix(matrix: NarrowMatrix) -> NarrowMatrix:
    """Divide blocks and repeat scales, so that the kernels take them: packed numbers become [columns, blocks, bytes].

    The matrix has the form "blocks".
    """
    rows, (groups, blocks), bits = matrix.columns, matrix.scale.shape, matrix.bits
    scale, zero_point = matrix.scale, matrix.zero_point
    size = kernel_block(matrix.block_size)
    count = -(-matrix.width // size)

    def repeat(values: np.ndarray) -> np.ndarray:
        along = np.repeat(values, matrix.block_size // size, axis=1)[:, :count]
        return np.ascontiguousarray(np.repeat(along, rows // groups, axis=0))

    if size != matrix.block_size or groups != rows:
        scale = repeat(scale)
        if zero_point is not None:
            zero_point = np.ascontiguousarray(pack_codes(repeat(unpack_codes(zero_point, blocks, bits)), bits))
    of_block = size * bits // 8
    numbers = matrix.weight.reshape(rows, -1)[:, : count * of_block]
    weight = np.ascontiguousarray(numbers).reshape(rows, count, of_block)
    return NarrowMatrix(weight, scale, zero_point, matrix.width, bits, size)


# Products ------------------------------------------------------------------------------------------------------------

V = TypeVar("V")


class Emit(Protocol[V]):
    """Write a node, and return its result. MatMulNBits is an operator of the engine's own domain."""

    def __call__(self, op_type: str, *inputs: V | None, **attributes: Any) -> V: ...


def write_padded(matrix: NarrowMatrix, x: V, bias: V | None, emit: Emit[V], constant: Callable[[np.ndarray], V]) -> V:
    """Write a product of the form "padded": `x`, whose blocks are padded, and `bias` are float32."""
    products = [_multiply(half, x, emit, constant) for half in matrix.pad().halves()]
    y = products[0] if len(products) == 1 else emit("Add", *products)
    return y if bias is None else emit("Add", y, bias)


def write_scaled(matrix: NarrowMatrix, x: V, bias: V | None, emit: Emit[V], constant: Callable[[np.ndarray], V]) -> V:
    """Write a product of the form "scaled": `x` and `bias` are float32.

    Zero points that vary along a column are subtracted in a product of floats.
    """
    groups = len(matrix.scale)
    count, middle = matrix.columns // groups, 1 << (matrix.bits - 1)
    scale = _along(matrix.scale.astype(np.float32), matrix)
    fixed, codes = matrix.fixed_zeros(), matrix.codes()[:, : matrix.width]
    products: list[list[V]] = []
    for group in range(groups):
        scaled = emit("Mul", x, constant(np.ascontiguousarray(scale[group])))
        zero = np.full((1, 1), middle if fixed is None else fixed[group], np.uint8)
        columns = _integers(codes[group * count : (group + 1) * count], zero, matrix.bits)
        products.append([_multiply(half, scaled, emit, constant) for half in columns.halves()])
    sums = [parts[0] if groups == 1 else emit("Concat", *parts, axis=-1) for parts in zip(*products, strict=True)]
    y = sums[0] if len(sums) == 1 else emit("Add", *sums)
    if fixed is None:
        offset = emit(
            "MatMul", x, constant(np.ascontiguousarray((scale * (_along(matrix.zeros(), matrix) - middle)).T))
        )
        if count > 1:
            offset = emit("MatMul", offset, constant(np.repeat(np.eye(groups, dtype=np.float32), count, axis=1)))
        y = emit("Sub", y, offset)
    return y if bias is None else emit("Add", y, bias)


def _along(values: np.ndarray, matrix: NarrowMatrix) -> np.ndarray:
    """Repeat a value of each block for each number of it, as float32."""
    return np.repeat(values.astype(np.float32), matrix.block_size, axis=1)[:, : matrix.width]


def _integers(codes: np.ndarray, zero: np.ndarray, bits: int) -> NarrowMatrix:
    """Columns of numbers with a single zero point, and without scales, in one block."""
    width = codes.shape[1]
    size = -(-width // DIVIDED_BLOCK) * DIVIDED_BLOCK
    packed = pack_codes(np.pad(codes, [(0, 0), (0, size - width)]), bits)
    return NarrowMatrix(packed, np.ones((1, 1), np.float32), pack_codes(zero, bits), width, bits, size)


def _multiply(matrix: NarrowMatrix, x: V, emit: Emit[V], constant: Callable[[np.ndarray], V]) -> V:
    """Write a product by a matrix of 4 bits whose blocks can be divided, without rounding."""
    divided = kernel_matrix(matrix)
    operands = [None if a is None else constant(a) for a in (divided.weight, divided.scale, divided.zero_point)]
    sizes = {"K": divided.width, "N": divided.columns, "bits": 4, "block_size": divided.block_size}
    return emit("MatMulNBits", x, *operands, accuracy_level=FLOAT_LEVEL, **sizes)
