"""Resampling of images."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....core.dtypes import FLOATS
from ....core.guards import estimate
from ....core.sizes import is_same_size
from ....expr import Traced, cast, clamp, compute, round_even, where
from ....expr.ir import storage
from ....ops import convolution as ops
from ..table import gpu
from .reduction import narrow, widen

MAX_NUMERATOR = 2**31
"""Positions are fractions of int32."""


@dataclass(frozen=True, slots=True)
class _Scale:
    """The resampling of an axis by the fraction output / input, reduced if its numbers are known.

    Element `i` of the result is at position `((2 * i + 1) * input - output) / (2 * output)`, clamped to [0, size - 1].
    """

    size: int
    input: int
    output: int

    @classmethod
    def of(cls, input: int, output: int) -> _Scale:
        numbers = estimate(input), estimate(output)
        common = math.gcd(*numbers)
        below, above = (number // common for number in numbers)
        if not is_same_size(input * above, output * below):  # the fraction depends on sizes
            if 2 * input * output < MAX_NUMERATOR:
                return cls(input, input, output)
            input, output = int(input), int(output)  # such large numbers must be reduced
            below, above = input // (common := math.gcd(input, output)), output // common
        return cls(input, below, above)

    @property
    def denominator(self) -> int:
        return 2 * self.output

    def nearest(self, i: Traced) -> Traced:
        """The nearest element; the lower one at ties."""
        if is_same_size(self.input, 1):
            return i // self.output
        if is_same_size(self.output, 1):
            return i * self.input + (self.input - 1) // 2
        return ((2 * i + 1) * self.input - 1) // self.denominator

    def around(self, i: Traced) -> tuple[Traced, Traced, Traced]:
        """(lower neighbour, upper neighbour, weight of the upper one from 0 to `denominator`)."""
        last = self.denominator * (self.size - 1)
        place = clamp(i * (2 * self.input) + (self.input - self.output), 0, last)
        after = (place + (self.denominator - 1)) // self.denominator
        return place // self.denominator, after, place % self.denominator


@gpu.lower(ops.resample2d)
def _(input: Traced, mode: str, sizes: Sequence[int], axes: Sequence[int]) -> Traced:
    scales = {
        axis: _Scale.of(input.shape[axis], size)
        for axis, size in zip(axes, sizes, strict=True)
        if not is_same_size(size, input.shape[axis])
    }
    shape = [dict(zip(axes, sizes, strict=True)).get(axis, size) for axis, size in enumerate(input.shape)]
    if mode == "nearest-neighbor":
        return compute(
            shape, lambda *p: input[tuple(scales[k].nearest(i) if k in scales else i for k, i in enumerate(p))]
        )
    if input.data_type in FLOATS:
        x = widen(input)
        return narrow(compute(shape, lambda *p: _blend(x, p, scales, _mix_floats)), input)
    return _blend_integers(input, shape, scales)


_Mix = Callable[[Traced, Traced, Traced, int], Traced]
"""`mix(low, high, part, denominator)` interpolates between two elements; the weight of `high` is part / denominator."""


def _mix_floats(low: Traced, high: Traced, part: Traced, denominator: int) -> Traced:
    weight = cast(part, "float32") / denominator
    return low * (1 - weight) + high * weight  # preserves infinities, unlike high - low


def _mix_finite(low: Traced, high: Traced, part: Traced, denominator: int) -> Traced:
    return low + (high - low) * (cast(part, "float32") / denominator)  # preserves equal elements


def _mix_integers(low: Traced, high: Traced, part: Traced, denominator: int) -> Traced:
    return low * (denominator - part) + high * part  # divided by all denominators at the end


def _blend(x: Traced, p: Sequence[Any], scales: Mapping[int, _Scale], mix: _Mix) -> Traced:
    """Interpolate `x` linearly along the axes of `scales`; `p` is the position in the result."""
    if not scales:
        return x[tuple(p)]
    axis, *others = scales
    before, after, part = scales[axis].around(p[axis])
    low, high = (
        _blend(x, (*p[:axis], place, *p[axis + 1 :]), {a: scales[a] for a in others}, mix) for place in (before, after)
    )
    return mix(low, high, part, scales[axis].denominator)


def _blend_integers(input: Traced, shape: Sequence[int], scales: Mapping[int, _Scale]) -> Traced:
    """Interpolate 8-bit integers, rounded to even; exact if the sums fit int32."""
    divisor = math.prod(scale.denominator for scale in scales.values())
    data_type = storage(input.data_type)
    if 2**9 * divisor >= 2**31:
        x = cast(input, "float32")
        return cast(round_even(compute(shape, lambda *p: _blend(x, p, scales, _mix_finite))), data_type)
    x = cast(input, "int32")

    def element(*p: Traced) -> Traced:
        total = _blend(x, p, scales, _mix_integers)
        quotient, twice = total // divisor, total % divisor * 2
        up = (twice > divisor) | ((twice == divisor) & (quotient % 2 == 1))
        return cast(where(up, quotient + 1, quotient), data_type)

    return compute(shape, element)
