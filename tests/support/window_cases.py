"""Random calls of the composites with windows, as nodes of ONNX: odd sizes, and every attribute.

The results of ONNX Runtime are the witness, or those of ONNX's reference evaluator where `REASONS` says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from random import Random
from typing import Any

import numpy as np
from onnx.reference import ReferenceEvaluator
from samples import Call

from opweave import composites
from opweave.composites.convolve import deform_columns
from opweave.lazy.custom_call import CustomOp
from support.onnx_nodes import node_model, run_engine

COUNT = 200
"""Attribute sets of each composite."""

REASONS = {
    "Col2Im": "with dilations over one or three axes, ONNX Runtime puts elements elsewhere",
    "MaxUnpool": "with output_shape, ONNX Runtime takes positions as those in the larger result",
}


@dataclass
class WindowCase:
    """A call of a composite, and the node that does the same.

    Attributes:
        inputs: of the node; None for an absent one.
        dynamic: numbers of the inputs that are no constants of the model.
        by_reference: whether ONNX's reference evaluator is the witness, for the reason in `REASONS`.
    """

    op: CustomOp[Any]
    call: Call
    operator: str
    inputs: list[np.ndarray | None]
    attributes: dict[str, Any]
    outputs: int = 1
    dynamic: Sequence[int] = (0,)
    by_reference: bool = False
    opset: int = 22
    wanted: list[np.ndarray] = field(default_factory=list)

    def results(self) -> list[np.ndarray]:
        """What the witness gives."""
        model, feed = self.model()
        if self.by_reference:
            return [np.asarray(each) for each in ReferenceEvaluator(model).run(None, feed)]
        return run_engine(model, feed)

    def model(self) -> tuple[Any, dict[str, np.ndarray]]:
        present = [number for number in self.dynamic if self.inputs[number] is not None]
        return node_model(
            self.operator, self.inputs, self.attributes, opset=self.opset, outputs=self.outputs, dynamic=present
        )


MAKERS: dict[CustomOp[Any], Callable[[Random], WindowCase]] = {}


def _case(op: CustomOp[Any]) -> Callable[[Callable[[Random], WindowCase]], None]:
    def register(make: Callable[[Random], WindowCase]) -> None:
        MAKERS[op] = make

    return register


def case_of(op: CustomOp[Any], number: int) -> WindowCase:
    """The call with a number in [0, COUNT)."""
    return MAKERS[op](Random(f"{op.name} {number}"))


def _array(random: Random, shape: Sequence[int], data_type: str = "float32", size: int = 8) -> np.ndarray:
    """Multiples of 1/4: sums of few products are exact."""
    values = np.random.default_rng(random.getrandbits(32)).integers(-size, size, shape, endpoint=True)
    return (values / 4 if data_type.startswith("float") else values).astype(data_type)


@dataclass
class Windows:
    """The windows of a call over one, two or three axes."""

    sizes: list[int]
    taps: list[int]
    padding: list[int]
    strides: list[int]
    dilations: list[int]
    counts: list[int]

    @property
    def onnx(self) -> dict[str, Any]:
        """The attributes of the node, without kernel_shape."""
        pads = [*self.padding[::2], *self.padding[1::2]]
        return {"pads": pads, "strides": self.strides, "dilations": self.dilations}

    @property
    def ours(self) -> dict[str, Any]:
        return {"padding": self.padding, "strides": self.strides, "dilations": self.dilations}


def _windows(random: Random, axes: int, most: int = 7, ceil: bool = False, pooling: bool = False) -> Windows:
    """Windows that fit; those of poolings have less padding than taps, and begin in the input, as ONNX Runtime demands."""
    while True:
        taps = [random.randint(1, 3) for _ in range(axes)]
        dilations = [random.choice((1, 1, 2)) for _ in range(axes)]
        padding = [random.choice((0, 0, 1, 2)) for _ in range(2 * axes)]
        if pooling:
            padding = [min(pad, taps[k // 2] - 1) for k, pad in enumerate(padding)]
        strides = [random.choice((1, 1, 2, 3)) for _ in range(axes)]
        sizes = [random.randint(1, most) for _ in range(axes)]
        rooms = [
            size + before + after - (tap - 1) * dilation - 1
            for size, tap, before, after, dilation in zip(
                sizes, taps, padding[::2], padding[1::2], dilations, strict=True
            )
        ]
        if min(rooms) < 0:
            continue
        counts = [
            (-(-room // stride) if ceil else room // stride) + 1 for room, stride in zip(rooms, strides, strict=True)
        ]
        if ceil:  # a last window that begins in the padding behind the input does not count
            begin = zip(counts, strides, sizes, padding[::2], strict=True)
            counts = [n - ((n - 1) * stride >= size + before) for n, stride, size, before in begin]
        windows = Windows(sizes, taps, padding, strides, dilations, counts)
        if not pooling or _have_elements(windows):
            return windows


def _have_elements(windows: Windows) -> bool:
    """Whether each window has an element of the input; what others give differs between engines."""
    return all(
        any(0 <= window * stride - before + tap * dilation < size for tap in range(taps))
        for size, taps, before, stride, dilation, count in zip(
            windows.sizes,
            windows.taps,
            windows.padding[::2],
            windows.strides,
            windows.dilations,
            windows.counts,
            strict=True,
        )
        for window in range(count)
    )


@_case(composites.convolution)
def _(random: Random) -> WindowCase:
    windows, groups = _windows(random, random.choice((1, 2, 3, 3))), random.choice((1, 1, 2, 3))
    inputs, outputs = random.randint(1, 4), groups * random.randint(1, 3)
    x = _array(random, [random.randint(1, 2), groups * inputs, *windows.sizes])
    w = _array(random, [outputs, inputs, *windows.taps])
    bias = _array(random, [outputs]) if random.random() < 0.5 else None
    call = Call(x, w, bias, groups=groups, **windows.ours)
    return WindowCase(composites.convolution, call, "Conv", [x, w, bias], {**windows.onnx, "group": groups})


@_case(composites.conv_transpose)
def _(random: Random) -> WindowCase:
    while True:
        windows, groups = _windows(random, random.choice((1, 2, 3, 3)), 5), random.choice((1, 1, 2, 3))
        more = [random.randrange(stride) for stride in windows.strides]
        columns = (windows.sizes, windows.taps, windows.padding[::2], windows.padding[1::2], windows.strides)
        sizes = [
            (size - 1) * stride + (tap - 1) * dilation + 1 - before - after + added
            for size, tap, before, after, stride, dilation, added in zip(*columns, windows.dilations, more, strict=True)
        ]
        if min(sizes) > 0:
            break
    inputs, outputs = groups * random.randint(1, 3), random.randint(1, 3)
    x = _array(random, [random.randint(1, 2), inputs, *windows.sizes])
    w = _array(random, [inputs, outputs, *windows.taps])
    bias = _array(random, [groups * outputs]) if random.random() < 0.5 else None
    chosen = {"output_sizes": sizes} if random.random() < 0.5 else {"output_padding": more}
    call = Call(x, w, bias, groups=groups, **chosen, **windows.ours)
    attributes = {**windows.onnx, "group": groups, "output_padding": more}
    return WindowCase(composites.conv_transpose, call, "ConvTranspose", [x, w, bias], attributes)


def _pooling(random: Random) -> tuple[Windows, dict[str, Any], dict[str, Any]]:
    """Windows of a pooling, and the options of the composite and of the node."""
    ceil = random.random() < 0.4
    windows = _windows(random, random.choice((1, 2, 3, 3)), ceil=ceil, pooling=True)
    ours = {**windows.ours, "window_dimensions": windows.taps, "output_sizes": windows.counts}
    return windows, ours, {**windows.onnx, "kernel_shape": windows.taps, "ceil_mode": int(ceil)}


@_case(composites.average_pool)
def _(random: Random) -> WindowCase:
    windows, ours, attributes = _pooling(random)
    includes = random.random() < 0.5
    x = _array(random, [random.randint(1, 2), random.randint(1, 3), *windows.sizes])
    call = Call(x, include_padding=includes, **ours)
    attributes |= {"count_include_pad": int(includes)}
    return WindowCase(composites.average_pool, call, "AveragePool", [x], attributes)


@_case(composites.max_pool)
def _(random: Random) -> WindowCase:
    windows, ours, attributes = _pooling(random)
    x = _array(random, [random.randint(1, 2), random.randint(1, 3), *windows.sizes], random.choice(("float32", "int8")))
    return WindowCase(composites.max_pool, Call(x, **ours), "MaxPool", [x], attributes)


@_case(composites.max_pool_with_indices)
def _(random: Random) -> WindowCase:
    windows, ours, attributes = _pooling(random)
    is_column_major = random.random() < 0.5
    # Few values, so that windows have several maxima.
    data_type = random.choice(("float32", "uint8"))
    x = abs(_array(random, [random.randint(1, 2), random.randint(1, 3), *windows.sizes], data_type, 3))
    call = Call(x, order="column-major" if is_column_major else "row-major", **ours)
    attributes |= {"storage_order": int(is_column_major)}
    return WindowCase(composites.max_pool_with_indices, call, "MaxPool", [x], attributes, outputs=2)


@_case(composites.lp_pool)
def _(random: Random) -> WindowCase:
    windows, ours, attributes = _pooling(random)
    p = random.choice((1, 2, 3, 5))
    x = _array(random, [random.randint(1, 2), random.randint(1, 3), *windows.sizes])
    return WindowCase(composites.lp_pool, Call(x, p, **ours), "LpPool", [x], {**attributes, "p": p})


@_case(composites.max_unpool)
def _(random: Random) -> WindowCase:
    axes = random.choice((1, 2, 3))
    sizes, taps = [random.randint(1, 3) for _ in range(axes)], [random.randint(1, 3) for _ in range(axes)]
    strides = [random.randint(1, 3) for _ in range(axes)]
    result = [(size - 1) * stride + tap for size, stride, tap in zip(sizes, strides, taps, strict=True)]
    shape = [random.randint(1, 2), random.randint(1, 3), *sizes]
    x, total = _array(random, shape), prod(shape[:2]) * prod(result)
    order = np.random.default_rng(random.getrandbits(32)).permutation(total)
    indices = np.resize(order, prod(shape)).reshape(shape) if total >= prod(shape) else np.zeros(shape, np.int64)
    if total < prod(shape):
        x = np.full_like(x, 2.5)  # all elements have one place
    attributes = {"kernel_shape": taps, "strides": strides}
    call = Call(x, indices.astype(np.int64), result)
    return WindowCase(
        composites.max_unpool, call, "MaxUnpool", [x, indices.astype(np.int64)], attributes, dynamic=(0, 1)
    )


@_case(composites.col2im)
def _(random: Random) -> WindowCase:
    axes = random.choice((1, 2, 3))
    windows = _windows(random, axes, 6)
    columns = random.randint(1, 3) * prod(windows.taps)
    x = _array(random, [random.randint(1, 2), columns, prod(windows.counts)])
    call = Call(x, windows.sizes, windows.taps, **windows.ours)
    inputs: list[np.ndarray | None] = [x, np.array(windows.sizes), np.array(windows.taps)]
    by_reference = axes != 2 and max(windows.dilations) > 1
    return WindowCase(composites.col2im, call, "Col2Im", inputs, windows.onnx, by_reference=by_reference)


def _deformed(random: Random) -> tuple[Windows, int, int, list[np.ndarray], np.ndarray | None]:
    windows, offset_groups, batches = _windows(random, 2), random.randint(1, 2), random.randint(1, 2)
    channels, moved = offset_groups * random.choice((2, 4)), offset_groups * prod(windows.taps)
    x = _array(random, [batches, channels, *windows.sizes])
    offset = _array(random, [batches, 2 * moved, *windows.counts], size=random.choice((3, 9, 40)))
    mask = _array(random, [batches, moved, *windows.counts]) if random.random() < 0.5 else None
    return windows, channels, offset_groups, [x, offset], mask


@_case(composites.deform_conv)
def _(random: Random) -> WindowCase:
    windows, channels, offset_groups, (x, offset), mask = _deformed(random)
    groups = random.choice((1, 2))
    outputs = groups * random.randint(1, 3)
    w = _array(random, [outputs, channels // groups, *windows.taps])
    bias = _array(random, [outputs]) if random.random() < 0.5 else None
    call = Call(x, w, offset, mask, bias, groups=groups, offset_groups=offset_groups, **windows.ours)
    attributes = {**windows.onnx, "group": groups, "offset_group": offset_groups}
    return WindowCase(
        composites.deform_conv, call, "DeformConv", [x, w, offset, bias, mask], attributes, dynamic=(0, 2, 4)
    )


@_case(deform_columns)
def _(random: Random) -> WindowCase:
    windows, channels, offset_groups, (x, offset), mask = _deformed(random)
    call = Call(x, offset, mask, taps=windows.taps, offset_groups=offset_groups, **windows.ours)
    # Each filter copies one tap of one channel.
    w = np.eye(channels * prod(windows.taps), dtype=np.float32).reshape(-1, channels, *windows.taps)
    attributes = {**windows.onnx, "offset_group": offset_groups}
    return WindowCase(deform_columns, call, "DeformConv", [x, w, offset, None, mask], attributes, dynamic=(0, 2, 4))
