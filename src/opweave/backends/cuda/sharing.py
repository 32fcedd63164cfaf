"""Exchange CUDA memory with other libraries: DLPack, and `__cuda_array_interface__` for libraries without it (Numba).

Both protocols say which stream must wait for which when memory is passed on; the caller orders later work.
- https://data-apis.org/array-api/latest/API_specification/generated/array_api.array.__dlpack__.html
- https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Any

import numpy as np

from ...core.dtypes import ANY, numpy_type
from ...core.graph import Desc
from ...memory import dlpack
from ...support.errors import ValidationError, require
from .devices import DriverError
from .driver import Driver

ALIGNMENT = 16
"""Alignment in bytes: kernels read four float32 at a time."""

DEFAULT_STREAM = 1


@dataclass(frozen=True, slots=True, eq=False)
class Lent:
    """Memory of another library that kernels can use: an array in C order, kept alive by `owner`."""

    address: int
    desc: Desc
    read_only: bool
    owner: Any


def handle(driver: Driver) -> int:
    """The handle of a driver's stream in both protocols, which do not allow 0."""
    return driver.stream or DEFAULT_STREAM


def memory_of(array: Any, driver: Driver) -> Lent:
    """The memory of an array, for later work on the driver's stream.

    Raises:
        ValidationError: the array supports neither protocol; or it is on another device, not in C order, not aligned, or of a
            data type that WebNN does not have.
    """
    if hasattr(array, "__dlpack__"):
        kind, number = array.__dlpack_device__()
        require(
            kind in (dlpack.CUDA, dlpack.CUDA_MANAGED),
            "tensor_from takes an array in the memory of an NVIDIA GPU; create_tensor and write_tensor take "
            f"{type(array).__name__} of the CPU"
            if kind == dlpack.CPU
            else f"tensor_from takes an array in the memory of an NVIDIA GPU, got one on DLPack's device {kind}",
        )
        # Checked before the producer on another device must make this stream wait.
        _check_device(number, driver)
        taken = dlpack.take(array, handle(driver))
        return _check_layout(taken.address, taken.data_type, taken.shape, taken.strides, taken.read_only, taken)
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None:
        raise ValidationError(
            "tensor_from takes an array with __dlpack__ or __cuda_array_interface__ on CUDA (of PyTorch, CuPy, JAX or Numba), "
            f"got {type(array).__name__}; create_tensor and write_tensor take arrays of NumPy"
        )
    require(interface.get("mask") is None, "tensor_from: the array has a mask, which would be lost")
    dtype, (address, read_only) = np.dtype(interface["typestr"]), interface["data"]
    try:
        _check_device(driver.device_of(address), driver)
        stream = interface.get("stream")
        if stream is not None:
            require(stream != 0, "tensor_from: the stream of a __cuda_array_interface__ must not be 0")
            driver.follow(stream)
    except DriverError as error:
        if error.is_sticky:
            raise
        raise ValidationError(f"tensor_from: the driver does not know the array's memory or stream: {error}") from None
    strides = interface.get("strides")
    if strides is not None:
        strides = [step / dtype.itemsize for step in strides]
    return _check_layout(address, dtype.name, interface["shape"], strides, read_only, array)


def _check_device(number: int, driver: Driver) -> None:
    require(number == driver.number, f"tensor_from: the array is on device {number}, the context on {driver.number}")


def _check_layout(
    address: int,
    data_type: str,
    shape: Sequence[int],
    strides: Sequence[float] | None,
    read_only: bool,
    owner: Any,
) -> Lent:
    require(data_type in ANY, f"tensor_from: WebNN has no data type {data_type}")
    desc = Desc(data_type, tuple(shape))  # type: ignore[arg-type]
    expected = list(accumulate((1, *desc.shape[:0:-1]), mul))[::-1]
    is_contiguous = strides is None or all(
        size == 1 or step == wanted for size, step, wanted in zip(desc.shape, strides, expected, strict=False)
    )
    require(
        is_contiguous,
        f"tensor_from needs an array in C order, got shape {list(desc.shape)} with strides {strides and list(strides)} "
        "(in elements)",
    )
    require(
        address % ALIGNMENT == 0,
        f"tensor_from: the array must be aligned to {ALIGNMENT} bytes, its address is {address:#x}",
    )
    return Lent(address, desc, bool(read_only), owner)


def interface(address: int, desc: Desc, driver: Driver, *, read_only: bool) -> dict[str, Any]:
    """The `__cuda_array_interface__` of a tensor; consumers wait for the stream in it.

    Raises:
        AttributeError: the protocol has no code for the data type, as for bfloat16.
    """
    dtype = numpy_type(desc.data_type)
    if dtype.isbuiltin != 1:
        raise AttributeError(
            f"__cuda_array_interface__ has no code for {desc.data_type}; DLPack has: torch.from_dlpack(…)"
        )
    return {
        "shape": desc.shape,
        "typestr": dtype.str,
        "data": (address, read_only),
        "strides": None,
        "stream": handle(driver),
        "version": 3,
    }


def capsule(
    address: int,
    desc: Desc,
    owner: Any,
    driver: Driver,
    *,
    read_only: bool,
    stream: int | None = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
) -> Any:
    """The DLPack capsule of a tensor; the consumer's stream waits for the driver's.

    `stream` is the consumer's: None for the default stream, -1 for one that needs no wait.

    Raises:
        BufferError: a copy would be needed, or the tensor is read-only and the consumer cannot express that.
    """
    device = (dlpack.CUDA, driver.number)
    if copy or (dl_device is not None and tuple(dl_device) != device):
        raise BufferError(f"the tensor {desc} is lent where it is, on {device}; context.read_tensor(tensor) copies it")
    require(stream != 0, "__dlpack__: the stream 0 is ambiguous; 1 is the default stream")
    result = dlpack.capsule(address, desc, device, owner, read_only=read_only, max_version=max_version)
    if stream != -1:
        driver.precede(DEFAULT_STREAM if stream is None else stream)
    return result
