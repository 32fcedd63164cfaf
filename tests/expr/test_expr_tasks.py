"""How compiled loops are divided into parallel tasks: by their work, not by the number of processors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import opweave.expr as ex
from opweave.core.graph import Desc
from opweave.expr import Traced, trace

pytest.importorskip("halide", reason="needs the extra halide")
pytest.importorskip("llvmlite", reason="needs the extra halide")

from halide_code import recorded

from opweave.expr.halide import compile
from opweave.expr.halide.schedule import TASK_OPERATIONS, task_count

LOOPS: dict[str, Callable[[Traced], Traced]] = {
    "element by element": lambda x: x * 1.5 + 2,
    "sums of rows": lambda x: ex.reduce_sum(x * x, [1]),
    "sums of columns": lambda x: ex.reduce_sum(x * x, [0]),
    "rows": lambda x: x / ex.reduce_sum(x, [1], keep_dimensions=True),
}


def is_parallel(
    function: Callable[[Traced], Traced], elements: int, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> bool:
    """Whether the compiled code of a function of [64, elements // 64] starts tasks."""
    made = recorded(monkeypatch, cache)
    compile(trace(function, "loop", [Desc("float32", (64, elements // 64))]))
    assert made
    return any("call i32 @halide_do_par_for" in code for code in made)


@pytest.mark.parametrize("what", LOOPS)
def test_small_loops_run_in_calling_thread(what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert not is_parallel(LOOPS[what], 2**14, monkeypatch, tmp_path)
    assert is_parallel(LOOPS[what], 2**20, monkeypatch, tmp_path)


def test_dear_functions_are_divided_sooner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert not is_parallel(lambda x: x + 1, 2**15, monkeypatch, tmp_path)
    assert is_parallel(lambda x: ex.exp(ex.tanh(x)), 2**15, monkeypatch, tmp_path)


def test_task_count_grows_with_work() -> None:
    counts = [task_count(work) for work in range(0, 40 * TASK_OPERATIONS, TASK_OPERATIONS // 3)]
    assert counts[0] == 1
    assert counts == sorted(counts)
    assert all(count & (count - 1) == 0 for count in counts)
    assert all(task_count(work) * TASK_OPERATIONS <= max(work, TASK_OPERATIONS) for work in range(0, 10**7, 99_999))
