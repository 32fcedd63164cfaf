"""Memory of tensors: allocation, counted copies, mapped files, the planner, and memory spaces.

    ow.memory.copies.reset()
    context.dispatch(graph, inputs, outputs)
    ow.memory.copies.count          # how many copies there were; .bytes, and .by_reason

>>> import numpy as np
>>> before = copies.count
>>> copy(np.zeros(4, "float32"), np.ones(4, "float32"), "example")
>>> copies.count - before, copies.by_reason["example"].bytes
(1, 16)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .copying import NOT_IN_PLACE as NOT_IN_PLACE, OVER_INPUT as OVER_INPUT, Copies, Tally, copied, copies, copy
from .host import (
    ALIGNMENT,
    address_range as address_range,
    allocate,
    check_overlap as check_overlap,
    empty as empty,
    in_place as in_place,
    is_same as is_same,
    meets as meets,
    merged_ranges as merged_ranges,
    owner as owner,
    physical as physical,
    trim as trim,
)

if TYPE_CHECKING:  # at run time by `__getattr__`: sessions of ONNX Runtime plan nothing, and small models have no files
    from .mapped import FileRegion as FileRegion, find_in_files as find_in_files, mapped_files as mapped_files
    from .planner import Life, Plan, plan, plan_buffers

__all__ = [
    "ALIGNMENT",
    "Copies",
    "Life",
    "Plan",
    "Tally",
    "allocate",
    "copied",
    "copies",
    "copy",
    "plan",
    "plan_buffers",
]
"""Names for users of Opweave; the other imports above are for Opweave itself."""


def __getattr__(name: str) -> Any:
    if name in ("Life", "Plan", "plan", "plan_buffers"):
        from . import planner

        value = getattr(planner, name)
    elif name in ("FileRegion", "find_in_files", "mapped_files"):
        from . import mapped

        value = getattr(mapped, name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*(name for name in globals() if name.startswith("__")), *__all__]
