"""Recurrences on CUDA: one kernel runs all steps; linear attention of many tokens runs in chunks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support import linear_attention
from support.composite_cases import CASES as COMPOSITE_CASES, check, run
from support.cuda_driver import cuda_context
from support.cuda_on_cpu import FEATURES
from support.recurrences import CASES, STEPS, assert_close, loop, normal
from support.seeded import LongMake

import opweave as ow
from opweave import composites
from opweave.backends.gpu.rules.recurrent_rows import KernelSteps
from opweave.backends.gpu.rules.rows_in_registers import rows_in_registers
from opweave.core.guards import Guards
from opweave.expr.ir import Input


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("name", CASES)
def test_kernel_equals_a_loop(name: str, direction: str) -> None:
    op, step, states, constants, operands_of = CASES[name]
    operands = operands_of(11)
    context = cuda_context()
    builder = ow.MLGraphBuilder(context)
    inputs = [builder.input(f"x{k}", o.dtype.name, list(o.shape)) for k, o in enumerate(operands)]
    results = op(*inputs, direction=direction)
    graph = builder.build({f"y{k}": result for k, result in enumerate(results)}, fallback="error")
    values = list(context.compute(graph, {f"x{k}": o for k, o in enumerate(operands)}).values())
    assert_close(values, loop(step, states, constants, operands, direction=direction))
    assert "kernel 1" not in str(graph.explain())


@pytest.mark.parametrize("name", sorted(STEPS.keys() - {"checked"}))
def test_other_steps_agree_with_the_reference(name: str) -> None:
    op = ow.recurrence(STEPS[name])
    operands = [normal(3, 24), normal(13, 3, 24)]
    values = {}
    for context in (ow.ml.create_context(device="reference"), cuda_context()):
        builder = ow.MLGraphBuilder(context)
        inputs = [builder.input(f"x{k}", "float32", list(o.shape)) for k, o in enumerate(operands)]
        outputs: Any = op(*inputs)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        graph = builder.build({f"y{k}": y for k, y in enumerate(outputs)})
        values[context] = list(context.compute(graph, {f"x{k}": o for k, o in enumerate(operands)}).values())
    expected, results = values.values()
    assert_close(results, expected)


@pytest.mark.parametrize("name", ["smooth", "scan", "delta"])
def test_float16(name: str) -> None:
    op, step, states, constants, operands_of = CASES[name]
    operands = [operand.astype("float16") for operand in operands_of(20)]
    context = cuda_context()
    builder = ow.MLGraphBuilder(context)
    inputs = [builder.input(f"x{k}", "float16", list(o.shape)) for k, o in enumerate(operands)]
    graph = builder.build({f"y{k}": y for k, y in enumerate(op(*inputs))}, fallback="error")
    values = list(context.compute(graph, {f"x{k}": o for k, o in enumerate(operands)}).values())
    assert values[0].dtype == np.float16
    assert_close(values, loop(step, states, constants, operands), 2e-2)


def test_named_steps_and_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    op, step, states, constants, _ = CASES["scan"]
    context = cuda_context()
    monkeypatch.setattr(context._state, "drafts", True)
    builder = ow.MLGraphBuilder(context)
    shapes: dict[str, list[Any]] = {"h": ["d", 16], "x": ["t", "d"], "dt": ["t", "d"]}
    shapes |= {"a": ["d", 16], "b": ["t", 16], "c": ["t", 16]}
    inputs = [builder.input(name, "float32", shape) for name, shape in shapes.items()]
    graph = builder.build({f"y{k}": y for k, y in enumerate(op(*inputs))}, fallback="error")
    for sizes in ({"t": 19, "d": 5}, {"t": 3, "d": 5}, {"t": 8, "d": 70}, {"t": 1, "d": 1}):
        operands = [abs(normal(*(sizes.get(size, size) for size in shape))) for shape in shapes.values()]
        operands[3] *= -1
        values = context.compute(graph, dict(zip(shapes, operands, strict=True)))
        assert_close(list(values.values()), loop(step, states, constants, operands))


@pytest.mark.parametrize(
    ("name", "lanes", "unrolled"),
    [
        *(("smooth", 1, 8), ("scan", 2, 8), ("square", 2, 8), ("odd", 1, 2), ("ones", 1, 8), ("column", 1, 8)),
        *(("delta", 4, 8), ("attention", 4, 8), ("moments", 8, 8), ("hashes", 2, 8), ("fibonacci", 1, 8)),
    ],
)
def test_rows_are_in_registers(name: str, lanes: int, unrolled: int) -> None:
    """Loads precede all sums and stores of a block of steps; there is no workgroup memory, and no barrier."""
    program = rows_in_registers(*arguments_of(name, 24))
    assert (program.lanes, program.unrolled) == (lanes, unrolled)
    source = program.kernel(name, FEATURES).source
    lines = source[source.index("opweave_kernel(") :].splitlines()
    assert not any("__shared__" in line or "workgroupBarrier" in line for line in lines)
    first = next(k for k, line in enumerate(lines) if "for (var n" in line)
    body = lines[first : next(k for k in range(first, len(lines)) if lines[k] == "    }")]
    loads = [k for k, line in enumerate(body) if "= x" in line or "&x" in line or "(x" in line]
    others = [k for k, line in enumerate(body) if "subgroupShuffleXor" in line or line.strip().startswith("y")]
    assert max(loads) < min([*others, len(body)])


@pytest.mark.parametrize("in_chunks", [False, True])
def test_sequences_are_loaded_an_iteration_ahead_without_chunks(in_chunks: bool) -> None:
    recurrence, operands, results, steps, features = arguments_of("scan", 40)
    program = rows_in_registers(recurrence, operands, results, replace(steps, in_chunks=in_chunks), features)
    text = program.kernel("scan", features).source.partition("opweave_kernel")[2]
    before, _, body = text.partition("for (var n ")
    assert program.unrolled == 8
    assert (body.count("carried("), "carried(" in before) == ((0 if in_chunks else 2 * 8), False)


def test_loops_of_a_named_number_of_iterations_load_nothing_before() -> None:
    """They may run no iteration."""
    recurrence, operands, results, _, features = arguments_of("scan", 40)
    n = ow.Size("n")
    with Guards({"n": 40}).deciding():
        program = rows_in_registers(recurrence, operands, results, KernelSteps(n, 0, n), features)
        text = program.kernel("scan", features).source.partition("opweave_kernel")[2]
    assert "for (var n " in text
    assert "carried(" not in text


@pytest.mark.parametrize("name", ["network", "window"])
def test_other_rows_are_in_workgroup_memory(name: str) -> None:
    with pytest.raises(ow.NotSupportedError):
        rows_in_registers(*arguments_of(name, 24))


def arguments_of(name: str, steps: int) -> Any:
    """The arguments that describe the kernel of a case."""
    op, _, _, _, operands_of = CASES[name]
    descs = [ow.Desc(operand.dtype.name, operand.shape) for operand in operands_of(steps)]
    recurrence = op.recurrence(
        dict(zip(op.operands, descs, strict=True)), {"axis": 0, "direction": "forward", "share": 0.5}
    )
    operands = [Input(k, desc) for k, desc in enumerate(descs)]
    results = [Input(100 + k, desc) for k, desc in enumerate(recurrence.results_for(descs))]
    return recurrence, operands, results, KernelSteps(steps, 0, steps), FEATURES


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("name", ["smooth", "scan", "broadcast"])
def test_linear_steps_in_chunks(name: str, direction: str) -> None:
    op, step, states, constants, operands_of = CASES[name]
    operands = operands_of(131)
    context = cuda_context()
    builder = ow.MLGraphBuilder(context)
    inputs = [builder.input(f"x{k}", o.dtype.name, list(o.shape)) for k, o in enumerate(operands)]
    graph = builder.build({f"y{k}": y for k, y in enumerate(op(*inputs, direction=direction))}, fallback="error")
    values = list(context.compute(graph, {f"x{k}": o for k, o in enumerate(operands)}).values())
    assert_close(values, loop(step, states, constants, operands, direction=direction), 2e-3)


@pytest.mark.parametrize("rule", linear_attention.RULES)
def test_linear_attention_in_chunks(rule: str) -> None:
    operands = linear_attention.operands_of(rule, batches=2, heads=6, groups=3, size=17, values=9)
    context = cuda_context()
    builder = ow.MLGraphBuilder(context)
    inputs = {name: builder.input(name, array.dtype.name, list(array.shape)) for name, array in operands.items()}
    results = ow.composites.linear_attention(builder, **inputs, heads=6, groups=3, update_rule=rule)
    graph = builder.build({f"y{k}": result for k, result in enumerate(results)}, fallback="error")
    expected = linear_attention.loop(**operands, heads=6, groups=3)
    assert_close(list(context.compute(graph, operands).values()), expected)


@pytest.mark.parametrize("seed", range(3))
def test_selective_scans_of_many_tokens(seed: int) -> None:
    op = composites.selective_scan
    call, expected = COMPOSITE_CASES[op].make(LongMake(seed, {"x": ("float32", "float16")[seed % 2]}))
    check(op, call, run(cuda_context(), op, call), expected)
