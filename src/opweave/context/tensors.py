"""The tensors of a context: creation, writing, reading, and export."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, cast

import numpy as np

from .. import memory as host
from ..backends import Backend, Device
from ..core.desc import Desc
from ..core.dtypes import DataType
from ..memory.arrays import as_array, describe, fit
from ..memory.spaces import Space, TensorSpace
from ..support import refusals
from ..support.errors import NotSupportedError, ValidationError, import_extra, require, require_drafts, require_flags
from ..support.names import short_repr
from .tensor import DeviceTensor, MLTensor, guard_of, memory_of, target_of

if TYPE_CHECKING:
    from .context import MLContext
    from .context_state import ContextState

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


async def in_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a blocking function in a worker thread."""
    import asyncio

    return await asyncio.to_thread(function, *args, **kwargs)


def awaitable(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """The awaitable twin (`*_async`) of a blocking method, which runs the method in a worker thread."""
    name = method.__name__

    @wraps(method)
    async def twin(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = await in_thread(getattr(self, name), *args, **kwargs)
        return result

    twin.__name__, twin.__qualname__ = f"{name}_async", f"{method.__qualname__}_async"
    twin.__doc__ = f"`{name}`, to await."
    return twin


def state_of(context: ContextTensors) -> ContextState:
    """The state of a context, for other packages of Opweave."""
    return context._state


def check_alive(context: ContextTensors) -> None:
    """Raise `InvalidStateError` once the context is lost."""
    state = context._state
    if state.lost_info is not None:
        state.check_alive()  # raises


def check_own(context: ContextTensors, tensor: MLTensor, subject: str) -> None:
    """Require a living tensor of a context; `subject` names it in the message."""
    if not isinstance(tensor, MLTensor):
        raise ValidationError(f"{subject} must be an MLTensor, got {type(tensor).__name__}")
    if tensor.context is not context:
        raise ValidationError(f"{subject} is a tensor of another context")
    if tensor.destroyed:
        raise ValidationError(f"{subject}: the tensor {tensor.desc} is destroyed")


def own_memory(context: ContextTensors, tensor: MLTensor, subject: str) -> Any:
    """The memory of a tensor of a context; `ValidationError` as for `check_own`."""
    check_own(context, tensor, subject)
    return memory_of(tensor)


class ContextTensors:
    """The part of `MLContext` that is about tensors.

    >>> import asyncio, numpy as np, opweave as ow
    >>> context = ow.ml.create_context(device="reference")
    >>> async def doubled(values):
    ...     weights = await context.create_constant_tensor_async("float32", [2], np.float32([2, 2]))
    ...     x = await context.create_tensor_async("float32", [2], writable=True)
    ...     y = await context.create_tensor_async("float32", [2], readable=True)
    ...     context.write_tensor(x, values)
    ...     builder = ow.MLGraphBuilder(context)
    ...     result = builder.input("x", "float32", [2]) * builder.constant(weights)
    ...     graph = await builder.build_async({"y": result})
    ...     await context.dispatch_async(graph, {"x": x}, {"y": y})
    ...     computed = await context.compute_async(graph, {"x": values})
    ...     return (await context.read_tensor_async(y)).tolist(), computed["y"].tolist()
    >>> asyncio.run(doubled(np.float32([1, 2])))
    ([2.0, 4.0], [2.0, 4.0])
    """

    _backend: Backend
    _device: Device
    _space: TensorSpace
    _state: ContextState

    @refusals.no_dictionaries
    def create_tensor(
        self,
        data_type: DataType,
        shape: Sequence[int],
        *,
        readable: bool = False,
        writable: bool = False,
        memory: Space | None = None,
    ) -> MLTensor:
        """Create a tensor of zeros (https://www.w3.org/TR/webnn/#api-mlcontext-createtensor).

        Args:
            data_type: one of the eight data types of WebNN; with `drafts=True`, also bfloat16 and others.
            shape: dimensions, each in [1, 2**31 - 1], or from 0 with `drafts=True`; `[]` for a scalar.
            readable: whether its contents may be read.
            writable: whether its contents may be written.
            memory: the WebAssembly module (`opweave.wasm.load`) in whose memory to allocate it; default: the host's.
                Built-in operations and the module's functions read and write it there, without a copy.

        Raises:
            InvalidStateError: the context is lost.
            ValidationError: no such data type, invalid dimensions, too many bytes.
            OperationError: there is not enough memory.

        >>> import opweave as ow
        >>> context = ow.ml.create_context(device="reference")
        >>> tensor = context.create_tensor("float32", [2, 2], readable=True)
        >>> tensor, context.read_tensor(tensor).tolist()
        (<MLTensor float32[2, 2], readable>, [[0.0, 0.0], [0.0, 0.0]])
        """
        check_alive(self)
        desc = self._check_desc("create_tensor", data_type, shape)
        require_flags(readable=readable, writable=writable)
        if memory is None:
            array = self._space.allocate(desc)
            return self._adopt(desc, array, readable=readable, writable=writable)
        require(
            self._space.is_host,
            f"create_tensor: memory= is for contexts on the CPU; this one is on {self._device.name}",
        )
        require(
            hasattr(memory, "allocate") and hasattr(memory, "owns"),
            f"create_tensor: memory must be a WebAssembly module (opweave.wasm.load), got {type(memory).__name__}",
        )
        array = memory.allocate(desc)
        return self._adopt(desc, array, readable=readable, writable=writable, pinned=True)

    create_tensor_async = awaitable(create_tensor)

    def create_exportable_tensor(
        self,
        data_type: DataType,
        shape: Sequence[int],
        gpu_device: Any,
        *,
        readable: bool = False,
        writable: bool = False,
        usage: Any = None,
    ) -> MLTensor:
        """Create a tensor of zeros that `export_to_gpu` can export to `gpu_device`, like every tensor on a WebGPU device.

        Args:
            data_type: one of the eight data types of WebNN; with `drafts=True`, also bfloat16 and others.
            shape: dimensions, each in [1, 2**31 - 1], or from 0 with `drafts=True`; `[]` for a scalar.
            gpu_device: the `wgpu.GPUDevice` of the context: that of `ml.create_context(gpu_device=device)`.
            readable: whether its contents may be read.
            writable: whether its contents may be written.
            usage: the usages of the exported buffer, with `drafts=True`: flags of `wgpu.BufferUsage`, or their names as in
                "STORAGE|INDIRECT". Opweave adds those that it needs: STORAGE for kernels, COPY_SRC for reading and COPY_DST
                for writing. Default: "STORAGE|COPY_SRC|COPY_DST". MAP_READ and MAP_WRITE need a device with the feature
                "mappable-primary-buffers" of wgpu; the tensor cannot be used while its buffer is mapped.

        Raises:
            InvalidStateError: the context is lost.
            ValidationError: `gpu_device` is not a `wgpu.GPUDevice`; no such data type, invalid dimensions, too many bytes; no
                such usage, or a context without drafts.
            NotSupportedError: the context is on another device, or the device has no buffers of this usage.
            OperationError: there is not enough memory.
        """
        wgpu = import_extra("wgpu", "webgpu", "exporting tensors to a GPU")
        require(
            isinstance(gpu_device, wgpu.GPUDevice),
            f"create_exportable_tensor: gpu_device must be a wgpu.GPUDevice, got {type(gpu_device).__name__}",
        )
        check_alive(self)
        if self._space.device is not gpu_device:
            raise NotSupportedError(
                f"create_exportable_tensor: the context is on {self._device.name}, and its tensors cannot be exported to "
                "another device; opweave.ml.create_context(gpu_device=device) makes a context on that one"
            )
        if usage is None:
            return self.create_tensor(data_type, shape, readable=readable, writable=writable)
        require_drafts(self._state.drafts, "create_exportable_tensor: usage")
        desc = self._check_desc("create_exportable_tensor", data_type, shape)
        require_flags(readable=readable, writable=writable)
        needed = [name for name, is_needed in {"COPY_SRC": readable, "COPY_DST": writable}.items() if is_needed]
        space: Any = self._space
        array = space.exportable(desc, usage, needed)
        return self._adopt(desc, array, readable=readable, writable=writable, pinned=True)

    create_exportable_tensor_async = awaitable(create_exportable_tensor)

    @refusals.no_dictionaries
    def create_constant_tensor(self, data_type: DataType, shape: Sequence[int], input_data: Any) -> MLTensor:
        """Create a tensor for `builder.constant(tensor)` (https://www.w3.org/TR/webnn/#api-mlcontext-createconstanttensor).

        Args:
            data_type: one of the eight data types of WebNN; with `drafts=True`, also bfloat16 and others.
            shape: dimensions, each in [1, 2**31 - 1], or from 0 with `drafts=True`; `[]` for a scalar.
            input_data: an array of that data type and shape (or flat), or a buffer of that size; copied once.

        Raises:
            InvalidStateError: the context is lost.
            ValidationError: the data do not fit data type and shape.

        >>> import numpy as np, opweave as ow
        >>> context = ow.ml.create_context(device="reference")
        >>> weights = context.create_constant_tensor("float32", [2], np.float32([1, 2]))
        >>> ow.MLGraphBuilder(context).constant(weights).value.tolist()
        [1.0, 2.0]
        """
        check_alive(self)
        desc = self._check_desc("create_constant_tensor", data_type, shape)
        data = fit(
            as_array(input_data, "create_constant_tensor: input_data", desc.data_type),
            "create_constant_tensor: input_data",
            desc,
        )
        array = host.allocate(desc)
        host.copy(array, data, "create_constant_tensor")
        return self._adopt(desc, array, constant=True)

    create_constant_tensor_async = awaitable(create_constant_tensor)

    def tensor_from(
        self,
        array: Any,
        data_type: DataType | None = None,
        shape: Sequence[int] | None = None,
        *,
        readable: bool = True,
        writable: bool | None = None,
    ) -> MLTensor:
        """Make a tensor over existing memory, without a copy.

        Args:
            array: a C-contiguous NumPy array, or an object with DLPack in host memory, such as a PyTorch or ONNX Runtime
                tensor. In a context on a WebGPU device: a `wgpu.GPUBuffer` of that device with the usage STORAGE (and
                COPY_SRC if the host reads it, COPY_DST if the host writes it). In a context on a CUDA device: an array of
                PyTorch, CuPy, JAX or Numba in its memory (with DLPack or `__cuda_array_interface__`), in C order and
                aligned to 16 bytes; later dispatches wait for work on the array that was submitted before this call.
            data_type: the data type of the elements in a `GPUBuffer`; arrays have their own.
            shape: of a `GPUBuffer`; arrays have their own.
            readable: whether its contents may be read through the tensor.
            writable: whether they may be written through the tensor; default: whether the array is writable.

        Returns:
            A tensor that shares the memory: what a graph writes into it appears in `array`, and the other way round.

        Raises:
            InvalidStateError: the context is lost.
            ValidationError: not contiguous, not in native byte order, or of a data type that WebNN does not have.

        >>> import numpy as np, opweave as ow
        >>> context = ow.ml.create_context(device="reference")
        >>> array = np.float32([1, 2])
        >>> context.write_tensor(context.tensor_from(array), np.float32([3, 4]))
        >>> array.tolist()
        [3.0, 4.0]
        """
        check_alive(self)
        if not self._space.is_host:
            both = (data_type is None) == (shape is None)
            require(both, f"tensor_from takes data_type and shape, or neither, got {data_type!r} and {shape!r}")
            lent = self._space.adopt(
                array, None if data_type is None else self._check_desc("tensor_from", data_type, shape)
            )
            desc = self._check_desc("tensor_from", lent.desc.data_type, lent.desc.shape)
            require(not (lent.read_only and writable), "tensor_from cannot make a read-only array writable")
            writable = not lent.read_only if writable is None else writable
            return self._adopt(desc, lent, readable=readable, writable=writable, pinned=True)
        require(
            data_type is None and shape is None,
            f"tensor_from takes data_type and shape for a GPUBuffer, and this context is on {self._device.name}, not on a "
            "WebGPU device",
        )
        is_array = isinstance(array, np.ndarray) or hasattr(array, "__dlpack__")
        require(is_array, f"tensor_from takes an array, got {type(array).__name__}")
        array = as_array(array, "tensor_from: array")
        array_desc = describe(array, "tensor_from", self._state.drafts)
        desc = self._check_desc("tensor_from", array_desc.data_type, array_desc.shape)
        array = self._space.adopt(array, desc)
        if writable is None:
            writable = bool(array.flags.writeable)
        require(bool(array.flags.writeable) or not writable, "tensor_from cannot make a read-only array writable")
        return self._adopt(desc, array, readable=readable, writable=writable, pinned=True)

    def tensor_from_texture(
        self,
        texture: Any,
        data_type: DataType = "float32",
        *,
        layout: Literal["nchw", "nhwc"] = "nchw",
        channels: str = "rgb",
        mean: float | Sequence[float] = 0.0,
        std: float | Sequence[float] | None = None,
        readable: bool = True,
        writable: bool = False,
    ) -> MLTensor:
        """Make a tensor from a texture of the context's WebGPU device, by a shader. Nothing is copied to the host.

        `tensor.copy_from_texture` fills a tensor again from the next frame, and `tensor.copy_to_texture` shows one.

        Args:
            texture: a `wgpu.GPUTexture` with the usage TEXTURE_BINDING; see `MLTensor.copy_from_texture`.
            data_type: "float32", "float16" or "uint8".
            layout: "nchw" for the shape [1, channels, height, width], "nhwc" for [1, height, width, channels].
            channels: the channels in order, such as "rgb" or "bgra"; or "gray".
            mean: subtracted from texels, which are in [0, 1] for unorm formats: a number, or one for each channel.
            std: texels are divided by it; default: 1, and 1/255 for uint8.
            readable: whether the tensor's contents may be read.
            writable: whether they may be written by the host.

        Raises:
            ValidationError: the texture or an argument does not fit.
            NotSupportedError: the context is not on a WebGPU device.
            InvalidStateError: the context is lost.

        >>> import opweave as ow
        >>> ow.ml.create_context(device="reference").tensor_from_texture(None)
        Traceback (most recent call last):
        opweave.support.errors.NotSupportedError: tensor_from_texture: the context is on reference, not on a WebGPU device
        """
        check_alive(self)
        shape_of = getattr(self._space, "texture_shape", None)
        if shape_of is None:
            raise NotSupportedError(
                f"tensor_from_texture: the context is on {self._device.name}, not on a WebGPU device"
            )
        shape = shape_of("tensor_from_texture", texture, layout, channels)
        tensor = self.create_tensor(data_type, shape, readable=readable, writable=writable)
        tensor.copy_from_texture(texture, layout=layout, channels=channels, mean=mean, std=std)
        return tensor

    def write_tensor(self, tensor: MLTensor, input_data: Any) -> None:
        """Copy data into a tensor (https://www.w3.org/TR/webnn/#api-mlcontext-writetensor).

        Args:
            tensor: a writable tensor of this context.
            input_data: an array of its data type and shape (or flat), or a buffer of that size.

        Raises:
            ValidationError: a tensor of another context, destroyed or not writable; data that do not fit.

        >>> import numpy as np, opweave as ow
        >>> context = ow.ml.create_context(device="reference")
        >>> tensor = context.create_tensor("float32", [2], readable=True, writable=True)
        >>> context.write_tensor(tensor, np.float32([1, 2]))
        >>> tensor.numpy().tolist()
        [1.0, 2.0]
        """
        check_own(self, tensor, "write_tensor: tensor")
        if not tensor.writable:
            raise ValidationError(f"write_tensor: the tensor {tensor.desc} was not created with writable=True")
        data = fit(
            as_array(input_data, "write_tensor: input_data", tensor.data_type), "write_tensor: input_data", tensor.desc
        )
        guard_of(tensor).settle()
        with guard_of(tensor).lock:
            check_own(self, tensor, "write_tensor: tensor")
            self._space.write(target_of(tensor), data, "write_tensor")

    def read_tensor(self, tensor: MLTensor, *, out: Any = None) -> np.ndarray:
        """Copy the contents of a tensor into a new array, or into `out` (https://www.w3.org/TR/webnn/#api-mlcontext-readtensor).

        `tensor.numpy()` is a view instead, without a copy.

        Args:
            tensor: a readable tensor of this context.
            out: a writable, C-contiguous array of the tensor's data type and shape (or flat), or a writable buffer of as
                many bytes.

        Returns:
            The array; an array over the memory of `out` where that was given.

        Raises:
            ValidationError: a tensor of another context, destroyed or not readable; an `out` that does not fit.

        >>> import numpy as np, opweave as ow
        >>> context = ow.ml.create_context(device="reference")
        >>> out = np.zeros(2, "float32")
        >>> context.read_tensor(context.tensor_from(np.float32([1, 2])), out=out).tolist(), out.tolist()
        ([1.0, 2.0], [1.0, 2.0])
        """
        check_own(self, tensor, "read_tensor: tensor")
        if not tensor.readable:
            raise ValidationError(f"read_tensor: the tensor {tensor.desc} was not created with readable=True")
        if out is None:
            target = host.empty(tensor.desc)
        else:
            require(
                not isinstance(out, np.generic), f"read_tensor: out must be an array, got the scalar {short_repr(out)}"
            )
            whole = as_array(out, "read_tensor: out")
            require(bool(whole.flags.c_contiguous), "read_tensor: out must be C-contiguous")
            target = fit(whole, "read_tensor: out", tensor.desc)
            require(bool(target.flags.writeable), "read_tensor: out must be writable")
        with guard_of(tensor).lock:
            self._space.read([own_memory(self, tensor, "read_tensor: tensor")], [target], "read_tensor")
        return target

    read_tensor_async = awaitable(read_tensor)

    @contextmanager
    def export_to_gpu(self, tensor: MLTensor) -> Iterator[Any]:
        """Export a tensor to the user's own shaders (https://www.w3.org/TR/webnn/#api-mlcontext-exporttogpu).

        This neither copies nor waits: work that is submitted to the device's queue inside the `with` block runs between
        earlier and later dispatches. Inside the block, WebNN must not use the tensor.

        Args:
            tensor: a tensor of this context, which is on a WebGPU device.

        Returns:
            A context manager that yields the `wgpu.GPUBuffer`.

        Raises:
            NotSupportedError: the context is not on a WebGPU device.
            InvalidStateError: the tensor is exported already, or WebNN uses it while it is exported.
            ValidationError: a tensor of another context, destroyed or constant.

        >>> import opweave as ow
        >>> context = ow.ml.create_context(device="reference")
        >>> with context.export_to_gpu(context.create_tensor("float32", [2])) as buffer:
        ...     pass
        Traceback (most recent call last):
        opweave.support.errors.NotSupportedError: export_to_gpu: the context is on reference, not on a WebGPU device
        """
        if self._space.device is None:
            raise NotSupportedError(f"export_to_gpu: the context is on {self._device.name}, not on a WebGPU device")
        check_own(self, tensor, "export_to_gpu: tensor")
        require(isinstance(tensor, DeviceTensor), "export_to_gpu: tensor is a constant tensor")
        assert isinstance(tensor, DeviceTensor)
        with guard_of(tensor).lock:
            array = memory_of(tensor)
            guard_of(tensor).is_exported = True
            guard_of(tensor).release_bindings()
        try:
            yield array.buffer
        finally:
            with guard_of(tensor).lock:
                guard_of(tensor).is_exported = False

    # Helpers ---------------------------------------------------------------------------------------------------------

    def _check_desc(self, subject: str, data_type: object, shape: object) -> Desc:
        from ..core.conversion import convert_desc  # imported late, because few sessions make tensors
        from ..core.graph import check_desc

        try:
            desc = convert_desc(data_type, shape, self._state.drafts)
            return check_desc(desc, self._backend.max_byte_length, takes_empty=self._state.drafts)
        except ValidationError as error:
            raise type(error)(f"{subject}: {error}") from None

    def _adopt(self, desc: Desc, array: np.ndarray, *, pinned: bool = False, **flags: bool) -> MLTensor:
        """Return a tensor of this memory; `pinned` memory belongs to the caller, and is never replaced."""
        tensor = self._make_tensor(desc, array, pinned, **flags)
        self._state.add_tensor(tensor)
        return tensor

    def _make_tensor(self, desc: Desc, array: np.ndarray, pinned: bool, **flags: bool) -> MLTensor:
        # Constants are on the host: they are copied to the device with the graphs that they are part of.
        on_device = not self._space.is_host and not flags.get("constant")
        return (DeviceTensor if on_device else MLTensor)(cast("MLContext", self), desc, array, **flags)

    def _defer_call(self, template: Any, inputs: Sequence[Any], outputs: Sequence[MLTensor], label: str) -> bool:
        """Whether the call of an operation on tensors has been deferred; otherwise the caller runs it."""
        return False
