"""Transformers exported by PyTorch: an encoder, and the step of a decoder whose cache stays in tensors of the context."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (PyTorch's word)

import opweave as ow
from opweave.onnx.session import InferenceSession

WORDS, WIDTH, HEADS, LAYERS, LONGEST = 50, 32, 4, 2, 24
SIZE = WIDTH // HEADS


class Encoder(nn.Module):
    """Embeddings, PyTorch's own encoder with a mask for padding, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(64, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, batch_first=True, activation="gelu")
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        result: Tensor = self.head(self.layers(x, src_key_padding_mask=~mask)[:, 0])
        return result


def turned(x: Tensor, position: Tensor) -> Tensor:
    """Rotary embedding of [batch, heads, 1, size]."""
    angles = position * 100.0 ** (-torch.arange(0, SIZE, 2) / SIZE)
    cos, sin = torch.cat([angles, angles]).cos(), torch.cat([angles, angles]).sin()
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


class Block(nn.Module):
    """A layer of a decoder: RMS normalisation, rotary embedding, grouped keys, a gated network."""

    def __init__(self, fixed: bool) -> None:
        super().__init__()
        self.fixed = fixed
        self.before, self.between = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q, self.kv = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = nn.Linear(WIDTH, 48, bias=False), nn.Linear(WIDTH, 48, bias=False)
        self.down = nn.Linear(48, WIDTH, bias=False)

    def forward(self, x: Tensor, position: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.before(x)
        q = turned(self.q(h).view(-1, 1, HEADS, SIZE).transpose(1, 2), position)
        k, v = self.kv(h).view(-1, 1, HEADS, SIZE).transpose(1, 2).chunk(2, dim=1)  # half as many heads
        k = turned(k, position)
        if self.fixed:  # the cache has room for all; this step takes its place
            places = torch.arange(LONGEST)
            here = (places == position)[:, None]
            keys, values = torch.where(here, k, keys), torch.where(here, v, values)
            mask = (places <= position)[None]
        else:
            keys, values, mask = torch.cat([keys, k], dim=2), torch.cat([values, v], dim=2), None
        y = F.scaled_dot_product_attention(
            q, keys.repeat_interleave(2, dim=1), values.repeat_interleave(2, dim=1), attn_mask=mask
        )
        x = x + self.out(y.transpose(1, 2).reshape(-1, 1, WIDTH))
        h = self.between(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h)), keys, values


class Decoder(nn.Module):
    """One step: the next word's scores and the caches, from a word, its position and the caches."""

    def __init__(self, fixed: bool) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(WORDS, WIDTH), nn.RMSNorm(WIDTH)
        self.blocks = nn.ModuleList(Block(fixed) for _ in range(LAYERS))

    def forward(self, ids: Tensor, position: Tensor, *caches: Tensor) -> tuple[Tensor, ...]:
        x, after = self.words(ids), []
        for block, keys, values in zip(self.blocks, caches[::2], caches[1::2], strict=True):
            x, *kept = block(x, position, keys, values)
            after += kept
        return F.linear(self.last(x), self.words.weight)[:, 0], *after


def export(
    module: nn.Module,
    arguments: tuple[Any, ...],
    path: Path,
    opset: int,
    names: list[str],
    outputs: list[str],
    sizes: Any,
) -> None:
    """Write a module with PyTorch's exporter; opset 17 by the older one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if opset == 17:
            axes = {name: {k: dim.__name__ for k, dim in dims.items()} for name, dims in zip(names, sizes, strict=True)}
            torch.onnx.export(
                module, arguments, path, dynamo=False, opset_version=opset, input_names=names, output_names=outputs,
                dynamic_axes={name: dims for name, dims in axes.items() if dims},
            )  # fmt: skip
        else:
            if len(sizes) > 2:
                sizes = (*sizes[:2], tuple(sizes[2:]))  # the caches are one argument
            program = torch.onnx.export(
                module, arguments, dynamo=True, opset_version=opset, input_names=names, output_names=outputs,
                dynamic_shapes=sizes, verbose=False,
            )  # fmt: skip
            assert program is not None
            program.save(path)


@pytest.fixture(scope="module", params=[17, 18, 23])
def encoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Encoder, Path]:
    torch.manual_seed(0)
    module, path = Encoder().eval(), tmp_path_factory.mktemp("encoder") / "model.onnx"
    batch, length = torch.export.Dim("batch", max=64), torch.export.Dim("length", max=64)
    # The older exporter writes the length of the example into the model.
    sizes = [{0: batch} if request.param == 17 else {0: batch, 1: length}] * 2
    example = torch.randint(0, WORDS, (2, 7)), torch.ones(2, 7, dtype=torch.bool)
    export(module, example, path, request.param, ["ids", "mask"], ["scores"], sizes)
    return module, path


@pytest.mark.parametrize(("batch", "length"), [(1, 5), (3, 7)])
def test_an_encoder_matches(encoder: tuple[Encoder, Path], batch: int, length: int) -> None:
    module, path = encoder
    session = InferenceSession(path, fallback="error")
    fixed = session.get_inputs()[0].shape[1]
    length = fixed if isinstance(fixed, int) else length
    ids, mask = torch.randint(0, WORDS, (batch, length)), torch.ones(batch, length, dtype=torch.bool)
    mask[0, 3:] = False
    (scores,) = session.run(None, {"ids": ids.numpy(), "mask": mask.numpy()})
    with torch.no_grad():
        np.testing.assert_allclose(scores, module(ids, mask).numpy(), rtol=1e-4, atol=1e-5)
    assert "fallback" not in session.explain()


CACHES = [f"{kind}{layer}" for layer in range(LAYERS) for kind in ("keys", "values")]

Step = Callable[[int, int], np.ndarray]


def start(fixed: bool) -> list[Tensor]:
    """The caches before the first step: with room for all, or with one position of zeros."""
    return [torch.zeros(1, HEADS // 2, LONGEST if fixed else 1, SIZE) for _ in CACHES]


@pytest.fixture(scope="module", params=[(18, False), (18, True), (23, False), (23, True)], ids=str)
def decoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Decoder, bool, Path]:
    opset, fixed = request.param
    torch.manual_seed(1)
    module, path = Decoder(fixed).eval(), tmp_path_factory.mktemp("decoder") / "model.onnx"
    past = torch.export.Dim("past", max=LONGEST)
    sizes: list[dict[int, Any]] = [{}, {}, *({} if fixed else {2: past} for _ in CACHES)]
    caches = [cache if fixed else cache.repeat(1, 1, 3, 1) for cache in start(fixed)]
    example = torch.tensor([[3]]), torch.tensor(3), *caches
    names = ["ids", "position", *CACHES]
    export(module, example, path, opset, names, ["scores", *(f"new_{name}" for name in CACHES)], sizes)
    return module, fixed, path


def test_a_decoder_writes_the_same_words_with_its_cache_in_tensors(decoder: tuple[Decoder, bool, Path]) -> None:
    module, fixed, path = decoder
    session = InferenceSession(path, fallback="error", preferred_output_location="ml-tensor")
    caches = start(fixed)
    tensors: list[Any] = [session.context.tensor_from(cache.numpy()) for cache in caches]
    word, ours = 7, 7
    ow.memory.copies.reset()
    for position in range(1, 7):
        with torch.no_grad():
            scores, *caches = module(torch.tensor([[word]]), torch.tensor(position), *caches)
        feed = {"ids": np.array([[ours]]), "position": np.array(position), **dict(zip(CACHES, tensors, strict=True))}
        result, *tensors = session.run(None, feed)
        assert all(isinstance(tensor, ow.MLTensor) for tensor in (result, *tensors))
        np.testing.assert_allclose(result.numpy(), scores.numpy(), rtol=1e-4, atol=1e-5)
        word, ours = int(scores.argmax()), int(result.numpy().argmax())
        assert word == ours
    assert ow.memory.copies.count == 0
    for tensor, cache in zip(tensors, caches, strict=True):
        np.testing.assert_allclose(tensor.numpy(), cache.numpy(), rtol=1e-4, atol=1e-5)
    assert len(session._plans) == (1 if fixed else 6)
