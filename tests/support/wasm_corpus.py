"""Hostile WebAssembly: modules that do everything wrong, and what must come of it.

As a script it runs all of them in its own process, with `faulthandler` (which replaces signal handlers) never enabled,
enabled before the first module, or after it: `python -m support.wasm_corpus never|before|after`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

RECURSION = "(func $f (param i64) (result i64) (i64.add (i64.const 1) (call $f (i64.add (local.get 0) (i64.const 1)))))"


@dataclass(frozen=True)
class Hostile:
    """A module whose function `f` misbehaves when it is called with a pointer to one element.

    Attributes:
        name: what it does.
        text: the module, without its memory if that has one page.
        message: what the error says, as a regular expression; empty where the call must just come back.
    """

    name: str
    text: str
    message: str

    @property
    def timeout(self) -> float:
        """Seconds: short where it must stop the function, else what no machine needs."""
        return 0.2 if "timeout" in self.message else 60.0


CALLS = [
    Hostile("a loop without end", '(func (export "f") (param i32) (loop (br 0)))', "longer than its timeout of 0.2 s"),
    Hostile(
        "two functions that call each other in a loop",
        '(func $g (param i32)) (func (export "f") (param i32) (loop (call $g (local.get 0)) (br 0)))',
        "longer than its timeout of 0.2 s",
    ),
    Hostile(
        "recursion without end",
        f'{RECURSION} (func (export "f") (param i32) (drop (call $f (i64.const 0))))',
        "stack overflow",
    ),
    Hostile(
        "tail calls without end",
        '(func $g (param i32) (return_call $g (local.get 0))) (func (export "f") (param i32) (call $g (i32.const 1)))',
        "longer than its timeout",
    ),
    Hostile(
        "memory that grows and is touched",
        """(func (export "f") (param i32) (local $page i32)
             (loop (if (i32.ne (local.tee $page (memory.grow (i32.const 16))) (i32.const -1)) (then
               (memory.fill (i32.mul (local.get $page) (i32.const 65536)) (i32.const 1) (i32.const 1048576)) (br 1)))))""",
        "",
    ),
    Hostile(
        "a table that grows",
        """(table $t 1 funcref) (func (export "f") (param i32)
             (loop (br_if 0 (i32.ne (table.grow $t (ref.null func) (i32.const 100000)) (i32.const -1)))))""",
        "",
    ),
    Hostile(
        "a store beyond",
        '(func (export "f") (param i32) (i32.store (i32.const -4) (i32.const 1)))',
        "memory out of bounds",
    ),
    Hostile(
        "a store one byte beyond",
        """(func (export "f") (param i32)
             (i32.store (i32.sub (i32.shl (memory.size) (i32.const 16)) (i32.const 3)) (i32.const 1)))""",
        "memory out of bounds",
    ),
    Hostile(
        "a load far beyond",
        '(func (export "f") (param i32) (drop (i64.load offset=0xffffffff (i32.const -1))))',
        "memory out of bounds",
    ),
    Hostile(
        "a vector stored beyond",
        '(func (export "f") (param i32) (v128.store (i32.const 0x7ffffff8) (v128.const i64x2 1 2)))',
        "memory out of bounds",
    ),
    Hostile(
        "a fill beyond",
        '(func (export "f") (param i32) (memory.fill (i32.const 65535) (i32.const 1) (i32.const -1)))',
        "memory out of bounds",
    ),
    Hostile(
        "a copy from beyond",
        '(func (export "f") (param i32) (memory.copy (i32.const 0) (i32.const -2) (i32.const 65536)))',
        "memory out of bounds",
    ),
    Hostile("unreachable", '(func (export "f") (param i32) unreachable)', "unreachable"),
    Hostile(
        "a division by zero",
        '(func (export "f") (param i32) (drop (i32.div_s (i32.const 1) (i32.const 0))))',
        "integer division by zero",
    ),
    Hostile(
        "a division that overflows",
        '(func (export "f") (param i32) (drop (i32.div_s (i32.const 0x80000000) (i32.const -1))))',
        "integer overflow",
    ),
    Hostile(
        "NaN as an integer",
        '(func (export "f") (param i32) (drop (i32.trunc_f32_s (f32.const nan))))',
        "bad conversion to integer",
    ),
    Hostile(
        "a call of nothing",
        '(type $t (func)) (table 2 funcref) (func (export "f") (param i32) (call_indirect (type $t) (i32.const 1)))',
        "indirect call to null",
    ),
    Hostile(
        "a call beyond the table",
        '(type $t (func)) (table 2 funcref) (func (export "f") (param i32) (call_indirect (type $t) (i32.const 9)))',
        "table out of bounds",
    ),
    Hostile(
        "a call of another kind of function",
        """(type $t (func (result f64))) (table funcref (elem $g)) (func $g)
           (func (export "f") (param i32) (drop (call_indirect (type $t) (i32.const 0))))""",
        "bad signature",
    ),
    Hostile(
        "a wide store beyond",
        '(memory (export "memory") i64 1) (func (export "f") (param i64) (i64.store (i64.const -8) (i64.const 1)))',
        "memory out of bounds",
    ),
    Hostile(
        "a wide store into what is only reserved",
        '(memory (export "memory") i64 1) (func (export "f") (param i64) (i64.store (i64.const 0x300000) (i64.const 1)))',
        "memory out of bounds",
    ),
]

LOADS = [
    Hostile(
        "imports that there are not",
        '(import "env" "log" (func)) (import "env" "x" (global i32))',
        "imports env.log, env.x; there is",
    ),
    Hostile(
        "WASI",
        '(import "wasi_snapshot_preview1" "fd_write" (func (param i32 i32 i32 i32) (result i32)))',
        "imports wasi_snapshot_preview1.fd_write; .*WASI is not offered",
    ),
    Hostile("a function called memory", '(import "env" "memory" (func (param v128)))', "imports env.memory"),
    Hostile(
        "a start function without end",
        "(func $s (loop (br 0))) (start $s)",
        "its start function ran longer than its timeout",
    ),
    Hostile(
        "a start function that traps", "(func $s unreachable) (start $s)", "its start function trapped: unreachable"
    ),
    Hostile("an initialiser without end", '(func (export "_initialize") (loop (br 0)))', "ran longer than its timeout"),
    Hostile("a segment beyond the memory", '(data (i32.const 65530) "beyond the end")', "a segment lies outside"),
    Hostile(
        "a segment beyond the table",
        "(table 1 funcref) (func $f) (elem (i32.const 3) func $f)",
        "a segment lies outside",
    ),
    Hostile(
        "a huge memory", '(memory (export "memory") 65536)', "memory minimum size of 65536 pages exceeds memory limits"
    ),
    Hostile("a wide, huge memory", '(memory (export "memory") i64 0x1000000000000)', "memory|reserv|limit"),
    Hostile("a huge table", "(table 2000000 funcref)", "table minimum size of 2000000 elements exceeds table limits"),
    Hostile(
        "a shared memory", '(memory (export "memory") 1 2 shared)', "is not a valid module: threads must be enabled"
    ),
    Hostile("several memories", '(memory (export "memory") 1) (memory 1)', "is not a valid module: multiple memories"),
    Hostile("types of a collected heap", "(type (struct))", "is not a valid module"),
    Hostile("a private memory", "(memory 1)", "must export its memory"),
    Hostile("too many locals", f"(func (local {'v128 ' * 60000}))", "is not a valid module: too many locals"),
    Hostile("a global without exports", '(import "env" "memory" (memory 1)) (global (mut i32) (i32.const 1))', ""),
    Hostile("a stack pointer that is a vector", "(global $__stack_pointer (mut v128) (v128.const i64x2 1 2))", ""),
    Hostile("a stack pointer that is none", '(func (export "__stack_pointer")) (global (mut i32) (i32.const 1))', ""),
]


def _main(order: str) -> None:
    import faulthandler
    import re

    import opweave as ow
    from opweave.core.graph import Desc
    from support.wasm_tools import bind, wat

    if order == "before":
        faulthandler.enable()
    one = Desc("int32", (1,))
    kept = wat("").allocate(one)
    kept[:] = 5
    if order == "after":
        faulthandler.enable()
    for case in [*LOADS, *CALLS]:
        message = ""
        try:
            module = wat(case.text, memory_limit=1 << 23, timeout=case.timeout)
            if case in CALLS:
                bind(module, "f", {}, (module.allocate(one),), "out*")()
        except ow.MLError as error:
            message = str(error)
        assert re.search(case.message, message) if case.message else not message, (case.name, message)
        assert "\n" not in message, message
        assert kept.tolist() == [5]
    assert faulthandler.is_enabled() == (order != "never")
    print("all came back")


if __name__ == "__main__":
    _main(sys.argv[1])
