"""Whether models on `auto` agree with ONNX Runtime, before and after `tune`.

    python tools/export_networks.py networks
    python -m gate.agreement networks               # writes the table of docs/engines.md

Each model runs in a process of its own, so that one that ends its process is a row of the table.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
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

PAGE = Path(__file__).parents[1] / "docs" / "engines-agreement.md"


def compare(path: Path, feeds: Path) -> dict[str, Any]:
    """Differences of a default session from ONNX Runtime before and after `tune`, and what `tune` found."""
    import onnxruntime

    import opweave as ow
    from opweave.agreement import difference

    feed = dict(np.load(feeds))
    expected = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, feed)
    session = ow.InferenceSession(path)

    def largest() -> float:
        results: list[Any] = []
        for _ in range(3):  # later calls may run elsewhere than the first
            results = session.run(None, feed)
        return max(difference(np.asarray(a), np.asarray(b)) for a, b in zip(results, expected, strict=True))

    before = largest()
    (found,) = session.tune(inputs=feed, seconds=0.3).measurements
    seconds = {name: round(value * 1e3, 4) for name, value in found.seconds.items()}
    return {"before": before, "after": largest(), "chosen": found.chosen, "refused": dict(found.refused), "ms": seconds}


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


def main(
    folder: Annotated[Path | None, typer.Argument(help="The folder of the exported networks.")] = None,
    only: Annotated[str, typer.Option(help="Models whose name contains this; then the page is not written.")] = "",
    compare_one: Annotated[Path | None, typer.Option("--compare", hidden=True)] = None,
) -> None:
    """Compare default sessions with ONNX Runtime before and after tuning, and write docs/engines-agreement.md."""
    if compare_one is not None:
        print(json.dumps(compare(compare_one, compare_one.with_suffix(".npz"))))
        return
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
