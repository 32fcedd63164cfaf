"""OpenVINO's kernels on NaN, on infinities, and on positions that are found by rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.openvino_device import openvino_context

import opweave as ow

Build = Callable[[Any, Any], Any]

SPECIAL = [np.nan, np.inf, -np.inf, -1, 3, 0, 1e38, -1e38, 0.5]

SHAPES = [(1, 1, 3, 3), (2, 3, 7, 5), (1, 9, 16, 16)]
"""Fewer elements than a register of the processor has, some more, and many."""

KEEPERS: dict[str, Build] = {
    "relu": lambda b, x: b.relu(x),
    "clamp": lambda b, x: b.clamp(x, min_value=-2, max_value=2),
    "clamp above": lambda b, x: b.clamp(x, max_value=2),
    "clamp below": lambda b, x: b.clamp(x, min_value=-2),
    "hard_sigmoid": lambda b, x: b.hard_sigmoid(x),
    "exp": lambda b, x: b.exp(x),
    "max": lambda b, x: b.max(x, 1),
    "min": lambda b, x: b.min(b.max(1, x), x),
}

NEIGHBOURS: dict[str, Build] = {
    "alone": lambda b, x: x,
    "sum": lambda b, x: x * 2 + 1,
    "concat": lambda b, x: b.concat([x, b.neg(x)], 1),
    "pooling": lambda b, x: b.average_pool2d(x, window_dimensions=[1, 1]),
    "batch_normalization": lambda b, x: b.batch_normalization(x, *_vectors(b, x, 0.5, 2), scale=_vectors(b, x, 3)[0]),
    "instance_normalization": lambda b, x: b.instance_normalization(x),
    "resampling": lambda b, x: b.resample2d(x, scales=(2.0, 3.0)),
}


def _vectors(b: Any, x: Any, *values: float) -> list[Any]:
    return [b.constant(np.full(x.shape[1], value, x.data_type)) for value in values]


@pytest.mark.parametrize(("neighbour", "data_type"), [*((name, "float32") for name in NEIGHBOURS), ("sum", "float16")])
@pytest.mark.parametrize("name", KEEPERS)
def test_nan_and_infinities_are_limited_as_on_the_reference(name: str, neighbour: str, data_type: Any) -> None:
    """The engine's maxima, minima and exponentials lose NaN, unless the order of their operands or a comparison keeps it."""
    with np.errstate(over="ignore"):
        arrays = {f"x{n}": np.resize(SPECIAL, shape).astype(data_type) for n, shape in enumerate(SHAPES)}
    results = []
    for context in (openvino_context(), ow.ml.create_context(device="reference")):
        b = ow.MLGraphBuilder(context)
        near = NEIGHBOURS[neighbour]
        inputs = {key: b.input(key, data_type, array.shape) for key, array in arrays.items()}
        graph = b.build({key: near(b, KEEPERS[name](b, near(b, x))) for key, x in inputs.items()})
        results.append(context.compute(graph, arrays))
    for key in arrays:
        found, wanted = (result[key] for result in results)
        np.testing.assert_allclose(found, wanted, rtol=1e-5 if data_type == "float32" else 4e-3)


@pytest.mark.long
def test_repeated_elements_are_found_by_the_engine() -> None:
    """An integer scale is interpolated, which keeps the layout of the convolutions around it; other scales are gathered."""
    context = openvino_context()
    b = ow.MLGraphBuilder(context)
    pairs = [(size, size * scale) for size in (1, 2, 3, 5, 7, 40, 41) for scale in range(1, 60)]
    inputs = {size: b.input(f"{size}", "float32", [1, 1, size, 1]) for size, _ in pairs}
    graph = b.build({f"{s} {o}": b.resample2d(inputs[s], sizes=(o, 1)) for s, o in pairs})
    arrays = {f"{size}": np.arange(size, dtype=np.float32).reshape(1, 1, size, 1) for size in inputs}
    results = context.compute(graph, arrays)
    for size, output in pairs:
        np.testing.assert_array_equal(results[f"{size} {output}"].ravel(), np.arange(output) // (output // size))


@pytest.mark.parametrize("axes", [[2, 3], [1, 2], [3, 1]])
def test_images_between_convolutions_are_repeated_in_their_layout(axes: list[int]) -> None:
    filter = np.random.default_rng(0).standard_normal((16, 16, 3, 3), np.float32)

    def build(b: Any, x: Any) -> Any:
        y = b.conv2d(x, b.constant(filter))
        y = b.resample2d(y, scales=(2.0, 3.0), axes=axes)
        return y if axes != [2, 3] else b.conv2d(y, b.constant(filter))

    x = np.random.default_rng(1).standard_normal((1, 16, 12, 12), np.float32)
    results = []
    for context in (openvino_context(), ow.ml.create_context(device="reference")):
        b = ow.MLGraphBuilder(context)
        graph = b.build({"y": build(b, b.input("x", "float32", x.shape))})
        results.append(context.compute(graph, {"x": x})["y"])
        if context.device.backend == "openvino" and axes == [2, 3]:
            kernels = [kernel.kernel for kernel in graph.profile(repeat=2, detail=True).kernels]
            assert "Interpolate" in kernels
            assert "Gather" not in kernels
            assert kernels.count("Reorder") <= 2, "of the graph's input and output"
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-4)


def test_normalisations_after_transposed_convolutions_are_part_of_them() -> None:
    """With a bias between, as exporters of detectors write it."""
    random = np.random.default_rng(3)
    filter = random.standard_normal((8, 8, 2, 2), np.float32)
    vectors = [random.random(8, np.float32) + 0.5 for _ in range(5)]

    def build(b: Any, x: Any) -> Any:
        y = b.conv_transpose2d(x, b.constant(filter), strides=[2, 2])
        y = b.add(y, b.constant(vectors[0].reshape(8, 1, 1)))
        mean, variance, scale, bias = map(b.constant, vectors[1:])
        return b.relu(b.batch_normalization(y, mean, variance, scale=scale, bias=bias))

    x = random.standard_normal((1, 8, 16, 16), np.float32)
    results = []
    for context in (openvino_context(), ow.ml.create_context(device="reference")):
        b = ow.MLGraphBuilder(context)
        graph = b.build({"y": build(b, b.input("x", "float32", x.shape))})
        results.append(context.compute(graph, {"x": x})["y"])
        if context.device.backend == "openvino":
            kernels = [kernel.kernel for kernel in graph.profile(repeat=2, detail=True).kernels]
            assert [kernel for kernel in kernels if kernel != "Reorder"] in (
                ["Deconvolution"],
                ["Deconvolution", "Eltwise"],
            )
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axes", [[3], [1, 3], [0, 2, 3], [1, 2, 3]])
def test_layer_normalization_epsilon_beyond_float16(axes: list[int]) -> None:
    """The engine's decomposition of MVN, which it uses for some axes, refuses an infinite constant in float16."""
    array = np.arange(24, dtype=np.float16).reshape(3, 2, 2, 2)
    b = ow.MLGraphBuilder(openvino_context())
    graph = b.build({"y": b.layer_normalization(b.input("x", "float16", array.shape), axes=axes, epsilon=2**64)})
    np.testing.assert_array_equal(openvino_context().compute(graph, {"x": array})["y"], np.zeros_like(array))


@pytest.mark.parametrize("data_type", ["float32", "float16"])
@pytest.mark.parametrize("shape", [(), (1,), (3,)], ids=str)
def test_negative_zero_plus_zero_is_zero(shape: tuple[int, ...], data_type: Any) -> None:
    """The engine removes x + 0 and x - -0."""
    context, zero = openvino_context(), np.zeros(shape, data_type)
    b = ow.MLGraphBuilder(context)
    x = b.neg(b.input("x", data_type, [3]))
    results = {"add": x + b.constant(zero), "left": b.constant(zero) + x, "sub": x - b.constant(-zero)}
    feeds = {"x": np.array([0.0, -0.0, 2.0], data_type)}
    graph = b.build(results | {f"neg {name}": b.neg(y) for name, y in results.items()})
    for name, y in context.compute(graph, feeds).items():
        assert np.signbit(y).tolist() == ([True, True, False] if name[:3] == "neg" else [False, False, True]), name
