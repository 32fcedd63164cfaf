"""Run a whole ONNX model as one session of the engine, with dynamic dimensions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from onnxruntime.capi import onnxruntime_pybind11_state as engine

from ... import memory
from ...core.desc import OtherShapes
from ...memory.spaces import Cell, Memory
from ...support.errors import MLError, OperationError
from .. import How, Measured, ModelSource, PowerPreference, Precision, Returning, Runner, TakingFeeds
from .constants import add_constants, all_graphs, readers
from .native import CPU, ENGINE_ERRORS, NativeSession, engine_call
from .options import session_options
from .values import PLAIN_TYPES, from_engine, to_engine

if TYPE_CHECKING:
    from ...core.graph import Node
    from .. import Update

KNOWN_IR, KNOWN_OPSET = 10, 21
"""Newest versions of the file format and of ONNX's operator set that the engine runs without lowering."""

QUOTIENTS, SCATTER, UPDATING = frozenset({"Div", "Mod"}), "ScatterND", "GroupQueryAttention"
"""Operators that `quotients` guards, `scatters` rewrites and `in_place` knows: other models do without these modules."""

FLOAT16 = 10

BROADCASTING_SUM = 8
"""First operator set in which Sum broadcasts, as Add does."""


class ModelSession(Runner):
    """A session of an ONNX model, or of a part of one. Several threads may run it at the same time.

    Inputs are arrays, cells or lists of arrays; outputs are arrays, cells, or None for an unwanted output. Arrays of bool may
    be uint8. An array for an output of unknown shape must have the actual shape.

    Args:
        proto: the ModelProto without its constants, which are added to it.
        constants: arrays by name; large ones are passed by reference, mapped ones by file and offset.
        alone: whether no other session runs in alternation with this one.
        title: name of the model, for messages.
        whole: whether the model is a user's whole model.
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
        alone: bool = True,
        title: str = "the model",
        precision: Precision = "float32",
        whole: bool = False,
        source: ModelSource | None = None,
        has_arena: bool = True,
    ) -> None:
        self.title, self._source = title, source
        self._settings = power_preference, threads, alone, title, precision, whole
        try:
            if proto.ir_version > KNOWN_IR or any(entry.version > KNOWN_OPSET for entry in proto.opset_import):
                from .opsets import lower

                lower(proto)
            if precision == "ieee":
                _forbid_rounding(proto)
            graphs = list(all_graphs(proto.graph))
            operators = {node.op_type for graph in graphs for node in graph.node}
            options = session_options(
                power_preference,
                alone,
                threads,
                precision,
                quantised=any(map(is_quantised, operators)),
                whole=whole,
                has_arena=has_arena,
            )
            _rewrite(proto, constants, graphs, operators, threads)
            disabled = _keep_casts_to_halves(graphs) + _keep_transpositions(graphs, constants)
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
        try:
            return BoundModel(self, inputs, outputs)
        except ENGINE_ERRORS as error:
            raise self.error_of(error) from error

    def run(self, inputs: Sequence[Memory], outputs: Sequence[Memory]) -> None:
        """Write arrays in place, and put new arrays of the engine into cells."""
        if self._takes_arrays and self._run_on_arrays(inputs, outputs):
            return
        if self._can_bind and (not self.is_plain or any(isinstance(target, np.ndarray) for target in outputs)):
            self.bind(inputs, outputs)()
            return
        positions = [k for k, target in enumerate(outputs) if target is not None]
        values = self.returning(positions)([self.value(k, source) for k, source in enumerate(inputs)])
        results = list(zip(positions, values, strict=True))
        fill(results, outputs, self.outputs, "an output of a model with strings or sequences")

    def _run_on_arrays(self, inputs: Sequence[Memory], outputs: Sequence[Memory]) -> bool:
        """Run once on arrays alone, which takes a third of the time of `bind`; return whether that was possible."""
        for array in (*outputs, *inputs):
            if type(array) is not np.ndarray or array.dtype.isbuiltin != 1:
                return False
        binding = engine.SessionIOBinding(self.session)
        for name, array in zip(self.inputs, inputs, strict=True):
            binding.bind_input(name, array)
        for name, array in zip(self.outputs, outputs, strict=True):
            binding.bind_ortvalue_output(name, engine.OrtValue.ortvalue_from_numpy(array, CPU))
        try:
            self.session.run_with_iobinding(binding, None)
        except ENGINE_ERRORS:
            return False  # `bind` knows what else to try
        if self.updates:
            from .in_place import count_copies

            count_copies(self.updates, inputs, outputs)
        return True

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
        """Return these outputs of a session with types that the engine exchanges in bindings only."""
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


class BoundModel:
    """A session bound to memory. Each call, by one thread at a time, reads the current contents of cells."""

    __slots__ = ("_binding", "_changing", "_inputs", "_made", "_model", "_outputs", "_updates", "_values")

    def __init__(self, model: ModelSession, inputs: Sequence[Memory], outputs: Sequence[Memory]) -> None:
        self._model, self._binding = model, engine.SessionIOBinding(model.session)
        self._inputs, self._outputs = list(inputs), outputs
        # Keep the engine's values: the binding holds addresses only.
        self._values: list[Any] = [None] * len(inputs)
        types = [model.types[name] for name in model.inputs]
        # Inputs to bind at each run: cells, and types that are copied for the engine.
        self._changing = [k for k, i in enumerate(inputs) if isinstance(i, Cell) or types[k] not in PLAIN_TYPES]
        for k, source in enumerate(inputs):
            if k not in self._changing:
                self.read(k, source)
        copies = self._changing or any(update.copy_sizes(inputs, outputs) for update in model.updates)
        self._updates = model.updates if copies else ()
        # Outputs in new memory: (index in the binding, position).
        self._made: list[tuple[int, int]] = []
        place = 0
        for k, (name, target) in enumerate(zip(model.outputs, outputs, strict=True)):
            if isinstance(target, np.ndarray) and model.types[name] in PLAIN_TYPES:
                array = target.view(bool) if model.types[name] == "tensor(bool)" else target
                self._binding.bind_ortvalue_output(name, engine.OrtValue.ortvalue_from_numpy(array, CPU))
            elif target is not None:
                self._binding.bind_output(name, CPU)
                self._made.append((place, k))
            place += target is not None

    def read(self, position: int, source: Memory) -> None:
        """Bind an input to other memory of the same data type. No kernel may update this input in place."""
        self._inputs[position] = source
        value = self._values[position] = to_engine(self._model.value(position, source))
        self._binding.bind_ortvalue_input(self._model.inputs[position], value)

    def __call__(self) -> None:
        model = self._model
        try:
            for k in self._changing:
                self.read(k, self._inputs[k])
            model.session.run_with_iobinding(self._binding, None)
        except ENGINE_ERRORS as error:
            if not self._run_elsewhere():
                raise model.error_of(error) from error
            return
        if self._updates:
            values = [source.value if isinstance(source, Cell) else source for source in self._inputs]
            from .in_place import count_copies

            count_copies(self._updates, values, self._outputs)
        if self._made:
            values = self._binding.get_outputs()
            results = [(k, from_engine(values[place])) for place, k in self._made]
            for k, _ in results:
                # Bind again, else the next run would write into the same memory.
                self._binding.bind_output(model.outputs[k], CPU)
            fill(results, self._outputs, model.outputs, "an output of a type that NumPy does not have")

    def _run_elsewhere(self) -> bool:
        """Run in new memory and copy the results into the arrays; return whether the run succeeded.

        The engine's shape inference may expect other shapes than its kernels compute, and then refuse the arrays.
        """
        cells = {k: Cell() for k, target in enumerate(self._outputs) if isinstance(target, np.ndarray)}
        try:
            if cells:
                self._model.run(self._inputs, [cells.get(k, target) for k, target in enumerate(self._outputs)])
        except OperationError:
            return False
        results = [(k, cell.value) for k, cell in cells.items()]
        fill(results, self._outputs, self._model.outputs, "an output that the engine does not write into given memory")
        return bool(cells)


def fill(results: Sequence[tuple[int, Any]], outputs: Sequence[Memory], names: Sequence[str], reason: str) -> None:
    """Put (position, result) pairs into cells, or copy them into arrays, which must have the same shape."""
    arrays = [(k, value) for k, value in results if isinstance(outputs[k], np.ndarray)]
    shapes = {names[k]: value.shape for k, value in arrays if value.shape != outputs[k].shape}
    if shapes:
        raise OtherShapes(shapes)
    for k, value in results:
        if isinstance(target := outputs[k], Cell):
            target.value = value
        else:
            memory.copy(target.view(bool) if value.dtype == bool else target, value, reason)


def _forbid_rounding(proto: Any) -> None:
    from .rounding import FLOAT_LEVEL

    for graph in all_graphs(proto.graph):
        for node in graph.node:
            for attribute in node.attribute:
                if node.op_type == "MatMulNBits" and attribute.name == "accuracy_level":
                    attribute.i = FLOAT_LEVEL


def is_quantised(op_type: str) -> bool:
    """Whether an operator of the engine may multiply integers: all that do have such names, and few others."""
    return "Integer" in op_type or "uantize" in op_type or op_type.startswith("Q")


def _rewrite(
    proto: Any,
    constants: Mapping[str, np.ndarray],
    graphs: Sequence[Any],
    operators: Collection[str],
    threads: int | None,
) -> None:
    """Rewrite what the engine computes wrongly or slowly, for the operators that the model has."""
    if "Sum" in operators:
        _write_sums_as_additions(proto, graphs)
    if not QUOTIENTS.isdisjoint(operators):
        from .quotients import guard_quotients

        guard_quotients(proto, constants, graphs)
    if threads != 1 and SCATTER in operators:
        from .scatters import write_scatters_in_order

        write_scatters_in_order(constants, graphs)


def _write_sums_as_additions(proto: Any, graphs: Sequence[Any]) -> None:
    """Replace Sum of two operands by Add: the engine's optimiser fuses only Add with a convolution and an activation."""
    if any(entry.domain in ("", "ai.onnx") and entry.version < BROADCASTING_SUM for entry in proto.opset_import):
        return
    for graph in graphs:
        for node in graph.node:
            if node.op_type == "Sum" and len(node.input) == 2 and node.domain in ("", "ai.onnx"):
                node.op_type = "Add"


def _keep_casts_to_halves(graphs: Sequence[Any]) -> list[str]:
    """Insert an Identity after casts to float16, so that they round; return the optimiser passes to disable.

    Without a float16 kernel, the engine casts to float32, and removes this cast together with a preceding cast to float16,
    but not across an Identity.
    """
    is_changed = False
    for graph in graphs:
        casts = {node.output[0] for node in graph.node if node.op_type == "Cast" and _target(node) == FLOAT16}
        others = (node for inner in graphs for node in inner.node if node.op_type != "Cast")
        # The engine keeps pairs of the model's own casts.
        read = casts.intersection(name for node in others for name in node.input)
        if not read:
            continue
        nodes = list(graph.node)
        del graph.node[:]
        for node in nodes:
            graph.node.append(node)
            if node.op_type == "Cast" and node.output[0] in read:
                name = node.output[0]
                last = graph.node[-1]
                last.output[0] = f"{name}/rounded"
                graph.node.add(op_type="Identity", name=f"{name}/rounded", input=[last.output[0]], output=[name])
                is_changed = True
    return ["EliminateIdentity"] if is_changed else []


_ARITHMETIC = frozenset({"Add", "Div", "Mul", "Sub", "Sum"})
"""The engine's optimiser may remove these operators, or move them into a product, if the other operands are numbers."""

_REMOVABLE = frozenset(
    {
        *("Clip", "Concat", "Dropout", "Expand", "Flatten", "Identity", "Max", "Mean", "Min", "Pad", "Relu", "Reshape"),
        *("Resize", "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
    }
)
"""The engine's optimiser may move these operators, or remove them where they change nothing."""


def _keep_transpositions(graphs: Sequence[Any], constants: Mapping[str, np.ndarray]) -> list[str]:
    """Disable an optimiser pass that may end the process for products of operands that are transposed and cast.

    The pass swaps the transposition and the cast, and the engine fails if it then cannot fuse both with the product. For
    products of float16, the engine itself inserts such casts. Other passes may remove nodes between a cast and a product.
    """
    nodes = [node for graph in graphs for node in graph.node]
    products = [node for node in nodes if node.op_type in ("FusedMatMul", "MatMul")]
    if not products or not any(node.op_type == "Transpose" for node in nodes):
        return []
    has_halves = (
        any(tensor.data_type == FLOAT16 for graph in graphs for tensor in graph.initializer)
        or any(value.type.tensor_type.elem_type == FLOAT16 for graph in graphs for value in graph.input)
        or any(node.op_type == "Cast" and _target(node) == FLOAT16 for node in nodes)
    )
    if has_halves or _have_cast_operands(products, nodes, _numbers(graphs, nodes, constants)):
        return ["MatmulTransposeFusion"]
    return []


def _have_cast_operands(products: Sequence[Any], nodes: Sequence[Any], numbers: Mapping[str, bool]) -> bool:
    """Whether an operand of a product is the result of a cast, perhaps followed by removable operations."""
    producers = {name: node for node in nodes for name in node.output}
    pending = [name for node in products for name in node.input]
    seen = set(pending)
    while pending:
        node = producers.get(pending.pop())
        if node is None:
            continue
        if node.op_type == "Cast":
            return True
        operands = node.input[:1] if node.op_type in _REMOVABLE else ()
        if node.op_type in _ARITHMETIC:
            operands = [
                name
                for k, name in enumerate(node.input)
                if all(numbers.get(other, False) for j, other in enumerate(node.input) if j != k)
            ]
        pending += (name for name in operands if name not in seen)
        seen.update(operands)
    return False


def _numbers(graphs: Sequence[Any], nodes: Sequence[Any], constants: Mapping[str, np.ndarray]) -> dict[str, bool]:
    """Map each constant or foldable value to whether it may have a single element."""
    numbers = {tensor.name: prod(tensor.dims) == 1 for graph in graphs for tensor in graph.initializer}
    numbers |= {name: array.size == 1 for name, array in constants.items()}
    for node in nodes:
        if node.op_type == "Constant" or (node.input and all(name in numbers for name in node.input if name)):
            numbers.update(dict.fromkeys(node.output, True))
    return numbers


def _target(node: Any) -> int:
    return next((int(attribute.i) for attribute in node.attribute if attribute.name == "to"), 0)


def evaluate(proto: Any, feed: Mapping[str, np.ndarray]) -> list[Any] | None:
    """Run a model once and return its outputs; None if the engine fails."""
    try:
        session = ModelSession(proto, {}, "default", threads=1)  # starting threads would take longer
        return session.returning(range(len(session.outputs)))([feed[name] for name in session.inputs])
    except MLError:
        return None
