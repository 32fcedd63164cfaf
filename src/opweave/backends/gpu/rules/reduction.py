"""Reductions, arg_min and arg_max, cumulative sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .... import expr
from ....core.dtypes import DataType
from ....core.operation import Op
from ....expr import Traced, cast, compute, store, sum_over, where
from ....ops import reduction as ops
from ....ops.formulas import reshape_array
from ..table import gpu

BLOCK = 32
"""Elements per block of a cumulative sum, added one by one."""

UNROLLED = 4
"""Unroll factor of sums of products, so that several loads are in flight."""


def widen(input: Traced) -> Traced:
    """Cast float16 to float32, so that intermediate results neither overflow nor lose digits."""
    return cast(input, "float32") if input.data_type == "float16" else input


def narrow(result: Traced, like: Traced) -> Traced:
    """Cast a result computed from `widen(like)` back to the data type of `like`."""
    return cast(result, "float16") if like.data_type == "float16" else result


def dot(count: int, term: Callable[[Traced], Traced]) -> Traced:
    """The sum of `count` terms, with several loads in flight."""
    if count % UNROLLED:
        return sum_over(count, term)
    return sum_over(count // UNROLLED, lambda k: sum_over(UNROLLED, lambda part: term(k * UNROLLED + part)))


def _log_sum_exp(x: Traced, axes: Sequence[int], *, keep_dimensions: bool) -> Traced:
    # log Σ eˣ = m + log Σ eˣ⁻ᵐ does not overflow if m is the maximum. An infinite m would give ∞ - ∞, so m is 0 then.
    largest = expr.reduce_max(x, axes, keep_dimensions=True)
    m = where(expr.is_infinite(largest), 0, largest)
    total = m + expr.log(expr.reduce_sum(expr.exp(x - m), axes, keep_dimensions=True))
    shape = [size for axis, size in enumerate(x.shape) if axis not in axes]
    return total if keep_dimensions else reshape_array(total, shape)


def _magnitude(x: Traced) -> Traced:
    return x if x.data_type.startswith("u") else abs(x)


_REDUCTIONS: dict[Op[..., Any], Callable[..., Traced]] = {
    ops.reduce_l1: lambda x, axes, **keep: expr.reduce_sum(_magnitude(x), axes, **keep),
    ops.reduce_l2: lambda x, axes, **keep: expr.sqrt(expr.reduce_sum(x * x, axes, **keep)),
    ops.reduce_log_sum: lambda x, axes, **keep: expr.log(expr.reduce_sum(x, axes, **keep)),
    ops.reduce_log_sum_exp: _log_sum_exp,
    ops.reduce_max: expr.reduce_max,
    ops.reduce_mean: expr.reduce_mean,
    ops.reduce_min: expr.reduce_min,
    ops.reduce_product: expr.reduce_product,
    ops.reduce_sum: expr.reduce_sum,
    ops.reduce_sum_square: lambda x, axes, **keep: expr.reduce_sum(x * x, axes, **keep),
}


def _rule(reduction: Callable[..., Traced]) -> Callable[..., Traced]:
    return lambda input, axes, keep_dimensions: reduction(input, axes, keep_dimensions=keep_dimensions)


for _op, _reduction in _REDUCTIONS.items():
    gpu.lower(_op)(_rule(_reduction))


@gpu.lower(ops.arg_max)
def _(input: Traced, axis: int, keep_dimensions: bool, output_data_type: DataType) -> Traced:
    return cast(expr.arg_max(input, axis, keep_dimensions=keep_dimensions), output_data_type)


@gpu.lower(ops.arg_min)
def _(input: Traced, axis: int, keep_dimensions: bool, output_data_type: DataType) -> Traced:
    return cast(expr.arg_min(input, axis, keep_dimensions=keep_dimensions), output_data_type)


@gpu.lower(ops.cumulative_sum)
def _(input: Traced, axis: int, exclusive: bool, reversed: bool) -> Traced:
    return narrow(_partial_sums(widen(input), axis, exclusive, reversed), input)


def _partial_sums(x: Traced, axis: int, exclusive: bool, reversed: bool) -> Traced:
    """The sum within a block plus the sum of all earlier blocks, computed recursively: O(n log n) additions."""
    size = x.shape[axis]
    blocks = -(-size // BLOCK)

    def at(array: Traced, p: Sequence[Traced], position: Traced) -> Traced:
        return array.clamped[(*p[:axis], position, *p[axis + 1 :])]

    def line(position: Traced) -> Traced:
        return size - 1 - position if reversed else position

    def of_block(*p: Traced) -> Traced:
        def element(r: Traced) -> Traced:
            position = p[axis] * BLOCK + r
            return where(position < size, at(x, p, line(position)), 0)

        return sum_over(BLOCK, element)

    earlier = None
    if blocks > 1:
        sums = store(compute((*x.shape[:axis], blocks, *x.shape[axis + 1 :]), of_block))
        earlier = store(_partial_sums(sums, axis, exclusive=True, reversed=False))

    def element(*p: Traced) -> Traced:
        position = line(p[axis])
        block, within = position // BLOCK, position % BLOCK

        def one(r: Traced) -> Traced:
            counts = r < within if exclusive else r <= within
            return where(counts, at(x, p, line(block * BLOCK + r)), 0)

        total = sum_over(min(BLOCK, size), one)
        return total if earlier is None else at(earlier, p, block) + total

    return compute(x.shape, element)
