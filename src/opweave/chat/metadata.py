"""Read properties from the metadata of a GGUF file, and check types and ranges."""

from __future__ import annotations

from math import isfinite
from typing import Any, NoReturn

import numpy as np

from ..support.errors import DataError
from ..support.names import shown
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
        raise DataError(f"{self._path}: {self._prefix}{name} must be {rule}, got {shown(value)}")

    def _value(self, name: str, default: Any) -> Any:
        value = self._values.get(self._prefix + name)
        if value is None and default is ...:
            raise DataError(f"{self._path} lacks {self._prefix}{name}")
        return value

    def text(self, name: str, default: Any = ...) -> Any:
        """A text."""
        value = self._value(name, default)
        if value is None:
            return default
        return value if isinstance(value, str) else self.refuse(name, "text")

    def count(self, name: str, default: Any = ..., *, least: int = 1, most: int = MAX_COUNT) -> Any:
        """An integer in [least, most]."""
        value = self._value(name, default)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self.refuse(name, f"an integer in [{least}, {most}]")
        return value

    def real(self, name: str, default: Any = ...) -> Any:
        """A finite number greater than 0."""
        value = self._value(name, default)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not (isfinite(value) and value > 0):
            self.refuse(name, "a finite number greater than 0")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """A boolean; some files have 0 or 1."""
        value = self._value(name, default)
        if value is None:
            return default
        if not isinstance(value, int) or value not in (0, 1):
            self.refuse(name, "true or false")
        return bool(value)

    def texts(self, name: str) -> list[str]:
        """A list of texts."""
        value = self._value(name, ...)
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            self.refuse(name, "a list of texts")
        return list(value)

    def numbers(self, name: str, count: int, *, whole: bool) -> np.ndarray:
        """Numbers, one for each of `count` tokens; integers if `whole`."""
        value = self._value(name, ...)
        values = np.asarray(value) if isinstance(value, (list, np.ndarray)) else np.array(None)
        if values.ndim != 1 or values.dtype.kind not in ("iu" if whole else "iuf"):
            self.refuse(name, f"a list of {'integers' if whole else 'numbers'}")
        if len(values) != count:
            self.refuse(name, f"of {count} elements, as many as there are tokens")
        if np.isnan(values).any():
            self.refuse(name, "a list of numbers without NaN")
        return values
