"""The nine image classifiers of the `onnx` package as ONNX models, in Opweave's session and in ONNX Runtime.

They get random weights, as external data: with those of the package, which are all one number, both engines find equal
convolutions and leave some out. Peak memory is that of a process that does nothing else, with all that it imports.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

import numpy as np

from .architectures_run import ENGINES
from .common import Row, alternate, at_most, in_process

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

PROCESSES = 3
"""So many processes each are asked for their peak memory, after one more that compiles what it imports."""


def rows() -> list[Row]:
    from tests.onnx_architectures import randomise

    found = []
    imports: dict[str, list[float]] = {engine: [] for engine in ENGINES}
    for name, title in NAMES.items():
        with tempfile.TemporaryDirectory() as folder:
            path = randomise(name, Path(folder))
            made = {engine: make(path) for engine, make in ENGINES.items()}
            times = alternate({engine: run for engine, (run, _) in made.items()}, rounds=15, seconds=0.4, title=title)
            for ours, theirs in zip(made["opweave"][1], made["onnxruntime"][1], strict=True):
                assert np.allclose(ours, theirs, rtol=1e-3, atol=1e-4 * np.abs(theirs).max())
            del made
            peaks = {}
            for engine in ENGINES:
                reports = [in_process("benchmarks.architectures_run", engine, str(path)) for _ in range(PROCESSES + 1)]
                peaks[engine] = statistics.median(report["peak_mib"] for report in reports[1:])
                imports[engine] += [report["imports_mib"] for report in reports[1:]]
        took = times["opweave"] * 1e3, times["onnxruntime"] * 1e3
        peak = peaks["opweave"], peaks["onnxruntime"]
        against = "ONNX Runtime, bound"
        found.append(Row(f"{title}, ONNX, run", "ms", *took, against, "<= 1.02x", at_most(*took, 1.02)))
        what = f"{title}, ONNX, peak memory with imports"
        found.append(Row(what, "MiB", *peak, "ONNX Runtime", "<= 1.15x", at_most(*peak, 1.15)))
    ow, ort = (statistics.median(imports[engine]) for engine in ENGINES)
    found.append(Row("imports for ONNX", "MiB", ow, ort, "ONNX Runtime", "<= 10 MiB more", ow <= ort + 10))
    return found
