"""Calls of the normalisations and of softmax.

The rounding of a mean, half a unit in the last place of 4, is multiplied by scale / sqrt(variance + epsilon). Therefore
epsilon is not as small here as usual, and the absolute tolerance is 32 times that rounding. The default epsilon occurs in
the conformance cases. The largest float is left out: its square overflows in some computations, but not in others.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from opweave.ops import normalization as ops

from . import Call, Make, sample

EPSILONS = (1 / 64, 0.1, 1.0)


def values(make: Make, shape: tuple[int, ...]) -> np.ndarray:
    x = make.array("input", shape, special=make.boolean())
    return np.asarray(np.where(np.isfinite(x) & (np.abs(x) > 4), np.array(4, x.dtype), x))


def options(make: Make, shape: tuple[int, ...]) -> dict[str, Any]:
    """Scale and bias of the given shape, each given or left out, and epsilon."""
    given: dict[str, Any] = {name: make.array(name, shape) for name in ("scale", "bias") if make.boolean()}
    return {**given, "epsilon": make.choice(EPSILONS)}


@sample(ops.batch_normalization, half=1000)
def _(make: Make) -> Call:
    x = values(make, make.shape(1))
    axis = 1 if x.ndim > 1 and make.boolean() else make.integer(0, x.ndim - 1)
    channels = (x.shape[axis],)
    given = options(make, channels)
    if axis != 1 or make.boolean():
        given["axis"] = axis
    return Call(x, make.array("mean", channels), make.array("variance", channels, 0, 4), **given)


@sample(ops.instance_normalization, rtol=1e-5, atol=8e-6, half=200)
def _(make: Make) -> Call:
    x = values(make, make.shape(4, 4))
    layout = make.choice(("nchw", "nhwc"))
    return Call(x, layout=layout, **options(make, (x.shape[layout.index("c")],)))


@sample(ops.layer_normalization, rtol=1e-5, atol=8e-6, half=200)
def _(make: Make) -> Call:
    x = values(make, make.shape())
    if make.boolean():
        return Call(x, **options(make, x.shape[1:]))
    axes = make.subset(range(x.ndim))
    return Call(x, axes=axes, **options(make, tuple(x.shape[axis] for axis in axes)))


@sample(ops.softmax)
def _(make: Make) -> Call:
    x = make.array("input", make.shape(1), special=make.boolean())
    return Call(x, make.integer(0, x.ndim - 1))
