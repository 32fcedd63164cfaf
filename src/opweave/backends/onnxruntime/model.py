"""An ONNX model as one session of the engine, which runs it with any sizes of its dynamic dimensions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
from onnxruntime.capi import onnxruntime_pybind11_state as engine

from ... import memory
from ...core.graph import Node
from ...core.shapes import OtherShapes
from ...memory.spaces import Cell, Memory
from ...support.errors import MLError, OperationError
from .. import How, PowerPreference, Precision, Returning, Runner, TakingFeeds
from .constants import add_constants, all_graphs, readers
from .in_place import count_copies, find_updates
from .native import CPU, ENGINE_ERRORS, NativeSession, engine_call
from .options import session_options
from .quotients import guard_quotients
from .scatters import write_scatters_in_order
from .values import PLAIN_TYPES, from_engine, to_engine

KNOWN_IR, KNOWN_OPSET = 10, 21
"""Models up to this version of the file format and of ONNX's operators need not be lowered for the engine."""

QUANTISED = re.compile("Integer|uantize|^Q")
"""What is in the names of all operators of the engine that multiply integers, and only of few others."""

FLOAT16 = 10
"""ONNX's number of the data type."""

BROADCASTING_SUM = 8
"""The operator set from which on Sum broadcasts, as Add does."""


class ModelSession(Runner):
    """An ONNX model, or a part of one, that the engine runs as it is. Several threads may run it at the same time.

    It reads and writes arrays, in which bool may be uint8, and cells; it reads lists of arrays, too. An output of unknown
    shape may be an array, which must have its shape, or None if it is not wanted.

    Args:
        proto: the ModelProto, without the constants that it uses; it gets those.
        constants: their arrays, by name; large ones are passed by reference, those in mapped files by their place there.
        power_preference: that of the context.
        threads: how many threads an operation may use; None for as many as there are processors.
        alone: whether it does not take turns with other sessions.
        title: what it computes, for messages.
        precision: that of the context.
        whole: whether it is a user's model as it is.

    Attributes:
        inputs: the names of its inputs, in order.
        outputs: likewise of its outputs.
        types: the type of each input and output, by name.
        is_plain: whether NumPy has all these types.
        session: the engine's own.

    Raises:
        OperationError: the engine refuses the model.
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
    ) -> None:
        self.title = title
        try:
            if proto.ir_version > KNOWN_IR or any(entry.version > KNOWN_OPSET for entry in proto.opset_import):
                from .opsets import lower

                lower(proto)
            if precision == "ieee":
                _forbid_rounding(proto)
            graphs = list(all_graphs(proto.graph))
            quantised = any(QUANTISED.search(node.op_type) for graph in graphs for node in graph.node)
            options = session_options(
                power_preference, alone, threads=threads, precision=precision, quantised=quantised, whole=whole
            )
            _write_sums_as_additions(proto, graphs)
            guard_quotients(proto, constants, graphs)
            if threads != 1:
                write_scatters_in_order(constants, graphs)
            disabled = _keep_casts_to_halves(graphs) + _keep_transpositions(graphs, constants)
            nodes = list(readers(proto.graph.node, is_flat=len(graphs) == 1))
            self._constants = add_constants(
                proto.graph, constants, options, nodes
            )  # kept: the engine reads their memory
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
        found = set(self.types.values())
        self.is_plain = found <= PLAIN_TYPES
        # Strings, sequences and optionals cannot be bound to memory.
        self._can_bind = all(type.startswith("tensor(") and type != "tensor(string)" for type in found)
        takes = {name: k for k, name in enumerate(self.inputs)}
        gives = {name: k for k, name in enumerate(self.outputs) if self._can_bind}
        self.updates = find_updates(nodes, takes, gives)
        # The Python wrapper costs microseconds; the engine's own session is called.
        self.session = session._sess

    def check_types(self) -> None:
        """Require types whose values NumPy can hold.

        Raises:
            OperationError: the name of an input or an output that has another.
        """
        for name, type in self.types.items():
            # the innermost type: optional(seq(tensor(float))) -> tensor(float)
            innermost = type.removeprefix("optional(").removeprefix("seq(").rstrip(")") + ")"
            if innermost not in PLAIN_TYPES and innermost != "tensor(string)":
                raise OperationError(f"{name!r} is {type}, which has no equivalent in NumPy")

    def bind(self, inputs: Sequence[Memory], outputs: Sequence[Memory]) -> Callable[[], None]:
        """Tie it to arrays and cells; a `BoundModel`, except where the engine cannot bind the types.

        Raises:
            OperationError: the engine does not take the memory.
        """
        if not self._can_bind:
            return partial(self.run, inputs, outputs)
        try:
            return BoundModel(self, inputs, outputs)
        except ENGINE_ERRORS as error:
            raise self.failed(error) from error

    def run(self, inputs: Sequence[Memory], outputs: Sequence[Memory]) -> None:
        """Run it once: arrays are written in place, cells get what the engine makes.

        Raises:
            OtherShapes: arrays have other shapes than their outputs.
            OperationError: the engine failed.
        """
        if self._can_bind and (not self.is_plain or any(isinstance(target, np.ndarray) for target in outputs)):
            self.bind(inputs, outputs)()
            return
        wanted = [k for k, target in enumerate(outputs) if target is not None]
        found = self.returning(wanted)([self.value(k, given) for k, given in enumerate(inputs)])
        results = list(zip(wanted, found, strict=True))
        fill(results, outputs, self.outputs, "an output of a model with strings or sequences")

    def returning(self, outputs: Sequence[int]) -> Returning:
        """A function that runs it once on arrays and lists of arrays, and returns these outputs in memory of the engine."""
        if self._can_bind and not self.is_plain:
            return partial(self._run_bound, outputs)
        return engine_call(self.session, self.inputs, [self.outputs[k] for k in outputs], {}, self.updates, self.failed)

    def taking_feeds(self, outputs: Sequence[int]) -> TakingFeeds | None:
        """The engine's own call; None if copies are to be counted, or its types must be bound."""
        if self.updates or (self._can_bind and not self.is_plain):
            return None
        run, names = self.session.run, [self.outputs[k] for k in outputs]
        return lambda feed: run(names, feed, None)

    def _run_bound(self, outputs: Sequence[int], inputs: Sequence[Memory]) -> list[Any]:
        """These outputs, of a session with types that the engine exchanges in bindings only."""
        cells = {k: Cell() for k in outputs}
        self.bind(inputs, [cells.get(k) for k in range(len(self.outputs))])()
        return [cell.value for cell in cells.values()]

    def value(self, position: int, given: Memory) -> Any:
        """The value of an input, in the type that the engine has for it."""
        if isinstance(given, Cell):
            given = given.value
        return given.view(bool) if position in self._bools and given.dtype == np.uint8 else given

    def failed(self, error: Exception) -> OperationError:
        """The error for one of the engine's."""
        return OperationError(f"ONNX Runtime failed to run {self.title}: {error}")

    def describe(self, nodes: Sequence[Node]) -> tuple[How, str]:
        """It computes nodes of an ONNX model, none of a graph."""
        return "native", "ONNX Runtime"


class BoundModel:
    """A session that is tied to memory; calling it runs the session once. One thread at a time may do so.

    Args:
        model: the session.
        inputs: arrays and cells; the contents of cells are read again at each run.
        outputs: arrays, cells, and None for outputs that are not wanted.
    """

    __slots__ = ("_binding", "_changing", "_inputs", "_made", "_model", "_outputs", "_updates", "_values")

    def __init__(self, model: ModelSession, inputs: Sequence[Memory], outputs: Sequence[Memory]) -> None:
        self._model, self._binding = model, engine.SessionIOBinding(model.session)
        self._inputs, self._outputs = list(inputs), outputs
        self._values: list[Any] = [None] * len(inputs)  # the engine's: the binding holds addresses only
        types = [model.types[name] for name in model.inputs]
        # What is bound at each run: contents of cells, and what the engine gets a copy of.
        self._changing = [k for k, i in enumerate(inputs) if isinstance(i, Cell) or types[k] not in PLAIN_TYPES]
        for k, given in enumerate(inputs):
            if k not in self._changing:
                self.read(k, given)
        copies = self._changing or any(update.copied(inputs, outputs) for update in model.updates)
        self._updates = model.updates if copies else ()
        # The outputs in new memory: their places in the binding, and their positions.
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

    def read(self, position: int, given: Memory) -> None:
        """Take an input that no kernel updates from other memory, of the same data type, from now on."""
        self._inputs[position] = given
        value = self._values[position] = to_engine(self._model.value(position, given))
        self._binding.bind_ortvalue_input(self._model.inputs[position], value)

    def __call__(self) -> None:
        """Run the session once.

        Raises:
            OtherShapes: arrays have other shapes than their outputs.
            OperationError: the engine failed.
        """
        model = self._model
        try:
            for k in self._changing:
                self.read(k, self._inputs[k])
            model.session.run_with_iobinding(self._binding, None)
        except ENGINE_ERRORS as error:
            if not self._run_elsewhere():
                raise model.failed(error) from error
            return
        if self._updates:
            values = [given.value if isinstance(given, Cell) else given for given in self._inputs]
            count_copies(self._updates, values, self._outputs)
        if self._made:
            values = self._binding.get_outputs()
            found = [(k, from_engine(values[place])) for place, k in self._made]
            for k, _ in found:
                self._binding.bind_output(model.outputs[k], CPU)  # the next run would write into the same memory
            fill(found, self._outputs, model.outputs, "an output of a type that NumPy does not have")

    def _run_elsewhere(self) -> bool:
        """Run in new memory, if the engine has found its results and refused the arrays for them; whether that was so.

        Its inference may expect shapes that its kernels do not compute.
        """
        cells = {k: Cell() for k, target in enumerate(self._outputs) if isinstance(target, np.ndarray)}
        try:
            if cells:
                self._model.run(self._inputs, [cells.get(k, target) for k, target in enumerate(self._outputs)])
        except OperationError:
            return False
        found = [(k, cell.value) for k, cell in cells.items()]
        fill(found, self._outputs, self._model.outputs, "an output that the engine does not write into given memory")
        return bool(cells)


def fill(found: Sequence[tuple[int, Any]], outputs: Sequence[Memory], names: Sequence[str], reason: str) -> None:
    """Put results into cells, and copy others into arrays.

    Args:
        found: the positions of results, and these.
        outputs: the memory that they are for.
        names: the names of all outputs.
        reason: why they are copied.

    Raises:
        OtherShapes: arrays have other shapes.
    """
    arrays = [(k, value) for k, value in found if isinstance(outputs[k], np.ndarray)]
    shapes = {names[k]: value.shape for k, value in arrays if value.shape != outputs[k].shape}
    if shapes:
        raise OtherShapes(shapes)
    for k, value in found:
        if isinstance(target := outputs[k], Cell):
            target.value = value
        else:
            memory.copy(target.view(bool) if value.dtype == bool else target, value, reason)


def _forbid_rounding(proto: Any) -> None:
    """Let the products of a ModelProto keep their operands as float32."""
    from .rounding import FLOAT_LEVEL

    for graph in all_graphs(proto.graph):
        for node in graph.node:
            for attribute in node.attribute:
                if node.op_type == "MatMulNBits" and attribute.name == "accuracy_level":
                    attribute.i = FLOAT_LEVEL


def _write_sums_as_additions(proto: Any, graphs: Sequence[Any]) -> None:
    """Write Sum of two operands as Add: the engine's optimiser joins only Add with a convolution and an activation."""
    if any(entry.domain in ("", "ai.onnx") and entry.version < BROADCASTING_SUM for entry in proto.opset_import):
        return
    for graph in graphs:
        for node in graph.node:
            if node.op_type == "Sum" and len(node.input) == 2 and node.domain in ("", "ai.onnx"):
                node.op_type = "Add"


def _keep_casts_to_halves(graphs: Sequence[Any]) -> list[str]:
    """Let casts to float16 round, whatever reads them.

    The engine widens float16 for kernels that it has in float32 only, and removes its cast together with the one before, but
    not across an Identity.

    Returns:
        The optimisers that the session must not run: the one that removes Identity. Empty if no node was added.
    """
    is_changed = False
    for graph in graphs:
        casts = {node.output[0] for node in graph.node if node.op_type == "Cast" and _target(node) == FLOAT16}
        others = (node for inner in graphs for node in inner.node if node.op_type != "Cast")
        read = casts.intersection(
            name for node in others for name in node.input
        )  # the engine keeps pairs of the model's casts
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
"""Operators that the engine's optimiser may remove, or move into a product, if the other operands are numbers."""

_REMOVABLE = frozenset(
    {
        *("Clip", "Concat", "Dropout", "Expand", "Flatten", "Identity", "Max", "Mean", "Min", "Pad", "Relu", "Reshape"),
        *("Resize", "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
    }
)
"""Operators that the engine's optimiser may remove where they change nothing, or move."""


def _keep_transpositions(graphs: Sequence[Any], constants: Mapping[str, np.ndarray]) -> list[str]:
    """Let products of transposed and cast operands run: one optimiser may end the process for them.

    It changes the order of a transposition and a cast before a product, and the session cannot be made if it then cannot join
    all three. The engine adds such casts to products of float16 itself. It removes, or moves into the product, what may be
    between a cast and a product.

    Args:
        graphs: all graphs of the model.
        constants: the arrays of initializers that hold no data in the model, by name.

    Returns:
        This optimiser; empty if no product may have such an operand. It also joins transpositions and products without casts.
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
    """Whether an operand of a product is cast, perhaps before operations that the engine's optimiser may remove."""
    makers = {name: node for node in nodes for name in node.output}
    pending = [name for node in products for name in node.input]
    seen = set(pending)
    while pending:
        node = makers.get(pending.pop())
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
    """The constants of a model, and the values that the engine may compute from these alone; whether each may have a single
    element.
    """
    numbers = {tensor.name: prod(tensor.dims) == 1 for graph in graphs for tensor in graph.initializer}
    numbers |= {name: array.size == 1 for name, array in constants.items()}
    for node in nodes:
        if node.op_type == "Constant" or (node.input and all(name in numbers for name in node.input if name)):
            numbers.update(dict.fromkeys(node.output, True))
    return numbers


def _target(node: Any) -> int:
    """The ONNX type that a Cast converts to."""
    return next((int(attribute.i) for attribute in node.attribute if attribute.name == "to"), 0)


def evaluate(proto: Any, feed: Mapping[str, np.ndarray]) -> list[Any] | None:
    """The outputs of a model that is run once; None where the engine cannot."""
    try:
        session = ModelSession(proto, {}, "default", threads=1)  # to start threads would take longer
        return session.returning(range(len(session.outputs)))([feed[name] for name in session.inputs])
    except MLError:
        return None
