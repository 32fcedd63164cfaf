"""Calls of composites that depend on a number alone: the same on every machine, with odd sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from samples import Call, Make

import opweave as ow
from opweave import composites
from opweave.lazy.custom_call import CustomOp
from support.composite_cases import CASES, check, run

T = TypeVar("T")

SIZES = (1, 2, 3, 5, 7, 9, 13, 17, 31)
MAX_ELEMENTS = 2000
BLOCKS, BLOCK = 20, 10
"""200 calls of each composite: so many blocks of so many."""

INDEXING: tuple[CustomOp[Any], ...] = (
    composites.compress,
    composites.hard_max,
    composites.non_max_suppression,
    composites.non_zero,
    composites.one_hot,
    composites.scatter_reduce,
    composites.tensor_scatter,
    composites.top_k,
    composites.unique,
)
"""Composites that read, write or select elements."""


class SeededMake(Make):
    """Draws the parts of a call from random numbers with a seed, and odd sizes."""

    def __init__(self, seed: int, types: dict[str, Any]) -> None:
        self.types, self.random = types, np.random.default_rng(seed)

    def integer(self, low: int, high: int) -> int:
        return int(self.random.integers(low, high, endpoint=True))

    def number(self, low: float, high: float) -> float:
        return float(np.float16(self.random.uniform(low, high)))

    def boolean(self) -> bool:
        return bool(self.random.integers(0, 2))

    def choice(self, options: Sequence[T]) -> T:
        return options[self.integer(0, len(options) - 1)]

    def shape(self, low: int = 0, high: int = 5, largest: int = 5) -> tuple[int, ...]:
        shape: list[int] = []
        for _ in range(self.integer(low, high)):
            room = MAX_ELEMENTS // int(np.prod(shape, dtype=int))
            shape.append(self.choice([size for size in SIZES if size <= room]))
        return tuple(shape)

    def subset(self, items: Sequence[T]) -> list[T]:
        return [item for item in items if self.boolean()]

    def permutation(self, count: int) -> list[int]:
        return [int(number) for number in self.random.permutation(count)]


class LongMake(SeededMake):
    """Draws long sequences, which GPUs compute in chunks."""

    def tokens(self) -> int:
        return self.choice((127, 128, 150, 192, 257))


def call_of(op: CustomOp[Any], seed: int) -> tuple[Call, Sequence[Any]]:
    """The call with a number, in one of the data types of the composite, and its results."""
    types = CASES[op].types
    return CASES[op].make(SeededMake(seed, {"x": types[seed % len(types)]}))


def check_block(context: ow.MLContext, op: CustomOp[Any], block: int) -> None:
    """Compare the calls of a block with their witnesses."""
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        call, expected = call_of(op, seed)
        check(op, call, run(context, op, call), expected)
