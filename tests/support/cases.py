"""The table of composites with made-up calls: modules of cases add rows to it by `case`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from samples import Call, Make

import opweave as ow
from opweave.lazy.custom_call import CustomOp

CPU = ow.ml.create_context(device="cpu")
REFERENCE = ow.ml.create_context(device="reference")
BOTH = ("float32", "float16")
ALL = ("float32", "float16", "int32", "uint32", "int64", "uint64", "int8", "uint8")


@dataclass(frozen=True)
class Case:
    """How to call a composite.

    Attributes:
        make: draws a call, with arrays of the operand "x" in the data type of the row, and the results that it must have.
        types: the data types to test.
        rtol, atol: the tolerances of float32 results.
        half: both tolerances of float16 results.
    """

    make: Callable[[Make], tuple[Call, Sequence[Any]]]
    types: Sequence[str]
    rtol: float
    atol: float
    half: float


Maker = Callable[[Make], tuple[Call, Sequence[Any]]]
CASES: dict[CustomOp[Any], Case] = {}


def case(
    op: CustomOp[Any], types: Sequence[str] = BOTH, rtol: float = 2e-6, atol: float = 2e-6, half: float = 4e-3
) -> Callable[[Maker], None]:
    def register(make: Maker) -> None:
        CASES[op] = Case(make, types, rtol, atol, half)

    return register
