"""What a call costs: a 16-element relu, against the engines' bound runs; and importing the package."""

from __future__ import annotations

import subprocess
import sys
import time
from importlib.util import find_spec

import numpy as np

import opweave as ow

from .measure import alternate, environment
from .rows import Row, beside_onnxruntime, dispatched, onnxruntime_session

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
    others = []
    if find_spec("openvino") is not None:
        pair = openvino(array)
        others = [
            Row.of("dispatch of the same on OpenVINO", "us", *pair, "OpenVINO, bound", "dispatch on OpenVINO"),
        ]
    return [
        Row.of("dispatch of a 16-element relu", "us", dispatch, bound, "ONNX Runtime, bound", "dispatch"),
        *others,
        Row.of("compute of the same", "us", times["compute"], times["run"], "ONNX Runtime, run()", "compute"),
        Row.of("import opweave", "ms", imported, budget="import"),
        Row.of("import opweave, use MLGraphBuilder", "ms", used, numpy, "import numpy", "import builder"),
    ]


def openvino(array: np.ndarray) -> tuple[list[float], list[float]]:
    """The seconds of a dispatch of relu on OpenVINO, and of its own run on memory that is bound once."""
    import openvino

    context = ow.ml.create_context(device="cpu", backend="openvino")
    builder = ow.MLGraphBuilder(context)
    graph = builder.build({"y": builder.relu(builder.input("x", "float32", array.shape))})
    ours, results = dispatched(graph, context, {"x": array})

    x = openvino.opset15.parameter(array.shape, openvino.Type.f32)
    model = openvino.Model([openvino.opset15.result(openvino.opset15.relu(x))], [x], "relu")
    options = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    request = openvino.Core().compile_model(model, "CPU", options).create_infer_request()
    expected = np.zeros_like(array)
    request.set_input_tensor(0, openvino.Tensor(array, shared_memory=True))
    request.set_output_tensor(0, openvino.Tensor(expected, shared_memory=True))
    ways = {"ours": ours, "theirs": lambda: request.infer(share_outputs=True)}
    times = alternate(ways, seconds=0.05, pause=0)  # both run on one thread
    np.testing.assert_array_equal(results["y"].numpy(), expected)
    return times["ours"], times["theirs"]


def imports(*codes: str) -> list[list[float]]:
    """The seconds of each import, measured alternately in new processes, without what Python itself takes to start.

    The modules have been compiled, as those of an installed package have.
    """
    variables = environment()

    def took(code: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, env=variables)
        return time.perf_counter() - start

    for code in codes:
        took(code)
    times = [[took(code) - took("pass") for code in codes] for _ in range(IMPORTS)]
    return [list(column) for column in zip(*times, strict=True)]
