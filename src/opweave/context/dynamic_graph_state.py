"""The state of a graph with names: programs for certain sizes, and those that were compiled with names."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from .. import memory
from ..backends import NumbersNeededError
from ..core.formula_limits import LongFormulaError
from ..core.graph import Desc, Graph, Operand
from ..core.guards import Guards
from ..core.shapes import Shape
from ..core.size_calls import UnknownName
from ..core.size_values import values_at
from ..core.sizes import Size
from ..core.value_ranges import input_ranges
from ..memory.shared_constants import shared_constants
from ..support import hints
from ..support.cache import Cache
from ..support.errors import InvalidStateError, MLError, ValidationError
from ..support.names import printable, short_repr
from ..support.tuned import has_tuning
from .dispatch_binding import DispatchBinding
from .graph_state import GraphState, checked_shapes
from .open_programs import GraphVariant, OpenProgram, RefusedNames, chain_values, gives, updates_for_all
from .tensor import MLTensor

if TYPE_CHECKING:
    from ..core.conversion import SizeHint
    from ..core.size_rules import NamedSizeRule
    from ..run.program import Program
    from .context import MLContext

MAX_VERSIONS = 32
"""Maximum number of combinations of sizes whose programs are kept."""

MAX_OPEN = 16
"""Maximum number of programs that were compiled with names, and differ in their answers to comparisons of sizes."""

MAX_TAILORED = 8
"""Maximum number of programs of a graph that are compiled in the background."""

FAR = 2
"""A program is compiled for sizes that differ by more than this factor from the sizes that the kernels were chosen for. By the
cost models, nine of ten products of half or twice the size take at most 1.2 times (float32) and 1.35 times (TF32) as long as
with the best tiles, and 1.4 times and 1.75 times with a factor of 4."""

MAX_LISTED = 4
"""Maximum number of combinations of sizes that a message lists."""

MAX_SHAPES = 1024
"""Maximum number of combinations of sizes whose results of `compute_shapes` are kept."""


class DynamicGraphState(GraphState):
    """The state of a graph with names.

    Attributes:
        variants: graphs for different sizes, of which `recorded` is the first; empty if it is the graph for all sizes.
        versions: the states of static graphs, by the shapes of the inputs in order; the last used one comes last.
        numbers_needed: the names that programs have numbers for, with the title of the operation that needs them.
        numbers_preferred: the names that some programs have numbers for, with the title of such an operation.
        tailored: the number of programs that were compiled in the background for sizes far from the first.
        refusal: why the last program with numbers in place of all names has them, if formulas did not hold for its sizes.
        size_rules: rules for the sizes of names, if the graph was made for some sizes alone.
    """

    __slots__ = (
        "_checked",
        "_compile",
        "_hints",
        "_is_first_call",
        "_is_preparing",
        "_latest",
        "_open",
        "_outline",
        "_refused",
        "_shapes",
        "numbers_needed",
        "numbers_preferred",
        "refusal",
        "size_rules",
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
        self._compile = partial(_compile_sharing, compile, set())
        self.variants = tuple(variants)
        if variants:
            self.constant_ranges = memory.merged_ranges(o.value for item in variants for o in item.graph.constants)
        # The last used entry of `versions`, which saves a look-up.
        self._latest: tuple[tuple[Shape, ...] | None, GraphState | None] = (None, None)
        self._open: list[OpenProgram] = []
        self._is_first_call = True
        builders = [operand.builder for operand in graph.inputs.values()]
        self._hints: Mapping[str, SizeHint] = getattr(builders[0], "size_hints", {}) if builders else {}
        rules: Sequence[NamedSizeRule] = getattr(builders[0], "size_rules", ()) if builders else ()
        # Inputs that no output depends on are left out, and so are their sizes.
        self.size_rules = [rule for rule in rules if rule.names.issubset(self.names)]
        self._is_preparing, self.tailored = False, 0
        self._refused: list[RefusedNames] = []
        self.numbers_needed: dict[str, str] = {}
        self.numbers_preferred: dict[str, str] = {}
        self.refusal = ""
        self._outline = ""  # the digest by which `tune` keeps measurements for some sizes
        # The last result of `compute_shapes`: mostly, a run with these shapes follows.
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
        """The state for these shapes, which counts as the last used one from now on; None if there is none yet."""
        version = self.versions.get(key)
        if version is not None:
            self._latest = key, version
        return version

    def version_for(self, subject: str, input_shapes: Mapping[str, Sequence[int]] | None) -> GraphState:
        """The state of the static graph for these shapes, compiled if it is new; None stands for those of the last run."""
        self.check_not_destroyed()
        if input_shapes is None:
            return self._last(subject)
        key = self._key(subject, input_shapes)
        return self._find(key) or self._compile_for(subject, key)

    def static_graph(self, subject: str, input_shapes: Mapping[str, Sequence[int]] | None) -> Graph:
        """The static graph for these shapes, not compiled; None stands for those of the last run."""
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
            version = self._tuned_version(subject, key)
            if version is None:
                self._open_first(subject, key)
                version = self._open_version(subject, key) or self._checked_version(subject, key)
            version.watch()
            with self.lock:
                self.check_not_destroyed()
                self._latest = key, self.versions.put(key, version)
            if self.context.backend.may_take_names:
                self._prepare_tailored(key)
            return version

    def _tuned_version(self, subject: str, key: tuple[Shape, ...]) -> GraphState | None:
        """The state for sizes for which `tune` has chosen another engine; None for others."""
        if self.recorded is None or not has_tuning():
            return None
        from ..compile import engines
        from ..support.digests import prefix_of

        if not self._outline:
            self._outline = engines.outline(self.recorded)
        if not has_tuning(prefix_of(self._outline)):
            return None
        sizes = self._named(self._sizes(subject, key))
        if not engines.has_other_way(self._outline, self.context.backend, sizes):
            return None
        graph, sizes = self._specialise(subject, key)
        if not engines.prefers_other_way(graph, self.context.backend):
            self._checked = key, graph, sizes
            return None
        return self._state_at(graph, self._compile(graph), sizes)

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
            is_near = item is None or item.guards.ratio_to(self._typical(sizes)) <= FAR
            if is_near or self._is_preparing or self.tailored >= MAX_TAILORED:
                return
            self._is_preparing = True
        from ..support.background import background

        background.put(partial(_compile_tailored, ref(self), key), waits=True)

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
                item.guards.similar.append(opened.guards.typical)
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
        return min(items, key=lambda item: item.guards.ratio_to(typical), default=None)

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
            opened = self._open_program(variant, sizes, frozenset(), (), is_checked=False)
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

        sizes = sizes_of(self.inputs, dict(zip(self.inputs, key, strict=True)), subject)
        for rule in self.size_rules:
            rule.check(subject, sizes)
        return sizes

    @staticmethod
    def _descs_at(operands: Mapping[str, Operand], sizes: Mapping[str, int]) -> dict[str, Desc]:
        return {name: Desc(o.data_type, values_at(o.shape, sizes)) for name, o in operands.items()}

    def _checked_version(self, subject: str, key: tuple[Shape, ...]) -> GraphState:
        """The state for sizes with which all operations are checked."""
        graph, sizes = self._specialise(subject, key)
        return self._state_at(graph, self._program_for(graph, sizes, subject), sizes)

    def _state_at(self, graph: Graph, program: Program, sizes: Mapping[str, int]) -> GraphState:
        """The state of a static graph for these sizes."""
        return GraphState(self.context, graph, program, self.is_fused, self, self._named(sizes))

    def _named(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """The sizes whose names are in the shapes of inputs."""
        names = set(self.names)
        return {name: size for name, size in sizes.items() if name in names}

    def _program_for(self, graph: Graph, sizes: dict[str, int], subject: str) -> Program:
        """The program for a static graph: one that was compiled with names, if it is valid for these sizes."""
        backend = self.context.backend
        if self.recorded is None or not (backend.takes_names or backend.may_take_names):
            return self._compile(graph)
        chains = chain_values(graph)
        opened = self._nearest(sizes, lambda item: item.guards.hold(sizes) and item.gives(chains, sizes))
        if opened is None:
            opened = self._compile_with_names(graph, sizes, subject)
            if opened is None:
                return self._compile(graph)
            with self.lock:
                if self._open:
                    opened.program.share_memory(self._open[0].program)
                self._open = [opened, *self._open[: MAX_OPEN - 1]]
        return opened.program.at(sizes, input_ranges(graph))

    def _compile_with_names(self, graph: Graph, sizes: dict[str, int], subject: str) -> OpenProgram | None:
        """Compile the graph with names, for a static graph of certain sizes; None if it needs numbers for all names."""
        variant, backend, chains = self._variant_for(subject, sizes), self.context.backend, chain_values(graph)
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
        *,
        is_checked: bool = True,
    ) -> OpenProgram | RefusedNames:
        """Compile the graph with names, except for those in `numbers`, unless formulas do not hold for these sizes.

        `chains` are the numbers that chains give. Formulas differ from them where an integer type wraps around, and may be
        longer than is allowed. With `is_checked`, the operations accept these sizes; else the limits of all shapes must hold.
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
                formulas = chain_values(inferred)
            except ValidationError as error:  # the operations accept these numbers
                reason = str(error).rpartition("; the sizes are ")[0] or str(error)
                return RefusedNames(numbers, guards, None, reason)
            if not gives(formulas, chains, sizes):
                return RefusedNames(numbers, guards, formulas, "an integer of a shape chain wraps around")
            # Operations of drafts compute sizes that have no formula, or whose formula does not hold for their integer type.
            is_plain = all(not node.op.is_draft and updates_for_all(node) for node in inferred.nodes)
            limits = SizeLimits(inferred, max_byte_length) if is_plain and len(sizes) == len(symbols) else None
            if not is_checked and (limits is None or not limits.hold(sizes)):
                return RefusedNames(numbers, guards, None, "formulas do not check all operations for these sizes")
            try:
                program = self._compile(inferred)
            except LongFormulaError as error:  # in what an operation is made of
                return RefusedNames(numbers, guards, None, str(error))
            ranges = input_ranges(inferred) if is_plain else []
        users = dict(zip(inferred.nodes, recorded.nodes, strict=True))
        program.origin = {node: users[origin] for node, origin in program.origin.items()}
        return OpenProgram(guards, program, inferred, limits, ranges, formulas)

    def bind(self, inputs: Mapping[str, MLTensor], outputs: Mapping[str, MLTensor]) -> DispatchBinding:
        """Bind the program for the sizes of tensors to their memory."""
        return self.version("dispatch", inputs).bind(inputs, outputs)

    def compute(self, inputs: Mapping[str, Any], outputs: Mapping[str, np.ndarray] | None) -> dict[str, np.ndarray]:
        """Run the program for the sizes of arrays; see `MLContext.compute`."""
        return self.version("compute", inputs).compute(inputs, outputs)


_VALUES = {"dispatch": "tensors", "profile": "arrays or tensors"}


def _text_of(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{printable(name)} = {size}" for name, size in sizes.items() if not isinstance(name, UnknownName))


def _compile_sharing(compile: Callable[[Graph], Program], keys: set[Hashable], graph: Graph) -> Program:
    """Compile one of the programs that share the constants with these keys."""
    with shared_constants(keys):
        return compile(graph)


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
