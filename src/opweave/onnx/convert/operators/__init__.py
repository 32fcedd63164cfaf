"""Converters of the ONNX operators; one file a family."""

from ...model.registry import CONVERTERS as CONVERTERS
from . import (
    activation as activation,
    attention as attention,
    convolution as convolution,
    einsum as einsum,
    elementwise as elementwise,
    experts as experts,
    indexing as indexing,
    logic as logic,
    mathematics as mathematics,
    matrix as matrix,
    microsoft as microsoft,
    movement as movement,
    normalization as normalization,
    packed as packed,
    pooling as pooling,
    quantization as quantization,
    quantized as quantized,
    random_numbers as random_numbers,
    recurrent as recurrent,
    reduction as reduction,
    resize as resize,
    shape as shape,
    traditional as traditional,
)
