"""Numbers beyond float64 as attributes, and shapes that shape rules return."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opweave as ow

X = np.ones(4, "float32")


@ow.expression
def scaled(x: Any, *, k: float = 1.0) -> Any:
    return x * k


@ow.composite
def linear(b: Any, x: Any, *, k: float = 1.0) -> Any:
    return b.linear(x, alpha=k)


@ow.op
def product(self: Any, x: ow.MLOperand, *, k: float = 1.0) -> ow.Desc:
    return x.desc


@product.kernel("cpu")
def _(x: Any, k: float, out: Any) -> None:
    out[...] = x * k


@ow.expression
def whole(x: Any, *, k: int = 1) -> Any:
    return x * k


@pytest.mark.parametrize("value", [10**400, -(10**400), 10**5000], ids=["large", "negative", "5000 digits"])
@pytest.mark.parametrize("operation", [scaled, linear, product], ids=["expression", "composite", "op"])
def test_attributes_reject_numbers_beyond_float64(operation: Any, value: int) -> None:
    with pytest.raises(
        ow.ValidationError, match=rf"{operation.name}.*: k must be in the range of float64, got an integer of"
    ):
        operation(X, k=value)
    np.testing.assert_array_equal(np.asarray(operation(X, k=2)), 2 * X)


@pytest.mark.parametrize("value", [10**400, 10**5000], ids=["large", "5000 digits"])
def test_expressions_reject_constants_beyond_float64(value: int) -> None:
    with pytest.raises(ow.ValidationError, match=r"an integer of .* bits is not a value of float32"):
        whole(X, k=value)


def test_indices_of_any_size_are_out_of_range() -> None:
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
    with pytest.raises(ow.ValidationError, match="index an integer of 16,610 bits is out of range for axis 0"):
        builder.input("x", "float32", [4])[10**5000]


def declared(desc: Any) -> Any:
    @ow.op
    def shaped(self: Any, x: ow.MLOperand) -> ow.Desc:
        return desc

    @shaped.kernel("cpu")
    def _(x: Any, out: Any) -> None:
        out[...] = 1

    return shaped


@pytest.mark.parametrize(
    "shape",
    [
        *(
            (1.5,),
            (2.0,),
            (True,),
            (np.True_,),
            (np.float64(2),),
            (np.array(2.5),),
            (None,),
            ("2",),
            ((2,),),
            (float("nan"),),
        ),
        *("2", None, 2, [2], range(2, 3), iter((2,)), np.array([2]), {2}),
    ],
    # Processes must collect tests of the same names: `str` of an iterator has its address.
    ids=lambda shape: type(shape).__name__ if hasattr(shape, "__next__") else str(shape),
)
def test_shape_rules_must_return_tuples_of_integers(shape: Any) -> None:
    with pytest.raises(
        ow.ValidationError,
        match=r"^shaped: the shape rule must return a data type of WebNN and a tuple of integers, got Desc",
    ):
        declared(ow.Desc("float32", shape))(X)


@pytest.mark.parametrize(
    "data_type", ["float99", None, 5, np.float32, np.dtype("float32"), ["float32"], ("float32",)], ids=str
)
def test_shape_rules_must_return_data_types(data_type: Any) -> None:
    with pytest.raises(ow.ValidationError, match=r"^shaped: the shape rule must return a data type of WebNN"):
        declared(ow.Desc(data_type, (2,)))(X)


@pytest.mark.parametrize(
    "shape",
    [(0,), (-1,), (2**31,), (2**70,), (10**5000,), (2, 0)],
    ids=["0", "-1", "2^31", "2^70", "5000 digits", "one of two"],
)
def test_shape_rules_must_return_dimensions_in_range(shape: Any) -> None:
    operation = declared(ow.Desc("float32", shape))
    x = ow.MLGraphBuilder(ow.ml.create_context(device="cpu")).input("x", "float32", [4])
    with pytest.raises(ow.ValidationError, match=r"^shaped: the result must have dimensions in"):
        operation(x)
    if 0 not in shape:  # arrays may be empty
        with pytest.raises(ow.ValidationError, match=r"^shaped: the result must have dimensions in"):
            operation(X)


@pytest.mark.parametrize("size", [np.int64(2), np.int32(2), np.uint8(2), 2], ids=lambda size: type(size).__name__)
def test_shape_rules_may_return_integers_of_numpy(size: Any) -> None:
    operation = declared(ow.Desc("float32", (size, size)))
    np.testing.assert_array_equal(np.asarray(operation(X)), np.ones((2, 2), "float32"))
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="cpu"))
    y = operation(builder.input("x", "float32", [4]))
    assert [type(each) for each in y.shape] == [int, int]
