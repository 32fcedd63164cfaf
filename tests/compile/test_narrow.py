"""Products and lookups that read narrow numbers: which forms do, and that results are those of the dequantised matrix."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from fuzz.narrow import BLOCKS
from onnx import helper, numpy_helper

import opweave as ow
from opweave.backends.onnxruntime import narrow_models
from opweave.backends.onnxruntime.model import evaluate
from opweave.backends.onnxruntime.narrow import kernel_block
from opweave.compile import constants as shared_constants
from opweave.composites import convolution as convolution3d, gather_n_bits, matmul_n_bits, rms_normalization
from opweave.composites.packing import QuantizedConstant
from opweave.core.dtypes import numpy_type

CPU = ow.ml.create_context(device="cpu", backend="onnxruntime", drafts=True)
IEEE = ow.ml.create_context(device="cpu", backend="onnxruntime", precision="ieee", drafts=True)
TYPES: dict[str, tuple[Any, int, int]] = {
    "uint4": (ml_dtypes.uint4, 0, 16),
    "int4": (ml_dtypes.int4, -8, 8),
    "uint8": (np.uint8, 0, 256),
    "int8": (np.int8, -128, 128),
}
NARROW = "narrow numbers"
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]


def quantised(data_type: str, shape: Sequence[int], part: Sequence[int], float_type: str = "float32") -> Arrays:
    """Numbers, scales and zero points."""
    rng, (dtype, low, high) = np.random.default_rng(len(data_type)), TYPES[data_type]
    scale = (rng.integers(1, 64, part) / 512).astype(float_type)
    return rng.integers(low, high, shape).astype(dtype), scale, rng.integers(low, high, part).astype(dtype)


def real(arrays: Arrays) -> np.ndarray:
    numbers, scale, zero = (array.astype(np.float64) for array in arrays)
    for axis, (whole, part) in enumerate(zip(numbers.shape, scale.shape, strict=True)):
        scale, zero = (np.repeat(array, whole // part, axis) for array in (scale, zero))
    product: np.ndarray = (numbers - zero) * scale
    return product


def exact_rows(*shape: int) -> np.ndarray:
    """Numbers that 8 bits hold in blocks of 16 along the last axis."""
    x = np.random.default_rng(3).integers(-127, 128, shape)
    x[..., ::16] = 127
    return (x / 128).astype("float32")


def dequantised(b: ow.MLGraphBuilder, arrays: Arrays) -> ow.MLOperand:
    return b.dequantize_linear(*(b.constant(array) for array in arrays))


def run(
    context: ow.MLContext, build: Callable[[ow.MLGraphBuilder, ow.MLOperand], ow.MLOperand], x: np.ndarray
) -> tuple[np.ndarray, str]:
    b = ow.MLGraphBuilder(context)
    graph = b.build({"y": build(b, b.input("x", x.dtype.name, x.shape))})  # type: ignore[arg-type]
    return context.compute(graph, {"x": x})["y"], graph.explain()


def engine_result(model: onnx.ModelProto, feed: dict[str, Any]) -> np.ndarray:
    """The result of the engine for the rewritten model; a session compiles a model that the engine fails to run."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model)
    results = evaluate(proto, feed)
    assert results is not None
    return np.asarray(results[0])


PARTS: dict[str, tuple[tuple[int, int], bool, bool, bool]] = {
    "tensor": ((1, 1), True, True, True),
    "columns": ((1, 24), True, True, True),
    "blocks of 32": ((3, 24), True, True, True),
    "blocks of 48": ((2, 24), True, True, True),
    "blocks of 96": ((1, 1), True, True, True),
    "blocks of 12": ((8, 24), True, True, False),
    "blocks of 6": ((16, 24), True, True, False),
    "blocks of 3": ((32, 24), False, False, False),
    "rows": ((96, 1), True, False, False),
    "blocks of columns": ((96, 3), False, False, False),
    "blocks along both": ((3, 3), True, True, True),
}
"""Shapes of scales for a matrix [96, 24]; whether kernels take them, also for "ieee", and whether they round."""


@pytest.mark.parametrize("data_type", TYPES)
@pytest.mark.parametrize("form", PARTS)
def test_products_read_narrow_numbers(form: str, data_type: str) -> None:
    part, is_narrow, is_narrow_in_ieee, rounds = PARTS[form]
    arrays, x = quantised(data_type, (96, 24), part), exact_rows(5, 96)
    wanted = x.astype(np.float64) @ real(arrays)
    for context in (CPU, IEEE):
        got, text = run(context, lambda b, x: b.matmul(x, dequantised(b, arrays)), x)
        # ONNX Runtime's kernel for 8 bits without rounding takes longer than a product of floats.
        in_ieee = is_narrow_in_ieee and data_type.endswith("4")
        assert (NARROW in text) == (is_narrow if context is CPU else in_ieee)
        assert ("rounded to 8 bits" in text) == (rounds and context is CPU)
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=2e-6 * 2 ** TYPES[data_type][2].bit_length())


WIDE = {
    "blocks of columns": (96, 4),
    "rows": (96, 1),
    "pairs of rows": (48, 4),
    "blocks of 24": (4, 128),
    "blocks of 12 along both": (8, 4),
}


@pytest.mark.parametrize("zero", ["none", "one", "each"])
@pytest.mark.parametrize("float_type", ["float32", "float16"])
@pytest.mark.parametrize("data_type", TYPES)
@pytest.mark.parametrize("form", WIDE)
def test_products_with_scales_that_kernels_do_not_take(form: str, data_type: str, float_type: str, zero: str) -> None:
    """Inputs are padded or scaled, and not rounded: random numbers, for which 8 bits are too few."""
    part, low = WIDE[form], TYPES[data_type][1]
    numbers, scale, zeros = quantised(data_type, (96, 128), part, float_type)
    if zero != "each":
        zeros = np.full_like(zeros, 0 if low else 8) if zero == "none" else np.full_like(zeros, low + 5)
    x = np.random.default_rng(1).normal(0, 1, (5, 96)).astype(float_type)
    c = np.random.default_rng(2).normal(0, 1, 128).astype(float_type)
    wanted = x.astype(np.float64) @ real((numbers, scale, zeros)) + c.astype(np.float64)
    tolerance = (2e-6 if float_type == "float32" else 2e-3) * abs(wanted).max()
    for context in (CPU, IEEE):
        arrays = numbers, scale, zeros
        got, text = run(context, lambda b, x, w=arrays: b.gemm(x, dequantised(b, w), c=b.constant(c)), x)  # type: ignore[misc]
        varies = zero == "each" and "blocks of 12" not in form and "24" not in form
        in_ieee = data_type.endswith("4") and float_type == "float32" and not varies
        assert (NARROW in text) == (context is CPU or in_ieee)
        assert "rounded to 8 bits" not in text
        np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance)
    axis, block = (0, 96 // part[0]) if part[1] == 128 else (1, 128 // part[1])
    if part[1 - axis] != numbers.shape[1 - axis]:
        return
    first = helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"], axis=axis, block_size=block)
    nodes = [first, helper.make_node("Gemm", ["x", "w", "c"], ["y"])]
    constants = {"q": numbers, "s": scale, "z": zeros, "c": c}
    model = model_of(nodes, {"x": ["n", 96]}, constants, 1 if float_type == "float32" else 10)
    for specialise in ("never", "always"):
        (got,) = ow.InferenceSession(model, CPU, specialise=specialise).run(None, {"x": x})  # type: ignore[arg-type]
        np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance)
    np.testing.assert_allclose(engine_result(model, {"x": x}), wanted, rtol=0, atol=tolerance)
    del model.graph.initializer[:]
    narrow_models.read_narrow(model, constants, "float32")
    kinds = {node.op_type for node in model.graph.node}
    # Of an unknown count of rows, two products of 4 bits may take longer than one with a dequantised matrix.
    is_narrow = data_type.endswith("4") or "24" not in form
    assert ("MatMulNBits" in kinds, "DequantizeLinear" in kinds) == (is_narrow, not is_narrow)


def test_products_of_bytes_by_many_rows_are_dequantised() -> None:
    arrays = quantised("uint8", (96, 128), (4, 128))
    for rows, is_narrow in ((16, True), (17, False)):
        x = np.random.default_rng(0).normal(0, 1, (rows, 96)).astype("float32")
        got, text = run(CPU, lambda b, x: b.matmul(x, dequantised(b, arrays)), x)
        assert (NARROW in text) == is_narrow
        np.testing.assert_allclose(got, x.astype(np.float64) @ real(arrays), rtol=0, atol=1e-3)


def turned(arrays: Arrays) -> Arrays:
    numbers, scale, zero = (np.ascontiguousarray(array.T) for array in arrays)
    return numbers, scale, zero


Form = Callable[[ow.MLGraphBuilder, ow.MLOperand, Arrays], ow.MLOperand]
FORMS: dict[str, Form] = {
    "matmul": lambda b, x, w: b.matmul(x, dequantised(b, w)),
    "transposed": lambda b, x, w: b.matmul(x, b.transpose(dequantised(b, turned(w)))),
    "three axes": lambda b, x, w: b.matmul(b.unsqueeze(x, axes=[0]), b.unsqueeze(dequantised(b, w), axes=[0])),
    "merged axes": lambda b, x, w: b.matmul(x, b.transpose(b.reshape(blocked(b, turned(w)), [24, 96]))),
    "left": lambda b, x, w: b.transpose(b.matmul(dequantised(b, turned(w)), b.transpose(x))),
    "left transposed": lambda b, x, w: b.transpose(b.matmul(b.transpose(dequantised(b, w)), b.transpose(x))),
    "gemm": lambda b, x, w: b.gemm(x, dequantised(b, w)),
    "gemm b_transpose": lambda b, x, w: b.gemm(x, dequantised(b, turned(w)), b_transpose=True),
    "gemm a_transpose": lambda b, x, w: b.gemm(b.transpose(x), dequantised(b, w), a_transpose=True),
    "gemm alpha, beta": lambda b, x, w: b.gemm(
        x, dequantised(b, w), c=b.constant(np.zeros((5, 1), "float32")), alpha=2, beta=3
    ) / 2,
    "gemm bias": lambda b, x, w: b.sub(b.gemm(x, dequantised(b, w), c=b.constant(np.ones((1, 24), "float32"))), 1),
    "gemm left": lambda b, x, w: b.transpose(b.gemm(dequantised(b, turned(w)), x, b_transpose=True)),
    "gemm left, both transposed": lambda b, x, w: b.transpose(
        b.gemm(dequantised(b, w), x, a_transpose=True, b_transpose=True)
    ),
}  # fmt: skip


def blocked(b: ow.MLGraphBuilder, w: Arrays) -> ow.MLOperand:
    """A matrix stored as [columns, blocks, numbers of a block], as some exporters write it."""
    columns, blocks = w[1].shape
    return dequantised(b, tuple(a.reshape(columns, blocks, -1) for a in w))  # type: ignore[arg-type]


@pytest.mark.parametrize("form", FORMS)
def test_products_of_all_forms_read_narrow_numbers(form: str) -> None:
    arrays, x = quantised("uint4", (96, 24), (3, 24)), exact_rows(5, 96)
    for context in (CPU, IEEE):
        got, text = run(context, lambda b, x: FORMS[form](b, x, arrays), x)
        assert NARROW in text
        assert "matmul_n_bits" in text
        np.testing.assert_allclose(got.reshape(5, 24), x.astype(np.float64) @ real(arrays), rtol=1e-5, atol=1e-4)


def test_products_that_stay_dequantised() -> None:
    arrays, x = quantised("int8", (96, 24), (1, 24)), exact_rows(5, 96)

    def of_quantised(b: ow.MLGraphBuilder, x: ow.MLOperand) -> ow.MLOperand:
        scale, zero = b.constant(np.full((1, 1), 1 / 64, "float32")), b.constant(np.full((1, 1), 3, "uint8"))
        return b.matmul(b.dequantize_linear(b.quantize_linear(x, scale, zero), scale, zero), dequantised(b, arrays))

    def of_infinite(b: ow.MLGraphBuilder, x: ow.MLOperand) -> ow.MLOperand:
        return b.matmul(x, dequantised(b, (arrays[0], np.full((1, 24), np.inf, "float32"), arrays[2])))

    for build in (of_quantised, of_infinite):
        assert NARROW not in run(CPU, build, x)[1]
    halves = quantised("uint4", (96, 24), (3, 24), "float16")
    got, text = run(IEEE, lambda b, x: b.matmul(x, dequantised(b, halves)), x.astype("float16"))
    assert NARROW not in text, "dequantised weights are rounded to float16"
    wanted = x.astype(np.float64) @ real(halves).astype("float16").astype(np.float64)
    np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("float_type", ["float32", "float16"])
@pytest.mark.parametrize("data_type", TYPES)
@pytest.mark.parametrize("part", [(1, 1), (50, 1), (50, 2), (1, 2), (10, 3), (50, 96), (1, 96)], ids=str)
def test_lookups_read_narrow_numbers(part: tuple[int, int], data_type: str, float_type: str) -> None:
    arrays = quantised(data_type, (50, 96), part, float_type)
    places = np.int32([[0, 49, -1], [7, -50, 60]])
    got, text = run(CPU, lambda b, x: b.gather(dequantised(b, arrays), x), places)
    assert NARROW in text
    np.testing.assert_array_equal(got, real(arrays).astype(float_type)[np.clip(places, -50, 49)])


def test_tables_are_packed_once_for_lookups_products_and_graphs() -> None:
    arrays, x = quantised("uint4", (64, 96), (64, 3)), exact_rows(5, 96)

    def both(b: ow.MLGraphBuilder, rows: int) -> ow.MLGraph:
        table = dequantised(b, arrays)
        y = b.matmul(b.input("x", "float32", [rows, 96]), b.transpose(table))
        return b.build({"y": y, "z": b.gather(table, b.input("i", "int32", [2]))})

    gc.collect()
    before = len(shared_constants._shared)
    graphs = [both(ow.MLGraphBuilder(CPU), rows) for rows in (5, 5)]
    assert len(shared_constants._shared) == before + 1
    for graph in graphs:
        results = CPU.compute(graph, {"x": x, "i": np.int32([3, 4])})
        np.testing.assert_allclose(results["y"], x.astype(np.float64) @ real(arrays).T, rtol=1e-5, atol=1e-4)
        np.testing.assert_array_equal(results["z"], real(arrays)[3:5].astype("float32"))
    del graph, graphs
    gc.collect()
    assert len(shared_constants._shared) <= before


def test_sizes_with_names() -> None:
    arrays = quantised("int4", (96, 24), (3, 24))
    b = ow.MLGraphBuilder(CPU)
    x = b.input("x", "float32", ["rows", 96])
    graph = b.build(
        {"y": b.matmul(x, dequantised(b, arrays)), "z": b.gemm(dequantised(b, turned(arrays)), x, b_transpose=True)}
    )
    for rows in (1, 7):
        x_array = exact_rows(rows, 96)
        wanted = x_array.astype(np.float64) @ real(arrays)
        results = CPU.compute(graph, {"x": x_array})
        np.testing.assert_allclose(results["y"], wanted, rtol=1e-5, atol=1e-4)
        np.testing.assert_allclose(results["z"], wanted.T, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("size", sorted(set(BLOCKS)))
def test_kernel_blocks_divide_blocks(size: int) -> None:
    block = kernel_block(size)
    assert block == 0 or (size % block == 0 and 16 <= block <= 256 and not block & (block - 1))
    assert (block == 0) == bool(size % 16)


def test_packed_numbers_of_bytes_are_no_copy() -> None:
    numbers = np.zeros((8, 64), np.uint8)
    packed = QuantizedConstant(numbers, np.ones((8, 2), "float32"), np.zeros((8, 2), np.uint8)).pack()
    assert np.shares_memory(packed, numbers)


# Models --------------------------------------------------------------------------------------------------------------


def model_of(
    nodes: Sequence[onnx.NodeProto], inputs: dict[str, Any], constants: dict[str, np.ndarray], element: int = 1
) -> onnx.ModelProto:
    infos = [
        helper.make_tensor_value_info(name, onnx.TensorProto.INT64 if name == "i" else element, shape)
        for name, shape in inputs.items()
    ]
    output = helper.make_tensor_value_info("y", element, None)
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "narrow", infos, [output], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


MODELS: dict[str, list[onnx.NodeProto]] = {
    "MatMul": [helper.make_node("MatMul", ["x", "w"], ["y"])],
    "MatMul, transposed": [
        helper.make_node("Transpose", ["w"], ["v"]),
        helper.make_node("MatMul", ["x", "v"], ["y"]),
    ],
    "Gemm": [helper.make_node("Gemm", ["x", "w", "c"], ["y"])],
    "Gemm, transposed": [helper.make_node("Gemm", ["x", "w", "c"], ["y"], transB=1, alpha=2.0, beta=0.5)],
    "Gemm, left": [helper.make_node("Gemm", ["w", "x"], ["y"], transA=1, transB=1)],
    "Gather": [helper.make_node("Gather", ["w", "i"], ["y"])],
}


@pytest.mark.parametrize("data_type", TYPES)
@pytest.mark.parametrize("name", MODELS)
def test_models_read_narrow_numbers(name: str, data_type: str) -> None:
    """The engine gets no dequantisation, and its results are those of the dequantised matrix."""
    is_table, is_turned = name == "Gather", "transposed" in name
    numbers, scale, zero = quantised(data_type, (96, 64), (3, 64))
    if is_turned or is_table:
        numbers, scale, zero = turned((numbers, scale, zero))
    constants = {"q": numbers, "s": scale, "z": zero, "c": np.linspace(-1, 1, 64, dtype="float32")}
    if "c" not in MODELS[name][-1].input:
        del constants["c"]
    first = helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"], axis=int(is_turned or is_table), block_size=32)
    matrix = real((numbers, scale, zero))
    feed = {"i": np.int64([[3, -1]])} if is_table else {"x": exact_rows(5, 96)}
    shape = [2, 2] if is_table else ["rows", 96]
    model = model_of([first, *MODELS[name]], {next(iter(feed)): shape if not is_table else [1, 2]}, constants)
    session = ow.InferenceSession(model, CPU)
    (got,) = session.run(None, feed)
    if is_table:
        np.testing.assert_array_equal(got, matrix.astype("float32")[feed["i"]])
    else:
        product = feed["x"].astype(np.float64) @ (matrix.T if is_turned else matrix)
        if "c" in constants:
            product = product * (2 if is_turned else 1) + constants["c"] * (0.5 if is_turned else 1)
        np.testing.assert_allclose(got, product.T if "left" in name else product, rtol=1e-5, atol=1e-3)
    proto = onnx.ModelProto()
    proto.CopyFrom(model)
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    del proto.graph.initializer[:]
    packed = narrow_models.read_narrow(proto, arrays, "float32")
    assert "DequantizeLinear" not in {node.op_type for node in proto.graph.node}
    assert "q" not in packed


RAGGED = {"MatMul": 0, "MatMul, columns": 1, "MatMul, transposed": 1, "Gather": 0, "Gather, rows": 1}


@pytest.mark.parametrize("block", [7, 24, 32])
@pytest.mark.parametrize("data_type", TYPES)
@pytest.mark.parametrize("name", RAGGED)
def test_last_blocks_of_models_may_be_smaller(name: str, data_type: str, block: int) -> None:
    """ONNX Runtime's quantiser to 4 bits writes them."""
    axis, sizes = RAGGED[name], [96, 64]
    sizes[axis] = 3 * block + 5
    part = [4 if k == axis else size for k, size in enumerate(sizes)]
    numbers, scale, zero = quantised(data_type, sizes, part)
    scales, zeros = (np.repeat(a.astype(float), block, axis)[tuple(map(slice, sizes))] for a in (scale, zero))
    matrix = (numbers.astype(float) - zeros) * scales
    first = helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"], axis=axis, block_size=block)
    nodes = MODELS[name.partition(", c")[0].partition(", r")[0]]
    if name.startswith("Gather"):
        feed: dict[str, Any] = {"i": np.int64([[3, -1]])}
        wanted = matrix[feed["i"]]
    else:
        real_matrix = matrix.T if "transposed" in name else matrix
        feed = {"x": np.random.default_rng(0).normal(0, 1, (5, len(real_matrix))).astype("float32")}
        wanted = feed["x"].astype(float) @ real_matrix
    shape: list[Any] = [1, 2] if "i" in feed else ["n", feed["x"].shape[-1]]
    model = model_of([first, *nodes], {next(iter(feed)): shape}, {"q": numbers, "s": scale, "z": zero})
    for context in (CPU, IEEE, ow.ml.create_context(device="reference", drafts=True)):
        for specialise in ("never", "always"):
            fallback: Any = "error" if specialise == "always" else "auto"
            session = ow.InferenceSession(model, context, specialise=specialise, fallback=fallback)  # type: ignore[arg-type]
            (got,) = session.run(None, feed)
            tolerance = 2e-2 if context is CPU and block == 32 else 1e-5  # kernels of such blocks round "x" to 8 bits
            np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance * abs(wanted).max())
    tolerance = 2e-2 if block == 32 else 1e-5
    np.testing.assert_allclose(engine_result(model, feed), wanted, rtol=0, atol=tolerance * abs(wanted).max())


@pytest.mark.parametrize("part", [(1, 1), (1, 6), (3, 6)], ids=["tensor", "columns", "blocks"])
@pytest.mark.parametrize("data_type", ["uint2", "int2"])
def test_numbers_of_two_bits_become_numbers_of_four(data_type: str, part: tuple[int, int]) -> None:
    """Up to version 1.32, ONNX Runtime's own fusion reads beyond the weight if the columns are no multiple of 4."""
    rng, low = np.random.default_rng(0), -2 if data_type == "int2" else 0
    dtype = getattr(ml_dtypes, data_type)
    numbers, zero = (rng.integers(low, low + 4, shape).astype(dtype) for shape in ((96, 6), part))
    arrays, x = (numbers, (rng.integers(1, 64, part) / 512).astype("float32"), zero), exact_rows(5, 96)
    wanted = x.astype(np.float64) @ real(arrays)
    for context in (CPU, IEEE):
        got, text = run(context, lambda b, x: b.matmul(x, dequantised(b, arrays)), x)
        assert NARROW in text
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
    shape: tuple[int, ...] = {(1, 1): (), (1, 6): (6,)}.get(part, part)
    attributes = {} if not shape else {"axis": 1} if part[0] == 1 else {"axis": 0, "block_size": 32}
    first = helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"], **attributes)
    constants = {"q": numbers, "s": arrays[1].reshape(shape), "z": zero.reshape(shape)}
    model = model_of([first, *MODELS["MatMul"]], {"x": ["rows", 96]}, constants)
    model.opset_import[0].version, model.ir_version = 25, 13
    for specialise in ("never", "always"):
        (got,) = ow.InferenceSession(model, CPU, specialise=specialise).run(None, {"x": x})  # type: ignore[arg-type]
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("data_type", ["int8", "uint8"])
def test_models_look_up_bytes_with_a_scale_for_each_column(data_type: str) -> None:
    numbers, scale, zero = quantised(data_type, (50, 24), (1, 24))
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"], axis=1),
        helper.make_node("Gather", ["w", "i"], ["y"]),
    ]
    model = model_of(nodes, {"i": [2, 2]}, {"q": numbers, "s": scale[0], "z": zero[0]})
    places = np.int64([[3, -1], [49, 0]])
    (got,) = ow.InferenceSession(model, CPU).run(None, {"i": places})
    np.testing.assert_array_equal(got, real((numbers, scale, zero)).astype("float32")[places])
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    del model.graph.initializer[:]
    narrow_models.read_narrow(model, arrays, "float32")
    assert [node.op_type for node in model.graph.node] == ["Gather", "DequantizeLinear"]


@pytest.mark.parametrize("place", [4096, -4097, 2**31, -(2**40)])
@pytest.mark.parametrize("data_type", ["uint4", "int8"])
def test_models_check_computed_indices(place: int, data_type: str) -> None:
    """Sessions treat them as in tables of floats; the engine's kernel gives zeros where they are out of range."""
    numbers, scale, zero = quantised(data_type, (4096, 32), (4096, 1))
    table = real((numbers, scale, zero)).astype("float32")
    double = [helper.make_node("Add", ["i", "i"], ["twice"]), helper.make_node("Sub", ["twice", "i"], ["places"])]
    lookup = helper.make_node("Gather", ["w", "places"], ["y"], name="the lookup")
    widen = helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"], axis=1, block_size=32)
    inputs, places = {"i": ["n", 2]}, np.int64([[3, -4096], [4095, 0]])
    model = model_of([widen, *double, lookup], inputs, {"q": numbers, "s": scale, "z": zero})
    plain = model_of([*double, lookup], inputs, {"w": table})
    results = []
    for session in (ow.InferenceSession(each, specialise="never") for each in (model, plain)):
        np.testing.assert_allclose(session.run(None, {"i": places})[0], table[places], rtol=1e-6)
        results.append(session.run(None, {"i": np.int64([[3, place]])})[0])
    np.testing.assert_allclose(*results, rtol=1e-6)
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    del model.graph.initializer[:]
    packed = narrow_models.read_narrow(model, arrays, "float32")
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in packed.items())
    assert "GatherBlockQuantized" in {node.op_type for node in model.graph.node}
    engine = onnxruntime.InferenceSession(model.SerializeToString())
    np.testing.assert_allclose(engine.run(None, {"i": places})[0], table[places], rtol=1e-6)
    with pytest.raises(Exception, match="indices element out of data bounds"):
        engine.run(None, {"i": np.int64([[3, place]])})


@pytest.mark.parametrize("place", [50, -51])
def test_models_refuse_indices_out_of_range(place: int) -> None:
    """As those of tables of floats; the engine's kernel gives zeros."""
    numbers, scale, zero = quantised("uint4", (50, 32), (50, 1))
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"], axis=1, block_size=32),
        helper.make_node("Gather", ["w", "i"], ["y"]),
    ]
    session = ow.InferenceSession(model_of(nodes, {"i": [2]}, {"q": numbers, "s": scale, "z": zero}), CPU)
    with pytest.raises(ow.ValidationError, match="indices"):
        session.run(None, {"i": np.int64([3, place])})


def test_models_keep_dequantisations_that_others_read() -> None:
    numbers, scale, zero = quantised("uint4", (96, 64), (3, 64))
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"], axis=0, block_size=32),
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("ReduceSum", ["w"], ["t"], keepdims=0),
        helper.make_node("Add", ["p", "t"], ["y"]),
    ]
    model = model_of(nodes, {"x": ["rows", 96]}, {"q": numbers, "s": scale, "z": zero})
    x, matrix = exact_rows(2, 96), real((numbers, scale, zero))
    (got,) = ow.InferenceSession(model, CPU).run(None, {"x": x})
    np.testing.assert_allclose(got, x.astype(np.float64) @ matrix + matrix.sum(), rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("data_type", ["uint8", "uint4", "int4"])
@pytest.mark.parametrize("has_zero", [False, True])
@pytest.mark.parametrize("specialise", ["auto", "always"])
def test_gather_block_quantized(specialise: Any, has_zero: bool, data_type: str, bits: int) -> None:
    if data_type != "uint8" and bits == 8:
        pytest.skip("numbers of 4 bits")
    rng, packing = np.random.default_rng(0), data_type == "uint8" and bits == 4
    low, high = TYPES[data_type][1:]
    numbers = rng.integers(low, high, (20, 64 // (2 if packing else 1))).astype(TYPES[data_type][0])
    constants = {"q": numbers, "s": rng.uniform(0.1, 1, (20, 2)).astype("float32")}
    if has_zero:
        constants["z"] = rng.integers(low, high, (20, 1 if packing else 2)).astype(TYPES[data_type][0])
    inputs = ["q", "i", "s", *(["z"] if has_zero else [])]
    attributes = {"bits": bits, "block_size": 32, "gather_axis": 0, "quantize_axis": 1}
    node = helper.make_node("GatherBlockQuantized", inputs, ["y"], domain="com.microsoft", **attributes)
    model = model_of([node], {"i": [3]}, constants)
    model.opset_import.add(domain="com.microsoft", version=1)
    places = np.int64([0, 19, -2])
    (got,) = ow.InferenceSession(
        model, CPU, specialise=specialise, fallback="error" if specialise == "always" else "auto"
    ).run(None, {"i": places})
    codes = numbers.astype(int)
    if packing:
        codes = np.stack([codes & 15, codes >> 4], -1).reshape(20, 64)
    middle = 1 << (bits - 1) if data_type == "uint8" else 0
    zeros = np.full((20, 2), middle)
    if has_zero:
        z = constants["z"].astype(int)
        zeros = np.stack([z & 15, z >> 4], -1).reshape(20, 2) if packing else z
    wanted = (codes - np.repeat(zeros, 32, 1)) * np.repeat(constants["s"], 32, 1)
    np.testing.assert_allclose(got, wanted.astype("float32")[places], rtol=1e-6)


@pytest.mark.parametrize("data_type", TYPES)
@pytest.mark.parametrize("part", [(8, 1, 1, 1), (8, 2, 3, 3), (1, 1, 1, 1)], ids=["channels", "blocks", "tensor"])
@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose"])
def test_weights_of_convolutions_are_widened_once(op_type: str, part: tuple[int, ...], data_type: str) -> None:
    arrays = quantised(data_type, (8, 32, 3, 3), part)
    proto, constants, x = convolution(op_type, arrays)
    wide = read(proto, constants)
    assert [node.op_type for node in wide[0].graph.node] == [op_type]
    (weights,) = wide[1].values()
    np.testing.assert_array_equal(weights, real(arrays).astype(np.float32))
    for names, array in constants.items():
        proto.graph.initializer.append(numpy_helper.from_array(array, names))
    expected = onnxruntime_result(proto, x)
    np.testing.assert_allclose(ow.InferenceSession(proto).run(None, x)[0], expected, rtol=1e-4, atol=1e-4)


CONVOLUTIONS: dict[str, Callable[[ow.MLGraphBuilder, ow.MLOperand, ow.MLOperand], ow.MLOperand]] = {
    "conv2d": lambda b, x, w: b.conv2d(x, w),
    "conv2d in groups": lambda b, x, w: b.conv2d(x, b.transpose(w, permutation=[1, 0, 2, 3]), groups=4),
    "conv2d of 1 x 1": lambda b, x, w: b.conv2d(x, b.reshape(b.transpose(w, permutation=[0, 2, 3, 1]), [72, 32, 1, 1])),
    "conv_transpose2d": lambda b, x, w: b.conv_transpose2d(x, b.transpose(w, permutation=[1, 0, 2, 3])),
    "convolution": lambda b, x, w: convolution3d(b, b.unsqueeze(x, axes=[4]), b.unsqueeze(w, axes=[4])),
}


@pytest.mark.parametrize("float_type", ["float32", "float16"])
@pytest.mark.parametrize("data_type", TYPES)
@pytest.mark.parametrize("part", [(8, 1, 1, 1), (8, 2, 3, 3), (1, 1, 1, 1)], ids=["channels", "blocks", "tensor"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_filters_of_graphs_are_widened_once(name: str, part: tuple[int, ...], data_type: str, float_type: str) -> None:
    arrays = quantised(data_type, (8, 32, 3, 3), part, float_type)
    wide = real(arrays).astype(float_type)
    x = np.random.default_rng(0).normal(0, 1, (2, 32, 6, 7)).astype(float_type)
    build = CONVOLUTIONS[name]
    for context in (CPU, IEEE):
        got, text = run(context, lambda b, x: build(b, x, dequantised(b, arrays)), x)
        assert "a constant, computed when the graph was built" in text
        wanted, _ = run(context, lambda b, x: build(b, x, b.constant(wide)), x)
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5 * abs(wanted).max())


def test_filters_of_one_constant_have_their_own_sizes() -> None:
    arrays, x = quantised("int8", (8, 4, 3, 3), (8, 1, 1, 1)), np.random.default_rng(1).random((1, 4, 5, 5), np.float32)
    b = ow.MLGraphBuilder(CPU)
    input, filter = b.input("x", "float32", x.shape), dequantised(b, arrays)
    cuts = [b.slice(filter, [0, 0, 0, 0], [8, 4, size, 3 - size]) for size in (1, 2)]
    graph = b.build({f"y{k}": b.conv2d(input, filter) for k, filter in enumerate((filter, *cuts))})
    results = CPU.compute(graph, {"x": x})
    for result, wanted in zip(results.values(), ((3, 3), (1, 2), (2, 1)), strict=True):
        filters = real(arrays)[..., : wanted[0], : wanted[1]]
        windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), wanted, axis=(2, 3))
        np.testing.assert_allclose(result, np.einsum("nihwab,oiab->nohw", windows, filters), rtol=1e-5, atol=1e-4)


def test_filters_of_convolutions_of_integers_stay() -> None:
    arrays, x = quantised("int8", (8, 32, 3, 3), (1, 1, 1, 1)), np.ones((1, 32, 5, 5), np.float32)

    def build(b: ow.MLGraphBuilder, x: ow.MLOperand) -> ow.MLOperand:
        step, middle = (
            b.constant(np.full((1, 1, 1, 1), 0.1, np.float32)),
            b.constant(np.full((1, 1, 1, 1), 128, np.uint8)),
        )
        codes = b.dequantize_linear(b.quantize_linear(x, step, middle), step, middle)
        return b.conv2d(codes, dequantised(b, arrays))

    assert "a constant" not in run(CPU, build, x)[1]


@pytest.mark.parametrize("between", ["", "Relu"])
def test_convolutions_of_integers_keep_their_weights(between: str) -> None:
    arrays = quantised("int8", (8, 32, 3, 3), (1, 1, 1, 1))
    proto, constants, _ = convolution("Conv", arrays)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "step", "middle"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "step", "middle"], ["d"]),
        *([helper.make_node(between, ["d"], ["e"])] if between else []),
    ]
    (last,) = [node for node in proto.graph.node if node.op_type == "Conv"]
    last.input[0] = "e" if between else "d"
    rest = list(proto.graph.node)
    del proto.graph.node[:]
    proto.graph.node.extend([*nodes, *rest])
    constants |= {"step": np.float32(0.1), "middle": np.uint8(128)}
    assert read(proto, constants)[0].graph.node == proto.graph.node


def convolution(op_type: str, arrays: Arrays) -> tuple[onnx.ModelProto, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """A convolution of dequantised weights: the model without constants, these, and an input."""
    channels = 32 if op_type == "Conv" else 8
    varying = [axis for axis, size in enumerate(arrays[1].shape) if size != 1]
    scale, zero = arrays[1:] if len(varying) > 1 else (array.reshape(-1)[: array.size] for array in arrays[1:])
    attributes = {"axis": 1, "block_size": 16} if len(varying) > 1 else {"axis": 0}
    if scale.size == 1:
        scale, zero = scale.reshape(()), zero.reshape(())
    nodes = [
        helper.make_node("DequantizeLinear", ["numbers", "scale", "zero"], ["w"], **attributes),
        helper.make_node(op_type, ["x", "w"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", 1, ["n", channels, 5, 5])]
    graph = helper.make_graph(nodes, "convolution", inputs, [helper.make_tensor_value_info("y", 1, None)])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    x = np.random.default_rng(1).standard_normal((2, channels, 5, 5)).astype(np.float32)
    return proto, {"numbers": arrays[0], "scale": np.asarray(scale), "zero": np.asarray(zero)}, {"x": x}


def read(proto: onnx.ModelProto, constants: dict[str, np.ndarray]) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A copy of the model after the rewrite, and the constants that it reads."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    return copy, dict(narrow_models.read_narrow(copy, constants, "float32"))


def onnxruntime_result(proto: onnx.ModelProto, feed: dict[str, np.ndarray]) -> np.ndarray:
    """The result of ONNX Runtime itself."""
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    result: np.ndarray = session.run(None, feed)[0]
    return result


@pytest.mark.parametrize("names", [(2, "blocks"), ("rows", 2), ("rows", "blocks")])
def test_packed_rows_of_named_sizes(names: tuple[Any, Any]) -> None:
    """The engine refuses a name in the shape of one operand where another has a number."""
    rng, results = np.random.default_rng(0), []
    feeds = {
        "weight": rng.integers(0, 256, (2, 2, 16), "uint8"),
        "zero": rng.integers(0, 256, (2, 2), "uint8"),
        "indices": np.int32([1, 0, 1]),
        "x": rng.standard_normal((3, 32), "float32"),
    }
    for device in ("cpu", "reference"):
        context = ow.ml.create_context(device=device, drafts=True, precision="ieee")
        b = ow.MLGraphBuilder(context)
        weight, zero = b.input("weight", "uint8", [*names, 16]), b.input("zero", "uint8", list(names))
        scale = b.constant(np.float32([[1, 2], [3, 4]]))
        rows = gather_n_bits(b, weight, scale, b.input("indices", "int32", [3]), zero, width=32, bits=8, block_size=16)
        product = matmul_n_bits(b, b.input("x", "float32", [3, 32]), weight, scale, zero, bits=8, block_size=16)
        results.append(context.compute(b.build({"rows": rows, "product": product}), feeds))
    for name, expected in results[1].items():
        np.testing.assert_allclose(results[0][name], expected, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize(
    ("bits", "block_size", "weight", "scale", "zero"),
    [
        (8, 16, ["rows", 2, 16], ["rows", 2], ["rows", 2]),
        (2, 16, [2, 2, 4], [2, 2], [2, "bytes"]),
        (2, 3, None, [2, "blocks"], None),
    ],
    ids=["all rows", "bytes", "constant"],
)
def test_rows_of_named_zero_points(bits: int, block_size: int, weight: Any, scale: Any, zero: Any) -> None:
    """The engine infers no numbers for what is computed from names, and constants are unpacked although blocks have a name."""
    rng, results, count = np.random.default_rng(0), [], -(-32 // block_size)
    packed = (2, count, block_size * bits // 8) if block_size * bits % 8 == 0 else (2, 1, 4 * bits)
    arrays = {
        "weight": rng.integers(0, 256, packed, "uint8"),
        "scale": rng.integers(1, 9, (2, count)).astype("float32"),
        "zero": rng.integers(0, 256, (2, -(-count * bits // 8)), "uint8"),
    }
    for device in ("cpu", "reference"):
        context = ow.ml.create_context(device=device, drafts=True)
        b = ow.MLGraphBuilder(context)
        table, factors, zeros = (
            b.constant(arrays[name]) if shape is None else b.input(name, arrays[name].dtype.name, shape)
            for name, shape in (("weight", weight), ("scale", scale), ("zero", zero))
        )
        indices = np.int32([1, 0, 1])
        y = gather_n_bits(b, table, factors, indices, zeros, width=32, bits=bits, block_size=block_size)
        graph = b.build({"y": y})
        results.append(context.compute(graph, {name: arrays[name] for name in graph.inputs})["y"])
    np.testing.assert_allclose(*results, rtol=1e-6)


@pytest.mark.parametrize("zero_type", ["uint8", None])
@pytest.mark.parametrize("is_input", [False, True], ids=["constant", "input"])
@pytest.mark.parametrize("data_type", ["float32", "float16", "bfloat16", "float64"])
def test_rows_take_scales_of_all_types(data_type: Any, is_input: bool, zero_type: Any) -> None:
    numbers = np.random.default_rng(0).integers(0, 256, (6, 2, 8)).astype("uint8")
    scale = (np.arange(1, 13).reshape(6, 2) / 8).astype(numpy_type(data_type))
    zero = None if zero_type is None else np.full((6, 1), 0x53, zero_type)
    arrays: dict[str, Any] = {"weight": numbers, "scale": scale, "indices": np.int32([5, 0])}

    def computed(context: ow.MLContext) -> np.ndarray:
        b = ow.MLGraphBuilder(context)
        operands = {
            name: b.input(name, array.dtype.name, array.shape) if is_input or name == "indices" else b.constant(array)
            for name, array in arrays.items()
        }
        y = gather_n_bits(
            b, **operands, zero_point=None if zero is None else b.constant(zero), width=32, bits=4, block_size=16
        )
        return context.compute(b.build({"y": y}), {name: arrays[name] for name in b.inputs})["y"]

    reference = ow.ml.create_context(device="reference", drafts=True)
    np.testing.assert_array_equal(computed(CPU).astype("float64"), computed(reference).astype("float64"))


@pytest.mark.parametrize("context", [CPU, IEEE], ids=["float32", "ieee"])
def test_numbers_beyond_float32_are_infinity_in_engines(context: ow.MLContext) -> None:
    b = ow.MLGraphBuilder(context)
    x = b.input("x", "float32", [2, 3])
    y = rms_normalization(b, x, b.constant(np.ones(3, "float32")), 1, epsilon=1e39)
    array = np.float32([[1, 2, 3], [-1, 0, 5]])
    np.testing.assert_allclose(context.compute(b.build({"y": y}), {"x": array})["y"], 0 * array, atol=1e-18)
