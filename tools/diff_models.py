"""Compare each model of the catalogue (tests/data/gate.toml) with `opweave.diff`, and list operations beyond their tolerances.

make models   # or: python -m gate.packages
python tools/diff_models.py [--on cpu:onnxruntime] [--against reference] [NAME …]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import onnxruntime

sys.path.insert(0, str(Path(__file__).parents[1]))

import opweave as ow
from gate.catalog import PACKAGES, Entry, entries


def compare(entry: Entry, on: str, against: str) -> bool | None:
    """Print what was found in a model at the first of its shapes.

    Returns:
        Whether an operation is beyond its tolerance; None if the model cannot be compared.
    """
    with entry.path(PACKAGES) as path:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        feeds = entry.feeds({each.name: each.type for each in session.get_inputs()})[0]
        try:
            found = ow.diff(str(path), inputs=feeds, on=on, against=against)
        except ow.NotSupportedError as error:
            print(f"{entry.name}: {error}")
            return None
    closest = max(found.rows, key=lambda row: row.own.ratio)
    text = f"closest to its limit: {closest.title}, {closest.own.ratio:.2g}" if found.first is None else str(found)
    print(f"{entry.name}: {len(found.rows)} operations, {len(found.found)} beyond their tolerances; {text}", flush=True)
    return found.first is not None


def main() -> int:
    """Run what the arguments say; 1 if an operation was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", default="cpu:onnxruntime", help="DEVICE[:BACKEND][@PRECISION]")
    parser.add_argument("--against", default="reference", help="likewise")
    parser.add_argument("names", nargs="*", help="names of models; all if there are none")
    given = parser.parse_args()
    chosen = [entry for entry in entries() if not given.names or entry.name in given.names]
    found = [compare(entry, given.on, given.against) for entry in chosen]
    lacking = found.count(None)
    print(
        f"{len(found) - lacking} models compared, {found.count(True)} of them with operations beyond their tolerances"
    )
    print(f"{lacking} models that cannot be compared")
    return int(any(found))


if __name__ == "__main__":
    sys.exit(main())
