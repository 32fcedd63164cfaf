"""Attention of queries whose keys are all hidden, on every device: zeros; and of those whose keys have the lowest score."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator
from support import witness
from support.every_device import DEVICES, context_on
from support.onnx import model, node

import opweave as ow
from opweave import composites

RNG = np.random.default_rng(6)
INF = np.inf


def randn(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", [2, 8])  # ONNX Runtime has a kernel for multiples of 8
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("past", [0, 2, "room"])
def test_group_query_attention_of_fully_masked_query_is_zero(past: Any, known: bool, size: int, device: str) -> None:
    """By the bias alone, and where the bias hides the keys that come before."""
    context, new = context_on(device), 3
    before = 2 if past else 0
    total = before + new
    bias = np.zeros((new, total), "float32")
    bias[0, : before + 1] = bias[2, 1:] = -INF
    b = ow.MLGraphBuilder(context)
    arrays = {"q": randn(1, new, 2 * size), "k": randn(1, new, size), "v": randn(1, new, size)}
    if past:
        memory = total + 2 if past == "room" else before
        arrays |= {name: randn(1, 1, memory, size) for name in ("pk", "pv")}
    if past == "room":
        arrays["n"] = np.array([before], "int32")
        bias = np.pad(bias, [(0, 0), (0, 2)])
    if not known:
        arrays["bias"] = bias
    inputs = {name: b.input(name, array.dtype.name, array.shape) for name, array in arrays.items()}
    y, _, _ = composites.group_query_attention(
        b,
        *(inputs.get(name) for name in ("q", "k", "v", "pk", "pv", "n")),
        bias=b.constant(bias) if known else inputs["bias"],
        heads=2,
        groups=1,
    )
    result = context.compute(b.build({"y": y}), arrays)["y"].reshape(new, 2, size)
    k, v = (
        np.concatenate([arrays[of][:, :, :before] if past else np.zeros((1, 1, 0, size)), arrays[new_one][:, None]], 2)
        for of, new_one in (("pk", "k"), ("pv", "v"))
    )
    q = arrays["q"].reshape(new, 2, size).transpose(1, 0, 2)
    hides = np.where(np.tri(new, total, before, dtype=bool), 0, -INF) + bias[:, :total]
    with np.errstate(invalid="ignore"):
        scores = q @ k[0].transpose(0, 2, 1) / np.sqrt(size) + hides
        weights = np.nan_to_num(witness.softmax(scores))
    expected = (weights @ v[0]).transpose(1, 0, 2)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
    assert not result[0].any()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("opset", [23, 24])
@pytest.mark.parametrize("kind", ["bool", "-inf", "lowest", "both"])
def test_attention_of_hidden_keys_agrees_with_the_reference_of_onnx(
    kind: str, opset: int, causal: int, device: str
) -> None:
    lowest = float(np.finfo("float32").min)
    sees = np.array([[0, 0, 0, 0], [1, 0, 1, 0], [1, 1, 1, 1]], bool)
    masks: dict[str, np.ndarray] = {
        "bool": sees,
        "-inf": np.where(sees, 0, -INF).astype("float32"),
        "lowest": np.where(sees, 0, lowest).astype("float32"),
        "both": np.array([[lowest, -INF, -INF, lowest], [0, lowest, lowest, -INF], [lowest] * 3 + [0]], "float32"),
    }
    feed: dict[str, np.ndarray] = {
        "q": randn(1, 2, 3, 4),
        "k": randn(1, 1, 4, 4),
        "v": randn(1, 1, 4, 4),
        "m": masks[kind],
    }
    inputs = {name: f"{array.dtype}{list(array.shape)}" for name, array in feed.items()}
    nodes = [node("Attention", " ".join(feed), "y", is_causal=causal)]
    proto = model(nodes, inputs, {"y": "float32"}, opset=opset)
    (expected,) = ReferenceEvaluator(proto).run(None, feed)
    (result,) = ow.InferenceSession(proto, context_on(device), fallback="error").run(None, feed)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", ["scaled_dot_product_attention", "multi_head_attention"])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("kind", ["uint8", "-inf"])
def test_attention_of_fully_masked_query_is_zero(kind: str, known: bool, name: str, dtype: str, device: str) -> None:
    context, sees = context_on(device), np.array([[0, 0, 1], [0, 1, 0], [0, 0, 0], [1, 1, 1]], "uint8")
    mask = sees if kind == "uint8" else np.where(sees, 0, -INF).astype(dtype)
    is_joined = name == "multi_head_attention"
    q, k = ((1, 4, 8), (1, 3, 8)) if is_joined else ((1, 1, 4, 8), (1, 1, 3, 8))
    arrays = {"q": randn(*q).astype(dtype), "k": randn(*k).astype(dtype), "v": randn(*k).astype(dtype)}
    if not known:
        arrays["m"] = mask
    b = ow.MLGraphBuilder(context)
    inputs = [b.input(name, array.dtype.name, array.shape) for name, array in arrays.items()]
    options = {"heads": 1} if is_joined else {}
    y = getattr(composites, name)(b, *inputs, *([b.constant(mask)] if known else []), causal=True, **options)
    result = context.compute(b.build({"y": y}), arrays)["y"].reshape(4, 8)
    v = arrays["v"].reshape(3, 8)
    assert not result[[0, 2]].any()
    np.testing.assert_allclose(result[1].astype("float32"), v[1].astype("float32"), rtol=2e-3)
    assert np.isfinite(result).all()
