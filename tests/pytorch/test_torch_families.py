"""Converters of convolutions, poolings, resizing, normalisations, recurrent networks and the like, against PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (PyTorch's word)

from opweave.pytorch import CompiledModule, from_torch

TOLERANCE = 5e-6
"""The largest difference, relative to the root mean square of the results; sums are in another order than PyTorch's."""

WIDE_TOLERANCE = 2e-5
WIDE = ("resizings: ", "normalizations: group rows")
"""Beginnings of the names of rows with `WIDE_TOLERANCE`: positions between pixels are computed in float32, with errors that
grow with the image, and groups of two elements are normalised by their difference."""

Row = tuple[str, Callable[..., Any], tuple[Any, ...]]


class Call(nn.Module):  # type: ignore[misc]
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arguments: Any) -> Any:
        return self.function(*arguments)


def image(*shape: int) -> Tensor:
    return torch.randn(*(shape or (2, 4, 9, 11)), generator=torch.Generator().manual_seed(7))


def check(function: Callable[..., Any], arguments: tuple[Any, ...], tolerance: float = TOLERANCE) -> CompiledModule:
    """Convert a function without falling back to PyTorch, and compare its results with PyTorch's."""
    module = Call(function).eval()
    compiled = from_torch(module, arguments, fallback="error")
    expected, results = module(*arguments), compiled(*arguments)
    single = isinstance(expected, Tensor)
    for want, got in zip([expected] if single else expected, [results] if single else results, strict=True):
        assert got.dtype is want.dtype
        assert got.shape == want.shape
        if want.dtype.is_floating_point:
            wide, difference = want.double(), (got.double() - want.double())
            scale = float(wide[wide.isfinite()].square().mean().sqrt()) or 1.0
            is_same = (want == got) | (want.isnan() & got.isnan())
            assert float(difference[~is_same].abs().max() if (~is_same).any() else 0) <= tolerance * max(scale, 1e-3)
        else:
            assert torch.equal(got, want)
    return compiled


def convolutions() -> Iterator[Row]:
    x1, x2, x3 = image(2, 4, 17), image(2, 4, 9, 11), image(1, 4, 6, 7, 5)
    yield "conv1d", lambda x, w, b: F.conv1d(x, w, b, stride=2, padding=3, dilation=2), (x1, image(6, 4, 3), image(6))
    yield "conv1d groups", lambda x, w: F.conv1d(x, w, groups=4, padding="same"), (x1, image(4, 1, 4))
    yield "conv2d", lambda x, w, b: F.conv2d(x, w, b, stride=(2, 1), padding=(1, 2)), (x2, image(8, 4, 3, 3), image(8))
    yield "conv2d same", lambda x, w: F.conv2d(x, w, padding="same", dilation=(2, 1)), (x2, image(3, 4, 4, 3))
    yield "conv2d valid", lambda x, w: F.conv2d(x, w, padding="valid"), (x2, image(3, 4, 2, 5))
    yield "conv2d one image", lambda x, w: F.conv2d(x, w), (x2[0], image(3, 4, 2, 5))
    yield "conv2d depthwise", lambda x, w: F.conv2d(x, w, groups=4, padding=1), (x2, image(8, 1, 3, 3))
    yield "conv3d", lambda x, w, b: F.conv3d(x, w, b, stride=2, padding=1), (x3, image(5, 4, 3, 2, 3), image(5))
    yield (
        "transposed1d",
        lambda x, w: F.conv_transpose1d(x, w, stride=3, padding=1, output_padding=2),
        (x1, image(4, 2, 5)),
    )
    yield "transposed2d", lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, padding=1, output_padding=1), (
        x2, image(4, 3, 3, 3), image(3))  # fmt: skip
    yield "transposed2d groups", lambda x, w: F.conv_transpose2d(x, w, groups=2, dilation=2), (x2, image(4, 3, 3, 2))
    yield "transposed3d", lambda x, w: F.conv_transpose3d(x, w, stride=(1, 2, 2)), (x3, image(4, 2, 2, 3, 2))
    yield "unfold", lambda x: F.unfold(x, (3, 2), dilation=2, padding=1, stride=(1, 2)), (x2,)
    yield "fold", lambda x: F.fold(x, (8, 9), (3, 2), padding=1, stride=2), (image(2, 12, 20),)


def poolings() -> Iterator[Row]:
    x1, x2, x3 = image(2, 4, 17), image(2, 4, 9, 11), image(1, 4, 6, 7, 5)
    yield "max1d", lambda x: F.max_pool1d(x, 3, 2, 1), (x1,)
    yield "max2d", lambda x: F.max_pool2d(x, 3, stride=2, padding=1, dilation=2), (x2,)
    yield "max2d ceil", lambda x: F.max_pool2d(x, (2, 3), stride=2, padding=1, ceil_mode=True), (x2,)
    yield "max2d ceil beyond", lambda x: F.max_pool2d(x, 2, stride=3, padding=1, ceil_mode=True), (x2,)
    yield "max2d one image", lambda x: F.max_pool2d(x, 2), (x2[0],)
    yield "max2d indices", lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), (x2,)
    yield "max3d", lambda x: F.max_pool3d(x, 2, ceil_mode=True), (x3,)
    yield "max1d indices", lambda x: F.max_pool1d(x, 4, return_indices=True), (x1,)
    yield "unpool", lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), (image(2, 4, 8, 6),)
    yield "average1d", lambda x: F.avg_pool1d(x, 4, 2, 1, count_include_pad=False), (x1,)
    yield "average2d", lambda x: F.avg_pool2d(x, 3, 2, 1), (x2,)
    yield "average2d ceil", lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), (x2,)
    yield "average2d no pad", lambda x: F.avg_pool2d(x, (4, 3), 2, 1, ceil_mode=True, count_include_pad=False), (x2,)
    yield "average2d divisor", lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, divisor_override=5), (x2,)
    yield "average3d", lambda x: F.avg_pool3d(x, 2, padding=1), (x3,)
    for size in (1, 3, (3, 4), (9, 22), (None, 1), (4, None)):
        yield f"adaptive average {size}", lambda x, size=size: F.adaptive_avg_pool2d(x, size), (x2,)
    yield "adaptive average even", lambda x: F.adaptive_avg_pool2d(x, (2, 3)), (image(1, 3, 8, 9),)
    yield "adaptive average 1d", lambda x: F.adaptive_avg_pool1d(x, 5), (x1,)
    yield "adaptive average 3d", lambda x: F.adaptive_avg_pool3d(x, (4, 3, 1)), (x3,)
    yield "adaptive max", lambda x: F.adaptive_max_pool2d(x, (4, 5), return_indices=True), (x2,)
    yield "adaptive max even", lambda x: F.adaptive_max_pool2d(x, (3, 11), return_indices=True), (x2,)
    yield "adaptive max 1d", lambda x: F.adaptive_max_pool1d(x, 4), (x1,)
    yield "adaptive max 3d", lambda x: F.adaptive_max_pool3d(x, 2, return_indices=True), (x3,)


def resizings() -> Iterator[Row]:
    x1, x2, x3 = image(2, 3, 7), image(2, 3, 7, 9), image(1, 2, 4, 5, 6)
    for mode in ("nearest", "nearest-exact", "bilinear", "bicubic"):
        for name, options in {
            "twice": {"scale_factor": 2}, "fraction": {"scale_factor": (1.7, 0.6)}, "size": {"size": (10, 4)},
            "recomputed": {"scale_factor": 1.7, "recompute_scale_factor": True},
        }.items():  # fmt: skip
            yield f"{mode} {name}", lambda x, o=options, m=mode: F.interpolate(x, mode=m, **o), (x2,)
            if mode.startswith("bi"):
                more = {**options, "mode": mode, "align_corners": True}
                yield f"{mode} {name} corners", lambda x, o=more: F.interpolate(x, **o), (x2,)
    yield "antialiased", lambda x: F.interpolate(x, size=(3, 4), mode="bilinear", antialias=True), (x2,)
    yield "antialiased cubic", lambda x: F.interpolate(x, size=(3, 14), mode="bicubic", antialias=True), (x2,)
    yield "linear 1d", lambda x: F.interpolate(x, scale_factor=1.5, mode="linear"), (x1,)
    yield "nearest 1d", lambda x: F.interpolate(x, 11), (x1,)
    yield "trilinear", lambda x: F.interpolate(x, (6, 4, 9), mode="trilinear"), (x3,)
    yield "trilinear corners", lambda x: F.interpolate(x, (6, 4, 9), mode="trilinear", align_corners=True), (x3,)
    yield "nearest 3d", lambda x: F.interpolate(x, scale_factor=(2, 1, 0.5)), (x3,)
    yield "to one", lambda x: F.interpolate(x, (1, 1), mode="bilinear", align_corners=False), (x2,)
    yield "to one corners", lambda x: F.interpolate(x, (1, 5), mode="bilinear", align_corners=True), (x2,)
    grid, volume = image(2, 5, 6, 2) * 0.8, image(1, 3, 4, 5, 3) * 0.8
    for mode in ("bilinear", "nearest"):
        for padding in ("zeros", "border", "reflection"):
            for corners in (False, True):
                options = {"mode": mode, "padding_mode": padding, "align_corners": corners}
                name = f"grid {mode} {padding} {corners}"
                yield name, lambda x, g, o=options: F.grid_sample(x, g, **o), (x2, grid)
    yield "grid cubic", lambda x, g: F.grid_sample(x, g, mode="bicubic", align_corners=False), (x2, grid)
    yield "grid volume", lambda x, g: F.grid_sample(x, g, align_corners=True), (x3, volume)
    yield "affine grid", lambda t: F.affine_grid(t, [2, 3, 5, 6], align_corners=False), (image(2, 2, 3),)
    yield "shuffle", lambda x: F.pixel_shuffle(x, 2), (image(2, 8, 3, 4),)
    yield "unshuffle", lambda x: F.pixel_unshuffle(x, 2), (image(2, 2, 4, 6),)
    yield "channels", lambda x: F.channel_shuffle(x, 2), (image(2, 6, 3, 4),)


def normalizations() -> Iterator[Row]:
    x2, x1, x3 = image(2, 6, 5, 4), image(3, 6, 7), image(2, 6, 3, 4, 2)
    mean, variance, weight, bias = image(6), image(6).abs() + 0.5, image(6) + 1, image(6)
    for name, x in {"1d": x1, "2d": x2, "3d": x3, "rows": image(5, 6)}.items():
        yield (
            f"batch {name}",
            lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b, eps=1e-3),
            (x, mean, variance, weight, bias),
        )
        yield f"batch plain {name}", lambda x, m, v: F.batch_norm(x, m, v), (x, mean, variance)
        yield f"batch statistics {name}", lambda x, w: F.batch_norm(x, None, None, w, training=True), (x, weight)
        yield f"group {name}", lambda x, w, b: F.group_norm(x, 3, w, b, eps=1e-4), (x, weight, bias)
    for name, x in {"1d": x1, "2d": x2, "3d": x3}.items():
        yield f"instance {name}", lambda x, w, b: F.instance_norm(x, weight=w, bias=b), (x, weight, bias)
    yield "instance given", lambda x, m, v: F.instance_norm(x, m, v, use_input_stats=False), (x2, mean, variance)
    yield "local response", lambda x: F.local_response_norm(x, 3), (x2,)
    yield "dropout", lambda x: F.dropout(x, 0.5, training=False) + F.dropout2d(x, 0.5, training=False), (x2,)


def paddings() -> Iterator[Row]:
    x = image(2, 3, 5, 6)
    yield "constant", lambda x: F.pad(x, (1, 2, 0, 3), value=1.5), (x,)
    yield "negative", lambda x: F.pad(x, (-1, 2, 3, -2)), (x,)
    yield "only negative", lambda x: F.pad(x, (-1, -2)), (x,)
    yield "reflect", lambda x: F.pad(x, (1, 2, 3, 4), mode="reflect"), (x,)
    yield "reflect 1d", lambda x: F.pad(x, (1, 2), mode="reflect"), (x[0],)
    yield "replicate", lambda x: F.pad(x, (1, 2, 3, 4), mode="replicate"), (x,)
    yield "replicate 3d", lambda x: F.pad(x, (1, 2, 3, 4, 0, 1), mode="replicate"), (image(1, 2, 3, 4, 5),)
    yield "circular", lambda x: F.pad(x, (1, 2, 3, 0), mode="circular"), (x,)
    yield "integers", lambda x: F.pad(x, (1, 2), value=7), (torch.arange(6).reshape(2, 3),)


def orders() -> Iterator[Row]:
    x, whole = image(3, 4, 7), torch.tensor([[3, 1, 3, 2, 0], [5, 5, 4, 9, -1]])
    yield "top", lambda x: torch.topk(x, 3), (x,)
    yield "smallest", lambda x: torch.topk(x, 2, dim=1, largest=False), (x,)
    yield "sort", lambda x: torch.sort(x, dim=0), (x,)
    yield "sort stable", lambda x: torch.sort(x, dim=-1, descending=True, stable=True), (whole,)
    yield "argsort", lambda x: torch.argsort(x, dim=1, descending=True), (x,)
    yield "kth", lambda x: torch.kthvalue(x, 2, dim=1, keepdim=True), (x,)
    yield "bucketize", lambda x, t: torch.bucketize(x, t), (whole, torch.tensor([0, 2, 3, 5]))
    yield (
        "bucketize right",
        lambda x, t: torch.bucketize(x, t, right=True, out_int32=True),
        (whole, torch.tensor([0, 2, 3, 5])),
    )
    yield "bucketize floats", lambda x, t: torch.bucketize(x, t), (x, torch.tensor([-1.0, 0.0, 0.5]))
    yield "search", lambda t, x: torch.searchsorted(t, x, side="right"), (x.sort()[0], image(3, 4, 2))
    for dim in (0, -1):
        yield f"sums {dim}", lambda x, d=dim: torch.cumsum(x, d), (x,)
        yield f"products {dim}", lambda x, d=dim: torch.cumprod(x, d), (x,)
        yield f"maxima {dim}", lambda x, d=dim: torch.cummax(x, d), (x,)
        yield f"minima {dim}", lambda x, d=dim: torch.cummin(x, d), (whole,)
    yield "sums of booleans", lambda x: torch.cumsum(x > 2, 1), (whole,)
    yield "sums in a type", lambda x: torch.cumsum(x, 1, dtype=torch.float32), (whole,)
    yield "maxima of NaN", lambda x: torch.cummax(x, 0), (torch.tensor([1.0, float("nan"), 3.0, 2.0]),)


class Network(nn.Module):  # type: ignore[misc]
    """A recurrent network that is called with its initial states, or without."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, *states: Tensor) -> Any:
        result, last = self.network(x, *([states] if len(states) > 1 else states))
        return (result, *last) if isinstance(last, tuple) else (result, last)


@pytest.mark.parametrize("has_states", [False, True])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (kind, options)
        for kind in (nn.LSTM, nn.GRU, nn.RNN)
        for options in (
            {},
            {"num_layers": 2, "bidirectional": True},
            {"batch_first": True, "bias": False, "dropout": 0.0},
            {"num_layers": 2, "batch_first": True},
        )
    ]
    + [(nn.RNN, {"nonlinearity": "relu", "bidirectional": True})],
)
def test_recurrent_networks_agree(kind: Any, options: dict[str, Any], has_states: bool) -> None:
    torch.manual_seed(3)
    network = Network(kind(5, 4, **options)).eval()
    x = torch.randn(3, 6, 5)
    batches = 3 if options.get("batch_first") else 6
    count = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    states = [torch.randn(count, batches, 4) for _ in range(2 if kind is nn.LSTM else 1)] if has_states else []
    compiled = from_torch(network, (x, *states), fallback="error")
    for want, got in zip(network(x, *states), compiled(x, *states), strict=True):
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    assert kind.__name__.lower() in compiled.explain()


ROWS = {
    name: row
    for rows in (convolutions, poolings, resizings, normalizations, paddings, orders)
    for name, *row in ((f"{rows.__name__}: {name}", function, arguments) for name, function, arguments in rows())
}


@pytest.mark.parametrize("name", ROWS)
def test_families_agree_with_pytorch(name: str) -> None:
    function, arguments = ROWS[name]
    check(function, arguments, WIDE_TOLERANCE if name.startswith(WIDE) else TOLERANCE)


@pytest.mark.parametrize("rows", [convolutions, poolings, normalizations])
def test_half_precision_agrees_with_float32(rows: Callable[[], Iterator[Row]]) -> None:
    for _, function, arguments in list(rows())[:5]:
        half = tuple(a.half() for a in arguments)
        module = Call(function).eval()
        result = from_torch(module, half, fallback="error")(*half)
        expected = module(*(a.float() for a in half))
        assert result.dtype is torch.float16
        np.testing.assert_allclose(result.float().numpy(), expected.numpy(), atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize(
    "beginning", ["poolings: average", "normalizations: batch statistics", "normalizations: instance"]
)
def test_bfloat16_is_converted(beginning: str) -> None:
    rows = [row for name, row in ROWS.items() if name.startswith(beginning)]
    assert rows
    for function, arguments in rows:
        assert isinstance(arguments, tuple)
        halves = tuple(argument.bfloat16() for argument in arguments)
        module = Call(function).eval()
        result = from_torch(module, halves, fallback="error")(*halves)
        expected = module(*(argument.float() for argument in halves))  # PyTorch has not all of them in bfloat16
        torch.testing.assert_close(result, expected.bfloat16(), atol=2e-2, rtol=2e-2)


class Written(nn.Module):  # type: ignore[misc]
    """Buffers that are written and not read, two of them with the same value."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("first", "second", "count"):
            self.register_buffer(name, torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        doubled = x * 2
        self.first.copy_(doubled)
        self.second.copy_(doubled)
        self.count.add_(1)
        return doubled + self.count


def test_buffers_that_are_only_written_get_their_values() -> None:
    module, reference = Written().eval(), Written().eval()
    compiled = from_torch(module, (torch.zeros(3),))
    for step in (1.0, 2.0):
        x = torch.full((3,), step)
        assert torch.equal(compiled(x), reference(x))
        for name in ("first", "second", "count"):
            assert torch.equal(getattr(module, name), getattr(reference, name))
