"""Export the models of `tests/onnx/test_onnx_transformers.py` by PyTorch's two exporters, with what PyTorch computes.

    pip install .[torch-tests]
    python tools/export_transformers.py tests/data/transformers

An encoder, and the step of a decoder whose cache grows or has a fixed size. Weights are random, from a fixed seed. Each model
`NAME.onnx` has a `NAME.npz` beside it with inputs and PyTorch's results.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (PyTorch's word)

WORDS, WIDTH, HEADS, LAYERS, LONGEST = 50, 16, 4, 2, 24
SIZE = WIDTH // HEADS
STEPS = 6
CACHES = [f"{kind}{layer}" for layer in range(LAYERS) for kind in ("keys", "values")]


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


def rotated(x: Tensor, position: Tensor) -> Tensor:
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
        self.gate, self.up = nn.Linear(WIDTH, 24, bias=False), nn.Linear(WIDTH, 24, bias=False)
        self.down = nn.Linear(24, WIDTH, bias=False)

    def forward(self, x: Tensor, position: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.before(x)
        q = rotated(self.q(h).view(-1, 1, HEADS, SIZE).transpose(1, 2), position)
        k, v = self.kv(h).view(-1, 1, HEADS, SIZE).transpose(1, 2).chunk(2, dim=1)  # half as many heads
        k = rotated(k, position)
        if self.fixed:  # the cache has room for all positions; this step takes its place
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
    model = onnx.load(path)
    for part in (model.graph, *model.graph.node, *model.graph.value_info, *model.graph.initializer):
        del part.metadata_props[:]  # stack traces of the exporter
        part.doc_string = ""
    onnx.save(model, path)


def export_encoder(folder: Path, opset: int) -> None:
    torch.manual_seed(0)
    module, path = Encoder().eval(), folder / f"encoder-{opset}.onnx"
    batch, length = torch.export.Dim("batch", max=64), torch.export.Dim("length", max=64)
    # The older exporter writes the length of the example into the model.
    sizes = [{0: batch} if opset == 17 else {0: batch, 1: length}] * 2
    example = torch.randint(0, WORDS, (2, 7)), torch.ones(2, 7, dtype=torch.bool)
    export(module, example, path, opset, ["ids", "mask"], ["scores"], sizes)
    arrays: dict[str, np.ndarray] = {}
    for batches, words in ((1, 7), (3, 7), (1, 5), (2, 12)):
        ids, mask = torch.randint(0, WORDS, (batches, words)), torch.ones(batches, words, dtype=torch.bool)
        mask[0, 3:] = False
        with torch.no_grad():
            scores = module(ids, mask)
        of = f"{batches}x{words}"
        arrays |= {f"ids {of}": ids.numpy(), f"mask {of}": mask.numpy(), f"scores {of}": scores.numpy()}
    np.savez_compressed(path.with_suffix(".npz"), **arrays)  # type: ignore[arg-type]


def export_decoder(folder: Path, opset: int, fixed: bool) -> None:
    torch.manual_seed(1)
    module, path = Decoder(fixed).eval(), folder / f"decoder-{opset}-{'fixed' if fixed else 'growing'}.onnx"
    past = torch.export.Dim("past", max=LONGEST)
    sizes: list[dict[int, Any]] = [{}, {}, *({} if fixed else {2: past} for _ in CACHES)]
    # Before the first step: room for all positions, or one position of zeros.
    caches = [torch.zeros(1, HEADS // 2, LONGEST if fixed else 1, SIZE) for _ in CACHES]
    example = torch.tensor([[3]]), torch.tensor(3), *(c if fixed else c.repeat(1, 1, 3, 1) for c in caches)
    names = ["ids", "position", *CACHES]
    export(module, example, path, opset, names, ["scores", *(f"new_{name}" for name in CACHES)], sizes)
    arrays = {name: cache.numpy() for name, cache in zip(CACHES, caches, strict=True)}
    word, all_scores = 7, []
    for position in range(1, 1 + STEPS):
        with torch.no_grad():
            scores, *caches = module(torch.tensor([[word]]), torch.tensor(position), *caches)
        word = int(scores.argmax())
        all_scores.append(scores.numpy())
    arrays |= {f"new_{name}": cache.numpy() for name, cache in zip(CACHES, caches, strict=True)}
    np.savez_compressed(path.with_suffix(".npz"), **arrays, scores=np.stack(all_scores))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to write the models")
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for opset in (17, 18, 23):
        export_encoder(folder, opset)
    for opset in (18, 23):
        for fixed in (False, True):
            export_decoder(folder, opset, fixed)


if __name__ == "__main__":
    main()
