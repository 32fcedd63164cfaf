"""The rules of GPUs by families of operations, the same for all languages of kernels.

Positions are written as the mathematics says them; `opweave.expr.simplify` takes away what they do not need.
"""

from . import (  # the rules register themselves
    attention as attention,
    indexing as indexing,
    movement as movement,
    normalization as normalization,
    pooling as pooling,
    products as products,
    quantization as quantization,
    recurrent as recurrent,
    reduction as reduction,
    resampling as resampling,
    rotary as rotary,
)
