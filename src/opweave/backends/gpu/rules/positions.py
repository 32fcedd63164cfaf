"""Positions and layouts, shared by several rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ....expr import Traced, compute


def channels_first(axes: int) -> str:
    """The layout of images with `axes` spatial axes: "ncw", "nchw" or "ncdhw"."""
    return f"nc{'dhw'[-axes:]}"


def sizes_of(array: Traced, layout: str) -> dict[str, int]:
    return dict(zip(layout, array.shape, strict=True))


def compute_by_letter(layout: str, sizes: Mapping[str, int], element: Callable[[dict[str, Traced]], Traced]) -> Traced:
    """Like `compute`, with positions by letter of the layout."""
    shape = [sizes[letter] for letter in layout]
    return compute(shape, lambda *p: element(dict(zip(layout, p, strict=True))))


def along(vector: Traced, axes: Sequence[int], like: Traced) -> Traced:
    """Give `vector`, whose dimensions are the `axes` of `like` in that order, a shape that broadcasts to `like`."""
    shape = [size if axis in axes else 1 for axis, size in enumerate(like.shape)]
    return compute(shape, lambda *p: vector[tuple(p[axis] for axis in axes)])
