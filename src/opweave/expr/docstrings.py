"""Sections that the docstrings of similar functions share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def explain(doc: str, takes: Mapping[str, str], returns: str, errors: str, example: str) -> str:
    """Add arguments, result, errors and an example to a docstring."""
    listing = "\n".join(f"    {name}: {text}." for name, text in takes.items())
    sections = f"Args:\n{listing}\n\nReturns:\n    {returns}.\n\nRaises:\n    ValidationError: {errors}."
    return f"{inspect.cleandoc(doc)}\n\n{sections}\n\n>>> import numpy as np, opweave as ow\n{example}\n"


def add_sections(takes: Mapping[str, str], returns: str, errors: str, example: str) -> Callable[[F], F]:
    """Decorator: complete the docstring of a function, whose name replaces `{}` in the example."""

    def complete(function: F) -> F:
        text = example.format(function.__name__)
        function.__doc__ = explain(function.__doc__ or "", takes, returns, errors, text)
        return function

    return complete
