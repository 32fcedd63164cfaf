"""ONNX operators of mathematics: angles, hyperbolic functions, bits, products, matrices, Fourier transforms."""

from __future__ import annotations

from typing import Any

from ....composites import bits, cumulative, elementary, fourier, linear_algebra
from ....context.builder import MLGraphBuilder
from ....core.graph import MLOperand
from ...model.protobuf import TensorProto
from ...model.registry import (
    DATA_TYPES,
    MICROSOFT,
    Tensor,
    Unsupported,
    as_type,
    by_name,
    converts,
    integer,
    normalize_axis,
    operand,
    register,
    unsupported_if,
)

register(by_name(elementary.acos, elementary.asin, elementary.atan, elementary.cosh, elementary.sinh))
register(by_name(elementary.acosh, elementary.asinh, elementary.atanh))
register(by_name(bits.bitwise_and, bits.bitwise_or, bits.bitwise_xor, bits.bitwise_not))
register(by_name(linear_algebra.det))
register(by_name(linear_algebra.inverse), domain=MICROSOFT)


@converts("BitShift")
def _(b: MLGraphBuilder, x: MLOperand, distance: MLOperand, *, direction: str) -> Tensor:
    unsupported_if(direction not in ("LEFT", "RIGHT"), f"its direction is {direction!r}")
    return (bits.shift_left if direction == "LEFT" else bits.shift_right)(b, x, distance)


@converts("BitCast")
def _(b: MLGraphBuilder, x: MLOperand, *, to: int) -> Tensor:
    data_type = DATA_TYPES.get(to)
    if data_type is None:
        raise Unsupported(f"WebNN has no {TensorProto.DataType.Name(to).lower()}")
    return b.identity(x) if x.data_type == data_type else bits.bit_cast(b, x, data_type)


@converts("CumProd")
def _(b: MLGraphBuilder, x: MLOperand, axis: Tensor, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    along = normalize_axis(integer(axis, "the axis"), x.rank)
    return cumulative.cumulative_product(b, x, along, exclusive=bool(exclusive), reversed=bool(reverse))


@converts("DFT", moved=["axis"])
def _(
    b: MLGraphBuilder,
    input: MLOperand,
    dft_length: Tensor | None = None,
    axis: Tensor | None = None,
    *,
    inverse: int = 0,
    onesided: int = 0,
    opset: int,
) -> Tensor:
    default = 1 if opset < 20 else -2
    along = normalize_axis(default if axis is None else integer(axis, "the axis"), input.rank)
    options: dict[str, Any] = {"axis": along, "inverse": bool(inverse), "onesided": bool(onesided)}
    return fourier.dft(b, input, None if dft_length is None else integer(dft_length, "the length"), **options)


@converts("STFT")
def _(
    b: MLGraphBuilder,
    signal: MLOperand,
    frame_step: Tensor,
    window: Tensor | None = None,
    frame_length: Tensor | None = None,
    *,
    onesided: int = 1,
) -> Tensor:
    size = None if frame_length is None else integer(frame_length, "the length of frames")
    step = integer(frame_step, "the step")
    factors = None if window is None else operand(b, as_type(b, window, signal.data_type))
    return fourier.stft(b, signal, factors, step=step, frame_length=size, onesided=bool(onesided))
