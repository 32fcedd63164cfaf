"""Walk over an ONNX graph with static shapes: fold constants, convert what WebNN can express, mark the rest as fallback.

Every name gets a value: a `Constant` (known now), a `Tensor` (an operand, computed when the graph runs) or `Dynamic` (made by
a node that falls back, of unknown shape). This module chooses the treatment of each node; `fold` computes constants,
`conversion` calls converters, `control` inlines If, Loop and Scan, `labels` splits classifiers with string labels, and
`inference` asks ONNX for types and definitions.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ... import memory
from ...context.builder import NamedBuilder
from ...context.context import MLContext
from ...core.bodies import add_input
from ...core.graph import Graph, MLOperand
from ...core.operation import Op
from ...core.sizes import is_static as is_fixed
from ...support.background import background
from ...support.errors import DataError, MLError, NotSupportedError, OperationError, ValidationError
from ...support.names import short_repr
from ...support.settings import STRICT
from ..model import checks
from ..model.model import Model
from ..model.protobuf import (
    GraphProto,
    NodeProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
    domain_of,
    dtype_of,
    tensor_type,
)
from ..model.registry import DATA_TYPES, NotConstant, Unsupported, key_of
from ..model.scopes import all_nodes, free_names
from ..model.shape_keys import DECIDING_ELEMENTS, ValuesNeeded as ValuesNeeded
from ..model.values import Constant, Dynamic, NamedSizes, SizeData, Tensor, Value, shape_of, type_of
from . import operators as operators  # importing `operators` registers the converters
from .bounded import PaddedValue, bound
from .control import CONTROL, check_ends
from .conversion import convert, operand_of_constant
from .fold import fold
from .inference import definition_of, infer, is_defined, is_static, is_valid
from .labels import CLASSIFIER, has_names, name_labels

Kind = Literal["webnn", "fallback", "folded"]


@dataclass
class TracedNode:
    """One ONNX node, and its treatment: `kind` is "webnn", "fallback" with a reason, or "folded".

    `op` is the user's operation for its operator.
    """

    node: NodeProto
    kind: Kind
    op: Op[..., Any] | None
    reason: str = ""


@dataclass
class BodyScope:
    """The builder of a body, and the operands around the body that it may read -> the inputs that stand for them."""

    builder: NamedBuilder
    captured: dict[MLOperand, MLOperand]


@dataclass
class Trace:
    """The result of tracing a graph.

    `values` and `producer` (the step that computes a value) are by name. `deciding` are small inputs of the model (shapes,
    axes, conditions) whose values would avoid fallback if they were known.
    """

    steps: list[TracedNode] = field(default_factory=list)
    values: dict[str, Value] = field(default_factory=dict)
    producer: dict[str, TracedNode] = field(default_factory=dict)
    deciding: set[str] = field(default_factory=set)


class Tracer:
    """Traces the graph of a model for given input shapes, None if unknown, and for `values` of inputs that determine shapes.

    If an input in `available`, whose value the caller can supply, determines shapes, tracing stops immediately with
    `ValuesNeeded`: continuing would be useless, and would take memory while branches and loops are not unrolled. `types` has
    types of results of fallback nodes, where they are known better than by inference.
    """

    def __init__(
        self,
        model: Model,
        context: MLContext,
        shapes: Mapping[str, tuple[int, ...] | None],
        values: Mapping[str, np.ndarray] | None = None,
        available: Collection[str] = (),
        types: Mapping[str, TypeProto] | None = None,
    ) -> None:
        self.model, self.context, self._types = model, context, types or {}
        self.builder = NamedBuilder(context)
        self.trace = Trace()
        self.bounded: dict[str, PaddedValue] = {}  # values whose size depends on data, by name
        self._shapes, self._values, self._available = shapes, values or {}, available
        self._folded_bytes = 0
        self.is_expanding = False  # whether nodes are those of ONNX's definition of an operator
        self._around: dict[MLOperand, MLOperand] = {}  # inputs of bodies -> the operands that they stand for
        self._expanded = 0  # the number of nodes that were replaced by others
        self._mark = "/"  # separates parts of new names; no name of the model contains it
        while any(self._mark in name for name in model.names):
            self._mark += "/"

    def run(self) -> Trace:
        """Trace the whole graph; operations are labelled with the names of the model's nodes."""
        graph = self.model.proto.graph
        for name, array in self.model.weights:
            if name not in self._shapes:  # an input overrides the initializer of its name
                self.add_constant(name, array)
        for info in graph.input:
            if info.name in self._values:
                self.add_constant(info.name, self._values[info.name])
            elif info.name not in self.trace.values:
                self.trace.values[info.name] = self._input(info)
        for node in graph.node:
            for step in self._steps(node):
                self.trace.steps.append(step)
                for name in step.node.output[:]:
                    if name:
                        self.trace.producer[name] = step
        _label_nodes(self.trace)
        return self.trace

    # Used by `control`, `labels` and `bounded` -------------------------------------------------------------------------

    @property
    def opset(self) -> int:
        """The version of ONNX's own operators."""
        return self.model.opsets.get("", 1)

    def constant_of(self, name: str, subject: str) -> np.ndarray:
        """The array of a constant; `Unsupported`, with `subject` in its message, if the value is not constant."""
        match self.trace.values[name]:
            case Constant(array):
                return array
            case Tensor(operand):
                raise NotConstant(subject, operand)
        raise Unsupported(f"{subject} is not constant")

    def element_type(self, name: str) -> int:
        """The ONNX element type of a value; `Unsupported` if it is known only when the graph runs."""
        value = self.trace.values[name]
        if isinstance(value, Dynamic):
            raise Unsupported(f"the type of {name!r} is not known")
        return value.element_type

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a value; `Unsupported` if it is known only when the graph runs."""
        shape = shape_of(self.trace.values[name])
        if shape is None:
            raise Unsupported(f"the shape of {name!r} is not known")
        return shape

    def add_constant(self, name: str, array: np.ndarray | NamedSizes | SizeData) -> str:
        """Add a constant, and return its name."""
        self.trace.values[name] = array if isinstance(array, Constant) else Constant(array)
        return name

    def add_dynamic(self, name: str, type: TypeProto | None) -> None:
        """Add a value of unknown shape."""
        self.trace.values[name] = Dynamic(self._types.get(name) or type)

    def infer(self, node: NodeProto, values: Sequence[Value | None]) -> Mapping[str, TypeProto]:
        """The types of a node's outputs."""
        return self._infer(node, values)

    def initializers(self, graph: GraphProto) -> list[tuple[str, np.ndarray]]:
        """The names and arrays of a sub-graph's initializers."""
        dense = [(initializer.name, self.model.array(initializer)) for initializer in graph.initializer]
        return dense + [(sparse.values.name, self.model.dense(sparse)) for sparse in graph.sparse_initializer]

    def fresh(self, node: NodeProto) -> str:
        """A new prefix for the names of values that are made in place of a node."""
        self._expanded += 1
        return f"{next(name for name in node.output if name)}{self._mark}{self._expanded}{self._mark}"

    def convert(self, node: NodeProto) -> dict[str, Value]:
        """The outputs of a node that WebNN expresses, by name; `Unsupported` for others."""
        values = [self.trace.values[name] if name else None for name in node.input[:]]
        return convert(self.builder, node, values, self.model, lambda: self._infer(node, values))

    def steps(self, nodes: Iterable[NodeProto], *, whole: bool = False) -> list[TracedNode]:
        """Trace nodes in order; with `whole`, `Unsupported` if a node falls back."""
        traced: list[TracedNode] = []
        for node in nodes:
            checks.check_node(node)  # nodes of the main graph were checked when the model was read
            steps = self._steps(node)
            for step in steps:
                if whole and step.kind == "fallback":
                    raise Unsupported(f"{step.node.op_type} inside: {step.reason}")
            traced += steps
        return traced

    # Bodies ----------------------------------------------------------------------------------------------------------

    @contextmanager
    def inside(self, graph: GraphProto, prefix: str) -> Iterator[BodyScope]:
        """Trace nodes of a sub-graph in a new builder; values around the sub-graph become inputs of the builder."""
        outer = self.builder, self.trace.values, self.bounded
        builder = NamedBuilder(self.context)
        scope = BodyScope(builder, {})
        values: dict[str, Value] = {}
        for name in sorted(free_names(graph)):
            value = outer[1].get(name)
            if isinstance(value, Tensor):
                operand = value.operand
                if operand not in scope.captured:
                    inner = add_input(builder, f"{prefix}captured {len(scope.captured)}", operand.desc)
                    scope.captured[operand] = inner
                    self._around[inner] = operand
                value = Tensor(scope.captured[operand], value.element_type)
            if value is not None:
                values[name] = value
        self.builder, self.trace.values, self.bounded = builder, values, {}
        try:
            yield scope
        finally:
            self.builder, self.trace.values, self.bounded = outer

    def label(self, steps: Iterable[TracedNode]) -> None:
        """Label the operations of steps with the names of their nodes."""
        producer = {name: step for step in steps for name in step.node.output if name}
        _label_nodes(Trace(values=self.trace.values, producer=producer))

    def require_values(self, operand: MLOperand) -> None:
        """Raise `ValuesNeeded` if the caller can supply the value of an operand, which decides what is computed."""
        if needed := self._inputs_behind(operand).intersection(self._available):
            raise ValuesNeeded(needed)

    def operand_of_constant(self, value: Constant) -> MLOperand:
        """The operand of a value that is known while the graph is built."""
        return operand_of_constant(self.builder, value, self.model)

    # Values ----------------------------------------------------------------------------------------------------------

    def _input(self, info: ValueInfoProto) -> Value:
        shape = self._shapes[info.name]
        type = info.type
        element_type = type.tensor_type.elem_type if type.HasField("tensor_type") else 0
        # The shape of the array that is passed may be more precise than the declared one.
        if shape is not None and element_type and is_fixed(shape):
            type = tensor_type(element_type, shape)
            dtype = dtype_of(element_type)
            if is_fixed(shape) and 0 in shape and dtype.kind not in "OUS":
                return Constant(np.zeros(shape, dtype))  # an empty tensor has no values that could vary
        return self._placeholder(info.name, type, element_type, shape)

    def _placeholder(self, name: str, type: TypeProto, element_type: int, shape: Sequence[int] | None) -> Value:
        """A value that comes from outside the WebNN graphs."""
        data_type = DATA_TYPES.get(element_type)
        if data_type is None or shape is None:
            return Dynamic(type)
        try:
            return Tensor(self.builder.input(name, data_type, shape), element_type)
        except ValidationError:  # an empty tensor, or one that is too large
            return Dynamic(type)

    def _sources_of(self, operand: MLOperand) -> Iterator[MLOperand]:
        """The inputs that an operand depends on; those that a body captures are followed."""
        for source in Graph.reaching({"": operand}).inputs.values():
            if source in self._around:
                yield from self._sources_of(self._around[source])
            else:
                yield source

    def _inputs_behind(self, operand: MLOperand) -> set[str]:
        """The model inputs that an operand depends on; empty if some of the inputs are data."""
        inputs = list(self._sources_of(operand))
        names = {source.name for source in inputs}
        is_data = any(source.rank > 1 or source.desc.element_count > DECIDING_ELEMENTS for source in inputs)
        return names if names <= self._shapes.keys() and not is_data else set()

    # Nodes -----------------------------------------------------------------------------------------------------------

    def _steps(self, node: NodeProto) -> list[TracedNode]:
        """Trace a node: one step, or the steps of the nodes that replace it; `DataError` if the node is invalid."""
        background.give_way()
        try:
            steps = self._trace(node)
        except (MLError, Unsupported):
            raise
        except MemoryError:
            raise OperationError(f"{checks.title_of(node)}: there is no memory for what it makes") from None
        except Exception as error:  # invalid nodes fail in many ways: missing inputs, attributes of a wrong type
            self._blame(node, error)
            raise DataError(f"{checks.title_of(node)} is broken ({_describe(error)})") from error
        for position, name in enumerate(node.output[:]):
            if name and name not in self.trace.values:
                title = checks.title_of(node)
                raise DataError(f"{title} makes no output {position}, which the model calls {name[:200]!r}")
        return steps

    def _trace(self, node: NodeProto) -> list[TracedNode]:
        environment = self.trace.values
        operation = self.model.operation(node)
        op = operation.op if operation is not None else None
        values = [environment[name] if name else None for name in node.input[:]]
        if checks.needs_inputs(node):
            arrays = [value.array if type(value) is Constant else None for value in values]
            checks.check_node(node, "", [shape_of(value) for value in values], arrays)
        if self._fold(node, values):
            return [TracedNode(node, "folded", op)]
        try:
            if node.op_type in CONTROL and domain_of(node) == "":
                return CONTROL[node.op_type](self, node)
            if operation is None and key_of(node) == CLASSIFIER and has_names(node):
                return name_labels(self, node)
            outputs = self.convert(node)
        except Unsupported as error:
            reason = str(error)
            if isinstance(error, NotConstant):
                behind = self._inputs_behind(error.operand)
                if needed := behind.intersection(self._available):
                    raise ValuesNeeded(needed) from None
                self.trace.deciding |= behind
        except (ValidationError, NotSupportedError) as error:
            reason = f"the builder refuses it: {error}"
        except MLError:
            raise
        except Exception as error:  # an invalid node; the engine reports the reason
            reason = f"{self._blame(node, error)} ({_describe(error)})"
        else:
            self.trace.values |= outputs
            return [TracedNode(node, "webnn", op)]
        if operation is not None and not operation.falls_back:
            is_wide = any(value is not None and value.element_type == TensorProto.DOUBLE for value in values)
            hint = "; WebNN has no float64; put a Cast to float before it" if is_wide else ""
            raise NotSupportedError(f"{checks.title_of(node)}: {reason}{hint}")
        for inner in all_nodes([node]) if self.model.operations else ():
            if (
                inner is not node
                and (inner_operation := self.model.operation(inner)) is not None
                and (own := inner_operation.op) is not None
            ):
                subject = f"{checks.title_of(inner)} inside of it is your operation {own.name}, which the engine lacks"
                raise NotSupportedError(f"{checks.title_of(node)} falls back ({reason}), and {subject}")
        if operation is None and (steps := bound(self, node)):
            return steps
        if steps := self._expand(node, values):
            return steps
        self._fall_back(node, values)
        return [TracedNode(node, "fallback", op, reason)]

    def _fold(self, node: NodeProto, values: Sequence[Value | None]) -> bool:
        """Make a node's outputs constants, if they can be computed now; return whether they are."""
        folded = fold(node, values, self.model, lambda: self._infer(node, values))
        if not folded:
            return False
        self._folded_bytes += sum(array.nbytes for array in folded if isinstance(array, np.ndarray))
        subject = f"{checks.title_of(node)}: the bytes of all results that are computed while the model is loaded"
        self.model.limits.check("folded_bytes", self._folded_bytes, subject)
        for name, array in zip(node.output, folded, strict=False):
            if name:
                self.add_constant(name, array)
        return True

    def _expand(self, node: NodeProto, values: Sequence[Value | None]) -> list[TracedNode]:
        """Trace ONNX's definition of an operator, if WebNN expresses all of its nodes or ONNX Runtime lacks the operator."""
        from ...backends.onnxruntime.opsets import knows

        if not is_defined(node, self.model):
            return []
        types = {name: type_of(value) for name, value in zip(node.input, values, strict=True)}
        if not all(type.WhichOneof("value") for name, type in types.items() if name):
            return []
        nodes = definition_of(node, types, self.model, self.fresh(node))
        model, is_expanding = self.model, self.is_expanding
        self.model, self.is_expanding = model.without_overrides(), True
        try:
            return self.steps(nodes, whole=knows(node, domain_of(node)))
        except ValuesNeeded:
            raise
        except (Unsupported, OperationError):  # the error of the fallback names the node itself
            return []
        finally:
            self.model, self.is_expanding = model, is_expanding

    def _fall_back(self, node: NodeProto, values: Sequence[Value | None]) -> None:
        if node.op_type == "Loop" and domain_of(node) == "":
            check_ends(self, node)
        inferred = self._infer(node, values)
        for name in filter(None, node.output):
            type = self._types.get(name) or inferred.get(name, TypeProto())
            tensor = type.tensor_type
            if name in self.model.surprising and name not in self._types and type.HasField("tensor_type"):
                tensor.ClearField("shape")
            shape = [dim.dim_value for dim in tensor.shape.dim] if is_static(tensor) else None
            if shape is not None and not 0 <= math.prod(shape) <= memory.physical():
                subject = f"its output {name[:200]!r} of shape {short_repr(shape)}"
                raise OperationError(f"{checks.title_of(node)}: there is no memory for {subject}")
            self.trace.values[name] = self._placeholder(name, type, tensor.elem_type, shape)

    def _infer(self, node: NodeProto, values: Sequence[Value | None]) -> dict[str, TypeProto]:
        return infer(node, values, self.model, self.trace.values)

    def _blame(self, node: NodeProto, error: Exception) -> str:
        """Say whether the node or its converter causes an unexpected error; raise it under `STRICT` if the converter does."""
        if not is_valid(node, {name: self.trace.values[name] for name in node.input if name}, self.model):
            return "it breaks the rules of its operator"
        if STRICT in os.environ:
            raise error
        return "its converter fails, though ONNX finds nothing wrong with the node"


def _label_nodes(trace: Trace) -> None:
    """Label unlabelled operations with the name of their ONNX node, or of an output if the node has no name."""
    ends = {value.operand for value in trace.values.values() if isinstance(value, Tensor)}
    for name, step in trace.producer.items():
        value = trace.values.get(name)
        pending = [value.operand.node] if isinstance(value, Tensor) else []
        while pending:
            node = pending.pop()
            if node is not None and not node.label:
                node.label = step.node.name or name
                pending += [operand.node for operand in node.operands if operand not in ends]


def _describe(error: Exception) -> str:
    try:
        text = " ".join(str(error).split())
    except Exception:  # the message may not be decodable
        text = "no message"
    return f"{type(error).__name__}: {text[:300]}"
