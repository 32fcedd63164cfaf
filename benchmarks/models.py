"""One model in one engine, as its users run it: a session of Opweave or of ONNX Runtime, or a graph of `MLGraphBuilder`.

`python -m benchmarks.models ENGINE PATH` loads it in a separate process, runs it once, and prints as JSON the seconds of
loading, the peak memory, and what there was of that after the imports. It imports nothing that the engine does not need.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .measure import Way, peak_mib


def photograph(shape: Any) -> np.ndarray:
    """A picture, random."""
    image: np.ndarray = np.random.default_rng(1).standard_normal(shape, np.float32)
    return image


def opweave(path: Path, context: Any = None) -> tuple[Way, list[np.ndarray]]:
    """A function that runs the model, and the arrays that it writes.

    Args:
        path: the model.
        context: where it runs; default: on the processor, whatever else there is, since the other engine runs there, too.
    """
    import opweave as ow

    session = ow.InferenceSession(path, context or ow.ml.create_context(device="cpu"), fallback="error")
    (input,) = session.get_inputs()
    feed = {input.name: photograph(input.shape)}
    arrays = session.run(None, feed)
    out = {output.name: array for output, array in zip(session.get_outputs(), arrays, strict=True)}
    return lambda: session.run(None, feed, out=out), arrays


def onnxruntime(path: Path) -> tuple[Way, list[np.ndarray]]:
    """The same with ONNX Runtime and IO binding."""
    import onnxruntime

    from .rows import bound

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    (input,) = session.get_inputs()
    feed = {input.name: photograph(input.shape)}
    arrays = [np.array(array) for array in session.run(None, feed)]
    out = {output.name: array for output, array in zip(session.get_outputs(), arrays, strict=True)}
    return bound(session, feed, out), arrays


def builder(path: Path) -> tuple[Way, list[np.ndarray]]:
    """ResNet-50 built from the memory-mapped weights beside `path`."""
    from .resnet50 import built

    return built(path.with_suffix(".npy"))


ENGINES: dict[str, Callable[[Path], tuple[Way, list[np.ndarray]]]] = {
    "opweave": opweave,
    "onnxruntime": onnxruntime,
    "builder": builder,
}


def main(engine: str, path: str) -> None:
    import onnxruntime  # noqa: F401  (Opweave would do it later)

    if engine == "opweave":
        import opweave.onnx.session.session  # noqa: F401
    elif engine == "builder":
        from . import resnet50  # noqa: F401
    imports = peak_mib()
    start = time.perf_counter()
    run, _ = ENGINES[engine](Path(path))
    seconds = time.perf_counter() - start
    run()
    print(json.dumps({"seconds": seconds, "peak_mib": peak_mib(), "imports_mib": imports}))


if __name__ == "__main__":
    main(*sys.argv[1:])
