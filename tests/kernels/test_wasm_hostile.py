"""Modules that misbehave, and processes and tensors that survive them."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wasmtime
from support.wasm_corpus import CALLS, LOADS, RECURSION, Hostile
from support.wasm_tools import bind, inside, wat

import opweave as ow
from opweave.core.graph import Desc
from opweave.kernels import wasm
from opweave.kernels.wasm.engine import TICK, ticker, ticks

FILL = """(func (export "fill") (param i32 i32) (memory.fill (local.get 0) (i32.const 3) (local.get 1)))"""


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("order", ["never", "before", "after"])
def test_traps_with_faulthandler(order: str) -> None:
    """Signal handlers of others come and go, and must not matter."""
    command = [sys.executable, "-m", "support.wasm_corpus", order]
    result = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, "all came back\n"), result.stderr


@pytest.mark.parametrize("case", CALLS, ids=lambda case: case.name)
def test_call_errors(case: Hostile) -> None:
    text = f"{case.text} {FILL if 'i64 1' not in case.text else ''}"
    module = wat(text, memory_limit=1 << 23, timeout=case.timeout)
    kept, out = inside(module, np.arange(100, dtype="float32")), module.allocate(Desc("int8", (500,)))
    run = bind(module, "f", {}, (out,), "out*")
    for _ in range(2):
        if case.message:
            with pytest.raises(ow.OperationError, match=f"^thing 'mine': f of {module.name} .*{case.message}"):
                run()
        else:
            run()
    assert module.memory.size <= 1 << 23
    assert kept.tolist() == list(range(100))
    if "fill" in module.exports:  # it works on
        bind(module, "fill", {}, (out,), "out*, out.size")()
        assert set(out) == {3}


@pytest.mark.parametrize("case", LOADS, ids=lambda case: case.name)
def test_load_rejects_hostile_module(case: Hostile) -> None:
    options: dict[str, Any] = {"memory_limit": 1 << 23, "timeout": case.timeout}
    if not case.message:
        wat(case.text, **options)
        return
    with pytest.raises((ow.DataError, ow.OperationError), match=case.message) as caught:
        wat(case.text, **options)
    limits = ("trapped", "timeout", "exceeds")
    assert isinstance(caught.value, ow.OperationError) == any(word in str(caught.value) for word in limits), (
        caught.value
    )


@pytest.mark.parametrize("named", [True, False], ids=["names", "stripped"])
@pytest.mark.parametrize("imported", ["", '(import "env" "memory" (memory 1))'], ids=["own memory", "imported memory"])
def test_trap_restores_stack_pointer(named: bool, imported: str) -> None:
    """A function takes a frame of its stack in linear memory and traps: a thousand times, the stack would be used up."""
    text = f"""{imported} (global $__stack_pointer (mut i32) (i32.const 4096)) (global $count (mut i32) (i32.const 0))
        (func (export "f") (param i32 i32)
          (global.set $__stack_pointer (i32.sub (global.get $__stack_pointer) (i32.const 64)))
          (global.set $count (i32.add (global.get $count) (i32.const 1)))
          (i32.store (global.get $__stack_pointer) (i32.div_u (i32.const 1) (local.get 0)))
          (i32.store (local.get 1) (global.get $__stack_pointer))
          (i32.store offset=4 (local.get 1) (global.get $count))
          (global.set $__stack_pointer (i32.add (global.get $__stack_pointer) (i32.const 64))))"""
    if not named:  # as a linker strips them
        for number, name in enumerate(("$__stack_pointer", "$count")):
            text = text.replace(f"(global {name}", "(global").replace(name, str(number))
    module = wat(text)
    out = module.allocate(Desc("int32", (2,)))
    failing, working = (bind(module, "f", {}, (out,), "divisor, out*", divisor=divisor) for divisor in (0, 1))
    for _ in range(1000):
        with pytest.raises(ow.OperationError, match="integer division by zero"):
            failing()
    working()
    assert out.tolist() == [4096 - 64, 1001], "the stack is back, other state is as the function left it"


def test_globals_of_all_kinds_do_not_disturb() -> None:
    module = wat("""(import "env" "memory" (memory 1))
        (global v128 (v128.const i64x2 1 2)) (global (mut funcref) (ref.null func)) (global f64 (f64.const 1))
        (global $__stack_pointer (mut i64) (i64.const -5)) (global (mut externref) (ref.null extern))
        (func $g) (elem declare func $g) (global funcref (ref.func $g)) (global (export "g") v128 (v128.const i64x2 1 2))
        (func (export "vector") (param v128) (result v128) (local.get 0))
        (func (export "f") (param i32) unreachable)""")
    assert str(module.exports["vector"]) == "(v128) -> v128"
    with pytest.raises(ow.OperationError, match="unreachable"):
        bind(module, "f", {}, (module.allocate(Desc("int8", (1,))),), "out*")()


def test_errors_name_the_functions() -> None:
    module = wat("""(func $inner unreachable) (func (param i32) (call $inner)) (export "f" (func 1))""")
    with pytest.raises(ow.OperationError) as caught:
        bind(module, "f", {}, (module.allocate(Desc("int8", (1,))),), "out*")()
    assert str(caught.value) == f"thing 'mine': f of {module.name} trapped: unreachable (in inner, called by f)"


def test_stack_overflow_in_small_thread() -> None:
    module = wat(f'{RECURSION} (func (export "f") (param i32) (drop (call $f (i64.const 0))))')
    run = bind(module, "f", {}, (module.allocate(Desc("int8", (1,))),), "out*")
    messages = []

    def work() -> None:
        try:
            run()
        except ow.OperationError as error:
            messages.append(str(error))

    before = threading.stack_size(512 * 1024)
    try:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    assert "stack overflow" in messages[0]


def test_wrong_signature_stays_within_memory() -> None:
    """Whatever pointer a function makes up, it reaches its own memory only."""
    module = wat('(func (export "f") (param i32 i32) (i32.store (local.get 1) (i32.const 7)))')
    other = wat("")
    kept, out = inside(other, np.arange(50, dtype="int32")), module.allocate(Desc("int32", (1,)))
    reachable = module.memory.size
    for address in (0, 65532, reachable, reachable - 3, 2**31, 2**32 - 4):
        run = bind(module, "f", {}, (out,), "out*, address", address=address)
        if address <= reachable - 4:
            run()
        else:
            with pytest.raises(ow.OperationError, match="memory out of bounds"):
                run()
    assert kept.tolist() == list(range(50))


def test_timeouts_are_for_each_call() -> None:
    """Calls that are short are not stopped, however many there are; one that is long is, also after them."""
    module = wat('(func (export "spin") (param i32 i32) (if (i32.eqz (local.get 1)) (then (loop (br 0)))))', timeout=60)
    out = module.allocate(Desc("int8", (1,)))
    short, long = (bind(module, "spin", {}, (out,), "out*, n", n=n) for n in (1, 0))
    ended = threading.Event()

    def pass_a_minute() -> None:
        """Without waiting for it."""
        for _ in range(ticks(60)):
            ticker.tick()

    def hurry() -> None:
        while not ended.is_set():
            pass_a_minute()

    for _ in range(3):
        short()
        pass_a_minute()
    clock = threading.Thread(target=hurry)
    clock.start()
    try:
        for _ in range(2):
            with pytest.raises(ow.OperationError, match=r"longer than its timeout of 60 s"):
                long()
    finally:
        ended.set()
        clock.join()
    short()


def test_timeout_after_fork() -> None:
    """A thread does not survive `fork`; the one that ticks is started again."""
    code = """
import os, sys
sys.path.insert(0, sys.argv[1])
import opweave as ow
from support.wasm_tools import bind, wat
from opweave.core.graph import Desc
module = wat('(func (export "f") (param i32) (loop (br 0)))', timeout=0.05)
run = bind(module, "f", {}, (module.allocate(Desc("int8", (1,))),), "out*")
def stopped():
    try:
        run()
    except ow.OperationError:
        return True
assert stopped()
child = os.fork()
if child == 0:
    os._exit(7 if stopped() else 1)
assert os.waitpid(child, 0)[1] >> 8 == 7
assert stopped()
print("ticks")
"""
    folder = str(Path(__file__).parents[1])
    result = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, timeout=600)
    assert result.stdout == "ticks\n", result.stderr


def test_ticker_sleeps_when_idle() -> None:
    module = wat('(func (export "f") (param i32))')
    run = bind(module, "f", {}, (module.allocate(Desc("int8", (1,))),), "out*")
    run()
    deadline = time.monotonic() + 60
    while ticker.awake.is_set() and time.monotonic() < deadline:
        time.sleep(TICK)
    before = ticker.now
    time.sleep(10 * TICK)
    assert ticker.now == before
    assert not ticker.running


def test_module_without_timeout_is_not_interrupted() -> None:
    module = wat('(func (export "f") (param i32) (i32.store8 (local.get 0) (i32.const 4)))', timeout=None)
    out = module.allocate(Desc("int8", (1,)))
    bind(module, "f", {}, (out,), "out*")()
    assert out.tolist() == [4]
    assert wasm.load(bytes(wasmtime.wat2wasm('(module (memory (export "memory") 1))')), timeout=None).timeout is None
