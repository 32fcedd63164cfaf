"""The OpenVINO back end: a graph becomes one compiled model on one of the engine's devices.

A rule takes an `Emitter` and the op's operands as `Value`s, with attributes by name, and returns the `Value` (or values)
of its result:

    @openvino.lower(softmax)
    def _(ctx: Emitter, input: Value, axis: int) -> Value:
        return ctx.emit("softmax", input, axis)
"""

from .backend import OpenVino as OpenVino, openvino as openvino
