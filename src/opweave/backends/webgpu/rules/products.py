"""Matrix products and convolutions, which have kernels of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....expr import Array
from ....expr.ir import Input, Load
from ....ops import convolution as convolutions, matrix
from ....shapes import conv_size
from ..backend import webgpu
from ..contraction.problem import Slide, convolution, product
from .positions import along, sizes_of
from .results import Products


def _source(array: Array) -> Input:
    """The input that an operand in memory is loaded from."""
    assert isinstance(array.body, Load)
    assert isinstance(array.body.source, Input)
    return array.body.source


@webgpu.lower(matrix.matmul)
def _(a: Array, b: Array) -> Products:
    return Products(product(_source(a), _source(b)))


@webgpu.lower(matrix.gemm)
def _(a: Array, b: Array, c: Array | None, alpha: float, beta: float, a_transpose: bool, b_transpose: bool) -> Products:
    def finish(total: Array) -> Array:
        result = total if alpha == 1 else total * alpha
        if c is None:
            return result
        return result + (c if beta == 1 else c * beta)

    return Products(product(_source(a), _source(b), a_transpose, b_transpose), finish)


@webgpu.lower(convolutions.conv2d, convolutions.conv_transpose2d)
def _(
    input: Array,
    filter: Array,
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    groups: int,
    input_layout: str,
    filter_layout: str,
    bias: Array | None,
    **given: Any,
) -> Products:
    is_transposed = "output_sizes" in given
    if is_transposed:
        height, width = given["output_sizes"]
    else:
        image, taps = sizes_of(input, input_layout), sizes_of(filter, filter_layout)
        columns = zip("hw", padding[::2], padding[1::2], strides, dilations, strict=True)
        height, width = (conv_size(image[a], taps[a], *rest) for a, *rest in columns)
    slide = Slide((height, width), padding, strides, dilations, transposed=is_transposed)
    problem = convolution(_source(input), _source(filter), slide, groups, input_layout, filter_layout)
    if bias is None:
        return Products(problem)
    channel = (input_layout.index("c"),)
    return Products(problem, lambda total: total + along(bias, channel, total))
