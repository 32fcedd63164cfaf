"""LinearAttention of ONNX and of ONNX Runtime, against ONNX's reference evaluator and ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, defs, helper
from onnx.reference import ReferenceEvaluator

import opweave as ow

MICROSOFT = "com.microsoft"
BATCHES, TOKENS, HEADS, GROUPS, SIZE, VALUES = 2, 7, 4, 2, 8, 5


def has_operator() -> bool:
    try:
        defs.get_schema("LinearAttention")
    except defs.SchemaError:
        return False
    return True


def model_of(domain: str, feed: dict[str, np.ndarray], **attributes: Any) -> Any:
    names = ["query", "key", "value", "past_state", "decay", "beta"]
    inputs = [name if name in feed else "" for name in names]
    node = helper.make_node("LinearAttention", inputs, ["out", "state"], domain=domain, **attributes)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape) for name, array in feed.items()]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("out", "state")]
    graph = helper.make_graph([node], "attention", values, outputs)
    opsets = [helper.make_opsetid("", 27 if not domain else 21), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    values: np.ndarray = rng.standard_normal(shape, np.float32)
    return values


@pytest.mark.parametrize("has_past", [True, False])
@pytest.mark.parametrize("is_wide", [True, False])
@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
@pytest.mark.parametrize("domain", ["", MICROSOFT])
def test_linear_attention(domain: str, rule: str, is_wide: bool, has_past: bool) -> None:
    if not domain and not has_operator():
        pytest.skip("this ONNX has no LinearAttention")
    rng = np.random.default_rng(0)
    key = normal(rng, BATCHES, TOKENS, GROUPS, SIZE)
    feed = {
        "query": normal(rng, BATCHES, TOKENS, HEADS * SIZE),
        "key": (key / np.linalg.norm(key, axis=-1, keepdims=True)).reshape(BATCHES, TOKENS, -1),
        "value": normal(rng, BATCHES, TOKENS, GROUPS * VALUES),
    }
    if has_past:
        feed["past_state"] = normal(rng, BATCHES, GROUPS, SIZE, VALUES)
    if "gated" in rule:
        feed["decay"] = -abs(normal(rng, BATCHES, TOKENS, GROUPS * (SIZE if is_wide else 1)))
    if "delta" in rule:
        feed["beta"] = rng.random((BATCHES, TOKENS, GROUPS if is_wide else 1), np.float32)
    model = model_of(domain, feed, q_num_heads=HEADS, kv_num_heads=GROUPS, update_rule=rule)
    expected = (
        onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feed)
        if domain
        else ReferenceEvaluator(model).run(None, feed)
    )
    session = ow.InferenceSession(model.SerializeToString())
    for result, value in zip(session.run(None, feed), expected, strict=True):
        np.testing.assert_allclose(result, value, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("activation", ["none", "silu", "swish"])
@pytest.mark.parametrize("has_past", [True, False])
def test_causal_convolution_of_onnx(activation: str, has_past: bool) -> None:
    if not has_operator():
        pytest.skip("this ONNX has no CausalConvWithState")
    rng = np.random.default_rng(0)
    feed = {"input": normal(rng, 2, 3, 7), "weight": normal(rng, 3, 1, 4), "bias": normal(rng, 3)}
    if has_past:
        feed["past_state"] = normal(rng, 2, 3, 3)
    node = helper.make_node("CausalConvWithState", list(feed), ["out", "state"], activation=activation)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape) for name, array in feed.items()]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("out", "state")]
    graph = helper.make_graph([node], "convolution", values, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 27)], ir_version=10)
    expected = ReferenceEvaluator(model).run(None, feed)
    session = ow.InferenceSession(model.SerializeToString())
    for result, value in zip(session.run(None, feed), expected, strict=True):
        np.testing.assert_allclose(result, value, rtol=2e-5, atol=2e-5)
