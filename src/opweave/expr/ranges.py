"""Ranges of index expressions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any, TypeAlias

from ..core.dtypes import INFO
from ..core.shapes import MAX_DIMENSION
from ..core.size_bounds import lower_bound
from ..core.size_functions import larger, smaller
from ..core.sizes import Size
from ..support.errors import ValidationError
from .ir import FUNCTIONS, INTEGERS, Call, Cast, Const, Expr, Index, storage, text, walk

_INTEGER_TYPES = (*INTEGERS, "index")

MAX_END = 10_000
"""Maximum number of characters of an end of a range, an estimate: ends of sizes whose order is unknown grow exponentially."""

Range: TypeAlias = tuple[int, int]
"""The smallest and the largest value. Both may be sizes that are known only at a run."""


def bounds(root: Expr) -> Range | None:
    """The range of an index; None if it is unknown."""
    spans: dict[Expr, Range | None] = {}
    for node in walk(root, enter=lambda n: n.parts if n.type in _INTEGER_TYPES else ()):
        spans[node] = _short_bounds(node, spans)
    return spans[root]


def check_positions(*roots: Expr) -> None:
    """Require that positions fit into int32, the type they are computed in. Unknown ranges are assumed to fit."""
    limits = INFO["int32"]
    for node, span in _spans_of_positions(*roots):
        is_known = not isinstance(span[0], Size) and not isinstance(span[1], Size)
        if is_known and (span[0] < limits.lowest or span[1] > limits.highest):
            raise ValidationError(f"the position {text(node)} goes from {span[0]} to {span[1]}, beyond int32")


def ends_of_positions(*roots: Expr) -> list[int]:
    """The ends of the ranges of positions that are known only at a run."""
    ends = dict.fromkeys(end for _, span in _spans_of_positions(*roots) for end in span)
    return [end for end in ends if isinstance(end, Size)]


def _spans_of_positions(*roots: Expr) -> Iterator[tuple[Expr, Range]]:
    spans: dict[Expr, Range | None] = {}
    for node in walk(*roots):
        span = spans[node] = _short_bounds(node, spans) if node.type in _INTEGER_TYPES else None
        if node.type == "index" and span is not None:
            yield node, span


def _short_bounds(node: Expr, spans: Mapping[Expr, Range | None]) -> Range | None:
    """The range of a node, given those of its parts; None if it is unknown, or its ends are too long as formulas."""
    try:
        span = _bounds(node, spans)
    except ValidationError:  # more terms than formulas may have
        return None
    is_long = span is not None and any(isinstance(end, Size) and len(str(end)) > MAX_END for end in span)
    return None if is_long else span


def _bounds(node: Expr, spans: Mapping[Expr, Range | None]) -> Range | None:
    if isinstance(node, Const):
        value: Any = node.value if isinstance(node.value, Size) else int(node.value)
        return value, value
    if isinstance(node, Index):
        return 0, node.extent - 1
    if isinstance(node, Cast) and node.type == "index":
        return spans.get(node.parts[0])
    if not isinstance(node, Call):
        return None
    ranges = [spans.get(part) for part in node.parts]
    if node.name == "where":
        a, b = ranges[1:]
        return (least(a[0], b[0]), greatest(a[1], b[1])) if a and b else None
    if node.name in ("max", "min") and any(ranges):  # in a clamp, the range of one operand may be unknown
        info, pick = INFO[storage(node.type)], greatest if node.name == "max" else least
        a, b = (span or (info.lowest, info.highest) for span in ranges)
        return pick(a[0], b[0]), pick(a[1], b[1])
    if None in ranges or node.type != "index":  # integers of data wrap around
        return None
    (low, high), *others = [r for r in ranges if r is not None]
    if node.name == "neg":
        return -high, -low
    if node.name == "abs":
        if lower_bound(low) >= 0:
            return low, high
        return (-high if lower_bound(-high) >= 0 else 0), greatest(-low, high)
    other = others[0]
    if node.name in ("floor_div", "mod") and lower_bound(other[0]) < 1:
        return None  # the divisor may be 0 or negative
    if node.name == "mod":
        return (low, high) if is_inside((low, high), other[0]) else (0, other[1] - 1)
    if node.name in ("add", "sub"):
        return (low + other[0], high + other[1]) if node.name == "add" else (low - other[1], high - other[0])
    function = FUNCTIONS[node.name].operator
    assert function is not None, node
    # `function` is monotonic in each argument.
    corners = list({str(corner): corner for corner in (function(a, b) for a in (low, high) for b in other)}.values())
    if Size not in map(type, corners):
        return min(corners), max(corners)
    lowest = next((c for c in corners if all(lower_bound(other - c) >= 0 for other in corners)), None)
    highest = next((c for c in corners if all(lower_bound(c - other) >= 0 for other in corners)), None)
    return (
        reduce(least, corners) if lowest is None else lowest,
        reduce(greatest, corners) if highest is None else highest,
    )


def is_inside(span: Range, extent: int) -> bool:
    """Whether a range is in [0, extent) for all sizes; False if that is unknown."""
    return lower_bound(span[0]) >= 0 and lower_bound(extent - 1 - span[1]) >= 0


def least(left: int, right: int) -> Any:
    """The smaller one of two ends of ranges."""
    left, right = _without_limit(left, right, MAX_DIMENSION)
    if lower_bound(right - left) >= 0:
        return left
    return right if lower_bound(left - right) >= 0 else smaller(left, right)


def greatest(left: int, right: int) -> Any:
    """The larger one of two ends of ranges."""
    left, right = _without_limit(left, right, -MAX_DIMENSION)
    if lower_bound(left - right) >= 0:
        return left
    return right if lower_bound(right - left) >= 0 else larger(left, right)


def _without_limit(left: int, right: int, limit: int) -> tuple[int, int]:
    """Two ends of ranges, with the other one in place of a limit of a data type, which no size reaches."""
    for end, size in ((left, right), (right, left)):
        if isinstance(size, Size) and not isinstance(end, Size) and (end >= limit if limit > 0 else end <= limit):
            return size, size
    return left, right
