"""Calls of the quantisation operations.

Scales are multiples of 1/8 up to 2, so that quotients are either halfway between two integers or clearly not. NaN is left
out: what integer it becomes is not defined.
"""

from __future__ import annotations

import numpy as np

from opweave.ops import quantization as ops

from . import Call, Make, sample

ALL = (-(2**31), 2**32)


def shapes(make: Make) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shape of an input, and that of scales for blocks of it."""
    part = make.shape(0, 4, 3)
    return tuple(size * make.integer(1, 3) for size in part), part


@sample(ops.dequantize_linear)
def _(make: Make) -> Call:
    shape, part = shapes(make)
    x = make.array("input", shape, *ALL, special=True)
    return Call(x, make.array("scale", part, 1 / 8, 2), make.array("zero_point", part, *ALL, special=True))


@sample(ops.quantize_linear)
def _(make: Make) -> Call:
    shape, part = shapes(make)
    x = make.array("input", shape, -64, 64, special=True)
    x = np.asarray(np.where(np.isnan(x), np.array(0, x.dtype), x))
    bounds = make.choice(((-4, 4), ALL))
    return Call(x, make.array("scale", part, 1 / 8, 2), make.array("zero_point", part, *bounds, special=make.boolean()))
