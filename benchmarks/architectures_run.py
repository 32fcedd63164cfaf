"""One architecture, in Opweave's session or in ONNX Runtime.

`python -m benchmarks.architectures_run opweave PATH` loads it and runs it in this process, and prints its peak memory, and
what there was of it after the imports, as JSON; likewise with `onnxruntime`. It loads nothing that neither of them needs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .peak import peak_mib


def photograph(shape: Any) -> np.ndarray:
    image: np.ndarray = np.random.default_rng(1).standard_normal(shape, np.float32)
    return image


def with_opweave(path: Path) -> tuple[Callable[[], object], list[np.ndarray]]:
    """A function that runs it, and the arrays it writes."""
    import opweave as ow

    # On the processor, whatever else there is: that is what the other engine runs on.
    session = ow.InferenceSession(path, ow.ml.create_context(device="cpu"), fallback="error")
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


def main(engine: str, path: str) -> None:
    import onnxruntime  # noqa: F401  (Opweave would do it later)

    if engine == "opweave":
        import opweave.onnx.session  # noqa: F401
    imports = peak_mib()
    run, _ = ENGINES[engine](Path(path))
    run()
    print(json.dumps({"peak_mib": peak_mib(), "imports_mib": imports}))


if __name__ == "__main__":
    main(*sys.argv[1:])
