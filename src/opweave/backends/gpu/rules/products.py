"""Matrix products and convolutions, which `contraction` computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ....composites import convolve as composites
from ....expr import Traced
from ....expr.array import stretch
from ....ops import convolution as convolutions, matrix
from ..contraction.problem import Matrix, Problem, View, convolution, product
from ..table import gpu
from .positions import along, channels_first
from .results import Products, source_of, view_of

TAKE_VIEWS = frozenset({matrix.matmul, matrix.gemm})
"""Operations whose rules accept operands with permuted axes (see `view_of`), and one of 16 bits that counts as float32."""


def _product(a: Traced, b: Traced, a_transpose: bool = False, b_transpose: bool = False) -> Problem:
    left, right = view_of(a), view_of(b)
    assert left is not None
    assert right is not None
    return product_of(left, right, a_transpose, b_transpose)


def product_of(left: View, right: View, a_transpose: bool = False, b_transpose: bool = False) -> Problem:
    """The problem of matrix products; one operand may have 16 bits, which count as float32."""
    problem = product(left, right, a_transpose, b_transpose)
    if left.source.desc.data_type == right.source.desc.data_type:
        return problem
    sides = problem.left, problem.right
    wide = [replace(s, is_widened=s.source.desc.data_type != "float32") for s in sides if isinstance(s, Matrix)]
    return replace(problem, left=wide[0], right=wide[1])


@gpu.lower(matrix.matmul)
def _(a: Traced, b: Traced) -> Products:
    return Products(_product(a, b))


@gpu.lower(matrix.gemm)
def _(
    a: Traced, b: Traced, c: Traced | None, alpha: float, beta: float, a_transpose: bool, b_transpose: bool
) -> Products:
    def finish(total: Traced) -> Traced:
        result = total if alpha == 1 else total * alpha
        if c is None:
            return result
        added = c if beta == 1 else c * beta
        # The result has the shape of the products: a size of `c` with a name may be 1 in a run, and then broadcasts.
        return result + Traced(total.shape, stretch(added, total.shape))

    return Products(_product(a, b, a_transpose, b_transpose), finish)


@gpu.lower(convolutions.conv2d, convolutions.conv_transpose2d)
def _(input: Traced, filter: Traced, bias: Traced | None, input_layout: str, **options: Any) -> Products:
    return _convolution(input, filter, bias, input_layout, options)


@gpu.lower(composites.convolution, composites.conv_transpose)
def _(input: Traced, filter: Traced, bias: Traced | None, **options: Any) -> Products:
    axes = channels_first(input.rank - 2).removeprefix("nc")
    channels = "io" if "output_sizes" in options else "oi"
    return _convolution(input, filter, bias, f"nc{axes}", {**options, "filter_layout": f"{channels}{axes}"})


def _convolution(
    input: Traced, filter: Traced, bias: Traced | None, input_layout: str, options: Mapping[str, Any]
) -> Products:
    others = {name: value for name, value in options.items() if name != "output_padding"}  # implied by output_sizes
    problem = convolution(source_of(input), source_of(filter), input_layout=input_layout, **others)
    if bias is None:
        return Products(problem)
    channel = (input_layout.index("c"),)
    return Products(problem, lambda total: total + along(bias, channel, total))
