"""Arrays for the inputs of a graph: those of the caller, or random ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import memory
from ..core.graph import Desc
from ..memory.arrays import as_array, contiguous, fit
from ..support.errors import require
from ..support.hints import require_names
from ..support.names import short_repr


def input_arrays(
    caller: str, descs: Mapping[str, Desc], inputs: Mapping[str, Any] | None, seed: int = 0
) -> dict[str, np.ndarray]:
    """An array for each input by name; random ones for None. `caller` is the function in messages."""
    is_mapping = inputs is None or isinstance(inputs, Mapping)
    require(is_mapping, f"{caller}: inputs must map names to arrays, got {short_repr(inputs)}")
    if inputs is None:
        return random(descs, seed)
    require_names(f"{caller}: inputs", inputs, descs)
    arrays = {}
    for name, desc in descs.items():
        label = f"{caller}: input {name!r}"
        arrays[name] = contiguous(fit(as_array(inputs[name], label, desc.data_type), label, desc))
    return arrays


def random(descs: Mapping[str, Desc], seed: int = 0) -> dict[str, np.ndarray]:
    """Random values, the same in each call: normally distributed floats; integers 0 and 1, valid as indices and as masks."""
    generator = np.random.default_rng(seed)
    arrays = {name: memory.allocate(desc) for name, desc in descs.items()}
    for array in arrays.values():
        is_float = array.dtype.kind == "f"
        array[...] = generator.standard_normal(array.shape) if is_float else generator.integers(0, 2, array.shape)
    return arrays
