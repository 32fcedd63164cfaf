"""Export networks of many kinds by PyTorch's exporter, with random weights from a fixed seed.

    pip install .[torch-tests] transformers
    python tools/export_networks.py FOLDER
    python -m gate.agreement FOLDER

Plain encoders of 1 to 12 layers and several widths, whose attention is spelled out; networks of torch.nn; and architectures
of Transformers with small configurations, where that package is installed. A model `NAME.onnx` has its inputs in `NAME.npz`.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

LENGTH = 24
"""Places of a sequence."""

VOCABULARY = 100

PLAIN = [(layers, 64, 1) for layers in range(1, 13)] + [(4, 128, 0), (6, 256, 0), (5, 96, 0), (8, 128, 1)]
PLAIN += [(2, 384, 1), (3, 512, 1), (4, 512, 0), (6, 384, 0)]
"""Layers and width of plain encoders, and whether the attention has a scale."""


class PlainLayer(nn.Module):
    """Attention of one head, spelled out, and two dense layers, each with a residual."""

    def __init__(self, width: int, is_scaled: bool) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = width**-0.5 if is_scaled else None

    def forward(self, x: Tensor) -> Tensor:
        scores = self.q(x) @ self.k(x).transpose(1, 2)
        scores = scores if self.scale is None else scores * self.scale
        x = x + torch.softmax(scores, -1) @ self.v(x)
        result: Tensor = x + self.down(torch.relu(self.up(x)))
        return result


def plain(layers: int, width: int, is_scaled: bool) -> nn.Module:
    """A stack of plain layers."""
    return nn.Sequential(*(PlainLayer(width, is_scaled) for _ in range(layers)))


class Residual(nn.Module):
    """Two convolutions with normalisation, and a shortcut."""

    def __init__(self, channels: int, groups: int = 1, activation: type[nn.Module] = nn.ReLU) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, groups=groups),
            nn.BatchNorm2d(channels),
            activation(),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = torch.relu(x + self.body(x))
        return result


class UNet(nn.Module):
    """Two levels, with transposed convolutions and resampling."""

    def __init__(self, is_transposed: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(32, 16, 2, stride=2) if is_transposed else nn.Upsample(scale_factor=2)
        self.last = nn.Conv2d(32 if is_transposed else 48, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        a = torch.relu(self.first(x))
        b = self.up(torch.nn.functional.silu(self.second(a)))
        result: Tensor = torch.sigmoid(self.last(torch.cat([a, b], 1)))
        return result


class Recurrent(nn.Module):
    """A recurrent layer in both directions, and a classifier."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layer = kind(32, 48, batch_first=True, bidirectional=True)
        self.head = nn.Linear(96, 10)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.layer(x)[0])
        return result


BODIES: dict[str, Callable[[], tuple[nn.Module, ...]]] = {
    "resnet": lambda: (Residual(32), Residual(32), nn.MaxPool2d(2)),
    "resnext": lambda: (Residual(32, 8), Residual(32, 8)),
    "mobile": lambda: (Residual(32, 32, nn.Hardswish), Residual(32, 32, nn.ReLU6)),
    "swish": lambda: (Residual(32, 1, nn.SiLU), nn.AvgPool2d(3, 2, 1), Residual(32, 1, nn.Mish)),
    "lrn": lambda: (nn.LocalResponseNorm(5, k=1.5), Residual(32), nn.LocalResponseNorm(3, 0.2, 0.6, 0.7)),
    "norms": lambda: (nn.GroupNorm(4, 32), nn.ELU(), nn.InstanceNorm2d(32), nn.PReLU(32), nn.GELU("tanh")),
}
"""What is between the first convolution and the head of each classifier of images."""


def classifier(body: Callable[[], tuple[nn.Module, ...]]) -> nn.Module:
    """A classifier of images."""
    stem, pool = nn.Conv2d(3, 32, 7, stride=2, padding=3), nn.AdaptiveAvgPool2d(1)
    return nn.Sequential(stem, *body(), pool, nn.Flatten(), nn.Linear(32, 10))


def networks() -> Iterator[tuple[str, Callable[[], nn.Module], tuple[Tensor, ...]]]:
    """The name, the maker and the inputs of each network of torch.nn."""
    for layers, width, is_scaled in PLAIN:
        name = f"plain-{layers}x{width}{'-scaled' if is_scaled else ''}"
        x = torch.randn(2, LENGTH, width)
        yield name, partial(plain, layers, width, bool(is_scaled)), (x,)
    for width, activation, first in product((64, 384), ("relu", "gelu"), (True, False)):
        name = f"encoder-{activation}{'-norm-first' if first else ''}{'' if width == 64 else f'-{width}'}"
        options = {"dim_feedforward": 2 * width, "batch_first": True, "activation": activation, "norm_first": first}

        def encoder(width: int = width, options: Any = options) -> nn.Module:
            layer = nn.TransformerEncoderLayer(width, 4, **options)
            return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)

        yield name, encoder, (torch.randn(2, LENGTH, width),)
    for side in (48, 160):
        image, size = torch.randn(1, 3, side, side), "" if side == 48 else f"-{side}"
        for name, body in BODIES.items():
            yield f"{name}{size}", partial(classifier, body), (image,)
        for is_transposed in (True, False):
            yield f"unet-{'transposed' if is_transposed else 'resampled'}{size}", partial(UNet, is_transposed), (image,)
    for kind in (nn.LSTM, nn.GRU):
        yield kind.__name__.lower(), partial(Recurrent, kind), (torch.randn(2, LENGTH, 32),)


SMALL = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 128}

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "bert": SMALL,
    "roberta": SMALL,
    "electra": SMALL | {"embedding_size": 64},
    "mpnet": SMALL,
    "albert": SMALL | {"embedding_size": 32},
    "convbert": SMALL | {"embedding_size": 64},
    "layoutlm": SMALL,
    "nystromformer": SMALL,
    "distilbert": {"dim": 64, "n_layers": 4, "n_heads": 4, "hidden_dim": 128},
    "vit": SMALL | {"image_size": 32, "patch_size": 8},
    "deit": SMALL | {"image_size": 32, "patch_size": 8},
    "dinov2": {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "image_size": 32, "patch_size": 8},
    "convnext": {"hidden_sizes": [16, 32, 64, 64], "depths": [1, 1, 2, 1]},
    "resnet": {"embedding_size": 16, "hidden_sizes": [16, 32, 64, 64], "depths": [1, 1, 1, 1]},
    "gpt2": {"n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 64},
    "llama": SMALL | {"num_key_value_heads": 2},
    "mistral": SMALL | {"num_key_value_heads": 2, "sliding_window": 16},
    "gpt_neox": SMALL,
    "opt": {
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "ffn_dim": 128,
        "word_embed_proj_dim": 64,
    },
    "bloom": {"hidden_size": 64, "n_layer": 4, "n_head": 4},
}
"""Options of the configurations of Transformers' architectures."""


def architectures() -> Iterator[tuple[str, Callable[[], nn.Module], tuple[Tensor, ...]]]:
    """The name, the maker and the inputs of each architecture of Transformers."""
    from transformers import AutoConfig, AutoModel

    for name, options in ARCHITECTURES.items():
        is_image = "image_size" in options or "depths" in options

        def make(name: str = name, options: Any = options, is_image: bool = is_image) -> nn.Module:
            special = (
                {} if is_image else {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
            )
            config = AutoConfig.for_model(name, **options, **special, use_cache=False, attn_implementation="eager")
            return First(AutoModel.from_config(config))

        ids = torch.randint(3, VOCABULARY, (2, LENGTH))
        size = options.get("image_size", 64)
        yield f"hf-{name}", make, (torch.randn(1, 3, size, size) if is_image else ids,)


class First(nn.Module):
    """A model that returns its first output."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.model(x, return_dict=False)[0]
        return result


def main() -> None:
    """Export all networks; those that the exporter refuses are listed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to write the models")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    sources = [*networks(), *(architectures() if find_spec("transformers") else ())]
    refused = {}
    for name, make, inputs in sources:
        torch.manual_seed(0)
        try:
            model = make().eval()
            names = [f"x{k}" for k in range(len(inputs))]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.onnx.export(
                    model,
                    inputs,
                    folder / f"{name}.onnx",
                    dynamo=True,
                    input_names=names,
                    output_names=["y"],
                    verbose=False,
                )
        except Exception as error:  # whatever an exporter raises
            refused[name] = f"{type(error).__name__}: {error}".splitlines()[0][:150]
            continue
        np.savez(
            folder / f"{name}.npz", allow_pickle=False, **{n: x.numpy() for n, x in zip(names, inputs, strict=True)}
        )
        print(name, flush=True)
    for name, why in refused.items():
        print(f"not exported: {name}: {why}")


if __name__ == "__main__":
    main()
