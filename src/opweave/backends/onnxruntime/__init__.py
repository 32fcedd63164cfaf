"""The ONNX Runtime back end: a graph becomes one session on one of the engine's execution providers.

A rule takes an `Emitter` and the op's operands as `Value`s, with attributes by name, and returns the `Value` (or values)
of its result:

    @ort.lower(softmax)
    def _(ctx: Emitter, input: Value, axis: int) -> Value:
        return ctx.emit("Softmax", input, axis=axis)
"""

from .backend import OnnxRuntime as OnnxRuntime, ort as ort
from .lowerings import (  # the rules register themselves
    activation as activation,
    attention as attention,
    convolution as convolution,
    elementwise as elementwise,
    indexing as indexing,
    logical as logical,
    matrix as matrix,
    movement as movement,
    normalization as normalization,
    pooling as pooling,
    quantization as quantization,
    recurrent as recurrent,
    reduction as reduction,
    selection as selection,
)
