"""A kernel in Triton, as users write them; Triton reads its text from this file."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def scale(x, out, x_size, k, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """Multiply elements by a number."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < x_size) * k, at < x_size)
