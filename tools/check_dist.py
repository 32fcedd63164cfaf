"""Build the packages of a release in dist/, and try each in an empty environment of each Python that is here.

python tools/check_dist.py [PYTHON …]

Without arguments, the Pythons are those of 3.11 to 3.14 that are here. `build` and `twine` must be installed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from pythons import ROOT, found

VERSIONS = ((3, 11), (3, 12), (3, 13), (3, 14))

TRIAL = """
import numpy as np, opweave as ow

context = ow.ml.create_context(device="cpu")
builder = ow.MLGraphBuilder(context)
graph = builder.build({"y": builder.softmax(builder.input("x", "float32", [1, 4]), 1)})
print(ow.__version__, context.compute(graph, {"x": np.zeros((1, 4), "float32")})["y"].tolist())

@ow.expression
def twice(x):
    return 2 * x

assert twice(np.float32([1, 2])).tolist() == [2.0, 4.0]
ow.onnx.save(graph, "model.onnx")
assert ow.InferenceSession("model.onnx").run(None, {"x": np.ones((1, 4), "float32")})[0].shape == (1, 4)
"""


def main(pythons: list[str]) -> None:
    """Build, check and try; ends with an error if one of them fails."""
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", "dist", cwd=ROOT)
    files = sorted(ROOT.joinpath("dist").iterdir())
    run(sys.executable, "-m", "twine", "check", "--strict", *map(str, files), cwd=ROOT)
    for python in pythons or list(found(VERSIONS)):
        for file in files:
            with TemporaryDirectory() as folder:
                environment = Path(folder, "environment")
                run(python, "-m", "venv", str(environment), cwd=folder)
                scripts = environment / ("Scripts" if sys.platform == "win32" else "bin")
                options = ["--quiet", "--disable-pip-version-check"]
                run(str(scripts / "python"), "-m", "pip", "install", *options, str(file), cwd=folder)
                print(f"{python}, {file.name}:", flush=True)
                run(str(scripts / "python"), "-c", TRIAL, cwd=folder)
                run(str(scripts / "opweave"), "--version", cwd=folder)


def run(*command: str, cwd: Path | str) -> None:
    """Run a command, and end with its status if it fails."""
    status = subprocess.run(command, cwd=cwd).returncode
    if status:
        sys.exit(f"{' '.join(command)[:300]} failed with status {status}")


if __name__ == "__main__":
    main(sys.argv[1:])
