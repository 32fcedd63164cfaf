"""Recurrences on WebGPU: one kernel runs all steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.recurrences import CASES, STEPS, assert_close, loop, normal, numpy_smooth, smooth
from support.webgpu_device import gpu_context

import opweave as ow
from opweave.backends.gpu.rules import repetition
from opweave.expr.gpu import Features


@pytest.fixture(scope="module")
def context() -> ow.MLContext:
    return gpu_context()


def run(context: ow.MLContext, op: Any, operands: list[Any], **attributes: Any) -> tuple[list[Any], str]:
    """The results, and what runs them."""
    builder = ow.MLGraphBuilder(context)
    inputs = [builder.input(f"x{k}", o.dtype.name, list(o.shape)) for k, o in enumerate(operands)]
    results = op(*inputs, **attributes)
    results = results if isinstance(results, tuple) else (results,)
    graph = builder.build({f"y{k}": result for k, result in enumerate(results)})
    data = {f"x{k}": o for k, o in enumerate(operands)}
    return list(context.compute(graph, data).values()), str(graph.explain())


@pytest.mark.parametrize("steps", [1, 2, 19])
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("name", CASES)
def test_kernel_equals_a_loop(context: ow.MLContext, name: str, direction: str, steps: int) -> None:
    op, step, states, constants, operands_of = CASES[name]
    operands = operands_of(steps)
    results, text = run(context, op, operands, direction=direction)
    assert_close(results, loop(step, states, constants, operands, direction=direction))
    assert "kernel 0" in text, text
    assert "kernel 1" not in text, text


@pytest.mark.parametrize("size", [5, 4])
@pytest.mark.parametrize("name", STEPS)
def test_other_steps_agree_with_the_reference(context: ow.MLContext, name: str, size: int) -> None:
    op = ow.recurrence(STEPS[name])
    operands = [normal(4, size), normal(6, 4, size)]
    expected, _ = run(ow.ml.create_context(device="reference"), op, operands)
    results, _ = run(context, op, operands)
    assert_close(results, expected)


@pytest.mark.parametrize("axis", [1, -1])
def test_any_axis_of_time(context: ow.MLContext, axis: int) -> None:
    operands = [normal(4, 6), normal(4, 21, 6) if axis == 1 else normal(4, 6, 21)]
    results, _ = run(context, smooth, operands, axis=axis)
    assert_close(results, loop(numpy_smooth, 1, (), operands, axis % 3))


@pytest.mark.parametrize("name", ["smooth", "scan", "delta"])
def test_float16(context: ow.MLContext, name: str) -> None:
    op, step, states, constants, operands_of = CASES[name]
    operands = [operand.astype("float16") for operand in operands_of(20)]
    results, _ = run(context, op, operands)
    assert results[0].dtype == np.float16
    assert_close(results, loop(step, states, constants, operands), 2e-2)


def test_neighbours_before_and_after(context: ow.MLContext) -> None:
    builder = ow.MLGraphBuilder(context)
    h, x = builder.input("h", "float32", [5]), builder.input("x", "float32", [9, 5])
    _, levels = smooth(h, x * 2)
    graph = builder.build({"y": levels.relu()})
    operands = [normal(5), normal(9, 5)]
    y = context.compute(graph, {"h": operands[0], "x": operands[1]})["y"]
    expected = loop(numpy_smooth, 1, (), [operands[0], operands[1] * 2])[1]
    assert_close([y], [np.maximum(expected, 0)])


def test_states_of_other_types_run_elsewhere(context: ow.MLContext) -> None:
    """A workgroup keeps no bytes: up to 256 steps are written out, more of them run on the host."""

    @ow.recurrence
    def toggle(state: Any, x: Any) -> Any:
        new = state ^ x
        return new, new

    for steps in (5, 300):
        operands = [np.uint8([1, 2, 3]), np.arange(3 * steps, dtype="uint8").reshape(steps, 3)]
        (state, states), text = run(context, toggle, operands)
        expected = operands[0] ^ np.bitwise_xor.accumulate(operands[1], 0)
        assert (states == expected).all()
        assert (state == expected[-1]).all()
        if steps > 256:
            assert "kernels keep no states of uint8" in text


def test_large_rows_run_elsewhere(context: ow.MLContext) -> None:
    """Rows that do not fit into a workgroup."""

    @ow.recurrence
    def turn(state: Any, x: Any) -> Any:
        (n,) = state.shape
        new = ow.expr.compute((n,), lambda i: state[(i + 1) % n] + x[i])
        return new, new

    operands = [normal(5000), normal(300, 5000)]
    (state, _), text = run(context, turn, operands)
    assert "at most 4096 fit into a workgroup" in text
    expected = operands[0].astype("float64")
    for x in operands[1]:
        expected = np.roll(expected, -1) + x
    assert_close([state], [expected], 1e-3)


def test_long_sequences_take_several_kernels(monkeypatch: pytest.MonkeyPatch, context: ow.MLContext) -> None:
    """Software adapters leave loops after 65,535 iterations."""
    monkeypatch.setattr(Features, "max_iterations", property(lambda self: 12))
    repetition.recurrent_form.cache_clear()
    for name in ("smooth", "scan", "delta"):
        op, step, states, constants, operands_of = CASES[name]
        operands = operands_of(53)
        results, _ = run(context, op, operands, direction="backward")
        assert_close(results, loop(step, states, constants, operands, direction="backward"))
    repetition.recurrent_form.cache_clear()


@pytest.mark.parametrize(("length", "expected"), [(128, 4), (129, 4), (206, 6), (260, 5), (1021, 31)])
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("name", ["smooth", "scan", "delta", "fibonacci"])
def test_linear_steps_run_in_chunks(
    name: str, direction: str, length: int, expected: int, monkeypatch: pytest.MonkeyPatch, context: ow.MLContext
) -> None:
    """Steps of few elements keep few processors busy; delta is not linear, and fibonacci has integers."""
    counts = []
    run_in_chunks = repetition._run_in_chunks

    def counted(recurrence: Any, parts: Any, count: int, *rest: Any) -> Any:
        counts.append(count)
        return run_in_chunks(recurrence, parts, count, *rest)

    monkeypatch.setattr(repetition, "_run_in_chunks", counted)
    repetition.recurrent_form.cache_clear()
    op, step, states, constants, operands_of = CASES[name]
    operands = operands_of(length)
    results, text = run(context, op, operands, direction=direction)
    assert_close(results, loop(step, states, constants, operands, direction=direction), 2e-3)
    is_linear = name in ("smooth", "scan")
    assert set(counts) == ({expected} if is_linear else set())
    assert (f"in {expected} chunks of steps" in text) == is_linear
    repetition.recurrent_form.cache_clear()


@pytest.mark.parametrize("factor", [0.05, -0.05, 0])
def test_infinities_pass_through_chunks_as_through_steps(context: ow.MLContext, factor: float) -> None:
    """The factor of a chunk of 40 steps, 0.05^40 = 1e-52, underflows."""

    @ow.recurrence
    def decay(h: Any, x: Any, *, factor: float) -> Any:
        new = h * factor + x
        return new, new

    x = normal(600, 4)
    x[50] = np.inf
    (_, states), text = run(context, decay, [normal(4), x], factor=factor)
    assert "chunks of steps" in text
    with np.errstate(invalid="ignore"):
        expected = np.inf * np.sign(factor) ** np.arange(550)
    np.testing.assert_array_equal(states[50:, 0], expected.astype("float32"))
