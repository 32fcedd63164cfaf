"""Expressions compiled with Halide: against chains of operations in ONNX Runtime, and against copying memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import NodeProto, TensorProto, helper

import opweave as ow
import opweave.expr as ex
from opweave.expr import Array, kernels
from opweave.graph import Desc

from .common import Row, alternate, at_most

POINTS = 4 * 1024 * 1024


def rows() -> list[Row]:
    if not kernels.has_halide():
        return []
    rng = np.random.default_rng(0)
    points = rng.standard_normal(POINTS, np.float32)
    square = rng.standard_normal((1024, 1024), np.float32)
    image = rng.random((3, 1082, 1922), np.float32)
    few = rng.standard_normal(16, np.float32)
    node = helper.make_node
    chain = [
        node("Mul", ["x", "c"], ["scaled"]),
        node("Sigmoid", ["scaled"], ["s"]),
        node("Mul", ["x", "s"], ["a"]),
        node("Tanh", ["x"], ["t"]),
        node("Mul", ["t", "h"], ["b"]),
        node("Add", ["a", "b"], ["y"]),
    ]
    blurred = np.empty((3, 1080, 1920), np.float32)
    numbers = {"c": 1.702, "h": 0.5}
    times = alternate(
        {
            "points": compiled(lambda x: x * ex.sigmoid(1.702 * x) + 0.5 * ex.tanh(x), points),
            "chain": session(chain, points, numbers),
            "copy": copy_of(points),
            "softmax": compiled(softmax, square),
            "Softmax": session([node("Softmax", ["x"], ["y"])], square, {}),
            "blur": compiled(blur, image),
            "part": copy_of(blurred),
            "call": compiled(lambda x: ex.max(x, 0), few),
            "operation": operation(few),
        },
        title="expressions",
    )
    points_ms, chain_ms, copy_ms = (times[name] * 1e3 for name in ("points", "chain", "copy"))
    soft_ms, their_ms = times["softmax"] * 1e3, times["Softmax"] * 1e3
    blur_ms, part_ms = times["blur"] * 1e3, times["part"] * 1e3
    call_us, from_python_us = times["call"] * 1e6, times["operation"] * 1e6
    what = "x*sigmoid(1.702*x)+0.5*tanh(x), 4M float32"
    budget = "<= 0.33x"
    return [
        Row(what, "ms", points_ms, chain_ms, "ONNX Runtime, 6 operations", budget, at_most(points_ms, chain_ms, 0.33)),
        Row(what, "ms", points_ms, copy_ms, "a memcpy", "<= 2x", at_most(points_ms, copy_ms, 2)),
        Row("softmax 1024x1024", "ms", soft_ms, their_ms, "ONNX Runtime", "", True),
        Row("3x3 blur of 3x1080x1920", "ms", blur_ms, part_ms, "a memcpy", "", True),
        Row("a compiled expression, 16 elements, bound", "us", call_us, None, "", "<= 3 us", call_us <= 3),
        Row("the same, called on arrays", "us", from_python_us, None, "", "<= 10 us", from_python_us <= 10),
    ]


def softmax(x: Array) -> Array:
    e = ex.exp(x - ex.reduce_max(x, [-1], keep_dimensions=True))
    return e / ex.reduce_sum(e, [-1], keep_dimensions=True)


def blur(x: Array) -> Array:
    c, h, w = x.shape

    def element(i: Array, y: Array, k: Array) -> Array:
        return ex.sum_over((3, 3), lambda dy, dx: x[i, y + dy, k + dx]) / 9

    return ex.compute((c, h - 2, w - 2), element)


def compiled(function: Callable[..., Array], x: np.ndarray) -> Callable[[], None]:
    program = ex.trace(function, "benchmark", [Desc("float32", x.shape)])
    (output,) = program.outputs
    return kernels.compile(program, "halide").bind([x], [np.zeros(output.desc.shape, np.float32)])


def operation(x: np.ndarray) -> Callable[[], object]:
    @ow.expression
    def positive(x: Array) -> Array:
        return ex.max(x, 0)

    return lambda: positive(x)


def threads() -> int:
    from opweave.expr.halide import threads

    return threads()


def copy_of(array: np.ndarray) -> Callable[[], object]:
    """A memcpy into memory that is there already."""
    target = np.zeros_like(array)
    return lambda: np.copyto(target, array)


def session(nodes: list[NodeProto], x: np.ndarray, numbers: dict[str, float]) -> Callable[[], Any]:
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, x.shape) for name in "xy"]
    constants = [helper.make_tensor(name, TensorProto.FLOAT, [], [value]) for name, value in numbers.items()]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], constants)
    model = helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads()
    made = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding, y = made.io_binding(), np.zeros_like(x)
    binding.bind_ortvalue_input("x", onnxruntime.OrtValue.ortvalue_from_numpy(x))
    binding.bind_ortvalue_output("y", onnxruntime.OrtValue.ortvalue_from_numpy(y))
    return lambda: made.run_with_iobinding(binding)
