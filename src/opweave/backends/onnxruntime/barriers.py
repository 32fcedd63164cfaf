"""Keep the engine's optimiser from wrong moves and fusions, mostly by barriers: Identity nodes."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator
from typing import TYPE_CHECKING

import numpy as np

from .records import OnnxNode

if TYPE_CHECKING:
    from .emit import Emitter, Value

MOVES = frozenset({"MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})
"""The engine's optimiser may move a quantisation across these operators, in both directions."""

MOVED_OR_REMOVED = MOVES | {"Clip", "Expand", "Relu"}
"""The engine's optimiser may move a quantisation or dequantisation across these operators, or remove them next to one."""

RESHAPES = frozenset({"Expand", "Flatten", "Reshape", "Squeeze", "Unsqueeze"})
PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
"""The engine's optimiser moves no transposition across these operators."""


INTERPOLATED = {4: ({2, 3}, {1, 2}), 5: ({2, 3, 4},)}
"""The axes along which Resize interpolates linearly, by rank."""


MOVES_OVER_RESIZE = "TransposeOptimizer_CPUExecutionProvider"
"""The pass that moves transpositions over more operators than others do, Resize among them."""


def keep_resized_axes(ctx: Emitter, value: Value) -> None:
    """Keep the engine from moving a transposition of `value` behind a Resize of its last axes that interpolates.

    The kernel refuses the axes that it would have to resize then.
    """
    axes = INTERPOLATED[value.rank]
    pending = [(value.name, frozenset(axes[0]))]
    seen = set(pending)
    while pending:
        name, resized = pending.pop()
        node = ctx.producer(name)
        if node is None or node.op_type in PRODUCTS or node.op_type in RESHAPES:
            continue
        permutation = ctx.permutations.get(name, ())
        if len(permutation) == value.rank:
            resized = frozenset(permutation[axis] for axis in resized)
            if resized not in axes:
                ctx.disabled_optimizers.add(MOVES_OVER_RESIZE)
                return
        states = {(operand, resized) for operand in node.inputs if operand} - seen
        seen |= states
        pending += states


def keep_casts_apart(ctx: Emitter, moves_first: Container[str]) -> None:
    """Insert barriers between casts and the averages or products of transposed matrices that read them.

    The engine's optimiser takes a cast and an average for the start of a layer normalisation, and fuses them without the
    cast: the engine then refuses its own graph, whose data types are mixed. Before a product, the optimiser swaps a cast with
    a transposition of the first axis to fuse both; if the fusion fails, the engine ends the process.
    """
    cast = {node.outputs[0] for node in ctx.nodes if node.op_type == "Cast"}
    averages = {node.inputs[0] for node in ctx.nodes if node.op_type == "ReduceMean"}
    products = {name for node in ctx.nodes if node.op_type == "MatMul" for name in node.inputs}
    products = cast.intersection(name for product in products for name in _before_factors(ctx, product))
    if products:
        products &= _values_after_transpose(ctx, moves_first)
    _insert_apart(ctx, dict.fromkeys(cast & (averages | products)))


def _before_factors(ctx: Emitter, name: str) -> Iterator[str]:
    """Yield the value `name`, then each value that it is a scalar multiple of: the optimiser moves factors into products."""
    while True:
        yield name
        producer = ctx.producer(name)
        if producer is None or producer.domain or producer.op_type == "Cast":
            return
        kept = ctx.unchanged_operand(producer)
        if kept is None and producer.op_type in ("Div", "Mul"):
            numbers = [ctx.is_number(name) for name in producer.inputs]
            kept = 0 if numbers[1] else 1 if numbers[0] and producer.op_type == "Mul" else None
        if kept is None:
            return
        name = producer.inputs[kept]


def _values_after_transpose(ctx: Emitter, moves_first: Container[str]) -> set[str]:
    """Values that may follow a transposition of the first axis, once the optimiser has moved transpositions to the outputs."""
    turned, transposed = set[str](), set[str]()
    for node in ctx.nodes:
        if node.op_type in PRODUCTS or node.domain:
            continue
        is_turned = not turned.isdisjoint(node.inputs) or node.outputs[0] in moves_first
        is_transposed = node.op_type == "Transpose" or not transposed.isdisjoint(node.inputs)
        if is_turned or (is_transposed and node.op_type in RESHAPES):
            turned.update(node.outputs)
        if is_transposed:
            transposed.update(node.outputs)
    return turned


def keep_outputs_apart(ctx: Emitter, outputs: Container[str]) -> None:
    """Insert barriers behind outputs that are moved and then quantised.

    The engine's optimiser moves the quantisation before the movement, and then returns the quantised value as the output.
    """
    moved: dict[str, None] = {}
    for node in ctx.nodes:
        name, is_moved = node.inputs[0] if node.op_type == "QuantizeLinear" else "", False
        while (producer := ctx.producer(name)) is not None:
            kept = ctx.unchanged_operand(producer)
            if kept is None and producer.op_type not in MOVES:
                break
            is_moved |= producer.op_type in MOVES
            name = producer.inputs[kept or 0]
            if is_moved and name in outputs:
                moved[name] = None
    _insert_apart(ctx, moved)


def keep_signs_of_zeros(ctx: Emitter) -> None:
    """Disable an optimiser pass that removes x + 0 and x - -0, which are 0 where x is -0, if there may be such a node.

    The pass looks at constants of one element.
    """
    for node in ctx.nodes:
        added = node.inputs if node.op_type == "Add" else node.inputs[1:] if node.op_type == "Sub" else ()
        if any(ctx.is_number(name) and _is_zero(ctx, name, node.op_type == "Sub") for name in added):
            ctx.disabled_optimizers.add("NoopElimination")
            return


def _is_zero(ctx: Emitter, name: str, is_negative: bool) -> bool:
    """Whether a constant of one element is a float 0 of this sign, or what the engine folds may be one."""
    array = ctx.constants.get(name)
    return array is None or (array.dtype.kind == "f" and array.item() == 0 and np.signbit(array).item() == is_negative)


def _insert_apart(ctx: Emitter, names: Collection[str]) -> None:
    """Insert an Identity between each computed value in `names` and its readers."""
    if not names:
        return
    ctx.disabled_optimizers.add("EliminateIdentity")
    renamed = {name: ctx.fresh() for name in sorted(names)}
    apart = {name: OnnxNode("Identity", [name], [new], b"", "", f"{new}#apart") for name, new in renamed.items()}
    nodes, ctx.nodes = ctx.nodes, []
    for node in nodes:
        node.inputs = [renamed.get(name, name) for name in node.inputs]
        ctx.nodes.append(node)
        ctx.nodes += [apart[name] for name in node.outputs if name in apart]
