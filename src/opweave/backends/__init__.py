"""Back ends: what runs graphs. Each holds one rule for each op that it knows, keyed by the op itself.

    @reference.lower(softmax)
    def _(input: Array, axis: int) -> Array: ...

A rule takes what the back end hands to all its rules (an emitter, say), then those of the op's parameters that it
needs, by name. Several rules for one op are tried in order; `when=` says which nodes a rule accepts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

from .. import memory
from ..core.dtypes import DataType
from ..core.graph import Graph, Node
from ..memory.spaces import HOST, Memory, TensorSpace
from ..support import packages
from ..support.errors import NotSupportedError, ValidationError
from .entries import ByNeed, entry_points
from .precision import KEEPS_FLOAT32 as KEEPS_FLOAT32, PRECISIONS as PRECISIONS, Precision as Precision, lacks_precision
from .rule_table import Rule as Rule, RuleFunction as RuleFunction, RuleTable
from .updates import Pairs as Pairs, Update as Update

if TYPE_CHECKING:
    import numpy as np

    from ..core.operation import Limits, Op
    from ..expr.kernels import Engine
    from .reports import KernelTime as KernelTime, Placement as Placement  # at run time by `__getattr__`

PowerPreference = Literal["default", "high-performance", "low-power"]
Returning = Callable[[Sequence[Memory]], list[Memory]]
"""Computes outputs from inputs."""
TakingFeeds = Callable[[dict[str, Any]], list[Any]]
"""Computes outputs from arrays by the names of the inputs; raises whatever the engine raises."""
How = Literal["native", "composed", "decomposed", "kernel", "expression"]
"""How a node is done: by one kernel of the engine, by several that its rule composes, by the op's decomposition, by a user
kernel, or by its expression."""


class Runner(ABC):
    """A compiled graph, or a compiled part of one. Several threads may run it at the same time."""

    name: str = ""
    """Prefix of its error messages; may be empty."""
    plan: memory.Plan = memory.Plan()
    """How the intermediates that it has inside share memory."""
    threads: int = 0
    """How many threads its engine has started for it."""
    updates: Sequence[Update] = ()
    """What its kernels update in place, or copy; the runner counts copies. No other output may use an input's memory."""

    @abstractmethod
    def bind(self, inputs: Sequence[Memory], outputs: Sequence[Memory]) -> Callable[[], None]:
        """Tie it to memory, which it reads and writes in place.

        Args:
            inputs: memory of the graph's inputs, in their order; on the host C-contiguous, aligned arrays.
            outputs: likewise for its outputs.

        Returns:
            A function that runs the graph once; synchronously on the host, with the GIL released where it can be. If it has a
            method `read(position, memory)`, that exchanges the memory of an input which no kernel updates.
        """

    @abstractmethod
    def describe(self, nodes: Sequence[Node]) -> tuple[How, str]:
        """How the nodes that stand for one operation of the user's graph are run, and a text that names the engine."""

    def complete(self) -> None:
        """Wait for what `Backend.compile` has begun, before the first call of `bind`.

        All parts of a program begin to compile before the first one is waited for.

        Raises:
            OperationError: the engine refuses it.
        """
        return

    def abandon(self) -> None:
        """Do not go on with what `Backend.compile` has begun: the program that this is a part of fails, or is interrupted."""
        return

    def is_left(self, nodes: Sequence[Node]) -> bool:
        """Whether the engine runs the nodes of one operation on the CPU, because the device cannot."""
        return False

    def run(self, inputs: Sequence[Memory], outputs: Sequence[Memory]) -> None:
        """Run the graph once."""
        self.bind(inputs, outputs)()

    def returning(self, outputs: Sequence[int]) -> Returning | None:
        """A function that runs the graph once, and returns these outputs in memory of the engine; None if it cannot."""
        return None

    def taking_feeds(self, outputs: Sequence[int]) -> TakingFeeds | None:
        """`returning` for arrays by name, whose shapes the engine checks; None if it cannot, or there is more to check."""
        return None

    def measured(self) -> Measured | None:
        """A copy that times its kernels; None if the engine cannot."""
        return None


class Measured(Runner):
    """A runner that measures its kernels while it runs, which takes a little longer then."""

    @abstractmethod
    def finish(self) -> list[KernelTime]:
        """End the measurement, once it has run: the kernels in order, without the first run of each."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device that can run graphs.

    Attributes:
        name: what `create_context(device=...)` takes.
        kind: cpu, gpu or npu.
        backend: the name of the back end that drives it.
        description: the hardware and engine, for people.
        available: whether a context can be created on it here and now.
        hint: what would make it available, where it is not.
        low_power: whether it takes little power among those of its kind, as GPUs that are part of a processor do.
        provider: ONNX Runtime's name of the plug-in execution provider that drives it; empty for all other devices.
        precisions: what `create_context(precision=...)` takes for it; back ends state more than "float32".
        is_software: whether it computes on the processor in place of other hardware, or to define results; it is slow.
        fault: what it cannot do here because a package is missing, too old or broken, and what to install; empty if nothing.

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
    """Where the tensors of its contexts lie."""
    threads: int | None = None
    """How many threads an operation may use; None for one on each processor. `with_threads` sets it."""
    precision: Precision = "float32"
    """How its engine computes with float32: one of its device's `precisions`. `with_precision` sets it."""
    max_byte_length = 2**31 - 1
    """The largest tensor in bytes."""
    expressions: Engine = "auto"
    """The engine for expressions on the host."""
    needs_trial = False
    """Whether its engine was seen to end processes: `diff` runs it in a process of its own."""
    stand_in: str | None = None
    """The back end on the host that runs operations for which it has no rule, and which have neither a kernel, an expression
    nor a decomposition; None where such operations are an error."""
    gains_from_loops = False
    """Whether chains of element-wise operations run faster as one compiled loop than by its own kernels."""
    families: str = ""
    """The module that imports all its rules, when they are first read; empty where rules are registered otherwise."""
    claims: str = ""
    """The option of `create_context` by which it takes an object of the caller's, such as a device or a stream; see `on`."""
    rivals: tuple[Backend, ...] = ()
    """Back ends that may run a graph of its contexts instead, where they are faster. `beside` sets it."""
    _alone: Backend | None = None  # the same back end without rivals

    def __init__(self) -> None:
        super().__init__()
        self._with_rivals: dict[tuple[Backend, ...], Backend] = {}
        # For the life of the back end, which may be that of a device; operations of users come and go.
        self._limits: WeakKeyDictionary[Op[..., Any], Mapping[str, Limits]] = WeakKeyDictionary()
        self._variants: dict[tuple[int | None, Precision], Backend] = {}

    def load(self) -> None:
        if self.families:
            import_module(self.families)

    @abstractmethod
    def devices(self) -> list[Device]:
        """The devices that it can drive here, and those it could with something more installed."""

    def named(self, name: str) -> Device | None:
        """Its available device of this name; None if there is none. Back ends may know other names for one, too."""
        return next((device for device in self.devices() if device.name == name and device.available), None)

    def by_default(self) -> bool:
        """Whether a context may get one of its devices without its name; asked before `devices`, which can take long."""
        return True

    def may_accelerate(self) -> bool:
        """Whether it seems to have a GPU or an NPU here, as far as can be told without loading its engine.

        Installed packages and files of devices tell; a back end that has no such signs lists its devices.
        """
        return any(device.available and device.kind != "cpu" for device in self.devices())

    @abstractmethod
    def compile(self, graph: Graph, *, device: str, power_preference: PowerPreference, alone: bool = True) -> Runner:
        """Make `graph` runnable.

        Args:
            graph: what to compile; each node is one that it supports, each output the result of a node,
                which no other output is.
            device: one of the back end's devices.
            power_preference: of the context.
            alone: whether it is all that runs for a while, not one of several that take turns: then threads may wait for its
                next operation without sleeping.

        Raises:
            OperationError: the engine refuses it.
        """

    def compile_model(
        self, proto: Any, constants: Mapping[str, np.ndarray], power_preference: PowerPreference
    ) -> Runner | None:
        """Compile an ONNX model once for all shapes of its inputs; None where the back end cannot.

        What it returns takes values of the model's inputs, which may also be lists of arrays, and writes an output into an
        array or a `Cell`; None stands for outputs that are not wanted. Arrays of other shapes than their output's are an
        error, `OtherShapes`.

        Args:
            proto: the ModelProto without the constants that it uses. It may be changed.
            constants: their arrays, by name.
            power_preference: of the context.

        Raises:
            OperationError: the engine refuses it, or it has inputs or outputs that NumPy cannot hold.
        """
        return None

    def open(self, device: Device, power_preference: PowerPreference) -> Backend:
        """The back end for a context on one of its devices: itself, unless each context has a device of its own."""
        return self

    def on(self, given: Any, device: str | None) -> tuple[Backend, Device]:
        """The back end for an object of the caller's that `claims` names the option of, and the device.

        Args:
            given: the object.
            device: the name of a device that was asked for.

        Raises:
            ValidationError: the object does not fit, or not the device.
        """
        raise NotImplementedError(f"{self.name} claims {self.claims!r}")

    def with_threads(self, threads: int) -> Backend:
        """The back end for a context whose operations use at most `threads` threads; itself, where that cannot be chosen."""
        return self

    def with_precision(self, precision: Precision) -> Backend:
        """The back end for a context of this precision, which its device must have."""
        return self._variant(self.threads, precision)

    def _variant(self, threads: int | None, precision: Precision) -> Backend:
        """This back end, with the same rules, for other options; contexts with equal ones share it, and compiled programs."""
        if (threads, precision) == (self.threads, self.precision):
            return self
        made = copy(self)
        made.threads, made.precision = threads, precision
        self._variants.setdefault((self.threads, self.precision), self)
        return self._variants.setdefault((threads, precision), made)

    # The choice between engines --------------------------------------------------------------------------------------

    def version(self) -> str:
        """The version of its engine; what was measured with another one does not count."""
        return ""

    def session_threads(self) -> int:
        """How many threads its engine starts at most for one compiled graph."""
        return 0

    def competes(self, device: Device, precision: Precision) -> bool:
        """Whether it may run graphs for contexts of a precision on a device of another back end, where it is faster."""
        return False

    def beside(self, rivals: Sequence[Backend]) -> Backend:
        """The back end for contexts in which `rivals` may run graphs instead; itself without any."""
        if not rivals:
            return self
        made = copy(self)  # with the same rules
        made.rivals, made._alone = tuple(rivals), self
        return self._with_rivals.setdefault((self, *rivals), made)  # contexts on one back end share compiled programs

    def tunable(self, graph: Graph) -> dict[str, Backend]:
        """What tuning compares for a graph: back ends that run all of it, or one with several settings, by name.

        The first is what runs the graph unless another is known to be faster. A back end without a choice has one.
        """
        return {self.name: self._alone or self} | {rival.name: rival for rival in self.rivals if not rival.lacks(graph)}

    def lacks(self, graph: Graph) -> str:
        """The first operation of a graph that it could only run with the help of its stand-in; empty if there is none."""
        for node in graph.nodes:
            op = node.op
            if not (self.supports(node) or op.decomposition or op.formula or op.kernels):
                return node.title
        return ""

    def gains(self, graph: Graph) -> tuple[bool, str]:
        """The rule of thumb: whether it is likely to run a graph faster than the back end that it competes with, and why."""
        return False, ""

    def rule(self, node: Node) -> Rule | None:
        """The rule that will do `node`, or None."""
        for rule in self.rules.get(node.op, ()):
            if rule.when is None or rule.accepts(node, self.precision):
                return rule
        return None

    def supports(self, node: Node) -> bool:
        """Whether there is a rule for `node`."""
        return self.rule(node) is not None

    def why_not(self, node: Node) -> str | None:
        """The reason why it cannot run `node`; empty if it can; None if its decomposition may."""
        return "" if self.supports(node) else None

    def how(self, node: Node) -> How | None:
        """How it would do `node`, or its stand-in; None if it cannot."""
        if self.supports(node):
            return "native"
        if self.stand_in is not None and node.op.formula is not None and not node.op.is_alternative:
            return "expression"
        if node.op.decomposition is not None:
            return "decomposed"
        return None if self.stand_in is None else discover()[self.stand_in].how(node)

    def data_types(self, op: Op[..., Any], operand: str) -> tuple[DataType, ...] | None:
        """The data types that `operand` of `op` may have here; None for all that the specification allows."""
        return None

    def limits(self, op: Op[..., Any]) -> Mapping[str, Limits]:
        """The limits of the specification, narrowed to what this back end supports."""
        known = self._limits.get(op)
        if known is None:
            known = self._limits[op] = self._narrowed(op)
        return known

    def _narrowed(self, op: Op[..., Any]) -> Mapping[str, Limits]:
        narrowed = dict(op.limits)
        for name, limit in op.limits.items():
            supported = self.data_types(op, name)
            if supported is not None and not isinstance(limit.data_types, str):
                kept = tuple(t for t in limit.data_types if t in supported)
                narrowed[name] = replace(limit, data_types=kept)
        return narrowed


BUILT_IN = {
    "onnxruntime": "opweave.backends.onnxruntime:ort",
    "webgpu": "opweave.backends.webgpu:webgpu",
    "cuda": "opweave.backends.cuda:cuda",
    "openvino": "opweave.backends.openvino:openvino",
    "reference": "opweave.backends.reference:reference",
}
"""Opweave's own back ends: `{name: "module:attribute"}`, the preferred ones first."""

BY_NAME = frozenset({"cuda"})
"""Those of them whose devices contexts get by name only: they need not be loaded to look for a device."""

PACKAGES = {"webgpu": "wgpu", "openvino": "openvino"}
"""The package without which one of them has no devices: it need not be loaded, either."""

COMPETING = frozenset({"openvino"})
"""Those of them that may run graphs for contexts on devices of others: the others need not be loaded to ask."""


@cache
def discover() -> Mapping[str, Backend]:
    """All back ends by name, the preferred ones first; the reference comes last. Each is imported when it is asked for.

    These are Opweave's own, and those that other packages declare in the entry point group `opweave.backends`. An entry
    point with the name of one of Opweave's own is ignored.
    """
    references = BUILT_IN | {n: r for n, r in sorted(entry_points("opweave.backends").items()) if n not in BUILT_IN}
    references["reference"] = references.pop("reference")
    return ByNeed(references, _imported)


def _imported(reference: str) -> Backend:
    module, _, attribute = reference.partition(":")
    backend: Backend = getattr(import_module(module), attribute)
    return backend


def devices() -> list[Device]:
    """The devices of all back ends, the preferred ones first; `create_context(device=…)` takes their names.

    >>> import opweave as ow
    >>> ow.devices()[-1].name
    'reference'
    """
    return [device for backend in discover().values() for device in backend.devices()]


def default_devices() -> Iterator[Device]:
    """Those of the back ends that contexts may get without a name; a back end is loaded when its first device is asked for."""
    found = discover()
    for name in found:
        if name in BY_NAME or (name in PACKAGES and not packages.is_installed(PACKAGES[name])):
            continue
        if (backend := found[name]).by_default():
            yield from backend.devices()


def find(name: str) -> Backend:
    """The back end called `name`, or `NotSupportedError` that lists what there is."""
    if (found := discover().get(name)) is None:
        raise NotSupportedError(f"there is no back end {name!r}; there are {', '.join(map(repr, discover()))}")
    return found


def find_device(name: str, backend: str | None = None, precision: Precision = "float32") -> tuple[Backend, Device]:
    """The first available device called `name` with this precision, or `NotSupportedError` that lists what there is.

    Devices of plug-in providers come last: what they run is copied, unlike what Opweave's own back ends run.

    Args:
        name: of the device.
        backend: the name of the back end to ask; None for all.
        precision: what it must be able to do.
    """
    asked = discover().values() if backend is None else [find(backend)]
    of_plugin: tuple[Backend, Device] | None = None
    same: list[Device] = []
    for each in asked:  # those that take long to list come after those that were asked for
        found = each.named(name)
        if found is None:
            continue
        if precision not in found.precisions:
            same.append(found)
            continue
        if not found.provider:
            return each, found
        of_plugin = of_plugin or (each, found)
    if of_plugin is not None:
        return of_plugin
    known = [device for each in asked for device in each.devices()]
    of = f" of back end {backend!r}" if backend else ""
    if same:
        raise lacks_precision(f"device {name!r}{of}", same, precision, devices())
    names = ", ".join(dict.fromkeys(repr(device.name) for device in known if device.available)) or "none"
    if same := [device for device in known if device.name == name]:
        engines = ", ".join(each.name for each in discover().values() if backend and each.named(name))
        rest = f"{name!r} has: {engines}" if engines else f"available: {names}"
        why = same[0].hint or "its engine failed when it was asked for, and lists it now"
        raise NotSupportedError(f"device {name!r}{of} is not available here: {why}; {rest}")
    raise NotSupportedError(f"there is no device {name!r}{of}; available: {names}")


def competing(device: Device, precision: Precision) -> list[Backend]:
    """The back ends that may run graphs for contexts of a precision on a device of another one."""
    others = [name for name in discover() if name != device.backend and (name in COMPETING or name not in BUILT_IN)]
    return [each for name in others if (each := discover()[name]).competes(device, precision)]


def claimed(
    option: str, given: Any, *, device: str | None, backend: str | None, precision: Precision
) -> tuple[Backend, Device]:
    """The back end for an object of the caller's, and its `Device`.

    Args:
        option: the option of `create_context` that it was given as.
        given: the object.
        device: the name of a device that was asked for.
        backend: likewise of a back end.
        precision: what the device must be able to do.

    Raises:
        ValidationError: another back end was asked for than the one that takes this option, or the object does not fit.
        NotSupportedError: there is no such device, or it lacks the precision.
    """
    owner = next(each for each in discover().values() if each.claims == option)
    if backend not in (None, owner.name):
        raise ValidationError(f"backend must not be given with {option}, got {backend!r}")
    made, found = owner.on(given, device)
    if precision not in found.precisions:
        raise lacks_precision(f"the device of the given {option}", [found], precision, devices())
    return made, found


def __getattr__(name: str) -> Any:
    if name not in ("KernelTime", "Placement"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import reports

    return getattr(reports, name)
