"""Conversion of attributes, as Web IDL does it: https://webidl.spec.whatwg.org/#js-type-mapping."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias, get_args, get_origin

from ..support.errors import ValidationError, require
from ..support.names import either, short_repr
from ..support.records import record
from . import dtypes
from .dtypes import ANY, INFO, DataType
from .graph import Desc, Operand
from .shapes import tuple_of
from .size_terms import interval
from .sizes import Size

Number: TypeAlias = int | float
"""`MLNumber`: an integer of any size or a float, NaN and infinities included."""
Long: TypeAlias = "int"
"""The IDL's `long`; a plain `int` annotation means `unsigned long`, which nearly all attributes are."""
Integer: TypeAlias = "int"
"""An integer of any size, for operations that no user calls."""

Unconverted: TypeAlias = Any
"""A value that stays as it is, for operations that no user calls."""

Converter: TypeAlias = Callable[[str, Any], Any]


def _integer(low: float, high: float) -> Converter:
    def convert(name: str, value: Any) -> int:
        if type(value) is Size:  # stands for an integer until the graph runs
            least, greatest = interval(value)
            require(greatest >= low and least <= high, f"{name} must be in [{low}, {high}], got {value}")
            return value  # type: ignore[return-value]
        number = value if type(value) is int else _whole(value)
        if number is None:
            raise ValidationError(f"{name} must be an integer, got {short_repr(value)}")
        if not low <= number <= high:
            raise ValidationError(f"{name} must be in [{low}, {high}], got {short_repr(number)}")
        return number

    return convert


def _whole(value: Any) -> int | None:
    """An integer of any type, or a float without a fraction, as int; else None. Web IDL truncates 2.5, which is refused."""
    number = _real(value)
    if isinstance(number, float):
        return int(number) if number.is_integer() else None
    return number


def _real(value: Any) -> Number | None:
    if type(value) in (int, float):
        return value  # type: ignore[no-any-return]
    if isinstance(value, (bool, complex, str, bytes)) or type(value).__name__ in ("bool", "bool_"):
        return None
    if getattr(value, "ndim", 0) != 0 or getattr(getattr(value, "dtype", None), "kind", "f") not in "fiu":
        return None
    try:
        return operator.index(value)
    except TypeError:
        pass
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _double(name: str, value: Any) -> float:
    number = _real(value)
    try:
        if number is not None and math.isfinite(number):
            return float(number)
    except OverflowError:
        pass
    raise ValidationError(f"{name} must be a finite number, got {short_repr(value)}")


def _number(name: str, value: Any) -> Number:
    number = _real(value)
    if number is None:
        raise ValidationError(f"{name} must be a number, got {short_repr(value)}")
    return number


def _boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool) and type(value).__name__ != "bool":  # NumPy's bool is called that, too
        raise ValidationError(f"{name} must be True or False, got {short_repr(value)}")
    return bool(value)


def _data_type(name: str, value: Any) -> DataType:
    try:
        return dtypes.check(value)
    except ValidationError:
        hint = dtypes.suggestion_of(value)
        raise ValidationError(f"{name} must be {either(ANY)}, got {short_repr(value)}{hint}") from None


def _any_data_type(name: str, value: Any) -> DataType:
    try:
        return dtypes.check(value, takes_all=True)
    except ValidationError:
        hint = dtypes.suggestion_of(value)
        raise ValidationError(f"{name} must be {either(tuple(INFO))}, got {short_repr(value)}{hint}") from None


DATA_TYPE, ANY_DATA_TYPE = _data_type, _any_data_type
"""Converters of attributes that are data types: of the specification's, and of all."""


def _choice(options: tuple[Any, ...]) -> Converter:
    texts = {option for option in options if isinstance(option, str)}

    def convert(name: str, value: Any) -> Any:
        if type(value) is str and value in texts:
            return value
        # 1 == True, but they are different choices.
        same = (isinstance(value, type(o)) and isinstance(value, bool) == isinstance(o, bool) for o in options)
        if not any(kind and value == option for kind, option in zip(same, options, strict=True)):
            raise ValidationError(f"{name} must be {either([repr(o) for o in options])}, got {short_repr(value)}")
        return value

    return convert


def _is_sequence(value: Any) -> bool:
    """Whether a value is a sequence here: an iterable, but no text, mapping, operand or array of rank 0."""
    return type(value) in (list, tuple) or (
        hasattr(value, "__iter__")
        and getattr(value, "ndim", 1) > 0
        and not isinstance(value, (str, bytes, Mapping, Operand))
    )


def _sequence(convert_item: Converter) -> Converter:
    def convert(name: str, value: Any) -> tuple[Any, ...]:
        if not _is_sequence(value):
            raise ValidationError(f"{name} must be a sequence, got {short_repr(value)}")
        items = []
        for i, item in enumerate(tuple_of(value, name)):
            try:
                items.append(convert_item(name, item))
            except ValidationError:
                convert_item(f"{name}[{i}]", item)  # for the message; writing the names of all items takes long
                raise
        return tuple(items)

    return convert


def _either(convert_one: Converter, convert_many: Converter) -> Converter:
    def convert(name: str, value: Any) -> Any:
        return convert_many(name, value) if _is_sequence(value) else convert_one(name, value)

    return convert


_UNSIGNED_LONG = _integer(0, 2**32 - 1)
_CONVERTERS: dict[str, Converter] = {
    "int": _UNSIGNED_LONG,
    "Long": _integer(-(2**31), 2**31 - 1),
    "float": _double,
    "bool": _boolean,
    "Number": _number,
    "DataType": _data_type,
    "Unconverted": lambda name, value: value,
    "Sequence[int]": _sequence(_UNSIGNED_LONG),
    "Sequence[Integer]": _sequence(_integer(-math.inf, math.inf)),
    "Sequence[float]": _sequence(_double),
    "int | Sequence[int]": _either(_UNSIGNED_LONG, _sequence(_UNSIGNED_LONG)),
}


def convert_desc(data_type: object, shape: object, takes_all: bool = False) -> Desc:
    """A descriptor with its types converted; `check_desc` checks the number of dimensions and their sizes."""
    checked = dtypes.check(data_type, takes_all)
    dimensions = [_whole(size) for size in tuple_of(shape, "shape")] if _is_sequence(shape) else [None]
    sizes = tuple(size for size in dimensions if size is not None)
    if len(sizes) != len(dimensions):
        has_names = isinstance(shape, (list, tuple)) and any(
            size is None or isinstance(size, (str, Size, Mapping)) for size in shape
        )
        hint = f"; {NAMES_NEED}" if has_names else ""
        raise ValidationError(f"shape must be a sequence of integers, got {short_repr(shape)}{hint}")
    return Desc(checked, sizes)


NAMES_NEED = "only inputs have sizes with names, in a context of create_context(drafts=True)"


def convert_named_desc(data_type: object, shape: object) -> tuple[Desc, dict[str, SizeHint]]:
    """The descriptor of an input whose dimensions may have names, and the hints for these names."""
    checked = dtypes.check(data_type, takes_all=True)
    if not _is_sequence(shape):
        raise ValidationError(f"shape must be a sequence of integers and names, got {short_repr(shape)}")
    hints: dict[str, SizeHint] = {}
    sizes: list[Any] = []
    for k, item in enumerate(tuple_of(shape, "shape")):
        size: Any = item
        if isinstance(item, Mapping):
            size, hint = _hinted_size(f"shape[{k}]", item)
            hints[size.name] = hint
        elif isinstance(item, str):
            size = Size(item) if item else None
        elif isinstance(item, Size):
            size = item if item.name else None
        else:
            size = _whole(item)
        if size is None:
            raise ValidationError(
                f"shape[{k}] must be an integer, a name that is not empty, or a dictionary of name, min_size and max_size, "
                f"got {short_repr(item)}"
            )
        sizes.append(size)
    return Desc(checked, tuple(sizes)), hints


@record(eq=True)
class SizeHint:
    """The sizes that are expected for a name. They are no limits: graphs run other sizes, too, possibly slower."""

    min_size: int = 1
    max_size: int | None = None

    def nearest(self, size: int) -> int:
        """The expected size that is nearest to a size."""
        return max(self.min_size, size if self.max_size is None else min(size, self.max_size))


def _hinted_size(subject: str, options: Mapping[str, Any]) -> tuple[Size, SizeHint]:
    unknown = [name for name in options if name not in ("name", "min_size", "max_size")]
    if unknown or "name" not in options:
        raise ValidationError(
            f"{subject} must have name, and may have min_size and max_size, got {short_repr(options)}"
        )
    bounds = {
        name: _UNSIGNED_LONG(f"{subject}.{name}", options[name]) for name in ("min_size", "max_size") if name in options
    }
    hint = SizeHint(**bounds)
    if hint.max_size is not None and hint.max_size < hint.min_size:
        raise ValidationError(f"{subject}.max_size must be at least min_size, {hint.min_size}, got {hint.max_size}")
    return Size(options["name"]), hint


def converter(annotation: str, function: Callable[..., Any]) -> Converter:
    """The converter of an annotation; enumerations are `Literal`s, or names of `Literal`s in the function's module."""
    annotation = annotation.removesuffix(" | None")
    if annotation in _CONVERTERS:
        return _CONVERTERS[annotation]
    is_sequence = annotation.startswith("Sequence[")
    name = annotation.removeprefix("Sequence[").removesuffix("]") if is_sequence else annotation
    options = eval(name, function.__globals__)  # our own source, evaluated once at import
    if get_origin(options) is not Literal:
        raise TypeError(f"{function.__name__}: no conversion for an attribute annotated {annotation!r}")
    convert = _choice(get_args(options))
    return _sequence(convert) if is_sequence else convert
