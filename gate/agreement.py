"""Whether models on `auto` agree with ONNX Runtime, before and after `tune`, and whether the rule of thumb is right on them.

    make models
    python tools/export_networks.py networks
    python -m gate.agreement networks               # writes docs/engines-agreement.md
    python -m gate.agreement --backend-cases --jobs 2

The models are exported networks and those of the gate. Each runs in a process of its own, so that one that ends its process is
a row of the table. With `--jobs`, several run at a time, each on its share of the processors.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks import conclusions
from benchmarks.measure import in_process
from benchmarks.page import Table, machine
from gate import catalog

LIMIT = 1e-3
"""The largest difference, relative to the largest number of ONNX Runtime's output."""

SECONDS = 300
"""How long one process may take."""

HEADER = ["model", "before tuning", "after tuning", "engine then", "OpenVINO", "rule of thumb"]

GAIN = 0.95
"""Up to this multiple of ONNX Runtime's time OpenVINO is worth trying."""

ROOT = Path(__file__).parents[1]

PAGE = ROOT / "docs" / "engines-agreement.md"


def expected_of(model: Path | bytes, feed: Mapping[str, Any]) -> list[Any]:
    """The outputs of ONNX Runtime itself."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    outputs: list[Any] = session.run(None, feed)
    return outputs


def compare(
    model: Path | bytes, feed: Mapping[str, Any], expected: Sequence[Any], seconds: float = 0.3
) -> dict[str, Any]:
    """Differences of a default session from ONNX Runtime before and after `tune`, and what `tune` found."""
    import opweave as ow

    session = ow.InferenceSession(model)

    def largest() -> float:
        results: list[Any] = []
        for _ in range(3):  # later calls may run elsewhere than the first
            results = session.run(None, feed)
        return max(_difference(a, b) for a, b in zip(results, expected, strict=True))

    before, rule = largest(), _rule_of_thumb(model, feed)
    (measured,) = session.tune(inputs=feed, seconds=seconds).measurements
    times = {name: round(value * 1e3, 4) for name, value in measured.seconds.items()}
    refused = dict(measured.refused)
    return {
        "before": before,
        "after": largest(),
        "chosen": measured.chosen,
        "refused": refused,
        "ms": times,
        "rule": rule,
    }


def _rule_of_thumb(model: Path | bytes, feed: Mapping[str, Any]) -> str:
    """The choice between engines before anything is measured: "tries: ...", or the reason for not trying OpenVINO."""
    import opweave as ow

    session = ow.InferenceSession(model, specialise="always")
    session.run(None, feed)
    for line in session.explain().splitlines():
        if line.startswith("engine: ") and "openvino" in line:
            text = line.partition("openvino ")[2]
            tries = text.removeprefix("not verified: switched off").removeprefix("not verified yet")
            if tries.startswith(": expected to be faster"):
                return f"tries: {tries.removeprefix(': expected to be faster ').strip('()')}"
            return text.removeprefix("not verified: ").removeprefix("not expected to be faster: ")
    return "several graphs"


def _difference(result: Any, expected: Any) -> float:
    """How far a value is from the expected one; 0 or infinity for what is no array of numbers."""
    from opweave.support.agreement import difference

    if isinstance(expected, np.ndarray) and expected.dtype.kind in "fiub":
        return difference(np.asarray(result), expected)
    return 0.0 if repr(result) == repr(expected) else float("inf")


def compare_cases(part: int, parts: int) -> dict[str, Any]:
    """What came of a part of ONNX's backend cases: counts by word, and the names of those that do not agree."""
    sys.path.insert(0, str(ROOT / "tests"))
    from support import onnx_cases

    words, failures = Counter[str](), dict[str, str]()
    for name in list(onnx_cases.cases())[part::parts]:
        word, why = _case_word(onnx_cases.cases()[name])
        words[word] += 1
        if why:
            failures[name] = why
    return {"words": words, "failures": failures}


def _case_word(case: Any) -> tuple[str, str]:
    """What came of one case in a word, and what is wrong."""
    import opweave as ow

    model, data = case.load()
    arguments = [info.name for info in model.graph.input]
    values = [np.asarray(value) if isinstance(value, np.generic) else value for value in data[0][0]]
    feed, content = dict(zip(arguments, values, strict=False)), model.SerializeToString()
    try:
        expected = expected_of(content, feed)
    except Exception:  # onnxruntime has no base class of its errors
        return "not run by ONNX Runtime", ""
    try:
        report = compare(content, feed, expected, seconds=0)
    except ow.MLError as error:
        return "refused by Opweave", str(error)
    except Exception as error:
        return "failed", f"{type(error).__name__}: {error}"
    if report["before"] > LIMIT:
        return "differs", f"{report['before']:.2g} before tune"
    if report["after"] > LIMIT:
        return "differs", f"{report['after']:.2g} after tune, on {report['chosen']}"
    return f"runs on {report['chosen']}", ""


@dataclass(frozen=True)
class Row:
    """A model on both engines.

    Attributes:
        cells: its row, see `HEADER`.
        agrees: whether all results agree.
        chosen: what runs it after tuning.
        is_tried: whether the rule of thumb would try OpenVINO.
        ratio: OpenVINO's time as a multiple of ONNX Runtime's; None if OpenVINO was refused or does not take the model.
    """

    cells: list[str]
    agrees: bool
    chosen: str = ""
    is_tried: bool = False
    ratio: float | None = None


def row(path: Path, part: int, jobs: int) -> Row:
    """The row of a model, which runs on a part of the processors."""
    given = ("--compare", str(path), "--part", str(part), "--jobs", str(jobs))
    try:
        report = in_process("gate.agreement", *given, timeout=SECONDS)
    except (RuntimeError, TimeoutError) as error:
        return Row([path.stem, "", "", "", f"the process failed: {str(error).splitlines()[-1]}", ""], False)
    verdict, rule, chosen, times = "; ".join(report["refused"].values()), report["rule"], report["chosen"], report["ms"]
    openvino, ratio = times.get("openvino"), None
    if not verdict and openvino is not None:
        ratio = openvino / min(value for name, value in times.items() if name != "openvino")
        verdict = f"right, {ratio:.2f}x"
    agrees = max(report["before"], report["after"]) <= LIMIT
    cells = [path.stem, f"{report['before']:.1e}", f"{report['after']:.1e}", chosen, verdict, rule]
    return Row(cells, agrees, chosen, rule.startswith("tries"), ratio)


def write_gate(folder: Path, packages: Path) -> list[Path]:
    """Write the gate's models, and inputs of one call for each, into a folder."""
    import onnxruntime

    found = []
    for entry in catalog.entries():
        kept = folder / f"{'-'.join(entry.name.lower().split())}.onnx"
        with entry.path(packages) as path:
            kept.write_bytes(path.read_bytes())
        session = onnxruntime.InferenceSession(kept, providers=["CPUExecutionProvider"])
        feed = entry.feeds({each.name: each.type for each in session.get_inputs()})[0]
        np.savez(kept.with_suffix(".npz"), allow_pickle=False, **feed)
        found.append(kept)
    return found


def markdown(rows: Sequence[Row], jobs: int) -> str:
    """The page."""
    from opweave.support.processors import processors

    chosen = Counter(each.chosen for each in rows)
    counts = ", ".join(f"{count} on {name}" for name, count in chosen.most_common())
    cells = [each.cells for each in sorted(rows, key=lambda each: each.cells[0])]
    return f"""# Agreement of engines

Networks that PyTorch exports, and the models of the gate, in a default session beside ONNX Runtime, before and after
`session.tune()`: the largest difference relative to the largest number, which may be {LIMIT:g}. `tune` tries OpenVINO in a
process of its own ([engines](engines.md#trials)). After tuning, {len(rows)} models run: {counts}.

`python tools/export_networks.py FOLDER` exports the networks, `make models` installs the others, and
`python -m gate.agreement FOLDER` writes this page. On: {machine()}, openvino {version("openvino")}; each model has
{processors() // jobs} processors.

{Table(HEADER, cells)}

*OpenVINO* is its time as a multiple of that of the fastest way to run the model on ONNX Runtime, or why it was refused.

## The rule of thumb

Before anything is measured, a rule decides whether another engine is worth the child process that
[verifies](engines.md#verification) it. Its column above says "tries" with the size of the model, or why it does not.

{Table(["the rule", "models", f"OpenVINO takes up to {GAIN:g}x", "median", "best", "worst"], _rule_rows(rows), range(1, 6))}

Only models that OpenVINO runs right count here.
"""


def _rule_rows(rows: Sequence[Row]) -> list[list[str]]:
    """How the time of OpenVINO compares, for models that the rule tries and for the others."""
    found = []
    for title, is_tried in (("tries OpenVINO", True), ("does not", False)):
        ratios = [each.ratio for each in rows if each.ratio is not None and each.is_tried == is_tried]
        gains = sum(ratio <= GAIN for ratio in ratios)
        figures = [f"{f(ratios):.2f}x" if ratios else "" for f in (median, min, max)]
        found.append([title, str(len(ratios)), str(gains), *figures])
    return found


def _all_cases(jobs: int) -> bool:
    """Compare all backend cases in several processes, print what came of them, and tell whether all agree."""
    parts = [("--part", str(part), "--jobs", str(jobs)) for part in range(jobs)]
    words, failures = Counter[str](), dict[str, str]()
    with ThreadPoolExecutor(jobs) as pool:
        for report in pool.map(lambda part: in_process("gate.agreement", *part), parts):
            words.update(report["words"])
            failures |= report["failures"]
    for name, why in sorted(failures.items()):
        print(f"{name}: {why[:200]}")
    print(", ".join(f"{word} {count}" for word, count in words.most_common()))
    return not any(word in ("differs", "failed") for word in words)


def main(
    folder: Annotated[Path | None, typer.Argument(help="The folder of the exported networks.")] = None,
    packages: Annotated[Path, typer.Option(help="Where the packages of the gate are.")] = catalog.PACKAGES,
    only: Annotated[str, typer.Option(help="Models whose name contains this; then the page is not written.")] = "",
    backend_cases: Annotated[bool, typer.Option(help="Compare ONNX's backend cases instead.")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="How many models run at a time.")] = 1,
    compare_one: Annotated[Path | None, typer.Option("--compare", hidden=True)] = None,
    part: Annotated[int, typer.Option(hidden=True)] = -1,
) -> None:
    """Compare default sessions with ONNX Runtime before and after tuning, and write docs/engines-agreement.md."""
    if compare_one is not None:
        if jobs > 1:
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[part::jobs])
        feed = dict(np.load(compare_one.with_suffix(".npz")))
        print(json.dumps(compare(compare_one, feed, expected_of(compare_one, feed))))
        return
    if part >= 0:
        print(json.dumps(compare_cases(part, jobs)))
        return
    if backend_cases:
        with TemporaryDirectory(prefix="opweave-agreement-") as cache:
            os.environ["OPWEAVE_CACHE"] = cache
            sys.exit(not _all_cases(jobs))
    if folder is None:
        raise typer.BadParameter("give the folder of the networks")
    rows: list[Row] = []
    with TemporaryDirectory(prefix="opweave-agreement-") as name:
        store = Path(name, "cache")
        store.mkdir(mode=0o700)
        os.environ["OPWEAVE_CACHE"] = str(store)  # nothing is tuned yet
        paths = [*sorted(folder.glob("*.onnx")), *write_gate(Path(name), packages)]
        free = SimpleQueue[int]()
        for part in range(jobs):
            free.put(part)

        def measure(path: Path) -> None:
            part = free.get()
            try:
                rows.append(row(path, part, jobs))
            finally:
                free.put(part)
            print("  ".join(rows[-1].cells), flush=True)

        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(measure, [path for path in paths if only in path.name]))
    failures = [each.cells[0] for each in rows if not each.agrees]
    print(f"{len(rows)} models, {len(failures)} do not agree: {', '.join(failures)}")
    if not only and not failures:
        conclusions.write(PAGE.name, markdown(rows, jobs))
    sys.exit(bool(failures))


if __name__ == "__main__":
    typer.run(main)
