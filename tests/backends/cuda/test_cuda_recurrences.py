"""Recurrences on CUDA: one kernel runs all steps; linear attention of many tokens runs in chunks."""

from __future__ import annotations

import numpy as np
import pytest
from support import linear_attention
from support.cuda_driver import cuda_context
from support.recurrences import CASES, assert_close, loop, normal, numpy_smooth, smooth

import opweave as ow


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


def test_float16() -> None:
    operands = [normal(33).astype("float16"), normal(40, 33).astype("float16")]
    context = cuda_context()
    builder = ow.MLGraphBuilder(context)
    inputs = [builder.input(f"x{k}", "float16", list(o.shape)) for k, o in enumerate(operands)]
    last, levels = smooth(*inputs)
    graph = builder.build({"last": last, "levels": levels}, fallback="error")
    values = context.compute(graph, {f"x{k}": o for k, o in enumerate(operands)})
    assert values["last"].dtype == np.float16
    assert_close(list(values.values()), loop(numpy_smooth, 1, (), operands), 1e-2)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("name", ["smooth", "scan", "broadcast"])
def test_linear_steps_in_chunks(name: str, direction: str) -> None:
    op, step, states, constants, operands_of = CASES[name]
    operands = operands_of(96)
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
