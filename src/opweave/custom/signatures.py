"""The signatures of declared operations, read from the functions that declare them."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, get_args

import numpy as np

from ..core.conversion import Converter
from ..core.dtypes import DataType
from ..core.sizes import Size
from ..support.errors import ValidationError, require
from ..support.names import short_repr

P = ParamSpec("P")
R = TypeVar("R")


def check_function(function: Any) -> None:
    """Require a function with a name."""
    is_function = inspect.isfunction(function) or inspect.ismethod(function)
    require(is_function, f"an operation is declared by a function with a name, got {short_repr(function)}")


def takes_a_function(no_options: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a decorator that takes no options refuse them, and `@ow.expression()`; `no_options` says why it takes none."""

    def decorate(decorator: Callable[P, R]) -> Callable[P, R]:
        name = decorator.__name__

        @functools.wraps(decorator)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            options = [key for key in kwargs if key != "function"]
            if options or not (args or kwargs):
                problem = f"@ow.{name} takes no arguments, got {', '.join(options)}; {no_options}" if options else ""
                usage = f"write @ow.{name} above the function, without parentheses"
                raise ValidationError(f"{problem or f'@ow.{name}() has no function'}; {usage}")
            return decorator(*args, **kwargs)

        return wrapper

    return decorate


def public(signature: inspect.Signature) -> inspect.Signature:
    """Return the signature that `help` shows: parameters without an annotation have none, instead of an empty text."""
    parameters = [p if p.annotation else p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return signature.replace(parameters=parameters)


def read_signature(source: Callable[..., Any], skip: int) -> inspect.Signature:
    """Return the signature of an operation, with annotations as text.

    The parameters are the builder, those of `source` after the first `skip`, and `label`.
    """
    builder = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    label = inspect.Parameter("label", inspect.Parameter.KEYWORD_ONLY, default="", annotation="str")
    try:
        parameters = list(inspect.signature(source, eval_str=True).parameters.values())
    except Exception:
        # Some annotations cannot be evaluated, such as names that are imported for type checkers only.
        parameters = list(inspect.signature(source).parameters.values())
    require(len(parameters) >= skip, f"{source.__name__}: the first parameter is the builder")
    for parameter in parameters:
        require(
            parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY),
            f"{source.__name__}: parameters must be named, got {parameter}; annotate several operands Sequence[MLOperand]",
        )
    own = [
        parameter.replace(annotation=annotation_text(parameter.annotation))
        for parameter in parameters[skip:]
        if parameter.name != "label"
    ]
    return inspect.Signature([builder, *own, label], return_annotation="MLOperand")


def annotation_text(annotation: Any) -> str:
    """Return an annotation as text for `Op`: `Operand`, `Operand | None`, `Sequence[Operand]`, `int`, `Literal[...]`."""
    if annotation is inspect.Parameter.empty:
        return ""
    if annotation == DataType:
        return "DataType"
    text = (
        annotation
        if isinstance(annotation, str)
        else annotation.__name__
        if isinstance(annotation, type) and not get_args(annotation)
        else str(annotation)
    )
    return _shorten(text)


@functools.cache
def _shorten(text: str) -> str:
    """The text of an annotation without modules. Cached, since operations share most annotations."""
    # Quoted texts are values of a Literal, in which a dot ends no module.
    text = re.sub(r"""('[^']*'|"[^"]*")|\b(?:\w+\.)+(?=\w)""", lambda m: m[1] or "", text)
    text = re.sub(r"\bMLOperand\b", "Operand", text)
    text = re.sub(r"\bOptional\[(.*)\]", r"\1 | None", text)
    return re.sub(r"\b(?:list|tuple|List|Tuple)\[(?=Operand)", "Sequence[", text)


def plain_converter(kind: str) -> Converter:
    """Return the converter of an attribute that is annotated with int, float, bool or str."""

    def convert(name: str, value: Any) -> Any:
        plain = value.item() if isinstance(value, (np.generic, np.ndarray)) and np.ndim(value) == 0 else value
        if kind == "float" and isinstance(plain, int) and not isinstance(plain, bool):
            try:
                plain = float(plain)
            except OverflowError:
                raise ValidationError(f"{name} must be in the range of float64, got {short_repr(value)}") from None
        if kind == "int" and isinstance(value, Size):
            return value
        python_type = {"int": int, "float": float, "bool": bool, "str": str}[kind]
        if not isinstance(plain, python_type) or (kind == "int" and isinstance(plain, bool)):
            raise ValidationError(f"{name} must be of type {kind}, got {short_repr(value)}")
        return plain

    return convert
