"""How many kernels graphs take on WebGPU devices. These numbers should not grow: each kernel costs time to launch, and reads
and writes its operands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.webgpu_device import gpu_context
from support.webgpu_kernels import kernel_count

import opweave as ow
from benchmarks.decode_step import Sizes, step
from opweave import composites as c

pytest.importorskip("wgpu", reason="wgpu is not installed")

Build = Callable[[ow.MLGraphBuilder, Callable[..., Any]], Any]


def attention(b: Any, x: Callable[..., Any], queries: int, keys: int) -> Any:
    q, k, v = (x(1, 4, count, 16) for count in (queries, keys, keys))
    return c.scaled_dot_product_attention(b, q, k, v, causal=True)


def cached(b: Any, x: Callable[..., Any], new: int) -> Any:
    heads = [x(1, new, count * 16) for count in (4, 2, 2)]
    lengths, tables = b.input("lengths", "int32", [1]), [x(300, 8) for _ in range(2)]
    return c.group_query_attention(b, *heads, *(x(1, 2, 300, 16) for _ in "kv"), lengths, *tables, heads=4, groups=2)


def rms_in_parts(b: Any, x: Any, scale: Any) -> Any:
    """As PyTorch exports it."""
    mean = b.reduce_mean(b.pow(x, b.constant(x.data_type, 2)), axes=[1], keep_dimensions=True)
    return x * b.reciprocal(b.sqrt(mean + b.constant(x.data_type, 1e-3))) * scale


def layer_in_parts(b: Any, x: Any, scale: Any, bias: Any) -> Any:
    centred = x - b.reduce_mean(x, axes=[1], keep_dimensions=True)
    variance = b.reduce_mean(centred * centred, axes=[1], keep_dimensions=True)
    return centred / b.sqrt(variance + b.constant(x.data_type, 1e-3)) * scale + bias


def parts_as_heads(b: Any, x: Any) -> Any:
    """Queries and keys that one product has computed: heads in an axis of their own, and halves that change places."""
    query, key = (b.reshape(part, [2, 9, 4, 12]) for part in b.split(x, 2, axis=2))
    halves = b.split(query, 2, axis=3)
    return b.transpose(query * 2 + b.concat([b.neg(halves[1]), halves[0]], 3), permutation=[0, 2, 1, 3]), key * 3


def softmax_in_parts(b: Any, x: Any) -> Any:
    e = b.exp(x - b.reduce_max(x, axes=[1], keep_dimensions=True))
    return e / b.reduce_sum(e, axes=[1], keep_dimensions=True)


COUNTS: dict[str, tuple[int, Build]] = {
    "softmax": (1, lambda b, x: b.softmax(x(9, 64), 1)),
    "softmax, scaled and masked": (1, lambda b, x: b.softmax(x(2, 9, 64) * 0.5 + x(9, 64), 2) * 2),
    "log_softmax": (1, lambda b, x: c.log_softmax(b, x(9, 64))),
    "layer_normalization": (
        1,
        lambda b, x: b.layer_normalization(x(9, 64) + x(9, 64), axes=[1], scale=x(64), bias=x(64)).relu(),
    ),
    "rms_normalization": (1, lambda b, x: c.rms_normalization(b, x(9, 64) + x(9, 64), x(64)) * x(9, 64)),
    "rms_normalization, spelled out": (1, lambda b, x: rms_in_parts(b, x(9, 64), x(64))),
    "layer_normalization, spelled out": (2, lambda b, x: layer_in_parts(b, x(9, 64), x(64), x(64))),
    "softmax, spelled out": (2, lambda b, x: softmax_in_parts(b, x(9, 64))),
    "a normalisation of groups": (2, lambda b, x: c.group_normalization(b, x(3, 4, 1), x(4), groups=2)),
    "a mean that each column reads": (
        2,
        lambda b, x: (y := x(9, 64)) * b.reduce_mean(y, axes=[0], keep_dimensions=True),
    ),
    "parts of a row, as heads": (2, lambda b, x: parts_as_heads(b, x(2, 9, 96))),
    "instance_normalization": (1, lambda b, x: b.instance_normalization(x(1, 4, 9, 9) * 2).relu()),
    "a residual and its normalisation": (2, lambda b, x: c.skip_rms_norm(b, x(9, 64), x(9, 64), x(64))),
    "rotary_embedding": (1, lambda b, x: c.rotary_embedding(b, x(1, 9, 64), x(9, 8), x(9, 8), heads=4)),
    "attention of many queries": (1, lambda b, x: attention(b, x, 200, 200)),
    "attention of one query": (2, lambda b, x: attention(b, x, 1, 200)),
    "attention with a past": (4, lambda b, x: cached(b, x, 1)),
    "attention with a past, several tokens": (5, lambda b, x: cached(b, x, 20)),
    "gru": (3, lambda b, x: b.gru(x(64, 1, 8), x(1, 24, 8), x(1, 24, 8), 64, 8)),
    "lstm": (3, lambda b, x: b.lstm(x(64, 1, 8), x(1, 32, 8), x(1, 32, 8), 64, 8)),
}


@pytest.mark.parametrize("data_type", ["float32", "float16"])
@pytest.mark.parametrize("name", COUNTS)
def test_kernels_of_an_operation(name: str, data_type: Any) -> None:
    count, build = COUNTS[name]
    builder = ow.MLGraphBuilder(gpu_context())
    names = iter(range(20))
    made = build(builder, lambda *shape: builder.input(f"x{next(names)}", data_type, shape))
    results = made if isinstance(made, tuple) else (made,)
    assert kernel_count(builder.build({f"y{k}": result for k, result in enumerate(results)})) == count


def test_kernels_of_a_token() -> None:
    """A normalisation is part of the products after it: those of queries, keys and values, and those of the gate and what it
    multiplies. Past keys and values are in place when the graph runs, so each layer runs two kernels less.
    """
    sizes = Sizes(layers=2, hidden=64, heads=4, groups=2, size=16, inner=128, past=255)
    builder = ow.MLGraphBuilder(gpu_context())
    graph = builder.build(step(builder, sizes, lambda name, shape: builder.input(name, sizes.data_type, shape)))
    assert kernel_count(graph) == 2 * 8
