"""Trace functions of arrays to formulas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ..core.graph import Desc
from ..support.errors import ValidationError, require
from . import ir
from .array import Traced, as_array, axes_of, positions_of, run_checks
from .ir import Check, Formula, Input, Load, Output
from .limits import check_nodes
from .ranges import check_positions


def of_input(source: Input) -> Traced:
    """Return an array that has the shape and the elements of `source`."""
    return Traced(source.desc.shape, Load(source, positions_of(source.desc.shape)))


def inputs_of(descs: Sequence[Desc], names: Sequence[str] = ()) -> tuple[tuple[Input, ...], tuple[Traced, ...]]:
    """Create an input and an array for each descriptor; `names` are for messages."""
    named = names or [""] * len(descs)
    inputs = tuple(Input(number, desc, name) for number, (desc, name) in enumerate(zip(descs, named, strict=True)))
    return inputs, tuple(map(of_input, inputs))


def trace(function: Callable[..., Any], name: str, descs: Sequence[Desc], **attributes: Any) -> Formula:
    """Trace `function` with one `Traced` for each of `descs`, and return its formula.

    Args:
        function: returns an array, or a tuple of arrays.
        name: shown in messages and tables.
        descs: data type and shape of each operand.
        attributes: passed on to `function`.

    Raises:
        ValidationError: `function` returns something else, or uses its arrays wrongly.

    >>> from opweave.expr import trace
    >>> from opweave.core.graph import Desc
    >>> print(trace(lambda x: 2 * x, "doubled", [Desc("float32", (3,))]))
    doubled(x0: float32[3]) -> (y0: float32[3]):
      y0[i] =
        2.0 * x0[i]
    """
    return trace_named(partial(function, **attributes), name, descs)


def trace_named(function: Callable[..., Any], name: str, descs: Sequence[Desc], names: Sequence[str] = ()) -> Formula:
    """Trace as `trace` does, with names of the operands for messages; default: x0, x1, …"""
    inputs, arrays = inputs_of(descs, names)
    checks: list[Check] = []
    token = run_checks.set(checks)
    try:
        result = function(*arrays)
        results = tuple(as_array(r) for r in (result if isinstance(result, (tuple, list)) else (result,)))
    finally:
        run_checks.reset(token)
    return make_formula(name, inputs, results, checks)


def make_formula(
    name: str, inputs: tuple[Input, ...], results: Sequence[Traced], checks: Sequence[Check] = ()
) -> Formula:
    """Return the formula that computes `results` from `inputs`.

    Results may not depend on positions outside of their axes, nor on arrays that are not among the inputs.
    """
    require(len(results) > 0, "an expression must return an array, or a tuple of them")
    for array in results:
        if not array.body.free <= set(axes_of(array.shape)):
            raise ValidationError(f"the result depends on a position outside of its axes: {array!r}")
    bodies = ir.unify(*(array.body for array in results))
    outputs = tuple(Output(axes_of(array.shape), body) for array, body in zip(results, bodies, strict=True))
    result = Formula(name, inputs, outputs, tuple(dict.fromkeys(checks)))
    foreign = [source for source in ir.sources(*result.roots) if isinstance(source, Input) and source not in inputs]
    require(
        not foreign, f"the result depends on an array of another expression, {', '.join(str(s.desc) for s in foreign)}"
    )
    check_nodes(len(ir.walk(*(stored.body for stored in result.stored), *result.roots)))
    check_positions(*(stored.body for stored in result.stored), *result.roots)
    return result
