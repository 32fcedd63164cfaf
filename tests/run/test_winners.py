"""Operations that run as compiled expressions because an engine's own kernel is slower: the table, and what reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

import opweave as ow
from opweave import ops
from opweave.backends import discover
from opweave.compile import tuning, winners
from opweave.composites import local_response_normalization
from opweave.core.dtypes import DataType
from opweave.core.graph import Desc
from opweave.core.operation import Op
from opweave.expr import kernels
from opweave.kernels.expression import descs_of, program_of

CPU = ow.ml.create_context(device="cpu", backend="onnxruntime")
REFERENCE = ow.ml.create_context(device="reference")
compiled = pytest.mark.skipif(not kernels.has_halide(), reason="the extra halide is not installed")


@pytest.fixture
def rng() -> np.random.Generator:
    """Numbers that do not depend on which tests ran before."""
    return np.random.default_rng(0)


def normalized(x: np.ndarray, size: int, alpha: float, beta: float, bias: float) -> np.ndarray:
    """The normalisation in float64, channel by channel."""
    wide = x.astype("float64")
    with np.errstate(invalid="ignore", divide="ignore"):
        made = []
        for channel in range(x.shape[1]):
            near = wide[:, max(channel - (size - 1) // 2, 0) : channel + size // 2 + 1]
            made.append(wide[:, channel] / (bias + alpha / size * (near**2).sum(1)) ** beta)
    return np.stack(made, 1)


def hows(graph: ow.MLGraph) -> list[str]:
    return [placement.how for placement in graph.placements()]


def built(shape: tuple[int, ...], size: int = 5, *, context: ow.MLContext = CPU, **options: Any) -> ow.MLGraph:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", shape)
    return builder.build({"y": local_response_normalization(builder, x, size)}, **options)


# The normalisation ---------------------------------------------------------------------------------------------------

ATTRIBUTES = [
    {"size": 5, "alpha": 1e-4, "beta": 0.75, "bias": 1.0},
    {"size": 3, "alpha": 0.5, "beta": 0.75, "bias": 0.0},
    {"size": 4, "alpha": 0.5, "beta": 0.5, "bias": 2.0},
    {"size": 1, "alpha": 2.0, "beta": 1.0, "bias": 0.1},
    {"size": 9, "alpha": 0.3, "beta": 0.6, "bias": 1.5},
    {"size": 45, "alpha": 0.3, "beta": -1.5, "bias": 1.0},
    {"size": 5, "alpha": -0.4, "beta": 0.75, "bias": 1.0},
    {"size": 5, "alpha": 0.4, "beta": 0.5, "bias": -1.0},
    {"size": 3, "alpha": -1.0, "beta": 2.0, "bias": -1.0},
]


def has_kernel(size: int, alpha: float, beta: float, bias: float) -> bool:
    """Whether ONNX Runtime's kernel takes these attributes."""
    return size % 2 == 1 and alpha > 0 and beta > 0


@pytest.mark.parametrize("attributes", ATTRIBUTES, ids=str)
def test_local_response_normalization_with_any_attributes(rng: np.random.Generator, attributes: dict[str, Any]) -> None:
    x = rng.standard_normal((2, 6, 3, 5)).astype("float32")
    for fuse in (True, False):
        builder = ow.MLGraphBuilder(CPU)
        y = local_response_normalization(builder, builder.input("x", "float32", x.shape), **attributes)
        graph = builder.build({"y": y}, fuse=fuse)
        assert hows(graph) == ["native"] or not has_kernel(**attributes)
        got = CPU.compute(graph, {"x": x})["y"]
        np.testing.assert_allclose(got, normalized(x, **attributes), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("engine", ["numpy", pytest.param("halide", marks=compiled)])
@pytest.mark.parametrize("attributes", ATTRIBUTES, ids=str)
def test_expression_of_local_response_normalization(
    rng: np.random.Generator, engine: kernels.Engine, attributes: dict[str, Any]
) -> None:
    x = rng.standard_normal((2, 6, 3, 11)).astype("float32")
    desc = Desc("float32", x.shape)
    kernel = kernels.compile(program_of(local_response_normalization, {"input": desc}, attributes), engine)
    y = np.empty_like(x)
    kernel.run([x], [y])
    np.testing.assert_allclose(y, normalized(x, **attributes), rtol=1e-5, atol=1e-6)


@compiled
@pytest.mark.parametrize("attributes", [a for a in ATTRIBUTES if has_kernel(**a)], ids=str)
def test_expression_agrees_with_the_kernel(rng: np.random.Generator, attributes: dict[str, Any]) -> None:
    x = 3 * rng.standard_normal((1, 6, 5, 13)).astype("float32")
    x[0, 3, 2] = 0
    builder = ow.MLGraphBuilder(CPU)
    z = local_response_normalization(builder, builder.input("x", "float32", x.shape), **attributes)
    graph = builder.build({"z": z}, fuse=False)
    assert hows(graph) == ["native"]
    wanted = CPU.compute(graph, {"x": x})["z"]
    program = program_of(local_response_normalization, {"input": Desc("float32", x.shape)}, attributes)
    y = np.empty_like(x)
    kernels.compile(program, "halide").run([x], [y])
    np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-5)  # where one is NaN, so is the other


@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize("shape", [(1, 1, 4, 4), (2, 3, 1, 1), (1, 2, 5, 4)])
def test_half_precision(rng: np.random.Generator, shape: tuple[int, ...], size: int) -> None:
    x = (rng.standard_normal(shape) * 100).astype("float16")  # its squares are infinite in float16
    for context in (CPU, REFERENCE):
        builder = ow.MLGraphBuilder(context)
        y = local_response_normalization(builder, builder.input("x", "float16", shape), size, alpha=0.5, bias=2.0)
        got = context.compute(builder.build({"y": y}), {"x": x})["y"]
        wanted = normalized(x, size, 0.5, 0.75, 2.0)
        np.testing.assert_allclose(got, wanted, rtol=2e-3, atol=2e-3)


# The table -----------------------------------------------------------------------------------------------------------


def test_table_is_well_formed() -> None:
    rows = winners.winners()
    assert rows
    assert len({(row.engine, row.op, row.form, row.data_type) for row in rows}) == len(rows)
    for row in rows:
        op = winners.operation(row.op)
        assert op.formula is not None
        assert op in discover()[row.engine].rules
        assert row.data_type in get_args(DataType)
        assert row.form in ("any", "last", "other", "row", "zeros", "linear", "nearest", "cubic")
        assert row.elements > 0
        assert row.gain >= winners.min_gain(row.op)


def least() -> int:
    """The number of elements from which on the table has the normalisation."""
    (found,) = (row.elements for row in winners.winners() if row.op == "local_response_normalization")
    return found


@compiled
def test_winners_table_decides_expression(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "is_compiled", lambda: True)
    count = least()
    assert hows(built((1, 1, 1, count - 1))) == ["native"]
    assert hows(built((1, 1, 1, count))) == ["expression"]
    assert hows(built((1, 1, 1, count), fuse=False)) == ["native"]
    monkeypatch.setattr(winners, "_sizes", lambda engine: {})
    assert hows(built((1, 1, 1, count))) == ["native"]


def test_winners_without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "is_compiled", lambda: False)
    count = least()
    assert hows(built((1, 1, 1, count))) == ["native"]
    assert hows(built((1, 1, 1, count), 4)) == ["decomposed"]  # the engine has a kernel for odd sizes alone


@compiled
def test_table_is_for_one_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "is_compiled", lambda: True)
    sizes = winners._sizes("onnxruntime")
    monkeypatch.setattr(winners, "_sizes", lambda engine: sizes if engine == "another" else {})
    assert hows(built((1, 1, 1, least()))) == ["native"]


@compiled
def test_tune_overrules_the_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kernels, "is_compiled", lambda: True)
    monkeypatch.setenv("OPWEAVE_CACHE", str(tmp_path))
    monkeypatch.setattr(tuning, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(tuning, "SLICE_SECONDS", 0.0)
    shape = 1, 1, 1, least()
    graph, engine, loops = built(shape), "onnxruntime without loops", "onnxruntime"
    for fastest, how in ((engine, "native"), (loops, "expression"), (engine, "native")):
        monkeypatch.setattr(tuning, "choose", lambda ranked, seconds, builds, fastest=fastest: (fastest, ""))
        (measurement,) = graph.tune(seconds=0).measurements
        assert (list(measurement.seconds), measurement.chosen) == ([loops, engine], fastest)
        assert hows(graph) == hows(built(shape)) == [how]  # a later build follows the measurement
        assert f"engine: {fastest}" in built(shape).explain()
    assert hows(built(shape, fuse=False)) == ["native"]
    assert hows(built((1, 1, 1, least() + 1))) == ["expression"]  # another graph


@compiled
def test_local_response_normalization_between_engine_operations(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "is_compiled", lambda: True)
    x = rng.standard_normal((1, 8, 64, 64)).astype("float32")
    weight = rng.standard_normal((8, 8, 3, 3)).astype("float32")
    results = []
    for context in (CPU, REFERENCE):
        builder = ow.MLGraphBuilder(context)
        w = builder.constant(weight)
        y = builder.conv2d(builder.input("x", "float32", x.shape), w).relu()
        z = builder.relu(local_response_normalization(builder, y, 5, alpha=0.1) - 0.1)
        graph = builder.build({"z": builder.conv2d(builder.max_pool2d(z, window_dimensions=[2, 2]), w)})
        results.append(context.compute(graph, {"x": x})["z"])
        if context is CPU:  # what follows the normalisation joins its loop; what precedes it stays with the convolution
            assert hows(graph) == ["native", "native", "expression", "expression", "expression", "native", "native"]
            assert len(graph.profile(repeat=1).steps) == 3
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-4)


@compiled
def test_winners_elementwise_operation_becomes_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "is_compiled", lambda: True)
    monkeypatch.setattr(winners, "_sizes", lambda engine: {"pow": {("any", "float32"): 256}})

    def how(shape: list[int], exponent: list[int], data_type: DataType = "float32") -> str:
        builder = ow.MLGraphBuilder(CPU)
        x, y = (builder.input(name, data_type, given) for name, given in (("x", shape), ("y", exponent)))
        (found,) = hows(builder.build({"z": builder.pow(x, y)}))
        return found

    assert how([16, 16], [16, 16]) == "expression"
    assert how([16, 15], [16, 15]) == "native"
    assert how([16, 16], []) == "native"
    assert how([16, 16], [16, 16], "float16") != "expression"


# Products of one row with a constant matrix --------------------------------------------------------------------------


def dense(rows: int = 1, *, columns: int = 24, transposed: bool = True, constant: bool = True) -> ow.MLGraph:
    """Two layers, of 40 units, then of `columns`, with activations; the same in each call."""
    rng = np.random.default_rng(5)
    builder = ow.MLGraphBuilder(CPU)
    x = builder.input("x", "float32", [rows, 32])
    weights = rng.standard_normal((40, 32)).astype("float32"), rng.standard_normal((columns, 40)).astype("float32")
    for number, weight in enumerate(weights):
        if constant:
            matrix = builder.constant(weight if transposed else np.ascontiguousarray(weight.T))
        else:
            matrix = builder.input(f"w{number}", "float32", weight.shape if transposed else weight.shape[::-1])
        bias = builder.constant(rng.standard_normal(len(weight)).astype("float32"))
        x = builder.relu(builder.gemm(x, matrix, c=bias, b_transpose=transposed))
    return builder.build({"y": x})


@compiled
def test_rows_times_matrices_become_loops_with_their_activations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "is_compiled", lambda: True)
    monkeypatch.setattr(winners, "_sizes", lambda engine: {"gemm": {("row", "float32"): 40 * 24}})
    graph = dense()
    assert hows(graph) == ["expression"] * 4
    assert len(graph.profile(repeat=1).steps) == 2  # a product and its activation are one loop
    assert hows(dense(columns=23)) == ["expression", "expression", "native", "native"]  # a smaller matrix
    for other in (dense(2), dense(transposed=False), dense(constant=False)):
        assert hows(other) == ["native"] * 4


@compiled
def test_rows_times_matrices_agree_with_the_engine(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "is_compiled", lambda: True)
    x = rng.standard_normal((1, 32)).astype("float32")
    results = []
    for least in (0, 10**9):
        monkeypatch.setattr(winners, "_sizes", lambda engine, least=least: {"gemm": {("row", "float32"): least}})
        results.append(CPU.compute(dense(), {"x": x})["y"])
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-5)


def test_winners_table_has_large_matrices_only() -> None:
    (row,) = (row for row in winners.winners() if row.op == "gemm")
    assert row.form == "row"
    assert row.elements >= 2**20


# Formulas that are used only where they win --------------------------------------------------------------------------

ALTERNATIVES = [op for op in ops.Operations.listing().values() if op.is_alternative and op is not ops.gemm]


def calls_of(op: Op[..., Any]) -> list[dict[str, Any]]:
    """Attributes of calls of an operation on three dimensions."""
    if op is ops.softmax:
        return [{"axis": axis} for axis in range(3)]
    keeps = [{"keep_dimensions": keep} for keep in (False, True)]
    if "axis" in op.attributes:
        return [
            {"axis": axis, **keep, "output_data_type": type}
            for axis in range(3)
            for keep in keeps
            for type in ("int32", "int64")
        ]
    return [{"axes": axes, **keep} for axes in ([], [0], [1], [2], [0, 2], [0, 1, 2]) for keep in keeps]


@pytest.mark.parametrize(
    ("data_type", "engine"),
    [("float32", "numpy"), ("float16", "numpy"), pytest.param("float32", "halide", marks=compiled)],
)
@pytest.mark.parametrize("op", ALTERNATIVES, ids=lambda op: op.name)
def test_formulas_agree_with_the_reference(
    rng: np.random.Generator, op: Op[..., Any], data_type: DataType, engine: kernels.Engine
) -> None:
    x = (rng.random((5, 3, 9)) + 0.5).astype(data_type)
    calls = calls_of(op)
    for attributes in calls if engine == "numpy" else calls[-3:-2]:  # one, since compiling takes long
        builder = ow.MLGraphBuilder(REFERENCE)
        y = op.add(builder, (builder.input("x", data_type, x.shape),), attributes)
        program = program_of(op, {"input": Desc(data_type, x.shape)}, y.node.attributes)
        got = np.empty(y.shape, y.data_type)
        kernels.compile(program, engine).run([x], [got])
        wanted = REFERENCE.compute(builder.build({"y": y}), {"x": x})["y"]
        tolerance = 1e-5 if data_type == "float32" else 2e-3
        np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance, err_msg=str(attributes))


GEMMS: list[tuple[tuple[int, ...] | None, dict[str, Any]]] = [
    (None, {}),
    ((), {"beta": 0.5}),
    ((1,), {"a_transpose": True}),
    ((11,), {"b_transpose": True, "alpha": 0.25}),
    ((5, 1), {"a_transpose": True, "b_transpose": True}),
    ((1, 11), {"alpha": 2.0, "beta": -1.5}),
    ((5, 11), {"b_transpose": True}),
]


@pytest.mark.parametrize(
    ("data_type", "engine"),
    [("float32", "numpy"), ("float16", "numpy"), pytest.param("float32", "halide", marks=compiled)],
)
@pytest.mark.parametrize(("added", "attributes"), GEMMS, ids=str)
def test_formula_of_gemm(
    rng: np.random.Generator,
    added: tuple[int, ...] | None,
    attributes: dict[str, Any],
    data_type: DataType,
    engine: kernels.Engine,
) -> None:
    a = rng.standard_normal((7, 5) if attributes.get("a_transpose") else (5, 7)).astype(data_type)
    b = rng.standard_normal((11, 7) if attributes.get("b_transpose") else (7, 11)).astype(data_type)
    feed = {"a": a, "b": b} | ({} if added is None else {"c": rng.standard_normal(added).astype(data_type)})
    builder = ow.MLGraphBuilder(REFERENCE)
    operands = {name: builder.input(name, data_type, array.shape) for name, array in feed.items()}
    y = builder.gemm(*(operands[name] for name in "ab"), c=operands.get("c"), **attributes)
    node = y.node
    assert node is not None
    program = program_of(ops.gemm, descs_of(node.inputs), node.attributes)
    got = np.empty(y.shape, data_type)
    kernels.compile(program, engine).run(list(feed.values()), [got])
    wanted = REFERENCE.compute(builder.build({"y": y}), feed)["y"]
    tolerance = 1e-5 if data_type == "float32" else 5e-3
    np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)


@compiled
@pytest.mark.parametrize("op", [ops.reduce_log_sum_exp, ops.softmax], ids=lambda op: op.name)
def test_formulas_of_infinities_and_nan(op: Op[..., Any]) -> None:
    x = np.float32(
        [[np.inf, 1, 2], [-np.inf, -np.inf, -np.inf], [-np.inf, 0, 1000], [np.nan, 1, 2], [-1000, -1000, -1000]]
    )
    results = []
    for context in (CPU, REFERENCE):
        builder = ow.MLGraphBuilder(context)
        attributes: dict[str, Any] = {"axis": 1} if op is ops.softmax else {"axes": [1]}
        y = op.add(builder, (builder.input("x", "float32", x.shape),), attributes)
        results.append(context.compute(builder.build({"y": y}), {"x": x})["y"])
    program = program_of(op, {"input": Desc("float32", x.shape)}, y.node.attributes)
    got = np.empty(y.shape, "float32")
    kernels.compile(program, "halide").run([x], [got])
    for wanted in results:
        np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_alternatives_are_chosen_by_the_table_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def how(axis: int) -> str:
        builder = ow.MLGraphBuilder(CPU)
        (found,) = hows(builder.build({"y": builder.softmax(builder.input("x", "float32", [8, 16, 32]), axis)}))
        return found

    monkeypatch.setattr(kernels, "is_compiled", kernels.has_halide)
    monkeypatch.setattr(winners, "_sizes", lambda engine: {"softmax": {("other", "float32"): 4096}})
    assert [how(axis) for axis in range(3)] == (["expression"] * 2 if kernels.has_halide() else ["native"] * 2) + [
        "native"
    ]
    monkeypatch.setattr(winners, "_sizes", lambda engine: {"softmax": {("other", "float32"): 4097}})
    assert how(0) == "native"
