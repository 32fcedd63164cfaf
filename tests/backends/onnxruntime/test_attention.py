"""How GroupQueryAttention is written for ONNX Runtime, which has two kernels for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opweave as ow
from opweave import composites
from opweave.backends.onnxruntime import ort
from opweave.backends.onnxruntime.rules import attention
from opweave.core.graph import Graph

HEADS, GROUPS, SIZE, ROOM = 4, 2, 16, 100
RANDOM = np.random.default_rng(1)


@pytest.fixture(autouse=True)
def _two_wide_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written depends on the machine."""
    monkeypatch.setattr(attention, "IS_X86", True)
    monkeypatch.setattr(attention, "processors", lambda: 2)


def layer(b: ow.MLGraphBuilder, new: int, data_type: Any = "float32", **more: Any) -> dict[str, ow.MLOperand]:
    q = b.input("q", data_type, [1, new, HEADS * SIZE])
    k, v = (b.input(name, data_type, [1, new, GROUPS * SIZE]) for name in "kv")
    past = [b.input(name, data_type, [1, GROUPS, ROOM, SIZE]) for name in ("keys", "values")]
    lengths = b.input("lengths", "int32", [1])
    outputs = composites.group_query_attention(q, k, v, *past, lengths, heads=HEADS, groups=GROUPS, **more)
    return dict(zip(("y", "new keys", "new values"), outputs, strict=True))


def takes_products(new: int, data_type: Any = "float32", **more: Any) -> bool:
    """Whether the layer is written so that the engine takes its kernel of matrix products, for which the query is scaled."""
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="cpu"))
    ctx, _, _ = ort.emit_graph(Graph.reaching(layer(builder, new, data_type, **more)))
    (kernel,) = (node for node in ctx.nodes if node.op_type == "GroupQueryAttention")
    scaled = [node.op_type for node in ctx.nodes].count("Mul") == 1
    assert scaled == (len(kernel.inputs) == 12)  # the last of which are the sinks
    return scaled


def test_attention_uses_products_where_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    assert takes_products(1)
    assert takes_products(65)
    monkeypatch.setattr(attention, "MAX_SCORES_OF_PRODUCTS", HEADS * ROOM * 64)
    assert takes_products(64)
    assert not takes_products(65)
    assert not takes_products(1, window=8)
    assert not takes_products(1, "float16")
    monkeypatch.setattr(attention, "processors", lambda: HEADS + 1)  # the other kernel shares a head among threads
    assert not takes_products(1)
    monkeypatch.setattr(attention, "processors", lambda: 2)
    monkeypatch.setattr(attention, "IS_X86", False)
    assert not takes_products(1)


@pytest.mark.parametrize("new", [1, 3, 65])
@pytest.mark.parametrize("most", [0, 2**24], ids=["other", "products"])
@pytest.mark.parametrize(
    "more", [{}, {"scale": 0.3}, {"softcap": 2.0}, {"sinks": True}], ids=["", "scale", "cap", "sinks"]
)
def test_attention_kernels_agree_with_decomposition(
    most: int, new: int, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "MAX_SCORES_OF_PRODUCTS", most)
    if "sinks" in more:
        more = {"sinks": RANDOM.standard_normal(HEADS).astype("float32")}
    length = 30
    shapes = {"q": (1, new, HEADS * SIZE), "k": (1, new, GROUPS * SIZE), "v": (1, new, GROUPS * SIZE)}
    shapes |= dict.fromkeys(("keys", "values"), (1, GROUPS, ROOM, SIZE))
    given: dict[str, Any] = {name: RANDOM.standard_normal(shape).astype("float32") for name, shape in shapes.items()}
    given["lengths"] = np.int32([length])
    results = []
    for device in ("cpu", "reference"):
        context = ow.ml.create_context(device=device)
        builder = ow.MLGraphBuilder(context)
        results.append(context.compute(builder.build(layer(builder, new, **more)), given))
    found, wanted = results
    for name, array in found.items():
        valid = np.s_[..., : length + new, :]  # of keys and values
        np.testing.assert_allclose(array[valid], wanted[name][valid], rtol=1e-4, atol=1e-5)
