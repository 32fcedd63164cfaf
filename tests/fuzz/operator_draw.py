"""Random parts of one node: data types that a version of an operator allows, shapes, values, and attributes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.defs import OpSchema

OLDEST = 7
"""The first operator set of ONNX Runtime."""

TYPES = (
    *(TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BOOL, TensorProto.STRING),
    *(TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64),
    *(TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64),
)
"""Types whose arrays ONNX Runtime takes from Python."""

_BY_TEXT = {f"tensor({TensorProto.DataType.Name(kind).lower()})": kind for kind in TYPES}
SPECIAL = (0.0, -0.0, 0.5, 1.5, -2.5, 1.0, float("nan"), float("inf"), float("-inf"), 1e-7, 6e4, -6e4)
SIZES = (1, 1, 2, 2, 3, 3, 4, 5, 7)


@cache
def versions() -> dict[str, list[OpSchema]]:
    """Name of an operator of ONNX -> its versions from operator set 7 on, oldest first."""
    table: dict[str, list[OpSchema]] = {}
    for schema in sorted(onnx.defs.get_all_schemas_with_history(), key=lambda s: s.since_version):
        if not schema.domain and not schema.deprecated:
            table.setdefault(schema.name, []).append(schema)
    for name, schemas in table.items():
        first = max([k for k, schema in enumerate(schemas) if schema.since_version <= OLDEST], default=0)
        table[name] = schemas[first:]
    return table


@dataclass
class Input:
    """An input of a node: the array, and a function that draws other values; None for a parameter, such as axes."""

    array: np.ndarray
    redraw: Callable[[], np.ndarray] | None = None


Shape: TypeAlias = "Sequence[int]"


@dataclass
class Node:
    """A node: inputs by position, None for an absent one; attributes, and the number of outputs.

    `steps` is the difference that integers may have, and `rtol` that of float32.
    """

    inputs: Sequence[Input | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    steps: int = 0
    rtol: float = 1e-4


class Draw:
    """Draw the parts of a node of one version of an operator."""

    def __init__(self, rng: random.Random, schema: OpSchema) -> None:
        self.r, self.schema, self.version = rng, schema, schema.since_version
        self.numbers = np.random.default_rng(rng.getrandbits(64))
        self.types: dict[str, int] = {}
        self.is_special = rng.random() < 0.2
        self.may_be_empty = rng.random() < 0.08

    # Choices ---------------------------------------------------------------------------------------------------------

    def chance(self, share: float) -> bool:
        return self.r.random() < share

    def pick(self, *options: Any) -> Any:
        return self.r.choice(options)

    def some(self, **attributes: Any) -> dict[str, Any]:
        """Each attribute, or its default; None is always left out."""
        return {name: value for name, value in attributes.items() if value is not None and self.chance(0.7)}

    def axis(self, rank: int) -> int:
        """An axis, counted from either end."""
        axis = self.r.randrange(max(rank, 1))
        can_be_negative = self.version >= 10
        return axis - rank if rank and can_be_negative and self.chance(0.4) else axis

    def size(self) -> int:
        return 0 if self.may_be_empty and self.chance(0.3) else self.r.choice(SIZES)

    def shape(self, least: int = 0, most: int = 5) -> tuple[int, ...]:
        rank = self.r.randint(least, max(least, self.r.choice([2, 3, 4, most])))
        return tuple(self.size() for _ in range(min(rank, most)))

    def narrower(self, shape: Shape) -> tuple[int, ...]:
        """A shape that broadcasts to another one."""
        first = self.r.choice([0, 0, 0, self.r.randint(0, len(shape))])
        return tuple(1 if self.chance(0.25) else size for size in shape[first:])

    # Types and values ------------------------------------------------------------------------------------------------

    def allowed(self, parameter: str) -> list[int]:
        """The element types that the schema allows for a parameter or for the type of an input."""
        for constraint in self.schema.type_constraints:
            if constraint.type_param_str == parameter:
                return [_BY_TEXT[text] for text in sorted(constraint.allowed_type_strs) if text in _BY_TEXT]
        return [_BY_TEXT.get(parameter, TensorProto.FLOAT)]

    def type(self, parameter: str = "T", *, without: Sequence[int] = ()) -> int:
        """The element type of a parameter; the same each time."""
        if parameter not in self.types:
            kinds = [kind for kind in self.allowed(parameter) if kind not in without]
            likely = TensorProto.FLOAT in kinds and self.chance(0.4)
            self.types[parameter] = TensorProto.FLOAT if likely else self.r.choice(kinds)
        return self.types[parameter]

    def values(self, kind: int, shape: Shape, low: float = -3, high: float = 3, *, special: bool = True) -> np.ndarray:
        count = tuple(shape)
        if kind == TensorProto.STRING:
            return np.array([self.pick("a", "bc", "", "é") for _ in range(int(np.prod(count)))], object).reshape(count)
        dtype = helper.tensor_dtype_to_np_dtype(kind)
        if dtype.kind == "b":
            return np.asarray(self.numbers.random(count) < 0.5)
        if dtype.kind in "iu":
            info = np.iinfo(dtype)
            first, last = max(int(low), info.min), min(int(high) + 3, info.max)
            array = self.numbers.integers(first, max(last, first), count, endpoint=True).astype(dtype)
            if special and self.is_special and array.size:
                array.reshape(-1)[self.numbers.integers(0, array.size)] = self.pick(info.min, info.max)
            return array
        array = self.numbers.uniform(low, high, count)
        if low < 0 and self.chance(0.15):  # ties, and equal numbers
            array = np.round(2 * array) / 2
        if special and self.is_special and array.size:
            for _ in range(2):
                array.reshape(-1)[self.numbers.integers(0, array.size)] = self.r.choice(SPECIAL)
        return np.asarray(array.astype(dtype))

    def data(
        self,
        shape: Shape,
        parameter: str | int = "T",
        low: float = -3,
        high: float = 3,
        *,
        special: bool = True,
    ) -> Input:
        """An input whose values change from run to run."""
        kind = self.type(parameter) if isinstance(parameter, str) else parameter
        return Input(
            self.values(kind, shape, low, high, special=special),
            lambda: self.values(kind, shape, low, high, special=special),
        )

    def calm(self, shape: Shape, parameter: str | int = "T", low: float = -2, high: float = 2) -> Input:
        """`data` without special values, for results that sum up many elements."""
        return self.data(shape, parameter, low, high, special=False)

    def integers(self, values: Any, parameter: str | int = TensorProto.INT64) -> Input:
        """A parameter: a list of integers that the shapes of results depend on."""
        kind = self.type(parameter) if isinstance(parameter, str) else parameter
        return Input(np.asarray(values, helper.tensor_dtype_to_np_dtype(kind)))

    def indices(self, shape: Shape, size: int, parameter: str | int = "Tind", *, negative: bool = True) -> Input:
        """Indices into an axis."""
        kind = self.type(parameter) if isinstance(parameter, str) else parameter
        dtype = helper.tensor_dtype_to_np_dtype(kind)
        low = -size if negative and dtype.kind == "i" else 0

        def redraw() -> np.ndarray:
            return self.numbers.integers(low, max(size, low + 1), tuple(shape)).astype(dtype)

        return Input(redraw(), redraw)
