"""Build the network of language models with `MLGraphBuilder`, from the weights of a GGUF file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, Literal

import numpy as np

from .. import composites
from ..composites.packing import unpack_codes
from ..composites.quantization import fold_minima
from ..context.builder import MLGraphBuilder
from ..core.dtypes import DataType
from ..core.graph import MLOperand
from ..memory.spilled import SpilledArrays
from ..support.errors import DataError, NotSupportedError
from ..support.processors import processors
from .architectures import ARCHITECTURES
from .gguf import GGUF, Weight
from .metadata import Metadata
from .rotary_angles import RotaryAngles
from .side_products import side_product

Array = np.ndarray

Matrix = tuple[dict[str, Any], int]
"""Arguments of the product with a matrix besides the input, and the number of copies of block means behind the input."""

MAX_PACKING = 8
"""Maximum number of matrices that are packed at a time: packing takes up to three times the matrix's memory. An estimate."""

CacheType = Literal["float32", "float16", "int8"]
"""The data type of cached keys and values; int8 has a scale for each vector."""


def network(
    b: MLGraphBuilder,
    model: Model,
    new: int | str,
    room: int,
    cache: CacheType = "float32",
    adapters: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, MLOperand]:
    """Build a step of a decoder, which reads new tokens and predicts the next one.

    The inputs of the graph are `tokens`, int32 [1, new]; `length`, the number of tokens before them, int32 [1]; and `key.N`
    and `value.N`, the keys and values of each layer [1, groups, room, size]; with a cache of int8 also `key_scale.N` and
    `value_scale.N`, float32 [1, groups, room].

    Args:
        b: the builder.
        model: sizes and weights.
        new: the number of new tokens, or a name, for a graph that reads any number of tokens at once.
        room: maximum number of tokens in the keys and values.
        cache: "float32", "float16" or "int8", the data type of the keys and values.
        adapters: the shapes of further inputs, for adapters: `AdapterSlots.shapes`.

    Returns:
        The outputs: `logits` [1, 1, words]; `key.N` and the others, with the keys and values of the new tokens, to pass next
        time.
    """
    s = model.sizes
    tokens, length = b.input("tokens", "int32", [1, new]), b.input("length", "int32", [1])
    x = model.embedded(tokens)
    outputs = {}
    if adapters:
        model = model.with_adapters({name: b.input(name, "float32", shape) for name, shape in adapters.items()})
    for n in range(s.layers):
        h = model.normalized(x, f"blk.{n}.attn_norm")
        past = {kind: b.input(f"{kind}.{n}", *desc) for kind, desc in s.cache(room, cache).items()}
        y, *present = composites.group_query_attention(
            *model.heads(h, n, cache),
            lengths=length,
            **{f"past_{kind}": operand for kind, operand in past.items()},
            **model.attention(room, n, cache),
        )
        outputs.update({f"{kind}.{n}": operand for kind, operand in zip(past, present, strict=True)})
        y = model.linear(y, f"blk.{n}.attn_output")
        x = x + model.normalized_if(y, f"blk.{n}.post_attention_norm")
        h = model.normalized(x, f"blk.{n}.ffn_norm")
        y = model.linear(model.gated(h, n), f"blk.{n}.ffn_down")
        x = x + model.normalized_if(y, f"blk.{n}.post_ffw_norm")
    last = b.slice(x, [0, x.shape[1] - 1, 0], [1, 1, s.width])
    return {"logits": model.logits(model.normalized(last, "output_norm")), **outputs}


def _operand_type(cache: CacheType) -> DataType:
    """The data type of queries and of new keys and values."""
    return "float16" if cache == "float16" else "float32"


def _convert(x: MLOperand, data_type: DataType) -> MLOperand:
    """Convert `x` to a data type; without an operation if it has that type."""
    converted: MLOperand = x if x.data_type == data_type else x.cast(data_type)
    return converted


@dataclass(frozen=True)
class Sizes:
    """The sizes of the network, as read from the file.

    Attributes:
        layers: the number of layers.
        width: elements of a token's vector.
        heads: the number of heads of the queries.
        groups: heads of keys and values.
        size: elements of a head.
        words: the number of tokens in the vocabulary.
        context: the longest text in training, in tokens.
        epsilon: added to mean squares.
        scale: factor of the scores.
        softcap: scores become `softcap * tanh(scores / softcap)`; 0 leaves them.
        final_softcap: the same of the logits.
        window: tokens that layers with a window see; 0: all.
    """

    layers: int
    width: int
    heads: int
    groups: int
    size: int
    words: int
    context: int
    epsilon: float
    scale: float
    softcap: float
    final_softcap: float
    window: int

    def cache(self, room: int, data_type: CacheType) -> dict[str, tuple[DataType, list[int]]]:
        """The data types and shapes of the arrays of a layer's KV cache by name, in the order of the results of attention.

        >>> sizes = Sizes(30, 576, 9, 3, 64, 49152, 2048, 1e-5, 0.125, 0.0, 0.0, 0)
        >>> sizes.cache(256, "int8")["key_scale"]
        ('float32', [1, 3, 256])
        """
        shape = [1, self.groups, room]
        arrays: dict[str, tuple[DataType, list[int]]] = {
            kind: (data_type, [*shape, self.size]) for kind in ("key", "value")
        }
        if data_type == "int8":
            arrays |= {f"{kind}_scale": ("float32", shape) for kind in ("key", "value")}
        return arrays


MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
"""The matrices of a layer of Llama."""


class Model:
    """Sizes and weights of a language model.

    Args:
        file: the model.
        quantized: whether to keep matrices quantized; otherwise they are converted to float32.
        for_cpu: whether quantized matrices are packed for the kernels of CPUs, with 4 or 8 bits a number: those of the same
            input in one product, with the minima of blocks as weights (`composites.pack_blocks`). GPUs read numbers and minima
            as they are, and merge kernels.

    Raises:
        NotSupportedError: `network` cannot build the network that the file describes.
        DataError: a weight or a size is missing.
    """

    def __init__(self, file: GGUF, *, quantized: bool = True, for_cpu: bool = True) -> None:
        self.file, self.quantized, self.for_cpu = file, quantized, for_cpu
        self._operands: dict[str, Matrix] = {}
        self._spilled = SpilledArrays()
        kind = Metadata(file).text("general.architecture")
        if kind not in ARCHITECTURES:
            raise NotSupportedError(f"{file.path} is a model of type {kind}; {', '.join(ARCHITECTURES)} are run")
        self.architecture = ARCHITECTURES[kind]
        about = Metadata(file, f"{kind}.")
        # Each layer has weights, so `most` bounds the names that `_check_names` makes.
        layers = about.count("block_count", most=max(1, len(file.weights)))
        heads = about.count("attention.head_count")
        groups = about.count("attention.head_count_kv", heads)
        if heads % groups:
            about.refuse("attention.head_count_kv", f"a divisor of the {heads} heads")
        self.head = "output" if "output.weight" in file.weights else "token_embd"
        if "token_embd.weight" not in file.weights:
            raise DataError(f"{file.path} lacks 1 weights: token_embd.weight")
        words, width = self._matrix_shape("token_embd.weight")
        size = about.count("attention.key_length", width // heads)
        if not size:
            about.refuse("attention.head_count", f"at most the width of {width}")
        context = about.count("context_length")
        self._rotation = RotaryAngles(file, about, size, context, self.architecture.local_base)
        self._check_names(layers)
        if about.count("attention.value_length", size) != size:
            about.refuse("attention.value_length", f"{size}, as attention.key_length")
        window = about.count("attention.sliding_window", self.architecture.window, least=0)
        is_of_width = layers == self.architecture.layers_of_width
        self.sizes = Sizes(
            layers=layers,
            width=width,
            heads=heads,
            groups=groups,
            size=size,
            words=words,
            context=context,
            epsilon=about.real("attention.layer_norm_rms_epsilon"),
            scale=sqrt(heads / width) if is_of_width else 1 / sqrt(size),
            softcap=about.real("attn_logit_softcapping", 0.0),
            final_softcap=about.real("final_logit_softcapping", 0.0),
            window=window,
        )
        self._windowed = self._layers_with_windows(about, layers, window)
        self._tables: dict[tuple[int, bool, str], list[Array]] = {}
        self.side_operands: Mapping[str, MLOperand] = {}
        self._check_shapes(about)
        self._rotation.check()

    def with_adapters(self, operands: Mapping[str, MLOperand]) -> Model:
        """The model with side products, whose matrices are inputs of a graph. The copies share all arrays.

        Args:
            operands: the inputs for adapters by name.
        """
        adapted = copy(self)
        adapted.side_operands = operands
        return adapted

    def releasing(self) -> AbstractContextManager[None]:
        """Keep the model's own matrices out of memory while an engine packs copies of them, and then until they are read."""
        return self._spilled.releasing()

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
        if self.architecture.is_joined:
            hidden //= 2
        for name, size in {"embedding_length": s.width, "feed_forward_length": hidden}.items():
            if about.count(name, size) != size:
                about.refuse(name, f"{size}, as the weights have it")
        queries, keys = s.heads * s.size, s.groups * s.size
        layer = self.architecture.shapes(s.width, hidden, queries, keys, s.size)
        layer |= self.architecture.optional_shapes(queries, keys)
        shapes: dict[str, tuple[int, ...]] = {
            "token_embd.weight": (s.words, s.width),
            "output.weight": (s.words, s.width),
            "output_norm.weight": (s.width,),
            **self._rotation.weights(),
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
        needed = {"token_embd.weight", "output_norm.weight", *names(self.architecture.shapes(1, 1, 1, 1, 1))}
        if missing := sorted(needed - present):
            raise DataError(f"{self.file.path} lacks {len(missing)} weights: {', '.join(missing[:3])}")
        allowed = {*needed, "output.weight", *self._rotation.weights(), *names(self.architecture.optional_shapes(1, 1))}
        if unknown := sorted(present - allowed):
            raise NotSupportedError(
                f"{self.file.path} has {len(unknown)} weights that networks of this type do not have: "
                f"{', '.join(unknown[:3])}"
            )

    def rotations(self, room: int, layer: int = 0, cache: CacheType = "float32") -> list[Array]:
        """Compute the cosines and sines of the rotation at each position.

        Args:
            room: the number of positions.
            layer: the number of a layer.
            cache: the data type of the KV cache: the arrays are float16 with "float16", else float32.

        Returns:
            The cosines and the sines, both [room, pairs]. Layers that rotate alike share the arrays.
        """
        is_local = self._windowed[layer] and self.architecture.local_base > 0
        data_type = _operand_type(cache)
        key = room, is_local, data_type
        if key not in self._tables:
            frequencies, magnitude = self._rotation.frequencies(room, is_local=is_local)
            angles = np.arange(room)[:, None] * frequencies
            self._tables[key] = [(f(angles) * magnitude).astype(data_type) for f in (np.cos, np.sin)]
        return self._tables[key]

    def _layers_with_windows(self, about: Metadata, layers: int, window: int) -> list[bool]:
        """Tell which layers see a window: by a period, or by a list with a boolean for each layer."""
        name = "attention.sliding_window_pattern"
        if about.is_list(name):
            pattern = about.flags(name, layers)
        else:
            period = about.count(name, self.architecture.period, least=0)
            pattern = [period is not None and (period == 0 or layer % period < period - 1) for layer in range(layers)]
        # Gemma 3's files have no window if all layers see all tokens; then all of these rotate alike.
        return [window > 0 and is_windowed for is_windowed in pattern]

    def attention(self, room: int, layer: int, cache: CacheType = "float32") -> dict[str, Any]:
        """The rotations, heads, groups, scale, softcap, window and order of pairs of a layer's attention.

        Args:
            room: the number of positions. A window that is as long is none.
            layer: the number of a layer.
            cache: the data type of the KV cache.
        """
        s = self.sizes
        cosines, sines = self.rotations(room, layer, cache)
        return {
            "cosines": cosines,
            "sines": sines,
            "heads": s.heads,
            "groups": s.groups,
            "scale": s.scale,
            "softcap": s.softcap,
            "window": s.window if self._windowed[layer] and s.window < room else 0,
            "interleaved": self.architecture.interleaved,
        }

    def embedded(self, tokens: MLOperand) -> MLOperand:
        """Add the look-up of the embeddings of tokens to the graph. The table stays packed.

        Args:
            tokens: int32 [1, tokens], each less than the size of the vocabulary.

        Returns:
            A float32 operand [1, tokens, width].
        """
        b: Any = tokens.builder
        width, weight = self.sizes.width, self.file.weights["token_embd.weight"]
        if self.head == "token_embd" and not self._is_quantized(weight) and not self._stays_half(weight):
            # The array of the product with the same matrix.
            matrix, _ = self._cache_matrix(self.head, lambda: ({"b": weight.real()}, 0))
            x = b.gather(matrix["b"], tokens, label="token_embd")
        elif weight.format.blocks is None:
            x = _convert(b.gather(weight.data, tokens, label="token_embd"), "float32")
        elif not self.for_cpu:
            # The arrays of the product, if it has the same matrix.
            matrix, _ = self._cache_matrix("token_embd", lambda: self._pack([weight]))
            x = composites.gather_n_bits(b, indices=tokens, width=width, label="token_embd", **matrix)
        else:
            table, offsets = self._table(weight)
            row, size = table["scale"].shape[1] * table["block_size"], table["block_size"]
            x = composites.gather_n_bits(b, indices=tokens, width=row, label="token_embd", **table)
            if row > width:  # rows for a product continue with remainders of minima
                x = b.slice(x, [0] * x.rank, [*tokens.shape, width])
            if offsets is not None:
                picked = b.gather(offsets, tokens).reshape([*tokens.shape, width // size, 1])
                x = (x.reshape([*tokens.shape, width // size, size]) + picked).reshape([*tokens.shape, width])
        embedded: MLOperand = x * sqrt(width) if self.architecture.scales_embeddings else x
        return embedded

    def _table(self, weight: Weight) -> tuple[dict[str, Any], Array | None]:
        """The table of embeddings for CPUs: operands of a lookup, and values to add to each block [words, blocks], or None.

        A product with the same matrix has the same arrays, whose rows may continue with the remainders of minima.
        """

        def make() -> Matrix:
            blocks: Any = weight.blocks()
            return blocks.for_cpu().operands, 0

        if self.head == "token_embd":
            matrix, _ = self._cache_matrix(self.head, lambda: self._pack([weight]))
        else:
            matrix, _ = self._cache_matrix("token_embd table", make)
        table = {name: matrix[name] for name in ("weight", "scale", "bits", "block_size")}
        table["zero_point"] = matrix.get("zero_point")

        def offsets() -> Matrix:
            blocks: Any = weight.blocks()
            minima = blocks.for_cpu().minima
            scale = table["scale"][:, : minima.shape[1]]
            zeros: Any = 2 ** (table["bits"] - 1)
            if table["zero_point"] is not None:
                zeros = unpack_codes(table["zero_point"], minima.shape[1], table["bits"]).astype(np.float32)
            return {"b": minima + scale * zeros}, 0

        blocks: Any = replace(weight, data=weight.data[:1]).blocks()
        if blocks.minimum is None:
            return table, None
        return table, self._cache_matrix("token_embd offsets", offsets)[0]["b"]

    def heads(self, x: MLOperand, layer: int, cache: CacheType = "float32") -> list[MLOperand]:
        """Add the queries, keys and values of a layer to the graph.

        Args:
            x: float32 [1, tokens, width].
            layer: the number of the layer.
            cache: the data type of the KV cache: the results are float16 with "float16", else float32.

        Returns:
            Three operands: [1, tokens, heads * size], and twice [1, tokens, groups * size].
        """
        s, name = self.sizes, f"blk.{layer}.attn"
        if self.architecture.is_joined:
            sizes = [count * s.size for count in (s.heads, s.groups, s.groups)]
            parts = list(self.linear(x, f"{name}_qkv").split(sizes, axis=2))
        else:
            parts = self.linears(x, [f"{name}_{part}" for part in "qkv"])
        if self.architecture.norms_heads:
            for k, part in enumerate("qk"):
                heads = parts[k].reshape([1, x.shape[1], (s.heads, s.groups)[k], s.size])
                parts[k] = self.normalized(heads, f"{name}_{part}_norm").reshape(parts[k].shape)
        return [_convert(part, _operand_type(cache)) for part in parts]

    def gated(self, x: MLOperand, layer: int) -> MLOperand:
        """Add the gated hidden elements of a layer to the graph.

        Args:
            x: float32 [1, tokens, width].
            layer: the number of the layer.

        Returns:
            A float32 operand [1, tokens, hidden].
        """
        name = f"blk.{layer}.ffn"
        if self.architecture.is_joined:
            gate, up = self.linear(x, f"{name}_up").split(2, axis=2)
        else:
            gate, up = self.linears(x, [f"{name}_gate", f"{name}_up"])
        y: Any = (
            composites.geglu(gate, up, approximate="tanh") if self.architecture.is_gelu else composites.swiglu(gate, up)
        )
        return y  # type: ignore[no-any-return]

    def logits(self, x: MLOperand) -> MLOperand:
        """Add the logits of the next token to the graph.

        Args:
            x: float32 [1, tokens, width].

        Returns:
            A float32 operand [1, tokens, words].
        """
        y, cap = self.linear(x, self.head), self.sizes.final_softcap
        return (y * (1 / cap)).tanh() * cap if cap else y

    def normalized_if(self, x: MLOperand, name: str) -> MLOperand:
        """Add an RMS normalisation as `normalized` does if the architecture normalises results; else return `x`."""
        return self.normalized(x, name) if self.architecture.norms_results else x

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
            x: float32 or float16 [1, tokens, columns].
            name: the name of the matrix in the file, without ".weight".

        Returns:
            A float32 operand [1, tokens, rows].
        """
        return self.linears(x, [name])[0]

    def linears(self, x: MLOperand, names: Sequence[str]) -> list[MLOperand]:
        """Add the products with several matrices to the graph; matrices of the same format share one product.

        Args:
            x: float32 or float16 [1, tokens, columns].
            names: the names of the matrices in the file, without ".weight".

        Returns:
            For each matrix, a float32 operand [1, tokens, rows].
        """
        x = _convert(x, "float32")
        results = list(self._products(x, names))
        for k, name in enumerate(names):
            if f"{name}.lora_a" in self.side_operands:
                results[k] = results[k] + side_product(x, self.side_operands, name)
        return results

    def _products(self, x: MLOperand, names: Sequence[str]) -> list[MLOperand]:
        """The products of `linears`, without adapters."""
        weights = [self.file.weights[f"{name}.weight"] for name in names]
        biases = [self.file.weights[f"{name}.bias"].real() for name in names if f"{name}.bias" in self.file.weights]
        is_quantized = self._is_quantized(weights[0])
        is_alike = len({weight.format.name for weight in weights}) == 1 and len(biases) in (0, len(names))
        if len(names) > 1 and not (is_quantized and is_alike and self.for_cpu):
            return [product for name in names for product in self._products(x, [name])]
        bias, label = np.concatenate(biases) if biases else None, ", ".join(names)
        builder: Any = x.builder
        if not is_quantized:
            if self._stays_half(weights[0]):
                b = builder.constant(weights[0].data).cast("float32")
            else:
                matrix, _ = self._cache_matrix(label, lambda: ({"b": weights[0].real()}, 0))
                b = matrix["b"]
            y: MLOperand = x.reshape(x.shape[1:]).gemm(b, c=bias, b_transpose=True, label=label)
            return [y.reshape([1, *y.shape])]
        matrix, copies = self._cache_matrix(label, lambda: self._pack(weights))
        if copies:
            size = matrix["block_size"]
            means = x.reshape([1, x.shape[1], x.shape[2] // size, size]).reduce_mean(axes=[3])
            x = builder.concat([x, *[means] * copies], axis=2)
        product: Any = composites.matmul_n_bits(x, bias=bias, accuracy="int8", label=label, **matrix)
        return product.split([weight.shape[0] for weight in weights], axis=2) if len(names) > 1 else [product]

    def _is_quantized(self, weight: Weight) -> bool:
        """Whether products are those with the quantized matrix."""
        return self.quantized and weight.format.blocks is not None

    def _stays_half(self, weight: Weight) -> bool:
        """Whether products read a matrix of 16-bit floats, which kernels of GPUs convert in registers."""
        return not self.for_cpu and weight.format.name in ("F16", "BF16")

    def _cache_matrix(self, name: str, make: Callable[[], Matrix]) -> Matrix:
        """Cache a matrix, so that all graphs share the arrays."""
        if name not in self._operands:
            matrix, copies = make()
            if self.for_cpu:
                matrix = {k: self._spilled.add(v) if isinstance(v, np.ndarray) else v for k, v in matrix.items()}
                self._spilled.release()
            self._operands[name] = matrix, copies
            self.file.release()
        return self._operands[name]

    def pack_all(self) -> None:
        """Pack all quantized matrices for a GPU, several at a time. For CPUs, they are packed one by one to save memory."""
        if self.for_cpu or not self.quantized:
            return
        weights = {name.removesuffix(".weight"): weight for name, weight in self.file.weights.items()}
        missing = {
            name: weight
            for name, weight in weights.items()
            if weight.format.blocks is not None and name not in self._operands
        }
        with ThreadPoolExecutor(min(MAX_PACKING, processors())) as pool:
            matrices = pool.map(lambda weight: self._pack([weight]), missing.values())
            self._operands.update(zip(missing, matrices, strict=True))
        self.file.release()

    def _pack(self, weights: Sequence[Weight]) -> Matrix:
        data = weights[0].data if len(weights) == 1 else np.concatenate([weight.data for weight in weights])
        blocks: Any = replace(weights[0], data=data).blocks()
        if not self.for_cpu:
            return blocks.operands, 0
        blocks = blocks.for_cpu()
        if blocks.minimum is not None:
            return fold_minima(blocks.packed, blocks.scale, blocks.minimum, blocks.bits)
        return blocks.operands, 0
