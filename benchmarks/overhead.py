"""What a call costs: a 16-element relu, against ONNX Runtime's bound run; and importing the package."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np

import opweave as ow

from .measure import alternate
from .rows import Row, beside_onnxruntime, onnxruntime_session

IMPORTS = 15
"""How many processes each import is timed in."""


def rows() -> list[Row]:
    context = ow.ml.create_context(device="cpu")
    builder = ow.MLGraphBuilder(context)
    graph = builder.build({"y": builder.relu(builder.input("x", "float32", [16]))})
    array = np.linspace(-1, 1, 16, dtype="float32")
    session = onnxruntime_session(graph)
    ways = beside_onnxruntime(graph, context, {"x": array})
    ways["compute"] = lambda: context.compute(graph, {"x": array})
    ways["run"] = lambda: session.run(None, {"x": array})
    times = alternate(ways, seconds=0.05, pause=0)  # all of it runs on one thread
    dispatch, bound = times["ours"], times["theirs"]
    imported, used, numpy = imports("import opweave", "import opweave; opweave.MLGraphBuilder", "import numpy")
    return [
        Row.of("dispatch of a 16-element relu", "us", dispatch, bound, "ONNX Runtime, bound", "dispatch"),
        Row.of("compute of the same", "us", times["compute"], times["run"], "ONNX Runtime, run()", "compute"),
        Row.of("import opweave", "ms", imported, budget="import"),
        Row.of("import opweave, use MLGraphBuilder", "ms", used, numpy, "import numpy", "import builder"),
    ]


def imports(*codes: str) -> list[list[float]]:
    """The seconds of each import, measured alternately in new processes, without what Python itself takes to start."""

    def took(code: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter() - start

    times = [[took(code) - took("pass") for code in codes] for _ in range(IMPORTS)]
    return [list(column) for column in zip(*times, strict=True)]
