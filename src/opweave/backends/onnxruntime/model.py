"""Run a whole ONNX model as one session of the engine, with dynamic dimensions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ...memory.spaces import Cell, Memory
from ...support.errors import MLError, OperationError
from .. import How, Measured, ModelSource, PowerPreference, Precision, Returning, Runner, Spinning, TakingFeeds
from .constants import DEQUANTISES, MIXTURE, QUOTIENTS, READS_NARROW, add_constants, all_graphs, readers
from .native import ENGINE_ERRORS, NativeSession, engine_call
from .options import is_quantised, session_options
from .values import PLAIN_TYPES

if TYPE_CHECKING:
    from ...core.graph import Node
    from .. import Update

KNOWN_IR, KNOWN_OPSET = 10, 21
"""Newest versions of the file format and of ONNX's operator set that the engine runs without lowering."""

SCATTER, UPDATING = "ScatterND", "GroupQueryAttention"
"""The operators that `scatters` rewrites, and that `in_place` is about: other models do without these modules."""

HAS_TERMS = frozenset({"Add", "Gemm", "Sum"})
"""Operators that `terms` guards for dequantised operands: models without them do without that module."""

CAST_OR_MOVED = frozenset({"Cast", "Transpose"})
"""Operators without which the engine's optimiser needs no limits (`rewrites`)."""


class ModelSession(Runner):
    """A session of an ONNX model, or of a part of one. Several threads may run it at the same time.

    Inputs are arrays, cells or lists of arrays; outputs are arrays, cells, or None for an unwanted output. Arrays of bool may
    be uint8. An array for an output of unknown shape must have the actual shape.

    Args:
        proto: the ModelProto without its constants, which are added to it.
        constants: arrays by name; large ones are passed by reference, mapped ones by file and offset.
        spinning: how long threads spin for the next operation.
        title: name of the model, for messages.
        source: returns `proto` and `constants` once more, to measure the kernels; None if that is impossible.
        has_arena: whether memory of a run is kept for later runs.

    Attributes:
        types: the engine's type of each input and output, by name.
        is_plain: whether NumPy has all these types.
    """

    def __init__(
        self,
        proto: Any,
        constants: Mapping[str, np.ndarray],
        power_preference: PowerPreference,
        threads: int | None = None,
        spinning: Spinning = "short",
        title: str = "the model",
        precision: Precision = "float32",
        source: ModelSource | None = None,
        has_arena: bool = True,
    ) -> None:
        self.title, self._source = title, source
        self._settings = power_preference, threads, spinning, title, precision
        try:
            if proto.ir_version > KNOWN_IR or any(entry.version > KNOWN_OPSET for entry in proto.opset_import):
                from .opsets import lower

                lower(proto)
            constants = _read_narrow(proto, constants, precision)
            if precision == "ieee":
                from .rewrites import forbid_rounding

                forbid_rounding(proto)
            graphs = list(all_graphs(proto.graph))
            operators = {node.op_type for graph in graphs for node in graph.node}
            options = session_options(
                power_preference,
                spinning,
                threads,
                precision,
                quantised=any(map(is_quantised, operators)),
                has_arena=has_arena,
            )
            disabled = _rewrite(proto, constants, graphs, operators, threads)
            nodes = list(readers(proto.graph.node, is_flat=len(graphs) == 1))
            # Keep the constants: the engine reads their memory.
            self._constants = add_constants(proto.graph, constants, options, nodes)
            self.before_loading(proto, options)
            model = proto.SerializeToString()
            session = NativeSession(model, options, providers=["CPUExecutionProvider"], disabled_optimizers=disabled)
        except ENGINE_ERRORS as error:
            from .opsets import unknown_operator

            unknown = unknown_operator(proto)
            raise OperationError(unknown or f"ONNX Runtime does not take {title}: {error}") from error
        self.inputs = [value.name for value in session.get_inputs()]
        self.outputs = [value.name for value in session.get_outputs()]
        self.types = {value.name: value.type for value in (*session.get_inputs(), *session.get_outputs())}
        self._bools = {k for k, name in enumerate(self.inputs) if self.types[name] == "tensor(bool)"}
        types = set(self.types.values())
        self.is_plain = types <= PLAIN_TYPES
        # Strings, sequences and optionals cannot be bound to memory.
        self._can_bind = all(type.startswith("tensor(") and type != "tensor(string)" for type in types)
        # Arrays of bool come as bytes in graphs, and are bound with care.
        self._takes_arrays = self._can_bind and self.is_plain and "tensor(bool)" not in types
        takes = {name: k for k, name in enumerate(self.inputs)}
        gives = {name: k for k, name in enumerate(self.outputs) if self._can_bind}
        self._on_arrays: Callable[[ModelSession, Sequence[Memory], Sequence[Memory]], bool] | None = None
        self.updates: Sequence[Update] = ()
        if UPDATING in operators:
            from .in_place import find_updates

            self.updates = find_updates(nodes, takes, gives)
        self.session = session.native

    def before_loading(self, proto: Any, options: Any) -> None:
        """Called with the model that the engine gets, and its options."""

    def measured(self) -> Measured | None:
        if self._source is None:
            return None
        from .measure import MeasuredModelSession

        return MeasuredModelSession(*self._source(), *self._settings)

    def check_types(self) -> None:
        """Raise an error for an input or output whose values NumPy cannot hold."""
        for name, type in self.types.items():
            # the innermost type: optional(seq(tensor(float))) -> tensor(float)
            innermost = type.removeprefix("optional(").removeprefix("seq(").rstrip(")") + ")"
            if innermost not in PLAIN_TYPES and innermost != "tensor(string)":
                raise OperationError(f"{name!r} is {type}, which has no equivalent in NumPy")

    def bind(self, inputs: Sequence[Memory], outputs: Sequence[Memory]) -> Callable[[], None]:
        if not self._can_bind:
            return partial(self.run, inputs, outputs)
        from .bound_model import BoundModel

        try:
            return BoundModel(self, inputs, outputs)
        except ENGINE_ERRORS as error:
            raise self.error_of(error) from error

    def run(self, inputs: Sequence[Memory], outputs: Sequence[Memory]) -> None:
        """Write arrays in place, and put new arrays of the engine into cells."""
        if self._takes_arrays:
            if self._on_arrays is None:
                from .bound_model import run_on_arrays

                self._on_arrays = run_on_arrays  # an import in each call takes half a microsecond
            if self._on_arrays(self, inputs, outputs):
                return
        if self._can_bind and (not self.is_plain or any(isinstance(target, np.ndarray) for target in outputs)):
            self.bind(inputs, outputs)()
            return
        positions = [k for k, target in enumerate(outputs) if target is not None]
        values = self.returning(positions)([self.value(k, source) for k, source in enumerate(inputs)])
        from .bound_model import fill

        results = list(zip(positions, values, strict=True))
        fill(results, outputs, self.outputs, "an output of a model with strings or sequences")

    def returning(self, outputs: Sequence[int]) -> Returning:
        if self._can_bind and not self.is_plain:
            return partial(self._run_bound, outputs)
        return engine_call(
            self.session, self.inputs, [self.outputs[k] for k in outputs], {}, self.updates, self.error_of
        )

    def taking_feeds(self, outputs: Sequence[int]) -> TakingFeeds | None:
        """Return the engine's own call; None if copies must be counted, or types must be bound."""
        if self.updates or (self._can_bind and not self.is_plain):
            return None
        run, names = self.session.run, [self.outputs[k] for k in outputs]
        return lambda feed: run(names, feed, None)

    def _run_bound(self, outputs: Sequence[int], inputs: Sequence[Memory]) -> list[Any]:
        """Return these outputs of a session with types that the engine takes and returns in bindings only."""
        cells = {k: Cell() for k in outputs}
        self.bind(inputs, [cells.get(k) for k in range(len(self.outputs))])()
        return [cell.value for cell in cells.values()]

    def value(self, position: int, source: Memory) -> Any:
        if isinstance(source, Cell):
            source = source.value
        return source.view(bool) if position in self._bools and source.dtype == np.uint8 else source

    def error_of(self, error: Exception) -> OperationError:
        return OperationError(f"ONNX Runtime failed to run {self.title}: {error}")

    def describe(self, nodes: Sequence[Node]) -> tuple[How, str]:
        return "native", "ONNX Runtime"


def _read_narrow(proto: Any, constants: Mapping[str, np.ndarray], precision: Precision) -> Mapping[str, np.ndarray]:
    """Let products and lookups read narrow constants, in models that dequantise some; return the constants that are read."""
    operators = {node.op_type for node in proto.graph.node}
    if DEQUANTISES not in operators or READS_NARROW.isdisjoint(operators):
        return constants
    from .narrow_models import read_narrow

    return read_narrow(proto, constants, precision)


def _rewrite(
    proto: Any,
    constants: Mapping[str, np.ndarray],
    graphs: Sequence[Any],
    operators: Collection[str],
    threads: int | None,
) -> list[str]:
    """Rewrite what the engine computes wrongly or slowly, for the operators that the model has; return passes to disable."""
    if "Sum" in operators:
        from .rewrites import write_sums_as_additions

        write_sums_as_additions(proto, graphs)
    if not QUOTIENTS.isdisjoint(operators):
        from .quotients import guard_quotients

        guard_quotients(proto, constants, graphs)
    if MIXTURE in operators:
        from .rewrites import complete_zero_points

        complete_zero_points(graphs, constants)
    if threads != 1 and SCATTER in operators:
        from .scatters import write_scatters_in_order

        write_scatters_in_order(constants, graphs)
    disabled = []
    if DEQUANTISES in operators and not HAS_TERMS.isdisjoint(operators):
        from .terms import keep_scales_of_terms

        disabled += keep_scales_of_terms(graphs, constants)
    if not CAST_OR_MOVED.isdisjoint(operators):
        from .rewrites import keep_casts_to_halves, keep_transpositions

        disabled += keep_casts_to_halves(graphs) + keep_transpositions(graphs, constants)
    return disabled


def evaluate(proto: Any, feed: Mapping[str, np.ndarray]) -> list[Any] | None:
    """Run a model once and return its outputs; None if the engine fails."""
    try:
        session = ModelSession(proto, {}, "default", threads=1)  # starting threads would take longer
        return session.returning(range(len(session.outputs)))([feed[name] for name in session.inputs])
    except MLError:
        return None
