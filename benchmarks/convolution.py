"""conv2d + bias + relu on [1, 100, 100, 100] with filter [100, 100, 3, 3], the operation of the interop samples."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

import opweave as ow

from .common import Row, alternate, at_most


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
    source = context.tensor_from(image)
    target = context.create_tensor("float32", y.shape, readable=True)

    shape = list(image.shape)
    model = helper.make_model(
        helper.make_graph(
            [
                helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
                helper.make_node("Relu", ["c"], ["y"]),
            ],
            "g",
            [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, shape)],
            [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(bias, "b")],
        ),
        opset_imports=[helper.make_opsetid("", 21)],
        ir_version=10,
    )
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    output = np.zeros(image.shape, "float32")
    binding.bind_ortvalue_input("x", onnxruntime.OrtValue.ortvalue_from_numpy(image))
    binding.bind_ortvalue_output("y", onnxruntime.OrtValue.ortvalue_from_numpy(output))
    times = alternate(
        {
            "opweave": lambda: context.dispatch(graph, {"x": source}, {"y": target}),
            "onnxruntime": lambda: session.run_with_iobinding(binding),
        },
        seconds=0.5,
        title="conv2d + bias + relu",
    )
    assert np.allclose(target.numpy(), output, atol=1e-4)
    ours, theirs = times["opweave"] * 1e3, times["onnxruntime"] * 1e3
    # No budget of its own in the design: the one of ResNet-50 for what is the same work.
    return [
        Row("conv2d + bias + relu", "ms", ours, theirs, "ONNX Runtime, bound", "<= 1.01x", at_most(ours, theirs, 1.01))
    ]
