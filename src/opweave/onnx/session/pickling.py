"""Pickle and copy sessions by the path or bytes of the model, and the arguments of the session."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any


@dataclass
class Recipe:
    """The arguments of a session: `model` as it was passed, the caller's `options` and `context` or None, others by name."""

    model: Any
    options: Any
    context: Any
    arguments: Mapping[str, Any]

    def __post_init__(self) -> None:
        if isinstance(self.model, (str, os.PathLike)):
            self.model = os.path.abspath(self.model)  # a pickle may be read in another directory

    @property
    def title(self) -> str:
        """The name of the model's file; "a model" if it has none."""
        return os.path.basename(self.model) if isinstance(self.model, str) else "a model"

    def with_providers(self, providers: Any, provider_options: Any) -> Recipe:
        """Copy with other providers, which choose the context."""
        changed = {"providers": providers, "provider_options": provider_options}
        return replace(self, context=None, arguments={**self.arguments, **changed})

    def reduce_to(self, kind: type) -> tuple[Any, tuple[Any, ...]]:
        """The function and arguments from which `pickle` and `copy` recreate a session; `TypeError` if there are none."""
        if self.context is not None:
            raise TypeError(
                "a session in a context of the caller's cannot be copied or pickled; pickle the model's path and the name of "
                f"the device, {self.context.device.name!r}"
            )
        if self.options is not None:
            raise TypeError(
                "a session with SessionOptions cannot be copied or pickled, since these cannot; pickle the model's path and "
                "what the options are made of"
            )
        model = self.model
        if hasattr(model, "SerializeToString"):
            model = model.SerializeToString()
        elif isinstance(model, (bytearray, memoryview)):
            model = bytes(model)
        if not isinstance(model, (str, bytes)):
            raise TypeError(
                "a session can be copied or pickled if its model was given by path or as bytes, "
                f"not as {type(model).__name__}"
            )
        return partial(kind, **self.arguments), (model,)
