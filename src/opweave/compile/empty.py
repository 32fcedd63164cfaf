"""Remove operands without elements from a graph, so that no engine sees a dimension of 0.

A result without elements is a constant. A result with elements does not depend on the values of an operand without them:
a sum of no elements is 0, and a concatenation is that of the other operands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .. import memory, ops
from ..core.dtypes import INFO
from ..core.graph import Graph, Node, Operand, map_operands
from ..core.operation import Op
from ..core.shapes import Shape
from ..kernels.base import KernelCall
from ..kernels.expression import descs_of
from ..ops.constants import constant
from ..ops.movement import part_sizes
from ..support.errors import NotSupportedError
from .legalise import legalise


def is_empty(operand: Operand) -> bool:
    """Whether an operand has no elements."""
    return 0 in operand.shape


def has_empty(node: Node) -> bool:
    """Whether an operand or a result of a node has no elements."""
    return any(map(is_empty, node.operands)) or any(map(is_empty, node.outputs))


def emptiness() -> Callable[[Node], bool]:
    """`has_empty` for many nodes in one scope of comparisons, which asks about each shape once."""
    answers: dict[Shape, bool] = {}

    def is_empty_shape(operand: Operand) -> bool:
        answer = answers.get(operand.shape)
        if answer is None:
            answer = answers[operand.shape] = is_empty(operand)
        return answer

    return lambda node: any(map(is_empty_shape, node.operands)) or any(map(is_empty_shape, node.outputs))


def fold_empty(graph: Graph) -> tuple[Graph, Mapping[Node, Node]]:
    """The graph without operations on empty operands, and for each of its nodes the one that it comes from.

    Raises:
        NotSupportedError: a user's operation computes elements from an empty operand, and cannot be decomposed.
    """
    if not any(map(emptiness(), graph.nodes)):
        return graph, {node: node for node in graph.nodes}
    return legalise(graph, lambda node: not has_empty(node), decomposition_of=_decomposition_of)


def _decomposition_of(node: Node) -> Callable[..., Any]:
    """The function that computes the results of a node that has empty operands or results."""
    if all(map(is_empty, node.outputs)):
        return lambda b: tuple(_full(b, output, 0) for output in node.outputs)
    if node.op in _NEUTRAL:
        return lambda b: _full(b, node.outputs[0], _neutral(node))
    if node.op in _REMAINDERS:
        remainder = _REMAINDERS[node.op]
        return lambda b, **arguments: remainder(b, node.outputs[0], **arguments)
    if node.op is ops.split:
        return _split
    if node.op.decomposition is not None:
        return node.op.decomposition
    if node.operands and all(map(is_empty, node.operands)) and "cpu" in node.op.kernels:
        return lambda b, **arguments: _from_kernel(b, node)
    operands, results = (
        ", ".join(str(o.desc) for o in group if is_empty(o)) for group in (node.operands, node.outputs)
    )
    if not operands:
        raise NotSupportedError(
            f"{node.title}: there are no elements in its result {results}, but there are in others; only "
            "operations with a decomposition compute these"
        )
    raise NotSupportedError(
        f"{node.title}: there are no elements in {operands}; only operations with a decomposition compute elements from "
        "such operands, and kernels for the host if no operand has elements"
    )


def _from_kernel(b: ops.Operations, node: Node) -> tuple[Operand, ...]:
    """Results of operands without elements alone, which are constants: the kernel computes them now."""
    arrays = {operand: memory.empty(operand.desc) for operand in (*node.operands, *node.outputs)}
    descs = tuple(output.desc for output in node.outputs)
    call = KernelCall(node.title, node.op, descs_of(node.inputs), node.attributes, descs)
    kernel = node.op.kernels["cpu"].prepare(call)
    kernel.bind(map_operands(node.inputs, arrays.__getitem__), [arrays[output] for output in node.outputs])()
    return tuple(constant(b, arrays[output], output.data_type) for output in node.outputs)


def _full(b: ops.Operations, like: Operand, value: float) -> Operand:
    return constant(b, np.full(like.shape, value, like.data_type), like.data_type)


# ---------------------------------------------------------------------------------------------------------------------
# Results that have elements

_NEUTRAL: dict[Op[..., Any], float | str] = {
    ops.average_pool2d: np.nan,
    ops.l2_pool2d: 0,
    ops.matmul: 0,
    ops.max_pool2d: "lowest",
    ops.reduce_l1: 0,
    ops.reduce_l2: 0,
    ops.reduce_log_sum: -np.inf,
    ops.reduce_log_sum_exp: -np.inf,
    ops.reduce_max: "lowest",
    ops.reduce_mean: np.nan,
    ops.reduce_min: "highest",
    ops.reduce_product: 1,
    ops.reduce_sum: 0,
    ops.reduce_sum_square: 0,
}
"""Results of no elements; `lowest` and `highest` of the data type, which are infinite for floats."""


def _neutral(node: Node) -> float:
    value = _NEUTRAL[node.op]
    if not isinstance(value, str):
        return value
    info = INFO[node.outputs[0].data_type]
    if info.kind == "f":
        return -np.inf if value == "lowest" else np.inf
    return info.lowest if value == "lowest" else info.highest


def _concat(b: ops.Operations, like: Operand, inputs: tuple[Operand, ...], axis: int) -> Operand:
    parts = [input for input in inputs if not is_empty(input)]
    return parts[0] if len(parts) == 1 else b.concat(parts, axis)


def _pad(b: ops.Operations, like: Operand, value: float, **others: Any) -> Operand:
    return b.expand(constant(b, value, like.data_type), like.shape)


def _bias_alone(b: ops.Operations, like: Operand, bias: Operand | None, input_layout: str, **others: Any) -> Operand:
    """A convolution of no channels, or of padding alone."""
    if bias is None:
        return _full(b, like, 0)
    shape = [size if axis == "c" else 1 for axis, size in zip(input_layout, like.shape, strict=True)]
    return b.expand(b.reshape(bias, shape), like.shape)


def _scatter(b: ops.Operations, like: Operand, input: Operand, **others: Any) -> Operand:
    return input


_REMAINDERS: dict[Op[..., Any], Callable[..., Operand]] = {
    ops.concat: _concat,
    ops.conv2d: _bias_alone,
    ops.conv_transpose2d: _bias_alone,
    ops.pad: _pad,
    ops.scatter_elements: _scatter,
    ops.scatter_nd: _scatter,
}
"""Functions that compute a result from the operands that have elements: `like` is the result in the graph."""


def _split(b: ops.Operations, input: Operand, splits: Any, axis: int) -> tuple[Operand, ...]:
    sizes = part_sizes(input.shape[axis], splits)
    parts = iter(b.split(input, [size for size in sizes if size], axis=axis))
    shapes = [[size if k == axis else whole for k, whole in enumerate(input.shape)] for size in sizes]
    return tuple(
        next(parts) if size else constant(b, np.empty(shape, input.data_type), input.data_type)
        for size, shape in zip(sizes, shapes, strict=True)
    )
