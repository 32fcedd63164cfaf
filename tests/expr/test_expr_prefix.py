"""Linear recurrences in chunks of time, against the same recurrence step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from opweave import expr
from opweave.core.graph import Desc
from opweave.expr.prefix import to_chunks
from opweave.expr.recurrence import Along, Recurrence, evaluate_recurrence
from opweave.expr.tracing import trace

RNG = np.random.default_rng(7)
STEPS, CHUNKS = 24, 4
SHAPE = (3, 5)


def decays(h: Any, x: Any, w: Any) -> Any:
    """A factor for each element, and an output that reduces the new state."""
    new = expr.exp(-abs(x) * w) * h - x / 2
    return new, expr.reduce_sum(new, [1])


def follows(h: Any, x: Any, w: Any) -> Any:
    new = h + (x - h) * 0.25
    return new, expr.where(new * w > x, 1.0, 0.0)


def subtracts(h: Any, x: Any, w: Any) -> Any:
    new = x - (-h) / (1 + w * w) - h * 0.5
    return new, h + new


def reads_two(g: Any, h: Any, x: Any, w: Any) -> Any:
    return g * 0.5 + x, x - h * w, g - h


LINEAR = {function.__name__: function for function in (decays, follows, subtracts, reads_two)}


def recurrence_of(function: Callable[..., Any], states: int, axis: int, backward: bool) -> Recurrence:
    step = trace(function, function.__name__, [Desc("float32", SHAPE)] * (states + 2))
    along = Along(axis, backward)
    outputs = tuple(Along(min(axis, output.desc.rank), backward) for output in step.outputs[states:])
    return Recurrence(step, states, (along, None), outputs)


def run(recurrence: Recurrence, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    descs = recurrence.results_for([Desc("float32", array.shape) for array in inputs])
    outputs = [np.empty(desc.shape, desc.data_type) for desc in descs]
    evaluate_recurrence(recurrence, inputs, outputs)
    return outputs


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("name", LINEAR)
def test_chunks_give_the_results_of_all_steps(name: str, axis: int, backward: bool) -> None:
    states = 2 if name == "reads_two" else 1
    recurrence = recurrence_of(LINEAR[name], states, axis, backward)
    first = [RNG.standard_normal(SHAPE).astype("float32") for _ in range(states)]
    x = RNG.standard_normal((*SHAPE[:axis], STEPS, *SHAPE[axis:])).astype("float32")
    w = RNG.standard_normal(SHAPE).astype("float32")
    expected = run(recurrence, [*first, x, w])
    parts = to_chunks(recurrence, CHUNKS)
    assert parts is not None
    divided = x.reshape(*SHAPE[:axis], CHUNKS, STEPS // CHUNKS, *SHAPE[axis:])
    units = [np.full((CHUNKS, *SHAPE), unit.value, "float32") for unit in parts.units]
    combined = run(parts.combine, [*first, *run(parts.factors, [*units, divided, w])])
    results = [*combined[:states], *run(parts.steps, [*combined[states:], divided, w])[states:]]
    for result, wanted in zip(results, expected, strict=True):
        np.testing.assert_allclose(result.reshape(wanted.shape), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "function",
    [
        lambda h, x, w: (h * h + x,),
        lambda h, x, w: (expr.tanh(h) + x,),
        lambda h, x, w: (x / h,),
        lambda h, x, w: (expr.max(h, x),),
        lambda h, x, w: (expr.where(h > x, h, x),),
        lambda h, x, w: (x + expr.reduce_sum(h),),
        lambda h, x, w: (expr.compute(SHAPE, lambda i, j: h.clamped[i + 1, j] + x[i, j]),),
        lambda h, x, w: (x,),
    ],
)
def test_other_steps_have_no_chunks(function: Any) -> None:
    assert to_chunks(recurrence_of(function, 1, 0, False), CHUNKS) is None


def test_states_that_depend_on_each_other_have_no_chunks() -> None:
    assert to_chunks(recurrence_of(lambda g, h, x, w: (h, g + x), 2, 0, False), CHUNKS) is None


@pytest.mark.parametrize(("first", "factor", "last"), [(0, 1e6, 0), (-np.inf, 1e-6, -np.inf), (np.inf, 0, np.nan)])
def test_states_are_those_of_steps_although_factors_leave_the_range(first: float, factor: float, last: float) -> None:
    recurrence = recurrence_of(lambda h, x, w: (h * w + x * 0,), 1, 0, False)
    parts = to_chunks(recurrence, 2)
    assert parts is not None
    x, w = np.zeros((2, 40, *SHAPE), "float32"), np.full(SHAPE, factor, "float32")
    units = [np.full((2, *SHAPE), unit.value, "float32") for unit in parts.units]
    with np.errstate(all="ignore"):
        factors = run(parts.factors, [*units, x, w])
        combined = run(parts.combine, [np.full(SHAPE, first, "float32"), *factors])
    assert not (np.isfinite(factors[0]) & (factors[0] != 0)).any()
    np.testing.assert_array_equal(combined[0], np.full(SHAPE, last, "float32"))


def test_factors_and_sums_are_rows_of_their_own() -> None:
    """States that read nothing of each other are divided alike, so that each workgroup has few elements."""
    from opweave.expr.recurrent_step import divide_step, rows_of

    parts = to_chunks(recurrence_of(lambda h, x, w: (h * 0.5 + x,), 1, 0, False), CHUNKS)
    assert parts is not None
    rows = rows_of(divide_step(parts.factors), parts.factors.states)
    assert [row.extent for row in rows] == [CHUNKS, *SHAPE]
