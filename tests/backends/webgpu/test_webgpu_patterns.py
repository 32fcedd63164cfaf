"""Attention that a graph has in parts becomes one kernel on GPUs, with the results of the parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.webgpu_device import gpu_context
from support.webgpu_kernels import kernels_of

import opweave as ow
from opweave.backends.gpu import patterns

pytest.importorskip("wgpu", reason="wgpu is not installed")

BATCHES, HEADS, QUERIES, KEYS, SIZE = 2, 3, 5, 7, 4
REFERENCE = ow.ml.create_context(device="reference")

Build = Callable[[Any, Any, Any, Any, Any], Any]
"""Takes a builder, queries [batches, queries, heads * size], keys and values the same, and a mask."""


def heads(b: Any, x: Any, order: list[int]) -> Any:
    return b.transpose(b.reshape(x, [x.shape[0], x.shape[1], HEADS, SIZE]), permutation=order)


def attended(b: Any, q: Any, k: Any, v: Any, change: Callable[[Any], Any], *, axis: int = 3) -> Any:
    scores = change(b.matmul(heads(b, q, [0, 2, 1, 3]), heads(b, k, [0, 2, 3, 1])))
    return b.matmul(b.softmax(scores, axis), heads(b, v, [0, 2, 1, 3]))


def joined(b: Any, x: Any) -> Any:
    return b.reshape(b.transpose(x, permutation=[0, 2, 1, 3]), [BATCHES, QUERIES, HEADS * SIZE])


def as_exporters_write(b: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
    return joined(b, attended(b, q, k, v, lambda s: b.add(b.div(s, b.constant("float32", 2.0)), mask)))


def in_three_axes(b: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
    scores = b.mul(b.constant("float32", 0.5), b.matmul(q, b.transpose(k, permutation=[0, 2, 1])))
    return b.matmul(b.softmax(scores, 2), v)


def chosen(b: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
    seen, low = b.greater(mask, b.constant("float32", -0.3)), b.constant("float32", -1e9)
    return attended(b, q, k, v, lambda s: b.where(seen, b.mul(s, b.constant("float32", 0.5)), low))


def hidden(b: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
    """The first query sees no key."""
    term = np.zeros((QUERIES, KEYS), "float32")
    term[0], term[1, 2:] = -np.inf, -np.inf
    return attended(b, q, k, v, lambda s: b.add(b.constant(term), s))


def without_nan(b: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
    """As PyTorch exports it: the first query sees no key, and a score of the second is NaN; both yield 0."""
    term = np.zeros((QUERIES, KEYS), "float32")
    term[0], term[1, 2], term[2, 2:] = -np.inf, np.nan, -np.inf
    scores = b.matmul(heads(b, q, [0, 2, 1, 3]), heads(b, k, [0, 2, 3, 1]))
    weights = b.softmax(b.add(scores, b.constant(term)), 3)
    weights = b.where(b.is_nan(weights), b.constant("float32", 0.0), weights)
    return joined(b, b.matmul(weights, heads(b, v, [0, 2, 1, 3])))


def with_another_number(b: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
    """Weights that are NaN become 1: no fused kernel gives that."""
    weights = b.softmax(b.matmul(heads(b, q, [0, 2, 1, 3]), heads(b, k, [0, 2, 3, 1])), 3)
    weights = b.where(b.is_nan(weights), b.constant("float32", 1.0), weights)
    return b.matmul(weights, heads(b, v, [0, 2, 1, 3]))


def read_twice(b: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
    kept = []

    def keep(scores: Any) -> Any:
        kept.append(scores)
        return scores

    y = attended(b, q, k, v, keep)
    return b.add(y, b.reduce_sum(kept[0], axes=[3], keep_dimensions=True))


def over_another_axis(b: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
    return attended(b, q, k, v, lambda s: s, axis=2)


def results(context: ow.MLContext, build: Build, data_type: Any) -> tuple[np.ndarray, list[str]]:
    """What a graph yields, and the titles of its kernels on a GPU."""
    generator, builder = np.random.default_rng(0), ow.MLGraphBuilder(context)
    shapes = {name: [BATCHES, count, HEADS * SIZE] for name, count in (("q", QUERIES), ("k", KEYS), ("v", KEYS))}
    shapes["mask"] = [BATCHES, 1, 1, KEYS]
    feeds = {name: generator.standard_normal(shape).astype(data_type) for name, shape in shapes.items()}
    operands = {name: builder.input(name, data_type, array.shape) for name, array in feeds.items()}
    graph = builder.build({"y": build(builder, *operands.values())})
    kernels = [] if context is REFERENCE else [kernel.title for kernel in kernels_of(graph)]
    return context.compute(graph, {name: feeds[name] for name in graph.inputs})["y"], kernels


def is_whole(kernels: list[str]) -> bool:
    """Whether one kernel is the attention, and none is a part of it."""
    return kernels.count("attention") == 1 and not any("matmul" in title or "softmax" in title for title in kernels)


@pytest.mark.parametrize("build", [as_exporters_write, in_three_axes, chosen, hidden, without_nan])
def test_parts_become_one_kernel(build: Build) -> None:
    found, kernels = results(gpu_context(), build, "float32")
    assert is_whole(kernels), kernels
    np.testing.assert_allclose(found, results(REFERENCE, build, "float32")[0], rtol=2e-5, atol=2e-6)


def test_half_precision() -> None:
    def build(b: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
        return attended(b, q, k, v, lambda s: b.add(s, mask))

    found, kernels = results(gpu_context(), build, "float16")
    assert is_whole(kernels), kernels
    np.testing.assert_allclose(found, results(REFERENCE, build, "float16")[0], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("build", [read_twice, over_another_axis, with_another_number])
def test_non_attention_is_not_fused(build: Build) -> None:
    found, kernels = results(gpu_context(), build, "float32")
    assert "attention" not in kernels
    np.testing.assert_allclose(found, results(REFERENCE, build, "float32")[0], rtol=2e-5, atol=2e-5)


def test_much_work_stays_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrix products have faster kernels."""
    work = 4 * BATCHES * HEADS * QUERIES * KEYS * SIZE
    monkeypatch.setattr(patterns, "MAX_OPERATIONS", work)
    assert is_whole(results(gpu_context(), as_exporters_write, "float32")[1])
    monkeypatch.setattr(patterns, "MAX_OPERATIONS", work - 1)
    assert "attention" not in results(gpu_context(), as_exporters_write, "float32")[1]
