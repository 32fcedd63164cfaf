"""Sliding windows of convolutions and poolings, as ONNX describes them.

WebNN has windows over two axes. An input with one spatial axis gets another of size 1 before it; composites have windows over
three axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ....context.builder import MLGraphBuilder
from ....core.graph import MLOperand
from ....core.shapes import window_extent
from ....core.size_functions import larger
from ...model.registry import Tensor, Unsupported, shape_of, unsupported_if


def reshape(b: MLGraphBuilder, value: Tensor, shape: Sequence[int]) -> Tensor:
    """Reshape `value`. Constants stay constants, and share the memory."""
    if shape_of(value) == tuple(shape):
        return value
    if isinstance(value, np.ndarray):
        return value.reshape(shape)
    if value.is_constant:
        return b.constant(value.value.reshape(shape))
    return b.reshape(value, shape)


def with_two_axes(b: MLGraphBuilder, value: Tensor) -> Tensor:
    """Give an image or filter two spatial axes: a single one gets another of size 1 before it."""
    shape = shape_of(value)
    return reshape(b, value, (*shape[:2], *[1] * (4 - len(shape)), *shape[2:]))


def without_added_axis(b: MLGraphBuilder, y: MLOperand, like: Tensor) -> MLOperand:
    """The result `y` with as many axes as the input `like`."""
    return y if len(shape_of(like)) > 3 else b.reshape(y, [*y.shape[:2], y.shape[3]])


@dataclass(frozen=True)
class WindowAxis:
    """Windows of `taps` elements along one axis. Windows are `stride` apart, their elements `dilation`."""

    size: int
    taps: int
    stride: int
    dilation: int
    before: int
    after: int

    @property
    def extent(self) -> int:
        """The number of input elements that a window spans."""
        return window_extent(self.taps, self.dilation)

    def count(self, ceil: bool) -> int:
        """The number of windows; with `ceil`, the last one may reach beyond the padded input, but not start after it."""
        room = self.size + self.before + self.after - self.extent
        count = (-(-room // self.stride) if ceil else room // self.stride) + 1
        return count - 1 if ceil and (count - 1) * self.stride >= self.size + self.before else count

    def pad_for(self, count: int) -> WindowAxis:
        """Pad after the input as much as `count` windows need."""
        end = (count - 1) * self.stride + self.extent
        return replace(self, after=larger(end - self.size - self.before, 0))

    def include_padding(self) -> WindowAxis:
        """Return this axis for an input that already contains the padding."""
        return replace(self, size=self.size + self.before + self.after, before=0, after=0)


@dataclass(frozen=True)
class WindowAttributes:
    """Attributes of all ONNX operators with sliding windows. Default: a stride of 1, and no padding."""

    auto_pad: str = "NOTSET"
    dilations: Sequence[int] | None = None
    kernel_shape: Sequence[int] | None = None
    pads: Sequence[int] | None = None
    strides: Sequence[int] | None = None

    def over(self, X: Tensor, taps: Sequence[int]) -> list[WindowAxis]:
        """The windows along the axes of `with_two_axes(b, X)`, two or three; `taps` are the sizes of a window."""
        sizes = shape_of(X)[2:]
        rank = len(sizes)
        unsupported_if(rank not in (1, 2, 3), f"Opweave has windows over at most three axes, not over {rank}")
        strides, dilations = list(self.strides or [1] * rank), list(self.dilations or [1] * rank)
        pads = list(self.pads or [0] * 2 * rank)
        if self.auto_pad not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER", ""):
            raise Unsupported(f"auto_pad is {self.auto_pad!r}")
        unsupported_if(min(pads) < 0, "its padding is negative")
        begins, ends = pads[:rank], pads[rank:]
        axes = [WindowAxis(*axis) for axis in zip(sizes, taps, strides, dilations, begins, ends, strict=True)]
        if self.auto_pad == "VALID":
            axes = [replace(axis, before=0, after=0) for axis in axes]
        elif self.auto_pad.startswith("SAME"):
            axes = [self._same(axis) for axis in axes]
        return [WindowAxis(1, 1, 1, 1, 0, 0)] * (2 - rank) + axes

    def _same(self, axis: WindowAxis) -> WindowAxis:
        """An axis with padding for one window every `stride` elements of the input."""
        end = (-(-axis.size // axis.stride) - 1) * axis.stride + axis.extent
        before, after = halve(max(end - axis.size, 0), self.auto_pad)
        return replace(axis, before=before, after=after)

    def of_filter(self, X: Tensor, W: Tensor) -> list[WindowAxis]:
        """The windows of a filter over an image."""
        taps = shape_of(W)[2:]
        if self.kernel_shape is not None and tuple(self.kernel_shape) != taps:
            raise Unsupported(f"kernel_shape {list(self.kernel_shape)} is not that of the filter, {list(taps)}")
        return self.over(X, taps)

    def of_pooling(self, X: Tensor) -> list[WindowAxis]:
        """The windows of a pooling over an image."""
        if self.kernel_shape is None:
            raise Unsupported("it has no kernel_shape")
        return self.over(X, self.kernel_shape)


PLAIN = WindowAttributes()


def options(axes: Sequence[WindowAxis]) -> dict[str, Any]:
    """The arguments of WebNN's convolutions and poolings."""
    return {
        "padding": [padding for axis in axes for padding in (axis.before, axis.after)],
        "strides": [axis.stride for axis in axes],
        "dilations": [axis.dilation for axis in axes],
    }


def halve(total: int, auto_pad: str) -> tuple[int, int]:
    """Split padding into before and after. Of an odd number, SAME_UPPER puts the larger half after, others before."""
    less = total // 2
    return (less, total - less) if auto_pad == "SAME_UPPER" else (total - less, less)
