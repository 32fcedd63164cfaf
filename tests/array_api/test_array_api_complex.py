"""Complex numbers and Fourier transforms of the array API, against NumPy."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest

import opweave as ow
from opweave import array_api as xp

RNG = np.random.default_rng(7)
Z = RNG.normal(size=(3, 4)) + 1j * RNG.normal(size=(3, 4))
W = RNG.normal(size=(3, 4)) + 1j * RNG.normal(size=(3, 4))
R = RNG.normal(size=(3, 4))
M = R > 0

ROWS: dict[str, Any] = {
    "add": lambda m, z, w, r: m.add(z, w) + r + 1.5 - 2j,
    "subtract": lambda m, z, w, r: r - m.subtract(z, w),
    "multiply": lambda m, z, w, r: 2 * m.multiply(z, w) * r * 1j,
    "divide": lambda m, z, w, r: m.divide(z, w) / r + 1 / z,
    "pow": lambda m, z, w, r: m.pow(z, w) + z**2,
    "real and imag": lambda m, z, w, r: m.real(z) + m.imag(w),
    "abs": lambda m, z, w, r: m.abs(z) + abs(w),
    "conj": lambda m, z, w, r: m.conj(z),
    "signs": lambda m, z, w, r: m.negative(z) + m.positive(-w) + m.sign(z),
    "square": lambda m, z, w, r: m.square(z) + m.reciprocal(w),
    "round": lambda m, z, w, r: m.round(z * 10),
    "equal": lambda m, z, w, r: (z == w) | (z == z) & (w != 1j),
    "equal to real numbers": lambda m, z, w, r: m.equal(z * 0 + r, r),
    "kinds of numbers": lambda m, z, w, r: m.isnan(z) | m.isinf(w) | m.isfinite(z),
    "where": lambda m, z, w, r: m.where(r > 0, z, w),
    "where, real": lambda m, z, w, r: m.where(r > 0, z, r),
    "reshape": lambda m, z, w, r: m.reshape(z, (2, 6)),
    "broadcast_to": lambda m, z, w, r: m.broadcast_to(z, (2, 3, 4)),
    "transposes": lambda m, z, w, r: m.matrix_transpose(z) + w.T + w.mT,
    "expand and squeeze": lambda m, z, w, r: m.squeeze(m.expand_dims(z, axis=1), axis=1),
    "moveaxis": lambda m, z, w, r: m.moveaxis(z, 0, 1),
    "flip": lambda m, z, w, r: m.flip(z, axis=0),
    "roll": lambda m, z, w, r: m.roll(z, 2, axis=1) + m.roll(z, 1),
    "tile": lambda m, z, w, r: m.tile(z, (2, 1)),
    "repeat": lambda m, z, w, r: m.repeat(z, 2, axis=1),
    "concat": lambda m, z, w, r: m.concat([z, w, z], axis=1),
    "stack": lambda m, z, w, r: m.stack([z, w], axis=1),
    "unstack": lambda m, z, w, r: m.unstack(z)[1],
    "take": lambda m, z, w, r: m.take(z, m.asarray([2, 0]), axis=0),
    "triangles": lambda m, z, w, r: m.tril(z) - m.triu(w),
    "sum": lambda m, z, w, r: m.sum(z, axis=0) + m.sum(w),
    "sum of nothing": lambda m, z, w, r: m.sum(z, axis=()),
    "mean": lambda m, z, w, r: m.mean(z, axis=0, keepdims=True),
    "prod": lambda m, z, w, r: m.prod(z, axis=0) + m.prod(w),
    "prod, keepdims": lambda m, z, w, r: m.prod(z, axis=1, keepdims=True),
    "cumulative_sum": lambda m, z, w, r: m.cumulative_sum(z, axis=1, include_initial=True),
    "cumulative_prod": lambda m, z, w, r: m.cumulative_prod(z, axis=1),
    "diff": lambda m, z, w, r: m.diff(z, axis=1),
    "tests": lambda m, z, w, r: m.all(z, axis=0) & m.any(w, axis=0),
    "count_nonzero": lambda m, z, w, r: m.count_nonzero(z, axis=0),
    "matmul": lambda m, z, w, r: m.matmul(z, w.T) + z @ r.T + r @ w.T,
    "tensordot": lambda m, z, w, r: m.tensordot(z, w, axes=((1,), (1,))),
    "vecdot": lambda m, z, w, r: m.vecdot(z, w) + m.linalg.vecdot(z, r),
    "outer": lambda m, z, w, r: m.linalg.outer(z[0, :], w[1, :]),
    "cross": lambda m, z, w, r: m.linalg.cross(z[:, :3], w[:, :3]),
    "diagonal and trace": lambda m, z, w, r: m.linalg.diagonal(z) + m.linalg.trace(w, offset=1),
    "norm": lambda m, z, w, r: m.linalg.vector_norm(z, axis=0),
    "index": lambda m, z, w, r: z[1] + w[..., ::-1][0],
    "index by a mask": lambda m, z, w, r: z[r > 0],
    "index by positions": lambda m, z, w, r: z[m.asarray([1, 0])],
    "unique_values": lambda m, z, w, r: m.unique_values(m.concat([z, z])),
    "linspace": lambda m, z, w, r: m.linspace(0, 1 + 2j, 4, dtype=z.dtype),
    "conversions": lambda m, z, w, r: m.astype(r, z.dtype) + m.zeros_like(z) + m.full_like(w, 3j) + m.ones_like(z),
    "eye": lambda m, z, w, r: m.eye(3, dtype=z.dtype) @ z,
    **{
        name: (lambda m, z, w, r, name=name: getattr(m, name)(z))
        for name in (
            "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "exp", "expm1", "log", "log10", "log1p", "log2",
            "sin", "sinh", "sqrt", "tan", "tanh",
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("width", ["single", "double"])
@pytest.mark.parametrize("row", ROWS)
def test_functions_equal_numpy(row: str, width: str) -> None:
    complex_type, type_ = ("complex64", "float32") if width == "single" else ("complex128", "float64")
    operands = [Z.astype(complex_type), W.astype(complex_type), R.astype(type_)]
    want = np.asarray(ROWS[row](np, *operands))
    result = ROWS[row](xp, *map(xp.asarray, operands))
    got = np.asarray(result)
    assert got.shape == want.shape
    if want.dtype.kind in "fc":
        assert got.dtype == want.dtype
    np.testing.assert_allclose(
        got, want, rtol=3e-4 if width == "single" else 1e-11, atol=1e-5 if width == "single" else 1e-13
    )


TRANSFORMS: dict[str, Any] = {
    "fft": lambda f, z, r: f.fft(z),
    "fft of floats": lambda f, z, r: f.fft(r, n=5, axis=0),
    "ifft": lambda f, z, r: f.ifft(z, n=3),
    "fftn": lambda f, z, r: f.fftn(z),
    "fftn, s": lambda f, z, r: f.fftn(z, s=(2, 7), axes=(1, 0)),
    "fftn, one axis": lambda f, z, r: f.fftn(z, axes=(0,)),
    "ifftn": lambda f, z, r: f.ifftn(z, s=(5, 3), axes=(0, 1)),
    "rfft": lambda f, z, r: f.rfft(r),
    "rfft, odd": lambda f, z, r: f.rfft(r, axis=0),
    "rfftn": lambda f, z, r: f.rfftn(r, s=(4, 5), axes=(1, 0)),
    "irfft": lambda f, z, r: f.irfft(z),
    "irfft, odd": lambda f, z, r: f.irfft(z, n=7),
    "irfftn": lambda f, z, r: f.irfftn(z, s=(3, 5), axes=(0, 1)),
    "irfftn, default": lambda f, z, r: f.irfftn(z),
    "hfft": lambda f, z, r: f.hfft(z),
    "hfft, n": lambda f, z, r: f.hfft(z, n=5, axis=0),
    "ihfft": lambda f, z, r: f.ihfft(r),
    "shifts": lambda f, z, r: f.fftshift(f.ifftshift(z, axes=(1,))),
    "shift of floats": lambda f, z, r: f.ifftshift(r),
}


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
@pytest.mark.parametrize("data_type", ["float32", "float64", "float16"])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_equal_numpy(name: str, data_type: str, norm: str) -> None:
    complex_type = "complex128" if data_type == "float64" else "complex64"

    class WithNorm:
        """A module of transforms, with an argument `norm`."""

        def __init__(self, module: Any) -> None:
            self.module = module

        def __getattr__(self, name: str) -> Any:
            options = {} if "shift" in name else {"norm": norm}
            return lambda *args, **kwargs: getattr(self.module, name)(*args, **kwargs, **options)

    z, r = Z.astype(complex_type), R.astype(data_type)
    want = TRANSFORMS[name](WithNorm(np.fft), z, r.astype("float32") if data_type == "float16" else r)
    result = TRANSFORMS[name](WithNorm(xp.fft), xp.asarray(z), xp.asarray(r))
    assert result.pending
    got = np.asarray(result)
    if not (name == "shift of floats" and data_type == "float16"):
        assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-12 if data_type == "float64" else 1e-5)


@pytest.mark.parametrize("n", [1, 2, 17, 64, 509, 600, 1009])
def test_transforms_of_many_lengths(n: int) -> None:
    x = RNG.normal(size=n).astype("float32")
    z = xp.fft.fft(xp.asarray(x))
    want = np.fft.fft(x.astype("float64"))
    np.testing.assert_allclose(z.numpy(), want, atol=3e-6 * np.abs(want).max())
    back = xp.fft.irfft(xp.fft.rfft(xp.asarray(x)), n=n)
    np.testing.assert_allclose(back.numpy(), x, atol=1e-5)


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_frequencies_equal_numpy(n: int) -> None:
    np.testing.assert_allclose(xp.fft.fftfreq(n, d=0.5).numpy(), np.fft.fftfreq(n, 0.5))
    np.testing.assert_allclose(xp.fft.rfftfreq(n).numpy(), np.fft.rfftfreq(n))
    assert xp.fft.fftfreq(n, dtype=xp.float64).dtype == xp.float64


def test_transforms_run_on_the_reference() -> None:
    with ow.ml.create_context(device="reference"):
        x = xp.asarray(R.astype("float32"))
        np.testing.assert_allclose(xp.fft.rfftn(x).numpy(), np.fft.rfftn(R), atol=1e-5)


def test_transforms_of_batches_without_elements() -> None:
    z = xp.fft.fft(xp.zeros((0, 4)))
    assert (z.shape, z.numpy().tolist()) == ((0, 4), [])


def test_assignment_to_complex_numbers_changes_one_array() -> None:
    z = xp.asarray(Z.astype("complex64"))
    copies = [
        xp.reshape(z, z.shape),
        +z,
        xp.astype(z, z.dtype),
        xp.sum(z, axis=()),
        xp.conj(xp.conj(z)),
        z[...],
        xp.einsum("ij", z),
    ]
    real = xp.real(z)
    pending = z * 2
    z[0, :] = 1j
    z[r_mask := xp.asarray(M)] = 5
    want = Z.astype("complex64")
    for copy in copies:
        np.testing.assert_array_equal(copy.numpy(), want)
    np.testing.assert_array_equal(real.numpy(), want.real)
    np.testing.assert_array_equal(pending.numpy(), want * 2)
    want[0, :] = 1j
    want[r_mask.numpy()] = 5
    np.testing.assert_array_equal(z.numpy(), want)


def test_data_types() -> None:
    assert (xp.asarray(1j).dtype, xp.asarray([1j, 2], dtype=xp.complex128).dtype) == (xp.complex64, xp.complex128)
    assert xp.result_type(xp.float32, xp.complex64) == xp.complex64
    assert xp.result_type(xp.float64, xp.complex64) == xp.complex128
    assert xp.result_type(xp.float64, 1j) == xp.complex128
    assert xp.can_cast(xp.float32, xp.complex64)
    assert not xp.can_cast(xp.complex128, xp.complex64)
    assert xp.isdtype(xp.complex64, "complex floating")
    assert not xp.isdtype(xp.complex64, "real floating")
    assert xp.finfo(xp.complex64).eps == xp.finfo(xp.float32).eps
    assert xp.__array_namespace_info__().default_dtypes()["complex floating"] == xp.complex64
    z = xp.asarray([[1 + 2j]])
    assert complex(z) == z.item() == 1 + 2j
    assert (z.ndim, z.size, len(z), z.tolist(), z.device is z.context) == (2, 1, 1, [[1 + 2j]], True)
    assert z.__array_namespace__() is xp
    assert repr(xp.asarray([1j])) == "<ComplexArray [0.+1.j], complex64[1]>"


def test_products_are_one_graph() -> None:
    z = xp.fft.ifft(xp.fft.fft(xp.asarray(R.astype("float32"))) * 2)
    assert z.pending
    assert "pending" in repr(z)
    np.testing.assert_allclose(z.numpy(), 2 * R, atol=1e-5)


ERRORS: list[tuple[Any, str]] = [
    (lambda: xp.fft.fft(xp.asarray([1, 2])), "^fft: takes floats or complex numbers, got int32"),
    (lambda: xp.fft.rfft(xp.asarray([1j])), "^rfft: takes floats, got complex64"),
    (lambda: xp.fft.fft(xp.asarray([1.0]), n=0), "^fft: the length must be a positive integer, got 0"),
    (lambda: xp.fft.fft(xp.asarray([1.0]), n=2**31), "length must be at most 16777216"),
    (lambda: xp.fft.irfft(xp.asarray([1j])), "^irfft: the length must be a positive integer, got 0"),
    (lambda: xp.fft.fft(xp.asarray([1.0]), axis=1), r"^fft: axis must be an integer in \[-1, 1\), got 1"),
    (lambda: xp.fft.fft(xp.asarray(1.0)), "^fft: takes arrays of one dimension or more"),
    (
        lambda: xp.fft.fft(xp.asarray([1.0]), norm="both"),
        "^fft: norm must be 'backward', 'ortho' or 'forward', got 'both'",
    ),  # type: ignore[arg-type]
    (lambda: xp.fft.fftn(xp.asarray([1.0]), s=(1, 2), axes=(0,)), "different lengths"),
    (lambda: xp.fft.fftn(xp.asarray([[1.0]]), axes=(0, 0)), "twice"),
    (lambda: xp.fft.fftfreq(0), "^fftfreq: the length must be a positive integer, got 0"),
    (lambda: xp.fft.fftfreq(3, d=0.0), "^fftfreq: d must not be 0"),
    (lambda: xp.less(xp.asarray(1j), 1), "^less: takes no complex numbers"),
    (lambda: xp.max(xp.asarray([1j])), "^max: takes no complex numbers"),
    (lambda: xp.asarray([1]) + 1j, "^add: int32 and complex numbers have no common data type"),
    (lambda: xp.asarray([True]) * xp.asarray(1j), "^multiply: bool and complex numbers have no common data type"),
    (lambda: xp.astype(xp.asarray(1j), xp.float32), "^astype: complex numbers cannot become float32"),
    (lambda: xp.imag(xp.asarray(1.0)), "^imag: takes arrays of kind complex floating, got float32"),
]


@pytest.mark.parametrize(("call", "message"), ERRORS, ids=[message for _, message in ERRORS])
def test_errors(call: Any, message: str) -> None:
    with pytest.raises((ow.ValidationError, TypeError), match=message):
        call()


def test_order_and_conversions_of_complex_numbers_are_errors() -> None:
    z = xp.asarray(1j)
    for compare in (operator.lt, operator.le, operator.gt, operator.ge):
        with pytest.raises(ow.ValidationError, match="takes no complex numbers"):
            compare(z, 1)
    for compute in (operator.floordiv, operator.mod, operator.and_, operator.lshift):
        for left, right in ((z, np.ones(2)), (np.ones(2), z)):
            with pytest.raises(ow.ValidationError, match="takes no complex numbers"):
                compute(left, right)
    for convert in (float, int, operator.index):
        with pytest.raises(TypeError, match=r"xp\.real"):
            convert(z)


def test_arrays_of_numpy_on_the_left_are_promoted() -> None:
    x, c = xp.asarray(np.float32([1, 2])), np.complex64([1j, 2])
    for got, expected in (
        (c * x, c * x.numpy()),
        (np.complex64(1j) * x, np.complex64(1j) * x.numpy()),
        (c - x, c - x.numpy()),
        (np.float64([1, 2]) + xp.asarray(np.float64([3, 4])), np.float64([4, 6])),
    ):
        np.testing.assert_array_equal(got.numpy(), expected)
    with pytest.raises(ow.ValidationError, match="numeric"):
        np.uint8([1, 2]) + (x > 1)
