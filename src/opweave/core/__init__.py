"""Operations and graphs: data types, shapes, operands, nodes, and the declaration and call of operations.

Authors of operations and back ends import from here:

    from opweave.core import Builder, Desc, Limits, Operand, op, require
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # at run time `__getattr__` below imports them when they are first used
    from ..support.errors import (
        DataError as DataError,
        InvalidStateError as InvalidStateError,
        MissingExtraError as MissingExtraError,
        MLError as MLError,
        NotSupportedError as NotSupportedError,
        OperationError as OperationError,
        ValidationError as ValidationError,
        require as require,
    )
    from .dtypes import (
        ANY as ANY,
        FLOATS as FLOATS,
        INDICES as INDICES,
        LOGICAL as LOGICAL,
        QUANTIZED as QUANTIZED,
        SIGNED as SIGNED,
        WIDE as WIDE,
        DataType as DataType,
    )
    from .graph import (
        Builder as Builder,
        Desc as Desc,
        Graph as Graph,
        MLOperand as MLOperand,
        Node as Node,
        Operand as Operand,
    )
    from .operation import Limits as Limits, Op as Op, op as op

_HOMES = {
    "..support.errors": (
        "DataError",
        "InvalidStateError",
        "MLError",
        "MissingExtraError",
        "NotSupportedError",
        "OperationError",
        "ValidationError",
        "require",
    ),
    ".dtypes": ("ANY", "FLOATS", "INDICES", "LOGICAL", "QUANTIZED", "SIGNED", "WIDE", "DataType"),
    ".graph": ("Builder", "Desc", "Graph", "MLOperand", "Node", "Operand"),
    ".operation": ("Limits", "Op", "op"),
}

# A literal, as type checkers need for `import *`; a test compares it with the table.
__all__ = [
    "ANY",
    "FLOATS",
    "INDICES",
    "LOGICAL",
    "QUANTIZED",
    "SIGNED",
    "WIDE",
    "Builder",
    "DataError",
    "DataType",
    "Desc",
    "Graph",
    "InvalidStateError",
    "Limits",
    "MLError",
    "MLOperand",
    "MissingExtraError",
    "Node",
    "NotSupportedError",
    "Op",
    "Operand",
    "OperationError",
    "ValidationError",
    "op",
    "require",
]


def __getattr__(name: str) -> Any:
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home, __name__), name)
    return value


def __dir__() -> list[str]:
    return [*(name for name in globals() if name.startswith("__")), *__all__]
