"""The image classifiers of the `onnx` package run wholly on WebNN graphs, and compute what ONNX Runtime computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from support.onnx_architectures import NAMES, light, randomise

from opweave import memory
from opweave.onnx.session.session import InferenceSession


def _in_onnxruntime(path: Path, name: str, image: np.ndarray) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    found: list[np.ndarray] = session.run(None, {name: image})
    return found


LARGER = {"vgg19": "bvlc_alexnet", "zfnet512": "bvlc_alexnet"}
"""Architectures whose operators are all in a smaller one. Their weights take 575 and 350 MB."""


def rows() -> list[Any]:
    return [pytest.param(n, marks=pytest.mark.covers() if n in LARGER else ()) for n in NAMES]


def test_larger_architectures_have_no_own_operators() -> None:
    operators = {name: {node.op_type for node in onnx.load(light(name)).graph.node} for name in NAMES}
    assert [large for large, small in LARGER.items() if not operators[large] <= operators[small]] == []


@pytest.mark.long(rows=2)
@pytest.mark.parametrize("name", rows())
def test_random_weights(name: str, tmp_path: Path) -> None:
    path = randomise(name, tmp_path)
    session = InferenceSession(path, fallback="error")
    (input,) = session.get_inputs()
    image = np.random.default_rng(1).standard_normal(input.shape, np.float32)
    before = memory.copies.bytes
    got = session.run(None, {input.name: image})
    assert memory.copies.bytes == before
    wanted = _in_onnxruntime(path, input.name, image)
    assert len(np.unique(wanted[-1])) > 500  # the weights tell classes apart
    for ours, theirs in zip(got, wanted, strict=True):
        assert np.isfinite(theirs).all()
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5 * np.abs(theirs).max())


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("name", ["shufflenet", "densenet121"])
def test_generated_weights(name: str) -> None:
    session = InferenceSession(light(name), fallback="error")
    (input,) = session.get_inputs()
    image = np.random.default_rng(2).standard_normal(input.shape, np.float32)
    (got,) = session.run(None, {input.name: image})
    (wanted,) = _in_onnxruntime(light(name), input.name, image)
    np.testing.assert_allclose(got, wanted, rtol=1e-4)
