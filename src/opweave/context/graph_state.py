"""The state of a compiled graph: the program, and its bindings to memory.

The first dispatch binds a graph to the memory of tensors; later dispatches of the same tensors reuse the binding. Locks are
taken in one order, so that threads cannot deadlock: the tensors' locks by identity, then the graph's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import RLock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakMethod, ref

import numpy as np

from .. import memory
from ..backends.submission import Submission
from ..core.graph import Desc, Graph, Operand
from ..core.operators import Operators
from ..memory.arrays import as_array, contiguous, fit
from ..memory.spaces import HOST, TensorSpace
from ..support import hints, lazy_imports
from ..support.cache import Cache
from ..support.errors import InvalidStateError, ValidationError, require
from ..support.names import short_repr
from .dispatch_binding import DispatchBinding
from .open_programs import GraphVariant
from .tensor import Locks, MLTensor, guard_of, locks_of
from .tensors import check_alive, check_own, own_memory, state_of

if TYPE_CHECKING:
    from ..backends import Aliases
    from ..compile.uses import Use
    from ..run.program import Program
    from .context import MLContext

MAX_BINDINGS = 64
"""Maximum number of bindings of a graph. A new one replaces the oldest, whose tensors must then be bound again."""

Descs: TypeAlias = tuple[dict[str, Desc], dict[str, Desc], dict[str, str]]
"""The inputs and outputs of a graph by name, and the input whose memory an output may use, by the name of the output."""

NO_SIZES: Mapping[str, int] = MappingProxyType({})


class GraphState:
    """The state of a graph: users see the attributes of `MLGraph`, but not these.

    Attributes:
        is_fused: the argument `fuse` of `build`.
        constant_ranges: the memory of the constants.
        bindings: bindings by the arguments of `dispatch`. An entry lives until one of its tensors goes away, so keys made of
            identities stay unique.
        unbinding: the method that removes a binding by its key.
        sizes: the sizes that a static graph of a graph with names is for, by name; else empty.
        template: the graph as a call in larger graphs, for `lazy.deferred_context`; `forget` drops the larger graphs.
        variants: graphs for different sizes, if the graph consists of them.
        use: counts the calls of the graph, if other engines may be verified for it.
        origin: says where the graph was loaded from, given its state; None for a graph that was built here.

    The state of a static graph for certain sizes may make the graph when it is asked for; `descs` has its inputs, its outputs,
    and the input that each output may update, then. It shares the bindings and the lock of the graph with names, its `owner`.
    """

    __slots__ = (
        "__weakref__",
        "_arrays",
        "_in_place",
        "_recorded",
        "bindings",
        "constant_ranges",
        "context",
        "forget",
        "inputs",
        "is_fused",
        "lock",
        "origin",
        "outputs",
        "program",
        "sizes",
        "template",
        "unbinding",
        "use",
    )

    variants: Sequence[GraphVariant] = ()

    def __init__(
        self,
        context: MLContext,
        graph: Graph | Callable[[], Graph],
        program: Program | None,
        is_fused: bool,
        owner: GraphState | None = None,
        sizes: Mapping[str, int] = NO_SIZES,
        descs: Descs | None = None,
    ) -> None:
        self.context, self.is_fused, self.sizes = context, is_fused, sizes
        self._recorded: Graph | Callable[[], Graph] | None = graph
        self.program: Program | None = program
        if isinstance(graph, Graph):
            descs = _descs_of(graph.inputs), _descs_of(graph.outputs), graph.in_place()
        assert descs is not None
        inputs, outputs, self._in_place = descs
        self.inputs: dict[str, Desc] = inputs
        self.outputs: dict[str, Desc] = outputs
        self._arrays = [(name, np.dtype(desc.data_type), desc.shape) for name, desc in self.inputs.items()]
        constants = graph.constants if isinstance(graph, Graph) and owner is None else ()
        self.constant_ranges: list[tuple[int, int]] = (
            owner.constant_ranges if owner else memory.merged_ranges(o.value for o in constants)
        )
        self.lock: RLock = owner.lock if owner else RLock()
        self.bindings: Cache[tuple[Any, ...], DispatchBinding] = (
            owner.bindings if owner else Cache(MAX_BINDINGS, raw=True)
        )
        self.unbinding: WeakMethod[Callable[[tuple[Any, ...]], None]] = (
            owner.unbinding if owner else WeakMethod(self._unbind)
        )
        self.template: Any = None
        self.forget: Callable[[], object] | None = None
        self.use: Use | None = None
        self.origin: Callable[[GraphState], str] | None = None

    @property
    def recorded(self) -> Graph | None:
        """The operations as the user built them; None once the graph is destroyed, like the program."""
        graph = self._recorded
        if graph is None or isinstance(graph, Graph):
            return graph
        specialised = graph()
        with self.lock:
            if self._recorded is graph:  # else it was destroyed, or another thread was faster
                self._recorded = specialised
        return specialised

    @property
    def programs(self) -> list[Program]:
        """All programs that are compiled for the graph."""
        return [] if self.program is None else [self.program]

    def watch(self) -> None:
        """Count the uses of the graph, if it has engines that have not been tried."""
        program = self.program
        if program is not None and program.untried and state_of(self.context).verifies:
            self.use = lazy_imports.watch_graph(self)

    def ask_use(self) -> None:
        """Make the next call record its inputs."""
        program, use = self.program, self.use
        if program is None or use is None:
            return
        if (plain := program.returning_all) is not None:
            weak, names = ref(program), list(self.inputs)

            def note_use(inputs: Sequence[Any]) -> list[Any]:
                if (own := weak()) is not None:
                    own.returning_all = plain
                use.note((), names, inputs)
                return plain(inputs)

            program.returning_all = note_use
        self.bindings.clear()  # the next dispatch binds the graph again

    def verification(self, key: Any, sample: Any) -> Any:
        """The task of a child process that verifies the graph, or the reason why there is none."""
        graph, context = self.recorded, self.context
        if graph is None:
            return "the graph is destroyed"
        driver, device, preference = context.backend, context.device.name, context.power_preference
        return lazy_imports.verify_graph(graph, driver, device, preference, self.is_fused, sample)

    def check_alive(self) -> Program:
        """The program; `InvalidStateError` once the graph is destroyed or its context lost."""
        program = self.program
        if program is None:
            self.check_not_destroyed()
        assert program is not None
        return program

    def check_not_destroyed(self) -> None:
        """Raise `InvalidStateError` if the graph is destroyed or its context lost."""
        if self._recorded is None:  # as in all graphs of a lost context
            check_alive(self.context)
            raise InvalidStateError("the graph is destroyed")

    def version(self, subject: str, inputs: Mapping[str, Any]) -> GraphState:
        """The state of the static graph for the shapes of inputs, by name."""
        return self

    def version_for(self, subject: str, input_shapes: Mapping[str, Sequence[int]] | None) -> GraphState:
        """The state of the static graph for these shapes; None stands for those of the last run."""
        self.check_alive()
        self.static_graph(subject, input_shapes)
        return self

    def static_graph(self, subject: str, input_shapes: Mapping[str, Sequence[int]] | None) -> Graph:
        """The static graph for these shapes, not compiled; None stands for those of the last run."""
        self.check_not_destroyed()
        if input_shapes is not None:
            from ..core.specialise import sizes_of

            sizes_of(self.inputs, checked_shapes(subject, input_shapes, self.inputs), subject)
        assert self.recorded is not None
        return self.recorded

    def replace_program(self, program: Program) -> None:
        """Replace the program by another one of the same graph. Runs in progress finish with the old program."""
        with self.lock:
            self.check_alive()
            self.program = program
            self.bindings.clear()  # bound to the old program
            if self.use is not None:
                # `explain` shows this only for programs with engines that have not been tried.
                self.use.end((), "not verified: tuned")

    def destroy(self) -> None:
        """Release the program and the bindings."""
        with self.lock:
            # In this order: `check_alive` takes no lock, and without a program there must be no operations.
            self._recorded = self.program = self.template = None
            self.bindings.clear()
            forget, self.forget = self.forget, None
        if forget is not None:
            forget()

    def compute_shapes(self, input_shapes: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
        """The shape of each output; see `MLGraph.compute_shapes`."""
        from ..core.specialise import sizes_of

        self.check_not_destroyed()
        input_shapes = checked_shapes("compute_shapes", input_shapes, self.inputs)
        sizes_of(self.inputs, input_shapes, "compute_shapes")
        return {name: desc.shape for name, desc in self.outputs.items()}

    def check_dispatch(self, inputs: Mapping[str, MLTensor], outputs: Mapping[str, MLTensor]) -> None:
        """Require a tensor that fits for each input and output."""
        self.check_alive()
        for kind, tensors in {"inputs": inputs, "outputs": outputs}.items():
            require(
                isinstance(tensors, Mapping), f"dispatch: {kind} must map names to tensors, got {short_repr(tensors)}"
            )
        named_tensors = [*inputs.items(), *outputs.items()]
        for name, tensor in named_tensors:
            check_own(self.context, tensor, f"dispatch: {name!r}")
        targets = set(map(id, outputs.values()))
        others = [tensor for name, tensor in inputs.items() if not self._may_share(name, tensor, outputs)]
        is_distinct = len(targets) == len(outputs) and len({*targets, *map(id, others)}) == len(targets) + len(others)
        require(is_distinct, "dispatch: each input and output needs a tensor of its own, got one of them twice")
        for kind, tensors, descs in (("input", inputs, self.inputs), ("output", outputs, self.outputs)):
            hints.require_names(f"dispatch: {kind}s", tensors, descs)
            for name, tensor in tensors.items():
                require(not tensor.constant, f"dispatch: {kind} {name!r} is a constant tensor")
                require(
                    tensor.desc == descs[name],
                    f"dispatch: {kind} {name!r} must be {descs[name]}, got a tensor {tensor.desc}",
                )

    def _unbind(self, key: tuple[Any, ...]) -> None:
        with self.lock:
            self.bindings.pop(key)

    def _may_share(self, name: str, tensor: MLTensor, outputs: Mapping[str, MLTensor]) -> bool:
        """Whether a tensor is an input, and also an output that may use the memory of that input."""
        return any(source == name and outputs.get(output) is tensor for output, source in self._in_place.items())

    def check_overlap(self, space: TensorSpace, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Aliases:
        """Require that outputs share memory only with inputs that may be updated in place; return the pairs that do."""
        shared = memory.in_place(inputs, outputs, self._in_place) if self._in_place else {}
        unshared = {name: array for name, array in inputs.items() if name not in shared.values()} if shared else inputs
        space.check_overlap(unshared, outputs, self.constant_ranges)
        if not shared:
            return ()
        sources, targets = list(self.inputs), list(self.outputs)
        return tuple((sources.index(source), targets.index(name)) for name, source in shared.items())

    def bind(self, inputs: Mapping[str, MLTensor], outputs: Mapping[str, MLTensor]) -> DispatchBinding:
        """Bind the program to the memory of tensors."""
        self.check_dispatch(inputs, outputs)
        all_tensors = list({id(tensor): tensor for tensor in (*inputs.values(), *outputs.values())}.values())
        for tensor in outputs.values():
            guard_of(tensor).settle()
        with Locks(all_tensors):
            with self.lock:
                # Until here, another thread could destroy a tensor or the graph; the checks below run under the locks.
                program = self.check_alive()
                sources = {name: own_memory(self.context, inputs[name], f"dispatch: {name!r}") for name in self.inputs}
                targets = {
                    name: own_memory(self.context, outputs[name], f"dispatch: {name!r}") for name in self.outputs
                }
                space = self.context.backend.space
                for name, array in targets.items() if space.is_host else ():
                    require(bool(array.flags.writeable), f"dispatch: output {name!r} is read-only memory")
                shared = self.check_overlap(space, sources, targets)
                key = (len(inputs), *inputs, *map(id, inputs.values()), *outputs, *map(id, outputs.values()))
                call = program.bind(list(sources.values()), list(targets.values()), shared)
                if self.use is not None:
                    self.use.note((), list(sources), list(sources.values()))
                max_whole_bytes = call.max_whole if isinstance(call, Submission) else -1
                guards = [guard_of(tensor) for tensor in all_tensors]
                locked = [
                    tensor
                    for tensor, guard in zip(all_tensors, guards, strict=True)
                    if guard.in_steps or tensor.desc.byte_length > max_whole_bytes
                ]
                binding = DispatchBinding(self.unbinding, key, call, locks_of(locked), program)
                self.bindings.put(key, binding)
            for guard in guards:
                if max_whole_bytes < 0:
                    guard.use_in_steps()  # takes the locks of other graphs, so not under the lock of this graph
                guard.bindings.add(binding)
        return binding

    def compute(self, inputs: Mapping[str, Any], outputs: Mapping[str, np.ndarray] | None) -> dict[str, np.ndarray]:
        """Run the program on arrays; see `MLContext.compute`."""
        program = self.check_alive()
        if (
            not outputs
            and program.returning_all is not None
            and (arrays := self._arrays_without_copies(inputs)) is not None
        ):
            return dict(zip(self.outputs, program.returning_all(arrays)))  # noqa: B905  (strict=True takes 0.1 us)
        if not isinstance(inputs, Mapping):
            raise ValidationError(f"compute: inputs must map names to arrays, got {short_repr(inputs)}")
        if inputs.keys() != self.inputs.keys():
            hints.require_names("compute: inputs", inputs, self.inputs)
        tensors: list[MLTensor] = []
        sources, targets = {}, {}
        for name, desc in self.inputs.items():
            value = inputs[name]
            if isinstance(value, MLTensor):
                own_memory(self.context, value, f"compute: input {name!r}")
                tensors.append(value)
            elif type(value) is np.ndarray and value.shape == desc.shape and value.dtype == desc.data_type:
                sources[name] = contiguous(value)
            else:
                subject = f"compute: input {name!r}"
                sources[name] = contiguous(fit(as_array(value, subject, desc.data_type), subject, desc))
        if outputs:
            outputs = self._check_outputs(outputs)
        elif not tensors and program.returning_all is not None:
            results = program.returning_all([sources[name] for name in self.inputs])
            return dict(zip(self.outputs, results, strict=True))
        for name, desc in self.outputs.items():
            target = outputs.get(name) if outputs else None
            targets[name] = memory.empty(desc) if target is None else target
        shared: Aliases = ()
        with Locks(tensors):
            for name, value in inputs.items():
                if isinstance(value, MLTensor):
                    subject = f"compute: input {name!r}"
                    sources[name] = fit_tensor(
                        value, own_memory(self.context, value, subject), subject, self.inputs[name]
                    )
            if len(program.steps) > 1:
                for tensor in tensors:
                    guard_of(tensor).use_in_steps()
            if outputs:
                on_host = {name: array for name, array in sources.items() if isinstance(array, np.ndarray)}
                shared = self.check_overlap(HOST, on_host, targets)
            program.run([sources[name] for name in self.inputs], list(targets.values()), shared)
            if self.use is not None and self.use.is_asked:
                self.use.note((), list(self.inputs), [sources[name] for name in self.inputs])
        return targets

    def _arrays_without_copies(self, inputs: Any) -> list[np.ndarray] | None:
        """The input arrays in order, if all are as declared and engines can read them in place; else None."""
        if type(inputs) is not dict or len(inputs) != len(self._arrays):
            return None
        arrays = []
        for name, dtype, shape in self._arrays:
            array = inputs.get(name)
            if type(array) is not np.ndarray or array.dtype != dtype or array.shape != shape:
                return None
            flags = array.flags
            if not (flags.c_contiguous and flags.aligned):
                return None
            arrays.append(array)
        return arrays

    def _check_outputs(self, outputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Require arrays that results can be written into. Wrap arrays of other libraries in NumPy arrays, without a copy."""
        require(isinstance(outputs, Mapping), f"compute: outputs must map names to arrays, got {short_repr(outputs)}")
        unknown = [name for name in outputs if name not in self.outputs]
        require(not unknown, f"compute: outputs must be among {list(self.outputs)}; unknown: {unknown}")
        arrays: dict[str, np.ndarray] = {}
        for name, target in outputs.items():
            desc = self.outputs[name]
            if hasattr(target, "__dlpack__") and not isinstance(target, (np.ndarray, np.generic, MLTensor, Operators)):
                target = as_array(target, f"compute: output {name!r}")
            arrays[name] = target
            fits = (
                type(target) in (np.ndarray, np.memmap)
                and target.shape == desc.shape
                and target.dtype == desc.data_type
            )
            if not fits:
                got = f"{target.dtype}{list(target.shape)}" if isinstance(target, np.ndarray) else type(target).__name__
                raise ValidationError(f"compute: output {name!r} must be an array {desc}, got {got}")
            flags = target.flags
            if not (flags.c_contiguous and flags.writeable and flags.aligned):
                raise ValidationError(f"compute: output {name!r} must be C-contiguous, aligned and writable")
        return arrays


def checked_shapes(
    subject: str, input_shapes: Mapping[str, Sequence[int]], descs: Mapping[str, Desc]
) -> dict[str, tuple[int, ...]]:
    """The shape of each input, in order."""
    is_mapping = isinstance(input_shapes, Mapping)
    require(is_mapping, f"{subject}: input_shapes must map names to shapes, got {short_repr(input_shapes)}")
    hints.require_names(f"{subject}: input_shapes", input_shapes, descs)
    return {name: _checked_shape(f"{subject}: input_shapes[{name!r}]", input_shapes[name]) for name in descs}


def _checked_shape(subject: str, shape: Any) -> tuple[int, ...]:
    is_shape = isinstance(shape, Sequence) and not isinstance(shape, str)
    sizes = tuple(shape) if is_shape else ()
    is_shape = is_shape and all(isinstance(size, int) and not isinstance(size, bool) for size in sizes)
    require(is_shape, f"{subject} must be a sequence of integers, got {short_repr(shape)}")
    return sizes


def fit_tensor(tensor: MLTensor, array: Any, subject: str, desc: Desc) -> Any:
    """The memory of a tensor as `desc`; on the host, the tensor may be flat."""
    if isinstance(array, np.ndarray):
        return fit(array, subject, desc)
    require(tensor.desc == desc, f"{subject} must be {desc}, got a tensor {tensor.desc}")
    return array


def _descs_of(operands: Mapping[str, Operand]) -> dict[str, Desc]:
    return {name: operand.desc for name, operand in operands.items()}
