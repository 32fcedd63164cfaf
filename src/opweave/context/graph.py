"""Compiled graphs, and their bindings to memory.

A dispatch binds a graph to the memory of tensors once; the same tensors again find the binding. Locks are taken in one
order, the tensors' by identity, then the graph's, so that threads cannot deadlock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import RLock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakMethod, ref

import numpy as np

from .. import memory
from ..backends.submission import Submission
from ..core.graph import Desc, Graph, printable
from ..core.operators import Operators
from ..memory.arrays import as_array, contiguous, fit
from ..memory.spaces import HOST, TensorSpace
from ..support import hints, lazy_imports
from ..support.cache import Cache
from ..support.errors import InvalidStateError, ValidationError, require
from ..support.names import short_repr
from .locks import Locks, locks_of
from .tensor import MLTensor, guard_of

if TYPE_CHECKING:
    from pathlib import Path

    from ..backends import Aliases, Placement
    from ..compile.engines import Tuning
    from ..compile.uses import Use
    from ..run.drawing import Drawing
    from ..run.profile import Profile
    from ..run.program import Program
    from .context import MLContext

MAX_BINDINGS = 64
"""Combinations of tensors that a graph stays bound to; beyond that, the oldest must be bound (and validated) again."""


@hints.misnomers
class MLGraph:
    """A compiled graph (https://www.w3.org/TR/webnn/#api-mlgraph). Run it with `context.dispatch` or `context.compute`.

    >>> import numpy as np, opweave as ow
    >>> context = ow.ml.create_context(device="reference")
    >>> builder = ow.MLGraphBuilder(context)
    >>> graph = builder.build({"y": builder.input("x", "float32", [2]).neg()})
    >>> dict(graph.inputs), list(graph.outputs), graph.devices
    ({'x': Desc(data_type='float32', shape=(2,))}, ['y'], ('reference',))
    >>> context.compute(graph, {"x": np.float32([1, 2])})["y"].tolist()
    [-1.0, -2.0]
    >>> graph.destroy()
    >>> graph.destroyed, graph.context is context
    (True, True)
    """

    def __init__(self, context: MLContext, graph: Graph, program: Program, fuse: bool = True) -> None:
        self._context = context
        self._fuse = fuse  # as it was passed to `build`
        self._graph: Graph | None = graph
        self._program: Program | None = program
        self._size = len(graph.nodes)
        self._inputs = {name: operand.desc for name, operand in graph.inputs.items()}
        self._outputs = {name: operand.desc for name, operand in graph.outputs.items()}
        self._arrays = [(name, np.dtype(desc.data_type), desc.shape) for name, desc in self._inputs.items()]
        self._constants = memory.merged_ranges(operand.value for operand in graph.constants)
        self._in_place = graph.in_place()
        self._lock = RLock()
        # Bindings by the arguments of `dispatch`. An entry lives until one of its tensors goes away, so keys made of
        # identities stay unique.
        self._bindings: Cache[tuple[Any, ...], DispatchBinding] = Cache(MAX_BINDINGS, raw=True)
        # The graph as a call in larger graphs, and the function that drops these (`opweave.lazy.deferred_context`).
        self._template: Any = None
        self._forget: Callable[[], object] | None = None
        self._use: Use | None = None  # counts its use, for verification
        context._add_graph(self)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a graph belongs to its context and cannot be copied or pickled; opweave.onnx.save(graph, path) writes it to a "
            "file, and opweave.InferenceSession(path) can be pickled"
        )

    @property
    def inputs(self) -> Mapping[str, Desc]:
        """Data type and shape of each input, by name; inputs that no output depends on are left out."""
        return MappingProxyType(self._inputs)

    @property
    def outputs(self) -> Mapping[str, Desc]:
        """Data type and shape of each output, by name."""
        return MappingProxyType(self._outputs)

    @property
    def context(self) -> MLContext:
        """The context that the graph was built for."""
        return self._context

    @property
    def destroyed(self) -> bool:
        """Whether `destroy` has been called, here or by the loss of the context."""
        return self._program is None

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of the devices that its operations run on."""
        return tuple(dict.fromkeys(placement.device for placement in self.placements()))

    def placements(self) -> list[Placement]:
        """The device of each operation, and how it runs there.

        >>> import opweave as ow
        >>> builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
        >>> graph = builder.build({"y": builder.input("x", "float32", [2]).neg()})
        >>> [(each.device, each.how) for each in graph.placements()]
        [('reference', 'native')]
        """
        return self._check_alive().placements

    def explain(self) -> str:
        """The graph as text, followed by how each operation runs: native, composed of several kernels, decomposed, …

        If the graph has several segments, the number of its segment precedes each operation, and the last line says how the
        segments share memory.

        >>> import opweave as ow
        >>> builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
        >>> graph = builder.build({"y": builder.input("x", "float32", [2]).neg()})
        >>> print(graph.explain().splitlines()[-1])
          neg  reference  native  NumPy
        """
        text: str = lazy_imports.explain(self)
        return text

    def profile(
        self,
        inputs: Mapping[str, Any] | None = None,
        *,
        outputs: Mapping[str, Any] | None = None,
        repeat: int = 10,
        detail: bool = False,
    ) -> Profile:
        """Run the graph, and measure each of its steps: time, bytes, copies, and how much memory is used again.

        Args:
            inputs: an array or tensor for each input, by name; None for random ones.
            outputs: arrays or tensors to write results into, by name; others get memory of their own.
            repeat: how many runs to measure, after one that is not measured.
            detail: whether to also measure each kernel of the engines that support it; this compiles the graph again.

        Returns:
            A table to `print`, and its numbers.

        Raises:
            InvalidStateError: the graph is destroyed, or the context lost.
            ValidationError: missing or unknown names; arrays or tensors that do not fit.
            OperationError: a kernel failed.

        >>> import opweave as ow
        >>> builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
        >>> graph = builder.build({"y": builder.input("x", "float32", [2]).neg()})
        >>> profile = graph.profile(repeat=2)
        >>> [step.title for step in profile.steps], sum(copied.count for copied in profile.copies)
        (['neg'], 0)
        """
        measured: Profile = lazy_imports.profile(self, inputs, outputs, repeat, detail)
        return measured

    def tune(self, inputs: Mapping[str, Any] | None = None, *, seconds: float = 4.0) -> Tuning:
        """Measure the engines that can run the graph, and use the fastest one from the next run on.

        Each engine compiles the graph, which temporarily takes memory. Runs alternate between the engines, with pauses.
        Results are stored in the cache on disk: equal graphs (with the same operations, shapes and data types) that are built
        on this machine later use this engine, too. Ctrl-C stops tuning, and keeps results of at least three rounds.

        Args:
            inputs: an array for each input, by name; None for random ones, with integers 0 and 1.
            seconds: approximate time to measure, without compilation.

        Returns:
            A table to `print`, and its numbers. There is nothing to measure on devices with one engine.

        Raises:
            InvalidStateError: the graph is destroyed, or the context lost.
            ValidationError: missing or unknown names; arrays that do not fit; `seconds` is negative.
            OperationError: the graph fails with these inputs.

        >>> import opweave as ow
        >>> builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
        >>> graph = builder.build({"y": builder.input("x", "float32", [2]).neg()})
        >>> print(graph.tune(seconds=0))
        tuned                   chosen
        a graph of 1 operation  reference  there is no other engine for it
        """
        tuned: Tuning = lazy_imports.tune(self, inputs, seconds)
        return tuned

    def draw(self, path: str | Path | None = None) -> Drawing:
        """Draw the graph from inputs to outputs, with the engine of each part.

        Args:
            path: an .svg file to write the drawing to, or None.

        Returns:
            The drawing: a string of SVG that notebooks show, as they do for the graph itself.

        Raises:
            InvalidStateError: the graph is destroyed, or the context lost.
            ValidationError: the file's name does not end with .svg.
            DataError: the file cannot be written.

        >>> import opweave as ow
        >>> builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
        >>> graph = builder.build({"y": builder.input("x", "float32", [2]).neg()})
        >>> graph.draw().startswith("<svg")
        True
        """
        drawing: Drawing = lazy_imports.draw(self, path)
        return drawing

    def _repr_html_(self) -> str:
        from ..support.formatting import markup

        return f"<pre>{markup(repr(self))}</pre>" if self.destroyed else self.draw()._repr_html_()

    def _watch(self) -> None:
        program = self._program
        if program is not None and program.untried and self._context._verify:
            self._use = lazy_imports.watch_graph(self)

    def _ask_use(self) -> None:
        program, use = self._program, self._use
        if program is None or use is None:
            return
        if (plain := program.returning_all) is not None:
            weak, names = ref(program), list(self._inputs)

            def note_use(inputs: Sequence[Any]) -> list[Any]:
                if (own := weak()) is not None:
                    own.returning_all = plain
                use.note((), names, inputs)
                return plain(inputs)

            program.returning_all = note_use
        self._bindings.clear()  # the next dispatch binds it again

    def _verification(self, key: Any, sample: Any) -> Any:
        """The task of a child process that verifies the graph, or the reason why there is none."""
        graph, context = self._graph, self._context
        if graph is None:
            return "the graph is destroyed"
        driver, device, preference = context.backend, context.device.name, context.power_preference
        return lazy_imports.verify_graph(graph, driver, device, preference, self._fuse, sample)

    def _check_alive(self) -> Program:
        program = self._program
        if program is None:  # as in all graphs of a lost context
            self._context._check_alive()
            raise InvalidStateError("the graph is destroyed")
        return program

    def _replace_program(self, program: Program) -> None:
        """Run another program of the same graph from the next run on; runs in progress end with the old one."""
        with self._lock:
            self._check_alive()
            self._program = program
            self._bindings.clear()  # bound to the old program
            if self._use is not None:
                self._use.end((), "not verified: tuned")  # `explain` says this of the other program alone

    def destroy(self) -> None:
        """Release the compiled graph and its weights; it cannot be dispatched any more. Further calls do nothing."""
        with self._lock:
            self._program = None
            self._graph = None
            self._template = None
            self._bindings.clear()
            forget, self._forget = self._forget, None
        if forget is not None:
            forget()

    def __repr__(self) -> str:
        def list_descs(descs: Mapping[str, Desc]) -> str:
            return ", ".join(f"{printable(name)}: {desc}" for name, desc in descs.items())

        state = "destroyed" if self.destroyed else f"{self._size} operations on {self._context.device.name}"
        return f"<MLGraph ({list_descs(self._inputs)}) -> ({list_descs(self._outputs)}), {state}>"

    def _check_dispatch(self, inputs: Mapping[str, MLTensor], outputs: Mapping[str, MLTensor]) -> None:
        self._check_alive()
        for kind, tensors in {"inputs": inputs, "outputs": outputs}.items():
            require(
                isinstance(tensors, Mapping), f"dispatch: {kind} must map names to tensors, got {short_repr(tensors)}"
            )
        everything = [*inputs.items(), *outputs.items()]
        for name, tensor in everything:
            self._context._check_own(tensor, f"dispatch: {name!r}")
        targets = set(map(id, outputs.values()))
        alone = [tensor for name, tensor in inputs.items() if not self._may_share(name, tensor, outputs)]
        is_distinct = len(targets) == len(outputs) and len({*targets, *map(id, alone)}) == len(targets) + len(alone)
        require(is_distinct, "dispatch: each input and output needs a tensor of its own, got one of them twice")
        for kind, tensors, descs in (("input", inputs, self._inputs), ("output", outputs, self._outputs)):
            check_names(f"dispatch: {kind}s", tensors, descs)
            for name, tensor in tensors.items():
                require(not tensor.constant, f"dispatch: {kind} {name!r} is a constant tensor")
                require(
                    tensor.desc == descs[name],
                    f"dispatch: {kind} {name!r} must be {descs[name]}, got a tensor {tensor.desc}",
                )

    def _memory_of(self, tensor: MLTensor, subject: str) -> Any:
        return self._context._own(tensor, subject)

    def _unbind(self, key: tuple[Any, ...]) -> None:
        with self._lock:
            self._bindings.pop(key)

    def _may_share(self, name: str, tensor: MLTensor, outputs: Mapping[str, MLTensor]) -> bool:
        """Whether a tensor is an input, and also an output that may use the memory of that input."""
        return any(source == name and outputs.get(output) is tensor for output, source in self._in_place.items())

    def _check_overlap(self, space: TensorSpace, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Aliases:
        """Require outputs in separate memory, or in that of an input that they may update; return these pairs."""
        shared = memory.in_place(inputs, outputs, self._in_place) if self._in_place else {}
        alone = {name: array for name, array in inputs.items() if name not in shared.values()} if shared else inputs
        space.check_overlap(alone, outputs, self._constants)
        if not shared:
            return ()
        sources, targets = list(self._inputs), list(self._outputs)
        return tuple((sources.index(source), targets.index(name)) for name, source in shared.items())

    def _bind(self, inputs: Mapping[str, MLTensor], outputs: Mapping[str, MLTensor]) -> DispatchBinding:
        self._check_dispatch(inputs, outputs)
        all_tensors = list({id(tensor): tensor for tensor in (*inputs.values(), *outputs.values())}.values())
        for tensor in outputs.values():
            guard_of(tensor).settle()
        with Locks(all_tensors):
            with self._lock:
                # Another thread may have destroyed a tensor or the graph before; from here on, it has to wait.
                program = self._check_alive()
                sources = {name: self._memory_of(inputs[name], f"dispatch: {name!r}") for name in self._inputs}
                targets = {name: self._memory_of(outputs[name], f"dispatch: {name!r}") for name in self._outputs}
                space = self._context.backend.space
                for name, array in targets.items() if space.is_host else ():
                    require(bool(array.flags.writeable), f"dispatch: output {name!r} is read-only memory")
                shared = self._check_overlap(space, sources, targets)
                key = (len(inputs), *inputs, *map(id, inputs.values()), *outputs, *map(id, outputs.values()))
                call = program.bind(list(sources.values()), list(targets.values()), shared)
                if self._use is not None:
                    self._use.note((), list(sources), list(sources.values()))
                whole = call.max_whole if isinstance(call, Submission) else -1
                guards = [guard_of(tensor) for tensor in all_tensors]
                locked = [
                    tensor
                    for tensor, guard in zip(all_tensors, guards, strict=True)
                    if guard.in_steps or tensor.desc.byte_length > whole
                ]
                binding = DispatchBinding(WeakMethod(self._unbind), key, call, locked)
                self._bindings.put(key, binding)
            for guard in guards:
                if whole < 0:
                    guard.use_in_steps()  # takes locks of other graphs, so without this one's
                guard.bindings.add(binding)
        return binding

    def _compute(self, inputs: Mapping[str, Any], outputs: Mapping[str, np.ndarray] | None) -> dict[str, np.ndarray]:
        program = self._check_alive()
        if not outputs and program.returning_all is not None and (arrays := self._as_they_are(inputs)) is not None:
            return dict(zip(self._outputs, program.returning_all(arrays)))  # noqa: B905  (strict=True takes 0.1 us)
        if not isinstance(inputs, Mapping):
            raise ValidationError(f"compute: inputs must map names to arrays, got {short_repr(inputs)}")
        if inputs.keys() != self._inputs.keys():
            check_names("compute: inputs", inputs, self._inputs)
        tensors: list[MLTensor] = []
        sources, targets = {}, {}
        for name, desc in self._inputs.items():
            value = inputs[name]
            if isinstance(value, MLTensor):
                self._memory_of(value, f"compute: input {name!r}")
                tensors.append(value)
            elif type(value) is np.ndarray and value.shape == desc.shape and value.dtype == desc.data_type:
                sources[name] = contiguous(value)
            else:
                subject = f"compute: input {name!r}"
                sources[name] = contiguous(fit(as_array(value, subject, desc.data_type), subject, desc))
        if outputs:
            outputs = self._check_outputs(outputs)
        elif not tensors and program.returning_all is not None:
            results = program.returning_all([sources[name] for name in self._inputs])
            return dict(zip(self._outputs, results, strict=True))
        for name, desc in self._outputs.items():
            target = outputs.get(name) if outputs else None
            targets[name] = memory.empty(desc) if target is None else target
        shared: Aliases = ()
        with Locks(tensors):
            for name, value in inputs.items():
                if isinstance(value, MLTensor):
                    subject = f"compute: input {name!r}"
                    sources[name] = fit_tensor(value, self._memory_of(value, subject), subject, self._inputs[name])
            if len(program.steps) > 1:
                for tensor in tensors:
                    guard_of(tensor).use_in_steps()
            if outputs:
                on_host = {name: array for name, array in sources.items() if isinstance(array, np.ndarray)}
                shared = self._check_overlap(HOST, on_host, targets)
            program.run([sources[name] for name in self._inputs], list(targets.values()), shared)
            if self._use is not None and self._use.is_asked:
                self._use.note((), list(self._inputs), [sources[name] for name in self._inputs])
        return targets

    def _as_they_are(self, inputs: Any) -> list[np.ndarray] | None:
        """The input arrays in order if engines can read all of them in place, else None."""
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
        """Require arrays that results can be written into; those of other libraries become NumPy arrays of the same memory."""
        require(isinstance(outputs, Mapping), f"compute: outputs must map names to arrays, got {short_repr(outputs)}")
        unknown = [name for name in outputs if name not in self._outputs]
        require(not unknown, f"compute: outputs must be among {list(self._outputs)}; unknown: {unknown}")
        arrays: dict[str, np.ndarray] = {}
        for name, target in outputs.items():
            desc = self._outputs[name]
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


class DispatchBinding:
    """A graph bound to tensors, until one of them is destroyed. It holds the locks of `tensors` while it runs.

    `unbind` is the graph's method that forgets the binding of a key.
    """

    __slots__ = ("__weakref__", "_call", "_key", "_locks", "_unbind")

    def __init__(
        self,
        unbind: WeakMethod[Callable[[tuple[Any, ...]], None]],
        key: tuple[Any, ...],
        call: Callable[[], None],
        tensors: Sequence[MLTensor],
    ) -> None:
        self._unbind, self._key, self._call, self._locks = unbind, key, call, locks_of(tensors)

    def run(self) -> None:
        """Run the graph once. A method, since calling an object takes 0.1 us more."""
        # As `Locks` does, but without an object for each call, and for two tensors without a loop: this is the hot path.
        locks = self._locks
        if len(locks) != 2:
            if locks:
                self._run_with_all(locks)
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

    def _run_with_all(self, locks: Sequence[RLock]) -> None:
        taken = 0
        try:
            for lock in locks:
                lock.acquire()
                taken += 1
            self._call()
        finally:
            for lock in locks[:taken]:
                lock.release()

    def release(self) -> None:
        """Forget the binding, and with it the tensors' memory."""
        unbind = self._unbind()
        if unbind is not None:
            unbind(self._key)


def fit_tensor(tensor: MLTensor, array: Any, subject: str, desc: Desc) -> Any:
    """The memory of a tensor as `desc`; on the host, the tensor may be flat."""
    if isinstance(array, np.ndarray):
        return fit(array, subject, desc)
    require(tensor.desc == desc, f"{subject} must be {desc}, got a tensor {tensor.desc}")
    return array


def check_names(subject: str, values: Mapping[str, Any], declared: Mapping[str, Any]) -> None:
    """Require exactly the names `declared`."""
    missing = [name for name in declared if name not in values]
    unknown = [name for name in values if name not in declared]
    if missing or unknown:
        groups = {"missing": missing, "unknown": unknown}
        problem = (
            ", ".join(f"{kind}: {short_repr(names)}" for kind, names in groups.items() if names)
            if values
            else "got none"
        )
        raise ValidationError(f"{subject} must hold {list(declared)}; {problem}{hints.names(unknown, missing)}")
