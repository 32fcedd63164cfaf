"""Walk over an ONNX graph with static shapes: fold what is constant, convert what WebNN can express, mark the rest.

All values get a place in one environment: `Constant` (known now), `Tensor` (an operand; computed when the graph runs) or
`Dynamic` (made by a node that falls back, of a shape that is known only then).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, TypeProto, helper, numpy_helper, shape_inference

from ..builder import MLGraphBuilder
from ..context import MLContext
from ..errors import MLError, ValidationError
from ..graph import MLOperand
from . import operators as operators  # registers the converters
from .model import Model
from .registry import CONVERTERS, DATA_TYPES, Converter, Unsupported

FOLD_BYTES = 65536
"""Nodes on constants up to this size are computed at once: shape arithmetic, not weights."""

Kind = Literal["webnn", "fallback", "folded"]


@dataclass(frozen=True)
class Constant:
    """A value that is known while the graph is built."""

    array: np.ndarray

    @property
    def element_type(self) -> int:
        """The ONNX element type."""
        return int(helper.np_dtype_to_tensor_dtype(self.array.dtype))


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
    """

    steps: list[Step] = field(default_factory=list)
    values: dict[str, Value] = field(default_factory=dict)
    maker: dict[str, Step] = field(default_factory=dict)
    operands: dict[MLOperand, str] = field(default_factory=dict)


class Tracer:
    """Walks over the graph of a model for given input shapes."""

    def __init__(self, model: Model, context: MLContext, shapes: Mapping[str, tuple[int, ...] | None]) -> None:
        self.model, self.context = model, context
        self.builder = MLGraphBuilder(context)
        self.trace = Trace()
        self._shapes = shapes

    def run(self) -> Trace:
        """Walk over the whole graph."""
        graph = self.model.proto.graph
        for initializer in graph.initializer:
            self.trace.values[initializer.name] = Constant(self.model.array(initializer))
        for info in graph.input:
            if info.name not in self.trace.values:
                self._bind(info.name, self._input(info))
        self._walk(graph.node)
        return self.trace

    def _walk(self, nodes: Iterable[NodeProto]) -> None:
        for node in nodes:
            step = self._step(node)
            self.trace.steps.append(step)
            for name in node.output:
                if name:
                    self.trace.maker[name] = step

    def _input(self, info: onnx.ValueInfoProto) -> Value:
        shape = self._shapes[info.name]
        element_type = info.type.tensor_type.elem_type if info.type.HasField("tensor_type") else 0
        return self._placeholder(info.name, info.type, element_type, shape)

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

    def _step(self, node: NodeProto) -> Step:
        values = [self.trace.values[name] if name else None for name in node.input]
        if folded := self._fold(node, values):
            for name, array in zip(node.output, folded, strict=False):
                if name:
                    self._bind(name, Constant(array))
            return Step(node, "folded")
        try:
            self._convert(node, values)
        except Unsupported as reason:
            self._fall_back(node, values)
            return Step(node, "fallback", str(reason))
        except MLError as error:
            self._fall_back(node, values)
            return Step(node, "fallback", f"the builder refuses it: {error}")
        return Step(node, "webnn")

    # Folding ---------------------------------------------------------------------------------------------------------

    def _fold(self, node: NodeProto, values: Sequence[Value | None]) -> list[np.ndarray] | None:
        """The outputs of a node that can be computed now, or None."""
        domain = "" if node.domain == "ai.onnx" else node.domain
        if domain:
            return None
        if node.op_type in ("Shape", "Size") and isinstance(values[0], Tensor):
            return [_shape_of(node, values[0].operand.shape)]
        if node.op_type == "Constant" and not values:
            return _constant_node(node)
        if node.op_type in _NEVER_FOLDED or any(a.type in _GRAPHS for a in node.attribute):
            return None
        arrays = [v.array if isinstance(v, Constant) else None for v in values]
        if any(v is not None and a is None for v, a in zip(values, arrays, strict=True)) or not arrays:
            return None
        if node.op_type != "ConstantOfShape" and sum(a.nbytes for a in arrays if a is not None) > FOLD_BYTES:
            return None
        return _evaluate(node, arrays, self.model.proto)

    # Conversion ------------------------------------------------------------------------------------------------------

    def _convert(self, node: NodeProto, values: Sequence[Value | None]) -> None:
        domain = "" if node.domain == "ai.onnx" else node.domain
        converter = CONVERTERS.get((domain, node.op_type))
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
        inferred = self._infer(node, values)
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
                made[name] = Constant(item)
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
            case Dynamic():
                raise Unsupported(f"its input {name!r} has a shape or type that only fallback knows")
            case _ if value.element_type not in DATA_TYPES:
                raise Unsupported(f"its input {name!r} is {TensorProto.DataType.Name(value.element_type).lower()}")
        return value.element_type

    def _argument(self, value: Value | None) -> MLOperand | np.ndarray | None:
        match value:
            case Constant(array):
                array = array.view(np.uint8) if array.dtype == bool else array
                return array if array.nbytes <= FOLD_BYTES else self._operand(array)
            case Tensor(operand):
                return operand
        return None

    def _operand(self, array: np.ndarray) -> MLOperand:
        return self.builder.constant(array)

    # Fallback --------------------------------------------------------------------------------------------------------

    def _fall_back(self, node: NodeProto, values: Sequence[Value | None]) -> None:
        """Outputs of a node that ONNX Runtime will run."""
        inferred = self._infer(node, values)
        for name in node.output:
            if name:
                type = inferred.get(name, TypeProto())
                tensor = type.tensor_type
                dims = [d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim]
                static = type.HasField("tensor_type") and tensor.HasField("shape") and None not in dims
                shape = [d for d in dims if d is not None] if static else None
                self._bind(name, self._placeholder(name, type, tensor.elem_type, shape))

    def _infer(self, node: NodeProto, values: Sequence[Value | None]) -> dict[str, TypeProto]:
        """The types of a node's outputs, as far as ONNX's shape inference can tell."""
        domain = "" if node.domain == "ai.onnx" else node.domain
        try:
            schema = onnx.defs.get_schema(node.op_type, self.model.opsets.get(domain, 1), domain)
        except onnx.defs.SchemaError:
            return {}
        types, data = {}, {}
        for name, value in zip(node.input, values, strict=True):
            match value:
                case Constant(array):
                    types[name] = helper.make_tensor_type_proto(value.element_type, array.shape)
                    if array.nbytes <= FOLD_BYTES:
                        data[name] = numpy_helper.from_array(array, name)
                case Tensor(operand, element_type):
                    types[name] = helper.make_tensor_type_proto(element_type, operand.shape)
                case Dynamic(type) if type is not None:
                    types[name] = type
        outer = {name for attribute in node.attribute if attribute.type in _GRAPHS for name in free_names(attribute.g)}
        if outer or len(types) < len({name for name in node.input if name}):
            return {}
        try:
            return shape_inference.infer_node_outputs(
                schema,
                node,
                types,
                data,
                opset_imports=list(self.model.proto.opset_import),
                ir_version=self.model.proto.ir_version,
            )
        except Exception:  # inference of a broken node fails in many ways; the engine will say what is wrong with it
            return {}


_GRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
_NEVER_FOLDED = frozenset(
    {
        # Random, or with state.
        *(
            "RandomNormal",
            "RandomUniform",
            "RandomNormalLike",
            "RandomUniformLike",
            "Bernoulli",
            "Multinomial",
            "Dropout",
        ),
        # Weights stay quantised: the engine fuses these with what uses them.
        *("DequantizeLinear", "QuantizeLinear"),
    }
)


def free_names(graph: onnx.GraphProto) -> set[str]:
    """The names that a sub-graph takes from outside."""
    made = {i.name for i in graph.input} | {i.name for i in graph.initializer}
    free: set[str] = set()
    for node in graph.node:
        free |= {name for name in node.input if name and name not in made}
        for attribute in node.attribute:
            graphs = [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs
            for inner in graphs:
                free |= free_names(inner) - made
        made |= set(node.output)
    return free | {o.name for o in graph.output if o.name not in made}


def _keywords(
    converter: Converter, node: NodeProto, types: list[int], opsets: Mapping[str, int], inputs: Sequence[Any]
) -> dict[str, Any]:
    """The keyword arguments of a converter's call; `Unsupported` for attributes that it does not know."""
    keywords: dict[str, Any] = {}
    for attribute in node.attribute:
        if attribute.type in _GRAPHS:
            raise Unsupported("it has sub-graphs")
        if attribute.name not in converter.attributes:
            raise Unsupported(f"its attribute {attribute.name} is not supported")
        value = helper.get_attribute_value(attribute)
        if isinstance(value, bytes):
            value = value.decode(errors="replace")
        elif isinstance(value, list) and value and isinstance(value[0], bytes):
            value = [item.decode(errors="replace") for item in value]
        keywords[attribute.name] = value
    domain = "" if node.domain == "ai.onnx" else node.domain
    extras = {"opset": opsets.get(domain, 1), "outputs": len(node.output), "types": types}
    keywords.update({name: value for name, value in extras.items() if name in converter.attributes})
    given = len(inputs)
    if (converter.inputs is not None and given > converter.inputs) or given < converter.required:
        raise Unsupported(f"it has {given} inputs")
    return keywords


def _shape_of(node: NodeProto, shape: tuple[int, ...]) -> np.ndarray:
    if node.op_type == "Size":
        return np.array(int(np.prod(shape)), np.int64)
    attributes = {a.name: a.i for a in node.attribute}
    return np.array(shape[attributes.get("start", 0) : attributes.get("end", len(shape))], np.int64)


def _constant_node(node: NodeProto) -> list[np.ndarray] | None:
    (attribute,) = node.attribute
    value = helper.get_attribute_value(attribute)
    match attribute.name:
        case "value":
            return [numpy_helper.to_array(value)]
        case "value_float" | "value_floats":
            return [np.array(value, np.float32)]
        case "value_int" | "value_ints":
            return [np.array(value, np.int64)]
    return None  # strings and sparse tensors


def _evaluate(node: NodeProto, arrays: Sequence[np.ndarray | None], proto: onnx.ModelProto) -> list[np.ndarray] | None:
    """Run one node on arrays in ONNX Runtime, or None where that fails (the node then stays in the graph)."""
    from ..backends.onnxruntime.fallback import evaluate

    names = [name for name in node.input if name]
    feed = {name: array for name, array in zip(node.input, arrays, strict=True) if array is not None}
    inputs = [helper.make_value_info(n, _type_of(feed[n])) for n in dict.fromkeys(names)]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], "fold", inputs, outputs)
    model = helper.make_model(graph, opset_imports=proto.opset_import, ir_version=min(proto.ir_version, 10))
    found = evaluate(model.SerializeToString(), feed)
    if found is None or not all(isinstance(array, np.ndarray) for array in found):
        return None
    results = iter(found)
    return [next(results) if name else np.empty(0) for name in node.output]


def _type_of(array: np.ndarray) -> TypeProto:
    return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
