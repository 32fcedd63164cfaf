"""Linear attention on WebGPU: many tokens run in chunks, as products of matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.composite_cases import CASES, check, run as run_call
from support.linear_attention import RULES, Arrays, loop, operands_of
from support.seeded import LongMake

import opweave as ow
from opweave import composites
from opweave.backends.webgpu.engine import WebGpuDevice
from opweave.context.graph import program_of
from opweave.expr.gpu import Features


def run(
    context: ow.MLContext,
    rule: str,
    operands: Arrays,
    heads: int = 2,
    groups: int = 1,
    constants: Any = (),
    **options: Any,
) -> tuple[list[Any], bool]:
    """The results, and whether they were computed in chunks."""
    builder = ow.MLGraphBuilder(context)
    inputs = {
        name: builder.constant(array) if name in constants else builder.input(name, array.dtype.name, array.shape)  # type: ignore[arg-type]
        for name, array in operands.items()
    }
    results = ow.composites.linear_attention(builder, **inputs, heads=heads, groups=groups, update_rule=rule, **options)
    graph = builder.build({f"y{k}": result for k, result in enumerate(results)}, fallback="error")
    data = {name: array for name, array in operands.items() if name not in constants}
    return list(context.compute(graph, data).values()), " tokens" in graph.explain()


def assert_close(results: list[Any], expected: list[Any], tolerance: float = 5e-6) -> None:
    for result, array in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, array, rtol=0, atol=tolerance * np.abs(array).max())


@pytest.mark.parametrize(
    "sizes",
    [
        {"tokens": 128, "state": ""},
        {"tokens": 257, "size": 1, "values": 1},
        {"batches": 3, "heads": 6, "groups": 3, "size": 33, "values": 5, "is_beta_shared": True},
        {"heads": 4, "groups": 2, "size": 100, "values": 65, "tokens": 129, "state": "float16"},
        {"size": 192, "values": 36, "tokens": 130, "data_type": "float16"},
    ],
    ids=str,
)
@pytest.mark.parametrize("rule", RULES)
def test_chunks_equal_a_loop(context: ow.MLContext, rule: str, sizes: dict[str, Any]) -> None:
    operands = operands_of(rule, **sizes)
    of_groups = {"heads": sizes.get("heads", 2), "groups": sizes.get("groups", 1)}
    results, is_in_chunks = run(context, rule, operands, **of_groups, scale=-1.5, constants=("key",))
    assert is_in_chunks
    is_half = "float16" in (sizes.get("data_type"), sizes.get("state"))
    assert_close(results, loop(**operands, **of_groups, scale=-1.5), 1e-3 if is_half else 5e-6)


@pytest.mark.parametrize(("rule", "unread"), [("linear", {"out": 3, "state": 0}), ("scan", {"out": 3, "state": 1})])
def test_results_that_nothing_reads_have_no_kernels(context: ow.MLContext, rule: Any, unread: dict[str, int]) -> None:
    """Without outputs: scores, reads of states, and outputs. A scan transposes its last state."""
    shapes = {"input": (1, 128, 2, 3), "delta": (1, 128, 2), "a": (2,), "b": (1, 128, 1, 4), "c": (1, 128, 1, 4)}
    random = np.random.default_rng(0)
    scan = {name: random.uniform(-0.5, 0, shape).astype("float32") for name, shape in shapes.items()}
    operands = scan if rule == "scan" else operands_of(rule, tokens=128)
    computed: dict[tuple[str, str], Any] = {}
    counts: dict[str, int] = {}
    for left in ("", *unread):
        builder = ow.MLGraphBuilder(context)
        inputs: Any = {name: builder.input(name, "float32", array.shape) for name, array in operands.items()}
        if rule == "scan":
            out, state = composites.selective_scan(builder, **inputs)
        else:
            out, state = composites.linear_attention(builder, **inputs, heads=2, groups=1, update_rule=rule)
        outputs = {name: operand for name, operand in {"out": out, "state": state}.items() if name != left}
        graph = builder.build(outputs, fallback="error")
        assert "in chunks of 64 tokens" in graph.explain()
        computed |= {(left, name): result for name, result in context.compute(graph, operands).items()}
        runners: list[Any] = [step.part.runner for step in program_of(graph).steps if step.part]
        counts[left] = sum(len(runner.steps) for runner in runners)
    assert {left: counts[""] - counts[left] for left in unread} == unread
    np.testing.assert_array_equal(computed["state", "out"], computed["", "out"])
    np.testing.assert_array_equal(computed["out", "state"], computed["", "state"])


@pytest.mark.parametrize("change", [{"tokens": 127}, {"size": 193}, {"size": 300}], ids=str)
@pytest.mark.parametrize("rule", ["gated", "delta"])
def test_what_runs_in_steps(context: ow.MLContext, rule: str, change: dict[str, int]) -> None:
    """Few tokens, and long keys of the delta rules."""
    operands = operands_of(rule, **change)
    results, is_in_chunks = run(context, rule, operands)
    assert is_in_chunks == (rule == "gated" and "size" in change)
    assert_close(results, loop(**operands, heads=2, groups=1))


@pytest.mark.parametrize("state", ["float32", "float16"])
@pytest.mark.parametrize("rule", RULES)
def test_least_device(device: Any, rule: str, state: str) -> None:
    """8 buffers and 16 KiB of workgroup memory."""
    operands = operands_of(rule, size=192, values=16, state=state)
    results, is_in_chunks = run(ow.ml.create_context(device), rule, operands)
    assert is_in_chunks
    assert_close(results, loop(**operands, heads=2, groups=1), 5e-6 if state == "float32" else 1e-3)


@pytest.mark.parametrize("limit", ["iterations", "bytes"])
def test_beyond_limits_of_a_device_it_runs_in_steps(device: Any, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Software adapters leave loops after 65,535 iterations, and buffers have a maximum size."""
    if limit == "iterations":
        monkeypatch.setattr(Features, "max_iterations", property(lambda self: 120))
    else:
        init = WebGpuDevice.__init__

        def limited(self: WebGpuDevice, *args: Any, **options: Any) -> None:
            init(self, *args, **options)
            self.max_byte_length = 48_000

        monkeypatch.setattr(WebGpuDevice, "__init__", limited)
    operands = operands_of("delta", tokens=640, state="", size=8 if limit == "iterations" else 4, values=8)
    results, is_in_chunks = run(ow.ml.create_context(device), "delta", operands)
    assert not is_in_chunks
    assert_close(results, loop(**operands, heads=2, groups=1))


@pytest.mark.parametrize("decay", [0.0, -np.inf, -1e30, "one", "some"])
@pytest.mark.parametrize("rule", ["gated", "gated_delta"])
def test_extreme_decays(context: ow.MLContext, rule: str, decay: Any) -> None:
    operands = operands_of(rule, tokens=200)
    if isinstance(decay, float):
        operands["decay"][:] = decay
    else:  # it ends a state in the middle of a chunk
        operands["decay"][0, 70 if decay == "one" else slice(70, None, 9)] = -np.inf
    results, _ = run(context, rule, operands)
    assert_close(results, loop(**operands, heads=2, groups=1))


@pytest.mark.parametrize("rule", ["linear", "gated"])
def test_products_beyond_float16_are_finite(context: ow.MLContext, rule: str) -> None:
    operands = operands_of(rule, size=32, data_type="float16")
    operands["query"] *= np.float16(500)
    operands["key"] *= np.float16(1000)
    operands["value"] /= np.float16(5000)
    results, is_in_chunks = run(context, rule, operands, scale=1e-3)
    assert is_in_chunks
    assert_close(results, loop(**operands, heads=2, groups=1, scale=1e-3), 1e-3)


@pytest.mark.parametrize("beta", [0.5, 1.0])
def test_delta_rule_with_equal_keys(context: ow.MLContext, beta: float) -> None:
    """Each token replaces what the one before has stored."""
    operands = operands_of("delta", tokens=256, size=16)
    operands["key"][:] = operands["key"][:, :1]
    operands["beta"][:] = beta
    results, _ = run(context, "delta", operands)
    assert_close(results, loop(**operands, heads=2, groups=1), 2e-6)


@pytest.mark.parametrize("name", ["key", "value"])
@pytest.mark.parametrize("rule", RULES)
def test_nan_stays_behind_its_chunk_and_column(context: ow.MLContext, rule: str, name: str) -> None:
    operands = operands_of(rule, tokens=200)
    operands[name][0, 140, 1] = np.nan
    out, expected = run(context, rule, operands)[0][0], loop(**operands, heads=2, groups=1)[0]
    assert np.isnan(out[np.isnan(expected)]).all()
    assert_close([out[:, :128]], [expected[:, :128]])
    if name == "value":
        finite = np.isfinite(expected[0, -1])
        assert_close([out[..., finite]], [expected[..., finite]])


@pytest.mark.parametrize("seed", range(6))
def test_selective_scans_of_many_tokens(context: ow.MLContext, seed: int) -> None:
    op = composites.selective_scan
    call, expected = CASES[op].make(LongMake(seed, {"x": ("float32", "float16")[seed % 2]}))
    check(op, call, run_call(context, op, call), expected)
