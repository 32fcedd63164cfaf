"""Import all modules of OpenVINO rules, which registers the rules."""

from . import (
    activation as activation,
    attention as attention,
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
    sampling as sampling,
)
