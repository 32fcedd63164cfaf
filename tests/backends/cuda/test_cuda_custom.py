"""Users' kernels on CUDA: CUDA C++ on a driver that runs on the processor, and what other libraries compile."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support.cuda_driver import HARDWARE, INFO, cuda_context
from support.webgpu_kernels import line_of

import opweave as ow
from opweave.backends.cuda import compiler as cuda_compiler, devices
from opweave.backends.cuda.engine import features_of
from opweave.core.graph import Desc
from opweave.expr.gpu import GpuKernel
from opweave.expr.ir import Input
from opweave.kernels import KernelCall
from opweave.kernels.cuda import CudaKernel, Launch

X = Desc("float32", (2, 3))

needs_nvrtc = pytest.mark.skipif(not devices.is_installed(), reason="pip install 'opweave[cuda]'")


@pytest.fixture
def context() -> ow.MLContext:
    return cuda_context()


def computed(context: ow.MLContext, op: Any, *arrays: np.ndarray, **attributes: Any) -> Any:
    """The results of one node, which must run on the device."""
    builder = ow.MLGraphBuilder(context)
    operands = [builder.input(f"x{k}", array.dtype.name, array.shape) for k, array in enumerate(arrays)]  # type: ignore[arg-type]
    made = op(*operands, **attributes)
    results = made if isinstance(made, tuple) else (made,)
    graph = builder.build({f"y{k}": result for k, result in enumerate(results)}, fallback="error")
    found = context.compute(graph, {f"x{k}": array for k, array in enumerate(arrays)})
    return tuple(found.values()) if isinstance(made, tuple) else found["y0"]


def kernels_of(op: Any, *descs: Desc, outputs: tuple[Desc, ...], **attributes: Any) -> list[GpuKernel]:
    """The kernels of a node, without a device."""
    inputs = {name: Input(k, desc) for k, (name, desc) in enumerate(zip(op.operands, descs, strict=True))}
    call = KernelCall(f"{op.name} 'a'", op, dict(zip(op.operands, descs, strict=True)), attributes, outputs)
    made: CudaKernel = op.kernels["cuda"]
    return made.kernels(
        call, inputs, [Input(90 + k, desc) for k, desc in enumerate(outputs)], features_of(INFO, "float32")
    )


@ow.op
def smooth_step(self: Any, x: ow.MLOperand, *, edge: float = 1.0) -> Any:
    return x.desc


smooth_step.kernel(
    "cuda",
    """
    float cubed(float t) { return t * t * (3.0f - 2.0f * t); }  // "main" is below: void main(int wrong)
    void main(unsigned i) { out[i] = cubed(fminf(fmaxf(x[i] / edge, 0.0f), 1.0f)); }
    """,
)


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("data_type", ["float32", "float16"])
def test_custom_element_formula(context: ow.MLContext, data_type: Any) -> None:
    x = np.linspace(-1, 3, 700).astype(data_type).reshape(7, 100)
    t = np.clip(x.astype(np.float32) / 2, 0, 1)
    found = computed(context, smooth_step, x, edge=2.0)
    np.testing.assert_allclose(found, (t * t * (3 - 2 * t)).astype(data_type), 1e-3 if data_type == "float16" else 1e-6)


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("data_type", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
def test_integers(context: ow.MLContext, data_type: Any) -> None:
    @ow.op
    def doubled(self: Any, x: ow.MLOperand) -> Any:
        return x.desc

    doubled.kernel("cuda", "void main(unsigned i) { out[i] = x[i] * 2; }")
    x = np.arange(50).astype(data_type)
    np.testing.assert_array_equal(computed(context, doubled, x), x * 2)


def test_positions_shapes_and_attributes(context: ow.MLContext) -> None:
    @ow.op
    def rolled(self: Any, x: ow.MLOperand, *, by: tuple[int, int], negate: bool, large: int) -> Any:
        return x.desc, ow.Desc("int64", (2,))

    rolled.kernel(
        "cuda",
        """
        void main(int row, int column) {
            int from = (row + by[0]) % x_shape[0] * x_strides[0] + (column + by[1]) % x_shape[1];
            out0[row * out0_strides[0] + column] = negate ? -x[from] : x[from];
            if (row == 0 && column < out1_size) out1[column] = large + x_rank;
        }
        """,
    )
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    first, second = computed(context, rolled, x, by=(1, 2), negate=True, large=2**40)
    np.testing.assert_array_equal(first, -np.roll(x, (-1, -2), (0, 1)))
    assert second.tolist() == [2**40 + 2] * 2


def test_headers_are_part_of_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "factor.h").write_text('#include "number.h"')
    scaled.kernel("cuda", '#include "own/factor.h"\nvoid main(unsigned i) { out[i] = FACTOR * x[i]; }')
    keys = set()
    for number in ("2", "3"):
        (tmp_path / "own" / "number.h").write_text(f"#define FACTOR {number}")
        (kernel,) = kernels_of(scaled, X, outputs=(X,), k=1.0)
        keys.add(kernel.key)
    assert len(keys) == 2


def named(source: str, **options: Any) -> Any:
    @ow.op
    def chosen(self: Any, i: ow.MLOperand, bitand: ow.MLOperand, *, min: float, max: int = 2, y1: Any = (1, 2)) -> Any:
        return i.desc

    chosen.kernel("cuda", source, **options)
    return chosen


NAMED = "void main(unsigned k) { out[k] = i[k] * bitand_[k] + fminf(min, max) * y1[k % 2]; }"
NAMED_ENTRY = (
    "__global__ void named(float* i, const float* bitand_, float* out, int max, float min) { *out = y1[max] * min; }"
)


QUALIFIED = "void main(unsigned k) { out[k] = ::min(i[k], min) + ::fminf(min, max); }"
"""Attributes hide functions, which are there in the global namespace."""
HELPERS = """
__device__ float3 fmaxf(float3 a, float b) { return make_float3(fmaxf(a.x, b), fmaxf(a.y, b), fmaxf(a.z, b)); }
"""
OVERLOADS_ENTRY = HELPERS + (
    "__global__ void named(const float* i, float* out) { *out = fmaxf(make_float3(1, 2, 3), i[0]).x; }"
)
"""Overloads of CUDA's functions, beside these."""


def test_names_of_functions_and_keywords(context: ow.MLContext) -> None:
    x = np.arange(6, dtype=np.float32)
    least = float(np.finfo(np.float32).min)
    np.testing.assert_array_equal(
        computed(context, named(NAMED), x, x, min=0.5), x * x + np.array([0.5, 1] * 3, np.float32)
    )
    np.testing.assert_array_equal(computed(context, named(NAMED), x, x, min=least, y1=(1, 1)), np.full(6, least, "f4"))


@needs_nvrtc
@pytest.mark.parametrize(
    ("source", "options"),
    [(NAMED, {}), (NAMED_ENTRY, {"grid": 1}), (QUALIFIED, {}), (OVERLOADS_ENTRY, {"grid": 1})],
)
def test_names_are_known_to_the_compiler(source: str, options: Any) -> None:
    assert named(source, **options).check("cuda", i=X, bitand=X, min=0.5)


ROW_SUMS = """
#include <cuda_fp16.h>
__global__ void __launch_bounds__(64) sums(float* out, const float scale, const float *__restrict__ x, int x_size) {
    __shared__ float part[64];  /* a row */
    float sum = 0;
    for (int k = threadIdx.x; k < x_shape[1]; k += 64) sum += x[blockIdx.x * x_strides[0] + k];
    part[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        float all = 0;
        for (int k = 0; k < 64; k++) all += part[k];
        out[blockIdx.x] = all * scale + x_size;
    }
}
"""


def test_custom_whole_kernel(context: ow.MLContext) -> None:
    @ow.op
    def row_sums(self: Any, x: ow.MLOperand, *, scale: float = 1.0) -> Any:
        return ow.Desc(x.data_type, x.shape[:1])

    @row_sums.kernel("cuda")
    def _(x: Any, out: Any) -> Any:
        return ow.cuda.Source(ROW_SUMS.replace("#include <cuda_fp16.h>", ""), grid=x.shape[0], block=64)

    x = np.random.default_rng(0).random((5, 333), np.float32)
    np.testing.assert_allclose(computed(context, row_sums, x, scale=3.0), 3 * x.sum(1) + x.size, 1e-5)
    (kernel,) = kernels_of(row_sums, Desc("float32", (5, 333)), outputs=(Desc("float32", (5,)),), scale=3.0)
    assert kernel.arguments == (0, np.float32(3).tobytes(), 1, np.int32(1665).tobytes())
    assert (kernel.workgroups, kernel.block, kernel.entry_point) == ((5, 1, 1), (64, 1, 1), "sums")


def test_kernels_of_one_text_have_blocks_of_their_own(context: ow.MLContext) -> None:
    """Nodes of other shapes, in one graph and in a later one."""

    @ow.op
    def doubled_rows(self: Any, x: ow.MLOperand) -> Any:
        return x.desc

    @doubled_rows.kernel("cuda")
    def _(x: Any, out: Any) -> Any:
        text = """extern "C" __global__ void doubled(const float* x, float* out) {
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            out[i] = 2 * x[i];
        }"""
        return ow.cuda.Source(text, grid=x.shape[0], block=x.shape[1])

    arrays = [np.random.default_rng(0).random(shape, np.float32) for shape in ((3, 4), (2, 7), (5, 9))]
    builder = ow.MLGraphBuilder(context)
    results = {f"y{k}": doubled_rows(builder.input(f"x{k}", "float32", a.shape)) for k, a in enumerate(arrays[:2])}
    found = context.compute(builder.build(results), {f"x{k}": a for k, a in enumerate(arrays[:2])})
    for array, result in zip(arrays, [*found.values(), computed(context, doubled_rows, arrays[2])], strict=True):
        np.testing.assert_array_equal(result, 2 * array)


def test_passes_share_scratch_memory(context: ow.MLContext) -> None:
    @ow.op
    def centred(self: Any, x: ow.MLOperand) -> Any:
        return x.desc

    @centred.kernel("cuda")
    def _(x: Any, out: Any) -> Any:
        scratch = {"mean": ow.Desc("float32", (1,))}
        first = (
            "void main(unsigned i) { float s = 0; for (int k = 0; k < x_size; k++) s += x[k]; mean[0] = s / x_size; }"
        )
        second = "void main(unsigned i) { out[i] = x[i] - mean[0]; }"
        return ow.cuda.Source(first, invocations=1, scratch=scratch), ow.cuda.Source(second, scratch=scratch)

    x = np.arange(9, dtype=np.float32)
    np.testing.assert_array_equal(computed(context, centred, x), x - 4)


@pytest.mark.long
def test_nodes_have_scratch_memory_of_their_own(context: ow.MLContext) -> None:
    """Also nodes whose first passes are the same kernel of the same operand, apart from the value of an argument."""

    @ow.op
    def raised(self: Any, x: ow.MLOperand, *, factor: float = 1.0) -> Any:
        return x.desc

    @raised.kernel("cuda")
    def _(x: Any, out: Any) -> Any:
        scratch = {"kept": ow.Desc("float32", x.shape)}
        first = """extern "C" __global__ void scaled(const float* x, float factor, float* kept) {
            kept[threadIdx.x] = factor * x[threadIdx.x];
        }"""
        second = "void main(unsigned i) { kept[i] += 1; out[i] = kept[i]; }"
        return ow.cuda.Source(first, grid=1, block=x.size, scratch=scratch), ow.cuda.Source(second, scratch=scratch)

    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [3])
    graph = builder.build({f"y{k}": raised(x, factor=factor) for k, factor in enumerate((2.0, 3.0, 3.0))})
    found = context.compute(graph, {"x": np.float32([1, 2, 3])})
    np.testing.assert_array_equal([found[f"y{k}"] for k in range(3)], [[3, 5, 7], [4, 7, 10], [4, 7, 10]])


def test_between_other_operations_in_one_graph(context: ow.MLContext) -> None:
    driver = context._space.driver  # type: ignore[attr-defined]
    calls: Counter[str] = Counter() if HARDWARE else driver.calls
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [3])
    graph = builder.build({"y": builder.neg(smooth_step(builder.abs(x), edge=4.0))}, fallback="error")
    calls.clear()
    np.testing.assert_allclose(context.compute(graph, {"x": np.float32([-2, 0, 8])})["y"], [-0.5, 0, -1])
    assert HARDWARE or (calls["graph"], calls["launch"]) == (1, 1)
    number = line_of(__file__, "smooth_step.kernel(")
    assert f"CUDA: kernel 1, CUDA C++ (test_cuda_custom.py, line {number})" in graph.explain()


# ---------------------------------------------------------------------------------------------------------------------
# Messages


@pytest.mark.parametrize("fallback", ["auto", "error"])
def test_custom_kernel_in_wgsl_only(context: ow.MLContext, fallback: Any) -> None:
    @ow.op
    def halved(self: Any, x: ow.MLOperand) -> Any:
        return x.desc

    halved.kernel("webgpu", "fn main(i: u32) { out[i] = x[i] / 2; }")
    builder = ow.MLGraphBuilder(context)
    result = halved(builder.input("x", "float32", [4]), label="h")
    reason = "its kernels are for 'webgpu', not for 'cuda': add halved.kernel('cuda', …)"
    with pytest.raises(ow.NotSupportedError, match=re.escape(f"halved 'h': cuda cannot run it ({reason})")):
        builder.build({"y": result}, fallback=fallback)
    halved.kernel("cuda", "void main(unsigned i) { out[i] = x[i] / 2; }")
    x = np.float32([1, 2, 3])
    np.testing.assert_array_equal(computed(context, halved, x), x / 2)


def test_custom_kernel_in_wgsl_with_expression(context: ow.MLContext) -> None:
    @ow.op
    def tripled(self: Any, x: ow.MLOperand) -> Any:
        return x.desc

    tripled.kernel("webgpu", "fn main(i: u32) { out[i] = x[i] * 3; }")
    tripled.expression(lambda x: x * 3)
    x = np.float32([1, 2, 3])
    np.testing.assert_array_equal(computed(context, tripled, x), x * 3)


def operation(text: Any, **options: Any) -> Any:
    @ow.op
    def broken(self: Any, x: ow.MLOperand, bias: ow.MLOperand | None = None, *, mode: str = "fast", k: int = 3) -> Any:
        return x.desc

    broken.kernel("cuda", text, **options)
    return broken


def refused(text: Any, **options: Any) -> str:
    made: CudaKernel = operation(text, **options).kernels["cuda"]
    op = operation(text, **options)
    call = KernelCall("broken 'a'", op, {"x": X, "bias": None}, {"mode": "fast", "k": 3}, (X,))
    inputs, features = {"x": Input(0, X), "bias": None}, features_of(INFO, "float32")
    with pytest.raises(ow.MLError) as caught:
        cuda_compiler.binaries(made.kernels(call, inputs, [Input(90, X)], features), INFO.architecture)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("float f(float t) { return *out; }", {}, "line 1 of the CUDA C++ (test_cuda_custom.py, line "),
        ("void main(unsigned i) { x[i]; }", {}, "broken 'a': the CUDA C++ does not write out (test_cuda_custom.py, line "),
        ("void main(int a, int b, int c) { out[a] = 0; }", {}, "void main takes 3 positions, but out has 2 axes"),
        ("void main() { out[0] = 0; }", {}, "void main takes the number of an element, or its position on each axis, got ()"),
        ("void main(int i) { out[i] = 0; }", {"grid": 3}, "grid= is for kernels with __global__"),
        ("void main(int i) { out[i] = 0; }", {"block": (8, 8)}, "block must be one number for void main, got [8, 8]"),
        ("void main(int i) { out[i] = 0; }", {"block": 2048}, "a block has at most 1024 threads on this device, got 2048"),
        ("__global__ void f(float* out) { *out = 0; }", {}, "f with __global__ takes grid=, the number of blocks"),
        ("__global__ void f(float* out) { *out = 0; }", {"grid": 1, "invocations": 3}, "invocations= is for void main"),
        ("__global__ void f(float* o, float out) { }", {"grid": 1}, "the parameter o of f must have the name of a tensor: x,"),
        ("__global__ void f(float* out, int n) { }", {"grid": 1}, "the parameter n of f must have the name of an attribute"),
        ("__global__ void f(float* out, long k) { }", {"grid": 1}, "the parameter k of f must be one of bool, char,"),
        ("__global__ void f(float* out, bool k) { }", {"grid": 1}, "k is 3, no bool"),
        ("__global__ void f(float* out) { }\n__global__ void g(float* out) { }", {"grid": 1}, "one kernel, got f, g"),
        ("__global__ void f(float* out) { }", {"grid": (1, 70000)}, "a grid has at most [2147483647, 65535, 65535] blocks"),
    ],
)  # fmt: skip
def test_custom_kernel_rejects_invalid_source(text: str, options: Any, message: str) -> None:
    assert message in refused(text, **options)


@needs_nvrtc
def test_custom_kernel_error_shows_source_line() -> None:
    text = """
        float twice(float t) { return 2 * t; }
        void main(unsigned i) {
            out[i] = twice(x[i]) + wrong;
        }
    """
    where = line_of(__file__, "out[i] = twice(x[i]) + wrong;")
    assert refused(text) == (
        f"broken 'a': line 4 of the CUDA C++ (test_cuda_custom.py, line {where}): identifier \"wrong\" is undefined "
        "(declared are x, out, k, and sizes, as opweave.cuda says)\n"
        "  ┌─ CUDA C++:4:36\n"
        "  │\n"
        "4 │             out[i] = twice(x[i]) + wrong;\n"
        "  │                                    ^"
    )
    assert "(the operand bias is absent here; a function can give" in refused("void main(int i) { out[i] = bias[i]; }")
    assert "(mode is 'fast', which is no constant of C++;" in refused("void main(int i) { out[i] = mode; }")
    entry = '\n__global__ void f(const float* x, float* out) {\n    out[0] = x[0] + "a";\n}'
    assert "line 3 of the CUDA C++" in refused(entry, grid=1)


@needs_nvrtc
@pytest.mark.parametrize("text", ["void main(unsigned i) {\n    if (i > 2) {\n        out[i] = 0;\n    }\n"])
def test_custom_kernel_unclosed_bracket(text: str) -> None:
    assert "line 1 of the CUDA C++" in refused(text)
    assert "the bracket in this line is never closed\n  ┌─ CUDA C++:1:1\n  │\n1 │ void main(unsigned i) {" in refused(
        text
    )


@needs_nvrtc
def test_constants_are_known_to_the_compiler() -> None:
    text = """
        static_assert(x_shape[1] == 3 && x_size == 6 && k == 3 && out_rank == 2, "");
        void main(unsigned i) { int at = i % 2; out[i] = x_shape[at] + x[i]; }
    """
    op = operation(text)
    call = KernelCall("a", op, {"x": X, "bias": None}, {"mode": "fast", "k": 3}, (X,))
    made = op.kernels["cuda"].kernels(
        call, {"x": Input(0, X), "bias": None}, [Input(1, X)], features_of(INFO, "float32")
    )
    (binary,) = cuda_compiler.binaries(made, "sm_90")
    assert binary.image.startswith(b"\x7fELF")


def test_custom_kernel_rejects_other_values() -> None:
    with pytest.raises(
        ow.ValidationError,
        match=r"broken: a kernel is CUDA C.* or Launch, a kernel of Triton, CuPy or Numba, .*, got 3",
    ):
        operation(3)
    with pytest.raises(
        ow.ValidationError, match=r"broken: CUDA C.. takes invocations, grid, block, constants, scratch, got threads"
    ):
        operation("void main(int i) { out[i] = 0; }", threads=3)
    with pytest.raises(ow.ValidationError, match="a Launch takes a kernel of Triton, CuPy or Numba, got str"):
        ow.cuda.Launch("text")
    with pytest.raises(ow.ValidationError, match="grid must be 1 to 3 positive integers, got 0"):
        operation("void main(int i) { out[i] = 0; }", grid=0)


# ---------------------------------------------------------------------------------------------------------------------
# Kernels of other libraries


@ow.op
def scaled(self: Any, x: ow.MLOperand, *, k: float = 1.0) -> Any:
    return x.desc


LONG = Desc("float32", (5000,))


def cupy_kernel() -> Any:
    """What is used of a `cupy.RawKernel`, which takes a GPU."""
    module = ModuleType("cupy")
    function = type("Function", (), {"ptr": 0xF00D})()
    kind = type(
        "RawKernel", (), {"__module__": "cupy._core.raw", "name": "scale", "kernel": function, "__call__": None}
    )
    module.RawKernel = kind  # type: ignore[attr-defined]
    return kind()


def test_cupy() -> None:
    raw = cupy_kernel()
    with pytest.raises(ow.ValidationError, match=r"scaled: a cupy.RawKernel takes arguments=\(…\)"):
        scaled.kernel("cuda", raw, grid=5, block=256)
    scaled.kernel("cuda", raw, grid=5, block=(32, 8), arguments=("x", "out", "k", np.int32(7), "x_size"), shared=64)
    (kernel,) = kernels_of(scaled, LONG, outputs=(LONG,), k=2.5)
    compiled = kernel.compiled
    assert compiled is not None
    assert (compiled.handle, compiled.invocations, compiled.shared) == (0xF00D, (32, 8, 1), 64)
    assert compiled.owner is raw.kernel
    assert (kernel.workgroups, kernel.writes) == ((5, 1, 1), (False, True))
    numbers = (np.float64(2.5).tobytes(), np.int32(7).tobytes(), np.int64(5000).tobytes())
    assert kernel.arguments == (0, 1, *numbers)
    assert scaled.kernels["cuda"].detail == "CuPy kernel scale"
    scaled.kernel("cuda", raw, arguments=("x", "y", "out"))
    with pytest.raises(
        ow.ValidationError, match="scaled 'a': the argument y is no tensor and no number; declared are x, out, k"
    ):
        kernels_of(scaled, LONG, outputs=(LONG,), k=2.5)


def test_triton() -> None:
    triton = pytest.importorskip("triton", reason="needs triton: make test-cuda")
    from cuda_triton_samples import scale

    assert triton
    scaled.kernel("cuda", scale, block=1024, constants={"BLOCK": 1024}, num_warps=8)
    (kernel,) = kernels_of(scaled, LONG, outputs=(LONG,), k=2.0)
    assert kernel.compiled is not None
    assert kernel.compiled.image.startswith(b"\x7fELF")
    assert (kernel.workgroups, kernel.compiled.invocations) == ((5, 1, 1), (256, 1, 1))
    assert kernel.arguments == (0, 1, np.int32(5000).tobytes(), np.float32(2).tobytes())

    for options, message in (
        ({"constants": {"BLOCK": 512, "SIZE": 3}}, r"Triton kernel scale has no parameters \['SIZE'\] for constants="),
        ({"grid": (1, 70000)}, r"scaled 'a': a grid has at most .* got \[1, 70000\]"),
        ({"num_warps": 64}, "scaled 'a': a block has at most 1024 threads on this device, got 2048"),
    ):
        scaled.kernel("cuda", scale, **{"block": 512, "constants": {"BLOCK": 512}, **options})  # type: ignore[arg-type]
        with pytest.raises(ow.ValidationError, match=message):
            kernels_of(scaled, LONG, outputs=(LONG,), k=2.0)

    with pytest.raises(ow.ValidationError, match="Triton kernel scale takes grid=, the number of programs, or block="):
        scaled.kernel("cuda", scale, constants={"BLOCK": 512})

    @scaled.kernel("cuda")
    def _(x: Any, out: Any, k: float) -> Any:
        return Launch(scale, grid=10, arguments=(x, out, x.size), constants={"BLOCK": 512})

    with pytest.raises(
        ow.ValidationError, match=r"Triton kernel scale takes .'x', 'out', 'x_size', 'k'. besides constants, got 3"
    ):
        kernels_of(scaled, LONG, outputs=(LONG,), k=2.0)


@pytest.mark.long
def test_numba() -> None:
    cuda: Any = pytest.importorskip("numba.cuda", reason="needs numba-cuda")
    try:
        cuda.compile_ptx(lambda: None, (), cc=(9, 0))
    except Exception as error:
        pytest.skip(f"needs numba-cuda with NVVM: {type(error).__name__}")

    @cuda.jit  # type: ignore[untyped-decorator]
    def scale(x: Any, out: Any, k: float) -> None:
        i = cuda.grid(1)
        if i < x.size:
            out[i] = x[i] * k

    scaled.kernel("cuda", scale)
    (kernel,) = kernels_of(scaled, LONG, outputs=(LONG,), k=2.0)
    assert kernel.compiled is not None
    ptx = kernel.compiled.image.decode()
    sizes = [int(bits) // 8 for bits in re.findall(r"\.param \.[a-z](\d+)", ptx[ptx.index(".entry") : ptx.index("{")])]
    assert sizes == [8 if isinstance(argument, int) else len(argument) for argument in kernel.arguments]
    assert [argument for argument in kernel.arguments if isinstance(argument, int)] == [0, 1]
    assert (kernel.workgroups, kernel.block) == ((20, 1, 1), (256, 1, 1))
