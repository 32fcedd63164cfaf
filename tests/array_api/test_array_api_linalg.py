"""The extension `linalg`, and functions of float64, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opweave as ow
from opweave import array_api as xp
from opweave.array_api import host, linalg

RNG = np.random.default_rng(5)
A: Any = RNG.normal(size=(2, 4, 3))
B = A.swapaxes(0, 2).copy()
S = A @ A.swapaxes(-1, -2) + np.eye(4)
V: Any = RNG.normal(size=(2, 4))

ROWS: dict[str, Any] = {
    "cholesky": lambda p, a: p.linalg.cholesky(a(S)),
    "cholesky of the upper triangle": lambda p, a: p.linalg.cholesky(a(S), upper=True),
    "cross": lambda p, a: p.linalg.cross(a(A), a(A[::-1].copy())),
    "cross along another axis": lambda p, a: p.linalg.cross(a(B), a(B[..., ::-1].copy()), axis=0),
    "det": lambda p, a: p.linalg.det(a(S)),
    "diagonal": lambda p, a: p.linalg.diagonal(a(A)),
    "diagonal above": lambda p, a: p.linalg.diagonal(a(A), offset=1),
    "diagonal below": lambda p, a: p.linalg.diagonal(a(A), offset=-3),
    "eigvalsh": lambda p, a: p.linalg.eigvalsh(a(S)),
    "inv": lambda p, a: p.linalg.inv(a(S)),
    "matrix_power": lambda p, a: (
        (p.linalg.matrix_power(a(S), 5), p.linalg.matrix_power(a(S), 0), p.linalg.matrix_power(a(S), 1))
    ),
    "matrix_power of the inverse": lambda p, a: p.linalg.matrix_power(a(S), -2),
    "matrix_norm": lambda p, a: (
        tuple(p.linalg.matrix_norm(a(A), ord=o) for o in ("fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf))
    ),
    "matrix_norm with axes": lambda p, a: (
        (p.linalg.matrix_norm(a(A), keepdims=True), p.linalg.matrix_norm(a(A), ord=1, keepdims=True))
    ),
    "outer": lambda p, a: p.linalg.outer(a(V[0]), a(V[1])),
    "pinv": lambda p, a: p.linalg.pinv(a(A)),
    "slogdet": lambda p, a: tuple(p.linalg.slogdet(a(S))),
    "solve": lambda p, a: p.linalg.solve(a(S), a(A)),
    "solve of a vector": lambda p, a: p.linalg.solve(a(S[0]), a(V[0])),
    "svdvals": lambda p, a: p.linalg.svdvals(a(A)),
    "trace": lambda p, a: (p.linalg.trace(a(A)), p.linalg.trace(a(S), offset=-1)),
    "vector_norm": lambda p, a: (
        tuple(p.linalg.vector_norm(a(A), axis=1, ord=o) for o in (0, 1, 2, 3.5, -1, np.inf, -np.inf))
    ),
    "vector_norm of all": lambda p, a: (p.linalg.vector_norm(a(A)), p.linalg.vector_norm(a(A), axis=(0, 2), keepdims=True)),
    "products": lambda p, a: (
        (p.linalg.matmul(a(S), a(A)),
        p.linalg.vecdot(a(A), a(A)),
        p.linalg.tensordot(a(A), a(A), axes=3),
        p.linalg.matrix_transpose(a(A)))
    ),
}  # fmt: skip


def turned(x: Any, data_type: str) -> Any:
    """The array in a data type; elements of a complex one are turned such that Hermitian matrices stay Hermitian."""
    if data_type.startswith("float"):
        return x.astype(data_type)
    row, column = (np.exp(1j * np.arange(size)) for size in x.shape[-2:])
    return (x * row[:, None] * column.conj()).astype(data_type)


@pytest.mark.parametrize("data_type", ["float64", "float32", "complex128", "complex64"])
@pytest.mark.parametrize("row", ROWS)
def test_linear_algebra_equals_numpy(row: str, data_type: str) -> None:
    ours = ROWS[row](xp, lambda x: xp.asarray(turned(np.atleast_2d(x), data_type).reshape(x.shape)))
    theirs = ROWS[row](np, lambda x: turned(np.atleast_2d(x), data_type).reshape(x.shape))
    tolerance = 1e-9 if data_type in ("float64", "complex128") else 2e-3
    for one, other in zip(*((r if isinstance(r, tuple) else (r,)) for r in (ours, theirs)), strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        np.testing.assert_allclose(one.numpy(), other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("data_type", ["float64", "float32", "float16", "complex128", "complex64"])
def test_decompositions_give_back_their_matrices(data_type: str) -> None:
    tolerance = {"float16": 0.1, "float32": 1e-4, "complex64": 1e-4}.get(data_type, 1e-9)
    a, s = (xp.asarray(turned(x, data_type)) for x in (A, S))
    for full in (True, False):
        u, values, vh = linalg.svd(a, full_matrices=full)
        assert (u.shape, values.shape, vh.shape) == ((2, 4, 4 if full else 3), (2, 3), (2, 3, 3))
        np.testing.assert_allclose((u[..., :3] * values[:, None, :] @ vh).numpy(), a.numpy(), atol=tolerance)
        q, r = linalg.qr(a, mode="complete" if full else "reduced")
        assert (q.shape, r.shape) == (((2, 4, 4), (2, 4, 3)) if full else ((2, 4, 3), (2, 3, 3)))
        np.testing.assert_allclose((q @ r).numpy(), a.numpy(), atol=tolerance)
    roots, vectors = linalg.eigh(s)
    np.testing.assert_allclose((s @ vectors).numpy(), (vectors * roots[:, None, :]).numpy(), atol=10 * tolerance)
    assert linalg.matrix_rank(a).tolist() == [3, 3]
    assert linalg.matrix_rank(xp.asarray(np.ones((3, 3), data_type))).item() == 1


@pytest.mark.parametrize("data_type", ["float32", "complex64"])
def test_matrices_without_elements_are_those_of_numpy(data_type: str) -> None:
    a, s = np.zeros((2, 3, 0), data_type), np.zeros((2, 0, 0), data_type)
    for name, matrices, options in (
        ("det", s, {}), ("slogdet", s, {}), ("inv", s, {}), ("cholesky", s, {}), ("eigh", s, {}), ("svdvals", a, {}),
        ("matrix_norm", a, {"ord": 2}), ("matrix_norm", a, {"ord": 1}), ("matrix_norm", a, {"ord": np.inf}),
        ("matrix_norm", a.mT, {"ord": 2}), ("matrix_norm", a.mT, {"ord": np.inf}), ("matrix_norm", a.mT, {"ord": -1}),
        ("qr", a, {}), ("qr", a, {"mode": "complete"}), ("svd", a, {}), ("svd", a, {"full_matrices": False}),
    ):  # fmt: skip
        ours, theirs = (getattr(m.linalg, name)(m.asarray(matrices), **options) for m in (xp, np))
        for one, other in zip(*((r if isinstance(r, tuple) else (r,)) for r in (ours, theirs)), strict=True):
            np.testing.assert_array_equal(one.numpy(), other, strict=True)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: linalg.inv(xp.asarray(A * 1j)), r"^inv: takes square matrices, got complex128\[2, 4, 3\]"),
        (lambda: linalg.svd(xp.asarray(V[0] * 1j)), r"^svd: takes matrices, got complex128\[4\]"),
        (lambda: linalg.matrix_power(xp.asarray(S * 1j), 0.5), "^matrix_power: n must be an integer, got 0.5"),
        (lambda: linalg.inv(xp.asarray(A)), r"^inv: takes square matrices, got float64\[2, 4, 3\]"),
        (lambda: linalg.svd(xp.asarray(V[0])), r"^svd: takes matrices, got float64\[4\]"),
        (lambda: linalg.qr(xp.asarray(A), mode="r"), "^qr: mode must be 'reduced' or 'complete', got 'r'"),
        (lambda: linalg.matrix_norm(xp.asarray(A[:, :0]), ord=-2), "^matrix_norm: ord -2 is a minimum, which matrices"),
        (lambda: linalg.matrix_norm(xp.asarray(A[..., :0]), ord=-1), "^matrix_norm: ord -1 is a minimum, which matrices"),
        (lambda: linalg.matrix_norm(xp.asarray(A), ord=3), "^matrix_norm: ord must be one of 'fro', .*, got 3"),
        (lambda: linalg.vector_norm(xp.asarray(A), ord="fro"), "^vector_norm: ord must be a number, got 'fro'"),
        (lambda: linalg.matrix_power(xp.asarray(S), 0.5), "^matrix_power: n must be an integer, got 0.5"),
        (lambda: linalg.cross(xp.asarray(S), xp.asarray(S)), "^cross: the axis must have size 3 in both"),
        (lambda: linalg.solve(xp.asarray(S), xp.asarray(V)), r"^solve: x2 must have 4 rows for float64\[2, 4, 4\], got"),
        (lambda: linalg.outer(xp.asarray(S), xp.asarray(V)), "^outer: takes vectors"),
        (lambda: linalg.det(xp.asarray([[1, 2], [3, 4]])), "^det: takes arrays of kind real floating, got int32"),
    ],
)  # fmt: skip
def test_wrong_matrices_are_named(call: Any, message: str) -> None:
    with pytest.raises(ow.ValidationError, match=message):
        call()


def test_singular_matrices_are_named_when_they_are_computed() -> None:
    result = linalg.inv(xp.asarray([[0.0]]))
    with pytest.raises(
        ow.OperationError, match=r"^inv: LinAlgError: Singular matrix \(called in test_array_api_linalg.py, line \d+\)$"
    ):
        result.numpy()


@pytest.mark.parametrize("name", [*host.UNARY, *host.BINARY])
def test_functions_of_float64_are_those_of_numpy(name: str) -> None:
    x = np.concatenate([RNG.normal(size=40) * 3, [0.0, -0.0, 1e-300, -1e-9, 0.5, 1.0]])
    operands: Any = (x,) if name in host.UNARY else (x, np.ascontiguousarray(x[::-1]))
    with np.errstate(all="ignore"):
        wanted = getattr(np, name)(*operands)
        if name == "floor_divide":  # the standard divides by 0 as `/` does
            wanted = np.where(operands[1] == 0, operands[0] / operands[1], wanted)
    result = getattr(xp, name)(*map(xp.asarray, operands))
    assert result.pending
    np.testing.assert_array_equal(result.numpy(), wanted, strict=True)


def test_float64_is_exact() -> None:
    values = RNG.normal(size=(3, 50))
    x = xp.asarray(values)
    for name in ("sum", "mean", "var", "std", "max", "argmin", "prod"):
        np.testing.assert_allclose(getattr(xp, name)(x, axis=1).numpy(), getattr(np, name)(values, axis=1), rtol=1e-13)
    np.testing.assert_allclose(xp.cumulative_sum(x, axis=1).numpy(), np.cumsum(values, axis=1), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(
        xp.sum(xp.asarray(values.astype("float32")), dtype=xp.float64).item(),
        values.astype("float32").sum(dtype="float64"),
        rtol=1e-13,
    )
    np.testing.assert_allclose((x @ x.T).numpy(), values @ values.T, rtol=1e-13)
    assert (x + 0.1).tolist() == (values + 0.1).tolist()
    assert (x * np.float64(0.1)).tolist() == (values * 0.1).tolist()
    assert (x - values).tolist() == np.zeros((3, 50)).tolist()
    assert (x + xp.asarray(values.astype("float32"))).dtype == xp.float64
    assert xp.finfo(xp.float64).eps == np.finfo("float64").eps
    with pytest.raises(ow.ValidationError, match="float64 is not a data type of WebNN"):
        xp.asarray(values.astype("float32")) + values
    with pytest.raises(ow.ValidationError, match=r"^cast: arrays have no bfloat16"):
        x.cast("bfloat16")


def test_devices_without_float64_say_so() -> None:
    gpus = [device.name for device in ow.devices() if device.backend == "webgpu" and device.available]
    if not gpus:
        pytest.skip("needs an adapter of WebGPU")
    context = ow.ml.create_context(device=gpus[0])
    assert "float64" not in xp.__array_namespace_info__().dtypes(device=context)
    for make in (
        lambda: xp.asarray([1.0], dtype=xp.float64, device=context),
        lambda: xp.asarray(V, device=context),
        lambda: xp.astype(xp.asarray([1.0], device=context), xp.float64),
    ):
        with pytest.raises(ow.ValidationError, match=r"gpu.* has no float64; dtype=float32, or a context on a CPU"):
            make()
    with context:
        np.testing.assert_allclose(
            linalg.svdvals(xp.asarray(A.astype("float32"))).numpy(), np.linalg.svd(A)[1], rtol=1e-5
        )
