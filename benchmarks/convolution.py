"""conv2d + bias + relu on [1, 100, 100, 100] with filter [100, 100, 3, 3], the operation of the interop samples."""

from __future__ import annotations

import numpy as np

import opweave as ow

from .measure import alternate
from .rows import Row, beside_onnxruntime


def rows() -> list[Row]:
    random = np.random.default_rng(0)
    image = random.standard_normal((1, 100, 100, 100), "float32")
    weights = random.standard_normal((100, 100, 3, 3), "float32") / 30
    bias = random.standard_normal(100, "float32")
    context = ow.ml.create_context(device="cpu")
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", image.shape)
    y = builder.conv2d(x, builder.constant(weights), padding=(1, 1, 1, 1), bias=builder.constant(bias))
    graph = builder.build({"y": builder.relu(y)})
    times = alternate(beside_onnxruntime(graph, context, {"x": image}))
    return [Row.of("conv2d + bias + relu", "ms", times["ours"], times["theirs"], "ONNX Runtime, bound", "net")]
