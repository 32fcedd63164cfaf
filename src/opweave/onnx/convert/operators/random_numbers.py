"""ONNX operators that draw random numbers.

Each node has a stream of keys, one for each run. With `seed`, the stream of each session has the same keys; without, they are
random.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ....composites import random
from ....context.builder import MLGraphBuilder
from ....core.graph import MLOperand
from ...model.protobuf import TensorProto
from ...model.registry import DATA_TYPES, Tensor, Unsupported, converts, shape_of, unsupported_if

StreamOf: TypeAlias = Callable[[int | None], int]


@dataclass(frozen=True)
class UniformAttributes:
    """The interval of a uniform distribution, and a seed."""

    low: float = 0.0
    high: float = 1.0
    seed: float | None = None


@dataclass(frozen=True)
class NormalAttributes:
    """The parameters of a normal distribution, and a seed."""

    mean: float = 0.0
    scale: float = 1.0
    seed: float | None = None


def _key(b: MLGraphBuilder, seed: float | None, stream: StreamOf) -> MLOperand:
    """The key of a run. A seed is a float32, whose bits are the lower half of the generator's seed."""
    bits = None if seed is None else int(np.float32(seed).view(np.uint32))
    return random.random_key(b, stream=stream(bits))


def _float_type(element_type: int) -> Any:
    name = TensorProto.DataType.Name(element_type).lower()
    unsupported_if(element_type not in (TensorProto.FLOAT, TensorProto.FLOAT16), f"WebNN draws no numbers of {name}")
    return DATA_TYPES[element_type]


def _type_like(dtype: int | None, types: Sequence[int]) -> int:
    return types[0] if dtype is None else dtype


def _uniform(
    b: MLGraphBuilder, shape: Sequence[int], dtype: int, uniform: UniformAttributes, stream: StreamOf
) -> MLOperand:
    options: dict[str, Any] = {"low": uniform.low, "high": uniform.high, "data_type": _float_type(dtype)}
    return random.random_uniform(b, _key(b, uniform.seed, stream), shape, **options)


def _normal(
    b: MLGraphBuilder, shape: Sequence[int], dtype: int, normal: NormalAttributes, stream: StreamOf
) -> MLOperand:
    options: dict[str, Any] = {"mean": normal.mean, "scale": normal.scale, "data_type": _float_type(dtype)}
    return random.random_normal(b, _key(b, normal.seed, stream), shape, **options)


@converts("RandomUniform")
def _(
    b: MLGraphBuilder,
    *,
    shape: Sequence[int],
    dtype: int = TensorProto.FLOAT,
    uniform: UniformAttributes = UniformAttributes(),
    stream: StreamOf,
) -> Tensor:
    return _uniform(b, shape, dtype, uniform, stream)


@converts("RandomNormal")
def _(
    b: MLGraphBuilder,
    *,
    shape: Sequence[int],
    dtype: int = TensorProto.FLOAT,
    normal: NormalAttributes = NormalAttributes(),
    stream: StreamOf,
) -> Tensor:
    return _normal(b, shape, dtype, normal, stream)


@converts("RandomUniformLike")
def _(
    b: MLGraphBuilder,
    input: Tensor,
    *,
    dtype: int | None = None,
    uniform: UniformAttributes = UniformAttributes(),
    types: list[int],
    stream: StreamOf,
) -> Tensor:
    return _uniform(b, shape_of(input), _type_like(dtype, types), uniform, stream)


@converts("RandomNormalLike")
def _(
    b: MLGraphBuilder,
    input: Tensor,
    *,
    dtype: int | None = None,
    normal: NormalAttributes = NormalAttributes(),
    types: list[int],
    stream: StreamOf,
) -> Tensor:
    return _normal(b, shape_of(input), _type_like(dtype, types), normal, stream)


@converts("Bernoulli")
def _(
    b: MLGraphBuilder,
    input: MLOperand,
    *,
    dtype: int | None = None,
    seed: float | None = None,
    types: list[int],
    stream: StreamOf,
) -> Tensor:
    target = _type_like(dtype, types)
    data_type = DATA_TYPES.get(target)
    if data_type is None:
        raise Unsupported(f"WebNN has no {TensorProto.DataType.Name(target).lower()}")
    drawn: MLOperand = random.bernoulli(b, input, _key(b, seed, stream))
    return drawn if data_type == "uint8" else b.cast(drawn, data_type)


@converts("Multinomial")
def _(
    b: MLGraphBuilder,
    input: MLOperand,
    *,
    dtype: int = TensorProto.INT32,
    sample_size: int = 1,
    seed: float | None = None,
    stream: StreamOf,
) -> Tensor:
    is_index = dtype in (TensorProto.INT32, TensorProto.INT64)
    unsupported_if(not is_index, f"its results are {TensorProto.DataType.Name(dtype).lower()}, not indices")
    key, data_type = _key(b, seed, stream), DATA_TYPES[dtype]
    return random.multinomial(b, input, key, sample_size, data_type=data_type)
