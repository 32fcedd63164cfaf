"""Make the picture of a page in docs/onnx.md: a transformer with random weights, coloured by time. It takes Chromium.

python tools/draw_page.py docs/images/page.png
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from shutil import which

import numpy as np

import opweave as ow

LAYERS, LENGTH, WIDTH, HEADS = 6, 64, 128, 4
WINDOW = "1200,760"
MATCH = "layer%201/add"
"""The search with which the page begins."""


def encoder() -> ow.MLGraph:
    """Layers of attention and a dense network, whose labels have the names of modules."""
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="cpu", backend="onnxruntime"))
    rng = np.random.default_rng(0)

    def dense(x: ow.MLOperand, inner: int, outer: int, label: str) -> ow.MLOperand:
        weight = builder.constant(rng.standard_normal((inner, outer), np.float32) / inner**0.5)
        return builder.matmul(x, weight, label=label)

    x = builder.input("tokens", "float32", [LENGTH, WIDTH])
    mask = builder.mul(builder.sub(builder.input("mask", "float32", [LENGTH]), 1.0), 1e9, label="mask")
    for layer in range(LAYERS):
        name = f"encoder/layer {layer}"
        query, key, value = (
            builder.transpose(
                builder.reshape(
                    dense(x, WIDTH, WIDTH, f"{name}/attention/{part}"),
                    [LENGTH, HEADS, WIDTH // HEADS],
                    label=f"{name}/attention/heads",
                ),
                permutation=axes,
                label=f"{name}/attention/turn",
            )
            for part, axes in (("query", [1, 0, 2]), ("key", [1, 2, 0]), ("value", [1, 0, 2]))
        )
        scores = builder.matmul(query, key, label=f"{name}/attention/scores")
        masked = builder.add(scores, mask, label=f"{name}/attention/masked")
        share = builder.softmax(masked, 2, label=f"{name}/attention/share")
        mixed = builder.transpose(
            builder.matmul(share, value, label=f"{name}/attention/mix"),
            permutation=[1, 0, 2],
            label=f"{name}/attention/turn",
        )
        joined = builder.reshape(mixed, [LENGTH, WIDTH], label=f"{name}/attention/join")
        sum = builder.add(dense(joined, WIDTH, WIDTH, f"{name}/attention/output"), x, label=f"{name}/add")
        x = builder.layer_normalization(sum, axes=[1], label=f"{name}/norm")
        inner = builder.gelu(dense(x, WIDTH, 4 * WIDTH, f"{name}/dense/up"), label=f"{name}/dense/gelu")
        sum = builder.add(dense(inner, 4 * WIDTH, WIDTH, f"{name}/dense/down"), x, label=f"{name}/dense/add")
        x = builder.layer_normalization(sum, axes=[1], label=f"{name}/dense/norm")
    return builder.build({"states": x})


def main(picture: Path) -> None:
    """Draw the page, and take its picture."""
    browser = which("chromium") or which("google-chrome")
    if browser is None:
        raise SystemExit("Chromium is not installed")
    graph = encoder()
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "page.html")
        graph.draw(page, profile=graph.profile(detail=True))
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={WINDOW}"]
        command = [browser, *options, f"--screenshot={picture.resolve()}", f"{page.as_uri()}#{MATCH}"]
        subprocess.run(command, check=True, capture_output=True, timeout=60)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
