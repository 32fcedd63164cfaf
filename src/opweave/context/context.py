"""Contexts, which run graphs on a device (https://www.w3.org/TR/webnn/#api-mlcontext)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from itertools import count
from threading import RLock
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, get_args
from weakref import WeakKeyDictionary

import numpy as np

from .. import backends
from ..backends import Backend, Device, PowerPreference, Precision, selection
from ..core import dtypes
from ..core.desc import MAX_RANK
from ..core.dtypes import ANY
from ..support import lazy_imports, packages, refusals, settings
from ..support.errors import NotSupportedError, ValidationError, require, require_drafts, require_flags
from ..support.names import SnakeCaseDict, short_repr
from ..support.processors import MAX_THREADS, chosen_threads
from .context_state import ContextState, MLContextLostInfo
from .tensor import MLTensor
from .tensors import ContextTensors, awaitable, check_alive, state_of as context_state

if TYPE_CHECKING:
    from pathlib import Path

    from ..core.operation import Op
    from .graph import MLGraph
    from .graph_state import GraphState
    from .loss import Lost

ComputePolicy: TypeAlias = Literal["default", "high-performance", "low-power", "fallback"]
"""`MLComputePolicy`, a draft."""


@refusals.misnomers
class ML:
    """The entry point, `navigator.ml` in a browser; `opweave.ml` is its only instance.

    https://www.w3.org/TR/webnn/#api-ml

    >>> import asyncio, opweave as ow
    >>> ow.ml.create_context(device="reference")
    <MLContext on reference>
    >>> asyncio.run(ow.ml.create_context_async(device="reference"))
    <MLContext on reference>
    """

    @refusals.no_dictionaries
    def create_context(
        self,
        gpu_device: Any = None,
        *,
        power_preference: PowerPreference = "default",
        accelerated: bool = True,
        device: str | None = None,
        backend: str | None = None,
        deferred: bool = False,
        threads: int | None = None,
        precision: Precision = "float32",
        cuda_stream: Any = None,
        verify: bool = True,
        drafts: bool = False,
        compute_policy: ComputePolicy | None = None,
    ) -> MLContext:
        """Create a context.

        Args:
            gpu_device: your own `wgpu.GPUDevice`: graphs run on it, and tensors are its buffers.
            power_preference: "default", "high-performance" or "low-power", which prefers devices that consume little
                power, and on a CPU lets idle threads sleep instead of spinning between operations.
            accelerated: whether to prefer a GPU or NPU, if there is one.
            device: the name of a device of `opweave.devices()`. Default, if `backend` is not given either: the environment
                variable `OPWEAVE_DEVICE`, or a device by the two preferences.
            backend: the back end that drives the device: "onnxruntime", "openvino", …. The default, "auto", is the first in
                `opweave.devices()` that has the device. On a CPU with OpenVINO installed, "auto" chooses for each graph
                the back end that was verified and measured to be faster.
            deferred: whether dispatches wait until a result is read, and then run together.
            threads: how many threads an operation on the CPU may use, including the calling thread, at most 1024. Default: the
                environment variable `OPWEAVE_THREADS`, or the number of processors available to the process. Compiled
                expressions share the threads of the process. GPUs and the device "reference" ignore it.
            precision: how engines compute float32 operations; inputs and outputs keep their data types. "float32": at least as
                accurate as float32 sums in order. "ieee": float32 arithmetic throughout. "tf32", "bfloat16" and
                "float16" allow engines to round to these data types, which is faster. Without `device` and `backend`,
                the first device whose `Device.precisions` have it is used, without the trial that `MLGraph.tune` makes,
                such as OpenVINO's CPU for "bfloat16".
            cuda_stream: your own stream of an NVIDIA GPU, on which all work is enqueued: an object with `__cuda_stream__`,
                such as the streams of PyTorch and cuda.core, or a handle. The device is "cuda", or the one that `device`
                names.
            verify: whether graphs and models that were used for some seconds are verified on other engines, by a child process
                of the lowest priority; what is built later uses the faster engine. `OPWEAVE_VERIFY=0` switches it off, too.
            drafts: whether the context has what only drafts of the specification contain, and without it is an error. A
                release may change such an interface with its text; `docs/deviations.md` lists them.
            compute_policy: with `drafts=True`, in place of `power_preference` and `accelerated`: "default", "high-performance"
                and "low-power" as in `power_preference`, or "fallback" for the most compatible device, a CPU. Default:
                `power_preference`.

        Raises:
            ValidationError: an option has the wrong type or value, or options exclude each other.
            NotSupportedError: the device or back end is not available, or does not support the precision.
            MissingExtraError: `gpu_device` needs the extra `webgpu`.

        Warns:
            RuntimeWarning: once for each reason, if a package is missing, too old or broken (`Device.fault`), so that
                the device cannot do all that it could, or is passed over.

        >>> import opweave as ow
        >>> ow.ml.create_context(device="reference")
        <MLContext on reference>
        >>> context = ow.ml.create_context(compute_policy="fallback", drafts=True)
        >>> context.drafts, context.device.kind
        (True, 'cpu')
        """
        _check_choice("power_preference", power_preference, PowerPreference)
        _check_choice("precision", precision, Precision)
        require_flags(accelerated=accelerated, deferred=deferred, verify=verify, drafts=drafts)
        if compute_policy is not None:
            require_drafts(drafts, "compute_policy")
            _check_choice("compute_policy", compute_policy, ComputePolicy)
            power_preference, accelerated = _preferences(compute_policy, power_preference, accelerated)
        for option, name in {"device": device, "backend": backend}.items():
            require(name is None or isinstance(name, str), f"{option} must be a name, got {short_repr(name)}")
        require(
            not isinstance(gpu_device, str),
            f"gpu_device must be a wgpu.GPUDevice, got {short_repr(gpu_device)}; write device={short_repr(gpu_device)}",
        )
        handles = {"gpu_device": gpu_device, "cuda_stream": cuda_stream}
        claimed = [option for option, value in handles.items() if value is not None]
        require(len(claimed) < 2, f"{' and '.join(claimed)} must not be given together")
        is_count = threads is None or (isinstance(threads, int) and not isinstance(threads, bool) and threads > 0)
        require(is_count, f"threads must be a positive integer or None, got {short_repr(threads)}")
        threads = chosen_threads() if threads is None else threads
        require(threads is None or threads <= MAX_THREADS, f"threads must be at most {MAX_THREADS}, got {threads}")
        named = None if backend == "auto" else backend
        rivals: Sequence[str] = ()
        if claimed:
            (option,) = claimed
            driver, target = backends.claim(
                option, handles[option], device=device, backend=backend, precision=precision
            )
        else:
            driver, target = selection.find(device, named, power_preference, accelerated, precision)
        if compute_policy == "fallback" and target.kind != "cpu":
            is_named = claimed or device is not None or named is not None
            error = ValidationError if is_named else NotSupportedError
            raise error(
                f"compute_policy='fallback' runs on a CPU, and the device {target.name!r} is of kind {target.kind!r}"
            )
        if not claimed:
            driver = driver.open(target, power_preference)
            rivals = backends.rival_names(target) if named is None else ()
        packages.warn_once(target.fault)
        if deferred and not driver.space.is_host:
            raise NotSupportedError(
                f"deferred=True is for contexts on the CPU; on {target.name} dispatches are asynchronous already"
            )

        def limit(engine: Backend) -> Backend:
            return (engine if threads is None else engine.with_threads(threads)).with_precision(precision)

        driver = limit(driver).beside(rivals, target, lambda: [*map(limit, backends.rivals_of(target, precision))])
        context_class: Callable[..., MLContext] = lazy_imports.deferred_context if deferred else MLContext
        context = context_class(driver, target, power_preference)
        state = context_state(context)
        state.compute_policy = compute_policy or power_preference
        state.verifies, state.drafts = settings.flag("OPWEAVE_VERIFY", True) and verify, drafts
        return context

    create_context_async = awaitable(create_context)

    def __repr__(self) -> str:
        return "<ML>"


def _check_choice(name: str, value: Any, choices: Any) -> None:
    allowed = get_args(choices)
    require(value in allowed, f"{name} must be one of {', '.join(map(repr, allowed))}, got {short_repr(value)}")


def _preferences(
    policy: ComputePolicy, power_preference: PowerPreference, accelerated: bool
) -> tuple[PowerPreference, bool]:
    """The power preference and `accelerated` of a policy; the options themselves must not contradict it."""
    require(
        power_preference in ("default", policy),
        f"power_preference must not differ from compute_policy, got {power_preference!r} and {policy!r}",
    )
    require(
        accelerated or policy == "fallback",
        f"accelerated=False must not be given with compute_policy={policy!r}; 'fallback' runs on a CPU",
    )
    return ("default", False) if policy == "fallback" else (policy, True)


ml = ML()

entered: ContextVar[tuple[MLContext, ...]] = ContextVar("contexts", default=())

# By back end, device name and power preference: see `MLContext._place`.
_places: WeakKeyDictionary[Backend, dict[tuple[str, str], int]] = WeakKeyDictionary()
_place_numbers = count(1)

_default: MLContext | None = None
_default_lock = RLock()


def current_context() -> MLContext:
    """The context of operations on arrays: the innermost `with context:`, else a default one on the CPU."""
    global _default
    contexts = entered.get()
    if contexts:
        return contexts[-1]
    if _default is None:
        with _default_lock:
            if _default is None:
                _default = ml.create_context(accelerated=False)
                context_state(_default).at_loss = _forget_default
    return _default


def _forget_default() -> None:
    global _default
    _default = None


@refusals.misnomers
@dtypes.completable
class MLContext(ContextTensors):
    """Owns tensors and compiled graphs, and runs graphs on its device. Made by `opweave.ml.create_context`.

    A context may be used from several threads: calls that use the same tensor run one after the other.

    >>> import opweave as ow
    >>> context = ow.ml.create_context(device="reference")
    >>> context.device.name, context.accelerated, context.power_preference, context.precision
    ('reference', False, 'default', 'float32')
    >>> context.drafts, ow.ml.create_context(device="reference", drafts=True).compute_policy
    (False, 'default')
    >>> with context:
    ...     x = ow.array([1.0, 2.0])
    >>> (x * 2).tolist(), x.context is context
    ([2.0, 4.0], True)
    """

    def __init__(self, backend: Backend, device: Device, power_preference: PowerPreference) -> None:
        self._backend, self._device, self._power_preference = backend, device, power_preference
        # Contexts with the same number can share compiled programs. (Each open GPU device has a separate back end.)
        self._place = _places.setdefault(backend, {}).setdefault((device.name, power_preference), next(_place_numbers))
        self._space = backend.space
        self._state = ContextState(self._space)

    # Attributes ------------------------------------------------------------------------------------------------------

    @property
    def accelerated(self) -> bool:
        """Whether the device is a GPU or NPU, regardless of the option `accelerated`."""
        return self._device.kind != "cpu"

    @property
    def device(self) -> Device:
        """The device that graphs run on."""
        return self._device

    @property
    def backend(self) -> Backend:
        """The back end that drives the device.

        >>> import opweave as ow
        >>> ow.ml.create_context(device="reference").backend.name
        'reference'
        """
        return self._backend

    @property
    def power_preference(self) -> PowerPreference:
        """The preference that the context was created with."""
        return self._power_preference

    @property
    def compute_policy(self) -> ComputePolicy:
        """The policy that the context was created with: a draft, see `create_context`.

        Raises:
            ValidationError: the context was created without `drafts=True`.
        """
        require_drafts(self._state.drafts, "compute_policy")
        policy: ComputePolicy = self._state.compute_policy
        return policy

    @property
    def precision(self) -> Precision:
        """The precision of float32 operations, as requested when the context was created."""
        return self._backend.precision

    @property
    def drafts(self) -> bool:
        """Whether the context has what only drafts of the specification contain: the option `drafts`."""
        return self._state.drafts

    @property
    def lost(self) -> Lost[MLContextLostInfo]:
        """A future that gets an `MLContextLostInfo` when the context is lost: its device failed, or `destroy` was called.

        >>> import opweave as ow
        >>> context = ow.ml.create_context(device="reference")
        >>> context.lost.add_done_callback(lambda lost: print(lost.result().message))
        >>> context.destroy()
        destroy() was called
        """
        return self._state.lost

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a context belongs to its process and its device and cannot be copied or pickled; pickle the name of the device, "
            f"{self._device.name!r}, and call opweave.ml.create_context(device=...)"
        )

    def __enter__(self) -> MLContext:
        """Make this the context of the arrays and operations in a `with` block."""
        check_alive(self)
        entered.set((*entered.get(), self))
        return self

    def __exit__(self, *_: object) -> None:
        entered.set(entered.get()[:-1])

    def __repr__(self) -> str:
        return f"<MLContext on {self._device.name}{', lost' if self._state.lost_info else ''}>"

    # Running ---------------------------------------------------------------------------------------------------------

    def dispatch(
        self,
        graph: MLGraph,
        inputs: Mapping[str, MLTensor],
        outputs: Mapping[str, MLTensor],
        *,
        encoder: Any = None,
        pass_timestamps: Mapping[str, Any] | None = None,
    ) -> None:
        """Run a graph on tensors (https://www.w3.org/TR/webnn/#api-mlcontext-dispatch).

        On a CPU, this is synchronous. On a GPU, it submits work to the device's queue: later dispatches see the results, and
        reading them waits for the device. In a context with `deferred=True`, the dispatch runs when a result is read;
        that read raises errors of kernels.

        Args:
            graph: a graph of this context.
            inputs: a tensor for each input of the graph, by name, of its data type and shape.
            outputs: a different tensor for each output, by name, of its data type and shape, in separate memory.
                Exception: an output may be the tensor of an input that an operation updates, such as the past keys and
                values of `group_query_attention`.
            encoder: a `wgpu.GPUCommandEncoder` of the context's device, to which the graph is added as one compute pass,
                between the caller's own commands. It runs when the caller submits the commands, and the tensors must not be
                destroyed before.
            pass_timestamps: the `timestamp_writes` of that pass: a query set, and where the times of its begin and its end
                are written.

        Raises:
            InvalidStateError: the graph is destroyed, or the context lost.
            ValidationError: names are missing or unknown; tensors do not fit, are destroyed or belong to another context;
                on a CPU, positions or lengths are out of the range of an operation; the encoder or the query set belongs to
                another device.
            NotSupportedError: `encoder` for a graph of which a part runs on the CPU, or in a deferred context.

        >>> import numpy as np, opweave as ow
        >>> context = ow.ml.create_context(device="reference")
        >>> builder = ow.MLGraphBuilder(context)
        >>> graph = builder.build({"y": builder.input("x", "float32", [2]).neg()})
        >>> x = context.tensor_from(np.float32([1, 2]))
        >>> y = context.create_tensor("float32", [2], readable=True)
        >>> context.dispatch(graph, {"x": x}, {"y": y})
        >>> y.numpy().tolist()
        [-1.0, -2.0]
        """
        try:
            state = graph._state
            find = state.bindings.peek  # it is an attribute, not a method, so calling it in one expression is slower
            binding = find((len(inputs), *inputs, *map(id, inputs.values()), *outputs, *map(id, outputs.values())))
        except (AttributeError, TypeError):
            binding = None
        if binding is None or state.context is not self:
            binding = self._state_of(graph, "dispatch").bind(inputs, outputs)
        if encoder is None and pass_timestamps is None:
            binding.run()
        else:
            binding.encode(encoder, pass_timestamps)

    dispatch_async = awaitable(dispatch)

    def compute(
        self, graph: MLGraph, inputs: Mapping[str, Any], outputs: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        """Run a graph on arrays, and return arrays.

        Args:
            graph: a graph of this context.
            inputs: an array (or MLTensor) for each input, by name. C-contiguous arrays are read in place.
            outputs: arrays to write results into, by name; other outputs get new arrays. As in `dispatch`, an array may
                also be the array of an input that an operation updates.

        Returns:
            The array of each output, by name.

        Raises:
            InvalidStateError: the graph is destroyed, or the context lost.
            ValidationError: names are missing or unknown; arrays do not fit; positions or lengths are out of range.

        >>> import numpy as np, opweave as ow
        >>> context = ow.ml.create_context(device="reference")
        >>> builder = ow.MLGraphBuilder(context)
        >>> graph = builder.build({"y": builder.input("x", "float32", [2]).neg()})
        >>> result = np.zeros(2, "float32")
        >>> context.compute(graph, {"x": np.float32([3, 4])}, {"y": result})["y"].tolist(), result.tolist()
        ([-3.0, -4.0], [-3.0, -4.0])
        """
        try:
            state = graph._state
            is_own = state.context is self
        except AttributeError:
            is_own = False
        return (state if is_own else self._state_of(graph, "compute")).compute(inputs, outputs)

    compute_async = awaitable(compute)

    def load(self, path: str | Path, *, trusted: bool = False) -> MLGraph:
        """Load a graph that `MLGraph.save` has written, and compile it for this context.

        The weights are mapped: do not change the file while the graph exists; replacing it is safe, as `save` does it. Each
        operation checks its operands and attributes again. What the file has compiled for this processor or device is used
        if the file is trusted or was written by this user on this machine; everything else is compiled again, and
        `MLGraph.explain` says why.

        Args:
            path: the file.
            trusted: whether you trust the file as you trust a program: its native code runs, and modules of your operations
                are imported. Otherwise, the modules must have been imported before.

        Returns:
            The graph, which computes what the saved one does.

        Raises:
            DataError: the file cannot be read, is damaged, or was written by a later version.
            NotSupportedError: an operation is not here.
            ValidationError: an operation does not accept its operands or attributes.
            InvalidStateError: the context is lost.

        >>> import numpy as np, opweave as ow, tempfile
        >>> context = ow.ml.create_context(device="reference")
        >>> builder = ow.MLGraphBuilder(context)
        >>> graph = builder.build({"y": builder.input("x", "float32", [2]).neg()})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     graph.save(f"{folder}/graph.opweave")
        ...     print(context.load(f"{folder}/graph.opweave"))
        <MLGraph (x: float32[2]) -> (y: float32[2]), 1 operation on reference>
        """
        graph: MLGraph = lazy_imports.load_graph(self, path, trusted)
        return graph

    def save_graph(self, key: str, graph: MLGraph) -> None:
        """Keep a graph of this context by key, for this user; one that has the key is replaced.

        This is a draft (https://github.com/webmachinelearning/webnn/issues/862), for contexts with `drafts=True`. Graphs are
        files as those of `MLGraph.save`, in the folder `graphs` of the cache directory. Together they take at most
        `$OPWEAVE_GRAPHS_BYTES`, 4 GiB by default.

        Args:
            key: 1 to 1024 characters.
            graph: a graph of this context.

        Raises:
            ValidationError: the context has no drafts; the key or the graph does not fit.
            InvalidStateError: the graph is destroyed, or the context lost.
            NotSupportedError: an operation or an attribute cannot be written, as for `MLGraph.save`.
            OperationError: there is no room, or no directory that this user alone can write to.
            DataError: the file cannot be written.

        >>> import numpy as np, opweave as ow
        >>> context = ow.ml.create_context(device="reference", drafts=True)
        >>> builder = ow.MLGraphBuilder(context)
        >>> context.save_graph("negated", builder.build({"y": builder.input("x", "float32", [2]).neg()}))
        >>> "negated" in context.list_graphs()
        True
        >>> context.compute(context.load_graph("negated"), {"x": np.float32([1, 2])})["y"].tolist()
        [-1.0, -2.0]
        >>> context.delete_graph("negated")
        >>> "negated" in context.list_graphs()
        False
        """
        require_drafts(self._state.drafts, "save_graph")
        lazy_imports.keyed_graphs(self).save(key, graph)

    def load_graph(self, key: str) -> MLGraph:
        """Load a graph that `save_graph` has kept, here or in another process; a draft.

        Args:
            key: as `save_graph` got it.

        Raises:
            ValidationError: the context has no drafts, or the key is no text of 1 to 1024 characters.
            DataError: there is no such graph, or its file is damaged.
            InvalidStateError: the context is lost.

        >>> import opweave as ow
        >>> ow.ml.create_context(device="reference", drafts=True).load_graph("never saved")
        Traceback (most recent call last):
        opweave.support.errors.DataError: load_graph: there is no graph 'never saved'
        """
        require_drafts(self._state.drafts, "load_graph")
        graph: MLGraph = lazy_imports.keyed_graphs(self).load(key)
        return graph

    def list_graphs(self) -> list[str]:
        """The keys of the graphs that `save_graph` has kept, sorted; a draft.

        Raises:
            ValidationError: the context has no drafts.
            InvalidStateError: the context is lost.

        >>> import opweave as ow
        >>> "never saved" in ow.ml.create_context(device="reference", drafts=True).list_graphs()
        False
        """
        require_drafts(self._state.drafts, "list_graphs")
        keys: list[str] = lazy_imports.keyed_graphs(self).keys()
        return keys

    def delete_graph(self, key: str) -> None:
        """Delete a graph that `save_graph` has kept; nothing happens if there is none. A draft.

        Graphs that were loaded from it stay usable.

        Raises:
            ValidationError: the context has no drafts, or the key is no text of 1 to 1024 characters.
            InvalidStateError: the context is lost.

        >>> import opweave as ow
        >>> ow.ml.create_context(device="reference", drafts=True).delete_graph("never saved")
        """
        require_drafts(self._state.drafts, "delete_graph")
        lazy_imports.keyed_graphs(self).delete(key)

    def _state_of(self, graph: MLGraph, subject: str) -> GraphState:
        """The state of a graph of this context."""
        from .graph import MLGraph, state_of  # imported late, because sessions of uncompiled models have no graphs

        require(isinstance(graph, MLGraph), f"{subject}: graph must be an MLGraph, got {type(graph).__name__}")
        require(graph.context is self, f"{subject}: the graph belongs to another context")
        return state_of(graph)

    # Limits ----------------------------------------------------------------------------------------------------------

    def op_support_limits(self) -> dict[str, Any]:
        """The limits of this context (https://www.w3.org/TR/webnn/#api-mlcontext-opsupportlimits).

        Returns:
            The dictionary `MLOpSupportLimits`: `preferred_input_layout`, `max_tensor_byte_length`, and the limits of
            graph inputs, constants and outputs, and of each operand of each operation, those of drafts with `drafts=True`.
            The specification's camelCase names work, too, with a DeprecationWarning.

        >>> import opweave as ow
        >>> limits = ow.ml.create_context(device="reference").op_support_limits()
        >>> limits["conv2d"]["input"]
        {'data_types': ['float32', 'float16'], 'rank_range': {'min': 4, 'max': 4}}
        """
        from ..ops import Operations

        anything = SnakeCaseDict(data_types=list(ANY), rank_range={"min": 0, "max": MAX_RANK})
        result = SnakeCaseDict(
            preferred_input_layout="nchw",
            max_tensor_byte_length=self._backend.max_byte_length,
            input=anything,
            constant=anything,
            output=anything,
        )
        operations = Operations.listing() | (Operations.drafts() if self.drafts else {})
        for name, op in operations.items():
            result[name] = self._limits_of(op)
        return result

    def _limits_of(self, op: Op[..., Any]) -> dict[str, Any]:
        limits = self._backend.limits(op)
        table = SnakeCaseDict()
        for name, limit in limits.items():
            data_types, ranks = limit._resolve(limits)
            table[name] = SnakeCaseDict(data_types=list(data_types), rank_range={"min": ranks[0], "max": ranks[1]})
        return table

    # Loss ------------------------------------------------------------------------------------------------------------

    def destroy(self) -> None:
        """Release all graphs and tensors of the context; it cannot be used any more. Further calls do nothing.

        >>> import opweave as ow
        >>> context = ow.ml.create_context(device="reference")
        >>> tensor = context.create_tensor("float32", [2])
        >>> context.destroy()
        >>> tensor.destroyed
        True
        """
        self._state.lose("destroy() was called")
