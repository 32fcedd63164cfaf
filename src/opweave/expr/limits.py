"""Limits on the size of expressions and on the work of compiling them."""

from __future__ import annotations

import os

from ..support import settings
from ..support.errors import ValidationError
from .ir import Call, Expr, Formula, Reduce, walk

NODES_VARIABLE = "OPWEAVE_MAX_EXPRESSION_NODES"
"""Environment variable: maximum number of nodes of an expression."""

MAX_NODES = 50_000
"""Tracing takes 30 to 80 us and about 1 KB per node. Larger expressions are mostly stencils of stencils, whose size
multiplies at each level.
"""

WORK_VARIABLE = "OPWEAVE_MAX_COMPILE_WORK"
"""Environment variable: maximum compile work for Halide, in units of `work`."""

MAX_WORK = 5_000
"""About 5 s on one core. A compilation by Halide cannot be interrupted."""

_CALL_WORK_MS = {
    **dict.fromkeys(("sin", "cos", "tan"), 36),
    "pow": 22,
    **dict.fromkeys(("exp", "log", "erf", "tanh", "sigmoid"), 8),
}
"""Halide's compile time per call in ms on one core, measured on chains of 4 and 16 calls; 1 for all other functions."""

_LOOP_WORK_MS = 50
"""Halide's compile time in ms for a loop: an output, a stored array, or a reduction."""


def limit(variable: str, default: int) -> int:
    """The value of an environment variable, a positive integer, or `default` if it is not set."""
    return settings.number(variable, default)


def check_nodes(count: int) -> None:
    """Require at most `OPWEAVE_MAX_EXPRESSION_NODES` nodes."""
    if count <= MAX_NODES and NODES_VARIABLE not in os.environ:
        return
    maximum = limit(NODES_VARIABLE, MAX_NODES)
    if count > maximum:
        raise ValidationError(
            f"the expression has {count:,} nodes, more than the {maximum:,} that are allowed; store(array) keeps an "
            f"intermediate that is read at several positions, and the environment variable {NODES_VARIABLE} sets the limit"
        )


def work(program: Formula) -> int:
    """Estimate the time in ms that Halide takes to compile a program on one core."""
    return _LOOP_WORK_MS * len(_bodies(program)) + work_of_elements(program)


def work_of_elements(program: Formula) -> int:
    """The part of `work` that adds up when programs are fused into one loop."""
    return sum(map(_work, walk(*_bodies(program))))


def _bodies(program: Formula) -> tuple[Expr, ...]:
    return (*(stored.body for stored in program.stored), *program.roots)


def _work(node: Expr) -> int:
    if isinstance(node, Call):
        return _CALL_WORK_MS.get(node.name, 1)
    return _LOOP_WORK_MS if isinstance(node, Reduce) else 1


def too_much_work(program: Formula) -> str:
    """Describe excessive compile work, as a clause for messages; empty if Halide may compile the program."""
    needed, maximum = work(program), limit(WORK_VARIABLE, MAX_WORK)
    if needed <= maximum:
        return ""
    return (
        f"compiling it would take {needed:,} units of work (milliseconds, roughly), more than the {maximum:,} that are "
        f"allowed; the environment variable {WORK_VARIABLE} sets the limit"
    )
