"""Attention on OpenVINO, in child processes: a pass of the engine ended the process at element-wise operations after it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import opweave as ow

BATCHES, LENGTH, WIDTH = 2, 9, 32


def parts(b: Any, q: Any, k: Any, v: Any) -> Any:
    """Attention by its parts, without a scale."""
    return b.matmul(b.softmax(b.matmul(q, b.transpose(k, permutation=[0, 2, 1])), 2), v)


def whole(b: Any, q: Any, k: Any, v: Any, causal: bool = False) -> Any:
    """Attention of one head by one operation."""
    shape = [BATCHES, 1, LENGTH, WIDTH]
    query, key, value = (b.reshape(each, shape) for each in (q, k, v))
    y = ow.composites.scaled_dot_product_attention(query, key, value, causal=causal)
    return b.reshape(y, [BATCHES, LENGTH, WIDTH])


def encoder(b: Any, x: Any, attention: Any, layers: int) -> Any:
    """Layers of attention and two products, both with residuals."""
    rng = np.random.default_rng(0)
    sizes = [(WIDTH, WIDTH)] * 3 + [(WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)]
    for _ in range(layers):
        *projections, up, down = (b.constant((rng.standard_normal(s) * 0.1).astype(x.data_type)) for s in sizes)
        x = x + attention(b, *(b.matmul(x, matrix) for matrix in projections))
        x = x + b.matmul(b.relu(b.matmul(x, up)), down)
    return x


def clamped(b: Any, y: Any) -> Any:
    return b.clamp(y, min_value=-6, max_value=6)


CASES: dict[str, Any] = {
    **{f"encoder of {n} layers": lambda b, x, m, n=n: encoder(b, x, parts, n) for n in (2, 4, 12)},
    "encoder with whole attention": lambda b, x, m: encoder(b, x, whole, 4),
    "clamp of where": lambda b, x, m: clamped(b, b.where(m, whole(b, x, x, x), b.neg(x))),
    "clamp of where, other branch": lambda b, x, m: clamped(b, b.where(m, b.neg(x), whole(b, x, x, x, causal=True))),
    "max of where": lambda b, x, m: b.max(b.where(m, parts(b, x, x, x), x * 2.0), 0.5),
    "two readers": lambda b, x, m: b.exp(b.where(m, parts(b, x, x, x), x)) + b.sigmoid(parts(b, x, x, x) + x),
}


def compare(name: str, data_type: Any) -> None:
    """Compare a case on OpenVINO with the reference."""
    rng = np.random.default_rng(1)
    shape = (BATCHES, LENGTH, WIDTH)
    feed = {"x": (rng.standard_normal(shape) * 0.5).astype(data_type), "m": rng.integers(0, 2, shape).astype(np.uint8)}
    results = []
    for context in (ow.ml.create_context(backend="openvino", device="cpu"), ow.ml.create_context(device="reference")):
        b = ow.MLGraphBuilder(context)
        x, m = b.input("x", data_type, shape), b.input("m", "uint8", shape)
        y = b.where(m, CASES[name](b, x, m), x)
        results.append(context.compute(b.build({"y": y}), feed)["y"])
    tolerance = 1e-3 if data_type == "float32" else 0.05
    np.testing.assert_allclose(*results, rtol=tolerance, atol=tolerance * np.abs(results[1]).max())


ROWS = [*((name, "float32") for name in CASES), ("clamp of where", "float16")]


@pytest.mark.long
def test_element_wise_operations_after_attention() -> None:
    pytest.importorskip("openvino", reason="openvino is not installed")
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr[-2000:])
    assert len(done.stdout.splitlines()) == len(ROWS)


if __name__ == "__main__":
    for row in ROWS:
        print(*row, flush=True)  # the last one has ended the process
        compare(*row)
