"""Several modules in one memory: position-independent ones may, and each has data, a stack and a table of its own."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wasmtime
from support.wasm_tools import bind, inside, wat

import opweave as ow
from opweave.core.graph import Desc
from opweave.kernels import wasm
from opweave.kernels.wasm import library
from opweave.kernels.wasm.loader import STACK_SIZE

SOURCE = """
static int counter = 40;
static float weights[5] = {1, 2, 3, 4, 5};
static float *const third = &weights[2];
static float twice(float x) { return 2 * x; }
static float thrice(float x) { return 3 * x; }
static float (*volatile functions[2])(float) = {twice, thrice};

/* Uses a kilobyte of the stack in linear memory. */
__attribute__((noinline)) static void spread(volatile float *buffer) {
    for (int i = 0; i < 256; i++) buffer[i] = weights[i % 5];
}

__attribute__((export_name("weigh"))) void weigh(const float *x, float *out, int n) {
    volatile float local[256];
    spread(local);
    for (int i = 0; i < n; i++) out[i] = functions[i & 1](x[i]) * local[i % 256] + *third;
}

__attribute__((export_name("count"))) void count(int *out) { *out = ++counter; weights[2] += 1; }

__attribute__((export_name("stack"))) void stack(int *out, int divisor) {
    volatile int local[256];
    local[0] = (int)local;
    *out = local[0];
    local[1] = 100 / divisor;
}
"""


@pytest.fixture(scope="module")
def movable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("movable")
    (folder / "movable.c").write_text(SOURCE)
    zig = [sys.executable, "-m", "ziglang"]
    compile_ = "cc -target wasm32-freestanding -O1 -fPIC -fvisibility=hidden -nostdlib -c -o movable.o movable.c"
    link = "wasm-ld --experimental-pic -shared --no-entry -o movable.wasm movable.o"
    for command in (compile_, link):
        subprocess.run([*zig, *command.split()], cwd=folder, check=True)
    return folder / "movable.wasm"


def weigh(module: wasm.Module, x: np.ndarray) -> np.ndarray:
    out = module.allocate(Desc("float32", x.shape))
    bind(module, "weigh", {"x": x}, (out,))()
    return out


def count(module: wasm.Module) -> int:
    out = module.allocate(Desc("int32", (1,)))
    bind(module, "count", {}, (out,), "out*")()
    return int(out[0])


def stack(module: wasm.Module, divisor: int) -> int:
    out = module.allocate(Desc("int32", (1,)))
    bind(module, "stack", {}, (out,), "out*, divisor", divisor=divisor)()
    return int(out[0])


def expected(x: np.ndarray, third: float) -> np.ndarray:
    i = np.arange(x.size)
    weights = np.float32([1, 2, third, 4, 5])
    return np.float32((2 + i % 2) * x * weights[i % 256 % 5] + third)  # type: ignore[return-value]


def test_tensors_serve_all_modules_of_a_memory(movable: Path) -> None:
    first = library.load()
    second = wasm.load(movable, memory=first)
    third = wasm.load(movable, memory=second)
    assert first.memory == second.memory == third.memory
    x = inside(first, np.linspace(-2, 2, 700, dtype="float32"))
    assert second.owns(x)
    assert third.owns(second.allocate(Desc("int8", (3,))))
    out = weigh(second, x)
    np.testing.assert_allclose(out, expected(x, 3), rtol=1e-5, atol=1e-5)
    bind(first, "relu", {"x": out}, (out,))()  # what one module wrote, another works on in place
    np.testing.assert_allclose(out, np.maximum(expected(x, 3), 0), rtol=1e-5, atol=1e-5)
    prepared = {module.home for module in (first, second, third)}
    assert prepared == {first}, "where the tensors must lie is the same for all"


def test_shared_memory_modules_have_own_data(movable: Path) -> None:
    first = library.load()
    a, b = (wasm.load(movable, memory=first) for _ in range(2))
    x = inside(first, np.ones(10, "float32"))
    assert [count(a), count(a), count(b)] == [41, 42, 41]
    np.testing.assert_allclose(weigh(a, x), expected(x, 5))
    np.testing.assert_allclose(weigh(b, x), expected(x, 4))
    conv = np.random.default_rng(0).standard_normal((1, 3, 8, 8), dtype="float32")
    f, image = inside(first, np.ones((1, 3, 1, 1), "float32")), inside(first, conv)
    out = first.allocate(Desc("float32", (1, 1, 8, 8)))
    options: dict[str, Any] = {"padding": (0,) * 4, "strides": (1, 1), "dilations": (1, 1), "groups": 1}
    inputs = {"input": image, "filter": f, "bias": None}
    bind(first, "conv2d", inputs, (out,), library.SIGNATURES["conv2d"], **options)()
    np.testing.assert_allclose(out, conv.sum(1, keepdims=True), rtol=1e-5, atol=1e-5)
    assert [count(a), count(b)] == [43, 42], "the first module's static arrays lie elsewhere"


def test_shared_memory_modules_have_own_stack(movable: Path) -> None:
    first = library.load()
    a, b = (wasm.load(movable, memory=first) for _ in range(2))
    place = stack(a, 1)
    assert abs(place - stack(b, 1)) >= STACK_SIZE
    for _ in range(200):  # 200 KiB of frames, if they stayed
        with pytest.raises(ow.OperationError, match=r"stack of movable.wasm trapped: integer division by zero"):
            stack(a, 0)
    assert stack(a, 1) == place


def test_movable_module_alone(movable: Path) -> None:
    module = wasm.load(movable)
    x = inside(module, np.arange(20, dtype="float32"))
    np.testing.assert_allclose(weigh(module, x), expected(x, 3), rtol=1e-6)
    other = wasm.load(movable, memory=module)
    assert [count(other), count(module)] == [41, 41]


def test_memory_of_a_module_that_is_gone_is_used_again(movable: Path) -> None:
    first = library.load()
    wasm.load(movable, memory=first)
    size = first.memory.size
    for _ in range(20):
        wasm.load(movable, memory=first)
    assert first.memory.size <= 2 * size


def test_load_rejects_module_that_cannot_share(movable: Path) -> None:
    first = library.load()
    with pytest.raises(
        ow.DataError, match=r"only a position-independent module can share the memory of kernels.wasm, .*-fPIC"
    ):
        wasm.load(library.PATH, memory=first)
    with pytest.raises(ow.ValidationError, match="timeout must be None for all modules in one memory or for none"):
        wasm.load(movable, memory=first, timeout=None)
    with pytest.raises(ow.ValidationError, match="memory_limit is that of the module"):
        wasm.load(movable, memory=first, memory_limit=1 << 20)
    wide = wat('(memory (export "memory") i64 1)')
    with pytest.raises(ow.DataError, match=r"movable.wasm: .*expected 32-bit memory, found 64-bit memory"):
        wasm.load(movable, memory=wide)


def with_dylink(text: str, needs: bytes) -> bytes:
    """A module that says it is position-independent and needs memory (size, power of its alignment) and a table (the same)."""
    data = bytes(wasmtime.wat2wasm(f"(module {text})"))
    contents = b"\x08dylink.0\x01" + bytes([len(needs)]) + needs
    return data[:8] + b"\0" + bytes([len(contents)]) + contents + data[8:]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('(import "env" "__stack_pointer" (global (mut v128)))', "imports env.__stack_pointer"),
        ('(import "env" "__memory_base" (global funcref))', "imports env.__memory_base"),
        ('(import "GOT.mem" "x" (global (mut i32)))', "imports GOT.mem.x; .*-fvisibility=hidden"),
        (
            '(import "env" "__indirect_function_table" (table 9999999 funcref))',
            "table types incompatible|exceeds table limits|table minimum",
        ),
        ('(import "env" "__indirect_function_table" (table 1 externref))', ""),
        ('(import "env" "__stack_pointer" (global i32))', ""),
        ("(memory 1)", "must import env.memory"),
    ],
)
def test_hostile_position_independent_modules(text: str, message: str) -> None:
    memory = "" if "(memory " in text else '(import "env" "memory" (memory 0))'
    data = with_dylink(f"{text} {memory}", b"\x80\x80\x04\x04\x03\x00")
    first = library.load()
    kept = inside(first, np.arange(9, dtype="int32"))
    if message:
        with pytest.raises((ow.DataError, ow.OperationError), match=message):
            wasm.load(data, memory=first)
    else:
        wasm.load(data, memory=first)
    assert kept.tolist() == list(range(9))


def test_load_data_exceeds_memory() -> None:
    for size, alignment in ((b"\xff\xff\xff\xff\x0f", b"\x04"), (b"\x10", b"\x1f"), (b"\x10", b"\x7f")):
        whole = with_dylink('(import "env" "memory" (memory 0))', size + alignment + b"\x00\x00")
        with pytest.raises(ow.OperationError, match="there is no memory for the data of the module"):
            wasm.load(whole, memory=library.load(memory_limit=1 << 24))


@pytest.mark.parametrize("needs", [b"", b"\x80", b"\x80" * 40, b"\x01\x02\x03"], ids=bytes.hex)
def test_load_rejects_broken_dylink_section(needs: bytes) -> None:
    with pytest.raises(ow.DataError, match=r"its section dylink.0 or name is broken"):
        wasm.load(with_dylink('(import "env" "memory" (memory 0))', needs))


def test_pickled_modules_share_a_memory_again(movable: Path) -> None:
    first = wasm.load(movable, memory_limit=1 << 24, timeout=3)
    again, other = pickle.loads(pickle.dumps((first, wasm.load(movable, memory=first, timeout=3))))
    assert again.home is again
    assert other.home is again
    assert again.timeout == other.timeout == 3
    assert again.arena.limit == 1 << 24
    assert again.memory.address != first.memory.address
    assert again.exports == first.exports
    for module in (first, other):  # counters of their own, from the start
        out = module.allocate(Desc("int32", (1,)))
        bind(module, "count", {}, (out,), "out*")()
        assert out.tolist() == [41]
