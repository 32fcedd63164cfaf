"""The memory that compiled shapes of a session may take, as estimated from its weights."""

from __future__ import annotations

from ...support.records import record

MAX_COMPILED = 64
"""The most shapes that a session keeps compiled."""

PROGRAM_BYTES = 24 * 2**20
"""The default of `program_bytes` where the model's own session can run all shapes. It has room for models with few weights, at
most 9 MB: their calls are short, and the overheads that compilation removes count. Of the models of the gate, compiled shapes
take 0.6 to 1.0 of the time where the weights take up to 4 MB, and the same time where they take more; each would hold the
packed weights once more. With this limit, the models stay below 1.3 times ONNX Runtime's memory."""

ALWAYS_BYTES = 512 * 2**20
"""The default of `program_bytes` where there is no such session: each shape that is dropped must be compiled again."""

FIRST_BYTES = 8 * 2**20
"""The memory of modules that the first compiled shape loads, to trace and convert. Measured: 5 to 10 MB; 10 more with the
package onnx."""

BASE_BYTES = 5 * 2**20
"""The memory of a compiled shape without weights. Measured: 2 to 7 MB for the models of the gate."""

PACKED_PERCENT = 125
"""The size of weights that the engine packs for a compiled shape, in percent of those in the file. Measured: 100 to 125."""


@record
class Room:
    """The memory for compiled shapes of a model.

    Attributes:
        weight_bytes: the size of its weights.
        node_bytes: the size of those in Constant nodes, whose data are copied when it is traced.
        program_bytes: the argument of the session; None for a default.
    """

    weight_bytes: int
    node_bytes: int
    program_bytes: int | None

    def max_bytes(self, is_needed: bool) -> int:
        """Memory limit for all compiled shapes together.

        Args:
            is_needed: whether shapes that are dropped must be compiled again.
        """
        if self.program_bytes is not None:
            return self.program_bytes
        return ALWAYS_BYTES if is_needed else PROGRAM_BYTES

    def estimate(self, count: int) -> int:
        """The memory of `count` compiled shapes, in bytes."""
        each = BASE_BYTES + self.weight_bytes * PACKED_PERCENT // 100 + 2 * self.node_bytes
        return FIRST_BYTES + count * each

    def fits(self, count: int, is_needed: bool) -> bool:
        """Whether so many compiled shapes fit."""
        return count <= MAX_COMPILED and self.estimate(count) <= self.max_bytes(is_needed)
