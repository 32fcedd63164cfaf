"""Memory limits for the compiled shapes of a session, estimated from its weights."""

from __future__ import annotations

from ...support.records import record

MAX_COMPILED = 64
"""Maximum number of shapes that a session keeps compiled."""

PROGRAM_BYTES = 24 * 2**20
"""Default of `program_bytes` if ONNX Runtime can run all shapes. It suffices for models with at most 9 MB of
weights: their calls are short, so the overhead that compilation removes counts. Measured on the models of the gate: compiled
shapes take 0.6 to 1.0 of the time with up to 4 MB of weights, and the same time with more. Each shape holds the packed weights
once more; with this limit, the models stay below 1.3 times ONNX Runtime's memory."""

ALWAYS_BYTES = 512 * 2**20
"""Default of `program_bytes` if all shapes must be compiled: a dropped shape is compiled again."""

FIRST_BYTES = 8 * 2**20
"""Memory of the modules that trace and convert, loaded for the first compiled shape. Measured: 5 to 10 MB; 10 more with the
package onnx."""

BASE_BYTES = 5 * 2**20
"""Memory of a compiled shape without weights. Measured: 2 to 7 MB for the models of the gate."""

PACKED_PERCENT = 125
"""Size of the weights packed for a compiled shape, in percent of the weights in the file. Measured: 100 to 125."""


@record
class Room:
    """The memory for compiled shapes of a model; tracing copies the weights in Constant nodes, of `node_bytes`."""

    weight_bytes: int
    node_bytes: int
    program_bytes: int | None

    def max_bytes(self, is_needed: bool) -> int:
        """Memory limit for all compiled shapes together. `is_needed`: dropped shapes must be compiled again."""
        if self.program_bytes is not None:
            return self.program_bytes
        return ALWAYS_BYTES if is_needed else PROGRAM_BYTES

    def estimate(self, count: int) -> int:
        """Estimate the bytes of memory of `count` compiled shapes."""
        per_shape = BASE_BYTES + self.weight_bytes * PACKED_PERCENT // 100 + 2 * self.node_bytes
        return FIRST_BYTES + count * per_shape

    def fits(self, count: int, is_needed: bool) -> bool:
        """Whether `count` compiled shapes fit."""
        return count <= MAX_COMPILED and self.estimate(count) <= self.max_bytes(is_needed)
