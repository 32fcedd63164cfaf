"""Functions that NumPy computes when the graph runs: those of float64, for which WebNN has no operation as exact.

They are operations with a kernel for the host alone, so they are recorded like all others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..core.dtypes import FLOAT64, FLOATS
from ..core.graph import Builder, Desc, Operand
from ..core.operation import Limits, Op
from ..core.shapes import broadcast
from ..kernels.host import HostKernel

_DOUBLE = Limits((FLOAT64,))  # type: ignore[arg-type]


def on_host(
    name: str, rule: Callable[..., Any], kernel: Callable[..., None], doc: str = "", **limits: Limits
) -> Op[..., Any]:
    """Declare an operation that a function of NumPy computes; `rule` returns the descriptors of its results."""
    operation: Op[..., Any] = Op(rule, name, doc, limits)
    operation.kernels["cpu"] = HostKernel(kernel)
    return operation


def of_one(name: str, compute: Callable[..., Any]) -> Op[..., Any]:
    """Declare a function of one element of float64; `compute(x, out=)` is one of NumPy's."""

    def rule(self: Builder, x: Operand, *, label: str = "") -> Desc:
        return x.desc

    def kernel(x: np.ndarray, out: np.ndarray) -> None:
        with np.errstate(all="ignore"):
            compute(x, out=out)

    return on_host(name, rule, kernel, x=_DOUBLE)


def of_two(name: str, compute: Callable[..., Any], limits: Limits = _DOUBLE) -> Op[..., Any]:
    """Declare a function of two elements, which broadcast; `compute(x1, x2, out=)` is one of NumPy's."""

    def rule(self: Builder, x1: Operand, x2: Operand, *, label: str = "") -> Desc:
        return Desc(x1.data_type, broadcast(x1.shape, x2.shape))

    def kernel(x1: np.ndarray, x2: np.ndarray, out: np.ndarray) -> None:
        with np.errstate(all="ignore"):
            compute(x1, x2, out=out)

    return on_host(name, rule, kernel, x1=limits, x2=Limits("x1"))


def _floor_divide(x1: np.ndarray, x2: np.ndarray, out: np.ndarray) -> None:
    np.floor_divide(x1, x2, out=out)
    # The standard divides infinite and by infinite numbers, and by 0, as `/` does.
    np.divide(x1, x2, out=out, where=np.isinf(x1) | np.isinf(x2) | (x2 == 0))


UNARY = {
    name: of_one(name, getattr(np, name))
    for name in (
        "acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "expm1", "log10", "log1p", "log2", "sinh", "tan",
    )
}  # fmt: skip
BINARY = {
    **{name: of_two(name, getattr(np, name)) for name in ("atan2", "hypot", "logaddexp", "remainder")},
    "floor_divide": of_two("floor_divide", _floor_divide),
}
nextafter = of_two("nextafter", np.nextafter, Limits(FLOATS))
"""The next number of the data type, of any width: WebNN has no operation on the bits of floats."""
