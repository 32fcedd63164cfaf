"""Models of one node, for the tests of attention, and their comparison with ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
from onnx import ModelProto, helper, numpy_helper
from support.onnx_nodes import compiled_models

from opweave.onnx.session.session import InferenceSession

rng = np.random.default_rng(7)


def randn(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def model(op_type: str, inputs: list[np.ndarray | None], outputs: int, domain: str, **attributes: Any) -> ModelProto:
    """A model of one node, all of whose inputs are the model's."""
    names = [f"i{k}" if array is not None else "" for k, array in enumerate(inputs)]
    made = [f"o{k}" for k in range(outputs)]
    node = helper.make_node(op_type, names, made, domain=domain, **attributes)
    declared = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in zip(names, inputs, strict=True)
        if array is not None
    ]
    results = [helper.make_empty_tensor_value_info(name) for name in made]
    graph = helper.make_graph([node], "g", declared, results)
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def check_attention(
    op_type: str,
    inputs: list[np.ndarray | None],
    outputs: int = 1,
    domain: str = "com.microsoft",
    constants: tuple[int, ...] = (),
    **attributes: Any,
) -> list[np.ndarray]:
    """Compare with the engine's kernel; `constants` are the inputs that become initializers for us."""
    proto = model(op_type, inputs, outputs, domain, **attributes)
    feed = {f"i{k}": array for k, array in enumerate(inputs) if array is not None}
    engine = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = engine.run(None, feed)
    for k in constants:
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(feed.pop(f"i{k}")), f"i{k}"))
    for info in list(proto.graph.input):
        if info.name not in feed:
            proto.graph.input.remove(info)
    session = InferenceSession(proto, fallback="error")
    got = session.run(None, feed)
    for mine, other in zip(got, wanted, strict=True):
        assert mine.dtype == other.dtype
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=2e-5)
    return got


def operations(session: InferenceSession) -> list[str]:
    """What a session that is compiled once runs."""
    (compiled,) = compiled_models(session)
    return [placement.node.split()[0] for placement in compiled.program.placements]
