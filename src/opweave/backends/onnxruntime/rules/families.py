"""Import all modules of ONNX Runtime rules, which registers the rules."""

from . import (
    activation as activation,
    attention as attention,
    control as control,
    convolution as convolution,
    dynamic as dynamic,
    elementwise as elementwise,
    indexing as indexing,
    integers as integers,
    logical as logical,
    mathematics as mathematics,
    matrix as matrix,
    movement as movement,
    normalization as normalization,
    pooling as pooling,
    quantization as quantization,
    recurrent as recurrent,
    reduction as reduction,
    sampling as sampling,
    selection as selection,
)
