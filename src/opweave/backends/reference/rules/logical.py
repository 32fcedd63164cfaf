"""Reference rules: comparisons and logic. The back end converts the bool results to uint8."""

from __future__ import annotations

import numpy as np

from ....ops import logical as ops
from ..backend import reference

reference.apply(
    {
        ops.equal: np.equal,
        ops.not_equal: np.not_equal,
        ops.greater: np.greater,
        ops.greater_or_equal: np.greater_equal,
        ops.lesser: np.less,
        ops.lesser_or_equal: np.less_equal,
        ops.logical_not: np.logical_not,
        ops.logical_and: np.logical_and,
        ops.logical_or: np.logical_or,
        ops.logical_xor: np.logical_xor,
        ops.is_nan: np.isnan,
        ops.is_infinite: np.isinf,
    }
)
