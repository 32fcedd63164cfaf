"""ONNX Runtime rules: quantisation; `integers` has those of products of integers.

The engine supports one scale per tensor, per index of an axis, or per block along one axis. Merging adjacent dimensions may
reach one of these forms. Otherwise each dimension is split into (blocks, elements of a block), and the scale broadcasts.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ....composites import quantization as composites
from ....core.dtypes import INFO, is_float
from ....core.graph import Operand
from ....core.sizes import is_static
from ....ops import quantization as ops
from ... import Precision
from .. import kernels
from ..backend import ort
from ..dequantised import BYTES, Form, merge_axes, native_forms, shared_constants
from ..emit import MICROSOFT, Emitter, Value
from ..narrow import (
    FLOAT_LEVEL,
    INT8_LEVEL,
    KernelForm,
    NarrowMatrix,
    form_of,
    has_kernel_blocks,
    kernel_block,
    kernel_matrix,
    padded_block,
    write_padded,
    write_scaled,
)
from ..products import MOVED_OR_REMOVED, dequantiser_of, has_one_scale
from .indexing import clamp_indices


def _keep_int8_apart(ctx: Emitter, integer: str) -> None:
    """Disable an optimiser pass that inserts QuantizeLinear of int8, with the type as an attribute, after movements.

    A later pass changes the zero point to uint8, but not the attribute, and the graph is invalid.
    """
    if integer == "int8":
        ctx.disabled_optimizers.add("QDQPropagationTransformer")


def _emit(ctx: Emitter, op_type: str, form: Form, input: Value, scale: Value, zero_point: Value | None) -> Value:
    shape, part, attributes = form
    z = None if zero_point is None else ctx.reshape(zero_point, part)
    operands: list[Any] = [ctx.reshape(input, shape), ctx.reshape(scale, part), z]
    result = scale.data_type if zero_point is None or op_type == "DequantizeLinear" else zero_point.data_type
    return _finish(ctx, ctx.emit(op_type, *operands, data_type=result, shape=shape, **attributes))


def _widen(ctx: Emitter, integer: str, input: Value, scale: Value, zero_point: Value) -> list[Value]:
    """Cast the operands to floats that hold sums of two `integer` values exactly, and reshape them so that they broadcast."""
    wide = "float32" if INFO[integer].bits <= 16 else "float64"
    shape, part = merge_axes(input.dims, scale.dims)
    shaped = ctx.reshape(input, shape), ctx.reshape(scale, part), ctx.reshape(zero_point, part)
    return [ctx.cast(value, wide) for value in shaped]


def _finish(ctx: Emitter, result: Value) -> Value:
    return ctx.reshape(ctx.cast(result, ctx.output.data_type), ctx.output.shape)


def _to_unsigned(ctx: Emitter, input: Value, zero_point: Value) -> tuple[Value, Value]:
    """Convert int8 `input` and `zero_point` to uint8, if the engine might multiply them by uint8 in a saturating kernel.

    The engine itself converts int8 constants with one reader, and int8 results of QuantizeLinear.
    """
    source = ctx.node.inputs["input"]
    assert isinstance(source, Operand)
    is_quantised = source.node is not None and source.node.op is ops.quantize_linear
    if input.data_type != "int8" or ctx.portable or not kernels.saturates():
        return input, zero_point
    if (source.is_constant or is_quantised) and ctx.node not in ctx.answer(shared_constants):
        return input, zero_point
    return flip_sign(ctx, input), flip_sign(ctx, zero_point)


def flip_sign(ctx: Emitter, value: Value) -> Value:
    signed = value.data_type == "int8"
    array = ctx.array_of(value)
    if array is not None:
        return ctx.add_constant((array.view("uint8") ^ 128).view("uint8" if signed else "int8"))
    bits = ctx.cast(value, "uint8")
    flipped = ctx.emit("BitwiseXor", bits, ctx.scalar(128, bits), shape=value.dims)
    return flipped if signed else ctx.cast(flipped, "int8")


@ort.lower(ops.dequantize_linear)
def _(ctx: Emitter, input: Value, scale: Value, zero_point: Value) -> Value:
    _keep_int8_apart(ctx, input.data_type)
    input, zero_point = _to_unsigned(ctx, input, zero_point)
    forms, zeros = native_forms(input.dims, scale.dims), ctx.array_of(zero_point)
    if scale.data_type == "bfloat16":  # the kernels take scales of float32 and float16
        scale = ctx.cast(scale, "float32")
    elif scale.data_type == "float64":
        forms = []
    if is_float(input.data_type) and (zeros is None or zeros.any()):  # the kernel raises an error for other zero points
        forms = []
    if scale.data_type != "float64" and forms and INFO[input.data_type].bits <= 16:
        return _emit(ctx, "DequantizeLinear", forms[0], input, scale, zero_point)
    if input.data_type == "int32" and zeros is not None and not zeros.any():
        # Without zero points only: the kernel subtracts them in int32, which may overflow.
        if forms and ctx.array_of(input) is not None:  # a bias, fused into a convolution or product
            return _emit(ctx, "DequantizeLinear", forms[0], input, scale, None)
        # Avoid the kernel: the optimiser inserts QuantizeLinear of int32 after it, for which there is no kernel.
        shape, part = merge_axes(input.dims, scale.dims)
        wide = "float32" if scale.data_type == "float16" else scale.data_type  # float16 does not hold all of int32
        x, s = ctx.cast(ctx.reshape(input, shape), wide), ctx.cast(ctx.reshape(scale, part), wide)
        return _finish(ctx, ctx.emit("Mul", x, s))
    x, s, z = _widen(ctx, input.data_type, input, scale, zero_point)
    return _finish(ctx, ctx.emit("Mul", ctx.emit("Sub", x, z), s))


ROUNDS_WEIGHTS = "WeightBiasQuantization"
"""Optimiser pass of the engine for convolutions and products with a dequantised input and a quantised result. It rounds float
weights to 8 bits, and biases to multiples of a product of two scales."""

_ROUNDED_WITH_ZERO_POINT = frozenset({"Add", "AveragePool", "Mul"})
"""Operators that the engine fuses with the nodes that dequantise their operands and quantise their result. The kernels round
after they add the zero point, so an odd zero point changes the rounding of ties.
https://github.com/microsoft/onnxruntime/issues/11759"""

_ROUNDED_OTHERWISE = frozenset({"Softmax"})
"""Operators with a fused kernel that is off by one step for any zero point: it computes with integer tables."""

_PRODUCTS = frozenset({"Conv", "Gemm", "MatMul"})
"""Operators that the engine fuses with operands of several scales; `emit_product` checks these."""


def _keep_apart(ctx: Emitter, input: Value, scale: Value, zero_point: Value) -> Value:
    """Return `input`, behind a barrier if the engine would wrongly fuse the preceding operation with the quantisation.

    Some of its fused kernels round differently, and nearly all support one scale only. The engine also merges two consecutive
    quantisations into one with another scale and zero point.
    """
    zeros, scales = ctx.array_of(zero_point), ctx.array_of(scale)
    if ctx.portable or zeros is None or scales is None:  # the engine fuses constants only
        return input
    rounded = _ROUNDED_OTHERWISE | _ROUNDED_WITH_ZERO_POINT if (zeros % 2).any() else _ROUNDED_OTHERWISE
    is_single = scales.size == 1
    for node in ctx.producers(input.name, MOVED_OR_REMOVED):
        if node.op_type == "DequantizeLinear":
            others = [ctx.constants.get(name) for name in node.inputs[1:]]
            if is_single and not all(
                other is not None and other.dtype == own.dtype and other.tobytes() == own.tobytes()
                for own, other in zip((scales, zeros), others, strict=True)
            ):
                return ctx.insert_barrier(input)
        elif ctx.precision != "ieee" and (
            dequantised := [d for name in node.inputs if (d := dequantiser_of(ctx, name))]
        ):
            takes_scales = is_single and (node.op_type in _PRODUCTS or all(has_one_scale(ctx, d) for d in dequantised))
            if node.op_type in rounded or not takes_scales:
                return ctx.insert_barrier(input)
    return input


@ort.lower(ops.quantize_linear)
def _(ctx: Emitter, input: Value, scale: Value, zero_point: Value) -> Value:
    _keep_int8_apart(ctx, zero_point.data_type)
    # The kernels for blocks and for float16 convert to int32 before they saturate, which is wrong for large values.
    forms = [form for form in native_forms(input.dims, scale.dims) if "block_size" not in form[2]]
    if forms and zero_point.data_type in (*BYTES, "int16", "uint16"):
        x, s = ctx.cast(input, "float32"), ctx.cast(scale, "float32")
        ctx.disabled_optimizers.add(ROUNDS_WEIGHTS)
        x = _keep_apart(ctx, x, s, zero_point)
        return _emit(ctx, "QuantizeLinear", forms[0], x, s, zero_point)
    x, s, z = _widen(ctx, zero_point.data_type, input, scale, zero_point)
    info = INFO[ctx.output.data_type]
    if info.kind == "f":
        shifted = ctx.emit("Add", ctx.emit("Div", x, s), z)
        y = ctx.emit("Cast", shifted, data_type=ctx.output.data_type, to=info.onnx, saturate=1)
        return ctx.reshape(Value(y.name, y.data_type, tuple(merge_axes(input.dims, scale.dims)[0])), ctx.output.shape)
    shifted = ctx.emit("Add", ctx.emit("Round", ctx.emit("Div", x, s)), z)
    return _finish(ctx, ctx.emit("Clip", shifted, ctx.scalar(info.lowest, shifted), ctx.scalar(info.highest, shifted)))


def _has_fast_kernel(
    input: Operand,
    weight: Operand,
    scale: Operand,
    zero_point: Operand | None,
    minimum: Operand | None,
    scale_unit: Operand | None,
    upper: Operand | None,
    bits: int,
    block_size: int,
    accuracy: str,
    precision: Precision,
) -> bool:
    """Whether kernels support all operands, and are faster than a product of floats.

    With 8 bits and accuracy "float32", the kernel takes more than ten times as long. Minima as float zero points would make
    it slower still; the decomposition computes them by a separate product.
    """
    if bits == 2 or any(operand is not None for operand in (minimum, scale_unit, upper)):
        return False
    is_exact = precision == "ieee"
    form = form_of(input, weight, scale, zero_point, bits, block_size, is_exact=is_exact)
    if not form:
        return False
    return form != "blocks" or bits == 4 or (accuracy == "int8" and not is_exact)


def _has_lookup(
    weight: Operand,
    scale: Operand,
    zero_point: Operand | None,
    minimum: Operand | None,
    scale_unit: Operand | None,
    upper: Operand | None,
    bits: int,
    block_size: int,
) -> bool:
    """Whether the kernel that picks rows of a table supports all operands."""
    is_plain = bits != 2 and minimum is None and scale_unit is None and upper is None
    is_plain = is_plain and scale.data_type in ("float32", "float16")
    # GatherBlockQuantized of ONNX Runtime 1.32 refuses zero points whose dimensions, or those of the scales, have names.
    has_numbers = zero_point is None or is_static((*scale.shape, *zero_point.shape))
    return is_plain and has_numbers and _has_blocks(weight, scale, zero_point, block_size)


def _has_blocks(weight: Operand, scale: Operand, zero_point: Operand | None, block_size: int) -> bool:
    """Whether the engine's lookup takes the blocks of packed rows, or those into which constants are divided."""
    if all(operand is None or operand.is_constant for operand in (weight, scale, zero_point)):
        return bool(kernel_block(block_size))
    return has_kernel_blocks(weight, scale, block_size)


def _kernel_operands(
    ctx: Emitter, weight: Value, scale: Value, zero_point: Value | None, width: int, bits: int, block_size: int
) -> tuple[Value, Value, Value | None, int]:
    """The operands of a kernel, and the size of its blocks."""
    is_power = kernel_block(block_size) == block_size and scale.dims[0] == weight.dims[0]
    matrix = None if is_power else _constant_matrix(ctx, weight, scale, zero_point, width, bits, block_size)
    if matrix is not None:
        return _add_operands(ctx, kernel_matrix(matrix))
    rows = next((v.dims[0] for v in (weight, scale, zero_point) if v and isinstance(v.dims[0], int)), weight.dims[0])
    blocks = -(-width // block_size)
    weight = _with_numbers(ctx, weight, [rows, blocks, block_size * bits // 8])
    scale = _with_numbers(ctx, scale, [rows, blocks])
    if zero_point is not None:
        zero_point = _with_numbers(ctx, zero_point, [rows, -(-blocks * bits // 8)])
    return weight, scale, zero_point, block_size


def _constant_matrix(
    ctx: Emitter, weight: Value, scale: Value, zero_point: Value | None, width: int, bits: int, block_size: int
) -> NarrowMatrix | None:
    """The operands of a product; None unless all are constants."""
    numbers, scales = ctx.array_of(weight), ctx.array_of(scale)
    zeros = None if zero_point is None else ctx.array_of(zero_point)
    if numbers is None or scales is None or (zeros is None) != (zero_point is None):
        return None
    return NarrowMatrix(numbers, scales, zeros, width, bits, block_size)


def _add_operands(ctx: Emitter, matrix: NarrowMatrix) -> tuple[Value, Value, Value | None, int]:
    zeros = None if matrix.zero_point is None else ctx.add_constant(matrix.zero_point)
    return ctx.add_constant(matrix.weight), ctx.add_constant(matrix.scale), zeros, matrix.block_size


def _with_numbers(ctx: Emitter, value: Value, shape: Sequence[int]) -> Value:
    """The value in a shape without names, if it may have some: the engine refuses a name beside a number that it must equal.

    The engine may not infer numbers that nodes compute from values with names.
    """
    if not is_static(shape) or (is_static(value.dims) and ctx.is_declared(value)):
        return value
    sized: Value = ctx.emit("Reshape", value, ctx.constant(list(shape)), shape=tuple(shape))
    return sized


@ort.lower_contrib(composites.matmul_n_bits, when=_has_fast_kernel)
def _(
    ctx: Emitter,
    input: Value,
    weight: Value,
    scale: Value,
    zero_point: Value | None,
    bias: Value | None,
    bits: int,
    block_size: int,
    accuracy: str,
) -> Value:
    is_exact = ctx.precision == "ieee"
    level = INT8_LEVEL if accuracy == "int8" and not is_exact else FLOAT_LEVEL
    columns, inner = int(weight.dims[0]), input.dims[-1]
    matrix = _constant_matrix(ctx, weight, scale, zero_point, inner, bits, block_size)
    rows = prod(input.dims[:-1]) if is_static(input.dims[:-1]) else None
    form = "blocks" if matrix is None else matrix.form(rows, is_exact=is_exact)
    is_computed = bias is not None and ctx.array_of(bias) is None
    # The engine requires a bias of N elements, and must see this in the model.
    if bias is not None and is_computed and (ctx.any_size or not is_static(bias.dims)):
        bias = ctx.emit("Reshape", bias, ctx.constant([columns]), shape=(columns,))
    if form != "blocks":
        assert matrix is not None
        return _multiply_in_floats(ctx, matrix, form, input, bias)
    operands = _kernel_operands(ctx, weight, scale, zero_point, inner, bits, block_size)
    weight, scale, zero_point, block_size = operands
    sizes: dict[str, Any] = {"K": inner, "N": columns, "bits": bits, "block_size": block_size}
    return ctx.emit(
        "MatMulNBits", input, weight, scale, zero_point, None, bias, domain=MICROSOFT, accuracy_level=level, **sizes
    )


def _pad_blocks(ctx: Emitter, input: Value, matrix: NarrowMatrix) -> Value:
    """Pad the blocks of an input as `NarrowMatrix.pad` pads those of the matrix."""
    rows = input.dims[:-1]
    blocks, size = matrix.scale.shape[1], matrix.block_size

    def pad(x: Value, shape: Sequence[int]) -> Value:
        ends = [0] * (2 * x.rank - 1) + [shape[-1] - x.dims[-1]]
        padded: Value = x if not ends[-1] else ctx.emit("Pad", x, ctx.constant(ends), shape=shape)
        return padded

    x = ctx.reshape(pad(input, [*rows, blocks * size]), [*rows, blocks, size])
    whole = padded_block(size)
    return ctx.reshape(pad(x, [*rows, blocks, whole]), [*rows, blocks * whole])


def _multiply_in_floats(
    ctx: Emitter, matrix: NarrowMatrix, form: KernelForm, input: Value, bias: Value | None
) -> Value:
    def emit(op_type: str, *inputs: Value | None, **attributes: Any) -> Value:
        domain = MICROSOFT if op_type == "MatMulNBits" else ""
        y: Value = ctx.emit(op_type, *inputs, domain=domain, **attributes)
        return y

    x, added = ctx.cast(input, "float32"), None if bias is None else ctx.cast(bias, "float32")
    if form == "padded":
        y = write_padded(matrix, _pad_blocks(ctx, x, matrix), added, emit, ctx.add_constant)
    else:
        y = write_scaled(matrix, x, added, emit, ctx.add_constant)
    return ctx.cast(y, input.data_type)


@ort.lower_contrib(composites.gather_n_bits, when=_has_lookup)
def _(
    ctx: Emitter,
    weight: Value,
    scale: Value,
    indices: Value,
    zero_point: Value | None,
    width: int,
    bits: int,
    block_size: int,
) -> Value:
    places = clamp_indices(ctx, indices, weight.dims[0], "int64", "int32")
    weight, scale, zero_point, block_size = _kernel_operands(ctx, weight, scale, zero_point, width, bits, block_size)
    rows, blocks, of_block = weight.dims
    whole = blocks * of_block * 8 // bits
    operands = ctx.reshape(weight, [rows, blocks * of_block]), places, scale, zero_point
    attributes = {"bits": bits, "block_size": block_size, "gather_axis": 0, "quantize_axis": 1}
    shape = [*indices.dims, whole]
    y: Value = ctx.emit(
        "GatherBlockQuantized", *operands, data_type=scale.data_type, shape=shape, domain=MICROSOFT, **attributes
    )
    if whole == width:
        return y
    ends = [ctx.constant([number]) for number in (0, width, -1)]
    return ctx.emit("Slice", y, *ends, shape=[*indices.dims, width])
