"""Complex tensors in modules: parts in a last axis, in the memory of PyTorch's tensors. PyTorch is the witness."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import opweave as ow
from opweave.pytorch.dynamo import compile_graph

CPU = ow.ml.create_context(device="cpu", verify=False)
Z = torch.complex(torch.randn(2, 6, 8), torch.randn(2, 6, 8))
X, SOUND, WINDOW = torch.randn(2, 6, 8), torch.randn(2, 400), torch.hann_window(64)


class Call(nn.Module):  # type: ignore[misc]
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arguments: Any) -> Any:
        return self.function(*arguments)


CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "fftn of fnet": (lambda x: torch.fft.fftn(torch.fft.fft(x, dim=-1), dim=1).real, (X,)),
    "irfft": (lambda x: torch.fft.irfft(torch.fft.rfft(x, norm="ortho") * 2, n=8), (X,)),
    "odd length": (lambda x: torch.fft.irfft(torch.fft.rfft(x, n=7), n=7), (X,)),
    "irfft2": (lambda x: torch.fft.irfft2(torch.fft.rfft2(x, norm="forward"), norm="forward"), (X,)),
    "hfft": (torch.fft.hfft, (Z,)),
    "fftshift": (lambda x: torch.fft.fftshift(torch.fft.ifft(x)), (X,)),
    "istft": (
        lambda s: torch.istft(torch.stft(s, 64, 16, window=WINDOW, return_complex=True), 64, 16, window=WINDOW, length=400),
        (SOUND,),
    ),
    "einsum": (lambda z: torch.einsum("bij,bkj->bik", z, z.conj()), (Z,)),
    "conj and real": (lambda z: (z.conj() * z).real + z.imag, (Z,)),
    "in place": (lambda z: z.clone().mul_(2j).add_(1), (Z,)),
    "polar": (lambda x: torch.polar(x.abs(), x) / (torch.complex(x, x) + 3), (X,)),
    "angle": (lambda z: (z.angle(), z.abs(), z.log()), (Z,)),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_complex_modules_agree_with_pytorch(name: str) -> None:
    function, arguments = CALLS[name]
    compiled = ow.from_torch(Call(function).eval(), arguments, context=CPU, fallback="error")
    torch.testing.assert_close(compiled(*arguments), function(*arguments), rtol=1e-5, atol=1e-5)


class Rotary(nn.Module):  # type: ignore[misc]
    """Rotary positions as Llama's first code had them: a buffer of complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("turns", torch.polar(torch.ones(32, 4), torch.randn(32, 4)))

    def forward(self, x: Any) -> Any:
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * self.turns[: x.shape[1]]).flatten(-2)


def test_complex_buffer_with_dynamic_size() -> None:
    module = Rotary().eval()
    compiled = ow.from_torch(module, (X,), context=CPU, fallback="error", dynamic_shapes=({0: "batch", 1: "words"},))
    for shape in ((2, 6, 8), (1, 3, 8), (5, 32, 8)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), module(x))


def test_complex_tensors_are_not_copied() -> None:
    compiled = ow.from_torch(Call(lambda z: z * 2j + 1).eval(), (Z,), context=CPU)
    expected = Z * 2j + 1
    ow.memory.copies.reset()
    torch.testing.assert_close(compiled(Z), expected)
    assert ow.memory.copies.count == 0
    result = compiled(Z.numpy())
    assert result.dtype == np.complex64
    np.testing.assert_allclose(result, expected.numpy(), rtol=1e-6)
    tensor = compiled(CPU.tensor_from(torch.view_as_real(Z).numpy()))
    assert tuple(tensor.shape) == (2, 6, 8, 2)
    assert ow.memory.copies.count == 0
    torch.testing.assert_close(compiled(Z.conj()), Z.conj() * 2j + 1)
    assert ow.memory.copies.count == 1  # the memory of a conjugated view has the other signs


def test_pytorch_runs_complex_operators_without_converter() -> None:
    compiled = ow.from_torch(
        Call(lambda z: torch.tanh(z * 2) + torch.linalg.svdvals(z)[:, :1, None]).eval(), (Z,), context=CPU
    )
    assert {call.name for call in compiled.fallbacks} == {"aten.tanh.default", "aten._linalg_svd.default"}
    torch.testing.assert_close(compiled(Z), torch.tanh(Z * 2) + torch.linalg.svdvals(Z)[:, :1, None])


def test_complex_arguments_of_torch_compile() -> None:
    compiled = torch.compile(
        lambda z, x: torch.fft.fft(z * x).abs(), backend=compile_graph, options={"fallback": "error"}
    )
    for size in (2, 3):
        z, x = torch.randn(size, 6, dtype=torch.complex64), torch.randn(size, 6)
        torch.testing.assert_close(compiled(z, x), torch.fft.fft(z * x).abs(), rtol=1e-5, atol=1e-5)


def test_diff_compares_complex_values() -> None:
    module = Call(lambda z: (z * 2j).exp().abs()).eval()
    difference = ow.diff(module, ow.from_torch(module, (Z,), context=CPU), inputs=(Z,))
    assert difference.first is None
    assert difference.count == 3


def test_wrong_types_of_complex_arguments() -> None:
    compiled = ow.from_torch(Call(lambda z: z * 2).eval(), (Z,), context=CPU)
    with pytest.raises(ow.ValidationError, match=r"must be torch\.complex64, got torch\.float32"):
        compiled(X)
    with pytest.raises(ow.ValidationError, match="must be float32, got float64"):
        compiled(X.double().numpy())
