"""The nine image classifiers of the `onnx` package as ONNX models, in Opweave's session and in ONNX Runtime.

They get random weights, as external data: with those of the package, which are all one number, both engines find equal
convolutions and leave some out.

`python -m benchmarks.architectures measure opweave PATH` loads one and runs it in this process, and prints its peak memory,
and what there was of it after the imports, as JSON; likewise with `onnxruntime`.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .common import Row, alternate, at_most, in_process, peak_mib

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


def photograph(shape: Any) -> np.ndarray:
    image: np.ndarray = np.random.default_rng(1).standard_normal(shape, np.float32)
    return image


def with_opweave(path: Path) -> tuple[Callable[[], object], list[np.ndarray]]:
    """A function that runs it, and the arrays it writes."""
    import opweave as ow

    session = ow.InferenceSession(path, fallback="error")
    (input,) = session.get_inputs()
    feed = {input.name: photograph(input.shape)}
    arrays = session.run(None, feed)
    out = {output.name: array for output, array in zip(session.get_outputs(), arrays, strict=True)}
    return lambda: session.run(None, feed, out=out), arrays


def with_onnxruntime(path: Path) -> tuple[Callable[[], object], list[np.ndarray]]:
    """The same with ONNX Runtime and IO binding."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    (input,) = session.get_inputs()
    image = photograph(input.shape)
    arrays = [np.array(array) for array in session.run(None, {input.name: image})]
    binding = session.io_binding()
    binding.bind_ortvalue_input(input.name, onnxruntime.OrtValue.ortvalue_from_numpy(image))
    for output, array in zip(session.get_outputs(), arrays, strict=True):
        binding.bind_ortvalue_output(output.name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    return lambda: session.run_with_iobinding(binding), arrays


ENGINES = {"opweave": with_opweave, "onnxruntime": with_onnxruntime}


def rows() -> list[Row]:
    from tests.onnx_architectures import randomise

    found = []
    imports: dict[str, list[float]] = {engine: [] for engine in ENGINES}
    for name, title in NAMES.items():
        with tempfile.TemporaryDirectory() as folder:
            path = randomise(name, Path(folder))
            made = {engine: make(path) for engine, make in ENGINES.items()}
            times = alternate({engine: run for engine, (run, _) in made.items()}, seconds=0.5, title=title)
            for ours, theirs in zip(made["opweave"][1], made["onnxruntime"][1], strict=True):
                assert np.allclose(ours, theirs, rtol=1e-3, atol=1e-4 * np.abs(theirs).max())
            del made
            peaks = {}
            for engine in ENGINES:
                reports = [in_process("benchmarks.architectures", "measure", engine, str(path)) for _ in range(3)]
                peaks[engine] = statistics.median(report["peak_mib"] - report["imports_mib"] for report in reports)
                imports[engine] += [report["imports_mib"] for report in reports]
        took = times["opweave"] * 1e3, times["onnxruntime"] * 1e3
        peak = peaks["opweave"], peaks["onnxruntime"]
        against = "ONNX Runtime, bound"
        found.append(Row(f"{title}, ONNX, run", "ms", *took, against, "<= 1.02x", at_most(*took, 1.02)))
        what = f"{title}, ONNX, peak memory beyond imports"
        found.append(Row(what, "MiB", *peak, "ONNX Runtime", "<= 1.15x", at_most(*peak, 1.15)))
    ow, ort = (statistics.median(imports[engine]) for engine in ENGINES)
    found.append(Row("imports for ONNX", "MiB", ow, ort, "ONNX Runtime", "<= 20 MiB more", ow <= ort + 20))
    return found


def main(command: str, engine: str, path: str) -> None:
    assert command == "measure", command
    import onnxruntime  # noqa: F401  (Opweave would do it later)

    if engine == "opweave":
        import opweave.onnx.session  # noqa: F401
    imports = peak_mib()
    run, _ = ENGINES[engine](Path(path))
    run()
    print(json.dumps({"peak_mib": peak_mib(), "imports_mib": imports}))


if __name__ == "__main__":
    main(*sys.argv[1:])
