"""Custom operations called on arrays, tensors and operands; their parameters, attributes and limits."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import weakref
from typing import Any, Literal

import numpy as np
import pytest
from custom_operations import BOTH, CPU, REFERENCE, add_one, rms_norm, rng, top_k

import opweave as ow


def test_custom_call_on_arrays() -> None:
    values, indices = top_k(np.float32([[1, 3, 2], [5, 4, 6]]), 2)
    assert values.tolist() == [[3, 2], [6, 5]]
    assert indices.tolist() == [[1, 2], [2, 0]]
    assert indices.dtype == np.int32


def test_custom_call_on_tensors() -> None:
    x = REFERENCE.tensor_from(np.float32([1, 2]))
    y = add_one(x)
    assert isinstance(y, ow.MLTensor)
    assert y.context is REFERENCE
    assert y.numpy().tolist() == [2, 3]
    with pytest.raises(ow.ValidationError, match="rms_norm: the operands belong to several contexts"):
        rms_norm(x, CPU.tensor_from(np.float32([1, 2])))


@BOTH
def test_custom_call_on_operands(context: ow.MLContext) -> None:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [2, 4])
    y = rms_norm(add_one(x, label="mine"), np.ones(4, "float32"), epsilon=0.5)
    assert y.node is not None
    assert y.node.op is rms_norm
    assert y.node.attributes == {"epsilon": 0.5}
    graph = builder.build({"y": y})
    data = rng.standard_normal((2, 4)).astype("float32")
    moved = data + 1
    wanted = moved / np.sqrt((moved**2).mean(-1, keepdims=True) + 0.5)
    np.testing.assert_allclose(context.compute(graph, {"x": data})["y"], wanted, rtol=1e-6)


def test_called_again_it_is_compiled_once() -> None:
    calls = []

    @ow.op
    def counted(self, x, *, mode: str = "a"):  # type: ignore[no-untyped-def]
        calls.append(x.shape)
        return x.desc

    counted.kernel("cpu", lambda x, out: np.copyto(out, x))
    for _ in range(3):
        counted(np.float32([1, 2]))
        counted(np.float32([1, 2]), mode="b")
        counted(np.float32([1, 2, 3]))
    assert calls == [(2,), (2,), (3,)]


def test_custom_call_numbers_take_type_of_operands() -> None:
    @ow.composite
    def scaled(b, x, y):  # type: ignore[no-untyped-def]
        return x * y

    assert scaled(np.float32([1, 2]), 3).tolist() == [3, 6]
    with pytest.raises(ow.ValidationError, match=r"scaled: .*2\.5 is not a value of int32"):
        scaled(np.int32([1, 2]), 2.5)
    with pytest.raises(ow.ValidationError, match="scaled: at least one operand must be an array"):
        scaled(1, 2)


def test_custom_call_with_one_tensor_twice() -> None:
    @ow.expression
    def product(a, b):  # type: ignore[no-untyped-def]
        return a * b

    three, four = (CPU.tensor_from(np.float32([number])) for number in (3, 4))
    assert product(three, three).numpy().tolist() == [9]
    assert product(three, four).numpy().tolist() == [12]
    assert product(three, three).numpy().tolist() == [9]


@pytest.mark.parametrize("attribute", [False, True])
def test_values_that_are_equal_and_not_the_same(attribute: bool) -> None:
    @ow.expression
    def product(x, y):  # type: ignore[no-untyped-def]
        return x * y

    @ow.expression
    def scaled(x, *, by: float):  # type: ignore[no-untyped-def]
        return x * by

    one = np.float32([1])
    signs = [np.signbit(scaled(one, by=y) if attribute else product(one, y)).tolist() for y in (0.0, -0.0, 0.0)]
    assert signs == [[False], [True], [False]]

    @ow.expression
    def first(x, *, of):  # type: ignore[no-untyped-def]
        return ow.expr.cast(x, "float32") * 0 + (2 if isinstance(of[0], bool) else of[0])

    assert [first(one, of=of).tolist() for of in ((1,), (True,), (1,))] == [[1], [2], [1]]


@pytest.mark.parametrize("form", ["decompose", "expression", "kernel"])
def test_custom_operation_declared_again(form: str) -> None:
    @ow.op
    def changing(self, x):  # type: ignore[no-untyped-def]
        return x.desc

    def declare(number: int) -> None:
        if form == "decompose":
            changing.decompose(lambda b, x: x + number)
        elif form == "expression":
            changing.expression(lambda x: x + number)
        else:
            changing.kernel("cpu", lambda x, out: np.copyto(out, x + number))

    one = np.float32([1])
    for number in (1, 2, 3):
        declare(number)
        assert [changing(one).tolist() for _ in range(2)] == [[1 + number]] * 2
        assert changing(CPU.tensor_from(one)).numpy().tolist() == [1 + number]


def test_operations_are_pickled_and_copied_by_name() -> None:
    assert pickle.loads(pickle.dumps([top_k, rms_norm])) == [top_k, rms_norm]
    assert copy.deepcopy({"op": top_k})["op"] is top_k
    assert copy.copy(rms_norm) is rms_norm


def test_operations_that_are_forgotten_go() -> None:
    def used() -> weakref.ref[Any]:
        @ow.op
        def passing(self, x):  # type: ignore[no-untyped-def]
            return x.desc

        passing.kernel("cpu", lambda x, out: np.copyto(out, x))
        assert passing(np.float32([1])).tolist() == [1]
        return weakref.ref(passing)

    before = used()
    for number in range(1024):  # back ends remember the limits of this many operations
        CPU.backend.limits(ow.op(eval("lambda self, x: x.desc", {"number": number})))
    gc.collect()
    assert before() is None


def test_sequences_and_absent_operands() -> None:
    @ow.op
    def total(self, parts: list[ow.MLOperand], scale: ow.MLOperand | None = None):  # type: ignore[no-untyped-def]
        return parts[0].desc

    @total.kernel("cpu")
    def _(parts: tuple[np.ndarray, ...], scale: np.ndarray | None, out: np.ndarray) -> None:
        np.copyto(out, sum(parts))
        if scale is not None:
            np.multiply(out, scale, out=out)

    ones = np.ones(2, "float32")
    assert total([ones, ones, ones]).tolist() == [3, 3]
    assert total([ones, ones], ones * 2).tolist() == [4, 4]
    builder = ow.MLGraphBuilder(CPU)
    x = builder.input("x", "float32", [2])
    graph = builder.build({"y": total([x, x, ones], scale=x)})
    assert CPU.compute(graph, {"x": ones * 3})["y"].tolist() == [21, 21]


def test_attributes_are_converted_by_their_annotation() -> None:
    @ow.op
    def typed(  # type: ignore[no-untyped-def]
        self, x, *, count: int = 1, scale: float = 1.0, flag: bool = False, mode: Literal["a", "b"] = "a", pads=(0, 0)
    ):
        seen.append((count, scale, flag, mode, pads))
        return x.desc

    seen: list[Any] = []
    typed.kernel("cpu", lambda x, out: np.copyto(out, x))
    x = np.float32([1])
    typed(x, count=np.int64(-3), scale=2, flag=True, mode="b", pads=[1, 2])
    assert seen == [(-3, 2.0, True, "b", (1, 2))]
    for wrong, rule in [
        ({"count": 2.5}, "count must be of type int, got 2.5"),
        ({"count": True}, "count must be of type int, got True"),
        ({"scale": "x"}, "scale must be of type float, got 'x'"),
        ({"flag": 1}, "flag must be of type bool, got 1"),
        ({"mode": "c"}, "mode must be 'a' or 'b', got 'c'"),
        ({"nonsense": 1}, "has no argument 'nonsense'; it takes x, count, scale, flag, mode, pads, label"),
    ]:
        with pytest.raises(ow.ValidationError) as caught:
            typed(x, **wrong, label="l")
        assert str(caught.value) == f"typed 'l': {rule}"


def test_annotations_are_read_as_they_are_meant() -> None:
    alias = ow.MLOperand
    choice = Literal["v1.0", "v2.0"]

    def rule(self, x, kind="v1.0", count=1):  # type: ignore[no-untyped-def]
        return x.desc

    rule.__annotations__ = {"x": alias, "kind": choice, "count": Literal[1, 2]}
    versioned = ow.op(rule)
    versioned.kernel("cpu", lambda x, kind, count, out: np.copyto(out, x * float(kind[1:]) * count))
    assert versioned.operands == ("x",)
    assert versioned(np.float32([3]), "v2.0", count=2).tolist() == [12]
    with pytest.raises(ow.ValidationError, match=r"rule 'l': kind must be 'v1.0' or 'v2.0', got 'v3.0'"):
        versioned(np.float32([1]), "v3.0", label="l")
    with pytest.raises(ow.ValidationError, match="rule: count must be 1 or 2, got True"):
        versioned(np.float32([1]), count=True)
    assert str(inspect.signature(add_one)) == "(self, /, x, *, label: 'str' = '') -> 'MLOperand'"


def test_limits_are_checked() -> None:
    @ow.op(x=ow.Limits(("float32",), ranks=(2, 2)))
    def matrix_only(self, x):  # type: ignore[no-untyped-def]
        return x.desc

    with pytest.raises(ow.ValidationError, match=r"matrix_only 'm': x must have rank 2, got float32\[3\]"):
        matrix_only(np.float32([1, 2, 3]), label="m")
    with pytest.raises(ow.ValidationError, match=r"matrix_only: x must be float32, got int32\[1, 1\]"):
        matrix_only(np.int32([[1]]))
