"""Selection of boxes that do not overlap."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ..core.dtypes import FLOATS
from ..core.graph import Builder, Desc, Operand
from ..core.operation import Limits
from ..ops.constants import constant
from ..support.errors import require
from .declare import declare

if TYPE_CHECKING:
    from ..ops import Operations

LOWEST = float(np.finfo(np.float32).min)
"""Scores of candidates are at least this, so that -inf means that a box is no candidate."""


@declare(boxes=Limits(FLOATS, ranks=(3, 3)), scores=Limits("boxes", ranks=(3, 3)))
def non_max_suppression(
    self: Builder,
    boxes: Operand,
    scores: Operand,
    max_output_boxes: int,
    *,
    iou_threshold: float = 0.0,
    score_threshold: float | None = None,
    center_point_box: bool = False,
    label: str = "",
) -> tuple[Desc, Desc]:
    """Select boxes in descending order of their scores, without those that overlap a selected one too much.

    Each batch and class is on its own. Of equal scores, the first box comes first. A box is suppressed if its intersection
    with a selected box, divided by their union, is greater than `iou_threshold`; boxes without an area suppress none.

    Args:
        boxes: float32 or float16 [batches, boxes, 4]: two opposite corners y1, x1, y2, x2.
        scores: the data type of `boxes` [batches, classes, boxes]. NaN is never selected.
        max_output_boxes: the maximum number of selected boxes per batch and class, at least 1; no more than there are boxes
            are returned.
        iou_threshold: in [0, 1].
        score_threshold: boxes need a greater score to be selected; None selects any.
        center_point_box: whether boxes are the center x, y, the width and the height.

    Returns: The selected boxes, int64 [results, 3]: batch, class and box in ascending order of batch and class, then in
        descending order of the score; -1 behind the last one. `results` is batches * classes * the smaller one of
        `max_output_boxes` and the number of boxes. And the number of selected boxes, int64 [1].
    Raises: the shapes do not fit, `max_output_boxes` is not positive, or `iou_threshold` is out of range.

    ONNX's NonMaxSuppression with a result of fixed size.

    >>> boxes = np.float32([[[0, 0, 2, 2], [0, 0, 2, 1.9], [3, 3, 4, 4]]])
    >>> selected, number = non_max_suppression(boxes, np.float32([[[0.5, 0.9, 0.7]]]), 3, iou_threshold=0.5)
    >>> selected.tolist(), number.tolist()
    ([[0, 0, 1], [0, 0, 2], [-1, -1, -1]], [2])
    """
    require(boxes.shape[2] == 4, f"boxes must have 4 coordinates, got {boxes.desc}")
    batches, classes, count = scores.shape
    fits = batches == boxes.shape[0] and count == boxes.shape[1]
    require(fits, f"scores must be for {boxes.shape[0]} batches of {boxes.shape[1]} boxes, got {scores.desc}")
    require(max_output_boxes >= 1, f"max_output_boxes must be at least 1, got {max_output_boxes}")
    require(0 <= iou_threshold <= 1, f"iou_threshold must be in [0, 1], got {iou_threshold}")
    is_number = score_threshold is None or not math.isnan(score_threshold)
    require(is_number, f"score_threshold must be a number, got {score_threshold}")
    results = batches * classes * _most(max_output_boxes, count)
    return Desc("int64", (results, 3)), Desc("int64", (1,))


def _most(max_output_boxes: int, count: int) -> int:
    return max_output_boxes if max_output_boxes <= count else count


@non_max_suppression.decompose
def _(
    b: Operations,
    boxes: Operand,
    scores: Operand,
    max_output_boxes: int,
    iou_threshold: float,
    score_threshold: float | None,
    center_point_box: bool,
) -> tuple[Operand, Operand]:
    batches, classes, count = scores.shape
    groups, most = batches * classes, _most(max_output_boxes, count)
    keys = b.reshape(_keys(b, b.cast(scores, "float32"), score_threshold), [groups, count])
    sides = _sides(b, b.cast(boxes, "float32"), center_point_box)  # each [batches, count]
    sides = [b.reshape(b.expand(b.reshape(x, [batches, 1, count]), scores.shape), [groups, count]) for x in sides]
    line = b.reshape(constant(b, range(count), "int32"), [1, count])
    dead, columns = constant(b, -math.inf, "float32"), []
    for _ in range(most):
        best = b.arg_max(keys, 1, keep_dimensions=True, output_data_type="int32")
        is_left = b.greater(b.gather_elements(keys, best, axis=1), dead)
        columns.append(b.where(is_left, best, constant(b, -1, "int32")))
        chosen = [b.gather_elements(x, best, axis=1) for x in sides]
        drops = b.logical_or(b.equal(line, best), _overlaps(b, sides, chosen, iou_threshold))
        keys = b.where(drops, dead, keys)
    if not columns:  # there are no boxes
        columns = [constant(b, np.empty((groups, 0)), "int32")]
    picked = b.concat(columns, 1) if most > 1 else columns[0]
    return _in_rows(b, picked, classes)


def _keys(b: Operations, scores: Operand, score_threshold: float | None) -> Operand:
    """The scores of candidates, -inf for others."""
    least = constant(b, LOWEST, "float32")
    is_nan = b.is_nan(scores)
    numbers = b.where(is_nan, least, scores)
    drops = is_nan
    if score_threshold is not None:
        drops = b.logical_or(is_nan, b.lesser_or_equal(numbers, constant(b, score_threshold, "float32")))
    return b.where(drops, constant(b, -math.inf, "float32"), b.max(numbers, least))


def _sides(b: Operations, boxes: Operand, center_point_box: bool) -> list[Operand]:
    """The lowest and the highest y, the lowest and the highest x, and the area of boxes, each [batches, boxes]."""
    columns = [b.reshape(part, boxes.shape[:2]) for part in b.split(boxes, 4, axis=2)]
    if center_point_box:
        x, y, width, height = columns
        half_width, half_height = width * 0.5, height * 0.5
        y1, x1, y2, x2 = y - half_height, x - half_width, y + half_height, x + half_width
    else:
        a, c, d, e = columns
        y1, x1, y2, x2 = b.min(a, d), b.min(c, e), b.max(a, d), b.max(c, e)
    return [y1, y2, x1, x2, (x2 - x1) * (y2 - y1)]


def _overlaps(b: Operations, one: list[Operand], other: list[Operand], iou_threshold: float) -> Operand:
    """Whether the intersection of boxes, divided by their union, is greater than `iou_threshold`."""
    zero = constant(b, 0, "float32")
    height = b.min(one[1], other[1]) - b.max(one[0], other[0])
    width = b.min(one[3], other[3]) - b.max(one[2], other[2])
    both = width * height
    union = one[4] + other[4] - both
    has_areas = b.greater(height, zero)
    for value in (width, both, one[4], other[4], union):
        has_areas = b.logical_and(has_areas, b.greater(value, zero))
    return b.logical_and(has_areas, b.greater(both / union, constant(b, iou_threshold, "float32")))


def _in_rows(b: Operations, picked: Operand, classes: int) -> tuple[Operand, Operand]:
    """Join the boxes of all groups [groups, most], -1 behind the last one of each group, to rows of batch, class and box."""
    groups, most = picked.shape
    total = groups * most
    flat = b.reshape(picked, [total])
    marks = b.cast(b.greater_or_equal(flat, constant(b, 0, "int32")), "int32")
    places = b.cumulative_sum(marks, 0, exclusive=True)
    targets = b.where(b.cast(marks, "uint8"), places, constant(b, total, "int32"))
    numbers = np.repeat(np.arange(groups, dtype=np.int32), most)
    columns = [constant(b, numbers // classes, "int32"), constant(b, numbers % classes, "int32"), flat]
    empty = b.expand(constant(b, -1, "int32"), [total + 1])
    parts = []
    for column in columns:
        written = b.scatter_elements(empty, targets, column, axis=0)
        parts.append(b.reshape(b.slice(written, [0], [total]), [total, 1]))
    number = b.reduce_sum(marks, axes=[0], keep_dimensions=True)
    return b.cast(b.concat(parts, 1), "int64"), b.cast(number, "int64")
