"""TensorFlow.js' WebAssembly back end under Node, in a process that times its operations on request."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from .operations import Data

VERSION = "4.22.0"
PACKAGES = ("@tensorflow/tfjs-core", "@tensorflow/tfjs-backend-cpu", "@tensorflow/tfjs-backend-wasm")
FOLDER = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "opweave" / f"tfjs-{VERSION}"


class MissingError(Exception):
    """TensorFlow.js cannot be had here; the message says why."""


def install() -> Path:
    """The folder with its packages, which npm fetches the first time; none of their scripts is run.

    Raises:
        MissingError: there is no Node or npm, or npm failed.
    """
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            raise MissingError(f"there is no {program}")
    if not (FOLDER / "done").exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        (FOLDER / "package.json").write_text('{"private": true}\n')
        wanted = [f"{name}@{VERSION}" for name in PACKAGES]
        result = subprocess.run(
            ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", *wanted],
            cwd=FOLDER, capture_output=True, text=True,
        )  # fmt: skip
        if result.returncode:
            said = re.findall(r"^npm error (.+)", result.stderr, re.MULTILINE)[:2] or ["no message"]
            raise MissingError(f"npm cannot install {', '.join(wanted)}: {'; '.join(said)}")
        (FOLDER / "done").touch()
    return FOLDER


class TensorFlowJs:
    """A running Node with the data of the tests; `with` ends it.

    Attributes:
        result: of conv2d, add and relu, [1, channels, height, width].
        description: its versions.
    """

    def __init__(self, data: Data) -> None:
        """Start it.

        Raises:
            MissingError: it does not start; the message has what it wrote last.
        """
        modules = install()
        _, channels, size, _ = data.image.shape
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            arrays = {"input": data.image.transpose(0, 2, 3, 1), "filter": data.weights.transpose(2, 3, 1, 0)}
            for name, array in {**arrays, "bias": data.bias}.items():
                (folder / name).write_bytes(array.tobytes())
            self._errors = stack.enter_context((folder / "errors").open("w+"))
            script = str(Path(__file__).with_name("tfjs.mjs"))
            self._process = subprocess.Popen(
                ["node", script, str(modules), str(folder), str(channels), str(size)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
            )  # fmt: skip
            stack.callback(self._end)
            about = json.loads(self._line())
            nhwc = np.fromfile(folder / "result", "float32").reshape(1, size, size, channels)
            self._stack = stack.pop_all()
        self.result = nhwc.transpose(0, 3, 1, 2)
        count = about["threads"]
        self.description = (
            f"TensorFlow.js {about['version']} under Node {about['node'].removeprefix('v')}, its WebAssembly back end "
            f"({'with' if about['simd'] else 'without'} SIMD, {'one thread' if count <= 1 else f'{count} threads'})"
        )

    def seconds(self, what: str, stretch: float) -> float:
        """Seconds a call of "conv" or "all", measured for about `stretch` seconds."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what} {stretch}\n")
        self._process.stdin.flush()
        return float(self._line()) / 1e3

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            said = re.search(r"^\w*Error\b.*", self._errors.read(), re.MULTILINE)
            raise MissingError(f"Node ended with {self._process.returncode}: {said[0] if said else 'no message'}")
        return line

    def __enter__(self) -> TensorFlowJs:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
