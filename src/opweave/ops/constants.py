"""Constants in decompositions and passes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.graph import Builder, Desc, Operand


def constant(builder: Builder, value: Any, data_type: Any) -> Operand:
    """Make a constant operand of a number or an array, outside of a user's builder."""
    array = np.asarray(value, dtype=data_type)
    return Operand(builder, Desc(data_type, array.shape), value=array)
