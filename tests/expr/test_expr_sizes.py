"""Formulas with sizes that are known only at a run: traced and compiled once, against those of known sizes."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import opweave as ow
import opweave.expr as ex
from opweave.compile.fuse import move_to_loops
from opweave.compile.loops import EXPRESSION
from opweave.core import size_functions
from opweave.core.graph import Builder, Desc, Graph, Operand
from opweave.core.guards import Guards
from opweave.core.size_values import values_at
from opweave.core.sizes import Size, call_of
from opweave.expr import Traced, ir, kernels, ranges, trace
from opweave.expr.evaluate import evaluate
from opweave.expr.fingerprint import fingerprint, identify
from opweave.expr.simplify import simplify
from opweave.expr.specialise import formula_at
from opweave.expr.table import TableEvaluator
from opweave.kernels.expression import program_of
from opweave.ops.formulas import reshape_array
from opweave.support.cache import Cache
from opweave.support.errors import OperationError, ValidationError

N, M = Size("n"), Size("m")
FIRST = {"n": 5, "m": 6}
"""The sizes with which formulas are traced and compiled."""
SIZES = [FIRST, {"n": 1, "m": 1}, {"n": 1, "m": 7}, {"n": 33, "m": 1}, {"n": 100, "m": 71}, {"n": 3, "m": 129}]


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPWEAVE_CACHE", str(tmp_path_factory.mktemp("objects")))
        yield


@pytest.fixture(autouse=True)
def _no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "compiled", Cache(kernels.MAX_KERNELS))


def softmax(x: Traced) -> Traced:
    powers = ex.exp(x - ex.reduce_max(x, [-1], keep_dimensions=True))
    return powers / ex.reduce_sum(powers, [-1], keep_dimensions=True)


def layer_norm(x: Traced, scale: Traced) -> Traced:
    centred = x - ex.reduce_mean(x, [-1], keep_dimensions=True)
    return centred / ex.sqrt(ex.reduce_mean(centred * centred, [-1], keep_dimensions=True) + 1e-5) * scale


def blurred(x: Traced) -> Traced:
    rows = ex.store(x * x + 1)
    return ex.compute(x.shape, lambda i, j: rows[i, j] + rows.clamped[i + 1, j] * rows.padded(2)[i, j - 1])


def product(a: Traced, b: Traced) -> Traced:
    return ex.compute((a.shape[0], b.shape[1]), lambda i, j: ex.sum_over(a.shape[1], lambda k: a[i, k] * b[k, j]))


def row_product(a: Traced, b: Traced) -> Traced:
    return ex.compute((a.shape[0], b.shape[0]), lambda i, j: ex.sum_over(a.shape[1], lambda k: a[i, k] * b[j, k]))


def extremes(x: Traced) -> tuple[Traced, ...]:
    return ex.arg_max(x, 1), ex.arg_min(x, 0), ex.reduce_max(x, [1]), ex.reduce_min(x), ex.reduce_product(x, [0])


def flattened(x: Traced) -> Traced:
    return ex.compute((x.shape[0] * x.shape[1],), lambda i: x[i // x.shape[1], i % x.shape[1]])


def running_sum(x: Traced) -> Traced:
    return ex.compute(x.shape, lambda i, j: ex.sum_over(x.shape[1], lambda k: ex.where(k <= j, x[i, k], 0)))


def numbers(x: Traced) -> Traced:
    rows, columns = x.shape
    return ex.compute(x.shape, lambda i, j: ex.cast(i * columns + j, "float32") * x[i, j] / columns + rows)


def outer_sum(x: Traced, y: Traced) -> Traced:
    return ex.compute((y.shape[0], 2, x.shape[1]), lambda i, _, j: x[0, j] - y[i, 0])


Shapes = Sequence[tuple[str, tuple[Any, ...]]]

FORMULAS: dict[str, tuple[Callable[..., Any], Shapes]] = {
    "element-wise": (lambda x, y: ex.gelu(x) * y + 1, [("float32", (N, M)), ("float32", (N, M))]),
    "broadcast": (lambda x, y, z: x * y + z, [("float32", (N, M)), ("float32", (M,)), ("float32", (N, 1))]),
    "float16": (lambda x: ex.silu(x) + x.shape[0], [("float16", (N, 3))]),
    "int64": (lambda x: x // 3 + x % (x.shape[0] + 1), [("int64", (N, M))]),
    "uint8": (lambda x: x * 3 + ex.where(x > 1, x, 2), [("uint8", (2 * N + 1, M))]),
    "several outputs": (lambda x: (x + 1, ex.reduce_sum(x, [0]), -x), [("float32", (N, M))]),
    "reversed rows": (lambda x: ex.compute(x.shape, lambda i, j: x[x.shape[0] - 1 - i, j]), [("float32", (N, M))]),
    "reversed columns": (lambda x: ex.compute(x.shape, lambda i, j: x[i, x.shape[1] - 1 - j]), [("int8", (N, M))]),
    "transposed": (lambda x: ex.compute(x.shape[::-1], lambda i, j: x[j, i]), [("float32", (N, M))]),
    "flattened": (flattened, [("float32", (N, M))]),
    "numbers of positions": (numbers, [("float32", (N, M))]),
    "last element": (lambda x: ex.compute((), lambda: x[-1] - x[x.shape[0] - 1] + x[0]), [("float32", (N,))]),
    "truth values": (lambda x: x > x.shape[1], [("int32", (N, M))]),
    "outer sum": (outer_sum, [("int8", (1, N)), ("int8", (M, 1))]),
    "bits": (lambda x: ex.bitcast(x * x.shape[0], "int32"), [("float32", (N, M))]),
    "colour channels": (lambda x: x * 2, [("float32", (N, M, 3))]),
    "padded": (lambda x: ex.compute((x.shape[0] + 2,), lambda i: x.padded(3)[i - 1]), [("float32", (N,))]),
    "clamped": (lambda x, i: ex.compute(i.shape, lambda k: x.clamped[i[k]]), [("float32", (N,)), ("int32", (M,))]),
    "clamped uint32": (
        lambda x, i: ex.compute(i.shape, lambda k: x.clamped[i[k]]),
        [("float32", (N,)), ("uint32", (M,))],
    ),
    "checked": (
        lambda x, i: ex.compute((*i.shape, x.shape[1]), lambda k, j: x.checked[i[k], j]),
        [("float32", (N, M)), ("int64", (M,))],
    ),
    "stored": (blurred, [("float32", (N, M))]),
    "softmax": (softmax, [("float32", (N, M))]),
    "square softmax": (softmax, [("float32", (2, N, N))]),
    "softmax of float16": (softmax, [("float16", (N, M))]),
    "layer norm": (layer_norm, [("float32", (N, M)), ("float32", (M,))]),
    "layer norm of known rows": (layer_norm, [("float32", (N, 64)), ("float32", (64,))]),
    "column sums": (lambda x: ex.reduce_sum(x, [0]), [("float32", (N, M))]),
    "sum": (lambda x: ex.reduce_sum(x), [("int32", (N, M))]),
    "mean": (lambda x: x - ex.reduce_mean(x), [("float32", (N, M))]),
    "extremes": (extremes, [("int32", (N, M))]),
    "extremes of float32": (extremes, [("float32", (N, M))]),
    "product": (product, [("float32", (N, M)), ("float32", (M, 24))]),
    "product of rows": (row_product, [("float32", (N, M)), ("float32", (40, M))]),
    "running sum": (running_sum, [("float32", (N, M))]),
}

ROUNDED = {"mean", "product", "product of rows", "running sum", "layer norm", "column sums", "several outputs"}
ROUNDED |= {name for name in FORMULAS if "softmax" in name or "layer norm" in name} | {"extremes of float32"}
"""Formulas with sums or products of floats, whose order depends on what is known about sizes."""


def trace_symbolic(name: str, first: Mapping[str, int] = FIRST) -> tuple[ir.Formula, Guards]:
    """A formula with sizes, and the guards of its tracing."""
    function, shapes = FORMULAS[name]
    guards = Guards(first)
    with guards.deciding():
        return trace(function, "sample", [Desc(*shape) for shape in shapes]), guards  # type: ignore[arg-type]


def trace_static(name: str, sizes: Mapping[str, int]) -> ir.Formula:
    function, shapes = FORMULAS[name]
    return trace(function, "sample", [Desc(data_type, values_at(shape, sizes)) for data_type, shape in shapes])  # type: ignore[arg-type]


def arrays_for(program: ir.Formula, most: int = 9) -> list[np.ndarray]:
    """Small numbers, which are positions in an array of `most` elements."""
    rng = np.random.default_rng(1)
    descs = [source.desc for source in program.inputs]
    return [
        rng.integers(0, most, desc.shape).astype(desc.data_type)
        if np.dtype(desc.data_type).kind in "iu"
        else (rng.random(desc.shape) * 2 + 0.1).astype(desc.data_type)
        for desc in descs
    ]


def empty(program: ir.Formula) -> list[np.ndarray]:
    return [np.full(output.desc.shape, 99, output.desc.data_type) for output in program.outputs]


@pytest.mark.long(rows=4)
@pytest.mark.parametrize("engine", ["halide", "numpy"])
@pytest.mark.parametrize("name", FORMULAS)
def test_kernel_at_sizes_agrees_with_static_one(name: str, engine: kernels.Engine) -> None:
    if engine == "halide":
        pytest.importorskip("halide", reason="needs the extra halide")
    program, guards = trace_symbolic(name)
    answers = dict(guards.answers)
    with guards.deciding():
        kernel = kernels.compile(program, engine)
    assert guards.answers == answers  # compilation decides nothing
    assert kernel.detail.startswith("NumPy") if engine == "numpy" else kernel.detail.endswith("any sizes")
    for sizes in SIZES:
        assert guards.hold(sizes)
        static = trace_static(name, sizes)
        arrays = arrays_for(static, sizes["n"])
        actual, expected, rerun = empty(static), empty(static), empty(static)
        kernel.at(sizes).bind(arrays, actual)()
        evaluate(static, arrays, expected)
        for a, e in zip(actual, expected, strict=True):
            tolerance = 2e-3 if a.dtype == "float16" else 2e-5
            np.testing.assert_allclose(a, e, rtol=tolerance, atol=1e-5, err_msg=str(sizes))
        kernel.at(sizes).run(arrays, rerun)
        if name not in ROUNDED and sizes in SIZES[-2:]:  # bit for bit
            kernels.compile(static, engine).bind(arrays, expected)()
            for a, e, r in zip(actual, expected, rerun, strict=True):
                np.testing.assert_array_equal(a, e, err_msg=str(sizes))
                np.testing.assert_array_equal(r, e, err_msg=str(sizes))


@pytest.mark.long(rows=2)
@pytest.mark.parametrize("seed", range(24))
def test_random_programs_with_sizes_agree_with_numpy(seed: int) -> None:
    pytest.importorskip("halide", reason="needs the extra halide")
    from test_expr_halide import Maker, close

    choice = random.Random(seed).choice
    data_type = ["float32", "int32", "uint8", "float16", "float32"][seed % 5]
    maker, guards = Maker(seed, data_type), Guards({"n": choice([2, 5, 40]), "m": choice([3, 17])})
    shapes = [tuple(choice([1, 3, N, M, 2 * N + 1]) for _ in range(choice([1, 2, 3]))) for _ in range(2)]
    with guards.deciding():
        descs = [Desc(data_type, shape) for shape in shapes]  # type: ignore[arg-type]
        program = trace(lambda *inputs: (maker.array(inputs, 3), maker.array(inputs, 2)), "random", descs)
        kernel = kernels.compile(program, "halide")
    for sizes in ({"n": 2, "m": 3}, {"n": 1, "m": 9}, {"n": 33, "m": 4}, {"n": 6, "m": 100}):
        if guards.hold(sizes):
            static = formula_at(program, sizes)
            arrays = arrays_for(static)
            actual, expected = empty(static), empty(static)
            kernel.at(sizes).bind(arrays, actual)()
            evaluate(static, arrays, expected)
            for a, e in zip(actual, expected, strict=True):
                assert close(a, e, 32), f"{sizes}\n{program}"


@pytest.mark.parametrize("name", FORMULAS)
def test_formula_at_equals_the_formula_of_these_sizes(name: str) -> None:
    program, _ = trace_symbolic(name)
    sizes = {"n": 4, "m": 9}
    assert not formula_at(program, sizes).has_sizes
    assert str(formula_at(program, sizes)) == str(trace_static(name, sizes))
    assert fingerprint(formula_at(program, sizes)) == fingerprint(trace_static(name, sizes))


def test_simplify_of_sizes() -> None:
    def recombined(x: Traced) -> Traced:
        rows, columns, _ = x.shape
        flat = ex.compute((rows * columns, 7), lambda r, k: x[r // columns, r % columns, k])
        return ex.compute(x.shape, lambda i, j, k: flat[i * columns + j, k])

    def divided(x: Traced) -> Traced:
        heads = ex.compute((x.shape[0], 4, M), lambda i, h, j: x[i, h * M + j])
        return ex.compute(x.shape, lambda i, j: heads.clamped[i, j // M, j % M])

    guards = Guards(FIRST)
    for function, shape, result in ((recombined, (N, M, 7), "x0[i, j, k]"), (divided, (N, 4 * M), "x0[i, j]")):
        with guards.deciding():
            program = simplify(trace(function, "f", [Desc("int8", shape)]))  # type: ignore[arg-type]
        assert str(program).splitlines()[-1].strip() == result
    assert not guards.answers


@pytest.mark.parametrize("name", FORMULAS)
def test_simplified_formula_computes_the_same(name: str) -> None:
    program, guards = trace_symbolic(name)
    answers = dict(guards.answers)
    with guards.deciding():
        simplified = simplify(program)
    assert guards.answers == answers
    for sizes in SIZES[:4]:
        static = formula_at(program, sizes)
        arrays, actual, expected = arrays_for(static, sizes["n"]), empty(static), empty(static)
        evaluate(formula_at(simplified, sizes), arrays, actual)
        evaluate(static, arrays, expected)
        for a, e in zip(actual, expected, strict=True):
            np.testing.assert_array_equal(a, e)


def test_tables_are_those_of_the_evaluator() -> None:
    programs = {name: trace_symbolic(name)[0] for name in FORMULAS}
    tables = {
        name: program
        for name, program in programs.items()
        if len(program.outputs) == 1
        and not (program.stored or program.checks)
        and not any(isinstance(node, ir.Reduce) for node in ir.walk(*program.roots))
    }
    assert len(tables) > 12
    for name, program in tables.items():
        evaluator = TableEvaluator(program)
        for sizes in SIZES:
            static = formula_at(program, sizes)
            arrays, expected = arrays_for(static, sizes["n"]), empty(static)
            evaluate(static, arrays, expected)
            actual = evaluator(sizes, arrays)
            assert (actual.dtype, actual.shape) == (expected[0].dtype, expected[0].shape), name
            np.testing.assert_array_equal(actual, expected[0], err_msg=f"{name} {sizes}")


def test_halide_compiles_once_for_all_names_and_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("halide", reason="needs the extra halide")
    compiler = import_module("opweave.expr.halide.compiler")
    titles: list[str] = []
    compile_program = compiler.compile_program

    def count(program: ir.Formula) -> Any:
        titles.append(program.name)
        return compile_program(program)

    monkeypatch.setattr(compiler, "compile_program", count)
    for rows, columns in (("n", "m"), ("zeilen", "a b"), ("m", "n")):
        for first in (2, 70):
            with Guards({rows: first, columns: 3}).deciding():
                desc = Desc("float32", (Size(rows), Size(columns)))  # type: ignore[arg-type]
                kernel = kernels.compile(trace(lambda x: x * x.shape[1], "scaled", [desc]), "halide")
            for n in (1, 5, 64):
                x, y = np.ones((n, 3), "float32"), np.empty((n, 3), "float32")
                kernel.at({rows: n, columns: 3}).run([x], [y])
                assert (y == 3).all()
    assert titles == ["scaled"]


def test_fingerprint_tells_different_sizes_apart() -> None:
    def of(*shape: Any) -> tuple[str, tuple[str, ...]]:
        return identify(trace(lambda x: x + 1, "next", [Desc("float32", shape)]))

    assert of(N, M)[0] == of(M, N)[0] == of(Size("k"), Size("a"))[0]
    assert of(M, N)[1] == ("m", "n")
    assert len({of(*shape)[0] for shape in ((N, M), (N, N), (N, 3), (N, N + 1), (3, N), (N, N + M))}) == 6


def test_tracing_records_what_a_formula_compares() -> None:
    def doubled_if_long(x: Traced) -> Traced:
        return x * 2 if x.shape[0] > 4 else x + int(x.shape[1])

    guards = Guards({"n": 3, "m": 2})
    with guards.deciding():
        program = trace(doubled_if_long, "f", [Desc("float32", (N, M))])  # type: ignore[arg-type]
    assert str(program).endswith("x0[i, j] + 2.0")
    assert guards.hold({"n": 4, "m": 2})
    assert not guards.hold({"n": 5, "m": 2})
    assert not guards.hold({"n": 3, "m": 3})


def test_names_that_may_be_0_are_decided() -> None:
    @ow.expression
    def shifted(x: Traced, by: Any) -> Traced:
        return x + by

    for number, holds in ((0, {0}), (3, {2, 5})):
        guards = Guards({"n": 2, "k": number})
        with guards.deciding():
            program = program_of(shifted, {"x": Desc("float32", (N + Size("k"),))}, {"by": Size("k")})  # type: ignore[arg-type]
        assert {k for k in (0, 2, 5) if guards.hold({"n": 2, "k": k})} == holds
        assert str(formula_at(program, {"n": 2, "k": number})).endswith(f"x0[i] + {float(number)}")


def test_broadcast_of_sizes_is_decided_by_the_scope() -> None:
    def add(sizes: Mapping[str, int]) -> tuple[ir.Formula, Guards]:
        guards = Guards(sizes)
        with guards.deciding():
            return trace(lambda x, y: x + y, "add", [Desc("int32", (N,)), Desc("int32", (M,))]), guards  # type: ignore[arg-type]

    for first, others in (
        ({"n": 4, "m": 4}, [(7, 7), (1, 1)]),
        ({"n": 1, "m": 3}, [(1, 9)]),
        ({"n": 3, "m": 1}, [(8, 1)]),
    ):
        program, guards = add(first)
        for n, m in others:
            assert guards.hold({"n": n, "m": m})
            static = formula_at(program, {"n": n, "m": m})
            x, y, out = np.arange(n, dtype="int32"), np.arange(m, dtype="int32") * 5, np.empty(max(n, m), "int32")
            evaluate(static, [x, y], [out])
            assert (out == x + y).all()
        assert not guards.hold({"n": 5, "m": 6})
    with pytest.raises(ValidationError, match=r"the shapes of the operands do not broadcast: \[n\] and \[m\]"):
        add({"n": 2, "m": 3})


def test_positions_with_sizes_must_be_in_bounds() -> None:
    x = [Desc("float32", (N, M))]
    trace(lambda x: ex.compute((N - 1 + 1, M), lambda i, j: x[i, j]), "f", x)  # type: ignore[arg-type]
    trace(lambda x: ex.compute((N * M,), lambda i: x[i // M, i % M]), "f", x)  # type: ignore[arg-type]
    guards = Guards({"n": 4, "m": 3})
    with guards.deciding(), pytest.raises(ValidationError, match=r"goes from 1 to n, it must be in \[0, n\)"):
        trace(lambda x: ex.compute(x.shape, lambda i, j: x[i + 1, j]), "f", x)
    with guards.deciding():
        trace(lambda x: ex.compute((x.shape[1], x.shape[1]), lambda i, j: x[i, j]), "f", x)
    assert not guards.hold({"n": 2, "m": 3})
    with guards.deciding(), pytest.raises(ValidationError, match=r"sizes must be positive integers, got \[n - 4\]"):
        trace(lambda x: ex.compute((N - 4,), lambda i: x[i, 0]), "f", x)


@pytest.mark.parametrize("engine", ["halide", "numpy"])
def test_check_reports_the_sizes_of_the_run(engine: kernels.Engine) -> None:
    if engine == "halide":
        pytest.importorskip("halide", reason="needs the extra halide")
    kernel = kernels.compile(trace_symbolic("checked")[0], engine)
    x, indices, out = np.ones((3, 4), "float32"), np.array([0, 2, 3, 1]), np.zeros((4, 4), "float32")
    call = kernel.at({"n": 3, "m": 4}).bind([x, indices], [out])
    with pytest.raises(OperationError, match=r"the index x1\[i\] of axis 0 must be in \[0, 3\), got 3"):
        call()
    assert not out.any()
    larger = np.ones((4, 4), "float32")
    kernel.at({"n": 4, "m": 4}).bind([larger, indices], [out])()
    assert out.all()


def test_kernel_with_sizes_runs_at_sizes_only() -> None:
    kernel = kernels.compile(trace_symbolic("softmax")[0])
    x = np.ones((2, 3), "float32")
    for call in (kernel.bind, kernel.run):
        with pytest.raises(ValidationError, match=r"sample: the sizes of this kernel are known only at a run"):
            call([x], [x])
    with pytest.raises(ValidationError, match=r"input 0 must be float32\[2, 4\], got float32\[2, 3\]"):
        kernel.at({"n": 2, "m": 4}).bind([x], [x])


def test_program_that_halide_refuses_is_static_at_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("halide", reason="needs the extra halide")
    halide = import_module("opweave.expr.halide")
    compile_part = halide.compile

    def refuse(program: ir.Formula) -> Any:
        if program.has_sizes:
            raise OperationError("no code for sizes")
        return compile_part(program)

    monkeypatch.setattr(halide, "compile", refuse)
    kernel = kernels.compile(trace_symbolic("sum")[0])
    assert kernel.detail == "compiled for each size; no code for sizes"
    out = np.zeros((), "int32")
    kernel.at({"n": 2, "m": 3}).run([np.ones((2, 3), "int32")], [out])
    assert out == 6
    assert kernel.at({"n": 2, "m": 3}) is kernel.at({"m": 3, "n": 2})
    assert kernel.at({"n": 2, "m": 3}).detail.startswith("Halide")


def test_sizes_beyond_int32_are_refused() -> None:
    kernel = kernels.compile(trace_symbolic("flattened")[0])
    with pytest.raises(ValidationError, match="beyond int32"):
        kernel.at({"n": 2**16, "m": 2**16})


@pytest.mark.long
def test_cached_code_runs_without_halide() -> None:
    pytest.importorskip("halide", reason="needs the extra halide")
    code = """
import sys
import numpy as np
from opweave.compile.fuse import move_to_loops
from opweave.compile.loops import EXPRESSION
from opweave.core.graph import Builder, Desc, Graph, Operand
from opweave.core.sizes import Size, call_of
from opweave.expr import kernels, reduce_sum, trace
kernel = kernels.compile(trace(lambda x: reduce_sum(x, [1]) + x.shape[0], "f", [Desc("float32", (Size("n"), Size("m")))]))
out = np.empty(3, "float32")
kernel.at({"n": 3, "m": 5}).run([np.ones((3, 5), "float32")], [out])
print(out.tolist(), "halide" in sys.modules, kernel.detail.endswith("any sizes"))
"""
    results = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(2)
    ]
    assert [r.stdout.split("] ")[1].split() for r in results] == [["True", "True"], ["False", "True"]]
    assert all(r.stdout.startswith("[8.0, 8.0, 8.0]") for r in results)


@ow.expression
def scaled_powers(x: Any, y: Any) -> Any:
    return ex.exp(x) * y + x.shape[0]


@ow.expression
def next_odd(x: Any) -> Any:
    return x * 2 + 1


def test_graph_fuses_expressions_with_sizes() -> None:
    context = ow.ml.create_context(device="cpu", drafts=True)
    builder = ow.MLGraphBuilder(context)
    x, y = builder.input("x", "float32", ["n", "m"]), builder.input("y", "float32", ["m"])
    graph = builder.build({"z": next_odd(scaled_powers(x, y))})
    for n, m in ((3, 4), (5, 7), (1, 1), (100, 65)):
        a, b = np.random.rand(n, m).astype("float32"), np.random.rand(m).astype("float32")
        z = context.compute(graph, {"x": a, "y": b})["z"]
        np.testing.assert_allclose(z, (np.exp(a) * b + n) * 2 + 1, rtol=1e-5)
    assert all("2 operations in one loop" in placement.detail for placement in graph.placements())


def test_chains_with_sizes_become_loops_by_estimate() -> None:
    builder = Builder()
    result = Operand(builder, Desc("float32", (N, 64)), name="x")  # type: ignore[arg-type]
    for _ in range(3):
        result = ow.ops.mul(builder, ow.ops.relu(builder, result), ow.ops.sigmoid(builder, result))
    graph = Graph.reaching({"y": ow.ops.softmax(builder, result, 1)})
    for n, kinds in ((4, ["engine"] * 10), (100_000, [EXPRESSION] * 9 + ["engine"])):
        guards = Guards({"n": n})
        with guards.deciding():
            moved = move_to_loops(graph, dict.fromkeys(graph.nodes, "engine"), "engine", 2, 5000)
        assert list(moved.values()) == kinds
        assert all(guards.hold({"n": other}) for other in (1, 8, 10_000))


@pytest.mark.parametrize("first", [4, 4096])
@pytest.mark.parametrize(
    ("build", "witness"),
    [
        (lambda b, x: (x * 2 + 1) * x - 3, lambda x: (x * 2 + 1) * x - 3),
        (lambda b, x: b.softmax(x, 0), lambda x: np.exp(x - x.max(0)) / np.exp(x - x.max(0)).sum(0)),
        (lambda b, x: b.reduce_l2(x, axes=[0]), lambda x: np.sqrt((x * x).sum(0, dtype="float64"))),
        (lambda b, x: b.arg_max(x, 0), lambda x: x.argmax(0)),
        (lambda b, x: b.where(b.greater(x, 0.0), x, b.sin(x)), lambda x: np.where(x > 0, x, np.sin(x))),
    ],
    ids=["chain", "softmax", "reduce_l2", "arg_max", "where"],
)
def test_operations_with_names_become_loops_by_the_first_sizes(build: Any, witness: Any, first: int) -> None:
    context = ow.ml.create_context(device="cpu", drafts=True)
    builder = ow.MLGraphBuilder(context)
    graph = builder.build({"y": build(builder, builder.input("x", "float32", ["n", "m"]))})
    for n, m in ((first, 320), (3, 5), (1, 1), (1000, 33), (17, 320)):
        x = np.random.default_rng(n).normal(size=(n, m)).astype("float32")
        np.testing.assert_allclose(context.compute(graph, {"x": x})["y"], witness(x), rtol=1e-4, atol=1e-4)
    assert ("expression" in {placement.how for placement in graph.placements()}) == (first > 4)


def test_ranges_of_sizes_without_order_stay_short(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[int] = []

    def counted(kind: str, *arguments: Any) -> Any:
        call = call_of(kind, *arguments)
        texts.append(len(str(call)))
        assert texts[-1] <= 20 * ranges.MAX_END
        return call

    monkeypatch.setattr(size_functions, "call_of", counted)
    # The quotients might be negative: as numbers, their order is unknown.
    names = [Size(f"n{k}") for k in range(4)]
    as_int8 = [(size + 128) % 256 - 128 for size in names]
    for old, new in ((names, as_int8), (as_int8, names)):
        guards = Guards({f"n{k}": k + 2 for k in range(4)})
        with guards.deciding():
            program = simplify(trace(partial(reshape_array, new_shape=new), "r", [Desc("int8", tuple(old))]))  # type: ignore[arg-type]
            assert len(ranges.ends_of_positions(*program.roots)) < 100
        for numbers in (guards.sizes, {f"n{k}": 3 for k in range(4)}):
            static = formula_at(program, numbers)
            (x,), result = arrays_for(static), empty(static)
            evaluate(static, [x], result)
            np.testing.assert_array_equal(result[0].reshape(-1), x.reshape(-1))
    assert len(texts) < 500
