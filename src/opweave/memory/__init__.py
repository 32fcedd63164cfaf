"""Memory of tensors: allocation, counted copies, mapped files, the planner, and the spaces that memory lies in.

    ow.memory.copies.reset()
    context.dispatch(graph, inputs, outputs)
    ow.memory.copies.count          # how many copies there were; .bytes, and .by_reason

>>> import numpy as np
>>> before = copies.count
>>> copy(np.zeros(4, "float32"), np.ones(4, "float32"), "example")
>>> copies.count - before, copies.by_reason["example"].bytes
(1, 16)
"""

from .copying import NOT_IN_PLACE, OVER_INPUT, Copies, Tally, copied, copies, copy
from .host import (
    ALIGNMENT,
    address_range,
    allocate,
    check_overlap,
    empty,
    in_place,
    is_same,
    meets,
    merged_ranges,
    owner,
    physical,
    trim,
)
from .mapped import FileRegion, find_in_files, mapped_files
from .planner import Life, Plan, plan, plan_buffers

__all__ = [
    "ALIGNMENT", "NOT_IN_PLACE", "OVER_INPUT", "Copies", "FileRegion", "Life", "Plan", "Tally", "address_range",
    "allocate", "check_overlap", "copied", "copies", "copy", "empty", "find_in_files", "in_place", "is_same",
    "mapped_files", "meets", "merged_ranges", "owner", "physical", "plan", "plan_buffers", "trim",
]  # fmt: skip
