"""Decorators and checks that refuse names and forms of other libraries: JavaScript's, NumPy's and PyTorch's.

Messages say what to write instead; `hints` has them, and is imported when one is raised.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeGuard, TypeVar

from .errors import ValidationError
from .names import camel_case, listing, short_repr

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
    "amax": "reduce_max",
    "amin": "reduce_min",
    "and": "logical_and",
    "argmax": "arg_max",
    "argmin": "arg_min",
    "around": "round_even",
    "astype": "cast",
    "avg_pool": "average_pool2d",
    "batchnorm": "batch_normalization",
    "bitwise_and": "logical_and",
    "bitwise_not": "logical_not",
    "bitwise_or": "logical_or",
    "bitwise_xor": "logical_xor",
    "bmm": "matmul",
    "broadcast_to": "expand",
    "cat": "concat",
    "chunk": "split",
    "clip": "clamp",
    "close": "destroy",
    "compile": "build",
    "concatenate": "concat",
    "conv": "conv2d",
    "cumsum": "cumulative_sum",
    "device_type": "device",
    "dim": "rank",
    "divide": "div",
    "dot": "matmul",
    "dtype": "data_type",
    "eq": "equal",
    "flip": "reverse",
    "fully_connected": "gemm",
    "ge": "greater_or_equal",
    "global_average_pool": "average_pool2d",
    "global_max_pool": "max_pool2d",
    "greater_equal": "greater_or_equal",
    "gt": "greater",
    "index_select": "gather",
    "interpolate": "resample2d",
    "invert": "logical_not",
    "isinf": "is_infinite",
    "instancenorm": "instance_normalization",
    "isnan": "is_nan",
    "keepdim": "keep_dimensions",
    "keepdims": "keep_dimensions",
    "layernorm": "layer_normalization",
    "le": "lesser_or_equal",
    "less": "lesser",
    "less_equal": "lesser_or_equal",
    "less_or_equal": "lesser_or_equal",
    "lp_pool": "l2_pool2d",
    "lt": "lesser",
    "masked_fill": "where",
    "max": "max_value",
    "maximum": "max",
    "mean": "reduce_mean",
    "min": "min_value",
    "minimum": "min",
    "mm": "matmul",
    "moveaxis": "transpose",
    "movedim": "transpose",
    "multiply": "mul",
    "ndim": "rank",
    "ne": "not_equal",
    "negative": "neg",
    "norm": "reduce_l2",
    "not": "logical_not",
    "or": "logical_or",
    "permute": "transpose",
    "permute_dims": "transpose",
    "power": "pow",
    "prod": "reduce_product",
    "repeat": "tile",
    "resize": "resample2d",
    "rint": "round_even",
    "round": "round_even",
    "select": "where",
    "squeeze": "reshape",
    "subtract": "sub",
    "sum": "reduce_sum",
    "swapaxes": "transpose",
    "take": "gather",
    "take_along_axis": "gather_elements",
    "tril": "triangular",
    "trilu": "triangular",
    "triu": "triangular",
    "true_divide": "div",
    "upsample": "resample2d",
    "view": "reshape",
    "xor": "logical_xor",
}
"""Names in NumPy, PyTorch, ONNX and JavaScript's WebNN -> names in WebNN and here."""


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
        from .hints import names

        raise ValidationError(f"{subject} must hold {list(declared)}; {problem}{names(unknown, missing)}")


def _parameters(function: Any) -> list[str]:
    """The names of a method's parameters but `self`. `inspect.signature` takes a hundred times as long."""
    code = function.__code__
    several = sum(bool(code.co_flags & flag) for flag in (0x04, 0x08))  # *args, **kwargs
    return list(code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount + several])


def no_dictionaries(function: Callable[Concatenate[Self, P], R]) -> Callable[Concatenate[Self, P], R]:
    """Decorator for methods: refuse JavaScript-style dictionaries and names, with a message that shows the Python form."""
    parameters = _parameters(function)
    title = function.__name__

    @functools.wraps(function)
    def wrapper(self: Self, *args: P.args, **kwargs: P.kwargs) -> R:
        for value in args:
            if is_options(value):
                from .hints import options

                raise ValidationError(f"{title}: {options(value)}")
        _check_names(title, kwargs, parameters)
        return function(self, *args, **kwargs)

    return wrapper  # type: ignore[return-value]  # the name of `self` is lost to mypy


def no_foreign_names(
    title: str, elsewhere: Mapping[str, str]
) -> Callable[[Callable[Concatenate[Self, P], R]], Callable[Concatenate[Self, P], R]]:
    """Decorator for methods: refuse unknown keyword arguments with a message that says what to write instead.

    `elsewhere` has the arguments of other functions, and the form in which they are passed, with a place for the argument.
    """

    def decorate(function: Callable[Concatenate[Self, P], R]) -> Callable[Concatenate[Self, P], R]:
        parameters = _parameters(function)

        @functools.wraps(function)
        def wrapper(self: Self, *args: P.args, **kwargs: P.kwargs) -> R:
            _check_names(title, kwargs, parameters, elsewhere)
            return function(self, *args, **kwargs)

        return wrapper  # type: ignore[return-value]  # the name of `self` is lost to mypy

    return decorate


def _check_names(
    title: str, arguments: Mapping[str, Any], parameters: Sequence[str], elsewhere: Mapping[str, str] | None = None
) -> None:
    for name, value in arguments.items():
        if name in parameters:
            continue
        from .hints import meant

        hint = meant(name, parameters)
        if not hint and elsewhere and name in elsewhere:
            hint = f"; write {elsewhere[name].format(f'{name}={short_repr(value)}')}"
        raise ValidationError(f"{title}: has no argument {name!r}; it takes {', '.join(parameters)}{hint}")


def is_options(value: object) -> TypeGuard[Mapping[Any, Any]]:
    """Whether a value is a dictionary of options, or a descriptor, as JavaScript has them."""
    return isinstance(value, Mapping) and bool(value) and isinstance(next(iter(value)), str)


class Misnomer:
    """An attribute that a class does not have; reading it raises `AttributeError` with the name that was meant.

    `__getattr__` would cover all names, but slows every attribute of the class down: CPython then specialises no lookup.
    """

    def __init__(self, name: str, hint: str = "") -> None:
        self._name, self._hint = name, hint

    def __get__(self, instance: object, owner: type | None = None) -> NoReturn:
        from .hints import no_attribute

        raise no_attribute(owner if instance is None else instance, self._name, self._hint)


def misnomers(cls: type[Self]) -> type[Self]:
    """Declare a `Misnomer` for the names of public attributes in the specification (camelCase), NumPy and PyTorch."""
    public = [name for name in dir(cls) if not name.startswith("_")]
    wrong = {camel_case(name) for name in public} | {name for name, right in WEBNN_NAMES.items() if right in public}
    for name in wrong.difference(public):
        setattr(cls, name, Misnomer(name))

    hidden = wrong.difference(public)
    cls.__dir__ = lambda self: listing(self, hidden)  # type: ignore[method-assign]
    return cls
