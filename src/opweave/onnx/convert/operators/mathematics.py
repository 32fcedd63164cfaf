"""ONNX operators of mathematics: angles, hyperbolic functions, bits, products, matrices, Fourier transforms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ....composites import bits, cumulative, elementary, fourier, linear_algebra
from ....context.builder import MLGraphBuilder
from ....core.casts import cast_array
from ....core.graph import MLOperand
from ...model.protobuf import TensorProto
from ...model.registry import (
    DATA_TYPES,
    MICROSOFT,
    Tensor,
    Unsupported,
    as_type,
    by_name,
    check_count,
    constant_of,
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


@converts("MelWeightMatrix")
def _(
    b: MLGraphBuilder,
    num_mel_bins: Tensor,
    dft_length: Tensor,
    sample_rate: Tensor,
    lower_edge_hertz: Tensor,
    upper_edge_hertz: Tensor,
    *,
    output_datatype: int = TensorProto.FLOAT,
) -> Tensor:
    data_type = DATA_TYPES.get(output_datatype)
    if data_type is None:
        raise Unsupported(f"WebNN has no {TensorProto.DataType.Name(output_datatype).lower()}")
    bands, length = integer(num_mel_bins, "num_mel_bins"), integer(dft_length, "dft_length")
    rate = integer(sample_rate, "sample_rate")
    low, high = (
        float(constant_of(edge, name).reshape(()))
        for name, edge in {"lower_edge_hertz": lower_edge_hertz, "upper_edge_hertz": upper_edge_hertz}.items()
    )
    unsupported_if(bands < 1 or length < 1 or rate < 1, f"it has {bands} bands, {length} samples, and a rate of {rate}")
    unsupported_if(not 0 <= low <= high < math.inf, f"its edges are {low:g} and {high:g}")
    check_count((length // 2 + 1) * bands)
    return cast_array(_mel_weights(bands, length, rate, low, high), data_type)


def _mel_weights(bands: int, length: int, rate: int, low: float, high: float) -> np.ndarray:
    """Weights [frequencies, bands] of triangular bands, whose edges are at equal distances in mel.

    As ONNX defines it, the step is that of `bands` + 2 intervals, though the edges have one interval less.
    """
    first, last = (2595 * math.log1p(edge / 700) / math.log(10) for edge in (low, high))
    mel = first + np.arange(bands + 2) * ((last - first) / (bands + 2))
    hertz = 700 * np.expm1(mel / 2595 * math.log(10))
    edges, frequencies = (length + 1) * hertz // rate, length // 2 + 1
    unsupported_if(edges[-2] >= frequencies or edges[-1] > frequencies, f"its edges exceed {frequencies} frequencies")
    places = edges.astype(np.int64)
    weights = np.zeros((frequencies, bands))
    for band, (start, centre, end) in enumerate(zip(places[:-2], places[1:-1], places[2:], strict=True)):
        rising, falling = np.arange(start, centre + 1), np.arange(centre, end)
        weights[rising, band] = (rising - start) / (centre - start) if centre > start else 1
        weights[falling, band] = (end - falling) / max(end - centre, 1)
    return weights


# Fourier transforms of ONNX Runtime, with the signal in the last axes -------------------------------------------------


def _signal_axes(rank: int, count: int, normalized: int, onesided: int) -> list[int]:
    unsupported_if(normalized or not onesided, "it is normalised, or not one-sided")
    unsupported_if(not 1 <= count <= rank, f"it has {count} axes of the signal, of {rank}")
    return list(range(rank - count, rank))


@converts("Rfft", domain=MICROSOFT)
def _(b: MLGraphBuilder, X: MLOperand, *, normalized: int = 0, onesided: int = 1, signal_ndim: int) -> MLOperand:
    *others, last = _signal_axes(X.rank, signal_ndim, normalized, onesided)
    y = fourier.dft(b, b.reshape(X, [*X.shape, 1]), axis=last, onesided=True)
    for axis in others:
        y = fourier.dft(b, y, axis=axis)
    return y


@converts("Irfft", domain=MICROSOFT)
def _(b: MLGraphBuilder, X: MLOperand, *, normalized: int = 0, onesided: int = 1, signal_ndim: int) -> MLOperand:
    *others, last = _signal_axes(X.rank - 1, signal_ndim, normalized, onesided)
    y = X
    for axis in others:
        y = fourier.dft(b, y, axis=axis, inverse=True)
    y = fourier.dft(b, y, axis=last, inverse=True, onesided=True)
    return b.reshape(y, y.shape[:-1])
