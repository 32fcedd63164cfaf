"""Graphs of ONNX models with nodes that WebNN cannot express: each such node becomes an operation to compare.

On engines, ONNX Runtime runs such a node, as in sessions. On the reference, ONNX's evaluator in NumPy runs the node if it has
the operator, as an independent witness.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ...backends.reference import reference
from ...compile.legalise import cut_out
from ...context.context import MLContext
from ...core.dtypes import ANY
from ...core.graph import Desc, Graph, MLOperand, Operand, add_like, add_node
from ...custom import op
from ...onnx.convert.trace import Trace, TracedNode
from ...onnx.model.booleans import bool_as_uint8
from ...onnx.model.model import Model
from ...onnx.model.protobuf import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
    element_type_of,
    tensor_type,
)
from ...onnx.model.scopes import used_names
from ...onnx.model.values import Constant, Dynamic, Tensor, type_of
from ...onnx.session.compiled import sections
from ...onnx.session.load import trace_model
from ...ops.recorder import Recorder
from ...support.errors import NotSupportedError, OperationError

FALLBACK_RUNS = "ONNX Runtime: WebNN cannot express it"

RANDOM = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
"""Operators whose results differ in each run."""


class FallbackNode:
    """A node of an ONNX model as a model without constants, and their arrays. Equal nodes compute the same."""

    def __init__(self, model: ModelProto, constants: Mapping[str, np.ndarray], results: tuple[Desc, ...]) -> None:
        self.model, self.constants, self.results = model, constants, results

    @cached_property
    def digest(self) -> bytes:
        """A hash of the model and the constants."""
        hasher = hashlib.sha256(self.model.SerializeToString(deterministic=True))
        for name, array in sorted(self.constants.items()):
            hasher.update(f"{name} {array.dtype} {array.shape}".encode())
            hasher.update(repr(array.tolist()).encode() if array.dtype == object else np.ascontiguousarray(array).data)
        return hasher.digest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FallbackNode) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"<{self.model.graph.node[0].op_type} {self.digest.hex()[:8]}>"

    @cached_property
    def _session(self) -> Any:
        from ...backends.onnxruntime.model import ModelSession

        proto = ModelProto()
        proto.CopyFrom(self.model)
        return ModelSession(proto, self.constants, "default", spinning="least", title=self.model.graph.node[0].op_type)

    def run(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        """Run the node in ONNX Runtime."""
        self._session.run([np.require(array, requirements=["C", "W"]) for array in inputs], outputs)

    @cached_property
    def evaluator(self) -> Any:
        """ONNX's evaluator for the node; None if it lacks the operator."""
        from onnx import numpy_helper
        from onnx.reference import ReferenceEvaluator

        proto = ModelProto()
        proto.CopyFrom(self.model)
        proto.graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in self.constants.items())
        try:
            return ReferenceEvaluator(proto)
        except Exception:  # errors of the engine, and of NumPy below, are of many types
            return None

    def evaluate(self, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """Run the node in ONNX's evaluator; `OperationError` if it fails, or computes other shapes than the engine."""
        infos = self.model.graph.input
        types = [bool if info.type.tensor_type.elem_type == TensorProto.BOOL else None for info in infos]
        feed = {info.name: a.astype(t) if t else a for info, a, t in zip(infos, inputs, types, strict=True)}
        title = self.model.graph.node[0].op_type
        try:
            arrays = [np.asarray(array) for array in self.evaluator.run(None, feed)]
        except Exception as error:
            raise OperationError(f"diff: ONNX's evaluator failed to run {title}: {error}") from error
        for array, desc in zip(arrays, self.results, strict=True):
            if array.shape != desc.shape:
                raise OperationError(
                    f"diff: ONNX's evaluator computes {list(array.shape)} for {title}, expected {desc}"
                )
        return tuple(map(bool_as_uint8, arrays))


@op
def onnx_node(self: Any, inputs: Sequence[MLOperand], node: Any) -> tuple[Desc, ...]:
    """Compute a node of an ONNX model."""
    results: tuple[Desc, ...] = node.results
    return results


@onnx_node.kernel("cpu")
def _(inputs: Any, node: FallbackNode, out: Any) -> None:
    node.run(inputs, out if isinstance(out, tuple) else (out,))


@reference.lower(onnx_node, when=lambda node: node.evaluator is not None)
def _(inputs: Any, node: FallbackNode) -> tuple[np.ndarray, ...]:
    infos = node.model.graph.input
    half = [info.type.tensor_type.elem_type == TensorProto.FLOAT16 for info in infos]
    # The reference widens floats to float64; the node is declared for the narrow type.
    narrow = [
        array.astype(np.float16 if is_half else np.float32) if array.dtype == np.float64 else array
        for array, is_half in zip(inputs, half, strict=True)
    ]
    return node.evaluate(narrow)


def record_whole(source: Model, context: MLContext, arrays: Mapping[str, np.ndarray]) -> Graph:
    """Record a whole model as one graph, for inputs by name.

    Sizes that depend on values come from a run of the model in ONNX Runtime on these inputs.
    """
    shapes = {name: array.shape for name, array in arrays.items()}
    _, trace = trace_model(source, context, shapes, arrays)
    outputs = [info.name for info in source.proto.graph.output]
    results = [name for step in _fallback(trace, outputs) for name in step.node.output if name]
    unknown = [name for name in results if isinstance(trace.values[name], Dynamic)]
    if unknown:
        _, trace = trace_model(source, context, shapes, arrays, _observe_types(source, arrays, unknown))
    return _Assembly(source, trace).graph(outputs)


def _fallback(trace: Trace, outputs: Sequence[str]) -> list[TracedNode]:
    return [step for section in sections(trace, outputs) if section.kind == "fallback" for step in section.nodes]


def _observe_types(source: Model, arrays: Mapping[str, np.ndarray], names: Sequence[str]) -> dict[str, TypeProto]:
    """Observe the types of values in a run of the model; values that are no tensors are missing."""
    from ...backends.onnxruntime.model import ModelSession

    graph = source.proto.graph
    result_names = {name for node in graph.node for name in node.output}
    outputs = [name for name in names if name in result_names]
    infos = [ValueInfoProto(name=n, type=tensor_type(element_type_of(a.dtype), a.shape)) for n, a in arrays.items()]
    proto = ModelProto(ir_version=source.proto.ir_version, opset_import=source.proto.opset_import)
    proto.graph.CopyFrom(
        GraphProto(name="model", node=graph.node, input=infos, output=[ValueInfoProto(name=name) for name in outputs])
    )
    session = ModelSession(proto, {n: a for n, a in source.weights if n not in arrays}, "default")
    values = session.returning(range(len(outputs)))([arrays[name] for name in session.inputs])
    tensors = {name: value for name, value in zip(outputs, values, strict=True) if isinstance(value, np.ndarray)}
    return {n: tensor_type(element_type_of(a.dtype), a.shape) for n, a in tensors.items() if a.dtype != object}


class _Assembly:
    def __init__(self, source: Model, trace: Trace) -> None:
        self.source, self.trace = source, trace
        self.recorder = Recorder()
        self.operands: dict[Operand, Operand] = {}  # operand of the trace -> operand of the graph
        for info in source.proto.graph.input:
            if isinstance(value := trace.values.get(info.name), Tensor):
                name = info.name
                operand = Operand(self.recorder, value.operand.desc, name=name)
                self.operands[value.operand] = self.recorder.inputs[name] = operand

    def graph(self, outputs: Sequence[str]) -> Graph:
        """Build the graph that computes outputs of the model."""
        for section in sections(self.trace, outputs):
            if section.kind == "fallback":
                for step in section.nodes:
                    self._add_fallback(step)
            else:
                self._add_operations([*section.inputs], [*section.outputs])
        ends: dict[str, Operand] = {}
        for name in outputs:
            operand = (
                self._constant(value) if isinstance(value := self.trace.values[name], Constant) else self._of(name)
            )
            ends[name] = self.recorder.identity(operand) if operand.node is None else operand
        return Graph.reaching(ends)

    def _of(self, name: str, reader: str = "an output of the model") -> Operand:
        value = self.trace.values[name]
        if isinstance(value, Tensor):
            return self.operands[value.operand]
        raise NotSupportedError(
            f"diff: {reader} needs {name!r}, which is empty or no tensor of a data type that WebNN has"
        )

    def _constant(self, value: Constant) -> Operand:
        array = bool_as_uint8(value.array)
        if array.dtype.name not in ANY or not array.size:
            raise NotSupportedError(f"diff: an output is a constant {array.dtype}{list(array.shape)}")
        return Operand(self.recorder, Desc(array.dtype.name, array.shape), value=np.asarray(array, order="C"))

    def _add_operations(self, takes: Sequence[str], gives: Sequence[str]) -> None:
        values = self.trace.values
        starts = dict.fromkeys(value.operand for name in takes if isinstance(value := values[name], Tensor))
        results = dict.fromkeys(value.operand for name in gives if isinstance(value := values[name], Tensor))
        ends = [operand for operand in results if operand not in starts and not operand.is_constant]
        if not ends:
            return
        graph, reads = cut_out(starts, ends)
        copies = {operand: self.operands[read] for operand, read in zip(graph.inputs.values(), reads, strict=True)}

        def follow(operand: Operand) -> Operand:
            if operand not in copies:
                copies[operand] = Operand(self.recorder, operand.desc, value=operand.value)  # a constant
            return copies[operand]

        for node in graph.nodes:
            copies.update(zip(node.outputs, add_like(self.recorder, node, follow, node.label), strict=True))
        self.operands.update(zip(ends, map(copies.__getitem__, graph.outputs.values()), strict=True))

    def _add_fallback(self, step: TracedNode) -> None:
        node, values = step.node, self.trace.values
        title = f"{node.op_type} {node.name!r}" if node.name else node.op_type
        if node.op_type in RANDOM:
            raise NotSupportedError(f"diff: {title} is random, so that no two runs are alike")
        used = [name for name in dict.fromkeys(used_names(node)) if name in values]
        constants = {name: value.array for name in used if isinstance(value := values[name], Constant)}
        reads = {name: self._of(name, title) for name in used if name not in constants}
        gives = {name: value.operand for name in node.output if name and isinstance(value := values[name], Tensor)}
        if not gives or not reads:
            problem = (
                "reads no tensor" if gives else "makes no tensor that WebNN can hold: they are empty or of other types"
            )
            raise NotSupportedError(f"diff: {title} {problem}")
        model = self._model(node, [*reads], [*gives])
        results = tuple(operand.desc for operand in gives.values())
        fields = {"node": FallbackNode(model, constants, results)}
        label = f"{node.op_type} {node.name}".rstrip()
        operands = add_node(self.recorder, onnx_node, {"inputs": tuple(reads.values())}, fields, label, results)
        self.operands.update(zip(gives.values(), operands, strict=True))

    def _model(self, node: NodeProto, takes: Sequence[str], gives: Sequence[str]) -> ModelProto:
        values, proto = self.trace.values, self.source.proto
        graph = GraphProto(
            name="node",
            node=[node],
            input=[ValueInfoProto(name=name, type=type_of(values[name])) for name in takes],
            output=[ValueInfoProto(name=name, type=type_of(values[name])) for name in gives],
        )
        return ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import, graph=graph)
