"""Tensors in the memory of a device."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..support.errors import InvalidStateError, ValidationError, require
from .tensor import MLTensor


class DeviceTensor(MLTensor):
    """A tensor in the memory of a device. On WebGPU `gpu_buffer` is that memory, shared with the user's own shaders without a
    copy; on CUDA other libraries share it by DLPack and `__cuda_array_interface__`.
    """

    @property
    def gpu_buffer(self) -> Any:
        """The `wgpu.GPUBuffer` that holds it, in C order, for shaders and commands on the same device.

        The order of the queue is the only synchronisation: commands submitted after a dispatch see its results, and a
        dispatch sees those of commands submitted before. A 32-bit word holds two elements of float16, or four of int8 or
        uint8; the buffer's size is a multiple of 4 bytes.

        Raises:
            ValidationError: the tensor is destroyed.
        """
        return self._existing_memory().buffer

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The memory for Numba and others, which wait for the context's stream; only on a CUDA device."""
        export = getattr(self._context.backend.space, "interface", None)
        if export is None:
            raise AttributeError(f"the tensor {self._desc} is on {self._context.device.name}, not on a CUDA device")
        interface: dict[str, Any] = export(self._readable_memory(), read_only=not self._writable)
        return interface

    def __dlpack__(self, **options: Any) -> Any:
        export = getattr(self._context.backend.space, "dlpack", None)
        if export is None:
            self.numpy()
        assert export is not None
        return export(self._readable_memory(), read_only=not self._writable, **options)

    def __dlpack_device__(self) -> tuple[int, int]:
        device: tuple[int, int] | None = getattr(self._context.backend.space, "dlpack_device", None)
        if device is None:
            self.numpy()
        assert device is not None
        return device

    def _readable_memory(self) -> Any:
        memory = self._memory()
        require(self._readable, f"the tensor {self._desc} was not created with readable=True")
        return memory

    @property
    def exported(self) -> bool:
        """Whether `context.export_to_gpu` has exported it."""
        return self._guard.is_exported

    def _memory(self) -> Any:
        array = self._existing_memory()
        if self._guard.is_exported:
            raise InvalidStateError(
                f"the tensor {self._desc} is exported to the GPU; it comes back when the with block ends"
            )
        return array

    def numpy(self) -> np.ndarray:
        """There is no view of a GPU's memory: `context.read_tensor(tensor)` copies it.

        Raises:
            ValidationError: always.
        """
        raise ValidationError(
            f"the tensor {self._desc} is on {self._context.device.name}, where NumPy cannot access it; "
            "context.read_tensor(tensor) copies it"
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            self.numpy()
        return np.asarray(self._context.read_tensor(self), dtype=dtype)
