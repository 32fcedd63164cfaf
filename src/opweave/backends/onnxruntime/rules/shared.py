"""ONNX Runtime rules: questions that several families ask."""

from __future__ import annotations

from ....core.graph import Operand
from ....core.sizes import is_same_size
from ..emit import Emitter, Value


def is_single(input: Operand) -> bool:
    """Whether `input` is float32, the only data type that many kernels support."""
    return input.data_type == "float32"


def row_of(ctx: Emitter, image: Value) -> Value | None:
    """The image [n, c, w] that was reshaped to `image`, [n, c, 1, w]; None if there is none.

    The engine's kernels for one spatial axis do without that reshape, which copies inputs and outputs of a model.
    """
    row = ctx.before_reshape(image)
    if row is image or row.shape is None or len(row.shape) != 3:
        return None
    batches, channels, width = row.shape
    pairs = zip(image.dims, (batches, channels, 1, width), strict=True)
    return row if all(is_same_size(left, right) for left, right in pairs) else None
