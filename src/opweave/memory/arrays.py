"""Conversion of data from users to plain NumPy arrays.

`as_array` converts without a copy; `fit` checks the array against a descriptor; `contiguous` makes a counted copy if engines
cannot use the memory; `constant_array` does that for constants.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from .. import memory
from ..core import dtypes
from ..core.desc import Desc
from ..support.errors import OperationError, ValidationError

LARGE_BYTES = 1024
"""Constants of at least this size in a mapped file or in `bytes` are not copied, even if they are not aligned."""


def as_array(value: Any, subject: str, data_type: str = "float32") -> np.ndarray:
    """A plain array over the memory of `value`, the argument `subject`; never a copy.

    `value` is an array or scalar of NumPy, has DLPack, the array interface or the buffer protocol, whose items of one byte
    count as uint8. Masked arrays are refused, because their mask would be lost.
    """
    if type(value) is np.ndarray:
        # A view, because users can change the data type and the shape of their array object later.
        return value.view()
    if isinstance(value, np.ma.MaskedArray):
        raise ValidationError(f"{subject} must not be masked; array.filled(...) gives an array without a mask")
    if callable(detach := getattr(value, "detach", None)):
        value = detach()  # PyTorch refuses to export a parameter, which has a gradient
    try:
        if "bfloat16" in str(getattr(value, "dtype", "")) and not hasattr(value, "__array_interface__"):
            return _bfloat16(value)
        if isinstance(value, np.ndarray):
            return value.view(np.ndarray)
        if isinstance(value, np.generic) or hasattr(value, "__array_interface__"):
            return np.asarray(value)
        if hasattr(value, "__dlpack__"):
            return np.from_dlpack(value)
        buffer = memoryview(value)
        if buffer.itemsize > 1:
            return np.asarray(buffer)
        return np.frombuffer(buffer, np.uint8)
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        if isinstance(value, (list, tuple, int, float)):
            hint = f"; np.asarray(value, {data_type!r}) makes an array"
        elif str(error).startswith("memoryview:"):
            hint = ""  # it says again that the value is no buffer
        else:
            hint = f" ({error})"
        raise ValidationError(f"{subject} must be an array or a buffer, got {type(value).__name__}{hint}") from None


def _bfloat16(value: Any) -> np.ndarray:
    """The memory of a bfloat16 tensor of PyTorch, which neither DLPack nor NumPy knows, as `ml_dtypes.bfloat16`."""
    import ml_dtypes

    bits = value.view(sys.modules[type(value).__module__.partition(".")[0]].int16)
    return np.from_dlpack(bits).view(ml_dtypes.bfloat16)


def fit(array: np.ndarray, subject: str, desc: Desc) -> np.ndarray:
    """The array in the shape of `desc`; never a copy.

    It must hold the data type, in the shape of `desc` or flat. A flat uint8 array stands for the bytes of any data type, as
    Uint8Array and ArrayBuffer do in the specification.
    """
    # Messages are made only for errors, because every write, read and compute calls this.
    if array.dtype == (wanted := dtypes.numpy_type(desc.data_type)) and array.shape == desc.shape:
        return array
    if array.dtype == np.uint8 and array.ndim == 1 and desc.data_type != "uint8":
        if array.nbytes != desc.byte_length:
            raise ValidationError(f"{subject} must have {desc.byte_length} bytes for {desc}, got {array.nbytes}")
        if not array.flags.c_contiguous:
            raise ValidationError(f"{subject} must be contiguous to be taken as the bytes of {desc}")
        return array.view(wanted).reshape(desc.shape)
    if array.dtype != wanted:
        raise ValidationError(
            f"{subject} must hold {desc.data_type} in native byte order, got {array.dtype.str} ({array.dtype.name})"
            f"; array.astype({desc.data_type!r}) converts it"
        )
    if array.shape != (desc.element_count,):
        raise ValidationError(f"{subject} must have shape {list(desc.shape)} (or be flat), got {list(array.shape)}")
    if not array.flags.c_contiguous:
        raise ValidationError(f"{subject} must be contiguous to be taken for {desc}")
    return array.reshape(desc.shape)


def unpack(array: np.ndarray, desc: Desc) -> np.ndarray:
    """The elements of less than 8 bits in a flat uint8 array, which has several in each byte, the first in the lowest bits.

    Other arrays, and bytes that do not fit `desc`, are returned as they are.

    >>> unpack(np.uint8([0xE1, 0x03]), Desc("int4", (3,))).tolist()
    [1, -2, 3]
    """
    bits = dtypes.INFO[desc.data_type].bits
    count = desc.element_count
    if bits >= 8 or array.dtype != np.uint8 or array.ndim != 1 or array.nbytes != -(-count * bits // 8) or count == 1:
        return array
    parts = [array >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)]
    codes = np.stack(parts, -1).reshape(-1)[:count]
    memory.copies.add(codes.nbytes, "elements of less than 8 bits")
    if dtypes.INFO[desc.data_type].kind == "f":
        return codes.view(dtypes.numpy_type(desc.data_type))
    from ..core.casts import cast_array

    return cast_array(codes, desc.data_type)


def contiguous(array: np.ndarray) -> np.ndarray:
    """The array itself if engines can use its memory (C-contiguous and aligned), else a counted copy."""
    if array.flags.c_contiguous and array.flags.aligned:
        return array
    try:
        usable = np.empty(array.shape, array.dtype)
    except MemoryError:
        text = f"there is no memory for a contiguous copy of {array.dtype}{list(array.shape)}: {array.nbytes} bytes"
        raise OperationError(text) from None
    memory.copy(usable, array, "make contiguous")
    return usable


def constant_array(array: np.ndarray) -> np.ndarray:
    """The array of a constant: as `contiguous`, but large weights in a mapped file or in `bytes` are never copied.

    In a model file they are rarely aligned; engines and NumPy can read them anyway.
    """
    stays = array.nbytes >= LARGE_BYTES and array.flags.c_contiguous
    return array if stays and is_mapped_or_bytes(memory.owner(array)) else contiguous(array)


def owner_of(array: np.ndarray) -> np.ndarray:
    """The array that owns the memory of `array`, whose views are short-lived."""
    owner, base = array, array.base
    while base is not None:
        if isinstance(base, np.ndarray):
            owner = base
        base = getattr(base, "base", None)
    return owner


def is_mapped_or_bytes(held: object) -> bool:
    """Whether the owner of memory is a mapped file, or `bytes`: nobody changes these."""
    if isinstance(held, bytes):
        return True
    from mmap import mmap  # imported late, because it loads a library that small models do not need

    return isinstance(held, mmap)


def is_immutable(array: np.ndarray) -> bool:
    """Whether an array and all arrays that it is a view of are read-only, and so is the memory that they share.

    >>> text = np.frombuffer(b"abcd", np.uint8)
    >>> is_immutable(text), is_immutable(np.zeros(2)), is_immutable(np.broadcast_to(np.zeros(1), 2))
    (True, False, False)
    """
    base: object = array
    while isinstance(base, np.ndarray):
        if base.flags.writeable:
            return False
        base = base.base
    if base is None:
        return True
    try:
        with memoryview(base) as buffer:  # type: ignore[arg-type]
            held = buffer.obj
            return buffer.readonly and is_mapped_or_bytes(held)
    except (TypeError, ValueError, BufferError):
        return False


def describe(array: np.ndarray, subject: str, takes_all: bool = False) -> Desc:
    """The descriptor of an array in native byte order; its data type must be WebNN's, or with `takes_all` any."""
    try:
        return Desc(dtypes.of_array(array.dtype, takes_all), array.shape)
    except ValidationError as error:
        raise ValidationError(f"{subject}: {error}") from None
