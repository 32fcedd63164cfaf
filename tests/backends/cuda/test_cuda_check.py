"""`op.check("cuda")`: NVRTC and Triton compile users' kernels without a GPU, and their errors are in the user's text."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
from support.webgpu_kernels import line_of

import opweave as ow
from opweave.backends.cuda import devices

pytestmark = pytest.mark.skipif(not devices.is_installed(), reason="pip install 'opweave[cuda]'")


def operation(text: Any, **options: Any) -> Any:
    @ow.op
    def checked(self: Any, x: ow.MLOperand, *, k: int = 3) -> Any:
        return x.desc

    checked.kernel("cuda", text, **options)
    return checked


def refused(text: Any, **options: Any) -> str:
    with pytest.raises(ow.OperationError) as caught:
        operation(text, **options).check("cuda", x=("float32", [2, 3]))
    return str(caught.value)


def place_in(text: str, part: str, last: bool = False) -> str:
    """Where a part of a text is, in the words of messages."""
    at = text.rindex(part) if last else text.index(part)
    return f"┌─ CUDA C++:{text.count(chr(10), 0, at) + 1}:{at - text.rfind(chr(10), 0, at)}\n"


@pytest.mark.parametrize("data_type", ["float32", "float16", "int8", "uint8", "int32", "uint32", "int64", "uint64"])
def test_check_compiles_every_data_type(data_type: Any) -> None:
    op = operation("void main(unsigned i) { out[i] = x[i] * k; }")
    (check,) = op.check("cuda", x=(data_type, [2, 3]), arch=90).checks
    assert (check.done, check.operands, check.warnings) == ("compiled for sm_90", (f"x {data_type}[2, 3]",), ())
    assert check.checker.startswith("NVRTC ")


def test_check_compiles_for_each_architecture() -> None:
    text = "void main(unsigned i) {\n#if __CUDA_ARCH__ == 900\n  out[i] = wrong;\n#endif\n  out[i] = x[i];\n}"
    op = operation(text)
    assert str(op.check("cuda", arch=[80, "sm_89"])).startswith("cuda: compiled for sm_80, sm_89 by NVRTC ")
    with pytest.raises(ow.OperationError) as caught:
        op.check("cuda")  # 80 and 90
    assert 'identifier "wrong" is undefined' in str(caught.value)
    assert "(for sm_90 alone)" in str(caught.value)


@pytest.mark.parametrize(
    ("arch", "message"),
    [
        (30, "checked: check: NVRTC .* compiles for sm_75, .*, not for sm_30"),
        ("sm_90a", "checked: check: arch must be compute capabilities such as 90 or 'sm_90', got 'sm_90a'"),
        ([], r"arch must be compute capabilities such as 90 or 'sm_90', got \[\]"),
        (8.0, "arch must be compute capabilities such as 90 or 'sm_90', got 8.0"),
    ],
)
def test_check_rejects_architecture(arch: Any, message: str) -> None:
    with pytest.raises(ow.ValidationError, match=message):
        operation("void main(unsigned i) { out[i] = x[i]; }").check("cuda", arch=arch)


@pytest.mark.parametrize(
    ("text", "part", "options"),
    [
        ("// größe\nvoid main(unsigned i) {\n\tout[i] = x[i] + /* é */ wrong;\n}", "wrong", {}),
        ("void main(unsigned i) {\n  out[i] = x[i]\n}", "}", {}),
        ('void main(unsigned i) { int t = "é"; out[i] = t; }', '"é"', {}),
        ("/* é */ __global__ void f(float* out) { out[0] = wrong; }", "wrong", {"grid": 1}),
        ("#include <cuda_fp16.h>\n\n__global__ void f(float* out) { out[0] = wrong; }", "wrong", {"grid": 1}),
        ("void main(unsigned i) { out[i] = " + "x[i] + " * 80 + "wrong; }", "wrong", {}),
    ],
)
@pytest.mark.parametrize("ends", ["\n", "\r\n"], ids=["lf", "crlf"])
def test_check_shows_line_and_column(text: str, part: str, options: Any, ends: str) -> None:
    pytest.importorskip("nvidia.cuda_runtime") if "#include" in text else None
    found = refused(text.replace("\n", ends), **options)
    assert place_in(text, part) in found
    line = text[: text.index(part)].count("\n")
    assert f"{line + 1} │ {text.splitlines()[line]}\n" in found


def test_check_reports_all_errors_once() -> None:
    text = 'void main(unsigned i) {\n  out[i] = first + second;\n  float t = "a";\n  out[i] = third(t);\n}'
    found = refused(text)
    assert found.count("of the CUDA C++") == 4  # not once more for each architecture
    positions = [found.index(place_in(text, part)) for part in ("first", "second", '"a"', "third")]
    assert positions == sorted(positions)
    many = refused("void main(unsigned i) {\n" + "".join(f"  out[i] = a{k};\n" for k in range(14)) + "}")
    assert many.count("of the CUDA C++") == 10
    assert many.endswith("\nand 4 more errors")


def test_check_maps_headers_to_the_users_line() -> None:
    text = '// a\n\n  #include "no_such_file.h"\nvoid main(unsigned i) { out[i] = x[i]; }'
    found = refused(text)
    assert "line 3 of the CUDA C++ (test_cuda_check.py, line " in found
    assert 'cannot open source file "no_such_file.h"' in found
    operation('/*\n#include "no_such_file.h"\n*/\nvoid main(unsigned i) { out[i] = x[i]; }').check("cuda")


def test_check_never_counts_generated_lines() -> None:
    text = "float twice(float t) { return 2 * t; }\nvoid main(float* i) { out[0] = twice(*i); }"
    found = refused(text)  # the generated call of `main` is wrong
    assert found.startswith("checked: line 2 of the CUDA C++ (test_cuda_check.py, line ")
    assert "2 │ void main(float* i) {" in found
    found = refused(
        'float g(int a, int b) { return a; }\nfloat g(float* a) { return 0; }\nvoid main(int i) { out[i] = g("a"); }'
    )
    assert 'no instance of overloaded function "g" matches the argument list' in found
    assert "argument types are: (const char [2])" in found


def test_check_reports_warnings() -> None:
    op = operation(
        """
        void main(unsigned i) {
            int never_read = 3;
            out[i] = x[i];
        }
        """
    )
    for _ in range(2):  # compiled, then from the cache
        (check,) = op.check("cuda").checks
        (warning,) = check.warnings
        where = line_of(__file__, "int never_read = 3;")
        assert warning.startswith(
            f'checked: line 3 of the CUDA C++ (test_cuda_check.py, line {where}): variable "never_read" was declared'
        )
        assert "┌─ CUDA C++:3:17" in warning
    assert "(x float32[4, 4]), 1 warning\n" in str(op.check("cuda"))


def test_check_reports_entry_points() -> None:
    def said(text: str, **options: Any) -> str:
        with pytest.raises(ow.ValidationError) as caught:
            operation(text, **options).check("cuda")
        return str(caught.value)

    assert "line 2 of the CUDA C++" in said("\nint main(unsigned i) { out[i] = 1; }")
    assert "no entry point: void main(unsigned i), or a kernel with __global__" in said(
        "float f(float out) { return 1; }"
    )
    assert "void main takes the number of an element, or its position on each axis, got ()" in said(
        "void main() { *out = 1; }"
    )
    assert "the parameter y of f must have the name of a tensor" in said(
        "__global__ void f(float* out, float* y) {}", grid=1
    )


def test_check_finds_rank_of_positions() -> None:
    op = operation("void main(int a, int b, int c) { out[a] = x_shape[2]; }")
    assert op.check("cuda").checks[0].operands == ("x float32[4, 4, 4]",)
    with pytest.raises(ow.ValidationError, match="void main takes 3 positions, but out has 1 axes"):
        op.check("cuda", x=("float32", [5]))


def test_check_compiles_each_pass() -> None:
    @ow.op
    def passes(self: Any, x: ow.MLOperand) -> Any:
        return x.desc

    @passes.kernel("cuda")
    def _(x: Any, out: Any) -> Any:
        scratch = {"kept": ow.Desc("float32", x.shape)}
        return tuple(
            ow.cuda.Source(f"void main(unsigned i) {{ kept[i] = {name}; out[i] = kept[i]; }}", scratch=scratch)
            for name in ("x[i]", "one", "two")
        )

    with pytest.raises(ow.OperationError) as caught:
        passes.check("cuda")
    assert "passes, pass 2 of 3: line 1 of the CUDA C++" in str(caught.value)
    assert "passes, pass 3 of 3: line 1 of the CUDA C++" in str(caught.value)
    assert "pass 1 of 3" not in str(caught.value)


def test_check_compiles_expressions() -> None:
    @ow.expression
    def swiglu(x: Any, gate: Any) -> Any:
        return x * gate * ow.expr.sigmoid(gate)

    report = str(swiglu.check("cuda", x=("float16", [2, 3]), gate=("float16", [3])))
    assert report.startswith("expression on cuda: compiled for sm_80, sm_90 by NVRTC ")
    assert report.endswith("(x float16[2, 3], gate float16[3])")


def faulty_triton_kernels() -> Any:
    pytest.importorskip("triton", reason="needs triton: make test-cuda")
    return importlib.import_module("cuda_triton_faults")


def test_check_compiles_triton() -> None:
    pytest.importorskip("triton", reason="needs triton: make test-cuda")
    scale = importlib.import_module("cuda_triton_samples").scale
    op = operation(scale, block=1024, constants={"BLOCK": 1024}, arguments=("x", "out", "x_size", "k"))
    report = str(op.check("cuda", x=np.zeros(7, np.float32), k=2))
    assert report.startswith("cuda: compiled for sm_80, sm_90 by Triton 3.")


@pytest.mark.parametrize(
    ("name", "code", "part", "said"),
    [
        (
            "calls_undefined",
            "    return a + undefined_name  # type: ignore[name-defined]  # noqa: F821",
            "undefined_name",
            "undefined_name is not defined",
        ),
        ("adds_text", '        tl.load(x + "é"),', "x +", "'str' object has no attribute 'dtype'"),
        ("odd_range", "    i = tl.arange(0, 1000)", "tl.arange", "arange's range must be a power of 2"),
    ],
)
def test_check_shows_line_of_triton(name: str, code: str, part: str, said: str) -> None:
    module = faulty_triton_kernels()
    found = refused(getattr(module, name), block=64, arguments=("x", "out", "x_size"), constants={"BLOCK": 64})
    number = line_of(module.__file__, code.strip())
    lines = found.splitlines()
    assert lines[0] == f"checked: Triton kernel {name} (cuda_triton_faults.py, line {number}): {said}"
    assert lines[1].strip() == f"┌─ cuda_triton_faults.py:{number}:{code.index(part) + 1}"
    assert lines[3].startswith(f"{number} │ {code}")
    assert lines[4].index("^") == lines[3].index(part)
