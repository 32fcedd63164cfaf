"""Make a language model of Llama's architecture with random weights, as a GGUF file of 4-bit numbers.

    python tools/make_llama.py build/llama.gguf                # 1.1 billion weights, 0.58 GB: what benchmarks measure
    python tools/make_llama.py build/small.gguf --layers 2 --width 256 --hidden 512 --heads 8 --groups 2 --words 512

Its texts have no meaning, but it takes the time and the memory of a real one. The file has no vocabulary.
"""

from __future__ import annotations

import argparse
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

ALIGNMENT = 32
"""Bytes between the starts of weights, at least; the format's default."""

BLOCK = 32
"""Numbers of a block of Q4_0, which have a scale."""

F32, Q4_0 = 0, 2
"""Types of weights in the format."""

UINT32, FLOAT32, STRING = 4, 6, 8
"""Types of metadata in the format."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of the network; the defaults are those of Llama 3.2 with 32,000 words. The head is the table of embeddings."""

    layers: int = 16
    width: int = 2048
    hidden: int = 8192
    heads: int = 32
    groups: int = 8
    words: int = 32000
    context: int = 4096

    def matrices(self) -> dict[str, tuple[int, int]]:
        """The shapes of matrices by name."""
        keys = self.width // self.heads * self.groups
        layer = {
            "attn_q": (self.width, self.width),
            "attn_k": (keys, self.width),
            "attn_v": (keys, self.width),
            "attn_output": (self.width, self.width),
            "ffn_gate": (self.hidden, self.width),
            "ffn_up": (self.hidden, self.width),
            "ffn_down": (self.width, self.hidden),
        }
        table = (self.words, self.width)
        named = {f"blk.{n}.{name}.weight": shape for n in range(self.layers) for name, shape in layer.items()}
        return {"token_embd.weight": table, **named}

    def vectors(self) -> list[str]:
        """The names of the factors of normalisations."""
        layer = ("attn_norm", "ffn_norm")
        return ["output_norm.weight", *(f"blk.{n}.{name}.weight" for n in range(self.layers) for name in layer)]


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def metadata(sizes: Sizes) -> list[bytes]:
    """The entries of the file's metadata."""
    numbers = {
        "block_count": sizes.layers,
        "context_length": sizes.context,
        "embedding_length": sizes.width,
        "feed_forward_length": sizes.hidden,
        "attention.head_count": sizes.heads,
        "attention.head_count_kv": sizes.groups,
    }
    reals = {"attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 500000.0}
    entries = [text("general.architecture") + struct.pack("<I", STRING) + text("llama")]
    entries += [text(f"llama.{name}") + struct.pack("<II", UINT32, value) for name, value in numbers.items()]
    return entries + [text(f"llama.{name}") + struct.pack("<If", FLOAT32, value) for name, value in reals.items()]


def random_blocks(rows: int, columns: int, random: np.random.Generator) -> bytes:
    """Random numbers of Q4_0 whose products keep the size of their inputs, roughly."""
    block = np.dtype([("scale", "<f2"), ("numbers", "u1", BLOCK // 2)])
    blocks = np.empty(rows * columns // BLOCK, block)
    blocks["numbers"] = random.integers(0, 256, (len(blocks), BLOCK // 2), np.uint8)
    # Numbers from -8 to 7 have a standard deviation of 4.6.
    blocks["scale"] = random.uniform(0.5, 1.5, len(blocks)) / (4.6 * np.sqrt(columns))
    return blocks.tobytes()


def padded(count: int) -> int:
    """Bytes of a weight, up to the start of the next one."""
    return -(-count // ALIGNMENT) * ALIGNMENT


def write(file: BinaryIO, sizes: Sizes, seed: int = 0) -> None:
    """Write a model.

    Args:
        file: an empty file.
        sizes: of the network.
        seed: of the random weights.
    """
    random, matrices, vectors = np.random.default_rng(seed), sizes.matrices(), sizes.vectors()
    entries = metadata(sizes)
    lengths = {name: rows * columns // BLOCK * (2 + BLOCK // 2) for name, (rows, columns) in matrices.items()}
    lengths |= dict.fromkeys(vectors, 4 * sizes.width)
    header = b"GGUF" + struct.pack("<IQQ", 3, len(lengths), len(entries)) + b"".join(entries)
    start = 0
    for name, length in lengths.items():
        shape = matrices.get(name, (sizes.width,))
        kind = Q4_0 if name in matrices else F32
        # Dimensions are stored from the innermost one outwards.
        header += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], kind, start)
        start += padded(length)
    file.write(header.ljust(padded(len(header)), b"\0"))
    for name, length in lengths.items():
        data = random_blocks(*matrices[name], random) if name in matrices else np.ones(sizes.width, "<f4").tobytes()
        assert len(data) == length
        file.write(data.ljust(padded(length), b"\0"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    for name, value in vars(Sizes()).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    options = vars(parser.parse_args())
    path: Path = options.pop("path")
    with path.open("wb") as file:
        write(file, Sizes(**options))


if __name__ == "__main__":
    main()
