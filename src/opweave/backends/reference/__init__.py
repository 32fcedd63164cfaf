"""The reference back end: every operation in NumPy, written for readability. It defines the results of each operation.

A rule takes arrays and attributes by the operation's parameter names, and returns an array or a tuple of arrays.
float32 and float16 arrays are passed as float64, and results are rounded once, to the operation's data type. Integers
keep their type and wrap around on overflow.
"""

from . import (  # the rules register themselves
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
)
from .backend import Reference as Reference, reference as reference
