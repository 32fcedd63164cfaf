"""Recurrences: steps that are repeated along an axis of time, on all engines, against plain loops in float64."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.recurrences import (
    CASES,
    STEPS,
    Array,
    assert_close,
    loop,
    normal,
    numpy_smooth,
    scan,
    smooth,
)

import opweave as ow
from opweave.expr import kernels
from opweave.expr.recurrence import Along, Recurrence, compile_recurrence, evaluate_recurrence
from opweave.support.errors import MLError

CPU = ow.ml.create_context(device="cpu")
REFERENCE = ow.ml.create_context(device="reference")
BOTH = pytest.mark.parametrize("context", [CPU, REFERENCE], ids=["cpu", "reference"])
compiled = pytest.mark.skipif(not kernels.is_compiled(), reason="the extra halide is not installed")


@BOTH
@pytest.mark.parametrize("steps", [1, 2, 19])
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("name", CASES)
def test_recurrence_equals_a_loop(context: ow.MLContext, name: str, direction: str, steps: int) -> None:
    op, step, states, constants, operands_of = CASES[name]
    operands = operands_of(steps)
    builder = ow.MLGraphBuilder(context)
    inputs = [builder.input(f"x{k}", o.dtype.name, list(o.shape)) for k, o in enumerate(operands)]
    results = op(*inputs, direction=direction)
    graph = builder.build({f"y{k}": result for k, result in enumerate(results)})
    data = {f"x{k}": o for k, o in enumerate(operands)}
    expected = loop(step, states, constants, operands, direction=direction)
    for _ in range(2):  # pointers are back at the first step
        assert_close(list(context.compute(graph, data).values()), expected)


@pytest.mark.parametrize("name", CASES)
def test_no_step_leaves_the_states(name: str) -> None:
    op, _, states, _, operands_of = CASES[name]
    operands = operands_of(0)
    results = op(*operands)
    assert_close(results[:states], operands[:states], 0)
    assert all(0 in result.shape for result in results[states:])


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("share", [0.5, 0.25])
def test_any_axis_of_time(axis: int, direction: str, share: float) -> None:
    shape = [4, 6]
    shape.insert(axis % 3, 21)
    operands = [normal(4, 6), normal(*shape)]
    expected = loop(numpy_smooth, 1, (), operands, axis % 3, direction, share=share)
    results: Any = smooth(*operands, axis=axis, direction=direction, share=share)
    assert_close(results, expected)


def test_float16_states_are_float16_between_steps() -> None:
    state, x = normal(33).astype("float16"), normal(40, 33).astype("float16")
    last, levels = smooth(state, x)
    assert last.dtype == levels.dtype == np.float16
    expected = loop(numpy_smooth, 1, (), [state, x])
    assert_close([last, levels], expected, 1e-2)


def test_joined_steps_equal_single_ones() -> None:
    """Element-wise steps are joined by eight; the rest of them run one by one."""
    for steps in range(1, 19):
        operands = [normal(3), normal(steps, 3)]
        for direction in ("forward", "backward"):
            results: Any = smooth(*operands, direction=direction)
            assert_close(results, loop(numpy_smooth, 1, (), operands, direction=direction), 1e-5)


@compiled
def test_compiled_loops_say_so() -> None:
    builder = ow.MLGraphBuilder(CPU)
    h, x = builder.input("h", "float32", [4, 8]), builder.input("x", "float32", [3, 4, 8])
    graph = builder.build({"h2": smooth(h, x)[0]})
    assert "Halide, one loop over the steps" in str(graph.explain())


@compiled
@pytest.mark.parametrize("name", CASES)
def test_threads_run_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thread runs all steps for its rows, however few."""
    from opweave.expr.halide import repetition, runtime

    monkeypatch.setattr(repetition, "MIN_ROW_OPERATIONS", 1)
    monkeypatch.setattr(repetition, "MIN_TASK_OPERATIONS", 1)
    monkeypatch.setattr(runtime, "threads", lambda: 3)
    op, step, states, constants, operands_of = CASES[name]
    operands = operands_of(11)
    descs = {n: ow.Desc(o.dtype.name, o.shape) for n, o in zip(op.operands, operands, strict=True)}
    attributes = {n: op.defaults[n] for n in op.attributes}
    recurrence = op.recurrence(descs, attributes)
    loop_ = compile_recurrence(recurrence)
    rows = {"window": 1, "scalar": 1, "ones": 1}.get(name, 3)
    assert f"{rows} thread" in loop_.detail
    outputs = [np.empty(d.shape, d.data_type) for d in recurrence.results_for(list(descs.values()))]
    run = loop_.bind(operands, outputs)
    for _ in range(2):
        run()
        assert_close(outputs, loop(step, states, constants, operands))


@compiled
def test_state_in_place() -> None:
    """A state may be the operand and the result: streaming keeps it in one tensor."""
    operands = [normal(4), normal(9, 4)]
    descs = {"level": ow.Desc("float32", (4,)), "x": ow.Desc("float32", (9, 4))}
    recurrence = smooth.recurrence(descs, {"share": 0.5, "axis": 0, "direction": "forward"})  # type: ignore[misc]
    expected = loop(numpy_smooth, 1, (), operands)
    state, levels = operands[0].copy(), np.empty((9, 4), "float32")
    compile_recurrence(recurrence).bind([state, operands[1]], [state, levels])()
    assert_close([state, levels], expected)
    x = operands[1].copy()  # a sequence may be, too
    run = compile_recurrence(recurrence).bind([operands[0], x], [np.empty(4, "float32"), x])
    ow.memory.copies.reset()
    run()
    assert ow.memory.copies.by_reason[ow.memory.OVER_INPUT].count == 2
    assert_close([x], expected[1:])


@compiled
@pytest.mark.parametrize("axis", [0, 1])
def test_copies_are_counted(axis: int) -> None:
    """First states, and sequences whose axis of time is in front, are read and written in place."""
    descs = {"level": ow.Desc("float32", (4,)), "x": ow.Desc("float32", (9, 4) if axis == 0 else (4, 9))}
    recurrence = smooth.recurrence(descs, {"share": 0.5, "axis": axis, "direction": "forward"})  # type: ignore[misc]
    arrays = [normal(*desc.shape) for desc in descs.values()]
    outputs = [np.empty_like(array) for array in arrays]
    run = compile_recurrence(recurrence).bind(arrays, outputs)
    ow.memory.copies.reset()
    run()
    sequences = {} if axis == 0 else {"a sequence whose axis of time is not in front": 2}
    counts = {reason: tally.count for reason, tally in ow.memory.copies.by_reason.items()}
    assert counts == sequences
    assert_close(outputs, loop(numpy_smooth, 1, (), arrays, axis))


@compiled
@pytest.mark.parametrize("steps", [1, 2, 8, 9, 16, 17, 24])
@pytest.mark.parametrize("name", ["smooth", "fibonacci", "delta"])
def test_stream_of_blocks_copies_no_states(name: str, steps: int) -> None:
    """The last states of a block are the first ones of the next; a state that is the operand and the result stays there."""
    op, step, states, constants, operands_of = CASES[name]
    operands = operands_of(3 * steps)
    expected = loop(step, states, constants, operands)
    slices = [(slice(k * steps, (k + 1) * steps)) for k in range(3)]
    descs = {n: ow.Desc(o.dtype.name, o.shape if k < states else (steps, *o.shape[1:]))
             for k, (n, o) in enumerate(zip(op.operands, operands, strict=True))}  # fmt: skip
    recurrence = op.recurrence(descs, {n: op.defaults[n] for n in op.attributes})
    compiled_loop = compile_recurrence(recurrence)
    for in_place in (False, True):
        own = [o.copy() for o in operands[:states]]
        other = own if in_place else [np.empty_like(o) for o in own]
        results = [np.empty(d.shape, d.data_type) for d in recurrence.results_for(list(descs.values()))[states:]]
        parts: list[list[Array]] = [[] for _ in results]
        ow.memory.copies.reset()
        for block in slices:
            compiled_loop.bind([*own, *(o[block] for o in operands[states:])], [*other, *results])()
            own, other = other, own
            for part, result in zip(parts, results, strict=True):
                part.append(result.copy())
        assert ow.memory.copies.count == (
            0 if not in_place or compiled_loop_swaps(compiled_loop, steps) % 2 == 0 else 3 * states
        )
        assert_close([*own, *map(np.concatenate, parts)], expected)


def compiled_loop_swaps(compiled_loop: Any, steps: int) -> int:
    """The number of calls of compiled code, each of which writes states into the other memory."""
    joined = compiled_loop.steps if compiled_loop.joined is not None else 1
    return int(steps // joined + steps % joined)


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "is_compiled", lambda: False)
    operands = [normal(4), normal(9, 4)]
    descs = {"level": ow.Desc("float32", (4,)), "x": ow.Desc("float32", (9, 4))}
    recurrence = smooth.recurrence(descs, {"share": 0.5, "axis": 0, "direction": "forward"})  # type: ignore[misc]
    loop_ = compile_recurrence(recurrence)
    assert loop_.detail == "NumPy, step by step"
    outputs = [np.empty(4, "float32"), np.empty((9, 4), "float32")]
    loop_.bind(operands, outputs)()
    assert_close(outputs, loop(numpy_smooth, 1, (), operands))


def test_names_of_sizes() -> None:
    context = ow.ml.create_context(device="cpu", drafts=True)
    builder = ow.MLGraphBuilder(context)
    t, n = ow.Size("t"), ow.Size("n")
    h, x = builder.input("h", "float32", [n]), builder.input("x", "float32", [t, n])
    last, levels = smooth(h, x)
    assert levels.shape == (t, n)
    graph = builder.build({"last": last, "levels": levels})
    for steps, size in ((3, 4), (1, 4), (12, 5)):
        operands = [normal(size), normal(steps, size)]
        results = context.compute(graph, {"h": operands[0], "x": operands[1]})
        assert_close([results["last"], results["levels"]], loop(numpy_smooth, 1, (), operands))


def test_decomposition_equals_the_loop() -> None:
    for name in ("smooth", "scan", "delta", "fibonacci", "network"):
        op, step, states, constants, operands_of = CASES[name]
        operands = operands_of(6)
        for direction in ("forward", "backward"):

            def parts(b: Any, *values: Any, op: Any = op, direction: str = direction) -> Any:
                names = dict(zip(op.operands, values, strict=True))
                attributes = {n: op.defaults[n] for n in op.attributes} | {"direction": direction}
                return op.decomposition(b, **names, **attributes)

            builder = ow.MLGraphBuilder(REFERENCE)
            inputs = [builder.input(f"x{k}", o.dtype.name, list(o.shape)) for k, o in enumerate(operands)]
            results = parts(builder, *inputs)
            graph = builder.build({f"y{k}": result for k, result in enumerate(results)})
            values = REFERENCE.compute(graph, {f"x{k}": o for k, o in enumerate(operands)})
            assert_close(list(values.values()), loop(step, states, constants, operands, direction=direction))


def test_step_alone() -> None:
    assert smooth.step is not None
    level, same = smooth.step(np.float32([0]), np.float32([4]))
    assert level.tolist() == same.tolist() == [2]


def test_jit() -> None:
    @ow.jit
    def filtered(state: Any, x: Any) -> Any:
        _, levels = smooth(state, x * 2)
        return levels.relu()

    operands = [normal(4), normal(9, 4)]
    expected = loop(numpy_smooth, 1, (), [operands[0], operands[1] * 2])[1]
    assert_close([filtered(*operands)], [np.maximum(expected, 0)])


def test_random_steps_equal_loops() -> None:
    """Steps with random operators, several states, constants and outputs."""
    for seed in range(30):
        draw = np.random.default_rng(seed)
        count, size, steps = int(draw.integers(1, 4)), int(draw.integers(1, 40)), int(draw.integers(1, 30))
        factors = draw.uniform(-0.6, 0.6, (count, count + 1))

        def step(*values: Any, count: int = count, factors: Array = factors) -> Any:
            *states, x = values
            new = []
            for row in factors:
                total = x * float(row[-1])
                for factor, state in zip(row, states, strict=False):
                    total = total + state * float(factor)
                new.append(total)
            return (*new, new[0] - states[-1])

        names = [f"s{k}" for k in range(count)]
        source = f"def op({', '.join(names)}, x):\n    return step({', '.join(names)}, x)"
        space: dict[str, Any] = {"step": step}
        exec(source, space)  # a step has named parameters
        op = ow.recurrence(states=names)(space["op"])
        operands = [*(draw.standard_normal(size).astype("float32") for _ in names)]
        operands.append(draw.standard_normal((steps, size)).astype("float32"))
        states = [o.astype("float64") for o in operands[:-1]]
        outputs = []
        for x in operands[-1].astype("float64"):
            *states, output = step(*states, x)
            outputs.append(output)
        assert_close(op(*operands), [*states, np.stack(outputs)], 1e-4)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("size", [5, 4])  # 4: as many columns as rows
@pytest.mark.parametrize("name", STEPS)
def test_other_steps_agree_with_the_reference(name: str, size: int, direction: str) -> None:
    op = ow.recurrence(STEPS[name])
    operands = [normal(4, size), normal(6, 4, size)]
    with REFERENCE:
        expected = op(*operands, direction=direction)
    results = op(*operands, direction=direction)
    assert_close(as_list(results), as_list(expected))


@compiled
def test_outputs_read_new_states() -> None:
    """A state of truth values is stored as uint8, and an element of an array may be beyond the elements of a state."""

    @ow.recurrence(constants="w")
    def step(h: Any, x: Any, w: Any) -> Any:
        level = ow.expr.compute(h.shape, lambda i: ow.expr.exp(w[i]))
        last = ow.expr.exp(w[w.shape[0] - 1])
        return level > 2, ow.expr.reduce_sum(ow.expr.where(~(level > 2), x, last), [0])

    x, w = normal(3, 4), np.float32([0, 0.5, 1, 2, 3, 4])
    is_high = np.exp(w[:4]) > 2
    last, totals = step(np.zeros(4, np.uint8), x, w)
    assert last.tolist() == is_high.tolist()
    assert_close([totals], [np.where(is_high, np.exp(w[-1]), x).sum(1)])
    builder = ow.MLGraphBuilder(CPU)
    operands = [
        builder.input(n, t, s) for n, t, s in (("h", "uint8", [4]), ("x", "float32", [3, 4]), ("w", "float32", [6]))
    ]
    assert "Halide" in str(builder.build({"y": step(*operands)[1]}).explain())

    @ow.recurrence(constants="w")
    def beyond(h: Any, x: Any, w: Any) -> Any:
        return ow.expr.compute(h.shape, lambda i: ow.expr.exp(w[i])), ow.expr.reduce_sum(x + ow.expr.exp(w[5]), [0])

    assert_close([beyond(np.zeros(4, np.float32), x, w)[1]], [(x + np.exp(w[5])).sum(1)])


def as_list(results: Any) -> list[Any]:
    return [np.asarray(result) for result in (results if isinstance(results, tuple) else (results,))]


@pytest.mark.parametrize("data_type", ["int64", "uint64", "int8", "uint8", "uint32", "int32"])
def test_integers_wrap_around(data_type: str) -> None:
    draw = np.random.default_rng(0)
    info = np.iinfo(data_type)
    state, x = (draw.integers(info.min, info.max, shape, data_type) for shape in ((3, 5), (6, 3, 5)))
    last: Any = ow.recurrence(STEPS["state_alone"])(state, x)
    assert (last == state + x.sum(0, dtype=data_type)).all()


# Errors --------------------------------------------------------------------------------------------------------------


def message(error: BaseException) -> str:
    return re.sub(r" \([^)]*line \d+.*\)$", "", str(error))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: smooth(normal(3), normal(4, 5), label="low"),
            r"smooth 'low': the shapes of the operands do not broadcast: \[5\] and \[3\]",
        ),
        (
            lambda: smooth(normal(1), normal(4, 5)),
            r"smooth: the step must return level as float32\[1\], which it takes, got float32\[5\]",
        ),
        (
            lambda: smooth(normal(3), normal(4, 3), axis=2),
            r"smooth: axis must be in \[-2, 2\) for x with 2 axes, got 2",
        ),
        (
            lambda: smooth(normal(3), normal(4, 3), direction="sideways"),
            "smooth: direction must be .*, got 'sideways'",
        ),
        (
            lambda: scan(
                *(normal(3, 2), normal(4, 3), normal(5, 3), normal(3, 2), normal(4, 2), normal(4, 2)),
            ),
            "scan: all sequences must have as many steps: x has 4, dt has 5",
        ),
        (
            lambda: smooth(np.int32([1]), np.float32([[1]])),
            "smooth: x is float32, level is int32|smooth: sub: the operands must have one data type, got float32 and int32.*",
        ),
    ],
)
def test_calls_are_checked(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(MLError) as caught:
        call()
    assert re.fullmatch(text, message(caught.value)), message(caught.value)


def test_declarations_are_checked() -> None:
    def step(h: Any, x: Any) -> Any:
        return h + x

    for options, text in (
        ({"states": "y"}, r"step: states are positional parameters of the step, \['h', 'x'\]; got \['y'\]"),
        ({"states": ("x",)}, r"step: states are the first parameters of the step, \['h', 'x'\]; got \['x'\]"),
        ({"constants": "h"}, r"step: an operand is a state or a constant, got \['h'\] as both"),
        ({"constants": "x"}, r"step: a step takes the slices of at least one sequence, got \['h', 'x'\]"),
        ({"states": ("h", "h")}, r"step: states must be different, got \['h', 'h'\]"),
    ):
        with pytest.raises(ow.ValidationError, match=text):
            ow.recurrence(**options)(step)

    def own(h: Any, x: Any, *, axis: int = 0) -> Any:
        return h + x

    with pytest.raises(ow.ValidationError, match="every recurrence has the attributes"):
        ow.recurrence(own)
    with pytest.raises(ow.ValidationError, match="declared by a function with a name"):
        ow.recurrence(3)  # type: ignore[call-overload]


def test_step_must_return_its_states() -> None:
    @ow.recurrence(states=("a", "b"))
    def half(a: Any, b: Any, x: Any) -> Any:
        return a + b + x

    with pytest.raises(ow.ValidationError, match="half: the step must return 2 states, then any outputs, got 1 array"):
        half(normal(3), normal(3), normal(4, 3))


def test_too_many_steps_are_not_written_out() -> None:
    builder = ow.MLGraphBuilder(REFERENCE)
    h, x = builder.input("h", "float32", [2]), builder.input("x", "float32", [300, 2])
    with pytest.raises(ow.NotSupportedError, match="smooth: it has 300 steps, and at most 256 can be written out"):
        smooth.decomposition(builder, level=h, x=x, share=0.5, axis=0, direction="forward")  # type: ignore[misc]


# Recurrences of programs ---------------------------------------------------------------------------------------------


@BOTH
def test_recur_takes_axes_and_directions_of_each_sequence(context: ow.MLContext) -> None:
    from opweave.custom.recurrence import recur
    from opweave.expr import trace

    descs = [ow.Desc("float32", (3,)), ow.Desc("float32", (3,)), ow.Desc("float32", (3,)), ow.Desc("float32", ())]
    step = trace(lambda h, x, y, a: (h * a + x, h * y, x - y), "body", descs)
    recurrence = Recurrence(step, 1, (Along(1, True), Along(0), None), (Along(0), Along(1, True)))
    operands = [normal(3), normal(3, 5), normal(5, 3), np.float32(0.5)]
    builder = ow.MLGraphBuilder(context)
    inputs = [builder.input(f"x{k}", "float32", list(np.shape(o))) for k, o in enumerate(operands)]
    results = recur(builder, inputs, recurrence=recurrence)
    graph = builder.build({f"y{k}": result for k, result in enumerate(results)})
    values = list(context.compute(graph, {f"x{k}": np.asarray(o) for k, o in enumerate(operands)}).values())
    h, first, second = np.asarray(operands[0], "float64"), np.empty((5, 3)), np.empty((3, 5))
    for t in range(5):
        x, y = operands[1][:, 4 - t], operands[2][t]
        first[t], second[:, 4 - t] = h * y, x - y
        h = h * 0.5 + x
    assert_close(values, [h, first, second], 1e-5)


def test_recur_checks_operands() -> None:
    from opweave.custom.recurrence import recur
    from opweave.expr import trace

    step = trace(lambda h, x: h + x, "body", [ow.Desc("float32", (3,))] * 2)
    recurrence = Recurrence(step, 1, (Along(1),), ())
    builder = ow.MLGraphBuilder(CPU)
    h = builder.input("h", "float32", [3])
    with pytest.raises(
        ow.ValidationError, match=r"recur 'loop': operand 1 must be a sequence of float32\[3\] along axis 1"
    ):
        recur(builder, [h, h], recurrence=recurrence, label="loop")
    with pytest.raises(ow.ValidationError, match="recur: body takes 2 operands, got 1"):
        recur(builder, [h], recurrence=recurrence)
    with pytest.raises(ow.ValidationError, match=r"the axis of time must be in \[0, 1\]"):
        Recurrence(step, 1, (Along(2),), ())
    with pytest.raises(ow.ValidationError, match="a slice of at least one sequence"):
        Recurrence(step, 1, (None,), ())


def test_reference_keeps_float64_between_steps() -> None:
    step = smooth.recurrence(  # type: ignore[misc]
        {"level": ow.Desc("float32", (2,)), "x": ow.Desc("float32", (50, 2))},
        {"share": 0.1, "axis": 0, "direction": "forward"},
    )
    operands = [normal(2), normal(50, 2)]
    outputs = [np.empty(2), np.empty((50, 2))]
    evaluate_recurrence(step, operands, outputs, precision="float64")
    assert_close(outputs, loop(numpy_smooth, 1, (), operands, share=float(np.float32(0.1))), 1e-12)


def test_onnx_nodes_run_recurrences() -> None:
    onnx = pytest.importorskip("onnx")
    ow.register_onnx("org.opweave.tests", "Smooth", smooth)
    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    node = helper.make_node(
        *("Smooth", ["h", "x"], ["last", "levels"]),
        domain="org.opweave.tests",
        share=0.25,
        axis=1,
        direction="backward",
    )
    h, last = (helper.make_tensor_value_info(name, float32, [3]) for name in ("h", "last"))
    x, levels = (helper.make_tensor_value_info(name, float32, [3, "t"]) for name in ("x", "levels"))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("org.opweave.tests", 1)]
    graph = helper.make_graph([node], "graph", [h, x], [last, levels])
    session = ow.InferenceSession(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())
    for steps in (4, 9):
        operands = [normal(3), normal(3, steps)]
        results = session.run(None, {"h": operands[0], "x": operands[1]})
        assert_close(results, loop(numpy_smooth, 1, (), operands, 1, "backward", share=0.25))
