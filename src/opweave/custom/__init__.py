"""Custom operations, which are called like built-in ones.

An operation is declared in one or several of these ways:

- `@expression`: the formula of one element of the result, compiled for the device and fused with its neighbours;
- `@recurrence`: the formula of a step that is repeated along an axis of time, in one loop or one kernel;
- `@composite`: a composition of built-in operations, kept together for engines with a kernel for the whole;
- `@op` with `.kernel(device)`: a function or a shader that reads and writes the memory of tensors;
- `@op` with `.decompose` or `.expression`, for devices without a kernel.

Called with operands, an operation adds a node to their graph; called with arrays or tensors, it computes.
"""

from __future__ import annotations

from .declare import composite, expression, op
from .operation import CustomOp, Declared
from .recurrence import recurrence

__all__ = ["CustomOp", "Declared", "composite", "expression", "op", "recurrence"]
