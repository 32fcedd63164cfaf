"""`create_context(precision=...)`: what each device can do, what errors tell, and that contexts share no compiled programs."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from support.onnx import model, node
from typer.testing import CliRunner

import opweave as ow
from opweave.backends import PRECISIONS, Precision, discover
from opweave.backends.onnxruntime import devices as ort_devices, sessions
from opweave.cli import app

DEVICES = [(device.backend, device.name) for device in ow.devices() if device.available]
BITS = {"float32": 24, "ieee": 24, "tf32": 11, "bfloat16": 8, "float16": 11}
"""The bits of a number that are kept."""

_RANDOM = np.random.default_rng(5)
X = _RANDOM.standard_normal((64, 256), np.float32)
WEIGHTS = _RANDOM.standard_normal((256, 64), np.float32)


def product(context: ow.MLContext) -> ow.MLGraph:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", X.shape)
    return builder.build({"y": builder.matmul(x, builder.constant(WEIGHTS))})


def error_of(context: ow.MLContext) -> float:
    """The largest error of a product of matrices, as a share of its largest element."""
    exact = X.astype(np.float64) @ WEIGHTS
    return float(np.abs(context.compute(product(context), {"x": X})["y"] - exact).max() / np.abs(exact).max())


def in_order() -> float:
    """The error of sums of float32 in order."""
    total = np.zeros((64, 64), np.float32)
    for k in range(256):
        total += X[:, k : k + 1] * WEIGHTS[k]
    exact = X.astype(np.float64) @ WEIGHTS
    return float(np.abs(total - exact).max() / np.abs(exact).max())


def when_rounded(bits: int) -> float:
    """The error if operands and result are rounded to this many bits, and nothing else is."""

    def rounded(array: np.ndarray) -> np.ndarray:
        mantissas, exponents = np.frexp(array.astype(np.float64))
        return np.ldexp(np.round(np.ldexp(mantissas, bits)), exponents - bits)

    exact = X.astype(np.float64) @ WEIGHTS
    return float(np.abs(rounded(rounded(X) @ rounded(WEIGHTS)) - exact).max() / np.abs(exact).max())


def test_precisions_match_their_type() -> None:
    assert tuple(PRECISIONS) == get_args(Precision)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("backend", "device"), DEVICES)
def test_create_context_precision_or_error(backend: str, device: str, precision: Precision) -> None:
    found = next(d for d in ow.devices() if (d.backend, d.name) == (backend, device))
    if precision in found.precisions:
        context = ow.ml.create_context(device=device, backend=backend, precision=precision)
        assert context.precision == precision
        # One percent more for sums of float32, which the witness has in float64.
        assert error_of(context) <= (in_order() if BITS[precision] == 24 else 1.01 * when_rounded(BITS[precision]))
        assert f"precision {precision}: {PRECISIONS[precision]}" in product(context).explain().splitlines()
        return
    with pytest.raises(ow.NotSupportedError) as raised:
        ow.ml.create_context(device=device, backend=backend, precision=precision)
    own = re.escape(repr(found.precisions[0]))
    able = [d for d in ow.devices() if d.available and precision in d.precisions]
    last = "no device of this machine can" if not able else f"'{able[-1].name}' of back end '{able[-1].backend}' can"
    start = f"precision '{precision}': device '{device}' of back end '{backend}' cannot compute so, only as {own}"
    assert re.match(start, str(raised.value)), raised.value
    if not able:  # then the message says what all devices can, and after that what is broken
        last += ", all together only as 'float32'"
    assert f"; {last}" in str(raised.value)


def test_devices_support_float32() -> None:
    here = [device for device in ow.devices() if device.available and device.kind != "npu"]
    assert all("float32" in device.precisions for device in here)
    assert ow.Device("x", "gpu", "other", "of another package").precisions == ("float32",)


def test_default_precision_is_float32() -> None:
    context = ow.ml.create_context()
    assert context.precision == "float32"
    assert context.backend.precision == "float32"


def test_precision_selects_non_default_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPWEAVE_DEVICE", raising=False)
    reference = discover()["reference"]
    exact = ow.Device("reference", "cpu", "reference", "", precisions=("float32", "tf32"))
    monkeypatch.setattr(reference, "devices", lambda: [exact])
    assert ow.ml.create_context(precision="tf32").device is exact
    assert ow.ml.create_context(precision="tf32", device="reference").precision == "tf32"
    with pytest.raises(ow.NotSupportedError, match=r"'cpu' .* cannot .* 'ieee'; 'reference' of .* can"):
        ow.ml.create_context(precision="tf32", device="cpu", backend="onnxruntime")
    with pytest.raises(ow.NotSupportedError, match="back end 'onnxruntime' cannot compute so"):
        ow.ml.create_context(precision="tf32", backend="onnxruntime")


@pytest.mark.parametrize("given", ["double", 32, None, ["ieee"]])
def test_another_precision_is_refused(given: Any) -> None:
    with pytest.raises(ow.ValidationError, match=r"precision must be one of 'float32', 'ieee', .*, got"):
        ow.ml.create_context(precision=given)


def test_contexts_with_equal_options_share_programs() -> None:
    """Those of another precision do not."""
    plain, strict = (ow.ml.create_context(accelerated=False, precision=p) for p in ("float32", "ieee"))  # type: ignore[arg-type]
    again = ow.ml.create_context(accelerated=False, precision="ieee")
    assert strict.backend is again.backend
    assert strict._place == again._place != plain._place
    threaded = [ow.ml.create_context(accelerated=False, precision="ieee", threads=1) for _ in range(2)]
    assert threaded[0]._place == threaded[1]._place != strict._place
    assert (threaded[0].backend.threads, threaded[0].precision) == (1, "ieee")
    assert ow.ml.create_context(accelerated=False, threads=1).precision == "float32"


def test_onnxruntime_session_options_of_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    def entry(precision: Precision, key: str) -> str | None:
        options = sessions.session_options("default", precision=precision)
        try:
            return str(options.get_session_config_entry(key))
        except RuntimeError:
            return None

    fast, exact = "mlas.enable_gemm_fastmath_arm64_bfloat16", "session.disable_quant_qdq"
    assert [entry("float32", key) for key in (fast, exact)] == [None, None]
    assert [entry("ieee", key) for key in (fast, exact)] == [None, "1"]
    assert [entry("bfloat16", key) for key in (fast, exact)] == ["1", None]


@pytest.mark.parametrize(
    ("system", "machine", "features", "has"),
    [
        ("Linux", "aarch64", "fp asimd bf16 i8mm", True),
        ("Linux", "aarch64", "fp asimd sve_bf16", False),
        ("Linux", "x86_64", "bf16", False),
        ("Darwin", "arm64", "bf16", False),
    ],
)
def test_arm_processors_may_have_bfloat16(
    system: str, machine: str, features: str, has: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.system", lambda: system)
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(ort_devices, "processor_lines", lambda name: iter([features]))
    device = ort_devices.cpu.__wrapped__()
    assert ("bfloat16" in device.precisions) == has


def quantised(dtype: str, scale_shape: tuple[int, int], form: str = "") -> tuple[Any, np.ndarray]:
    """A function that multiplies x with dequantised weights, and the exact product."""
    low = np.iinfo(dtype).min
    numbers = _RANDOM.integers(low, low + 256, WEIGHTS.shape).astype(dtype)
    scale = (_RANDOM.random(scale_shape) * 0.1 + 0.01).astype(np.float32)
    zeros = np.full(scale_shape, low + 128, dtype)
    whole = scale.repeat(256 // scale_shape[0], 0).repeat(64 // scale_shape[1], 1)
    exact = X.astype(np.float64) @ ((numbers.astype(np.float64) - low - 128) * whole)

    def build(b: ow.MLGraphBuilder, x: ow.MLOperand) -> ow.MLOperand:
        turned = form in ("turned", "gemm turned", "gemm of a transposition")
        arrays = [np.ascontiguousarray(array.T if turned else array) for array in (numbers, scale, zeros)]
        weight = b.dequantize_linear(*map(b.constant, arrays))
        if form == "gemm turned":
            return b.gemm(x, weight, b_transpose=True)
        if form == "gemm of a transposition":
            return b.gemm(x, b.transpose(weight))
        if form in ("gemm", "gemm times 2"):
            return b.div(b.gemm(x, weight, alpha=2), 2) if "2" in form else b.gemm(x, weight)
        return b.matmul(x, b.transpose(weight) if turned else weight)

    return build, exact


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(
    ("scale_shape", "form"),
    [
        *(
            ((rows, columns), "")
            for rows, columns in [(1, 1), (1, 64), (256, 1), (4, 64), (16, 64), (32, 64), (256, 16)]
        ),
        *((shape, form) for shape in [(1, 1), (1, 64), (4, 64)] for form in ("turned", "gemm")),
        *(((1, 1), form) for form in ("gemm turned", "gemm times 2", "gemm of a transposition")),
    ],
)
def test_explain_names_rounded_operands_and_ieee_forbids_them(
    dtype: str, scale_shape: tuple[int, int], form: str
) -> None:
    build, exact = quantised(dtype, scale_shape, form)
    for precision in ("float32", "ieee"):
        context = ow.ml.create_context(device="cpu", backend="onnxruntime", precision=precision)  # type: ignore[arg-type]
        builder = ow.MLGraphBuilder(context)
        graph = builder.build({"y": build(builder, builder.input("x", "float32", X.shape))})
        error = np.abs(context.compute(graph, {"x": X})["y"] - exact).max() / np.abs(exact).max()
        says = "an operand rounded to 8 bits" in graph.explain()
        assert says == (error > 1e-5), (error, graph.explain())
        assert precision == "float32" or not says


@pytest.mark.parametrize("op", ["matmul", "gemm"])
@pytest.mark.parametrize("blocks", [(1, 1), (64, 1), (1, 256), (64, 4), (2, 1), (2, 2)], ids=str)
def test_explain_rounding_of_dequantised_products(op: str, blocks: tuple[int, int]) -> None:
    """The engine's own operator does not take blocks along two axes: then it rounds what comes of them."""
    build, _ = quantised("int8", (1, 64), op)
    given = _RANDOM.integers(0, 256, X.shape).astype(np.uint8)
    results = []
    for device, backend in (("cpu", "onnxruntime"), ("reference", "reference")):
        context = ow.ml.create_context(device=device, backend=backend)
        b = ow.MLGraphBuilder(context)
        scale, zeros = b.constant(np.full(blocks, 0.013, "float32")), b.constant(np.full(blocks, 128, "uint8"))
        x = b.dequantize_linear(b.input("x", "uint8", X.shape), scale, zeros)
        graph = b.build({"y": build(b, x)})
        results.append((context.compute(graph, {"x": given})["y"], "an operand rounded to 8 bits" in graph.explain()))
    (result, says), (exact, _) = results
    error = np.abs(result - exact).max() / np.abs(exact).max()
    assert says == (error > 1e-5), error


@pytest.mark.parametrize("deferred", [False, True])
def test_contexts_of_two_precisions_do_not_share_programs(deferred: bool) -> None:
    """A compiled function, in turns: in one context the engine rounds an operand, in the other it does not."""
    weight, scale = few_bits(4)
    exact = np.asarray(ow.composites.matmul_n_bits(X, weight, scale, accuracy="float32"))
    contexts = [
        ow.ml.create_context(device="cpu", backend="onnxruntime", precision=precision, deferred=deferred)  # type: ignore[arg-type]
        for precision in ("float32", "ieee")
    ]

    @ow.jit
    def multiply(x: Any) -> Any:
        return ow.composites.matmul_n_bits(x, weight, scale, accuracy="int8")

    for _ in range(4):
        for context in contexts:
            with context:
                error = np.abs(np.asarray(multiply(ow.array(X))) - exact).max() / np.abs(exact).max()
            assert error > 1e-3 if context.precision == "float32" else error < 1e-6


def few_bits(bits: int) -> tuple[np.ndarray, np.ndarray]:
    """A weight for `matmul_n_bits`, and its scale."""
    weight = _RANDOM.integers(0, 256, (64, 8, 32 * bits // 8)).astype(np.uint8)
    return weight, (_RANDOM.random((64, 8)) * 0.1 + 0.01).astype(np.float32)


@pytest.mark.parametrize("bits", [4, 8])
def test_ieee_forbids_the_rounding_of_products_of_few_bits(bits: int) -> None:
    weight, scale = few_bits(bits)

    def run(**options: Any) -> tuple[np.ndarray, str]:
        context = ow.ml.create_context(**options)
        builder = ow.MLGraphBuilder(context)
        x, w, s = builder.input("x", "float32", X.shape), builder.constant(weight), builder.constant(scale)
        y = ow.composites.matmul_n_bits(builder, x, w, s, bits=bits, block_size=32, accuracy="int8")
        graph = builder.build({"y": y})
        return context.compute(graph, {"x": X})["y"], graph.explain()

    exact, _ = run(device="reference")
    rounded, told = run(device="cpu", backend="onnxruntime")
    same, untold = run(device="cpu", backend="onnxruntime", precision="ieee")
    assert np.abs(rounded - exact).max() > 1e-3 * np.abs(exact).max() > 1e3 * np.abs(same - exact).max()
    assert "an operand rounded to 8 bits" in told
    assert "rounded to 8 bits" not in untold


@pytest.mark.parametrize("shape", [[64, 256], ["rows", 256]])
def test_models_keep_to_a_precision_of_float32(shape: list[Any]) -> None:
    """Compiled, and in ONNX Runtime, uncompiled."""
    weight, scale = few_bits(4)
    sizes = {"K": 256, "N": 64, "bits": 4, "block_size": 32, "accuracy_level": 4}
    nodes = [node("MatMulNBits", "x w s", "y", domain="com.microsoft", **sizes)]
    inputs, outputs = {"x": f"float32[{shape[0]}, 256]"}, {"y": f"float32[{shape[0]}, 64]"}
    proto = model(nodes, inputs, outputs, {"w": weight, "s": scale.reshape(-1)}, opset=17, domains=["com.microsoft"])
    numbers = np.stack([weight & 15, weight >> 4], axis=-1).reshape(64, 8, 32).astype(np.float64) - 8
    exact = X.astype(np.float64) @ (numbers * scale.reshape(64, 8, 1)).reshape(64, 256).T

    def run(**options: Any) -> float:
        session = ow.InferenceSession(proto, providers=["CPUExecutionProvider"], **options)
        return float(np.abs(session.run(None, {"x": X})[0] - exact).max() / np.abs(exact).max())

    assert run(precision="ieee") < 1e-6 < 1e-3 < run()


def test_session_explain_states_precision() -> None:
    context = ow.ml.create_context(device="reference", precision="ieee")
    session = ow.InferenceSession(relu_model(), context=context)
    assert session.explain().splitlines()[1] == "precision ieee: float32 arithmetic throughout"
    assert ow.InferenceSession(relu_model(), context=context, precision="ieee").context is context
    with pytest.raises(ow.ValidationError, match="precision is 'float32', and that of the context 'ieee'"):
        ow.InferenceSession(relu_model(), context=context, precision="float32")
    with pytest.raises(ow.ValidationError, match=r"precision must be .* got 'half'"):
        ow.InferenceSession(relu_model(), precision="half")  # type: ignore[arg-type]
    with pytest.raises(ow.NotSupportedError, match=r"precision 'tf32': .* no device of this machine can"):
        ow.InferenceSession(relu_model(), precision="tf32")
    again = pickle.loads(pickle.dumps(ow.InferenceSession(relu_model(), precision="ieee")))
    assert again.context.precision == "ieee"


def relu_model() -> bytes:
    return model([node("Relu", "x", "y")], {"x": "float32[2, 3]"}, {"y": "float32[2, 3]"}, opset=17).SerializeToString()


@pytest.mark.long
def test_command_line_precision_option(tmp_path: Path) -> None:
    model = tmp_path / "relu.onnx"
    model.write_bytes(relu_model())

    def called(*arguments: str) -> Any:
        return CliRunner().invoke(app, [*arguments], env={"COLUMNS": "200"})

    given = str(model), "--input", "random", "--device", "cpu", "--precision"
    assert "ms on cpu in ieee" in called("run", *given, "ieee").output
    assert isinstance(called("run", *given, "half").exception, ow.ValidationError)
    refused = called("run", *given, "tf32").exception
    assert isinstance(refused, ow.NotSupportedError)
    assert "precision 'tf32': device 'cpu'" in str(refused)
    assert "precision 'tf32'" in str(called("bench", *given, "tf32").exception)
    assert "float32, ieee" in called("devices").output
