"""Train the network of `opweave demo` on the photographs that come with scikit-image, on the CPU.

The photographs of HELD_OUT are never trained on; at the end the network is compared with bicubic enlargement on
each of them, as the demo measures it: PSNR of the luma of the finished 8-bit picture.

Needs the extra `dev`: PyTorch, scikit-image, Pillow, safetensors.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import time
from importlib.metadata import version
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from opweave.demo import network
from opweave.demo.colours import bicubic, merge, psnr, split

FACTOR = network.FACTOR
TRAINED_ON = ("brick.png", "camera.png", "coffee.png", "coins.png", "grass.png", "gravel.png",
              "hubble_deep_field.jpg", "moon.png", "motorcycle_left.png", "motorcycle_right.png")  # fmt: skip
HELD_OUT = ("astronaut.png", "chelsea.png", "rocket.jpg")
# A photograph made smaller is a further, sharper photograph: detail of all sizes, from few pictures.
SCALES = (1.0, 0.85, 0.7, 0.55)

Plane = NDArray[np.float32]


def photograph(name: str) -> Image.Image:
    """Open a photograph of scikit-image's wheel, cut to sides that are multiples of FACTOR, as RGB."""
    with (files("skimage.data") / name).open("rb") as file:
        image = Image.open(file).convert("RGB")
    return cut(image)


def cut(image: Image.Image) -> Image.Image:
    """Leave out the rows and columns at the end that do not make a whole block."""
    return image.crop((0, 0, image.width // FACTOR * FACTOR, image.height // FACTOR * FACTOR))


def reduce(image: Image.Image) -> Image.Image:
    """Make the network's input of a photograph, as the demo does."""
    return image.resize((image.width // FACTOR, image.height // FACTOR), Image.Resampling.BICUBIC)


def plane(image: Image.Image) -> Plane:
    """An 8-bit grey image as float32 [height, width] in [0, 1]."""
    return np.asarray(image, np.float32) / np.float32(255)


class Network(nn.Module):
    """The trained chain plus the fixed bicubic filter; see `opweave.demo.network` for the drawing."""

    bicubic: Tensor

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        sizes = [1] + [width] * (depth - 1) + [FACTOR**2]
        self.layers = [nn.Conv2d(before, after, 5 if before == 1 else 3) for before, after in pairwise(sizes)]
        self.chain = nn.ModuleList(self.layers)  # tells the optimizer about them
        for layer in self.layers:
            for parameter in layer.parameters():
                if parameter.ndim == 1:
                    nn.init.zeros_(parameter)
                elif layer is self.layers[-1]:
                    nn.init.normal_(parameter, std=1e-3)  # starts as bicubic, and learns from there
                else:
                    nn.init.kaiming_normal_(parameter, a=network.SLOPE, nonlinearity="leaky_relu")
        self.register_buffer("bicubic", torch.from_numpy(network.bicubic_filter()))
        self.halo = sum(layer.kernel_size[0] // 2 for layer in self.layers)

    def forward(self, luma: Tensor) -> Tensor:
        detail = luma
        for layer in self.layers[:-1]:
            detail = functional.leaky_relu(layer(detail), network.SLOPE)
        inner = slice(self.halo - 2, 2 - self.halo)
        return functional.pixel_shuffle(
            self.layers[-1](detail) + functional.conv2d(luma[:, :, inner, inner], self.bicubic), FACTOR
        )


class Patches:
    """Random pairs of a small patch with its halo and the large patch it comes from."""

    def __init__(self, names: tuple[str, ...], size: int, halo: int, seed: int) -> None:
        self.size, self.halo, self.context = size, halo, size + 2 * halo
        self.random = random.Random(seed)
        self.pairs: list[tuple[Plane, Plane]] = []
        self.weights: list[float] = []
        for name in names:
            whole = photograph(name)
            coloured = bool(np.ptp(np.asarray(whole), axis=-1).any())
            for scale in SCALES:
                shape = (round(whole.width * scale), round(whole.height * scale))
                large = cut(whole.resize(shape, Image.Resampling.LANCZOS))
                small = reduce(large)
                if min(small.size) < self.context:
                    continue
                self.pairs.append((split(np.asarray(small))[0], split(np.asarray(large))[0]))
                if coloured:  # the planes of a coloured picture are further pictures, with other contrasts
                    for a, b in zip(small.split(), large.split(), strict=True):
                        self.pairs.append((plane(a), plane(b)))
            # Each photograph comes up equally often, and each plane of it as its area says.
            planes = [small.size for small, _ in self.pairs[len(self.weights) :]]
            self.weights += [area / sum(planes) for area in planes]

    def batch(self, count: int) -> tuple[Tensor, Tensor]:
        """Draw patches: float32 [count, 1, size + 2 * halo, ...] and [count, 1, FACTOR * size, ...]."""
        inputs, targets = [], []
        for small, large in self.random.choices(self.pairs, self.weights, k=count):
            y, x = (self.random.randrange(side - self.context + 1) for side in small.shape)
            a = small[y : y + self.context, x : x + self.context]
            top, left = (FACTOR * (start + self.halo) for start in (y, x))
            b = large[top : top + FACTOR * self.size, left : left + FACTOR * self.size]
            turns, flip, negative = self.random.randrange(4), self.random.random() < 0.5, self.random.random() < 0.5
            a, b = np.rot90(a, turns), np.rot90(b, turns)
            a, b = (a[:, ::-1], b[:, ::-1]) if flip else (a, b)
            a, b = (1 - a, 1 - b) if negative else (a, b)
            inputs.append(a.copy())
            targets.append(b.copy())
        return torch.from_numpy(np.stack(inputs)[:, None]), torch.from_numpy(np.stack(targets)[:, None])


@torch.inference_mode()
def enlarge(model: Network, small: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Enlarge a picture, uint8 [height, width, 3], as the demo does."""
    luma, cb, cr = split(small)
    padded = np.pad(luma, model.halo, "edge")
    large = model(torch.from_numpy(padded)[None, None])[0, 0].numpy()
    height, width = large.shape
    return merge(large, bicubic(cb, width, height), bicubic(cr, width, height))


def compare(model: Network) -> dict[str, dict[str, float]]:
    """PSNR on each held-out photograph, in decibels: bicubic enlargement and the network."""
    table = {}
    for name in HELD_OUT:
        original = photograph(name)
        small = reduce(original)
        plain = np.asarray(small.resize(original.size, Image.Resampling.BICUBIC))
        ours = enlarge(model, np.asarray(small))
        table[name] = {
            "bicubic": round(psnr(plain, np.asarray(original)), 3),
            "network": round(psnr(ours, np.asarray(original)), 3),
        }
    return table


def train(model: Network, arguments: argparse.Namespace, console: Console) -> None:
    """Fit the network: mean absolute error, Adam, learning rate falling to zero along a cosine."""
    patches = Patches(TRAINED_ON, arguments.patch, model.halo, arguments.seed)
    pixels = sum(small.size for small, _ in patches.pairs)
    console.print(f"{len(patches.pairs)} planes of {len(TRAINED_ON)} photographs, {pixels:,} small pixels")
    optimizer = torch.optim.Adam(model.parameters(), lr=arguments.rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.steps)
    columns = (*Progress.get_default_columns()[:-1], TimeRemainingColumn(), TextColumn("{task.fields[note]}"))
    total = 0.0
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("training", total=arguments.steps, note="")
        for step in range(1, arguments.steps + 1):
            small, large = patches.batch(arguments.batch)
            loss = functional.l1_loss(model(small), large)
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            # Rare, very detailed patches must not throw the weights about.
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            schedule.step()
            total += loss.item()
            progress.update(task, advance=1)
            if step % arguments.report == 0 or step == arguments.steps:
                gains = {name: row["network"] - row["bicubic"] for name, row in compare(model).items()}
                note = "  ".join(f"{Path(name).stem} {gain:+.2f} dB" for name, gain in gains.items())
                progress.update(task, note=f"loss {total / arguments.report:.5f}")
                console.print(f"step {step:6d}  loss {total / arguments.report:.5f}  {note}")
                total = 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=network.WEIGHTS, help="default: %(default)s")
    parser.add_argument("--width", type=int, default=40, help="channels of the hidden layers (%(default)s)")
    parser.add_argument("--depth", type=int, default=6, help="number of convolutions (%(default)s)")
    parser.add_argument("--steps", type=int, default=22_000, help="training steps (%(default)s)")
    parser.add_argument("--batch", type=int, default=8, help="patches a step (%(default)s)")
    parser.add_argument("--patch", type=int, default=40, help="side of a small patch in pixels (%(default)s)")
    parser.add_argument("--rate", type=float, default=1e-3, help="the first learning rate (%(default)s)")
    parser.add_argument("--seed", type=int, default=3, help="(%(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="(%(default)s)")
    parser.add_argument("--report", type=int, default=500, help="steps between two reports (%(default)s)")
    arguments = parser.parse_args()

    console = Console()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    model = Network(arguments.width, arguments.depth)
    parameters = sum(weight.numel() for weight in model.parameters())
    console.print(f"{arguments.depth} convolutions, {parameters:,} parameters ({parameters * 4 / 1000:.0f} KB)")
    start = time.perf_counter()
    train(model, arguments, console)
    minutes = (time.perf_counter() - start) / 60

    results = compare(model)
    table = Table("held-out photograph", "bicubic", "network", "gain", title="PSNR of luma, dB")
    for name, row in results.items():
        table.add_row(name, *(f"{row[key]:.2f}" for key in row), f"{row['network'] - row['bicubic']:+.2f}")
    console.print(table)

    metadata = {
        "description": "sub-pixel network, enlarges luma 3x; drawn and explained in opweave/demo/network.py",
        "made_by": "tools/train_super_resolution.py",
        "architecture": f"conv 5x5, {arguments.depth - 1} x conv 3x3, {arguments.width} channels, leaky relu "
        f"{network.SLOPE}; plus bicubic; pixel shuffle {FACTOR}",
        "parameters": str(parameters),
        "training": json.dumps(
            {key: getattr(arguments, key) for key in ("seed", "steps", "batch", "patch", "rate")}
            | {"loss": "mean absolute error", "optimizer": "Adam, cosine to 0", "scales": SCALES}
            | {"augmentation": "8 symmetries, negatives, colour planes", "minutes": round(minutes, 1)}
        ),
        "trained_on": json.dumps(TRAINED_ON),
        "held_out": json.dumps(HELD_OUT),
        "psnr": json.dumps(results),
        "versions": json.dumps(
            {name: version(name) for name in ("torch", "scikit-image", "pillow", "numpy")}
            | {"python": platform.python_version()}
        ),
    }
    tensors = {
        f"{index}.{kind}": tensor.detach().contiguous()
        for index, layer in enumerate(model.layers)
        for kind, tensor in layer.named_parameters()
    }
    save_file(tensors, arguments.output, metadata)
    console.print(f"{arguments.output}: {arguments.output.stat().st_size:,} bytes, {minutes:.1f} minutes")


if __name__ == "__main__":
    main()
