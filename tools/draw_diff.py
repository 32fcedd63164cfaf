"""Make the picture of a report in docs/diff.md: ResNet-50 with random weights, of which one is changed. It takes Chromium.

python tools/draw_diff.py docs/images/diff.png
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from shutil import which

sys.path.insert(0, str(Path(__file__).parents[1]))

import opweave as ow
from benchmarks.resnet50 import graph, random_weights

SIZE = "1180,1900"
"""Width and height of the picture: down to the operation that is marked in the graph."""


def main(picture: Path) -> None:
    """Compare the two networks, and draw the report."""
    context = ow.ml.create_context(device="cpu", backend="onnxruntime")
    weights = list(random_weights())
    changed = [array.copy() for array in weights]
    changed[60].flat[1234] += 0.5
    found = ow.diff(graph(context, iter(changed)), graph(context, iter(weights)))
    browser = which("chromium") or which("google-chrome")
    if browser is None:
        raise SystemExit("Chromium is not installed")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "report.html")
        found.save(page)
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={SIZE}"]
        command = [browser, *options, f"--screenshot={picture.resolve()}", page.as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=60)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
