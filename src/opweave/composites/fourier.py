"""Discrete Fourier transforms, as products with constant matrices.

A long transform is factorised. For n = n1 * n2, elements n2 * i1 + i2 and frequencies k1 + n1 * k2 (Cooley and Tukey, 1965):

    X[k1 + n1 * k2] = sum over i2 of w(n2)**(i2 * k2) * w(n)**(i2 * k1) * sum over i1 of w(n1)**(i1 * k1) * x[n2 * i1 + i2]

Each sum is a matrix product. A transform whose prime factors are all large becomes a convolution with a chirp (Bluestein,
1970): up to `MAX_CHIRP_PRODUCTS` elements three stacks of products, above that transforms whose length is a power of two.
Angles are computed in float64 from exact integers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..core.dtypes import FLOATS
from ..core.graph import Builder, Desc, Operand
from ..core.operation import Limits, N
from ..core.sizes import Size
from ..ops.constants import constant
from ..ops.movement import concat, move_axis
from ..ops.reduction import narrow, widen
from ..support.errors import require
from .declare import declare

if TYPE_CHECKING:
    from ..ops import Operations

MAX_LENGTH = 2**24
"""Maximum length of a transform, whose constants are a few times as large as the result."""

MAX_DIRECT = 512
"""Maximum length of a transform that is one matrix product: its matrix has 4 MiB. An estimate."""

BEST_FACTOR = 64
"""Maximum factor that is split off a longer transform. An estimate."""

MAX_CHIRP_PRODUCTS = 4096
"""Maximum length of a transform by a chirp as three stacks of products, whose constants have up to 64 n sqrt(2 n) bytes."""


def _second_last(input: Operand) -> int:
    return input.rank - 2


@declare(input=Limits(FLOATS, ranks=(2, N)))
def dft(
    self: Builder,
    input: Operand,
    length: int | None = None,
    *,
    axis: int | None = None,
    inverse: bool = False,
    onesided: bool = False,
    parts: Literal["both", "real"] = "both",
    label: str = "",
) -> Desc:
    """Compute the discrete Fourier transform along an axis.

    Args:
        input: float32 or float16 [..., 2], real and imaginary parts in the last dimension, or [..., 1] for real numbers.
        length: the number of elements to transform: the input is cut, or continued with zeros. Default: the size of the axis,
            or 2 * (size - 1) for the inverse of a one-sided transform.
        axis: in [0, rank - 1), so not the last one. Default: the one before it.
        inverse: whether to compute the inverse transform, which divides by the length.
        onesided: whether to return only the frequencies [0, length // 2] of real numbers, which determine the others; with
            `inverse`, whether the input has only these, so that the result is real.
        parts: "both", or "real" to compute only the real part of the result.

    Returns: An operand of the data type of `input`, and of its shape except that the axis has `length` elements, or
        length // 2 + 1 if `onesided`, and the last dimension is 2, or 1 for real parts and for the inverse of a one-sided
        transform. For n = length, `output[k]` is the sum of `input[i] * exp(-2j * pi * i * k / n)`.
    Raises: the last dimension is neither 1 nor 2, a one-sided transform of complex numbers, a wrong axis or length, or other
        `parts`.

    ONNX's DFT.

    >>> (dft(np.float32([[1], [2], [3], [4]]), onesided=True).round(3) + 0).tolist()
    [[10.0, 0.0], [-2.0, 2.0], [-2.0, 0.0]]
    """
    assert axis is not None
    require(0 <= axis < input.rank - 1, f"axis must be in [0, {input.rank - 1}), got {axis}")
    size = input.shape[-1]
    require(size == 1 or size == 2, f"the last dimension of input must be 1 or 2, got {input.desc}")
    require(parts in ("both", "real"), f"parts must be 'both' or 'real', got {parts!r}")
    is_real = size == 1
    require(not onesided or inverse or is_real, f"a one-sided transform takes real numbers, [..., 1], got {input.desc}")
    count = _length_of(input.shape[axis], length, inverse and onesided)
    shape = list(input.shape)
    shape[axis] = count // 2 + 1 if onesided and not inverse else count
    shape[-1] = 1 if (onesided and inverse) or parts == "real" else 2
    return Desc(input.data_type, tuple(shape))


def _length_of(size: int, length: int | None, halved: bool) -> int:
    count = length if length is not None else 2 * (size - 1) if halved else size
    require(count > 0, f"length must be greater than 0, got {count}")
    require(count <= MAX_LENGTH, f"length must be at most {MAX_LENGTH}, got {count}")
    return count


dft.default("axis")(_second_last)


@dft.decompose
def _(
    b: Operations,
    input: Operand,
    length: int | None,
    axis: int,
    inverse: bool,
    onesided: bool,
    parts: Literal["both", "real"],
) -> Operand:
    halved = inverse and onesided
    count = int(_length_of(input.shape[axis], length, halved))
    x = move_axis(b, widen(b, _without_zeros(input)), axis, input.rank - 2)
    others = x.shape[:-2]
    rows = prod(others)
    x = b.reshape(x, [rows, x.shape[-2], int(x.shape[-1])])
    x = _fit_length(b, x, count // 2 + 1 if halved else count)
    if halved:
        result = _to_real(b, x, count)
    else:
        frequencies = count // 2 + 1 if onesided else count
        result = _transform(b, x, count, inverse, frequencies, 1 if parts == "real" else 2)
    result = b.reshape(result, [*others, *result.shape[1:]])
    return narrow(b, move_axis(b, result, input.rank - 2, axis), input)


def _without_zeros(input: Operand) -> Operand:
    """The real part of numbers whose imaginary part is a constant of zeros, or the numbers.

    The products of these zeros with the finite elements of matrices are zeros, so leaving them out changes no sum.
    """
    if input.node is None or input.node.op is not concat or input.node.attributes["axis"] != input.rank - 1:
        return input
    real, *others = input.node.operands
    has_zeros = len(others) == 1 and others[0].is_constant and others[0].shape[-1] == 1
    return real if has_zeros and not np.any(others[0].value) else input


def _fit_length(b: Operations, x: Operand, count: int) -> Operand:
    """Cut the elements of [rows, elements, parts], or continue them with zeros."""
    size = x.shape[1]
    if size > count:
        return b.slice(x, [0, 0, 0], [x.shape[0], count, x.shape[2]])
    return b.pad(x, [0, 0, 0], [0, count - size, 0]) if size < count else x


def _matrix(n: int, inverse: bool, inputs: int, outputs: int, is_real: bool, parts: int) -> np.ndarray:
    """The matrix of a transform of length `n`: rows are parts of the inputs, columns the first `parts` of each output."""
    turns = np.outer(np.arange(inputs), np.arange(outputs)) % n
    angles = turns * (2 * np.pi / n) * (1 if inverse else -1)
    scale = 1 / n if inverse else 1.0
    cosines, sines = np.cos(angles) * scale, np.sin(angles) * scale
    rows = np.stack([cosines, sines][:parts], -1).reshape(inputs, parts * outputs)
    if is_real:
        return rows
    of_imaginary = np.stack([-sines, cosines][:parts], -1).reshape(inputs, parts * outputs)
    return np.stack([rows, of_imaginary], 1).reshape(2 * inputs, parts * outputs)


def _product(b: Operations, x: Operand, matrix: np.ndarray, shape: Sequence[int]) -> Operand:
    flat = b.reshape(x, [prod(x.shape[:-2]), x.shape[-2] * x.shape[-1]])
    return b.reshape(b.matmul(flat, constant(b, matrix, x.data_type)), shape)


def _transform(b: Operations, x: Operand, n: int, inverse: bool, frequencies: int, parts: int = 2) -> Operand:
    """Transform [rows, n, 1 or 2] to the first frequencies, [rows, frequencies, parts]; 1 part is the real one."""
    rows = x.shape[0]
    if n <= MAX_DIRECT:
        matrix = _matrix(n, inverse, n, frequencies, x.shape[2] == 1, parts)
        return _product(b, x, matrix, [rows, frequencies, parts])
    first = _factor(n)
    full = _by_chirp(b, x, n, inverse, parts) if first == 1 else _by_factors(b, x, first, n // first, inverse, parts)
    return full if frequencies == n else b.slice(full, [0, 0, 0], [rows, frequencies, parts])


def _factor(n: int) -> int:
    """The factor to split off: the largest divisor up to `BEST_FACTOR`, or the smallest one up to `MAX_DIRECT`; 1 for none."""
    divisors = [d for d in range(2, MAX_DIRECT + 1) if n % d == 0]
    usual = [d for d in divisors if d <= BEST_FACTOR]
    return usual[-1] if usual else divisors[0] if divisors else 1


def _by_factors(b: Operations, x: Operand, n1: int, n2: int, inverse: bool, parts: int) -> Operand:
    rows, _, input_parts = x.shape
    x = b.transpose(b.reshape(x, [rows, n1, n2, input_parts]), permutation=[0, 2, 1, 3])
    inner = _product(b, x, _matrix(n1, inverse, n1, n1, input_parts == 1, 2), [rows, n2, n1, 2])
    turns = np.outer(np.arange(n2), np.arange(n1))
    turned = _rotate(b, inner, turns * (2 * np.pi / (n1 * n2)) * (1 if inverse else -1))
    columns = b.reshape(b.transpose(turned, permutation=[0, 2, 1, 3]), [rows * n1, n2, 2])
    outer = b.reshape(_transform(b, columns, n2, inverse, n2, parts), [rows, n1, n2, parts])
    return b.reshape(b.transpose(outer, permutation=[0, 2, 1, 3]), [rows, n1 * n2, parts])


def _rotate(b: Operations, x: Operand, angles: np.ndarray) -> Operand:
    """Multiply complex numbers [rows, *angles, 2] by exp(1j * angles)."""
    return _multiply(b, x, np.exp(1j * angles))


def _multiply(b: Operations, x: Operand, factors: np.ndarray) -> Operand:
    """Multiply complex numbers [rows, *factors, 2] by constant complex factors."""
    # x * c + swapped(x) * d, where `swapped` swaps real and imaginary parts.
    equal = np.stack([factors.real] * 2, -1)
    crossed = np.stack([-factors.imag, factors.imag], -1)
    swapped = b.reverse(x, axes=[x.rank - 1])
    return x * constant(b, equal, x.data_type) + swapped * constant(b, crossed, x.data_type)


def _by_chirp(b: Operations, x: Operand, n: int, inverse: bool, parts: int) -> Operand:
    """Bluestein's transform: i * k = (i**2 + k**2 - (k - i)**2) / 2 turns the sum into a convolution."""
    squares = np.array([i * i % (2 * n) for i in range(n)], np.float64)
    chirp = np.exp(1j * squares * (np.pi / n) * (1 if inverse else -1))
    if n <= MAX_CHIRP_PRODUCTS:
        return _by_chirp_products(b, x, chirp, chirp / n if inverse else chirp, parts)
    size = 1 << (2 * n - 2).bit_length()
    spectrum = np.fft.fft(_around(chirp, size))
    if x.shape[2] == 1:
        x = b.pad(x, [0, 0, 0], [0, 0, 1])
    padded = _fit_length(b, _multiply(b, x, chirp), size)
    product = _multiply(b, _transform(b, padded, size, False, size), spectrum)
    convolved = _fit_length(b, _transform(b, product, size, True, size), n)
    result = _multiply(b, convolved, chirp / n if inverse else chirp)
    return result if parts == 2 else b.slice(result, [0, 0, 0], [*result.shape[:2], parts])


def _around(chirp: np.ndarray, size: int) -> np.ndarray:
    """The conjugate of a chirp at the positions -(n - 1) to n - 1 of a circle of `size` positions."""
    n = len(chirp)
    around = np.zeros(size, complex)
    around[:n] = chirp.conj()
    around[size - n + 1 :] = chirp[:0:-1].conj()
    return around


def _by_chirp_products(b: Operations, x: Operand, before: np.ndarray, after: np.ndarray, parts: int) -> Operand:
    """Bluestein's transform as three stacks of products, which contain all factors.

    The convolution has n1 * n2 positions, of which the first n = m * n2 or less have elements:

        x[n2 * i1 + i2] -> [i2][i1] -> [k1][i2] -> [j1][k1] -> y[j1 + n2 * j2], i1 and j2 < m

    The first product is the inner sum of a transform, with the chirp and the factors between its sums. The second one is
    the outer sum, the spectrum of the chirp, and the inner sum of the inverse transform: together a convolution of n2
    positions for each k1. The third one is the outer sum of the inverse transform.
    """
    n, (rows, _, input_parts) = len(before), x.shape
    n2 = math.isqrt(2 * n - 2) + 1
    n1 = -(-(2 * n - 1) // n2)
    m = -(-n // n2)
    size = n1 * n2
    turn = 2j * np.pi / size
    places = np.arange(m * n2).reshape(m, n2).T  # [i2, i1], or [j1, j2]
    k1 = np.arange(n1)

    def with_zeros(factors: np.ndarray) -> np.ndarray:
        return np.pad(factors, (0, m * n2 - n))[places]

    first = with_zeros(before)[:, :, None] * np.exp(-turn * (places[:, :, None] * k1 % size))
    spectrum = np.fft.fft(_around(before, size)).reshape(n2, n1).T / size
    kernel = np.fft.ifft(spectrum, axis=1) * n2
    steps = np.arange(n2)
    middle = kernel[:, (steps - steps[:, None]) % n2]
    last = with_zeros(after)[:, None, :] * np.exp(turn * (k1[:, None] * places[:, None, :] % size))

    y = b.reshape(_fit_length(b, x, m * n2), [rows, m, n2, input_parts])
    y = _stack_product(b, b.transpose(y, permutation=[2, 0, 1, 3]), first)
    y = _stack_product(b, b.transpose(y, permutation=[2, 1, 0, 3]), middle)
    y = _stack_product(b, b.transpose(y, permutation=[2, 1, 0, 3]), last, parts)
    y = b.reshape(b.transpose(y, permutation=[1, 2, 0, 3]), [rows, m * n2, parts])
    return _fit_length(b, y, n)


def _stack_product(b: Operations, x: Operand, matrices: np.ndarray, parts: int = 2) -> Operand:
    """Multiply [count, rows, inner, 1 or 2] by complex matrices [count, inner, outer] to [count, rows, outer, parts]."""
    count, rows, inner, input_parts = x.shape
    outer = matrices.shape[2]
    real = np.stack([matrices.real, matrices.imag][:parts], -1).reshape(count, inner, parts * outer)
    if input_parts == 2:
        imaginary = np.stack([-matrices.imag, matrices.real][:parts], -1).reshape(count, inner, parts * outer)
        real = np.stack([real, imaginary], 2).reshape(count, 2 * inner, parts * outer)
    product = b.matmul(b.reshape(x, [count, rows, inner * input_parts]), constant(b, real, x.data_type))
    return b.reshape(product, [count, rows, outer, parts])


def _to_real(b: Operations, x: Operand, n: int) -> Operand:
    """Compute the real numbers [rows, n, 1] of frequencies [rows, n // 2 + 1, parts]."""
    rows, bins, parts = x.shape
    if n <= MAX_DIRECT:
        # Each frequency but the first, and the last one of an even length, stands for its conjugate, too.
        weights = np.full((int(bins), 1), 2.0)
        weights[0] = 1
        if n % 2 == 0:
            weights[-1] = 1
        angles = (np.outer(np.arange(int(bins)), np.arange(n)) % n) * (2 * np.pi / n)
        real, imaginary = np.cos(angles) * weights / n, -np.sin(angles) * weights / n
        imaginary[0] = (
            0  # the imaginary parts of the first frequency, and of the last one of an even length, do not count
        )
        if n % 2 == 0:
            imaginary[-1] = 0
        matrix = real if parts == 1 else np.stack([real, imaginary], 1).reshape(-1, n)
        return _product(b, x, matrix, [rows, n, 1])
    if parts == 1:
        x = b.pad(x, [0, 0, 0], [0, 0, 1])
    signs = np.ones((int(bins), 2))
    signs[0, 1] = 0
    if n % 2 == 0:
        signs[-1, 1] = 0
    x = x * constant(b, signs, x.data_type)
    others = (n - 1) // 2
    mirrored = b.reverse(b.slice(x, [0, 1, 0], [rows, others, 2]), axes=[1]) * constant(b, [1.0, -1.0], x.data_type)
    full = _transform(b, b.concat([x, mirrored], 1), n, True, n)
    return b.slice(full, [0, 0, 0], [rows, n, 1])


@declare(
    signal=Limits(FLOATS, ranks=(3, 3)), window=Limits("signal", ranks=(1, 1)), output=Limits("signal", ranks=(4, 4))
)
def stft(
    self: Builder,
    signal: Operand,
    window: Operand | None = None,
    *,
    step: int,
    frame_length: int | None = None,
    onesided: bool = True,
    label: str = "",
) -> Desc:
    """Compute Fourier transforms of overlapping frames of a signal.

    Args:
        signal: float32 or float16 [batches, length, 1], or [batches, length, 2] with real and imaginary parts.
        window: factors for the elements of a frame, [frame_length]; default: ones.
        step: the distance of the begins of two frames.
        frame_length: the number of elements of a frame. Default: the length of the window, else of the signal.
        onesided: whether to return only the frequencies [0, frame_length // 2], for real signals.

    Returns: An operand of the data type of `signal` [batches, frames, frequencies, 2], where frames is
        (length - frame_length) // step + 1.
    Raises: the frames do not fit into the signal, the window has another length, or a one-sided transform of a complex signal.

    ONNX's STFT.

    >>> (stft(np.ones((1, 8, 1), "float32"), step=2, frame_length=4).round(3) + 0)[0, 0].tolist()
    [[4.0, 0.0], [0.0, 0.0], [0.0, 0.0]]
    """
    batches, length, parts = signal.shape
    require(parts == 1 or parts == 2, f"the last dimension of signal must be 1 or 2, got {signal.desc}")
    require(not onesided or parts == 1, f"a one-sided transform takes real signals, [..., 1], got {signal.desc}")
    require(step > 0, f"step must be greater than 0, got {step}")
    size = _frame_of(signal, window, frame_length)
    if window is not None:
        require(window.shape[0] == size, f"window must have {size} elements, the frame_length, got {window.desc}")
    require(size > 0, f"frame_length must be greater than 0, got {size}")
    require(size <= length, f"frame_length must be at most {length}, the length of the signal, got {size}")
    frames = (length - size) // step + 1
    return Desc(signal.data_type, (batches, frames, size // 2 + 1 if onesided else size, 2))


def _frame_of(signal: Operand, window: Operand | None, frame_length: int | None) -> int:
    if frame_length is not None:
        return frame_length
    return signal.shape[1] if window is None else window.shape[0]


@stft.decompose
def _(
    b: Operations, signal: Operand, window: Operand | None, step: int, frame_length: int | None, onesided: bool
) -> Operand:
    batches, length, parts = signal.shape
    size = int(_frame_of(signal, window, frame_length))
    frames: Any = (length - size) // step + 1
    x = widen(b, signal)
    if frames == 1:
        x = b.reshape(b.slice(x, [0, 0, 0], [batches, size, parts]), [batches, 1, size, parts])
    elif step >= size and not isinstance(frames, Size):
        # Frames that do not overlap are parts of rows of `step` elements.
        x = _fit_length(b, x, frames * step)
        x = b.slice(b.reshape(x, [batches, frames, step, parts]), [0] * 4, [batches, frames, size, parts])
    else:
        begins = np.arange(int(frames))[:, None] * step
        x = b.gather(x, constant(b, begins + np.arange(size), "int32"), axis=1)
    if window is not None:
        x = x * b.reshape(widen(b, window), [size, 1])
    return narrow(b, dft(b, x, axis=2, onesided=onesided), signal)
