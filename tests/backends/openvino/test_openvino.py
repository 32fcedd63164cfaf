"""What OpenVINO computes otherwise than WebNN, unless rules and options see to it; and memory, threads, devices."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.graphs import run
from support.openvino_device import openvino_context

import opweave as ow
from opweave import composites
from opweave.backends.openvino import devices, openvino
from opweave.backends.openvino.saturation import saturates
from opweave.context.graph import program_of
from opweave.core.graph import Graph

float32 = np.float32


@pytest.fixture
def context() -> ow.MLContext:
    return openvino_context()


def test_quotients_are_exact(context: ow.MLContext) -> None:
    """The engine would multiply by the reciprocal: 4% of these were not integers, and their floor was one less."""
    a, b = np.meshgrid(np.arange(1, 200, dtype=float32), np.arange(1, 200, dtype=float32))
    np.testing.assert_array_equal(run(context, lambda b, x, y: b.floor(b.div(x, y)), a * b, b), a)


def test_products_are_sums_of_float32(context: ow.MLContext) -> None:
    """On processors that have bfloat16, the engine would use it."""
    a, b = (np.random.default_rng(seed).standard_normal((64, 256), float32) for seed in (1, 2))
    y = run(context, lambda builder, x: builder.matmul(x, builder.constant(b.T.copy())), a)
    np.testing.assert_allclose(y, a.astype("float64") @ b.T, rtol=0, atol=5e-5)


@pytest.mark.parametrize("data_type", ["float32", "float16"])
def test_top_k_is_one_model(context: ow.MLContext, data_type: Any) -> None:
    """Each step was a model of ONNX Runtime between two of the engine, since the engine finds no largest int32."""
    x = np.random.default_rng(0).integers(-9, 9, (2, 300)).astype(data_type)
    x[0, 7], x[:, 5] = np.inf, np.nan
    builder = ow.MLGraphBuilder(context)
    values, positions = composites.top_k(builder.input("x", data_type, x.shape), 3)
    graph = builder.build({"values": values, "positions": positions})
    assert "ONNX Runtime" not in graph.explain()
    expected = np.argsort(-x, axis=1, kind="stable")  # NaN is last
    expected = np.concatenate([np.full((2, 1), 5), expected[:, :2]], 1)
    results = context.compute(graph, {"x": x})
    np.testing.assert_array_equal(results["positions"], expected)
    np.testing.assert_array_equal(results["values"], np.take_along_axis(x, expected, 1))


def test_integers_are_moved_bit_for_bit(context: ow.MLContext) -> None:
    for data_type in ("int64", "uint64", "uint32", "int32", "int8", "uint8"):
        info = np.iinfo(data_type)
        x = np.array([[info.min, info.max, 1], [info.max - 1, info.max // 3, 0]], data_type)
        y = run(context, lambda b, x: b.concat([b.transpose(x), b.reshape(b.reverse(x), [3, 2])], 1), x)
        np.testing.assert_array_equal(y, np.concatenate([x.T, x[::-1, ::-1].reshape(3, 2)], 1))
        padded = run(context, lambda b, x, value=info.max: b.pad(x, [1, 0], [0, 2], value=value), x)
        np.testing.assert_array_equal(padded, np.pad(x, [(1, 0), (0, 2)], constant_values=info.max))


def test_indices_beyond_int32_are_clamped(context: ow.MLContext) -> None:
    x = np.arange(4, dtype=float32)
    for indices, wanted in (
        (np.array([2**32, -(2**40), -1, 2**31, 1]), [3, 0, 3, 3, 1]),
        (np.array([2**32 - 1, 2, 2**31], "uint32"), [3, 2, 3]),
        (np.array([-9, 9, -4], "int32"), [0, 3, 0]),
    ):
        assert run(context, lambda b, x, i: b.gather(x, i), x, indices).tolist() == wanted


def test_wide_integers_become_floats(context: ow.MLContext) -> None:
    """The engine has none: exact in 32 bits, to one unit in the last place beyond. Masks of transformers are such integers."""
    random = np.random.default_rng(0)
    x = np.array([0, 1, -1, 2**31 - 1, -(2**31), 2**31, -(2**31) - 1, 2**32, 2**63 - 1, -(2**63), 2**24 + 1])
    x = np.concatenate([x, *(random.integers(-(2**bits), 2**bits, 500) for bits in (20, 31, 33, 45, 63))])
    y = run(context, lambda b, x: b.cast(x, "float32"), x)
    wanted = x.astype(float32)
    is_narrow = (x >= -(2**31)) & (x < 2**31)
    np.testing.assert_array_equal(y[is_narrow], wanted[is_narrow])
    np.testing.assert_array_max_ulp(y, wanted, 1)
    small = x[(x > -65504) & (x < 65504)]
    half = run(context, lambda b, x: b.cast(x, "float16"), small)
    np.testing.assert_array_equal(half, small.astype(np.float16))


def test_results_are_written_in_place(context: ow.MLContext) -> None:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [64])
    wide = builder.input("wide", "int64", [3])
    graph = builder.build({"y": builder.relu(x), "same": builder.identity(x), "w": builder.reverse(wide)})
    given = {"x": np.linspace(-1, 1, 64, dtype=float32), "wide": np.array([2**40, -1, 5])}
    out = {"y": np.empty(64, float32), "same": np.empty(64, float32), "w": np.empty(3, "int64")}
    ow.memory.copies.reset()
    for _ in range(2):  # the second time with the request of the first
        context.compute(graph, given, out)
    assert ow.memory.copies.count == 0
    np.testing.assert_array_equal(out["y"], np.maximum(given["x"], 0))
    np.testing.assert_array_equal(out["same"], given["x"])
    assert out["w"].tolist() == [5, -1, 2**40]


def test_arrays_are_not_kept_after_a_run(context: ow.MLContext) -> None:
    builder = ow.MLGraphBuilder(context)
    graph = builder.build({"y": builder.relu(builder.input("x", "float32", [8]))})
    x, y = np.ones(8, float32), np.empty(8, float32)
    before = sys.getrefcount(x), sys.getrefcount(y)
    program_of(graph).run([x], [y])
    assert (sys.getrefcount(x), sys.getrefcount(y)) == before


def test_several_threads_run_one_graph(context: ow.MLContext) -> None:
    weights = np.random.default_rng(1).standard_normal((32, 32), float32)
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [32, 32])
    graph = builder.build({"y": builder.matmul(builder.tanh(x), weights)})

    def run(seed: int) -> bool:
        x = np.random.default_rng(seed).standard_normal((32, 32), float32)
        y = context.compute(graph, {"x": x})["y"]
        return np.allclose(y, np.tanh(x) @ weights, rtol=1e-4, atol=1e-4)

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(run, range(64)))


def test_unsupported_operation_runs_on_onnxruntime(context: ow.MLContext) -> None:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "int64", [2, 3])
    graph = builder.build({"y": builder.reduce_sum(x, axes=[1]), "z": builder.transpose(x)})
    assert [placement.detail for placement in graph.placements()] == ["ONNX Runtime", "OpenVINO"]
    array = np.array([[2**40, 1, 2], [3, 4, -(2**50)]])
    assert context.compute(graph, {"x": array})["y"].tolist() == array.sum(1).tolist()


def test_devices_list_openvino(context: ow.MLContext) -> None:
    found = [device for device in ow.devices() if device.backend == "openvino"]
    assert found[0].name == "cpu"
    assert "OpenVINO 20" in found[0].description
    assert context.device == found[0]
    assert ow.ml.create_context(device="cpu").backend.name == "onnxruntime"


def test_low_power_finds_an_npu(
    context: ow.MLContext, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Core:
        available_devices = ("CPU", "GPU.0", "GPU.1", "NPU")

        def get_property(self, device: str, name: str) -> Any:
            if name == "OPTIMIZATION_CAPABILITIES":
                return ["FP16", "INT8"] if device == "NPU" else ["FP32", "FP16"]
            return {"GPU.0": "Intel Iris (iGPU)", "GPU.1": "Intel Arc (dGPU)"}.get(device, device)

    monkeypatch.delenv("OPWEAVE_DEVICE")
    monkeypatch.setattr(devices, "core", Core)
    monkeypatch.setattr(devices, "may_have_accelerators", lambda: True)
    assert ow.ml.create_context(power_preference="low-power", precision="float16").device.name == "npu"
    assert not caplog.records
    assert ow.ml.create_context(power_preference="low-power").device.name == "gpu:intel", "an NPU has no float32"
    assert "does not take 'npu', which has no precision 'float32'; create_context(precision='float16')" in caplog.text
    with pytest.raises(
        ow.NotSupportedError, match=r"device 'npu' cannot compute so, only as 'float16' .*precision='float16'.* asks"
    ):
        ow.ml.create_context(device="npu")
    listed = {d.name: (d.kind, d.low_power) for d in ow.devices() if d.backend == "openvino"}
    assert listed == {
        "cpu": ("cpu", False),
        "gpu:intel": ("gpu", True),
        "gpu:intel:1": ("gpu", False),
        "npu": ("npu", True),
    }


def test_gpus_of_other_vendors_are_no_devices(context: ow.MLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine lists all devices of OpenCL, but its kernels are for Intel's."""
    vendors = {"GPU.0": "0x10de", "GPU.1": "0x8086", "GPU.2": "0x1002"}

    class Core:
        available_devices = ("CPU", *vendors)

        def get_property(self, device: str, name: str) -> Any:
            if name == "DEVICE_ARCHITECTURE":
                return f"GPU: vendor={vendors[device]} arch=v9.0.0"
            return ["FP32"] if name == "OPTIMIZATION_CAPABILITIES" else device

    monkeypatch.setattr(devices, "core", Core)
    listed = [device.name for device in ow.devices() if device.backend == "openvino" and device.available]
    assert listed == ["cpu", "gpu:intel:1"]


@pytest.mark.parametrize(
    ("stated", "precisions"),
    [
        (["FP32", "INT8", "BIN"], {"CPU": ("float32", "ieee"), "GPU": ("float32", "ieee"), "NPU": ("float32", "ieee")}),
        (
            ["FP32", "FP16", "BF16"],
            {
                "CPU": ("float32", "ieee", "bfloat16"),
                "GPU": ("float32", "ieee", "bfloat16", "float16"),
                "NPU": ("float32", "ieee", "bfloat16", "float16"),
            },
        ),
        (["FP16", "INT8"], {"CPU": ("float32",), "GPU": ("float16",), "NPU": ("float16",)}),
    ],
)
def test_cpus_offer_no_float16(
    context: ow.MLContext, monkeypatch: pytest.MonkeyPatch, stated: list[str], precisions: dict[str, tuple[str, ...]]
) -> None:
    """The engine's kernels of float16 are wrong on CPUs that have instructions for it, and state so."""

    class Core:
        available_devices = tuple(precisions)

        def get_property(self, device: str, name: str) -> Any:
            return stated if name == "OPTIMIZATION_CAPABILITIES" else device

    monkeypatch.delenv("OPWEAVE_DEVICE", raising=False)
    monkeypatch.setattr(devices, "core", Core)
    listed = [device for device in ow.devices() if device.backend == "openvino"]
    assert {d.description.partition(",")[0]: d.precisions for d in listed} == precisions
    possible = " or ".join(", ".join(map(repr, precisions["CPU"])).rsplit(", ", 1))
    with pytest.raises(
        ow.NotSupportedError, match=rf"'float16': device 'cpu' of .*cannot compute so, only as {possible}"
    ):
        ow.ml.create_context(device="cpu", backend="openvino", precision="float16")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says in files who made a device")
def test_default_context_loads_openvino_only_with_intel_device(
    context: ow.MLContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "VENDORS", (str(tmp_path / "renderD*"),))
    monkeypatch.setattr(devices, "WINDOWS_GPU", str(tmp_path / "dxg"))
    assert not devices.may_have_accelerators()
    (tmp_path / "renderD128").write_text("0x10de\n")
    assert not devices.may_have_accelerators()
    (tmp_path / "renderD129").write_text("0x8086\n")
    assert devices.may_have_accelerators()
    (tmp_path / "renderD129").unlink()
    (tmp_path / "dxg").touch()
    assert devices.may_have_accelerators()


def test_create_context_names_missing_openvino_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "is_installed", lambda: False)
    with pytest.raises(ow.NotSupportedError, match=r"'openvino' has no device here: pip install 'opweave\[openvino\]'"):
        ow.ml.create_context(backend="openvino")
    assert ow.ml.create_context().device.name == "cpu"


@pytest.mark.parametrize("layout", ["zrn", "rzn", "iofg", "ifgo"])
@pytest.mark.parametrize("direction", ["forward", "backward", "both"])
@pytest.mark.parametrize("has_biases", [True, False])
def test_recurrent_networks_are_one_kernel(
    context: ow.MLContext, layout: str, direction: ow.ops.recurrent.RecurrentNetworkDirection, has_biases: bool
) -> None:
    """With weights that are inputs and with constants; the reset gate before the product, and after it."""
    random, gates = np.random.default_rng(7), len(layout)
    directions, steps, batches, size, units = 2 if direction == "both" else 1, 4, 3, 5, 6
    shapes = {
        "x": [steps, batches, size],
        "weight": [directions, gates * units, size],
        "recurrent_weight": [directions, gates * units, units],
        "initial_hidden_state": [directions, batches, units],
        "bias": [directions, gates * units],
        "recurrent_bias": [directions, gates * units],
    }
    arrays = {name: random.standard_normal(shape, float32) for name, shape in shapes.items()}

    def run(context: ow.MLContext, constants: bool) -> dict[str, np.ndarray]:
        builder = ow.MLGraphBuilder(context)
        given: dict[str, Any] = {}
        for name, array in arrays.items():
            if name == "x" or not constants:
                given[name] = builder.input(name, "float32", array.shape)
            else:
                given[name] = builder.constant(array)
        if not has_biases:
            del given["bias"], given["recurrent_bias"]
        options: dict[str, Any] = {"direction": direction, "layout": layout, "return_sequence": True}
        if gates == 3:
            options["reset_after"] = constants
        operands = [given.pop(name) for name in ("x", "weight", "recurrent_weight")]
        made = getattr(builder, "gru" if gates == 3 else "lstm")(*operands, steps, units, **given, **options)
        graph = builder.build({f"y{k}": output for k, output in enumerate(made)})
        if context.backend.name == "openvino":
            assert [placement.how for placement in graph.placements()] != ["decomposed"]
        return context.compute(graph, {name: arrays[name] for name in graph.inputs})

    for constants in (False, True):
        wanted = run(ow.ml.create_context(device="reference"), constants)
        for name, result in run(context, constants).items():
            np.testing.assert_allclose(result, wanted[name], rtol=1e-5, atol=2e-6)


def test_attention_is_taken_whole(context: ow.MLContext) -> None:
    random = np.random.default_rng(3)
    arrays = {
        n: random.standard_normal(s, float32)
        for n, s in (("q", (2, 3, 5, 8)), ("k", (2, 3, 7, 8)), ("v", (2, 3, 7, 4)))
    }
    visible = (random.random((5, 7)) > 0.3).astype("uint8")
    visible[:, 0] = 1
    for mask, causal in (
        (None, True),
        (visible, False),
        (visible, True),
        (random.standard_normal((3, 5, 7), float32), True),
    ):
        results = []
        for each in (context, ow.ml.create_context(device="reference")):
            builder = ow.MLGraphBuilder(each)
            operands = [builder.input(name, "float32", array.shape) for name, array in arrays.items()]
            given = None if mask is None else builder.constant(mask)
            y = ow.composites.scaled_dot_product_attention(*operands, given, causal=causal)
            graph = builder.build({"y": y})
            results.append(each.compute(graph, arrays)["y"])
            assert graph.placements()[0].how == ("native" if each is context else "decomposed")
        np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("length", [1, 5])
@pytest.mark.parametrize("has_positions", [False, True])
@pytest.mark.parametrize("is_constant", [False, True])
def test_rotary_embeddings_are_one_kernel(
    context: ow.MLContext, length: int, has_positions: bool, is_constant: bool
) -> None:
    random = np.random.default_rng(4)
    x = random.standard_normal((2, 3, length, 8), float32)
    tables = {name: random.standard_normal((9, 4), float32) for name in ("cosines", "sines")}
    given: dict[str, Any] = {"x": x} | ({} if is_constant else tables)
    if has_positions:
        given["positions"] = random.integers(0, 9, (2, length))

    def build(b: Any, x: Any, *others: Any) -> Any:
        rest = list(others)
        cosines, sines = (b.constant(t) if is_constant else rest.pop(0) for t in tables.values())
        return ow.composites.rotary_embedding(x, cosines, sines, *rest)

    reference = ow.ml.create_context(device="reference")
    y, wanted = (run(each, build, *given.values()) for each in (context, reference))
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=2e-6)
    builder = ow.MLGraphBuilder(context)
    operands = [builder.input(name, array.dtype.name, array.shape) for name, array in given.items()]  # type: ignore[arg-type]
    kernels = builder.build({"y": build(builder, *operands)}).profile(repeat=2, detail=True).kernels
    assert "RoPE" in [kernel.kernel for kernel in kernels]


def test_rms_normalisations_are_one_kernel(context: ow.MLContext) -> None:
    x, scale = np.random.default_rng(6).standard_normal((2, 4, 64), float32), np.linspace(0.5, 2, 64, dtype=float32)

    def build(b: Any, x: Any) -> Any:
        return ow.composites.rms_normalization(x, b.constant(scale), epsilon=1e-5)

    y, wanted = (run(each, build, x) for each in (context, ow.ml.create_context(device="reference")))
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-6)
    builder = ow.MLGraphBuilder(context)
    graph = builder.build({"y": build(builder, builder.input("x", "float32", x.shape))})
    assert [kernel.kernel for kernel in graph.profile(repeat=2, detail=True).kernels] == ["RMS"]


def quantised(b: Any, x: Any, zero: int, data_type: Any = "uint8") -> Any:
    """A pair that quantises by 1/16 and dequantises."""
    shape = [1] * x.rank
    scale = b.constant(np.full(shape, 1 / 16, float32))
    zeros = b.constant(np.full(shape, zero, data_type))
    return b.dequantize_linear(b.quantize_linear(x, scale, zeros), scale, zeros)


@pytest.mark.parametrize("zero", [0, 100])
def test_quantised_products_are_kernels_of_8_bits(context: ow.MLContext, zero: int) -> None:
    random = np.random.default_rng(5)
    weights, channels = random.integers(-128, 128, (64, 32)).astype("int8"), random.uniform(0.01, 0.1, (1, 32))
    x = random.uniform(-4, 12, (8, 64)).astype(float32)
    bias = random.integers(-9999, 9999, 32).astype("int32")

    def build(b: Any, x: Any) -> Any:
        zeros = b.constant(np.zeros((1, 32), "int8"))
        matrix = b.dequantize_linear(b.constant(weights), b.constant(channels.astype(float32)), zeros)
        small = b.constant(np.full(32, 1e-3, float32))
        return quantised(b, x, zero) @ matrix + b.dequantize_linear(b.constant(bias), small, b.constant(0 * bias))

    reference = ow.ml.create_context(device="reference")
    np.testing.assert_allclose(run(context, build, x), run(reference, build, x), rtol=1e-5, atol=1e-4)
    builder = ow.MLGraphBuilder(context)
    graph = Graph.reaching({"y": build(builder, builder.input("x", "float32", x.shape))})
    integers = "f32" if saturates() else "u8"  # where products of 8 bits are wrong, there are none
    for backend, wanted in ((openvino, integers), (openvino.with_precision("ieee"), "f32")):
        session: Any = backend.compile(graph, device="cpu", power_preference="default")
        kernels = session._compiled.get_runtime_model().get_ops()
        (product,) = [k for k in kernels if k.get_rt_info()["layerType"].astype(str) == "FullyConnected"]
        assert product.input(0).get_element_type().get_type_name() == wanted
    strict = ow.ml.create_context(backend="openvino", device="cpu", precision="ieee")
    np.testing.assert_allclose(run(strict, build, x), run(reference, build, x), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("data_type", ["uint8", "int8"])
def test_quantize_linear_of_quotient_rounds_and_saturates(context: ow.MLContext, data_type: Any) -> None:
    reference = ow.ml.create_context(device="reference")
    x = np.concatenate([np.arange(-2000, 2000, dtype=float32) / 8, [np.inf, -np.inf, 1e30]]).astype(float32)

    def build(b: Any, x: Any) -> Any:
        return b.quantize_linear(x, b.constant(np.full(1, 0.25, float32)), b.constant(np.full(1, 7, data_type)))

    np.testing.assert_array_equal(run(context, build, x), run(reference, build, x))
    pair, wanted = (run(c, lambda b, x: quantised(b, x, 7, data_type), x) for c in (context, reference))
    np.testing.assert_array_equal(pair, wanted)


def test_matmul_reshaped_to_scalar(context: ow.MLContext) -> None:
    """The engine's optimiser of reshapes after products ends the process where no dimension is left."""
    x = np.array([1, 2, 3], float32)
    y = run(context, lambda b, x: b.reshape(b.matmul(b.reshape(x, [1, 3]), b.reshape(x, [3, 1])), []), x)
    assert y.shape == ()
    assert y == 14


def test_maxima_of_no_elements_are_infinite(context: ow.MLContext) -> None:
    x = np.ones((1, 1, 3, 2), float32)
    options: dict[str, Any] = {
        "window_dimensions": [3, 1],
        "padding": [3, 2, 1, 0],
        "strides": [2, 2],
        "dilations": [2, 2],
    }
    y = run(context, lambda b, x: b.max_pool2d(x, **options), x)
    wanted = run(ow.ml.create_context(device="reference"), lambda b, x: b.max_pool2d(x, **options), x)
    assert np.isinf(wanted).any()
    np.testing.assert_array_equal(y, wanted)


def test_extremes_of_infinities_are_infinite(context: ow.MLContext) -> None:
    low = np.finfo(float32).min
    x = np.array([[-np.inf, -np.inf], [low, -np.inf], [1, -np.inf]], float32)
    assert run(context, lambda b, x: b.reduce_max(x, axes=[1]), x).tolist() == [-np.inf, low, 1]
    assert run(context, lambda b, x: b.reduce_min(x, axes=[1]), -x).tolist() == [np.inf, -low, -1]


def test_large_numbers_are_their_own_gelu(context: ow.MLContext) -> None:
    x = np.array([np.finfo(float32).max, 2e38, 1], float32)
    np.testing.assert_allclose(run(context, lambda b, x: b.gelu(x), x), [x[0], x[1], 0.8413447], rtol=1e-6)


@pytest.mark.parametrize("data_type", ["int32", "int8", "uint8"])
def test_limits_of_integers_are_exact(context: ow.MLContext, data_type: Any) -> None:
    """The engine makes a clamp of a maximum and a minimum, and computes it with float32."""
    info = np.iinfo(data_type)
    low, high = info.min // 3 + 5, info.max // 3 * 2 + 5
    x = np.array([info.min, low - 1, low, low + 1, 77, high - 1, high, high + 1, info.max]).clip(info.min, info.max)
    x = x.astype(data_type)
    ways = (
        lambda b, x: b.clamp(x, min_value=low, max_value=high),
        lambda b, x: b.min(b.max(x, low), high),
        lambda b, x: b.max(b.min(x, high), low),
    )
    for way in ways:
        np.testing.assert_array_equal(run(context, way, x), x.clip(low, high))


def test_residual_activations_are_fused_into_convolutions(context: ow.MLContext) -> None:
    """After a normalisation, a bias and what is added, too; and a hard swish that is written out."""
    random = np.random.default_rng(2)
    weights = [random.standard_normal((8, 8, 3, 3), float32) / 8 for _ in range(3)]
    ones, small = np.ones(8, float32), random.standard_normal(8, float32)

    def convolved(b: Any, x: Any, k: int) -> Any:
        y = b.conv2d(x, b.constant(weights[k]), padding=[1, 1, 1, 1])
        return b.batch_normalization(y, b.constant(small), b.constant(ones), axis=1)

    def build(b: Any, x: Any) -> Any:
        first = b.relu(convolved(b, x, 0))
        second = b.relu(convolved(b, first, 1) + x)
        third = convolved(b, second, 2) + b.constant(small.reshape(8, 1, 1))
        return third * b.clamp(third + 3, min_value=0, max_value=6) / 6

    x = random.standard_normal((1, 8, 16, 16), float32)
    reference = ow.ml.create_context(device="reference")
    np.testing.assert_allclose(run(context, build, x), run(reference, build, x), rtol=1e-4, atol=1e-5)
    builder = ow.MLGraphBuilder(context)
    graph = builder.build({"y": build(builder, builder.input("x", "float32", x.shape))})
    kernels = {kernel.kernel for kernel in graph.profile(repeat=2, detail=True).kernels}
    assert kernels <= {"Convolution", "Reorder"}


def test_cpu_context_does_not_load_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    openvino_context()

    def fails() -> Any:
        raise AssertionError("the engine loads all of its plug-ins")

    monkeypatch.setattr(devices, "engine_names", fails)
    context = ow.ml.create_context(backend="openvino", device="cpu")
    assert run(context, lambda b, x: b.relu(x), float32([-1, 2])).tolist() == [0, 2]
    assert devices.version().replace(".", "").isdecimal()


THREADS = """
import os, sys, time
import numpy as np, onnx, onnx.helper as h, onnx.numpy_helper as n, opweave as ow
from opweave.support.background import background
threads = lambda: len(os.listdir("/proc/self/task"))

context = ow.ml.create_context(backend="openvino", device="cpu")
kept = []
for size in range(2, 34):
    builder = ow.MLGraphBuilder(context)
    graph = builder.build({"y": builder.relu(builder.input("x", "float32", [size]))})
    context.compute(graph, {"x": np.ones(size, np.float32)})
    kept.append((graph, threads()))
print(kept[-1][1] - kept[0][1])

weights = n.from_array(np.ones((64, 64, 3, 3), np.float32), "w")
x, y = (h.make_tensor_value_info(name, 1, [1, 64, "h" + name, 64]) for name in "xy")
graph = h.make_graph([h.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)], "g", [x], [y], [weights])
session = ow.InferenceSession(h.make_model(graph, ir_version=8).SerializeToString(), program_bytes=2**30)
for _ in range(3):
    for rows in range(64, 64 * 7, 64):
        session.run(None, {"x": np.ones((1, 64, rows, 64), np.float32)})
    background.wait()
processors = len(os.sched_getaffinity(0))
# NumPy's library for linear algebra starts a thread for each processor, too, when it is imported.
most, deadline = processors + 8 + max(processors - 2, 0), time.monotonic() + 60
while threads() > most and time.monotonic() < deadline:
    time.sleep(0.1)  # the thread that reports progress ends a second after a compilation; joined ones may still be listed
print(threads(), most)
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists the threads of a process in a folder")
def test_sessions_start_few_threads(context: ow.MLContext, tmp_path: Path) -> None:
    """Small graphs none; and a model at six shapes leaves its process with no more than processors and eight."""
    environment = os.environ | {"OPWEAVE_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    more, threads, most = done.stdout.split()
    assert int(more) <= 4  # threads that the process needs once may start late: one for each graph would be 31
    assert int(threads) <= int(most)


def test_kernels_are_measured(context: ow.MLContext) -> None:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [1, 8, 32, 32])
    weights = np.random.default_rng(1).standard_normal((8, 8, 3, 3), float32)
    convolved = builder.conv2d(x, builder.constant(weights), padding=[1, 1, 1, 1], label="stem")
    graph = builder.build({"y": builder.softmax(builder.relu(convolved), 1)})
    kernels = graph.profile(repeat=3, detail=True).kernels
    (convolution,) = [k for k in kernels if k.kernel == "Convolution"]
    assert convolution.node == "stem + relu"
    assert convolution.result.endswith("[1, 8, 32, 32]")
    assert "softmax" in [k.node for k in kernels]
    assert all(0 <= k.minimum <= k.median for k in kernels)
    assert sum(k.median for k in kernels) > 0
