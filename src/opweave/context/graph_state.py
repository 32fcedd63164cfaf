"""The state of a compiled graph: the program, and its bindings to memory.

The first dispatch binds a graph to the memory of tensors; later dispatches of the same tensors reuse the binding. Locks are
taken in one order, so that threads cannot deadlock: the tensors' locks by identity, then the graph's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from threading import RLock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakMethod, ref

import numpy as np

from .. import memory
from ..backends import NumbersNeededError
from ..backends.submission import Submission
from ..core.graph import Desc, Graph, Node, Operand
from ..core.guards import Guards, largest_ratio
from ..core.operators import Operators
from ..core.shapes import Shape
from ..core.size_values import values_at
from ..core.sizes import Size, UnknownName, is_same_shape
from ..core.value_ranges import input_ranges
from ..memory.arrays import as_array, contiguous, fit
from ..memory.spaces import HOST, TensorSpace
from ..support import hints, lazy_imports
from ..support.cache import Cache
from ..support.errors import InvalidStateError, MLError, NotSupportedError, ValidationError, require
from ..support.names import printable, short_repr
from ..support.records import record
from .tensor import Locks, MLTensor, guard_of, locks_of
from .tensors import check_alive, check_own, own_memory, state_of

if TYPE_CHECKING:
    from ..backends import Aliases
    from ..compile.uses import Use
    from ..core.conversion import SizeHint
    from ..core.specialise import SizeLimits
    from ..core.value_ranges import InputRange
    from ..run.program import Program
    from .context import MLContext

MAX_BINDINGS = 64
"""Maximum number of bindings of a graph. A new one replaces the oldest, whose tensors must then be bound again."""

MAX_VERSIONS = 32
"""Maximum number of combinations of sizes whose programs are kept."""

MAX_OPEN = 16
"""Maximum number of programs that were compiled with names, and differ in their answers to comparisons of sizes."""

MAX_TAILORED = 8
"""Maximum number of programs of a graph that are compiled in the background."""

FAR = 2
"""A program is compiled for sizes that differ by more than this factor from the sizes that the kernels were chosen for. By the
cost models, nine of ten products of half or twice the size take at most 1.2 times (float32) and 1.35 times (TF32) as long as
with tiles of their own, and 1.4 times and 1.75 times with a factor of 4."""

Descs: TypeAlias = tuple[dict[str, Desc], dict[str, Desc], dict[str, str]]
"""The inputs and outputs of a graph by name, and the input whose memory an output may use, by the name of the output."""

NO_SIZES: Mapping[str, int] = MappingProxyType({})

MAX_LISTED = 4
"""Maximum number of combinations of sizes that a message lists."""

MAX_SHAPES = 1024
"""Maximum number of combinations of sizes whose results of `compute_shapes` are kept."""


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
        if graph is not None and not isinstance(graph, Graph):
            graph = self._recorded = graph()
        return graph

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
        """The state of the static graph for these shapes; None for those of the last run."""
        self.check_alive()
        self.static_graph(subject, input_shapes)
        return self

    def static_graph(self, subject: str, input_shapes: Mapping[str, Sequence[int]] | None) -> Graph:
        """The static graph for these shapes, not compiled; None for those of the last run."""
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
            self.program = self._recorded = self.template = None
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
                binding = DispatchBinding(self.unbinding, key, call, locked, program)
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


@record
class GraphVariant:
    """A graph whose operations are those for certain answers to comparisons of sizes.

    Attributes:
        graph: the operations.
        guards: the answers, and the sizes that gave them.
    """

    graph: Graph
    guards: Guards


@record
class OpenProgram:
    """A program that was compiled with names.

    Attributes:
        guards: the answers for which it is valid.
        graph: the graph with names, as the answers make it.
        limits: of sizes; None if the operations must be checked with each of them.
        similar: other sizes for which kernels were chosen, and are the same.
        ranges: the ranges of the values of inputs, which may depend on sizes.
        formulas: the values of operands that give sizes.
    """

    guards: Guards
    program: Program
    graph: Graph
    limits: SizeLimits | None
    ranges: Sequence[InputRange]
    formulas: tuple[Any, ...]
    similar: list[Mapping[str, int]]

    def ratio_to(self, sizes: Mapping[str, int]) -> float:
        """The largest ratio between a size and the one that kernels were chosen for."""
        return min(self.guards.ratio_to(sizes), *(largest_ratio(other, sizes) for other in self.similar), inf)

    def gives(self, chains: tuple[int, ...], sizes: Mapping[str, int]) -> bool:
        """Whether operands that give sizes have these values for sizes."""
        return _gives(self.formulas, chains, sizes)


@record
class RefusedNames:
    """An attempt to compile with names whose formulas did not hold.

    Attributes:
        numbers: the names that had numbers.
        guards: the answers for which it fails.
        formulas: the values of operands that give sizes, if some of them wrap around; None if it fails whatever they are.
        reason: why, as text.
    """

    numbers: frozenset[str]
    guards: Guards
    formulas: tuple[Any, ...] | None
    reason: str

    def fails(self, numbers: frozenset[str], chains: tuple[int, ...], sizes: Mapping[str, int]) -> bool:
        """Whether it would fail for sizes, too."""
        if self.numbers != numbers or not self.guards.hold(sizes):
            return False
        return self.formulas is None or not _gives(self.formulas, chains, sizes)


def _gives(formulas: tuple[Any, ...], numbers: tuple[int, ...], sizes: Mapping[str, int]) -> bool:
    """Whether formulas have these numbers for sizes."""
    try:
        return bool(values_at(formulas, sizes) == numbers)
    except ArithmeticError:  # a division by 0
        return False


def _chain_values(graph: Graph) -> tuple[Any, ...]:
    """The values of all operands that give sizes."""
    if not any(node.op.is_draft for node in graph.nodes):
        return ()
    from ..ops.chains import values_in  # few graphs have such operands

    return values_in(graph)


def _updates_for_all(node: Node) -> bool:
    """Whether results that may use the memory of an operand have the shape of the operand for all sizes."""
    return all(is_same_shape(source.shape, result.shape) for result, source in node.updates.items())


class DynamicGraphState(GraphState):
    """The state of a graph with names.

    Attributes:
        variants: graphs for different sizes, of which `recorded` is the first; empty if it is the graph for all sizes.
        versions: the states of static graphs, by the shapes of the inputs in order; the last used one comes last.
        numbers_needed: the names that programs have numbers for, with the title of the operation that needs them.
        numbers_preferred: the names that some programs have numbers for, with the title of such an operation.
        tailored: the number of programs that were compiled in the background for sizes far from the first.
        refusal: why the last program with numbers in place of all names has them, if formulas did not hold for its sizes.
    """

    __slots__ = (
        "_checked",
        "_compile",
        "_hints",
        "_is_first_call",
        "_is_preparing",
        "_latest",
        "_open",
        "_refused",
        "_shapes",
        "numbers_needed",
        "numbers_preferred",
        "refusal",
        "tailored",
        "variants",
        "versions",
    )

    def __init__(
        self,
        context: MLContext,
        graph: Graph,
        compile: Callable[[Graph], Program],
        is_fused: bool,
        variants: Sequence[GraphVariant] = (),
    ) -> None:
        super().__init__(context, graph, None, is_fused)
        self._compile = compile
        self.variants = tuple(variants)
        if variants:
            self.constant_ranges = memory.merged_ranges(o.value for item in variants for o in item.graph.constants)
        # The last used entry of `versions`, which saves a look-up.
        self._latest: tuple[tuple[Shape, ...] | None, GraphState | None] = (None, None)
        self._open: list[OpenProgram] = []
        self._is_first_call = True
        builders = [operand.builder for operand in graph.inputs.values()]
        self._hints: Mapping[str, SizeHint] = getattr(builders[0], "size_hints", {}) if builders else {}
        self._is_preparing, self.tailored = False, 0
        self._refused: list[RefusedNames] = []
        self.numbers_needed: dict[str, str] = {}
        self.numbers_preferred: dict[str, str] = {}
        self.refusal = ""
        # What `compute_shapes` checked last, for the run that mostly follows.
        self._checked: tuple[tuple[Shape, ...], Graph, dict[str, int]] | None = None
        self.versions: Cache[tuple[Shape, ...], GraphState] = Cache(
            MAX_VERSIONS, raw=True, on_drop=partial(_release, self.bindings)
        )
        self._shapes: Cache[tuple[Shape, ...], dict[str, Shape]] = Cache(MAX_SHAPES, raw=True)

    def check_alive(self) -> Program:
        """The program that was used last; `InvalidStateError` if there is none."""
        self.check_not_destroyed()
        last = self.last
        if last is None:
            names = ", ".join(map(printable, self.names))
            raise InvalidStateError(f"the graph is compiled when it first runs, for the sizes of {names}; run it first")
        return last.check_alive()

    @property
    def programs(self) -> list[Program]:
        """All programs that are compiled for the graph: those for certain sizes, and those with names."""
        versions = [program for _, version in self.versions.items() for program in version.programs]
        return [*versions, *(item.program for item in self._open)]

    @property
    def names(self) -> list[str]:
        """The names in the shapes of inputs, in order."""
        dimensions: list[Any] = [size for desc in self.inputs.values() for size in desc.shape]
        sizes = [size for size in dimensions if isinstance(size, Size)]
        return list(dict.fromkeys(size.name for size in sizes))

    @property
    def last(self) -> GraphState | None:
        """The state of the static graph that was used last; None before the first run."""
        versions = self.versions.items()
        return versions[-1][1] if versions else None

    def destroy(self) -> None:
        """Release all programs and bindings."""
        super().destroy()
        versions = self.versions.items()
        self.versions.clear()
        self._shapes.clear()
        self._open, self._refused, self._checked, self._latest = [], [], None, (None, None)
        self.variants = ()
        for _, version in versions:
            version.destroy()

    def compute_shapes(self, input_shapes: Mapping[str, Sequence[int]]) -> dict[str, Shape]:
        """The shape of each output; see `MLGraph.compute_shapes`."""
        key = self._key("compute_shapes", input_shapes)
        cached = self._shapes.get(key)
        return dict(self._shapes.put(key, self._shapes_for(key)) if cached is None else cached)

    def _shapes_for(self, key: tuple[Shape, ...]) -> dict[str, Shape]:
        if self._open:
            sizes = self._sizes("compute_shapes", key)
            if (item := self._open_for(sizes)) is not None:
                return {name: values_at(operand.shape, sizes) for name, operand in item.graph.outputs.items()}
        graph, sizes = self._specialise("compute_shapes", key)
        self._checked = key, graph, sizes
        return {name: operand.shape for name, operand in graph.outputs.items()}

    def version(self, subject: str, inputs: Mapping[str, Any]) -> GraphState:
        """The state of the static graph for tensors or arrays, compiled if it is new."""
        try:
            key = tuple([inputs[name].shape for name in self.inputs])
            latest_key, latest = self._latest
            if latest is not None and key == latest_key and len(inputs) == len(key):
                return latest
            if len(inputs) == len(key) and (version := self._find(key)) is not None:
                return version
        except (AttributeError, KeyError, TypeError):
            pass  # nested lists, or an error that the checks explain
        if not isinstance(inputs, Mapping):
            values = _VALUES.get(subject, "arrays")
            raise ValidationError(f"{subject}: inputs must map names to {values}, got {short_repr(inputs)}")
        hints.require_names(f"{subject}: inputs", inputs, self.inputs)
        key = tuple([_shape_of(inputs[name]) for name in self.inputs])
        return self._find(key) or self._compile_for(subject, key)

    def _find(self, key: tuple[Shape, ...]) -> GraphState | None:
        """The state for these shapes, which is the last used one then; None if it is new."""
        version = self.versions.get(key)
        if version is not None:
            self._latest = key, version
        return version

    def version_for(self, subject: str, input_shapes: Mapping[str, Sequence[int]] | None) -> GraphState:
        """The state of the static graph for these shapes, compiled if it is new; None for those of the last run."""
        self.check_not_destroyed()
        if input_shapes is None:
            return self._last(subject)
        key = self._key(subject, input_shapes)
        return self._find(key) or self._compile_for(subject, key)

    def static_graph(self, subject: str, input_shapes: Mapping[str, Sequence[int]] | None) -> Graph:
        """The static graph for these shapes, not compiled; None for those of the last run."""
        self.check_not_destroyed()
        if input_shapes is None:
            return self._last(subject).static_graph(subject, None)
        return self._specialise(subject, self._key(subject, input_shapes))[0]

    def _last(self, subject: str) -> GraphState:
        if (last := self.last) is not None:
            return last
        advice = "run it first, or pass inputs"
        if subject == "profile":
            shapes = ", ".join(f"{name!r}: {list(desc.shape)}" for name, desc in self.inputs.items())
            advice += f", or input_shapes={{{shapes}}} with numbers for the names"
        raise ValidationError(
            f"{subject}: the sizes of {', '.join(map(printable, self.names))} are known when the graph runs; {advice}"
        )

    def _key(self, subject: str, input_shapes: Mapping[str, Sequence[int]]) -> tuple[Shape, ...]:
        return tuple(checked_shapes(subject, input_shapes, self.inputs).values())

    def _specialise(self, subject: str, key: tuple[Shape, ...]) -> tuple[Graph, dict[str, int]]:
        """The static graph for these shapes, and its sizes by name."""
        from ..core.specialise import specialise  # graphs without names do without its imports

        checked = self._checked
        if self.recorded is None:
            self.check_not_destroyed()
        if checked is not None and checked[0] == key:
            self._checked = None
            return checked[1:]
        sizes = self._sizes(subject, key)
        graph = self._variant_for(subject, sizes).graph
        try:
            return specialise(graph, key, sizes, self.context.backend.max_byte_length), sizes
        except ValidationError as error:
            raise type(error)(f"{subject}: {error}") from None

    def _variant_for(self, subject: str, sizes: Mapping[str, int]) -> GraphVariant:
        """The graph that is valid for these sizes."""
        recorded, variants = self.recorded, self.variants
        if not variants:
            if recorded is None:
                self.check_not_destroyed()
            assert recorded is not None
            return GraphVariant(recorded, Guards({}))
        for item in variants:
            if item.guards.hold(sizes):
                return item
        ready = " or ".join(_text_of(item.guards.sizes) for item in variants[:MAX_LISTED])
        raise ValidationError(
            f"{subject}: the graph has no operations for {_text_of(sizes)}: it was converted for {ready}, and for sizes like "
            "these; convert the model for these shapes, too"
        )

    def _compile_for(self, subject: str, key: tuple[Shape, ...]) -> GraphState:
        with self.versions.turn(key):  # threads with the same sizes wait for the result
            if (version := self._find(key)) is not None:
                return version
            self._open_first(subject, key)
            version = self._open_version(subject, key) or self._checked_version(subject, key)
            version.watch()
            with self.lock:
                self.check_not_destroyed()
                self._latest = key, self.versions.put(key, version)
            if self.context.backend.may_take_names:
                self._prepare_tailored(key)
            return version

    # Tailored programs -----------------------------------------------------------------------------------------------

    def chosen_sizes(self) -> list[Mapping[str, int]]:
        """The sizes for which kernels of programs with names were chosen, the first ones first."""
        names = self.names
        return [{name: item.guards.typical[name] for name in names} for item in reversed(self._open)]

    def _typical(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """The sizes for which kernels are chosen: within the bounds of hints."""
        return {name: self._hints[name].nearest(size) if name in self._hints else size for name, size in sizes.items()}

    def _prepare_tailored(self, key: tuple[Shape, ...]) -> None:
        """Compile a program in the background if sizes are far from those that kernels were chosen for."""
        sizes = self._sizes("dispatch", key)
        with self.lock:
            item = self._nearest(sizes, lambda item: item.guards.hold(sizes))
            is_near = item is None or item.ratio_to(self._typical(sizes)) <= FAR
            if is_near or self._is_preparing or self.tailored >= MAX_TAILORED:
                return
            self._is_preparing = True
        from ..support.background import background

        background.put(partial(_compile_tailored, ref(self), key))

    def compile_tailored(self, key: tuple[Shape, ...]) -> None:
        """Compile a program for the sizes of these shapes, and use it for the sizes that are nearest to them."""
        try:
            graph, sizes = self._specialise("dispatch", key)
            opened = self._compile_with_names(graph, sizes, "dispatch")
        except (MLError, RuntimeError):
            # The other programs still run. `_is_preparing` stays, so there is no other attempt. Executors raise RuntimeError
            # when the interpreter ends.
            return
        with self.lock:
            self._is_preparing = False
            if opened is None or self.recorded is None or not self._open:
                return
            item = self._nearest(sizes, lambda item: item.guards.hold(sizes))
            if item is not None and opened.program.has_kernels_of(item.program):
                item.similar.append(opened.guards.typical)
                return
            opened.program.share_memory((item or self._open[0]).program)
            self._open = [opened, *self._open[: MAX_OPEN - 1]]
            self.tailored += 1
            for shapes, version in self.versions.items():
                others = self._sizes("dispatch", shapes)
                if self._nearest(others, lambda item, others=others: item.guards.hold(others)) is opened:  # type: ignore[misc]
                    self.versions.pop(shapes)
                    _release(self.bindings, version)
            self._latest = (None, None)

    def _nearest(self, sizes: Mapping[str, int], is_valid: Callable[[OpenProgram], bool]) -> OpenProgram | None:
        """The program with names for these sizes; of several, the one whose kernels were chosen for the nearest ones."""
        items = filter(is_valid, self._open)
        if not self.context.backend.may_take_names:
            return next(items, None)
        typical = self._typical(sizes)
        return min(items, key=lambda item: item.ratio_to(typical), default=None)

    # Programs --------------------------------------------------------------------------------------------------------

    def _open_first(self, subject: str, key: tuple[Shape, ...]) -> None:
        """Compile the first program with names at the first call: its formulas check the operations for these sizes, too.

        Otherwise `_checked_version` checks them with numbers, and raises the errors of a graph that has no such program.
        """
        if not self._is_first_call or self.recorded is None or not self.context.backend.takes_names:
            return
        self._is_first_call = False
        sizes = self._sizes(subject, key)
        variant = self._variant_for(subject, sizes)
        if any(node.op.is_draft for node in variant.graph.nodes):  # integers of shape chains may wrap around
            return
        with suppress(NumbersNeededError, MLError):
            opened = self._open_program(variant, sizes, frozenset(), ())
            if isinstance(opened, OpenProgram):
                with self.lock:
                    self._open = [opened, *self._open[: MAX_OPEN - 1]]

    def _open_version(self, subject: str, key: tuple[Shape, ...]) -> GraphState | None:
        """The state for sizes that need no check of operations: all comparisons have the same answers as for earlier sizes."""
        if not self._open:
            return None
        self.check_not_destroyed()
        sizes = self._sizes(subject, key)
        item = self._open_for(sizes)
        if item is None:
            return None
        inputs, outputs = (self._descs_at(operands, sizes) for operands in (item.graph.inputs, item.graph.outputs))
        program = item.program.at(sizes, [input_range.at(sizes) for input_range in item.ranges])
        graph = partial(self.static_graph, subject, {name: desc.shape for name, desc in inputs.items()})
        descs = inputs, outputs, item.graph.in_place()
        return GraphState(self.context, graph, program, self.is_fused, self, sizes, descs)

    def _open_for(self, sizes: Mapping[str, int]) -> OpenProgram | None:
        """The program for sizes that need no check of operations; None if there is none."""
        return self._nearest(
            sizes, lambda item: item.limits is not None and item.guards.hold(sizes) and item.limits.hold(sizes)
        )

    def _sizes(self, subject: str, key: tuple[Shape, ...]) -> dict[str, int]:
        """The size of each name, for inputs of these shapes."""
        from ..core.specialise import sizes_of

        return sizes_of(self.inputs, dict(zip(self.inputs, key, strict=True)), subject)

    @staticmethod
    def _descs_at(operands: Mapping[str, Operand], sizes: Mapping[str, int]) -> dict[str, Desc]:
        return {name: Desc(o.data_type, values_at(o.shape, sizes)) for name, o in operands.items()}

    def _checked_version(self, subject: str, key: tuple[Shape, ...]) -> GraphState:
        """The state for sizes with which all operations are checked."""
        graph, sizes = self._specialise(subject, key)
        program, names = self._program_for(graph, sizes, subject), set(self.names)
        named = {name: size for name, size in sizes.items() if name in names}
        return GraphState(self.context, graph, program, self.is_fused, self, named)

    def _program_for(self, graph: Graph, sizes: dict[str, int], subject: str) -> Program:
        """The program for a static graph: one that was compiled with names, if it is valid for these sizes."""
        backend = self.context.backend
        if self.recorded is None or not (backend.takes_names or backend.may_take_names):
            return self._compile(graph)
        chains = _chain_values(graph)
        opened = self._nearest(sizes, lambda item: item.guards.hold(sizes) and item.gives(chains, sizes))
        if opened is None:
            opened = self._compile_with_names(graph, sizes, subject)
            if opened is None:
                return self._compile(graph)
            with self.lock:
                self._open = [opened, *self._open[: MAX_OPEN - 1]]
        return opened.program.at(sizes, input_ranges(graph))

    def _compile_with_names(self, graph: Graph, sizes: dict[str, int], subject: str) -> OpenProgram | None:
        """Compile the graph with names, for a static graph of certain sizes; None if it needs numbers for all names."""
        variant, backend, chains = self._variant_for(subject, sizes), self.context.backend, _chain_values(graph)
        # Expressions of GPUs assume that names are at least 1.
        own = {name for name in self.names if sizes[name] == 0} if backend.may_take_names else set()
        while not (numbers := self.numbers_needed.keys() | own) >= set(self.names):
            if (refused := self._refused_for(frozenset(numbers), chains, sizes)) is not None:
                self.refusal = refused.reason
                break
            try:
                opened = self._open_program(variant, sizes, frozenset(numbers), chains)
            except NumbersNeededError as error:
                operations = error.operations
                if not operations.keys() <= set(self.names) - numbers:  # a size has no formula
                    operations = dict.fromkeys(self.names, ", ".join(dict.fromkeys(operations.values())))
                if error.is_for_all:
                    self.numbers_needed = {**operations, **self.numbers_needed}
                else:
                    own |= operations.keys()
                    self.numbers_preferred = {**operations, **self.numbers_preferred}
                continue
            if isinstance(opened, RefusedNames):
                self.refusal = opened.reason
                with self.lock:
                    self._refused = [opened, *self._refused[: MAX_OPEN - 1]]
                break
            return opened
        return None

    def _refused_for(
        self, numbers: frozenset[str], chains: tuple[int, ...], sizes: Mapping[str, int]
    ) -> RefusedNames | None:
        """An attempt that would fail for these sizes, too; None if there was none."""
        return next((item for item in self._refused if item.fails(numbers, chains, sizes)), None)

    def _open_program(
        self,
        variant: GraphVariant,
        sizes: dict[str, int],
        numbers: frozenset[str],
        chains: tuple[int, ...],
    ) -> OpenProgram | RefusedNames:
        """Compile the graph with names, except for those in `numbers`, unless formulas do not hold for these sizes.

        `chains` are the numbers that chains give. Formulas differ from them where an integer type wraps around, and may be
        longer than is allowed.
        """
        from ..core.specialise import SizeLimits, specialise

        recorded, max_byte_length = variant.graph, self.context.backend.max_byte_length
        guards = Guards(sizes, self._typical(sizes))
        guards.answers |= variant.guards.answers
        with guards.deciding():  # formulas of sizes, and defaults that depend on sizes, are those of these answers
            symbols: dict[str, Any] = {name: Size(name) for name in sizes if not isinstance(name, UnknownName)}
            symbols |= {name: int(symbols[name]) for name in numbers}
            shapes = [values_at(desc.shape, symbols) for desc in self.inputs.values()]
            try:
                inferred = specialise(recorded, shapes, symbols, max_byte_length)
                formulas = _chain_values(inferred)
            except ValidationError as error:  # the operations accept these numbers
                reason = str(error).rpartition("; the sizes are ")[0] or str(error)
                return RefusedNames(numbers, guards, None, reason)
            if not _gives(formulas, chains, sizes):
                return RefusedNames(numbers, guards, formulas, "an integer of a shape chain wraps around")
            program = self._compile(inferred)
            # Operations of drafts compute sizes that have no formula, or whose formula does not hold for their integer type.
            is_plain = all(not node.op.is_draft and _updates_for_all(node) for node in inferred.nodes)
            ranges = input_ranges(inferred) if is_plain else []
        users = dict(zip(inferred.nodes, recorded.nodes, strict=True))
        program.origin = {node: users[origin] for node, origin in program.origin.items()}
        limits = SizeLimits(inferred, max_byte_length) if is_plain and len(sizes) == len(symbols) else None
        return OpenProgram(guards, program, inferred, limits, ranges, formulas, [])

    def bind(self, inputs: Mapping[str, MLTensor], outputs: Mapping[str, MLTensor]) -> DispatchBinding:
        """Bind the program for the sizes of tensors to their memory."""
        return self.version("dispatch", inputs).bind(inputs, outputs)

    def compute(self, inputs: Mapping[str, Any], outputs: Mapping[str, np.ndarray] | None) -> dict[str, np.ndarray]:
        """Run the program for the sizes of arrays; see `MLContext.compute`."""
        return self.version("compute", inputs).compute(inputs, outputs)


_VALUES = {"dispatch": "tensors", "profile": "arrays or tensors"}


def _text_of(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{printable(name)} = {size}" for name, size in sizes.items() if not isinstance(name, UnknownName))


def _compile_tailored(reference: ref[DynamicGraphState], key: tuple[Shape, ...]) -> None:
    """Compile a program for these shapes, unless nothing uses the graph any more."""
    state = reference()
    if state is not None:
        state.compile_tailored(key)


def _release(bindings: Cache[tuple[Any, ...], DispatchBinding], version: GraphState) -> None:
    """Release the bindings of a static graph that is dropped. Runs in progress keep its program."""
    for key, binding in bindings.items():
        if binding.program is version.program:
            bindings.pop(key)


def _shape_of(value: Any) -> Shape:
    shape = getattr(value, "shape", None)
    return tuple(shape) if isinstance(shape, tuple) else np.shape(value)


def _descs_of(operands: Mapping[str, Operand]) -> dict[str, Desc]:
    return {name: operand.desc for name, operand in operands.items()}


class DispatchBinding:
    """A graph bound to tensors, until one of them is destroyed. A run holds the locks of `tensors`.

    `unbind` is the method of the graph that removes the binding with a key.
    """

    __slots__ = ("__weakref__", "_call", "_key", "_locks", "_unbind", "program")

    def __init__(
        self,
        unbind: WeakMethod[Callable[[tuple[Any, ...]], None]],
        key: tuple[Any, ...],
        call: Callable[[], None],
        tensors: Sequence[MLTensor],
        program: Program,
    ) -> None:
        self.program = program
        self._unbind, self._key, self._call, self._locks = unbind, key, call, locks_of(tensors)

    def run(self) -> None:
        """Run the graph once. Not `__call__`, which takes 0.1 us more."""
        # As `Locks` does, but without an object for each call, and for two tensors without a loop: this is the hot path.
        locks = self._locks
        if len(locks) != 2:
            if locks:
                self._call_with(locks, self._call)
            else:
                self._call()
            return
        first, second = locks
        first.acquire()
        try:
            second.acquire()
            try:
                self._call()
            finally:
                second.release()
        finally:
            first.release()

    def encode(self, encoder: Any, timestamps: Any) -> None:
        """Add one run to the caller's command encoder.

        Raises:
            NotSupportedError: the graph is not one piece of work on a WebGPU device.
        """
        encode = getattr(self._call, "encode", None)
        if encode is None:
            hosted = next((step.title for step in self.program.steps if step.space.is_host), "")
            count = len(self.program.steps)
            where = "its single part does not take one" if count == 1 else f"the graph has {count} parts"
            where = f"{hosted} runs on the CPU" if hosted else where
            raise NotSupportedError(f"dispatch: encoder needs a graph that is one part, on a WebGPU device; {where}")
        require(encoder is not None, "dispatch: pass_timestamps needs an encoder")
        self._call_with(self._locks, lambda: encode(encoder, timestamps))

    @staticmethod
    def _call_with(locks: Sequence[RLock], call: Callable[[], None]) -> None:
        taken = 0
        try:
            for lock in locks:
                lock.acquire()
                taken += 1
            call()
        finally:
            for lock in locks[:taken]:
                lock.release()

    def release(self) -> None:
        """Remove the binding from the graph, so that the memory of its tensors can be freed."""
        unbind = self._unbind()
        if unbind is not None:
            unbind(self._key)


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
