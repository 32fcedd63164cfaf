"""Transformers exported by PyTorch: an encoder, and the step of a decoder whose cache stays in tensors of the context.

`tools/export_transformers.py` made the models, and what PyTorch computes with them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import wpt

import opweave as ow
from opweave.onnx.session.session import InferenceSession

FOLDER = wpt.DATA / "transformers"


@pytest.mark.parametrize("opset", [17, 18, 23])
@pytest.mark.parametrize("shape", ["1x7", "3x7", "1x5", "2x12"])
def test_transformers_encoder(opset: int, shape: str) -> None:
    session = InferenceSession(FOLDER / f"encoder-{opset}.onnx", fallback="error")
    known = np.load(FOLDER / f"encoder-{opset}.npz")
    feed = {name: known[f"{name} {shape}"] for name in ("ids", "mask")}
    if opset == 17 and not shape.endswith("x7"):  # the older exporter wrote the length into the model
        with pytest.raises(ow.ValidationError, match=r"input 'ids' must have shape \[batch, 7\], got"):
            session.run(None, feed)
        return
    (scores,) = session.run(None, feed)
    np.testing.assert_allclose(scores, known[f"scores {shape}"], rtol=1e-4, atol=1e-5)
    assert not any(
        "fallback" in line for line in session.explain().splitlines()[1:]
    )  # the first one names the argument


@pytest.mark.parametrize("opset", [18, 23])
@pytest.mark.parametrize("kind", ["growing", "fixed"])
def test_transformers_decoder_with_cache_in_tensors(opset: int, kind: str) -> None:
    path = FOLDER / f"decoder-{opset}-{kind}.onnx"
    known = np.load(path.with_suffix(".npz"))
    session = InferenceSession(path, fallback="error", preferred_output_location="ml-tensor")
    caches = [input.name for input in session.get_inputs()[2:]]
    tensors: list[Any] = [session.context.tensor_from(known[name]) for name in caches]
    word = 7
    ow.memory.copies.reset()
    for position, scores in enumerate(known["scores"], 1):
        feed = {"ids": np.array([[word]]), "position": np.array(position), **dict(zip(caches, tensors, strict=True))}
        result, *tensors = session.run(None, feed)
        assert all(isinstance(tensor, ow.MLTensor) for tensor in (result, *tensors))
        np.testing.assert_allclose(result.numpy(), scores, rtol=1e-4, atol=1e-5)
        word = int(result.numpy().argmax())
        assert word == scores.argmax()
    assert position == 6
    assert ow.memory.copies.count == 0
    for name, tensor in zip(caches, tensors, strict=True):
        np.testing.assert_allclose(tensor.numpy(), known[f"new_{name}"], rtol=1e-4, atol=1e-5)
    assert list(session.shapes().values()) == ["compiled"] * (1 if kind == "fixed" else 6)
