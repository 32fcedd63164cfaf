"""Converters of PyTorch's operators, one file for each family; importing this module registers them."""

from . import (
    attention as attention,
    complex_numbers as complex_numbers,
    convolution as convolution,
    creation as creation,
    elementwise as elementwise,
    indexing as indexing,
    logic as logic,
    normalization as normalization,
    ordering as ordering,
    padding as padding,
    pooling as pooling,
    products as products,
    quantized as quantized,
    recurrent as recurrent,
    reductions as reductions,
    resizing as resizing,
    shapes as shapes,
    statistics as statistics,
    vision as vision,
)
