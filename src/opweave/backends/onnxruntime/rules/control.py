"""ONNX Runtime rules for operations with bodies: Scan, Loop and If, if the engine has rules for all nodes of the bodies."""

from __future__ import annotations

from collections.abc import Sequence

from ....composites.control import POSITION, branch, directions_of, loop
from ....core.bodies import Body
from ....core.graph import Desc
from ... import Precision
from ..backend import OnnxRuntime, ort
from ..emit import Emitter, Value
from ..records import Subgraph

ENDLESS = 2**63 - 1
"""The number of iterations of a Loop that its condition ends."""


def _runs(body: Body, precision: Precision) -> bool:
    backend = ort.with_precision(precision)
    return all(map(backend.supports, body.graph.nodes))


class _BodyWriter:
    """The sub-graph of a body while it is written.

    Its inputs are declared with `declare`, which returns values of the sub-graph; other values come from around it.
    """

    def __init__(self, ctx: Emitter) -> None:
        self.ctx = ctx.inner()
        self.ctx.node = ctx.node
        self._count = 0

    def declare(self, desc: Desc) -> Value:
        self._count += 1
        return self.ctx.add_input(self.ctx.name_of_input("", self._count), desc)

    def compute(self, body: Body, arguments: Sequence[Value]) -> list[tuple[Value, Desc]]:
        """Add the nodes of a body on values; return its outputs."""
        node = self.ctx.node
        backend = ort.with_precision(self.ctx.precision)
        assert isinstance(backend, OnnxRuntime)
        values, _ = backend.emit(self.ctx, body.graph, arguments)
        self.ctx.node = node
        return list(zip(values.values(), body.outputs, strict=True))

    def finish(self, outputs: Sequence[tuple[Value, Desc]]) -> tuple[Subgraph, tuple[str, ...]]:
        return self.ctx.sub_graph(outputs)


@ort.lower(branch, when=lambda body, other, precision: _runs(body, precision) and _runs(other, precision))
def _(ctx: Emitter, condition: Value, captured: Sequence[Value], body: Body, other: Body) -> list[Value]:
    graphs: list[Subgraph] = []
    captures: list[str] = []
    for part_body in (body, other):
        part = _BodyWriter(ctx)
        graph, names = part.finish(part.compute(part_body, captured))
        graphs.append(graph)
        captures += names
    descs = [output.desc for output in ctx.node.outputs]
    chosen = ctx.reshape(ctx.cast(condition, "bool"), ())
    return ctx.repeat("If", [chosen], descs, captures, then_branch=graphs[0], else_branch=graphs[1])


@ort.lower(loop, when=lambda body, precision: _runs(body, precision))
def _(
    ctx: Emitter,
    states: Sequence[Value],
    scanned: Sequence[Value],
    captured: Sequence[Value],
    count: Value | None,
    condition: Value | None,
    body: Body,
    length: int | None,
    takes_position: bool,
    gives_condition: bool,
    backward: Sequence[int],
    stacked_backward: Sequence[int],
) -> list[Value]:
    backwards = directions_of(backward, len(scanned))
    is_scan = scanned and not (takes_position or gives_condition or condition is not None)
    if is_scan:
        return _scan(ctx, states, scanned, captured, body, backwards, stacked_backward)
    part = _BodyWriter(ctx)
    position = part.declare(POSITION)
    part.ctx.add_flag_input(part.ctx.name_of_input("", 0))
    descs = [output.desc for output in ctx.node.outputs]
    inner = [part.declare(desc) for desc in descs[: len(states)]]
    slices = []
    for value, is_backward in zip(scanned, backwards, strict=True):
        place = position
        if is_backward:
            assert length is not None
            place = part.ctx.emit("Sub", part.ctx.constant(length - 1), position, shape=())
        slices.append(part.ctx.emit("Gather", value, place, axis=0, shape=value.dims[1:]))
    results = part.compute(body, [*([position] if takes_position else []), *inner, *slices, *captured])
    flag = part.ctx.constant(True, "bool")
    if gives_condition:
        continues, _ = results.pop(0)
        flag = part.ctx.cast(continues, "bool")
    graph, captures = part.finish([(flag, Desc("bool", ())), *results])  # type: ignore[arg-type]
    trips = ctx.constant(ENDLESS if length is None else length) if count is None else ctx.reshape(count, ())
    first = None if condition is None else ctx.reshape(ctx.cast(condition, "bool"), ())
    values = ctx.repeat("Loop", [trips, first, *states], descs, captures, body=graph)
    stacked = values[len(states) :]
    pairs = zip(stacked, directions_of(stacked_backward, len(stacked)), strict=True)
    return [*values[: len(states)], *(_flip(ctx, value) if is_flipped else value for value, is_flipped in pairs)]


def _scan(
    ctx: Emitter,
    states: Sequence[Value],
    scanned: Sequence[Value],
    captured: Sequence[Value],
    body: Body,
    backwards: Sequence[bool],
    stacked_backward: Sequence[int],
) -> list[Value]:
    part = _BodyWriter(ctx)
    descs = [output.desc for output in ctx.node.outputs]
    inner = [part.declare(desc) for desc in descs[: len(states)]]
    slices = [part.declare(Desc(value.data_type, value.dims[1:])) for value in scanned]  # type: ignore[arg-type]
    graph, captures = part.finish(part.compute(body, [*inner, *slices, *captured]))
    number = len(descs) - len(states)
    return ctx.repeat(
        "Scan",
        [*states, *scanned],
        descs,
        captures,
        body=graph,
        num_scan_inputs=len(scanned),
        scan_input_directions=[int(is_backward) for is_backward in backwards],
        scan_output_directions=[int(item) for item in directions_of(stacked_backward, number)] or None,
    )


def _flip(ctx: Emitter, value: Value) -> Value:
    """Reverse the first axis."""
    limits = [ctx.constant([number]) for number in (-1, -(2**63) + 1, 0, -1)]
    flipped: Value = ctx.emit("Slice", value, *limits, shape=value.shape)
    return flipped
