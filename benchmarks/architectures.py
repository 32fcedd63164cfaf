"""The nine image classifiers of the `onnx` package as ONNX models, in Opweave's session and in ONNX Runtime.

They get random weights, as external data: with those of the package, which are all one number, both engines find equal
convolutions and leave some out. Peak memory is that of a process that does nothing else, with all that it imports.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from .measure import RESTS, alternate, processes
from .models import ENGINES
from .rows import Row

NAMES = {
    "bvlc_alexnet": "AlexNet",
    "densenet121": "DenseNet-121",
    "inception_v1": "Inception v1",
    "inception_v2": "Inception v2",
    "resnet50": "ResNet-50",
    "shufflenet": "ShuffleNet",
    "squeezenet": "SqueezeNet",
    "vgg19": "VGG-19",
    "zfnet512": "ZFNet-512",
}

RESTED_PAIRS = 6
"""How often runs are measured that each come after a pause."""


def rows() -> list[Row]:
    from tests.support.onnx_architectures import randomise

    found = []
    imports: dict[str, list[float]] = {"opweave": [], "onnxruntime": []}
    for name, title in NAMES.items():
        with tempfile.TemporaryDirectory() as folder:
            path = randomise(name, Path(folder))
            made = {engine: ENGINES[engine](path) for engine in imports}
            ways = {engine: run for engine, (run, _) in made.items()}
            times = alternate(ways, seconds=0.4)
            rested = {rest: alternate(ways, pairs=RESTED_PAIRS, rest=rest) for rest in RESTS if rest}
            for ours, theirs in zip(made["opweave"][1], made["onnxruntime"][1], strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4 * np.abs(theirs).max())
            del made, ways
            asked = processes("benchmarks.models", {engine: (engine, str(path)) for engine in imports}, turns=3)
        peaks = asked["opweave"]["peak_mib"], asked["onnxruntime"]["peak_mib"]
        both = times["opweave"], times["onnxruntime"]
        found.append(Row.of(f"{title}, ONNX, run", "ms", *both, "ONNX Runtime, bound", "net"))
        for rest, each in rested.items():
            both = each["opweave"], each["onnxruntime"]
            what = f"{title}, ONNX, run after {rest * 1e3:.0f} ms"
            found.append(Row.of(what, "ms", *both, "ONNX Runtime, bound", "net"))
        found.append(Row.of(f"{title}, ONNX, peak memory with imports", "MiB", *peaks, "ONNX Runtime", "memory"))
        for engine, values in imports.items():
            values += asked[engine]["imports_mib"]
    both = imports["opweave"], imports["onnxruntime"]
    return [*found, Row.of("imports for ONNX", "MiB", *both, "ONNX Runtime", "imports for ONNX")]
