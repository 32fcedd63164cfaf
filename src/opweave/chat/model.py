"""Build the network of Llama-type language models with `MLGraphBuilder`, from the weights of a GGUF file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from .. import composites
from ..context.builder import MLGraphBuilder
from ..core.graph import MLOperand
from ..support.errors import DataError, NotSupportedError
from .gguf import GGUF, Weight
from .metadata import Metadata

Array = np.ndarray

Matrix = tuple[dict[str, Any], int]
"""Arguments of the product with a matrix besides the input, and the number of copies of block means behind the input."""


def network(b: MLGraphBuilder, model: Model, new: int, room: int) -> dict[str, MLOperand]:
    """Build a step of a decoder, which reads new tokens and predicts the next one.

    The inputs of the graph are `x`, the embeddings of the new tokens, float32 [1, new, width]; `length`, the number of tokens
    before them, int32 [1]; `last`, the index of the new token whose successor is predicted, int32 [1]; and `key.N` and
    `value.N`, the keys and values of each layer, float32 [1, groups, room, size].

    Args:
        b: the builder.
        model: sizes and weights.
        new: the number of new tokens.
        room: maximum number of tokens in the keys and values.

    Returns:
        The outputs: `logits` [1, 1, words]; `key.N` and `value.N`, keys and values of the new tokens, to pass next time.
    """
    s = model.sizes
    x = b.input("x", "float32", [1, new, s.width])
    length, last = b.input("length", "int32", [1]), b.input("last", "int32", [1])
    cosines, sines = model.rotations(room)
    outputs = {}
    for n in range(s.layers):
        h = model.normalized(x, f"blk.{n}.attn_norm")
        q, k, v = model.linears(h, [f"blk.{n}.attn_{name}" for name in "qkv"])
        past = [b.input(f"{kind}.{n}", "float32", [1, s.groups, room, s.size]) for kind in ("key", "value")]
        y, keys, values = composites.group_query_attention(
            *(q, k, v, *past, length, cosines, sines), heads=s.heads, groups=s.groups, interleaved=s.interleaved
        )
        outputs.update({f"key.{n}": keys, f"value.{n}": values})
        x = x + model.linear(y, f"blk.{n}.attn_output")
        h = model.normalized(x, f"blk.{n}.ffn_norm")
        gate, up = model.linears(h, [f"blk.{n}.ffn_gate", f"blk.{n}.ffn_up"])
        x = x + model.linear(composites.swiglu(gate, up), f"blk.{n}.ffn_down")
    x = model.normalized(b.gather(x, last, axis=1), "output_norm")
    return {"logits": model.linear(x, model.head), **outputs}


@dataclass(frozen=True)
class Sizes:
    """The sizes of the network, as read from the file.

    Attributes:
        layers: the number of layers.
        width: elements of a token's vector.
        heads: of the queries.
        groups: heads of keys and values.
        size: elements of a head.
        words: the number of tokens in the vocabulary.
        context: the longest text in training, in tokens.
        epsilon: added to mean squares.
        interleaved: whether rotated pairs are adjacent elements; otherwise one element is in each half of a head.
    """

    layers: int
    width: int
    heads: int
    groups: int
    size: int
    words: int
    context: int
    epsilon: float
    interleaved: bool


MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
REQUIRED = ("attn_norm.weight", "ffn_norm.weight", *(f"{name}.weight" for name in MATRICES))
OPTIONAL = ("attn_q.bias", "attn_k.bias", "attn_v.bias")

INTERLEAVED = {"llama": True, "qwen2": False}
"""Supported architectures, and the value of `Sizes.interleaved` for each."""


class Model:
    """Sizes and weights of a language model.

    Args:
        file: the model.
        quantized: whether to keep matrices quantized; otherwise they are converted to float32.
        for_cpu: whether quantized matrices are packed for the kernels of CPUs: those of the same input in one product, with
            the minima of blocks as weights (`composites.pack_blocks`). GPUs read minima as they are, and merge kernels.

    Raises:
        NotSupportedError: `network` cannot build the network that the file describes.
        DataError: a weight or a size is missing.
    """

    def __init__(self, file: GGUF, *, quantized: bool = True, for_cpu: bool = True) -> None:
        self.file, self.quantized, self.for_cpu = file, quantized, for_cpu
        self._operands: dict[str, Matrix] = {}
        kind = Metadata(file).text("general.architecture")
        if kind not in INTERLEAVED:
            raise NotSupportedError(f"{file.path} is a model of type {kind}; {', '.join(INTERLEAVED)} are run")
        about = Metadata(file, f"{kind}.")
        self._check_scaling(about)
        # Each layer has weights, so `most` bounds the names that `_check_names` makes.
        layers = about.count("block_count", most=max(1, len(file.weights)))
        self._check_names(layers)
        heads = about.count("attention.head_count")
        groups = about.count("attention.head_count_kv", heads)
        if heads % groups:
            about.refuse("attention.head_count_kv", f"a divisor of the {heads} heads")
        words, width = self._matrix_shape("token_embd.weight")
        size = about.count("attention.key_length", width // heads)
        if not size:
            about.refuse("attention.head_count", f"at most the width of {width}")
        self.sizes = Sizes(
            layers=layers,
            width=width,
            heads=heads,
            groups=groups,
            size=size,
            words=words,
            context=about.count("context_length"),
            epsilon=about.real("attention.layer_norm_rms_epsilon"),
            interleaved=INTERLEAVED[kind],
        )
        self._theta = about.real("rope.freq_base", 10000.0)
        self._rotated = about.count("rope.dimension_count", size - size % 2)
        if self._rotated % 2 or self._rotated > size:
            about.refuse("rope.dimension_count", f"an even number of at most {size}, the size of a head")
        self.head = "output" if "output.weight" in file.weights else "token_embd"
        self._check_shapes(about)
        self._check_frequencies()

    def _check_scaling(self, about: Metadata) -> None:
        """Require that rotary angles are not scaled, as in models that extend the context of training."""
        scaling = about.text("rope.scaling.type", "linear")
        names = ["rope.scaling.factor", "rope.scale_linear"]
        factors = [about.real(name) for name in names if name in about and about.real(name) != 1]
        if scaling not in ("none", "linear") or (scaling == "linear" and (factors or "rope.scaling.type" in about)):
            factor = f" by {factors[0]:g}" if factors else ""
            raise NotSupportedError(f"{self.file.path}: its rotary embedding is scaled ({scaling}{factor})")

    def _matrix_shape(self, name: str) -> tuple[int, int]:
        shape = self.file.weights[name].shape
        if len(shape) != 2:
            raise DataError(f"{self.file.path}: {name} must have a rank of 2, got {list(shape)}")
        rows, columns = shape
        return rows, columns

    def _check_shapes(self, about: Metadata) -> None:
        """Require that all weights have the shapes that follow from the sizes."""
        s = self.sizes
        hidden, _ = self._matrix_shape("blk.0.ffn_up.weight")
        for name, size in {"embedding_length": s.width, "feed_forward_length": hidden}.items():
            if about.count(name, size) != size:
                about.refuse(name, f"{size}, as the weights have it")
        queries, keys = s.heads * s.size, s.groups * s.size
        layer = {
            "attn_norm.weight": (s.width,),
            "ffn_norm.weight": (s.width,),
            "attn_q.weight": (queries, s.width),
            "attn_k.weight": (keys, s.width),
            "attn_v.weight": (keys, s.width),
            "attn_output.weight": (s.width, queries),
            "ffn_gate.weight": (hidden, s.width),
            "ffn_up.weight": (hidden, s.width),
            "ffn_down.weight": (s.width, hidden),
            "attn_q.bias": (queries,),
            "attn_k.bias": (keys,),
            "attn_v.bias": (keys,),
        }
        shapes: dict[str, tuple[int, ...]] = {
            "token_embd.weight": (s.words, s.width),
            "output.weight": (s.words, s.width),
            "output_norm.weight": (s.width,),
            "rope_freqs.weight": (self._rotated // 2,),
        }
        shapes |= {f"blk.{n}.{name}": shape for n in range(s.layers) for name, shape in layer.items()}
        for name, weight in self.file.weights.items():
            if weight.shape != shapes[name]:
                raise DataError(
                    f"{self.file.path}: {name} must have the shape {list(shapes[name])}, got {list(weight.shape)}"
                )

    def _check_names(self, layers: int) -> None:
        """Require all weights of the network, and no others, whose use is unknown."""

        def names(endings: Iterable[str]) -> set[str]:
            return {f"blk.{layer}.{ending}" for layer in range(layers) for ending in endings}

        present = set(self.file.weights)
        needed = {"token_embd.weight", "output_norm.weight", *names(REQUIRED)}
        if missing := sorted(needed - present):
            raise DataError(f"{self.file.path} lacks {len(missing)} weights: {', '.join(missing[:3])}")
        allowed = {*needed, "output.weight", "rope_freqs.weight", *names(OPTIONAL)}
        if unknown := sorted(present - allowed):
            raise NotSupportedError(
                f"{self.file.path} has {len(unknown)} weights that networks of this type do not have: "
                f"{', '.join(unknown[:3])}"
            )

    def _check_frequencies(self) -> None:
        """Require that the angles of all positions are finite."""
        with np.errstate(all="ignore"):
            largest = np.abs(self.frequencies).max() * self.sizes.context
        if not np.isfinite(largest):
            raise DataError(
                f"{self.file.path}: the angles of rotary embeddings must be finite; "
                f"rope.freq_base is {self._theta:g}, and rope_freqs.weight may have zeros"
            )

    @cached_property
    def frequencies(self) -> Array:
        """The rotation of each pair from one position to the next, in radians; float64."""
        pairs = np.arange(0, self._rotated, 2) / self._rotated
        factors = self.file.weights.get("rope_freqs.weight")
        frequencies: Array = self._theta**-pairs / (1.0 if factors is None else factors.real())
        return frequencies

    def rotations(self, room: int) -> tuple[Array, Array]:
        """Compute the cosines and sines of the rotation at each position.

        Args:
            room: the number of positions.

        Returns:
            The cosines and the sines, both float32 [room, pairs].
        """
        angles = np.arange(room)[:, None] * self.frequencies
        return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    def embedded(self, tokens: Array) -> Array:
        """Look up the embeddings of tokens.

        Args:
            tokens: integers [tokens], each less than the size of the vocabulary.

        Returns:
            A float32 array [1, tokens, width].
        """
        return self.file.weights["token_embd.weight"].real(tokens)[None]

    def normalized(self, x: MLOperand, name: str) -> MLOperand:
        """Add an RMS normalisation of the last axis to the graph.

        Args:
            x: float32 [..., width].
            name: the name of the weight in the file, without ".weight".

        Returns:
            An operand of the shape of `x`.
        """
        weight = self.file.weights[f"{name}.weight"].real()
        return composites.rms_norm(x, weight, epsilon=self.sizes.epsilon, label=name)

    def linear(self, x: MLOperand, name: str) -> MLOperand:
        """Add the product with a matrix to the graph, plus the bias if there is one.

        Args:
            x: float32 [1, tokens, columns].
            name: the name of the matrix in the file, without ".weight".

        Returns:
            A float32 operand [1, tokens, rows].
        """
        return self.linears(x, [name])[0]

    def linears(self, x: MLOperand, names: Sequence[str]) -> list[MLOperand]:
        """Add the products with several matrices to the graph; matrices of the same format share one product.

        Args:
            x: float32 [1, tokens, columns].
            names: the names of the matrices in the file, without ".weight".

        Returns:
            For each matrix, a float32 operand [1, tokens, rows].
        """
        weights = [self.file.weights[f"{name}.weight"] for name in names]
        biases = [self.file.weights[f"{name}.bias"].real() for name in names if f"{name}.bias" in self.file.weights]
        is_quantized = self.quantized and weights[0].format.blocks is not None
        is_alike = len({weight.format.name for weight in weights}) == 1 and len(biases) in (0, len(names))
        if len(names) > 1 and not (is_quantized and is_alike and self.for_cpu):
            return [self.linear(x, name) for name in names]
        bias, label = np.concatenate(biases) if biases else None, ", ".join(names)
        if not is_quantized:
            matrix, _ = self._cache_matrix(label, lambda: ({"b": weights[0].real()}, 0))
            y: MLOperand = x.reshape(x.shape[1:]).gemm(**matrix, c=bias, b_transpose=True, label=label)
            return [y.reshape([1, *y.shape])]
        matrix, copies = self._cache_matrix(label, lambda: self._pack(weights))
        if copies:
            size = matrix["block_size"]
            means = x.reshape([1, x.shape[1], x.shape[2] // size, size]).reduce_mean(axes=[3])
            builder: Any = x.builder
            x = builder.concat([x, *[means] * copies], axis=2)
        product: Any = composites.matmul_n_bits(x, bias=bias, accuracy="int8", label=label, **matrix)
        return product.split([weight.shape[0] for weight in weights], axis=2) if len(names) > 1 else [product]

    def _cache_matrix(self, name: str, make: Callable[[], Matrix]) -> Matrix:
        """Cache a matrix, so that all graphs share the arrays."""
        if name not in self._operands:
            self._operands[name] = make()
            self.file.release()
        return self._operands[name]

    def _pack(self, weights: Sequence[Weight]) -> Matrix:
        blocks: Any = replace(weights[0], data=np.concatenate([weight.data for weight in weights])).blocks()
        if self.for_cpu:
            return composites.pack_blocks(blocks.numbers, blocks.scale, blocks.minimum, bits=blocks.bits)
        weight, size = composites.pack_bits(blocks.numbers, bits=blocks.bits), blocks.numbers.shape[2]
        operands = {"weight": weight, "scale": blocks.scale, "minimum": blocks.minimum}
        return {**operands, "bits": blocks.bits, "block_size": size}, 0
