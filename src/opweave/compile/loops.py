"""Compiled loops: nodes whose expressions become one."""

from __future__ import annotations

from ..core.graph import Node
from ..core.sizes import is_same_shape
from ..expr import limits
from ..expr.ir import Formula
from ..kernels.expression import descs_of, program_of

EXPRESSION = "expression"
"""Kind of the nodes that run in compiled loops."""


def formula_of(node: Node) -> Formula:
    """The expression of a node."""
    return program_of(node.op, descs_of(node.inputs), node.attributes)


def is_pointwise(node: Node) -> bool:
    """Whether the expression of a node reads its operands at the index that it writes."""
    return formula_of(node).is_pointwise


def may_fit(producer: Node, consumer: Node) -> bool:
    """Whether the shapes of two expressions allow that they become one loop."""
    return len(consumer.outputs) == 1 and any(
        is_same_shape(consumer.outputs[0].shape, o.shape) for o in producer.outputs
    )


def fits(producer: Node, consumer: Node) -> bool:
    """Whether two expressions become one loop: `consumer` reads the result of `producer` at the index that it writes."""
    return may_fit(producer, consumer) and is_pointwise(consumer)


def work(node: Node) -> int:
    """The cost of compiling an expression, in units of the limit."""
    return limits.work_of_elements(formula_of(node))
