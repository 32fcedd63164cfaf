"""Sessions as pickles and copies: the model, by its path or its bytes, and the arguments of the session."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any


class Recipe:
    """The arguments that a session was made with.

    Args:
        model: the model, as the session was given it.
        options: its `onnxruntime.SessionOptions`, or None.
        context: the context that the caller made, None if the session made it.
        arguments: the other arguments, by name.
    """

    def __init__(self, model: Any, options: Any, context: Any, arguments: Mapping[str, Any]) -> None:
        is_path = isinstance(model, (str, os.PathLike))
        self._model = os.path.abspath(model) if is_path else model  # pickles are read in other directories
        self._context = context
        self.options, self.arguments = options, arguments

    def moved(self, providers: Any, provider_options: Any) -> Recipe:
        """The same with other providers, which choose the context."""
        changed = {"providers": providers, "provider_options": provider_options}
        return Recipe(self._model, self.options, None, {**self.arguments, **changed})

    def reduced(self, kind: type) -> tuple[Any, tuple[Any, ...]]:
        """How `pickle` and `copy` make a session of class `kind` that is made the same way.

        Raises:
            TypeError: it has a context or options that cannot be pickled, or a model that is neither a path nor bytes.
        """
        if self._context is not None:
            raise TypeError(
                "a session in a context of the caller's cannot be copied or pickled; pickle the model's path and the name of "
                f"the device, {self._context.device.name!r}"
            )
        if self.options is not None:
            raise TypeError(
                "a session with SessionOptions cannot be copied or pickled, since these cannot; pickle the model's path and "
                "what the options are made of"
            )
        model = self._model
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


__all__ = ["Recipe"]
