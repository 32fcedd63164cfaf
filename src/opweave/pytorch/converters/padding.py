"""Padding with zeros, a border, a reflection, or the other end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...context.builder import MLGraphBuilder
from ...core.graph import MLOperand
from ...core.sizes import Size
from ..registry import converts, refuse_if


def _sides(rank: int, pad: Sequence[int]) -> tuple[list[int], list[int]]:
    """PyTorch's list, two numbers for each axis from the last one on, as paddings before and after each axis."""
    before, after = [0] * rank, [0] * rank
    for axis, (first, last) in enumerate(zip(pad[::2], pad[1::2], strict=True), 1):
        before[rank - axis], after[rank - axis] = first, last
    return before, after


def _is_negative(value: int) -> bool:
    return not isinstance(value, Size) and value < 0


def _cut(
    b: MLGraphBuilder, x: MLOperand, before: list[int], after: list[int]
) -> tuple[MLOperand, list[int], list[int]]:
    """Remove elements for negative paddings; return the result, and the remaining paddings before and after."""
    if not any(map(_is_negative, before + after)):
        return x, before, after
    starts = [-pad if _is_negative(pad) else 0 for pad in before]
    ends = [-pad if _is_negative(pad) else 0 for pad in after]
    sizes = [size - start - end for size, start, end in zip(x.shape, starts, ends, strict=True)]
    x = b.slice(x, starts, sizes)
    return x, *([0 if _is_negative(pad) else pad for pad in pads] for pads in (before, after))  # type: ignore[return-value]


def _pad(b: MLGraphBuilder, x: MLOperand, pad: Sequence[int], **options: Any) -> MLOperand:
    x, before, after = _cut(b, x, *_sides(x.rank, pad))
    if not any(isinstance(size, Size) or size for size in before + after):
        return x
    return b.pad(x, before, after, **options)


@converts("aten.constant_pad_nd.default")
def constant_pad(b: MLGraphBuilder, self: MLOperand, pad: Sequence[int], value: float = 0) -> MLOperand:
    """Pad with a number; negative paddings remove elements."""
    return _pad(b, self, pad, value=value)


@converts(
    "aten.reflection_pad1d.default", "aten.reflection_pad2d.default", "aten.reflection_pad3d.default"
)  # fmt: skip
def _(b: MLGraphBuilder, self: MLOperand, padding: Sequence[int]) -> MLOperand:
    return _pad(b, self, padding, mode="reflection")


@converts(
    "aten.replication_pad1d.default", "aten.replication_pad2d.default", "aten.replication_pad3d.default"
)  # fmt: skip
def _(b: MLGraphBuilder, self: MLOperand, padding: Sequence[int]) -> MLOperand:
    return _pad(b, self, padding, mode="edge")


@converts("aten._pad_circular.default")
def circular_pad(b: MLGraphBuilder, self: MLOperand, pad: Sequence[int]) -> MLOperand:
    """Pad each axis with elements from its other end."""
    x, before, after = _cut(b, self, *_sides(self.rank, pad))
    for axis, (first, last) in enumerate(zip(before, after, strict=True)):
        size = x.shape[axis]
        shape = list(x.shape)

        def part(start: int, count: int, axis: int = axis, shape: list[int] = shape, x: MLOperand = x) -> MLOperand:
            starts = [0] * x.rank
            starts[axis] = start
            return b.slice(x, starts, [*shape[:axis], count, *shape[axis + 1 :]])

        parts = [x]
        if isinstance(first, Size) or first:
            parts.insert(0, part(size - first, first))
        if isinstance(last, Size) or last:
            parts.append(part(0, last))
        x = b.concat(parts, axis) if len(parts) > 1 else x
    return x


def pad_evenly(b: MLGraphBuilder, x: MLOperand, size: int, mode: str) -> MLOperand:
    """Pad both ends of the last axis, in a mode of `aten.pad`."""
    return _in_mode(b, x, [size, size], mode, None)


@converts("aten.pad.default")
def _(
    b: MLGraphBuilder, self: MLOperand, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> MLOperand:
    return _in_mode(b, self, pad, mode, value)


def _in_mode(b: MLGraphBuilder, x: MLOperand, pad: Sequence[int], mode: str, value: float | None) -> MLOperand:
    if mode == "circular":
        return circular_pad(b, x, pad)
    if mode == "constant":
        return constant_pad(b, x, pad, value or 0)
    refuse_if(mode not in ("reflect", "replicate"), f"its mode is {mode!r}")
    return _pad(b, x, pad, mode="reflection" if mode == "reflect" else "edge")
