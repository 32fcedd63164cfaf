"""ONNX's matrix products and Einsum: ranks, options and types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.onnx_nodes import MICROSOFT, check_node, integers, randn

# Matrix products ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "right"),
    [((4,), (4,)), ((4,), (4, 3)), ((2, 4), (4,)), ((5, 2, 4), (4,)), ((4,), (5, 4, 3)), ((5, 1, 2, 4), (3, 4, 2))],
)
def test_matmul_of_ranks(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = randn(*left), randn(*right)
    check_node("MatMul", a, b, wanted=np.asarray(a @ b))
    check_node("MatMul", a, b, constants=(0,), wanted=np.asarray(a @ b))
    check_node("FusedMatMul", a, b, domain=MICROSOFT, alpha=0.5, wanted=np.asarray(np.float32(0.5) * (a @ b)))


@pytest.mark.parametrize("shape", [None, (), (1,), (5,), (3, 1), (1, 5), (3, 5)])
@pytest.mark.parametrize(("trans_a", "trans_b"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_gemm(shape: tuple[int, ...] | None, trans_a: int, trans_b: int) -> None:
    a, b = randn(*((4, 3) if trans_a else (3, 4))), randn(*((5, 4) if trans_b else (4, 5)))
    c = () if shape is None else (randn(*shape),)
    options = {"transA": trans_a, "transB": trans_b, "alpha": 0.5, "beta": 2.0}
    check_node("Gemm", a, b, *c, opset=13 if shape is None else 7, **options)


def test_gemm_with_a_beta_of_0_does_not_read_c() -> None:
    a, b, c = np.float32([[1, 1]]), np.float32([[1, 2], [3, 4]]), np.float32([np.nan, np.inf])
    check_node("Gemm", a, b, c, beta=0.0)
    check_node("FusedGemm", a, b, c, domain=MICROSOFT, activation="Relu", beta=0.0)


@pytest.mark.parametrize(("trans_a", "trans_b"), [(1, 0), (0, 1), (1, 1)])
def test_fused_matmul_of_stacks(trans_a: int, trans_b: int) -> None:
    a, b = randn(*((2, 4, 3) if trans_a else (2, 3, 4))), randn(*((2, 5, 4) if trans_b else (2, 4, 5)))
    check_node("FusedMatMul", a, b, domain=MICROSOFT, transA=trans_a, transB=trans_b, alpha=0.25)


@pytest.mark.parametrize(("trans_a", "trans_b"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_fused_matmul_of_rows_before_batches(trans_a: int, trans_b: int) -> None:
    a = randn(*((4, 2, 6, 3) if trans_a else (3, 2, 6, 4)))
    b = randn(*((5, 2, 6, 4) if trans_b else (4, 2, 6, 5)))
    check_node(
        "FusedMatMul", a, b, domain=MICROSOFT, transA=trans_a, transB=trans_b, transBatchA=1, transBatchB=1, rtol=1e-4
    )


@pytest.mark.parametrize(
    ("activation", "options"),
    [
        ("Relu", {}),
        ("LeakyRelu", {"activation_alpha": 0.3}),
        ("Tanh", {}),
        ("Sigmoid", {}),
        ("Softplus", {}),
        ("HardSigmoid", {"activation_alpha": 0.3, "activation_beta": 0.4}),
    ],
)
def test_fused_gemm(activation: str, options: dict[str, Any]) -> None:
    check_node("FusedGemm", randn(3, 4), randn(4, 5), randn(5), domain=MICROSOFT, activation=activation, **options)


# Einsum ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("ij,jk->ki", [(2, 3), (3, 4)]),
        ("ji,kj", [(3, 2), (4, 3)]),
        ("ij->", [(2, 3)]),
        ("ij->j", [(2, 3)]),
        ("ii->i", [(3, 3)]),
        ("ii", [(3, 3)]),
        ("iij->ji", [(3, 3, 2)]),
        ("iii->i", [(3, 3, 3)]),
        ("i,j->ij", [(2,), (3,)]),
        ("i,i", [(3,), (3,)]),
        ("i,i->i", [(3,), (3,)]),
        (",ij->ij", [(), (2, 3)]),
        ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("bqhd,bkhd->bhqk", [(2, 4, 3, 5), (2, 6, 3, 5)]),
        ("bhqk,bkhd->bqhd", [(2, 3, 4, 6), (2, 6, 3, 5)]),
        ("bnd,de->bne", [(2, 3, 4), (4, 5)]),
        ("abc,cde->abde", [(2, 3, 4), (4, 2, 3)]),
        ("abcd,cd->ab", [(2, 3, 4, 5), (4, 5)]),
        ("ab,ab->", [(2, 3), (2, 3)]),
        ("ab,cb->", [(2, 3), (4, 3)]),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
        ("ij,ij,ij->i", [(2, 3), (2, 3), (2, 3)]),
        ("i,ij,j->", [(2,), (2, 3), (3,)]),
        ("...ij,...jk->...ik", [(2, 3, 4), (2, 4, 5)]),
        ("...ij,...jk->...ik", [(7, 1, 3, 4), (2, 4, 5)]),
        ("...ij,jk", [(2, 3, 4), (4, 5)]),
        ("i...->i...", [(2, 3)]),
        ("...i,...i->...", [(4, 2, 3), (3,)]),
        ("b...,b->b...", [(2, 3, 4), (2,)]),
        ("ib, ik -> bk", [(2, 3), (2, 4)]),
        ("aB,Bc->ca", [(2, 3), (3, 4)]),
    ],
)
def test_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    inputs = [randn(*shape) for shape in shapes]
    check_node(
        "Einsum", *inputs, equation=equation, wanted=np.asarray(np.einsum(equation, *inputs)), rtol=1e-4, atol=1e-5
    )
    whole = [integers(-3, 4, *shape) for shape in shapes]
    check_node("Einsum", *whole, equation=equation, wanted=np.asarray(np.einsum(equation, *whole)))


def test_einsum_sums_broadcast_axis() -> None:
    a, b = randn(3, 1), randn(4, 5)
    check_node("Einsum", a, b, equation="ij,jk->ik", wanted=a * b.sum(0), rtol=1e-4)
