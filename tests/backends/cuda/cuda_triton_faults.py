"""Kernels in Triton with errors, for tests of messages. (Triton reads the source of its functions from a file.)"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def callee(a):  # type: ignore[no-untyped-def]
    # größe
    return a + undefined_name  # type: ignore[name-defined]  # noqa: F821


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def calls_undefined(x, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    i = tl.arange(0, BLOCK)
    tl.store(out + i, callee(tl.load(x + i, mask=i < n)), mask=i < n)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def adds_text(x, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    i = tl.arange(0, BLOCK)
    tl.store(
        out + i,
        tl.load(x + "é"),
    )


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def odd_range(x, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """Read a number of elements that Triton does not support."""
    i = tl.arange(0, 1000)
    tl.store(out + i, 0.0)
