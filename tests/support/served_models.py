"""Small ONNX models for tests of serving, and what they compute."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

WEIGHTS = np.random.default_rng(5).standard_normal((16, 4)).astype(np.float32)

TEXTS = {
    "layer": "(float[N,16] x) => (float[N,4] y, int64[N] best) "
    "{ h = MatMul(x, weights) y = Softmax <axis = 1> (h) best = ArgMax <axis = 1, keepdims = 0> (h) }",
    "fixed": "(float[2,3] x) => (float[2,3] y) { y = Neg(x) }",
    # A row depends on those before it: joined requests would change each other's results.
    "running": "(float[N,2] x) => (float[N,2] y) { axis = Constant <value_int = 0> () y = CumSum(x, axis) }",
    "lookup": "(int64[N,2] ids) => (float[N,2,4] y) { y = Gather(weights, ids) }",
    "reshaped": "(float[N,K] x) => (float[N,2,M] y) { s = Constant <value_ints = [0, 2, -1]> () y = Reshape(x, s) }",
    "filter": "(float[N,1,W] x) => (float[N,1,V] y) { w = Constant <value = float[1,1,1] {2}> () y = Conv(x, w) }",
    "strings": "(string[N] s) => (string[N] t) { t = Identity(s) }",
    "mixed": "(float[N] a, bool[N] flag) => (float[N] y) { zero = Sub(a, a) y = Where(flag, a, zero) }",
    "custom": "(float[N,2] x) => (float[N,2] y) { y = test.serving.Triple(x) }",
    "sequence": "(seq(float[2]) s) => (float[2] y) { zero = Constant <value_int = 0> () y = SequenceAt(s, zero) }",
}


def served_model(name: str) -> bytes:
    """The bytes of a model of `TEXTS`."""
    header = '<ir_version: 10, opset_import: ["": 21, "test.serving": 1]>'
    proto = onnx.parser.parse_model(f"{header} {name} {TEXTS[name]}")
    if "weights" in TEXTS[name]:
        proto.graph.initializer.append(numpy_helper.from_array(WEIGHTS, "weights"))
    data: bytes = proto.SerializeToString()
    return data


def identity(element_type: str) -> bytes:
    """A model that returns its only input, of shape [N, 3]."""
    text = f"same ({element_type}[N,3] x) => ({element_type}[N,3] y) {{ y = Identity(x) }}"
    data: bytes = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}').SerializeToString()
    return data


def layer(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The outputs of the model "layer" for an input [rows, 16]."""
    h = x @ WEIGHTS
    powers = np.exp(h - h.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True), h.argmax(1)
