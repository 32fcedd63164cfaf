"""Ranges of index expressions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from ..core.dtypes import INFO
from ..support.errors import ValidationError
from .ir import FUNCTIONS, INTEGERS, Call, Cast, Const, Expr, Index, storage, text, walk

_INTEGER_TYPES = (*INTEGERS, "index")

Range: TypeAlias = tuple[int, int]
"""The smallest and the largest value."""


def bounds(root: Expr) -> Range | None:
    """The range of an index; None if it is unknown."""
    spans: dict[Expr, Range | None] = {}
    for node in walk(root, enter=lambda n: n.parts if n.type in _INTEGER_TYPES else ()):
        spans[node] = _bounds(node, spans)
    return spans[root]


def check_positions(*roots: Expr) -> None:
    """Require that positions fit into int32, the type they are computed in. Unknown ranges are assumed to fit."""
    limits = INFO["int32"]
    spans: dict[Expr, Range | None] = {}
    for node in walk(*roots):
        span = spans[node] = _bounds(node, spans) if node.type in _INTEGER_TYPES else None
        if node.type == "index" and span and (span[0] < limits.lowest or span[1] > limits.highest):
            raise ValidationError(f"the position {text(node)} goes from {span[0]} to {span[1]}, beyond int32")


def _bounds(node: Expr, spans: Mapping[Expr, Range | None]) -> Range | None:
    if isinstance(node, Const):
        return int(node.value), int(node.value)
    if isinstance(node, Index):
        return 0, node.extent - 1
    if isinstance(node, Cast) and node.type == "index":
        return spans.get(node.parts[0])
    if not isinstance(node, Call):
        return None
    ranges = [spans.get(part) for part in node.parts]
    if node.name == "where":
        a, b = ranges[1:]
        return (min(a[0], b[0]), max(a[1], b[1])) if a and b else None
    if node.name in ("max", "min") and any(ranges):  # in a clamp, the range of one operand may be unknown
        info, pick = INFO[storage(node.type)], max if node.name == "max" else min
        a, b = (span or (info.lowest, info.highest) for span in ranges)
        return pick(a[0], b[0]), pick(a[1], b[1])
    if None in ranges or node.type != "index":  # integers of data wrap around
        return None
    (low, high), *others = [r for r in ranges if r is not None]
    if node.name == "neg":
        return -high, -low
    if node.name == "abs":
        return (0 if low <= 0 <= high else min(abs(low), abs(high))), max(abs(low), abs(high))
    other = others[0]
    if node.name in ("floor_div", "mod") and other[0] <= 0:
        return None  # the divisor may be 0 or negative
    if node.name == "mod":
        return (low, high) if low >= 0 and high < other[0] else (0, other[1] - 1)
    function = FUNCTIONS[node.name].operator
    assert function is not None, node
    corners = [function(a, b) for a in (low, high) for b in other]  # `function` is monotonic in each argument
    return min(corners), max(corners)
