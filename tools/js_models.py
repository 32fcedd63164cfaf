"""Write each model of the catalogue (tests/data/gate.toml) as JavaScript, run it, and compare it with the graph in Python.

make models   # or: python -m gate.packages
python tools/js_models.py [NAME …]
python tools/js_models.py --write docs/javascript.md

Each model has the first of its shapes. Its module runs in Node.js on `opweave serve`; results must be those of the graph in
Python to the last bit.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import onnxruntime

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "js")]

from js_modules import CPU, Modules, expected  # noqa: E402

import opweave as ow  # noqa: E402
from benchmarks.page import Table, replace_part  # noqa: E402
from gate.catalog import PACKAGES, Entry, entries  # noqa: E402
from opweave.context.graph import recorded_graph  # noqa: E402
from opweave.js import webnn_only  # noqa: E402

PART = "models"
HEADER = ["model", "operations", "weights, MB", "outputs", "equal to the last bit"]


def row(entry: Entry, folder: Path) -> tuple[list[str], bool]:
    """The row of a model, and whether it is as it should be: equal, or such that WebNN cannot express it."""
    with entry.path(PACKAGES) as path:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        feed = entry.feeds({each.name: each.type for each in session.get_inputs()})[0]
        try:
            graph = ow.onnx.load(path, CPU, fix_shapes={name: array.shape for name, array in feed.items()})
        except ow.NotSupportedError as error:
            return [entry.name, "", "", "", f"no module: {error}"], True
    modules = Modules(folder)
    module = modules.add(graph, feed)
    (found,) = modules.run()
    wrong = [name for name, array in expected(graph, feed).items() if array.tobytes() != found[name].tobytes()]
    count = len(webnn_only(recorded_graph(graph)).nodes)
    weights = module.with_suffix(".safetensors")
    size = weights.stat().st_size / 1e6 if weights.exists() else 0.0
    verdict = f"NO: {', '.join(wrong)}" if wrong else "yes"
    return [entry.name, str(count), f"{size:.1f}", str(len(found)), verdict], not wrong


def main() -> int:
    """Run what the arguments say; 1 if a result differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write the table into this page")
    parser.add_argument("names", nargs="*", help="names of models; all if there are none")
    given = parser.parse_args()
    rows, is_right = [], True
    for entry in (entry for entry in entries() if not given.names or entry.name in given.names):
        with TemporaryDirectory() as folder:
            cells, is_one_right = row(entry, Path(folder))
        is_right &= is_one_right
        rows.append(cells)
        print(" | ".join(cells), flush=True)
    equal = sum(cells[-1] == "yes" for cells in rows)
    lacking = sum(not cells[1] for cells in rows)
    summary = f"{equal} of {len(rows)} models are equal to the last bit; WebNN cannot express {lacking} of them whole."
    print(summary)
    if given.write:
        replace_part(given.write, f"{Table(HEADER, rows)}\n\n{summary}", PART)
    return int(not is_right)


if __name__ == "__main__":
    sys.exit(main())
