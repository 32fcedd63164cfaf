"""Attention and its kin: ONNX Runtime's own operators against its kernels, and the edges of ONNX's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attention_models import check_attention, model, operations, randn, rng
from onnx import helper, numpy_helper

from opweave.onnx.session.session import InferenceSession
from opweave.support.errors import NotSupportedError


@pytest.mark.parametrize("length", [1, 5])
@pytest.mark.parametrize("options", [{}, {"unidirectional": 1}, {"scale": 0.3}])
def test_multi_head_attention(length: int, options: dict[str, Any]) -> None:
    q, k, v = randn(2, length, 24), randn(2, length, 24), randn(2, length, 24)
    check_attention("MultiHeadAttention", [q, k, v], num_heads=3, **options)


def test_multi_head_attention_with_bias_padding_and_scores() -> None:
    q, k, v, bias = randn(2, 4, 24), randn(2, 6, 24), randn(2, 6, 24), randn(72)
    mask = np.array([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]], np.int32)
    check_attention("MultiHeadAttention", [q, k, v, bias, mask, randn(2, 3, 4, 6)], num_heads=3)
    check_attention("MultiHeadAttention", [q, k, v, None, np.array([4, 6], np.int32)], num_heads=3)


def test_multi_head_attention_keeps_the_cache() -> None:
    q, k, v, past = randn(2, 1, 24), randn(2, 1, 24), randn(2, 1, 24), randn(2, 3, 5, 8)
    results = check_attention(
        "MultiHeadAttention", [q, k, v, None, None, None, past, past[..., ::-1].copy()], 3, num_heads=3
    )
    assert results[1].shape == (2, 3, 6, 8)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("constant", [(), (2, 3)])
@pytest.mark.parametrize("start", [True, False])
def test_rotary_embedding(interleaved: int, constant: tuple[int, ...], start: bool) -> None:
    positions = np.array([3]) if start else rng.integers(0, 16, (2, 5))
    tables = [randn(16, 4), randn(16, 4)]
    check_attention(
        "RotaryEmbedding", [randn(2, 5, 24), positions, *tables], constants=constant, interleaved=interleaved
    )
    check_attention(
        "RotaryEmbedding", [randn(2, 3, 5, 8), positions, *tables], constants=constant, interleaved=interleaved
    )


def test_rotary_embedding_of_a_part() -> None:
    inputs = [randn(2, 5, 24), rng.integers(0, 16, (2, 5)), randn(16, 2), randn(16, 2)]
    check_attention("RotaryEmbedding", inputs, num_heads=3, rotary_embedding_dim=4)


@pytest.mark.parametrize("segments", [True, False])
def test_embed_layer_normalization(segments: bool) -> None:
    ids = rng.integers(0, 20, (2, 5)).astype(np.int32)
    kinds = rng.integers(0, 2, (2, 5)).astype(np.int32)
    inputs = [ids, kinds if segments else None, randn(20, 8), randn(9, 8), randn(2, 8) if segments else None]
    check_attention("EmbedLayerNormalization", [*inputs, randn(8), randn(8)], 2, epsilon=1e-5)


def test_embed_layer_normalization_with_positions_and_sum() -> None:
    ids, places = (rng.integers(0, 9, (2, 5)).astype(np.int32) for _ in range(2))
    inputs = [ids, None, randn(20, 8), randn(9, 8), None, randn(8), randn(8), None, places]
    check_attention("EmbedLayerNormalization", inputs, 3, epsilon=1e-5)


@pytest.mark.parametrize("constant", [True, False])
def test_attention_of_fully_masked_query_is_zero(constant: bool) -> None:
    q, k, v = randn(1, 2, 3, 4), randn(1, 2, 2, 4), randn(1, 2, 2, 4)
    mask = np.array([[True, False], [False, False], [True, True]])
    proto = model("Attention", [q, k, v, mask], 1, "")
    feed = {"i0": q, "i1": k, "i2": v, "i3": mask}
    if constant:
        proto.graph.initializer.append(numpy_helper.from_array(feed.pop("i3"), "i3"))
        del proto.graph.input[3]
    (y,) = InferenceSession(proto, fallback="error").run(None, feed)
    np.testing.assert_array_equal(y[0, :, 1], 0)
    np.testing.assert_allclose(y[0, :, 0], v[0, :, 0], rtol=1e-6)


def test_flex_attention_with_sub_graphs_says_so() -> None:
    inner = helper.make_graph(
        [helper.make_node("Identity", ["s"], ["t"])],
        "modify",
        [helper.make_tensor_value_info("s", 1, None)],
        [helper.make_tensor_value_info("t", 1, None)],
    )
    inputs: list[np.ndarray | None] = [randn(1, 2, 3, 4) for _ in range(3)]
    with pytest.raises(NotSupportedError, match="it has sub-graphs"):
        InferenceSession(model("FlexAttention", inputs, 1, "ai.onnx.preview", score_mod=inner), fallback="error")


@pytest.mark.parametrize("length", [1, 4])
def test_attention_of_groups_repeats_no_key(length: int) -> None:
    inputs = [randn(2, 6, length, 8), randn(2, 2, 5, 8), randn(2, 2, 5, 8)]
    check_attention("Attention", [*inputs], domain="")
    session = InferenceSession(model("Attention", [*inputs], 1, ""), fallback="error")
    assert operations(session).count("matmul") == 2
    assert not {"expand", "tile", "concat"} & set(operations(session))
