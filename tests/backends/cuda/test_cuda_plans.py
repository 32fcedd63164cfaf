"""Step plans in saved graphs: loading such a graph neither traces nor schedules. Run by `make test-cuda`."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cuda_driver import CpuDriver, context_on

import opweave as ow
from opweave.backends.cuda import devices
from opweave.backends.cuda.measured_tiles import MeasuredTiles
from opweave.backends.gpu import forms, plan_keys, schedule
from opweave.context.graph import program_of
from opweave.saved.container import Container
from opweave.support import disk_cache

pytestmark = [
    pytest.mark.skipif(not devices.is_installed(), reason="needs the extra cuda: make test-cuda"),
    pytest.mark.usefixtures("cache_folder", "small_tiles", "driver"),
]

Feeds = dict[str, np.ndarray]
Network = Callable[[ow.MLGraphBuilder], dict[str, ow.MLOperand]]


def random(*shape: int, scale: float = 0.1) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(0, scale, shape).astype("float32")


def convolutions(b: ow.MLGraphBuilder) -> dict[str, ow.MLOperand]:
    """Filters in several orders, and constants that are computed from others."""
    x = b.input("x", "float32", [1, 4, 8, 8])
    y = b.conv2d(x, b.constant(random(8, 4, 3, 3)), padding=[1, 1, 1, 1], bias=b.constant(random(8)), label="stem")
    scale, mean = b.constant(random(8) + 1), b.constant(random(8))
    y = b.batch_normalization(y, mean, b.constant(np.abs(random(8)) + 1), scale=scale, bias=b.add(mean, scale)).relu()
    pooled = b.max_pool2d(y, window_dimensions=[2, 2], strides=[2, 2])
    y = b.concat([y, b.conv_transpose2d(pooled, b.constant(random(8, 4, 2, 2)), strides=[2, 2])], 1)
    y = b.conv2d(y, b.constant(random(12, 1, 3, 3)), groups=12)
    return {"y": b.gemm(y.reshape([1, 432]), b.constant(random(5, 432)), b_transpose=True)}


def layers(b: ow.MLGraphBuilder) -> dict[str, ow.MLOperand]:
    """Equal layers, whose steps are copied, with products on tensor cores, and two results."""
    x = b.input("x", "float32", [16, 32])
    for number in range(4):
        y = b.matmul(x, b.constant(random(32, 64, scale=0.1 + number)), label=f"up {number}").gelu()
        x = b.add(x, b.matmul(y, b.constant(random(64, 32, scale=0.1 + number))))
    return {"y": b.softmax(x, 1), "x": b.reduce_mean(x)}


def cache(b: ow.MLGraphBuilder) -> dict[str, ow.MLOperand]:
    """An output that may alias an input, and a matrix of 8 bits."""
    past, new = b.input("past", "float32", [6, 32]), b.input("x", "float32", [1, 32])
    present = b.scatter_nd(past, b.constant(np.array([[2]], "int32")), new)
    numbers = b.constant(np.arange(32 * 32).reshape(32, 32).astype("uint8"))
    zeros = b.constant(np.zeros((1, 1), "uint8"))
    w = b.dequantize_linear(numbers, b.constant(np.full((1, 1), 0.01, "float32")), zeros)
    return {"present": present, "y": b.matmul(new, w)}


NETWORKS: dict[str, Network] = {"convolutions": convolutions, "layers": layers, "cache": cache}


def build(network: Network) -> ow.MLGraph:
    builder = ow.MLGraphBuilder(context_on(CpuDriver()))
    return builder.build(network(builder))


def results(graph: ow.MLGraph) -> dict[str, bytes]:
    feeds = {name: random(*desc.shape, scale=1.0) for name, desc in graph.inputs.items()}
    return {name: array.tobytes() for name, array in graph.context.compute(graph, feeds).items()}


def steps_of(graph: ow.MLGraph) -> list[Any]:
    """The steps of a program, and all that `explain` and `profile` say about them."""
    (part,) = (step.part for step in program_of(graph).steps)
    runner: Any = part.runner  # type: ignore[union-attr]
    describe = runner.describe
    steps = [(s.title, s.kernel.key, s.kernel.workgroups, s.kernel.writes, s.copies is None) for s in runner.steps]
    return [steps, runner.updates, runner.plan, [describe([node]) for node in part.compiled]]  # type: ignore[union-attr]


def plans_of(path: Path) -> dict[str, bytes]:
    container = Container.open(path)
    return {name: container.section(name).tobytes() for name in container.names if name.endswith(f".{plan_keys.KIND}")}


@pytest.fixture
def scheduled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that are scheduled."""
    graphs: list[Any] = []

    class Counted(schedule.Schedule):
        def __init__(self, graph: Any, *rest: Any) -> None:
            graphs.append(graph)
            super().__init__(graph, *rest)

    monkeypatch.setattr(schedule, "Schedule", Counted)
    return graphs


@pytest.mark.parametrize("name", NETWORKS)
def test_loaded_graph_has_the_steps_of_the_file(
    name: str, tmp_path: Path, scheduled: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, again = tmp_path / "graph.opweave", tmp_path / "again.opweave"
    graph = build(NETWORKS[name])
    graph.save(path)
    traced: list[str] = []
    refusal_of = forms.refusal_of

    def counted(node: Any, *rest: Any) -> str | None:
        traced.append(node.op.name)
        return refusal_of(node, *rest)

    monkeypatch.setattr(forms, "refusal_of", counted)
    loaded = context_on(CpuDriver()).load(path)
    assert len(scheduled) == 1
    # Narrow matrices are recognised before kernels are chosen.
    assert {*traced} <= {"matmul_n_bits"}
    assert steps_of(loaded) == steps_of(graph)
    assert results(loaded) == results(graph)
    loaded.save(again)
    assert plans_of(again) == plans_of(path)


CHANGES: dict[str, Callable[[pytest.MonkeyPatch], object]] = {
    "another user": lambda patch: patch.setenv("OPWEAVE_CACHE", "/nonexistent"),
    "other sources": lambda patch: patch.setattr(plan_keys, "_sources", lambda: "others"),
    "measured tiles": lambda patch: patch.setattr(MeasuredTiles, "digest", lambda self: "others"),
    "truncated": lambda patch: replace_plans(patch, lambda data: data[:-9]),
    "another form": lambda patch: replace_plans(patch, lambda data: zlib.compress(b"[]")),
    "another answer": lambda patch: replace_plans(patch, other_answer),
    "another function": lambda patch: replace_plans(
        patch, lambda data: zlib.compress(zlib.decompress(data).replace(b":_lay_out", b":other"))
    ),
}


def replace_plans(patch: pytest.MonkeyPatch, change: Callable[[bytes], bytes]) -> None:
    load = disk_cache.load

    def changed(key: str, kind: str) -> bytes | None:
        data = load(key, kind)
        return change(data) if kind == plan_keys.KIND and data is not None and data[:1] != b"[" else data

    patch.setattr(disk_cache, "load", changed)


def other_answer(data: bytes) -> bytes:
    content = json.loads(zlib.decompress(data))
    *question, answer = content["questions"][0]
    content["questions"][0] = [*question, not answer]
    return zlib.compress(json.dumps(content).encode())


@pytest.mark.parametrize("change", CHANGES)
def test_other_conditions_schedule_the_graph_again(
    change: str, tmp_path: Path, scheduled: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "graph.opweave"
    graph = build(layers)
    graph.save(path)
    CHANGES[change](monkeypatch)
    loaded = context_on(CpuDriver()).load(path)
    assert len(scheduled) == 2
    assert results(loaded) == results(graph)


def product(x: ow.MLOperand, weights: ow.MLOperand) -> ow.MLOperand:
    return x @ weights


def shift(x: ow.MLOperand, weights: ow.MLOperand) -> ow.MLOperand:
    return x + weights.reduce_sum(axes=[0])


# TF32x3 divides weights only if all of them are below a limit. A sum is computed when the graph is built.
@pytest.mark.parametrize(("function", "scale", "count"), [(product, 2, 0), (product, np.inf, 1), (shift, 2, 1)])
def test_results_follow_weights_that_another_program_changes(
    function: Callable[..., ow.MLOperand], scale: float, count: int, tmp_path: Path, scheduled: list[Any]
) -> None:
    def of(weights: np.ndarray) -> Network:
        return lambda b: {"y": function(b.input("x", "float32", [16, 160]), b.constant(weights))}

    path, weights = tmp_path / "graph.opweave", random(160, 160)
    changed = weights * np.float32(scale)
    build(of(weights)).save(path)
    expected = results(build(of(changed)))
    scheduled.clear()
    data = path.read_bytes()
    assert data.count(weights.tobytes()) == 1
    path.write_bytes(data.replace(weights.tobytes(), changed.tobytes()))
    loaded = context_on(CpuDriver()).load(path)
    assert len(scheduled) == count
    assert results(loaded) == expected


@pytest.mark.parametrize(
    "views", [lambda w: (w, w), lambda w: (w, w.T), lambda w: (w, w[:1])], ids=["same", "turned", "row"]
)
def test_weights_in_one_memory_have_another_plan_than_separate_ones(
    views: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]], tmp_path: Path, scheduled: list[Any]
) -> None:
    def of(a: np.ndarray, c: np.ndarray) -> Network:
        return lambda b: {"y": b.add(b.matmul(b.input("x", "float32", [160, 160]), b.constant(a)), b.constant(c))}

    weights, other = random(160, 160), random(160, 160, scale=0.3)
    build(of(*views(weights))).save(tmp_path / "graph.opweave")
    loaded = context_on(CpuDriver()).load(tmp_path / "graph.opweave")
    second = views(other)[1].copy()
    second[:1] = views(weights)[1][:1]  # equal elements where the key has them
    a = other if second.size < other.size else weights
    values = np.frombuffer(results(build(of(a, second)))["y"], "float32").reshape(160, 160)
    np.testing.assert_allclose(values, random(160, 160, scale=1.0) @ a + second, 1e-3, 1e-3)
    assert loaded.inputs  # the parts of a file are found while a graph of it exists
