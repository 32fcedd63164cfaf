"""Dimensions that are known only when a graph runs.

A `Size` is a polynomial with integer coefficients. Its variables are names, and calls such as `(n + 1) // 2`. Polynomials have
a normal form, so `2 * n - n == n`. Calls also express comparisons, whose value is 0 or 1, and choices between two sizes
(`is_less`, `choose`). Polynomials that differ may be equal for some sizes. A scope decides such comparisons:

- `explore` takes both answers in turn. It finds the shapes that an operation may have.
- `Guards` takes the answer for the sizes of one run, and records it. What was compiled in this scope is valid for all sizes
  that give the same answers.
- Without a scope, sizes are equal if their normal forms are, and asking for an unknown order is an error.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from itertools import count as numbers
from math import ceil, floor, gcd, inf, isinf
from numbers import Integral
from typing import Any, Literal, NoReturn, Protocol, Self, TypeAlias, TypeVar

from ..support.errors import ValidationError
from ..support.names import printable

T = TypeVar("T")

Dimension: TypeAlias = "int | Size"
"""An element of a shape."""

MAX_PATHS = 64
"""Maximum number of ways through a function that `explore` tries; no operation of WebNN has more than 20."""

MAX_TERMS = 1000
"""Maximum number of terms of a formula. Products of sums grow with the power of the rank, and builders may be of strangers."""

_unknown_numbers = numbers(1)


class UnknownName(str):
    """The name of a size without a formula, in sizes by name. No name of a user is equal to it."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnknownName) and str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(("unknown", str.__str__(self)))


class _Atom:
    """A factor of a term: a name, a call, or a size without a formula. Atoms are equal if kind and text are."""

    __slots__ = ("_bounds", "_hash", "arguments", "kind", "text")

    def __init__(self, kind: str, text: str, arguments: tuple[Dimension, ...] = ()) -> None:
        self.kind, self.text, self.arguments = kind, text, arguments
        self._bounds: tuple[float, float] | None = None
        self._hash = hash((kind, text))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Atom) and (self.kind, self.text) == (other.kind, other.text)

    def __hash__(self) -> int:
        return self._hash

    def source(self) -> str:
        """The value in Python, of the sizes `s`."""
        if not self.arguments:
            return f"s[unknown({self.text!r})]" if self.kind == "unknown" else f"s[{self.text!r}]"
        arguments = [source_of(argument) for argument in self.arguments]
        template = _SOURCES.get(self.kind)
        return f"{self.kind}({', '.join(arguments)})" if template is None else template.format(*arguments)

    def interval(self) -> tuple[float, float]:
        """Bounds of the value, cached: formulas share their parts."""
        if self._bounds is None:
            self._bounds = self._interval()
        return self._bounds

    def _interval(self) -> tuple[float, float]:
        if self.kind in _INTERVALS:
            return _INTERVALS[self.kind](*map(interval, self.arguments))
        if self.kind == "//" and isinstance(self.arguments[1], int) and self.arguments[1] > 0:
            divisor = self.arguments[1]
            low, high = interval(self.arguments[0])
            return (low if isinf(low) else low // divisor), (high if isinf(high) else high // divisor)
        if self.kind in _INFIX:
            return -inf, inf
        if not self.arguments:
            return 0, inf
        lows, highs = zip(*map(interval, self.arguments), strict=True)
        return min(lows), max(highs)


def _broadcast(*sizes: int) -> int:
    return next((size for size in sizes if size != 1), 1)


def _truncated_quotient(a: Any, b: Any) -> Any:
    # Sizes have an order, but no absolute value: guards decide comparisons.
    return 0 if b == 0 else (-a if a < 0 else a) // (-b if b < 0 else b) * (1 if (a < 0) == (b < 0) else -1)


def _floored_remainder(a: int, b: int) -> int:
    return a % b if b else 0


def _truncated_remainder(a: int, b: int) -> int:
    return a - b * _truncated_quotient(a, b) if b else 0


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "unknown": UnknownName,
    "broadcast": _broadcast,
    "max": max,
    "min": min,
    "quotient": _truncated_quotient,
    "remainder": _floored_remainder,
    "fmod": _truncated_remainder,
}
"""The functions that the source of a size calls. A quotient or remainder by 0 is 0."""

_SOURCES = {
    "//": "({}) // ({})",
    "&": "({}) & ({})",
    "/": "quotient({}, {})",
    "%": "remainder({}, {})",
    "<": "int(({}) < ({}))",
    "==": "int(({}) == ({}))",
    "where": "({1}) if ({0}) else ({2})",
}
"""The source of calls; others call the function of their name. `/` truncates, as the integer division of WebNN does."""

_INFIX = ("//", "/", "%", "<", "==", "&")

_Interval: TypeAlias = tuple[float, float]
_INTERVALS: dict[str, Callable[..., _Interval]] = {
    "max": lambda *bounds: (max(low for low, _ in bounds), max(high for _, high in bounds)),
    "min": lambda *bounds: (min(low for low, _ in bounds), min(high for _, high in bounds)),
    "&": lambda a, b: (0 if a[0] >= 0 or b[0] >= 0 else -inf, inf),
    "<": lambda a, b: (0, 1),
    "==": lambda a, b: (0, 1),
    "where": lambda condition, a, b: (min(a[0], b[0]), max(a[1], b[1])),
    "/": lambda a, b: (min(a[0], 0), max(a[1], 0)) if b[0] >= 0 else (min(a[0], -a[1], 0), max(a[1], -a[0], 0)),
    "%": lambda a, b: (min(b[0] + 1, 0), max(b[1] - 1, 0)),
    "fmod": lambda a, b: (min(a[0], 0), max(a[1], 0)),
}
"""Bounds of calls, given those of their arguments."""

_Term: TypeAlias = tuple[tuple[_Atom, ...], int]
_Terms: TypeAlias = dict[tuple[_Atom, ...], int]


def _of_numbers(function: Callable[[Any, Any], Any]) -> tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]:
    """The methods of an operator, and of its reflection, that ask for the number of a size."""
    return (
        lambda self, other: function(operator.index(self), other),
        lambda self, other: function(other, operator.index(self)),
    )


def _with_float(function: Callable[[Any, Any], Any], size: Size, other: object) -> Any:
    return function(operator.index(size), other) if isinstance(other, float) else NotImplemented


def _compare_float(
    compare: Callable[[Any, Any], Any], size: Size, other: float, to_integer: Callable[[float], int]
) -> bool:
    return bool(compare(0.0, other) if isinf(other) else compare(size, to_integer(other)))


class Size:
    """A dimension that is known only when a graph runs: the name of a size, or a formula of names.

    The same name means the same size in a whole graph. Arithmetic with `+ - * // %` gives formulas; a bare name equals its
    string.

    >>> import opweave as ow
    >>> n = ow.Size("n")
    >>> (2 * n + 4) // 2, n * 3 % 3, n - n, n == "n"
    (n + 2, 0, 0, True)
    >>> (-(-n // 2)).at({"n": 5})
    3

    Args:
        name: any string that is not empty.

    Raises:
        ValidationError: `name` is not a string, or empty; the order or the value of an unknown size is asked for.
    """

    __slots__ = ("_function", "_hash", "_text", "terms")
    terms: tuple[_Term, ...]
    _text: str
    _hash: int
    _function: Callable[[Mapping[str, int]], int] | None

    def __new__(cls, name: str, /, terms: tuple[_Term, ...] = ()) -> Self:
        if not isinstance(name, str) or not (name or terms):
            raise ValidationError(f"the name of a size must be a string that is not empty, got {name!r}")
        self = super().__new__(cls)
        self.terms = terms or (((_Atom("name", name),), 1),)
        self._text = _text(self.terms)
        self._hash = hash(self.name or self._text)
        self._function = None
        return self

    @property
    def name(self) -> str:
        """The name, for a size that is a name; empty for formulas.

        >>> import opweave as ow
        >>> ow.Size("n").name, (ow.Size("n") + 1).name
        ('n', '')
        """
        ((atoms, factor), *more) = self.terms
        is_name = not more and factor == 1 and len(atoms) == 1 and atoms[0].kind == "name"
        return atoms[0].text if is_name else ""

    @property
    def names(self) -> frozenset[str]:
        """The names that the size depends on.

        >>> import opweave as ow
        >>> sorted((ow.Size("n") * 2 + ow.Size("m")).names)
        ['m', 'n']
        """
        return frozenset(atom.text for atom in _atoms_of(self) if atom.kind == "name")

    def at(self, sizes: Mapping[str, int]) -> int:
        """The number for sizes by name.

        >>> import opweave as ow
        >>> (ow.Size("n") * 2 + 1).at({"n": 3})
        7
        """
        if self._function is None:
            # A program has many sizes, which are evaluated for each combination of names: generated code takes a tenth.
            self._function = eval(f"lambda s: {source_of(self)}", dict(_FUNCTIONS))
        number: int = self._function(sizes)
        return number

    def __str__(self) -> str:
        return self._text

    __repr__ = __str__

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_terms, (
            [([(a.kind, a.text, a.arguments) for a in atoms], factor) for atoms, factor in self.terms],
        )

    # Arithmetic ------------------------------------------------------------------------------------------------------

    def __add__(self, other: Any) -> Any:
        terms = _terms_of(other)
        return _with_float(operator.add, self, other) if terms is None else _sum(dict(self.terms), terms)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        terms = _terms_of(other)
        if terms is None:
            return _with_float(operator.sub, self, other)
        return _sum(dict(self.terms), {key: -f for key, f in terms.items()})

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __neg__(self) -> Any:
        return self * -1

    def __pos__(self) -> Size:
        return self

    def __mul__(self, other: Any) -> Any:
        terms = _terms_of(other)
        if terms is None:
            return _with_float(operator.mul, self, other)
        _check_terms(len(self.terms) * len(terms))
        product: _Terms = {}
        for left, a in self.terms:
            for right, b in terms.items():
                key = tuple(sorted((*left, *right), key=_order))
                product[key] = product.get(key, 0) + a * b
        return _size(product)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        return NotImplemented if _terms_of(other) is None else _divide(self, _plain(other))

    def __rfloordiv__(self, other: Any) -> Any:
        return NotImplemented if _terms_of(other) is None else _divide(_plain(other), self)

    def __pow__(self, other: Any) -> Any:
        if not isinstance(other, int) or other < 0:
            return NotImplemented
        power: Any = 1
        for _ in range(other):
            power = power * self
        return power

    def __and__(self, other: Any) -> Any:
        return NotImplemented if _terms_of(other) is None else _call("&", self, _plain(other))

    __rand__ = __and__

    def __mod__(self, other: Any) -> Any:
        return NotImplemented if _terms_of(other) is None else self - self // other * other

    def __rmod__(self, other: Any) -> Any:
        return NotImplemented if _terms_of(other) is None else other - other // self * self

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    # Operations with other results ask for the number.
    __truediv__, __rtruediv__ = _of_numbers(operator.truediv)
    __or__, __ror__ = _of_numbers(operator.or_)
    __xor__, __rxor__ = _of_numbers(operator.xor)
    __lshift__, __rlshift__ = _of_numbers(operator.lshift)
    __rshift__, __rrshift__ = _of_numbers(operator.rshift)

    # Comparison ------------------------------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return bool(self.name) and self.name == other
        return NotImplemented if _terms_of(other) is None else _decide("zero", self - other)

    def __lt__(self, other: Any) -> bool:
        if isinstance(other, float):
            return _compare_float(operator.lt, self, other, ceil)
        return NotImplemented if _terms_of(other) is None else _decide("negative", self - other)

    def __le__(self, other: Any) -> bool:
        if isinstance(other, float):
            return _compare_float(operator.le, self, other, floor)
        return NotImplemented if _terms_of(other) is None else _decide("negative", self - other - 1)

    def __gt__(self, other: Any) -> bool:
        if isinstance(other, float):
            return _compare_float(operator.gt, self, other, floor)
        return NotImplemented if _terms_of(other) is None else _decide("negative", other - self)

    def __ge__(self, other: Any) -> bool:
        if isinstance(other, float):
            return _compare_float(operator.ge, self, other, ceil)
        return NotImplemented if _terms_of(other) is None else _decide("negative", other - self - 1)

    def __bool__(self) -> bool:
        return not _decide("zero", self)

    def __index__(self) -> int:
        scope = _scope.get()
        return _refuse(f"{self} as a number") if scope is None else scope.number(self)

    __int__ = __index__

    def __float__(self) -> float:
        return float(int(self))


def _atoms_of(size: Size) -> Iterator[_Atom]:
    """The factors of all terms, and those of their arguments."""
    for atoms, _ in size.terms:
        for atom in atoms:
            yield atom
            for argument in atom.arguments:
                if isinstance(argument, Size):
                    yield from _atoms_of(argument)


def sizes_in(value: Any) -> list[Size]:
    """The sizes in an attribute, or in nested tuples."""
    if isinstance(value, tuple):
        return [size for item in value for size in sizes_in(item)]
    return [value] if isinstance(value, Size) else []


def is_unknown(size: object) -> bool:
    """Whether a dimension is a size without a formula."""
    return unknown_name(size) is not None


def unknown_name(size: object) -> UnknownName | None:
    """The name of a size without a formula; None for others."""
    if type(size) is not Size or len(size.terms) > 1:
        return None
    atoms, factor = size.terms[0]
    name = atoms[0].text if factor == 1 and len(atoms) == 1 else ""
    return name if isinstance(name, UnknownName) else None


def source_of(dimension: Dimension) -> str:
    """The value in Python, of the sizes `s`."""
    if not isinstance(dimension, Size):
        return str(dimension)
    return " + ".join("*".join([str(factor), *(f"({a.source()})" for a in atoms)]) for atoms, factor in dimension.terms)


def _terms_of(value: object) -> _Terms | None:
    if isinstance(value, Size):
        return dict(value.terms)
    if isinstance(value, bool) or not isinstance(value, Integral):
        return None
    return {(): operator.index(value)}


def _plain(value: Any) -> Dimension:
    return value if isinstance(value, Size) else operator.index(value)


def _sum(left: _Terms, right: _Terms) -> Dimension:
    for key, factor in right.items():
        left[key] = left.get(key, 0) + factor
    return _size(left)


def _size(terms: _Terms) -> Dimension:
    """The normal form of a sum of products: a number, if no names remain."""
    kept = {key: factor for key, factor in terms.items() if factor}
    if kept.keys() <= {()}:
        return kept.get((), 0)
    _check_terms(len(kept))
    return Size("", tuple(sorted(kept.items(), key=lambda item: (-len(item[0]), [_order(atom) for atom in item[0]]))))


def _check_terms(count: int) -> None:
    if count > MAX_TERMS:
        raise ValidationError(f"a formula of sizes must have at most {MAX_TERMS} terms, got {count}")


def _order(atom: _Atom) -> tuple[str, str]:
    return atom.text, atom.kind


def _from_terms(terms: Iterable[tuple[Iterable[tuple[Any, ...]], int]]) -> Dimension:
    return _size({tuple(_Atom(*atom) for atom in atoms): factor for atoms, factor in terms})


def _text(terms: Iterable[_Term]) -> str:
    texts: list[str] = []
    for atoms, factor in terms:
        names = [
            f"({a.text})" if a.kind in _INFIX else printable(a.text) if a.kind == "name" else a.text for a in atoms
        ]
        sign = ("- " if factor < 0 else "+ ") if texts else "-" * (factor < 0)
        texts.append(sign + "*".join([*([str(abs(factor))] if abs(factor) != 1 or not names else []), *names]))
    text = " ".join(texts)
    return (
        text[1:-1] if len(texts) == 1 and text.startswith("(") and atoms[0].kind in _INFIX and len(atoms) == 1 else text
    )


def _call(kind: str, *arguments: Dimension) -> Dimension:
    """A function of sizes that is no polynomial."""
    if kind in _INFIX:
        left, right = arguments
        first = f"({left})" if isinstance(left, Size) and not _is_factor(left) else left
        second = f"({right})" if isinstance(right, Size) and not right.name else right
        text = f"{first} {kind} {second}"
    else:
        text = f"{kind}({', '.join(map(str, arguments))})"
    return _size({(_Atom(kind, text, arguments),): 1})


def _is_factor(size: Size) -> bool:
    return bool(size.name) or (len(size.terms) == 1 and size.terms[0][1] == 1)


def _divide(above: Dimension, below: Dimension) -> Dimension:
    """floor(above / below). Terms that `below` divides leave the quotient: (2 n + 1) // 2 = n."""
    if isinstance(above, int) and isinstance(below, int):
        return above // below
    if isinstance(above, int) and above == 0:
        return 0
    if isinstance(above, int) and above == -1 and interval(below)[0] >= 0:
        return -1  # `below` is not 0
    if isinstance(below, int) or len(below.terms) == 1:
        ((divisor, factor),) = (dict.fromkeys([()], below) if isinstance(below, int) else dict(below.terms)).items()
        if factor == 0:
            raise ZeroDivisionError(f"{above} // 0")
        whole: _Terms = {}
        rest: _Terms = {}
        for atoms, number in (_terms_of(above) or {}).items():
            left = list(atoms)
            divides = number % factor == 0
            for atom in divisor:
                if atom in left:
                    left.remove(atom)
                else:
                    divides = False
            (whole if divides else rest)[tuple(left) if divides else atoms] = number // factor if divides else number
        if whole:
            return _size(whole) + _divide(_size(rest), below)
    if isinstance(below, int) and below < 0:
        return _divide(-above, -below)
    if isinstance(above, Size) and isinstance(below, Size) and above.terms == below.terms:
        return 1
    return _call("//", above, below)


def broadcast_size(*sizes: Any) -> Any:
    """The dimension of sizes that broadcast to each other: the one that is not 1."""
    others = list(dict.fromkeys(size for size in sizes if not (isinstance(size, int) and size == 1)))
    numbers = [size for size in others if isinstance(size, int)]
    if numbers or len(others) < 2:
        return (numbers or others or [1])[0]
    return _call("broadcast", *sorted(others, key=str))


def unknown_size() -> Any:
    """A size without a formula, such as the one that depends on which of two branches a function took."""
    return _size({(_Atom("unknown", UnknownName(f"?{next(_unknown_numbers)}")),): 1})


def at(dimension: Dimension, sizes: Mapping[str, int]) -> int:
    """The number of a dimension for sizes by name."""
    return dimension if isinstance(dimension, int) else dimension.at(sizes)


def values_at(value: Any, sizes: Mapping[str, int]) -> Any:
    """An attribute, with numbers in place of sizes."""
    if isinstance(value, tuple):
        return tuple(values_at(item, sizes) for item in value)
    return value.at(sizes) if isinstance(value, Size) else value


def numbered(value: Any) -> Any:
    """An attribute or a shape, with numbers in place of sizes; this scope must know their numbers."""
    if isinstance(value, tuple):
        return tuple(numbered(item) for item in value)
    return operator.index(value) if isinstance(value, Size) else value


def is_static(shape: Iterable[Any]) -> bool:
    """Whether all dimensions are numbers."""
    return Size not in map(type, shape)


def is_symbolic(value: Any) -> bool:
    """Whether a dimension or an attribute has sizes."""
    return isinstance(value, Size) or (isinstance(value, tuple) and any(map(is_symbolic, value)))


def match_sizes(pairs: Iterable[tuple[Iterable[Any], Iterable[int]]]) -> dict[str, int] | None:
    """The size of each name, given pairs of a shape with names and a shape of the same rank; None if they do not fit.

    >>> n = Size("n")
    >>> match_sizes([((n, 3), (2, 3)), ((n,), (2,))]), match_sizes([((n, n), (2, 3))])
    ({'n': 2}, None)
    """
    sizes: dict[str, int] = {}
    for named, shape in pairs:
        for declared, size in zip(named, shape, strict=True):
            if (sizes.setdefault(declared.name, size) if isinstance(declared, Size) else declared) != size:
                return None
    return sizes


def is_same_size(left: Dimension, right: Dimension) -> bool:
    """Whether dimensions are equal for all sizes, as far as formulas tell."""
    difference = left - right
    return isinstance(difference, int) and difference == 0


def is_longer(dimension: Dimension, length: float) -> bool:
    """Whether a dimension is more than `length` for some sizes."""
    return interval(dimension)[1] > length if isinstance(dimension, Size) else dimension > length


def is_same_shape(left: Sequence[Dimension], right: Sequence[Dimension]) -> bool:
    """Whether shapes are equal for all sizes, as far as formulas tell."""
    return len(left) == len(right) and all(map(is_same_size, left, right))


def may_equal(left: Dimension, right: Dimension) -> bool:
    """Whether dimensions are equal for some sizes, as far as formulas tell."""
    if type(left) is type(right) is int:
        return left == right
    return left is right or _answer("zero", left - right) is not False


def may_be(left: Sequence[Dimension], right: Sequence[Dimension]) -> bool:
    """Whether shapes are equal for some sizes, as far as formulas tell."""
    return left is right or (len(left) == len(right) and all(map(may_equal, left, right)))


def interval(dimension: Dimension) -> tuple[float, float]:
    """Bounds of a dimension, if names are at least 0."""
    if not isinstance(dimension, Size):
        return dimension, dimension
    low, high = 0.0, 0.0
    for atoms, factor in dimension.terms:
        least, most = 1.0, 1.0
        for atom in atoms:
            corners = [_times(a, b) for a in (least, most) for b in atom.interval()]
            least, most = min(corners), max(corners)
        ends = _times(factor, least), _times(factor, most)
        low, high = low + min(ends), high + max(ends)
    return low, high


def _times(a: float, b: float) -> float:
    return 0 if a == 0 or b == 0 else a * b


def lower_bound(extent: Dimension) -> float:
    """A number that an extent is never below, if names are at least 1; -inf if formulas do not tell.

    >>> n, m = Size("n"), Size("m")
    >>> lower_bound(n * m - m), lower_bound(n - m)
    (0, -inf)
    """
    if isinstance(extent, int):
        return extent
    # With `least + rest` in place of each factor, where no rest is negative, no term may be negative but the constant.
    total: dict[tuple[_Atom, ...], float] = {(): 0}
    for atoms, factor in extent.terms:
        product: dict[tuple[_Atom, ...], float] = {(): factor}
        for atom in atoms:
            least = _least(atom)
            if isinf(least):
                return -inf
            rests = [((*key, atom), number) for key, number in product.items()]
            product = {key: number * least for key, number in product.items()}
            for key, number in rests:
                product[key] = product.get(key, 0) + number
        for key, number in product.items():
            ordered = tuple(sorted(key, key=_order))
            total[ordered] = total.get(ordered, 0) + number
    constant = total.pop(())
    return constant if min(total.values(), default=0) >= 0 else -inf


def _least(atom: _Atom) -> float:
    if not atom.arguments:
        return 1
    least = [lower_bound(argument) for argument in atom.arguments]
    if atom.kind == "max":
        return max(least)
    if atom.kind == "&":
        return 0 if max(least) >= 0 else -inf
    if atom.kind in ("min", "broadcast"):
        return min(least)
    if atom.kind == "where":
        return min(least[1:])
    if atom.kind != "//":
        return atom.interval()[0]
    divisor = atom.arguments[1]
    if isinstance(divisor, int) and divisor > 0:
        return least[0] if isinf(least[0]) else least[0] // divisor
    return 0 if least[0] >= 0 and least[1] >= 1 else -inf


def is_below(left: Dimension, right: Dimension) -> bool:
    """Whether an extent is below another one for all sizes, as far as formulas tell."""
    return lower_bound(right - left) >= 1


def largest(left: Dimension, right: Dimension) -> Dimension:
    """The larger one of two extents."""
    if isinstance(left, int) and isinstance(right, int):
        return max(left, right)
    difference = left - right
    return (
        left if lower_bound(difference) >= 0 else right if lower_bound(-difference) >= 0 else _call("max", left, right)
    )


def smallest(left: Dimension, right: Dimension) -> Dimension:
    """The smaller one of two extents."""
    if isinstance(left, int) and isinstance(right, int):
        return min(left, right)
    difference = right - left
    return (
        left if lower_bound(difference) >= 0 else right if lower_bound(-difference) >= 0 else _call("min", left, right)
    )


def renamed(dimension: Dimension, names: Mapping[str, str]) -> Dimension:
    """The dimension with other names.

    >>> renamed(2 * Size("rows") + 1, {"rows": "n"})
    2*n + 1
    """
    if isinstance(dimension, int):
        return dimension
    terms: _Terms = {}
    for atoms, factor in dimension.terms:
        product: Any = factor
        for atom in atoms:
            if atom.arguments:
                product = product * _call(atom.kind, *[renamed(argument, names) for argument in atom.arguments])
            else:
                product = product * Size(names[atom.text])
        for key, number in (_terms_of(product) or {}).items():
            terms[key] = terms.get(key, 0) + number
    return _size(terms)


def function_of(sources: Sequence[str]) -> Callable[[Mapping[str, int]], tuple[int, ...]]:
    """The function of sizes by name that computes dimensions, each written by `source_of`.

    >>> function_of([source_of(Size("n") * Size("m")), source_of(Size("n") // 2)])({"n": 5, "m": 3})
    (15, 2)
    """
    function: Callable[[Mapping[str, int]], tuple[int, ...]] = eval(
        f"lambda s: ({''.join(f'{source}, ' for source in sources)})", dict(_FUNCTIONS)
    )
    return function


def variables_of(dimension: Dimension) -> list[str]:
    """The names of the sizes that a dimension depends on, with those without a formula, in order."""
    atoms = _atoms_of(dimension) if isinstance(dimension, Size) else ()
    return list(dict.fromkeys(atom.text for atom in atoms if not atom.arguments))


def variables_in(value: Any) -> set[str]:
    """The names of the sizes that an attribute, or nested tuples, depend on, with those without a formula."""
    return {name for size in sizes_in(value) for name in variables_of(size)}


# ---------------------------------------------------------------------------------------------------------------------
# Decisions

_Kind: TypeAlias = Literal["zero", "negative"]
_Condition: TypeAlias = tuple[_Kind, Size]


class _Decisions(Protocol):
    def decide(self, condition: _Condition) -> bool: ...
    def number(self, size: Size) -> int: ...


_scope: ContextVar[_Decisions | None] = ContextVar("sizes", default=None)


def _answer(kind: _Kind, difference: Dimension) -> bool | None:
    """Whether a difference is zero, or negative; None if that depends on sizes."""
    if isinstance(difference, int):
        return difference == 0 if kind == "zero" else difference < 0
    low, high = interval(difference)
    if kind == "negative":
        return True if high < 0 else False if low >= 0 else None
    factors = [factor for atoms, factor in difference.terms if atoms]
    constant = dict(difference.terms).get((), 0)
    return False if low > 0 or high < 0 or constant % gcd(*factors) else None


def _decide(kind: _Kind, difference: Dimension) -> bool:
    answer = _answer(kind, difference)
    if answer is not None:
        return answer
    assert isinstance(difference, Size)
    scope = _scope.get()
    if scope is None:
        return False if kind == "zero" else _refuse(f"whether {difference} is less than 0")
    if kind == "zero":
        difference = _primitive(difference)
    return scope.decide((kind, difference))


def _primitive(size: Size) -> Size:
    """The size divided by the common divisor of its coefficients, with a positive first one."""
    divisor = gcd(*[factor for _, factor in size.terms])
    sign = -1 if size.terms[0][1] < 0 else 1
    reduced = _size({atoms: sign * factor // divisor for atoms, factor in size.terms})
    assert isinstance(reduced, Size)
    return reduced


class UnknownSizeError(ValidationError):
    """A function asked for the number or the order of sizes that are known only when a graph runs."""


def _refuse(question: str) -> NoReturn:
    raise UnknownSizeError(f"sizes are known only when the graph runs, but a function asked for {question}")


@contextmanager
def _deciding(scope: _Decisions | None) -> Iterator[None]:
    token = _scope.set(scope)
    try:
        yield
    finally:
        _scope.reset(token)


class _Neutral:
    """A scope that records nothing: sizes are equal if their normal forms are. It keeps the sizes of the scope outside."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes

    def decide(self, condition: _Condition) -> bool:
        kind, difference = condition
        return False if kind == "zero" else _refuse(f"whether {difference} is less than 0")

    def number(self, size: Size) -> int:
        return _refuse(f"{size} as a number")


def without_deciding() -> AbstractContextManager[None]:
    """A context manager for code that is valid for all sizes: there, sizes are equal if their formulas are.

    >>> n, guards = Size("n"), Guards({"n": 1})
    >>> with guards.deciding(), without_deciding():
    ...     n == 1, estimate(2 * n)
    (False, 2)
    >>> guards.answers
    {}
    """
    return _deciding(_Neutral(_hints()))


def _hints() -> Mapping[str, int]:
    scope = _scope.get()
    return scope.sizes if isinstance(scope, (Guards, _Neutral)) else {}


TYPICAL_SIZE = 1024
"""Estimate of a size of which nothing is known."""


def estimate(dimension: Dimension) -> int:
    """A dimension for the sizes of the first run, on which only speed may depend: no answer is recorded.

    >>> with Guards({"n": 8}).deciding():
    ...     estimate(Size("n") + 1)
    9
    >>> estimate(Size("n"))
    1024
    """
    if isinstance(dimension, int):
        return dimension
    hints = _hints()
    return dimension.at({name: hints.get(name, TYPICAL_SIZE) for name in variables_of(dimension)})


def current_guards() -> Guards | None:
    """This scope, if it records answers for the sizes of a run."""
    scope = _scope.get()
    return scope if isinstance(scope, Guards) else None


def guarded_sizes() -> Mapping[str, int]:
    """The sizes whose answers this scope records; none without such a scope."""
    guards = current_guards()
    return guards.sizes if guards else {}


def in_scope(function: Callable[[], T]) -> Callable[[], T]:
    """The function, with the answers to comparisons that this scope gives, wherever it is called."""
    scope = _scope.get()

    def call() -> T:
        with _deciding(scope):
            return function()

    return call


class _Path:
    """One way through a function: the answers up to the last one that changes, then True until it returns."""

    def __init__(self, answers: Sequence[bool]) -> None:
        self.answers = list(answers)
        self._decided: dict[_Condition, bool] = {}

    def decide(self, condition: _Condition) -> bool:
        answer = self._decided.get(condition)
        if answer is None:
            if len(self._decided) == len(self.answers):
                self.answers.append(True)
            answer = self._decided[condition] = self.answers[len(self._decided)]
        return answer

    def number(self, size: Size) -> int:
        return _refuse(f"{size} as a number")


def explore(function: Callable[[], T]) -> list[T]:
    """The results of a function that compares sizes, for all answers to the comparisons that depend on sizes.

    Where guards give the answers, the only result.

    Raises:
        UnknownSizeError: the function asks for a number, or compares too much.
        ValidationError: the function fails whatever the sizes are; the error is that of the first way.
    """
    if isinstance(_scope.get(), Guards):
        return [function()]
    results: list[T] = []
    errors: list[ValidationError] = []
    answers: list[bool] = []
    for _ in range(MAX_PATHS):
        path = _Path(answers)
        with _deciding(path):
            try:
                results.append(function())
            except UnknownSizeError:
                raise
            except ValidationError as error:
                errors.append(error)
        answers = path.answers
        while answers and not answers[-1]:
            answers.pop()
        if not answers:
            break
        answers[-1] = False
    else:
        _refuse(f"more than {MAX_PATHS} combinations of comparisons")
    if not results:
        raise errors[0]
    return results


class Guards:
    """The answers to comparisons for certain sizes, by which code was chosen that is valid for other sizes, too.

    >>> n, guards = Size("n"), Guards({"n": 8})
    >>> with guards.deciding():
    ...     n > 4, n == 8, n % 2 == 0
    (True, True, True)
    >>> guards.hold({"n": 8}), guards.hold({"n": 10})
    (True, False)
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes
        self.answers: dict[_Condition, bool] = {}

    def deciding(self) -> AbstractContextManager[None]:
        """A context manager in which comparisons of sizes have the answers for these sizes."""
        return _deciding(self)

    def decide(self, condition: _Condition) -> bool:
        """The answer for these sizes, which is recorded."""
        answer = self.answers[condition] = _holds(condition, self.sizes)
        return answer

    def number(self, size: Size) -> int:
        """The number of a size; the code is valid for this number only."""
        number = size.at(self.sizes)
        if isinstance(difference := size - number, Size):
            self.decide(("zero", difference))
        return number

    def hold(self, sizes: Mapping[str, int]) -> bool:
        """Whether all comparisons have the same answers for other sizes."""
        return all(_holds(condition, sizes) is answer for condition, answer in self.answers.items())


def _holds(condition: _Condition, sizes: Mapping[str, int]) -> bool:
    kind, difference = condition
    return difference.at(sizes) == 0 if kind == "zero" else difference.at(sizes) < 0


# ---------------------------------------------------------------------------------------------------------------------
# Functions of integers and sizes, which ask for no decision: results that depend on sizes are calls in a formula


def is_less(a: Dimension, b: Dimension) -> Dimension:
    """1 if a < b, else 0.

    >>> n = Size("n")
    >>> is_less(3, 4), is_less(n, n + 1), is_less(n, 4)
    (1, 1, n < 4)
    """
    answer = _answer("negative", a - b)
    return _call("<", a, b) if answer is None else int(answer)


def is_equal(a: Dimension, b: Dimension) -> Dimension:
    """1 if a == b, else 0.

    >>> n = Size("n")
    >>> is_equal(3, 4), is_equal(2 * n - n, n), is_equal(n, 4)
    (0, 1, 4 == n)
    """
    answer = _answer("zero", a - b)
    return _call("==", *sorted((a, b), key=str)) if answer is None else int(answer)


def truth(value: Dimension) -> Dimension:
    """1 if a value differs from 0, else 0."""
    low, high = interval(value)
    return value if low >= 0 and high <= 1 else 1 - is_equal(value, 0)


def choose(condition: Dimension, a: Dimension, b: Dimension) -> Dimension:
    """`a` if the condition differs from 0, else `b`.

    >>> n = Size("n")
    >>> choose(1, n, 4), choose(is_less(n, 4), n, n), choose(is_less(n, 4), n, 4)
    (n, n, where(n < 4, n, 4))
    """
    decided = truth(condition)
    if isinstance(decided, int):
        return a if decided else b
    return a if is_same_size(a, b) else _call("where", decided, a, b)


def larger(a: Dimension, b: Dimension) -> Dimension:
    """The maximum of two values, also where names are 0.

    >>> larger(Size("n"), Size("n") + 1), larger(Size("n"), 4)
    (n + 1, max(4, n))
    """
    return _extreme("max", a, b)


def smaller(a: Dimension, b: Dimension) -> Dimension:
    """The minimum of two values, also where names are 0.

    >>> smaller(Size("n"), Size("n") + 1), smaller(Size("n"), 4)
    (n, min(4, n))
    """
    return _extreme("min", a, b)


def _extreme(kind: Literal["max", "min"], a: Dimension, b: Dimension) -> Dimension:
    low, high = interval(a - b)
    if high <= 0:
        return b if kind == "max" else a
    if low >= 0:
        return a if kind == "max" else b
    return _call(kind, *sorted((a, b), key=str))


def truncated_quotient(a: Dimension, b: Dimension) -> Dimension:
    """The quotient a / b, truncated toward zero; 0 if b is 0.

    >>> n = Size("n")
    >>> truncated_quotient(-7, 2), truncated_quotient(n * 4, 2), truncated_quotient(n + 1, 2), truncated_quotient(2 - n, 2)
    (-3, 2*n, (n + 1) // 2, (-n + 2) / 2)
    """
    if isinstance(b, int) and b < 0:
        return truncated_quotient(-a, -b)
    if isinstance(b, int) and b == 0:
        return 0
    if interval(b)[0] >= 0:
        quotient = _divide(a, b)
        if interval(a)[0] >= 0 or is_same_size(quotient * b, a):
            return choose(is_equal(b, 0), 0, quotient)
    return _truncated_quotient(a, b) if isinstance(a, int) and isinstance(b, int) else _call("/", a, b)


def floored_remainder(a: Dimension, b: Dimension) -> Dimension:
    """The remainder of a / b with the sign of b, as Python's `%`; 0 if b is 0.

    >>> floored_remainder(-7, 3), floored_remainder(-7, 0), floored_remainder(3 * Size("n"), 3)
    (2, 0, 0)
    """
    if interval(b)[0] >= 1:
        return a - _divide(a, b) * b
    return _remainder("%", a, b)


def truncated_remainder(a: Dimension, b: Dimension) -> Dimension:
    """The remainder of a / b with the sign of a, as `%` in C; 0 if b is 0.

    >>> truncated_remainder(-7, 3), truncated_remainder(7, 0), truncated_remainder(3 * Size("n"), 3)
    (-1, 0, 0)
    """
    if interval(b)[0] >= 1 and interval(a)[0] >= 0:
        return a - _divide(a, b) * b
    return _remainder("%" if interval(a)[0] >= 0 and interval(b)[0] >= 0 else "fmod", a, b)


def _remainder(kind: str, a: Dimension, b: Dimension) -> Dimension:
    if isinstance(a, int) and isinstance(b, int):
        return _floored_remainder(a, b) if kind == "%" else _truncated_remainder(a, b)
    return _call(kind, a, b)
