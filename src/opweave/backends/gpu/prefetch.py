"""Fetch the matrix of a product into the cache of the device while short kernels before the product run.

For one token, the kernels between two large matrices read little and mostly start and drain: memory is idle meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from ...core.graph import Desc
from ...expr.gpu import Features
from ...expr.ir import Input
from .contraction.gemv import ThinKernel
from .steps import Buffer, KernelStep

MAX_READ_BYTES = 4 << 20
"""Maximum bytes of constants that a kernel reads if it leaves memory idle: about 1 us of an H200's memory. An estimate."""
PREFETCHED_BYTES = 1 << 20, 8 << 20
"""Minimum and maximum bytes of a matrix to fetch. The maximum takes 2 us of an H200's memory: the end of an attention and the
product after it. Larger matrices would delay the loads of these kernels. An estimate."""


def prefetch_matrices(steps: Sequence[KernelStep], features: Features) -> list[KernelStep]:
    """Let a product that reads few bytes fetch the matrix of the next product."""
    if not features.dialect.prefetch:
        return [*steps]
    # Equal layers have the same kernels.
    kernels: dict[tuple[int, Desc], tuple[Input, ThinKernel | None]] = {}
    changed = [*steps]
    for number, (step, after) in enumerate(pairwise(steps)):
        place = _matrix_to_fetch(step, after)
        if place is None:
            continue
        assert isinstance(step.kernel, ThinKernel)
        key = id(step.kernel), place.desc
        if key not in kernels:
            array = Input(-1, place.desc)
            kernels[key] = array, step.kernel.prefetching(array, features)
        array, kernel = kernels[key]
        if kernel is not None:
            place_of = {**dict(zip(step.kernel.bindings, step.places, strict=True)), array: place}
            changed[number] = replace(step, kernel=kernel, places=tuple(place_of[key] for key in kernel.bindings))
    return changed


def _matrix_to_fetch(step: KernelStep, after: KernelStep) -> Buffer | None:
    """The buffer of the first matrix of `after`, if `step` should fetch this matrix; else None."""
    if not (isinstance(step.kernel, ThinKernel) and isinstance(after.kernel, ThinKernel)):
        return None
    if step.repetition is not None or after.repetition is not None:
        return None
    source = after.kernel.sections[0].many[0].source
    place = dict(zip(after.kernel.bindings, after.places, strict=True))[source]
    if place.kind != "constant":
        return None
    least, most = PREFETCHED_BYTES
    read = sum(other.desc.byte_length for other in step.places if other.kind == "constant")
    return place if read <= MAX_READ_BYTES and least <= place.desc.byte_length <= most else None
