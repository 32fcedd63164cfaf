"""Read properties from the metadata of a GGUF file, and check types and ranges."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any, NoReturn

import numpy as np

from ..support.errors import DataError
from ..support.names import short_repr
from .gguf import GGUF

MAX_COUNT = 2**31 - 1
"""Maximum of counts: the maximum dimension of a tensor in WebNN."""


class Metadata:
    """The metadata of a file, or those properties whose names have a prefix.

    All methods raise `DataError` for a value that breaks the rule, and for a missing property without a default.
    """

    def __init__(self, file: GGUF, prefix: str = "") -> None:
        self._path, self._values, self._prefix = file.path, file.metadata, prefix

    def __contains__(self, name: str) -> bool:
        return self._prefix + name in self._values

    def refuse(self, name: str, rule: str) -> NoReturn:
        """Raise `DataError`: a property must be what the rule says."""
        value = self._values.get(self._prefix + name)
        raise DataError(f"{self._path}: {self._prefix}{name} must be {rule}, got {short_repr(value)}")

    def _value(self, name: str, default: Any, rule: str, fits: Callable[[Any], bool]) -> Any:
        value = self._values.get(self._prefix + name)
        if value is not None:
            return value if fits(value) else self.refuse(name, rule)
        if default is ...:
            raise DataError(f"{self._path} lacks {self._prefix}{name}")
        return default

    def text(self, name: str, default: Any = ...) -> Any:
        """A text."""
        return self._value(name, default, "text", lambda value: isinstance(value, str))

    def count(self, name: str, default: Any = ..., *, least: int = 1, most: int = MAX_COUNT) -> Any:
        """An integer in [least, most]."""
        rule = f"an integer in [{least}, {most}]"
        return self._value(name, default, rule, lambda value: _is_number(value, int) and least <= value <= most)

    def real(self, name: str, default: Any = ...) -> float:
        """A finite number greater than 0."""

        def fits(value: Any) -> bool:
            return _is_number(value, (int, float)) and isfinite(value) and value > 0

        return float(self._value(name, default, "a finite number greater than 0", fits))

    def finite(self, name: str, default: Any = ...) -> float:
        """A finite number."""

        def fits(value: Any) -> bool:
            return _is_number(value, (int, float)) and isfinite(value)

        return float(self._value(name, default, "a finite number", fits))

    def flag(self, name: str, default: bool) -> bool:
        """A boolean; some files have 0 or 1."""
        return bool(self._value(name, default, "true or false", lambda v: isinstance(v, int) and v in (0, 1)))

    def is_list(self, name: str) -> bool:
        """Whether a property is a list."""
        return isinstance(self._values.get(self._prefix + name), (list, np.ndarray))

    def flags(self, name: str, count: int) -> list[bool]:
        """A list of booleans, one for each of `count` layers; some files have 0 or 1."""

        def fits(value: Any) -> bool:
            values = np.asarray(value)
            return values.shape == (count,) and values.dtype.kind in "biu" and bool(np.isin(values, (0, 1)).all())

        values = self._value(name, ..., f"a list of {count} booleans, as many as there are layers", fits)
        return [bool(value) for value in values]

    def texts(self, name: str) -> list[str]:
        """A list of texts."""

        def fits(value: Any) -> bool:
            return isinstance(value, list) and set(map(type, value)) <= {str}

        return list(self._value(name, ..., "a list of texts", fits))

    def numbers(self, name: str, count: int, *, whole: bool) -> np.ndarray:
        """Numbers, one for each of `count` tokens; integers if `whole`."""
        rule = f"a list of {'integers' if whole else 'numbers'}"
        values = np.asarray(self._value(name, ..., rule, lambda value: isinstance(value, (list, np.ndarray))))
        if values.ndim != 1 or values.dtype.kind not in ("iu" if whole else "iuf"):
            self.refuse(name, rule)
        if len(values) != count:
            self.refuse(name, f"of {count} elements, as many as there are tokens")
        if np.isnan(values).any():
            self.refuse(name, "a list of numbers without NaN")
        return values


def _is_number(value: Any, kinds: type | tuple[type, ...]) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)
