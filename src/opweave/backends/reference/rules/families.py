"""All rules of the reference, which register themselves on import."""

from . import (
    activation as activation,
    convolution as convolution,
    elementwise as elementwise,
    indexing as indexing,
    logical as logical,
    matrix as matrix,
    movement as movement,
    normalization as normalization,
    pooling as pooling,
    quantization as quantization,
    recurrent as recurrent,
    reduction as reduction,
    selection as selection,
)
