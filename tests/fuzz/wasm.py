"""WebAssembly modules: mutants of whole ones, and random code. Each is refused, or runs, and touches its own memory alone."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import wasmtime
from support.wasm_corpus import CALLS, LOADS
from support.wasm_tools import bind, inside, wat, whole

import opweave as ow
from fuzz.frame import Campaign, Finding
from opweave.core.graph import Desc
from opweave.kernels import wasm

MEMORY_LIMIT = 1 << 23
TIMEOUT_SECONDS = 0.05
MESSAGE = 1000
"""How many characters the message of an error may have."""
RESIDENT_KIB = 1 << 20
"""The most memory, in KiB, that a process may ever have had: libraries, and a few modules of at most 8 MiB."""

NUMBERS = ["0", "1", "-1", "2", "8", "63", "65532", "65535", "65536", "0x7fffffff", "-0x80000000", "-4", "1024"]
BINARY = ["add", "sub", "mul", "div_s", "div_u", "rem_s", "rem_u", "and", "or", "xor", "shl", "shr_u", "rotl", "lt_s"]
UNARY = ["clz", "ctz", "popcnt", "eqz", "extend8_s"]


@cache
def sources() -> list[bytes]:
    """Modules that work, and those of the tests, which misbehave."""
    library = Path(ow.__file__).parent / "kernels/wasm/library/kernels.wasm"
    texts = [whole(hostile.text) for hostile in [*CALLS, *LOADS] if "60000" not in hostile.text]
    return [library.read_bytes(), *(bytes(wasmtime.wat2wasm(text)) for text in texts)]


class Code:
    """Random code of functions that take a pointer and return nothing; it is valid, and may trap or run for ever."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def value(self, depth: int) -> str:
        """An expression of type i32."""
        rng, inner = self.rng, depth - 1
        if depth == 0:
            return rng.choice(
                [f"(i32.const {rng.choice(NUMBERS)})", f"(local.get {rng.randrange(3)})", "(global.get $g)"]
            )
        match rng.randrange(9):
            case 0 | 1 | 2:
                return f"(i32.{rng.choice(BINARY)} {self.value(inner)} {self.value(inner)})"
            case 3:
                return f"(i32.{rng.choice(UNARY)} {self.value(inner)})"
            case 4:
                kind = rng.choice(["load", "load8_s", "load16_u"])
                return f"(i32.{kind} offset={rng.choice([0, 1, 4, 65535, 2**32 - 1])} {self.value(inner)})"
            case 5:
                return f"(if (result i32) {self.value(inner)} (then {self.value(inner)}) (else {self.value(inner)}))"
            case 6:
                return f"(call $inner {self.value(inner)})"
            case 7:
                return rng.choice(["(memory.size)", f"(memory.grow {self.value(inner)})"])
            case _:
                return f"(call_indirect (type $t) {self.value(inner)} {self.value(inner)})"

    def step(self, depth: int) -> str:
        """A statement."""
        rng, inner = self.rng, depth - 1
        match rng.randrange(7) if depth else 0:
            case 0:
                return f"(local.set {rng.randrange(3)} {self.value(min(depth, 2))})"
            case 1 | 2:
                return f"(i32.store{rng.choice(['', '8', '16'])} {self.value(inner)} {self.value(inner)})"
            case 3:
                return f"(if {self.value(inner)} (then {self.step(inner)}) (else {self.step(inner)}))"
            case 4:
                return f"(loop {self.step(inner)} (br_if 0 {self.value(inner)}))"
            case 5:
                return f"(memory.{rng.choice(['fill', 'copy'])} {' '.join(self.value(inner) for _ in range(3))})"
            case _:
                return f"(global.set $g {self.value(inner)})"

    def module(self) -> bytes:
        """A module with one exported function, one that it calls, and a table of both kinds."""
        steps = " ".join(self.step(self.rng.randint(1, 4)) for _ in range(self.rng.randint(1, 4)))
        text = f"""(module (memory (export "memory") 1) (type $t (func (param i32) (result i32)))
            (global $g (mut i32) (i32.const 7)) (table 3 funcref) (elem (i32.const 0) func $inner)
            (func $inner (param i32) (result i32) (local i32 i32) {self.value(2)})
            (func (export "f") (param i32) (local i32 i32) {steps}))"""
        return bytes(wasmtime.wat2wasm(text))


def mutate(rng: random.Random, source: bytes) -> bytes:
    """The module with one to four changes of bytes, most of them behind the header."""
    data = bytearray(source)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(min(8, len(data) - 1) if rng.random() < 0.95 else 0, len(data))
        match rng.randrange(5):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at] = rng.choice([0, 0x7F, 0x80, 0xFF, 0x0B, rng.randrange(256)])
            case 2:
                del data[at : at + rng.randint(1, 4)]
            case 3:
                data[at:at] = data[at : at + rng.randint(1, 16)]
            case _:
                data[at : at + 1] = b"\xff\xff\xff\xff\x0f"  # the largest length
        if len(data) < 2:
            break
    return bytes(data)


def module_of(rng: random.Random, number: int) -> bytes:
    """The bytes of a case: random code, a mutant of it, or a mutant of a known module."""
    match number % 4:
        case 0:
            return Code(rng).module()
        case 1:
            return mutate(rng, Code(rng).module())
    return mutate(rng, rng.choice(sources()))


@cache
def bystander() -> tuple[Any, np.ndarray]:
    """A module that does nothing wrong, and an array in its memory."""
    module = wat('(func (export "f") (param i32) (i32.store (local.get 0) (i32.const 4)))', memory_limit=MEMORY_LIMIT)
    return module, inside(module, np.arange(100, dtype="int32"))


def run(data: bytes) -> str:
    """Load a module, and call what it exports; what came of it."""
    try:
        module = wasm.load(data, memory_limit=MEMORY_LIMIT, timeout=TIMEOUT_SECONDS)
    except ow.MLError as error:
        check_message(error)
        return f"load: {type(error).__name__}"
    word = "result"
    for name in list(module.exports)[:4]:
        try:
            bind(module, name, {}, (module.allocate(Desc("int32", (4,))),), "out*")()
        except ow.MLError as error:
            check_message(error)
            word = f"call: {type(error).__name__}"
    if module.memory.size > MEMORY_LIMIT:
        raise Finding(f"the memory has {module.memory.size} bytes, and the limit is {MEMORY_LIMIT}")
    return word


def check_message(error: ow.MLError) -> None:
    """Require a message of one line."""
    text = str(error)
    if not text.strip() or "\n" in text or len(text) > MESSAGE:
        raise Finding(f"{type(error).__name__} with {len(text)} characters: {text[:300]!r}")


def peak_kib() -> int:
    """The most memory that this process has had resident: getrusage would tell the parent's, where that was larger."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))


def case(rng: random.Random, number: int) -> str:
    """Load and call a module; another one, and an array in its memory, must not notice."""
    module, kept = bystander()
    word = run(module_of(rng, number))
    if not np.array_equal(kept, np.arange(100)):
        raise Finding("an array in the memory of another module has changed")
    out = module.allocate(Desc("int32", (1,)))
    bind(module, "f", {}, (out,), "out*")()
    if out.tolist() != [4]:
        raise Finding(f"another module gives {out.tolist()} instead of [4]")
    used = peak_kib()
    if used > RESIDENT_KIB:
        raise Finding(f"the process has used {used} KiB of memory")
    return word


def write(rng: random.Random, number: int, stem: Path) -> list[Path]:
    path = stem.with_suffix(".wasm")
    path.write_bytes(module_of(rng, number))
    return [path]


CAMPAIGNS = {
    "wasm": Campaign(
        "wasm",
        "WebAssembly modules: mutants of valid ones, and random code, beside an intact module",
        case,
        count=100_000,
        short=60,
        batch=200,
        memory=None,  # Wasmtime reserves address space for each memory
        outcomes=frozenset(
            {"result", *(f"{when}: {what}Error" for when in ("load", "call") for what in ("Data", "Operation"))}
            | {"call: ValidationError"}
        ),
        write=write,
    )
}
