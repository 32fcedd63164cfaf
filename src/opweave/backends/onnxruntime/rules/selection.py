"""ONNX Runtime rules: hard_max, top_k and non_max_suppression.

`one_hot` has no rule because the engine's OneHot takes 1.6 times as long as the decomposition.
"""

from __future__ import annotations

from math import inf

from ....composites import selection as composites
from ....composites.suppression import LOWEST, non_max_suppression
from ....core.dtypes import FLOATS, is_float
from .. import kernels
from ..backend import ort
from ..emit import Emitter, Value
from .shared import is_single

ort.rename({composites.hard_max: "Hardmax"}, when=is_single)

SORTED = (*FLOATS, "int64", "int32", "int8", "uint8")
"""Data types of the TopK kernel; the engine converts float16 to float32."""

_WIDER = {"float16": ("float32", 1e30), "float32": ("float64", 1e300)}
"""Wider type for the keys of floats, and a number above all finite floats, which replaces infinity in keys."""


@ort.lower(composites.top_k, when=lambda input: input.data_type in SORTED)
def _(ctx: Emitter, input: Value, k: int, axis: int, largest: bool, index_type: str) -> tuple[Value, Value]:
    shape = ctx.output.shape
    keys = source = ctx.cast(input, "float32") if input.data_type == "float16" else input
    # An older kernel has no order of NaN, so infinity replaces NaN in keys.
    if is_float(input.data_type) and (ctx.portable or not kernels.orders_nan()):
        data_type, beyond = _WIDER[input.data_type]
        wide = ctx.cast(input, data_type)
        numbers = ctx.emit("Min", wide, ctx.scalar(beyond, wide))
        keys = ctx.emit("Where", ctx.emit("IsNaN", input, data_type="bool"), ctx.scalar(inf, wide), numbers)
    values, indices = ctx.emit("TopK", keys, ctx.constant([k]), axis=axis, largest=int(largest), outputs=2, shape=shape)
    positions = Value(indices.name, "int64", shape)
    if keys is not source:
        values = ctx.emit("GatherElements", input, positions, axis=axis, shape=shape)
    return ctx.cast(values, input.data_type), ctx.cast(positions, index_type)


@ort.lower(non_max_suppression)
def _(
    ctx: Emitter,
    boxes: Value,
    scores: Value,
    max_output_boxes: int,
    iou_threshold: float,
    score_threshold: float | None,
    center_point_box: bool,
) -> tuple[Value, Value]:
    # NaN is not greater than a threshold, and without one, the order of NaN is arbitrary.
    wide = ctx.cast(scores, "float32")
    if score_threshold is None:
        wide = ctx.emit("Max", wide, ctx.scalar(LOWEST, wide))
    limits = [
        ctx.constant([value], "float32")
        for value in (iou_threshold, -inf if score_threshold is None else score_threshold)
    ]
    most = ctx.parameter([min(max_output_boxes, boxes.dims[1])])
    coordinates = ctx.cast(boxes, "float32")
    selected = ctx.emit(
        "NonMaxSuppression", coordinates, wide, most, *limits, data_type="int64", center_point_box=int(center_point_box)
    )
    size = ctx.parameter(list(ctx.output.shape))
    none = ctx.emit("Expand", ctx.constant(-1), size)
    rows = ctx.emit("Slice", ctx.emit("Concat", selected, none, axis=0), ctx.constant([0, 0]), size)
    count = ctx.emit("Slice", ctx.emit("Shape", selected, data_type="int64"), ctx.constant([0]), ctx.constant([1]))
    return rows, count
