"""Networks with local response normalisation on ONNX Runtime, where loops that Halide compiles run instead of its kernel.

Opweave is pinned to ONNX Runtime, as it is where OpenVINO is not installed. Halide must be.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from .measure import alternate
from .models import ENGINES, opweave
from .rows import Row

NETWORKS = {"bvlc_alexnet": "AlexNet", "inception_v1": "Inception v1", "zfnet512": "ZFNet-512"}


def rows() -> list[Row]:
    import halide  # noqa: F401  (without it there are no loops to measure)

    import opweave as ow
    from tests.support.onnx_architectures import randomise

    found = []
    for name, title in NETWORKS.items():
        with tempfile.TemporaryDirectory() as folder:
            path = randomise(name, Path(folder))
            ours, results = opweave(path, ow.ml.create_context(device="cpu", backend="onnxruntime"))
            theirs, expected = ENGINES["onnxruntime"](path)
            times = alternate({"ours": ours, "theirs": theirs}, seconds=0.4)
            for result, wanted in zip(results, expected, strict=True):
                np.testing.assert_allclose(result, wanted, rtol=1e-3, atol=1e-4 * np.abs(wanted).max())
        what = f"{title}, ONNX, on ONNX Runtime with loops"
        found.append(Row.of(what, "ms", times["ours"], times["theirs"], "ONNX Runtime, bound", "loops"))
    return found
