"""Calls of a session that repeat the last one, on the same arrays or on others."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from support.onnx import model, node
from support.threads import together

import opweave as ow

SIZE = 1 << 16


def square_model() -> bytes:
    """Compute `y = x * x + c` and `z = relu(x)`."""
    nodes = [node("Mul", "x x", "s"), node("Add", "s c", "y"), node("Relu", "x", "z")]
    value = f"float32[{SIZE}]"
    return model(nodes, {"x": value, "c": value}, {"y": value, "z": value}).SerializeToString()


class Case:
    """A session that has been called on the same arrays."""

    def __init__(self) -> None:
        self.session = ow.InferenceSession(square_model(), ow.ml.create_context(device="cpu"), fallback="error")
        self.feed = {"x": np.arange(-SIZE / 2, SIZE / 2, dtype=np.float32), "c": np.ones(SIZE, np.float32)}
        self.out = {"y": np.empty(SIZE, np.float32), "z": np.empty(SIZE, np.float32)}
        for _ in range(4):
            self.run()

    def run(self) -> None:
        """Run, and check what comes."""
        for array in self.out.values():
            if array.flags.writeable:
                array.fill(np.nan)
        y, z = self.session.run(None, self.feed, out=self.out)
        assert y is self.out["y"]
        assert z is self.out["z"]
        self.check()

    def check(self) -> None:
        x, c = self.feed["x"].reshape(-1), self.feed["c"].reshape(-1)
        np.testing.assert_array_equal(self.out["y"], x * x + c)
        np.testing.assert_array_equal(self.out["z"], np.maximum(x, 0))


@pytest.fixture
def case() -> Case:
    return Case()


def test_repeated_run_reads_changed_contents(case: Case) -> None:
    case.feed["x"] *= 3
    case.feed["c"][:] = 7
    case.run()


def test_run_some_outputs_in_other_order(case: Case) -> None:
    for _ in range(4):
        (z, y) = case.session.run(["z", "y"], case.feed, out=case.out)
    assert z is case.out["z"]
    assert y is case.out["y"]
    case.feed["x"] += 1
    (found,) = case.session.run(["y"], case.feed, out=case.out)
    assert found is case.out["y"]
    case.check()


def test_run_without_out_returns_new_arrays(case: Case) -> None:
    first, second = (case.session.run(None, case.feed) for _ in range(2))
    assert not np.may_share_memory(first[0], second[0])
    assert not np.may_share_memory(first[0], case.out["y"])
    case.run()


def test_run_output_twice_returns_two_arrays(case: Case) -> None:
    for _ in range(4):  # the later calls are repetitions
        first, other, second = case.session.run(["y", "z", "y"], case.feed)
        np.testing.assert_array_equal(first, second)
        assert not any(np.may_share_memory(a, b) for a, b in ((first, second), (first, other), (second, other)))


def test_run_results_outlive_session(case: Case) -> None:
    found = [case.session.run(["z", "y"], case.feed) for _ in range(3)]
    x, c = case.feed["x"], case.feed["c"]
    del case.session
    gc.collect()
    for z, y in found:
        np.testing.assert_array_equal(y, x * x + c)
        np.testing.assert_array_equal(z, np.maximum(x, 0))
        assert y.flags.carray


@pytest.mark.parametrize("name", ["x", "c", "y", "z"])
def test_repeated_run_follows_replaced_array(case: Case, name: str) -> None:
    arrays = case.feed if name in case.feed else case.out
    arrays[name] = arrays[name] + 2
    for _ in range(4):
        case.run()


@pytest.mark.parametrize("name", ["x", "y"])
def test_repeated_run_keeps_no_arrays(case: Case, name: str) -> None:
    arrays = case.feed if name in case.feed else case.out
    alive = weakref.ref(arrays[name])
    del arrays[name]
    gc.collect()
    assert alive() is None
    arrays[name] = np.full(SIZE, 2, np.float32)
    case.run()


@pytest.mark.parametrize("name", ["x", "c", "y", "z"])
def test_repeated_run_with_resized_array(case: Case, name: str) -> None:
    array = (case.feed if name in case.feed else case.out)[name]
    address = array.ctypes.data
    for doublings in range(1, 9):  # up to 64 MiB
        array.resize(SIZE << doublings, refcheck=False)
        if array.ctypes.data != address:
            break
    else:
        pytest.skip("the allocator extended the array where it was each time")
    kept = [np.full(SIZE, 5, np.float32) for _ in range(8)]  # some of them take the memory that the array had
    array.resize(SIZE, refcheck=False)
    assert array.ctypes.data != address
    array.fill(2)
    case.run()
    assert all((other == 5).all() for other in kept)


def refused(case: Case, message: str) -> None:
    with pytest.raises(ow.ValidationError, match=message):
        case.session.run(None, case.feed, out=case.out)


def changed(array: np.ndarray, name: str, value: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        setattr(array, name, value)


@pytest.mark.parametrize("name", ["x", "y"])
def test_repeated_run_rejects_wrong_shape(case: Case, name: str) -> None:
    changed((case.feed if name in case.feed else case.out)[name], "shape", (2, SIZE // 2))
    refused(case, rf"must have shape \[{SIZE}\], got \[2, {SIZE // 2}\]")


@pytest.mark.parametrize("name", ["x", "y"])
def test_repeated_run_rejects_wrong_dtype(case: Case, name: str) -> None:
    changed((case.feed if name in case.feed else case.out)[name], "dtype", np.int32)
    refused(case, "got an array of int32")


def test_repeated_run_rejects_read_only_out(case: Case) -> None:
    case.out["y"].flags.writeable = False
    refused(case, "must be C-contiguous, aligned and writable, got C-contiguous=True, aligned=True, writable=False")


def test_repeated_run_with_other_strides(case: Case) -> None:
    changed(case.feed["x"], "strides", (0,))
    case.run()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda case: case.feed.pop("c"), "missing: .'c'."),
        (lambda case: case.feed.update(w=case.feed["c"]), "unknown: .'w'."),
        (lambda case: case.out.update(w=case.out["y"]), "unknown: .'w'."),
        (lambda case: case.out.update(y=case.feed["x"]), "overlaps"),
        (lambda case: case.out.update(y=case.out["z"]), "overlaps"),
        (lambda case: case.feed.update(x=None), "got an array of object"),
    ],
)
def test_repeated_run_rejects_invalid_arguments(case: Case, change: Callable[[Case], object], message: str) -> None:
    change(case)
    refused(case, message)


def test_repeated_run_rejects_lost_context(case: Case) -> None:
    case.session.context.destroy()
    with pytest.raises(ow.InvalidStateError):
        case.session.run(None, case.feed, out=case.out)


def test_repeated_run_in_threads_with_own_arrays() -> None:
    session = Case().session

    def work(number: int) -> None:
        feed = {"x": np.full(SIZE, number, np.float32), "c": np.full(SIZE, 1, np.float32)}
        out = {"y": np.empty(SIZE, np.float32), "z": np.empty(SIZE, np.float32)}
        for turn in range(100):
            feed["c"].fill(turn)
            session.run(None, feed, out=out)
            assert (out["y"] == number * number + turn).all()
            assert (out["z"] == max(number, 0)).all()

    together(*(partial(work, number) for number in (-2, 3, 5)))
