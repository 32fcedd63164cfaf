"""Convolutions as sums, for data types and devices that the tuned kernels do not serve, and to check those; resampling."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....dtypes import ANY, FLOATS, DataType
from ....expr import Array, cast, clamp, compute, round_even, sum_over, where
from ....ops import convolution as ops
from ....shapes import conv_size
from .pooling import windows
from .positions import at, computed, sizes_of
from .reduction import narrowed, widened
from .registry import rule


@rule(ops.conv2d)
def _(
    input: Array,
    filter: Array,
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    groups: int,
    input_layout: str,
    filter_layout: str,
    bias: Array | None,
) -> Array:
    image, taps = sizes_of(input, input_layout), sizes_of(filter, filter_layout)
    counts = [
        conv_size(image[a], taps[a], *rest)
        for a, *rest in zip("hw", padding[::2], padding[1::2], strides, dilations, strict=True)
    ]
    down, right = windows(image, [taps["h"], taps["w"]], padding, strides, dilations, counts)
    each = taps["o"] // groups

    def element(p: dict[str, Array]) -> Array:
        def term(i: Array, h: Array, w: Array) -> Array:
            there = {
                "n": p["n"],
                "c": p["c"] // each * taps["i"] + i,
                "h": down.position(p["h"], h),
                "w": right.position(p["w"], w),
            }
            x = input.padded(0)[tuple(there[letter] for letter in input_layout)]
            return x * at(filter, filter_layout, {"o": p["c"], "i": i, "h": h, "w": w})

        total = sum_over((taps["i"], taps["h"], taps["w"]), term)
        return total if bias is None else total + bias[p["c"]]

    sizes = {"n": image["n"], "c": taps["o"], "h": counts[0], "w": counts[1]}
    return computed(input_layout, sizes, element)


@dataclass(frozen=True, slots=True)
class _Spread:
    """How elements are spread along one axis: their number, the taps of the filter, padding, step, distance of the taps.

    The element at `y` of the result gets tap `t` of the element at `(y + before - t * dilation) / stride`, where that is a
    whole number. So only each `period`-th tap counts, from one on that depends on `y`.
    """

    size: int
    taps: int
    before: int
    stride: int
    dilation: int

    @property
    def common(self) -> int:
        return math.gcd(self.stride, self.dilation)

    @property
    def period(self) -> int:
        return self.stride // self.common

    @property
    def most(self) -> int:
        """How many taps count at most."""
        return -(-self.taps // self.period)

    def contributions(self, y: Array, number: Array) -> tuple[Array, Array, Array]:
        """The tap and the position of a contribution to `y`, by its number, and whether there is one."""
        place = y + self.before
        step = self.dilation // self.common
        first = place // self.common * pow(step, -1, self.period) % self.period
        tap = first + number * self.period
        start = place if self.dilation == 1 else place - first * self.dilation  # what // takes away otherwise
        position = start // self.stride - number * step
        there = (tap < self.taps) & (position >= 0) & (position < self.size)
        return tap, position, there if self.common == 1 else there & (place % self.common == 0)


@rule(ops.conv_transpose2d)
def _(
    input: Array,
    filter: Array,
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    output_sizes: Sequence[int],
    groups: int,
    input_layout: str,
    filter_layout: str,
    bias: Array | None,
) -> Array:
    image, taps = sizes_of(input, input_layout), sizes_of(filter, filter_layout)
    down, right = (
        _Spread(image[a], taps[a], *rest) for a, *rest in zip("hw", padding[::2], strides, dilations, strict=True)
    )
    each = image["c"] // groups

    def element(p: dict[str, Array]) -> Array:
        group, o = p["c"] // taps["o"], p["c"] % taps["o"]

        def term(k: Array, i: Array, j: Array) -> Array:
            (h, y, above), (w, x, beside) = down.contributions(p["h"], i), right.contributions(p["w"], j)
            c = group * each + k
            there, weight = {"n": p["n"], "c": c, "h": y, "w": x}, {"i": c, "o": o, "h": h, "w": w}
            product = (
                input.clamped[tuple(there[letter] for letter in input_layout)]
                * filter.clamped[tuple(weight[letter] for letter in filter_layout)]
            )
            return where(above & beside, product, 0)

        total = sum_over((each, down.most, right.most), term)
        return total if bias is None else total + bias[p["c"]]

    sizes = {"n": image["n"], "c": taps["o"] * groups, "h": output_sizes[0], "w": output_sizes[1]}
    return computed(input_layout, sizes, element)


@dataclass(frozen=True, slots=True)
class _Scale:
    """An axis of `input` elements that becomes one of `output` elements, both divided by what they have in common.

    The element `i` of the result lies at `((2 * i + 1) * input - output) / (2 * output)` among the elements, but not before
    the first or behind the last one.
    """

    size: int
    input: int
    output: int

    @classmethod
    def of(cls, input: int, output: int) -> _Scale:
        common = math.gcd(input, output)
        return cls(input, input // common, output // common)

    @property
    def denominator(self) -> int:
        return 2 * self.output

    def nearest(self, i: Array) -> Array:
        """The nearest element, the one before at half the way."""
        if self.input == 1:
            return i // self.output
        if self.output == 1:
            return i * self.input + (self.input - 1) // 2
        return ((2 * i + 1) * self.input - 1) // self.denominator

    def around(self, i: Array) -> tuple[Array, Array, Array]:
        """The elements before and after, and the weight of the latter, from 0 to `denominator`."""
        last = self.denominator * (self.size - 1)
        place = clamp(i * (2 * self.input) + (self.input - self.output), 0, last)
        after = (place + (self.denominator - 1)) // self.denominator
        return place // self.denominator, after, place % self.denominator


@rule(ops.resample2d)
def _(input: Array, mode: str, sizes: Sequence[int], axes: Sequence[int]) -> Array:
    scales = {
        axis: _Scale.of(input.shape[axis], size)
        for axis, size in zip(axes, sizes, strict=True)
        if size != input.shape[axis]
    }
    shape = [dict(zip(axes, sizes, strict=True)).get(axis, size) for axis, size in enumerate(input.shape)]
    if mode == "nearest-neighbor":
        return compute(
            shape, lambda *p: input[tuple(scales[k].nearest(i) if k in scales else i for k, i in enumerate(p))]
        )
    if input.data_type in FLOATS:
        x = widened(input)
        return narrowed(compute(shape, lambda *p: _blend(x, p, scales, _mix_floats)), input)
    return _blended_integers(input, shape, scales)


_Mix = Callable[[Array, Array, Array, int], Array]
"""What lies between two elements, by the weight of the second one and what that is to be divided by."""


def _mix_floats(low: Array, high: Array, part: Array, denominator: int) -> Array:
    weight = cast(part, "float32") / denominator
    return low * (1 - weight) + high * weight  # an infinity stays one, which high - low would not


def _mix_finite(low: Array, high: Array, part: Array, denominator: int) -> Array:
    return low + (high - low) * (cast(part, "float32") / denominator)  # equal elements stay what they are


def _mix_integers(low: Array, high: Array, part: Array, denominator: int) -> Array:
    return low * (denominator - part) + high * part  # divided by all denominators at the end


def _blend(x: Array, p: Sequence[Any], scales: Mapping[int, _Scale], mix: _Mix) -> Array:
    """The element of `x` at positions of the result along the axes of `scales`: linear between neighbours."""
    if not scales:
        return x[tuple(p)]
    axis, *others = scales
    before, after, part = scales[axis].around(p[axis])
    low, high = (
        _blend(x, (*p[:axis], place, *p[axis + 1 :]), {a: scales[a] for a in others}, mix) for place in (before, after)
    )
    return mix(low, high, part, scales[axis].denominator)


def _blended_integers(input: Array, shape: Sequence[int], scales: Mapping[int, _Scale]) -> Array:
    """Integers of 8 bits between their neighbours, rounded to even: exact where the sums fit into int32."""
    divisor = math.prod(scale.denominator for scale in scales.values())
    data_type = _type_of(input)
    if 2**9 * divisor >= 2**31:
        x = cast(input, "float32")
        return cast(round_even(compute(shape, lambda *p: _blend(x, p, scales, _mix_finite))), data_type)
    x = cast(input, "int32")

    def element(*p: Array) -> Array:
        total = _blend(x, p, scales, _mix_integers)
        quotient, twice = total // divisor, total % divisor * 2
        up = (twice > divisor) | ((twice == divisor) & (quotient % 2 == 1))
        return cast(where(up, quotient + 1, quotient), data_type)

    return compute(shape, element)


def _type_of(array: Array) -> DataType:
    data_type = array.data_type
    assert data_type in ANY
    return data_type
