"""Base classes of back ends, of compiled graphs, and the description of a device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import cache, cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

from .. import memory
from ..core.dtypes import ANY, DataType
from ..memory.spaces import HOST, Memory, TensorSpace
from ..support.errors import ValidationError
from ..support.records import record
from .discovery import discover
from .precision import Precision
from .rule_table import Rule, RuleTable

if TYPE_CHECKING:
    import numpy as np

    from ..core.graph import Graph, Node
    from ..core.operation import Limits, Op
    from ..expr.kernels import Engine
    from .exports import Exported
    from .reports import KernelTime
    from .updates import Update

PowerPreference = Literal["default", "high-performance", "low-power"]
Spinning = Literal["long", "short", "least"]
"""Time for which threads of an engine spin for the next operation before they sleep.

"long" is the engine's default, for models: their calls cost the same as in the engine, also after pauses. "short" is for
graphs, beside which other graphs run. "least" is for a part of a graph: other parts run between its runs.
"""
Returning = Callable[[Sequence[Memory]], list[Memory]]
"""Compute the outputs from the inputs."""
TakingFeeds = Callable[[dict[str, Any]], list[Any]]
"""Compute outputs from arrays by input name; raises whatever the engine raises."""
ModelSource = Callable[[], "tuple[Any, Mapping[str, np.ndarray]]"]
"""Return a ModelProto without its constants, and the constants by name."""
How = Literal["native", "composed", "decomposed", "kernel", "expression"]
"""Implementation of a node: one kernel of the engine, several kernels that the rule composes, the op's decomposition, a user
kernel, or the op's expression."""


class NumbersNeededError(Exception):
    """Kernels need numbers in place of some names of sizes.

    Attributes:
        operations: by name, the title of the operation whose kernel needs its number.
        is_for_all: whether all sizes need numbers; otherwise only those of this run, for example for a faster kernel.
    """

    def __init__(self, operations: Mapping[str, str], *, is_for_all: bool = True) -> None:
        super().__init__(", ".join(f"{operation} needs a number for {name}" for name, operation in operations.items()))
        self.operations, self.is_for_all = operations, is_for_all


class Runner(ABC):
    """A compiled graph, or a compiled part of one. Several threads may run it at the same time."""

    name: str = ""
    """Prefix of the runner's error messages; may be empty."""
    threads: int = 0
    """Number of threads that the engine has started for this runner."""
    waits_in_bind: bool = False
    """Whether `bind` finishes the work of `complete`, so that `complete` may be left out."""
    updates: Sequence[Update] = ()
    """Inputs that kernels update in place or copy; the runner counts copies. No other output may use an input's memory."""

    @cached_property
    def plan(self) -> memory.Plan:
        """Memory plan of the intermediates inside the runner."""
        return memory.Plan()

    @abstractmethod
    def bind(self, inputs: Sequence[Memory], outputs: Sequence[Memory]) -> Callable[[], None]:
        """Bind the graph to memory that is read and written in place, and return a function that runs the graph once.

        The function works synchronously on the host, with the GIL released where possible. If it has a method
        `read(position, memory)`, the method replaces the memory of an input that no kernel updates.

        Args:
            inputs: memory of the graph's inputs, in the graph's order; on the host C-contiguous, aligned arrays.
            outputs: memory of the graph's outputs, under the same conditions.
        """

    @abstractmethod
    def describe(self, nodes: Sequence[Node]) -> tuple[How, str]:
        """Return the implementation of the nodes of one operation of the user's graph, and a text that names the engine."""

    def complete(self) -> None:
        """Finish the work that `Backend.compile` has begun, before the first call of `bind`.

        All parts of a program begin to compile before `complete` is called on the first one.

        Raises:
            OperationError: the engine rejects the graph.
        """
        return

    def abandon(self) -> None:
        """Cancel the work that `Backend.compile` has begun: the program with this part has failed, or was interrupted."""
        return

    def cache_keys(self) -> Iterable[tuple[str, str]]:
        """Return key and kind of each file in the cache on disk with code that was compiled for the runner."""
        return ()

    def exporters(self) -> Iterable[Callable[[], Exported]]:
        """Return functions that export compiled parts that no cache has. Runners that share a part have the same function."""
        return ()

    def saved_parts(self) -> Mapping[tuple[str, str], bytes]:
        """Return parts for a saved graph that no cache has, by key and kind. `disk_cache` finds those of a loaded graph."""
        return {}

    def is_left(self, nodes: Sequence[Node]) -> bool:
        """Whether the engine runs the nodes of one operation on the CPU because the device cannot run them."""
        return False

    def run(self, inputs: Sequence[Memory], outputs: Sequence[Memory]) -> None:
        self.bind(inputs, outputs)()

    def returning(self, outputs: Sequence[int]) -> Returning | None:
        """Return a function that runs the graph once and returns these outputs in the engine's memory; None if impossible."""
        return None

    def taking_feeds(self, outputs: Sequence[int]) -> TakingFeeds | None:
        """Like `returning`, for arrays by name whose shapes the engine checks; None if that is impossible or insufficient."""
        return None

    takes_all_sizes = False
    """Whether the runner, compiled with names, runs sizes other than those that `at` was called with."""

    def at(self, sizes: Mapping[str, int]) -> Runner:
        """Return the runner for these sizes, if the back end takes names; it shares what was compiled."""
        return self

    def has_kernels_of(self, other: Runner) -> bool:
        """Whether a runner that was compiled for the same graph, with other estimates of sizes, has the same kernels."""
        return True

    def share_memory(self, other: Runner) -> None:
        """Use the intermediates of a runner that was compiled for the same graph; nothing has run yet."""
        return

    def measured(self) -> Measured | None:
        """Return a copy that times its kernels; None if the engine cannot do that."""
        return None

    def why_not_measured(self) -> str:
        """Return what the device lacks to time kernels, for people; empty if it lacks nothing."""
        return ""


class Measured(Runner):
    """A runner that times its kernels, which makes a run slightly slower."""

    @abstractmethod
    def finish(self) -> list[KernelTime]:
        """End the measurement, and return the kernels in order; the first run of each kernel does not count."""


@record(eq=True)
class Device:
    """A device that can run graphs.

    Attributes:
        name: what `create_context(device=...)` takes.
        kind: cpu, gpu or npu.
        backend: the name of the back end that drives it.
        description: the hardware and engine, for people.
        available: whether a context can be created on it in this process.
        hint: how to make an unavailable device available.
        low_power: whether it draws little power compared with others of its kind, as integrated GPUs do.
        provider: ONNX Runtime's name of the plug-in execution provider that drives it; empty for all other devices.
        precisions: what `create_context(precision=...)` takes for it; back ends state more than "float32".
        is_software: whether it computes on the processor instead of dedicated hardware, or defines results; it is slow.
        fault: features lost because a package is missing, too old or broken, and the package to install; empty if none.

    >>> import opweave as ow
    >>> reference = next(device for device in ow.devices() if device.name == "reference")
    >>> reference.kind, reference.backend, reference.available, reference.is_software
    ('cpu', 'reference', True, True)
    """

    name: str
    kind: Literal["cpu", "gpu", "npu"]
    backend: str
    description: str
    available: bool = True
    hint: str = ""
    low_power: bool = False
    provider: str = ""
    precisions: tuple[Precision, ...] = ("float32",)
    is_software: bool = False
    fault: str = ""


class Backend(RuleTable, ABC):
    """Base of all back ends."""

    space: TensorSpace = HOST
    """Memory space of the tensors of this back end's contexts."""
    threads: int | None = None
    """Maximum number of threads of an operation; None for one per processor. `with_threads` sets it."""
    precision: Precision = "float32"
    """Arithmetic of the engine for float32: one of the device's `precisions`. `with_precision` sets it."""
    has_arena = True
    """Whether the engine keeps the memory of a run for later runs. `without_arena` changes it."""
    max_byte_length = 2**31 - 1
    """The largest tensor in bytes."""
    expressions: Engine = "auto"
    """Engine for expressions on the host."""
    needs_trial = False
    """Whether the engine is known to crash processes: `diff` then runs it in a separate process."""
    stand_in: str | None = None
    """Name of the host back end that runs operations that have neither a rule here, nor a kernel, expression or decomposition;
    None if such operations are an error."""
    gains_from_loops = False
    """Whether chains of element-wise operations run faster as one compiled loop than as kernels of the engine."""
    folds_constants = True
    """Whether the engine computes operations on constants when it compiles; else `compile.constants` does."""
    expands_filters = False
    """Whether the engine dequantises the constant filter of a convolution at each run; `compile.narrow` then does it once."""
    takes_names = False
    """Whether what it compiles runs all sizes for which comparisons of sizes have the same answers (`core.guards.Guards`)."""
    may_take_names = False
    """Whether `takes_names` is true for some graphs; for others, `compile` raises `NumbersNeededError`."""
    computes: frozenset[str] = frozenset(ANY)
    """Data types of operands and results for which it has rules; `stand_in_for_types` runs the other nodes."""
    stores: frozenset[str] = frozenset()
    """Data types of `dtypes.WIDENED` that it casts to and from the type that computes them, and does not compute itself."""
    stand_in_for_types: str | None = None
    """Name of the host back end that runs nodes with data types beyond the specification that this one lacks."""
    families: str = ""
    """Module with `FAMILIES`: the module of rules for each module that declares operations, imported when a rule of these is
    looked up. Empty if rules are registered otherwise."""
    claims: str = ""
    """Option of `create_context` through which the caller passes an object such as a device or a stream; see `on`."""
    without_rivals: Backend | None = None
    """This back end without `rivals`; None if it has none."""
    find_rivals: Callable[[], Sequence[Backend]] = tuple
    """Load and return the `rivals`. `beside` sets it."""

    def __init__(self) -> None:
        super().__init__()
        self._with_rivals: dict[tuple[Any, ...], Backend] = {}
        # Limits with the data types of the specification, and with all data types. Keys are weak: the back end may live as
        # long as a device, while users' operations come and go.
        self._limits: tuple[WeakKeyDictionary[Op[..., Any], Mapping[str, Limits]], ...] = (
            WeakKeyDictionary(),
            WeakKeyDictionary(),
        )
        # Copies of this back end with another number of threads or precision, which use the same engine.
        self.variants: dict[tuple[int | None, Precision, bool], Backend] = {}

    def load(self) -> None:
        for family in self._families().values():
            import_module(family)

    def load_for(self, module: str) -> None:
        if not self.families:
            super().load_for(module)
        elif (family := self._families().get(module)) is not None:
            import_module(family)

    def _families(self) -> Mapping[str, str]:
        """The module of rules for each module that declares operations."""
        if not self.families:
            return {}
        package = self.families.rpartition(".")[0]
        families: Mapping[str, str] | None = getattr(import_module(self.families), "FAMILIES", None)
        if families is None:
            raise ValidationError(
                f"{self.name}: {self.families} must have FAMILIES, modules of rules by module of operations"
            )
        return {module: f"{package}.{name}" for module, name in families.items()}

    @abstractmethod
    def devices(self) -> list[Device]:
        """List the devices that the back end can drive here, and those that lack a package or driver."""

    def device_named(self, name: str) -> Device | None:
        """Return the available device of this name, or None. Back ends may accept further names for a device."""
        return next((device for device in self.devices() if device.name == name and device.available), None)

    def by_default(self) -> bool:
        """Whether a context may get one of its devices without naming it; asked before `devices`, which can be slow."""
        return True

    def may_accelerate(self) -> bool:
        """Whether a GPU or an NPU seems to be present, judged without loading the engine.

        The decision uses installed packages and device files; a back end without such signs lists its devices.
        """
        return any(device.available and device.kind != "cpu" for device in self.devices())

    @abstractmethod
    def compile(
        self, graph: Graph, *, device: str, power_preference: PowerPreference, spinning: Spinning = "short"
    ) -> Runner:
        """Compile `graph`.

        Args:
            graph: the graph to compile. The back end supports each node; each output is the result of a node, and no two
                outputs are the same.
            device: one of the back end's devices.
            power_preference: the power preference of the context.
            spinning: how long threads spin for the next operation.

        Raises:
            OperationError: the engine rejects the graph.
        """

    def compile_model(self, source: ModelSource, power_preference: PowerPreference) -> Runner | None:
        """Compile an ONNX model once for all shapes of its inputs; None if the back end cannot.

        The runner takes values of the model's inputs, which may also be lists of arrays, and writes each output into an array
        or a `Cell`; None stands for an unused output. An array whose shape is not the output's raises `OtherShapes`.

        Args:
            source: returns the ModelProto without its constants, which may be modified, and the constants by name. A runner
                may call `source` again, to measure its kernels.
            power_preference: the power preference of the context.

        Raises:
            OperationError: the engine rejects the model, or the model has inputs or outputs that NumPy cannot hold.
        """
        return None

    def open(self, device: Device, power_preference: PowerPreference) -> Backend:
        """Return the back end for a context on one of its devices: itself, unless each context needs a separate device."""
        return self

    def on(self, handle: Any, device: str | None) -> tuple[Backend, Device]:
        """Return the back end for an object of the caller, passed as the option named by `claims`, and the device.

        Raises:
            ValidationError: the object or the requested device does not fit.
        """
        raise NotImplementedError(f"{self.name} claims {self.claims!r}")

    def with_threads(self, threads: int) -> Backend:
        """Return the back end for contexts of operations with at most `threads` threads; itself if they cannot be limited."""
        return self

    def with_precision(self, precision: Precision) -> Backend:
        """Return the back end for a context of this precision, which its device must support."""
        return self._variant(self.threads, precision)

    def for_absent_device(self) -> Backend:
        """Return a variant without an open device: it lists what a device of this kind runs, but runs nothing itself."""
        return self

    def without_arena(self) -> Backend:
        """Return the back end for contexts in which a run frees its memory at its end; itself if the engine has no choice."""
        return self

    def _variant(self, threads: int | None, precision: Precision) -> Backend:
        if (threads, precision) == (self.threads, self.precision):
            return self
        variant = copy(self)
        variant.threads, variant.precision = threads, precision
        self.variants.setdefault((self.threads, self.precision, self.has_arena), self)
        return self.variants.setdefault((threads, precision, self.has_arena), variant)

    # The choice between engines --------------------------------------------------------------------------------------

    def version(self) -> str:
        """Version of the engine; measurements of other versions are ignored."""
        return ""

    def session_threads(self) -> int:
        """Maximum number of threads that the engine starts for one compiled graph."""
        return 0

    def competes(self, device: Device, precision: Precision) -> bool:
        """Whether the back end may run graphs of this precision on a device of another back end, if it is faster."""
        return False

    @property
    def rivals(self) -> tuple[Backend, ...]:
        """Back ends that may run graphs of its contexts instead, if they are faster. The first look loads them."""
        return tuple(self.find_rivals())

    def beside(self, names: Sequence[str], device: Device, find: Callable[[], Sequence[Backend]]) -> Backend:
        """Return the back end for contexts in which others may run graphs instead; itself without such back ends.

        Args:
            names: the names of those that may compete, which are not loaded.
            device: the device of the contexts.
            find: loads them, and returns those that compete.
        """
        if not names:
            return self
        variant = copy(self)  # a shallow copy: variants share the rules
        variant.find_rivals, variant.without_rivals = cache(find), self
        # Contexts on one back end share compiled programs.
        return self._with_rivals.setdefault((self, device.name, *names), variant)

    def may_choose(self) -> bool:
        """Whether `tunable` may return several candidates for a graph, without loading rivals."""
        return self.without_rivals is not None

    def tunable(self, graph: Graph) -> dict[str, Backend]:
        """Return the candidates of tuning for a graph, by name: back ends that run all of it, or settings of one.

        The first runs the graph unless another is measured to be faster. A back end without a choice returns one candidate.
        """
        return {self.name: self.without_rivals or self} | {
            rival.name: rival for rival in self.rivals if not rival.lacks(graph)
        }

    def lacks(self, graph: Graph) -> str:
        """Return the first operation of a graph that needs the stand-in; empty if there is none."""
        for node in graph.nodes:
            op = node.op
            if not (self.supports(node) or op.decomposition or op.formula or op.kernels):
                return node.title
        return ""

    def gains(self, graph: Graph) -> tuple[bool, str]:
        """Heuristic: whether it probably runs a graph faster than the back end that it competes with, and why."""
        return False, ""

    def gains_from_narrow(self, node: Node) -> bool:
        """Whether `node`, which reads packed numbers of 4 or 8 bits, is faster than the same on the dequantised matrix.

        `compile.narrow` asks, with a `matmul_n_bits` or `gather_n_bits` whose packed numbers are not computed yet.
        """
        return False

    def rule(self, node: Node) -> Rule | None:
        """Return the rule that implements `node`, or None."""
        if not self.computes_types_of(node):
            return None
        for rule in self.rules_of(node.op):
            if rule.when is None or rule.accepts(node, self.precision):
                return rule
        return None

    def computes_types_of(self, node: Node) -> bool:
        """Whether all operands and results of a node have data types that the back end computes with, or casts between."""
        data_types = node.data_types
        if self.stores:
            from ..core.graph import is_widening

            if is_widening(node):
                data_types = data_types.difference(self.stores)
        return data_types.issubset(self.computes)

    def supports(self, node: Node) -> bool:
        return self.rule(node) is not None

    def why_not(self, node: Node) -> str | None:
        """Return why the back end cannot run `node`; empty if it can; None if the decomposition of `node` may run."""
        return "" if self.supports(node) else None

    def saved_refusals(self, graph: Graph) -> dict[Node, str | None]:
        """Return the results of `why_not` for nodes of `graph` from the file that is loaded; empty if there are none."""
        return {}

    def refusals_part(self, graph: Graph, refusals: Mapping[Node, str | None]) -> dict[tuple[str, str], bytes]:
        """Return the part of a saved graph that `saved_refusals` reads, by key and kind; empty if there is none."""
        return {}

    def how(self, node: Node) -> How | None:
        """Return how the back end or its stand-in would run `node`; None if neither can."""
        if self.supports(node):
            return "native"
        if self.stand_in is not None and node.op.formula is not None and not node.op.is_alternative:
            return "expression"
        if node.op.decomposition is not None:
            return "decomposed"
        return None if self.stand_in is None else discover()[self.stand_in].how(node)

    def data_types(self, op: Op[..., Any], operand: str) -> tuple[DataType, ...] | None:
        """Data types that `operand` of `op` may have here; None for all that the specification allows."""
        return None

    def limits(self, op: Op[..., Any], takes_all: bool = False) -> Mapping[str, Limits]:
        """Return the limits of the specification, narrowed to the data types of this back end.

        With `takes_all`, they have data types beyond the specification, too, which may run on the host.
        """
        cached = self._limits[takes_all]
        limits = cached.get(op)
        if limits is None:
            limits = cached[op] = self._narrow_limits(op, op.widened_limits if takes_all else op.limits)
        return limits

    def _narrow_limits(self, op: Op[..., Any], limits: Mapping[str, Limits]) -> Mapping[str, Limits]:
        from dataclasses import replace

        narrowed = dict(limits)
        for name, limit in limits.items():
            supported = self.data_types(op, name)
            if supported is not None and not isinstance(limit.data_types, str):
                kept = tuple(t for t in limit.data_types if t in supported or t not in ANY)
                narrowed[name] = replace(limit, data_types=kept)
        return narrowed
