"""Positions and layouts, shared by several rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from ....core.sizes import is_same_size, is_static
from ....expr import Traced, clamp, compute, where
from ....expr.ir import Cast


def channels_first(axes: int) -> str:
    """The layout of images with `axes` spatial axes: "ncw", "nchw" or "ncdhw"."""
    return f"nc{'dhw'[-axes:]}"


def sizes_of(array: Traced, layout: str) -> dict[str, int]:
    return dict(zip(layout, array.shape, strict=True))


def compute_by_letter(layout: str, sizes: Mapping[str, int], element: Callable[[dict[str, Traced]], Traced]) -> Traced:
    """Like `compute`, with positions by letter of the layout."""
    shape = [sizes[letter] for letter in layout]
    return compute(shape, lambda *p: element(dict(zip(layout, p, strict=True))))


def position_from(index: Traced, size: int) -> Traced:
    """Convert an index read from data to a position in [0, size): negative ones count from the end, then clamp."""
    is_signed = not index.data_type.startswith("u")
    if is_signed:
        index = where(index < 0, index + size, index)
    index = clamp(index, 0 if is_signed else None, size - 1)
    return Traced((), Cast(index.body, "index"))


def broadcast(array: Traced) -> Callable[..., Traced]:
    """A function from a position in a larger shape to the element of `array`, by NumPy's broadcasting."""

    def element(*position: Traced) -> Traced:
        key = position[len(position) - array.rank :]
        return array[tuple(k if size > 1 else 0 for k, size in zip(key, array.shape, strict=True))]

    return element


def along(vector: Traced, axes: Sequence[int], like: Traced) -> Traced:
    """Give `vector`, whose dimensions are the `axes` of `like` in that order, a shape that broadcasts to `like`."""
    shape = [size if axis in axes else 1 for axis, size in enumerate(like.shape)]
    return compute(shape, lambda *p: vector[tuple(p[axis] for axis in axes)])


def reshape_array(input: Traced, new_shape: Sequence[int]) -> Traced:
    """Reshape an array, keeping the order of its elements."""
    groups = _groups(input.shape, new_shape)

    def element(*p: Traced) -> Traced:
        key: list[Traced | int] = []
        for old, new in groups:
            flat: Traced | int = 0  # the position in the group, as one number
            for axis in new:
                flat = p[axis] if axis == new[0] else flat * new_shape[axis] + p[axis]
            places: list[Traced | int] = []
            for axis in reversed(old[1:]):
                places.append(flat % input.shape[axis])
                flat = flat // input.shape[axis]
            key += [*([flat] if old else []), *reversed(places)]
        return input[tuple(key)]

    return compute(new_shape, element)


def only_splits(old: Sequence[int], new: Sequence[int]) -> bool:
    """Whether a reshape joins no axes, so that positions in the old shape take no division.

    >>> only_splits([2, 12], [2, 3, 4]), only_splits([2, 12], [6, 4])
    (True, False)
    """
    return all(len(before) <= 1 for before, _ in _groups(old, new))


def _groups(old: Sequence[int], new: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Split the axes of two shapes with equal element counts into the smallest groups with equal counts.

    >>> _groups([2, 3, 4], [6, 2, 2])
    [([0, 1], [0]), ([2], [1, 2])]
    """
    if not (is_static(old) and is_static(new)):
        return _groups_with_names(old, new)
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        before: list[int] = []
        after: list[int] = []
        left = right = 1
        while not (before or after) or left != right:
            if left <= right and i < len(old):
                before.append(i)
                left, i = left * old[i], i + 1
            else:
                after.append(j)
                right, j = right * new[j], j + 1
        groups.append((before, after))
    return groups


def _groups_with_names(old: Sequence[int], new: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Compute `_groups` of sizes with names. Counts are equal if equal for all sizes; the last group has what remains."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        ends = [(a, b) for a in range(i, len(old) + 1) for b in range(j, len(new) + 1) if (a, b) != (i, j)]
        equal = (end for end in sorted(ends, key=sum) if is_same_size(prod(old[i : end[0]]), prod(new[j : end[1]])))
        a, b = next(equal, (len(old), len(new)))
        groups.append((list(range(i, a)), list(range(j, b))))
        i, j = a, b
    return groups
