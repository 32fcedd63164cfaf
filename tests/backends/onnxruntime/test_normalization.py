"""Batch normalisation as ONNX Runtime does it: folded into convolutions, exact elsewhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import opweave as ow
from opweave.backends.onnxruntime import ort
from opweave.core.graph import Graph, MLOperand
from opweave.ops.convolution import InputOperandLayout

ORT = ow.ml.create_context(device="cpu")
REFERENCE = ow.ml.create_context(device="reference")
SHAPES: dict[InputOperandLayout, tuple[int, ...]] = {"nchw": (1, 3, 8, 8), "nhwc": (1, 8, 8, 3)}


def network(builder: ow.MLGraphBuilder, layout: InputOperandLayout) -> MLOperand:
    """A convolution and the normalisation of its result."""
    random = np.random.default_rng(0)
    filter = builder.constant(random.standard_normal((4, 3, 3, 3), "float32"))
    mean, variance, scale, bias = (builder.constant(random.random(4, "float32") + 0.5) for _ in range(4))
    y = builder.conv2d(builder.input("x", "float32", SHAPES[layout]), filter, input_layout=layout)
    return builder.batch_normalization(y, mean, variance, scale=scale, bias=bias, axis=layout.index("c"))


@pytest.mark.parametrize("layout", SHAPES)
def test_batch_normalization_is_folded_into_conv2d(layout: InputOperandLayout, tmp_path: Path) -> None:
    builder = ow.MLGraphBuilder(ORT)
    ctx, outputs, _ = ort.emit_graph(Graph.reaching({"y": network(builder, layout)}))
    model, weights = ctx.finish(outputs)
    assert not weights  # all are small enough to lie inside the model
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    left = [node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node]
    assert [op_type for op_type in left if op_type in ("Conv", "BatchNormalization", "Sub")] == ["Conv"]


@pytest.mark.parametrize("layout", SHAPES)
def test_folded_batch_normalization_equals_reference(layout: InputOperandLayout) -> None:
    x = np.random.default_rng(1).standard_normal(SHAPES[layout], "float32")
    results = []
    for context in (ORT, REFERENCE):
        builder = ow.MLGraphBuilder(context)
        results.append(context.compute(builder.build({"y": network(builder, layout)}), {"x": x})["y"])
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_batch_normalization_with_large_mean(axis: int) -> None:
    """The kernel alone, which multiplies before it subtracts, is off by 3e-5 here."""
    x = np.float32(1000) + np.arange(27, dtype="float32").reshape(3, 3, 3) / 8
    mean, variance = np.full(3, 1000, "float32"), np.full(3, 1e-3, "float32")
    builder = ow.MLGraphBuilder(ORT)
    operands = [builder.input(name, "float32", a.shape) for name, a in (("x", x), ("m", mean), ("v", variance))]
    graph = builder.build({"y": builder.batch_normalization(*operands, axis=axis)})
    got = ORT.compute(graph, {"x": x, "m": mean, "v": variance})["y"]
    np.testing.assert_allclose(got, (x.astype("float64") - 1000) / np.sqrt(np.float32(1e-3) + 1e-5), rtol=3e-7)


@pytest.mark.parametrize("context", [ORT, REFERENCE], ids=["onnxruntime", "reference"])
def test_epsilon_is_cast_to_the_data_type(context: ow.MLContext) -> None:
    """1e-9 is nothing in float16, so that a constant slice is divided by zero."""
    x = np.full((1, 4), 2, "float16")
    builder = ow.MLGraphBuilder(context)
    graph = builder.build({"y": builder.layer_normalization(builder.input("x", "float16", x.shape), epsilon=1e-9)})
    assert np.isnan(context.compute(graph, {"x": x})["y"]).all()
