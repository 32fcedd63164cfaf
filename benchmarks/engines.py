"""The engine that Opweave chooses for a model on a CPU, beside ONNX Runtime and OpenVINO called directly.

`python -m benchmarks engines` measures runs before and after tuning, build times and memory, and writes docs/engines.md.
All compute in float32 with the same threads. Runs alternate, each alone after a pause; build times and memory are those of
separate processes: before tuning beside ONNX Runtime, after it beside the engine that was measured to be the fastest.
These have run a model of one operation in the same way before, so that neither build time has imports in it, nor what an
engine starts once. Peak memory has all of that in it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer

from . import networks
from .measure import RESTS, Parts, Ratio, Way, alternate, elapsed, in_process, peak_mib, tell

SECONDS = 1000
"""No model is begun after this: one takes 25 to 50 s, and the run is to end within 18 minutes."""

GATE = ("Piper voice", "basic-pitch", "PP-OCRv4 det", "PP-OCRv4 rec", "PLCMOS v2", "NSNet2 48 kHz")
"""Models of the gate that are measured besides the image classifiers; the last two are recurrent."""

NETWORKS: dict[str, Callable[[Path], tuple[Path, dict[str, np.ndarray]]]] = {
    "MiniLM-L6, 64 words": networks.minilm,
    "MiniLM-L6 in 8 bits": networks.minilm_int8,
    "ViT-B/16": networks.vision_transformer,
    "U-Net, 256 x 256": networks.unet,
}
"""Networks that no package of the gate contains as ONNX files."""

HEADER = [
    *("model", "chosen", "before tuning", "before tuning, rested", "after tuning", "after tuning, rested"),
    *("ONNX Runtime", "OpenVINO", "build", "memory", "ONNX Runtime, MiB", "OpenVINO, MiB", "holds"),
]

ENGINES = ("onnxruntime", "openvino")
"""The engines that are called directly, as `WAYS` and the header have them."""

OWN = "uncompiled"
"""The table's name for ONNX Runtime on the model as it is."""

ONE = {"x": np.ones(1, np.float32)}
"""The inputs of a model of one operation."""

PAIRS, RESTED_PAIRS, TURNS = 6, 4, 2
"""How often runs are measured in a row, and each after a pause, and processes that build; of these, the least time and memory
count."""

REST = RESTS[-1]
"""Seconds before each run that is measured after a pause: the threads of engines have gone to sleep."""

TUNED, UNTUNED, BUILD, MEMORY = 1.05, 1.15, 1.3, 1.15
"""Budgets: the lower quartile of the time as a multiple of ONNX Runtime's before tuning and of the better engine's after it,
and build time and memory likewise."""


def opweave(path: Path, feed: Mapping[str, np.ndarray]) -> tuple[Way, Any]:
    """A run of the model in Opweave, with shapes fixed to those of the inputs, and the session."""
    import opweave as ow

    shapes = {name: list(array.shape) for name, array in feed.items()}
    session = ow.InferenceSession(path, context=ow.ml.create_context(device="cpu"), fix_shapes=shapes)
    given = dict(feed)
    session.run(None, given)
    return lambda: session.run(None, given), session


def onnxruntime(path: Path, feed: Mapping[str, np.ndarray]) -> tuple[Way, Any]:
    """A run in ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = _threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    session.run(None, dict(feed))
    return lambda: session.run(None, feed), session


def openvino(path: Path, feed: Mapping[str, np.ndarray]) -> tuple[Way, Any]:
    """A run in OpenVINO, on inputs that are bound once."""
    import openvino

    core = _core()
    model = core.read_model(path)
    model.reshape({name: list(array.shape) for name, array in feed.items()})
    options = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": _threads()}
    request = core.compile_model(model, "CPU", options).create_infer_request()
    for name, array in feed.items():
        request.set_tensor(name, openvino.Tensor(array, shared_memory=True))
    request.infer()
    return lambda: request.infer(share_outputs=True), request


WAYS: dict[str, Callable[[Path, Mapping[str, np.ndarray]], tuple[Way, Any]]] = {
    "opweave": opweave,
    "onnxruntime": onnxruntime,
    "openvino": openvino,
}


@cache
def _core() -> Any:
    import openvino

    return openvino.Core()


def _threads() -> int:
    from opweave.support.processors import chosen_threads, processors

    return chosen_threads() or processors()


def models(folder: Path, packages: Path) -> dict[str, Callable[[], tuple[Path, dict[str, np.ndarray]]]]:
    """What makes the file and the inputs of each model, by name."""
    from gate.catalog import entry
    from tests.support.onnx_architectures import randomise

    from .architectures import NAMES
    from .models import photograph

    def classifier(name: str) -> tuple[Path, dict[str, np.ndarray]]:
        import onnx

        path = randomise(name, folder)
        graph = onnx.load(path, load_external_data=False).graph
        given = {tensor.name for tensor in graph.initializer}
        (input,) = (info for info in graph.input if info.name not in given)
        return path, {input.name: photograph([dim.dim_value for dim in input.type.tensor_type.shape.dim])}

    def packaged(name: str) -> tuple[Path, dict[str, np.ndarray]]:
        import onnxruntime

        found = entry(name)
        with found.path(packages) as path:  # raises an error if it is not there
            kept = folder / path.name
            kept.write_bytes(path.read_bytes())
        session = onnxruntime.InferenceSession(kept, providers=["CPUExecutionProvider"])
        return kept, found.feeds({i.name: i.type for i in session.get_inputs()})[0]

    made: dict[str, Callable[[], tuple[Path, dict[str, np.ndarray]]]] = {}
    for name, title in NAMES.items():
        made[title] = lambda name=name: classifier(name)  # type: ignore[misc]
    for name in GATE:
        made[name] = lambda name=name: packaged(name)  # type: ignore[misc]
    for name, write in NETWORKS.items():
        made[name] = lambda write=write: write(folder)  # type: ignore[misc]
    return made


def measured(title: str, path: Path, feed: Mapping[str, np.ndarray]) -> list[str]:
    """The row of a model."""
    feed = {name: np.asarray(array, order="C") for name, array in feed.items()}  # OpenVINO shares no other arrays
    feeds = path.with_suffix(".npz")
    np.savez(feeds, allow_pickle=False, **dict(feed))
    runs = {}
    for name, make in WAYS.items():
        runs[name], made = make(path, feed)
        if name == "opweave":
            session = made
    before = _alternate(runs)
    first = _chosen(session)
    tiny = networks.Network()
    tiny.save(path.with_name("one_operation.onnx"), ONE, tiny("Relu", "x"), [1])
    peaks: dict[str, float] = {}
    builds = [_builds(title, path, feeds, first, peaks)]
    tell(f"{title}: tuning")
    session.tune(inputs=feed)
    chosen = _chosen(session)
    after = _alternate(runs) if chosen != first else before
    del runs, session, made
    # Measured again for the same choice, too: a tuned model is loaded uncompiled without tracing it.
    builds.append(_builds(title, path, feeds, chosen, peaks))
    untuned = [Ratio.of(times["opweave"], times["onnxruntime"]) for times in before]
    tuned = [_ratio(times) for times in after]
    fits = all(build <= BUILD and memory <= MEMORY for build, memory in builds)
    holds = _are_within(untuned, UNTUNED) and _are_within(tuned, TUNED) and fits
    direct = [f"{median(after[0][name]) * 1e3:.3g} ms" for name in ENGINES]
    for name in set(ENGINES) - peaks.keys():
        peaks[name] = min(_build(name, path, feeds, name)["peak_mib"] for _ in range(TURNS))
    choice = chosen if chosen == first else f"{first}, then {chosen}"
    multiples = [", then ".join(f"{value:.2f}x" for value in values) for values in zip(*builds, strict=True)]
    memory = [f"{peaks[name]:.0f}" for name in ENGINES]
    cells = [title, choice, *map(str, [*untuned, *tuned]), *direct, *multiples, *memory, "yes" if holds else "NO"]
    tell("  ".join(cells))
    return cells


def _alternate(runs: Mapping[str, Way]) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """The seconds of runs in a row, and of runs each after a pause."""
    return alternate(runs, pairs=PAIRS, seconds=0.2), alternate(runs, pairs=RESTED_PAIRS, seconds=0.2, rest=REST)


def _are_within(ratios: Sequence[Ratio], limit: float) -> bool:
    return all(ratio.low <= limit for ratio in ratios)


def _build(way: str, path: Path, feeds: Path, chosen: str) -> dict[str, float]:
    """What `alone` measures in a process."""
    return in_process("benchmarks.engines", way, str(path), str(feeds), chosen)


def _builds(title: str, path: Path, feeds: Path, chosen: str, peaks: dict[str, float]) -> tuple[float, float]:
    """The build time and peak memory of Opweave as multiples of those of the engine that it chooses, called directly.

    The peak memory of that engine, in MiB, is added to `peaks`, the least one for each.
    """
    tell(f"{title}: processes that build it on {chosen}")
    engine = "onnxruntime" if chosen == OWN else chosen
    found: dict[str, list[dict[str, float]]] = {"opweave": [], engine: []}
    for _ in range(TURNS):
        for name, values in found.items():
            values.append(_build(name, path, feeds, chosen))
    build, memory = (
        min(each[key] for each in found["opweave"]) / min(each[key] for each in found[engine])
        for key in ("seconds", "peak_mib")
    )
    peak = min(each["peak_mib"] for each in found[engine])
    peaks[engine] = min(peaks.get(engine, peak), peak)
    return build, memory


def _ratio(times: Mapping[str, list[float]]) -> Ratio:
    """Opweave's time as a multiple of that of the better engine."""
    better = min(ENGINES, key=lambda name: median(times[name]))
    return Ratio.of(times["opweave"], times[better])


def _chosen(session: Any) -> str:
    """The engine that runs a session, or `OWN`, from what it says."""
    from opweave.compile.engines import engine_of

    text = session.explain()
    lines = [line for line in text.splitlines() if line.startswith("engine: ")]
    if lines:
        return engine_of(lines[0].removeprefix("engine: "))
    return OWN if "ONNX Runtime, uncompiled" in text else "onnxruntime"


def markdown(rows: list[list[str]], failures: list[str]) -> str:
    """What docs/engines.md says about measurements."""
    from .page import Table, machine, versions

    left_out = "".join(["\n\nNot measured:\n", *(f"\n- {failure}" for failure in failures)]) if failures else ""
    return f"""On: {machine()}; {versions("openvino")}.

{Table(HEADER, rows)}

*Before tuning* everything runs on ONNX Runtime, and the column is Opweave's time as a multiple of that of ONNX Runtime, called
directly. *After tuning* the fastest engine runs the model, and the column is the multiple of the better engine's. All compute
in float32 with the same threads; numbers are the median of pairs, with quartiles. Engines alternate, each alone after a pause,
with runs in a row. *Rested* runs each come after a pause of {REST * 1e3:.0f} ms, in which threads of the engine go to sleep.
*{OWN.capitalize()}* is ONNX Runtime on the model as it is. *Build* is the time to load the model and run it once, in a process
that has run a model of one operation in the same way before. *Memory* is the peak of that process, with all that it imports.
Both are multiples of those of the chosen engine, called directly, before and after tuning. The columns in *MiB* are the peaks
of the two engines themselves, called directly. A row holds if the lower quartiles are at most {UNTUNED}x before tuning and
{TUNED}x after it, each build {BUILD}x, and each memory {MEMORY}x.

MiniLM in 8 bits was quantised by ONNX Runtime's tools on random sentences; the vision transformer and the U-Net have random
weights.{left_out}"""


def main(
    model: Annotated[
        list[str] | None, typer.Option(help="A model of the table. Default: all; then the page is written.")
    ] = None,
    packages: Annotated[Path, typer.Option(help="Where the packages of the gate are (`make models`).")] = Path(
        ".models"
    ),
) -> None:
    """Compare the chosen engine with both engines called directly, and write docs/engines.md."""
    from .page import DOCS, Table, replace_part

    with TemporaryDirectory(prefix="opweave-engines-") as name:
        os.environ["OPWEAVE_CACHE"] = str(Path(name, "cache"))  # nothing is tuned yet
        Path(name, "cache").mkdir(mode=0o700)
        all_models = models(Path(name), packages.resolve())
        if unknown := set(model or ()) - set(all_models):
            raise typer.BadParameter(
                f"there is no model {', '.join(sorted(unknown))}; there are {', '.join(all_models)}"
            )
        rows: list[list[str]] = []
        parts = Parts()
        for title in model or all_models:
            if elapsed() > SECONDS:
                parts.failures.append(f"{title}: not begun after {SECONDS} s")
                continue
            parts.run(title, lambda title=title: rows.append(measured(title, *all_models[title]())))  # type: ignore[misc]
    Table(HEADER, rows).show()
    for failure in parts.failures:
        print(failure, file=sys.stderr)
    if not model:
        replace_part(DOCS / "engines.md", markdown(rows, parts.failures))


def _warm_up(way: str, path: Path, chosen: str) -> None:
    """Run a model of one operation, in Opweave on the chosen engine or in ONNX Runtime, uncompiled."""
    if way != "opweave":
        WAYS[way](path, ONE)
        return
    import opweave as ow

    import_module("opweave.support.disk_cache")  # where a context with a choice of engines looks for measurements
    is_own = chosen == OWN
    context = ow.ml.create_context(device="cpu", backend="onnxruntime" if is_own else chosen)
    session = ow.InferenceSession(path, context=context, specialise="never" if is_own else "recurring")
    session.run(None, dict(ONE))


def alone(way: str, path: str, feeds: str, chosen: str) -> None:
    """Load a model and run it once in this process, and print the seconds and the peak memory as JSON.

    Args:
        way: one of `WAYS`.
        path: the model.
        feeds: its inputs.
        chosen: what Opweave chooses to run it: the package of an engine, or `OWN`.

    Raises:
        RuntimeError: Opweave has chosen another way to run it.
    """
    with np.load(feeds) as archive:
        feed = dict(archive)
    import_module("onnxruntime" if chosen == OWN else chosen)
    _warm_up(way, Path(path).with_name("one_operation.onnx"), chosen)
    start = time.perf_counter()
    _, made = WAYS[way](Path(path), feed)
    figures = {"seconds": time.perf_counter() - start, "peak_mib": peak_mib()}
    if way == "opweave" and (found := _chosen(made)) != chosen:
        raise RuntimeError(f"{path} was to run on {chosen}, and runs on {found}")
    print(json.dumps(figures))


if __name__ == "__main__":
    alone(*sys.argv[1:])
