"""Limits on the size of expressions and on the work of compiling them."""

from __future__ import annotations

import os

from ..errors import ValidationError, require
from .ir import Call, Expr, Program, Reduce, walk

NODES = "OPWEAVE_MAX_EXPRESSION_NODES"
"""The environment variable that sets how many nodes an expression may have."""

MAX_NODES = 50_000
"""Tracing takes 30 to 80 us a node, and about 1 KB: more than this is mostly access to neighbours of neighbours, which
multiplies at each level."""

WORK = "OPWEAVE_MAX_COMPILE_WORK"
"""The environment variable that sets how much Halide may have to compile, in units of `work`."""

MAX_WORK = 5_000
"""About 5 s of one processor: Halide cannot be interrupted meanwhile."""

_WORK = {
    **dict.fromkeys(("sin", "cos", "tan"), 36),
    "pow": 22,
    **dict.fromkeys(("exp", "log", "erf", "tanh", "sigmoid"), 8),
}
"""Milliseconds of one processor that Halide takes for a function; 1 for all others. Measured with chains of 4 and 16 calls."""

_WORK_OF_LOOP = 50
"""The same for a loop: an output, a stored array, a reduction."""


def limit(variable: str, default: int) -> int:
    """A limit: the value of the environment variable where it is set.

    Raises:
        ValidationError: the variable is no positive integer.
    """
    text = os.environ.get(variable, "")
    if not text:
        return default
    require(
        text.isascii() and text.isdigit() and int(text[:20]) > 0, f"{variable} must be a positive integer, got {text!r}"
    )
    return int(text[:20])


def check_nodes(count: int) -> None:
    """Refuse expressions of too many nodes.

    Raises:
        ValidationError: there are more than `OPWEAVE_MAX_EXPRESSION_NODES`.
    """
    if count <= MAX_NODES and NODES not in os.environ:
        return
    most = limit(NODES, MAX_NODES)
    if count > most:
        raise ValidationError(
            f"the expression has {count:,} nodes, more than the {most:,} that are allowed; store(array) keeps an "
            f"intermediate that is read at several positions, and the environment variable {NODES} sets the limit"
        )


def work(program: Program) -> int:
    """How long Halide takes to compile a program, roughly in milliseconds of one processor."""
    return _WORK_OF_LOOP * len(_bodies(program)) + work_of_elements(program)


def work_of_elements(program: Program) -> int:
    """The part of `work` that adds up when programs become one loop."""
    return sum(map(_work, walk(*_bodies(program))))


def _bodies(program: Program) -> tuple[Expr, ...]:
    return (*(stored.body for stored in program.stored), *program.roots)


def _work(node: Expr) -> int:
    if isinstance(node, Call):
        return _WORK.get(node.name, 1)
    return _WORK_OF_LOOP if isinstance(node, Reduce) else 1


def too_much_work(program: Program) -> str:
    """Why a program is too much work for Halide, as the end of a message; empty if it is not."""
    needed, most = work(program), limit(WORK, MAX_WORK)
    if needed <= most:
        return ""
    return (
        f"compiling it would take {needed:,} units of work (milliseconds, roughly), more than the {most:,} that are "
        f"allowed; the environment variable {WORK} sets the limit"
    )


__all__ = [
    "MAX_NODES",
    "MAX_WORK",
    "NODES",
    "WORK",
    "check_nodes",
    "limit",
    "too_much_work",
    "work",
    "work_of_elements",
]
