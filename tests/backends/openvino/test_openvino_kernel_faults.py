"""Convolutions that OpenVINO's kernels of bfloat16 and of 8 bits compute wrongly on processors with AMX."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from support.openvino_device import openvino_context

import opweave as ow
from opweave.backends.openvino import backend, devices, kernel_faults, openvino
from opweave.backends.openvino.dequantised import choose_forms
from opweave.backends.openvino.emit import Emitter
from opweave.core.graph import Graph, Node

Shape = tuple[int, ...]
Case = tuple[Shape, Shape, dict[str, Any]]

ALONE = "windows of padding alone"
FACTOR = "widths and strides with a common factor"
ROWS = "windows whose rows fill several rows of a tile"
GROUPS = "groups of several channels in 8 bits"

# Shapes of the input and of the filter, options, and why kernels of 2 bytes and of 1 byte must not compute it.
FAULTS: list[tuple[Case, str, str]] = [
    (((1, 4, 5, 5), (2, 4, 1, 1), {"padding": [1, 1, 1, 1]}), ALONE, ALONE),
    (((1, 4, 5, 5), (2, 4, 1, 1), {"padding": [0, 0, 0, 1]}), ALONE, ALONE),
    (((1, 4, 5, 5), (2, 4, 1, 1), {"padding": [0, 1, 0, 0]}), ALONE, ALONE),
    (((1, 4, 5, 5), (2, 4, 1, 1), {"padding": [0, 1, 0, 0], "strides": [2, 2]}), ALONE, ALONE),
    (((1, 4, 5, 5), (2, 4, 3, 3), {"padding": [3, 0, 0, 0]}), ALONE, ALONE),
    (((1, 4, 5, 5), (2, 4, 2, 2), {"padding": [3, 0, 0, 0], "dilations": [2, 1]}), ALONE, ALONE),
    (((1, 4, 5, 5), (2, 4, 2, 2), {"padding": [2, 0, 0, 0], "dilations": [2, 1]}), "", ""),
    (((1, 3, 9, 1), (2, 3, 3, 2), {"padding": [1, 1, 1, 1], "dilations": [1, 2]}), ALONE, ALONE),
    (((1, 1, 9, 9), (2, 1, 1, 1), {"dilations": [9, 9]}), "", ""),
    (((1, 4, 48, 48), (2, 4, 16, 16), {"strides": [16, 16]}), FACTOR, ""),
    (((1, 4, 48, 48), (2, 4, 16, 16), {"strides": [16, 15]}), ROWS, ""),
    (((1, 4, 6, 48), (2, 4, 1, 16), {}), ROWS, ""),
    (((1, 4, 48, 48), (2, 4, 16, 15), {"strides": [16, 16]}), "", ""),
    (((1, 6, 6, 40), (2, 6, 1, 16), {"strides": [1, 9]}), ROWS, ""),
    (((1, 8, 6, 40), (2, 8, 2, 12), {"strides": [1, 5]}), ROWS, ""),
    (((1, 8, 6, 40), (2, 8, 2, 16), {"strides": [1, 9]}), ROWS, ROWS),
    (((1, 8, 6, 40), (2, 8, 2, 12), {"strides": [1, 5], "dilations": [1, 2]}), "", ""),
    (((1, 8, 6, 12), (2, 8, 2, 12), {}), FACTOR, ""),
    (((1, 4, 48, 16), (2, 4, 16, 16), {"strides": [16, 3]}), FACTOR, ""),
    (((1, 3, 48, 48), (2, 3, 16, 16), {"strides": [16, 16]}), "", ""),
    (((1, 16, 8, 8), (2, 16, 3, 4), {"strides": [3, 4]}), FACTOR, ""),
    (((1, 16, 8, 8), (2, 16, 3, 4), {"strides": [4, 3]}), "", ""),
    (((1, 16, 8, 9), (2, 16, 3, 4), {"strides": [1, 4], "dilations": [1, 2]}), "", ""),
    (((1, 32, 8, 8), (2, 32, 3, 4), {"strides": [2, 4]}), "", FACTOR),
    (((1, 64, 8, 8), (2, 64, 4, 4), {"strides": [4, 4]}), "", ""),
    (((1, 8, 6, 6), (8, 1, 3, 3), {"groups": 8}), "", ""),
    (((1, 8, 6, 6), (16, 1, 3, 3), {"groups": 8}), "", GROUPS),
    (((1, 8, 6, 6), (96, 4, 3, 3), {"groups": 2}), "", GROUPS),
    (((1, 12, 6, 6), (12, 4, 1, 1), {"groups": 3}), "", GROUPS),
    (((1, 4, 6, 6), (8, 4, 3, 3), {"padding": [1, 1, 1, 1], "strides": [2, 2]}), "", ""),
]


def arrays(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Input and filter: few bits, so that only results are rounded."""
    rng = np.random.default_rng(case[0])
    return tuple((rng.integers(-3, 4, shape) / 2).astype(np.float32) for shape in case[:2])  # type: ignore[return-value]


def convolution(b: Any, x: Any, w: Any, options: dict[str, Any], layout: str = "nchw") -> Any:
    if layout == "nhwc":
        y = b.conv2d(b.transpose(x, permutation=[0, 2, 3, 1]), w, input_layout="nhwc", **options)
        return b.transpose(y, permutation=[0, 3, 1, 2])
    return b.conv2d(x, w, **options)


def graph_of(case: Case, layout: str = "nchw") -> Graph:
    b = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
    x, w = arrays(case)
    return Graph.reaching({"y": convolution(b, b.input("x", "float32", x.shape), b.constant(w), case[2], layout)})


def node_of(graph: Graph) -> Node:
    return next(node for node in graph.nodes if node.op.name == "conv2d")


@pytest.fixture
def bfloat16(monkeypatch: pytest.MonkeyPatch) -> ow.MLContext:
    """A context in bfloat16; where the processor does not have it, the engine computes in float32."""
    openvino_context()  # skips the test where openvino is not installed
    monkeypatch.setattr(devices, "_precisions", lambda *_: ("float32", "ieee", "bfloat16"))
    return ow.ml.create_context(backend="openvino", device="cpu", precision="bfloat16")


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize(("case", "wide", "narrow"), FAULTS)
def test_conv2d_has_reasons_against_kernels(case: Case, wide: str, narrow: str, layout: str) -> None:
    node = node_of(graph_of(case, layout))
    assert [kernel_faults.why_not(node, size) for size in (2, 1)] == [wide, narrow]
    assert openvino.supports(node), "float32 has no such faults"


@pytest.mark.parametrize(("case", "wide", "narrow"), FAULTS)
def test_conv2d_runs_elsewhere_in_bfloat16(case: Case, wide: str, narrow: str, bfloat16: ow.MLContext) -> None:
    x, w = arrays(case)
    results, texts = [], []
    for context in (bfloat16, ow.ml.create_context(device="reference")):
        b = ow.MLGraphBuilder(context)
        graph = b.build({"y": b.conv2d(b.input("x", "float32", x.shape), b.constant(w), **case[2])})
        texts.append(str(graph.explain()))
        results.append(context.compute(graph, {"x": x})["y"])
    np.testing.assert_allclose(*results, rtol=0, atol=2e-2 * np.abs(results[1]).max())
    assert (f"ONNX Runtime: its kernels of bfloat16 are wrong for {wide}" in texts[0]) == bool(wide), texts[0]
    assert ("OpenVINO in bfloat16" in texts[0]) == (not wide), texts[0]


def quantised(b: Any, case: Case, layout: str = "nchw") -> Any:
    """The convolution of a quantised input by weights of 8 bits."""
    x, w = arrays(case)
    known = b.constant(np.full((1, 1, 1, 1), 0.5, np.float32)), b.constant(np.full((1, 1, 1, 1), 4, np.uint8))
    scales, zeros = np.full((len(w), 1, 1, 1), 0.5, np.float32), np.zeros((len(w), 1, 1, 1), np.int8)
    weights = b.dequantize_linear(b.constant((w * 2).astype(np.int8)), b.constant(scales), b.constant(zeros))
    y = b.dequantize_linear(b.quantize_linear(b.input("x", "float32", x.shape), *known), *known)
    return convolution(b, y, weights, case[2], layout)


def check_quantised(case: Case, layout: str) -> None:
    x, results = arrays(case)[0], []
    for context in (openvino_context(), ow.ml.create_context(device="reference")):
        b = ow.MLGraphBuilder(context)
        results.append(context.compute(b.build({"y": quantised(b, case, layout)}), {"x": x})["y"])
    np.testing.assert_allclose(*results, rtol=0, atol=1e-5 * np.abs(results[1]).max())


@pytest.mark.parametrize(("case", "wide", "narrow"), FAULTS)
def test_conv2d_multiplies_bytes_with_correct_kernels(
    case: Case, wide: str, narrow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "saturates", lambda: False)
    for layout in ("nchw", "nhwc"):
        check_quantised(case, layout)
    graph = Graph.reaching({"y": quantised(ow.MLGraphBuilder(ow.ml.create_context(device="reference")), case)})
    readers: dict[Any, list[Node]] = {}
    for node in graph.nodes:
        for operand in node.operands:
            readers.setdefault(operand, []).append(node)
    assert bool(choose_forms(graph, readers, True).products) == (not narrow)


# Shapes of the input and of the filter, options; then strides, padding and width of the convolution that the engine gets.
ONE_POSITION: list[tuple[Case, list[int], list[int], int]] = [
    (((2, 3, 4, 4), (6, 1, 3, 3), {"strides": [1, 2], "groups": 3}), [1, 1], [0, 0, 0, 0], 3),
    (((2, 3, 4, 3), (6, 3, 3, 3), {"strides": [2, 2]}), [1, 1], [0, 0, 0, 0], 3),
    (((1, 4, 9, 2), (8, 4, 3, 3), {"strides": [2, 2], "padding": [1, 1, 1, 1]}), [2, 1], [1, 1, 1, 0], 2),
    (((1, 4, 9, 1), (8, 4, 3, 3), {"strides": [2, 2], "padding": [1, 1, 1, 1]}), [2, 1], [1, 1, 1, 1], 1),
    (((1, 4, 9, 5), (8, 4, 3, 3), {"strides": [3, 4], "padding": [0, 0, 1, 0]}), [3, 1], [0, 0, 1, 0], 2),
    (((1, 4, 9, 8), (8, 4, 3, 3), {"strides": [1, 4], "dilations": [1, 3]}), [1, 1], [0, 0, 0, 0], 7),
    (((1, 8, 9, 2), (8, 8, 1, 1), {"strides": [2, 2]}), [2, 1], [0, 0, 0, 0], 1),
    (((1, 4, 9, 9), (8, 4, 3, 3), {"strides": [2, 2]}), [2, 2], [0, 0, 0, 0], 9),
    (((1, 4, 9, 4), (8, 4, 3, 3), {"strides": [2, 1]}), [2, 1], [0, 0, 0, 0], 4),
]


def emitted_window(graph: Graph, precision: Any) -> tuple[list[int], list[int], list[int], int]:
    """Strides, padding before and after, and width of the input of the convolution that the engine gets."""
    ctx = Emitter(precision)
    variant = cast(backend.OpenVino, openvino._variant(1, precision))
    (value,) = variant.emit(ctx, graph)[0]
    pending = [value.output.get_node()]
    while (node := pending.pop()).get_type_name() not in ("Convolution", "GroupConvolution"):
        pending += [source.get_node() for source in node.input_values()]
    attributes = node.get_attributes()
    first, second, third = (list(attributes[name]) for name in ("strides", "pads_begin", "pads_end"))
    return first, second, third, int(node.get_input_shape(0)[3])


def _sides(case: Case) -> tuple[list[int], list[int]]:
    padding = case[2].get("padding", [0, 0, 0, 0])
    return padding[::2], padding[1::2]


@pytest.mark.parametrize("precision", ["bfloat16", "float32", "ieee"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize(("case", "strides", "padding", "width"), ONE_POSITION)
def test_conv2d_with_one_position_has_no_strides_in_bfloat16(
    case: Case, strides: list[int], padding: list[int], width: int, layout: str, precision: Any
) -> None:
    openvino_context()
    emitted = emitted_window(graph_of(case, layout), precision)
    if precision == "bfloat16":
        assert emitted == (strides, padding[::2], padding[1::2], width)
    else:
        assert emitted == (case[2]["strides"], *_sides(case), case[0][3])


@pytest.mark.parametrize(("case", "strides", "padding", "width"), ONE_POSITION)
def test_conv2d_with_one_position_has_no_strides_in_8_bits(
    case: Case, strides: list[int], padding: list[int], width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "saturates", lambda: False)
    check_quantised(case, "nchw")
    graph = Graph.reaching({"y": quantised(ow.MLGraphBuilder(ow.ml.create_context(device="reference")), case)})
    if case[2].get("groups"):
        assert emitted_window(graph, "float32") == (case[2]["strides"], *_sides(case), case[0][3]), "in float32"
    else:
        assert emitted_window(graph, "float32") == (strides, padding[::2], padding[1::2], width)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize(("case", "strides", "padding", "width"), ONE_POSITION)
def test_conv2d_with_one_position_is_right_in_bfloat16(
    case: Case, strides: list[int], padding: list[int], width: int, layout: str, bfloat16: ow.MLContext
) -> None:
    """The kernel for AMX computed something else."""
    x, w = arrays(case)
    results = []
    for context in (bfloat16, ow.ml.create_context(device="reference")):
        b = ow.MLGraphBuilder(context)
        bias = b.constant(np.linspace(-2, 2, len(w), dtype=np.float32))
        y = convolution(b, b.input("x", "float32", x.shape), b.constant(w), {**case[2], "bias": bias}, layout)
        results.append(context.compute(b.build({"y": b.relu(y)}), {"x": x})["y"])
    np.testing.assert_allclose(*results, rtol=0, atol=2e-2 * np.abs(results[1]).max())
