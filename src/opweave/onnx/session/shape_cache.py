"""Choose the program for a call of a session: a model compiled for its input shapes, or ONNX Runtime, uncompiled.

An ONNX Runtime session for the unchanged model takes all shapes (`symbolic`). By default it runs all
calls, with three exceptions: it cannot run the model (other devices, custom operations); tuning has measured a faster engine
for the shapes; the model is static, and has an operator for which Opweave's loops are faster (`compile_static`). With
`specialise="recurring"`, it runs the first call with new shapes. The second call starts to compile them in the background, and
later calls use the compiled model.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakSet, ref

import numpy as np

from ... import memory
from ...context.context import MLContext
from ...core.desc import OtherShapes
from ...memory.shared_constants import shared_constants
from ...support.cache import Cache
from ...support.errors import MLError, NotSupportedError, OperationError
from ...support.names import count_of
from ...support.progress import report_work
from ...support.settings import STRICT
from ..model.arguments import Argument
from ..model.model import Model
from ..model.parameters import digest_of, weight_bytes
from ..model.shape_keys import Key as Key, Shapes as Shapes, ValuesNeeded, may_decide, text_of as text_of
from ..ort_api.options import INFO, NOTSET, WARNING, log
from .choice import (
    ALWAYS,
    AUTO,
    COMPILE,
    COMPILED,
    LEAVE,
    NEVER,
    NEW,
    RECURS,
    STATIC,
    UNCOMPILED,
    UNMEASURED,
    Reason,
    RecentShape,
    find_measured,
    reason_after_trace,
    reason_before_trace,
    reason_of_error,
    reason_of_measurement,
    reason_to_compile,
    reason_to_compile_all,
)
from .model_program import Fallback, ModelProgram
from .repeat import RepeatedCall, Repeats
from .room import MAX_COMPILED, Room
from .symbolic import must_be_traced, open_program

if TYPE_CHECKING:
    from ...backends import Backend
    from ...backends.isolation import EngineProcess
    from ...compile.engines import Measurement
    from ...core.guards import Guards
    from ..convert.trace import Trace
    from .compiled import CompiledModel
    from .named_models import NamedModel
    from .session_choice import SessionChoice

Specialise = Literal["auto", "recurring", "always", "never"]
"""Input shapes to compile: those that must be compiled or were measured to gain, those that recur, all, or none."""


RECENT = 16
"""Number of recent shapes that are remembered. Shapes that return after more others do not count as recurring: a decoder
reaches the same lengths with every text."""

MAX_NAMED = 16
"""Maximum number of models that are compiled for many shapes, and differ in their answers to comparisons of sizes."""

IDLE_CALLS = 64
"""A compiled shape may be dropped for another once this many calls have not used it."""

VALUES = 4
"""Maximum number of values of deciding inputs for which the same shapes are compiled; beyond it, nodes fall back."""

MAX_THREADS = 5
"""Maximum number of threads of all models compiled in the background: a process should have at most 8 more threads than
processors. One compiled model is allowed even if its pool is larger."""


_compiled_in_background: WeakSet[CompiledModel] = WeakSet()


class ShapeCache:
    """The compiled models of a session, one for each combination of input shapes, and ONNX Runtime's session for all shapes.

    Deciding inputs are small inputs that hold shapes, axes or conditions. Their values determine the shapes of other tensors,
    so a model is compiled for these values, too.

    Attributes:
        tuned: the measurements of tuning that choose an engine, by shapes as text; `verdicts` has all measurements.
        choices: the count of changes of the programs of calls, by tuning or `forget_shapes`.
        tailored: the number of models with names that were compiled in the background, for sizes far from earlier ones.
        repeats: recent calls, for the fast path; empty after each such change.
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
        self._outputs = [output.name for output in model.proto.graph.output]
        self.specialise, self.input_count = specialise, len(inputs)
        self.tuned: dict[str, Measurement] = {}
        self.weight_bytes, node_bytes = weight_bytes(model)
        self._room = Room(self.weight_bytes, node_bytes, program_bytes)
        # Reason to compile all shapes; None if ONNX Runtime may run the model.
        self._why_all = reason_to_compile_all(model, context.precision, specialise, fallback)
        self._needs_values = fallback == "error"  # whether each value of deciding inputs is compiled
        self._why_none: Reason | None = None  # reason to compile no shapes
        self._why_static: Reason | None = None  # reason for which the only shapes are compiled
        if specialise == "never":
            self._why_none = NEVER
        elif specialise == "auto" and not self._why_all:
            self._why_none = AUTO
        elif not self._why_all and not self._fits(1):
            from ...support.formatting import size

            limit = self._room.max_bytes(self._is_needed())
            text = f"it would take {size(self._room.estimate(1))}, more than program_bytes ({size(limit)})"
            self._why_none = Reason(text, "a larger program_bytes")
        self._uncompiled: ModelProgram | None = None
        self._uncompiled_lock = Lock()  # held while ONNX Runtime's session is created
        self._lock = Lock()  # guards the attributes below; never held during compilation
        self.compiled: Cache[Key, CompiledModel] = Cache(MAX_COMPILED, raw=True)
        self.deciding: set[str] = set()
        self._recent: Cache[Key, RecentShape] = Cache(RECENT, raw=True)
        # Number of the last call of each compiled model, in the order of compilation.
        self._last_used: dict[Key, int] = {}
        self._ways: dict[str, Backend] | None = None
        self.verdicts = find_measured(self.digest, context.backend, lambda: self.ways)
        # Measurements do not matter to a session that never compiles.
        if self._why_none is not NEVER or self._why_all:
            self.tuned = {text: verdict for text, verdict in self.verdicts.items() if verdict.chosen}
        self._may_have_names = context.backend.takes_names or context.backend.may_take_names
        self._numbers_needed: set[str] = set()  # names that programs have numbers for
        self.why_one_by_one = ""  # why the compiled shapes have no names
        self._named: list[NamedModel] = []
        has_names = any(not isinstance(size, int) for item in inputs for size in item.dims or (None,))
        self._shared: set[Hashable] | None = set() if has_names else None
        # Whether a model is compiled in the background for sizes that are far from those of earlier models.
        self._is_preparing = False
        self.choices = self.tailored = 0
        self.repeats = Repeats()
        self._queued = 0  # shapes that are compiled, or wait, in the background

    @property
    def ways(self) -> dict[str, Backend]:
        """The engines that may run the model, by name. The first look loads them."""
        if self._ways is None:
            from ...core.graph import Graph

            self._ways = self._context.backend.tunable(Graph({}, {}, ()))
        return self._ways

    # Choosing ---------------------------------------------------------------------------------------------------------

    @property
    def only_uncompiled(self) -> ModelProgram | None:
        """ONNX Runtime's session, if it runs calls of all shapes (except those that it fails on); else None."""
        return self._uncompiled if self._why_none and not self._why_all and not self.tuned else None

    def decide(self, text: str) -> tuple[bool, Reason]:
        """Whether calls with shapes, as text, must run a compiled model, and why; the empty text: shapes not tuned."""
        tuned = self.tuned.get(text)
        if tuned is not None and tuned.chosen != UNCOMPILED:
            is_free = self._why_all in (None, ALWAYS)  # if not, `specialise` changes nothing
            return True, reason_of_measurement(tuned, LEAVE if is_free else self._way_back())
        if self._why_all is not None:
            return True, self._why_all
        if tuned is not None:
            return False, reason_of_measurement(tuned, COMPILE)
        if self._why_none is None:
            return False, NEW
        verdict = self.verdicts.get(text) if self._why_none is AUTO else None
        return False, self._why_none if verdict is None else reason_of_measurement(verdict, COMPILE)

    def _way_back(self) -> str:
        """The argument with which no other engine runs the model; empty if there is none."""
        is_cpu = self._context.device.name == "cpu"
        return f"context=ml.create_context(backend={next(iter(self.ways))!r})" if is_cpu else ""

    def choice(self, shapes: Shapes | None) -> SessionChoice:
        """The choice for calls with `shapes`; None stands for shapes without an entry in `tuned`."""
        text = "" if shapes is None else text_of(tuple(shapes.items()))
        return self._choice(text, {} if text else {other: self._choice(other, {}) for other in self.tuned})

    def _choice(self, text: str, others: Mapping[str, SessionChoice]) -> SessionChoice:
        from .session_choice import SessionChoice, threads_of

        is_compiled, reason = self.decide(text)
        reason = UNMEASURED if others and reason is AUTO else reason
        compiled = self._compiled_for(text) if is_compiled or reason is NEW else None
        engine, kinds = self.tuned[text].chosen if text in self.tuned else "", list[str]()
        if compiled is not None:
            from ...compile.engines import engine_of

            engine, kinds = engine_of(compiled.choice), [str(section.kind) for section in compiled.sections]
            is_compiled, reason = True, (self._why_static or RECURS) if reason is NEW else reason
        dynamic = {
            argument.name: [str(size or "?") for size in argument.dims or () if not isinstance(size, int)]
            for argument in self._inputs
        }
        return SessionChoice(
            self.ways.get(engine, next(iter(self.ways.values()))).name,
            self._context.device.name,
            is_compiled,
            reason.text,
            reason.change,
            len(kinds),
            kinds.count("fallback"),
            threads_of(self._context.backend),
            {name: sizes for name, sizes in dynamic.items() if sizes},
            others,
        )

    def _compiled_for(self, text: str) -> CompiledModel | None:
        """The model compiled last for shapes as text."""
        count = len(self._inputs)
        return next((model for key, model in self.compiled.items()[::-1] if text_of(key[:count]) == text), None)

    def select(self, shapes: Shapes, feed: Mapping[str, Any]) -> tuple[ModelProgram, bool]:
        """Select the program for a call, and return whether later calls like it will have the same program."""
        if (only := self.only_uncompiled) is not None and len(shapes) == len(self._inputs):
            return only, self._note_use(shapes, feed)
        if compiled := self._find(shapes, feed):
            return compiled, True
        text = text_of(tuple(shapes.items()))
        uncompiled = None if self.decide(text)[0] else self.find_uncompiled(shapes)
        if uncompiled is None:
            return self.compile_for(shapes, feed), True
        return uncompiled, text in self.tuned or self._note_use(shapes, feed)

    def find_uncompiled(self, shapes: Shapes) -> ModelProgram | None:
        """ONNX Runtime's session for the model, created on first use; None if these shapes must be compiled."""
        if self._why_all or len(shapes) != len(self._inputs):
            return None  # a different number of inputs: initializers are overridden
        with self._uncompiled_lock:
            if self._uncompiled is None and not self._why_all:
                if must_be_traced(self._model):
                    self._trace(shapes, {})  # refuses models that would crash the engine, or make it hang
                try:
                    with report_work("loading the model for all shapes"):
                        self._uncompiled = self.open_uncompiled()
                    memory.trim()
                except MLError as error:
                    self._why_all = reason_of_error(error, self._context)
                    log(NOTSET, INFO, "all shapes are compiled: %s", error)
        return self._uncompiled

    def load_uncompiled(self) -> None:
        """Create ONNX Runtime's session before the first call, if it will run all calls and needs no trace."""
        if self._why_none in (AUTO, NEVER) and not self._why_all and not self.tuned and not must_be_traced(self._model):
            self.find_uncompiled({argument.name: None for argument in self._inputs})

    def compile_for(self, shapes: Shapes, feed: Mapping[str, Any]) -> CompiledModel:
        """The model compiled for input shapes and values of deciding inputs, from the cache or new."""
        if compiled := self._find(shapes, feed):
            return compiled
        sizes = tuple(shapes.items())
        with self.compiled.turn(sizes):  # threads with the same shapes wait for the result
            if compiled := self._find(shapes, feed):
                return compiled
            with report_work(f"compiling the model for {text_of(sizes)}"):
                return self._compile(shapes, feed)

    def accepts(self, model: ModelProgram) -> Callable[[Shapes], bool] | None:
        """Return the function that checks whether a program also runs other shapes; None if all shapes have own programs."""
        named = getattr(model, "named", None)
        return None if named is None or self.tuned else named.accepts

    def drop(self, compiled: CompiledModel) -> None:
        """Forget a compiled model that has failed."""
        with self._lock:
            for key in [key for key, model in self.compiled.items() if model is compiled]:
                self.compiled.pop(key)
                self._last_used.pop(key, None)
            self.repeats.clear()

    def compile_static(self, shapes: Shapes, output_bytes: int) -> None:
        """Compile a static model, unless ONNX Runtime should run it or deciding inputs exist; outputs have `output_bytes`.

        By default, a model is compiled only if a measurement or a measured rule (`choice.reason_before_trace`) promises a
        gain, and if it is one graph: between sections, results are stored and threads wait.
        """
        tuned = self._measurement_for(tuple(shapes.items()))
        is_uncompiled = self._why_none is NEVER or (tuned is not None and tuned.chosen == UNCOMPILED)
        if is_uncompiled and self.find_uncompiled(shapes):
            return
        is_auto = tuned is None and self._why_none is AUTO
        size = self._room.weight_bytes + sum(argument.static_bytes() for argument in self._inputs) + output_bytes
        reason = reason_before_trace(self._model, size) if is_auto else None
        if reason and self._use_uncompiled(shapes, reason):
            return
        trace = self._trace(shapes, {})  # all of the model, so that errors are raised now
        if trace.deciding:
            return
        reason = reason_after_trace(trace, self._outputs, is_auto)
        if reason and self._use_uncompiled(shapes, reason):
            return
        if self._why_all is None:
            self._why_static = reason_to_compile(self._model) if is_auto else STATIC
        if is_auto:
            self._why_none = None
        self._finish(self._key(shapes, {}), trace)

    def _use_uncompiled(self, shapes: Shapes, reason: Reason) -> bool:
        """Run all calls of a static model in ONNX Runtime's session; False if there is none."""
        if self.find_uncompiled(shapes) is None:
            return False
        self._why_none = reason
        self._note_use(shapes, {})
        return True

    def describe(self) -> dict[str, str]:
        """Tell how calls run, by shapes as text: compiled shapes, and recent ones that are not compiled."""
        with self._lock:
            self._note_repeats()
            # Calls may override initializers, so these are included.
            declared = [Argument.of(info) for info in self._model.proto.graph.input]
            ways = {text_of(key, declared): COMPILED for key, _ in self.compiled.items()}
            ways |= {
                text: measurement.reason for text, measurement in self.tuned.items() if measurement.chosen == UNCOMPILED
            }
            for key, recent in self._recent.items():
                ways.setdefault(text_of(key, declared), recent.describe())
        return ways

    def last(self) -> tuple[Key, ModelProgram] | None:
        """The key and the program of the last call; before the first call, of one that exists."""
        with self._lock:
            self._note_repeats()
            compiled, recent = self.compiled.items()[-1:], self._recent.items()[-1:]
            uncompiled = self._uncompiled
            if compiled and (
                uncompiled is None or not recent or self._last_used.get(compiled[0][0]) == self.repeats.count
            ):
                return compiled[0]
            return (recent[0][0], uncompiled) if recent and uncompiled is not None else None

    def program_for(self, shapes: Shapes, feed: Mapping[str, Any]) -> tuple[Key, ModelProgram]:
        """The key and the program that calls with these inputs have, as by `select`; this is not counted as a call."""
        if (only := self.only_uncompiled) is not None and len(shapes) == len(self._inputs):
            return self._key(shapes, feed), only
        with self._lock:
            key = self._key(shapes, feed)
            program: ModelProgram | None = self.compiled.get(key)
        if program is None and not self.decide(text_of(tuple(shapes.items())))[0]:
            program = self.find_uncompiled(shapes)
        if program is None:
            program = self.compile_for(shapes, feed)
        return self._key(shapes, feed), program

    def prepare(self, shapes: Shapes, feed: Mapping[str, Any]) -> tuple[str, ModelProgram, str]:
        """Make the program that calls with these inputs run, also the one of shapes that recur; this is not counted as a call.

        Returns the shapes as text, the program, and the reason why shapes that would recur are not compiled, or "".
        """
        refusal = ""
        if self.decide(text_of(tuple(shapes.items())))[1] is NEW:
            with self.compiled.turn(tuple(shapes.items())):
                with self._lock:
                    is_new = self.compiled.get(self._key(shapes, feed)) is None
                    refusal = self._why_no_room() if is_new else ""
                if is_new and not refusal:
                    try:
                        _compiled_in_background.add(self._compile(shapes, feed, in_background=True))
                    except (NotSupportedError, OperationError) as error:
                        refusal = str(error)
                    memory.trim()  # compiling takes far more memory than its result
        key, program = self.program_for(shapes, feed)
        return text_of(key, [Argument.of(info) for info in self._model.proto.graph.input]), program, refusal

    def keeps(self, program: ModelProgram) -> bool:
        """Whether later calls find a program that `prepare` has returned."""
        named = getattr(program, "named", None)
        with self._lock:
            is_named = named is not None and named in self._named
            return program.is_open or is_named or any(model is program for _, model in self.compiled.items())

    def _key(self, shapes: Shapes, feed: Mapping[str, Any]) -> Key:
        values = ((name, feed[name].tobytes()) for name in sorted(self.deciding & feed.keys()))
        return (*shapes.items(), *values)

    def _find(self, shapes: Shapes, feed: Mapping[str, Any]) -> CompiledModel | None:
        """Count a call, and return the compiled model for it if there is one."""
        with self._lock:
            self.repeats.count += 1
            return self._use(self._key(shapes, feed)) if self.compiled else None

    def _note_repeats(self) -> None:
        """Record the uses of compiled models by repeated calls, which bypass `select`."""
        keys = {id(model): key for key, model in self.compiled.items()}
        for repeat in self.repeats.by_use():
            if repeat.accepted:
                self._note_accepted(repeat)
            elif (key := keys.get(id(repeat.model))) is not None and repeat.used >= self._last_used[key]:
                self.compiled.get(key)
                self._last_used[key] = repeat.used

    def _note_accepted(self, repeat: RepeatedCall) -> None:
        """Add models for the shapes of calls that ran in a program for other shapes."""
        named: NamedModel | None = getattr(repeat.model, "named", None)
        for shapes in repeat.accepted_shapes[-MAX_COMPILED:]:
            ordered = {argument.name: shapes[argument.name] for argument in self._inputs}
            key: Key = (*ordered.items(), *(sorted(named.values.items()) if named else ()))
            compiled = self.compiled.get(key)
            if compiled is None and named is not None and named.accepts(ordered):
                compiled = named.at(ordered)
            if compiled is None:
                continue
            if key not in self.compiled and len(self.compiled) >= MAX_COMPILED:
                oldest, _ = self.compiled.items()[0]
                self.compiled.pop(oldest)
                self._last_used.pop(oldest, None)
            self.compiled.put(key, compiled)
            self._last_used[key] = max(repeat.used, self._last_used.get(key, 0))

    def _use(self, key: Key) -> CompiledModel | None:
        compiled = self.compiled.get(key)
        if compiled is not None:
            self._last_used[key] = self.repeats.count
        return compiled

    # Recurring shapes -------------------------------------------------------------------------------------------------

    def _note_use(self, shapes: Shapes, feed: Mapping[str, Any]) -> bool:
        """Count a call with shapes that are not compiled; queue recurring shapes. Return whether they stay uncompiled."""
        with self._lock:
            key, why = self._key(shapes, feed), self._why_none
            recent = self._recent.make(key, lambda: RecentShape("" if why in (None, NEVER) else str(why)))
            if why:
                return True
            if recent.uses is None:
                from ...lazy.background import Recurring

                recent.uses = Recurring(waits=True)
            uses = recent.uses
            if uses.seen and not recent.has_room:
                recent.refused = self._why_no_room()
                if recent.refused:
                    return True
                recent.has_room = True
                self._queued += 1
        if uses.refusal is not None:
            return True
        # The task keeps only inputs that may determine shapes.
        small = {n: np.array(a) for n, a in feed.items() if may_decide(a)} if uses.seen else {}
        uses.count_use(lambda: self._compile_recurring(key, shapes, small))
        return False

    def _compile_recurring(self, key: Key, shapes: Shapes, feed: Mapping[str, Any]) -> Any:
        """Compile recurring shapes in the background. Errors go to the log: there is no caller to raise them to."""
        sizes = tuple(shapes.items())
        try:
            with self.compiled.turn(sizes):
                # For shapes that were tuned meanwhile, tuning has chosen the program.
                if self._measurement_for(sizes) is None and not self._find(shapes, feed):
                    _compiled_in_background.add(self._compile(shapes, feed, in_background=True))
            with self._lock:  # new deciding inputs may have changed the key of the model
                if self._measurement_for(sizes) is None:
                    self._recent.pop(key)
            memory.trim()  # compiling takes far more memory than its result
            return True  # anything that is not None: the model itself is in `compiled`
        except Exception as error:
            log(NOTSET, WARNING, "shapes %s stay with %s: %s", text_of(sizes), UNCOMPILED, error)
            if isinstance(error, MLError):
                raise
            raise OperationError(f"{type(error).__name__}: {error}") from error
        finally:
            with self._lock:
                self._queued = max(self._queued - 1, 0)  # shapes compiled at their first call were not queued

    # Compiling --------------------------------------------------------------------------------------------------------

    def _compile(self, shapes: Shapes, feed: Mapping[str, Any], in_background: bool = False) -> CompiledModel:
        """Compile the model. The caller must hold the turn for these shapes."""
        sizes = tuple(shapes.items())
        with self._lock:
            values = {name: feed[name] for name in self.deciding & feed.keys()}
            count = sum(len(key) > len(sizes) and key[: len(sizes)] == sizes for key, _ in self.compiled.items())
            # Values that differ at each call (lengths, positions) would mean a compilation for each call.
            too_many = bool(values) and count >= VALUES and not self._needs_values
            if too_many and (compiled := self._use(sizes)):
                return compiled
        if too_many and (trace := self._trace_for_all(shapes)) is not None:
            return self._finish(sizes, trace, in_background)
        if (named := self._compile_with_names(shapes, feed, values)) is not None:
            return named
        key, trace = self.trace_shapes(shapes, feed, values)
        return self._finish(key, trace, in_background)

    def _compile_with_names(
        self, shapes: Shapes, feed: Mapping[str, Any], values: dict[str, Any]
    ) -> CompiledModel | None:
        """The model for a call, of one that is compiled for many shapes; None if each of its shapes must be compiled."""
        from . import named_models

        is_required = self._why_all not in (None, ALWAYS)  # otherwise, shapes are compiled to be faster
        if not is_required or not self._may_have_names or self._measurement_for(tuple(shapes.items())) is not None:
            return None
        with self._lock:
            decided = {name: np.asarray(value).tobytes() for name, value in values.items()}
            entry = named_models.nearest(self._named, shapes, decided)
        if entry is not None:
            self._prepare_tailored(entry, shapes, feed, values)
        else:
            entry = self._new_named(shapes, feed, values)
            if entry is None:
                return None
            with self._lock:
                if self._named:
                    entry.compiled.program.share_memory(self._named[0].compiled.program)
                self._named = [entry, *self._named[: MAX_NAMED - 1]]
        compiled = entry.at(shapes)
        with self._lock:
            self._keep(self._key(shapes, values), compiled)
        return compiled

    def _new_named(self, shapes: Shapes, feed: Mapping[str, Any], values: dict[str, Any]) -> NamedModel | None:
        """The model compiled for these shapes and others; None if each of its shapes must be compiled."""
        from ...core.guards import Guards
        from . import named_models

        named, sizes = named_models.named_shapes(self._inputs, shapes)
        if not sizes or None in named.values():
            return None
        # Expressions of GPUs assume that names are at least 1.
        empty = {name for name in sizes if sizes[name] == 0} if self._context.backend.may_take_names else set()
        numbers, model = self._numbers_needed | empty, None
        while model is None:
            if numbers >= sizes.keys():
                return None
            guards, count = Guards(sizes), len(numbers)
            model = self._compile_named(named, sizes, numbers, guards, feed, values)
            if model is None and len(numbers) == count:
                return None
        named = named_models.with_numbers(named, sizes, numbers)
        decided = {name: np.asarray(value).tobytes() for name, value in values.items()}
        return named_models.NamedModel(named, decided, guards, model)

    def _prepare_tailored(
        self, entry: NamedModel, shapes: Shapes, feed: Mapping[str, Any], values: Mapping[str, Any]
    ) -> None:
        """Compile the model in the background if sizes are far from those that the kernels of a GPU were chosen for."""
        if not self._context.backend.may_take_names:
            return
        from ...context.dynamic_graph_state import FAR, MAX_TAILORED

        with self._lock:
            if self._is_preparing or self.tailored >= MAX_TAILORED or entry.ratio_to(shapes) <= FAR:
                return
            self._is_preparing = True
        from ...support.background import background

        # The task keeps only inputs that may determine shapes.
        small = {name: np.array(array) for name, array in feed.items() if name in values or may_decide(array)}
        background.put(partial(_compile_tailored, ref(self), shapes, small, list(values)), waits=True)

    def compile_tailored(self, shapes: Shapes, feed: Mapping[str, Any], deciding: Collection[str]) -> None:
        """Compile the model for these shapes, and use it for those that are nearest to them."""
        from . import named_models

        may_have_names, why = self._may_have_names, self.why_one_by_one
        try:
            entry = self._new_named(shapes, feed, {name: feed[name] for name in deciding})
        except (MLError, RuntimeError):  # executors raise RuntimeError when the interpreter ends
            entry = None
        if entry is None:
            # The other models still run, and those for new shapes may have names. `_is_preparing` stays, so there is no other
            # attempt.
            self._may_have_names, self.why_one_by_one = may_have_names, why
            return
        with self._lock:
            self._is_preparing = False
            if not self._named:
                return
            other = named_models.nearest(self._named, shapes, entry.values)
            if other is not None and entry.compiled.program.has_kernels_of(other.compiled.program):
                other.guards.similar.append(entry.guards.typical)
                return
            entry.compiled.program.share_memory((other or self._named[0]).compiled.program)
            self._named = [entry, *self._named[: MAX_NAMED - 1]]
            self.tailored += 1
            self.choices += 1
            self.repeats.clear()
            count = len(self._inputs)
            for key, _ in self.compiled.items():
                if named_models.nearest(self._named, dict(key[:count]), dict(key[count:])) is entry:
                    self.compiled.pop(key)
                    self._last_used.pop(key, None)

    def chosen_sizes(self) -> list[Mapping[str, int]]:
        """The sizes for which kernels of models with names were chosen, the first ones first."""
        sizes = [tuple(model.guards.typical.items()) for model in reversed(self._named)]
        return list(map(dict, dict.fromkeys(sizes)))

    def _compile_named(
        self,
        named: Mapping[str, Any],
        sizes: Mapping[str, int],
        numbers: set[str],
        guards: Guards,
        feed: Mapping[str, Any],
        values: dict[str, Any],
    ) -> CompiledModel | None:
        """Compile the model with names, except for those in `numbers`; None after an error.

        Where kernels of the device need numbers for further names, these are added to `numbers`.
        """
        from ...backends import NumbersNeededError
        from . import named_models

        try:
            with guards.deciding():
                _, trace = self.trace_shapes(named_models.with_numbers(named, sizes, numbers), feed, values)
                fallen = next((step for step in trace.steps if step.kind == "fallback"), None)
                if fallen is not None:
                    self._may_have_names = False
                    self._note_one_by_one(f"{fallen.node.op_type} falls back to ONNX Runtime: {fallen.reason}")
                    return None
                return self.compile_on("", trace)
        except NumbersNeededError as error:
            needed = set(error.operations)
            if not needed <= sizes.keys() - numbers:  # a size has no formula
                needed = set(sizes)
            if error.is_for_all:
                self._numbers_needed |= needed
            numbers |= needed
        except Exception as error:
            if STRICT in os.environ and not isinstance(error, MLError):
                raise
            # Compiling for the numbers of each call raises these errors, too: of sizes that do not fit, of users' functions.
            self._may_have_names = isinstance(error, MLError)
            notes = getattr(error, "__notes__", ())
            text = str(error) if isinstance(error, MLError) else f"{type(error).__name__}: {error}"
            self._note_one_by_one(", ".join([text, *notes]))
        return None

    def _note_one_by_one(self, reason: str) -> None:
        """Say once, in the log and in `explain`, why each combination of shapes is compiled."""
        if reason != self.why_one_by_one:
            self.why_one_by_one = reason
            log(NOTSET, INFO, "shapes are compiled one by one: %s", reason)

    def trace_shapes(self, shapes: Shapes, feed: Mapping[str, Any], values: dict[str, Any]) -> tuple[Key, Trace]:
        """Trace the model for shapes and values of deciding inputs; add newly found deciding inputs to `values`."""
        while True:
            try:
                trace = self._trace(shapes, values, feed.keys() - values.keys())
                break
            except ValuesNeeded as needed:
                values |= {name: feed[name] for name in needed.names}
        with self._lock:
            self.deciding |= values.keys()
        return self._key(shapes, values), trace

    def _trace_for_all(self, shapes: Shapes) -> Trace | None:
        """Trace the model for all values of the deciding inputs; None if a custom operation needs known values."""
        try:
            trace = self._trace(shapes, {})
        except NotSupportedError:
            if not self._model.operations:
                raise
            trace = None
        if trace is None or any(s.kind == "fallback" and self._model.operation(s.node) for s in trace.steps):
            self._needs_values = True
            return None
        return trace

    def _trace(self, shapes: Shapes, values: Mapping[str, np.ndarray], available: Collection[str] = ()) -> Trace:
        from ..convert.trace import Tracer  # lazily: many models are not traced

        copies = {name: np.array(value) for name, value in values.items()}
        return Tracer(self._model, self._context, shapes, copies, available).run()

    def _finish(self, key: Key, trace: Trace, in_background: bool = False) -> CompiledModel:
        """Compile a trace, and keep the result unless its shapes were tuned meanwhile."""
        sizes = key[: len(self._inputs)]
        tuned = self._measurement_for(sizes)
        name = tuned.chosen if tuned is not None and tuned.chosen in self.ways else ""
        try:
            compiled = self.compile_on(name, trace, whole=in_background)
        except (NotSupportedError, OperationError) as error:
            if not name:
                raise
            log(NOTSET, WARNING, "%s does not run the model after all: %s", name, error)
            name, compiled = "", self.compile_on("", trace, whole=in_background)
        if name and tuned is not None:
            compiled.choice = tuned.reason
        elif (verdict := self.verdicts.get(text_of(sizes))) is not None:
            compiled.choice, compiled.untried = verdict.reason_on(next(iter(self.ways))), {}
        with self._lock:
            if self._measurement_for(sizes) is tuned:
                self._keep(key, compiled)
        return compiled

    def compile_on(
        self, name: str, trace: Trace, whole: bool = False, process: EngineProcess | None = None
    ) -> CompiledModel:
        """Compile a trace for engine `name`, in `process` if given; an empty name lets each graph choose its engine."""
        from .compiled import CompiledModel

        backend = self.ways[name] if name else None
        backend = process.backend(backend) if process and backend else backend
        with shared_constants(self._shared):
            return CompiledModel(self._model, self._context, trace, self._outputs, self._fallback, whole, backend)

    # Tuning -----------------------------------------------------------------------------------------------------------

    def _measurement_for(self, sizes: Key) -> Measurement | None:
        return self.tuned.get(text_of(sizes)) if self.tuned else None

    def digest(self) -> str:
        """The digest of the model, the key of its measurements."""
        return digest_of(self._model)

    def why_not_verified(self) -> str:
        """Reason not to verify other engines for the model; empty to verify them."""
        if len(self.ways) == 1:
            return "there is no other engine for it"
        if self._model.operations:
            return "the model has operations of your own; tune() verifies it"
        return NEVER.text if self.specialise == "never" else ""

    def shapes_in_use(self) -> list[Shapes]:
        """The compiled shapes, and the shapes of recent calls."""
        with self._lock:
            self._note_repeats()
            keys = [key for cache in (self.compiled, self._recent) for key, _ in cache.items()]
        plain = (tuple((name, value) for name, value in key if not isinstance(value, bytes)) for key in keys)
        return [dict(sizes) for sizes in dict.fromkeys(plain)]

    def use_tuned(self, key: Key, measurement: Measurement, model: CompiledModel | None) -> None:
        """Run calls of a key in the program that was measured as the fastest: `model`, or ONNX Runtime's session if None."""
        with self._lock:
            self.choices += 1
            self.tuned[measurement.subject] = self.verdicts[measurement.subject] = measurement
            self.repeats.clear()
            self.compiled.pop(key)
            self._last_used.pop(key, None)
            if model is not None:
                model.choice, model.untried = measurement.reason, {}
                self._keep(key, model)

    def open_uncompiled(self) -> ModelProgram:
        """Create another session of ONNX Runtime for the model."""
        return open_program(self._model, self._context, self._inputs)

    def drop_uncompiled(self) -> None:
        """Free ONNX Runtime's session, which holds the weights once more."""
        with self._uncompiled_lock:
            self._uncompiled = None

    def forget_shapes(self, error: OtherShapes) -> None:
        """Drop all compiled models after ONNX inferred wrong shapes; new models do not rely on inference for these values."""
        with self._lock:
            if self._model.surprising.issuperset(error.shapes):
                raise OperationError(f"outputs come in shapes that do not fit: {error}") from error
            self._model.surprising.update(error.shapes)
            self.choices += 1
            self._named = []
            for cache in (self.compiled, self._last_used, self._recent, self.repeats):
                cache.clear()

    # Memory and threads -----------------------------------------------------------------------------------------------

    def _is_needed(self) -> bool:
        """Whether dropped shapes must be compiled again."""
        return self._why_all is not None or bool(self.tuned)

    def _fits(self, count: int) -> bool:
        return self._room.fits(count, self._is_needed())

    def _is_idle(self, key: Key) -> bool:
        return self.repeats.count - self._last_used.get(key, 0) > IDLE_CALLS

    def _why_no_room(self) -> str:
        """Reason not to compile recurring shapes; empty to compile them."""
        threads = sum(compiled.threads for compiled in tuple(_compiled_in_background))
        pool = max(way.session_threads() for way in self.ways.values())
        threads += self._queued * pool
        if threads and threads + pool > MAX_THREADS:
            return f"compiled shapes have {threads} threads already"
        used = self._queued + sum(not self._is_idle(key) for key, _ in self.compiled.items())
        if not self._fits(used + 1):
            from ...support.formatting import size

            limit = size(self._room.max_bytes(self._is_needed()))
            return f"{count_of(used, 'compiled shape')} in use, and program_bytes ({limit}) has no room for more"
        return ""

    def _keep(self, key: Key, compiled: CompiledModel) -> None:
        """Keep a new compiled model. To make room, drop the least recently used one if it is idle, else the newest one.

        If calls cycle through one more shape than fits, dropping the least recently used would compile every shape again.
        """
        if self._is_full(compiled):
            self._note_repeats()
        while self._is_full(compiled):
            oldest, _ = self.compiled.items()[0]
            dropped = oldest if self._is_idle(oldest) else next(reversed(self._last_used))
            self.compiled.pop(dropped)
            del self._last_used[dropped]
            self.repeats.clear()
        self.compiled.put(key, compiled)
        self._last_used[key] = self.repeats.count
        self._recent.pop(key)

    def _is_full(self, compiled: CompiledModel) -> bool:
        """Whether another model must be dropped to keep a new one. Models that share their weights take next to no memory."""
        if not self.compiled or compiled.is_shared:
            return len(self.compiled) >= MAX_COMPILED
        return not self._fits(1 + sum(not model.is_shared for _, model in self.compiled.items()))


def _compile_tailored(
    reference: ref[ShapeCache], shapes: Shapes, feed: Mapping[str, Any], deciding: Collection[str]
) -> None:
    """Compile a model for these shapes, unless nothing uses the session any more."""
    cache = reference()
    if cache is not None:
        cache.compile_tailored(shapes, feed, deciding)
