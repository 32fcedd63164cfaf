"""Linked images of object files: what they compute, beside LLVM's own loader, and what memory they lie in."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("halide", reason="needs the extra halide")
pytest.importorskip("llvmlite", reason="needs the extra halide")

from opweave.expr.halide.elf import is_elf, link
from opweave.expr.halide.image import Code, load, pack, with_header
from opweave.expr.halide.objects import assemble
from opweave.support.errors import OperationError

NUMBER = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)

FIRST = """
@count = global i64 5
@zeros = internal global [3000 x i64] zeroinitializer
@table = internal constant [3 x ptr] [ptr @double_it, ptr @"square it", ptr @labs]
@floats = internal constant [4 x double] [double 1.5, double 2.5, double 3.5, double 4.5]
@shared = external global i64
declare i64 @labs(i64)
declare i64 @llabs(i64)
declare i64 @of_the_other(i64)
define internal i64 @double_it(i64 %x) { %y = mul i64 %x, 2  ret i64 %y }
define i64 @"square it"(i64 %x) { %y = mul i64 %x, %x  ret i64 %y }
define i64 @through_a_table(i64 %k) {
  %at = getelementptr [3 x ptr], ptr @table, i64 0, i64 %k
  %f = load ptr, ptr %at
  %y = call i64 %f(i64 -7)
  ret i64 %y
}
define i64 @counting(i64 %x) {
  %old = load i64, ptr @count
  %new = add i64 %old, %x
  store i64 %new, ptr @count
  %at = getelementptr [3000 x i64], ptr @zeros, i64 0, i64 %x
  %zero = load i64, ptr %at
  %y = add i64 %new, %zero
  store i64 100, ptr %at
  ret i64 %y
}
define i64 @constants(i64 %k) {
  %at = getelementptr [4 x double], ptr @floats, i64 0, i64 %k
  %f = load double, ptr %at
  %g = fmul double %f, 10.0
  %y = fptosi double %g to i64
  ret i64 %y
}
define i64 @outside(i64 %x) { %y = call i64 @llabs(i64 %x)  ret i64 %y }
define i64 @other(i64 %x) { %y = call i64 @of_the_other(i64 %x)  ret i64 %y }
define i64 @variable_of_the_other(i64 %x) { %s = load i64, ptr @shared  %y = add i64 %s, %x  ret i64 %y }
"""

SECOND = """
@shared = global i64 1000
declare i64 @"square it"(i64)
define i64 @of_the_other(i64 %x) { %y = call i64 @"square it"(i64 %x)  %z = add i64 %y, 1  ret i64 %z }
"""

CALLS = {
    "through_a_table": (0, 1, 2),
    "counting": (1, 1, 2999),
    "constants": (0, 1, 2, 3),
    "outside": (-9,),
    "other": (6,),
    "variable_of_the_other": (5,),
}


def outside(name: str) -> int:
    return ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value or 0


def results(code: Code) -> dict[str, list[int]]:
    return {name: [NUMBER(code.address(name))(argument) for argument in given] for name, given in CALLS.items()}


@pytest.fixture
def files() -> list[bytes]:
    found = [assemble(FIRST), assemble(SECOND)]
    if not all(map(is_elf, found)):
        pytest.skip("object files of this system are linked by llvmlite")
    return found


def test_image_results_equal_object_files(files: list[bytes]) -> None:
    theirs = load(with_header({"objects": [len(data) for data in files]}, b"".join(files)), outside)
    expected = results(theirs)
    assert expected["through_a_table"] == [-14, 49, 7]
    assert expected["counting"] == [6, 107, 3006]
    for order in (files, files[::-1]):
        assert results(load(pack(order), outside)) == expected


def test_images_have_variables_of_their_own(files: list[bytes]) -> None:
    data = pack(files)
    codes = [load(data, outside) for _ in range(3)]
    assert [results(code)["counting"] for code in codes] == [[6, 107, 3006]] * 3
    child = os.fork()
    if child == 0:
        os._exit(NUMBER(codes[0].address("counting"))(4) == 3010)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert NUMBER(codes[0].address("counting"))(5) == 3011  # not what the child counted


def permissions(address: int) -> str:
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(part, 16) for part in line.split()[0].split("-"))
        if first <= address < last:
            return line.split()[1]
    return ""


def test_image_memory_permissions(files: list[bytes]) -> None:
    code = load(pack(files), outside)
    assert permissions(code.address("counting")) == "r-xp"
    assert permissions(code.address("count")) == "rw-p"
    assert code.address("nothing") == 0


def test_load_names_missing_function() -> None:
    code = """
declare i64 @no_such_function(i64)
define i64 @f(i64 %x) { %y = call i64 @no_such_function(i64 %x)  ret i64 %y }
"""
    with pytest.raises(
        OperationError, match=r"^compiled code needs no_such_function, which this system does not have$"
    ):
        load(pack([assemble(code)]), lambda name: 0)


REFUSED = {
    "@v = thread_local global i64 1": "compiled code has variables of threads, in .tdata",
    "@v = external global i64\n@a = global ptr getelementptr (i8, ptr @v, i64 8)": "a place inside of v, which is not",
    "@v = common global i64 0\ndefine ptr @f() { ret ptr @v }": "compiled code refers to v, which is not part of it",
}


@pytest.mark.parametrize("code", REFUSED)
def test_link_rejects_unknown_code(code: str) -> None:
    with pytest.raises(OperationError, match=REFUSED[code]):
        link([assemble(code)])


def test_code_for_one_address_is_refused() -> None:
    import llvmlite.binding as llvm

    machine = llvm.Target.from_default_triple().create_target_machine(reloc="static", codemodel="small")
    with pytest.raises(OperationError, match=r"compiled code refers to \d+ in an unknown way, relocation 1\d"):
        link([machine.emit_object(llvm.parse_assembly(FIRST))])


REFUSING = """
import ctypes, sys, numpy as np
libc = ctypes.CDLL(None)
if libc.prctl(65, 1, 0, 0, 0):  # PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN
    sys.exit("no such option")
import opweave.expr as ex
from opweave.expr.kernels import compile
from opweave.core.graph import Desc
kernel = compile(ex.trace(lambda x: x * 3, "p", [Desc("float32", (4,))]))
y = np.zeros(4, "float32")
kernel.run([np.ones(4, "float32")], [y])
print(y.tolist(), kernel.detail)
"""


@pytest.mark.long
def test_numpy_is_used_if_memory_cannot_be_executable(files: list[bytes]) -> None:
    done = subprocess.run([sys.executable, "-c", REFUSING], capture_output=True, text=True)
    if done.stderr.strip() == "no such option":
        pytest.skip("needs Linux 6.3")
    assert (done.stderr, done.stdout[:21]) == ("", "[3.0, 3.0, 3.0, 3.0] ")
    assert "NumPy; this system does not let memory be made executable: Permission denied" in done.stdout
