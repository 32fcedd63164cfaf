"""The ONNX Runtime back end: a graph becomes one session on one of the engine's execution providers.

A rule takes an `Emitter` and the op's operands as `Value`s, with attributes by name, and returns the `Value` (or values)
of its result:

    @ort.lower(softmax)
    def _(ctx: Emitter, input: Value, axis: int) -> Value:
        return ctx.emit("Softmax", input, axis=axis)
"""

from .backend import OnnxRuntime as OnnxRuntime, ort as ort
