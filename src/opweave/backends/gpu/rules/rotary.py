"""Rotary position embedding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ....composites import rotary_embedding
from ....expr import Traced, clamp, compute, where
from ....ops.formulas import position_from
from ..table import gpu
from .reduction import narrow, widen


@dataclass(frozen=True, slots=True)
class Rotation:
    """The rotation of pairs of elements of a head, by tables [positions, pairs].

    If `interleaved`, the elements of pair k are 2 * k and 2 * k + 1, instead of k and k + pairs.
    """

    cosines: Traced
    sines: Traced
    interleaved: bool

    def of(self, head: Callable[[Traced], Traced], size: int, position: Traced, s: Traced) -> Traced:
        """The element `s` of a rotated float32 head; elements after the pairs are not rotated."""
        pairs = self.cosines.shape[1]
        if self.interleaved:
            pair, is_first, other = s // 2, s % 2 == 0, s + 1 - s % 2 * 2
        else:
            is_first = s < pairs
            pair, other = where(is_first, s, s - pairs), where(is_first, s + pairs, s - pairs)
        pair, other = clamp(pair, 0, pairs - 1), clamp(other, 0, size - 1)
        cosine, sine = (widen(table)[position, pair] for table in (self.cosines, self.sines))
        partner = head(other)
        turned = head(s) * cosine + where(is_first, -partner, partner) * sine
        return turned if 2 * pairs == size else where(s < 2 * pairs, turned, head(s))


@gpu.lower(rotary_embedding)
def _(input: Traced, cosines: Traced, sines: Traced, positions: Traced | None, heads: int, interleaved: bool) -> Traced:
    x, rotation, rows = widen(input), Rotation(cosines, sines, interleaved), cosines.shape[0]

    def position(batch: Traced, place: Traced) -> Traced:
        if positions is None:
            return place
        return position_from(positions[batch if positions.shape[0] > 1 else 0, place], rows)

    def element_of_heads(batch: Traced, head: Traced, place: Traced, s: Traced) -> Traced:
        return rotation.of(lambda at: x[batch, head, place, at], input.shape[3], position(batch, place), s)

    def element_of_joined(batch: Traced, place: Traced, at: Traced) -> Traced:
        size = input.shape[2] // heads
        start = at // size * size
        return rotation.of(lambda s: x[batch, place, start + s], size, position(batch, place), at % size)

    return narrow(compute(input.shape, element_of_heads if input.rank == 4 else element_of_joined), input)
