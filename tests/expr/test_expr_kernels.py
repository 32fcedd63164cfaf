"""The choice of engine for expressions, and the cache of kernels."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np
import pytest

import opweave.expr as ex
from opweave.core.graph import Desc
from opweave.expr import ir, kernels, trace
from opweave.support.cache import Cache
from opweave.support.errors import MissingExtraError, OperationError, ValidationError


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(kernels, "compiled", Cache(kernels.MAX_KERNELS))
    monkeypatch.delenv(kernels.ENGINE_VARIABLE, raising=False)
    kernels.is_compiled.cache_clear()
    kernels.has_halide.cache_clear()
    yield
    kernels.is_compiled.cache_clear()
    kernels.has_halide.cache_clear()


def double(name: str = "double", size: int = 4) -> ir.Formula:
    return trace(lambda x: x * 2, name, [Desc("float32", (size,))])


def without_halide(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [m for m in sys.modules if m.startswith(("halide", "opweave.expr.halide"))]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "halide", None)


def test_numpy_kernel_runs() -> None:
    kernel = kernels.compile(double(), "numpy")
    x, out = np.float32([1, 2, 3, 4]), np.empty(4, np.float32)
    run = kernel.bind([x], [out])
    run()
    assert out.tolist() == [2, 4, 6, 8]
    x += 1
    run()
    assert out.tolist() == [4, 6, 8, 10]
    assert kernel.detail.startswith("NumPy")


def test_bind_rejects_wrong_dtype() -> None:
    kernel = kernels.compile(double(), "numpy")
    with pytest.raises(ValidationError, match=r"^double: input 0 must be float32\[4\], got int32\[4\]$"):
        kernel.bind([np.ones(4, np.int32)], [np.empty(4, np.float32)])


def test_compile_is_cached() -> None:
    first = kernels.compile(double(), "numpy")
    assert kernels.compile(double(), "numpy") is first
    assert kernels.compile(double("other"), "numpy") is not first
    assert kernels.compile(double(size=5), "numpy") is not first


def test_types_of_constants_tell_programs_apart() -> None:
    x = Desc("float32", (2,))

    def program(data_type: ir.Type) -> ir.Formula:
        source = ir.Input(0, x)
        axes = (ir.Index(2, -1),)
        condition = ir.call("greater", ir.Load(source, axes), ir.number(0, "float32"))
        high = ir.call("where", condition, ir.number(2**31 - 1, data_type), ir.number(0, data_type))
        body = ir.Cast(ir.call("add", high, ir.number(1, data_type)), "float32")
        return ir.Formula("high", (source,), (ir.Output(axes, body),))

    assert str(program("int32")) == str(program("int64"))
    results = []
    for data_type in ("int32", "int64"):
        out = np.empty(2, np.float32)
        kernels.compile(program(data_type), "numpy").bind([np.float32([1, -1])], [out])()
        results.append(out.tolist())
    assert results == [[-(2.0**31), 1], [2.0**31, 1]]


def test_old_kernels_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels.compiled, "max_entries", 3)
    first, second = (kernels.compile(double(size=k), "numpy") for k in (1, 2))
    kernels.compile(double(size=3), "numpy")
    assert kernels.compile(double(size=1), "numpy") is first  # used again, so that the second goes
    kernels.compile(double(size=4), "numpy")
    assert kernels.compiled.statistics.entries == 3
    assert kernels.compile(double(size=1), "numpy") is first
    assert kernels.compile(double(size=2), "numpy") is not second


def test_compile_in_threads_happens_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made, barrier, one_is_in = [], Barrier(8), threading.Event()
    original = kernels._compile

    def slow(program: ir.Formula, compiled: bool, strict: bool) -> Any:
        made.append(program)
        one_is_in.wait(0.2)  # it is never set: other threads have time to come in here, if they can
        return original(program, compiled, strict)

    monkeypatch.setattr(kernels, "_compile", slow)

    def ask(_: int) -> kernels.ExpressionKernel:
        barrier.wait()
        return kernels.compile(double(), "numpy")

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(ask, range(8)))
    assert len(made) == 1
    assert all(kernel is results[0] for kernel in results)


def test_compile_failure_is_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(program: ir.Formula, compiled: bool, strict: bool) -> Any:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(kernels, "_compile", fail)
        with pytest.raises(MemoryError):
            kernels.compile(double(), "numpy")
    assert kernels.compile(double(), "numpy").detail.startswith("NumPy")


@pytest.mark.parametrize("wanted", ["numpy", "halide"])
def test_opweave_expressions_variable(monkeypatch: pytest.MonkeyPatch, wanted: str) -> None:
    monkeypatch.setenv("OPWEAVE_EXPRESSIONS", wanted)
    assert kernels.is_compiled() is (wanted == "halide")


def test_opweave_expressions_rejects_unknown_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPWEAVE_EXPRESSIONS", "cuda")
    with pytest.raises(ValidationError) as error:
        kernels.compile(double())
    assert str(error.value) == "OPWEAVE_EXPRESSIONS must be one of auto, halide, numpy, got 'cuda'"


def test_compile_without_halide_uses_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    without_halide(monkeypatch)
    monkeypatch.setattr(kernels, "find_spec", lambda name: None)
    kernel = kernels.compile(double())
    assert kernel.detail == "NumPy; the extra halide compiles expressions: pip install 'opweave[halide]'"
    out = np.empty(4, np.float32)
    kernel.bind([np.ones(4, np.float32)], [out])()
    assert out.tolist() == [2] * 4


def test_halide_without_the_extra_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    without_halide(monkeypatch)
    with pytest.raises(MissingExtraError, match=r"pip install 'opweave\[halide\]'"):
        kernels.compile(double(), "halide")


def test_engines_agree() -> None:
    pytest.importorskip("halide", reason="the extra halide is not installed")
    x = np.linspace(-5, 5, 1000, dtype=np.float32)
    program = trace(lambda x: (ex.gelu(x), ex.softplus(x), ex.silu(x)), "three", [Desc("float32", x.shape)])
    results: list[list[np.ndarray]] = []
    for engine in ("numpy", "halide"):
        outputs = [np.empty_like(x) for _ in range(3)]
        kernels.compile(program, engine).bind([x], outputs)()
        results.append(outputs)
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=2e-7)


def test_powers_of_one_integer_by_many_are_evaluated() -> None:
    """Halide would move the squares of the base out of the loop, and take hours."""
    pytest.importorskip("halide", reason="the extra halide is not installed")
    program = trace(lambda base, exponents: base**exponents, "powers", [Desc("uint64", ()), Desc("uint64", (4, 3))])
    kernel = kernels.compile(program)
    assert kernel.detail.startswith("NumPy; powers: Halide cannot compile this expression: the base of a power")
    y = np.empty((4, 3), "uint64")
    kernel.run([np.array(3, "uint64"), np.full((4, 3), 4, "uint64")], [y])
    assert (y == 81).all()


def _repeated(function: Callable[[Any], Any], count: int) -> Callable[[Any], Any]:
    def apply(x: Any) -> Any:
        for _ in range(count):
            x = function(x)
        return x

    return apply


@pytest.mark.parametrize(
    ("function", "data_type", "result"),
    [
        (lambda x: x ** (1 << 40), "uint64", pow(3, 1 << 40, 2**64)),
        (lambda x: (x**1023) ** 1023, "int32", pow(3, 1023 * 1023, 2**32)),
        (_repeated(lambda x: x * x, 40), "uint32", pow(3, 1 << 40, 2**32)),
        (_repeated(lambda x: x // 3 + 1, 12), "int64", 1),
    ],
    ids=["power", "power of a power", "squares", "quotients"],
)
def test_large_values_of_one_number_are_evaluated(function: Any, data_type: Any, result: int) -> None:
    """Halide would compile a shared part for each of its uses. It compiles the same values of many numbers once."""
    pytest.importorskip("halide", reason="the extra halide is not installed")
    for shape in ((1,), (4, 3)):
        kernel = kernels.compile(trace(function, "large", [Desc(data_type, shape)]))
        expected = "NumPy; large: Halide cannot compile this expression" if shape == (1,) else "Halide"
        assert kernel.detail.startswith(expected)
        y = np.empty(shape, data_type)
        kernel.run([np.full(shape, 3, data_type)], [y])
        assert (y == np.array(result % 2**64, "uint64").astype(data_type)).all()


def test_compile_unsupported_by_halide_uses_numpy() -> None:
    pytest.importorskip("halide", reason="the extra halide is not installed")
    descs = [Desc("int32", (4, 3)), Desc("int32", ()), Desc("int32", ())]
    program = trace(lambda x, base, exponent: x * base**exponent, "powers", descs)
    kernel = kernels.compile(program)
    assert kernel.detail.startswith("NumPy; powers: Halide cannot compile this expression")
    y = np.empty((4, 3), "int32")
    kernel.run([np.ones((4, 3), "int32"), np.array(3, "int32"), np.array(4, "int32")], [y])
    assert (y == 81).all()
    with pytest.raises(OperationError, match="powers: Halide cannot compile this expression"):
        kernels.compile(program, "halide")
