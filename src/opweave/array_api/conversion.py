"""Functions of the standard that make arrays of other objects, and convert arrays.

https://data-apis.org/array-api/latest/API_specification/creation_functions.html
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np

from ..context.context import MLContext, current_context
from ..lazy.array import Array
from ..lazy.assignment import copy_of
from ..lazy.from_memory import array, make_array
from ..lazy.mask import as_mask
from ..support.errors import ValidationError, require
from ..support.names import short_repr
from .arguments import as_array, convert
from .types import as_dtype, bool as bool_, check_context, data_type_of, float64


def _in_context(device: Any, name: str) -> Any:
    if device is not None and not isinstance(device, MLContext):
        raise ValidationError(f"{name}: device must be a context, got {short_repr(device)}")
    return nullcontext() if device is None else device


def array_of(values: np.ndarray, device: Any, name: str) -> Array:
    """Make an array from values in host memory, of bool or a data type of WebNN."""
    with _in_context(device, name):
        if values.dtype == bool_:
            return as_mask(array(values.view(np.uint8)))
        check_context(values.dtype, current_context(), name)
        return make_array(values, takes_float64=True)


def _to_device(x: Array, device: MLContext, /, *, stream: Any = None) -> Array:
    require(stream is None, f"to_device: stream must be None, got {short_repr(stream)}")
    require(isinstance(device, MLContext), f"to_device: device must be a context, got {short_repr(device)}")
    return x if device is x.context else array_of(x.numpy(), device, "to_device")


def asarray(obj: Any, /, *, dtype: Any = None, device: MLContext | None = None, copy: bool | None = None) -> Array:
    """Make an array from numbers, nested lists, another array, or an object with DLPack or the buffer protocol.

    As in NumPy, a Python integer that `dtype` does not hold is an error, while integers of an array wrap around.

    Args:
        obj: the values.
        dtype: data type of the result; default: that of `obj`, float32 for Python floats, int32 for Python integers.
        device: context of the result; default: that of `obj` if it is an array, else the current one.
        copy: True makes another array, so that an assignment changes only one of the two. False shares the memory of `obj`,
            or raises an error.

    Returns: An array of the shape of `obj`.

    Raises:
        ValidationError: WebNN has no data type for the values, or `dtype` cannot hold them.
        ValueError: `copy` is False, and a copy is necessary.

    >>> xp.asarray([True, False]).dtype, xp.asarray([[1, 2]], dtype=xp.float32)
    (dtype('bool'), <Array [[1., 2.]], float32[1, 2]>)
    """
    target = None if dtype is None else as_dtype(dtype, "asarray")
    if isinstance(obj, Array):
        moved = obj if device is None else _to_device(obj, device)
        result = moved if target is None else convert(moved, target)
        if copy is False and result is not obj:
            raise ValueError(f"asarray: {obj.desc} cannot become {result.desc} in {result.context} without a copy")
        return copy_of(obj) if copy and result is obj else result
    values: Any = obj
    if not isinstance(obj, np.ndarray) and (hasattr(obj, "__array__") or hasattr(obj, "__dlpack__")):
        values = np.asarray(obj) if hasattr(obj, "__array__") else np.from_dlpack(obj)
    with _in_context(device, "asarray"):
        own = getattr(values, "dtype", None) if target is None else target
        # `float64 == None` holds in NumPy.
        if own is not None and own == float64:
            check_context(float64, current_context(), "asarray")
        if isinstance(values, (np.ndarray, np.generic)):
            if copy is False:
                if values.dtype == bool_ or (target is not None and target != values.dtype):
                    raise ValueError(f"asarray: {values.dtype} cannot become {target or 'bool'} without a copy")
                return make_array(values, copy=False, takes_float64=True)
            if target == bool_ or (target is None and values.dtype == bool_):
                return as_mask(array(values.astype(np.bool_).view(np.uint8)))
            return make_array(values, None if target is None else data_type_of(target), takes_float64=True)
        if copy is False:
            raise ValueError(f"asarray: {type(obj).__name__} has no memory to share")
        if target is None:
            values = np.asarray(obj)
            return as_mask(array(values.view(np.uint8))) if values.dtype == bool_ else array(obj)
        if target == bool_:
            return as_mask(array(np.asarray(obj, np.bool_).view(np.uint8)))
        return make_array(obj, data_type_of(target))


def from_dlpack(x: Any, /, *, device: MLContext | None = None, copy: bool | None = None) -> Array:
    """Make an array from an object with DLPack.

    Args:
        x: an object with `__dlpack__`, in host memory.
        copy: False shares the memory of `x`, or raises an error; otherwise the values are copied.

    Returns: An array of the shape and data type of `x`.

    Raises:
        ValidationError: WebNN does not have the data type.
        ValueError: `copy` is False, and a copy is necessary.

    >>> import numpy as np
    >>> from opweave import array_api as xp
    >>> xp.from_dlpack(np.float32([1, 2])).tolist()
    [1.0, 2.0]
    """
    if isinstance(x, Array):
        return asarray(x, device=device, copy=copy)
    values = np.from_dlpack(x)
    return asarray(values, device=device, copy=None if values.dtype == bool_ or copy else copy)


def astype(x: Array, dtype: Any, /, *, copy: bool = True, device: MLContext | None = None) -> Array:
    """Convert an array to another data type.

    Floats are truncated to integers, and integers that the type does not hold wrap around. In bool, zero is False, and
    everything else True.

    Args:
        dtype: the new data type.
        copy: whether the result is another array if nothing changes; otherwise, it is `x` itself.
        device: context of the result; default: that of `x`.

    Returns: An array of the shape of `x`.

    >>> xp.astype(xp.asarray([1.7, -1.7]), xp.int32).tolist()
    [1, -1]
    """
    x = as_array(x, "astype")
    result = convert(x, as_dtype(dtype, "astype"))
    if copy and result is x and device in (None, x.context):
        return copy_of(x)
    return result if device is None else _to_device(result, device)


__all__ = [
    "asarray",
    "astype",
    "from_dlpack",
]
