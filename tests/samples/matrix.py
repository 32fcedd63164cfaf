"""Calls of the operations in `opweave.ops.matrix`."""

from __future__ import annotations

from typing import Any

import numpy as np

from opweave.ops import matrix as ops

from . import Call, Make, sample
from .pooling import tame


@sample(ops.matmul)
def _(make: Make) -> Call:
    batches, (m, k, n) = make.shape(0, 3, 3), (make.integer(1, 5) for _ in range(3))
    shorter = make.broadcastable(batches)
    left, right = (batches, shorter) if make.boolean() else (shorter, batches)
    a, b = make.array("a", (*left, m, k), special=True), make.array("b", (*right, k, n), special=True)
    # Sums of the largest float16 are exact in neither float32 nor float16.
    return Call(tame(a), tame(b)) if a.dtype == np.float32 else Call(np.clip(a, -4, 4), b)


# The products of alpha are not exact, and the decomposition rounds them to the data type before they are summed up.
@sample(ops.gemm, rtol=1e-6, atol=2e-5)
def _(make: Make) -> Call:
    m, k, n = (make.integer(1, 5) for _ in range(3))
    options: dict[str, Any] = {}
    for name in ("alpha", "beta"):
        if make.boolean():
            options[name] = make.number(-4, 4)
    for name in ("a_transpose", "b_transpose"):
        if make.boolean():
            options[name] = make.boolean()
    if make.boolean():
        options["c"] = make.array("c", make.broadcastable((m, n)), -1, 1)
    a = make.array("a", (k, m) if options.get("a_transpose") else (m, k), -1, 1)
    b = make.array("b", (n, k) if options.get("b_transpose") else (k, n), -1, 1)
    return Call(a, b, **options)
