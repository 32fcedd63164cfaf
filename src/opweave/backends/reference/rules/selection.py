"""Reference rules: boxes that do not overlap."""

from __future__ import annotations

import numpy as np

from ....composites.suppression import non_max_suppression
from ..backend import Array, reference


@reference.lower(non_max_suppression)
def _(
    boxes: Array,
    scores: Array,
    max_output_boxes: int,
    iou_threshold: float,
    score_threshold: float | None,
    center_point_box: bool,
) -> tuple[Array, Array]:
    batches, classes, count = scores.shape
    most = min(max_output_boxes, count)
    rows: list[tuple[int, int, int]] = []
    for batch in range(batches):
        sides = _sides(boxes[batch].astype(np.float64), center_point_box)
        for group in range(classes):
            values, end = scores[batch, group], len(rows) + most
            left = ~np.isnan(values) if score_threshold is None else values > np.float32(score_threshold)
            for box in np.argsort(-values, kind="stable"):
                if left[box]:
                    rows.append((batch, group, int(box)))
                    if len(rows) == end:
                        break
                    left &= ~_overlaps(sides, sides[:, box], iou_threshold)
    selected = np.full((batches * classes * most, 3), -1, np.int64)
    selected[: len(rows)] = np.array(rows, np.int64).reshape(-1, 3)
    return selected, np.array([len(rows)])


def _sides(boxes: Array, center_point_box: bool) -> Array:
    """The lowest and the highest y, the lowest and the highest x, and the area of boxes [5, boxes]."""
    if center_point_box:
        (x, y), (half_width, half_height) = boxes[:, :2].T, boxes[:, 2:].T / 2
        sides = np.stack([y - half_height, y + half_height, x - half_width, x + half_width])
    else:
        (y1, x1), (y2, x2) = boxes[:, :2].T, boxes[:, 2:].T
        sides = np.stack([np.minimum(y1, y2), np.maximum(y1, y2), np.minimum(x1, x2), np.maximum(x1, x2)])
    return np.concatenate([sides, (sides[1:2] - sides[:1]) * (sides[3:] - sides[2:3])])


def _overlaps(sides: Array, one: Array, iou_threshold: float) -> Array:
    height = np.minimum(sides[1], one[1]) - np.maximum(sides[0], one[0])
    width = np.minimum(sides[3], one[3]) - np.maximum(sides[2], one[2])
    both = width * height
    union = sides[4] + one[4] - both
    has_areas = (height > 0) & (width > 0) & (both > 0) & (sides[4] > 0) & (one[4] > 0) & (union > 0)
    overlaps: Array = has_areas & (both / union > np.float32(iou_threshold))
    return overlaps
