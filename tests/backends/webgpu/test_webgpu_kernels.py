"""Kernels of users in WGSL on WebGPU devices: what they can name, and how much of them runs."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from support.webgpu_kernels import computed, engine_of, limited, line_of, mapped, normal

import opweave as ow
from opweave.core.dtypes import ANY
from opweave.expr.gpu import Features
from opweave.expr.ir import Input
from opweave.kernels import KernelCall
from opweave.kernels.wgsl import Buffer, WgslKernel

wgpu = pytest.importorskip("wgpu", reason="wgpu is not installed")


# ---------------------------------------------------------------------------------------------------------------------
# What shaders can name


def test_kernel_as_text(context: ow.MLContext) -> None:
    @ow.op
    def swiglu(self, x: ow.MLOperand, gate: ow.MLOperand):  # type: ignore[no-untyped-def]
        return x.desc

    swiglu.kernel("webgpu", "fn main(i: u32) { out[i] = x[i] * gate[i] / (1.0 + exp(-gate[i])); }")
    x, gate = normal(3, 70), normal(3, 70)
    np.testing.assert_allclose(computed(context, swiglu, x, gate), x * gate / (1 + np.exp(-gate)), 1e-5, 1e-6)
    np.testing.assert_allclose(computed(context, swiglu, x, x), x * x / (1 + np.exp(-x)), 1e-5, 1e-6)


@pytest.mark.parametrize("count", [1, 7, 300])
@pytest.mark.parametrize(
    ("data_type", "lacks"),
    [
        *((data_type, "") for data_type in ANY),
        ("float16", "float16"),
    ],
)
def test_load_and_store_serve_all_data_types(context: ow.MLContext, data_type: str, lacks: str, count: int) -> None:
    """Neighbours in a word, some of which are written at the same time, do not disturb each other."""
    if lacks:
        context = limited(**{lacks: False})
    if "int64" in data_type and not engine_of(context).features.int64:
        pytest.skip("the device has no integers of 64 bits")

    @ow.op
    def reversed_twice(self, x: ow.MLOperand):  # type: ignore[no-untyped-def]
        return x.desc

    reversed_twice.kernel("webgpu", "fn main(i: u32) { store_out(i, load_x(x_size - 1 - i) + load_x(i)); }")
    x = np.arange(count).astype(data_type) if data_type.startswith("u") else (np.arange(count) - 3).astype(data_type)
    np.testing.assert_array_equal(computed(context, reversed_twice, x), x[::-1] + x)


def test_float16_load_and_store_all_values() -> None:
    """Subnormal numbers, infinities and NaN included, also where two of them share a word."""
    x = np.arange(1 << 16, dtype="uint16").view("float16")
    mapped.kernel("webgpu", "fn main(i: u32) { store_out(i, load_x(i)); }")
    np.testing.assert_array_equal(computed(limited(float16=False), mapped, x), x)


def test_shapes_and_strides_are_constants(context: ow.MLContext) -> None:
    @ow.op
    def facts(self, x: ow.MLOperand, y: ow.MLOperand):  # type: ignore[no-untyped-def]
        return ow.Desc("uint32", (12,))

    facts.kernel(
        "webgpu",
        """
        const doubled = x_shape[1] * 2;
        fn main(i: u32) {
            if (i < 3) { out[i] = x_shape[i]; } else if (i < 6) { out[i] = x_strides[i - 3]; }
            if (i == 6) { out[i] = x_size; } else if (i == 7) { out[i] = x_rank; }
            if (i == 8) { out[i] = y_size; } else if (i == 9) { out[i] = y_rank; }
            if (i == 10) { out[i] = doubled; } else if (i == 11) { out[i] = out_size; }
        }
        """,
    )
    found = computed(context, facts, normal(2, 3, 4), normal())
    assert found.tolist() == [2, 3, 4, 12, 4, 1, 24, 3, 1, 0, 6, 12]


def test_attributes_are_constants(context: ow.MLContext) -> None:
    @ow.op
    def tuned(  # type: ignore[no-untyped-def]
        self,
        x: ow.MLOperand,
        *,
        gain: float,
        count: int,
        flag: bool,
        taps: tuple[float, ...],
        mode: str = "a",
    ):
        return x.desc

    tuned.kernel(
        "webgpu",
        """
        fn main(i: u32) {
            var sum = gain * x[i] + count + f32(i % count);  // an integer serves as a float, too
            if (flag) { sum += taps[1] * offset; }
            out[i] = sum;
        }
        """,
        constants={"offset": 10},
    )
    x = normal(8)
    found = computed(context, tuned, x, gain=1e-3, count=3, flag=True, taps=(0.5, 0.25))
    np.testing.assert_allclose(found, 1e-3 * x + 3 + np.arange(8) % 3 + 2.5, 1e-6)
    found = computed(context, tuned, x, gain=-2.0, count=4, flag=False, taps=(0.5, 0.25))
    np.testing.assert_allclose(found, -2 * x + 4 + np.arange(8) % 4, 1e-6)


def test_sequences_results_and_reserved_names(context: ow.MLContext) -> None:
    @ow.op
    def gathered(  # type: ignore[no-untyped-def]
        self, xs: list[ow.MLOperand], filter: ow.MLOperand, bias: ow.MLOperand | None = None
    ):
        assert bias is None or bias.shape == filter.shape
        return xs[0].desc, ow.Desc("int8", (len(xs),))

    seen: list[Any] = []

    @gathered.kernel("webgpu")
    def _(xs, filter, bias, out):  # type: ignore[no-untyped-def]
        seen.append((xs, filter, bias, out))
        rest = "" if bias is None else " + bias[i % bias_size]"
        sums = " + ".join(f"{x.name}[i]" for x in xs)
        return f"""
            fn main(i: u32) {{
                out0[i] = ({sums}) * {filter.variable}[i % filter_size]{rest};
                if (i < out1_size) {{ store_out1(i, i32(i) - 1); }}
            }}
        """

    xs = [normal(2, 2) for _ in range(3)]
    taps, bias = normal(2), normal(2)
    first, second = computed(context, gathered, xs, taps, bias)
    np.testing.assert_allclose(first, sum(xs) * taps + bias, 1e-5, 1e-6)
    assert second.tolist() == [-1, 0, 1]
    first, _ = computed(context, gathered, xs, taps)
    np.testing.assert_allclose(first, sum(xs) * taps, 1e-5, 1e-6)
    given, filter, absent, out = seen[-1]
    assert absent is None
    assert [buffer.name for buffer in (*given, filter, *out)] == ["xs0", "xs1", "xs2", "filter", "out0", "out1"]
    assert (filter.variable, out[1].variable, out[1].packed) == ("filter_", "out1_words", 4)
    assert (out[1].data_type, out[1].shape, out[1].size, out[1].rank, out[1].type) == ("int8", (3,), 3, 1, "i32")


# ---------------------------------------------------------------------------------------------------------------------
# How much of them runs


@pytest.mark.parametrize("most", [2, 65535], ids=["two-dimensions", "one-dimension"])
@pytest.mark.parametrize("size", [None, 1, 32])
def test_main_is_called_for_each_position_once(size: int | None, most: int) -> None:
    context = limited(max_workgroups=most)
    shape = (2, 1, 2) if size == 1 else (4, 5, 6) if size is None else (3, 5, 7)

    @ow.op
    def positions(self, x: ow.MLOperand):  # type: ignore[no-untyped-def]
        return ow.Desc("int32", x.shape)

    text = "fn main(a: u32, b: i32, c: u32) { out[a * out_strides[0] + u32(b) * out_strides[1] + c] += %s; }"
    positions.kernel("webgpu", text % "i32(a) * 100 + b * 10 + i32(c) - out[0] * 0", workgroup_size=size)
    builder = ow.MLGraphBuilder(context)
    graph = builder.build({"y": positions(builder.input("x", "float32", shape))})
    x, y = context.create_tensor("float32", shape), context.create_tensor("int32", shape, readable=True)
    context.dispatch(graph, {"x": x}, {"y": y})  # a new tensor holds zeros, to which each call adds
    a, b, c = np.indices(shape)
    np.testing.assert_array_equal(context.read_tensor(y), a * 100 + b * 10 + c)


def test_workgroups_exceed_one_dimension(context: ow.MLContext) -> None:
    count = 65536 * 2 + 3

    @ow.op
    def numbered(self, x: ow.MLOperand):  # type: ignore[no-untyped-def]
        return ow.Desc("uint8", (count,))

    numbered.kernel("webgpu", "fn main(i: u32) { store_out(i, i % 251 + load_x(0)); }", workgroup_size=1)
    np.testing.assert_array_equal(computed(context, numbered, np.array([4], "uint8")), np.arange(count) % 251 + 4)


def test_workgroups_of_ones_own(context: ow.MLContext) -> None:
    @ow.op
    def block_sums(self, x: ow.MLOperand):  # type: ignore[no-untyped-def]
        return ow.Desc(x.data_type, (x.shape[0] // 64,))

    @block_sums.kernel("webgpu")
    def _(x):  # type: ignore[no-untyped-def]
        text = """
            var<workgroup> values: array<f32, width>;

            @compute @workgroup_size(width)
            fn reduce(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
                values[lane] = x[group.x * width + lane];
                for (var half = width / 2u; half > 0; half /= 2u) {
                    workgroupBarrier();
                    if (lane < half) { values[lane] += values[lane + half]; }
                }
                if (lane == 0) { out[group.x] = values[0]; }
            }
        """
        return ow.wgsl.Shader(text, workgroups=x.size // 64, constants={"width": 64})

    x = normal(64 * 5)
    np.testing.assert_allclose(computed(context, block_sums, x), x.reshape(5, 64).sum(1), 1e-5, 1e-5)


def test_passes_share_memory(context: ow.MLContext) -> None:
    first = """
        fn main(row: u32, part: u32) {
            var sum = 0.0;
            for (var i = part; i < x_shape[1]; i += sums_shape[1]) { sum += x[row * x_strides[0] + i]; }
            sums[row * sums_strides[0] + part] = sum;
            store_notes(row, 7);
        }
    """
    second = """
        fn main(row: u32) {
            var sum = 0.0;
            for (var i = 0u; i < sums_shape[1]; i++) { sum += sums[row * sums_strides[0] + i]; }
            out[row] = sum + f32(load_notes(row));
        }
    """

    @ow.op
    def row_sum(self, x: ow.MLOperand):  # type: ignore[no-untyped-def]
        return ow.Desc(x.data_type, x.shape[:1])

    @row_sum.kernel("webgpu")
    def _(x):  # type: ignore[no-untyped-def]
        scratch = {"sums": ow.Desc("float32", (x.shape[0], 16)), "notes": ow.Desc("uint8", x.shape[:1])}
        return (
            ow.wgsl.Shader(first, invocations=(x.shape[0], 16), scratch=scratch),
            ow.wgsl.Shader(second, invocations=x.shape[0], scratch=scratch),
        )

    x = normal(5, 1000)
    builder = ow.MLGraphBuilder(context)
    graph = builder.build({"y": row_sum(row_sum(builder.input("x", "float32", x.shape)).reshape([1, 5]), label="all")})
    np.testing.assert_allclose(context.compute(graph, {"x": x})["y"], [x.sum() + 5 * 7 + 7], 1e-5, 1e-4)
    titles = [kernel.kernel for kernel in graph.profile(detail=True).kernels]
    if engine_of(context).has_timestamps:
        assert titles[-2:] == ["row_sum 'all', pass 1 of 2", "row_sum 'all', pass 2 of 2"]


# ---------------------------------------------------------------------------------------------------------------------
# Without a device


def test_kernels_bind_no_more_than_the_text_names() -> None:
    x, gate, out = (Input(k, ow.Desc("float32", (3,))) for k in range(3))
    call = KernelCall("mapped", mapped, {"x": x.desc, "gate": gate.desc}, {}, (out.desc,))
    for text, bound in {"out[i] = x[i];": (x, out), "store_out(i, gate[i]); // x": (gate, out)}.items():
        kernel = WgslKernel(f"fn main(i: u32) {{ {text}\n}}")
        (made,) = kernel.kernels(call, {"x": x, "gate": gate}, [out], Features())
        assert set(made.bindings) == set(bound)
        assert [w for b, w in zip(made.bindings, made.writes, strict=True) if b is out] == [True]
        assert made.source.startswith(f"fn main(i: u32) {{ {text}\n}}\n")
        assert made.workgroups == (1, 1, 1)
    line = line_of(__file__, 'WgslKernel(f"fn main(i: u32) {{ {text}\\n}}")')
    assert repr(kernel) == f"<WgslKernel of test_webgpu_kernels.py, line {line}>"


def test_buffers_tell_about_themselves() -> None:
    buffer = Buffer("filter", ow.Desc("float16", (2, 3)), "f32", "u32", 2)
    assert (buffer.variable, buffer.size, buffer.rank, buffer.shape) == ("filter_words", prod((2, 3)), 2, (2, 3))
