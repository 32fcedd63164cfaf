"""DLPack, the protocol by which array libraries share memory, for memory of devices, which NumPy cannot export.

Structures as in https://dmlc.github.io/dlpack/latest/c_api.html; both the versioned and the older form.
"""

from __future__ import annotations

import ctypes
from ctypes import (
    POINTER,
    Structure,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from itertools import accumulate
from operator import mul
from typing import Any
from weakref import finalize

from ..core.desc import Desc
from ..core.dtypes import INFO
from ..support.errors import ValidationError

CPU, CUDA, CUDA_MANAGED = 1, 2, 13
"""Kinds of devices (`DLDeviceType`)."""

VERSION = (1, 0)
"""The version of the structures below; minor versions are compatible."""

READ_ONLY = 1
"""The flag of memory that must not be written to."""

_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "complex": 5, "bool": 6}
_KINDS = {code: kind for kind, code in _CODES.items()}
_FLOATS_OF_8_BITS = {
    "float8_e4m3fn": 10, "float8_e4m3fnuz": 11, "float8_e5m2": 12, "float8_e5m2fnuz": 13, "float8_e8m0fnu": 14
}  # fmt: skip
"""Codes that say the whole type (`DLDataTypeCode`, since version 1.1)."""
_NAME, _NAME_VERSIONED = b"dltensor", b"dltensor_versioned"  # capsules keep their addresses
_USED = {_NAME: b"used_dltensor", _NAME_VERSIONED: b"used_dltensor_versioned"}


class _DlpackTensor(Structure):
    _fields_ = (
        ("data", c_void_p),
        ("device", c_int32 * 2),
        ("rank", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    )


_Deleter = ctypes.CFUNCTYPE(None, c_void_p)


class _Managed(Structure):
    _fields_ = (("tensor", _DlpackTensor), ("context", c_void_p), ("deleter", c_void_p))


class _Versioned(Structure):
    _fields_ = (
        ("version", c_uint32 * 2),
        ("context", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", _DlpackTensor),
    )


def _function(name: str, result: Any, *arguments: Any) -> Any:
    return ctypes.PYFUNCTYPE(result, *arguments)((f"PyCapsule_{name}", ctypes.pythonapi))


_new = _function("New", ctypes.py_object, c_void_p, c_char_p, c_void_p)
# A capsule that is being destroyed has no references left: these take its address, not the object, which ctypes would count.
_is_valid = _function("IsValid", c_int, c_void_p, c_char_p)
_pointer = _function("GetPointer", c_void_p, c_void_p, c_char_p)
_set_name = _function("SetName", c_int, c_void_p, c_char_p)

_lent: dict[int, Any] = {}
"""Objects that consumers of capsules use: structure, its arrays and the memory's owner, by the structure's address."""


def _delete(address: int) -> None:
    _lent.pop(address, None)


def _destroy(capsule: int) -> None:
    """Release the tensor of a destroyed capsule, unless a consumer has taken it."""
    for name in _USED:
        if _is_valid(capsule, name):
            _lent.pop(_pointer(capsule, name), None)


_DELETE, _DESTROY = _Deleter(_delete), _Deleter(_destroy)


def capsule(
    address: int,
    desc: Desc,
    device: tuple[int, int],
    owner: Any,
    *,
    read_only: bool = False,
    max_version: tuple[int, int] | None = None,
) -> Any:
    """A DLPack capsule of memory in C order; `owner` is kept alive until the consumer is done.

    `device` is the kind and number that `__dlpack_device__` returns. `max_version` is the newest version that the consumer
    knows; None for the form before versions, in which memory cannot be read-only (`BufferError`).
    """
    is_versioned = max_version is not None and max_version[0] >= VERSION[0]
    if read_only and not is_versioned:
        raise BufferError(
            f"the tensor {desc} is not writable, which DLPack before version 1 cannot say; create it with writable=True"
        )
    kind = INFO[desc.data_type]
    strides = list(accumulate((1, *desc.shape[:0:-1]), mul))[::-1] if desc.shape else []
    shape_array, strides_array = (c_int64 * desc.rank)(*desc.shape), (c_int64 * desc.rank)(*strides)
    if kind.bits < 8:
        raise BufferError(f"the tensor {desc} has elements of less than 8 bits in a byte each, which DLPack cannot say")
    code = _FLOATS_OF_8_BITS.get(desc.data_type)
    code = _CODES[desc.data_type.rstrip("0123456789")] if code is None else code
    tensor = _DlpackTensor(address, device, desc.rank, code, kind.bits, 1, shape_array, strides_array, 0)
    deleter = ctypes.cast(_DELETE, c_void_p)
    managed: _Managed | _Versioned
    if is_versioned:
        managed, name = _Versioned(VERSION, None, deleter, READ_ONLY if read_only else 0, tensor), _NAME_VERSIONED
    else:
        managed, name = _Managed(tensor, None, deleter), _NAME
    key = ctypes.addressof(managed)
    _lent[key] = managed, shape_array, strides_array, owner
    return _new(key, name, ctypes.cast(_DESTROY, c_void_p))


class ImportedTensor:
    """A tensor taken out of a capsule, which is used up. The tensor goes back to its owner when this object is collected.

    Attributes:
        address: the address of the first element.
        data_type: by name, as "float32" or "bool".
        strides: in elements, None for C order.
        device: its kind and number.
    """

    def __init__(self, capsule: Any) -> None:
        # IsValid also rejects objects of other types, which do not have the structure of a capsule.
        name = next((name for name in _USED if _is_valid(id(capsule), name)), None)
        if name is None:
            raise ValidationError(f"__dlpack__ must return a capsule with a tensor, got {capsule!r}")
        address = _pointer(id(capsule), name)
        managed = (_Versioned if name == _NAME_VERSIONED else _Managed).from_address(address)
        _set_name(id(capsule), _USED[name])
        if managed.deleter:
            finalize(self, _Deleter(managed.deleter), address).atexit = False  # the owner's library may be gone by then
        if isinstance(managed, _Versioned) and managed.version[0] != VERSION[0]:
            raise ValidationError(f"__dlpack__ returned version {managed.version[0]}, known is {VERSION[0]}")
        tensor: _DlpackTensor = managed.tensor
        self.address = (tensor.data or 0) + tensor.byte_offset
        kind = _KINDS.get(tensor.code, f"kind {tensor.code} of ")
        size = "" if kind == "bool" else tensor.bits
        whole = next((name for name, code in _FLOATS_OF_8_BITS.items() if code == tensor.code), f"{kind}{size}")
        self.data_type = whole + (f"x{tensor.lanes}" if tensor.lanes != 1 else "")
        self.shape = tuple(tensor.shape[: tensor.rank])
        self.strides = tuple(tensor.strides[: tensor.rank]) if tensor.strides else None
        self.device = (tensor.device[0], tensor.device[1])
        self.read_only = isinstance(managed, _Versioned) and bool(managed.flags & READ_ONLY)


def take(exporter: Any, stream: int | None) -> ImportedTensor:
    """The tensor of an object with `__dlpack__`, which may refuse (`ValidationError`).

    The producer makes the memory ready for `stream`, a handle (1 for CUDA's default stream); None for the CPU.
    """
    if callable(detach := getattr(exporter, "detach", None)):
        exporter = detach()  # PyTorch refuses to export a parameter, which has a gradient
    try:
        try:
            exported = exporter.__dlpack__(stream=stream, max_version=VERSION)
        except TypeError:  # a library from before versions
            exported = exporter.__dlpack__(stream=stream)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise ValidationError(f"{type(exporter).__name__}.__dlpack__ refuses: {error}") from error
    return ImportedTensor(exported)
