"""Data types beyond the specification: what contexts with drafts take, and that engines compute what the reference defines."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import numpy_helper

import opweave as ow
from opweave import composites, ops
from opweave.core.casts import cast_array, compute_form
from opweave.core.dtypes import BEYOND, DRAFTS, INFO, numpy_type
from opweave.memory.dlpack import take

NARROW = [name for name in BEYOND if INFO[name].is_narrow]
WIDE = [name for name in BEYOND if name not in NARROW]
SMALL_FLOATS = [name for name in BEYOND if INFO[name].kind == "f" and INFO[name].bits <= 16 and "e8m0" not in name]

Build = Callable[..., Any]


@cache
def context(device: str = "cpu") -> ow.MLContext:
    return ow.ml.create_context(device=device, drafts=True, verify=False)


def run(device: str, arrays: list[np.ndarray], build: Build) -> list[np.ndarray]:
    builder = ow.MLGraphBuilder(context(device))
    operands = [builder.input(f"x{k}", array.dtype.name, array.shape) for k, array in enumerate(arrays)]
    results = build(builder, *operands)
    results = results if isinstance(results, tuple) else (results,)
    graph = builder.build({f"y{k}": result for k, result in enumerate(results)})
    computed = context(device).compute(graph, {f"x{k}": array for k, array in enumerate(arrays)})
    return [computed[f"y{k}"] for k in range(len(results))]


def values(data_type: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Random elements, among them those that casts and comparisons treat in a special way."""
    random, info = np.random.default_rng(seed), INFO[data_type]
    numbers: np.ndarray
    if info.kind == "f":
        numbers = random.standard_normal(shape) * 3
        special: list[float] = [0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 2.5, 0.5, -1.5, 1e30, -1e30, 470, 700, -70000]
    else:
        numbers = random.integers(info.lowest, info.highest, shape, endpoint=True)
        special = [0, 1, info.lowest, info.highest, 2]
    numbers.reshape(-1)[: len(special)] = random.permutation(special)
    return cast_array(numbers, data_type)


def assert_equal(got: np.ndarray, expected: np.ndarray) -> None:
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    tolerance = {"float64": 1e-12, "bfloat16": 2.0**-7, "float32": 1e-5, "float16": 2e-3}.get(got.dtype.name, 0)
    np.testing.assert_allclose(
        compute_form(got).astype(np.float64), compute_form(expected).astype(np.float64), rtol=tolerance, atol=tolerance
    )


# Casts --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["float32", "float16", "float64"])
@pytest.mark.parametrize("target", SMALL_FLOATS)
def test_casts_to_small_floats_round_once_to_even(source: str, target: str) -> None:
    bits = np.random.default_rng(1).integers(0, 2**32, 200_000, dtype=np.uint32)
    with np.errstate(all="ignore"):
        x = bits.view(np.float32).astype(source)
    got = cast_array(x, target)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(
            got.view(np.uint8), x.astype(np.float32).astype(numpy_type(target)).view(np.uint8)
        )


def test_casts_from_float64_to_bfloat16_are_not_rounded_twice() -> None:
    x = 1 + 2.0**-8 + np.float64([2.0**-40, -(2.0**-40), 0])  # in float32, all are the tie 1 + 2**-8
    assert cast_array(x, "bfloat16").tolist() == [1.0078125, 1.0, 1.0]
    assert x.astype(ml_dtypes.bfloat16).tolist() == [1.0, 1.0, 1.0]
    assert np.isinf(cast_array(np.float64([1e300, -1e300]), "bfloat16").astype(np.float32)).all()


@pytest.mark.parametrize(
    ("target", "expected"),
    {
        "int4": [3 - 1, 4, -2, -8, 7, 0, 0],
        "uint4": [2, 4, 14, 8, 7, 0, 0],
        "int2": [-2, 0, -2, 0, -1, 0, 0],
        "uint2": [2, 0, 2, 0, 3, 0, 0],
    }.items(),
)
def test_casts_to_few_bits_round_to_even_and_keep_the_lowest_bits(target: str, expected: list[int]) -> None:
    x = np.float32([2.5, 3.5, -2.5, 8, 23, np.nan, np.inf])
    for device in ("cpu", "reference"):
        (got,) = run(device, [x], lambda b, x: b.cast(x, target))
        assert got.astype(np.int8).tolist() == expected


def test_casts_to_powers_of_two_round_up() -> None:
    x = np.float32([1, 1.5, 3, 4.1, 1e-45, 2.0**127, 0, -1, np.inf, np.nan])
    got = cast_array(x, "float8_e8m0fnu").astype(np.float32)
    np.testing.assert_array_equal(got, np.float32([1, 2, 4, 8, 2.0**-127, 2.0**127, *[np.nan] * 4]))
    normal = np.abs(np.random.default_rng(0).standard_normal(1000).astype(np.float32))
    expected = numpy_helper.to_float8e8m0(normal).astype(np.float32)
    np.testing.assert_array_equal(cast_array(normal, "float8_e8m0fnu").astype(np.float32), expected)


@pytest.mark.parametrize("target", [*BEYOND, "float32", "float16", "int8", "int64"])
@pytest.mark.parametrize("source", [*BEYOND, "float32", "float16", "int8", "int64"])
def test_engines_cast_as_the_reference_does(source: str, target: str) -> None:
    x = values(source, (4, 16))
    if INFO[source].kind == "f" and INFO[target].kind != "f":  # beyond the range, each engine may cast as it likes
        x = cast_array(np.tile(np.float32([0, 1]), (4, 8)), source)
    got, expected = (run(device, [x], lambda b, x: b.cast(x, target))[0] for device in ("cpu", "reference"))
    assert_equal(got, expected)


@pytest.mark.parametrize("target", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"])
def test_engines_cast_all_of_float16_beyond_the_range(target: str) -> None:
    """ONNX Runtime makes 448 of numbers up to 496, and NaN of those that are infinite in float8_e5m2."""
    x = np.arange(2**16, dtype=np.uint16).view(np.float16)
    (got,) = run("cpu", [x], lambda b, x: b.cast(x, target))
    with np.errstate(all="ignore"):
        assert_equal(got, x.astype(numpy_type(target)))


# Operations ---------------------------------------------------------------------------------------------------------

UNARY = (
    "abs ceil floor exp log neg reciprocal round_even sin cos tan sqrt sign erf identity relu sigmoid softplus softsign"
)
MORE = "tanh elu hard_sigmoid hard_swish gelu leaky_relu linear is_nan is_infinite"
BINARY = "add sub mul div max min pow equal not_equal greater greater_or_equal lesser lesser_or_equal"


def takes(name: str, data_type: str) -> bool:
    op = getattr(ops, name)
    return data_type in op.widened_limits[op.operands[0]].data_types


ELEMENTWISE = [
    (name, data_type) for data_type in WIDE for name in f"{UNARY} {MORE} {BINARY}".split() if takes(name, data_type)
]


@pytest.mark.parametrize(("name", "data_type"), ELEMENTWISE)
def test_elements_are_computed_as_on_the_reference(name: str, data_type: str) -> None:
    arrays = [values(data_type, (8, 16), seed) for seed in range(2 if name in BINARY.split() else 1)]
    got, expected = (run(d, arrays, lambda b, *x: getattr(b, name)(*x))[0] for d in ("cpu", "reference"))
    assert_equal(got, expected)


@pytest.mark.parametrize("name", ["modulus_floor", "modulus_truncate"])
@pytest.mark.parametrize("data_type", WIDE)
def test_remainders_are_those_of_numpy(name: str, data_type: str) -> None:
    a, b = (values(data_type, (8, 16), seed) for seed in range(2))
    (got,) = run("cpu", [a, b], lambda builder, a, b: getattr(builder, name)(a, b))
    is_zero = b == 0
    with np.errstate(all="ignore"):
        function = np.remainder if name == "modulus_floor" else np.fmod
        wide = [compute_form(x).astype(np.float64) if INFO[data_type].kind == "f" else x for x in (a, b)]
        expected = cast_array(function(*wide), data_type)
    integers_by_zero = is_zero & (INFO[data_type].kind != "f")
    assert_equal(
        np.where(integers_by_zero, 0, got).astype(got.dtype), np.where(integers_by_zero, 0, expected).astype(got.dtype)
    )


MOVES: dict[str, Build] = {
    "concat": lambda b, x: b.concat([x, x], 1),
    "expand": lambda b, x: b.expand(b.slice(x, [0, 0], [1, 16]), [3, 16]),
    "gather": lambda b, x: b.gather(x, b.constant(np.int32([1, -1, 2])), axis=1),
    "gather_elements": lambda b, x: b.gather_elements(x, b.constant(np.int32([[3, 0] * 8])), axis=0),
    "gather_nd": lambda b, x: b.gather_nd(x, b.constant(np.int32([[1, 0], [2, 2]]))),
    "identity": lambda b, x: b.identity(x),
    "pad": lambda b, x: b.pad(x, [1, 1], [0, 2], value=1),
    "pad with edges": lambda b, x: b.pad(x, [1, 1], [0, 2], mode="edge"),
    "reshape": lambda b, x: b.reshape(x, [2, 32]),
    "reverse": lambda b, x: b.reverse(x),
    "scatter_elements": lambda b, x: b.scatter_elements(
        x, b.constant(np.int32([[1, 0]] * 4)), b.slice(x, [0, 0], [4, 2]), axis=1
    ),
    "scatter_nd": lambda b, x: b.scatter_nd(
        x, b.constant(np.int32([[1, 0], [2, 2]])), b.reshape(b.slice(x, [0, 0], [1, 2]), [2])
    ),
    "slice": lambda b, x: b.slice(x, [1, 2], [2, 4], strides=[1, 2]),
    "split": lambda b, x: b.split(x, [3, 13], axis=1),
    "tile": lambda b, x: b.tile(x, [2, 3]),
    "transpose": lambda b, x: b.transpose(x),
    "triangular": lambda b, x: b.triangular(x),
    "where": lambda b, x: b.where(b.constant(np.uint8([[1, 0] * 8])), x, b.reverse(x)),
}


@pytest.mark.parametrize("data_type", BEYOND)
@pytest.mark.parametrize("name", MOVES)
def test_elements_are_moved_bit_by_bit(name: str, data_type: str) -> None:
    """The reference moves the types as it moves uint8, uint16 or uint64 with the same bits."""
    x = values(data_type, (4, 16))
    if data_type == "float8_e8m0fnu" and name == "triangular":
        pytest.skip("it fills with 0, which the type does not have")
    for device in ("cpu", "reference"):
        results = run(device, [x], MOVES[name])
        plain = {1: np.uint8, 2: np.uint16, 8: np.float64}[x.dtype.itemsize]
        if name == "pad":
            expected = [np.pad(x.astype(np.float64), ((1, 0), (1, 2)), constant_values=1)]
            results = [result.astype(np.float64) for result in results]
        elif plain is np.uint16:
            wide = run("reference", [x.view(plain)], MOVES[name])
            expected = [array.view(x.dtype) for array in wide]
        else:
            expected = [array.view(x.dtype) for array in run("reference", [x.view(plain)], MOVES[name])]
        for got, wanted in zip(results, expected, strict=True):
            np.testing.assert_array_equal(got.astype(np.float64), wanted.astype(np.float64))


FLOATS = [name for name in WIDE if INFO[name].kind == "f"]
COMPUTE: dict[str, Build] = {
    "softmax": lambda b, x: b.softmax(x, 1),
    "cumulative_sum": lambda b, x: b.cumulative_sum(x, 1),
    "matmul": lambda b, x: b.matmul(x, b.transpose(x)),
    "gemm": lambda b, x: b.gemm(x, x, b_transpose=True, alpha=0.5),
    "layer_normalization": lambda b, x: b.layer_normalization(x, axes=[1]),
    "conv2d": lambda b, x: b.conv2d(b.reshape(x, [1, 2, 4, 8]), b.reshape(b.slice(x, [0, 0], [4, 9]), [2, 2, 3, 3])),
    "average_pool2d": lambda b, x: b.average_pool2d(b.reshape(x, [1, 2, 4, 8]), window_dimensions=[2, 2]),
    "l2_pool2d": lambda b, x: b.l2_pool2d(b.reshape(x, [1, 2, 4, 8]), window_dimensions=[2, 2]),
    "max_pool2d": lambda b, x: b.max_pool2d(b.reshape(x, [1, 2, 4, 8]), window_dimensions=[2, 2]),
    "resample2d": lambda b, x: b.resample2d(b.reshape(x, [1, 2, 4, 8]), scales=[2, 2], mode="linear"),
    "instance_normalization": lambda b, x: b.instance_normalization(b.reshape(x, [1, 2, 4, 8])),
    "clamp": lambda b, x: b.clamp(x, min_value=-0.5, max_value=1),
    "prelu": lambda b, x: b.prelu(x, b.reverse(x)),
    "top_k": lambda b, x: composites.top_k(b, x, 2)[0],
    "fast_gelu": lambda b, x: composites.fast_gelu(b, x),
    **{
        name: lambda b, x, name=name: getattr(b, name)(x, axes=[1])  # type: ignore[misc]
        for name in (
            *("reduce_l1", "reduce_l2", "reduce_log_sum_exp", "reduce_max", "reduce_mean", "reduce_min"),
            *("reduce_product", "reduce_sum", "reduce_sum_square"),
        )
    },
}


@pytest.mark.parametrize("data_type", FLOATS)
@pytest.mark.parametrize("name", COMPUTE)
def test_floats_are_computed_as_on_the_reference(name: str, data_type: str) -> None:
    x = cast_array(np.random.default_rng(2).standard_normal((4, 16)), data_type)
    (got,), (expected,) = (run(device, [x], COMPUTE[name]) for device in ("cpu", "reference"))
    assert got.dtype == expected.dtype
    tolerance = 2.0**-7 if data_type == "bfloat16" else 1e-10  # of the largest: sums cancel
    limit = tolerance * np.abs(expected.astype(np.float64)).max()
    np.testing.assert_allclose(got.astype(np.float64), expected.astype(np.float64), rtol=tolerance, atol=limit)


QUANTISED = ["int8", "int16", "uint16", "int32", *(name for name in NARROW if name != "float8_e8m0fnu")]


@pytest.mark.parametrize("shape", [(1, 1), (4, 1), (2, 16), (2, 4)])
@pytest.mark.parametrize("scale_type", ["float32", "float16", *FLOATS])
@pytest.mark.parametrize("data_type", QUANTISED)
def test_quantisation_is_as_defined(data_type: str, scale_type: str, shape: tuple[int, int]) -> None:
    random, info = np.random.default_rng(3), INFO[data_type]
    scale = cast_array(np.float32([0.5, 0.25, 2])[random.integers(0, 3, shape)], scale_type)
    zeros = np.zeros(shape) if info.kind == "f" else random.integers(max(info.lowest, -5), min(info.highest, 5), shape)
    zero_point = cast_array(zeros, data_type)
    x = cast_array(random.integers(-40, 40, (4, 16)) / 8, scale_type)
    s, z = (
        np.repeat(np.repeat(a, 4 // a.shape[0], 0), 16 // a.shape[1], 1).astype(np.float64) for a in (scale, zero_point)
    )
    steps = x.astype(np.float64) / s
    if info.kind == "f":
        quantised = np.clip(steps, -info.largest, info.largest).astype(numpy_type(data_type))
    else:
        quantised = cast_array(np.clip(np.rint(steps) + z, info.lowest, info.highest), data_type)
    back = cast_array((quantised.astype(np.float64) - z) * s, scale_type)
    for device in ("cpu", "reference"):
        (got,) = run(device, [x, scale, zero_point], lambda b, x, s, z: b.quantize_linear(x, s, z))
        assert_equal(got, quantised)
        (got,) = run(device, [quantised, scale, zero_point], lambda b, q, s, z: b.dequantize_linear(q, s, z))
        assert_equal(got, back)
        (got,) = run(  # constants, which engines pack
            device,
            [np.ones((1, 1), numpy_type(scale_type))],
            lambda b, x: b.mul(x, b.dequantize_linear(*map(b.constant, (quantised, scale, zero_point)))),
        )
        assert_equal(got, back)


# Builders, tensors ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data_type", BEYOND)
def test_types_need_drafts(data_type: str) -> None:
    plain = ow.ml.create_context(device="cpu")
    builder = ow.MLGraphBuilder(plain)
    x = builder.input("x", "float32", [2])
    hint = r".*; create_context\(drafts=True\) allows it" if data_type in DRAFTS else ""
    for call in (
        lambda: builder.input("y", data_type, [2]),
        lambda: builder.constant(data_type, 1),
        lambda: builder.constant(np.ones(2, numpy_type(data_type))),
        lambda: plain.create_tensor(data_type, [2]),
        lambda: plain.tensor_from(np.ones(2, numpy_type(data_type))),
    ):
        with pytest.raises(ow.ValidationError, match="data type"):
            call()
    with pytest.raises(ow.ValidationError, match=rf"input 'y': data type must be one of .*, got '{data_type}'{hint}"):
        builder.input("y", data_type, [2])
    with pytest.raises(ow.ValidationError, match=rf"cast: data_type must be float32, .* or uint8, got '{data_type}'"):
        builder.cast(x, data_type)


@pytest.mark.parametrize("data_type", NARROW)
def test_operations_name_the_types_that_they_take(data_type: str) -> None:
    builder = ow.MLGraphBuilder(context())
    x = builder.input("x", data_type, [2, 2])
    with pytest.raises(
        ow.ValidationError, match=rf"add 'sum': a must be float32, .* or uint16, got {data_type}\[2, 2\]"
    ):
        builder.add(x, x, label="sum")
    with pytest.raises(ow.ValidationError, match=rf"matmul: a must be .* bfloat16, got {data_type}\[2, 2\]"):
        builder.matmul(x, x)
    with pytest.raises(ow.ValidationError, match="gather: indices must be int32, uint32 or int64, got int16"):
        builder.gather(x, builder.constant(np.int16([0])))


def test_operations_of_users_take_the_types_of_the_specification() -> None:
    @ow.expression
    def doubled(x: Any) -> Any:
        return x * 2

    builder = ow.MLGraphBuilder(context())
    with pytest.raises(ow.ValidationError, match=r"doubled: x must be float32, .* or uint8, got float64\[2\]"):
        doubled(builder, builder.input("x", "float64", [2]))


@pytest.mark.parametrize(
    ("spelling", "name"),
    {"float8e4m3fn": "float8_e4m3fn", "float8e4m3": "float8_e4m3fn", "float8e8m0": "float8_e8m0fnu"}.items(),
)
def test_spellings_of_onnx_are_understood(spelling: str, name: str) -> None:
    builder = ow.MLGraphBuilder(context())
    assert builder.input("x", spelling, [2]).data_type == name  # type: ignore[arg-type]
    assert builder.cast(builder.input("y", "float32", [2]), spelling).data_type == name  # type: ignore[arg-type]


@pytest.mark.parametrize("data_type", BEYOND)
def test_tensors_hold_what_is_written(data_type: str) -> None:
    x = values(data_type, (3, 8))
    tensor = context().create_tensor(data_type, [3, 8], readable=True, writable=True)  # type: ignore[arg-type]
    context().write_tensor(tensor, x)
    assert context().read_tensor(tensor).tobytes() == x.tobytes()
    assert tensor.numpy().dtype == x.dtype
    assert tensor.numpy().nbytes == tensor.desc.byte_length
    shared = context().tensor_from(x)
    assert shared.data_type == data_type
    assert np.shares_memory(shared.numpy(), x)


@pytest.mark.parametrize(
    ("data_type", "packed", "expected"),
    [
        ("int4", [0xE1, 0x83, 0x07], [1, -2, 3, -8, 7]),
        ("uint4", [0xE1, 0x83, 0x07], [1, 14, 3, 8, 7]),
        ("int2", [0b11100100, 0b10], [0, 1, -2, -1, -2]),
        ("float4_e2m1fn", [0xF1, 0x27, 0x09], [0.5, -6, 6, 1, -0.5]),
    ],
)
def test_constants_unpack_elements_of_few_bits(data_type: str, packed: list[int], expected: list[float]) -> None:
    builder = ow.MLGraphBuilder(context())
    constant = builder.constant(data_type, [5], np.uint8(packed))  # type: ignore[arg-type]
    graph = builder.build({"y": builder.cast(constant, "float32")})
    assert context().compute(graph, {})["y"].tolist() == expected
    builder = ow.MLGraphBuilder(context())
    with pytest.raises(ow.ValidationError, match="buffer must have"):
        builder.constant(data_type, [5], np.zeros(7, np.uint8))  # type: ignore[arg-type]


def test_numbers_become_constants_of_any_type() -> None:
    builder = ow.MLGraphBuilder(context())
    got = {name: builder.constant(name, 2.5).value.astype(np.float64).item() for name in BEYOND}  # type: ignore[arg-type]
    assert {name for name, value in got.items() if value == 2.5} == {
        name for name in BEYOND if INFO[name].kind == "f" and name not in ("float8_e8m0fnu", "float4_e2m1fn")
    }


# GPUs -----------------------------------------------------------------------------------------------------------------

GPU = "gpu-software"
needs_gpu = pytest.mark.skipif(
    not any(device.name == GPU and device.available for device in ow.devices()),
    reason="there is no software adapter for WebGPU",
)

ON_GPUS: dict[str, Build] = {
    **{name: build for name, build in MOVES.items() if name not in ("gather_nd", "scatter_nd")},
    "add": lambda b, x: b.add(x, b.reverse(x)),
    "mul": lambda b, x: b.mul(x, b.reverse(x)),
    "div": lambda b, x: b.div(x, b.reverse(x)),
    "max": lambda b, x: b.max(x, b.reverse(x)),
    "greater": lambda b, x: b.greater(x, b.reverse(x)),
    "chain": lambda b, x: b.sub(b.mul(b.add(x, x), x), b.reverse(x)),
    "reduce_max": lambda b, x: b.reduce_max(x, axes=[1]),
    "constant": lambda b, x: b.add(x, b.constant(cast_array(np.arange(16), x.data_type))),
    "to float32": lambda b, x: b.cast(x, "float32"),
    "to uint8": lambda b, x: b.cast(b.clamp(x, min_value=0, max_value=9), "uint8"),
    "from float32": lambda b, x: b.cast(b.add(b.cast(x, "float32"), 0.0), x.data_type),
}


@needs_gpu
@pytest.mark.parametrize("data_type", ["bfloat16", "int16", "uint16"])
@pytest.mark.parametrize("name", ON_GPUS)
def test_gpus_compute_types_of_16_bits(name: str, data_type: str) -> None:
    x = values(data_type, (4, 16))
    if data_type == "bfloat16":  # shaders may take NaN for any number
        x = cast_array(np.nan_to_num(x.astype(np.float32), nan=3, posinf=3, neginf=-3).clip(-100, 100), data_type)
    gpu, reference = (run(device, [x], ON_GPUS[name]) for device in (GPU, "reference"))
    for got, expected in zip(gpu, reference, strict=True):
        assert_equal(got, expected)
    builder = ow.MLGraphBuilder(context(GPU))
    operand = builder.input("x", data_type, x.shape)  # type: ignore[arg-type]
    results = ON_GPUS[name](builder, operand)
    results = results if isinstance(results, tuple) else (results,)
    builder.build({f"y{k}": result for k, result in enumerate(results)}, fallback="error")


@needs_gpu
@pytest.mark.parametrize("data_type", ["int16", "uint16"])
def test_gpus_saturate_at_the_range_of_16_bits(data_type: str) -> None:
    x, scale = np.float32([[-1e9, -3.5, 2.5, 1e9]]), np.float32([[0.5]])
    zero_point = np.array([[3]], data_type)
    image = np.full((1, 1, 2, 2), 1, data_type)
    pool: Build = lambda b, x: b.max_pool2d(x, window_dimensions=[1, 1], padding=[1, 1, 1, 1])  # noqa: E731
    for arrays, build in (([x, scale, zero_point], lambda b, *o: b.quantize_linear(*o)), ([image], pool)):
        (got,), (expected,) = (run(device, arrays, build) for device in (GPU, "reference"))
        np.testing.assert_array_equal(got, expected)


@needs_gpu
@pytest.mark.parametrize("name", ["softmax", "matmul", "layer_normalization", "conv2d", "reduce_sum", "fast_gelu"])
def test_gpus_compute_networks_in_bfloat16(name: str) -> None:
    x = cast_array(np.random.default_rng(2).standard_normal((4, 16)), "bfloat16")
    (got,), (expected,) = (run(device, [x], COMPUTE[name]) for device in (GPU, "reference"))
    limit = 2.0**-7 * np.abs(expected.astype(np.float32)).max()
    np.testing.assert_allclose(got.astype(np.float32), expected.astype(np.float32), rtol=2.0**-7, atol=limit)


@needs_gpu
@pytest.mark.parametrize("data_type", ["float64", "float8_e4m3fn", "int4"])
def test_devices_run_nodes_with_types_that_they_lack_on_the_host(data_type: str) -> None:
    x = values(data_type, (4, 8))
    builder = ow.MLGraphBuilder(context(GPU))
    operand = builder.input("x", data_type, x.shape)  # type: ignore[arg-type]
    graph = builder.build({"y": builder.cast(builder.transpose(operand), "float32"), "z": builder.reverse(operand)})
    result = context(GPU).compute(graph, {"x": x})
    np.testing.assert_array_equal(result["y"], x.T.astype(np.float32))
    np.testing.assert_array_equal(result["z"].astype(np.float32), x[::-1, ::-1].astype(np.float32))
    assert f"kernels of this device have no {data_type}" in graph.explain()
    builder = ow.MLGraphBuilder(context(GPU))
    turned = builder.transpose(builder.input("x", data_type, x.shape), label="turn")  # type: ignore[arg-type]
    with pytest.raises(ow.NotSupportedError, match=f"transpose 'turn': .*no {data_type}.*fallback is 'error'"):
        builder.build({"y": turned}, fallback="error")


@pytest.mark.parametrize("data_type", BEYOND)
def test_tensors_are_exported_by_dlpack(data_type: str) -> None:
    x = values(data_type, (3, 8))
    tensor = context().tensor_from(x)
    if INFO[data_type].bits < 8:
        with pytest.raises(BufferError, match="less than 8 bits"):
            tensor.__dlpack__(max_version=(1, 0))
        return
    taken = take(tensor, None)
    assert (taken.data_type, taken.shape, taken.address) == (data_type, (3, 8), x.ctypes.data)
    assert take(context().tensor_from(x), None).read_only is False


@pytest.mark.parametrize("data_type", ["int4", "uint4", "float8_e4m3fn", "int16", "bfloat16"])
def test_products_read_large_constants(data_type: str) -> None:
    """Constants that an engine gets by reference, or that it packs as a part of its model."""
    random = np.random.default_rng(5)
    weight = cast_array(random.integers(0, 7, (256, 256)), data_type)
    scale, x = np.float32(random.random((8, 256)) + 0.5), random.standard_normal((4, 256)).astype(np.float32)

    def build(b: ow.MLGraphBuilder, x: ow.MLOperand) -> Any:
        if data_type == "bfloat16":
            return b.matmul(b.cast(x, "bfloat16"), b.constant(weight))
        zero_point = b.constant(np.zeros(scale.shape, weight.dtype))
        return b.matmul(x, b.dequantize_linear(b.constant(weight), b.constant(scale), zero_point))

    (got,), (expected,) = (run(device, [x], build) for device in ("cpu", "reference"))
    limit = (
        0.02 * np.abs(expected.astype(np.float32)).max()
    )  # the engine rounds an operand of weights of 4 bits to 8 bits
    np.testing.assert_allclose(got.astype(np.float32), expected.astype(np.float32), atol=limit)


@pytest.mark.parametrize("data_type", ["int4", "float64", "bfloat16", "int16"])
def test_types_and_names_of_sizes_go_together(data_type: str) -> None:
    builder = ow.MLGraphBuilder(context())
    x = builder.input("x", data_type, ["n", 4])  # type: ignore[arg-type]
    halves = builder.slice(builder.tile(x, [2, 1]), [0, 1], [x.shape[0], 2])
    graph = builder.build({"y": builder.cast(builder.concat([halves, x], 1), "float32")})
    for count in (3, 5, 1):
        array = cast_array(np.arange(4.0 * count).reshape(count, 4) % 7, data_type)
        expected = np.concatenate([array[:, 1:3], array], 1).astype(np.float32)
        np.testing.assert_array_equal(context().compute(graph, {"x": array})["y"], expected)


@pytest.mark.parametrize("data_type", BEYOND)
def test_javascript_names_the_types_that_it_has(data_type: str, tmp_path: Path) -> None:
    builder = ow.MLGraphBuilder(context())
    graph = builder.build({"y": builder.transpose(builder.input("x", data_type, [2, 3]))})  # type: ignore[arg-type]
    with pytest.raises(
        ow.ValidationError, match=rf"JavaScript has the data types float32, .*, got {data_type}\[2, 3\]"
    ):
        ow.js.save(graph, tmp_path / "model.js")
