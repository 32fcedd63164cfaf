"""Composites of mathematics on 200 seeded calls each, with odd sizes and all attributes, on every device."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from fuzz.builder import RandomMake
from support.agreement import run_decomposed
from support.composite_cases import CASES, ELEMENTARY, check, run
from support.every_device import DEVICES, context_on

import opweave as ow
from opweave import composites
from opweave.composites import elementary
from opweave.core.dtypes import numpy_type
from opweave.lazy.custom_call import CustomOp

CALLS = [range(*ends) for ends in pairwise((0, 5, *range(20, 201, 20)))]
"""Numbers of the calls of each row; samples have the first, which is short, since most devices compile each call."""
ROWS = len(CALLS)

OPS: list[CustomOp[Any]] = [
    *ELEMENTARY,
    *(op for op in CASES if op.name.startswith(("bit", "shift"))),
    *(composites.cumulative_product, composites.det, composites.dft, composites.inverse, composites.stft),
]


@pytest.mark.parametrize(
    ("op", "device", "row"),
    [
        pytest.param(op, device, row, id=f"{op.name}-{device}-{row}", marks=pytest.mark.covers(*[op.name] * (row == 0)))
        for op in OPS
        for device in [*DEVICES, *(["decomposed"] if op is not composites.bit_cast else [])]
        for row in range(ROWS)
    ],
)
def test_seeded_calls_equal_their_witness(op: CustomOp[Any], device: str, row: int) -> None:
    case = CASES[op]
    for number in CALLS[row]:
        rng = random.Random(f"{op.name} {number}")
        call, wanted = case.make(RandomMake(rng, {"x": case.types[number % len(case.types)]}))
        is_decomposed = device == "decomposed"
        got = [*run_decomposed(op, call).values()] if is_decomposed else run(context_on(device), op, call)
        check(op, call, got, wanted)


def spread(low: float, high: float, rng: np.random.Generator) -> np.ndarray:
    """Numbers of all magnitudes between two positive ones."""
    return np.exp(rng.uniform(np.log(low), np.log(high), 20_000))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", ELEMENTARY, ids=lambda op: op.name)
def test_errors_are_within_their_bounds(op: CustomOp[Any], device: str) -> None:
    """Float32 of all magnitudes against float64, also where the formulas change, and special values."""
    rng = np.random.default_rng(0)
    unit = np.concatenate([spread(1e-37, 1, rng), rng.uniform(0, 1, 20_000), 1 - spread(1e-7, 0.5, rng)])
    wide = np.concatenate([spread(1e-37, 3e38, rng), rng.uniform(0, 5, 20_000)])
    small = np.concatenate([spread(1e-37, 90, rng), rng.uniform(0, 89.5, 20_000), rng.uniform(0, 3, 20_000)])
    name = op.name
    sizes = (
        unit if name in ("acos", "asin", "atanh", "erf_inv") else small if name in ("cosh", "sinh", "expm1") else wide
    )
    x = np.concatenate([sizes, -sizes, [0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan]]).astype(np.float32)
    if name == "acosh":
        x = np.concatenate([x, 1 + spread(1e-7, 1, rng).astype(np.float32)])
    with np.errstate(all="ignore"):
        exact = ELEMENTARY[op](x.astype(np.float64))
        with context_on(device):
            result = np.asarray(op(x)).astype(np.float64)
        size = np.abs(exact)
        normal = (size > 1.2e-38) & (size < 3.4e38)
        errors = np.abs(result - exact)[normal] / np.spacing(size[normal].astype(np.float32))
        assert errors.max() <= elementary.BOUNDS[name], x[normal][errors.argmax()]
        others = ~normal & ~((size > 0) & (size <= 1.2e-38)) & ~((size >= 3.4e38) & np.isfinite(size))
        np.testing.assert_array_equal(result[others], exact[others])


@pytest.mark.parametrize("device", [device for device in DEVICES if "openvino" not in device])  # which composes them
@pytest.mark.parametrize("data_type", ["float32", "float16"])
def test_remainders_of_floats_are_exact(data_type: str, device: str) -> None:
    rng = np.random.default_rng(0)
    special = np.array([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, np.finfo(data_type).max], data_type)
    bits = f"uint{8 * special.itemsize}"
    a, b = (rng.integers(0, np.iinfo(bits).max, 20_000, bits).view(data_type) for _ in range(2))
    usual = (np.abs(x) >= np.finfo(data_type).smallest_normal for x in (a, b))
    keep = np.logical_and(*usual)
    pairs = np.meshgrid(special, special)
    a, b = (np.concatenate([x[keep], pair.ravel()]) for x, pair in zip((a, b), pairs, strict=True))
    builder = ow.MLGraphBuilder(
        ow.ml.create_context(device=device.split(" ")[0], backend=device[:-1].partition("(")[2], drafts=True)
    )
    x, y = (builder.input(name, data_type, a.shape) for name in ("a", "b"))
    graph = builder.build({"floor": builder.modulus_floor(x, y), "truncate": builder.modulus_truncate(x, y)})
    results = graph.context.compute(graph, {"a": a, "b": b})
    with np.errstate(all="ignore"):
        truncated = np.fmod(a, b)
        np.testing.assert_array_equal(results["truncate"], truncated)
        opposite = (truncated != 0) & ((truncated < 0) != (b < 0))
        np.testing.assert_array_equal(results["floor"], np.where(opposite, truncated + b, truncated))


@pytest.mark.parametrize(
    ("op", "arguments", "options", "message"),
    [
        (composites.dft, [np.zeros((4, 3), "float32")], {}, "last dimension of input must be 1 or 2"),
        (composites.dft, [np.zeros((4, 1), "float32")], {"axis": 1}, r"axis must be in \[0, 1\), got 1"),
        (composites.dft, [np.zeros((4, 1), "float32"), 0], {}, "length must be greater than 0, got 0"),
        (composites.dft, [np.zeros((4, 1), "float32"), 2**31 - 1], {}, "length must be at most 16777216"),
        (composites.dft, [np.zeros((4, 2), "float32")], {"onesided": True}, "a one-sided transform takes real numbers"),
        (composites.dft, [np.zeros((1, 2), "float32")], {"onesided": True, "inverse": True}, "length must be greater"),
        (composites.dft, [np.zeros((1, 2), "float32")], {"parts": "sum"}, "parts must be 'both' or 'real', got 'sum'"),
        (composites.stft, [np.zeros((1, 4, 1), "float32")], {"step": 0}, "step must be greater than 0, got 0"),
        (composites.stft, [np.zeros((1, 4, 1), "float32")], {"step": 1, "frame_length": 5}, "must be at most 4"),
        (
            composites.stft,
            [np.zeros((1, 4, 1), "float32"), np.ones(3, "float32")],
            {"step": 1, "frame_length": 2},
            "window",
        ),
        (composites.det, [np.zeros((2, 3), "float32")], {}, "the last two dimensions must be equal"),
        (composites.inverse, [np.zeros((65, 65), "float32")], {}, "at most 64 rows"),
        (composites.bit_cast, [np.zeros(2, "float32"), "int64"], {}, "must have the same width"),
        (composites.cumulative_product, [np.zeros(2, "float32"), 1], {}, r"axis must be in \[0, 1\), got 1"),
    ],
)
def test_wrong_arguments_are_errors(op: Any, arguments: list[Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ow.ValidationError, match=message):
        op(*arguments, **options)


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reversed", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
def test_cumulative_product_beside_operators_of_older_sets(axis: int, reversed: bool, exclusive: bool) -> None:
    """ONNX Runtime has no kernel of RoiAlign in the operator set of CumProd."""
    x = np.random.default_rng(0).uniform(0.5, 1.5, (5, 4)).astype("float32")
    options: dict[str, Any] = {"exclusive": exclusive, "reversed": reversed}
    context = ow.ml.create_context(device="cpu")
    builder = ow.MLGraphBuilder(context)
    operand = builder.input("x", "float32", [5, 4])
    image = builder.reshape(operand, [1, 1, 5, 4])
    regions = np.float32([[0, 0, 2, 2]])
    graph = builder.build(
        {
            "y": composites.cumulative_product(builder, operand, axis, **options),
            "pooled": composites.roi_align(builder, image, regions, np.int64([0]), sampling_ratio=2),
        }
    )
    factors = np.flip(x, axis) if reversed else x
    if exclusive:
        first = np.ones_like(np.take(x, [0], axis))
        factors = np.concatenate([first, np.take(factors, range(x.shape[axis] - 1), axis)], axis)
    expected = np.cumprod(factors, axis)
    y = context.compute(graph, {"x": x})["y"]
    np.testing.assert_allclose(y, np.flip(expected, axis) if reversed else expected, rtol=1e-6)


@pytest.mark.parametrize("shape", [(0, 0), (3, 0, 0), (2, 1, 0, 0), (0, 2, 2)])
@pytest.mark.parametrize("data_type", ["float32", "float16"])
@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_det_of_matrices_without_elements(device: str, data_type: Any, shape: tuple[int, ...]) -> None:
    context = ow.ml.create_context(device=device, drafts=True)
    builder = ow.MLGraphBuilder(context)
    x = np.zeros(shape, data_type)
    graph = builder.build({"y": composites.det(builder, builder.input("x", data_type, shape))})
    wanted = np.linalg.det(x.astype("float32")).astype(data_type)
    np.testing.assert_array_equal(np.asarray(context.compute(graph, {"x": x})["y"]), wanted)


def test_multinomial_needs_classes() -> None:
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference", drafts=True))
    with pytest.raises(
        ow.ValidationError, match=r"multinomial 'm': the input must have classes to draw, got float32\[2, 0\]"
    ):
        composites.multinomial(
            builder, builder.input("x", "float32", [2, 0]), builder.input("k", "uint32", [4]), label="m"
        )


@pytest.mark.parametrize("data_type", ["float64", "bfloat16"])
@pytest.mark.parametrize(
    ("length", "bins", "more"), [(521, 261, {"onesided": True, "inverse": True}), (1009, 1009, {}), (4096, 4096, {})]
)
def test_long_transforms_of_wide_and_narrow_types(data_type: Any, length: int, bins: int, more: dict[str, Any]) -> None:
    x = np.random.default_rng(0).integers(-8, 9, (bins, 2)).astype(numpy_type(data_type))
    numbers = x[:, 0].astype("complex128") + 1j * x[:, 1].astype("float64")
    if more:
        wanted = np.fft.irfft(numbers, length)[:, None]
    else:
        spectrum = np.fft.fft(numbers)
        wanted = np.stack([spectrum.real, spectrum.imag], -1)
    context = ow.ml.create_context(device="cpu", drafts=True)
    b = ow.MLGraphBuilder(context)
    y = composites.dft(b, b.input("x", data_type, x.shape), length, axis=0, **more)
    got = context.compute(b.build({"y": y}), {"x": x})["y"].astype("float64")
    tolerance = (1e-10 if data_type == "float64" else 0.02) * np.abs(wanted).max()
    np.testing.assert_allclose(got, wanted, atol=tolerance)
