"""Expressions: operations defined by one element of their result.

    import opweave as ow

    @ow.expression                                  # point-wise; shapes, types and broadcasting are inferred
    def swiglu(x, gate):
        return x * gate * ow.expr.sigmoid(gate)

    @ow.expression                                  # index form
    def box3(x):
        n, c, h, w = x.shape
        return ow.expr.compute((n, c, h - 2, w - 2), lambda i, j, y, k:
            sum(x[i, j, y + dy, k + dx] for dy in range(3) for dx in range(3)) / 9)

A function is traced once for each combination of shapes, data types and attributes. Halide compiles the result if the
extra `halide` is installed; otherwise NumPy evaluates it.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from . import array_reductions, pointwise
from .array import Traced, apply, bitcast, cast, no_such_name as _no_such_name
from .array_reductions import *  # noqa: F403
from .index_form import compute, store
from .pointwise import *  # noqa: F403
from .tracing import trace


def __getattr__(name: str) -> Any:
    # Protocols that tools ask for; and `from opweave.expr import module` asks for an attribute first.
    if name.startswith("__") or not name.isidentifier() or find_spec(f"{__name__}.{name}"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    raise _no_such_name("opweave.expr has no function", name)


__all__ = [
    *array_reductions.__all__,
    *pointwise.__all__,
    "Traced",
    "apply",
    "bitcast",
    "cast",
    "compute",
    "store",
    "trace",
]


def __dir__() -> list[str]:
    return [*(name for name in globals() if name.startswith("__")), *__all__]
