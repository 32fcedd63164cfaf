"""Control flow, and parts of programs: `torch.no_grad` blocks, `torch.cond`, `scan` of a known number of steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree

from ..core.graph import MLOperand
from ..core.sizes import Size
from ..support.errors import NotSupportedError
from .labels import place_of
from .registry import NotConvertible, refuse_if

if TYPE_CHECKING:
    from .convert import Frame

CONTROL: dict[str, Callable[..., Any]] = {}
"""Name of a higher-order operator -> what converts a call: `(frame, node, *args, **kwargs)`."""

MAX_STEPS = 64
"""The largest number of steps of a scan that is unrolled, an estimate: graphs grow with each step."""


def _handles(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        CONTROL[name] = function
        return function

    return register


def run_part(frame: Frame, part: Any, values: Sequence[Any], nodes: Sequence[Any] = ()) -> Any:
    """Convert a part of a program; writes to its inputs are writes to `nodes`, the arguments of a call that runs once."""
    inner = type(frame)(frame.owner, part, values, frame.label, records=frame.records and bool(nodes))
    outputs = inner.run()
    for node, old, placeholder in zip(nodes, values, inner.inputs, strict=bool(nodes)):
        new = inner.values[placeholder]
        if new is not old:
            frame.views.write(node, new)
    return outputs


@_handles("wrap_with_set_grad_enabled")
def _(frame: Frame, node: Any, enabled: bool, part: Any, *values: Any) -> Any:
    return run_part(frame, part, values, node.args[2:])


@_handles("wrap_with_autocast")
def _(frame: Frame, node: Any, device: Any, dtype: Any, enabled: bool, cache: Any, part: Any, *values: Any) -> Any:
    if enabled:
        raise NotSupportedError(
            f"from_torch: {place_of(node)} runs under torch.autocast, which the program does not express; convert the module "
            f"by module.to({dtype}), and remove the autocast, or use create_context(precision=…) for faster products"
        )
    return run_part(frame, part, values, node.args[5:])


@_handles("invoke_subgraph")
def _(frame: Frame, node: Any, part: Any, identifier: Any, *values: Any) -> Any:
    return run_part(frame, part, values, node.args[2:])


@_handles("hints_wrapper")
def _(frame: Frame, node: Any, part: Any, values: Any, kwargs: Any, hints: Any) -> Any:
    return run_part(frame, part, values)


@_handles("cond")
def _(frame: Frame, node: Any, predicate: Any, true_part: Any, false_part: Any, values: Any) -> Any:
    if isinstance(predicate, torch.Tensor):
        predicate = bool(predicate.item())
    if isinstance(predicate, bool):
        return run_part(frame, true_part if predicate else false_part, values)
    refuse_if(
        not isinstance(predicate, MLOperand), "the condition depends on sizes that are known only when the graph runs"
    )
    b, own = frame.builder, frame.owner
    # Both branches are computed, and the condition selects: branches have no side effects.
    chosen = []
    for yes, no in zip(
        *(_pytree.tree_leaves(list(run_part(frame, part, values))) for part in (true_part, false_part)), strict=True
    ):
        yes, no = own.operand_of(yes), own.operand_of(no)
        refuse_if(not isinstance(yes, MLOperand) or not isinstance(no, MLOperand), "a branch returns a number")
        refuse_if(yes.shape != no.shape, "the branches return different shapes")
        chosen.append(b.where(b.reshape(predicate, []) if predicate.rank else predicate, yes, no))
    return tuple(chosen)


@_handles("scan")
def _(frame: Frame, node: Any, part: Any, initial: Any, inputs: Any, more: Any = ()) -> Any:
    b, own = frame.builder, frame.owner
    inputs = [own.operand_of(value) for value in inputs]
    steps = inputs[0].shape[0] if inputs else 0
    refuse_if(isinstance(steps, Size) or steps > MAX_STEPS, f"it has {steps} steps, and up to {MAX_STEPS} are unrolled")
    carried, results = list(initial), []
    for step in range(steps):
        rows = [
            b.reshape(b.slice(x, [step] + [0] * (x.rank - 1), [1, *x.shape[1:]]), list(x.shape[1:])) for x in inputs
        ]
        outputs = list(run_part(frame, part, [*carried, *rows, *more]))
        carried = outputs[: len(initial)]
        results.append([own.operand_of(value) for value in outputs[len(initial) :]])
    refuse_if(not results, "it has no steps")
    stacked = [
        b.concat([b.reshape(value, [1, *value.shape]) for value in column], 0) for column in zip(*results, strict=True)
    ]
    return (*carried, *stacked)


@_handles("while_loop")
def _(frame: Frame, node: Any, condition: Any, body: Any, initial: Any, more: Any = ()) -> Any:
    values = list(initial)
    for _ in range(MAX_STEPS + 1):
        answer = run_part(frame, condition, [*values, *more])
        answer = answer[0] if isinstance(answer, (tuple, list)) else answer
        if isinstance(answer, torch.Tensor):
            answer = bool(answer.item())
        if not isinstance(answer, bool):
            raise NotConvertible("its condition is known only when the graph runs")
        if not answer:
            return tuple(values)
        values = list(run_part(frame, body, [*values, *more]))
    raise NotConvertible(f"it has more than {MAX_STEPS} steps")
