"""Reading the messages of wrong calls: rows that differ from a valid call in one thing."""

from __future__ import annotations

from typing import Any

import pytest

import opweave as ow

CONTEXT = ow.ml.create_context(device="reference")


def call(name: str, arguments: dict[str, Any]) -> Any:
    """Call an operation; tuples stand for float32 operands of that shape."""
    builder = ow.MLGraphBuilder(CONTEXT)
    given = {k: builder.input(k, "float32", v) if isinstance(v, tuple) else v for k, v in arguments.items()}
    return getattr(builder, name)(**given)


def check(name: str, valid: dict[str, Any], changed: dict[str, Any], message: str) -> None:
    """The valid call passes; with `changed` it raises a `ValidationError` that says `message`."""
    call(name, valid)
    with pytest.raises(ow.ValidationError) as error:
        call(name, {**valid, **changed, "label": "stem"})
    assert str(error.value) == f"{name} 'stem': {message}"
