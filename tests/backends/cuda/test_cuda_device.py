"""Conformance and threads on an NVIDIA GPU (`make test-gpu`); sessions and arrays there, or on the processor."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support import wpt
from support.cuda_cases import rows
from support.cuda_driver import HARDWARE, cuda_context

import opweave as ow


@pytest.mark.skipif(not HARDWARE, reason="needs an NVIDIA GPU: make test-gpu")
@pytest.mark.parametrize("case", rows("cuda") if HARDWARE else [])
def test_conformance(case: wpt.Case) -> None:
    wpt.check_conformance(case, wpt.run_conformance(cuda_context(), case))


@pytest.mark.long
def test_operations_on_arrays() -> None:
    x = np.float32([[1, -2], [3, -4]])
    with cuda_context():
        found = ow.array(x).relu().matmul(x) + 1
        np.testing.assert_allclose(np.asarray(found), np.maximum(x, 0) @ x + 1, 1e-5)


def test_session_on_cuda() -> None:
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    weights = onnx.numpy_helper.from_array(np.arange(12, dtype=np.float32).reshape(4, 3), "w")
    nodes = [helper.make_node("Gemm", ["x", "w"], ["h"]), helper.make_node("Softmax", ["h"], ["y"])]
    x, y = (helper.make_tensor_value_info(name, float32, [2, size]) for name, size in (("x", 4), ("y", 3)))
    graph = helper.make_graph(nodes, "g", [x], [y], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    given = {"x": np.random.default_rng(0).random((2, 4), np.float32) / 8}
    (found,) = ow.InferenceSession(model, cuda_context(), fallback="error").run(None, given)
    (wanted,) = ow.InferenceSession(model, ow.ml.create_context(device="cpu")).run(None, given)
    np.testing.assert_allclose(found, wanted, 1e-5)


@pytest.mark.skipif(not HARDWARE, reason="the driver on the processor runs one kernel at a time: make test-gpu")
def test_threads() -> None:
    context = cuda_context()
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [1000])
    graph = builder.build({"y": builder.sub(x, builder.reduce_mean(x, axes=[0], keep_dimensions=True))})
    arrays = [np.random.default_rng(k).random(1000, np.float32) for k in range(64)]
    with ThreadPoolExecutor(8) as pool:
        for array, found in zip(arrays, pool.map(lambda a: context.compute(graph, {"x": a})["y"], arrays), strict=True):
            np.testing.assert_allclose(found, array - array.mean(), atol=1e-5)
