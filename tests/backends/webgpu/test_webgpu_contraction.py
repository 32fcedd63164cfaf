"""Matrix products and convolutions as compute shaders, run on the first Vulkan adapter, against the reference back end.

Values lie on a grid on which sums of products are exact, in whatever order they are added: results are equal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from support.wgsl_runner import Runner

import opweave as ow
from opweave.backends.gpu.contraction import tiles as tile_choice
from opweave.backends.gpu.contraction.kernels import Contraction
from opweave.backends.gpu.contraction.named import parts_for
from opweave.backends.gpu.contraction.problem import Problem
from opweave.backends.gpu.contraction.tiled import Tile
from opweave.backends.gpu.contraction.tiles import SHAPES, choose
from opweave.backends.webgpu import webgpu
from opweave.core.graph import Node
from opweave.core.guards import Guards
from opweave.core.operation import call_with
from opweave.expr import ir
from opweave.expr.array import axes_of
from opweave.expr.gpu import Features, GpuKernel
from opweave.expr.tracing import inputs_of, make_formula, of_input

FLOAT16 = Features(float16=True, max_buffers=16)
PACKED = Features(float16=False, max_buffers=16)
SOFTWARE = Features(float16=True, max_buffers=16, is_software=True)
GRAPHICS = Features(float16=True, max_shared=49152)


@lru_cache
def context() -> ow.MLContext:
    return ow.ml.create_context(device="reference")


@dataclass
class Row:
    """A call of an operation.

    Attributes:
        op: its name.
        shapes: of its operands, by name.
        options: its attributes.
        constants: the operands that are constants.
    """

    op: str
    shapes: dict[str, tuple[int, ...]]
    options: dict[str, Any] = field(default_factory=dict)
    constants: tuple[str, ...] = ()

    def __str__(self) -> str:
        shapes = "-".join("x".join(map(str, shape)) for shape in self.shapes.values())
        options = ",".join(f"{k}={v}" for k, v in self.options.items())
        return ":".join(filter(None, (self.op, shapes, options, "+".join(self.constants)))).replace(" ", "")


def matmul(a: tuple[int, ...], b: tuple[int, ...], *constants: str) -> Row:
    return Row("matmul", {"a": a, "b": b}, {}, constants)


def gemm(
    a: tuple[int, ...], b: tuple[int, ...], *constants: str, c: tuple[int, ...] | None = None, **options: Any
) -> Row:
    return Row("gemm", {"a": a, "b": b} | ({} if c is None else {"c": c}), options, constants)


def conv(input: tuple[int, ...], filter: tuple[int, ...], *constants: str, bias: int = 0, **options: Any) -> Row:
    shapes = {"input": input, "filter": filter} | ({"bias": (bias,)} if bias else {})
    return Row("conv2d", shapes, options, constants)


def transposed(input: tuple[int, ...], filter: tuple[int, ...], *constants: str, bias: int = 0, **options: Any) -> Row:
    return Row("conv_transpose2d", conv(input, filter, bias=bias).shapes, options, constants)


def values_of(row: Row, data_type: str = "float32", seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {name: (random.integers(-4, 5, shape) / 4).astype(data_type) for name, shape in row.shapes.items()}


def as_input(builder: ow.MLGraphBuilder, name: str, value: np.ndarray) -> ow.MLOperand:
    return builder.input(name, value.dtype.name, value.shape)  # type: ignore[arg-type]


def node_of(row: Row, values: Mapping[str, np.ndarray]) -> Node:
    builder = ow.MLGraphBuilder(context())
    operands = {
        name: builder.constant(value) if name in row.constants else as_input(builder, name, value)
        for name, value in values.items()
    }
    node = getattr(builder, row.op)(**operands, **row.options).node
    assert isinstance(node, Node)
    return node


def expected(row: Row, values: Mapping[str, np.ndarray]) -> np.ndarray:
    builder = ow.MLGraphBuilder(context())
    operands = {name: as_input(builder, name, value) for name, value in values.items()}
    graph = builder.build({"y": getattr(builder, row.op)(**operands, **row.options)})
    return np.asarray(context().compute(graph, dict(values))["y"])


@dataclass
class Made:
    """The kernels of a call, the inputs of its operands, and its result, given the sums."""

    contraction: Contraction
    inputs: tuple[ir.Input, ...]
    result: ow.expr.Traced

    def kernels(self, epilogue: ir.Formula | None = None) -> list[GpuKernel]:
        """The kernels; those of the call itself without an epilogue."""
        if epilogue is None and not isinstance(self.result.body, ir.Load):
            sources = tuple(source for source in ir.sources(self.result.body) if isinstance(source, ir.Input))
            epilogue = make_formula("result", sources, (self.result,))
        return self.contraction.kernels(epilogue, "sample")


def made(row: Row, values: Mapping[str, np.ndarray], features: Features) -> Made:
    node = node_of(row, values)
    (rule,) = webgpu.rules[node.op]
    inputs, arrays = inputs_of([operand.desc for operand in node.operands])
    named = dict(zip(values, arrays, strict=True))
    products = call_with(rule.function, {**dict.fromkeys(node.inputs), **named, **node.attributes})
    constants = {source: values[name] for name, source in zip(values, inputs, strict=True) if name in row.constants}
    result = ir.Input(len(inputs), node.outputs[0].desc)
    found = Contraction(products.problem, result, constants, features)
    return Made(found, inputs, products.finish(of_input(result)))


def computed(
    found: Made,
    values: Sequence[np.ndarray],
    epilogue: ir.Formula | None = None,
    others: Mapping[ir.Input, np.ndarray] | None = None,
) -> np.ndarray:
    """What the kernels write."""
    contraction, kernels = found.contraction, found.kernels(epilogue)
    runner = Runner(contraction.features)
    arranged = {source: constant.make() for source, constant in contraction.arranged.items()}
    sources = dict(zip(found.inputs, values, strict=True)) | arranged | dict(others or {})
    for source, value in sources.items():
        assert value.shape == source.desc.shape
        runner.fill(source, value)
    runner.run(kernels)
    return runner.result(kernels[-1].bindings[-1])


def check_contraction(row: Row, features: Features = FLOAT16, data_type: str = "float32") -> Made:
    values = values_of(row, data_type)
    found = made(row, values, features)
    np.testing.assert_array_equal(computed(found, list(values.values())), expected(row, values))
    return found


ROWS = (
    # Products: whole vectors and not, one term, one element, stacks that broadcast, a stack on one side only.
    matmul((33, 36), (36, 28)),
    matmul((33, 37), (37, 29)),
    matmul((10, 1), (1, 12)),
    matmul((1, 1), (1, 1)),
    matmul((3, 1, 9, 7), (2, 7, 10)),
    matmul((2, 3, 10, 8), (8, 12), "b"),
    matmul((9, 8), (3, 8, 12), "a"),
    matmul((5, 1, 12, 20), (1, 4, 20, 16), "b"),
    *(
        gemm((40, 16) if i else (16, 40), (24, 40) if j else (40, 24), *names, a_transpose=i, b_transpose=j)
        for i, j, names in ((False, True, ()), (True, False, ()), (True, True, ()), (True, True, ("a", "b")))
    ),
    gemm((9, 5), (5, 10), c=(10,), alpha=0.5, beta=2.0),
    gemm((9, 5), (5, 10), "c", c=(9, 1), beta=-1.0),
    gemm((9, 5), (5, 12), c=()),
    # A vector, or a few, times a matrix.
    matmul((1, 64), (64, 100)),
    matmul((3, 67), (67, 10)),
    matmul((3, 67), (67, 10), "b"),
    matmul((1, 200), (200, 70), "b"),
    matmul((5, 36), (36, 33), "b"),
    matmul((100, 64), (64, 2), "a"),
    matmul((2, 3, 64), (2, 64, 20), "b"),
    gemm((64, 1), (64, 50), "b", a_transpose=True),
    gemm((64, 3), (64, 50), "b", a_transpose=True, c=(50,)),
    gemm((2, 72), (40, 72), "b", b_transpose=True),
    matmul((100, 67), (67, 1)),
    matmul((2, 100, 64), (64, 3), "a"),
    matmul((2, 30, 64), (2, 64, 3)),
    gemm((2, 300), (77, 300), b_transpose=True, c=(77,)),
    gemm((1, 512), (600, 512), b_transpose=True),
    conv((1, 40, 1, 1), (20, 40, 1, 1), "filter", bias=20),
    # Convolutions: padding, strides, dilations, layouts, images that end in the midst of a tile.
    conv((1, 20, 10, 10), (20, 20, 3, 3), "filter", padding=(1, 1, 1, 1), bias=20),
    conv((2, 20, 10, 10), (20, 20, 3, 3), padding=(1, 0, 2, 1)),
    conv((1, 3, 20, 20), (8, 3, 7, 7), "filter", padding=(3, 3, 3, 3), strides=(2, 2)),
    conv((2, 16, 7, 9), (10, 16, 2, 3), "filter", dilations=(2, 3), strides=(1, 2)),
    conv((1, 16, 8, 8), (20, 16, 1, 1), "filter"),
    conv((2, 16, 7, 7), (20, 16, 1, 1), strides=(2, 2)),
    conv((1, 5, 4, 4), (3, 5, 4, 4), "filter", bias=3),
    *(
        conv((2, 6, 5, 16), shape, *names, input_layout="nhwc", filter_layout=layout, padding=(1, 1, 1, 1), bias=12)
        for layout, shape in (("oihw", (12, 16, 3, 3)), ("hwio", (3, 3, 16, 12)), ("ohwi", (12, 3, 3, 16)))
        for names in ((), ("filter",))
    ),
    conv((1, 16, 6, 5), (16, 3, 3, 12), filter_layout="ihwo"),
    conv((1, 6, 5, 7), (3, 3, 7, 9), "filter", input_layout="nhwc", filter_layout="hwio"),
    conv((2, 6, 6, 16), (1, 1, 16, 12), "filter", input_layout="nhwc", filter_layout="hwio"),
    # Groups: many outputs each in tiles, few of them directly.
    conv((2, 24, 7, 8), (24, 12, 3, 3), "filter", groups=2, padding=(1, 1, 1, 1), bias=24),
    conv((2, 7, 8, 24), (3, 3, 12, 24), groups=2, input_layout="nhwc", filter_layout="hwio"),
    conv((2, 8, 9, 10), (8, 1, 3, 3), "filter", groups=8, padding=(1, 1, 1, 1), bias=8),
    conv(
        (2, 9, 10, 8),
        (3, 3, 1, 8),
        groups=8,
        padding=(1, 0, 1, 2),
        strides=(2, 1),
        input_layout="nhwc",
        filter_layout="hwio",
    ),
    conv(
        (2, 9, 10, 8),
        (3, 3, 1, 8),
        "filter",
        groups=8,
        strides=(1, 2),
        bias=8,
        input_layout="nhwc",
        filter_layout="hwio",
    ),
    conv(
        (1, 7, 5, 12),
        (12, 3, 2, 1),
        "filter",
        groups=12,
        padding=(1, 1, 1, 1),
        input_layout="nhwc",
        filter_layout="ohwi",
    ),
    conv((1, 80, 5, 6), (4, 40, 3, 3), groups=2, dilations=(2, 1), padding=(2, 2, 2, 2)),
    conv((2, 8, 9, 10), (8, 2, 1, 1), groups=4),
    # Few outputs of all groups, at many positions.
    conv((1, 4, 370, 372), (3, 4, 3, 3), "filter", padding=(1, 1, 1, 1), bias=3),
    conv((2, 260, 257, 20), (4, 2, 2, 20), input_layout="nhwc", filter_layout="ohwi"),
    conv((1, 24, 6, 7), (9, 8, 3, 3), "filter", groups=3, bias=9),
    # Transposed convolutions.
    transposed((2, 4, 5, 5), (4, 6, 3, 3), strides=(2, 2), padding=(1, 0, 1, 0), output_padding=(1, 0)),
    transposed((1, 16, 4, 5), (16, 12, 2, 2), "filter", strides=(2, 2), bias=12),
    transposed((1, 4, 5, 8), (3, 2, 6, 8), dilations=(2, 1), input_layout="nhwc", filter_layout="hwoi"),
    *(
        transposed((2, 12, 5, 6), (12, 10, *kernel), "filter", strides=strides, padding=padding, bias=10)
        for kernel, strides, padding in (
            ((3, 3), (2, 2), (1, 0, 1, 0)),
            ((4, 5), (3, 2), (4, 3, 2, 1)),
            ((2, 2), (3, 4), (0,) * 4),
        )
    ),
    transposed(
        (2, 5, 6, 24), (9, 3, 3, 24), "filter", strides=(2, 1), groups=2, input_layout="nhwc", filter_layout="ohwi"
    ),
    transposed((1, 20, 4, 4), (20, 10, 3, 3), groups=2, strides=(1, 2)),
    transposed((2, 8, 5, 6), (8, 2, 3, 3), "filter", groups=4, strides=(2, 3), padding=(1, 0, 0, 1)),
    transposed((2, 5, 5, 4), (2, 3, 3, 4), groups=2, strides=(2, 3), input_layout="nhwc", filter_layout="ohwi", bias=4),
)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_kernels_agree_with_the_reference(row: Row) -> None:
    check_contraction(row)


HALVES = tuple(ROWS[k] for k in (0, 1, 4, 5, 12, 15, 18, 21)) + tuple(row for row in ROWS if "conv" in row.op)[::4]


@pytest.mark.parametrize("features", [FLOAT16, PACKED], ids=["f16", "packed"])
@pytest.mark.parametrize("row", HALVES, ids=str)
def test_float16_is_summed_up_in_float32(row: Row, features: Features) -> None:
    check_contraction(row, features, "float16")


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize(
    "shape", SHAPES, ids=lambda shape: f"{shape.rows}x{shape.columns}/{shape.height}x{shape.width}"
)
def test_tile_tails(shape: Any, splits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # The text of deeper and larger ones takes a software device long.
    depth = 20 if shape.rows + shape.columns <= 96 and splits > 1 else 8
    tile = Tile(shape.rows, shape.columns, depth, shape.height, shape.width)
    monkeypatch.setattr(tile_choice, "choose", lambda problem, features: (tile, splits))
    check_contraction(conv((2, 20, 9, 10), (36, 20, 3, 3), "filter", padding=(1, 1, 1, 1), bias=36))
    if shape.rows + shape.columns <= 128 and splits == 1:
        check_contraction(matmul((2, 70, 63), (63, 70)))
        check_contraction(conv((2, 9, 10, 12), (20, 3, 3, 12), input_layout="nhwc", filter_layout="ohwi"))


def relu_with_more(found: Made, data_type: str) -> tuple[ir.Formula, ir.Input, ir.Input]:
    """max(result + residual, 0) * scale, where the scale has the size of the last axis, as another data type."""
    contraction = found.contraction
    desc = contraction.result.desc
    residual, scale = ir.Input(0, desc), ir.Input(1, ow.Desc(desc.data_type, desc.shape[-1:]))
    axes = axes_of(desc.shape)
    total = ir.call("add", found.result.body, ir.Load(residual, axes))
    zero = ir.number(0.0, desc.data_type)
    body = ir.call("mul", ir.call("max", total, zero), ir.Load(scale, axes[-1:]))
    if data_type == "uint8":
        body = ir.call("greater", body, zero)
    elif data_type != desc.data_type:
        body = ir.Cast(body, data_type)  # type: ignore[arg-type]
    program = ir.Formula("relu", (contraction.result, residual, scale), (ir.Output(axes, body),))
    return program, residual, scale


@pytest.mark.parametrize("data_type", ["float32", "float16", "int32", "uint8"])
@pytest.mark.parametrize(
    "row",
    [
        matmul((2, 9, 20), (20, 10)),
        gemm((2, 40), (40, 12), c=(12,), beta=0.5),
        conv((2, 12, 5, 6), (10, 12, 3, 3), "filter", bias=10),
        conv((2, 5, 6, 8), (3, 3, 1, 8), bias=8, groups=8, input_layout="nhwc", filter_layout="hwio"),
    ],
    ids=str,
)
def test_epilogue_is_in_the_same_kernel(row: Row, data_type: str) -> None:
    values = values_of(row)
    found = made(row, values, FLOAT16)
    program, residual, scale = relu_with_more(found, data_type)
    random = np.random.default_rng(1)
    others = {source: (random.integers(-4, 5, source.desc.shape) / 4).astype("float32") for source in (residual, scale)}
    got = computed(found, list(values.values()), program, others)
    want = np.maximum(expected(row, values) + others[residual], 0) * others[scale]
    np.testing.assert_array_equal(got, want > 0 if data_type == "uint8" else want.astype(data_type))
    if data_type == "float32":
        assert len(found.kernels(program)) == 1


@pytest.mark.parametrize("features", [FLOAT16, PACKED], ids=["f16", "packed"])
def test_epilogue_of_phases(features: Features) -> None:
    row = transposed((1, 12, 4, 5), (12, 6, 3, 3), "filter", strides=(2, 2), padding=(1, 0, 1, 0), bias=6)
    values = values_of(row, "float16")
    found = made(row, values, features)
    assert found.contraction.problem.layout.phases == 4
    program, residual, scale = relu_with_more(found, "float16")
    others = {source: (np.arange(source.desc.element_count) % 5).astype("float16") for source in (residual, scale)}
    others = {source: value.reshape(source.desc.shape) for source, value in others.items()}
    want = np.maximum(expected(row, values).astype("float32") + others[residual], 0) * others[scale]
    np.testing.assert_allclose(computed(found, list(values.values()), program, others), want, rtol=1e-3)


@pytest.mark.parametrize("features", [FLOAT16, PACKED], ids=["f16", "packed"])
def test_epilogue_of_split_k(features: Features, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tile_choice, "choose", lambda problem, features: (Tile(32, 32, 16, 4, 4), 4))
    row = conv((1, 32, 5, 5), (7, 32, 3, 3), "filter", bias=7)
    values = values_of(row, "float16")
    found = made(row, values, features)
    program, residual, scale = relu_with_more(found, "float16")
    others = {source: np.ones(source.desc.shape, "float16") for source in (residual, scale)}
    got = computed(found, list(values.values()), program, others)
    want = np.maximum(expected(row, values).astype("float32") + 1, 0).astype("float16")
    np.testing.assert_allclose(got, want, rtol=1e-3)
    first, second, *_ = found.kernels(program)
    (parts,) = (buffer for buffer in first.bindings if isinstance(buffer, ir.Stored))
    assert parts in second.bindings


def test_epilogue_reads_at_written_position() -> None:
    row = matmul((10, 20), (20, 10))
    found = made(row, values_of(row), FLOAT16)
    axes = tuple(ir.Index(10, k - 2) for k in range(2))
    total = found.contraction.result
    program = ir.Formula("turned", (total,), (ir.Output(axes, ir.Load(total, axes[::-1])),))
    with pytest.raises(AssertionError, match="sample: the epilogue must read the result at the position"):
        found.kernels(program)


@pytest.mark.parametrize(
    "row",
    [
        matmul((40, 5), (5, 36)),
        gemm((40, 5), (36, 5), b_transpose=True),
        conv((1, 5, 6, 6), (12, 5, 3, 3), padding=(1, 1, 1, 1)),
        conv((1, 6, 6, 5), (12, 5, 3, 3), padding=(1, 1, 1, 1), input_layout="nhwc"),
        matmul((2, 45), (45, 36)),
    ],
    ids=str,
)
def test_contraction_ignores_infinities_beyond_its_terms(row: Row) -> None:
    """Steps go over the ends of lines and images, where other elements lie: infinity times 0 would be NaN."""
    values = values_of(row)
    names = list(values)
    values[names[0]].reshape(-1)[-1] = np.inf
    values[names[1]] = np.abs(values[names[1]]) + 1
    found = made(row, values, FLOAT16)
    got, want = computed(found, list(values.values())), expected(row, values)
    assert np.isinf(want).sum() <= want.size / 2
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[finite], want[finite])
    if row.op != "conv2d":
        np.testing.assert_array_equal(got, want)


def test_sums_are_accurate() -> None:
    random = np.random.default_rng(0)
    row = conv((1, 64, 12, 12), (32, 64, 3, 3), "filter", padding=(1, 1, 1, 1))
    values = {name: random.standard_normal(shape, "float32") for name, shape in row.shapes.items()}
    got = computed(made(row, values, FLOAT16), list(values.values()))
    want = expected(row, {name: value.astype("float64").astype("float32") for name, value in values.items()})
    assert np.abs(got - want).max() < 2e-6 * np.abs(want).max() * 4


# Choices --------------------------------------------------------------------------------------------------------------


def problem_of(row: Row) -> Problem:
    return made(row, values_of(row), GRAPHICS).contraction.problem


def chosen(row: Row, features: Features = GRAPHICS) -> tuple[Tile, int]:
    return choose(problem_of(row), features)


def test_much_work_is_done_in_large_tiles() -> None:
    tile, splits = chosen(matmul((2048, 64), (64, 4096)))
    assert (tile.rows, tile.columns, splits) == (128, 128, 1)


def test_deep_sums_of_few_elements_are_divided() -> None:
    _, splits = chosen(conv((1, 512, 7, 7), (512, 512, 3, 3), "filter", padding=(1, 1, 1, 1)))
    assert splits >= 8
    assert chosen(conv((1, 64, 56, 56), (64, 64, 1, 1), "filter")) == (Tile(32, 32, 16, 4, 4), 1)


@pytest.mark.parametrize(("columns", "parts"), [(48, [8, 8, 8]), (480, [8, 5, 3])])
def test_larger_sizes_have_fewer_parts_if_partial_sums_are_large(columns: int, parts: list[int]) -> None:
    problem, n = problem_of(matmul((480, 480), (480, 480))), ow.Size("n")
    with Guards({"n": columns}).deciding():
        formula = parts_for(replace(problem, columns=n), Tile(128, 128, 16, 8, 8), 8, replace(GRAPHICS, units=132))
    assert isinstance(formula, ow.Size)
    assert [formula.at({"n": factor * columns // 4}) for factor in (4, 6, 10)] == parts


def test_small_devices_divide_less() -> None:
    row = conv((1, 256, 14, 14), (256, 256, 3, 3), "filter", padding=(1, 1, 1, 1))
    (_, many), (_, few) = chosen(row), chosen(row, Features(units=16))
    assert few < many


def test_steps_leave_little_out() -> None:
    tile, _ = chosen(conv((1, 100, 30, 30), (100, 100, 3, 3), "filter"))
    assert tile.depth == 20  # 5 steps of 100 channels; 7 of 16 were 112


def test_software_adapter_gets_small_tiles() -> None:
    assert chosen(matmul((2048, 64), (64, 2048)), SOFTWARE) == (Tile(32, 32, 16, 4, 4), 1)


@pytest.mark.parametrize("shape", [(5, 5), (64, 4096), (3000, 3000), (100000, 16)])
@pytest.mark.parametrize("features", [Features(), GRAPHICS, Features(max_invocations=64, max_shared=8192)])
def test_limits_of_devices_hold(shape: tuple[int, int], features: Features) -> None:
    problem = problem_of(matmul((shape[0], 40), (40, shape[1])))
    tile, _ = choose(problem, features)
    assert tile.shared_bytes <= features.max_shared
    assert tile.invocations <= features.max_invocations


@pytest.mark.long
@pytest.mark.parametrize("row", [matmul((70000, 2, 3), (70000, 3, 2)), matmul((70000, 1, 40), (70000, 40, 2))], ids=str)
def test_stacks_exceed_workgroup_limit(row: Row) -> None:
    assert all(max(kernel.workgroups) <= 65535 for kernel in check_contraction(row).kernels())


# Text -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", [ROWS[0], ROWS[15], ROWS[19], ROWS[-3]], ids=str)
def test_text_is_stable(row: Row) -> None:
    texts = [[kernel.source for kernel in made(row, values_of(row), FLOAT16).kernels()] for _ in range(2)]
    assert texts[0] == texts[1]


def test_kernel_text_is_unrolled_and_titled() -> None:
    row = conv((1, 16, 8, 8), (32, 16, 3, 3), "filter", padding=(1, 1, 1, 1), bias=32)
    (kernel,) = made(row, values_of(row), SOFTWARE).kernels()
    assert kernel.source.startswith("// 32 x 64, sums of 144; tiles of 32x32x16/4x4\n")
    assert kernel.workgroups == (2, 1, 1)
    assert kernel.writes == (False, False, False, True)
    body = kernel.source.partition("fn main(")[2]
    assert len(re.findall(r"sum_\d_0 = fma\(", body)) == 16 * 4
    assert body.count("for (") == 1
    assert "enable f16" not in kernel.source


def test_constants_are_laid_out_once_for_whole_vectors() -> None:
    row = conv((1, 5, 8, 8), (6, 5, 3, 3), "filter")
    values = values_of(row)
    found = made(row, values, FLOAT16)
    ((source, constant),) = found.contraction.arranged.items()
    laid = constant.make()
    assert source.desc.shape == laid.shape == (9, 5, 8)
    np.testing.assert_array_equal(laid[..., :6], values["filter"].reshape(6, 5, 9).transpose(2, 1, 0))
    assert not laid[..., 6:].any()


def test_rows_cover_all_methods() -> None:
    methods = {made(row, values_of(row), FLOAT16).contraction.method for row in ROWS}
    assert methods == {"tiled", "thin", "narrow"}
