"""Made-up calls of the composites of quantised integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from samples import Call, Make

from opweave import composites
from support import witness
from support.cases import case

BYTES = ("uint8", "int8")


def _bytes(make: Make, *shape: int, data_type: str = "int8") -> np.ndarray:
    """All bytes, so that long sums are beyond what float32 holds."""
    info = np.iinfo(data_type)
    return make.random.integers(info.min, info.max, shape, np.int64, endpoint=True).astype(data_type)


def _saturated(total: np.ndarray, factor: Any, zero_point: np.ndarray) -> np.ndarray:
    info = np.iinfo(zero_point.dtype)
    return np.clip(np.rint(total * factor) + zero_point, info.min, info.max).astype(zero_point.dtype)


def _power(make: Make, *shape: int) -> np.ndarray:
    """Powers of two, by which products are exact."""
    return np.asarray(2.0 ** make.random.integers(-8, -2, shape), np.float32)


@case(composites.integer_matmul, BYTES)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    rows, inner, columns = make.integer(1, 4), make.choice((1, 5, 259, 600)), make.integer(1, 4)
    right = make.choice(BYTES)
    a = _bytes(make, *make.shape(0, 2, 3), rows, inner, data_type=make.types["x"])
    b = _bytes(make, inner, columns, data_type=right)
    shapes = make.choice(((), (rows, 1))), make.choice(((), (columns,)))
    zeros = [
        _bytes(make, *shape, data_type=x.dtype.name) if make.boolean() else None
        for shape, x in zip(shapes, (a, b), strict=True)
    ]
    x, y = (side.astype(int) - (0 if zero is None else zero) for side, zero in zip((a, b), zeros, strict=True))
    return Call(a, b, *zeros), [(x @ y).astype(np.int32)]


@case(composites.quantized_matmul, BYTES)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    rows, inner, columns = make.integer(1, 4), make.choice((1, 5, 259, 600)), make.integer(1, 4)
    right, result = make.choice(BYTES), make.choice(BYTES)
    a = _bytes(make, rows, inner, data_type=make.types["x"])
    b = _bytes(make, inner, columns, data_type=right)
    zeros = [np.asarray(_bytes(make, data_type=name)) for name in (a.dtype.name, right, result)]
    scales = _power(make, *make.choice(((), (rows, 1)))), _power(make, *make.choice(((), (columns,)))), _power(make)
    total = (a.astype(int) - zeros[0]) @ (b.astype(int) - zeros[1])
    wanted = _saturated(total, scales[0].astype(float) * scales[1] / scales[2], zeros[2])
    return Call(a, scales[0], zeros[0], b, scales[1], zeros[1], scales[2], zeros[2]), [wanted]


def _windows(make: Make) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any], np.ndarray]:
    """An image, a filter, their zero points, options, and the sums."""
    groups, right = make.choice((1, 1, 2)), make.choice(BYTES)
    channels, outputs, height, width = (
        make.choice((1, 3, 70)),
        make.integer(1, 3),
        make.integer(1, 3),
        make.integer(1, 3),
    )
    x = _bytes(
        make, make.integer(1, 2), groups * channels, make.integer(5, 8), make.integer(5, 8), data_type=make.types["x"]
    )
    w = _bytes(make, groups * outputs, channels, height, width, data_type=right)
    zeros = _bytes(make, data_type=x.dtype.name), _bytes(make, *make.choice(((), (len(w),))), data_type=right)
    options: dict[str, Any] = {
        "padding": [make.integer(0, 2) for _ in range(4)],
        "strides": [make.integer(1, 2), make.integer(1, 2)],
        "dilations": [make.integer(1, 2), make.integer(1, 2)],
        "groups": groups,
    }
    top, bottom, left, right_side = options["padding"]
    image = np.pad(x.astype(int) - zeros[0], [(0, 0), (0, 0), (top, bottom), (left, right_side)])
    filter = w.astype(int) - zeros[1].reshape(-1, 1, 1, 1)
    (down, across), (tall, wide_step) = options["strides"], options["dilations"]
    sizes = [
        (image.shape[2 + k] - (w.shape[2 + k] - 1) * options["dilations"][k] - 1) // options["strides"][k] + 1
        for k in range(2)
    ]
    total = np.zeros((len(x), len(w), *sizes), int)
    for i in range(height):
        for j in range(width):
            part = image[:, :, i * tall :: down, j * wide_step :: across][:, :, : sizes[0], : sizes[1]]
            for g in range(groups):
                own = slice(g * outputs, (g + 1) * outputs)
                channel = part[:, g * channels : (g + 1) * channels]
                total[:, own] += np.einsum("nchw,oc->nohw", channel, filter[own, :, i, j])
    return x, w, np.asarray(zeros[0]), np.asarray(zeros[1]), options, total


@case(composites.integer_conv2d, BYTES)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    x, w, x_zero, w_zero, options, total = _windows(make)
    return Call(x, w, x_zero, w_zero, **options), [total.astype(np.int32)]


@case(composites.quantized_conv2d, BYTES)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    x, w, x_zero, w_zero, options, total = _windows(make)
    scales = _power(make), _power(make, *make.choice(((), (len(w),)))), _power(make)
    zero = np.asarray(_bytes(make, data_type=make.choice(BYTES)))
    bias = make.random.integers(-(2**16), 2**16, len(w)).astype(np.int32) if make.boolean() else None
    factor = scales[0].astype(float) * scales[1].reshape(1, -1, 1, 1) / scales[2]
    wanted = _saturated(total + (0 if bias is None else bias.reshape(1, -1, 1, 1)), factor, zero)
    return Call(x, scales[0], x_zero, w, scales[1], w_zero, scales[2], zero, bias, **options), [wanted]


@case(composites.dequantized_matmul, BYTES, rtol=1e-5, atol=1e-3)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    rows, inner, columns = make.integer(1, 4), make.choice((1, 5, 259)), make.integer(1, 4)
    a = _bytes(make, rows, inner, data_type=make.types["x"])
    b = _bytes(make, inner, columns, data_type=make.choice(BYTES))
    zeros = [np.asarray(_bytes(make, data_type=x.dtype.name)) if make.boolean() else None for x in (a, b)]
    scales = _power(make), _power(make, *make.choice(((), (columns,))))
    bias = make.random.normal(size=columns).astype(np.float32) if make.boolean() else None
    x, y = (side.astype(int) - (0 if zero is None else zero) for side, zero in zip((a, b), zeros, strict=True))
    wanted = (x @ y) * (scales[0].astype(float) * scales[1]) + (0 if bias is None else bias)
    return Call(a, scales[0], b, scales[1], *zeros, bias), [wanted.astype(np.float32)]


def _two(make: Make) -> tuple[Call, list[np.ndarray], float, float, np.ndarray]:
    """A call with two tensors, their elements without zero points, and the scales and the zero point of the result."""
    data_type, shape = make.types["x"], make.shape(0, 3)
    sides = [_bytes(make, *part, data_type=data_type) for part in (shape, make.broadcastable(shape))]
    zeros = [np.asarray(_bytes(make, data_type=data_type)) for _ in range(3)]
    scales = [np.asarray(2.0 ** make.integer(-3, 0), np.float32) for _ in range(3)]
    call = Call(
        np.asarray(sides[0]), scales[0], zeros[0], np.asarray(sides[1]), scales[1], zeros[1], scales[2], zeros[2]
    )
    numbers = [side.astype(int) - zero for side, zero in zip(sides, zeros, strict=False)]
    a, b, result = (float(scale) for scale in scales)
    return call, numbers, a / result, b / result, zeros[2]


def _clipped(steps: np.ndarray, data_type: Any) -> np.ndarray:
    info = np.iinfo(data_type)
    return np.asarray(np.clip(np.rint(steps), info.min, info.max)).astype(data_type)


@case(composites.quantized_add, BYTES)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    call, (a, b), of_a, of_b, zero = _two(make)
    return call, [_clipped(a * of_a + b * of_b + zero, zero.dtype)]


@case(composites.quantized_mul, BYTES)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    call, (a, b), of_a, _, zero = _two(make)
    return call, [_clipped(a * b * (of_a * float(call.args[4])) + zero, zero.dtype)]


def _one(make: Make) -> tuple[list[Any], np.ndarray]:
    """The arguments of a call with one tensor, and its real numbers."""
    data_type = make.types["x"]
    x, *zeros = (np.asarray(_bytes(make, *shape, data_type=data_type)) for shape in (make.shape(0, 3), (), ()))
    scales = [np.asarray(2.0 ** make.integer(-5, -3), np.float32) for _ in range(2)]
    return [x, scales[0], zeros[0], scales[1], zeros[1]], (x.astype(int) - zeros[0]) * float(scales[0])


@case(composites.quantized_concat, BYTES)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    data_type, shape = make.types["x"], make.shape(1, 4)
    axis = make.integer(0, len(shape) - 1)
    zero = np.asarray(_bytes(make, data_type=data_type))
    scale = np.asarray(2.0 ** make.integer(-3, 0), np.float32)
    inputs, scales, zeros, wanted = [], [], [], []
    for _ in range(make.integer(1, 4)):
        size = make.integer(1, 5)
        inputs.append(
            _bytes(make, *(size if k == axis else other for k, other in enumerate(shape)), data_type=data_type)
        )
        is_same = make.boolean()
        scales.append(scale if is_same else np.asarray(2.0 ** make.integer(-5, 2), np.float32))
        zeros.append(zero if is_same else np.asarray(_bytes(make, data_type=data_type)))
        steps = np.rint((inputs[-1].astype(int) - zeros[-1]) * float(scales[-1]) / float(scale)) + zero
        wanted.append(_clipped(steps, zero.dtype))
    return Call(inputs, scales, zeros, scale, zero, axis), [np.concatenate(wanted, axis)]


@case(composites.quantized_mean, BYTES)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    arguments, _ = _one(make)
    x = np.asarray(_bytes(make, *make.shape(1, 4), data_type=make.types["x"]))
    axes = sorted(make.subset(range(x.ndim)))
    keep = make.boolean()
    # The scales are powers of two: only the count of the terms rounds.
    total = (x.astype(int) - arguments[2]).sum(axis=tuple(axes), keepdims=keep)
    count = np.prod([x.shape[axis] for axis in axes], dtype=np.float32)
    factor = arguments[1] / (arguments[3] * count)
    steps = np.rint(total.astype(np.float32) * factor) + arguments[4]
    return Call(x, *arguments[1:], axes, keep_dimensions=keep), [_clipped(steps, x.dtype)]


@case(composites.quantized_sigmoid, BYTES)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    arguments, real = _one(make)
    steps = np.rint(witness.sigmoid(real) / arguments[3]) + arguments[4]
    return Call(*arguments), [_clipped(steps, arguments[4].dtype)]


@case(composites.quantized_leaky_relu, BYTES)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    arguments, real = _one(make)
    alpha = make.choice((0.5, 2.0, -0.25))
    steps = np.rint(np.where(real < 0, alpha * real, real) / arguments[3]) + arguments[4]
    return Call(*arguments, alpha=alpha), [_clipped(steps, arguments[4].dtype)]


@case(composites.dynamic_quantize_linear, ("float32",))
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    # A range of 255 times a power of two has exact steps.
    step = np.float32(2.0 ** make.integer(-4, 4))
    x = make.random.integers(0, 256, make.shape()).astype(np.float32)
    x.reshape(-1)[:2] = [0, 255][: x.size]
    zero = make.integer(0, 255)
    x = (x - zero) * step
    low, high = min(x.min(), 0), max(x.max(), 0)
    scale = np.float32(high - low) / np.float32(255) if high > low else np.float32(1)
    point = np.uint8(np.rint(-low / scale))
    return Call(x), [np.clip(np.rint(x / scale) + point, 0, 255).astype(np.uint8), scale, point]
