"""`einsum` of arrays, against NumPy."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import opweave as ow
from opweave import array_api as xp

RNG = np.random.default_rng(3)

ROWS: list[tuple[str, list[tuple[int, ...]]]] = [
    ("ij,jk->ik", [(2, 3), (3, 4)]),
    ("ij,jk", [(2, 3), (3, 4)]),
    ("ij,kj->ki", [(2, 3), (4, 3)]),
    ("bij,bjk->bik", [(2, 2, 3), (2, 3, 4)]),
    ("bhqd,bhkd->bhqk", [(2, 2, 3, 4), (2, 2, 5, 4)]),
    ("...ij,...jk->...ik", [(2, 1, 2, 3), (4, 3, 2)]),
    ("i...,i...", [(3, 2), (3, 2)]),
    ("...,...", [(2, 3), (3,)]),
    ("ij->ji", [(2, 3)]),
    ("ba", [(2, 3)]),
    ("ij->", [(2, 3)]),
    ("ij->j", [(2, 3)]),
    ("ii", [(3, 3)]),
    ("ii->i", [(3, 3)]),
    ("iji->j", [(3, 2, 3)]),
    ("iii->i", [(3, 3, 3)]),
    ("ii,ij->j", [(3, 3), (3, 2)]),
    ("i,j->ij", [(2,), (3,)]),
    ("i,i", [(3,), (3,)]),
    (",i->i", [(), (3,)]),
    (",", [(), ()]),
    ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 2)]),
    ("ij,ij,ij->i", [(2, 3)] * 3),
    ("ij,jk->ik", [(2, 1), (3, 4)]),
    ("aB,Bc -> c a", [(2, 3), (3, 4)]),
    ("ij,jk->ik", [(0, 3), (3, 4)]),
    ("ij,jk->ik", [(2, 0), (0, 4)]),
    ("ij,ij->j", [(1, 3), (0, 3)]),
]


@pytest.mark.parametrize("data_type", ["float32", "float64", "int8", "uint8", "int64", "complex64"])
@pytest.mark.parametrize("row", range(len(ROWS)), ids=[f"{row} {shapes}" for row, shapes in ROWS])
def test_einsum_equals_numpy(row: int, data_type: str) -> None:
    formula, shapes = ROWS[row]
    operands: list[Any] = [RNG.normal(size=shape) * 5 for shape in shapes]
    if data_type.startswith("complex"):
        operands = [x + 1j * RNG.normal(size=x.shape) for x in operands]
    if data_type == "uint8":
        operands = [np.abs(x) for x in operands]
    operands = [np.asarray(x).astype(data_type) for x in operands]
    result = np.asarray(xp.einsum(formula, *map(xp.asarray, operands)))
    want = np.einsum(formula, *operands)
    assert (result.dtype, result.shape) == (want.dtype, want.shape)
    np.testing.assert_allclose(result, want, rtol=1e-4 if data_type in ("float32", "complex64") else 1e-11, atol=1e-4)


def test_einsum_takes_lists_of_labels() -> None:
    a, b = (RNG.normal(size=(3, 3)).astype("float32") for _ in range(2))
    x, y = xp.asarray(a), xp.asarray(b)
    for labels in (([0, 1], [1, 2], [0, 2]), ([0, 1], [1, 2]), ([..., 7], [7, 2], [..., 2])):
        first, second, *rest = labels
        np.testing.assert_allclose(
            xp.einsum(x, first, y, second, *rest).numpy(), np.einsum(a, first, b, second, *rest), rtol=1e-4, atol=1e-5
        )


def test_einsum_promotes_and_returns_new_arrays() -> None:
    x = xp.asarray([1.0, 2.0])
    assert xp.einsum("i,i", x, xp.asarray([1.0, 1.0], dtype=xp.float64)).dtype == xp.float64
    y = xp.einsum("i->i", x)
    y[0] = 5
    assert x.tolist() == [1, 2]


ERRORS: list[tuple[Any, str]] = [
    (lambda x: xp.einsum("ij", x, x), "einsum: 'ij' has 1 terms for 2 operands"),
    (lambda x: xp.einsum("ijk->i", x), "einsum: the term 'ijk' does not fit an operand of rank 2"),
    (lambda x: xp.einsum("ij->ijk", x), "einsum: the result of 'ij->ijk' is not made of the operands' axes"),
    (lambda x: xp.einsum("ij->ii", x), "einsum: the result of 'ij->ii' is not made of the operands' axes"),
    (lambda x: xp.einsum("...j->j", x), "einsum: the result of '...j->j' lacks '...', which stands for axes of"),
    (lambda x: xp.einsum("...j->j", x * 1j), "einsum: the result of '...j->j' lacks '...', which stands for axes of"),
    (lambda x: xp.einsum("ii", x), "einsum: the label 'i' stands for sizes 2 and 3"),
    (lambda x: xp.einsum("ij,jk", x, x), "einsum: the label 'j' stands for sizes 3 and 2"),
    (lambda x: xp.einsum("ij,ij->", x, x[:, :2]), "einsum: the label 'j' stands for sizes 3 and 2"),
    (lambda x: xp.einsum("i1->i", x), "einsum: the term 'i1' does not fit an operand of rank 2"),
    (lambda x: xp.einsum("ij"), "einsum: 'ij' takes at least one operand"),
    (lambda x: xp.einsum(x, [0, 99]), "einsum: labels must be a list of integers in [0, 52) and '...', got [0, 99]"),
    (lambda x: xp.einsum(x), "einsum: takes subscripts and operands"),
    (lambda x: xp.einsum("ij", x > 0), "einsum: takes arrays of kind numeric, got bool"),
    (lambda x: xp.einsum("ij,ij", x, xp.asarray([[1]])), "einsum: float32 and int32 have no common data type"),
]


@pytest.mark.parametrize(("call", "message"), ERRORS, ids=[message for _, message in ERRORS])
def test_errors(call: Any, message: str) -> None:
    with pytest.raises(ow.ValidationError, match=f"^{re.escape(message)}"):
        call(xp.asarray(np.zeros((2, 3), np.float32)))
