"""float16: a cast to it always rounds; each operation does with precision "ieee", and else `explain()` says which do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import cuda_cases, cuda_on_cpu
from support.webgpu_device import gpu_context

import opweave as ow
from opweave.backends import KEEPS_FLOAT32, Precision
from opweave.backends.gpu.schedule import Schedule
from opweave.core.graph import Graph
from opweave.expr.evaluate import evaluate
from opweave.kernels.expression import program_of_nodes

Build = Callable[[ow.MLGraphBuilder, ow.MLOperand], ow.MLOperand]

LARGE = 2**16
"""Elements for which chains of operations become compiled loops."""


def context_of(backend: str, precision: Precision) -> ow.MLContext:
    if backend == "webgpu":
        gpu_context()  # skips where there is no adapter
        return ow.ml.create_context(device="gpu-software", precision=precision)
    return ow.ml.create_context(backend=backend, device=None if backend == "reference" else "cpu", precision=precision)


def computed(context: ow.MLContext, build: Build, x: np.ndarray, *, fuse: bool = True) -> tuple[np.ndarray, str]:
    """The result of a graph, and what `explain()` says of it."""
    b = ow.MLGraphBuilder(context)
    graph = b.build({"y": build(b, b.input("x", x.dtype.name, x.shape))}, fuse=fuse)  # type: ignore[arg-type]
    return context.compute(graph, {"x": x})["y"], graph.explain()


def ones(b: ow.MLGraphBuilder, *shape: int) -> ow.MLOperand:
    return b.constant(np.ones(shape, "float16"))


def by_hand(b: ow.MLGraphBuilder, h: ow.MLOperand) -> ow.MLOperand:
    """A layer normalisation by its parts."""
    mean = b.reduce_mean(h, axes=[1], keep_dimensions=True)
    rest = b.mul(b.sub(h, mean), 2.0**-8)  # whose squares are finite
    variance = b.reduce_mean(b.pow(rest, 2.0), axes=[1], keep_dimensions=True)
    return b.add(b.mul(b.div(rest, b.sqrt(b.add(variance, 1.0))), ones(b, 2)), ones(b, 2))


READERS: dict[str, Build] = {
    "matmul": lambda b, h: b.matmul(h, ones(b, 2, 1)),
    "gemm": lambda b, h: b.gemm(h, ones(b, 2, 1)),
    "conv2d": lambda b, h: b.conv2d(b.reshape(h, [1, 2, 1, 1]), ones(b, 1, 2, 1, 1)),
    "add of slices": lambda b, h: b.add(b.slice(h, [0, 0], [1, 1]), b.slice(h, [0, 1], [1, 1])),
    "reduce_sum": lambda b, h: b.reduce_sum(h),
    "reduce_mean": lambda b, h: b.reduce_mean(h, axes=[1]),
    "softmax": lambda b, h: b.softmax(h, 1),
    "mul, add": lambda b, h: b.add(b.mul(h, 0.5), 1024.0),
    "sigmoid": lambda b, h: b.sigmoid(h),
    "relu": lambda b, h: b.relu(h),
    "average_pool2d": lambda b, h: b.average_pool2d(b.reshape(h, [1, 1, 1, 2])),
    "clamp": lambda b, h: b.clamp(h, min_value=-60000, max_value=60000),
    "equal": lambda b, h: b.equal(h, 2048.0),
    "cast to float32": lambda b, h: b.cast(h, "float32"),
    "layer normalisation by hand": by_hand,
}

CAST = [
    *(
        (data_type, values)
        for data_type in ("int32", "int64", "float32")
        for values in ([2049, -2048], [70000, -70000])
    ),
    ("float32", [2051, 65519.99]),
    ("float32", [65520, -1]),
    ("float32", [2.0**-24, 2.0**-25]),
    ("float32", [3 * 2.0**-25, -0.0]),
    ("float32", [np.nan, 1]),
    ("float32", [np.inf, 1.00048828125]),
    ("uint32", [2**32 - 1, 2049]),
    ("uint8", [200, 1]),
    ("int8", [-128, 127]),
]


@pytest.mark.parametrize("precision", ["float32", "ieee"])
@pytest.mark.parametrize("backend", ["onnxruntime", "webgpu"])
@pytest.mark.parametrize("reader", READERS)
def test_cast_to_float16_rounds_for_all_readers(reader: str, backend: str, precision: Precision) -> None:
    context, reference = context_of(backend, precision), ow.ml.create_context(device="reference")

    def build(b: ow.MLGraphBuilder, x: ow.MLOperand) -> ow.MLOperand:
        return READERS[reader](b, b.cast(x, "float16"))

    for data_type, values in CAST:
        x = np.array([values], data_type)
        (got, _), (expected, _) = computed(context, build, x), computed(reference, build, x)
        # Functions may be off by a unit in the last place of float16; sums of two numbers are exact. The last step of a
        # normalisation adds 1 to -1, which have such errors.
        atol = 2.0**-9 if reader.startswith("layer") else 2.0**-24
        np.testing.assert_allclose(got, expected, rtol=2.0**-10, atol=atol, err_msg=f"{data_type} {values}")


@pytest.mark.parametrize("backend", ["onnxruntime", "webgpu", "reference"])
@pytest.mark.parametrize("size", [4, LARGE])
def test_cast_of_float16_to_float16_rounds(backend: str, size: int) -> None:
    """tanh(7) is 0.9999983, which is 1 in float16."""

    def build(b: ow.MLGraphBuilder, x: ow.MLOperand) -> ow.MLOperand:
        return b.neg(b.floor(b.cast(b.tanh(b.mul(x, 7.0)), "float16")))

    got, _ = computed(context_of(backend, "float32"), build, np.ones(size, "float16"))
    assert (got == -1).all()


def rounded(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *operands: function(*(np.float64(o) for o in operands)).astype(np.float16)


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max())
    return e / e.sum()


STEPS: dict[str, tuple[Build, Callable[..., Any]]] = {
    "tanh": (lambda b, x: b.tanh(x), rounded(np.tanh)),
    "floor": (lambda b, x: b.floor(x), rounded(np.floor)),
    "times 3": (lambda b, x: b.mul(x, 3.0), rounded(lambda x: x * 3)),
    "plus 2048": (lambda b, x: b.add(x, 2048.0), rounded(lambda x: x + 2048)),
    "minus 2048": (lambda b, x: b.sub(x, 2048.0), rounded(lambda x: x - 2048)),
    "square": (lambda b, x: b.mul(x, x), rounded(lambda x: x * x)),
    "divided by 3": (lambda b, x: b.div(x, 3.0), rounded(lambda x: x / 3)),
    "root": (lambda b, x: b.sqrt(b.abs(x)), rounded(lambda x: np.sqrt(np.abs(x)))),
    "moved": (lambda b, x: b.reverse(b.reshape(x, [x.shape[0], 1])).reshape([x.shape[0]]), lambda x: x[::-1]),
    "greater": (lambda b, x: b.where(b.greater(x, 1.0), x, b.neg(x)), lambda x: np.where(x > 1, x, -x)),
}

CHAINS = [
    ["times 3", "tanh", "floor"],
    ["plus 2048", "minus 2048", "times 3"],
    ["square", "square", "root", "root"],
    ["divided by 3", "times 3", "minus 2048", "plus 2048"],
    ["divided by 3", "moved", "plus 2048", "moved", "minus 2048"],
    ["tanh", "square", "greater", "times 3", "plus 2048", "floor"],
]


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("size", [5, LARGE])
@pytest.mark.parametrize("backend", ["onnxruntime", "webgpu", "reference"])
@pytest.mark.parametrize("chain", CHAINS, ids=", ".join)
def test_ieee_rounds_the_result_of_each_operation(chain: list[str], backend: str, size: int, fuse: bool) -> None:
    if backend != "onnxruntime" and (size > 5 or not fuse):
        pytest.skip("the same kernels for all sizes")
    x = np.resize(np.float16([0.3, 7, 1.001, -2.5, 150, 3e-5, 0.1]), size)
    expected = x
    for name in chain:
        with np.errstate(over="ignore"):
            expected = STEPS[name][1](expected)

    def build(b: ow.MLGraphBuilder, y: ow.MLOperand) -> ow.MLOperand:
        for name in chain:
            y = STEPS[name][0](b, y)
        return y

    got, text = computed(context_of(backend, "ieee"), build, x, fuse=fuse)
    np.testing.assert_array_equal(got, expected)
    assert KEEPS_FLOAT32 not in text


@pytest.mark.parametrize("backend", ["onnxruntime", "webgpu"])
@pytest.mark.parametrize("size", [5, LARGE])
def test_explain_names_results_kept_in_float32(backend: str, size: int) -> None:
    def lines(build: Build, data_type: str = "float16", precision: Precision = "float32") -> list[str]:
        _, text = computed(context_of(backend, precision), build, np.ones(size, data_type))
        return [line.split()[0] for line in text.splitlines() if KEEPS_FLOAT32 in line]

    def chain(b: ow.MLGraphBuilder, x: ow.MLOperand) -> ow.MLOperand:
        return b.floor(b.tanh(b.mul(x, 7.0)))

    assert lines(chain) == ["mul", "tanh"]
    assert lines(chain, precision="ieee") == lines(chain, "float32") == []
    assert lines(lambda b, x: b.floor(b.cast(b.mul(b.cast(x, "float16"), 7.0), "float16")), "float32") == (
        ["mul"] if backend == "webgpu" or size == LARGE else []
    )


def test_program_of_nodes_rounds_between_nodes() -> None:
    """Also without a compiler, where NumPy computes loops."""
    b = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
    x = b.input("x", "float16", [3])
    graph = Graph.reaching({"y": b.floor(b.tanh(x))})
    results = []
    for rounds in (False, True):
        program, _, unrounded = program_of_nodes(graph.nodes, [x], list(graph.outputs.values()), rounds=rounds)
        y = np.empty(3, "float16")
        evaluate(program, [np.full(3, 7, "float16")], [y])
        results.append((y.tolist(), [node.op.name for node in unrounded]))
    assert results == [([0, 0, 0], ["tanh"]), ([1, 1, 1], [])]


@pytest.mark.parametrize("precision", ["float32", "ieee"])
def test_kernels_of_cuda_round_between_operations(precision: Precision) -> None:
    b = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
    x, w = b.input("x", "float16", [4, 64]), b.constant(np.ones((64, 64), "float16"))
    graph = Graph.reaching({"y": b.floor(b.tanh(b.matmul(b.sigmoid(x), w)))})
    schedule = Schedule(graph, cuda_cases._Rules(cuda_on_cpu.FEATURES).with_precision(precision), cuda_on_cpu.FEATURES)
    names = [node.op.name for node in graph.nodes if node in schedule.unrounded]
    calls = sum(step.kernel.source.count("rounded_to_half(") for step in schedule.steps)
    if precision == "ieee":
        assert names == []
        assert calls > 0
    else:
        assert {"matmul", "tanh"} <= set(names)


@pytest.mark.parametrize("backend", ["webgpu"])
def test_ieee_rounds_between_the_parts_of_attention(backend: str) -> None:
    """Without it, one kernel computes scores, softmax and the product with values."""
    random = np.random.default_rng(0)
    query, key, value = (random.standard_normal((1, 2, 3, 4)).astype("float16") for _ in range(3))

    def build(b: ow.MLGraphBuilder, q: ow.MLOperand) -> ow.MLOperand:
        scores = b.mul(b.matmul(q, b.constant(np.ascontiguousarray(key.swapaxes(2, 3)))), 30.0)
        return b.matmul(b.softmax(scores, 3), b.constant(value))

    results = [computed(context_of(backend, p), build, query) for p in ("float32", "ieee")]  # type: ignore[arg-type]
    exact, _ = computed(ow.ml.create_context(device="reference"), build, query)
    assert KEEPS_FLOAT32 in results[0][1]
    assert KEEPS_FLOAT32 not in results[1][1]
    np.testing.assert_allclose(results[1][0], exact, rtol=2e-3, atol=2e-3)
