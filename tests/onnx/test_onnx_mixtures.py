"""QMoE with zero points of one layer alone, which ONNX Runtime computes wrongly for numbers of 4 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper
from support.onnx import model

import opweave as ow

EXPERTS, TOKENS, HIDDEN, INNER = 2, 3, 16, 18
RANDOM = np.random.default_rng(5)


def layer(columns: int, width: int, bits: int, has_zeros: bool) -> tuple[np.ndarray, np.ndarray, Any, np.ndarray]:
    """Packed numbers, scales, zero points or None, and the real weights [experts, columns, width]."""
    codes = RANDOM.integers(0, 1 << bits, (EXPERTS, columns, width))
    zeros = RANDOM.integers(0, 1 << bits, (EXPERTS, columns)) if has_zeros else None
    scale = RANDOM.uniform(0.5, 1, (EXPERTS, columns)).astype(np.float32) / 2**bits
    middle = 1 << (bits - 1) if zeros is None else zeros[:, :, None]
    return pack(codes, bits), scale, None if zeros is None else pack(zeros, bits), (codes - middle) * scale[:, :, None]


def pack(codes: np.ndarray, bits: int) -> np.ndarray:
    parts = codes.reshape(*codes.shape[:-1], -1, 8 // bits)
    return (parts << (bits * np.arange(8 // bits))).sum(-1).astype(np.uint8)


@pytest.mark.parametrize("specialise", ["auto", "always"])
@pytest.mark.parametrize("extra", [False, True], ids=["", "with weights of the router"])
@pytest.mark.parametrize("zeros", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_each_layer_has_zero_points_or_none(bits: int, zeros: tuple[int, int], extra: bool, specialise: Any) -> None:
    inner = INNER + INNER % (8 // bits)
    first, scales, points, weights = layer(inner, HIDDEN, bits, bool(zeros[0]))
    last, last_scales, last_points, last_weights = layer(HIDDEN, inner, bits, bool(zeros[1]))
    constants = {"w": first, "ws": scales, "v": last, "vs": last_scales, "wz": points, "vz": last_points}
    constants = {name: array for name, array in constants.items() if array is not None}
    names = ["x", "r", "w", "ws", "", "v", "vs", "", "", "", ""]
    names += [name if name in constants else "" for name in ("wz", "vz")] + (["", "shares"] if extra else [])
    while not names[-1]:
        names.pop()
    node = helper.make_node(
        "QMoE", names, ["y"], domain="com.microsoft", activation_type="identity", expert_weight_bits=bits, k=EXPERTS
    )
    x, r = RANDOM.normal(size=(TOKENS, HIDDEN)), RANDOM.normal(size=(TOKENS, EXPERTS))
    feed = {"x": x.astype(np.float32), "r": r.astype(np.float32)}
    weight = np.exp(r) / np.exp(r).sum(1, keepdims=True)
    inputs = {"x": f"float32[{TOKENS}, {HIDDEN}]", "r": f"float32[{TOKENS}, {EXPERTS}]"}
    if extra:
        shares = RANDOM.uniform(0.1, 1, (TOKENS, EXPERTS))
        feed["shares"], inputs["shares"] = shares.astype(np.float32), inputs["r"]
        weight = shares
    proto = model([node], inputs, {"y": "float32"}, constants, domains=["com.microsoft"])
    (y,) = ow.InferenceSession(proto, specialise=specialise).run(None, feed)
    expected = sum(weight[:, k : k + 1] * (x @ weights[k].T @ last_weights[k].T) for k in range(EXPERTS))
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
