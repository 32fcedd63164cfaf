"""Kernels of users in WGSL that do not fit or do not compile: messages in terms of the user's text."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from support.webgpu_kernels import computed, limited, line_of, mapped, normal, place_of

import opweave as ow
from opweave.expr.gpu import Features
from opweave.expr.ir import Input
from opweave.kernels import KernelCall
from opweave.kernels.wgsl import Shader, WgslKernel

wgpu = pytest.importorskip("wgpu", reason="wgpu is not installed")

BODY, OWN = "{ out[0] = x[0]; }", "@compute @workgroup_size(4) fn"
ONE = "one parameter is the number of an element"
TAKES = "fn main takes the number of an element, or its position on each axis, as u32 or i32"


def refused(context: ow.MLContext, *args: Any, kind: type[Exception] = ow.OperationError, **options: Any) -> str:
    with pytest.raises(kind) as caught:
        computed(context, mapped, *(args or (normal(3, 4),)), label="m", **options)
    return str(caught.value)


def test_compiler_error_shows_user_line(context: ow.MLContext) -> None:
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
        f"mapped 'm': line 4 of the WGSL ({place_of(__file__, 'out[i] = missing[i];')}): no definition in "
        "scope for identifier: `missing` (declared are x, out, k, sizes, and the functions of opweave.wgsl)",
        "  ┌─ WGSL:4:22",
        "  │",
        "4 │             out[i] = missing[i];",
        "  │                      ^^^^^^^ unknown identifier",
    ]


def test_compiler_error_counts_lines_of_the_user(context: ow.MLContext) -> None:
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
        assert text.startswith("mapped 'm': line 3 of the WGSL (test_webgpu_kernel_messages.py, line "), data_type
        assert "\n3 │     let wrong: i32 = 1.5" in text, data_type


def test_compiler_error_includes_notes(context: ow.MLContext) -> None:
    mapped.kernel(
        "webgpu",
        """fn sign_of(value: f32) -> f32 {
            if (value > 0.0) { return 1.0; }
        }
        fn main(i: u32) { out[i] = sign_of(x[i]); }""",
    )
    text = refused(context)
    assert text.startswith(
        f"mapped 'm': line 1 of the WGSL ({place_of(__file__, 'fn sign_of(value: f32) -> f32 {')}): The `return`"
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
def test_compiler_error_explains_undeclared_names(context: ow.MLContext, text: str, data_type: str, hint: str) -> None:
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


def test_compiler_error_names_redefined_name(context: ow.MLContext) -> None:
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
def test_kernel_rejects_limits_of_device(source: str, options: Any, rule: str) -> None:
    mapped.kernel("webgpu", source, **options)
    context = limited(max_workgroups=65535, max_invocations=1024)
    text = refused(context, kind=ow.ValidationError)
    assert re.sub(r" \(test_webgpu_kernel_messages.py, line \d+\)$", "", text) == f"mapped 'm': {rule}"


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
def test_unsupported_wgsl_shows_user_text(
    source: str, options: Any, place: tuple[int, int], line: str, said: str, below: str
) -> None:
    """Before a device sees it, together with what Opweave adds."""
    x, out = (Input(k, ow.Desc("float32", (3,))) for k in range(2))
    kernel = WgslKernel(source, **options)
    with pytest.raises(ow.ValidationError) as caught:
        kernel.kernels(KernelCall("m", mapped, {"x": x.desc}, {}, (out.desc,)), {"x": x}, [out], Features())
    number, column = place
    indent = "\t" if line.startswith("\t") else " "
    assert re.sub(r" \(test_webgpu_kernel_messages.py, line \d+\)", "", str(caught.value)).splitlines() == [
        f"m: line {number} of the WGSL: {said}",
        f"  ┌─ WGSL:{number}:{column}",
        "  │",
        f"{number} │ {line}",
        f"  │ {indent if column > 1 else ''}{' ' * (column - 2)}{below}",
    ]


def test_unsupported_wgsl_names_user_file(context: ow.MLContext) -> None:
    mapped.kernel("webgpu", FORGOTTEN)
    line = line_of(__file__, "if (x[i] > 0.0) {  // in 1d")
    text = refused(context, kind=ow.ValidationError)
    assert text.startswith(
        f"mapped 'm': line 3 of the WGSL (test_webgpu_kernel_messages.py, line {line}): the {{ is never closed"
    )


def test_comments_are_ignored(context: ow.MLContext) -> None:
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


def test_kernel_exceeds_device_limits() -> None:
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


def test_kernel_function_that_raises_is_named(context: ow.MLContext) -> None:
    def raises(x):  # type: ignore[no-untyped-def]
        return x.shape[5]

    mapped.kernel("webgpu", raises)
    line = line_of(__file__, "return x.shape[5]")
    assert refused(context) == (
        "mapped 'm': the kernel raised IndexError: tuple index out of range "
        f"(test_webgpu_kernel_messages.py, line {line}: return x.shape[5])"
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
    assert text.startswith(
        "mapped 'm': invocations must be positive integers, got 0 (test_webgpu_kernel_messages.py, line "
    )

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
def test_kernel_rejects_invalid_declaration(given: Any, options: Any, rule: str) -> None:
    with pytest.raises(ow.ValidationError) as caught:
        mapped.kernel("webgpu", given, **options)
    assert str(caught.value) == f"mapped: {rule}"
