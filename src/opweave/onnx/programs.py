"""Which way a call of a session goes: the model compiled for its shapes, or its own session, which takes all shapes.

The first call with new shapes goes through the model's own session (`symbolic`). At the second the shapes are compiled in
the background, and used from the next call on after that. Shapes that change at every call are never compiled.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from math import prod
from threading import Lock
from typing import Any, Literal
from weakref import WeakSet

import numpy as np

from .. import memory
from ..cache import Cache
from ..context import MLContext
from ..errors import MLError, OperationError
from ..lazy.background import Recurring
from ..names import counted
from ..shapes import OtherShapes
from .arguments import Argument
from .compiled import CompiledModel, Fallback, is_large_segment, segments
from .messages import PLAIN
from .model import Model
from .symbolic import SymbolicModel, is_suspicious
from .trace import DECIDING_ELEMENTS, Trace, Tracer, ValuesNeeded

Specialise = Literal["recurring", "always", "never"]
"""Which shapes of inputs are compiled: those that come again, all, or none."""

Shapes = tuple[tuple[str, tuple[int, ...] | None], ...]
"""The name and the shape of each input; None for those whose shape does not matter."""

Key = tuple[Any, ...]
"""Shapes, and the values of inputs that decide about others."""

MAX_COMPILED = 64
"""How many sets of input shapes a session keeps compiled at the most."""

PROGRAM_BYTES = 32 * 2**20
"""What the compiled shapes of a session may take besides once its weights, unless the user says otherwise, where the model's
own session can run the others. With it, the models of the gate stay below 1.5 times ONNX Runtime's memory."""

ALWAYS_BYTES = 512 * 2**20
"""The same where there is no such session: each shape that is dropped must be compiled again."""

FIRST_BYTES = 16 * 2**20
"""What the first compiled shape brings: the modules that trace and convert. Measured: 5 to 20 MB."""

BASE_BYTES = 8 * 2**20
"""What a compiled shape takes besides its weights. Measured: 3 to 7 MB for the models of the gate."""

PACKED_PERCENT = 125
"""What the weights take that the engine packs for a compiled shape, in percent of those in the file; 100 to 125 measured."""

RECENT = 16
"""Shapes that come again after more others than these do not count as recurring: a decoder comes to the same lengths with
every text."""

IDLE_CALLS = 64
"""A compiled shape may be dropped for another once this many calls have not used it."""

VALUES = 4
"""For how many values of small inputs that decide about shapes a session compiles; with more, these nodes fall back."""

MAX_THREADS = 5
"""How many threads all models that were compiled in the background may have together: a process is to have no more than 8
beside one for each processor. On machines where one pool has more, one compiled model may have them."""

MAX_POOLS = 5
"""A model of static shapes that would be cut into more segments with threads of their own runs in its own session, which has
them once."""

log = logging.getLogger("opweave")

_in_background: WeakSet[CompiledModel] = WeakSet()


class _RecurringShape(Recurring):
    """Shapes that may come again.

    Attributes:
        has_room: whether there was room for them when they came again.
    """

    has_room = False


class Programs:
    """The compiled models of a session, one for each combination of shapes, and the model's own session.

    Args:
        model: the model.
        context: where it runs.
        inputs: what is declared of its inputs; sizes that the user has fixed are in it.
        fallback: what nodes do that WebNN cannot express.
        specialise: which shapes are compiled.
        program_bytes: what compiled shapes may take together; None for a default.

    Attributes:
        compiled: the models, by shapes and deciding values; the thread that compiles has the turn for the shapes.
        specialise: the same, and so is `given_bytes`.
        deciding: the inputs whose values decide about shapes.
        why_compiled: why all shapes are compiled; empty where they need not be.
        why_own: why none is, and calls go to the model's own session; likewise.
    """

    def __init__(
        self,
        model: Model,
        context: MLContext,
        inputs: Sequence[Argument],
        fallback: Fallback,
        specialise: Specialise,
        program_bytes: int | None,
    ) -> None:
        self._model, self._context, self._inputs, self._fallback = model, context, inputs, fallback
        self.specialise: Specialise = specialise
        self._outputs = [output.name for output in model.proto.graph.output]
        self.given_bytes = program_bytes
        self.compiled: Cache[Key, CompiledModel] = Cache(MAX_COMPILED, raw=True)
        self.deciding: set[str] = set()
        self._lock = Lock()  # of all that follows, and of `compiled`; held for moments only
        self._calls = 0
        self._used: dict[
            Key, int
        ] = {}  # the number of the last call that used a compiled model, in the order in which they were made
        self._recent: Cache[Key, _RecurringShape] = Cache(RECENT, raw=True)
        self._notes: Cache[Key, str] = Cache(MAX_COMPILED, raw=True)  # why shapes that came again were not compiled
        self._symbolic: SymbolicModel | None = None
        self._pending = 0  # how many shapes are being compiled in the background, or wait for it
        self._making = Lock()  # of the model's own session, while that is made
        self.why_own = ""
        self.why_compiled = "" if specialise != "always" else "specialise='always'"
        if not self.why_compiled and fallback == "error":
            self.why_compiled = "fallback='error'"
        self._weight_bytes, self._node_bytes = _weight_bytes(model)

    # Which way ----------------------------------------------------------------------------------------------------------

    def choose(
        self, shapes: Mapping[str, tuple[int, ...] | None], feed: Mapping[str, Any]
    ) -> tuple[CompiledModel | SymbolicModel, bool]:
        """What runs a call, and whether the next one like it will be run by the same."""
        sizes = tuple(shapes.items())
        if compiled := self.known(sizes, feed):
            return compiled, True
        symbolic = self.symbolic(shapes)
        if symbolic is None:
            return self.compiled_for(shapes, feed), True
        return symbolic, self._come(sizes, feed)

    def symbolic(self, shapes: Mapping[str, tuple[int, ...] | None]) -> SymbolicModel | None:
        """The model's own session, made when it is first needed; None where calls of these shapes must be compiled."""
        if self.why_compiled or len(shapes) != len(self._inputs):
            return None  # the latter: initializers are overridden
        if self._symbolic is None:
            with self._making:
                if self._symbolic is None and not self.why_compiled:
                    self._make_symbolic(shapes)
        return self._symbolic

    def _make_symbolic(self, shapes: Mapping[str, tuple[int, ...] | None]) -> None:
        if is_suspicious(self._model):
            self._trace(shapes, {})  # it refuses what would end the process, or keep the engine busy for ever
        try:
            self._symbolic = SymbolicModel(self._model, self._context, self._inputs)
            memory.trim()
        except MLError as error:
            self.why_compiled = str(error)
            log.info("all shapes are compiled: %s", error)

    def _come(self, sizes: Shapes, feed: Mapping[str, Any]) -> bool:
        """Shapes have come, and are not compiled; whether that is how it stays."""
        with self._lock:
            values = {name: feed[name] for name in self.deciding & feed.keys()}
            key = (*sizes, *_contents(values))
            entry = self._recent.make(key, _RecurringShape)
            if self.specialise == "never" or self.why_own:
                return True
            if entry.seen and not entry.has_room:
                if why := self._no_room():
                    self._notes.put(key, why)
                    return True
                entry.has_room = True
                self._pending += 1
        if entry.refusal is not None:
            return True
        # Only what may decide about shapes is kept until it is compiled.
        small = {n: np.array(a) for n, a in feed.items() if _may_decide(a)} if entry.seen else {}
        entry.come(lambda: self._compile_recurring(key, sizes, small))
        return False

    def _compile_recurring(self, key: Key, sizes: Shapes, feed: Mapping[str, Any]) -> Any:
        """Compile shapes that have come again; in the background, so what goes wrong is told in the log."""
        try:
            with self.compiled.turn(sizes):
                if not self.known(sizes, feed):
                    _in_background.add(self._new(sizes, feed, in_background=True))
            with self._lock:  # its key held shapes alone: that values decide was found while compiling
                self._recent.pop(key)
            memory.trim()  # of what compiling took, by far the most is free now
            return True  # the model is found by its key, which now holds the deciding values
        except Exception as error:
            self._notes.put(key, f"it cannot be compiled: {error}")
            log.warning("shapes %s stay with the model's own session: %s", _text(sizes), error)
            if isinstance(error, MLError):
                raise
            raise OperationError(f"{type(error).__name__}: {error}") from error
        finally:
            with self._lock:
                self._pending = max(self._pending - 1, 0)  # 0 where it was compiled at its first call

    # Room ---------------------------------------------------------------------------------------------------------------

    @property
    def program_bytes(self) -> int:
        """What the compiled shapes may take together."""
        if self.given_bytes is not None:
            return self.given_bytes
        return ALWAYS_BYTES if self.why_compiled else PROGRAM_BYTES + self._weight_bytes

    def _estimate(self, count: int) -> int:
        """How many bytes compiled shapes take."""
        each = BASE_BYTES + self._weight_bytes * PACKED_PERCENT // 100 + 2 * self._node_bytes
        return FIRST_BYTES + count * each

    def _fits(self, count: int) -> bool:
        return count <= MAX_COMPILED and self._estimate(count) <= self.program_bytes

    def _no_room(self) -> str:
        """Why shapes that have come again are not compiled; empty if they are."""
        from ..backends.onnxruntime.sessions import pool_threads  # loads ONNX Runtime

        if not self._fits(1):
            return f"it would take {self._estimate(1)} bytes, and program_bytes is {self.program_bytes}"
        threads = sum(compiled.threads for compiled in tuple(_in_background))
        threads += self._pending * pool_threads()
        if threads and threads + pool_threads() > MAX_THREADS:
            return f"compiled shapes have {threads} threads already"
        idle = sum(self._calls - self._used.get(other, 0) > IDLE_CALLS for other, _ in self.compiled.items())
        kept = len(self.compiled) - idle + self._pending
        if not self._fits(kept + 1):
            return f"{counted(kept, 'compiled shape')} in use, and program_bytes, {self.program_bytes}, has no room for more"
        return ""

    def _keep(self, key: Key, compiled: CompiledModel) -> None:
        """Keep a new compiled model, and drop others where there is no room: those that are not used; else the one made last.

        To drop the one used longest ago would compile every shape again and again where one more comes in turn than there
        is room for.
        """
        while self.compiled and not self._fits(len(self.compiled) + 1):
            oldest, _ = self.compiled.items()[0]
            is_idle = self._calls - self._used.get(oldest, 0) > IDLE_CALLS
            dropped = oldest if is_idle else next(reversed(self._used))
            self.compiled.pop(dropped)
            del self._used[dropped]
        self.compiled.put(key, compiled)
        self._used[key] = self._calls
        self._recent.pop(key)
        self._notes.pop(key)

    # Plans --------------------------------------------------------------------------------------------------------------

    def compiled_for(
        self, shapes: Mapping[str, tuple[int, ...] | None], feed: Mapping[str, Any] | None = None
    ) -> CompiledModel:
        """The model compiled for input shapes, and for the values of a feed that decide about others; cached, or new."""
        sizes, given = tuple(shapes.items()), feed or {}
        if compiled := self.known(sizes, given):
            return compiled
        with self.compiled.turn(sizes):  # others with these shapes wait for the result, those with other shapes do not
            return self.known(sizes, given) or self._new(sizes, given)

    def known(self, sizes: Shapes, given: Mapping[str, Any]) -> CompiledModel | None:
        """The compiled model that is there already."""
        with self._lock:
            self._calls += 1
            if not self.compiled:
                return None
            values = {name: given[name] for name in self.deciding & given.keys()}
            return self._cached((*sizes, *_contents(values)))

    def _new(self, sizes: Shapes, given: Mapping[str, Any], in_background: bool = False) -> CompiledModel:
        """Compile the model. The caller must hold the turn for these shapes."""
        shapes = dict(sizes)
        with self._lock:
            values = {name: given[name] for name in self.deciding & given.keys()}
            valued = sum(len(key) > len(sizes) and key[: len(sizes)] == sizes for key, _ in self.compiled.items())
            endless = bool(values) and valued >= VALUES and self._fallback == "auto"
            if endless and (compiled := self._cached(sizes)):
                return compiled
        if endless:  # values that never end (lengths, positions) would mean a compilation for each call
            return self._compile(sizes, self._trace(shapes, {}), in_background)
        while True:
            try:
                trace = self._trace(shapes, values, given.keys() - values.keys())
                break
            except ValuesNeeded as found:
                values |= {name: given[name] for name in found.names}
        with self._lock:
            self.deciding |= values.keys()
        return self._compile((*sizes, *_contents(values)), trace, in_background)

    def compile_static(self, shapes: Mapping[str, tuple[int, ...] | None]) -> None:
        """Compile a model of static shapes, unless small inputs decide about others, or it would be in too many pieces."""
        trace, key = self._trace(shapes, {}), tuple(shapes.items())  # the whole of it: what is broken is refused now
        if trace.deciding:
            return
        large = sum(is_large_segment(segment, trace.values) for segment in segments(trace, self._outputs))
        if large <= MAX_POOLS or self.symbolic(shapes) is None:
            self._compile(key, trace)
            return
        self.why_own = f"it would run in {large} segments, each with threads of its own"
        with self._lock:
            self._recent.put(key, _RecurringShape())
            self._notes.put(key, self.why_own)

    def learn(self, found: OtherShapes) -> None:
        """Compile anew, with values of shapes that are known only when the graph runs where inference was wrong."""
        with self._lock:
            if self._model.surprising.issuperset(found.slots):
                raise OperationError(f"outputs come in shapes that do not fit: {found}") from found
            self._model.surprising.update(found.slots)
            for kept in (self.compiled, self._used, self._recent):
                kept.clear()

    def _cached(self, key: Key) -> CompiledModel | None:
        """The compiled model of a key, which becomes the one used last."""
        compiled = self.compiled.get(key)
        if compiled is not None:
            self._used[key] = self._calls
        return compiled

    def _trace(
        self,
        shapes: Mapping[str, tuple[int, ...] | None],
        values: Mapping[str, np.ndarray],
        available: Collection[str] = (),
    ) -> Trace:
        copies = {name: np.array(value) for name, value in values.items()}
        return Tracer(self._model, self._context, shapes, copies, available).run()

    def _compile(self, key: Key, trace: Trace, in_background: bool = False) -> CompiledModel:
        compiled = CompiledModel(self._model, self._context, trace, self._outputs, self._fallback, whole=in_background)
        with self._lock:
            self._keep(key, compiled)
        return compiled

    # What users see -----------------------------------------------------------------------------------------------------

    def ways(self) -> dict[str, str]:
        """Which way shapes go, by their text: those compiled, and those that came lately and are not."""
        with self._lock:
            found = {_text(key): "compiled" for key, _ in self.compiled.items()}
            for key, entry in self._recent.items():
                state = "compiling" if entry.seen > 1 and entry.refusal is None else "the model's own session"
                found.setdefault(_text(key), state if key not in self._notes else "the model's own session")
                if why := self._notes.peek(key):
                    found[_text(key)] = f"the model's own session: {why}"
        return found


def _may_decide(value: Any) -> bool:
    """Whether an input may decide about shapes; see `Tracer`."""
    return isinstance(value, np.ndarray) and value.ndim <= 1 and value.size <= DECIDING_ELEMENTS


def _contents(values: Mapping[str, np.ndarray]) -> list[tuple[str, bytes]]:
    """What tells values apart."""
    return [(name, values[name].tobytes()) for name in sorted(values)]


def _text(key: Key) -> str:
    """Shapes, and deciding values, for people.

    >>> _text((("x", (1, 3)), ("n", b"\\x02\\x00")))
    'x [1, 3], n = 0200'
    """
    parts = []
    for name, what in key:
        if isinstance(what, bytes):
            parts.append(f"{name} = {what.hex()}")
        else:
            parts.append(f"{name} {list(what)}" if what is not None else name)
    return ", ".join(parts)


def _weight_bytes(model: Model) -> tuple[int, int]:
    """What the weights of a model take, and how much of it is in Constant nodes, whose data are copied when it is traced."""
    sizes = {element_type: np.dtype(name).itemsize for element_type, name in PLAIN.items()}
    graph = model.proto.graph
    nodes = [a.t for node in graph.node if node.op_type == "Constant" for a in node.attribute if a.HasField("t")]
    first, second = (
        sum(prod(tensor.dims) * sizes.get(tensor.data_type, 1) for tensor in tensors)
        for tensors in (graph.initializer, nodes)
    )
    return first + second, second
