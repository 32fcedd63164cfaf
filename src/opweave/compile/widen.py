"""Compute nodes on data types of 16 bits in 32 bits, where a back end only stores the narrower types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import ops
from ..backends import Backend
from ..composites import is_composite
from ..core.dtypes import INFO, WIDENED
from ..core.graph import Node, Operand, is_widening, map_operands


def may_widen(node: Node, backend: Backend) -> bool:
    """Whether casts around a node leave the back end with data types that it computes."""
    beyond = node.data_types.difference(backend.computes)
    return bool(beyond) and node.has_further_types and not is_widening(node) and beyond.issubset(backend.stores)


def wide_decomposition(node: Node) -> Callable[..., Any]:
    """The decomposition that casts the operands of a node to wider types, and the results back, which wraps or rounds."""
    if node.op is ops.quantize_linear and node.op.decomposition is not None:  # it saturates at the range of the result
        parts: Callable[..., Any] = node.op.decomposition
        return parts

    def widen(b: ops.Operations, operand: Operand) -> Operand:
        wide = WIDENED.get(operand.data_type)
        return operand if wide is None else b.cast(operand, wide)

    def cast(b: ops.Operations, /, **arguments: Any) -> Operand:
        x, target = widen(b, arguments["input"]), node.outputs[0].data_type
        wide = b.cast(x, WIDENED.get(target, target))
        return wide if wide.data_type == target else b.cast(wide, target)

    def decompose(b: ops.Operations, /, **arguments: Any) -> tuple[Operand, ...]:
        inputs = map_operands({name: arguments[name] for name in node.op.operands}, lambda operand: widen(b, operand))
        results = node.op(b, **{**arguments, **inputs})
        outputs = results if isinstance(results, (tuple, list)) else (results,)
        info = INFO[node.outputs[0].data_type]
        is_maximum = node.op is ops.max_pool2d or is_composite(node.op, "max_pool", "max_pool_with_indices")
        if is_maximum and info.kind == "i":  # of a window of padding alone, it is the lowest value
            outputs = (b.clamp(outputs[0], min_value=info.lowest), *outputs[1:])
        return tuple(
            result if result.data_type == output.data_type else b.cast(result, output.data_type)
            for result, output in zip(outputs, node.outputs, strict=True)
        )

    return cast if node.op is ops.cast else decompose
