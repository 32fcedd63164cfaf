"""One token of a language model in the form of Llama, past its embedding and before its head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import opweave as ow
from opweave import composites
from opweave.core.dtypes import DataType


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model. The defaults are those of Llama 3.2 1B, with half of its layers.

    Attributes:
        layers: number of layers.
        hidden: features of a token.
        heads: heads of queries.
        groups: heads of keys and values.
        size: features of a head.
        inner: features between the products after the attention.
        past: tokens before this one.
        data_type: of everything.
    """

    layers: int = 8
    hidden: int = 2048
    heads: int = 32
    groups: int = 8
    size: int = 64
    inner: int = 8192
    past: int = 1024
    data_type: DataType = "float16"


def step(builder: ow.MLGraphBuilder, sizes: Sizes, weight: Callable[[str, tuple[int, ...]], Any]) -> dict[str, Any]:
    """The outputs of a step: `y`, and the keys and values of each layer, in tensors with one more than `past` places.

    Args:
        builder: of the graph. Its inputs are `x`, `lengths`, and `keys0`, `values0`, … of the layers.
        sizes: of the model.
        weight: makes the operand of a weight of a name and shape.
    """
    hidden, wide = sizes.hidden, sizes.groups * sizes.size
    x = builder.input("x", sizes.data_type, [1, 1, hidden])
    lengths = builder.input("lengths", "int32", [1])
    tables = [weight(name, (sizes.past + 1, sizes.size // 2)) for name in ("cosines", "sines")]
    outputs: dict[str, Any] = {}
    for k in range(sizes.layers):

        def project(value: Any, name: str, columns: int, k: int = k) -> Any:
            return builder.matmul(value, weight(f"{name}{k}", (value.shape[-1], columns)))

        normal = composites.rms_normalization(builder, x, weight(f"before{k}", (hidden,)))
        q, key, value = (
            project(normal, name, columns)
            for name, columns in (("q", sizes.heads * sizes.size), ("k", wide), ("v", wide))
        )
        room = [1, sizes.groups, sizes.past + 1, sizes.size]
        past = [builder.input(f"{name}{k}", sizes.data_type, room) for name in ("keys", "values")]
        y, keys, values = composites.group_query_attention(
            builder, q, key, value, *past, lengths, *tables, heads=sizes.heads, groups=sizes.groups
        )
        outputs |= {f"keys{k}": keys, f"values{k}": values}
        x = x + project(y, "o", hidden)
        normal = composites.rms_normalization(builder, x, weight(f"after{k}", (hidden,)))
        gate, up = project(normal, "gate", sizes.inner), project(normal, "up", sizes.inner)
        x = x + project(gate * builder.sigmoid(gate) * up, "down", hidden)
    return {"y": x, **outputs}


def random_weight(builder: ow.MLGraphBuilder, sizes: Sizes) -> Callable[[str, tuple[int, ...]], Any]:
    """Makes constants of random numbers, of a size that keeps results in range."""
    random = np.random.default_rng(0)

    def make(name: str, shape: tuple[int, ...]) -> Any:
        array = random.standard_normal(shape, "float32") / shape[0] ** 0.5
        return builder.constant(array.astype(sizes.data_type))

    return make
