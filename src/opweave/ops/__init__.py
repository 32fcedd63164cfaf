"""The 95 operations of the specification; one file a family."""

from __future__ import annotations

from typing import Any

from ..graph import Builder
from ..op import Op
from .convolution import conv2d, conv_transpose2d, resample2d
from .elementwise import add, exp
from .indexing import gather, gather_elements, gather_nd, scatter_elements, scatter_nd
from .matrix import gemm, matmul
from .movement import concat, expand, pad, reshape, reverse, slice, split, tile, transpose, triangular
from .pooling import average_pool2d, l2_pool2d, max_pool2d
from .recurrent import gru, gru_cell, lstm, lstm_cell


class Operations(Builder):
    """A builder with every operation as a method, in the specification's order."""

    concat = concat
    conv2d = conv2d
    conv_transpose2d = conv_transpose2d
    add = add
    exp = exp
    expand = expand
    gather = gather
    gather_elements = gather_elements
    gather_nd = gather_nd
    gemm = gemm
    gru = gru
    gru_cell = gru_cell
    lstm = lstm
    lstm_cell = lstm_cell
    matmul = matmul
    pad = pad
    average_pool2d = average_pool2d
    l2_pool2d = l2_pool2d
    max_pool2d = max_pool2d
    resample2d = resample2d
    reshape = reshape
    reverse = reverse
    scatter_elements = scatter_elements
    scatter_nd = scatter_nd
    slice = slice
    split = split
    tile = tile
    transpose = transpose
    triangular = triangular

    @classmethod
    def listing(cls) -> dict[str, Op[..., Any]]:
        """All operations by name, in the specification's order."""
        return {name: value for name, value in vars(Operations).items() if isinstance(value, Op)}
