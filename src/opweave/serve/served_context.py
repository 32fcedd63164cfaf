"""A context of a client: handles messages, and keeps tensors, graphs and builders by number. Uses no sockets."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np

from .. import memory
from ..context.context import MLContext, ml
from ..context.dynamic_graph_state import DynamicGraphState
from ..context.graph import MLGraph, state_of as state_of_graph
from ..context.tensor import MLTensor
from ..context.tensors import state_of
from ..core.graph import Desc, Graph, Operand
from ..core.shapes import Shape
from ..core.sizes import Size
from ..saved.keyed import KeyedGraphs, OriginLimits
from ..support import disk_cache
from ..support.errors import InvalidStateError, MLError, NotSupportedError, ValidationError
from ..support.names import camel_case, snake_case
from .intermediates import intermediate_bytes
from .limits import GRAPH_BYTES, OPERAND_BYTES, ConnectionLimits, ServerBudget
from .log import in_javascript
from .messages import Message, ProtocolError
from .served_builder import (
    INTERMEDIATES,
    Log,
    ServedBuilder,
    ServedConstant,
    check_length,
    describe,
    has_names,
    reserve_compiled,
    reserve_graph,
)

OPAQUE = "null"
"""Browsers send this for opaque origins (files, sandboxed frames), which cannot be told apart."""

PROGRAMS = "programs"
"""Stands for the origin of programs, which send none."""

COLLECT_BYTES = 64 * 2**20
"""Collect garbage each time this many bytes were freed: nodes and their results are reference cycles, which keep the constants
of a graph alive. A collection stops all threads; `python -m benchmarks serve` prints for how long."""


class _Garbage:
    """Counts the bytes that all contexts of the process have freed."""

    def __init__(self) -> None:
        self._bytes, self._lock = 0, Lock()

    def add(self, count: int) -> None:
        """Count bytes of a freed graph or builder, and collect garbage after `COLLECT_BYTES`."""
        with self._lock:
            self._bytes += count
            is_much = self._bytes > COLLECT_BYTES
            if is_much:
                self._bytes = 0
        if is_much:
            gc.collect()


_garbage = _Garbage()


@dataclass
class _ServedTensor:
    """A tensor; constant tensors have memory alone."""

    desc: Desc
    tensor: MLTensor | None
    contents: np.ndarray | None  # the memory as bytes, if on the host


@dataclass
class _ServedGraph:
    graph: MLGraph
    reserved: int  # bytes of the budget
    versions: dict[tuple[Shape, ...], int] = field(default_factory=dict)
    """Bytes of the budget for each combination of sizes of a graph with names."""

    @property
    def bytes(self) -> int:
        return self.reserved + sum(self.versions.values())


@dataclass
class Answer:
    """The answer to a request: fields, and a payload."""

    fields: Message
    payload: np.ndarray | None = None


def create_context(options: Mapping[str, Any], device: str | None, drafts: bool = False) -> MLContext:
    """Create the context for the options of a page (`MLContextOptions`), or on `device`.

    Threads sleep soon after a run, unless the page asks for high performance: the browser needs the processors, too. Between
    the operations of a run they spin, since waking a thread takes as long as a small operation.
    """
    kind = options.get("deviceType")
    if kind not in (None, "cpu", "gpu", "npu"):
        raise ValidationError(f"createContext: deviceType must be 'cpu', 'gpu' or 'npu', got {kind!r}")
    preference = options.get("powerPreference", "default")
    accelerated = options.get("accelerated", True) and kind != "cpu"
    wanted: Any = "low-power" if kind == "npu" and preference == "default" else preference
    try:
        context = ml.create_context(power_preference=wanted, accelerated=accelerated, device=device, drafts=drafts)
        if context.device.kind == "cpu" and wanted == "default":
            state_of(context).shares_processors = True
    except MLError as error:
        text = str(error).replace("power_preference", "powerPreference")
        raise type(error)(f"createContext: {text}") from None
    return context


class ServedContext:
    """A context of a client. `report` is called with each new graph.

    One thread at a time handles all messages, in order; `/sync` comes from other threads, and uses builders only.
    """

    def __init__(
        self,
        context: MLContext,
        budget: ServerBudget,
        limits: ConnectionLimits,
        report: Callable[[MLGraph], object] = lambda graph: None,
        origin: str | None = None,
    ) -> None:
        self.context, self._budget, self._limits, self._report = context, budget, limits, report
        self._origin = origin
        self._is_host = context.backend.space.is_host
        self._tensors: dict[int, _ServedTensor] = {}
        self._coming: dict[int, int] = {}  # bytes of the budget for constant tensors whose message is not handled yet
        self._graphs: dict[int, _ServedGraph] = {}
        self._builders: dict[int, ServedBuilder] = {}
        self._builders_lock = Lock()

    def limits(self) -> Message:
        """`opSupportLimits()` with names as in JavaScript."""
        limits: Message = _in_camel_case(self.context.op_support_limits())
        return limits

    # Payloads --------------------------------------------------------------------------------------------------------

    def memory_for(self, message: Message) -> np.ndarray:
        """Return the memory that receives the payload of a `write`, `const` or constant `tensor`, as bytes."""
        match message["m"]:
            case "write":
                tensor = self._tensor(message["id"])
                check_length(tensor.desc, message["bin"])
                if tensor.tensor is None or not tensor.tensor.writable:
                    raise ValidationError(f"the tensor {tensor.desc} was not created with writable: true")
                return _bytes(memory.empty(tensor.desc)) if tensor.contents is None else tensor.contents
            case "const":
                check_length(self._desc_of(message), message["bin"])
                builder = self._builder(message["b"])
                constant = builder.constant(message["id"], message["dataType"], message["shape"])
                if constant.is_filled:
                    raise ProtocolError(f"the payload of constant {message['id']} has come already")
                constant.is_filled = True  # early, but `build` follows in the same connection
                return _bytes(constant.array)
            case "tensor":
                desc = self._desc_of(message)
                check_length(desc, message["bin"])
                contents = _bytes(self._allocate(desc))
                self._coming[message["id"]] = desc.byte_length
                return contents
        raise ProtocolError(f"{message['m']} has no payload")

    def _desc_of(self, message: Message) -> Desc:
        return describe(self.context, message["dataType"], message["shape"])

    def _allocate(self, desc: Desc) -> np.ndarray:
        self._budget.reserve(desc.byte_length)
        try:
            return memory.allocate(desc)
        except MLError:
            self._budget.release(desc.byte_length)
            raise

    # Messages --------------------------------------------------------------------------------------------------------

    def handle(self, message: Message, payload: np.ndarray | None) -> Answer | None:
        """Execute a message other than `hello` and `destroy`. The payload, if any, is in the memory of `memory_for`."""
        answer: Answer | None = getattr(self, f"_on_{message['m']}")(message, payload)
        return answer

    def _on_tensor(self, message: Message, payload: np.ndarray | None) -> Answer:
        number = message["id"]
        if number in self._tensors:
            raise ProtocolError(f"tensor {number} exists already")
        desc = self._desc_of(message)
        if message.get("constant"):
            if payload is None:
                raise ProtocolError(f"constant tensor {number} has no payload")
            self._coming.pop(number, None)
            self._tensors[number] = _ServedTensor(desc, None, payload)
            return Answer({})
        flags = {name: message.get(name, False) for name in ("readable", "writable")}
        if self._is_host:
            array = self._allocate(desc)
            tensor = self.context.tensor_from(array, **flags)
            self._tensors[number] = _ServedTensor(desc, tensor, _bytes(array))
            return Answer({})
        self._budget.reserve(desc.byte_length)
        try:
            self._tensors[number] = _ServedTensor(
                desc, self.context.create_tensor(desc.data_type, desc.shape, **flags), None
            )
        except MLError:
            self._budget.release(desc.byte_length)
            raise
        return Answer({})

    def _on_write(self, message: Message, payload: np.ndarray | None) -> None:
        tensor = self._tensor(message["id"])
        if tensor.contents is None and tensor.tensor is not None:  # on the host the payload is in the tensor already
            self.context.write_tensor(tensor.tensor, payload)

    def _on_const(self, message: Message, payload: np.ndarray | None) -> None:
        """Do nothing: the payload is in the constant already."""

    def _on_read(self, message: Message, payload: np.ndarray | None) -> Answer:
        tensor = self._tensor(message["id"])
        if tensor.tensor is None:
            raise ValidationError(f"the constant tensor {tensor.desc} cannot be read")
        if not tensor.tensor.readable:
            raise ValidationError(f"the tensor {tensor.desc} was not created with readable: true")
        contents = _bytes(self.context.read_tensor(tensor.tensor)) if tensor.contents is None else tensor.contents
        return Answer({}, contents)

    def _on_build(self, message: Message, payload: np.ndarray | None) -> Answer:
        number = message["g"]
        if number in self._graphs:
            raise ProtocolError(f"graph {number} exists already")
        builder = self._builder(message["b"])
        graph = builder.build(message["log"], message["outs"])
        self._graphs[number] = _ServedGraph(graph, builder.reserved)
        builder.reserved = 0
        self._report(graph)
        return self._describe(graph)

    def _describe(self, graph: MLGraph) -> Answer:
        """The descriptors and the devices of a graph, for JavaScript."""
        described = {
            side: {name: descriptor_of(desc) for name, desc in descs.items()}
            for side, descs in (("inputs", graph.inputs), ("outputs", graph.outputs))
        }
        own = self.context.device
        # A graph with names is compiled when it first runs.
        names = [own.name] if has_names(graph) else graph.devices
        kinds = dict.fromkeys(own.kind if name == own.name else "cpu" for name in names)
        return Answer({**described, "devices": list(kinds)})

    def _on_save(self, message: Message, payload: np.ndarray | None) -> Answer:
        graph = self._graphs.get(message["g"])
        if graph is None:
            raise InvalidStateError(f"saveGraph: there is no graph {message['g']}, or it is destroyed")
        with self._kept_graphs("saveGraph") as graphs:
            graphs.save(message["key"], graph.graph)
        return Answer({})

    def _on_load(self, message: Message, payload: np.ndarray | None) -> Answer:
        number = message["g"]
        if number in self._graphs:
            raise ProtocolError(f"graph {number} exists already")
        reserved = estimated = 0

        def reserve(count: int, purpose: str) -> None:
            nonlocal reserved
            self._budget.reserve(count, purpose)
            reserved += count

        def reserve_all(outputs: Mapping[str, Operand]) -> None:
            nonlocal estimated
            recorded = Graph.reaching(outputs)
            results = sum(len(node.outputs) for node in recorded.nodes)
            count = len(recorded.inputs) + len(recorded.constants) + results
            if count > self._limits.operands:
                raise NotSupportedError(f"loadGraph: a graph may have {self._limits.operands:,} operands here")
            constants = sum(operand.desc.byte_length for operand in recorded.constants)
            reserve(constants + OPERAND_BYTES * count, " for the graph")
            estimated = reserve_graph(reserve, outputs)

        try:
            with self._kept_graphs("loadGraph") as graphs:
                graph = graphs.load(message["key"], reserve_all)
            reserve_compiled(reserve, graph, estimated)
        except BaseException:
            self._budget.release(reserved)
            raise
        self._graphs[number] = _ServedGraph(graph, reserved)
        return self._describe(graph)

    def _on_list(self, message: Message, payload: np.ndarray | None) -> Answer:
        with self._kept_graphs("listGraphs") as graphs:
            return Answer({"keys": graphs.keys()})

    def _on_delete(self, message: Message, payload: np.ndarray | None) -> Answer:
        with self._kept_graphs("deleteGraph") as graphs:
            graphs.delete(message["key"])
        return Answer({})

    @contextmanager
    def _kept_graphs(self, method: str) -> Iterator[KeyedGraphs]:
        """The graphs that the client's origin keeps; errors have the names of JavaScript, and no paths of this machine."""
        if not self.context.drafts:
            raise NotSupportedError(f"{method}: a draft, which `opweave serve --drafts` offers")
        if self._origin == OPAQUE:
            raise NotSupportedError(
                f"{method}: graphs are kept by origin, and the page has none of its own, as files and pages in a sandbox"
            )
        limits = OriginLimits(self._limits.graphs, self._limits.graph_bytes)
        try:
            yield KeyedGraphs(self.context, PROGRAMS if self._origin is None else self._origin, limits)
        except MLError as error:
            text = str(error).replace(snake_case(method), method).replace("delete_graph(key)", "deleteGraph(key)")
            if (place := disk_cache.directory()) is not None:
                text = re.sub(rf"{re.escape(str(place))}[^\s:]*", "the cache directory of the server", text)
            raise type(error)(text if text.startswith(method) else f"{method}: {text}") from None

    def _on_dispatch(self, message: Message, payload: np.ndarray | None) -> None:
        graph = self._graphs.get(message["g"])
        if graph is None:
            raise InvalidStateError(f"dispatch: there is no graph {message['g']}, or it is destroyed")
        inputs, outputs = (
            {name: self._tensor_to_dispatch(number) for name, number in message[side].items()}
            for side in ("inputs", "outputs")
        )
        if has_names(graph.graph):
            self._reserve_version(graph, inputs)
        self.context.dispatch(graph.graph, inputs, outputs)

    def _reserve_version(self, graph: _ServedGraph, inputs: Mapping[str, MLTensor]) -> None:
        """Compile a graph with names for the sizes of tensors, within the budget."""
        state = state_of_graph(graph.graph)
        assert isinstance(state, DynamicGraphState)
        key = tuple([inputs[name].shape for name in state.inputs if name in inputs])
        if key in graph.versions:
            return
        static_bytes = intermediate_bytes(state.static_graph("dispatch", {name: t.shape for name, t in inputs.items()}))
        reserved = GRAPH_BYTES + static_bytes
        self._budget.reserve(reserved, INTERMEDIATES)
        try:
            version = state.version("dispatch", inputs)
            program = version.check_alive()
            # Decompositions add intermediates.
            legal_bytes = intermediate_bytes(program.named_graph, version.sizes)
            more_bytes = max(program.plan.peak - static_bytes, legal_bytes - static_bytes, 0)
            self._budget.reserve(more_bytes, INTERMEDIATES)
        except MLError:
            self._budget.release(reserved)
            raise
        graph.versions[key] = reserved + more_bytes
        for dropped in graph.versions.keys() - {key for key, _ in state.versions.items()}:
            self._budget.release(graph.versions.pop(dropped))

    def _on_free(self, message: Message, payload: np.ndarray | None) -> None:
        for number in message.get("tensors", ()):
            if (tensor := self._tensors.pop(number, None)) is not None:
                self._budget.release(tensor.desc.byte_length)
                if tensor.tensor is not None:
                    tensor.tensor.destroy()
        for number in message.get("graphs", ()):
            if (graph := self._graphs.pop(number, None)) is not None:
                self._budget.release(graph.bytes)
                graph.graph.destroy()
                _garbage.add(graph.bytes)
        for number in message.get("builders", ()):
            with self._builders_lock:
                builder = self._builders.pop(number, None)
            if builder is not None:
                _garbage.add(builder.release())

    def sync(self, number: int, log: Log) -> list[list[Desc]]:
        """Add operations to a builder, and return the descriptors of their results."""
        return self._builder(number).add(log)

    def compute_shapes(self, number: int, input_shapes: Message) -> dict[str, list[int]]:
        """The shapes of a graph's outputs for shapes of its inputs."""
        graph = self._graphs.get(number)
        if graph is None:
            raise InvalidStateError(f"computeShapes: there is no graph {number}, or it is destroyed")
        try:
            shapes = graph.graph.compute_shapes(input_shapes)
        except ValidationError as error:
            rule = str(error).removeprefix("compute_shapes: ").replace("input_shapes", "inputShapes", 1)
            raise ValidationError(f"computeShapes: {in_javascript(rule)}") from None
        return {name: list(shape) for name, shape in shapes.items()}

    def destroy(self) -> None:
        """Free everything of the context; further calls do nothing."""
        for tensor in self._tensors.values():
            self._budget.release(tensor.desc.byte_length)
        freed = sum(graph.bytes for graph in self._graphs.values())
        self._budget.release(freed + sum(self._coming.values()))
        self._coming.clear()
        self._tensors.clear()
        self._graphs.clear()
        with self._builders_lock:
            builders = list(self._builders.values())
            self._builders.clear()
        freed += sum(builder.release() for builder in builders)
        self.context.destroy()
        _garbage.add(freed)

    # Helpers ---------------------------------------------------------------------------------------------------------

    def _tensor(self, number: int) -> _ServedTensor:
        try:
            return self._tensors[number]
        except KeyError:
            raise InvalidStateError(f"there is no tensor {number}, or it is destroyed") from None

    def _tensor_to_dispatch(self, number: int) -> MLTensor:
        tensor = self._tensor(number)
        if tensor.tensor is None:
            raise ValidationError(f"dispatch: {tensor.desc} is a constant tensor")
        return tensor.tensor

    def _constant_tensor(self, number: int) -> ServedConstant:
        tensor = self._tensor(number)
        if tensor.tensor is not None or tensor.contents is None:
            raise ValidationError(f"constant: the tensor {tensor.desc} was not made by createConstantTensor")
        return ServedConstant(tensor.desc, tensor.contents.view(tensor.desc.data_type).reshape(tensor.desc.shape), True)

    def _builder(self, number: int) -> ServedBuilder:
        with self._builders_lock:
            builder = self._builders.get(number)
            if builder is None:
                builder = self._builders[number] = ServedBuilder(
                    self.context, self._budget, self._limits.operands, self._constant_tensor
                )
            return builder


def descriptor_of(desc: Desc) -> Message:
    """A descriptor as JavaScript receives it (`MLOperandDescriptor`); sizes have their names or formulas."""
    shape = [(size.name or str(size)) if isinstance(size, Size) else size for size in desc.shape]
    return {"dataType": desc.data_type, "shape": shape}


def _bytes(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)


def _in_camel_case(value: Any) -> Any:
    if isinstance(value, dict):
        return {camel_case(name): _in_camel_case(item) for name, item in value.items()}
    return value
