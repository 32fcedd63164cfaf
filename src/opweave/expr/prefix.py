"""Linear recurrences in chunks of time, so that devices with many processors are busy although a step has few elements.

The step of a linear recurrence is h = a h + b, element by element, where a and b do not depend on h. The steps of a chunk of
time together are one such step: first, all chunks compute their factor and their sum at the same time; then these are combined
from chunk to chunk, which gives each chunk the state before its first step; last, all chunks run the steps.

The factor of a chunk may leave the range of float32 although no state does. When chunks are combined, 0 times a factor that
overflowed is 0. Infinity times a factor that underflowed stays infinite, with the sign of the factor, which is computed
separately. Other states become infinite where a factor overflowed, even if later steps of the chunk would make them small.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..core.graph import Desc
from .array import axes_of, positions_of
from .ir import Call, Const, Expr, Formula, Input, Load, Output, call, is_aligned, unify, walk
from .recurrence import Along, Recurrence


@dataclass(frozen=True, eq=False)
class LinearForm:
    """A value as a function of the element of a state: factor * state + rest; None for a factor or a rest of 0."""

    factor: Expr | None
    rest: Expr | None


@dataclass(frozen=True, eq=False)
class ChunkedRecurrence:
    """The parts of a linear recurrence in chunks.

    Attributes:
        factors: for all chunks, from `units`: the factors, the sums and the signs of factors. Its inputs are those of `steps`.
        units: the first states of `factors`.
        combine: over the chunks, from the first states, with sequences of factors, sums and signs along axis 0: the last
            states, and the states before each chunk.
        steps: for all chunks, from the states before each: the states after each chunk, and the outputs.
    """

    factors: Recurrence
    units: tuple[Const, ...]
    combine: Recurrence
    steps: Recurrence


def to_chunks(recurrence: Recurrence, count: int) -> ChunkedRecurrence | None:
    """A recurrence in `count` chunks; None if it is not linear in states of float32.

    States of the parts have a first axis of chunks, sequences this axis before that of time.

    >>> from .tracing import trace
    >>> step = trace(lambda h, x: (h + (x - h) * 0.5, h), "low", [Desc("float32", (3,))] * 2)
    >>> parts = to_chunks(Recurrence(step, 1, (Along(0),), (Along(0),)), 4)
    >>> print(*parts.steps.results_for([Desc("float32", (4, 3)), Desc("float32", (4, 100, 3))]))
    float32[4, 3] float32[4, 100, 3]
    >>> for line in str(parts.factors.step).splitlines()[1:]:
    ...     print(line)
      y0[i, j] =
        x0[i, j] * (1.0 + (neg(1.0) * 0.5))
      y1[i, j] =
        (x1[i, j] * (1.0 + (neg(1.0) * 0.5))) + (x3[i, j] * 0.5)
      y2[i, j] =
        x2[i, j] * sign(1.0 + (neg(1.0) * 0.5))
    """
    step, states = recurrence.step, recurrence.states
    is_backward = {along.backward for along in (*recurrence.inputs, *recurrence.outputs) if along is not None}
    if not states or step.stored or step.checks or len(is_backward) != 1:
        return None
    own, outputs = step.inputs[:states], step.outputs[:states]
    if any(source.desc.data_type != "float32" for source in own):
        return None
    forms = []
    for source, output in zip(own, outputs, strict=True):
        form = _linear_form(output.body, source, set(own))
        if form is None or form.factor is None:
            return None
        forms.append(form)
    factors = _recurrence_of_factors(recurrence, forms)
    units = tuple(Const(value, "float32") for value in (1.0, 0.0, 1.0) for _ in range(states))
    return ChunkedRecurrence(
        _with_axis(factors, count),
        units,
        _combination(recurrence, is_backward.pop()),
        _with_axis(recurrence, count),
    )


def _linear_form(body: Expr, state: Input, states: set[Input]) -> LinearForm | None:
    """A new state as a function of the old one; None if it is not linear, or reads other elements or states."""
    reads: dict[Expr, bool] = {}
    for node in walk(body):
        own = isinstance(node, Load) and node.source in states
        reads[node] = own or any(reads[part] for part in node.parts)
    forms: dict[Expr, LinearForm | None] = {}

    def parts_of(node: Expr) -> tuple[Expr, ...]:
        return node.parts if reads[node] and not isinstance(node, Load) else ()

    for node in walk(body, enter=parts_of):
        if not reads[node]:
            forms[node] = LinearForm(None, node)
        elif isinstance(node, Load):
            is_own = node.source is state and is_aligned(node)
            forms[node] = LinearForm(Const(1.0, "float32"), None) if is_own else None
        else:
            parts = [forms[part] for part in node.parts]
            is_known = isinstance(node, Call) and node.type == "float32" and None not in parts
            forms[node] = _form_of_call(node, [part for part in parts if part is not None]) if is_known else None
    return forms[body]


def _form_of_call(node: Expr, parts: list[LinearForm]) -> LinearForm | None:
    assert isinstance(node, Call)
    if node.name in ("add", "sub"):
        a, b = parts
        if node.name == "sub":
            b = LinearForm(_negative(b.factor), _negative(b.rest))
        return LinearForm(_sum(a.factor, b.factor), _sum(a.rest, b.rest))
    if node.name == "neg":
        return LinearForm(_negative(parts[0].factor), _negative(parts[0].rest))
    if node.name == "mul":
        a, b = parts if parts[1].factor is None else parts[::-1]
        return None if b.factor is not None or b.rest is None else _scale(a, lambda x: _times(x, b.rest))
    if node.name == "div" and parts[1].factor is None and (divisor := parts[1].rest) is not None:
        return _scale(parts[0], lambda x: call("div", x, divisor))
    return None


def _scale(form: LinearForm, scale: Callable[[Expr], Expr]) -> LinearForm:
    return LinearForm(*(None if part is None else scale(part) for part in (form.factor, form.rest)))


def _negative(a: Expr | None) -> Expr | None:
    return None if a is None else call("neg", a)


def _sum(a: Expr | None, b: Expr | None) -> Expr | None:
    if a is None or b is None:
        return b if a is None else a
    if isinstance(b, Call) and b.name == "neg":
        return call("sub", a, b.parts[0])
    return call("add", a, b)


def _times(a: Expr, b: Expr | None) -> Expr:
    assert b is not None
    return b if isinstance(a, Const) and a.value == 1 else call("mul", a, b)


def _recurrence_of_factors(recurrence: Recurrence, forms: list[LinearForm]) -> Recurrence:
    """The recurrence of the factors, sums and signs of factors of all states."""
    step, states = recurrence.step, recurrence.states
    descs = [source.desc for source in step.inputs[:states]]
    own = [Input(k, desc) for k, desc in enumerate(descs * 3)]
    others = [Input(3 * states + k, source.desc, source.name) for k, source in enumerate(step.inputs[states:])]
    replaced = dict(zip(step.inputs[states:], others, strict=True))
    bodies: list[Expr] = []
    for k, form in enumerate(forms * 3):
        at, factor = Load(own[k], positions_of(own[k].desc.shape)), form.factor
        assert factor is not None
        if k >= 2 * states:
            bodies.append(_times_or_self(at, call("sign", factor)))
            continue
        body = _times_or_self(at, factor)
        bodies.append(call("add", body, form.rest) if k >= states and form.rest is not None else body)
    outputs = [
        Output(axes_of(desc.shape), _with_sources(body, replaced)) for desc, body in zip(descs * 3, bodies, strict=True)
    ]
    unified = unify(*(output.body for output in outputs))
    formula = Formula(
        step.name,
        (*own, *others),
        tuple(Output(output.axes, body) for output, body in zip(outputs, unified, strict=True)),
    )
    return Recurrence(formula, 3 * states, recurrence.inputs, ())


def _times_or_self(at: Expr, factor: Expr) -> Expr:
    return at if isinstance(factor, Const) and factor.value == 1 else call("mul", at, factor)


def _with_sources(body: Expr, replaced: dict[Input, Input]) -> Expr:
    done: dict[Expr, Expr] = {}
    for node in walk(body):
        parts = tuple(done[part] for part in node.parts)
        is_replaced = isinstance(node, Load) and node.source in replaced
        done[node] = Load(replaced[node.source], parts) if is_replaced else node.rebuild(parts)  # type: ignore[attr-defined]
    return done[body]


def _combination(recurrence: Recurrence, is_backward: bool) -> Recurrence:
    """The recurrence over chunks: states, then factors, sums and signs of factors; it gives the states before each chunk."""
    states = recurrence.states
    descs = [source.desc for source in recurrence.step.inputs[:states]]
    inputs = [Input(k, desc) for k, desc in enumerate(descs * 4)]
    new, before = [], []
    for number, desc in enumerate(descs):
        at = positions_of(desc.shape)
        h, a, b, sign = (Load(inputs[number + k * states], at) for k in range(4))
        zero = Const(0.0, "float32")
        product = call("where", call("equal", h, zero), zero, call("mul", h, a))
        product = call("where", call("is_infinite", h), call("mul", h, sign), product)
        new.append(Output(axes_of(desc.shape), call("add", product, b)))
        before.append(Output(axes_of(desc.shape), h))
    formula = Formula(f"{recurrence.name} over chunks", tuple(inputs), (*new, *before))
    along = Along(0, is_backward)
    return Recurrence(formula, states, (along,) * (3 * states), (along,) * states)


def _with_axis(recurrence: Recurrence, count: int) -> Recurrence:
    """A recurrence that runs `count` times, independently: a first axis of states, and an axis before that of time."""
    step, states = recurrence.step, recurrence.states
    places: list[int | None] = [0] * states
    places += [None if along is None else along.axis for along in recurrence.inputs]
    inputs = tuple(
        Input(source.number, _insert_axis(source.desc, place, count), source.name)
        for source, place in zip(step.inputs, places, strict=True)
    )
    sources = dict(zip(step.inputs, zip(inputs, places, strict=True), strict=True))
    targets = [0] * states + [along.axis for along in recurrence.outputs]
    bodies: list[Expr] = []
    shapes = []
    for output, target in zip(step.outputs, targets, strict=True):
        desc = _insert_axis(output.desc, target, count)
        axes, at = axes_of(desc.shape), positions_of(desc.shape)
        old = [position for k, position in enumerate(at) if k != target]
        done: dict[Expr, Expr] = dict(zip(output.axes, old, strict=True))
        shapes.append(axes)
        for node in walk(output.body):
            if node in done:
                continue
            parts = tuple(done[part] for part in node.parts)
            if isinstance(node, Load) and isinstance(node.source, Input):
                source, place = sources[node.source]
                if place is not None:
                    parts = (*parts[:place], at[target], *parts[place:])
                done[node] = Load(source, parts)
            else:
                done[node] = node.rebuild(parts)
        bodies.append(done[output.body])
    formula = Formula(step.name, inputs, tuple(map(Output, shapes, unify(*bodies))))
    moved = tuple(None if along is None else Along(along.axis + 1, along.backward) for along in recurrence.inputs)
    outputs = tuple(Along(along.axis + 1, along.backward) for along in recurrence.outputs)
    return Recurrence(formula, states, moved, outputs)


def _insert_axis(desc: Desc, place: int | None, count: int) -> Desc:
    if place is None:
        return desc
    return Desc(desc.data_type, (*desc.shape[:place], count, *desc.shape[place:]))
