"""Contexts: where graphs run (https://www.w3.org/TR/webnn/#api-mlcontext)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import count
from threading import RLock
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar, get_args
from weakref import WeakKeyDictionary, WeakSet

import numpy as np

from . import backends, dtypes, hints, links, memory as host
from .arrays import as_array, describe, fit
from .backends import Backend, Device, PowerPreference
from .conversion import converted_desc
from .dtypes import ANY, DataType
from .errors import InvalidStateError, NotSupportedError, ValidationError, import_extra, require
from .graph import MAX_RANK, Desc, check_desc
from .memory.spaces import Space
from .names import SnakeCaseDict, shown
from .operation import Op
from .run.graph import MLGraph
from .tensor import DeviceTensor, MLTensor

if TYPE_CHECKING:
    from .context_loss import Lost

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a blocking function in a worker thread: what all `*_async` twins do."""
    import asyncio

    return await asyncio.to_thread(function, *args, **kwargs)


@dataclass(frozen=True, slots=True)
class MLContextLostInfo:
    """Why a context was lost (`MLContextLostInfo`).

    Attributes:
        message: the reason, for people.
    """

    message: str


class ML:
    """The entry point, `navigator.ml` in a browser (https://www.w3.org/TR/webnn/#api-ml); its one object is `opweave.ml`."""

    @hints.no_dictionaries
    def create_context(
        self,
        gpu_device: Any = None,
        *,
        power_preference: PowerPreference = "default",
        accelerated: bool = True,
        device: str | None = None,
        deferred: bool = False,
    ) -> MLContext:
        """Create a context.

        Args:
            gpu_device: a `wgpu.GPUDevice` of yours: graphs run on it, and tensors are its buffers.
            power_preference: "low-power" lets idle threads sleep instead of spinning between operations.
            accelerated: whether a GPU or NPU is preferred, if there is one.
            device: the name of a device of `opweave.devices()` to run on; default: the best by the two preferences.
            deferred: whether dispatches wait until somebody looks at what they compute, and run together then.

        Raises:
            ValidationError: an option has the wrong type or value.
            NotSupportedError: there is no such device here.
            MissingExtraError: a `gpu_device` without the extra `webgpu`.

        >>> import opweave as ow
        >>> ow.ml.create_context(device="reference")
        <MLContext on reference>
        """
        require(
            power_preference in get_args(PowerPreference),
            f"power_preference must be one of {', '.join(map(repr, get_args(PowerPreference)))}, "
            f"got {shown(power_preference)}",
        )
        require(isinstance(accelerated, bool), f"accelerated must be True or False, got {shown(accelerated)}")
        require(device is None or isinstance(device, str), f"device must be a name, got {shown(device)}")
        require(isinstance(deferred, bool), f"deferred must be True or False, got {shown(deferred)}")
        if gpu_device is not None:
            require(device is None, f"device must not be given with gpu_device, got {shown(device)}")
            backend, found = backends.of_gpu_device(gpu_device)
        else:
            if device is None:
                device = _choose(power_preference, accelerated)
            backend, found = backends.find_device(device)
            backend = backend.open(found, power_preference)
        if deferred and not backend.space.is_host:
            raise NotSupportedError(
                f"deferred=True is for contexts on the CPU; on {found.name} dispatches only enqueue work as it is"
            )
        kind = (links.deferred_context.function or links.deferred_context.load()) if deferred else MLContext
        made: MLContext = kind(backend, found, power_preference)
        return made

    async def create_context_async(
        self,
        gpu_device: Any = None,
        *,
        power_preference: PowerPreference = "default",
        accelerated: bool = True,
        device: str | None = None,
        deferred: bool = False,
    ) -> MLContext:
        """`create_context`, to await."""
        return await in_thread(
            self.create_context,
            gpu_device,
            power_preference=power_preference,
            accelerated=accelerated,
            device=device,
            deferred=deferred,
        )

    def __repr__(self) -> str:
        return "<ML>"


def _choose(power_preference: PowerPreference, accelerated: bool) -> str:
    """The name of the device that suits the preferences best; power preference comes first, as the specification says."""
    devices = backends.default_devices()
    order = {"low-power": ["npu", "gpu", "cpu"], "high-performance": ["gpu", "npu", "cpu"]}
    kinds = order.get(power_preference, ["gpu", "npu", "cpu"]) if accelerated else ["cpu", "npu", "gpu"]
    available = [device for device in devices if device.available]
    if not available:
        raise NotSupportedError("there is no device to run on; `opweave doctor` says what is missing")
    wants_low = power_preference == "low-power"
    return min(available, key=lambda device: (kinds.index(device.kind), device.low_power != wants_low)).name


ml = ML()

entered: ContextVar[tuple[MLContext, ...]] = ContextVar("contexts", default=())
"""The contexts of the open `with` blocks, the innermost last."""

_places: WeakKeyDictionary[Backend, dict[tuple[str, str], int]] = WeakKeyDictionary()
_place_numbers = count(1)

_default: MLContext | None = None
_default_lock = RLock()


def current_context() -> MLContext:
    """The context of operations on arrays: that of the innermost `with context:`, else a default one on the CPU."""
    global _default
    contexts = entered.get()
    if contexts:
        return contexts[-1]
    if _default is None or _default._lost_info is not None:
        with _default_lock:
            if _default is None or _default._lost_info is not None:
                _default = ml.create_context(accelerated=False)
    return _default


@hints.misnomers
@dtypes.completable
class MLContext:
    """Owns tensors and compiled graphs, and runs graphs on its device. Made by `opweave.ml.create_context`.

    A context may be used from several threads: what touches the same tensor runs one after the other.
    """

    def __init__(self, backend: Backend, device: Device, power_preference: PowerPreference) -> None:
        self._backend, self._device, self._power_preference = backend, device, power_preference
        # Equal for contexts whose programs are interchangeable: programs belong to a back end, and so to a GPU device.
        own = _places.setdefault(backend, {})
        self._place: int = own.get((device.name, power_preference)) or own.setdefault(
            (device.name, power_preference), next(_place_numbers)
        )
        self._lost: Lost | None = None
        self._is_over = False  # it is lost, and all that belonged to it is destroyed
        self._lost_info: MLContextLostInfo | None = None
        self._lock = RLock()
        self._tensors: WeakSet[MLTensor] = WeakSet()
        self._graphs: WeakSet[MLGraph] = WeakSet()
        self._space = backend.space
        self._space.attach(self)

    # Attributes ------------------------------------------------------------------------------------------------------

    @property
    def accelerated(self) -> bool:
        """Whether the device is massively parallel (a GPU or NPU), not only what was asked for."""
        return self._device.kind != "cpu"

    @property
    def device(self) -> Device:
        """The device that graphs run on."""
        return self._device

    @property
    def backend(self) -> Backend:
        """The back end that drives the device."""
        return self._backend

    @property
    def power_preference(self) -> PowerPreference:
        """The preference that the context was created with."""
        return self._power_preference

    @property
    def lost(self) -> Lost:
        """Resolves with an `MLContextLostInfo` when the context is lost: its device is gone, or `destroy` was called."""
        from .context_loss import Lost

        with self._lock:
            if self._lost is None:
                self._lost = Lost()
                if self._is_over:
                    assert self._lost_info is not None
                    self._lost.set_result(self._lost_info)
            return self._lost

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a context belongs to its process and its device and cannot be copied or pickled; pickle the name of the device, "
            f"{self._device.name!r}, and call opweave.ml.create_context(device=...)"
        )

    def check_alive(self) -> None:
        """Raise `InvalidStateError` once the context is lost."""
        if self._lost_info is not None:
            raise InvalidStateError(f"the context is lost: {self._lost_info.message}")

    def __enter__(self) -> MLContext:
        """Make this the context of the arrays and operations in a `with` block."""
        self.check_alive()
        entered.set((*entered.get(), self))
        return self

    def __exit__(self, *_: object) -> None:
        entered.set(entered.get()[:-1])

    def __repr__(self) -> str:
        return f"<MLContext on {self._device.name}{', lost' if self._lost_info else ''}>"

    # Tensors ---------------------------------------------------------------------------------------------------------

    @hints.no_dictionaries
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
            data_type: one of the eight data types of WebNN.
            shape: dimensions, each in [1, 2**31 - 1]; `[]` for a scalar.
            readable: whether its contents may be read.
            writable: whether its contents may be written.
            memory: the WebAssembly module (`opweave.wasm.load`) in whose memory it lies; default: the host's. Built-in
                operations read and write it there, and so do the module's own, without a copy.

        Raises:
            InvalidStateError: the context is lost.
            ValidationError: no such data type, invalid dimensions, too many bytes.
            OperationError: there is not so much memory.
        """
        self.check_alive()
        desc = self.check_desc(data_type, shape)
        for name, flag in {"readable": readable, "writable": writable}.items():
            require(isinstance(flag, bool), f"{name} must be True or False, got {shown(flag)}")
        if memory is None:
            array = self._space.allocate(desc)
            return self._adopt(desc, array, readable=readable, writable=writable)
        require(self._space.is_host, f"memory= is for contexts on the CPU; this one is on {self._device.name}")
        require(
            hasattr(memory, "allocate") and hasattr(memory, "owns"),
            f"memory must be a WebAssembly module (opweave.wasm.load), got {type(memory).__name__}",
        )
        array = memory.allocate(desc)
        return self._adopt(desc, array, readable=readable, writable=writable, pinned=True)

    async def create_tensor_async(
        self,
        data_type: DataType,
        shape: Sequence[int],
        *,
        readable: bool = False,
        writable: bool = False,
        memory: Space | None = None,
    ) -> MLTensor:
        """`create_tensor`, to await."""
        return await in_thread(
            self.create_tensor, data_type, shape, readable=readable, writable=writable, memory=memory
        )

    def create_exportable_tensor(
        self,
        data_type: DataType,
        shape: Sequence[int],
        gpu_device: Any,
        *,
        readable: bool = False,
        writable: bool = False,
    ) -> MLTensor:
        """Create a tensor of zeros that `export_to_gpu` can lend to `gpu_device`; on a WebGPU device, all tensors are such.

        Args:
            data_type: one of the eight data types of WebNN.
            shape: dimensions, each in [1, 2**31 - 1]; `[]` for a scalar.
            gpu_device: the `wgpu.GPUDevice` of the context: that of `ml.create_context(gpu_device=device)`.
            readable: whether its contents may be read.
            writable: whether its contents may be written.

        Raises:
            InvalidStateError: the context is lost.
            ValidationError: `gpu_device` is no `wgpu.GPUDevice`; no such data type, invalid dimensions, too many bytes.
            NotSupportedError: the context is on another device.
            OperationError: there is not so much memory.
        """
        wgpu = import_extra("wgpu", "webgpu", "exporting tensors to a GPU")
        require(
            isinstance(gpu_device, wgpu.GPUDevice),
            f"create_exportable_tensor: gpu_device must be a wgpu.GPUDevice, got {type(gpu_device).__name__}",
        )
        self.check_alive()
        if self._space.device is not gpu_device:
            raise NotSupportedError(
                f"create_exportable_tensor: the context is on {self._device.name}, and its tensors cannot be exported to "
                "another device; opweave.ml.create_context(gpu_device=device) makes a context on that one"
            )
        return self.create_tensor(data_type, shape, readable=readable, writable=writable)

    async def create_exportable_tensor_async(
        self,
        data_type: DataType,
        shape: Sequence[int],
        gpu_device: Any,
        *,
        readable: bool = False,
        writable: bool = False,
    ) -> MLTensor:
        """`create_exportable_tensor`, to await."""
        return await in_thread(
            self.create_exportable_tensor, data_type, shape, gpu_device, readable=readable, writable=writable
        )

    @hints.no_dictionaries
    def create_constant_tensor(self, data_type: DataType, shape: Sequence[int], input_data: Any) -> MLTensor:
        """Create a tensor for `builder.constant(tensor)` (https://www.w3.org/TR/webnn/#api-mlcontext-createconstanttensor).

        Args:
            data_type: one of the eight data types of WebNN.
            shape: dimensions, each in [1, 2**31 - 1]; `[]` for a scalar.
            input_data: an array of that data type and shape (or flat), or a buffer of as many bytes; it is copied once.

        Raises:
            InvalidStateError: the context is lost.
            ValidationError: the data do not fit data type and shape.
        """
        self.check_alive()
        desc = self.check_desc(data_type, shape)
        data = fit(as_array(input_data, "input_data"), "input_data", desc)
        array = host.allocate(desc)
        host.copy(array, data, "create_constant_tensor")
        return self._adopt(desc, array, constant=True)

    async def create_constant_tensor_async(
        self, data_type: DataType, shape: Sequence[int], input_data: Any
    ) -> MLTensor:
        """`create_constant_tensor`, to await."""
        return await in_thread(self.create_constant_tensor, data_type, shape, input_data)

    def tensor_from(
        self,
        array: Any,
        data_type: DataType | None = None,
        shape: Sequence[int] | None = None,
        *,
        readable: bool = True,
        writable: bool | None = None,
    ) -> MLTensor:
        """Make a tensor of memory that exists already, without a copy.

        Args:
            array: a C-contiguous NumPy array, or an object with DLPack (a PyTorch or ONNX Runtime tensor, say) in host
                memory. In a context on a WebGPU device: a `wgpu.GPUBuffer` of that device with the usage STORAGE (and COPY_SRC
                to be read, COPY_DST to be written from the host).
            data_type: of the elements in a `GPUBuffer`; arrays know theirs.
            shape: likewise.
            readable: whether its contents may be read through the tensor.
            writable: likewise written; default: whether the array itself is writable.

        Returns:
            A tensor that shares the memory: what a graph writes into it appears in `array`, and the other way round.

        Raises:
            InvalidStateError: the context is lost.
            ValidationError: not contiguous, not in native byte order, or of a data type that WebNN does not have.
        """
        self.check_alive()
        if not self._space.is_host:
            require(
                data_type is not None and shape is not None,
                f"tensor_from takes a GPUBuffer, data_type and shape on {self._device.name}; create_tensor and "
                "write_tensor take arrays there",
            )
            desc = self.check_desc(data_type, shape)
            lent = self._space.adopt(array, desc)
            return self._adopt(desc, lent, readable=readable, writable=writable is not False, pinned=True)
        require(
            data_type is None and shape is None,
            f"tensor_from takes data_type and shape for a GPUBuffer, and this context is on {self._device.name}, not on a "
            "WebGPU device",
        )
        known = isinstance(array, np.ndarray) or hasattr(array, "__dlpack__")
        require(known, f"tensor_from takes an array, got {type(array).__name__}")
        array = as_array(array, "tensor_from: array")
        found = describe(array, "tensor_from")
        desc = self.check_desc(found.data_type, found.shape)
        array = self._space.adopt(array, desc)
        if writable is None:
            writable = bool(array.flags.writeable)
        require(bool(array.flags.writeable) or not writable, "tensor_from cannot make a read-only array writable")
        return self._adopt(desc, array, readable=readable, writable=writable, pinned=True)

    def write_tensor(self, tensor: MLTensor, input_data: Any) -> None:
        """Copy data into a tensor (https://www.w3.org/TR/webnn/#api-mlcontext-writetensor).

        Args:
            tensor: a writable tensor of this context.
            input_data: an array of its data type and shape (or flat), or a buffer of as many bytes.

        Raises:
            ValidationError: a tensor of another context, destroyed or not writable; data that do not fit.
        """
        self.check_own(tensor, "tensor")
        if not tensor.writable:
            raise ValidationError(f"the tensor {tensor.desc} was not created with writable=True")
        data = fit(as_array(input_data, "input_data"), "input_data", tensor.desc)
        tensor._settle()
        with tensor._lock:
            self.check_own(tensor, "tensor")
            self._space.write(tensor._target(), data, "write_tensor")

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
        """
        self.check_own(tensor, "tensor")
        if not tensor.readable:
            raise ValidationError(f"the tensor {tensor.desc} was not created with readable=True")
        if out is None:
            target = host.empty(tensor.desc)
        else:
            require(not isinstance(out, np.generic), f"out must be an array, got the scalar {shown(out)}")
            whole = as_array(out, "out")
            require(bool(whole.flags.c_contiguous), "out must be C-contiguous")
            target = fit(whole, "out", tensor.desc)
            require(bool(target.flags.writeable), "out must be writable")
        with tensor._lock:
            self._space.read([self._own(tensor, "tensor")], [target], "read_tensor")
        return target

    async def read_tensor_async(self, tensor: MLTensor, *, out: Any = None) -> np.ndarray:
        """`read_tensor`, to await."""
        return await in_thread(self.read_tensor, tensor, out=out)

    @contextmanager
    def export_to_gpu(self, tensor: MLTensor) -> Iterator[Any]:
        """Lend a tensor to the user's own shaders (https://www.w3.org/TR/webnn/#api-mlcontext-exporttogpu).

        Nothing is copied and nothing waited for: what is submitted to the device's queue inside of the `with` block runs
        after the dispatches before it, and before those after it. Meanwhile WebNN must not use the tensor.

        Args:
            tensor: a tensor of this context, which is on a WebGPU device.

        Returns:
            A context manager that yields the `wgpu.GPUBuffer`.

        Raises:
            NotSupportedError: the context is not on a WebGPU device.
            InvalidStateError: the tensor is exported already; or it is used by WebNN while it is.
            ValidationError: a tensor of another context, destroyed or constant.
        """
        if self._space.device is None:
            raise NotSupportedError(f"export_to_gpu: the context is on {self._device.name}, not on a WebGPU device")
        self.check_own(tensor, "export_to_gpu: tensor")
        require(isinstance(tensor, DeviceTensor), "export_to_gpu: tensor is a constant tensor")
        assert isinstance(tensor, DeviceTensor)
        with tensor._lock:
            array = tensor.memory()
            tensor._exported = True
            tensor.release_bindings()
        try:
            yield array.buffer
        finally:
            with tensor._lock:
                tensor._exported = False

    # Running ---------------------------------------------------------------------------------------------------------

    def dispatch(self, graph: MLGraph, inputs: Mapping[str, MLTensor], outputs: Mapping[str, MLTensor]) -> None:
        """Run a graph on tensors (https://www.w3.org/TR/webnn/#api-mlcontext-dispatch).

        On a CPU this is synchronous: the results are there when it returns, and errors are raised here. On a GPU it only puts
        work into the device's queue: what comes after finds the results, and reading them waits. In a context with
        `deferred=True` it is noted, and runs when somebody looks at the results; that is where errors of kernels are raised,
        too.

        Args:
            graph: a graph of this context.
            inputs: a tensor for each input of the graph, by name, of its data type and shape.
            outputs: likewise for the outputs. No tensor may stand for two of them, and no output may overlap another
                tensor's memory.

        Raises:
            InvalidStateError: the graph is destroyed, or the context lost.
            ValidationError: missing or unknown names; tensors that do not fit, are destroyed or belong to another context.
        """
        try:
            find = graph._bindings.peek  # a variable, since methods are looked up more slowly
            binding = find((len(inputs), *inputs, *map(id, inputs.values()), *outputs, *map(id, outputs.values())))
        except (AttributeError, TypeError):
            binding = None
        if binding is None or graph.context is not self:
            binding = self._check(graph, "dispatch")._bind(inputs, outputs)
        binding()

    async def dispatch_async(
        self, graph: MLGraph, inputs: Mapping[str, MLTensor], outputs: Mapping[str, MLTensor]
    ) -> None:
        """`dispatch` in a worker thread, to await its end."""
        await in_thread(self.dispatch, graph, inputs, outputs)

    def compute(
        self, graph: MLGraph, inputs: Mapping[str, Any], outputs: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        """Run a graph on arrays, and return arrays.

        Args:
            graph: a graph of this context.
            inputs: an array (or MLTensor) for each input, by name. C-contiguous arrays are read in place.
            outputs: arrays to write results into, in place; outputs without one get a new array.

        Returns:
            The array of each output, by name.

        Raises:
            InvalidStateError: the graph is destroyed, or the context lost.
            ValidationError: missing or unknown names; arrays that do not fit.
        """
        if type(graph) is not MLGraph or graph.context is not self:
            self._check(graph, "compute")
        return graph._compute(inputs, outputs)

    async def compute_async(
        self, graph: MLGraph, inputs: Mapping[str, Any], outputs: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        """`compute` in a worker thread, to await."""
        return await in_thread(self.compute, graph, inputs, outputs)

    def _check(self, graph: MLGraph, what: str) -> MLGraph:
        """The graph, if it is one and belongs to this context."""
        require(isinstance(graph, MLGraph), f"{what}: graph must be an MLGraph, got {type(graph).__name__}")
        require(graph.context is self, f"{what}: the graph belongs to another context")
        return graph

    # Limits ----------------------------------------------------------------------------------------------------------

    def op_support_limits(self) -> dict[str, Any]:
        """What this context supports (https://www.w3.org/TR/webnn/#api-mlcontext-opsupportlimits).

        Returns:
            The dictionary `MLOpSupportLimits`: `preferred_input_layout`, `max_tensor_byte_length`, the limits of graph inputs,
            constants and outputs, and of each operand of each operation:
            `limits["conv2d"]["input"] == {"data_types": [...], "rank_range": {"min": 4, "max": 4}}`. The specification's
            camelCase names are found, too, with a DeprecationWarning.
        """
        from .ops import Operations

        anything = SnakeCaseDict(data_types=list(ANY), rank_range={"min": 0, "max": MAX_RANK})
        result = SnakeCaseDict(
            preferred_input_layout="nchw",
            max_tensor_byte_length=self._backend.max_byte_length,
            input=anything,
            constant=anything,
            output=anything,
        )
        for name, op in Operations.listing().items():
            result[name] = self._limits_of(op)
        return result

    def _limits_of(self, op: Op[..., Any]) -> dict[str, Any]:
        limits = self._backend.limits(op)
        table = SnakeCaseDict()
        for name, limit in limits.items():
            data_types, ranks = limit.data_types, limit.ranks
            while isinstance(data_types, str):
                data_types = limits[data_types].data_types
            while isinstance(ranks, str):
                ranks = limits[ranks].ranks
            table[name] = SnakeCaseDict(data_types=list(data_types), rank_range={"min": ranks[0], "max": ranks[1]})
        return table

    # The end ---------------------------------------------------------------------------------------------------------

    def destroy(self) -> None:
        """Release all graphs and tensors of the context; it cannot be used any more. Further calls do nothing."""
        self.lose("destroy() was called")

    def lose(self, message: str) -> None:
        """Mark the context lost, destroy what belongs to it, and resolve `lost` (for back ends whose device is gone)."""
        info = MLContextLostInfo(message)
        with self._lock:
            if self._lost_info is not None:
                return
            self._lost_info = info
            graphs, tensors = list(self._graphs), list(self._tensors)
        for graph in graphs:
            graph.destroy()
        for tensor in tensors:
            tensor.destroy()
        self._space.detach(self)
        # Last, and without the lock: callbacks find everything destroyed, and may wait for other threads.
        with self._lock:
            lost, self._is_over = self._lost, True
        if lost is not None:
            lost.set_result(info)

    # Helpers ---------------------------------------------------------------------------------------------------------

    def check_desc(self, data_type: object, shape: object) -> Desc:
        """A descriptor that is valid in this context, or `ValidationError`."""
        return check_desc(converted_desc(data_type, shape), self._backend.max_byte_length)

    def _adopt(
        self,
        desc: Desc,
        array: np.ndarray,
        *,
        readable: bool = False,
        writable: bool = False,
        constant: bool = False,
        pinned: bool = False,
    ) -> MLTensor:
        """A tensor of this memory; `pinned` memory belongs to the caller, and is never replaced."""
        tensor = self._make_tensor(desc, array, pinned, readable=readable, writable=writable, constant=constant)
        with self._lock:
            self.check_alive()
            self._tensors.add(tensor)
        return tensor

    def _make_tensor(self, desc: Desc, array: np.ndarray, pinned: bool, **flags: bool) -> MLTensor:
        # Constants are on the host: they are copied to the device with the graphs that they are part of.
        on_device = not self._space.is_host and not flags["constant"]
        return (DeviceTensor if on_device else MLTensor)(self, desc, array, **flags)

    def check_own(self, tensor: MLTensor, what: str) -> None:
        """Raise `ValidationError`, which says `what` it is, unless it is a living tensor of this context."""
        if not isinstance(tensor, MLTensor):
            raise ValidationError(f"{what} must be an MLTensor, got {type(tensor).__name__}")
        if tensor._context is not self:
            raise ValidationError(f"{what} is a tensor of another context")
        if tensor.destroyed:
            raise ValidationError(f"{what}: the tensor {tensor.desc} is destroyed")

    def _own(self, tensor: MLTensor, what: str) -> np.ndarray:
        """The memory of a living tensor of this context; waits for what is pending."""
        self.check_own(tensor, what)
        return tensor.memory()

    def _add_graph(self, graph: MLGraph) -> None:
        """Remember a graph, to destroy it when the context is lost."""
        with self._lock:
            self.check_alive()
            self._graphs.add(graph)
