"""Whether models on `auto` agree with ONNX Runtime, before and after `tune`.

    python tools/export_networks.py networks
    python -m gate.agreement networks               # writes docs/engines-agreement.md
    python -m gate.agreement --backend-cases --jobs 2

Each network runs in a process of its own, so that one that ends its process is a row of the table. The backend cases of ONNX
run in `--jobs` processes.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.measure import in_process
from benchmarks.page import machine, table, versions

LIMIT = 1e-3
"""The largest difference, relative to the largest number of ONNX Runtime's output."""

SECONDS = 300
"""How long one process may take."""

HEADER = ["model", "before tuning", "after tuning", "engine then", "verdict of OpenVINO"]

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

    before = largest()
    (measured,) = session.tune(inputs=feed, seconds=seconds).measurements
    times = {name: round(value * 1e3, 4) for name, value in measured.seconds.items()}
    refused = dict(measured.refused)
    return {"before": before, "after": largest(), "chosen": measured.chosen, "refused": refused, "ms": times}


def _difference(result: Any, expected: Any) -> float:
    """How far a value is from the expected one; 0 or infinity for what is no array of numbers."""
    from opweave.agreement import difference

    if isinstance(expected, np.ndarray) and expected.dtype.kind in "fiub":
        return difference(np.asarray(result), expected)
    return 0.0 if repr(result) == repr(expected) else float("inf")


def compare_cases(part: int, parts: int) -> dict[str, Any]:
    """What came of a part of ONNX's backend cases: counts by word, and the names of those that do not agree."""
    sys.path.insert(0, str(ROOT / "tests"))
    import onnx_cases

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


def row(path: Path) -> tuple[list[str], bool]:
    """The row of a model, and whether it agrees."""
    try:
        report = in_process("gate.agreement", "--compare", str(path), timeout=SECONDS)
    except (RuntimeError, TimeoutError) as error:
        return [path.stem, "", "", "", f"the process failed: {str(error).splitlines()[-1]}"], False
    verdict = "; ".join(report["refused"].values())
    if not verdict:
        times = report["ms"]
        openvino, runtime = times.get("openvino"), min(value for name, value in times.items() if name != "openvino")
        verdict = "" if openvino is None else f"right, {openvino / runtime:.2f}x ONNX Runtime's time"
    agrees = max(report["before"], report["after"]) <= LIMIT
    cells = [path.stem, f"{report['before']:.1e}", f"{report['after']:.1e}", report["chosen"], verdict]
    return cells, agrees


def markdown(rows: list[list[str]], chosen: Counter[str]) -> str:
    """The page."""
    counts = ", ".join(f"{count} on {name}" for name, count in chosen.most_common())
    return f"""# Agreement of engines

Networks that PyTorch exports, in a default session beside ONNX Runtime, before and after `session.tune()`: the largest
difference relative to the largest number, which may be {LIMIT:g}. `tune` tries OpenVINO in a process of its own
([engines](engines.md#trials)). After tuning, {len(rows)} networks run: {counts}.

`python tools/export_networks.py FOLDER` exports them, and `python -m gate.agreement FOLDER` writes this page. On: {machine()};
{versions("openvino")}.

{table(HEADER, rows)}
"""


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
    only: Annotated[str, typer.Option(help="Models whose name contains this; then the page is not written.")] = "",
    backend_cases: Annotated[bool, typer.Option(help="Compare ONNX's backend cases instead.")] = False,
    jobs: Annotated[int, typer.Option(help="Processes for the backend cases.")] = 2,
    compare_one: Annotated[Path | None, typer.Option("--compare", hidden=True)] = None,
    part: Annotated[int, typer.Option(hidden=True)] = -1,
) -> None:
    """Compare default sessions with ONNX Runtime before and after tuning, and write docs/engines-agreement.md."""
    if compare_one is not None:
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
    rows, failures, chosen = [], [], Counter[str]()
    with TemporaryDirectory(prefix="opweave-agreement-") as cache:
        os.environ["OPWEAVE_CACHE"] = cache  # nothing is tuned yet
        Path(cache).chmod(0o700)
        for path in sorted(folder.glob("*.onnx")):
            if only not in path.name:
                continue
            cells, agrees = row(path)
            rows.append(cells)
            chosen[cells[3]] += 1
            failures += [] if agrees else [path.stem]
            print("  ".join(cells), flush=True)
    print(f"{len(rows)} networks, {len(failures)} do not agree: {', '.join(failures)}")
    if not only and not failures:
        PAGE.write_text(markdown(rows, chosen), encoding="utf-8")
    sys.exit(bool(failures))


if __name__ == "__main__":
    typer.run(main)
