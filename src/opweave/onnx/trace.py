"""Walk over an ONNX graph with static shapes: fold what is constant, convert what WebNN can express, mark the rest.

All values get a place in one environment: `Constant` (known now), `Tensor` (an operand; computed when the graph runs) or
`Dynamic` (made by a node that falls back, of a shape that is known only then).
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from .. import memory
from ..builder import MLGraphBuilder
from ..context import MLContext
from ..dtypes import FLOATS
from ..errors import DataError, MLError, NotSupportedError, OperationError, ValidationError
from ..graph import MLOperand
from ..names import shown
from . import checks, fold, operators as operators  # the latter registers the converters
from .booleans import as_declared, as_stored
from .control import CONTROL, check_ends
from .messages import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
    attribute_value,
    dtype_of,
    element_type_of,
    tensor_type,
)
from .model import Model
from .registry import CONVERTERS, DATA_TYPES, Converter, NotConstant, Unsupported, key_of

FOLD_BYTES = 65536
"""Nodes on constants up to this size are computed at once: shape arithmetic, not weights."""

STRICT = "OPWEAVE_STRICT"
"""The environment variable under which faults of ours are raised, and not only told: the tests set it."""

DECIDING_ELEMENTS = 16
"""Inputs with more elements, or more than one dimension, are data; they are not asked what they decide."""

_BOOLEAN_RESULTS = frozenset(
    {
        *("And", "Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual"),
        *("Not", "Or", "Xor"),
    }
)
"""ONNX's operators with results of bool whatever they get."""

Kind = Literal["webnn", "fallback", "folded"]


class ValuesNeeded(OperationError):  # noqa: N818  (not an error: the trace starts again, with them)
    """A trace has ended early: values of these inputs of the model, which can be had, decide about shapes.

    Attributes:
        names: the inputs.
    """

    def __init__(self, names: set[str]) -> None:
        super().__init__(f"the values of {sorted(names)} decide about shapes")
        self.names = names


@dataclass(frozen=True)
class Constant:
    """A value that is known while the graph is built."""

    array: np.ndarray

    @property
    def element_type(self) -> int:
        """The ONNX element type."""
        return element_type_of(self.array.dtype)


@dataclass(frozen=True)
class Tensor:
    """A value that an operand stands for, and its ONNX element type (bool is carried as uint8)."""

    operand: MLOperand
    element_type: int


@dataclass(frozen=True)
class Dynamic:
    """A value that fallback makes, of unknown shape; the type as far as it is known."""

    type: TypeProto | None = None


Value = Constant | Tensor | Dynamic


@dataclass
class Step:
    """What became of one ONNX node.

    Attributes:
        node: the node.
        kind: "webnn", "fallback" or "folded".
        reason: why it fell back.
        level: segments of one level depend only on lower ones; see `partition`.
    """

    node: NodeProto
    kind: Kind
    reason: str = ""
    level: int = 0


@dataclass
class Trace:
    """An ONNX graph that has been walked over.

    Attributes:
        steps: what became of each node, in order.
        values: the value of each name.
        maker: for each name made by a node, the step.
        operands: for each operand that stands for a name, the first such name.
        deciding: small inputs of the model (shapes, axes, conditions) that would spare fallback if their values were known.
    """

    steps: list[Step] = field(default_factory=list)
    values: dict[str, Value] = field(default_factory=dict)
    maker: dict[str, Step] = field(default_factory=dict)
    operands: dict[MLOperand, str] = field(default_factory=dict)
    deciding: set[str] = field(default_factory=set)


class Tracer:
    """Walks over the graph of a model for given input shapes, and for given values of some inputs.

    Args:
        model: the model.
        context: where it will run.
        shapes: the shape of each input.
        values: those of inputs that decide about shapes.
        available: inputs whose values can be had: where one of them decides, the trace ends with `ValuesNeeded` at once. To
            go on would be to work for nothing, and takes memory where branches and loops are still whole.
    """

    def __init__(
        self,
        model: Model,
        context: MLContext,
        shapes: Mapping[str, tuple[int, ...] | None],
        values: Mapping[str, np.ndarray] | None = None,
        available: Collection[str] = (),
    ) -> None:
        self.model, self.context = model, context
        self.builder = MLGraphBuilder(context)
        self.trace = Trace()
        self._shapes, self._values, self._available = shapes, values or {}, available
        # Nodes that have been replaced by others: these are named by its number, and a mark that no other name holds.
        self._expanded = 0
        self._folded_bytes = 0
        self._mark = "/"
        while any(self._mark in name for name in model.names):
            self._mark += "/"

    def run(self) -> Trace:
        """Walk over the whole graph."""
        graph = self.model.proto.graph
        for name, array in self.model.weights:
            if name not in self._shapes:  # else it is overridden
                self.add_constant(name, array)
        for info in graph.input:
            if info.name in self._values:
                self.add_constant(info.name, self._values[info.name])
            elif info.name not in self.trace.values:
                self._bind(info.name, self._input(info))
        for step in self.steps(graph.node):
            self.trace.steps.append(step)
            for name in step.node.output:
                if name:
                    self.trace.maker[name] = step
        return self.trace

    # What control flow needs -----------------------------------------------------------------------------------------

    @property
    def opset(self) -> int:
        """The version of ONNX's own operators."""
        return self.model.opsets.get("", 1)

    def constant(self, name: str) -> np.ndarray | None:
        """The array of a value that is known now, else None."""
        value = self.trace.values[name]
        return value.array if isinstance(value, Constant) else None

    def known(self, name: str, what: str) -> np.ndarray:
        """The array of a value that must be known now, else `Unsupported`."""
        match self.trace.values[name]:
            case Constant(array):
                return array
            case Tensor(operand):
                raise NotConstant(what, operand)
        raise Unsupported(f"{what} is not constant")

    def element_type(self, name: str) -> int:
        """The ONNX element type of a value; `Unsupported` where it will be known only when the graph runs."""
        value = self.trace.values[name]
        if isinstance(value, Dynamic):
            raise Unsupported(f"the type of {name!r} is not known")
        return value.element_type

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a value; `Unsupported` where it will be known only when the graph runs."""
        match self.trace.values[name]:
            case Constant(array):
                return array.shape
            case Tensor(operand):
                return operand.shape
        raise Unsupported(f"the shape of {name!r} is not known")

    def add_constant(self, name: str, array: np.ndarray) -> str:
        """Name an array; the name."""
        self._bind(name, Constant(array))
        return name

    def initializers(self, graph: GraphProto) -> list[tuple[str, np.ndarray]]:
        """The names and arrays of a sub-graph's initializers."""
        dense = [(initializer.name, self.model.array(initializer)) for initializer in graph.initializer]
        return dense + [(sparse.values.name, self.model.dense(sparse)) for sparse in graph.sparse_initializer]

    def fresh(self, node: NodeProto) -> str:
        """What the names of values begin with that are made in place of a node."""
        self._expanded += 1
        return f"{next(name for name in node.output if name)}{self._mark}{self._expanded}{self._mark}"

    def steps(self, nodes: Iterable[NodeProto], *, whole: bool = False) -> list[Step]:
        """What becomes of nodes, in order; `Unsupported` where all of them should be WebNN's, the `whole`, and one is not."""
        found: list[Step] = []
        for node in nodes:
            steps = self._steps(node)
            for step in steps:
                if whole and step.kind == "fallback":
                    raise Unsupported(f"{step.node.op_type} inside: {step.reason}")
            found += steps
        return found

    # Nodes -----------------------------------------------------------------------------------------------------------

    def _input(self, info: ValueInfoProto) -> Value:
        shape = self._shapes[info.name]
        element_type = info.type.tensor_type.elem_type if info.type.HasField("tensor_type") else 0
        type = info.type
        if shape is not None and element_type:  # what is known of it now is more than the model says
            type = tensor_type(element_type, shape)
            dtype = dtype_of(element_type)
            if 0 in shape and dtype.kind in "biuf":
                return Constant(np.zeros(shape, dtype))  # there is nothing about it that is not known
        return self._placeholder(info.name, type, element_type, shape)

    def _placeholder(self, name: str, type: TypeProto, element_type: int, shape: Sequence[int] | None) -> Value:
        """A value that arrives from outside of WebNN."""
        data_type = DATA_TYPES.get(element_type)
        if data_type is None or shape is None:
            return Dynamic(type)
        try:
            return Tensor(self.builder.input(name, data_type, shape), element_type)
        except ValidationError:  # an empty tensor, or one too large
            return Dynamic(type)

    def _bind(self, name: str, value: Value) -> None:
        self.trace.values[name] = value
        if isinstance(value, Tensor):
            self.trace.operands.setdefault(value.operand, name)

    def _steps(self, node: NodeProto) -> list[Step]:
        """What becomes of a node: one step, or several where others take its place.

        Raises:
            DataError: it is broken beyond what the engine could judge.
        """
        title = checks.title_of(node)
        try:
            steps = self._steps_of_sound(node)
        except (MLError, Unsupported):
            raise
        except MemoryError:
            raise OperationError(f"{title}: there is no memory for what it makes") from None
        except Exception as error:  # inputs that are missing, attributes of another type: there is no end of it
            self._blame(node, error)
            raise DataError(f"{title} is broken ({_described(error)})") from error
        for position, name in enumerate(node.output):
            if name and name not in self.trace.values:
                raise DataError(f"{title} makes no output {position}, which the model calls {name[:200]!r}")
        return steps

    def _steps_of_sound(self, node: NodeProto) -> list[Step]:
        values = [self.trace.values[name] if name else None for name in node.input]
        arrays = [value.array if isinstance(value, Constant) else None for value in values]
        checks.check_node(node, "", [_shape_of(value) for value in values], arrays)
        if folded := self._fold(node, values):
            self._folded_bytes += sum(array.nbytes for array in folded)
            what = f"{checks.title_of(node)}: the bytes of all results that are computed while the model is loaded"
            self.model.limits.check("folded_bytes", self._folded_bytes, what)
            for name, array in zip(node.output, folded, strict=False):
                if name:
                    self._bind(name, Constant(array))
            return [Step(node, "folded")]
        try:
            if node.op_type in CONTROL and node.domain in ("", "ai.onnx"):
                return CONTROL[node.op_type](self, node)
            self._convert(node, values)
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
        except Exception as error:  # where the node is broken, the engine says what is wrong with it
            reason = f"{self._blame(node, error)} ({_described(error)})"
        else:
            return [Step(node, "webnn")]
        if CONVERTERS.get(key_of(node), _NONE).is_custom:
            raise NotSupportedError(f"{checks.title_of(node)}: {reason}")
        if steps := self._expand(node, values):
            return steps
        self._fall_back(node, values)
        return [Step(node, "fallback", reason)]

    def _blame(self, node: NodeProto, error: Exception) -> str:
        """Whose fault an unexpected error is: the node's, where ONNX's checks find one, else ours, which tests must see."""
        if not self._is_sound(node):
            return "it breaks the rules of its operator"
        if STRICT in os.environ:
            raise error
        return "its converter fails, though ONNX finds nothing wrong with the node"

    def _is_sound(self, node: NodeProto) -> bool:
        """Whether ONNX's own checks find nothing wrong with a node."""
        from onnx import checker, shape_inference

        proto, schema = self.model.proto, self._schema(node)
        imports = {entry.domain: entry.version for entry in proto.opset_import}
        context = checker.C.CheckerContext()
        context.ir_version, context.opset_imports = proto.ir_version, imports
        values = {name: self.trace.values[name] for name in node.input if name}
        try:
            checker.check_node(node, context)
            if schema is not None:
                types, data = _known(values)
                shape_inference.infer_node_outputs(
                    schema, node, types, data, opset_imports=list(proto.opset_import), ir_version=proto.ir_version
                )
        except Exception:  # ONNX's checks raise errors of many types
            return False
        return True

    def _expand(self, node: NodeProto, values: Sequence[Value | None]) -> list[Step]:
        """The steps of an operator's definition, where WebNN expresses them all or ONNX Runtime lacks the operator."""
        from ..backends.onnxruntime.opsets import knows
        from .functions import expand

        schema = self._schema(node)
        if schema is None or not (schema.has_function or schema.has_context_dependent_function):
            return []
        types = [_type_proto(value) for value in values]
        if not all(type.WhichOneof("value") for type, value in zip(types, values, strict=True) if value is not None):
            return []
        nodes = expand(node, schema, types, self.model.opsets, self.fresh(node))
        try:
            return self.steps(nodes or [], whole=knows(node, schema.domain))
        except Unsupported:
            return []

    def _inputs_behind(self, operand: MLOperand) -> set[str]:
        """The inputs of the model that an operand is computed from; none of them if some are data."""
        names: set[str] = set()
        pending, seen = [operand], {operand}
        while pending:
            found = pending.pop()
            if found.node is not None:
                fresh = [other for other in found.node.operands if other not in seen]
                seen.update(fresh)
                pending += fresh
            elif found.is_input:
                if found.name not in self._shapes or found.rank > 1 or found.desc.element_count > DECIDING_ELEMENTS:
                    return set()
                names.add(found.name)
        return names

    # Folding ---------------------------------------------------------------------------------------------------------

    def _fold(self, node: NodeProto, values: Sequence[Value | None]) -> list[np.ndarray] | None:
        """The outputs of a node that can be computed now, or None."""
        domain = "" if node.domain == "ai.onnx" else node.domain
        if domain:
            return None
        if node.op_type in ("Shape", "Size") and not isinstance(values[0], Dynamic):
            return [fold.shape_of_node(node, self.shape(node.input[0]))]
        if node.op_type == "Constant" and not values:
            return self._constant_node(node)
        if node.op_type in fold.NEVER or any(a.type in SUB_GRAPHS for a in node.attribute):
            return None
        arrays = [v.array if isinstance(v, Constant) else None for v in values]
        if any(v is not None and a is None for v, a in zip(values, arrays, strict=True)) or not arrays:
            return None
        if sum(a.nbytes for a in arrays if a is not None) > FOLD_BYTES:
            return None
        try:
            return fold.with_numpy(node, arrays)
        except fold.TooLarge:
            return None
        except fold.Declined:
            large = self._result_bytes(node, values) > self.model.limits.folded_bytes
            return None if large else fold.with_engine(node, arrays, self.model.proto)

    def _constant_node(self, node: NodeProto) -> list[np.ndarray] | None:
        if len(node.attribute) != 1:
            raise DataError(f"{checks.title_of(node)} must have one attribute, got {len(node.attribute)}")
        (attribute,) = node.attribute
        match attribute.name:
            case "value":
                return [self.model.array(attribute.t)]
            case "value_float" | "value_floats":
                return [np.array(attribute_value(attribute), np.float32)]
            case "value_int" | "value_ints":
                return [np.array(attribute_value(attribute), np.int64)]
        return None  # strings and sparse tensors

    def _result_bytes(self, node: NodeProto, values: Sequence[Value | None]) -> float:
        """How large the results of a node will be; infinite where that is not known and could be anything."""
        inferred = self._infer(node, values)
        total: float = 0
        for name in node.output:
            tensor = inferred.get(name, TypeProto()).tensor_type
            if name and (tensor.elem_type == 0 or not _is_static(tensor)):
                return 0 if node.op_type in _NEVER_LARGER else math.inf
            sizes = [dim.dim_value for dim in tensor.shape.dim]
            total += 8 * math.prod(sizes) if min(sizes, default=0) >= 0 else math.inf
        return total

    # Conversion ------------------------------------------------------------------------------------------------------

    def _convert(self, node: NodeProto, values: Sequence[Value | None]) -> None:
        converter = CONVERTERS.get(key_of(node))
        if converter is None:
            raise Unsupported("WebNN has nothing to express it with")
        types = [self._element_type(name, value) for name, value in zip(node.input, values, strict=True)]
        inputs = [self._argument(value) for value in values]
        if not any(isinstance(value, MLOperand) for value in inputs):
            # Constants too large to fold: the first becomes an operand, so that the builder knows what it deals with.
            inputs = [self._operand(v) if isinstance(v, np.ndarray) else v for v in inputs]
        result = converter.function(
            self.builder, *inputs, **_keywords(converter, node, types, self.model.opsets, inputs)
        )
        results = result if isinstance(result, tuple) else (result,)
        # Where one type of floats comes in and goes out there is no need to ask for the operator's definition, which takes
        # time, and megabytes for all operators together.
        floats = {DATA_TYPES[t] for t in types if t} & set(FLOATS)
        made_types = {_type_name(result) for result in results} - {"bool"}
        plain = made_types <= set(FLOATS) and len(made_types | floats) <= 1
        if node.op_type in _BOOLEAN_RESULTS and node.domain in ("", "ai.onnx"):
            inferred = {node.output[0]: tensor_type(TensorProto.BOOL)}
        else:
            inferred = {} if plain else self._infer(node, values)
        wanted = [name for name in node.output if name]
        if len(results) < len(node.output):
            raise Unsupported(f"only {len(results)} of the outputs {wanted} can be made")
        made: dict[str, Value] = {}
        for name, item in zip(node.output, results, strict=False):
            if not name:
                continue
            if item is None:
                raise Unsupported(f"the output {name!r} cannot be made")
            element_type = inferred[name].tensor_type.elem_type if name in inferred else 0
            if isinstance(item, np.ndarray):
                made[name] = Constant(as_declared(item, element_type))
            elif element_type and DATA_TYPES.get(element_type) != item.data_type:
                raise Unsupported(f"the output {name!r} has type {TensorProto.DataType.Name(element_type)}")
            else:
                own = next(t for t, data_type in DATA_TYPES.items() if data_type == item.data_type)
                made[name] = Tensor(item, element_type or own)
        for name, value in made.items():
            self._bind(name, value)

    def _element_type(self, name: str, value: Value | None) -> int:
        match value:
            case None:
                return 0
            case Dynamic(type):
                element = type.tensor_type.elem_type if type is not None else 0
                if element and element not in DATA_TYPES:
                    raise Unsupported(f"its input {name!r} is {TensorProto.DataType.Name(element).lower()}")
                raise Unsupported(f"its input {name!r} has a shape that is known only when the graph runs")
            case _ if value.element_type not in DATA_TYPES:
                raise Unsupported(f"its input {name!r} is {TensorProto.DataType.Name(value.element_type).lower()}")
        return value.element_type

    def _argument(self, value: Value | None) -> MLOperand | np.ndarray | None:
        match value:
            case Constant(array):
                array = as_stored(array)
                return array if array.nbytes <= FOLD_BYTES else self._operand(array)
            case Tensor(operand):
                return operand
        return None

    def _operand(self, array: np.ndarray) -> MLOperand:
        return self.builder.constant(array)

    # Fallback --------------------------------------------------------------------------------------------------------

    def _fall_back(self, node: NodeProto, values: Sequence[Value | None]) -> None:
        """Outputs of a node that ONNX Runtime will run."""
        if node.op_type == "Loop" and node.domain in ("", "ai.onnx"):
            check_ends(self, node)
        inferred = self._infer(node, values)
        for name in node.output:
            if name:
                type = inferred.get(name, TypeProto())
                tensor = type.tensor_type
                if name in self.model.surprising and type.HasField("tensor_type"):
                    tensor.ClearField("shape")
                shape = [dim.dim_value for dim in tensor.shape.dim] if _is_static(tensor) else None
                if shape is not None and not 0 <= math.prod(shape) <= memory.physical():
                    what = f"its output {name[:200]!r} of shape {shown(shape)}"
                    raise OperationError(f"{checks.title_of(node)}: there is no memory for {what}")
                self._bind(name, self._placeholder(name, type, tensor.elem_type, shape))

    def _schema(self, node: NodeProto) -> Any:
        """The operator of a node, None where ONNX does not have it."""
        from onnx import defs

        domain = "" if node.domain == "ai.onnx" else node.domain
        try:
            return defs.get_schema(node.op_type, self.model.opsets.get(domain, 1), domain)
        except defs.SchemaError:
            return None

    def _infer(self, node: NodeProto, values: Sequence[Value | None]) -> dict[str, TypeProto]:
        """The types of a node's outputs, as far as ONNX's shape inference can tell."""
        from onnx import shape_inference

        schema = self._schema(node)
        if schema is None:
            return {}
        named = dict(zip(node.input, values, strict=True))
        for attribute in node.attribute:
            if attribute.type in SUB_GRAPHS:  # sub-graphs see what is around them
                named |= {name: self.trace.values[name] for name in sorted(free_names(attribute.g))}
        types, data = _known(named)
        if len(types) < len([name for name in named if name]):
            return {}
        proto = self.model.proto
        try:
            if len(named) > len(node.input):
                return _infer_in_model(node, types, data, proto)
            return shape_inference.infer_node_outputs(
                schema, node, types, data, opset_imports=list(proto.opset_import), ir_version=proto.ir_version
            )
        except Exception:  # inference of a broken node fails in many ways; the engine will say what is wrong with it
            return {}


def _known(values: Mapping[str, Value | None]) -> tuple[dict[str, TypeProto], dict[str, TensorProto]]:
    """The types of values, as far as they are known, and the data of small constants: what inference works on."""
    from onnx import numpy_helper

    types, data = {}, {}
    for name, value in values.items():
        if value is not None and (type := _type_proto(value)).WhichOneof("value"):
            types[name] = type
        if isinstance(value, Constant) and value.array.nbytes <= FOLD_BYTES:
            data[name] = numpy_helper.from_array(value.array, name)
    return types, data


def _infer_in_model(
    node: NodeProto, types: Mapping[str, TypeProto], data: Mapping[str, TensorProto], proto: ModelProto
) -> dict[str, TypeProto]:
    """Inference for a node with sub-graphs that use names from around them."""
    from onnx import helper, shape_inference

    inputs = [ValueInfoProto(name=name, type=type) for name, type in types.items() if name not in data]
    outputs = [ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], "inference", inputs, outputs, initializer=list(data.values()))
    model = helper.make_model(graph, opset_imports=proto.opset_import, ir_version=proto.ir_version)
    found = shape_inference.infer_shapes(model, data_prop=True)
    return {value.name: value.type for value in found.graph.output if value.type.WhichOneof("value")}


def _type_proto(value: Value | None) -> TypeProto:
    """The type of a value, empty where it is not known."""
    match value:
        case Constant(array):
            return tensor_type(value.element_type, array.shape)
        case Tensor(operand, element_type):
            return tensor_type(element_type, operand.shape)
        case Dynamic(type) if type is not None:
            return type
    return TypeProto()


def _is_static(tensor: TypeProto.Tensor) -> bool:
    return tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim)


SUB_GRAPHS = (AttributeProto.GRAPH, AttributeProto.GRAPHS)
"""The types of attributes that hold graphs."""

_NEVER_LARGER = frozenset({"NonZero", "Unique", "Compress"})
"""Operators whose results have sizes that depend on values, but are no larger than a few times the inputs."""


def _described(error: Exception) -> str:
    """An error that is not ours, on one line and not without end."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # to write down what came may be what fails
        text = "no message"
    return f"{type(error).__name__}: {text[:300]}"


def _shape_of(value: Value | None) -> tuple[int, ...] | None:
    match value:
        case Constant(array):
            return array.shape
        case Tensor(operand):
            return operand.shape
    return None


def free_names(graph: GraphProto) -> set[str]:
    """The names that a sub-graph takes from outside."""
    made = {i.name for i in graph.input} | {i.name for i in graph.initializer}
    free: set[str] = set()
    for node in graph.node:
        free |= {name for name in node.input if name and name not in made}
        for attribute in node.attribute:
            graphs = [attribute.g] if attribute.type == AttributeProto.GRAPH else attribute.graphs
            for inner in graphs:
                free |= free_names(inner) - made
        made |= set(node.output)
    return free | {o.name for o in graph.output if o.name not in made}


_NONE = Converter(lambda: None, frozenset(), 0, 0)


def _keywords(
    converter: Converter, node: NodeProto, types: list[int], opsets: Mapping[str, int], inputs: Sequence[Any]
) -> dict[str, Any]:
    """The keyword arguments of a converter's call; `Unsupported` for attributes that it does not know."""
    keywords: dict[str, Any] = {}
    for attribute in node.attribute:
        if attribute.type in SUB_GRAPHS:
            raise Unsupported("it has sub-graphs")
        if attribute.name not in converter.attributes:
            raise Unsupported(f"its attribute {attribute.name} is not supported")
        value = attribute_value(attribute)
        if isinstance(value, bytes):
            value = value.decode(errors="replace")
        elif isinstance(value, list) and value and isinstance(value[0], bytes):
            value = [item.decode(errors="replace") for item in value]
        keywords[attribute.name] = value
    domain = "" if node.domain == "ai.onnx" else node.domain
    extras: dict[str, Any] = {"label": node.name}
    if not converter.op:  # an operation of the user may have attributes of these names
        extras |= {"opset": opsets.get(domain, 1), "outputs": len(node.output), "types": types}
    keywords.update({name: value for name, value in extras.items() if name in converter.attributes})
    given = len(inputs)
    if (converter.inputs is not None and given > converter.inputs) or given < converter.required:
        raise Unsupported(f"it has {given} inputs")
    return keywords


def _type_name(result: Any) -> str | None:
    """The data type of an operand, or of an array."""
    return result.data_type if isinstance(result, MLOperand) else getattr(getattr(result, "dtype", None), "name", None)
