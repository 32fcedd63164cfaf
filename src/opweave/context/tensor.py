"""Tensors: memory that graphs read and write, owned by a context."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from threading import RLock
from typing import TYPE_CHECKING, Any, Literal, NoReturn
from weakref import WeakSet, ref

import numpy as np

from ..core.desc import Desc, Described
from ..core.dtypes import INFO
from ..support import refusals
from ..support.errors import InvalidStateError, NotSupportedError, ValidationError, require

if TYPE_CHECKING:
    from .context import MLContext


class Guard:
    """Coordinates the uses of a tensor's memory.

    Attributes:
        lock: held while a graph runs on the tensor, or its contents are read or written, one at a time. Graphs that are one
            piece of work for a queue (`backends.submission`) hold it only if `in_steps`.
        in_steps: whether others use the tensor in several steps, between which no graph may write it.
        bindings: of graphs to the memory; each has a method `release`.
        is_exported: whether the user's own shaders use the memory, and nothing else may.
        borrowed: the array by which pending operations read the memory (`opweave.lazy.from_memory.Borrowed`).
    """

    __slots__ = ("bindings", "borrowed", "in_steps", "is_exported", "lock")

    def __init__(self) -> None:
        self.lock, self.in_steps, self.is_exported = RLock(), False, False
        self.bindings: WeakSet[Any] = WeakSet()
        self.borrowed: ref[Any] | None = None

    def release_bindings(self) -> None:
        """Release the bindings of graphs; the next dispatch binds them again."""
        for binding in list(self.bindings):
            binding.release()

    def use_in_steps(self) -> None:
        """Record a use in several steps, under the lock. Graphs that were bound without the lock are bound again."""
        if not self.in_steps:
            self.in_steps = True
            self.release_bindings()

    def settle(self) -> None:
        """Compute the pending operations that read the tensor, which is about to be written."""
        borrowed = self.borrowed() if self.borrowed is not None else None
        if borrowed is not None:
            borrowed.settle()


def guard_of(tensor: MLTensor) -> Guard:
    """The guard of a tensor, which is not part of the API."""
    return tensor._guard


def memory_of(tensor: MLTensor) -> Any:
    """The memory of a tensor; `ValidationError` once the tensor is destroyed."""
    return tensor._memory()


def target_of(tensor: MLTensor) -> Any:
    """The memory of a tensor, to overwrite all of it."""
    return tensor._target()


def locks_of(tensors: Iterable[MLTensor]) -> list[RLock]:
    """The locks of tensors in the order in which all threads take them, so that two cannot wait for each other."""
    return [guard_of(tensor).lock for tensor in sorted(tensors, key=id)]


class Locks:
    """Holds the locks of tensors."""

    __slots__ = ("_locks", "_taken")

    def __init__(self, tensors: Sequence[MLTensor]) -> None:
        self._locks = locks_of(tensors)
        self._taken = 0

    def __enter__(self) -> None:
        try:
            for lock in self._locks:
                lock.acquire()
                self._taken += 1
        except BaseException:  # Ctrl-C while waiting
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        for lock in self._locks[: self._taken]:
            lock.release()
        self._taken = 0


@refusals.misnomers
class MLTensor(Described):
    """A tensor in the memory of a context (https://www.w3.org/TR/webnn/#api-mltensor).

    Made by `context.create_tensor`, `create_constant_tensor` and `tensor_from`, never directly. Its memory is shared with
    NumPy, PyTorch and others without a copy through `numpy()`, `np.asarray` and DLPack.

    >>> import numpy as np, opweave as ow
    >>> context = ow.ml.create_context(device="reference")
    >>> tensor = context.create_tensor("float32", [2], readable=True, writable=True)
    >>> tensor.data_type, tensor.shape, tensor.readable, tensor.writable, tensor.constant
    ('float32', (2,), True, True, False)
    >>> view = tensor.numpy()
    >>> context.write_tensor(tensor, np.float32([1, 2]))
    >>> view.tolist(), str(tensor.desc)
    ([1.0, 2.0], 'float32[2]')
    >>> tensor.destroy()
    >>> tensor.destroyed, tensor.context is context
    (True, True)
    """

    def __init__(
        self,
        context: MLContext,
        desc: Desc,
        array: np.ndarray,
        *,
        readable: bool = False,
        writable: bool = False,
        constant: bool = False,
    ) -> None:
        self._context, self._desc = context, desc
        self._readable, self._writable, self._constant = readable, writable, constant
        self._array: np.ndarray | None = array
        self._guard = Guard()

    @property
    def readable(self) -> bool:
        """Whether `context.read_tensor` and the views work."""
        return self._readable

    @property
    def writable(self) -> bool:
        """Whether `context.write_tensor` works, and views can be written to."""
        return self._writable

    @property
    def constant(self) -> bool:
        """Whether `create_constant_tensor` created it: for `builder.constant(tensor)`, not for `dispatch`."""
        return self._constant

    @property
    def context(self) -> MLContext:
        """The context that the tensor belongs to."""
        return self._context

    @property
    def gpu_buffer(self) -> Any:
        """The `wgpu.GPUBuffer` that holds the tensor, in a context on a WebGPU device.

        Raises:
            NotSupportedError: the device is not a WebGPU device, or the tensor is a constant tensor, which is on the host.
            ValidationError: the tensor is destroyed.

        >>> import opweave as ow
        >>> ow.ml.create_context(device="reference").create_tensor("float32", [2]).gpu_buffer
        Traceback (most recent call last):
        opweave.support.errors.NotSupportedError: the tensor float32[2] is on reference, not on a WebGPU device; ...
        """
        self._memory()
        where = "is a constant tensor" if self._constant else f"is on {self._context.device.name}"
        raise NotSupportedError(
            f"the tensor {self._desc} {where}, not on a WebGPU device; create_context(device='gpu') makes a context "
            "whose tensors are buffers"
        )

    def copy_from_texture(
        self,
        texture: Any,
        *,
        layout: Literal["nchw", "nhwc"] = "nchw",
        channels: str = "rgb",
        mean: float | Sequence[float] = 0.0,
        std: float | Sequence[float] | None = None,
        encoder: Any = None,
    ) -> None:
        """Fill the tensor from a texture, by a shader: element = (texel - mean) / std. Nothing is copied to the host.

        Args:
            texture: a `wgpu.GPUTexture` of the context's device with the usage TEXTURE_BINDING, and as wide and as high as the
                tensor: rgba8unorm, bgra8unorm (both also with -srgb, whose texels are linear), rgba16float, rgba32float, or
                a format of one or two such channels. A missing channel is 0, a missing alpha 1.
            layout: "nchw" for shapes [1, channels, height, width], "nhwc" for [1, height, width, channels]. The 1 may be
                missing, and with one channel also the channels.
            channels: the channels of the tensor in order, such as "rgb", "bgr", "rgba" or "r"; "gray" for
                0.299 red + 0.587 green + 0.114 blue.
            mean: a number, or one for each channel. Texels of unorm formats are in [0, 1].
            std: like `mean`, not 0; default: 1, and 1/255 for uint8. Elements of uint8 are rounded, and limited to [0, 255].
            encoder: a `wgpu.GPUCommandEncoder`, to which the copy is added; it runs when the caller submits the commands.
                Default: the copy is submitted at once, in the order of dispatches.

        Raises:
            ValidationError: sizes, data type (float32, float16 or uint8), format, usage or an argument do not fit.
            NotSupportedError: the context is not on a WebGPU device.
            InvalidStateError: the tensor is exported, or the context lost.

        >>> import opweave as ow
        >>> tensor = ow.ml.create_context(device="reference").create_tensor("float32", [1, 3, 8, 8])
        >>> tensor.copy_from_texture(None)
        Traceback (most recent call last):
        opweave.support.errors.NotSupportedError: copy_from_texture: the tensor float32[1, 3, 8, 8] is on reference, ...
        """
        self._copy_texture("copy_from_texture", texture, encoder, layout=layout, channels=channels, mean=mean, std=std)

    def copy_to_texture(
        self,
        texture: Any,
        *,
        layout: Literal["nchw", "nhwc"] = "nchw",
        channels: str = "rgb",
        mean: float | Sequence[float] = 0.0,
        std: float | Sequence[float] | None = None,
        encoder: Any = None,
    ) -> None:
        """Draw the tensor over a whole texture, such as that of a canvas: texel = element * std + mean.

        Args:
            texture: as in `copy_from_texture`, but with the usage RENDER_ATTACHMENT.
            layout: as in `copy_from_texture`.
            channels: as in `copy_from_texture`. Colours that are missing become 0, a missing alpha 1; "gray" sets red, green
                and blue.
            mean: as in `copy_from_texture`, so that equal arguments give the same picture.
            std: as in `copy_from_texture`.
            encoder: as in `copy_from_texture`.

        Raises:
            ValidationError: sizes, data type (float32, float16 or uint8), format, usage or an argument do not fit.
            NotSupportedError: the context is not on a WebGPU device.
            InvalidStateError: the tensor is exported, or the context lost.

        >>> import opweave as ow
        >>> tensor = ow.ml.create_context(device="reference").create_tensor("float32", [1, 3, 8, 8])
        >>> tensor.copy_to_texture(None)
        Traceback (most recent call last):
        opweave.support.errors.NotSupportedError: copy_to_texture: the tensor float32[1, 3, 8, 8] is on reference, ...
        """
        self._copy_texture("copy_to_texture", texture, encoder, layout=layout, channels=channels, mean=mean, std=std)

    def _copy_texture(self, subject: str, texture: Any, encoder: Any, **options: Any) -> None:
        copy = None if self._constant else getattr(self._context.backend.space, "copy_texture", None)
        if copy is None:
            where = "is a constant tensor" if self._constant else f"is on {self._context.device.name}"
            raise NotSupportedError(f"{subject}: the tensor {self._desc} {where}, not on a WebGPU device")
        self._guard.settle()
        with self._guard.lock:
            array = self._memory() if subject == "copy_to_texture" else self._target()
            copy(subject, array, texture, encoder, **options)

    @property
    def destroyed(self) -> bool:
        """Whether `destroy` has been called, here or by the loss of the context."""
        return self._array is None

    def destroy(self) -> None:
        """Free the memory as soon as no view of it is left. Further calls do nothing."""
        with self._guard.lock:
            self._array = None
            self._guard.release_bindings()

    def __del__(self) -> None:
        # Otherwise graphs would stay bound to the memory of a tensor that no longer exists.
        if hasattr(self, "_guard"):
            self._guard.release_bindings()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a tensor belongs to its context and cannot be copied or pickled; tensor.numpy() can")

    def _existing_memory(self) -> Any:
        array = self._array
        if array is None:
            raise ValidationError(f"the tensor {self._desc} is destroyed")
        return array

    def _memory(self) -> np.ndarray:
        array: np.ndarray = self._existing_memory()
        return array

    def _target(self) -> np.ndarray:
        """The memory, to overwrite all of it."""
        return self._memory()

    def numpy(self) -> np.ndarray:
        """A view of the contents without a copy. It waits for pending writes, and stays valid after `destroy`.

        The view can be written to if the tensor is writable. (PyTorch has no read-only tensors: do not write to the result of
        `torch.from_dlpack` then.)

        Raises:
            ValidationError: the tensor is destroyed, or not readable.
        """
        with self._guard.lock:
            array = self._memory()
            require(self._readable, f"the tensor {self._desc} was not created with readable=True")
            view = array.view()
            view.flags.writeable = self._writable
            return view

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        array = self.numpy()
        return array.__dlpack__(**options) if INFO[self.data_type].is_numpys else _capsule(self._desc, array, **options)

    def __dlpack_device__(self) -> tuple[int, int]:
        device: tuple[int, int] = self._memory().__dlpack_device__()
        return device

    def __repr__(self) -> str:
        flags = [name for name in ("readable", "writable", "constant", "destroyed") if getattr(self, name)]
        return f"<MLTensor {', '.join([str(self._desc), *flags])}>"


def _capsule(
    desc: Desc,
    array: np.ndarray,
    *,
    stream: int | None = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
) -> Any:
    """The DLPack capsule of an array in a data type that NumPy itself does not export."""
    from ..memory import dlpack

    host = (dlpack.CPU, 0)
    if stream is not None or (dl_device is not None and tuple(dl_device) != host):
        raise BufferError(f"the tensor {desc} is in the memory of the host, which has no streams")
    shared = array.copy() if copy else array
    read_only = not shared.flags.writeable
    address = shared.__array_interface__["data"][0]
    return dlpack.capsule(address, desc, host, shared, read_only=read_only, max_version=max_version)


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
