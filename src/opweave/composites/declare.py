"""Declaration of Opweave's composites, and checks that several of them share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from ..core.graph import Operand
from ..core.operation import Limits
from ..custom import CustomOp, Declared
from ..ops.docs import complete
from ..support.errors import require


def declare(
    arguments: Mapping[str, str] = MappingProxyType({}), /, **limits: Limits
) -> Callable[[Callable[..., Declared]], CustomOp[Declared]]:
    """Declare a composite by its shape rule. Error messages do not name the line of the rule, unlike those of `opweave.op`.

    `arguments` documents parameters that several composites share, so that each docstring can leave them out.
    """

    def decorate(function: Callable[..., Declared]) -> CustomOp[Declared]:
        op: CustomOp[Declared] = CustomOp(function, function, skip=1, limits=limits, annotated=True)
        complete(op, arguments)
        return op

    return decorate


def last_axis(input: Operand) -> int:
    """Return the last axis, the default of parameters `axis`."""
    return input.rank - 1


def check_axis(input: Operand, axis: int | None) -> int:
    """Require that `axis` is an axis of `input`, and return the axis. None cannot occur: defaults are filled in before."""
    assert axis is not None
    require(0 <= axis < input.rank, f"axis must be in [0, {input.rank}), got {axis}")
    return axis


def check_axes(rank: int, axes: Any) -> tuple[int, ...]:
    """Require that `axes` are different axes of an operand of `rank`, and return the axes; all axes for None."""
    if axes is None:
        return tuple(range(rank))
    is_list = isinstance(axes, tuple) and all(isinstance(axis, (int, np.integer)) for axis in axes)
    fits = is_list and len(set(axes)) == len(axes) and all(0 <= axis < rank for axis in axes)
    require(fits, f"axes must be different integers in [0, {rank}), got {axes}")
    return tuple(int(axis) for axis in axes)


def column(axis: int, size: int, rank: int) -> list[int]:
    """Return a shape of ones, except for `size` along `axis`."""
    return [size if dimension == axis else 1 for dimension in range(rank)]


def check_divides(name: str, operand: Operand, heads: int) -> int:
    """Require that the last axis divides into heads, and return the size of a head."""
    hidden = operand.shape[-1]
    fits = heads > 0 and hidden % heads == 0
    require(fits, f"the last axis of {name} must divide into {heads} heads, got {operand.desc}")
    return hidden // heads
