"""Constants in decompositions and passes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.casts import cast_array
from ..core.dtypes import numpy_type
from ..core.graph import Builder, Desc, Operand


def constant(builder: Builder, value: Any, data_type: Any) -> Operand:
    """Make a constant operand of a number or an array, outside of a user's builder."""
    array = np.asarray(value)
    array = cast_array(array, data_type) if array.dtype.kind == "V" else array.astype(numpy_type(data_type), copy=False)
    return Operand(builder, Desc(data_type, array.shape), value=array)
