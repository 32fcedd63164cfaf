"""GPU rules by family of operations, for all kernel languages.

Positions are written as plain mathematics; `opweave.expr.simplify` removes redundant arithmetic.
"""

# The imports fill the table.
from . import (
    attention as attention,
    elementwise as elementwise,
    indexing as indexing,
    integers as integers,
    linear_attention as linear_attention,
    movement as movement,
    normalization as normalization,
    pooling as pooling,
    products as products,
    quantization as quantization,
    recurrent as recurrent,
    reduction as reduction,
    resampling as resampling,
    rotary as rotary,
    selection as selection,
    sizes as sizes,
)
