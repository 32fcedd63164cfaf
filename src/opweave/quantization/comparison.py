"""Compare a model with its quantised form: layers on the same inputs and end to end, outputs, and times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import onnxruntime

from ..backends.onnxruntime.model import ModelSession
from ..backends.onnxruntime.native import ENGINE_ERRORS, NativeSession
from ..backends.onnxruntime.opsets import missing_nodes
from ..inspect.diff.measure import Values, error
from ..onnx.model.limits import ModelLimits
from ..onnx.model.model import Model
from ..onnx.model.protobuf import ModelProto, NodeProto, ValueInfoProto, copy_of, element_type_of, tensor_type
from ..onnx.model.scopes import rename_node, used_names
from ..onnx.session.session import InferenceSession
from ..support.agreement import difference
from ..support.errors import MLError, NotSupportedError, OperationError
from .contents import ModelContents
from .result import OutputError

MAX_SAMPLES = 16
"""Maximum samples on which outputs are compared."""

FEWEST_RUNS = 3
"""Runs of each model at least, however long they take."""


@dataclass(frozen=True, slots=True)
class ResultErrors:
    """The errors of a value of the model: on the same inputs, and end to end."""

    own: float
    total: float


def compare_layers(
    before: Model, after: Model, results: Mapping[str, str], feed: Mapping[str, np.ndarray]
) -> dict[str, ResultErrors]:
    """Compare values on one sample: name in the old model -> name in the new one. Values that are not in both are missing.

    The nodes of the new model run once as they are, and once on what the old model computes: in the second run, an error comes
    from the node alone, and from the nodes behind the last value that both models have.
    """
    old, new = ModelContents(before), ModelContents(after)
    computed = {name for node in old.proto.graph.node if node.op_type != "Constant" for name in node.output if name}
    ends = {name for node in new.proto.graph.node for name in node.output}
    targets = [name for name, other in results.items() if name in computed and other in ends]
    if not targets:
        return {}
    nodes, starts = _nodes_for(new, [results[name] for name in targets], computed)
    expected = _observe(old, [*targets, *(name for name in starts if name in computed)], feed)
    targets = [name for name in targets if _is_float(expected[name])]
    new_names = [results[name] for name in targets]
    total = _observe(new, new_names, feed)
    own = _observe_alone(new, nodes, new_names, {name: expected[name] for name in starts if name in computed}, feed)
    errors = {}
    for name in targets:
        values = Values.of(expected[name])
        parts = [got[results[name]] for got in (own, total)]
        if all(np.shape(part) == expected[name].shape for part in parts):
            errors[name] = ResultErrors(*(error(part, expected[name], values).relative for part in parts))
    return errors


def compare_outputs(
    old: Any, new: Any, feeds: Sequence[Mapping[str, np.ndarray]], seconds: float, limits: ModelLimits
) -> tuple[list[OutputError], float, float]:
    """Compare the outputs of sessions of both models, and measure them in turn; return errors and the median times."""
    sessions = [InferenceSession(model, verify=False, limits=limits) for model in (old, new)]
    names = [argument.name for argument in sessions[0].get_outputs()]
    errors = {name: _Sum() for name in names}
    for feed in feeds[:MAX_SAMPLES]:
        before, after = (session.run(None, feed) for session in sessions)
        for name, expected, actual in zip(names, before, after, strict=True):
            if isinstance(expected, np.ndarray) and isinstance(actual, np.ndarray):
                errors[name].add(actual, expected)
    times: tuple[list[float], list[float]] = ([], [])
    begin = perf_counter()
    while len(times[0]) < FEWEST_RUNS or perf_counter() - begin < seconds:
        for session, taken in zip(sessions, times, strict=True):
            start = perf_counter()
            session.run(None, feeds[0])
            taken.append(perf_counter() - start)
    return [sum_.result(name) for name, sum_ in errors.items()], median(times[0]), median(times[1])


class _Sum:
    """The errors of an output in several samples."""

    def __init__(self) -> None:
        self.off = self.total = self.worst = self.largest = 0.0

    def add(self, actual: np.ndarray, expected: np.ndarray) -> None:
        if expected.shape != actual.shape:  # sizes that depend on values
            self.off = self.worst = self.largest = float("inf")
        elif _is_float(expected):
            values = Values.of(expected)
            change = error(actual, expected, values)
            self.off += (change.relative * values.size) ** 2 * expected.size
            self.total += values.size**2 * expected.size
            self.worst, self.largest = max(self.worst, change.relative), max(self.largest, change.largest)
        elif expected.dtype.kind in "iub":
            share = difference(actual, expected)
            self.off, self.total = self.off + share**2 * expected.size, self.total + expected.size
            self.worst = max(self.worst, share)

    def result(self, name: str) -> OutputError:
        relative = float(np.sqrt(self.off / self.total)) if self.total else float(self.off and np.inf)
        return OutputError(name, relative, self.worst, self.largest)


def check_loads(path: Path, limits: ModelLimits) -> None:
    """Require that a model can run: on ONNX Runtime, or in a session if it has operators of the user.

    Raises:
        OperationError: it cannot.
    """
    if any(missing_nodes(Model.load(path, limits).proto)):
        InferenceSession(path, verify=False, limits=limits)
        return
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        NativeSession(str(path), options, providers=["CPUExecutionProvider"])
    except ENGINE_ERRORS as reason:
        raise OperationError(f"quantize: ONNX Runtime does not take the quantised model: {reason}") from reason


def _is_float(array: Any) -> bool:
    return isinstance(array, np.ndarray) and array.dtype.kind == "f"


def _nodes_for(model: ModelContents, targets: Sequence[str], computed: set[str]) -> tuple[list[NodeProto], list[str]]:
    """The nodes that compute `targets` from values in `computed`, and the values that they start from."""
    graph = model.proto.graph
    nodes = list(graph.node)
    makers = {name: position for position, node in enumerate(nodes) for name in node.output}
    chosen: set[int] = set()
    starts: dict[str, None] = {}
    pending = list(targets)
    # The loop appends to `pending`.
    for name in pending:
        if makers[name] in chosen:
            continue
        chosen.add(makers[name])
        for read in used_names(nodes[makers[name]]):
            if read in computed:
                starts[read] = None
            elif read in makers:
                pending.append(read)
    return [nodes[position] for position in sorted(chosen)], list(starts)


def _observe(model: ModelContents, names: Sequence[str], feed: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Run a model in ONNX Runtime, and return the values with these names."""
    names = list(dict.fromkeys(names))
    nodes, _ = _nodes_for(model, names, set())
    return _run(model, nodes, {}, names, feed)


def _observe_alone(
    model: ModelContents,
    nodes: Sequence[NodeProto],
    targets: Sequence[str],
    exact: Mapping[str, Any],
    feed: Mapping[str, np.ndarray],
) -> dict[str, Any]:
    """Run nodes in ONNX Runtime, each on `exact` values where there are some, and return the results `targets`."""
    renamed = {name: f"{name}.exact" for name in exact}
    while any(other in model.names for other in renamed.values()):
        renamed = {name: f"{other}_" for name, other in renamed.items()}
    copies = [rename_node(node, renamed, "alone.") for node in nodes]
    for node, original in zip(copies, nodes, strict=True):
        node.output[:] = original.output
    return _run(model, copies, {renamed[name]: array for name, array in exact.items()}, targets, feed)


def _run(
    model: ModelContents,
    nodes: Sequence[NodeProto],
    more: Mapping[str, Any],
    outputs: Sequence[str],
    feed: Mapping[str, np.ndarray],
) -> dict[str, Any]:
    """Run nodes of a model in ONNX Runtime, on the model's inputs and on `more` values that they read."""
    proto, weights = _split(model)
    graph = proto.graph
    copies = [copy_of(node) for node in nodes]
    reads = {name for node in copies for name in used_names(node)}
    inputs = [copy_of(info) for info in graph.input if info.name in reads or info.name in outputs]
    del graph.node[:], graph.output[:], graph.input[:]
    graph.node.extend(copies)
    graph.input.extend(inputs)
    for name, array in more.items():
        if not isinstance(array, np.ndarray):
            raise NotSupportedError(f"{name!r} is no tensor")
        graph.input.append(ValueInfoProto(name=name, type=tensor_type(element_type_of(array.dtype), array.shape)))
    graph.output.extend(ValueInfoProto(name=name) for name in outputs)
    session = ModelSession(proto, {name: array for name, array in weights.items() if name in reads}, "default")
    values = {**feed, **more}
    results = session.returning(range(len(session.outputs)))([values[name] for name in session.inputs])
    return dict(zip(session.outputs, results, strict=True))


def _split(model: ModelContents) -> tuple[ModelProto, dict[str, np.ndarray]]:
    """The model without weights and the inputs of their names, and the weights."""
    proto = copy_of(model.proto)
    texts = [copy_of(tensor) for tensor in proto.graph.initializer if tensor.name not in model.arrays]
    required = [copy_of(info) for info in proto.graph.input if info.name not in model.arrays]
    del proto.graph.initializer[:], proto.graph.input[:]
    proto.graph.initializer.extend(texts)
    proto.graph.input.extend(required)
    return proto, dict(model.arrays)


def layers_or_note(
    old: Model, new: Model, results: Mapping[str, str], feed: Mapping[str, np.ndarray]
) -> tuple[dict[str, ResultErrors], tuple[str, ...]]:
    """`compare_layers`, or a note that says why layers cannot be compared."""
    try:
        return compare_layers(old, new, results, feed), ()
    except MLError as reason:
        first = str(reason).splitlines()[0]
        return {}, (f"layers were not compared: {first}",)
