"""The CUDA devices of this machine, and calls of NVIDIA's driver; importing this module loads nothing."""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import Any

from ...support import packages
from ...support.errors import MissingExtraError, ValidationError, cause_text, import_extra, need_text
from ...support.records import record

STICKY = frozenset(
    {
        "CUDA_ERROR_ASSERT",
        "CUDA_ERROR_CONTEXT_IS_DESTROYED",
        "CUDA_ERROR_DEINITIALIZED",
        "CUDA_ERROR_ECC_UNCORRECTABLE",
        "CUDA_ERROR_HARDWARE_STACK_ERROR",
        "CUDA_ERROR_ILLEGAL_ADDRESS",
        "CUDA_ERROR_ILLEGAL_INSTRUCTION",
        "CUDA_ERROR_INVALID_ADDRESS_SPACE",
        "CUDA_ERROR_INVALID_PC",
        "CUDA_ERROR_LAUNCH_FAILED",
        "CUDA_ERROR_LAUNCH_TIMEOUT",
        "CUDA_ERROR_MISALIGNED_ADDRESS",
        "CUDA_ERROR_NVLINK_UNCORRECTABLE",
        "CUDA_ERROR_UNKNOWN",
    }
)
"""Errors after which this process cannot use the device any more."""


class DriverError(Exception):
    """A call of the driver failed; `name` is the driver's name of the error."""

    def __init__(self, name: str, text: str = "") -> None:
        super().__init__(f"{text} ({name})" if text else name)
        self.name = name

    @property
    def is_sticky(self) -> bool:
        return self.name in STICKY


@record
class CudaInfo:
    """The description of a device. `architecture` is NVRTC's name, such as "sm_90"; memories are in bytes.

    A block may declare `max_shared` bytes of shared memory, and request `max_dynamic_shared`.
    """

    name: str
    architecture: str
    units: int
    max_shared: int
    max_dynamic_shared: int
    memory: int

    @property
    def has_tensor_cores(self) -> bool:
        """Whether the hardware multiplies TF32 and bfloat16 matrices: since Ampere."""
        return int(self.architecture.removeprefix("sm_")) >= 80


def has_early_starts(architecture: str) -> bool:
    """Whether a kernel may start while the previous one ends: since Hopper; on other devices it does not wait.

    See the CUDA programming guide, "Programmatic Dependent Launch".
    """
    return int(architecture.removeprefix("sm_")) >= 90


def is_installed() -> bool:
    return packages.is_installed("cuda.bindings")


PURPOSE = "running on NVIDIA's GPUs"

CONTROL = "/dev/nvidiactl"
"""File through which programs reach NVIDIA's driver on Linux; absent on WSL."""


def has_files() -> bool:
    """Whether devices appear as files on this system: on Linux, but not in the Windows Subsystem for Linux."""
    return sys.platform == "linux" and not os.path.exists("/dev/dxg")


def may_be_there() -> bool:
    """Whether there probably is a device, without starting the driver, which is slow."""
    return is_installed() and os.path.exists(CONTROL)


@cache
def bindings() -> Any:
    return import_extra("cuda.bindings.driver", "cuda", PURPOSE)


def call(name: str, *arguments: Any) -> Any:
    """Call a function of the driver, and return its result: None, a value or a tuple. Raises `DriverError`."""
    error, *results = getattr(bindings(), name)(*arguments)
    if error:
        raise failure(error)
    return results[0] if len(results) == 1 else tuple(results) or None


def failure(error: Any) -> DriverError:
    _, text = bindings().cuGetErrorString(error)
    return DriverError(error.name, text.decode() if text else "")


def is_done(event: Any) -> bool:
    """Whether the work before an event is done. Raises `DriverError` if that work has failed."""
    try:
        call("cuEventQuery", event)
    except DriverError as error:
        if error.name == "CUDA_ERROR_NOT_READY":
            return False
        raise
    return True


@cache
def trouble() -> str:
    """The reason why no device can be used here; empty if one can."""
    if not is_installed():
        return "pip install 'opweave[cuda]'"
    return _trouble_of_bindings() or _trouble_of_driver() or trouble_of_nvrtc()


def fault() -> str:
    """The trouble caused by installed packages; empty if only the extra, a driver or a GPU is missing."""
    if not is_installed():
        return ""
    return _trouble_of_bindings() or ("" if _trouble_of_driver() else trouble_of_nvrtc())


@cache
def _trouble_of_bindings() -> str:
    try:
        bindings()
    except MissingExtraError as error:
        return str(error)
    return ""


@cache
def _trouble_of_driver() -> str:
    try:
        call("cuInit", 0)
        count = call("cuDeviceGetCount")
    except DriverError as error:
        if error.name == "CUDA_ERROR_NO_DEVICE":
            return "there is no NVIDIA GPU that this process may use"
        return f"NVIDIA's driver does not start: {error}"
    except (RuntimeError, ImportError, OSError):  # the bindings find no library of the driver
        return "there is no driver of NVIDIA here"
    return "" if count else "there is no NVIDIA GPU that this process may use"


@cache
def trouble_of_nvrtc() -> str:
    """The reason why NVRTC cannot be used, the compiler of all kernels except Triton's; empty if it can."""
    if text := _trouble_of_bindings():
        return text
    from . import nvrtc

    try:
        nvrtc.version()
    except Exception as error:  # the bindings raise errors of several types if they find no library
        problem = f"which cannot be loaded ({cause_text(error)})"
        return need_text(PURPOSE, "NVRTC", "pip install --force-reinstall nvidia-cuda-nvrtc", problem)
    return ""


@cache
def infos() -> tuple[CudaInfo, ...]:
    return () if trouble() else tuple(_info(number) for number in range(call("cuDeviceGetCount")))


def number_of(stream: int) -> int:
    """Return the number of a stream's device; for handles of the default stream, the current device of the thread."""
    try:
        if stream > 1:
            return int(call("cuStreamGetDevice", stream))
        return int(call("cuCtxGetDevice")) if int(call("cuCtxGetCurrent")) else 0
    except DriverError as error:
        raise ValidationError(f"cuda_stream: the driver does not know the stream {stream:#x}: {error}") from None


def _info(number: int) -> CudaInfo:
    device, kinds = call("cuDeviceGet", number), bindings().CUdevice_attribute

    def attribute(name: str) -> int:
        value: int = call("cuDeviceGetAttribute", getattr(kinds, f"CU_DEVICE_ATTRIBUTE_{name}"), device)
        return value

    name = call("cuDeviceGetName", 256, device).split(b"\0")[0].decode()
    major, minor = attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")
    units, shared = attribute("MULTIPROCESSOR_COUNT"), attribute("MAX_SHARED_MEMORY_PER_BLOCK")
    dynamic = attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
    return CudaInfo(name, f"sm_{major}{minor}", units, shared, dynamic, call("cuDeviceTotalMem", device))
