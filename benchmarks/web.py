"""ONNX Runtime Web on `navigator.ml` in Chromium, beside Opweave in Python and WebAssembly; writes a table of docs/web.md.

    npm ci --prefix tests/web
    python -m benchmarks web      # takes three minutes

The page computes each model on WebAssembly in one thread, then on `navigator.ml`; Python and the page compute it alternately.
Chromium runs without a debugger, which would slow it down. Its sessions run for some seconds before their time is taken.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import typer

import opweave as ow
from opweave.serve import Server

from .measure import ROOT, per_call, tell
from .page import DOCS, Table, machine, replace_part, yes

PAGE = DOCS / "web.md"
MODELS = {"squeezenet": "SqueezeNet 1.1", "shufflenet": "ShuffleNet", "resnet50": "ResNet-50"}
SHAPE = [1, 3, 224, 224]
RUNS = 15
TURNS = 3
WARM_UP_SECONDS = 3.0
"""V8 compiles ONNX Runtime Web's own code again while it runs, on the processors that the engine needs: after a session on
WebAssembly, about 11 ms of processor time for each of the first runs on navigator.ml, and 0.2 ms after a hundred."""
MAX_RATIO, MAX_OVERHEAD_MS = 1.1, 3.0
"""The budget: this times what Python takes, and these milliseconds for messages and for ONNX Runtime Web itself."""


def main() -> None:
    """Measure ONNX Runtime Web on navigator.ml, and write the table of docs/web.md."""
    # The tests' modules, which tests import by these names.
    sys.path[:0] = [str(ROOT / "tests" / "web"), str(ROOT / "tests")]
    import libraries
    from browser import Browser, find

    if not libraries.NODE_MODULES.is_dir():
        raise SystemExit("the npm packages are missing: npm ci --prefix tests/web")
    if find() is None:
        raise SystemExit("there is no Chromium: install it, or set CHROMIUM to its path")
    rows = []
    with TemporaryDirectory() as scratch, libraries.site(Path(scratch)) as site, Browser(site) as browser:
        for name, title in MODELS.items():
            tell(title)
            rows.append(row(title, measured(name, Path(scratch), browser)))
    header = [
        "image classifier, ms a run",
        "Python",
        "ONNX Runtime Web on navigator.ml",
        "on WebAssembly",
        "apart",
        "holds",
    ]
    text = f"{Table(header, rows)}\n\nMade by `python -m benchmarks web` on: {machine()}."
    print(text)
    replace_part(PAGE, text, "libraries")


def measured(name: str, folder: Path, browser: Any) -> dict[str, float]:
    """Milliseconds of a run in Python, in a page on navigator.ml and there on WebAssembly; and how far results are apart."""
    import libraries
    import models
    import onnx

    path = models.classifier(name, folder)
    graph = onnx.load(path, load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    (input,) = (value.name for value in graph.input if value.name not in weights)
    session = ow.InferenceSession(path, context=ow.ml.create_context(device="cpu"))
    feed = {input: np.random.default_rng(7).random(SHAPE, np.float32)}
    task = {
        "model": f"/models/{path.name}",
        "inputs": {input: {"type": "float32", "dims": SHAPE}},
        "warmUpSeconds": WARM_UP_SECONDS,
        "runs": RUNS,
    }
    python: list[float] = []
    found: list[dict[str, Any]] = []
    for _ in range(TURNS):
        session.run(None, feed)
        python += [1e3 * per_call(lambda: session.run(None, feed), 1) for _ in range(RUNS)]
        with Server(port=0, origins=[browser.site.url], device="cpu") as server:
            found.append(libraries.visit(browser, server, "onnxruntime_page.mjs", task))
    return {
        "python": median(python),
        "webnn": median(each["milliseconds"]["webnn"] for each in found),
        "wasm": median(each["milliseconds"]["wasm"] for each in found),
        "apart": max(value for each in found for value in each["differences"].values()),
    }


def row(title: str, found: dict[str, float]) -> list[str]:
    """A row of the table."""
    holds = found["webnn"] <= MAX_RATIO * found["python"] + MAX_OVERHEAD_MS
    times = [f"{found[key]:.1f}" for key in ("python", "webnn", "wasm")]
    return [title, *times, f"{found['apart']:.1g}", yes(holds)]


if __name__ == "__main__":
    typer.run(main)
