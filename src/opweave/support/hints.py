"""Hints at the end of error messages, for habits from JavaScript, NumPy and PyTorch.

This code runs only after a call has failed, except for the decorators `no_dictionaries` and `no_foreign_names`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from math import prod
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeGuard, TypeVar

from .errors import ValidationError
from .names import camel_case, short_repr, snake_case

P = ParamSpec("P")
R = TypeVar("R")
Self = TypeVar("Self")

OF_CONTEXT = dict.fromkeys(
    ("device", "backend", "threads", "gpu_device", "power_preference", "accelerated", "cuda_stream"),
    "context=ow.ml.create_context({})",
)
"""Arguments of `create_context`, and the form in which functions with a parameter `context` take them."""

WEBNN_NAMES = {
    "absolute": "abs",
    "argmax": "arg_max",
    "argmin": "arg_min",
    "astype": "cast",
    "clip": "clamp",
    "close": "destroy",
    "concatenate": "concat",
    "cumsum": "cumulative_sum",
    "device_type": "device",
    "divide": "div",
    "dtype": "data_type",
    "greater_equal": "greater_or_equal",
    "isinf": "is_infinite",
    "isnan": "is_nan",
    "keepdims": "keep_dimensions",
    "less": "lesser",
    "less_equal": "lesser_or_equal",
    "max": "max_value",
    "maximum": "max",
    "mean": "reduce_mean",
    "min": "min_value",
    "minimum": "min",
    "multiply": "mul",
    "ndim": "rank",
    "negative": "neg",
    "permute": "transpose",
    "power": "pow",
    "prod": "reduce_product",
    "rint": "round_even",
    "squeeze": "reshape",
    "subtract": "sub",
    "sum": "reduce_sum",
    "true_divide": "div",
    "view": "reshape",
}
"""Names in NumPy, PyTorch and JavaScript's WebNN -> names in WebNN and here."""

UFUNC_METHODS = {
    "add.accumulate": "cumulative_sum",
    "add.reduce": "reduce_sum",
    "maximum.reduce": "reduce_max",
    "minimum.reduce": "reduce_min",
    "multiply.reduce": "reduce_product",
}
"""Methods of NumPy's ufuncs -> names in WebNN; `np.sum(x)` calls `np.add.reduce(x)`."""

MAX_OPTIONS = 8
"""Maximum entries of a dictionary in a message; no operation has more options."""

OPERATORS = ("add", "subtract", "multiply", "divide", "power", "matmul")
"""The ufuncs that NumPy calls for infix operators."""


def meant(name: str, known: Iterable[str]) -> str:
    """Suggest a known name for an unknown one, as the end of a message.

    >>> meant("averagePool2d", ["average_pool2d"]), meant("keepdims", ["keep_dimensions"]), meant("foo", ["bar"])
    ("; did you mean 'average_pool2d'?", "; did you mean 'keep_dimensions'?", '')
    """
    from difflib import get_close_matches  # which most programs never need

    names = list(known)
    same = [other for other in names if other.lower() == name.lower()]
    longer = [other for other in names if "_" in name and other.startswith(name)]  # batch_norm of PyTorch
    similar = [*same, *longer, *get_close_matches(name, names, 1, 0.8)]
    for guess in (snake_case(name), WEBNN_NAMES.get(name, ""), *similar):
        if guess in names and guess != name:
            return f"; did you mean {guess!r}?"
    return ""


def names(unknown: Iterable[str], missing: Sequence[str]) -> str:
    """Suggest missing names for unknown ones.

    >>> names(["X"], ["x", "y"])
    "; did you mean 'x' for 'X'?"
    """
    suggestions = ((name, meant(name, missing)) for name in unknown if isinstance(name, str))
    return "".join(f"{hint[:-1]} for {name!r}?" for name, hint in suggestions if hint)


def require_names(subject: str, values: Mapping[str, Any], declared: Mapping[str, Any]) -> None:
    """Require exactly the names `declared`."""
    missing = [name for name in declared if name not in values]
    unknown = [name for name in values if name not in declared]
    if missing or unknown:
        groups = {"missing": missing, "unknown": unknown}
        problem = (
            ", ".join(f"{kind}: {short_repr(group)}" for kind, group in groups.items() if group)
            if values
            else "got none"
        )
        raise ValidationError(f"{subject} must hold {list(declared)}; {problem}{names(unknown, missing)}")


def options(dictionary: Mapping[Any, Any]) -> str:
    """The keyword arguments that correspond to a dictionary of options or a descriptor.

    >>> options({"inputLayout": "nhwc", "groups": 2})
    "options are keyword arguments: input_layout='nhwc', groups=2"
    """
    names = {name: snake_case(str(name)) for name in islice(dictionary, MAX_OPTIONS)}
    pairs = [f"{WEBNN_NAMES.get(ours, ours)}={short_repr(dictionary[name])}" for name, ours in names.items()]
    return f"options are keyword arguments: {', '.join(pairs)}"


def of_call(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any], error: Exception) -> str:
    """A hint for a call of an operation that failed with `error`; empty if there is none."""
    arguments = {**dict(zip(op.positional, args, strict=False)), **kwargs}
    values = [*args, *kwargs.values()]
    dictionary = next(filter(_is_options, values), None)
    if dictionary is not None:
        return f"; {options(dictionary)}"
    several = next((name for name in op.positional[:1] if name in op.sequences), None)
    if several and len(args) > 1 and all(hasattr(value, "shape") for value in args):
        return f"; {several} is one list, as in {op.name}([a, b], …)"
    last = op.positional[-1] if op.positional else ""
    rest = args[len(op.positional) - 1 :]
    takes_list = "Sequence[int]" in str(op.parameters[last].annotation) if last in op.parameters else False
    if takes_list and len(rest) > 1 and all(isinstance(value, int) for value in rest):
        return f"; {last} is one list: {list(rest)}"
    unknown = next((name for name in kwargs if name not in op.parameters and name != "label"), None)
    if unknown is not None:
        return meant(unknown, op.parameters)
    keywords = [f"{name}=…" for name in op.attributes if name not in op.positional]
    if len(args) > len(op.positional) and keywords:
        return f"; attributes are keywords: {', '.join(keywords)}"
    text = str(error).rpartition(": ")[2] if ": " in str(error) else str(error)
    shape = next((value.shape for value in values if isinstance(getattr(value, "shape", None), tuple)), None)
    for name, value in arguments.items():
        if not text.startswith(name):
            continue
        items = list(value) if isinstance(value, (list, tuple)) else [value]
        integers = all(isinstance(item, int) and not isinstance(item, bool) for item in items)
        if name in op.operands or shape is None or not integers or min(items, default=0) >= 0:
            continue
        if name in ("axis", "axes"):
            right = [item + len(shape) if item < 0 else item for item in items]
            if min(right) >= 0:
                return f"; axes are counted from the first: {name}={right if isinstance(value, (list, tuple)) else right[0]}"
        rest = prod(item for item in items if item != -1)
        if name == "new_shape" and items.count(-1) == 1 and rest > 0 and prod(shape) % rest == 0:
            size = prod(shape) // rest
            return f"; sizes are given, not inferred: {[size if item == -1 else item for item in items]}"
    return ""


def ufunc(function: Any, method: str, subject: str, known: Iterable[str], instead: str = "x.{}({}) is in WebNN") -> str:
    """The message for a NumPy function that was called, by `method` ("__call__", "reduce"), with an unsupported object.

    `subject` describes the object. `instead` says how to call an operation, with places for its name and its other arguments.
    """
    is_call, functions = method == "__call__", list(known)
    name = function.__name__ if is_call else f"{function.__name__}.{method}"
    others = ", ".join("yz"[: getattr(function, "nin", 1) - 1]) if is_call else ""
    same = name if name in functions else UFUNC_METHODS.get(name) or WEBNN_NAMES.get(name, "")
    hint = instead.format(same, others) if same in functions else "there is no such operation"
    return f"np.{name} takes arrays of NumPy, got {subject}; {hint}"


def no_dictionaries(function: Callable[Concatenate[Self, P], R]) -> Callable[Concatenate[Self, P], R]:
    """Decorator for methods: refuse JavaScript-style dictionaries and names, with a message that shows the Python form."""
    parameters = list(inspect.signature(function).parameters)
    title = function.__name__

    @functools.wraps(function)
    def wrapper(self: Self, *args: P.args, **kwargs: P.kwargs) -> R:
        for value in args:
            if _is_options(value):
                raise ValidationError(f"{title}: {options(value)}")
        _check_names(title, kwargs, parameters[1:])
        return function(self, *args, **kwargs)

    return wrapper  # type: ignore[return-value]  # the name of `self` is lost to mypy


def no_foreign_names(
    title: str, elsewhere: Mapping[str, str]
) -> Callable[[Callable[Concatenate[Self, P], R]], Callable[Concatenate[Self, P], R]]:
    """Decorator for methods: refuse unknown keyword arguments with a message that says what to write instead.

    `elsewhere` has the arguments of other functions, and the form in which they are passed, with a place for the argument.
    """

    def decorate(function: Callable[Concatenate[Self, P], R]) -> Callable[Concatenate[Self, P], R]:
        parameters = list(inspect.signature(function).parameters)

        @functools.wraps(function)
        def wrapper(self: Self, *args: P.args, **kwargs: P.kwargs) -> R:
            _check_names(title, kwargs, parameters[1:], elsewhere)
            return function(self, *args, **kwargs)

        return wrapper  # type: ignore[return-value]  # the name of `self` is lost to mypy

    return decorate


def _check_names(
    title: str, arguments: Mapping[str, Any], parameters: Sequence[str], elsewhere: Mapping[str, str] | None = None
) -> None:
    for name, value in arguments.items():
        if name in parameters:
            continue
        hint = meant(name, parameters)
        if not hint and elsewhere and name in elsewhere:
            hint = f"; write {elsewhere[name].format(f'{name}={short_repr(value)}')}"
        raise ValidationError(f"{title}: has no argument {name!r}; it takes {', '.join(parameters)}{hint}")


def _is_options(value: object) -> TypeGuard[Mapping[Any, Any]]:
    return isinstance(value, Mapping) and bool(value) and isinstance(next(iter(value)), str)


class Misnomer:
    """An attribute that a class does not have; reading it raises `AttributeError` with the name that was meant.

    `__getattr__` would cover all names, but slows every attribute of the class down: CPython then specialises no lookup.
    """

    def __init__(self, name: str, hint: str = "") -> None:
        self._name, self._hint = name, hint

    def __get__(self, instance: object, owner: type | None = None) -> NoReturn:
        raise no_attribute(owner if instance is None else instance, self._name, self._hint)


def misnomers(cls: type[Self]) -> type[Self]:
    """Declare a `Misnomer` for the names of public attributes in the specification (camelCase), NumPy and PyTorch."""
    public = [name for name in dir(cls) if not name.startswith("_")]
    wrong = {camel_case(name) for name in public} | {name for name, right in WEBNN_NAMES.items() if right in public}
    for name in wrong.difference(public):
        setattr(cls, name, Misnomer(name))

    def listing(self: object) -> list[str]:
        return [name for name in object.__dir__(self) if name not in wrong or name in public]

    cls.__dir__ = listing  # type: ignore[method-assign]
    return cls


def no_attribute(instance: object, name: str, hint: str = "") -> AttributeError:
    """The error for a missing attribute, with a suggestion."""
    kind = type(instance).__name__
    hint = hint or ("" if name.startswith("_") else meant(name, dir(instance)))
    return AttributeError(f"{kind!r} object has no attribute {name!r}{hint}", name=name, obj=instance)
