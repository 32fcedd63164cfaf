"""Operations called on arrays: memory of others is safe, errors tell the call, threads share arrays, memory is given back."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from functools import partial
from threading import Thread
from typing import Any
from weakref import ref

import numpy as np
import pytest
from op_level_fixtures import from_zero  # noqa: F401  (by pytestmark)
from support.threads import together

import opweave as ow
from opweave.lazy import array as arrays, call as calls, force

STATISTICS = ow.lazy.statistics

pytestmark = pytest.mark.usefixtures("from_zero")


# ---------------------------------------------------------------------------------------------------------------------
# Memory of others


def test_pending_operation_makes_its_array_read_only() -> None:
    mine = np.ones(3, "float32")
    y = ow.ops.relu(mine) + 1
    with pytest.raises(ValueError, match="read-only"):
        mine[0] = 5
    assert y.tolist() == [2, 2, 2]
    mine[0] = 5
    y = ow.ops.neg(mine)
    del y
    mine[0] = 6
    view = ow.array(mine, copy=False)
    with pytest.raises(ValueError, match="read-only"):
        mine[0] = 7
    assert np.shares_memory(view.numpy(), mine)
    del view
    mine[0] = 7


def test_shared_memory_is_writable_after_last_reader() -> None:
    whole = np.ones((2, 3), "float32")
    part = whole[1]
    with ow.ml.create_context(device="reference"):
        first = ow.ops.relu(part)
    second = ow.ops.relu(whole)
    third = ow.ops.relu(part)
    del first
    assert not part.flags.writeable
    assert not whole.flags.writeable
    third.numpy()
    assert not part.flags.writeable
    del second
    assert part.flags.writeable
    assert whole.flags.writeable


def test_read_only_arrays_stay_so() -> None:
    mine = np.ones(3, "float32")
    mine.flags.writeable = False
    ow.ops.relu(mine).numpy()
    assert not mine.flags.writeable


def test_write_tensor_follows_pending_reads() -> None:
    context = ow.ml.create_context(device="cpu")
    source, target = (context.create_tensor("float32", [2], readable=True, writable=True) for _ in range(2))
    builder = ow.MLGraphBuilder(context)
    graph = builder.build({"y": builder.input("x", "float32", [2]) + 1.0})
    context.write_tensor(source, np.float32([1, 2]))
    seen = []
    for number in range(4):
        seen.append((ow.ops.neg(source), [-number - 1, -number - 2]))
        held = ow.array(target, copy=False)
        seen.append((held * 2, (2 * target.numpy()).tolist()))
        context.dispatch(graph, {"x": source}, {"y": target})
        assert not seen[-1][0].pending
        assert seen[-2][0].pending
        context.write_tensor(source, np.float32([number + 2, number + 3]))
        assert not seen[-2][0].pending
    for array, expected in seen:
        assert array.tolist() == expected
    assert ow.array(source).context is context


def test_write_tensor_fails_while_its_reader_fails() -> None:
    context = ow.ml.create_context(device="cpu")
    tensor = context.create_tensor("float32", [1], readable=True, writable=True)
    array = failing(ow.array(tensor, copy=False))
    for _ in range(2):
        with pytest.raises(ow.OperationError, match="the kernel raised RuntimeError: no"):
            context.write_tensor(tensor, np.float32([1]))
    del array
    context.write_tensor(tensor, np.float32([1]))


# ---------------------------------------------------------------------------------------------------------------------
# Errors when values are read


@ow.op
def failing(self: Any, x: ow.MLOperand, when: float = 0.0) -> ow.Desc:
    return x.desc


@failing.kernel("cpu")
def _(x: np.ndarray, when: float, out: np.ndarray) -> None:
    if x.flat[0] == when:
        raise RuntimeError("no")
    out[...] = x


@pytest.mark.parametrize("at_once", [True, False])
def test_error_names_call(at_once: bool) -> None:
    ow.lazy.compile_now(at_once)
    x = ow.array([1.0])
    good = failing(x, when=7.0, label="good")
    y = x - 1
    bad = failing(y, label="second"); line = sys._getframe().f_lineno  # fmt: skip  # noqa: E702
    result = good + bad
    for _ in range(2):
        with pytest.raises(ow.OperationError) as caught:
            result.numpy()
        text = str(caught.value)
        assert text.startswith("failing 'second': the kernel raised RuntimeError: no")
        assert text.endswith(f"(called in test_op_level_safety.py, line {line})")
        assert text.count("called in") == 1
        assert isinstance(caught.value.__cause__, RuntimeError)
        assert result.pending
        assert bad.pending
    assert y.tolist() == [0.0]
    assert good.tolist() == [1.0]
    assert (good * 2).tolist() == [2.0]
    with pytest.raises(ow.OperationError, match=rf"^failing 'second': .*line {line}\)$"):
        bad.numpy()


def test_pending_array_of_lost_context() -> None:
    context = ow.ml.create_context(device="cpu")
    with context:
        y = ow.array([1.0]) + 1
    context.destroy()
    with pytest.raises(ow.InvalidStateError, match="the context is lost"):
        y.numpy()
    assert (ow.array([1.0]) + 1).tolist() == [2.0]


def test_operation_rejects_arrays_of_two_contexts() -> None:
    with ow.ml.create_context(device="reference") as reference:
        a = ow.array([1.0]) + 1
    assert a.context is reference
    b = ow.array([1.0])
    for call in (lambda: a + b, lambda: ow.ops.concat([b, a], 0)):
        with pytest.raises(ow.ValidationError, match="the operands belong to several contexts"):
            call()
    assert [values.tolist() for values in ow.read(a, b + 1, a * 2)] == [[2.0], [2.0], [4.0]]


# ---------------------------------------------------------------------------------------------------------------------
# Threads


def test_threads_share_arrays() -> None:
    mine = np.linspace(-1, 1, 64, dtype="float32").reshape(8, 8)
    shared = ow.ops.tanh(mine) @ mine
    expected = np.tanh(mine) @ mine

    def work(seed: int) -> None:
        for turn in range(30):
            number = float(turn % 3 + seed % 2)
            y = shared * number + ow.ops.relu(mine)
            if turn % 4 == seed % 4:
                shared.numpy()
            np.testing.assert_allclose(y.numpy(), expected * number + np.maximum(mine, 0), rtol=1e-4, atol=1e-5)

    together(*(partial(work, seed) for seed in range(6)))
    assert not shared.pending


def test_threads_write_tensors_between_reads() -> None:
    context = ow.ml.create_context(device="cpu")
    tensor = context.create_tensor("float32", [256], readable=True, writable=True)
    stop = False

    def write() -> None:
        number = 0
        while not stop:
            number += 1
            context.write_tensor(tensor, np.full(256, number, "float32"))

    writer = Thread(target=write)
    writer.start()
    try:
        for _ in range(200):
            values = (ow.ops.relu(tensor) + 1).numpy()
            assert values.min() == values.max()
    finally:
        stop = True
        writer.join()


# ---------------------------------------------------------------------------------------------------------------------
# Memory


def test_unread_chain_runs_at_longest_length() -> None:
    x = ow.array([0.0])
    for _ in range(3 * arrays.LONGEST):
        x = x + 1
    assert STATISTICS.operations + STATISTICS.graphs > arrays.LONGEST
    assert x.item() == 3 * arrays.LONGEST


def test_result_releases_its_sources() -> None:
    mine = np.ones(1000, "float32")
    first = ow.ops.relu(mine)
    second = first + 1
    result = second * 2
    watched: list[Any] = [ref(first), ref(second), ref(mine)]
    del first, second, mine
    result.numpy()
    assert [array() for array in watched] == [None] * 3


def test_dropped_custom_operation_is_freed() -> None:
    def make() -> Any:
        big = np.ones(1000)

        @ow.op
        def temporary(self: Any, x: ow.MLOperand) -> ow.Desc:
            return x.desc

        @temporary.kernel("cpu")
        def _(x: np.ndarray, out: np.ndarray) -> None:
            out[...] = x + big[0]

        assert temporary(ow.array([1.0])).tolist() == [2.0]
        return ref(temporary)

    made = [make() for _ in range(4)]
    force.singles.clear()
    gc.collect()
    assert [op() for op in made] == [None] * 4


def test_caches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    caches = (ow.ops.neg.templates, arrays.codes, calls.kinds, calls.scalars, force.singles, force.graphs)
    for cache in caches:
        monkeypatch.setattr(cache, "max_entries", 16)
    adopted = []
    for size in range(1, 60):
        x = np.ones(size, "float32")
        adopted.append(ref(x))
        assert (ow.ops.neg(x) + float(size)).tolist() == [size - 1.0] * size
    assert [cache.statistics.entries for cache in caches] == [16] * len(caches)
    del x
    assert [array for array in adopted if array() is not None] == []


@pytest.mark.long
def test_memory_stays_flat() -> None:
    x, w = ow.array(np.ones((4, 4), "float32")), np.full((4, 4), 0.25, "float32")

    def work(count: int) -> None:
        y = x
        for number in range(count):
            y = (y @ w).relu() * 0.5 + float(number % 7)
            a, _ = ow.ops.split(y, 2)
            if number % 10 == 0:
                ow.read(a, y)

    work(300)
    ow.lazy.wait()
    work(300)
    gc.collect()
    tracemalloc.start()
    try:
        work(200)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        work(1500)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 50_000


def test_threads_sharing_memory_leave_it_writable() -> None:
    mine = np.ones(16, "float32")
    references = sys.getrefcount(mine)

    def work() -> None:
        for _ in range(400):
            pending = ow.ops.neg(mine)
            assert not mine.flags.writeable
            assert pending.numpy()[0] == -1
            del pending

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        together(*[work] * 4)
    finally:
        sys.setswitchinterval(interval)
    assert mine.flags.writeable
    assert sys.getrefcount(mine) == references
