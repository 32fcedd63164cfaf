"""`op.check`: kernels, expressions and decompositions are compiled without a device, and errors are in the user's text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.webgpu_kernels import line_of

import opweave as ow
from opweave.backends.cuda import devices as cuda_devices
from opweave.backends.webgpu import adapters
from opweave.expr.kernels import has_halide
from opweave.inspect.check import check_operation
from opweave.support import packages

needs_adapter = pytest.mark.skipif(
    not any(device.available for device in adapters.devices("webgpu")), reason="there is no adapter of WebGPU"
)
needs_numba = pytest.mark.skipif(not packages.is_installed("numba"), reason="pip install 'opweave[numba]'")


def operation(device: Any, *kernel: Any, **options: Any) -> Any:
    @ow.op
    def checked(self: Any, x: ow.MLOperand, bias: ow.MLOperand | None = None, *, k: int = 3) -> Any:
        return x.desc

    checked.kernel(device, *kernel, **options)
    return checked


def refused(op: Any, *devices: Any, kind: type[Exception] = ow.OperationError, **arguments: Any) -> str:
    with pytest.raises(kind) as caught:
        op.check(*devices, **arguments)
    return str(caught.value)


# ---------------------------------------------------------------------------------------------------------------------
# Arguments


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (("float16", [2, 3]), "x float16[2, 3]"),
        (("int8", ()), "x int8[]"),
        (ow.Desc("float32", (5,)), "x float32[5]"),
        (np.zeros((2, 1), np.int64), "x int64[2, 1]"),
    ],
)
def test_check_takes_operands(value: Any, text: str) -> None:
    assert operation("cpu", lambda x, out: None).check("cpu", x=value).checks[0].operands == (text,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"y": 3}, "checked: check: there is no parameter 'y'"),
        ({"x": 3}, r"check: x must be a data type and a shape, as in \('float32', \[2, 3\]\), got 3"),
        ({"x": None}, "x must be a data type and a shape, .* got None"),
        ({"x": ("float31", [2])}, "check: x: data type must be one of .* got 'float31'"),
        ({"x": ("float32", [2.5])}, r"check: x: shape must be integers, got \[2.5\]"),
        ({"x": ("float32", [-2])}, r"check: x: shape must have dimensions in \[1, 2147483647\], got \[-2\]"),
        ({"x": np.zeros(2)}, "check: x: data type must be one of .* got 'float64'"),
        ({"k": "a"}, "k must be of type int, got 'a'"),
    ],
)
def test_check_rejects_arguments(arguments: Any, message: str) -> None:
    with pytest.raises(ow.ValidationError, match=message):
        operation("cpu", lambda x, out: None).check("cpu", **arguments)


def test_check_rejects_devices() -> None:
    op = operation("cpu", lambda x, out: None)
    with pytest.raises(ow.ValidationError, match="checked: check takes 'cpu', 'wasm', 'webgpu', 'cuda', got 'gpu'"):
        op.check("gpu")
    with pytest.raises(
        ow.ValidationError, match=r"has no kernel for 'cuda', no expression .*; its kernels are for 'cpu'"
    ):
        op.check("cuda")
    with pytest.raises(ow.ValidationError, match="has no kernel for 'wasm'; its kernels are for 'cpu'"):
        op.check("wasm")


def test_check_makes_up_operands() -> None:
    @ow.op(x=ow.Limits(("float32", "int8"), ranks=(3, 4)), bias=ow.Limits("x", ranks=(1, 1)))
    def limited(self: Any, x: ow.MLOperand, bias: ow.MLOperand, *, axis: int, mode: bool) -> Any:
        return x.desc

    limited.kernel("cpu", lambda x, out: None)
    assert limited.check().checks[0].operands == (
        "x float32[4, 4, 4], bias float32[4]",
        "x int8[4, 4, 4], bias int8[4]",
    )
    operands = limited.check(x=("int8", [1, 2, 3])).checks[0].operands
    assert operands == ("x int8[1, 2, 3], bias int8[4]",)


def test_check_makes_up_no_operands_that_the_shape_rule_refuses() -> None:
    @ow.op
    def deep(self: Any, x: ow.MLOperand) -> Any:
        return ow.Desc("float32", (x.shape[4],))

    deep.kernel("cpu", lambda x, out: None)
    where = line_of(__file__, 'return ow.Desc("float32", (x.shape[4],))')
    found = refused(deep, kind=ow.ValidationError)
    assert found.startswith("deep: none of the calls that check tries is valid: IndexError: tuple index out of range (")
    assert f"test_custom_check.py, line {where}" in found
    assert found.endswith("give operands to check or example: x=('float32', […])")
    assert deep.check(x=("float32", [1] * 5)).checks[0].operands == ("x float32[1, 1, 1, 1, 1]",)


@pytest.mark.parametrize(
    ("declare", "function", "message"),
    [
        (ow.composite, lambda b, x: b.reduce_men(x), "has no attribute or operation 'reduce_men'; did you mean"),
        (ow.composite, lambda b, x: b.reduce_mean(x, axis=1), "reduce_mean: has no argument 'axis'"),
        (ow.composite, lambda b, x: x if x > 0 else b.relu(x), "'>': an operand has no value while its graph is built"),
        (ow.composite, lambda b, x: None, "the function returned None; is a return missing? ("),
        (ow.composite, lambda b, x: 3, "a composite must return operands that it built, got 3"),
        (ow.expression, lambda x: x if x > 0 else 0, "use where(condition, a, b) instead of if"),
        (ow.expression, lambda x: np.exp(x), "ow.expr.exp does"),
        (ow.expression, lambda x: ow.expr.exp2(x), "opweave.expr has no function 'exp2'; did you mean ow.expr.exp?"),
        (ow.expression, lambda x: ow.expr.max(x), "the function raised TypeError: max() missing 1 required"),  # type: ignore[call-arg]
        (ow.expression, lambda x: "a", "expected an expression or a number, got str ("),
        (ow.op, lambda b, x: x.shape, "the shape rule must return a Desc, or a tuple of them, got"),
    ],
)
def test_check_reports_functions_that_fail_with_all_operands(declare: Any, function: Any, message: str) -> None:
    function.__annotations__ = {"x": ow.MLOperand} if declare is ow.op else {}
    found = refused(declare(function))
    assert message in found
    assert f"test_custom_check.py, line {function.__code__.co_firstlineno}" in found


def test_check_takes_examples() -> None:
    op = operation("cpu", lambda x, out: None)
    op.example(x=("int32", [7]), bias=("float16", []))
    op.example(x=("int8", [2]))
    assert op.check().checks[0].operands == ("x int32[7], bias float16[]", "x int8[2]")
    assert op.check(x=("float32", [3])).checks[0].operands == ("x float32[3]",)


# ---------------------------------------------------------------------------------------------------------------------
# The CPU


def test_check_finds_undefined_names() -> None:
    def kernel(x: Any, out: Any) -> None:
        out[...] = [numpyy.sin(value) for value in x[: len(x)]]  # type: ignore[name-defined]  # noqa: F821

    text = "out[...] = [numpyy.sin(value) for value in x[: len(x)]]  # type: ignore[name-defined]  # noqa: F821"
    where = line_of(__file__, f"        {text}")
    lines = refused(operation("cpu", kernel)).splitlines()
    assert lines[0] == f"checked: the kernel (test_custom_check.py, line {where}): name 'numpyy' is not defined"
    assert lines[1].strip() == f"┌─ test_custom_check.py:{where}:{8 + text.index('numpyy') + 1}"
    assert lines[4].index("^") == lines[3].index("numpyy")


def test_check_rejects_parameters() -> None:
    found = refused(operation("cpu", lambda x, z, out: None), kind=ow.ValidationError)
    assert found.startswith("checked: the kernel takes ['z']; the operation has ['x', 'bias', 'k', 'out']")


@needs_numba
def test_check_compiles_numba() -> None:
    import numba

    @numba.njit
    def scale(x: Any, k: Any, out: Any) -> None:
        for i in range(x.size):
            out[i] = x[i] * k

    report = operation("cpu", scale).check("cpu", x=("float32", [3]))
    assert str(report).startswith("cpu: compiled by Numba ")
    assert [str(kind) for kind in scale.signatures[0][1:]] == ["int64", "array(float32, 1d, C)"]


@needs_numba
def test_check_shows_line_of_numba_kernel_with_unknown_function_of_numpy() -> None:
    import numba

    @numba.njit
    def rectify(x: Any, out: Any) -> None:
        out[:] = np.relu(x)  # type: ignore[attr-defined]

    where = line_of(__file__, "    def rectify(x: Any, out: Any) -> None:")
    found = refused(operation("cpu", rectify))
    assert "module 'numpy' has no attribute 'relu'" in found
    assert f"(test_custom_check.py, line {where}: def rectify(" in found


@needs_numba
def test_check_shows_line_of_numba() -> None:
    import numba

    @numba.njit
    def callee(value: Any) -> Any:
        return value + "text"

    @numba.njit
    def typed(x: Any, out: Any) -> None:
        out[0] = callee(x[0])

    @numba.njit
    def undefined(x: Any, out: Any) -> None:
        out[0] = 1
        out[1] = é_missing  # type: ignore[name-defined]  # noqa: F821

    @numba.njit
    def writes(x: Any, out: Any) -> None:
        x[1] = 7

    @numba.njit("void(f4[:], f4[:])")
    def narrow(x: Any, out: Any) -> None:
        out[0] = x[0]

    for kernel, code, said in (
        (typed, 'return value + "text"', "No implementation of function Function(<built-in function add>)"),
        (
            undefined,
            "out[1] = é_missing  # type: ignore[name-defined]  # noqa: F821",
            "name 'é_missing' is not defined",
        ),
        (writes, "x[1] = 7", "Cannot modify readonly array"),
    ):
        op = operation("cpu", kernel)
        start = f"checked: the Numba kernel (test_custom_check.py, line {line_of(__file__, f'        {code}')}): {said}"
        found = refused(op, x=("float32", [2]))
        assert found.startswith(start)
        assert f" │ {' ' * 8}{code}\n" in found
        with pytest.raises(ow.OperationError) as caught:
            op(np.float32([1, 2])).tolist()
        assert str(caught.value).startswith(start)
    assert "do not take (readonly array(float32, 1d, C)" in refused(
        operation("cpu", narrow), kind=ow.MLError, x=("float32", [2])
    )


def test_check_compares_wasm_signature() -> None:
    pytest.importorskip("wasmtime", reason="pip install 'opweave[wasm]'")
    from opweave.kernels.wasm import library

    op = operation("wasm", library.load(), "relu", "x*:float32, out*, x.size")
    assert str(op.check("wasm")).startswith("wasm: relu of kernels.wasm validated by wasmtime ")
    assert "the function takes float32, got int8[3]" in refused(op, kind=ow.ValidationError, x=("int8", [3]))


# ---------------------------------------------------------------------------------------------------------------------
# Expressions and decompositions


def test_check_traces_expressions() -> None:
    @ow.expression
    def halved(x: Any) -> Any:
        return x / 2

    engine = "compiled by Halide" if has_halide() else "traced; runs on NumPy"
    assert str(halved.check()).startswith(f"expression: {engine}")

    @ow.expression
    def wrong(x: Any) -> Any:
        return x + missing  # type: ignore[name-defined]  # noqa: F821

    where = line_of(__file__, "return x + missing  # type: ignore[name-defined]  # noqa: F821")
    assert refused(wrong).startswith(
        f"wrong: the function raised NameError: name 'missing' is not defined (test_custom_check.py, line {where}"
    )


def test_check_compares_forms_with_the_shape_rule() -> None:
    op = operation("cpu", lambda x, out: None)
    op.expression(lambda x: ow.expr.compute((3,), lambda i: 1.0))
    assert "its expression yields the shapes [[3]], it must yield [[4, 4]]" in refused(op)
    op = operation("cpu", lambda x, out: None)
    op.decompose(lambda b, x: b.cast(x, "int32"))
    assert "its decomposition yields int32[4, 4], it must yield float32[4, 4]" in refused(op)
    op.decompose(lambda b, x: b.reshape(x, [1]))
    assert refused(op, kind=ow.ValidationError).startswith("checked: reshape: new_shape must have the 16 elements")
    op.decompose(lambda b, x: {}["a"])
    assert refused(op).startswith("checked: the function raised KeyError: 'a' (test_custom_check.py, line ")
    op.decompose(lambda b, x: b.abs(b.neg(x)))
    assert [check.kind for check in op.check().checks] == ["cpu", "decomposition"]
    assert op.check().checks[1].done == "built of 2 operations"


def test_check_refuses_expression_that_a_device_cannot_run() -> None:
    @ow.expression
    def lookup(table: Any, indices: Any) -> Any:
        return ow.expr.compute(indices.shape, lambda i: table.checked[indices[i]])

    lookup.example(table=("float32", [4]), indices=("int32", [3]))
    lookup.check("cpu")
    with pytest.raises(ow.NotSupportedError, match="lookup: a GPU cannot report a failed check"):
        lookup.check("cuda")


# ---------------------------------------------------------------------------------------------------------------------
# WGSL


@needs_adapter
@pytest.mark.parametrize("data_type", ["float32", "float16", "int8", "uint8", "int32", "uint32"])
def test_check_compiles_wgsl(data_type: Any) -> None:
    op = operation("webgpu", "fn main(i: u32) { store_out(i, load_x(i) + load_x(i)); }")
    (check,) = op.check("webgpu", x=(data_type, [5])).checks
    assert (check.done, check.operands) == ("compiled", (f"x {data_type}[5]",))
    assert check.checker.startswith("wgpu ")


@needs_adapter
@pytest.mark.parametrize("ends", ["\n", "\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize(
    ("text", "part", "said"),
    [
        ("// größe\nfn main(i: u32) {\n\tout[i] = /* é */ wrong;\n}", "wrong", "no definition in scope for identifier"),
        ("fn main(i: u32) {\n  out[i] = x[i]\n}", "}", "expected `;`"),
        ("fn main(i: u32) {\n  let t: u32 = 1.5; out[i] = x[i];\n}", "t:", "the type of `t` is expected to be `u32`"),
    ],
)
def test_check_shows_line_and_column_of_wgsl(text: str, part: str, said: str, ends: str) -> None:
    for data_type in ("float32", "float16"):  # a line of Opweave's may precede float16
        found = refused(operation("webgpu", text.replace("\n", ends)), "webgpu", x=(data_type, [5]))
        at = text.index(part)
        line = text.count("\n", 0, at) + 1
        assert f"┌─ WGSL:{line}:{at - text.rfind(chr(10), 0, at)}\n" in found
        assert f"checked: line {line} of the WGSL (test_custom_check.py, line " in found
        assert said in found


@needs_adapter
def test_check_reports_all_kernels() -> None:
    op = operation("webgpu", "fn main(i: u32) { out[i] = wgsl_name; }")
    op.kernel("cpu", lambda x, out: python_name)  # type: ignore[name-defined]  # noqa: F821
    found = refused(op)
    assert "identifier: `wgsl_name`" in found
    assert "name 'python_name' is not defined" in found
    assert "wgsl_name" not in refused(op, "cpu")
    # An error in a call that check has made up may be the call's.
    assert "(checked with x float32[4, 4]; checked.example(…) declares other operands)" in found
    assert "example" not in refused(op, x=("float32", [2]))


# ---------------------------------------------------------------------------------------------------------------------
# Missing compilers


def test_check_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_devices, "is_installed", lambda: False)
    op = operation("cuda", "void main(unsigned i) { out[i] = x[i]; }")
    reason = "checking CUDA C++ needs NVRTC: pip install 'opweave[cuda]'"
    assert str(op.check()) == f"cuda: not checked: {reason}"
    assert refused(op, "cuda", kind=ow.MissingExtraError) == reason


@pytest.mark.skipif(not packages.is_installed("wgpu"), reason="pip install 'opweave[webgpu]'")
def test_check_says_that_no_adapter_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapters, "adapters", dict)
    op = operation("webgpu", "fn main(i: u32) { out[i] = x[i]; }")
    assert str(op.check()).startswith("webgpu: not checked: checking WGSL needs an adapter of WebGPU: ")
    refused(op, "webgpu", kind=ow.NotSupportedError)
    (check,) = check_operation(op, (), ("sm_90",), {})
    assert (check.done, check.fault) == ("", None)
