"""The nine image classifiers of the `onnx` package as ONNX models, in Opweave's session and in ONNX Runtime.

`python -m benchmarks.architectures measure opweave NAME` loads one and runs it in this process, and prints its peak memory,
and what there was of it after the imports, as JSON; likewise with `onnxruntime`.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from .common import Row, alternate, in_process, peak_mib

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


def model(name: str) -> Path:
    """The file of an architecture."""
    spec = find_spec("onnx")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "backend" / "test" / "data" / "light" / f"light_{name}.onnx"


def photograph(shape: Any) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape, np.float32)


def with_opweave(name: str) -> tuple[Callable[[], object], np.ndarray]:
    """A function that runs it, and the array it writes."""
    import opweave as ow

    session = ow.InferenceSession(model(name), fallback="error")
    (input,), (output,) = session.get_inputs(), session.get_outputs()
    feed = {input.name: photograph(input.shape)}
    (array,) = session.run(None, feed)
    out = {output.name: array}
    return lambda: session.run(None, feed, out=out), array


def with_onnxruntime(name: str) -> tuple[Callable[[], object], np.ndarray]:
    """The same with ONNX Runtime and IO binding."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model(name), options, providers=["CPUExecutionProvider"])
    (input,), (output,) = session.get_inputs(), session.get_outputs()
    image = photograph(input.shape)
    (array,) = session.run(None, {input.name: image})
    array = np.array(array)
    binding = session.io_binding()
    binding.bind_ortvalue_input(input.name, onnxruntime.OrtValue.ortvalue_from_numpy(image))
    binding.bind_ortvalue_output(output.name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    return lambda: session.run_with_iobinding(binding), array


ENGINES = {"opweave": with_opweave, "onnxruntime": with_onnxruntime}


def rows() -> list[Row]:
    found = []
    imports: dict[str, list[float]] = {engine: [] for engine in ENGINES}
    for name, title in NAMES.items():
        made = {engine: make(name) for engine, make in ENGINES.items()}
        times = alternate({engine: run for engine, (run, _) in made.items()}, seconds=0.5, title=title)
        assert np.allclose(made["opweave"][1], made["onnxruntime"][1], rtol=1e-3)
        del made
        took = times["opweave"] * 1e3, times["onnxruntime"] * 1e3
        peaks = {}
        for engine in ENGINES:
            reports = [in_process("benchmarks.architectures", "measure", engine, name) for _ in range(3)]
            peaks[engine] = statistics.median(report["peak_mib"] - report["imports_mib"] for report in reports)
            imports[engine] += [report["imports_mib"] for report in reports]
        peak = peaks["opweave"], peaks["onnxruntime"]
        against = "ONNX Runtime, bound"
        found.append(Row(f"{title}, ONNX, run", "ms", *took, against, "<= 1.02x", took[0] <= 1.02 * took[1]))
        what = f"{title}, ONNX, peak memory beyond imports"
        found.append(Row(what, "MiB", *peak, "ONNX Runtime", "<= 1.15x", peak[0] <= 1.15 * peak[1]))
    ours, theirs = (statistics.median(imports[engine]) for engine in ENGINES)
    found.append(Row("imports", "MiB", ours, theirs, "ONNX Runtime", "<= 20 MiB more", ours <= theirs + 20))
    return found


def main(command: str, engine: str, name: str) -> None:
    assert command == "measure", command
    import onnxruntime  # noqa: F401  (Opweave would do it later)

    if engine == "opweave":
        import opweave.onnx.session  # noqa: F401
    imports = peak_mib()
    run, _ = ENGINES[engine](name)
    run()
    print(json.dumps({"peak_mib": peak_mib(), "imports_mib": imports}))


if __name__ == "__main__":
    main(*sys.argv[1:])
