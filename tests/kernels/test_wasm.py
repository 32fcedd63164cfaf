"""WebAssembly kernels: memory that everybody can use, signatures, calls. Hostile modules are in test_wasm_hostile.py."""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import subprocess
import sys
import textwrap
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wasmtime
from support import witness
from support.threads import together
from support.wasm_tools import bind, inside, wat

import opweave as ow
from opweave.core.graph import Desc
from opweave.kernels import wasm
from opweave.kernels.wasm import library
from opweave.kernels.wasm.engine import ticker, ticks

ROOT = Path(__file__).parents[2]


def values(module: wasm.Module, inputs: dict[str, Any], signature: str, types: str, **attributes: Any) -> list[int]:
    """What the items of a signature become: a function stores each of its parameters into the result, as i64."""
    names = types.split()
    parameters = " ".join(f"(param {kind})" for kind in ["i32", *names])
    widen = {"i32": "(i64.extend_i32_s {})", "i64": "{}", "f32": "(i64.trunc_f32_s {})", "f64": "(i64.trunc_f64_s {})"}
    stores = "".join(
        f"(i64.store offset={8 * i} (local.get 0) {widen[kind].format(f'(local.get {i + 1})')})"
        for i, kind in enumerate(names)
    )
    probe = wasmtime.wat2wasm(f'(module (memory (export "memory") 1) (func (export "probe") {parameters} {stores}))')
    other = wasm.load(bytes(probe))

    def move(value: Any) -> Any:
        return tuple(map(move, value)) if isinstance(value, tuple) else None if value is None else inside(other, value)

    out = other.allocate(Desc("int64", (len(names),)))
    bind(other, "probe", {n: move(v) for n, v in inputs.items()}, (out,), f"out*, {signature}", **attributes)()
    return [int(value) for value in out]


@pytest.fixture(scope="module")
def kernels() -> wasm.Module:
    return library.load()


# Memory ---------------------------------------------------------------------------------------------------------------


def test_arrays_lie_in_the_memory_of_the_module(kernels: wasm.Module) -> None:
    array = kernels.allocate(Desc("float16", (3, 5)))
    start = array.__array_interface__["data"][0]
    address, size = kernels.memory
    assert address <= start
    assert start + array.nbytes <= address + size
    assert start % 64 == 0
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert (array.dtype, array.shape) == (np.float16, (3, 5))
    assert not array.any()
    assert kernels.owns(array)
    assert kernels.owns(array[:, 1:3])
    assert not kernels.owns(np.zeros((3, 5), "float16"))
    assert kernels.allocate(Desc("float32", ())).shape == ()
    assert kernels.allocate(Desc("uint8", (0,))).size == 0


def test_memory_grows_without_moving() -> None:
    module = library.load()
    small = inside(module, np.arange(10, dtype="float32"))
    address, size = module.memory
    large = module.allocate(Desc("float32", (1 << 20,)))
    assert module.memory.address == address
    assert module.memory.size >= size + large.nbytes
    large[:] = 1
    assert small.tolist() == list(range(10))


def test_memory_is_given_back_with_the_last_view() -> None:
    module = library.load()
    array = module.allocate(Desc("float32", (1 << 18,)))
    array[:] = 7
    view = array[5:10].view("int32")
    size = module.memory.size
    where = array.__array_interface__["data"][0]
    del array
    gc.collect()
    other = module.allocate(Desc("float32", (1 << 18,)))
    assert not np.shares_memory(other, view)
    assert view.view("float32").tolist() == [7] * 5
    del view, other
    gc.collect()
    for _ in range(100):
        again = module.allocate(Desc("float32", (1 << 18,)))
        assert not again.any(), "memory that is used again must be zeroed"
        again[:] = 3
        del again
    assert module.memory.size <= 2 * size
    assert module.allocate(Desc("float32", (1 << 18,))).__array_interface__["data"][0] == where


def test_free_pieces_are_joined() -> None:
    module = library.load()
    pieces = [module.allocate(Desc("uint8", (1000,))) for _ in range(64)]
    size = module.memory.size
    starts = {piece.__array_interface__["data"][0] for piece in pieces}
    assert all(start % 64 == 0 for start in starts)
    for order in (slice(0, None, 2), slice(1, None, 2)):
        for at in range(64)[order]:
            pieces[at] = np.zeros(0)
    whole = module.allocate(Desc("uint8", (64 * 1000,)))
    assert whole.__array_interface__["data"][0] == min(starts)
    assert module.memory.size == size


def test_arrays_of_several_threads_do_not_overlap() -> None:
    module = library.load()

    def work(mark: int) -> None:
        rng = np.random.default_rng(mark)
        held: list[np.ndarray] = []
        for _ in range(300):
            array = module.allocate(Desc("uint8", (int(rng.integers(1, 5000)),)))
            assert not array.any()
            array[:] = mark
            held.append(array)
            if len(held) > 8:
                assert (held.pop(int(rng.integers(8))) == mark).all()  # no other thread has written into it

    together(*(partial(work, mark) for mark in range(1, 5)))


def test_view_keeps_memory_alive() -> None:
    module = library.load()
    view = inside(module, np.arange(1000, dtype="int32"))[::7]
    del module
    gc.collect()
    library.load().allocate(Desc("int32", (1000,)))[:] = 0
    assert view.tolist() == list(range(0, 1000, 7))


def test_memory_freed_with_last_user() -> None:
    gc.collect()
    gc.disable()
    try:
        module = library.load()
        arena = weakref.ref(module.arena)
        x, out = inside(module, np.float32([1, -1])), module.allocate(Desc("float32", (2,)))
        run = bind(module, "relu", {"x": x}, (out,))
        run()
        del module, x, out
        assert arena() is not None
        del run
        assert arena() is None
    finally:
        gc.enable()


def test_memory_limit() -> None:
    module = library.load(memory_limit=1 << 20)
    kept = inside(module, np.ones(1000, "float32"))
    with pytest.raises(
        ow.OperationError, match=r"kernels.wasm: there is no memory for float32\[1000000\]: .* limit of 1048576"
    ):
        module.allocate(Desc("float32", (1_000_000,)))
    assert module.memory.size <= 1 << 20
    assert kept.all()
    bounded = wat('(memory (export "memory") 1 2)')
    bounded.allocate(Desc("uint8", (60000,)))
    with pytest.raises(ow.OperationError, match="exceed what the module declares, 131072"):
        bounded.allocate(Desc("uint8", (70000,)))
    with pytest.raises(
        ow.OperationError, match="memory minimum size of 100 pages exceeds memory limits of 1048576 bytes"
    ):
        wat('(memory (export "memory") 100)', memory_limit=1 << 20)


def test_memory_grown_by_module_is_not_allocated() -> None:
    module = wat("""
        (func (export "keep") (param $n i32) (local $at i32)
          (local.set $at (i32.mul (memory.grow (local.get $n)) (i32.const 65536)))
          (memory.fill (local.get $at) (i32.const 5) (i32.mul (local.get $n) (i32.const 65536))))""")
    first = inside(module, np.full(50_000, 1, "uint8"))
    bind(module, "keep", {}, (first,), "pages", pages=2)()
    second = inside(module, np.full(200_000, 2, "uint8"))
    assert set(first) == {1}
    assert set(second) == {2}
    everything = np.ctypeslib.as_array((ctypes.c_uint8 * module.memory.size).from_address(module.memory.address))
    assert (everything == 5).sum() == 2 * 65536


def test_wide_pointers() -> None:
    module = wat(
        """(memory (export "memory") i64 1)
           (func (export "fill") (param $to i64) (param $n i64) (param $value i32)
             (memory.fill (local.get $to) (local.get $value) (local.get $n)))
           (func (export "narrow") (param $to i32))""",
        memory_limit=1 << 33,
    )
    address = module.memory.address
    out = module.allocate(Desc("uint8", (1 << 20,)))
    bind(module, "fill", {}, (out,), "out*, out.size, value", value=9)()
    assert set(out) == {9}
    assert module.memory.address == address
    with pytest.raises(ow.ValidationError, match=r"'out\*' is a pointer, i64 here, not i32"):
        bind(module, "narrow", {}, (out,), "out*")
    far = module.allocate(Desc("uint8", (5 << 30,)))  # never touched, so it costs nothing
    far[-1] = 1
    assert far.__array_interface__["data"][0] + far.nbytes - address > 1 << 32
    assert module.memory.address == address
    bind(module, "fill", {}, (far[-64:],), "out*, out.size, value", value=4)()
    assert set(far[-64:]) == {4}


# Loading --------------------------------------------------------------------------------------------------------------


def test_module_repr_and_exports(tmp_path: Path) -> None:
    module = wat('(func (export "f") (param i32 f64) (result i32) i32.const 0) (func (export "g"))')
    assert {name: str(kind) for name, kind in module.exports.items()} == {"f": "(i32, f64) -> i32", "g": "() -> ()"}
    assert "f(i32, f64) -> i32, g() -> (); 65536 bytes of memory" in repr(module)
    assert module.memory.size == 65536
    path = tmp_path / "ops.wasm"
    path.write_bytes(wasmtime.wat2wasm('(module (memory (export "memory") 1))'))
    assert wasm.load(path).name == wasm.load(str(path)).name == "ops.wasm"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (b"", "must be a WebAssembly module .* begin with b''"),
        (b"MZ\x90", "must be a WebAssembly module"),
        (b"\0asm\x0d\0\1\0", "got a component"),
        (b"\0asm\2\0\0\0", "must be a WebAssembly module"),
        (b"(module)", "must be a WebAssembly module"),
        (b"\0asm\1\0\0\0\1\x7f", "is not a valid module: unexpected end"),
        (bytes(wasmtime.wat2wasm("(module)")), "must export its memory, or import env.memory"),
        ("/no/such/ops.wasm", "/no/such/ops.wasm: No such file"),
    ],
)
def test_load_rejects_invalid_module(source: Any, message: str) -> None:
    with pytest.raises(ow.DataError, match=message) as caught:
        wasm.load(source)
    assert "\n" not in str(caught.value)


def test_load_survives_corrupted_bytes() -> None:
    data = library.PATH.read_bytes()
    rng = np.random.default_rng(7)
    outcomes = set()
    for _ in range(150):
        broken = bytearray(data if rng.random() < 0.5 else data[: rng.integers(8, len(data))])
        for _ in range(rng.integers(1, 4)):
            broken[rng.integers(8, min(len(broken), 600))] = rng.integers(256)
        try:
            wasm.load(bytes(broken), timeout=1)
            outcomes.add("loaded")
        except (ow.DataError, ow.OperationError) as error:
            outcomes.add("one line" if "\n" not in str(error) else str(error))
    assert outcomes <= {"loaded", "one line"}
    assert "one line" in outcomes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout": 0}, "timeout must be a positive number of seconds or None, got 0"),
        ({"timeout": float("inf")}, "timeout must be a positive number of seconds or None, got inf"),
        ({"timeout": float("nan")}, "timeout must be a positive number of seconds or None, got nan"),
        ({"memory_limit": 1e6}, "memory_limit must be a positive number of bytes or None, got 1000000.0"),
        ({"timeout": "1"}, "timeout must be a positive number"),
        ({"memory_limit": -1}, "memory_limit must be a positive number of bytes or None, got -1"),
        ({"memory": "other"}, "memory must be a module, got 'other'"),
        ({"source": 3}, "source must be a path or bytes, got int"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ow.ValidationError, match=f"wasm.load: {message}"):
        wasm.load(**{"source": library.PATH, **options})


def test_imported_memory() -> None:
    module = wat("""(import "env" "memory" (memory 2))
        (func (export "one") (param i32) (i32.store (local.get 0) (i32.const 1)))""")
    out = module.allocate(Desc("int32", (1,)))
    bind(module, "one", {}, (out,), "out*")()
    assert out.tolist() == [1]


def test_initialisers_are_called() -> None:
    module = wat("""(global $g (mut i32) (i32.const 0))
        (func (export "_initialize") (global.set $g (i32.const 5)))
        (func (export "get") (param i32) (i32.store (local.get 0) (global.get $g)))""")
    out = module.allocate(Desc("int32", (1,)))
    bind(module, "get", {}, (out,), "out*")()
    assert out.tolist() == [5]


def test_load_names_missing_extra() -> None:
    code = """
import sys
sys.modules["wasmtime"] = None
from opweave.kernels.wasm import library
import opweave as ow
try:
    library.load()
except ow.MissingExtraError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "a WebAssembly module needs wasmtime: pip install 'opweave[wasm]'\n"


# Signatures -----------------------------------------------------------------------------------------------------------

X = np.zeros((2, 3, 4), "float32")


@pytest.mark.parametrize(
    ("signature", "types", "expected"),
    [
        ("x.shape[0], x.shape[1], x.shape[-1]", "i32 i64 i32", [2, 3, 4]),
        ("x.strides[0], x.strides[1], x.strides[2]", "i32 i32 i32", [12, 4, 1]),
        ("x.outer[0], x.outer[1], x.outer[-1]", "i32 i32 i32", [1, 2, 6]),
        ("x.size, x.rank, x.bytes, x.data_type", "i32 i64 f32 f64", [24, 3, 96, 1]),
        ("n, n, n, n:i32", "i32 i64 f32 i32", [7, 7, 7, 7]),
        ("scale, scale:f64", "f32 f64", [2, 2]),
        ("flag, padding[1], padding[0]", "i32 i64 i32", [1, 6, 5]),
        ("large, small", "i32 i64", [-1, -3]),
        ("nothing*, xs.count, xs[1].shape[0]", "i32 i32 i32", [0, 2, 4]),
    ],
)
def test_numbers_of_signatures(kernels: wasm.Module, signature: str, types: str, expected: list[int]) -> None:
    inputs = {"x": X, "nothing": None, "xs": (np.zeros(2, "int8"), np.zeros(4, "int8"))}
    given = {"n": 7, "scale": 2.5, "flag": True, "padding": (5, 6), "large": 2**32 - 1, "small": -3}
    assert values(kernels, inputs, signature, types, **given) == expected


def test_signature_pointers_equal_tensor_addresses() -> None:
    """No copies: the function gets the places of the arrays themselves."""
    module = wat("""(func (export "f") (param i32 i32 i32 i32 i32)
        (i32.store (local.get 4) (local.get 0)) (i32.store offset=4 (local.get 4) (local.get 1))
        (i32.store offset=8 (local.get 4) (local.get 2)) (i32.store offset=12 (local.get 4) (local.get 3)))""")
    x, a, b = (inside(module, np.arange(n, dtype="int32")) for n in (3, 4, 5))
    out = module.allocate(Desc("uint32", (4,)))
    bind(module, "f", {"x": x, "xs": (a, b)}, (out,), "x*, xs[1]*, xs*, xs.desc*, out*")()
    base = module.memory.address
    assert out[:2].tolist() == [array.__array_interface__["data"][0] - base for array in (x, b)]
    words = np.ctypeslib.as_array((ctypes.c_uint32 * (module.memory.size // 4)).from_address(base))
    table, descs = out[2] // 4, out[3] // 4
    assert words[table : table + 2].tolist() == [array.__array_interface__["data"][0] - base for array in (a, b)]
    assert words[descs : descs + 18].tolist() == [1, 4, *[0] * 7, 1, 5, *[0] * 7]


def test_bind_default_signature() -> None:
    module = wat("""(func (export "f") (param $x i32) (param $y i32) (param $out i32) (param $n i32) (param $k f32)
        (f32.store (local.get $out) (f32.add (local.get $k) (f32.load (local.get $y)))))
        (func (export "wrong") (param i32) (result i64) i64.const 0)""")
    x, y = inside(module, np.float32([1])), inside(module, np.float32([10]))
    out = module.allocate(Desc("float32", (1,)))
    bind(module, "f", {"x": x, "y": y}, (out,), k=0.5)()
    assert out.tolist() == [10.5]
    with pytest.raises(ow.ValidationError) as caught:
        bind(module, "wrong", {"x": x, "y": y}, (out,), k=0.5)
    assert str(caught.value) == (
        "thing 'mine': the signature 'x*, y*, out0*, out0.size, k (the default)' does not fit wrong(i32) -> i64 of "
        f"{module.name}: it gives 5 values for 1 parameter"
    )


@pytest.mark.parametrize(
    ("signature", "message"),
    [
        ("x*", "it gives 1 value for 2 parameters"),
        ("x*, 3", "the signature has '3'; it takes"),
        (
            "x*, y",
            "the signature has an unknown name 'y'; there are x, xs, nothing, out0, alpha, n, name, padding, huge",
        ),
        ("x*, x", "a tensor is passed as a pointer"),
        ("x*, x.shape", r"shape takes an axis in \[-3, 3\) for float32\[2, 3, 4\]"),
        ("x*, x.shape[3]", r"'x.shape\[3\]' in the signature: shape takes an axis"),
        ("x*, x.length", "a tensor has size, rank, bytes, data_type, shape, strides, outer, count and desc"),
        ("x*, x.count", "is not a sequence"),
        ("x*, x[0]*", "is not a sequence"),
        ("x*, xs.size", r"a sequence has operands: xs\[0\].size"),
        ("x*, xs[2]*", "there are 1 operands"),
        ("x*, out1*", "there are 1 results"),
        ("x*, alpha*", "an attribute is passed by its value"),
        ("x*, n[0]", "is not a sequence"),
        ("x*, padding", "the attribute has 2 values"),
        ("x*, name", "functions take numbers, got 'linear'"),
        ("x*, nothing.size", "the operand is absent"),
        ("x*, n", "'n' is 4294967296, which i32 cannot hold"),
        ("x*, alpha", "'alpha' is a float, 0.5, not i32"),
        ("x*, x.size:f32", "'x.size:f32' is declared f32, not i32"),
        ("x*:float16, x*", r"the function takes float16, got float32\[2, 3, 4\]"),
        ("x*:f16, x*", "'f16' is not a data type of WebNN"),
        ("n, x*", "'n' is 4294967296"),
        ("x.size*, x*", "only a tensor and its desc have a pointer, not size"),
    ],
)
def test_wrong_signatures(signature: str, message: str) -> None:
    module = wat('(func (export "f") (param i32 i32))')
    inputs = {"x": inside(module, X), "xs": (inside(module, X),), "nothing": None}
    out = module.allocate(Desc("float32", (1,)))
    with pytest.raises(ow.ValidationError, match=message) as caught:
        bind(module, "f", inputs, (out,), signature, alpha=0.5, n=2**32, name="linear", padding=(1, 2), huge=2**70)
    assert f"thing 'mine': the signature {signature!r} does not fit f(i32, i32) -> () of" in str(caught.value)


def test_functions_that_cannot_be_kernels(kernels: wasm.Module) -> None:
    with pytest.raises(ow.ValidationError, match=r"kernels.wasm exports no function 'nope'; it exports add, relu"):
        wasm.WasmKernel(kernels, "nope")
    with pytest.raises(ow.ValidationError, match=r"needs a module of opweave.wasm.load, got 3"):
        wasm.WasmKernel(3, "add")  # type: ignore[arg-type]
    module = wat("""(func (export "two") (result i32 i32) i32.const 0 i32.const 0)
        (func (export "long") (result i64) i64.const 0) (func (export "vector") (param v128))
        (func (export "reference") (param externref))""")
    out = module.allocate(Desc("float32", (1,)))
    for name, signature in {"two": "", "long": "", "vector": "out.size", "reference": "out.size"}.items():
        with pytest.raises(ow.ValidationError, match="does not fit"):
            bind(module, name, {}, (out,), signature)


# Calls ----------------------------------------------------------------------------------------------------------------


def test_nonzero_status_is_an_error() -> None:
    module = wat('(func (export "f") (param $s i32) (result i32) (local.get $s))')
    out = module.allocate(Desc("int32", (1,)))
    bind(module, "f", {}, (out,), "status", status=0)()
    for status in (3, -7):
        run = bind(module, "f", {}, (out,), "status", status=status)
        for _ in range(2):
            with pytest.raises(ow.OperationError, match=rf"thing 'mine': f of .* returned the status {status}$"):
                run()


def test_arrays_must_lie_in_the_memory(kernels: wasm.Module) -> None:
    x, out = inside(kernels, np.ones(4, "float32")), kernels.allocate(Desc("float32", (4,)))
    for bad in (np.ones(4, "float32"), inside(library.load(), np.ones(4, "float32"))):
        with pytest.raises(ow.ValidationError, match=r"thing 'mine': x must be in the memory of kernels.wasm"):
            bind(kernels, "relu", {"x": bad}, (out,))
        with pytest.raises(ow.ValidationError, match="thing 'mine': out0 must be in the memory"):
            bind(kernels, "relu", {"x": x}, (bad,))
    with pytest.raises(ow.ValidationError, match=r"x must be float32\[2\], contiguous, got float32\[2\]"):
        bind(kernels, "relu", {"x": x[::2]}, (out,))


def test_bound_call_reads_current_arrays(kernels: wasm.Module) -> None:
    x, out = inside(kernels, np.float32([-1, 1])), kernels.allocate(Desc("float32", (2,)))
    run = bind(kernels, "relu", {"input": x}, (out,), library.SIGNATURES["relu"])
    for turn in range(200):
        x[:] = [-turn, turn]
        run()
        assert out.tolist() == [0, turn]


def test_bound_call_keeps_module_and_inputs_alive() -> None:
    module = library.load()
    x, out = inside(module, np.float32([-1, 2])), module.allocate(Desc("float32", (2,)))
    run = bind(module, "relu", {"x": x}, (out,))
    del module, x
    gc.collect()
    run()
    assert out.tolist() == [0, 2]


def test_threads_take_turns() -> None:
    module = library.load()

    def work(seed: int) -> None:
        x = inside(module, np.random.default_rng(seed).standard_normal((1, 8, 12, 12), dtype="float32"))
        f = inside(module, np.random.default_rng(seed + 9).standard_normal((8, 8, 3, 3), dtype="float32"))
        out = module.allocate(Desc("float32", (1, 8, 10, 10)))
        run = conv(module, x, f, None, out)
        run()
        expected = out.copy()
        for _ in range(30):
            out[:] = 0
            run()
            np.testing.assert_array_equal(out, expected)

    together(*(partial(work, seed) for seed in range(4)))


def test_call_releases_the_gil() -> None:
    spin = '(func (export "spin") (param i32) (i32.store8 (local.get 0) (i32.const 1)) (loop (br 0)))'
    module = wat(spin, timeout=60)
    out = module.allocate(Desc("int8", (1,)))
    run = bind(module, "spin", {}, (out,), "out*")
    with ThreadPoolExecutor(1) as pool:
        spinning = pool.submit(run)
        while not out[0]:
            assert not spinning.done()
        for _ in range(ticks(60)):
            ticker.tick()
        with pytest.raises(ow.OperationError, match="timeout"):
            spinning.result()


def test_exit_with_live_module_is_silent() -> None:
    code = """
import os, wasmtime
from opweave.kernels import wasm
os.kept = wasm.load(bytes(wasmtime.wat2wasm('(module (memory (export "memory") 1))')))  # cleared after the modules of wasmtime
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""


# The library ----------------------------------------------------------------------------------------------------------


def conv(
    module: wasm.Module, x: np.ndarray, f: np.ndarray, bias: np.ndarray | None, out: np.ndarray, **options: Any
) -> Callable[[], None]:
    attributes = {"padding": (0,) * 4, "strides": (1, 1), "dilations": (1, 1), "groups": 1, **options}
    return bind(
        module, "conv2d", {"input": x, "filter": f, "bias": bias}, (out,), library.SIGNATURES["conv2d"], **attributes
    )


@pytest.mark.parametrize(
    ("shape", "filters", "options"),
    [
        ((1, 1, 3, 3), (1, 1, 3, 3), {}),
        ((1, 3, 14, 20), (5, 3, 3, 3), {"padding": (1, 1, 1, 1)}),
        ((2, 6, 9, 11), (10, 3, 3, 2), {"padding": (1, 2, 0, 1), "strides": (2, 1), "dilations": (1, 2), "groups": 2}),
        ((1, 30, 13, 13), (7, 30, 3, 3), {}),  # more than one block of depth
        ((1, 4, 6, 6), (150, 4, 1, 1), {}),  # more filters than are packed at once
        ((1, 8, 10, 10), (8, 1, 3, 3), {"groups": 8, "padding": (1, 1, 1, 1)}),
        ((1, 2, 17, 9), (3, 2, 5, 1), {"strides": (3, 2), "padding": (4, 0, 2, 3)}),
        ((1, 2, 4, 4), (2, 2, 2, 2), {"padding": (3, 3, 3, 3), "dilations": (3, 3)}),
    ],
    ids=str,
)
@pytest.mark.parametrize("with_bias", [False, True])
def test_conv2d(kernels: wasm.Module, shape: Any, filters: Any, options: Any, with_bias: bool) -> None:
    rng = np.random.default_rng(1)
    x, f = (inside(kernels, rng.standard_normal(s, dtype="float32")) for s in (shape, filters))
    bias = inside(kernels, rng.standard_normal(filters[0], dtype="float32")) if with_bias else None
    expected = witness.conv2d(x, f, bias, **options)
    room = inside(kernels, np.full(expected.size + 64, np.nan, "float32"))
    out = room[32:-32].reshape(expected.shape)
    conv(kernels, x, f, bias, out, **options)()
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)
    assert np.isnan([*room[:32], *room[-32:]]).all(), "written beyond the result"


@pytest.mark.parametrize("count", [1, 3, 8, 29, 1000])
def test_pointwise(kernels: wasm.Module, count: int) -> None:
    rng = np.random.default_rng(count)
    a, b = (inside(kernels, rng.standard_normal(count, dtype="float32")) for _ in range(2))
    a[0] = np.nan
    out = kernels.allocate(Desc("float32", (count,)))
    bind(kernels, "add", {"a": a, "b": b}, (out,), library.SIGNATURES["add"])()
    np.testing.assert_array_equal(out, a + b)
    bind(kernels, "relu", {"input": a}, (a,), library.SIGNATURES["relu"])()  # in place
    assert np.isnan(a[0])
    assert (a[1:] >= 0).all()


@pytest.mark.parametrize("shape", [(3, 3), (2, 3, 9, 8), (5, 4, 23)], ids=str)
def test_box3(kernels: wasm.Module, shape: tuple[int, ...]) -> None:
    x = inside(kernels, np.random.default_rng(0).standard_normal(shape, dtype="float32"))
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(-2, -1))
    out = kernels.allocate(Desc("float32", windows.shape[:-2]))
    bind(kernels, "box3", {"x": x}, (out,), library.SIGNATURES["box3"])()
    np.testing.assert_allclose(out, windows.mean((-1, -2)), rtol=1e-5, atol=1e-6)


def test_colours(kernels: wasm.Module) -> None:
    rgb = inside(kernels, np.random.default_rng(0).random((2, 3, 5, 7), dtype="float32"))
    ycbcr, back = kernels.allocate(Desc("float32", rgb.shape)), kernels.allocate(Desc("float32", rgb.shape))
    bind(kernels, "rgb_to_ycbcr", {"x": rgb}, (ycbcr,), library.SIGNATURES["rgb_to_ycbcr"])()
    r, g, b = np.moveaxis(rgb, 1, 0)
    y = 0.299 * r + 0.587 * g + 0.114 * b
    expected = np.stack([y, 0.5 + (b - y) / 1.772, 0.5 + (r - y) / 1.402], 1)
    np.testing.assert_allclose(ycbcr, expected, atol=1e-6)
    bind(kernels, "ycbcr_to_rgb", {"x": ycbcr}, (back,), library.SIGNATURES["ycbcr_to_rgb"])()
    np.testing.assert_allclose(back, rgb, atol=1e-6)


@pytest.mark.parametrize(("shape", "k"), [((1,), 1), ((4, 9), 3), ((2, 3, 50), 50), ((3, 1000), 17)], ids=str)
def test_top_k(kernels: wasm.Module, shape: tuple[int, ...], k: int) -> None:
    x = inside(kernels, np.random.default_rng(k).integers(0, 20, shape).astype("float32"))  # with many ties
    results = [kernels.allocate(Desc(kind, (*shape[:-1], k))) for kind in ("float32", "int32")]  # type: ignore[arg-type]
    bind(kernels, "top_k", {"x": x}, results, library.SIGNATURES["top_k"], k=k)()
    order = np.argsort(-x, axis=-1, kind="stable")[..., :k]
    np.testing.assert_array_equal(results[1], order)
    np.testing.assert_array_equal(results[0], np.take_along_axis(x, order, -1))
    with pytest.raises(ow.OperationError, match=r"top_k of kernels.wasm returned the status 1"):
        bind(kernels, "top_k", {"x": x}, results, library.SIGNATURES["top_k"], k=shape[-1] + 1)()


def test_library_matches_its_source(tmp_path: Path) -> None:
    specification = importlib.util.spec_from_file_location("build_wasm", ROOT / "tools" / "build_wasm.py")
    assert specification is not None
    assert specification.loader is not None
    tool = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(tool)
    tool.build(tool.LIBRARY / "kernels.c", tmp_path / "made.wasm")
    assert (tmp_path / "made.wasm").read_bytes() == library.PATH.read_bytes()


def test_documentation_example(tmp_path: Path) -> None:
    """The C function and the commands that the package's page shows."""
    page = textwrap.dedent(str(wasm.__doc__))
    (tmp_path / "ops.c").write_text(page[page.index("    __attribute__") : page.index("    python -m ziglang cc")])
    command = page[page.index("-m ziglang cc") : page.index("(`pip install ziglang`")].replace("\\\n", " ")
    subprocess.run([sys.executable, *command.split()], cwd=tmp_path, check=True)
    module = wasm.load(tmp_path / "ops.wasm")
    x, out = inside(module, np.float32([1, 2, 3])), module.allocate(Desc("float32", (3,)))
    bind(module, "scale", {"x": x}, (out,), alpha=1.5)()
    assert out.tolist() == [1.5, 3, 4.5]
    assert module.memory.size < 1 << 20


@pytest.mark.parametrize(
    ("signature", "message"),
    [
        ("y*, out*, x.size", "the signature has an unknown name 'y'; there are x, out, slope"),
        ("x*, out*, slop", "the signature has an unknown name 'slop'; there are x, out, slope; did you mean 'slope'?"),
        (
            "x*, out*, x.siz",
            "'x.siz' in the signature: a tensor has size, rank, bytes, data_type, shape, strides, outer, ",
        ),
        ("x*, out*", "it gives 2 values for 3 parameters"),
        ("x*, out*, x size", "the signature has 'x size'; it takes name*, name.size, "),
    ],
)
def test_kernel_declaration_checks_signature(kernels: wasm.Module, signature: str, message: str) -> None:
    @ow.op
    def rectified(self: Any, x: ow.MLOperand, *, slope: float = 0.0) -> ow.Desc:
        return x.desc

    with pytest.raises(ow.ValidationError) as caught:
        rectified.kernel("wasm", kernels, "relu", signature=signature)
    assert str(caught.value).startswith(f"rectified: the signature {signature!r} does not fit relu(i32, i32, i32) -> ")
    assert message in str(caught.value)
