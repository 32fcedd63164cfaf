"""Sliding windows of convolutions and poolings over one or two spatial axes, as ONNX describes them.

WebNN has windows over two axes; one axis gets a second one of size 1 before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...builder import MLGraphBuilder
from ...graph import MLOperand
from ...shapes import window_extent
from ..registry import Tensor, Unsupported, shape_of


def reshaped(b: MLGraphBuilder, value: Tensor, shape: Sequence[int]) -> Tensor:
    """A value with other dimensions; constants stay constants, and keep their memory."""
    if shape_of(value) == tuple(shape):
        return value
    if isinstance(value, np.ndarray):
        return value.reshape(shape)
    if value.is_constant:
        return b.constant(value.value.reshape(shape))
    return b.reshape(value, shape)


def with_two_axes(b: MLGraphBuilder, value: Tensor) -> Tensor:
    """An image of one spatial axis as one of two, and that of two as it is."""
    shape = shape_of(value)
    if len(shape) not in (3, 4):
        raise Unsupported(f"WebNN has windows over two axes, not over {len(shape) - 2}")
    return reshaped(b, value, (*shape[:2], *[1] * (4 - len(shape)), *shape[2:]))


@dataclass(frozen=True)
class WindowAttributes:
    """The attributes that all ONNX operators with sliding windows have. Default: windows one apart, without padding."""

    auto_pad: str = "NOTSET"
    dilations: Sequence[int] | None = None
    kernel_shape: Sequence[int] | None = None
    pads: Sequence[int] | None = None
    strides: Sequence[int] | None = None

    def over(self, sizes: Sequence[int], taps: Sequence[int]) -> Windows:
        """The windows of the sizes `taps` over an image with the spatial axes `sizes`.

        Raises:
            Unsupported: the attributes do not fit these, or WebNN has no such windows.
        """
        rank = len(sizes)
        steps, apart = list(self.strides or [1] * rank), list(self.dilations or [1] * rank)
        given = list(self.pads or [0] * 2 * rank)
        for name, value, count in (("kernel_shape", taps, rank), ("strides", steps, rank), ("pads", given, 2 * rank)):
            if len(value) != count:
                raise Unsupported(f"{name} has {len(value)} values for {rank} spatial axes")
        if len(apart) != rank or min([*steps, *apart], default=1) < 1:
            raise Unsupported(f"strides {steps} and dilations {apart} do not describe windows")
        if self.auto_pad not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER", ""):
            raise Unsupported(f"auto_pad is {self.auto_pad!r}")
        if self.auto_pad == "VALID":
            given = [0] * 2 * rank
        elif self.auto_pad.startswith("SAME"):
            pairs = []
            for size, tap, step, dilation in zip(sizes, taps, steps, apart, strict=True):
                total = max((-(-size // step) - 1) * step + window_extent(tap, dilation) - size, 0)
                pairs.append(halved(total, self.auto_pad))
            given = [pair[0] for pair in pairs] + [pair[1] for pair in pairs]
        if min(given, default=0) < 0:
            raise Unsupported("its padding is negative")
        return Windows(rank, list(sizes), list(taps), steps, apart, given[:rank], given[rank:])

    def of_filter(self, X: Tensor, W: Tensor) -> Windows:
        """The windows of a filter over an image."""
        taps = shape_of(W)[2:]
        if self.kernel_shape is not None and tuple(self.kernel_shape) != taps:
            raise Unsupported(f"kernel_shape {list(self.kernel_shape)} is not that of the filter, {list(taps)}")
        return self.over(shape_of(X)[2:], taps)

    def of_pooling(self, X: Tensor) -> Windows:
        """The windows of a pooling over an image."""
        if self.kernel_shape is None:
            raise Unsupported("it has no kernel_shape")
        return self.over(shape_of(X)[2:], self.kernel_shape)


PLAIN = WindowAttributes()


@dataclass(frozen=True)
class Windows:
    """Windows over one or two spatial axes.

    Attributes:
        rank: how many spatial axes there are.
        sizes: of the input.
        taps: sizes of the window.
        before: padding at the beginning.
        after: padding at the end.
    """

    rank: int
    sizes: Sequence[int]
    taps: Sequence[int]
    strides: Sequence[int]
    dilations: Sequence[int]
    before: Sequence[int]
    after: Sequence[int]

    def counts(self, ceil: bool) -> list[int]:
        """The number of windows along each axis; with `ceil`, the last one may reach beyond the input, but starts inside."""
        counts = []
        for size, tap, stride, dilation, before, after in self._axes():
            room = size + before + after - window_extent(tap, dilation)
            count = (-(-room // stride) if ceil else room // stride) + 1
            if ceil and (count - 1) * stride >= size + before:
                count -= 1
            counts.append(count)
        return counts

    def reaching(self, counts: Sequence[int]) -> Windows:
        """The same windows, padded at the end just as far as `counts` windows reach."""
        after = [
            max((count - 1) * stride + window_extent(tap, dilation) - size - before, 0)
            for count, (size, tap, stride, dilation, before, _) in zip(counts, self._axes(), strict=True)
        ]
        return Windows(self.rank, self.sizes, self.taps, self.strides, self.dilations, self.before, after)

    def padded(self) -> Windows:
        """The same windows over an input to which the padding has been added."""
        sizes = [size + before + after for size, before, after in zip(self.sizes, self.before, self.after, strict=True)]
        zeros = [0] * self.rank
        return Windows(self.rank, sizes, self.taps, self.strides, self.dilations, zeros, zeros)

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of WebNN's operations over two axes."""
        missing = 2 - self.rank
        before, after = [0] * missing + [*self.before], [0] * missing + [*self.after]
        return {
            "padding": [before[0], after[0], before[1], after[1]],
            "strides": [1] * missing + [*self.strides],
            "dilations": [1] * missing + [*self.dilations],
        }

    @property
    def window_dimensions(self) -> list[int]:
        """Height and width of the window."""
        return [1] * (2 - self.rank) + [*self.taps]

    def pad(self, b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        """`x`, which has two spatial axes, with zeros where the padding is."""
        if not any([*self.before, *self.after]):
            return x
        skip = [0] * (4 - self.rank)
        return b.pad(x, [*skip, *self.before], [*skip, *self.after])

    def _axes(self) -> Any:
        return zip(self.sizes, self.taps, self.strides, self.dilations, self.before, self.after, strict=True)


def without_added_axis(b: MLGraphBuilder, y: MLOperand, windows: Windows) -> MLOperand:
    """The result with as many spatial axes as the input had."""
    return y if windows.rank == 2 else b.reshape(y, [*y.shape[:2], y.shape[3]])


def halved(total: int, auto_pad: str) -> tuple[int, int]:
    """Padding divided between beginning and end; the odd one goes to the end for SAME_UPPER, else to the beginning."""
    less = total // 2
    return (less, total - less) if auto_pad == "SAME_UPPER" else (total - less, less)
