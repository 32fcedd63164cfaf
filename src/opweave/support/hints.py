"""Hints at the end of error messages, for habits from JavaScript, NumPy and PyTorch.

This code runs only after a call has failed. `refusals` has the decorators that other calls pass.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from math import prod
from typing import Any, ParamSpec, TypeVar

from .errors import NoSuchNameError
from .lazy_imports import composite_names
from .names import short_repr, snake_case
from .refusals import (
    OF_CONTEXT as OF_CONTEXT,
    WEBNN_NAMES as WEBNN_NAMES,
    Misnomer as Misnomer,
    is_options,
    misnomers as misnomers,
    no_dictionaries as no_dictionaries,
    no_foreign_names as no_foreign_names,
    require_names as require_names,
)

P = ParamSpec("P")
R = TypeVar("R")
Self = TypeVar("Self")

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
    names = _public(known)
    guess = synonym(name, names) or similar(name, names)
    return f"; did you mean {guess!r}?" if guess else ""


def _public(names: Iterable[str]) -> list[str]:
    return [name for name in names if not name.startswith("_")]


def plain(name: str) -> str:
    """A name without capitals and underscores, to compare spellings.

    >>> plain("LogSoftmax"), plain("keep_dims"), plain("and_")
    ('logsoftmax', 'keepdims', 'and')
    """
    return name.replace("_", "").lower()


def synonym(name: str, names: Sequence[str]) -> str:
    """The name that means the same as `name`: in another spelling, or of another library; empty if there is none."""
    spelling = plain(name)
    same = [other for other in names if plain(other) in (spelling, f"{spelling}2d")]  # Conv of ONNX
    elsewhere = [right for wrong, right in WEBNN_NAMES.items() if plain(wrong) == spelling]
    return next((guess for guess in (*same, *elsewhere) if guess in names and guess != name), "")


def similar(name: str, names: Sequence[str], closeness: float = 0.8) -> str:
    """The name that `name` may be a misspelling of; empty if none is as close, as `difflib` measures it."""
    from difflib import get_close_matches  # imported late, because most programs never need it

    snake = snake_case(name)
    longer = [other for other in names if "_" in snake and other.startswith(snake)]  # batch_norm of PyTorch
    return next((guess for guess in (*longer, *get_close_matches(name, names, 1, closeness)) if guess != name), "")


def operation(name: str, known: Iterable[str], others: str = "", elsewhere: Iterable[str] = ()) -> str:
    """A hint for an operation or attribute that an object lacks, as the end of a message; empty if there is none.

    `known` are the object's names; those of `elsewhere` are called with `others` before them.
    """
    names, more = _public(known), _public(elsewhere)
    if guess := synonym(name, names):
        return f"; did you mean {guess!r}?"
    if guess := name if name in more else synonym(name, more):
        return f"; {others}{guess}(…) does that"
    from .foreign_names import INSTEAD

    if plain(name) in INSTEAD:
        return f"; {INSTEAD[plain(name)]}"
    composites: Sequence[str] = composite_names()
    if guess := name if name in composites else synonym(name, composites):
        return f"; it is a composite: opweave.composites.{guess}(x, …)"
    if guess := similar(name, names):
        return f"; did you mean {guess!r}?"
    if guess := similar(name, more):
        return f"; did you mean {others}{guess}?"
    guess = similar(name, composites)
    return f"; did you mean opweave.composites.{guess}?" if guess else ""


def names(unknown: Iterable[str], missing: Sequence[str]) -> str:
    """Suggest missing names for unknown ones.

    >>> names(["X"], ["x", "y"])
    "; did you mean 'x' for 'X'?"
    """
    suggestions = ((name, meant(name, missing)) for name in unknown if isinstance(name, str))
    return "".join(f"{hint[:-1]} for {name!r}?" for name, hint in suggestions if hint)


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
    dictionary = next(filter(is_options, values), None)
    if dictionary is not None:
        return f"; {options(dictionary)}"
    first = op.positional[0] if op.positional else ""
    if first in op.sequences and len(args) > 1 and all(hasattr(value, "shape") for value in args):
        return f"; {first} is one list, as in {op.name}([a, b], …)"
    unknown = next((name for name in kwargs if name not in op.parameters and name != "label"), None)
    if unknown is not None:
        return _of_argument(op, unknown, kwargs[unknown], arguments)
    rest = args[len(op.positional) :]
    if rest:
        return _of_rest(op, args, rest)
    missing = next((name for name in op.parameters if name not in arguments and name not in op.defaults), None)
    if missing is not None:
        if missing in op.operands and isinstance(arguments.get(first), (list, tuple)):
            return f"; operands are separate arguments: {_form(op)}"
        return f"; {op.name} takes two operands, reduce_{op.name} one" if op.name in EXTREMA else f"; write {_form(op)}"
    text = str(error).rpartition(": ")[2] if ": " in str(error) else str(error)
    shape = next((value.shape for value in values if isinstance(getattr(value, "shape", None), tuple)), None)
    name = next((name for name in sorted(arguments, key=len, reverse=True) if text.startswith(name)), None)
    return "" if name is None or name in op.operands else _of_attribute(op, name, arguments[name], text, shape)


EXTREMA = ("max", "min")
"""Operations of two operands whose names elsewhere are those of reductions."""


def _takes_list(op: Any, name: str) -> bool:
    return name in op.parameters and str(op.parameters[name].annotation).startswith("Sequence[")


def _form(op: Any) -> str:
    """The call of an operation with what it needs: `softmax(input, axis)`."""
    required = [f"{name}=…" for name in op.parameters if name not in op.defaults and name not in op.positional]
    return f"{op.name}({', '.join([*(name for name in op.positional if name not in op.defaults), *required])})"


def _of_argument(op: Any, unknown: str, value: Any, arguments: Mapping[str, Any]) -> str:
    """A hint for an argument that an operation does not have."""
    from .foreign_names import ARGUMENTS

    free = [name for name in op.parameters if name not in arguments]
    guess = next((name for name in ARGUMENTS.get(plain(unknown), ()) if name in free), "")
    if guess and _takes_list(op, guess) and type(value) is int:
        return f"; did you mean {guess}=[{value}]?"
    if not guess and op.name in EXTREMA and unknown in ("axes", "axis", "dim"):
        return f"; {op.name} takes two operands, reduce_{op.name} has axes"
    return f"; did you mean {guess!r}?" if guess else meant(unknown, op.parameters)


def _of_rest(op: Any, args: Sequence[Any], rest: Sequence[Any]) -> str:
    """A hint for positional arguments, `rest`, beyond those that an operation takes."""
    last = op.positional[-1] if op.positional else ""
    integers = all(isinstance(value, int) for value in rest)
    if _takes_list(op, last) and integers and isinstance(args[len(op.positional) - 1], int):
        return f"; {last} is one list: {list(args[len(op.positional) - 1 :])}"
    attributes = [name for name in op.attributes if name not in op.positional]
    builder = "" if op.positional else next(iter(inspect.signature(op.__wrapped__).parameters), "")
    if builder and builder not in op.parameters:
        return f"; the first parameter of the function, {builder}, is the builder"
    if not attributes:
        return f"; write {_form(op)}"
    if _takes_list(op, attributes[0]) and integers:
        return f"; attributes are keywords: {attributes[0]}={list(rest)}"
    texts = [short_repr(value) for value in rest] if not any(hasattr(value, "shape") for value in rest) else []
    pairs = [f"{name}={texts[i] if i < len(texts) else '…'}" for i, name in enumerate(attributes)]
    return f"; attributes are keywords: {', '.join(pairs[: len(texts) or None])}"


def _of_attribute(op: Any, name: str, value: Any, text: str, shape: tuple[int, ...] | None) -> str:
    """A hint for an attribute that is refused with `text`; `shape` is that of the first operand."""
    if isinstance(getattr(value, "shape", None), tuple) and "must be a sequence" in text:
        return f"; the shape of an operand is a sequence: {name}=x.shape"
    items = list(value) if isinstance(value, (list, tuple)) else [value]
    if not items or not all(isinstance(item, int) and not isinstance(item, bool) for item in items):
        return ""
    if "must be a sequence" in text:
        default = op.defaults.get(name)
        return f"; write {name}={short_repr(items * (len(default) if isinstance(default, tuple) else 1))}"
    if "must be an integer" in text and len(items) == 1:
        return f"; write {name}={items[0]}"
    if shape is None or min(items) >= 0:
        return ""
    if name in ("axis", "axes"):
        right = [item + len(shape) if item < 0 else item for item in items]
        if min(right) >= 0:
            return (
                f"; axes are counted from the first: {name}={right if isinstance(value, (list, tuple)) else right[0]}"
            )
    rest = prod(item for item in items if item != -1)
    if name == "new_shape" and items.count(-1) == 1 and rest > 0 and prod(shape) % rest == 0:
        size = prod(shape) // rest
        return f"; sizes are given, not inferred: {[size if item == -1 else item for item in items]}"
    return ""


def _data_type(number: object) -> str:
    return repr("int32" if isinstance(number, int) else "float32")


def of_operand(value: Any) -> str:
    """A hint for a value that is no operand, as the end of a message; empty if there is none."""
    if isinstance(value, bool):
        return "; comparisons are called by name, as builder.greater(x, y)"
    if isinstance(value, (list, tuple)):
        items: Any = value
        while isinstance(items, (list, tuple)) and items:
            items = items[0]
        if hasattr(items, "shape"):
            return "; it is one operand, not a list"
        array = f"numpy.array({short_repr(value)}, {_data_type(items)})"
        return f"; builder.constant({array}) declares a constant" if isinstance(items, (int, float)) else ""
    if isinstance(value, (int, float)):
        return f"; builder.constant({_data_type(value)}, {short_repr(value)}) declares a constant"
    name = getattr(value, "__name__", "")
    return f"; {name} is not called: write {name}(…)" if callable(value) and name else ""


def function(
    library: str,
    function: Any,
    method: str,
    subject: str,
    known: Iterable[str],
    instead: str = "x.{name}({others}) is in WebNN",
) -> str:
    """The message for a function of NumPy ("np") or PyTorch that was called with an unsupported object, `subject`."""
    hint = of_function(function, method, known, instead)
    return f"{library}.{_function_name(function, method)} takes arrays of {LIBRARIES[library]}, got {subject}; {hint}"


def _function_name(function: Any, method: str) -> str:
    return function.__name__ if method == "__call__" else f"{function.__name__}.{method}"


def of_function(function: Any, method: str, known: Iterable[str], instead: str) -> str:
    """The operation for a function of another library, as it is called; `method` is "__call__", or a ufunc's ("reduce").

    `instead` has places for the operation's `name`, `all` arguments, and the `others` than the first.
    """
    from .foreign_names import INSTEAD

    name, names = _function_name(function, method), _public(known)
    if plain(name) in INSTEAD:
        return INSTEAD[plain(name)]
    if name in EXTREMA and not hasattr(function, "nin"):
        same = f"reduce_{name}"
    else:
        same = name if name in names else UFUNC_METHODS.get(name) or synonym(name, names)
    count = getattr(function, "nin", 0) if method == "__call__" else 1
    arguments = list("xyz"[:count]) or ["…"]
    texts = {"name": same, "all": ", ".join(arguments), "others": ", ".join(arguments[1:])}
    return instead.format(**texts) if same in names else "there is no such operation"


LIBRARIES = {"np": "NumPy", "torch": "PyTorch"}
"""Names of libraries in programs -> in texts."""


def no_attribute(instance: object, name: str, hint: str = "") -> AttributeError:
    """The error for a missing attribute, with a suggestion."""
    kind = type(instance).__name__
    hint = hint or ("" if name.startswith("_") else meant(name, dir(instance)))
    return AttributeError(f"{kind!r} object has no attribute {name!r}{hint}", name=name, obj=instance)


def no_name(instance: object, kind: str, name: str, hint: Callable[[], str]) -> NoSuchNameError:
    """The error for an operation or attribute that an operand or a builder, called `kind`, lacks."""
    text = "" if name.startswith("_") else hint()
    error = NoSuchNameError(f"{kind} has no attribute or operation {name!r}{text}")
    error.name, error.obj = name, instance
    return error
