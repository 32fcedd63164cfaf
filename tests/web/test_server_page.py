"""The page of `opweave deploy` in Chromium, on a wide screen and a phone: models, pictures, files, language models."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import browser as browsers
import numpy as np
import onnx.parser
import pytest
from libraries import HERE, NODE_MODULES, missing
from PIL import Image
from support import node_js, tiny_models

import opweave as ow
from opweave.chat import GGUF, Decoder, Model, Vocabulary
from opweave.deploy import ModelServer

MODELS = {
    "enlarge": """g (float[1, 3, height, width] x) => (float[1, 3, h, w] enlarged) <float[4] scales = {1.0, 1.0, 2.0, 2.0}> {
        enlarged = Resize<mode="nearest">(x, , scales) }""",
    "two": """g (float16[n, 2] a, int64[n] b) => (float16[n, 2] half, int64[n] whole, bool[n, 2] flag, double[] nothing) {
        half = Neg(a) whole = Neg(b) flag = Greater(a, half) wide = Cast<to = 11>(a)
        nothing = ReduceSum<keepdims = 0>(wide) }""",
    "texts": "g (string[2] x) => (string[2] y) { y = Identity(x) }",
    "large": """g (float[n, 3, height, width] x) => (float[n, 3, h, w] y) {
        y = AveragePool<kernel_shape=[50, 50], strides=[7, 7]>(x) }""",
    "a-long-name-of-a-model-as-programs-that-train-them-write-it-2026-11-30": "g (float[2] x) => (float[2] y) { y = Relu(x) }",
}  # fmt: skip


def model(text: str) -> bytes:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}').SerializeToString()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServer]:
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    tiny_models.write(path)
    file = GGUF(path)
    chats = {"tiny": (Decoder(Model(file), ow.ml.create_context(device="cpu"), 120), Vocabulary(file))}
    models = {name: model(text) for name, text in MODELS.items()}
    defaults = {"max_tokens": 12, "temperature": 0}
    with ModelServer(models, language_models=chats, defaults=defaults, threads=1) as running:
        yield running


def test_page_of_a_server(server: ModelServer, tmp_path: Path) -> None:
    executable = browsers.find()
    if executable is None:
        missing("there is no Chromium: install it, or set CHROMIUM to its path")
    if not (NODE_MODULES / "playwright-core").exists():
        missing("playwright-core is not installed: npm ci --prefix tests/web")
    node_js.need()
    pixels = np.zeros((9, 12, 3), np.uint8)
    pixels[0, 0] = 255, 128, 3
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    (tmp_path / "small.png").write_bytes(file.getvalue())
    np.savez(tmp_path / "two.npz", a=np.float16([[1, -2.5], [np.nan, 65504]]), b=np.array([3, -(2**62)]))
    paths = [str(tmp_path / name) for name in ("small.png", "two.npz")]
    seen = json.loads(node_js.run([str(HERE / "server_page.mjs"), f"{server.url}/", executable, *paths]))

    assert seen["status"] == "5 models, and 1 language model, for clients of OpenAI's API at /v1"
    assert seen["titles"] == seen["contents"] == ["tiny", *MODELS]
    assert not seen["before"], "options of pictures without a picture"
    labels = [label.partition(" ")[0] for label in seen["after"]]
    assert labels == ["scale", "mean", "std", "order", "fit", "width", "height"]
    assert seen["enlarged"].startswith("enlarged: FP32 [1, 3, 18, 24], largest value 1 at [0, 0, 0, 0]\n1 1 0 0")
    assert seen["captions"] == ["small.png", "enlarged, 24 × 18"]
    assert seen["corner"] == [255, 128, 3, 255]
    assert seen["wrongOption"] == "error: mean must be one finite number, or 3 separated by commas, got '1,2'"
    assert seen["zeros"].startswith("enlarged: FP32 [1, 3, 2, 2]")
    assert seen["drawing"]
    assert seen["accepts"] == ["image/png,image/jpeg,.npy,.npz", ".npz"]
    assert seen["two"].split("\n\n") == [
        "half: FP16 [2, 2], largest value 2.5 at [0, 1], 1 NaN\n-1 2.5 NaN -65504",
        "whole: INT64 [2], largest value 4611686018427387904 at [1]\n-3 4611686018427387904",
        "flag: BOOL [2, 2]\n[true,false,false,true]",
        "nothing: FP64 []\nNaN",
    ]
    assert seen["texts"] == 'y: BYTES [2]\n["",""]'
    assert seen["large"].startswith("y: FP32 [1, 3, 3, 3]"), "sizes of dynamic dimensions are tried"
    assert seen["talk"][0] == "hi <b>you</b>"
    assert len(seen["talk"]) == 2
    assert seen["talk"][1]
    assert "the prompt must have 1 to 119 tokens" in seen["tooLong"]
    assert seen["kept"] == [400, 2]
    assert seen["emptied"] == 0
    for width, report in seen["sizes"].items():
        assert report == {"wide": [], "small": [], "size": int(width), "problems": []}
