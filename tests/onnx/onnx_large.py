"""A model of more than 2 GB, and what running it takes: `python onnx_large.py make|opweave|onnxruntime PATH`.

The weights lie in a file of which the table is sparse; the layers differ, for the engine keeps equal ones once.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

ROWS, WIDTH, LAYERS = 300_000, 1024, 256
"""A table of 1.2 GB, and layers of 4 MB each, another 1 GB."""


def make(path: Path) -> int:
    """Write the model: look rows up in a table, then residual layers; returns the bytes of its weights."""
    graph = onnx.GraphProto(name="large")
    graph.input.append(helper.make_tensor_value_info("x", TensorProto.INT64, [4]))
    graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, WIDTH]))
    offset = 0

    def weight(name: str, shape: list[int]) -> str:
        nonlocal offset
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
        size = 4 * int(np.prod(shape))
        for key, value in {"location": "large.bin", "offset": offset, "length": size}.items():
            tensor.external_data.add(key=key, value=str(value))
        graph.initializer.append(tensor)
        offset += size
        return name

    graph.node.append(helper.make_node("Gather", [weight("table", [ROWS, WIDTH]), "x"], ["h0"]))
    for k in range(LAYERS):
        graph.node.append(helper.make_node("MatMul", [f"h{k}", weight(f"w{k}", [WIDTH, WIDTH])], [f"m{k}"]))
        graph.node.append(helper.make_node("Add", [f"h{k}", f"m{k}"], ["y" if k == LAYERS - 1 else f"h{k + 1}"]))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    path.write_bytes(model.SerializeToString())
    with path.with_name("large.bin").open("wb") as file:
        file.truncate(offset)
        for k in range(ROWS):  # the first number of each row is its index
            if k % 1000 == 7:
                file.seek(4 * WIDTH * k)
                file.write(np.float32(k).tobytes())
        noise = np.random.default_rng(0).standard_normal((WIDTH, WIDTH), np.float32) * 1e-8
        file.seek(4 * ROWS * WIDTH)
        for k in range(LAYERS):
            file.write((noise * np.float32(1 + k / LAYERS)).data)
    return offset


def main() -> None:
    """Load and run the model; print the peak of resident memory in bytes."""
    what, path = sys.argv[1], Path(sys.argv[2])
    x = np.int64([7, 0, 1007, ROWS - 993])
    if what == "opweave":
        import opweave as ow
        from opweave import memory

        y = ow.InferenceSession(path, ow.ml.create_context(device="cpu"), fallback="error").run(None, {"x": x})[0]
        assert memory.copies.bytes < 2**20, memory.copies
    else:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        y = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    np.testing.assert_allclose(y[:, 0], [7, 0, 1007, ROWS - 993], rtol=1e-3)
    with open("/proc/self/status") as file:  # not of getrusage, which counts what the parent had before exec
        (line,) = (line for line in file if line.startswith("VmHWM"))
    print(int(line.split()[1]) * 1024)


if __name__ == "__main__":
    if sys.argv[1] == "make":
        print(make(Path(sys.argv[2])))
    else:
        main()
    sys.stdout.flush()
    os._exit(0)  # giving back gigabytes takes seconds
