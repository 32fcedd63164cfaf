"""Fuse recurrences with formulas: one that computes a slice of a sequence before a step, or changes an output behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .array import axes_of
from .ir import Expr, Formula, Index, Input, Load, Output, substitute, unify, walk
from .recurrence import Along, Recurrence
from .recurrent_step import as_read


def slice_of_formula(formula: Formula, along: Along, alongs: Sequence[Along | None]) -> Formula | None:
    """The formula of a slice of a pointwise formula's result; None if elements depend on their position in time.

    A formula may ask for the shapes of whole sequences, so it is traced with these, and its slice has the same numbers.

    Args:
        formula: has one output, a sequence.
        along: the axis of time of the output.
        alongs: for each input, the axis of time of its sequence; None for an array, which all slices read.

    >>> from ..core.graph import Desc
    >>> from .tracing import trace
    >>> means = trace(lambda x: x / x.shape[0], "means", [Desc("float32", (5, 3))])
    >>> print(slice_of_formula(means, Along(0), [Along(0)]))
    means(x0: float32[3]) -> (y0: float32[3]):
      y0[i] = x0[i] / 5.0
    """
    (output,) = formula.outputs
    axes = axes_of(along.slice_of(output.desc).shape)
    others = (*output.axes[: along.axis], *output.axes[along.axis + 1 :])
    of_slice: dict[Expr, Expr] = dict(zip(others, axes, strict=True))
    inputs = tuple(
        source if own is None else Input(source.number, own.slice_of(source.desc), source.name)
        for source, own in zip(formula.inputs, alongs, strict=True)
    )
    for node in walk(output.body):
        parts = tuple(of_slice[part] for part in node.parts)
        if isinstance(node, Load):
            assert isinstance(node.source, Input)
            own = alongs[node.source.number]
            indices = parts if own is None else (*parts[: own.axis], *parts[own.axis + 1 :])
            of_slice[node] = Load(inputs[node.source.number], indices)
        elif isinstance(node, Index):
            # Slices have no position in time. All arrays share variables, so the old one may be that of another axis.
            of_slice.setdefault(node, Index(node.extent))
        else:
            of_slice[node] = node.rebuild(parts)
    body = of_slice[output.body]
    return Formula(formula.name, inputs, (Output(axes, body),)) if body.free <= set(axes) else None


def with_producer(recurrence: Recurrence, number: int, formula: Formula, alongs: Sequence[Along | None]) -> Recurrence:
    """Let a recurrence compute its input `number` by a formula of slices and arrays, which become inputs instead.

    Args:
        recurrence: the recurrence.
        number: the input, behind the states.
        formula: has one output, a slice of the input.
        alongs: for each input of the formula, the axis of time of its sequence; None for an array.

    >>> from ..core.graph import Desc
    >>> from .tracing import trace
    >>> row = Desc("float32", (3,))
    >>> sums = Recurrence(trace(lambda h, x: h + x, "sums", [row, row]), 1, (Along(0),), ())
    >>> print(with_producer(sums, 0, trace(lambda a, b: a * b, "mul", [row, row]), [Along(0), None]).step)
    sums(x0: float32[3], x1: float32[3], x2: float32[3]) -> (y0: float32[3]):
      y0[i] =
        x0[i] + (x1[i] * x2[i])
    """
    states, step = recurrence.states, recurrence.step
    place = states + number
    source, output = step.inputs[place], formula.outputs[0]
    inputs = [*step.inputs[:place], *formula.inputs, *step.inputs[place + 1 :]]
    own = [Input(k, old.desc, old.name if old in step.inputs else "") for k, old in enumerate(inputs)]
    sources = dict(zip(inputs, own, strict=True))
    body = as_read(_rewrite(output.body, sources), source.desc)

    def element(at: Sequence[Expr]) -> Expr:
        return substitute(body, dict(zip(output.axes, at, strict=True)))

    bodies = unify(*(_rewrite(old.body, sources, source, element) for old in step.outputs))
    outputs = tuple(Output(old.axes, new) for old, new in zip(step.outputs, bodies, strict=True))
    slices = (*recurrence.inputs[:number], *alongs, *recurrence.inputs[number + 1 :])
    return Recurrence(Formula(step.name, tuple(own), outputs), states, slices, recurrence.outputs)


def with_consumer(
    recurrence: Recurrence, number: int, formula: Formula, place: int, alongs: Sequence[Along | None]
) -> Recurrence:
    """Replace output `number` of a recurrence by a formula of it, which reads the output at the position that it writes.

    Args:
        recurrence: the recurrence.
        number: the output, behind the states.
        formula: has one output, in the shape of the slice of the recurrence's.
        place: the input of the formula that stands for the output.
        alongs: for the other inputs of the formula, which become the last ones of the recurrence, the axis of time of its
            sequence; None for an array.
    """
    states, step = recurrence.states, recurrence.step
    others = [source for k, source in enumerate(formula.inputs) if k != place]
    own = [Input(len(step.inputs) + k, source.desc) for k, source in enumerate(others)]
    sources = {source: source for source in step.inputs} | dict(zip(others, own, strict=True))
    old, new = step.outputs[states + number], formula.outputs[0]
    value = as_read(old.body, old.desc)

    def element(at: Sequence[Expr]) -> Expr:
        return substitute(value, dict(zip(old.axes, at, strict=True)))

    body = _rewrite(new.body, sources, formula.inputs[place], element)
    outputs = list(step.outputs)
    outputs[states + number] = Output(axes_of(new.desc.shape), body)
    bodies = unify(*(output.body for output in outputs))
    written = tuple(Output(output.axes, body) for output, body in zip(outputs, bodies, strict=True))
    result = Formula(step.name, (*step.inputs, *own), written)
    return Recurrence(result, states, (*recurrence.inputs, *alongs), recurrence.outputs)


def _rewrite(
    body: Expr,
    sources: dict[Input, Input],
    replaced: Input | None = None,
    element: Callable[[Sequence[Expr]], Expr] | None = None,
) -> Expr:
    """A body that reads other inputs; loads of `replaced` become an element at their position."""
    done: dict[Expr, Expr] = {}
    for node in walk(body):
        parts = tuple(done[part] for part in node.parts)
        if not isinstance(node, Load):
            done[node] = node.rebuild(parts)
        elif node.source is replaced and element is not None:
            done[node] = element(parts)
        else:
            assert isinstance(node.source, Input)
            done[node] = Load(sources[node.source], parts)
    return done[body]
