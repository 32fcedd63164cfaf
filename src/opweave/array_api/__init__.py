"""The Python array API standard for arrays of Opweave: https://data-apis.org/array-api/.

Libraries written for the standard get this module from `x.__array_namespace__()`. Its functions call WebNN's
operations, which are recorded, and run as one compiled graph when a value is read. docs/array-api.md lists the functions that
are missing because WebNN cannot express them.

>>> import opweave as ow
>>> from opweave import array_api as xp
>>> x = xp.asarray([[1.0, -2.0], [3.0, 4.0]])
>>> print(xp.where(x > 0, x, 0.0).tolist(), xp.mean(x, axis=-1).tolist())
[[1.0, 0.0], [3.0, 4.0]] [-0.5, 3.5]
"""

from __future__ import annotations

import math
import sys
from types import ModuleType
from typing import Any

import numpy as np

from ..core.dtypes import INFO
from ..lazy.assignment import copy_of
from ..ops import Operations
from ..support import hints
from ..support.lazy_imports import array_namespace
from . import (
    bits,
    complex_linalg as complex_linalg,
    complex_numbers as complex_numbers,
    conversion,
    creation,
    einsum as einsum_module,
    elementwise,
    fft,
    indexing,
    linalg,
    manipulation,
    products,
    random,
    selection,
    statistics,
    transcendental,
)
from .bits import *  # noqa: F403
from .complex_array import ComplexArray
from .conversion import *  # noqa: F403
from .conversion import _to_device as _to_device
from .creation import *  # noqa: F403
from .docs import complete
from .einsum import *  # noqa: F403
from .elementwise import *  # noqa: F403
from .indexing import *  # noqa: F403
from .indexing import _index as _index, _set_item as _set_item
from .manipulation import *  # noqa: F403
from .products import *  # noqa: F403
from .public import publish
from .selection import *  # noqa: F403
from .statistics import *  # noqa: F403
from .transcendental import *  # noqa: F403
from .types import (
    Info,
    bool,
    can_cast,
    complex64,
    complex128,
    finfo,
    float16,
    float32,
    float64,
    iinfo,
    int8,
    int32,
    int64,
    isdtype,
    result_type,
    uint8,
    uint32,
    uint64,
)

__array_api_version__ = "2024.12"
VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12")
"""Versions of the standard that this module follows."""

_copy_of = copy_of
e, pi, inf, nan, newaxis = math.e, math.pi, math.inf, math.nan, None


def __array_namespace_info__() -> Info:  # noqa: N807  (the standard's name)
    """Get an object that describes the data types, contexts and capabilities."""
    return Info()


_EXTENSIONS = {"linalg": linalg, "fft": fft}

_NUMPY_NAMES = {
    "amax": "max", "amin": "min", "array": "asarray", "average": "mean", "cumprod": "cumulative_prod",
    "cumsum": "cumulative_sum", "dot": "matmul", "unique": "unique_values",
}  # fmt: skip
"""Functions of NumPy -> functions of the standard that replace them in most programs, with other rules for arguments.

`matmul` takes no scalars, and pairs stacks of matrices, where `dot` combines all; `cumsum` and `cumprod` flatten arrays
without an axis; `mean` has no weights; `asarray` shares memory by default; `unique_values` returns nothing else."""


def __getattr__(name: str) -> Any:
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{_hint_of(name)}", name=name)


def _hint_of(name: str) -> str:
    if name.startswith("_"):
        return ""
    if name in Operations.listing():
        return f"; it is an operation of WebNN: opweave.ops.{name}"
    elsewhere = [f"{part}.{name}" for part, module in _EXTENSIONS.items() if name in module.__all__]
    guess = elsewhere[0] if elsewhere else _NUMPY_NAMES.get(name) or _alias_of(name)
    if not guess and name not in dir(np) and name not in INFO:  # those of other libraries are no misspellings
        guess = hints.similar(name, __all__)
    return f"; did you mean {guess}?" if guess else ""


def _alias_of(name: str) -> str:
    """The standard's name of a function of NumPy, which has both names; empty if there is none.

    >>> _alias_of("concatenate"), _alias_of("arccos"), _alias_of("hstack")
    ('concat', 'acos', '')
    """
    function = vars(np).get(name)
    return next((other for other in __all__ if function is not None and vars(np).get(other) is function), "")


@array_namespace.provide
def namespace(api_version: str | None) -> ModuleType:
    """Return this module; raise `ValueError` for a version of the standard that it does not follow."""
    if api_version is not None and api_version not in VERSIONS:
        raise ValueError(f"opweave follows the array API standard of {', '.join(VERSIONS)}, not {api_version!r}")
    return sys.modules[__name__]


__all__ = [
    *bits.__all__, *conversion.__all__, *creation.__all__, *einsum_module.__all__, *elementwise.__all__,
    *indexing.__all__, *manipulation.__all__,
    *products.__all__, *selection.__all__, *statistics.__all__, *transcendental.__all__, "ComplexArray",
    "__array_api_version__", "__array_namespace_info__", "bool", "can_cast", "complex64", "complex128", "e", "fft", "finfo",
    "float16", "float32", "float64", "iinfo", "inf", "int8",
    "int32", "int64", "isdtype", "linalg", "nan", "newaxis", "pi", "random", "result_type", "uint8", "uint32", "uint64",
]  # fmt: skip

complete({name: globals()[name] for name in __all__})
publish(globals(), __all__)


def __dir__() -> list[str]:
    return [*(name for name in globals() if name.startswith("__")), *__all__]
