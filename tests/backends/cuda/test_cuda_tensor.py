"""Kernels for tensor cores: Triton's interpreter against NumPy, and Triton's compiler, neither of which takes a GPU."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal
from weakref import WeakSet

import numpy as np
import pytest
from support import linear_attention
from support.cuda_driver import INFO, CpuDriver, context_on
from triton_cases import SMALL, WGMMA_TF32, Build, F, array, check_kernels, instructions, run_steps, steps_of

import opweave as ow
from benchmarks import cuda_tune
from benchmarks.webgpu_contraction import Case
from opweave import composites
from opweave.backends.cuda import compiler, measured_tiles
from opweave.backends.cuda.backend import precisions
from opweave.backends.cuda.driver import CudaFunction
from opweave.backends.cuda.engine import features_of
from opweave.backends.gpu.contraction import tensor, tensor_tiles, terms
from opweave.backends.gpu.contraction.kernels import Contraction
from opweave.backends.gpu.contraction.problem import View, product
from opweave.backends.gpu.contraction.tensor import TensorTile
from opweave.backends.gpu.contraction.tensor_tiles import MeasuredTile, choose, is_faster
from opweave.core.graph import Desc
from opweave.expr import ir
from opweave.expr.gpu import Features, GpuKernel, TensorCores
from opweave.expr.gpu.mathematics import BOUNDS
from opweave.expr.ir import Input

pytestmark = [
    pytest.mark.skipif(not compiler.triton_version(), reason="needs the extra cuda: make test-cuda"),
    pytest.mark.usefixtures("small_tiles"),
]


def matmul(b: ow.MLGraphBuilder, x: ow.MLOperand, y: ow.MLOperand) -> ow.MLOperand:
    return b.matmul(x, y)


def layers(b: ow.MLGraphBuilder, x: ow.MLOperand, *weights: ow.MLOperand) -> ow.MLOperand:
    for number, weight in enumerate(weights):
        x = b.tanh(b.matmul(x, weight, label=f"layer{number}"), label=f"activation{number}")
    return x


@pytest.mark.parametrize("small_tiles", [1, 2], indirect=True)
@pytest.mark.parametrize("features", [F, replace(F, tensor_cores=None)], ids=["Triton", "CUDA C++"])
def test_kernels_are_equal_for_layers_of_different_labels(features: Features) -> None:
    kernels = [step.kernel for step in steps_of(layers, [array(48, 48)] * 4, range(1, 4), features)]
    assert len({kernel.title for kernel in kernels}) == 3
    assert 3 * len({kernel.key for kernel in kernels}) == len(kernels)


@pytest.mark.parametrize("kind", ["tf32", "tf32x3"])
def test_ordering_kernels_are_equal_for_layers_of_different_labels(
    kind: Literal["tf32", "tf32x3"], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terms, "START_US", -1e6)  # small operands are moved, too
    features = replace(F, architecture="sm_90", tensor_cores=TensorCores(kind, 227 << 10))
    kernels = [step.kernel for step in steps_of(layers, [array(48, 48)] * 4, (), features)]
    ordering = [kernel for kernel in kernels if "terms in order" in kernel.title]
    assert len({kernel.title for kernel in ordering}) == len(ordering) == 3
    assert len({kernel.key for kernel in ordering}) == 1


class Noting(CpuDriver):
    """Notes the order of what takes long in a build."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[str] = []
        self.held = WeakSet[Any]()

    def begin(self, kernels: Sequence[GpuKernel]) -> list[Any]:
        self.noted += [f"begin {kernel.compiler or 'cuda'}" for kernel in kernels]
        jobs = [Job() for _ in kernels]
        self.held.update(jobs)
        return jobs

    def upload(self, address: int, source: np.ndarray) -> None:
        self.noted.append("upload")
        super().upload(address, source)

    def functions(self, kernels: Sequence[GpuKernel]) -> list[CudaFunction]:
        self.noted.append(f"{len(kernels)} kernels, {len(self.held)} jobs")
        return super().functions(kernels)


class Job:
    """What a compiler has begun."""


def test_build_compiles_while_it_schedules_and_uploads() -> None:
    driver = Noting()
    builder = ow.MLGraphBuilder(context_on(driver))
    x = builder.input("x", "float32", [96, 96])
    for number in range(2):
        x = builder.softmax(builder.matmul(x, builder.constant(array(96, 96)), label=f"layer{number}"), 1)
    x = builder.slice(x, [0, 0], [1, 96])  # few vectors, as a product could read
    graph = builder.build({"y": x})
    # Both products have the same kernel; the second softmax could still be merged into a product.
    scheduled, copied = ["begin triton", "begin cuda"], ["upload"] * 4  # an array, and what TF32 does not keep of it
    prepared = ["begin triton", "begin cuda"] * 2
    assert driver.noted == [*scheduled, *prepared, *copied, "3 kernels, 4 jobs"]
    gc.collect()
    assert not driver.held
    assert graph


@pytest.mark.parametrize("constants", [(), (0,), (1,)])
@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((32, 32), (32, 32)),
        ((70, 50), (50, 45)),
        ((64, 96), (96, 64)),
        ((3, 40, 20), (3, 20, 36)),
        ((2, 3, 33, 17), (1, 3, 17, 18)),
        ((4, 1, 20, 24), (3, 24, 40)),
        ((5, 20, 64), (64, 33)),
    ],
)
def test_matmul(left: tuple[int, ...], right: tuple[int, ...], constants: tuple[int, ...]) -> None:
    check_kernels(matmul, array(*left), array(*right), constants=constants)


@pytest.mark.parametrize("data_type", ["float16"])
def test_halves(data_type: str) -> None:
    a, b = array(40, 72, data_type=data_type), array(72, 50, data_type=data_type)
    check_kernels(matmul, a, b, tolerance=1e-3)
    check_kernels(lambda b, x, y: b.relu(b.matmul(x, y)), a, b, constants=(), tolerance=1e-3)


@pytest.mark.parametrize("transposes", [(False, True), (True, False), (True, True)])
def test_gemm(transposes: tuple[bool, bool]) -> None:
    a, b = (array(*((60, 40) if t else (40, 60))) for t in (transposes[0], not transposes[1]))
    c = array(40)

    def gemm(builder: ow.MLGraphBuilder, a: Any, b: Any, c: Any) -> Any:
        return builder.gemm(a, b, c=c, alpha=0.5, beta=-2.0, a_transpose=transposes[0], b_transpose=transposes[1])

    check_kernels(gemm, a, b, c)
    check_kernels(gemm, a, b, c, constants=())


@pytest.mark.parametrize("constants", [(), (1,)])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize(
    ("batches", "channels", "size", "outputs", "options"),
    [
        (2, 32, (9, 7), 40, {"padding": [1, 1, 1, 1]}),
        (1, 48, (8, 8), 33, {"filter": (1, 1)}),
        (2, 33, (6, 6), 32, {"filter": (1, 1)}),
        (1, 3, (17, 19), 32, {"padding": [2, 1, 0, 3], "strides": [2, 2]}),
        (1, 20, (14, 13), 32, {"dilations": [2, 3], "padding": [2, 0, 1, 3]}),
        (2, 64, (6, 8), 64, {"groups": 2, "padding": [1, 1, 1, 1]}),
        (1, 32, (12, 12), 32, {"filter": (5, 3), "strides": [3, 1]}),
    ],
)
def test_conv2d(
    batches: int, channels: int, size: tuple[int, int], outputs: int, options: Any, layout: Any, constants: Any
) -> None:
    options = dict(options)
    height, width = options.pop("filter", (3, 3))
    image = array(batches, channels, *size)
    filter = array(outputs, channels // options.get("groups", 1), height, width)
    if layout == "nhwc":
        image = np.ascontiguousarray(image.transpose(0, 2, 3, 1))

    def conv(b: ow.MLGraphBuilder, x: Any, w: Any) -> Any:
        return b.conv2d(x, w, input_layout=layout, **options)

    check_kernels(conv, image, filter, constants=constants)


@pytest.mark.parametrize("constants", [(), (1,)])
@pytest.mark.parametrize(
    ("batches", "channels", "size", "outputs", "options"),
    [
        (2, 16, (5, 6, 7), 33, {"padding": [1, 1, 1, 1, 1, 1]}),
        (1, 3, (7, 9, 8), 32, {"padding": [2, 1, 0, 3, 1, 1], "strides": [1, 2, 2], "filter": (3, 5, 3)}),
        (1, 20, (6, 7, 9), 32, {"dilations": [1, 2, 3], "padding": [0, 0, 2, 0, 1, 3]}),
        (2, 32, (3, 5, 6), 64, {"groups": 2, "strides": [2, 1, 1], "padding": [1, 0, 1, 0, 1, 0]}),
        (1, 32, (4, 6, 6), 32, {"filter": (1, 1, 1)}),
        (1, 24, (60,), 40, {"filter": (3,), "padding": [1, 2], "dilations": [2]}),
    ],
)
def test_convolution_of_any_axes(
    batches: int, channels: int, size: tuple[int, ...], outputs: int, options: Any, constants: Any
) -> None:
    """One kernel on tensor cores, with bias and activation."""
    options = dict(options)
    taps = options.pop("filter", (3, 3, 3))
    image, bias = array(batches, channels, *size), array(outputs)
    filter = array(outputs, channels // options.get("groups", 1), *taps)

    def conv(b: ow.MLGraphBuilder, x: Any, w: Any, bias: Any) -> Any:
        return b.relu(composites.convolution(x, w, bias, **options))

    check_kernels(conv, image, filter, bias, constants=constants)


@pytest.mark.parametrize("held", [0, 100])
@pytest.mark.parametrize("channels", [16, 20, 64])
def test_offsets_in_registers_or_not(held: int, channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of one tap, steps that go over taps, and several steps of a tap."""
    monkeypatch.setattr(tensor, "MAX_HELD_STEPS", held)
    image, filter = array(2, channels, 9, 8), array(40, channels, 5, 5)

    def conv(b: ow.MLGraphBuilder, x: Any, w: Any) -> Any:
        return b.conv2d(x, w, padding=[2, 1, 0, 2], dilations=[1, 2])

    check_kernels(conv, image, filter)
    (step,) = steps_of(conv, (image, filter), (1,), F)
    sides = [side for side in "ab" if f"{side}_held" in step.kernel.source]
    # Terms of a window are not equally far from each other in steps that go over taps.
    assert len(sides) == (0 if held == 0 else 2 if channels == 64 else 1)
    flat: Build = lambda b, x, y: b.matmul(b.transpose(x), y)  # noqa: E731
    check_kernels(flat, array(90, 40), array(90, 36))


@pytest.mark.parametrize("layout", ["oihw", "hwio", "ohwi", "ihwo"])
def test_layouts_of_filters(layout: Any) -> None:
    filter = array(32, 16, 3, 3).transpose(["oihw".index(letter) for letter in layout])
    check_kernels(
        lambda b, x, w: b.conv2d(x, w, filter_layout=layout), array(1, 16, 10, 10), np.ascontiguousarray(filter)
    )


ACTIVATIONS: dict[str, Callable[[ow.MLGraphBuilder, Any], Any]] = {
    "relu": lambda b, x: b.relu(x),
    "clamp": lambda b, x: b.clamp(x, min_value=-1, max_value=2),
    "leaky_relu": lambda b, x: b.leaky_relu(x, alpha=0.1),
    "elu": lambda b, x: b.elu(x),
    "gelu": lambda b, x: b.gelu(x),
    "hard_swish": lambda b, x: b.hard_swish(x),
    "hard_sigmoid": lambda b, x: b.hard_sigmoid(x),
    "sigmoid": lambda b, x: b.sigmoid(x),
    "softplus": lambda b, x: b.softplus(x),
    "softsign": lambda b, x: b.softsign(x),
    "tanh": lambda b, x: b.tanh(x),
    "exp": lambda b, x: b.exp(x),
    "exp_log": lambda b, x: b.log(b.exp(x)),
    "sqrt_pow": lambda b, x: b.pow(b.sqrt(b.abs(x)), b.constant(np.float32(1.7))),
    "floor": lambda b, x: b.floor(x),
    "ceil": lambda b, x: b.ceil(x),
    "round_even": lambda b, x: b.round_even(x),
    "sign": lambda b, x: b.sign(x),
    "neg": lambda b, x: b.neg(x),
    "reciprocal": lambda b, x: b.reciprocal(b.add(b.abs(x), b.constant(np.float32(1)))),
    "halves": lambda b, x: b.cast(b.relu(b.cast(x, "float16")), "float32"),
    "quotient": lambda b, x: b.div(x, b.constant(np.float32(3.0))),
    "square": lambda b, x: b.pow(x, 2.0),
    "cube": lambda b, x: b.pow(x, 3.0),
    "root": lambda b, x: b.pow(b.abs(x), 0.5),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_epilogues(name: str) -> None:
    """The same functions as on other devices, with NaN and infinities, bias and a residual."""
    a, b, bias, rest = array(40, 32), array(32, 36), array(36), array(40, 36)
    a[3, 5], a[4, 5], a[5, 5] = np.nan, np.inf, -np.inf
    rest[0, :4] = 0.5, 1.5, -2.5, 88.0
    a[0] = 0

    def build(builder: ow.MLGraphBuilder, a: Any, b: Any, bias: Any, rest: Any) -> Any:
        return ACTIVATIONS[name](builder, builder.add(builder.add(builder.matmul(a, b), bias), rest))

    check_kernels(build, a, b, bias, rest, tolerance=2e-3 if name == "halves" else 2e-5)


@pytest.mark.long
def test_epilogues_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's compiler refuses what its interpreter takes, such as a tensor of another shape or type."""
    monkeypatch.setenv("OPWEAVE_CACHE", str(tmp_path / "cache"))
    a, b, rest, mask = array(40, 32), array(32, 36), array(40, 36), np.ones((40, 36), np.uint8)
    builds: list[Build] = [
        *(lambda b, x, y, rest, mask, of=of: of(b, b.matmul(x, y)) for of in ACTIVATIONS.values()),
        *(
            lambda b, x, y, rest, mask, name=name: getattr(b, name)(b.matmul(x, y), rest)
            for name in ("add", "sub", "mul", "div", "max", "min", "pow", "prelu")
        ),
        *(
            lambda b, x, y, rest, mask, name=name: b.where(getattr(b, name)(b.matmul(x, y), rest), rest, 2.0)
            for name in ("equal", "not_equal", "greater", "greater_or_equal", "lesser", "lesser_or_equal")
        ),
        *(
            lambda b, x, y, rest, mask, name=name: b.where(
                getattr(b, name)(mask, b.greater(b.matmul(x, y), rest)), rest, 2.0
            )
            for name in ("logical_and", "logical_or", "logical_xor")
        ),
        *(
            lambda b, x, y, rest, mask, name=name: b.where(b.logical_not(getattr(b, name)(b.matmul(x, y))), rest, 2.0)
            for name in ("is_nan", "is_infinite")
        ),
        lambda b, x, y, rest, mask: b.add(b.matmul(x, y), b.cast(mask, "float32")),
    ]
    kernels = [
        step.kernel
        for build in builds
        for step in steps_of(build, (a, b, rest, mask), (1,), F)
        if step.kernel.compiler == "triton"
    ]
    assert len(kernels) == len(builds)
    for binary in compiler.binaries(kernels, "sm_90"):
        assert binary.image.startswith(b"\x7fELF")


@pytest.mark.parametrize("by", [3.0, 2**0.5, -0.1, 7e-9, 1e6, 8.0, -0.25, 1e-20, 1e20, np.inf, np.nan])
def test_quotients_by_constants_are_rounded_correctly(by: float) -> None:
    one, numbers = np.eye(32, dtype=np.float32), array(40, 32) * np.float32(1e3)
    numbers[0, :9] = 0, -0.0, np.inf, -np.inf, np.nan, 3.0e38, -3.0e38, 1e-20, -1e-20
    divisor = np.float32(by)

    def build(builder: ow.MLGraphBuilder, a: Any, b: Any, numbers: Any) -> Any:
        return builder.div(builder.mul(builder.matmul(a, b), numbers), builder.constant(divisor))

    inputs = [np.ones((40, 32), np.float32), numbers]
    (step,) = steps_of(build, [inputs[0], one, inputs[1]], (1,), F)
    with np.errstate(all="ignore"):
        wanted = numbers / divisor
    found = run_steps([step], inputs)
    np.testing.assert_array_equal(found, wanted)
    is_known = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(found[is_known]), np.signbit(wanted[is_known]))


@pytest.mark.parametrize("error", [0.0, 2.0**-22, -(2.0**-22)])
@pytest.mark.parametrize("name", ["sigmoid", "tanh", "exp"])
def test_inexact_division_keeps_functions_accurate(name: str, error: float) -> None:
    """All exponents, against NumPy in float64; Triton's division has an error of at most 2 ULP."""
    exponents, signs = np.arange(255, dtype=np.uint32) << 23, np.uint32([0, 1 << 31])
    mantissas = np.random.default_rng(0).integers(0, 1 << 23, (255, 2, 64), np.uint32)
    numbers = (exponents[:, None, None] | signs[:, None] | mantissas).view(np.float32).reshape(-1, 32)
    numbers = np.concatenate([numbers, np.linspace(-105, 105, 32 * 320, dtype=np.float32).reshape(-1, 32)])
    ones, one = np.ones_like(numbers), np.eye(32, dtype=np.float32)

    def build(builder: ow.MLGraphBuilder, a: Any, b: Any, numbers: Any) -> Any:
        return ACTIVATIONS[name](builder, builder.mul(builder.matmul(a, b), numbers))

    (step,) = steps_of(build, [ones, one, numbers], (1,), F)
    assert ("= 1.0 / b" in step.kernel.source) == (name != "exp")
    source = step.kernel.source.replace("= 1.0 / b", f"= (1.0 / b) * {1 + error}")
    found = run_steps([replace(step, kernel=replace(step.kernel, source=source))], [ones, numbers])
    wide = numbers.astype(np.float64)
    with np.errstate(over="ignore"):
        wanted = np.tanh(wide) if name == "tanh" else np.exp(wide) if name == "exp" else 1 / (1 + np.exp(-wide))
    is_finite = wanted < np.finfo(np.float32).max
    finite = wanted[is_finite]
    errors = np.abs(found[is_finite] - finite) / np.spacing(np.abs(finite).astype(np.float32))
    assert errors.max() <= BOUNDS[name]
    assert np.abs(found[~is_finite]).min(initial=np.inf) == np.inf
    assert name == "exp" or np.abs(found).max() == 1


@pytest.mark.parametrize("name", ["sigmoid", "tanh"])
def test_functions_with_a_quotient_do_not_branch(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPWEAVE_CACHE", str(tmp_path / "cache"))
    arrays = array(40, 32), array(32, 36)
    (step,) = steps_of(lambda b, x, y: ACTIVATIONS[name](b, b.matmul(x, y)), arrays, (1,), F)
    (binary,) = compiler.binaries([step.kernel], "sm_90")
    found = instructions(binary.image, tmp_path)
    assert "MUFU.RCP" in found
    assert "FCHK" not in found  # whether a quotient takes the slow way
    assert "F2I" not in found  # each element has these instructions, which take time to compile


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_bias_of_a_convolution(layout: Any) -> None:
    image = array(2, 6, 7, 16) if layout == "nhwc" else array(2, 16, 6, 7)
    shape = [2, 6, 7, 40] if layout == "nhwc" else [2, 40, 6, 7]

    def build(b: ow.MLGraphBuilder, x: Any, w: Any, bias: Any, rest: Any) -> Any:
        return b.relu(b.add(b.conv2d(x, w, bias=bias, padding=[1, 1, 1, 1], input_layout=layout), rest))

    check_kernels(build, image, array(40, 16, 3, 3), array(40), array(*shape))


@pytest.mark.parametrize("small_tiles", [3], indirect=True)
def test_parts_of_sums_are_added() -> None:
    """The kernel that adds them computes what follows."""
    a, b, bias = array(40, 32 * 11), array(32 * 11, 35), array(35)
    check_kernels(
        lambda builder, a, b, bias: builder.tanh(builder.add(builder.matmul(a, b), bias)),
        *(a, b, bias),
        kernels=("triton", ""),
    )
    check_kernels(
        lambda b, x, w: b.conv2d(x, w, padding=[1, 1, 1, 1]),
        *(array(2, 64, 6, 6), array(32, 64, 3, 3)),
        kernels=("triton", ""),
    )


def test_epilogue_without_triton_is_a_separate_kernel() -> None:
    check_kernels(lambda b, x, y: b.sin(b.matmul(x, y)), array(32, 32), array(32, 40), kernels=("triton", ""))


def test_masks() -> None:
    mask = (array(36) > 0).astype(np.uint8)

    def build(builder: ow.MLGraphBuilder, a: Any, b: Any, mask: Any) -> Any:
        return builder.where(mask, builder.matmul(a, b), builder.constant(np.float32(-np.inf)))

    check_kernels(build, array(40, 32), array(32, 36), mask)


def test_tensor_cores_round_float32_as_precision_allows() -> None:
    a, b = np.full((32, 32), 1 + 2.0**-12, np.float32), np.ones((32, 32), np.float32)
    steps = {
        kind: steps_of(matmul, [a, b], (), replace(F, tensor_cores=TensorCores(kind, 227 << 10)))  # type: ignore[arg-type]
        for kind in ("tf32x3", "tf32", "bfloat16", "float16")
    }
    np.testing.assert_array_equal(run_steps(steps["tf32x3"], [a, b]), 32 * (1 + 2.0**-12))
    for kind in ("bfloat16", "float16"):
        np.testing.assert_array_equal(run_steps(steps[kind], [a, b]), 32)
    for kind, text in (("tf32x3", "divided(a_tile)"), ("tf32", '"tf32"')):
        (step,) = steps[kind]  # the interpreter does not round to TF32
        assert text in step.kernel.source


def test_tensor_core_conditions(monkeypatch: pytest.MonkeyPatch) -> None:
    def compilers(build: Build, *arrays: np.ndarray, features: Features = F) -> set[str]:
        return {step.kernel.compiler for step in steps_of(build, arrays, (1,), features)}

    assert compilers(matmul, array(8, 64), array(64, 64)) == {""}  # memory is the limit
    assert compilers(matmul, array(32, 32), array(32, 32), features=replace(F, tensor_cores=None)) == {""}
    depthwise: Build = lambda b, x, w: b.conv2d(x, w, groups=32)  # noqa: E731
    assert compilers(depthwise, array(1, 32, 8, 8), array(32, 1, 3, 3)) == {""}
    monkeypatch.setattr(tensor, "MIN_PRODUCTS", 1 << 20)
    assert compilers(matmul, array(32, 32), array(32, 32)) == {""}
    assert compilers(matmul, array(128, 128), array(128, 128)) == {"triton"}


def test_tensor_cores_are_chosen_where_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """TF32x3 takes three products for one, and longer for windows that start at each second column."""
    monkeypatch.setattr(tensor, "MIN_PRODUCTS", 1 << 23)
    monkeypatch.setattr(tensor_tiles, "is_faster", is_faster)

    def compilers(build: Build, *arrays: np.ndarray, kind: str = "tf32x3") -> set[str]:
        features = replace(F, units=132, tensor_cores=TensorCores(kind, 227 << 10))
        return {step.kernel.compiler for step in steps_of(build, arrays, (1,), features)} - {""}

    assert not compilers(matmul, array(64, 384), array(384, 384))
    assert compilers(matmul, array(64, 384), array(384, 384), kind="tf32")
    assert compilers(matmul, array(64, 384, data_type="float16"), array(384, 384, data_type="float16"))
    assert compilers(matmul, array(512, 1024), array(1024, 1024))
    for stride in (1, 2):
        image, filter = array(1, 32, 28 * stride, 28 * stride), array(128, 32, 3, 3)
        conv: Build = lambda b, x, w, s=stride: b.conv2d(x, w, padding=[1, 1, 1, 1], strides=[s, s])  # noqa: E731
        assert bool(compilers(conv, image, filter)) == (stride == 1)
        assert compilers(conv, image, filter, kind="tf32")


def test_transposed_operands_are_read_in_place_on_tensor_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """The constant, which is brought into order, decides that tensor cores are faster."""
    monkeypatch.setattr(tensor, "MIN_PRODUCTS", 1 << 23)
    monkeypatch.setattr(tensor_tiles, "is_faster", is_faster)
    features = replace(F, units=132, tensor_cores=TensorCores("tf32x3", 227 << 10))
    turned: Build = lambda b, x, y: b.matmul(b.transpose(x), y)  # noqa: E731
    for depth, columns, compilers in ((256, 1024, ["triton"]), (384, 384, ["", "", ""])):
        steps = steps_of(turned, (array(depth, 64), array(depth, columns)), (1,), features)
        assert [step.kernel.compiler for step in steps] == compilers  # one transposes, one adds up parts of sums


# ---------------------------------------------------------------------------------------------------------------------
# Orders of operands

HOPPER = replace(F, architecture="sm_90", tensor_cores=TensorCores("tf32", 227 << 10))
"""Features of a device that reads TF32 from shared memory only with contiguous terms."""


def turned(a_transpose: bool, b_transpose: bool) -> Build:
    return lambda b, x, y: b.relu(b.gemm(x, y, a_transpose=a_transpose, b_transpose=b_transpose))


@pytest.mark.parametrize("small_tiles", [1, 2], indirect=True)
@pytest.mark.parametrize("constants", [(), (0,), (1,)])
@pytest.mark.parametrize("transposes", [(False, False), (False, True), (True, False), (True, True)])
def test_products_of_tf32_in_any_order(transposes: tuple[bool, bool], constants: tuple[int, ...], request: Any) -> None:
    a, b = array(*((72, 70) if transposes[0] else (70, 72))), array(*((45, 72) if transposes[1] else (72, 45)))
    splits = request.node.callspec.params["small_tiles"]
    kernels = ("triton",) if splits == 1 else ("triton", "")
    check_kernels(turned(*transposes), a, b, constants=constants, kernels=kernels, features=HOPPER)


@pytest.mark.parametrize("constants", [(), (1,)])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("filter", [1, 3])
def test_convolutions_of_tf32_in_any_order(filter: int, layout: Any, constants: Any) -> None:
    image, weights = array(2, 32, 9, 8), array(40, 32, filter, filter)
    if layout == "nhwc":
        image = np.ascontiguousarray(image.transpose(0, 2, 3, 1))
    pad = [filter // 2] * 4
    build: Build = lambda b, x, w: b.relu(b.conv2d(x, w, padding=pad, input_layout=layout))  # noqa: E731
    check_kernels(build, image, weights, constants=constants, features=HOPPER)


@pytest.mark.parametrize("columns_first", [False, True])
def test_tensor_cores_read_operands_in_another_order_from_registers(
    columns_first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies to shared memory of 16 bytes each, not of 4 as for operands that are turned there."""
    monkeypatch.setenv("OPWEAVE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tensor_tiles, "choose", lambda *_: (TensorTile(64, 64, 32, 4, 3), 1))
    arrays = (array(256, 128), array(256, 128)) if columns_first else (array(128, 256), array(256, 128))
    (step,) = steps_of(turned(columns_first, False), arrays, (1,) if columns_first else (), HOPPER)
    assert "a_tile = cut_off(a_tile)" in step.kernel.source
    (binary,) = compiler.binaries([step.kernel], "sm_90")
    found = instructions(binary.image, tmp_path)
    assert any(map(WGMMA_TF32.fullmatch, found))
    copies = {name for name in found if name.startswith("LDGSTS")}
    assert copies
    assert all(".128" in name for name in copies), copies


def test_windows_at_strides_stay_in_shared_memory() -> None:
    """Their loads are not adjacent: in registers they take up to twice as long."""
    for stride in (1, 2):
        conv: Build = lambda b, x, w, s=stride: b.conv2d(x, w, padding=[1, 1, 1, 1], strides=[s, s])  # noqa: E731
        (step,) = steps_of(conv, (array(1, 32, 12, 12), array(40, 32, 3, 3)), (1,), HOPPER)
        assert ("cut_off" in step.kernel.source) == (stride == 1)


def test_tiles_of_mirrored_products_are_exchanged() -> None:
    a, b = Input(0, Desc("float32", (196, 768))), Input(1, Desc("float32", (384, 196)))
    problem = product(View.of(a), View.of(b), a_transpose=True, b_transpose=True)
    assert tensor_tiles.is_mirrored(problem, HOPPER)
    assert tensor_tiles.kind_of(problem, HOPPER) == "tf32, columns"
    usual = {m.tile for m in tensor_tiles.table()["tf32, columns"]}
    mirrored = {m.tile for m in tensor_tiles.measured_tiles(problem, HOPPER)}
    assert mirrored == {replace(tile, rows=tile.columns, columns=tile.rows) for tile in usual}
    assert not tensor_tiles.is_mirrored(problem, F)


# ---------------------------------------------------------------------------------------------------------------------
# Graphs


@pytest.mark.parametrize(("precision", "compilers"), [("float32", {"triton", ""}), ("ieee", {""})])
def test_graphs(precision: Any, compilers: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of both compilers in one CUDA graph, whose launches have the arguments that they take."""
    driver, loaded = CpuDriver(), set[str]()
    load = driver.functions

    def recorded(kernels: Sequence[GpuKernel]) -> list[CudaFunction]:
        loaded.update(kernel.compiler for kernel in kernels)
        return load(kernels)

    monkeypatch.setattr(driver, "functions", recorded)
    context = context_on(driver, precision)
    builder = ow.MLGraphBuilder(context)
    x, w = array(2, 24, 10, 10), array(40, 24, 3, 3)
    image = builder.input("x", "float32", list(x.shape))
    hidden = builder.relu(builder.conv2d(image, builder.constant(w), padding=[1, 1, 1, 1]))
    graph = builder.build({"y": builder.average_pool2d(hidden)})
    assert loaded == compilers
    found = context.compute(graph, {"x": x})["y"]
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, [(0, 0)] * 2 + [(1, 1)] * 2), (3, 3), (2, 3))
    wanted = np.maximum(np.einsum("nchwyx,ocyx->nohw", windows, w, optimize=True), 0).mean((2, 3), keepdims=True)
    np.testing.assert_allclose(found, wanted, rtol=1e-4)
    assert driver.calls["launch"] == 1
    again = context.compute(graph, {"x": -x})["y"]  # other memory, perhaps: arguments of nodes change
    assert not np.allclose(again, found)


def test_precisions_of_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert precisions(INFO) == ("float32", "ieee", "tf32", "bfloat16", "float16")
    assert precisions(replace(INFO, architecture="sm_75")) == ("float32", "ieee")
    assert features_of(INFO, "ieee").tensor_cores is None
    assert features_of(INFO, "float32").tensor_cores == TensorCores("tf32x3", INFO.max_dynamic_shared)
    monkeypatch.setattr(compiler, "triton_version", lambda: "")
    assert precisions(INFO) == ("float32", "ieee")


# ---------------------------------------------------------------------------------------------------------------------
# Choice of tiles


def test_tile_choice_grows_with_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def choice(rows: int, columns: int, terms: int, features: Features = F) -> tuple[TensorTile, int]:
        a, b = Input(0, Desc("float32", (rows, terms))), Input(1, Desc("float32", (terms, columns)))
        return choose(product(View.of(a), View.of(b)), features)

    large, parts = choice(4096, 4096, 4096)
    assert large.rows * large.columns >= 64 * 128
    assert parts == 1
    small, _ = choice(64, 64, 256)
    assert small.rows * small.columns <= 64 * 64
    _, parts = choice(64, 64, 65536)  # deep and narrow
    assert parts > 8
    tile, _ = choice(4096, 4096, 4096, replace(F, tensor_cores=TensorCores("tf32x3", 99 << 10)))
    assert tensor_tiles.shared_bytes(tile, 4, 4) <= 99 << 10


@pytest.mark.parametrize(("function", "warps"), [("sigmoid", 8), ("neg", 4)])
def test_long_epilogues_have_few_elements_a_thread(function: str, warps: int) -> None:
    """Triton unrolls an epilogue for each element of a thread; a tile with fewer elements is about as fast."""
    features = replace(HOPPER, tensor_cores=TensorCores("float16", 227 << 10))
    a, b = Input(0, Desc("float16", (640, 2048))), Input(1, Desc("float16", (8192, 2048)))
    problem, result = product(View.of(a), View.of(b), b_transpose=True), Input(2, Desc("float32", (640, 8192)))
    contraction = Contraction(problem, result, {}, features, lambda _: (TensorTile(128, 128, 64, 4, 3), 1))
    axes = tuple(ir.Index(size, k) for k, size in enumerate(result.desc.shape))
    body = ir.call(function, ir.Load(result, axes))
    (kernel,) = contraction.kernels(ir.Formula("end", (result,), (ir.Output(axes, body),)), "product")
    assert dict(kernel.options)["num_warps"] == warps


def test_tuning_measures_tiles_on_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fastest tile is kept for later graphs with the same contraction, in other processes, too."""
    monkeypatch.setenv("OPWEAVE_CACHE", str(tmp_path))
    others = [TensorTile(64, 32, 32, 4, 2), SMALL, TensorTile(32, 64, 32, 4, 2)]
    monkeypatch.setattr(tensor_tiles, "rank_tiles", lambda *_: iter([(tile, 1) for tile in others]))
    monkeypatch.setattr(tensor_tiles, "choose", lambda *_: (others[0], 1))
    driver = CpuDriver()

    measure = measured_tiles.microseconds

    def time(driver: CpuDriver, kernels: Sequence[GpuKernel], memory: dict[Any, int], copies: Any) -> float:
        measure(driver, kernels, memory, 1, copies)
        return 1 if "32 x 32 x 32" in kernels[0].source else 5

    monkeypatch.setattr(measured_tiles, "microseconds", time)

    def build(context: ow.MLContext) -> tuple[ow.MLGraph, list[str]]:
        loaded: list[str] = []
        own = context._backend.engine.driver  # type: ignore[attr-defined]
        load = own.functions

        def recorded(kernels: Sequence[GpuKernel]) -> list[CudaFunction]:
            loaded.extend(kernel.source for kernel in kernels)
            return load(kernels)

        monkeypatch.setattr(own, "functions", recorded)
        builder = ow.MLGraphBuilder(context)
        product = builder.matmul(builder.input("x", "float32", [40, 64]), builder.constant(array(64, 40)))
        return builder.build({"y": builder.relu(product)}), loaded

    def tile_of(sources: list[str]) -> str:
        return sources[-1].split("tiles of ")[1].split("\n")[0]

    graph, loaded = build(context_on(driver))
    assert tile_of(loaded) == "64 x 32 x 32"
    (found,) = graph.tune(seconds=0).measurements
    assert list(found.seconds) == ["cuda", "measured tiles"]
    assert tile_of(loaded) == "32 x 32 x 32"
    graph, loaded = build(context_on(CpuDriver()))
    assert tile_of(loaded) == "32 x 32 x 32"
    x = array(40, 64)
    wanted = np.maximum(x @ array(64, 40), 0)
    np.testing.assert_allclose(graph.context.compute(graph, {"x": x})["y"], wanted, rtol=1e-4, atol=1e-4)
    graph, loaded = build(context_on(CpuDriver(), "tf32"))
    assert tile_of(loaded) == "64 x 32 x 32"  # another kind of products


def test_measured_speeds_are_recovered() -> None:
    tile = TensorTile(64, 64, 64, 4, 3)
    samples = [
        (steps, waves * 64**3, 2.5 + steps * max(0.4, waves * 64**3 / 1.5e6))
        for steps in (4, 16, 64)
        for waves in (1, 2, 5, 20)
    ]
    found = cuda_tune.fitted(tile, samples)
    assert found == MeasuredTile(tile, pytest.approx(1.5e6), pytest.approx(0.4), 2.5)


def test_tiles_are_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The benchmark on the processor, whose times are not those of kernels; its results are."""
    monkeypatch.setattr(cuda_tune, "REPEAT", 1)
    monkeypatch.setattr(cuda_tune, "TILES", {kind: tiles[:2] for kind, tiles in cuda_tune.TILES.items()})
    driver = CpuDriver()
    case = Case("matmul 64", "matmul", ((64, 512), (512, 64)))
    monkeypatch.setattr(cuda_tune, "SHAPES", (case,))
    record, table, choices = cuda_tune.measure(driver, [case], list(cuda_tune.KINDS), tmp_path / "samples.json")
    assert json.loads((tmp_path / "samples.json").read_text("utf-8"))["times"] == [
        list(time) for time in record["times"]
    ]
    rows = {kind: [list(row) for row in rows] for kind, rows in cuda_tune.TILES.items()}
    for kind, its in rows.items():
        assert [row for row in its if row in [time[2] for time in record["times"] if time[0] == kind]] == its
    cuda_tune.write(tmp_path / "table.json", [record])
    written = json.loads((tmp_path / "table.json").read_text("utf-8"))
    tiles = {key: [row[:5] for row in its] for key, its in written["tiles"].items()}
    for kind, its in rows.items():
        assert [tiles[f"{kind}, {reading}"] for reading in tensor_tiles.READINGS] == [its] * len(tensor_tiles.READINGS)
    assert (len(table.rows), driver.memory) == (3, {})
    assert [line.split(":")[0] for line in choices] == list(rows)
    monkeypatch.setattr(cuda_tune, "reference", lambda *_: np.ones((64, 64)))
    with pytest.raises(SystemExit, match=r"matmul 64, float16, 64 x 64 x 64, 1 parts: wrong by"):
        cuda_tune.measure(driver, [case], ["float16"], None)


def test_rows_of_other_products_stay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cuda_tune, "REPEAT", 1)
    monkeypatch.setattr(cuda_tune, "TILES", {kind: tiles[:1] for kind, tiles in cuda_tune.TILES.items()})
    case = Case("matmul 64", "matmul", ((64, 512), (512, 64)))
    monkeypatch.setattr(cuda_tune, "SHAPES", (case,))
    record, *_ = cuda_tune.measure(CpuDriver(), [case], ["tf32"], None)
    cuda_tune.write(tmp_path / "table.json", [record])
    kept, written = (json.loads(p.read_text("utf-8"))["tiles"] for p in (cuda_tune.TARGET, tmp_path / "table.json"))
    assert list(written) == list(kept)
    assert {key for key in kept if written[key] != kept[key]} == {f"tf32, {r}" for r in tensor_tiles.READINGS}
    known = json.loads(cuda_tune.TARGET.read_text("utf-8"))["devices"]
    found = json.loads((tmp_path / "table.json").read_text("utf-8"))["devices"]
    assert found == [f"{record['device']}, {record['architecture']}", *known]


def test_tile_table_names_devices() -> None:
    kept = json.loads(cuda_tune.TARGET.read_text("utf-8"))
    assert kept["devices"]
    assert all("sm_" in device for device in kept["devices"])
    for key, rows in kept["tiles"].items():
        kind = key.split(", ")[0].removesuffix(" in kernels")
        tiles = [tuple(row[:5]) for row in rows]
        assert tiles == [tile for tile in cuda_tune.TILES[kind] if tile in tiles]  # those that were measured
        assert tiles[0] == cuda_tune.TILES[kind][0]


# ---------------------------------------------------------------------------------------------------------------------
# Compilation

ARCHITECTURES = {"sm_80": 163 << 10, "sm_90": 227 << 10, "sm_100": 227 << 10, "sm_120": 99 << 10}
"""Architectures, with the bytes of shared memory that a kernel may ask for."""


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_tiles_compile(
    request: pytest.FixtureRequest, architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A product and a convolution with each tile of the table; one of fourteen, unless `--all` is given."""
    monkeypatch.setenv("OPWEAVE_CACHE", str(tmp_path))
    limit, kernels = ARCHITECTURES[architecture], []
    for key, known in tensor_tiles.table().items():
        kind, reading = key.split(", ")
        features = replace(F, tensor_cores=TensorCores("tf32" if kind == "tf32" else "tf32x3", limit))
        data_type = "float16" if kind == "float16" else "float32"
        for measured in known if reading == "terms" else ():  # the other ways to read have the same tiles
            monkeypatch.setattr(tensor_tiles, "choose", lambda *_, tile=measured.tile: (tile, 1))
            size = measured.tile.rows
            operands = array(2 * size, 160, data_type=data_type), array(160, 320, data_type=data_type)
            kernels += steps_of(lambda b, x, y: b.gelu(b.matmul(x, y)), operands, (1,), features)
            image, filter = array(1, 64, 15, 15, data_type=data_type), array(192, 64, 3, 3, data_type=data_type)
            kernels += steps_of(lambda b, x, w: b.conv2d(x, w, padding=[1, 1, 1, 1]), (image, filter), (1,), features)
    assert {step.kernel.compiler for step in kernels} == {"triton"}
    number = list(ARCHITECTURES).index(architecture)
    chosen = kernels if request.config.option.all else kernels[3 * number :: 14]
    binaries = compiler.binaries([step.kernel for step in chosen], architecture)
    for step, binary in zip(chosen, binaries, strict=True):
        assert binary.image.startswith(b"\x7fELF")
        assert 0 < binary.shared <= limit
        assert (binary.invocations, binary.trailing) == (step.kernel.block, 2)


def test_tile_table_has_every_kind() -> None:
    known = tensor_tiles.table()
    kinds = ("float16", "tf32", "tf32x3", "tf32x3 in kernels")
    assert list(known) == [f"{kind}, {reading}" for kind in kinds for reading in tensor_tiles.READINGS]
    for key, measured in known.items():
        size = 2 if key.startswith("float16") else 4
        assert tensor_tiles.shared_bytes(measured[0].tile, size, size) <= 99 << 10  # of the smallest devices
        assert all(m.rate > 0 and m.latency > 0 for m in measured)
        assert len({m.tile for m in measured}) == len(measured)


@pytest.mark.parametrize("small_tiles", [1, 2], indirect=True)
@pytest.mark.parametrize("rule", ["gated", "delta"])
def test_linear_attention_on_tensor_cores(rule: str) -> None:
    operands = linear_attention.operands_of(rule, tokens=130, heads=4, groups=2, size=16, values=20)

    def build(b: ow.MLGraphBuilder, *inputs: ow.MLOperand) -> ow.MLOperand:
        named = dict(zip(operands, inputs, strict=True))
        return ow.composites.linear_attention(b, **named, heads=4, groups=2, update_rule=rule)[0]

    steps = steps_of(build, list(operands.values()), (), F)
    assert {step.kernel.compiler for step in steps} == {"", "triton"}
    result = run_steps(steps, list(operands.values()))
    expected, _ = linear_attention.loop(**operands, heads=4, groups=2)
    np.testing.assert_allclose(result.reshape(expected.shape), expected, rtol=0, atol=1e-5)
