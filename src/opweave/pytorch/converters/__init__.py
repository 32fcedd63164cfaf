"""Converters of PyTorch's operators, one file for each family; importing this module registers them."""

from . import (
    attention as attention,
    convolution as convolution,
    creation as creation,
    elementwise as elementwise,
    indexing as indexing,
    logic as logic,
    normalization as normalization,
    products as products,
    reductions as reductions,
    shapes as shapes,
)
