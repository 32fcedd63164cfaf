"""Control flow: If, Loop and Scan are inlined or unrolled while the model is traced, or become operations with bodies.

An If whose condition is known becomes its branch. Loops of a few iterations (`limit_of_unrolling`) are unrolled; others repeat
a body (`repeated`), unless WebNN cannot express the body without the values of an iteration, such as a state that grows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from ...core.bodies import MAX_UNROLLED_NODES, MAX_UNROLLED_STEPS
from ...support.errors import NotSupportedError, OperationError, ValidationError
from ..model.checks import title_of
from ..model.protobuf import AttributeProto, GraphProto, NodeProto, TensorProto, attribute_value, node as make_node
from ..model.registry import NotConstant, Unsupported, normalize_axis, unsupported_if
from .repeated import EndsByPosition, choose_branch, copies, inline, repeat_loop, repeat_scan

if TYPE_CHECKING:
    from .trace import TracedNode, Tracer

UNROLLED = 2
"""The largest number of iterations of a loop that is unrolled on the host although its body could be repeated. Unrolled,
bodies of 3 and 8 operations on 16 elements take 0.85 to 1 of the time with 2 iterations and 1 to 1.3 of it with 16; building
takes 5 times as long (ONNX Runtime, two processors)."""

UNROLLED_ON_DEVICES = 16
"""The same where each iteration is submitted to a device: unrolled, such bodies take 0.2 to 1 of the time on a software
adapter."""

_ENDLESS = 2**31
"""Exporters write this many iterations, or more, if only the condition ends a loop."""


def convert_if(tracer: Tracer, node: NodeProto) -> list[TracedNode]:
    """Inline the chosen branch of an If with a constant condition; otherwise, both branches are bodies."""
    from .trace import TracedNode

    graphs = [_graph(node, name) for name in ("then_branch", "else_branch")]
    try:
        condition = _condition(tracer, node.input[0])
    except NotConstant as error:
        tracer.require_values(error.operand)
        try:
            tracer.trace.values |= choose_branch(tracer, node, graphs)
        except (Unsupported, ValidationError, NotSupportedError) as refusal:
            raise NotConstant(f"{refusal}; its condition", error.operand) from None
        return [TracedNode(node, "webnn", None)]
    return inline(tracer, graphs[0 if condition else 1], {}, node.output, tracer.fresh(node), whole=False)


def convert_loop(tracer: Tracer, node: NodeProto) -> list[TracedNode]:
    """Repeat the body of a Loop, or unroll it."""
    from .trace import TracedNode

    trips, condition, *state = [*node.input, "", ""][: max(len(node.input), 2)]
    body = _graph(node, "body")
    length, count = _constant_or_name(tracer, trips, "its number of iterations", TensorProto.INT64)
    if length is not None:
        length = None if length >= _ENDLESS else max(length, 0)
    continues, first = _constant_or_name(tracer, condition, "its condition", TensorProto.BOOL)
    if continues == 0:
        length, count = 0, ""
    has_elements = len(body.output) > 1 + len(state)
    is_short = (
        length is not None and length <= limit_of_unrolling(tracer) and not first and (length or not has_elements)
    )
    if is_short or tracer.is_expanding:
        try:
            return unroll_loop(tracer, node)
        except Unsupported:
            if tracer.is_expanding:  # a definition such as that of Range takes longer than the engine's kernel
                raise
    if has_elements and count:
        _constant_of(tracer, count, "its number of iterations", TensorProto.INT64)  # raises: the count is no constant
    try:
        if length is None and not count and body.output and _passes_condition(body):
            check_ends(tracer, node)
        try:
            outputs = repeat_loop(tracer, node, body, length, count, first, state)
        except EndsByPosition:  # unrolled, nothing asks for the condition when the graph runs
            with suppress(Unsupported):
                return unroll_loop(tracer, node)
            outputs = repeat_loop(tracer, node, body, length, count, first, state, asks=True)
    except (Unsupported, ValidationError, NotSupportedError) as error:
        return _unroll_instead(tracer, node, unroll_loop, error)
    tracer.trace.values |= outputs
    return [TracedNode(node, "webnn", None)]


def convert_scan(tracer: Tracer, node: NodeProto) -> list[TracedNode]:
    """Repeat the body of a Scan, or unroll it."""
    from .trace import TracedNode

    unsupported_if(tracer.opset < 9, "before operator set 9, it scans batches")
    attributes = {a.name: attribute_value(a) for a in node.attribute if a.type != AttributeProto.GRAPH}
    name = node.input[len(node.input) - attributes["num_scan_inputs"]]
    axis = normalize_axis((attributes.get("scan_input_axes") or [0])[0], len(tracer.shape(name)))
    length = tracer.shape(name)[axis]
    if isinstance(length, int) and 0 < length <= limit_of_unrolling(tracer):
        with suppress(Unsupported):
            return unroll_scan(tracer, node)
    try:
        outputs = repeat_scan(tracer, node, _graph(node, "body"), attributes)
    except (Unsupported, ValidationError, NotSupportedError) as error:
        return _unroll_instead(tracer, node, unroll_scan, error)
    tracer.trace.values |= outputs
    return [TracedNode(node, "webnn", None)]


def limit_of_unrolling(tracer: Tracer) -> int:
    """The largest number of iterations of a loop that is unrolled although its body could be repeated."""
    return UNROLLED if tracer.context.backend.space.is_host else UNROLLED_ON_DEVICES


def _unroll_instead(
    tracer: Tracer, node: NodeProto, unroll: Callable[[Tracer, NodeProto], list[TracedNode]], error: Exception
) -> list[TracedNode]:
    """Unroll a loop whose body cannot be repeated; raise `error`, the reason, if it cannot be unrolled either."""
    try:
        return unroll(tracer, node)
    except NotConstant:
        raise
    except Unsupported:
        raise error from None


def _constant_or_name(tracer: Tracer, name: str, subject: str, element_type: int) -> tuple[int | None, str]:
    """The value of a scalar, None if it is not known; and its name if it is computed when the graph runs, or empty."""
    try:
        return _constant_of(tracer, name, subject, element_type), ""
    except NotConstant:
        return None, name


def unroll_loop(tracer: Tracer, node: NodeProto) -> list[TracedNode]:
    """Unroll a Loop, if neither the number of iterations nor the condition depends on data."""
    body = _graph(node, "body")
    trips, condition, *state = [*node.input, "", ""][: max(len(node.input), 2)]
    limit = _constant_of(tracer, trips, "its number of iterations", TensorProto.INT64)
    limit = None if limit is not None and limit >= _ENDLESS else limit
    continues = _condition(tracer, condition)
    if limit is not None and limit > MAX_UNROLLED_STEPS:
        raise Unsupported(f"it has {limit} iterations, and at most {MAX_UNROLLED_STEPS} are unrolled")
    loop = _Unrolled(tracer, body, 1, len(state), tracer.fresh(node))
    while continues != 0 and (limit is None or loop.count < limit):
        number = tracer.add_constant(f"{loop.prefix}number", np.array(loop.count, np.int64))
        true = tracer.add_constant(f"{loop.prefix}condition", np.array(True))
        condition, *state = loop.iterate([number, true, *state])
        continues = _condition(tracer, condition)
    return loop.finish(state, node.output, [0] * len(loop.gathered))


def check_ends(tracer: Tracer, node: NodeProto) -> None:
    """Raise `OperationError` for a Loop without limit that would never end: its body returns the condition unchanged."""
    body = _graph(node, "body")
    try:
        limit = _constant_of(tracer, next(iter(node.input), ""), "its number of iterations", TensorProto.INT64)
    except Unsupported:  # the limit is known only when the graph runs
        return
    if (limit is not None and limit < _ENDLESS) or len(body.input) < 2 or not body.output:
        return
    if _passes_condition(body):
        raise OperationError(f"{title_of(node)} would never end: its body returns the condition unchanged")


def _passes_condition(body: GraphProto) -> bool:
    """Whether a body returns the condition unchanged."""
    source = {node.output[0]: node.input[0] for node in body.node if node.op_type == "Identity" and node.input}
    name = body.output[0].name
    for _ in body.node:
        name = source.get(name, name)
    return bool(name == body.input[1].name)


def unroll_scan(tracer: Tracer, node: NodeProto) -> list[TracedNode]:
    """Unroll a Scan: one copy of the body for each slice of the scanned inputs."""
    attributes = {a.name: attribute_value(a) for a in node.attribute if a.type != AttributeProto.GRAPH}
    body, count = _graph(node, "body"), len(node.input) - attributes["num_scan_inputs"]
    state, scanned = list(node.input[:count]), list(node.input[count:])
    shapes = [tracer.shape(name) for name in scanned]
    input_axes = attributes.get("scan_input_axes") or [0] * len(scanned)
    axes = [normalize_axis(axis, len(shape)) for axis, shape in zip(input_axes, shapes, strict=True)]
    lengths = {shape[axis] for axis, shape in zip(axes, shapes, strict=True)}
    unsupported_if(len(lengths) != 1, f"it scans axes of {sorted(lengths)} elements")
    (length,) = lengths
    unsupported_if(
        length > MAX_UNROLLED_STEPS, f"it has {length} iterations, and at most {MAX_UNROLLED_STEPS} are unrolled"
    )
    backward = attributes.get("scan_input_directions") or [0] * len(scanned)
    loop = _Unrolled(tracer, body, 0, count, tracer.fresh(node))
    for iteration in range(length):
        slices = []
        for k, (name, axis) in enumerate(zip(scanned, axes, strict=True)):
            position = np.array(length - 1 - iteration if backward[k] else iteration, np.int64)
            index = tracer.add_constant(f"{loop.prefix}position {k}", position)
            slices.append(f"{loop.prefix}slice {k}")
            loop.add([make_node("Gather", [name, index], [slices[-1]], axis=axis)])
        state = loop.iterate([*state, *slices])
    results = len(loop.gathered)
    out_axes = attributes.get("scan_output_axes") or [0] * results
    for names, reverse in zip(loop.gathered, attributes.get("scan_output_directions") or [0] * results, strict=True):
        if reverse:
            names.reverse()
    return loop.finish(state, node.output, out_axes)


CONTROL: Mapping[str, Callable[[Tracer, NodeProto], list[TracedNode]]] = {
    "If": convert_if,
    "Loop": convert_loop,
    "Scan": convert_scan,
}
"""Operator with sub-graphs -> the function that replaces it, or raises `Unsupported`."""


class _Unrolled:
    """The unrolled iterations of a loop. WebNN must express all nodes.

    The body has `leading` outputs before the `state` loop-carried values. `gathered` has, for each output that is gathered,
    its name in each iteration.
    """

    def __init__(self, tracer: Tracer, body: GraphProto, leading: int, state: int, prefix: str) -> None:
        self.count = 0
        self.gathered: list[list[str]] = [[] for _ in range(len(body.output) - leading - state)]
        self._tracer, self._body, self._kept, self._prefix = tracer, body, leading + state, prefix
        self._steps: list[TracedNode] = []

    @property
    def prefix(self) -> str:
        return f"{self._prefix}{self.count}/"

    def add(self, nodes: Iterable[NodeProto]) -> None:
        """Trace nodes that are not part of the body."""
        self._steps += self._tracer.steps(nodes, whole=True)

    def iterate(self, inputs: Sequence[str]) -> list[str]:
        """Trace the next iteration; return the names of the outputs that are not gathered."""
        if self.count == MAX_UNROLLED_STEPS:
            raise Unsupported(f"it has more than {MAX_UNROLLED_STEPS} iterations, and no more are unrolled")
        if len(self._body.input) != len(inputs):
            raise Unsupported(f"its body takes {len(self._body.input)} values, and gets {len(inputs)}")
        names = {value.name: name for value, name in zip(self._body.input, inputs, strict=True)}
        outputs = [f"{self.prefix}{k}:{value.name}" for k, value in enumerate(self._body.output)]
        self._steps += inline(self._tracer, self._body, names, outputs, self.prefix, whole=True)
        unsupported_if(len(self._steps) > MAX_UNROLLED_NODES, f"it would become more than {MAX_UNROLLED_NODES} nodes")
        for gathered, name in zip(self.gathered, outputs[self._kept :], strict=True):
            gathered.append(name)
        self.count += 1
        return outputs[: self._kept]

    def finish(self, state: Sequence[str], outputs: Sequence[str], axes: Sequence[int]) -> list[TracedNode]:
        """Add steps that name the final state and stack the gathered outputs along new axes; return all steps."""
        self.add(copies(zip(state, outputs, strict=False)))
        for names, output, axis in zip(self.gathered, outputs[len(state) :], axes, strict=False):
            if output:
                self._join(names, output, axis)
        return self._steps

    def _join(self, names: Sequence[str], output: str, axis: int) -> None:
        unsupported_if(not names, "it has no iterations, so its gathered outputs are empty")
        shape = self._tracer.shape(names[0])
        axis = normalize_axis(axis, len(shape) + 1)
        longer = np.array([*shape[:axis], 1, *shape[axis:]], np.int64)
        target = self._tracer.add_constant(f"{self._prefix}shape of {output}", longer)
        parts = [f"{name} in {output}" for name in names]
        self.add(make_node("Reshape", [name, target], [part]) for name, part in zip(names, parts, strict=True))
        self.add([make_node("Concat", parts, [output], axis=axis)])


def _graph(node: NodeProto, name: str) -> GraphProto:
    graph: GraphProto = next(attribute.g for attribute in node.attribute if attribute.name == name)
    return graph


def _condition(tracer: Tracer, name: str) -> int | None:
    return _constant_of(tracer, name, "its condition", TensorProto.BOOL)


def _constant_of(tracer: Tracer, name: str, subject: str, element_type: int) -> int | None:
    """The value of a scalar, None if it is absent; `Unsupported` if it is not constant."""
    if not name:
        return None
    actual = tracer.element_type(name)
    unsupported_if(actual != element_type, f"{subject} has the type {TensorProto.DataType.Name(actual)}")
    value = tracer.constant_of(name, subject)
    unsupported_if(value.size != 1, f"{subject} has the shape {list(value.shape)}")
    return int(value.item())
