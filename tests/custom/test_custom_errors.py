"""Kernels, declarations, rules and calls that are wrong: each is told with its operation, label and line."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from custom_operations import CPU, add_one, message, rms_norm, top_k

import opweave as ow


def faulty(kind: str) -> Any:
    @ow.op
    def faulty(self, x):  # type: ignore[no-untyped-def]
        return x.desc

    @faulty.kernel("cpu")
    def _(x: np.ndarray, out: np.ndarray) -> Any:
        if x[0] > 0:
            np.copyto(out, x)
        elif kind == "raises":
            np.zeros(3)[7] = 1
        elif kind == "returns":
            np.copyto(out, x)
            return x
        elif kind == "rebinds":
            out = x + 1
        elif kind == "writes in place":
            x[0] = 1
        return None

    return faulty


DEFINITION = " (test_custom_errors.py, line N: def _(x: np.ndarray, out: np.ndarray) -> Any:)"


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        (
            "raises",
            "the kernel raised IndexError: index 7 is out of bounds for axis 0 with size 3 "
            "(test_custom_errors.py, line N: np.zeros(3)[7] = 1)",
        ),
        ("returns", f"a kernel fills out and returns None, got ndarray{DEFINITION}"),
        (
            "rebinds",
            "the kernel did not write to out; assign to its elements (out[...] = …), an array that is only bound to the name "
            f"is lost{DEFINITION}",
        ),
        (
            "writes in place",
            "the kernel raised ValueError: assignment destination is read-only (test_custom_errors.py, line N: x[0] = 1)",
        ),
    ],
)
def test_graph_works_after_kernel_error(kind: str, rule: str) -> None:
    builder = ow.MLGraphBuilder(CPU)
    graph = builder.build({"y": faulty(kind)(builder.input("x", "float32", [2]) * 1, label="f").relu()})
    with pytest.raises(ow.OperationError) as caught:
        CPU.compute(graph, {"x": np.float32([-1, 2])})
    assert message(caught.value) == f"faulty 'f': {rule}"
    assert CPU.compute(graph, {"x": np.float32([1, 2])})["y"].tolist() == [1, 2]


@pytest.mark.parametrize("byte", [0xA5, 0x5A])
def test_results_may_hold_any_bytes(byte: int) -> None:
    @ow.op
    def passing(self, x):  # type: ignore[no-untyped-def]
        return x.desc

    passing.kernel("cpu", lambda x, out: np.copyto(out, x))
    assert passing(np.uint8([byte, byte])).tolist() == [byte, byte]


def test_kernels_that_are_no_plain_functions() -> None:
    class Scale:
        def __call__(self, x: np.ndarray, out: np.ndarray) -> None:
            np.multiply(x, 2, out=out)

        def negate(self, x: np.ndarray, out: np.ndarray) -> None:
            np.negative(x, out=out)

    def power(exponent: int, x: np.ndarray, out: np.ndarray) -> None:
        np.power(x, exponent, out=out)

    for kernel, expected in ((Scale(), 6), (Scale().negate, -3), (functools.partial(power, 2), 9)):

        @ow.op
        def any_kernel(self, x):  # type: ignore[no-untyped-def]
            return x.desc

        any_kernel.kernel("cpu", kernel)
        builder = ow.MLGraphBuilder(CPU)
        graph = builder.build({"y": any_kernel(builder.input("x", "float32", [1]))})
        assert CPU.compute(graph, {"x": np.float32([3])})["y"].tolist() == [expected]
        assert "Python kernel, test_custom_errors.py:" in graph.explain()


def test_kernel_that_dispatches_its_own_graph() -> None:
    @ow.op
    def again(self, x):  # type: ignore[no-untyped-def]
        return x.desc

    again.kernel("cpu", lambda x, out: CPU.compute(graph, {"x": np.float32([1, 2])}))  # type: ignore[call-overload,has-type]
    builder = ow.MLGraphBuilder(CPU)
    graph = builder.build({"y": again(builder.input("x", "float32", [2])) + 1})
    with pytest.raises(ow.OperationError, match="again: the graph is dispatched by one of its own kernels"):
        CPU.compute(graph, {"x": np.float32([1, 2])})


def test_declarations_that_are_wrong() -> None:
    with pytest.raises(ow.ValidationError, match="top_k: kernels are for 'cpu', 'wasm', 'webgpu', 'cuda', got 'gpu'"):
        top_k.kernel("gpu", lambda x, k, out: None)  # type: ignore[call-overload]
    with pytest.raises(
        ow.ValidationError, match=r"top_k: a kernel takes the operation's parameters and out, got \(x, k\)"
    ):
        top_k.kernel("cpu", lambda x, k: None)

    @ow.op
    def misnamed(self, x):  # type: ignore[no-untyped-def]
        return x.desc

    with pytest.raises(ow.ValidationError, match="misnamed: a kernel is a function, got None"):
        misnamed.kernel("cpu", None)  # type: ignore[call-overload]
    with pytest.raises(ow.ValidationError, match=r"misnamed: the function takes \['z'\]; the operation has \['x'\]"):
        misnamed.decompose(lambda b, z: z)
    with pytest.raises(ow.ValidationError, match=r"misnamed: the function takes \['z'\]; the operation has \['x'\]"):
        misnamed.expression(lambda z: z)
    misnamed.kernel("cpu", lambda y, out: None)
    with pytest.raises(
        ow.ValidationError, match=r"misnamed: the kernel takes \['y'\]; the operation has \['x', 'out'\]"
    ):
        misnamed(np.float32([1]))
    with pytest.raises(ow.ValidationError, match=r"varied: parameters must be named, got \*x; annotate several"):

        @ow.op
        def varied(self, *x):  # type: ignore[no-untyped-def]
            return x[0].desc


@pytest.mark.parametrize("declare", [ow.op, ow.expression, ow.composite])
def test_declarations_that_are_no_functions(declare: Any) -> None:
    for what in (functools.partial(print, 1), None, add_one, ow.Limits()):
        with pytest.raises(ow.ValidationError, match="an operation is declared by a function with a name, got"):
            declare(what) if what is not None else declare(3)


def test_rules_and_limits_that_are_wrong() -> None:
    with pytest.raises(ow.ValidationError, match=r"unbound: the first parameter is the builder, got x: .*MLOperand"):

        @ow.op
        def unbound(x: ow.MLOperand):  # type: ignore[no-untyped-def]
            return x.desc

    @ow.op
    def empty(self, x):  # type: ignore[no-untyped-def]
        return ()

    with pytest.raises(
        ow.ValidationError, match=r"empty 'e': the shape rule must return a Desc, or a tuple of them, got \(\)"
    ):
        empty(np.float32([1]), label="e")
    for wrong in (ow.Desc("float31", (2,)), ow.Desc("float32", (2.5,)), ow.Desc("float32", [2])):

        @ow.op
        def shaped(self, x: ow.MLOperand, *, desc=wrong):  # type: ignore[no-untyped-def]
            return desc

        with pytest.raises(ow.ValidationError) as refused:
            shaped(np.float32([1]), label="s")
        assert (
            f"shaped 's': the shape rule must return a data type of WebNN and a tuple of integers, got {wrong!r}"
            in str(refused.value)
        )
    for limits, rule in (
        ({"z": ow.Limits()}, r"limits are for the operands \['x'\], got 'z'"),
        ({"x": ("float32",)}, r"x must be opweave.Limits, got \('float32',\)"),
        (
            {"x": ow.Limits("float32")},
            "data_types of x must be a tuple of data types, or the name of an operand, got 'float32'",
        ),
        (
            {"x": ow.Limits(ranks=2)},
            "ranks of x must be the smallest and the largest rank, or the name of an operand, got 2",
        ),
    ):
        with pytest.raises(ow.ValidationError, match=f"limited: {rule}"):

            @ow.op(**limits)
            def limited(self, x):  # type: ignore[no-untyped-def]
                return x.desc


def test_attributes_by_name_may_leave_out_those_before() -> None:
    @ow.op
    def affine(self, x: ow.MLOperand, scale: int = 2, offset: int = 3):  # type: ignore[no-untyped-def]
        return x.desc

    affine.kernel("cpu", lambda x, scale, offset, out: np.copyto(out, x * scale + offset))
    assert affine(np.float32([1]), offset=7).tolist() == [9]


def test_calls_that_are_wrong() -> None:
    one = np.float32([1])
    for call, rule in (
        (lambda: add_one(one, one, label="a"), "takes 1 positional argument, got 2"),
        (lambda: add_one(one, x=one, label="a"), "x is given twice"),
        (lambda: add_one(np.zeros((1,) * 9, "float32"), label="a"), "x must have at most 8 dimensions, got 9"),
        (lambda: add_one(np.float64([1]), label="a"), "x: float64 is not a data type of WebNN"),
        (lambda: add_one(3, label="a"), "at least one operand must be an array"),
    ):
        with pytest.raises(ow.ValidationError, match=f"^add_one 'a': {rule}"):
            call()  # type: ignore[no-untyped-call]


def test_custom_operation_without_implementation() -> None:
    @ow.op
    def nothing(self, x):  # type: ignore[no-untyped-def]
        return x.desc

    with pytest.raises(
        ow.NotSupportedError, match=r"nothing 'n': .* has no rule for float32\[1\], and the operation has no"
    ):
        nothing(np.float32([1]), label="n")
    assert repr(nothing) == "<CustomOp nothing: nothing that computes it>"


def test_errors_in_rules_and_composites_show_the_line() -> None:
    with pytest.raises(ow.ValidationError) as caught:
        rms_norm(np.ones((2, 4), "float32"), np.ones(3, "float32"), label="rn")
    assert message(caught.value) == (
        "rms_norm 'rn': mul: the shapes of a and b do not broadcast: [2, 4] and [3] "
        "(custom_operations.py, line N: return x / b.sqrt(mean + epsilon) * weight)"
    )
    with pytest.raises(ow.ValidationError) as caught:
        top_k(np.float32([1, 2]), 3, label="t")
    assert message(caught.value).startswith(
        "top_k 't': k must be in [1, 2], got 3 (custom_operations.py, line N: require("
    )

    @ow.op
    def broken(self, x):  # type: ignore[no-untyped-def]
        return x.shape[5]

    with pytest.raises(IndexError) as found:
        broken(np.float32([1]))
    assert message(ValueError(found.value.__notes__[0])) == (
        "in the shape rule of broken (test_custom_errors.py, line N: return x.shape[5])"
    )

    @ow.op
    def shape_only(self, x):  # type: ignore[no-untyped-def]
        return x.shape

    with pytest.raises(
        ow.ValidationError, match="shape_only: the shape rule must return a Desc, or a tuple of them, got 1"
    ):
        shape_only(np.float32([1]))

    @ow.composite
    def stray(b, x):  # type: ignore[no-untyped-def]
        return 3

    with pytest.raises(ow.ValidationError, match="stray: a composite must return operands that it built, got 3"):
        stray(np.float32([1]))
