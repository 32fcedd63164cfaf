"""Operations of users on WebGPU devices: kernels in WGSL, and expressions and composites among Opweave's own kernels."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from composite_cases import CASES, check, few, run
from hypothesis import given, settings, strategies as st
from samples import Make
from webgpu_device import gpu_context

import opweave as ow
from opweave.dtypes import ANY
from opweave.expr.ir import Input
from opweave.expr.wgsl import Features
from opweave.kernels import KernelCall
from opweave.kernels.wgsl import Buffer, Shader, WgslKernel

wgpu = pytest.importorskip("wgpu", reason="wgpu is not installed")

generator = np.random.default_rng(0)
BODY, OWN = "{ out[0] = x[0]; }", "@compute @workgroup_size(4) fn"
ONE = "one parameter is the number of an element"
TAKES = "fn main takes the number of an element, or its position on each axis, as u32 or i32"
LINES = Path(__file__).read_text().splitlines()


def engine_of(context: ow.MLContext) -> Any:
    return context.backend.space


def normal(*shape: int) -> np.ndarray:
    return generator.standard_normal(shape).astype("float32")


@pytest.fixture(scope="module")
def context() -> ow.MLContext:
    return gpu_context()


@pytest.fixture
def limited() -> Callable[..., ow.MLContext]:
    """Makes contexts whose device seems to have less than it has."""

    def make(**features: Any) -> ow.MLContext:
        made = ow.ml.create_context(device=gpu_context().device.name)
        engine = engine_of(made)
        engine.features = dataclasses.replace(engine.features, **features)
        return made

    return make


@ow.op
def mapped(self, x: ow.MLOperand, k: float = 2.0):  # type: ignore[no-untyped-def]
    return x.desc


def computed(context: ow.MLContext, op: Any, *args: Any, **options: Any) -> Any:
    """The results of a graph of one operation."""
    builder = ow.MLGraphBuilder(context)
    arrays: dict[str, np.ndarray] = {}

    def declare(value: Any) -> Any:
        if isinstance(value, list):
            return [declare(item) for item in value]
        if not isinstance(value, np.ndarray):
            return value
        name = f"x{len(arrays)}"
        arrays[name] = value
        return builder.input(name, value.dtype.name, value.shape)

    made = op(*[declare(value) for value in args], **options)
    results = made if isinstance(made, tuple) else (made,)
    graph = builder.build({f"y{k}": result for k, result in enumerate(results)})
    found = tuple(context.compute(graph, {name: arrays[name] for name in graph.inputs}).values())
    return found if len(found) > 1 else found[0]


# ---------------------------------------------------------------------------------------------------------------------
# What shaders can name


def test_a_kernel_as_text(context: ow.MLContext) -> None:
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
def test_load_and_store_serve_all_data_types(
    context: ow.MLContext, limited: Callable[..., ow.MLContext], data_type: str, lacks: str, count: int
) -> None:
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


def test_every_float16_is_read_and_written_as_it_is(limited: Callable[..., ow.MLContext]) -> None:
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
def test_main_is_called_for_each_position_once(
    limited: Callable[..., ow.MLContext], size: int | None, most: int
) -> None:
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


def test_more_workgroups_than_a_dimension_holds(context: ow.MLContext) -> None:
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
# Messages


def refused(context: ow.MLContext, *args: Any, kind: type[Exception] = ow.OperationError, **options: Any) -> str:
    with pytest.raises(kind) as caught:
        computed(context, mapped, *(args or (normal(3, 4),)), label="m", **options)
    return str(caught.value)


def line_of(text: str) -> int:
    """The number of the line of this file that ends so, without the one that says it here."""
    (found,) = (n for n, line in enumerate(LINES, 1) if line.rstrip("\n").endswith(text) and "line_of" not in line)
    return found


def test_what_the_compiler_says_shows_the_users_line(context: ow.MLContext) -> None:
    mapped.kernel(
        "webgpu",
        """
        // A comment.
        fn main(i: u32) {
            out[i] = missing[i];
        }
        """,
    )
    assert refused(context).splitlines() == [
        f"mapped 'm': line 4 of the WGSL (test_webgpu_kernels.py, line {line_of('out[i] = missing[i];')}): no definition in "
        "scope for identifier: `missing` (declared are x, out, k, sizes, and the functions of opweave.wgsl)",
        "  ┌─ WGSL:4:22",
        "  │",
        "4 │             out[i] = missing[i];",
        "  │                      ^^^^^^^ unknown identifier",
    ]


def test_lines_before_the_users_do_not_count(context: ow.MLContext) -> None:
    """Where the device has f16, the module begins with a line of Opweave's."""

    @mapped.kernel("webgpu")
    def _(x):  # type: ignore[no-untyped-def]
        return (
            f"// {x.name}\n"
            "fn main(i: u32) {\n"
            "    let wrong: i32 = 1.5; out[i] = x[i];\n"
            "}"
        )  # fmt: skip

    for data_type in ("float32", "float16"):
        text = refused(context, np.ones((2,), data_type))
        assert text.startswith("mapped 'm': line 3 of the WGSL (test_webgpu_kernels.py, line "), data_type
        assert "\n3 │     let wrong: i32 = 1.5" in text, data_type


def test_reasons_that_the_compiler_gives_in_notes(context: ow.MLContext) -> None:
    mapped.kernel(
        "webgpu",
        """fn sign_of(value: f32) -> f32 {
            if (value > 0.0) { return 1.0; }
        }
        fn main(i: u32) { out[i] = sign_of(x[i]); }""",
    )
    text = refused(context)
    assert text.startswith(
        f"mapped 'm': line 1 of the WGSL (test_webgpu_kernels.py, line {line_of('fn sign_of(value: f32) -> f32 {')}): "
        "The `return`"
    )
    assert text.count("does not match the declared return type") == 2  # above, and where the compiler says it
    mapped.kernel("webgpu", "fn main(i: u32) { x[i] = 1.0; out[i] = x[i]; }")
    assert "doesn't relate to a valid destination for a store" in refused(context).splitlines()[0]


@pytest.mark.parametrize(
    ("text", "data_type", "hint"),
    [
        (
            "out[i] = x[i];",
            "int8",
            "`out` (out is int8 here, 4 to a word: load_out(i) reads an element, store_out(i, value) writes one, out_words "
            "are the words)",
        ),
        (
            "store_out(i, x[i]);",
            "uint8",
            "`x` (x is uint8 here, 4 to a word: load_x(i) reads an element, x_words are the words)",
        ),
        (
            "out[i] = k;",
            "float32",
            "`k` (k is inf, which is not a constant of WGSL; a function can put it into the text)",
        ),
    ],
)
def test_names_that_are_not_declared_are_explained(context: ow.MLContext, text: str, data_type: str, hint: str) -> None:
    mapped.kernel("webgpu", f"fn main(i: u32) {{ {text} }}")
    options: dict[str, Any] = {"k": float("inf")} if "k" in text else {}
    assert f"no definition in scope for identifier: {hint}" in refused(context, np.ones(3, data_type), **options)


def test_absent_operands_are_explained(context: ow.MLContext) -> None:
    @ow.op
    def biased(self, x: ow.MLOperand, bias: ow.MLOperand | None = None):  # type: ignore[no-untyped-def]
        return x.desc

    biased.kernel("webgpu", "fn main(i: u32) { out[i] = x[i] + bias[0]; }")
    assert computed(context, biased, np.array([1], "float32"), np.array([2], "float32")).tolist() == [3]
    with pytest.raises(
        ow.OperationError, match="the operand bias is absent here; a function can give another text then"
    ):
        computed(context, biased, np.array([1], "float32"))


@pytest.mark.parametrize("name", ["filter", "target", "array", "f32", "main", "read"])
def test_words_of_wgsl_get_an_underscore(context: ow.MLContext, name: str) -> None:
    spelled = f"{name}_"
    namespace: dict[str, Any] = {"ow": ow}
    exec(f"def named(self, {name}: ow.MLOperand):\n    return {name}.desc", namespace)
    op = ow.op(namespace["named"])
    x = normal(3)
    op.kernel("webgpu", f"fn main(i: u32) {{ out[i] = {spelled}[i] + load_{name}(i) + f32({name}_size); }}")
    np.testing.assert_allclose(computed(context, op, x), x + x + 3, 1e-6)
    if name in ("filter", "target", "array"):
        op.kernel("webgpu", f"fn main(i: u32) {{ out[i] = {name}[i]; }}")
        with pytest.raises(ow.OperationError, match=f"{name} is called {spelled}, as the word is one of WGSL's"):
            computed(context, op, x)


def test_names_of_opweaves_that_the_text_declares(context: ow.MLContext) -> None:
    mapped.kernel("webgpu", "const x_size = 3;\nfn main(i: u32) { out[i] = x[i % x_size]; }")
    lines = refused(context).splitlines()
    assert lines[0].startswith("mapped 'm': line 1 of the WGSL")
    assert lines[0].endswith("redefinition of `x_size`")
    assert "  │ const x_size: u32 = 12u;" in lines  # without a number: it is not in the user's text


@pytest.mark.parametrize(
    ("source", "options", "rule"),
    [
        ("fn main(i: u32) { let y = x[i]; }", {}, "the WGSL does not write out"),
        (f"fn main(a: u32, b: u32, c: u32) {BODY}", {}, "fn main takes 3 positions, but out has 2 axes; " + ONE),
        (f"fn main(i: u32, j: u32) {BODY}", {"invocations": (2, 3, 4)},
         "fn main takes 2 positions, but invocations are [2, 3, 4]; " + ONE),
        (f"fn main(i: f32) {BODY}", {}, f"{TAKES}, got (i: f32)"),
        (f"fn main() {BODY}", {}, f"{TAKES}, got ()"),
        (f"fn main {BODY}", {}, f"{TAKES}, got ()"),
        (f"{OWN} start() {BODY}", {}, "start with @compute takes workgroups=, how many to dispatch"),
        (f"{OWN} start() {BODY}", {"workgroups": 1, "invocations": 4},
         "invocations= and workgroup_size= are for fn main without @compute; start takes workgroups="),
        (f"fn main(i: u32) {BODY}", {"workgroups": 4},
         "workgroups= is for entry points with @compute; fn main takes invocations="),
        (f"{OWN} a() {BODY} {OWN} b() {BODY}", {"workgroups": 1},
         "a shader has one entry point, got a, b; give a Shader for each"),
        (f"@group(0) @binding(0) var<storage> x: array<f32>; fn main(i: u32) {BODY}", {},
         "a shader has no @group and @binding: buffers are declared under the names of parameters, results as out"),
        (f"{OWN} a() {BODY}", {"workgroups": (1, 1 << 20)},
         "the device dispatches 65535 workgroups a dimension, got [1, 1048576]"),
        (f"fn main(i: u32) {BODY}", {"workgroup_size": 1 << 20},
         "workgroup_size must be at most 1024 on this device, got 1048576"),
        (f"fn main(i: u32) {BODY}", {"invocations": 1 << 31}, "there may be 2**31 - 1 invocations, got [2147483648]"),
        (f"fn main(i: u32) {BODY}", {"constants": {"k": 1}}, "two declarations are called k; rename a parameter"),
        (f"fn main(i: u32) {BODY}", {"constants": {"c": "1"}},
         "the constant c must be a finite number, true, false or a tuple of them, got '1'"),
        (f"fn main(i: u32) {BODY}", {"scratch": {"x": ow.Desc("float32", (1,))}},
         "two declarations are called x; rename a parameter"),
    ],
)  # fmt: skip
def test_shaders_that_do_not_fit(limited: Callable[..., ow.MLContext], source: str, options: Any, rule: str) -> None:
    mapped.kernel("webgpu", source, **options)
    context = limited(max_workgroups=65535, max_invocations=1024)
    text = refused(context, kind=ow.ValidationError)
    assert re.sub(r" \(test_webgpu_kernels.py, line \d+\)$", "", text) == f"mapped 'm': {rule}"


FORGOTTEN = """
    fn main(i: u32) {
        if (x[i] > 0.0) {  // in 1d
            out[i] = x[i];
    }
"""

NO_ENTRY = "no entry point: fn main(i: u32), or a function with @compute"


@pytest.mark.parametrize(
    ("source", "options", "place", "line", "said", "below"),
    [
        ("fn main(i: u32) {\n  out[i] = x[i];\n", {}, (1, 17), "fn main(i: u32) {", "the { is never closed",
         "^ no } closes it"),
        (f"fn half(v: f32) -> f32 {{\n  return v / 2.0;\nfn main(i: u32) {BODY}", {}, (1, 24),
         "fn half(v: f32) -> f32 {", "the { is never closed", "^ no } closes it"),
        (FORGOTTEN, {}, (3, 25), "        if (x[i] > 0.0) {  // in 1d",
         "the { is never closed (by its indentation, the } in line 5 closes the { in line 2)", "^ no } closes it"),
        ("// }\n@compute @workgroup_size(1)\nfn start() {\n\tif (true) { /* } */ out[0] = x[0]; ", {"workgroups": 1}, (4, 12),
         "\tif (true) { /* } */ out[0] = x[0];", "the { is never closed", "^ no } closes it"),
        ("fn main(i: u32) { out[i] = (x[i]; }", {}, (1, 28), "fn main(i: u32) { out[i] = (x[i]; }",
         "the ( is never closed", "^ no ) closes it"),
        (f"fn main(i: u32 {BODY}", {}, (1, 8), f"fn main(i: u32 {BODY}", "the ( is never closed", "^ no ) closes it"),
        (f"fn main(i: u32) {BODY}\n/* /* */ half", {}, (2, 1), "/* /* */ half", "the comment is never closed",
         "^^ no */ closes it"),
        (f"fn main(i: u32) {BODY}\nconst half = 0.5", {}, (2, 16), "const half = 0.5", "the last declaration has no end",
         "^ a ; or a { … } is missing after it"),
        (f"// fn main(i: u32)\nfn element(i: u32) {BODY}", {}, (2, 4), f"fn element(i: u32) {BODY}", NO_ENTRY,
         "^^^^^^^ nothing calls it"),
        (f"/* fn /**/ main(i: u32) */ fn a() {{}} fn Main(i: u32) {BODY}", {}, (1, 41),
         f"/* fn /**/ main(i: u32) */ fn a() {{}} fn Main(i: u32) {BODY}", NO_ENTRY, "^^^^ did you mean main?"),
        ("\nconst out = 1;", {}, (2, 1), "const out = 1;", NO_ENTRY, "^ there is no function"),
    ],
)  # fmt: skip
def test_what_wgsl_lacks_is_shown_in_the_users_text(
    source: str, options: Any, place: tuple[int, int], line: str, said: str, below: str
) -> None:
    """Before a device sees it, together with what Opweave adds."""
    x, out = (Input(k, ow.Desc("float32", (3,))) for k in range(2))
    kernel = WgslKernel(source, **options)
    with pytest.raises(ow.ValidationError) as caught:
        kernel.kernels(KernelCall("m", mapped, {"x": x.desc}, {}, (out.desc,)), {"x": x}, [out], Features())
    number, column = place
    indent = "\t" if line.startswith("\t") else " "
    assert re.sub(r" \(test_webgpu_kernels.py, line \d+\)", "", str(caught.value)).splitlines() == [
        f"m: line {number} of the WGSL: {said}",
        f"  ┌─ WGSL:{number}:{column}",
        "  │",
        f"{number} │ {line}",
        f"  │ {indent if column > 1 else ''}{' ' * (column - 2)}{below}",
    ]


def test_what_wgsl_lacks_has_its_place_in_the_users_file(context: ow.MLContext) -> None:
    mapped.kernel("webgpu", FORGOTTEN)
    line = line_of("if (x[i] > 0.0) {  // in 1d")
    text = refused(context, kind=ow.ValidationError)
    assert text.startswith(
        f"mapped 'm': line 3 of the WGSL (test_webgpu_kernels.py, line {line}): the {{ is never closed"
    )


def test_comments_are_not_taken_for_what_they_hold(context: ow.MLContext) -> None:
    """Brackets, other comments and functions; block comments nest."""
    mapped.kernel(
        "webgpu",
        """
        // { ( [ /* fn main(j: f32) {
        /* } /* ) */ // */ /*/ fn main() { */
        struct Pair { a: f32, b: f32, }
        fn main(i: u32) { /**/ let p = Pair(x[i], /* ) */ 1.0); out[i] = array<f32, 2>(p.a, p.b)[0]; } // }
        /* the end */
        """,
    )
    x = normal(3, 4)
    np.testing.assert_array_equal(computed(context, mapped, x), x)


def test_more_than_the_device_has(limited: Callable[..., ow.MLContext]) -> None:
    @ow.op
    def total(self, xs: list[ow.MLOperand]):  # type: ignore[no-untyped-def]
        return xs[0].desc

    @total.kernel("webgpu")
    def _(xs):  # type: ignore[no-untyped-def]
        return f"fn main(i: u32) {{ out[i] = {' + '.join(f'{x.name}[i]' for x in xs)}; }}"

    given = [normal(3) for _ in range(4)]
    np.testing.assert_allclose(computed(limited(max_buffers=5), total, given), sum(given), 1e-5, 1e-6)
    with pytest.raises(ow.NotSupportedError, match=r"total: the shader takes 5 buffers, the device has 4"):
        computed(limited(max_buffers=4), total, given)
    mapped.kernel("webgpu", "fn main(i: u32) { store_out(i, load_x(i)); }")
    assert "shaders of this device have no 64-bit integers" in refused(
        limited(int64=False), np.array([1], "int64"), kind=ow.NotSupportedError
    )
    scratch = {"kept": ow.Desc("int64", (1,))}
    mapped.kernel("webgpu", "fn main(i: u32) { kept[0] = 1li; out[i] = x[i]; }", scratch=scratch)
    text = refused(limited(int64=False), kind=ow.ValidationError)
    assert text.startswith("mapped 'm': scratch kept: the device has no int64")
    mapped.kernel("webgpu", "@compute @workgroup_size(100000) fn start() { out[0] = x[0]; }", workgroups=1)
    assert "orkgroup size" in refused(limited())


def test_functions_that_fail(context: ow.MLContext) -> None:
    def raises(x):  # type: ignore[no-untyped-def]
        return x.shape[5]

    mapped.kernel("webgpu", raises)
    line = line_of("return x.shape[5]")
    assert refused(context) == (
        "mapped 'm': the kernel raised IndexError: tuple index out of range "
        f"(test_webgpu_kernels.py, line {line}: return x.shape[5])"
    )
    mapped.kernel("webgpu", lambda x, y: "")
    text = refused(context, kind=ow.ValidationError)
    assert text.endswith("the kernel takes ['y']; the operation has ['x', 'k', 'out']")
    mapped.kernel("webgpu", lambda: 3)
    assert "a kernel is WGSL (a string), an opweave.wgsl.Shader, several of them" in refused(
        context, kind=ow.ValidationError
    )
    mapped.kernel("webgpu", lambda: Shader("", invocations=0))
    text = refused(context, kind=ow.ValidationError)
    assert text.startswith("mapped 'm': invocations must be positive integers, got 0 (test_webgpu_kernels.py, line ")

    def passes():  # type: ignore[no-untyped-def]
        kept, other = {"kept": ow.Desc("float32", (1,))}, {"kept": ow.Desc("float32", (2,))}
        return Shader("fn main(i: u32) { kept[0] = 1.0; }", scratch=kept), Shader(
            "fn main(i: u32) { out[i] = kept[0]; }", scratch=other
        )

    mapped.kernel("webgpu", passes)
    text = refused(context, kind=ow.ValidationError)
    assert text.startswith("mapped 'm': scratch kept is float32[1] in one pass, float32[2] in another")


@pytest.mark.parametrize(
    ("given", "options", "rule"),
    [
        (3, {}, "a kernel is WGSL (a string), an opweave.wgsl.Shader, several of them, or a function of these, got 3"),
        (
            [],
            {},
            "a kernel is WGSL (a string), an opweave.wgsl.Shader, several of them, or a function of these, got []",
        ),
        ("", {"speed": 3}, "WGSL takes invocations, workgroups, workgroup_size, constants, scratch, got speed"),
        (Shader(""), {"workgroups": 1}, "a Shader has its options, got workgroups"),
        (lambda x: "", {"workgroups": 1}, "a function returns its options in a Shader, got workgroups"),
        (lambda *x: "", {}, "a kernel takes the operation's parameters and out, got (*x)"),
        ("", {"workgroups": (1, 0)}, "workgroups must be positive integers, got (1, 0)"),
        ("", {"workgroups": (1, 1, 1, 1)}, "workgroups must have 1 to 3 dimensions, got (1, 1, 1, 1)"),
        ("", {"invocations": 1.5}, "invocations must be positive integers, got 1.5"),
        ("", {"workgroup_size": True}, "workgroup_size must be a positive integer, got True"),
        ("", {"constants": {"no name": 1}}, "constants must map names to values, got {'no name': 1}"),
        ("", {"scratch": {"s": (1,)}}, "scratch 's' must be an opweave.Desc, got (1,)"),
    ],
)
def test_declarations_that_are_wrong(given: Any, options: Any, rule: str) -> None:
    with pytest.raises(ow.ValidationError) as caught:
        mapped.kernel("webgpu", given, **options)
    assert str(caught.value) == f"mapped: {rule}"


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
    line = line_of('WgslKernel(f"fn main(i: u32) {{ {text}\\n}}")')
    assert repr(kernel) == f"<WgslKernel of test_webgpu_kernels.py, line {line}>"


def test_buffers_tell_about_themselves() -> None:
    buffer = Buffer("filter", ow.Desc("float16", (2, 3)), "f32", "u32", 2)
    assert (buffer.variable, buffer.size, buffer.rank, buffer.shape) == ("filter_words", prod((2, 3)), 2, (2, 3))


# ---------------------------------------------------------------------------------------------------------------------
# Among other operations


def test_devices_run_their_own_kernels(context: ow.MLContext) -> None:
    @ow.op
    def told(self, x: ow.MLOperand):  # type: ignore[no-untyped-def]
        return x.desc

    @told.kernel("cpu")
    def _(x, out):  # type: ignore[no-untyped-def]
        out[...] = 1

    told.kernel("webgpu", "fn main(i: u32) { out[i] = 2.0; }")
    cpu = ow.ml.create_context(accelerated=False)
    x = np.zeros(2, "float32")
    assert computed(cpu, told, x).tolist() == [1, 1]
    assert computed(context, told, x).tolist() == [2, 2]
    for _again in range(2):  # the second call takes the short way, where there is one
        assert told(x).tolist() == [1, 1]
        with context:
            assert told(x).tolist() == [2, 2]
    told.kernel("webgpu", "fn main(i: u32) { out[i] = 3.0; }")
    with context:
        assert told(x).tolist() == [3, 3]
    builder = ow.MLGraphBuilder(context)
    graph = builder.build({"y": told(builder.input("x", "float32", [2]).relu()).tanh()})
    places = {p.node: (p.how, p.detail) for p in graph.placements()}
    number = line_of('"fn main(i: u32) { out[i] = 3.0; }")')
    assert places["told"] == ("kernel", f"WebGPU: kernel 1, WGSL (test_webgpu_kernels.py, line {number})")
    assert [step.how for step in graph.profile(repeat=1).steps] == ["WebGPU"]


def test_operations_that_have_no_kernel_for_the_device(context: ow.MLContext) -> None:
    @ow.op
    def here(self, x: ow.MLOperand):  # type: ignore[no-untyped-def]
        return x.desc

    here.kernel("cpu", lambda x, out: np.copyto(out, x * 3))
    builder = ow.MLGraphBuilder(context)
    graph = builder.build({"y": here(builder.input("x", "float32", [4]).relu(), label="h").relu()})
    assert {p.node: p.device for p in graph.placements()}["here 'h'"] == "cpu"
    assert "its kernels are for 'cpu', not for 'webgpu'" in graph.explain()
    x, y = (context.create_tensor("float32", [4], readable=True, writable=True) for _ in range(2))
    context.write_tensor(x, np.array([-1, 0, 1, 2], "float32"))
    ow.memory.copies.reset()
    context.dispatch(graph, {"x": x}, {"y": y})
    assert {k: v.count for k, v in ow.memory.copies.by_reason.items()} == {
        "from the device for here 'h'": 1,
        "to the device for relu": 1,
    }
    assert context.read_tensor(y).tolist() == [0, 0, 3, 6]
    builder = ow.MLGraphBuilder(context)
    result = here(builder.input("x", "float32", [4]), label="h")
    with pytest.raises(ow.NotSupportedError, match=r"here 'h': .* cannot run it \(its kernels are for 'cpu'"):
        builder.build({"y": result}, fallback="error")

    @ow.op
    def there(self, x: ow.MLOperand):  # type: ignore[no-untyped-def]
        return x.desc

    there.kernel("webgpu", "fn main(i: u32) { out[i] = x[i]; }")
    with pytest.raises(ow.NotSupportedError, match=r"there 't': .* its kernels are for 'webgpu'$"):
        there(np.array([1], "float32"), label="t")


def test_calls_on_tensors_and_arrays(context: ow.MLContext) -> None:
    @ow.op
    def sums(self, a: ow.MLOperand, b: ow.MLOperand):  # type: ignore[no-untyped-def]
        return a.desc, a.desc

    sums.kernel("webgpu", "fn main(i: u32) { out0[i] = a[i] + b[i]; out1[i] = a[i] - b[i]; }")
    x, y = np.array([1, 2], "float32"), np.array([10, 20], "float32")
    tensor = context.create_tensor("float32", [2], writable=True)
    context.write_tensor(tensor, x)
    for other in (y, context.tensor_from(tensor.gpu_buffer, "float32", [2])):
        found = sums(tensor, other)
        assert all(isinstance(value, ow.MLTensor) and value.context is context for value in found)
        wanted = [x + y, x - y] if other is y else [x + x, x - x]
        assert [context.read_tensor(value).tolist() for value in found] == [w.tolist() for w in wanted]
    assert context.read_tensor(sums(tensor, tensor)[0]).tolist() == [2, 4]
    with context:
        assert sums(x, y)[1].tolist() == [-9, -18]
        first, _ = sums(ow.array(x), y)
        assert np.asarray(first).tolist() == [11, 22]


def test_one_queue(context: ow.MLContext) -> None:
    """A user's pipeline between dispatches, without waiting."""
    mapped.kernel("webgpu", "fn main(i: u32) { out[i] = x[i] * k; }")
    builder = ow.MLGraphBuilder(context)
    graph = builder.build({"y": mapped(builder.input("x", "float32", [64]), 3.0)})
    first, middle, last = (context.create_tensor("float32", [64], readable=True, writable=True) for _ in range(3))
    context.write_tensor(first, np.ones(64, "float32"))
    device = engine_of(context).device
    code = """
        @group(0) @binding(0) var<storage, read_write> values: array<f32>;
        @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) at: vec3<u32>) { values[at.x] += 1.0; }
    """
    pipeline = device.create_compute_pipeline(
        layout="auto", compute={"module": device.create_shader_module(code=code), "entry_point": "main"}
    )
    group = device.create_bind_group(
        layout=pipeline.get_bind_group_layout(0),
        entries=[{"binding": 0, "resource": {"buffer": middle.gpu_buffer}}],
    )
    for _ in range(3):
        context.dispatch(graph, {"x": first}, {"y": middle})
        encoder = device.create_command_encoder()
        compute = encoder.begin_compute_pass()
        compute.set_pipeline(pipeline)
        compute.set_bind_group(0, group)
        compute.dispatch_workgroups(1)
        compute.end()
        device.queue.submit([encoder.finish()])
        context.dispatch(graph, {"x": middle}, {"y": last})
        first, last = last, first
    assert set(context.read_tensor(first).tolist()) == {((1 * 3 + 1) * 3 * 3 + 1) * 3 * 3 * 3 + 3.0}


def test_expressions_become_a_part_of_the_kernel_before(context: ow.MLContext) -> None:
    @ow.expression
    def squashed(x, *, gain: float = 2.0):  # type: ignore[no-untyped-def]
        return ow.expr.tanh(x * gain) + 1

    weights, image = normal(4, 3, 3, 3), normal(1, 3, 8, 8)
    results = []
    for where in (context, ow.ml.create_context(device="reference")):
        builder = ow.MLGraphBuilder(where)
        x = builder.input("x", "float32", image.shape)
        hidden = builder.conv2d(x, builder.constant(weights), label="stem")
        graph = builder.build({"y": squashed(hidden, gain=0.5, label="squash")})
        results.append(where.compute(graph, {"x": image})["y"])
        if where is context:
            (kernel,) = graph.profile(detail=True).kernels
            assert kernel.node == "conv2d 'stem' + squashed 'squash'"
    np.testing.assert_allclose(results[0], results[1], 1e-4, 1e-5)


@pytest.mark.parametrize("op", CASES, ids=lambda op: op.name)
def test_composites_agree_with_their_witnesses(context: ow.MLContext, op: Any) -> None:
    @settings(few, max_examples=2)
    @given(st.data())
    def check_one(data: st.DataObject) -> None:
        call, wanted = CASES[op].make(Make(data.draw, {"x": CASES[op].types[-1]}))
        check(op, call, run(context, op, call), wanted)

    check_one()


def test_composites_run_as_their_parts(context: ow.MLContext) -> None:
    x, weight = normal(2, 3, 16), normal(16)
    results = []
    for where in (context, ow.ml.create_context(device="reference")):
        builder = ow.MLGraphBuilder(where)
        given = builder.input("x", "float32", x.shape)
        y = ow.composites.rms_norm(given, builder.constant(weight), label="norm")
        graph = builder.build({"y": y.tanh()})
        results.append(where.compute(graph, {"x": x})["y"])
        assert graph.devices == (where.device.name,)
    np.testing.assert_allclose(results[0], results[1], 1e-4, 1e-5)


def test_checked_indices_are_looked_at_on_the_host(context: ow.MLContext) -> None:
    @ow.expression
    def lookup(table, indices):  # type: ignore[no-untyped-def]
        return ow.expr.compute(indices.shape, lambda i: table.checked[indices[i]])

    builder = ow.MLGraphBuilder(context)
    table, indices = builder.input("table", "float32", [3]), builder.input("indices", "int32", [2])
    graph = builder.build({"y": lookup(table.relu(), indices, label="words").relu()})
    (place,) = (p for p in graph.placements() if p.node == "lookup 'words'")
    assert place.device == "cpu"
    assert "a GPU cannot report a failed check" in place.detail
    given = {"table": np.array([1, 2, 3], "float32"), "indices": np.array([2, 0], "int32")}
    assert context.compute(graph, given)["y"].tolist() == [3, 1]
    with pytest.raises(ow.OperationError, match=r"lookup 'words': the index .* of axis 0 must be in \[0, 3\)"):
        context.compute(graph, {**given, "indices": np.array([0, 7], "int32")})


def test_forms_are_taken_in_order(context: ow.MLContext) -> None:
    """On a GPU kernels for the CPU come last: an expression or a decomposition keeps the work there."""

    @ow.op
    def scaled(self, x: ow.MLOperand):  # type: ignore[no-untyped-def]
        return x.desc

    def form() -> tuple[str, float]:
        builder = ow.MLGraphBuilder(context)
        graph = builder.build({"y": scaled(builder.input("x", "float32", [1]))})
        (place,) = graph.placements()
        (value,) = context.compute(graph, {"x": np.ones(1, "float32")})["y"]
        return place.device, value

    scaled.kernel("cpu", lambda x, out: np.copyto(out, x * 2))
    assert form() == ("cpu", 2)
    scaled.decompose(lambda b, x: b.mul(x, 3.0))
    assert form() == (context.device.name, 3)
    scaled.expression(lambda x: x * 4)
    assert form() == (context.device.name, 4)
    scaled.kernel("webgpu", "fn main(i: u32) { out[i] = x[i] * 5.0; }")
    assert form() == (context.device.name, 5)


def test_in_an_onnx_model(context: ow.MLContext) -> None:
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    helper = onnx.helper

    @ow.op
    def doubled(self, x: ow.MLOperand, *, by: int):  # type: ignore[no-untyped-def]
        return x.desc

    doubled.kernel("webgpu", "fn main(i: u32) { out[i] = x[i] * by; }")
    ow.register_onnx("test.webgpu", "Doubled", doubled)
    nodes = [
        helper.make_node("Relu", ["x"], ["h"]),
        helper.make_node("Doubled", ["h"], ["y"], domain="test.webgpu", by=2),
    ]
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [3]) for name in "xy")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("test.webgpu", 1)]
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=opsets, ir_version=8)
    session = ow.InferenceSession(model.SerializeToString(), context, fallback="error")
    (result,) = session.run(None, {"x": np.array([-1, 1, 2], "float32")})
    assert result.tolist() == [0, 2, 4]
    assert "custom: doubled, kernel, WebGPU: kernel 1, WGSL (test_webgpu_kernels.py" in session.explain()


def test_calls_from_several_threads(context: ow.MLContext) -> None:
    @ow.op
    def times(self, x: ow.MLOperand, k: float):  # type: ignore[no-untyped-def]
        return x.desc

    times.kernel("webgpu", "fn main(i: u32) { out[i] = x[i] * k; }")

    def run(k: int) -> float:
        with context:
            return float(times(np.ones(3 + k % 5, "float32"), float(k))[-1])

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(run, range(40))) == list(range(40))
