"""What convolutions and poolings share: sliding windows over one or two spatial axes, the way ONNX describes them.

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
class Windows:
    """Windows over one or two spatial axes, with everything that ONNX leaves to defaults filled in.

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

    @classmethod
    def of(
        cls,
        sizes: Sequence[int],
        taps: Sequence[int],
        strides: Sequence[int] | None,
        dilations: Sequence[int] | None,
        pads: Sequence[int] | None,
        auto_pad: str,
    ) -> Windows:
        """The windows that the attributes of a node describe."""
        rank = len(sizes)
        steps, apart = list(strides or [1] * rank), list(dilations or [1] * rank)
        given = list(pads or [0] * 2 * rank)
        for name, value, count in (("kernel_shape", taps, rank), ("strides", steps, rank), ("pads", given, 2 * rank)):
            if len(value) != count:
                raise Unsupported(f"{name} has {len(value)} values for {rank} spatial axes")
        if len(apart) != rank or min([*steps, *apart], default=1) < 1:
            raise Unsupported(f"strides {steps} and dilations {apart} do not describe windows")
        if auto_pad not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER", ""):
            raise Unsupported(f"auto_pad is {auto_pad!r}")
        if auto_pad == "VALID":
            given = [0] * 2 * rank
        elif auto_pad.startswith("SAME"):
            pairs = []
            for size, tap, step, dilation in zip(sizes, taps, steps, apart, strict=True):
                total = max((-(-size // step) - 1) * step + window_extent(tap, dilation) - size, 0)
                pairs.append(halved(total, auto_pad))
            given = [pair[0] for pair in pairs] + [pair[1] for pair in pairs]
        if min(given, default=0) < 0:
            raise Unsupported("its padding is negative")
        return cls(rank, list(sizes), list(taps), steps, apart, given[:rank], given[rank:])

    def counts(self, ceil: bool) -> list[int]:
        """How many windows there are along each axis; with `ceil` a last one may stick out, but not start beyond the input."""
        counts = []
        for size, tap, stride, dilation, before, after in self._axes():
            room = size + before + after - window_extent(tap, dilation)
            count = (-(-room // stride) if ceil else room // stride) + 1
            if ceil and (count - 1) * stride >= size + before:
                count -= 1
            counts.append(count)
        return counts

    def reaching(self, counts: Sequence[int]) -> Windows:
        """The same with as much padding at the end as this many windows reach into."""
        after = [
            max((count - 1) * stride + window_extent(tap, dilation) - size - before, 0)
            for count, (size, tap, stride, dilation, before, _) in zip(counts, self._axes(), strict=True)
        ]
        return Windows(self.rank, self.sizes, self.taps, self.strides, self.dilations, self.before, after)

    def padded(self) -> Windows:
        """The same over an input that has been padded."""
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


def halved(total: int, auto_pad: str) -> tuple[int, int]:
    """Padding divided between beginning and end; the odd one goes to the end for SAME_UPPER, else to the beginning."""
    less = total // 2
    return (less, total - less) if auto_pad == "SAME_UPPER" else (total - less, less)
