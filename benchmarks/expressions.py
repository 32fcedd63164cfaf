"""Expressions compiled with Halide: against chains of operations in ONNX Runtime, and against copying memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import opweave as ow
import opweave.expr as ex
from opweave.core.graph import Desc
from opweave.expr import Traced, kernels

from .measure import Way, alternate
from .rows import Row, bound, onnxruntime_session

POINTS = 4 * 1024 * 1024


def rows() -> list[Row]:
    if not kernels.has_halide():
        return []
    rng = np.random.default_rng(0)
    points = rng.standard_normal(POINTS, np.float32)
    square = rng.standard_normal((1024, 1024), np.float32)
    image = rng.random((3, 1082, 1922), np.float32)
    few = rng.standard_normal(16, np.float32)

    def chain(b: ow.MLGraphBuilder, x: ow.MLOperand) -> ow.MLOperand:
        return x * (x * 1.702).sigmoid() + x.tanh() * 0.5

    @ow.expression
    def positive(x: Traced) -> Traced:
        return ex.max(x, 0)

    large = alternate(
        {
            "points": compiled(lambda x: x * ex.sigmoid(1.702 * x) + 0.5 * ex.tanh(x), points),
            "chain": engine(chain, points),
            "copy": copy_of(points),
            "softmax": compiled(softmax, square),
            "engine's softmax": engine(lambda b, x: b.softmax(x, 1), square),
            "blur": compiled(blur, image),
            "copy of the blurred": copy_of(np.empty((3, 1080, 1920), np.float32)),
        }
    )
    small = alternate({"bound": compiled(lambda x: ex.max(x, 0), few), "called": lambda: positive(few)}, pause=0)
    what = "x*sigmoid(1.702*x)+0.5*tanh(x), 4M float32"
    one, ort, memcpy = large["points"], "ONNX Runtime", "a memcpy"
    return [
        Row.of(what, "ms", one, large["chain"], f"{ort}, 6 operations", "expression against ONNX Runtime"),
        Row.of(what, "ms", one, large["copy"], memcpy, "expression against memcpy"),
        Row.of("softmax 1024x1024", "ms", large["softmax"], large["engine's softmax"], ort),
        Row.of("3x3 blur of 3x1080x1920", "ms", large["blur"], large["copy of the blurred"], memcpy),
        Row.of("a compiled expression, 16 elements, bound", "us", small["bound"], budget="bound expression"),
        Row.of("the same, called on arrays", "us", small["called"], budget="called expression"),
    ]


def softmax(x: Traced) -> Traced:
    e = ex.exp(x - ex.reduce_max(x, [-1], keep_dimensions=True))
    return e / ex.reduce_sum(e, [-1], keep_dimensions=True)


def blur(x: Traced) -> Traced:
    c, h, w = x.shape

    def element(i: Traced, y: Traced, k: Traced) -> Traced:
        return ex.sum_over((3, 3), lambda dy, dx: x[i, y + dy, k + dx]) / 9

    return ex.compute((c, h - 2, w - 2), element)


def compiled(function: Callable[..., Traced], x: np.ndarray) -> Way:
    program = ex.trace(function, "benchmark", [Desc("float32", x.shape)])
    (output,) = program.outputs
    return kernels.compile(program, "halide").bind([x], [np.zeros(output.desc.shape, np.float32)])


def engine(chain: Callable[[ow.MLGraphBuilder, ow.MLOperand], ow.MLOperand], x: np.ndarray) -> Way:
    """The same as operations of ONNX Runtime, on as many threads as Halide takes."""
    from opweave.expr.halide import threads

    builder = ow.MLGraphBuilder(ow.ml.create_context(device="cpu"))
    y = chain(builder, builder.input("x", "float32", x.shape))
    session = onnxruntime_session(builder.build({"y": y}, fuse=False), threads=threads())
    return bound(session, {"x": x}, {"y": np.zeros_like(x)})


def copy_of(array: np.ndarray) -> Way:
    """A memcpy into memory that is there already."""
    target = np.zeros_like(array)
    return lambda: np.copyto(target, array)
