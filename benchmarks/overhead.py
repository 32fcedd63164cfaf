"""What a call costs: a 16-element relu, against ONNX Runtime's bound run; and importing the package."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

import numpy as np
import onnx
import onnxruntime
from onnx import helper

import opweave as ow

from .common import Row, alternate


def rows() -> list[Row]:
    context = ow.ml.create_context(device="cpu")
    builder = ow.MLGraphBuilder(context)
    graph = builder.build({"y": builder.relu(builder.input("x", "float32", [16]))})
    x = context.create_tensor("float32", [16], writable=True)
    y = context.create_tensor("float32", [16], readable=True)
    array = np.linspace(-1, 1, 16, dtype="float32")
    context.write_tensor(x, array)

    info = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [16]) for name in "xy"]
    model = helper.make_model(
        helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", info[:1], info[1:]),
        opset_imports=[helper.make_opsetid("", 21)],
        ir_version=10,
    )
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    source, target = array.copy(), np.zeros(16, "float32")
    binding.bind_ortvalue_input("x", onnxruntime.OrtValue.ortvalue_from_numpy(source))
    binding.bind_ortvalue_output("y", onnxruntime.OrtValue.ortvalue_from_numpy(target))

    times = alternate(
        {
            "dispatch": lambda: context.dispatch(graph, {"x": x}, {"y": y}),
            "compute": lambda: context.compute(graph, {"x": array}),
            "bound run": lambda: session.run_with_iobinding(binding),
            "run": lambda: session.run(None, {"x": source}),
        },
        title="16-element relu",
    )
    dispatch, compute = times["dispatch"] * 1e6, times["compute"] * 1e6
    bound, run = times["bound run"] * 1e6, times["run"] * 1e6
    imported, used, numpy = import_seconds("import opweave", "import opweave; opweave.MLGraphBuilder", "import numpy")
    return [
        Row("dispatch of a 16-element relu", "us", dispatch, bound, "ONNX Runtime, bound", "<= 8 us", dispatch <= 8),
        Row("compute of the same", "us", compute, run, "ONNX Runtime, run()", "<= 15 us", compute <= 15),
        Row("import opweave", "ms", imported, None, "", "<= 100 ms", imported <= 100),
        Row(
            "import opweave, use MLGraphBuilder",
            "ms",
            used,
            numpy,
            "import numpy",
            "<= 100 ms more",
            used <= numpy + 100,
        ),
    ]


def import_seconds(*imports: str, turns: int = 15) -> list[float]:
    """The median milliseconds of each import in a new process, in turns, without what Python itself takes to start."""

    def took(code: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return (time.perf_counter() - start) * 1e3

    times = [[took(code) - took("pass") for code in imports] for _ in range(turns)]
    return [statistics.median(column) for column in zip(*times, strict=True)]
