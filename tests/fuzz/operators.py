"""Nodes of all versions of ONNX's operators from operator set 7 on: sessions on all devices against ONNX Runtime.

ONNX Runtime runs the model without optimisations; ONNX's reference is the witness where its CPU has no kernel.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnx.defs import OpSchema

import opweave as ow
from fuzz import operator_layers as operator_layers
from fuzz.frame import MEMORY, Campaign, Finding
from fuzz.operator_draw import OLDEST, Draw, Input, Node, versions
from fuzz.operator_nodes import MAKERS, sizes_of
from fuzz.sizes import obstacle

NEWEST = 26
"""The last operator set of which ONNX Runtime loads models."""

RUNS = 3

FLATTENING = frozenset({"Hardmax", "LogSoftmax", "Softmax"})
"""Operators that flattened matrices before operator set 13, which ONNX's reference does not."""

UNRELIABLE = frozenset(
    {
        "AffineGrid",
        "AveragePool",
        "GRU",
        "GlobalMaxPool",
        "LRN",
        "LSTM",
        "LpPool",
        "MaxPool",
        "RNN",
        "ReduceSumSquare",
        "Resize",
    }
)
"""Operators of which ONNX's reference ignores attributes, or returns other shapes or types."""


@cache
def targets() -> list[tuple[OpSchema, int]]:
    """Versions of operators, and the last operator set of each; the cases take turns."""
    result: list[tuple[OpSchema, int]] = []
    for name in sorted(MAKERS):
        schemas = [schema for schema in versions()[name] if schema.since_version <= NEWEST]
        ends = [schema.since_version - 1 for schema in schemas[1:]]
        result += zip(schemas, [*ends, NEWEST], strict=True)
    return result


@dataclass
class Case:
    """A model of one node, the inputs of each run, and a line that describes it."""

    model: onnx.ModelProto
    feeds: list[dict[str, np.ndarray]]
    node: Node
    text: str

    @property
    def node_type(self) -> str:
        return str(self.model.graph.node[0].op_type)

    @property
    def opset(self) -> int:
        return int(self.model.opset_import[0].version)


def make_case(rng: random.Random, number: int) -> Case:
    """Draw a model."""
    schema, last = targets()[number % len(targets())]
    opset = rng.randint(max(OLDEST, schema.since_version), max(OLDEST, last))
    node = MAKERS[schema.name](Draw(rng, schema))
    names: list[str] = []
    feeds: list[dict[str, np.ndarray]] = [{} for _ in range(RUNS)]
    initializers: list[TensorProto] = []
    infos: list[onnx.ValueInfoProto] = []
    # Dimensions of fed inputs may have names, and parameters may be fed.
    is_dynamic, feeds_parameters = rng.random() < 0.3, rng.random() < 0.2
    for position, item in enumerate(node.inputs):
        names.append("" if item is None else f"x{position}")
        if item is None:
            continue
        is_fed = rng.random() < (0.75 if position else 0.92) if item.redraw is not None else feeds_parameters
        if not is_fed:
            initializers.append(tensor_of(item, names[-1]))
            if rng.random() < 0.1 and opset >= 9:
                infos.append(helper.make_tensor_value_info(names[-1], initializers[-1].data_type, item.array.shape))
            continue
        dimensions = [
            f"n{position}_{d}" if is_dynamic and rng.random() < 0.6 else size for d, size in enumerate(item.array.shape)
        ]
        infos.append(helper.make_tensor_value_info(names[-1], type_of(item), dimensions))
        feeds[0][names[-1]] = item.array
        for feed in feeds[1:]:
            feed[names[-1]] = item.array if item.redraw is None else item.redraw()
    outputs = [f"y{place}" for place in range(node.outputs)]
    if len(outputs) > 1 and rng.random() < 0.15:
        outputs[rng.randrange(len(outputs))] = ""
    proto = helper.make_node(schema.name, names, outputs, **node.attributes)
    graph = helper.make_graph(
        [proto], "node", infos, [onnx.ValueInfoProto(name=output) for output in outputs if output], initializers
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    text = f"{schema.name}-{schema.since_version} (operator set {opset}) {sizes_of(node)} {node.attributes}"
    text += f" fed: {sorted(feeds[0])}{' with names' if is_dynamic else ''}"
    return Case(onnx.shape_inference.infer_shapes(model), feeds, node, text)


def type_of(item: Input) -> int:
    return TensorProto.STRING if item.array.dtype == object else helper.np_dtype_to_tensor_dtype(item.array.dtype)


def tensor_of(item: Input, name: str) -> TensorProto:
    return numpy_helper.from_array(np.asarray(item.array), name)


@cache
def context(device: str) -> ow.MLContext:
    """The context of a device, or of the engine "openvino"."""
    if device == "openvino":
        return ow.ml.create_context(device="cpu", backend=device)
    return ow.ml.create_context(device=device)


def witness(case: Case) -> tuple[str, list[list[Any]]]:
    """The results of each run, and who computed them; an empty name if nothing can."""
    if _engine_differs(case.model.graph.node[0]):
        return _evaluated(case)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        engine = onnxruntime.InferenceSession(
            case.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return "ONNX Runtime", [engine.run(None, feed) for feed in case.feeds]
    except Exception as error:  # the engine has errors of many kinds
        if case.node_type in UNRELIABLE or (case.node_type in FLATTENING and case.opset < 13):
            return "", [[str(error)]]
    return _evaluated(case)


def _engine_differs(node: onnx.NodeProto) -> bool:
    """Whether ONNX Runtime is known to differ from ONNX's reference evaluator, or to crash."""
    attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    return (
        (node.op_type == "Split" and "" in node.output)  # a crash
        or (node.op_type == "Attention" and bool(attributes.get("is_causal")))  # one query sees all keys
        or (node.op_type == "Resize" and attributes.get("coordinate_transformation_mode") == b"pytorch_half_pixel")
    )


def _evaluated(case: Case) -> tuple[str, list[list[Any]]]:
    """The results of ONNX's reference evaluator, as `witness` returns them."""
    from onnx.reference import ReferenceEvaluator

    try:
        with np.errstate(all="ignore"):
            evaluator = ReferenceEvaluator(case.model)
            return "ONNX's reference", [list(evaluator.run(None, feed)) for feed in case.feeds]
    except Exception as error:  # errors of NumPy, too
        return "", [[str(error)]]


def compare(rng: random.Random, number: int, devices: Sequence[str] = ("cpu", "reference")) -> str:
    """Run a model on devices, and compare it with its witness."""
    case = make_case(rng, number)
    specialise = rng.choice(["always", "always", "auto"])
    if _engine_differs(case.model.graph.node[0]):
        specialise = "always"  # else the engine runs the model as it is
    name, expected = witness(case)
    for device in devices:
        try:
            session = ow.InferenceSession(case.model, context(device), specialise=specialise)
            results = [session.run(None, feed) for feed in case.feeds]
        except ow.MLError as error:
            if name == "ONNX Runtime":
                raise Finding(f"{device}: {type(error).__name__}: {error}\n{case.text}") from error
            continue
        for ours, theirs in zip(results, expected, strict=False) if name else ():
            for place, (result, wanted) in enumerate(zip(ours, theirs, strict=True)):
                if difference := different(result, wanted, case.node):
                    raise Finding(f"{device}: output {place} {difference} of {name} ({specialise})\n{case.text}")
    return {"ONNX Runtime": "agreed", "ONNX's reference": "agreed with ONNX's reference"}.get(name, "no witness")


_EPSILON = {"float16": 2e-2, "float64": 1e-4}


def different(ours: Any, theirs: Any, node: Node) -> str:
    """How a result differs from that of the witness; empty if it does not."""
    if theirs is None or not isinstance(theirs, np.ndarray):
        theirs = np.asarray(theirs)
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return f"is {ours.dtype}{list(ours.shape)}, and {theirs.dtype}{list(theirs.shape)} that"
    if theirs.dtype.kind == "f":
        rtol = max(node.rtol, _EPSILON.get(theirs.dtype.name, 0))
        a, b = ours.astype(np.float64), theirs.astype(np.float64)
        finite = np.abs(b[np.isfinite(b)])
        size = min(float(finite.max(initial=0)), 8.0)
        is_same = np.isclose(a, b, rtol=rtol, atol=rtol * max(size, 0.1), equal_nan=True)
    elif node.steps and theirs.dtype.kind in "iu":
        is_same = np.abs(ours.astype(np.int64) - theirs.astype(np.int64)) <= node.steps
    else:
        is_same = np.asarray(ours == theirs)
    if is_same.all():
        return ""
    at = tuple(int(k) for k in np.argwhere(~is_same)[0])
    return f"is {ours[at]} at {list(at)}, and {theirs[at]} that ({int((~is_same).sum())} of {is_same.size} differ)"


def describe(rng: random.Random, number: int) -> str:
    case = make_case(rng, number)
    return f"{case.text}\n{onnx.printer.to_text(case.model)}"


_CAMPAIGN = Campaign(
    "operators",
    "a valid node of each version of each operator: cpu and reference against ONNX Runtime",
    compare,
    count=40_000,
    short=80,
    memory=2 * MEMORY,
    describe=describe,
    outcomes=frozenset({"agreed", "agreed with ONNX's reference", "no witness"}),
)


def _on(device: str, where: str, count: int, short: int, **more: Any) -> Campaign:
    about = f"a valid node of each version of each operator: {where} against ONNX Runtime"
    changes = {"name": f"operators-{device}", "about": about, "case": partial(compare, devices=[device])}
    return replace(_CAMPAIGN, count=count, short=short, **changes, **more)


_ALL = (
    _CAMPAIGN,
    _on("openvino", "OpenVINO", 20_000, 40, needs=("openvino",), memory=4 * MEMORY),
    _on("gpu-software", "WebGPU", 4000, 20, memory=None, seconds=120, obstacle=partial(obstacle, "gpu-software")),
)
CAMPAIGNS = {campaign.name: campaign for campaign in _ALL}
