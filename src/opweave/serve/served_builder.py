"""The server's side of a client's graph builder: its operands by number, and the memory of constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import RLock
from typing import Any, TypeAlias

import numpy as np

from .. import memory
from ..context.builder import MLGraphBuilder
from ..context.context import MLContext
from ..context.dynamic_graph_state import DynamicGraphState
from ..context.graph import MLGraph, program_of, state_of
from ..core.conversion import convert_desc
from ..core.graph import Desc, Graph, MLOperand, Operand, check_desc
from ..support.errors import NotSupportedError, OperationError
from ..support.names import short_repr, snake_case
from .intermediates import intermediate_bytes
from .limits import GRAPH_BYTES, OPERAND_BYTES, ServerBudget
from .log import call, decode
from .messages import ProtocolError, is_id

Log: TypeAlias = "Sequence[Any]"

INTERMEDIATES = " for intermediates of the graph"


@dataclass
class ServedConstant:
    """The memory of a constant, allocated when the first of its log entry and its payload arrives."""

    desc: Desc
    array: np.ndarray
    is_filled: bool = False


class LogError(Exception):
    """A log entry has failed. `before` holds what `ServedBuilder.add` would have returned for the entries before it."""

    def __init__(self, index: int, error: Exception, before: list[list[Desc]]) -> None:
        super().__init__(str(error))
        self.index, self.error, self.before = index, error, before


class ServedBuilder:
    """A graph builder of a client, used by the thread of its context and by the threads that serve `POST /sync`.

    `reserved` is the number of bytes taken from the budget for constants, operands, the graph and intermediates.
    """

    def __init__(
        self,
        context: MLContext,
        budget: ServerBudget,
        max_operands: int,
        constant_tensor: Callable[[int], ServedConstant],
    ) -> None:
        self._builder = MLGraphBuilder(context)
        self._context, self._budget, self._max_operands = context, budget, max_operands
        self._constant_tensor = constant_tensor
        self._operands: dict[int, MLOperand] = {}
        self._constants: dict[int, ServedConstant] = {}
        self._lock = RLock()
        self.reserved = 0

    def constant(self, number: int, data_type: Any, shape: Any) -> ServedConstant:
        """Return the memory of a constant, allocated on the first call."""
        desc = describe(self._context, data_type, shape)
        with self._lock:
            constant = self._constants.get(number)
            if constant is None:
                self._reserve(desc.byte_length)
                constant = self._constants[number] = ServedConstant(desc, memory.allocate(desc))
            elif constant.desc != desc:
                raise ProtocolError(f"constant {number} is {constant.desc}, got {desc}")
            return constant

    def _reserve(self, count: int, purpose: str = "") -> None:
        self._budget.reserve(count, purpose)
        self.reserved += count

    def add(self, log: Log) -> list[list[Desc]]:
        """Replay log entries, and return the descriptors of each entry's results. Entries before one that fails stay."""
        descs: list[list[Desc]] = []
        with self._lock:
            for index, entry in enumerate(log):
                match entry:
                    case [str(name), first, list(arguments), dict(options)] if is_id(first):
                        pass
                    case _:
                        raise ProtocolError(f"an entry of a log must not be {short_repr(entry)}")
                try:
                    results = self._add(name, first, arguments, options)
                except (ProtocolError, AssertionError):
                    raise
                except Exception as error:
                    raise LogError(index, error, descs) from error
                descs.append([result.desc for result in results])
        return descs

    def _add(self, name: str, first: int, arguments: list[Any], options: dict[str, Any]) -> Sequence[MLOperand]:
        source = self._add_source(name, first, arguments)
        if source is None:
            values = [decode(value, self._operand) for value in arguments]
            keywords = {option: decode(value, self._operand) for option, value in options.items()}
            results = call(self._builder, name, values, keywords)
        else:
            results = (source,)
        if len(self._operands) + len(results) > self._max_operands:
            raise NotSupportedError(f"{name}: a graph may have {self._max_operands:,} operands here")
        self._reserve(OPERAND_BYTES * len(results))
        for number, result in enumerate(results, first):
            if number in self._operands:
                raise ProtocolError(f"operand {number} exists already")
            self._operands[number] = result
        return results

    def _operand(self, number: int) -> MLOperand:
        try:
            return self._operands[number]
        except KeyError:
            raise ProtocolError(f"there is no operand {number}") from None

    def _add_source(self, name: str, number: int, arguments: list[Any]) -> MLOperand | None:
        """Add an input or a constant, and return it; return None if `name` is an operation."""
        match name, arguments:
            case "input", [text, {"dataType": data_type, "shape": shape}]:
                return self._builder.input(text, data_type, [*map(_dimension, shape)] if type(shape) is list else shape)
            case "constant", [{"dataType": data_type, "shape": shape, **more}]:
                self._builder._check_open()
                constant = self.constant(number, data_type, shape)
                if "bytes" in more:
                    _fill(constant.array, more["bytes"])
                return self._builder.constant(constant.desc.data_type, constant.desc.shape, constant.array)
            case "constantTensor", [int(tensor)]:
                constant = self._constant_tensor(tensor)
                return self._builder.constant(constant.desc.data_type, constant.desc.shape, constant.array)
            case "constantNumber", [data_type, value]:
                return self._builder.constant(data_type, decode(value, self._operand))
            case "input" | "constant" | "constantTensor" | "constantNumber", _:
                raise ProtocolError(f"{name}: the arguments must not be {short_repr(arguments)}")
        return None

    def build(self, log: Log, outputs: dict[str, int]) -> MLGraph:
        """Replay the last entries, and compile the graph."""
        with self._lock:
            self.add(log)
            results = {name: self._operand(number) for name, number in outputs.items()}
            missing = next((number for number, constant in self._constants.items() if not constant.is_filled), None)
            if missing is not None:
                raise ProtocolError(f"the payload of constant {missing} has not come")
            estimated_bytes = reserve_graph(self._reserve, results)
            graph = self._builder.build(results)
            reserve_compiled(self._reserve, graph, estimated_bytes)
            self._operands.clear()
            self._constants.clear()
            return graph

    def release(self) -> int:
        """Drop all operands, and return the number of bytes given back to the budget."""
        with self._lock:
            self._operands.clear()
            self._constants.clear()
            released, self.reserved = self.reserved, 0
            self._budget.release(released)
            return released


def reserve_graph(reserve: Callable[[int, str], object], outputs: Mapping[str, Operand]) -> int:
    """Reserve what a graph takes besides constants and operands, before it is compiled; return the bytes of intermediates."""
    reserve(GRAPH_BYTES, "")
    builder: Any = next((operand.builder for operand in outputs.values()), None)
    estimated_bytes = 0 if builder is None or builder.has_names else intermediate_bytes(Graph.reaching(outputs))
    reserve(estimated_bytes, INTERMEDIATES)
    return estimated_bytes


def reserve_compiled(reserve: Callable[[int, str], object], graph: MLGraph, estimated_bytes: int) -> None:
    """Reserve what the compiled graph takes beyond the estimate; if there is no room, the graph is destroyed."""
    if has_names(graph):
        return
    program = program_of(graph)
    # Decompositions add intermediates.
    compiled_bytes = max(program.plan.peak, intermediate_bytes(program.graph))
    try:
        reserve(max(compiled_bytes - estimated_bytes, 0), INTERMEDIATES)
    except OperationError:
        graph.destroy()
        raise


def has_names(graph: MLGraph) -> bool:
    """Whether the sizes of a graph are known only when it runs."""
    return isinstance(state_of(graph), DynamicGraphState)


def _fill(array: np.ndarray, numbers: Any) -> None:
    """Write the bytes of a small constant, whose payload may come later."""
    fits = type(numbers) is list and len(numbers) == array.nbytes
    if not fits or not all(type(number) is int and 0 <= number < 256 for number in numbers):
        raise ProtocolError(f"the bytes of a constant must not be {short_repr(numbers)}")
    array.reshape(-1).view(np.uint8)[:] = numbers


def _dimension(size: Any) -> Any:
    """A dimension of an input: JavaScript has `{name, minSize, maxSize}`."""
    return {snake_case(key): value for key, value in size.items()} if isinstance(size, dict) else size


def describe(context: MLContext, data_type: object, shape: object) -> Desc:
    """Return a descriptor, checked for a context; `ValidationError` if it is invalid there."""
    return check_desc(convert_desc(data_type, shape), context.backend.max_byte_length)


def check_length(desc: Desc, size: int) -> None:
    """Require that a payload of `size` bytes fits a tensor. Call this before memory is allocated."""
    if desc.byte_length != size:
        raise ProtocolError(f"{desc} has {desc.byte_length} bytes, and a payload of {size} was announced")
