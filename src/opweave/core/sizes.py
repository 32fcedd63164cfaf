"""Sizes: dimensions that are known only when a graph runs.

A `Size` is a polynomial with integer coefficients. The factors of its terms are names, and calls such as `(n + 1) // 2`.
Polynomials have a normal form, so `2 * n - n == n`. Calls also express comparisons, whose value is 0 or 1, and choices between
two sizes (`size_functions`).

Polynomials that differ may be equal for some sizes. The scope decides such comparisons (`guards`). Without a scope, sizes are
equal if their normal forms are, and asking for an unknown order is an error.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import lru_cache
from itertools import count
from math import ceil, floor, gcd, inf, isinf
from numbers import Integral
from typing import Any, Literal, NoReturn, Protocol, Self, TypeAlias

from ..support import lazy_imports
from ..support.errors import ValidationError
from ..support.names import printable
from .desc import MAX_DIMENSION
from .formula_limits import MAX_FACTORS, check_characters, check_count, check_depth, check_integers
from .size_calls import (
    CALLS,
    FUNCTIONS,
    INFIX,
    INTERVALS,
    MAX_OPERATORS,
    SOURCES,
    Interval,
    UnknownName,
    add,
    add_bounds,
    divide_bound,
    multiply,
    multiply_bounds,
)

Dimension: TypeAlias = "int | Size"
"""An element of a shape."""

MAX_QUOTIENTS = 32
"""Maximum number of quotients that `linear_interval` replaces; formulas of networks have as many as they have strides."""

MAX_FUNCTIONS = 4096
"""Number of formulas whose functions are kept. An estimate: a decoder of 30 layers has some dozens."""

MAX_INTERVALS = 4096
"""Number of formulas whose bounds are kept. An estimate: a detector asks 4,000 times for the bounds of 229 formulas."""

MAX_RESULTS = 4096
"""Number of sums, differences and products of formulas that are kept, of each kind. An estimate: two programs of a classifier
of 233 operations compute 1,300 different ones, each 28 times on average."""

COMPILED_AT = 8
"""The evaluation of a formula before which its code is compiled. An estimate."""

# ---------------------------------------------------------------------------------------------------------------------
# The scope of comparisons

Question: TypeAlias = Literal["zero", "negative"]
Condition: TypeAlias = "tuple[Question, Symbol]"
"""A comparison of two sizes, or real numbers computed from sizes: whether their difference is zero, or negative."""


class SizeScope(Protocol):
    """Answers for what depends on sizes.

    Attributes:
        is_of_run: whether the answers are those for the sizes of a run, and are recorded.
    """

    is_of_run: bool

    def decide(self, condition: Condition) -> bool:
        """Answer a comparison."""

    def number(self, size: Size) -> int:
        """Return the number of a size."""


current_scope: ContextVar[SizeScope | None] = ContextVar("sizes", default=None)
"""The scope of this thread or task."""


class UnknownSizeError(ValidationError):
    """A function asked for the number or the order of sizes that are known only when a graph runs."""


def refuse(question: str) -> NoReturn:
    """Raise the error of a question without an answer."""
    raise UnknownSizeError(f"sizes are known only when the graph runs, but a function asked for {question}")


def decide_without_scope(condition: Condition) -> bool:
    """The answer that is valid for formulas: those that differ are not equal, and have no order."""
    question, difference = condition
    return False if question == "zero" else refuse(f"whether {difference} is less than 0")


def answer_for_all(question: Question, difference: Dimension) -> bool | None:
    """Whether a difference is zero, or negative, for all sizes; None if that depends on them."""
    if isinstance(difference, int):
        return difference == 0 if question == "zero" else difference < 0
    low, high = linear_interval(difference)
    if question == "negative":
        return True if high < 0 else False if low >= 0 else None
    if low == high == 0:
        return True
    coefficients = [coefficient for factors, coefficient in difference.terms if factors]
    constant = dict(difference.terms).get((), 0)
    return False if low > 0 or high < 0 or constant % gcd(*coefficients) else None


def _decide(question: Question, difference: Dimension) -> bool:
    scope = current_scope.get()
    # Without a scope, equality agrees with the hash, and so with the normal form.
    is_formal = scope is None and question == "zero" and isinstance(difference, Size)
    decided = None if is_formal else answer_for_all(question, difference)
    if decided is not None:
        return decided
    assert isinstance(difference, Size)
    condition = question, _primitive(difference) if question == "zero" else difference
    return decide_without_scope(condition) if scope is None else scope.decide(condition)


def _primitive(size: Size) -> Size:
    """The size divided by the common divisor of its coefficients, with a positive first one."""
    divisor = gcd(*[coefficient for _, coefficient in size.terms])
    sign = -1 if size.terms[0][1] < 0 else 1
    if sign * divisor == 1:
        return size
    reduced = size_of({factors: sign * coefficient // divisor for factors, coefficient in size.terms})
    assert isinstance(reduced, Size)
    return reduced


# ---------------------------------------------------------------------------------------------------------------------
# Factors of terms


class Factor:
    """A factor of a term: a name, a call, or a size without a formula. Factors are equal if kind and text are.

    Attributes:
        depth: the number of nested calls.
        count: the number of names and calls, with those in arguments.
        key: the key by which factors are sorted.
    """

    __slots__ = ("_bounds", "_hash", "arguments", "count", "depth", "key", "kind", "text")

    def __init__(self, kind: str, text: str, arguments: tuple[Dimension, ...] = ()) -> None:
        self.kind, self.text, self.arguments = kind, text, arguments
        self.depth = 1 + max(map(depth_of, arguments)) if arguments else 0
        check_depth(self.depth)
        self.count = 1 + sum(map(count_of, arguments))
        self._bounds: Interval | None = None
        self.key = text, kind
        self._hash = hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Factor) and (self.kind, self.text) == (other.kind, other.text)

    def __hash__(self) -> int:
        return self._hash

    def source(self) -> str:
        """Python's expression for the value; `s` has the sizes by name."""
        if not self.arguments:
            return f"s[unknown({self.text!r})]" if self.kind == "unknown" else f"s[{self.text!r}]"
        arguments = [source_of(argument) for argument in self.arguments]
        template = SOURCES.get(self.kind)
        return f"{self.kind}({', '.join(arguments)})" if template is None else template.format(*arguments)

    def interval(self) -> Interval:
        """Bounds of the value, cached: formulas share their parts."""
        if self._bounds is None:
            self._bounds = self._interval()
        return self._bounds

    def _interval(self) -> Interval:
        if self.kind in INTERVALS:
            return INTERVALS[self.kind](*map(interval, self.arguments))
        if self.kind == "//" and isinstance(self.arguments[1], int) and self.arguments[1] > 0:
            divisor = self.arguments[1]
            low, high = interval(self.arguments[0])
            return divide_bound(low, divisor), divide_bound(high, divisor)
        if self.kind in INFIX:
            return -inf, inf
        if not self.arguments:
            return 0, MAX_DIMENSION if self.kind == "name" else inf
        lows, highs = zip(*map(interval, self.arguments), strict=True)
        return min(lows), max(highs)


order_of = operator.attrgetter("key")
"""The key by which factors are sorted."""


Term: TypeAlias = tuple[tuple[Factor, ...], int]
"""Factors, and a coefficient."""

Terms: TypeAlias = dict[tuple[Factor, ...], int]
"""Coefficients by their factors."""


# ---------------------------------------------------------------------------------------------------------------------
# Sizes


class Symbol:
    """Base of numbers that are known only when a graph runs. They may be operands, as numbers may."""

    __slots__ = ()

    def at(self, sizes: Mapping[str, int]) -> int | float:
        """The number for sizes by name."""
        raise NotImplementedError

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """Compute with numbers beside an array of numbers, else with formulas: `numpy.sqrt(n)` is `n.sqrt()`."""
        import numpy as np

        has_numbers = any(isinstance(item, np.ndarray) and item.ndim and item.dtype != object for item in inputs)

        def plain(item: Any) -> Any:
            if not isinstance(item, Symbol):
                return item
            if has_numbers:
                return item.number()
            scalar = np.empty((), object)
            scalar[()] = item
            return scalar

        return getattr(ufunc, method)(*map(plain, inputs), **options)

    def number(self) -> int | float:
        """The number in this scope.

        Raises:
            UnknownSizeError: this scope has no numbers.

        >>> import opweave as ow
        >>> ow.Size("n").number()
        Traceback (most recent call last):
            ...
        opweave.core.sizes.UnknownSizeError: sizes are known only when the graph runs, but a function asked for n as a number
        """
        return operator.index(self)  # type: ignore[arg-type]


def _of_numbers(function: Callable[[Any, Any], Any]) -> tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]:
    """The method of an operator that asks for the number of a size, and its reflection."""
    return (
        lambda self, other: function(operator.index(self), other),
        lambda self, other: function(other, operator.index(self)),
    )


def _real(name: str) -> tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]:
    """The method of an operator whose result is a real number, and its reflection."""
    return (
        lambda self, other: lazy_imports.compute_real(name, self, other),
        lambda self, other: lazy_imports.compute_real(name, other, self),
    )


def _compare_float(
    compare: Callable[[Any, Any], Any], size: Size, other: float, to_integer: Callable[[float], int]
) -> bool:
    return bool(compare(0.0, other) if isinf(other) else compare(size, to_integer(other)))


class Size(Symbol):
    """A dimension that is known only when a graph runs: the name of a size, or a formula of names.

    The same name means the same size in a whole graph. Arithmetic with `+ - * // %` gives formulas; a bare name equals its
    string. `n / 2`, `n * 0.5`, `n ** 0.5`, `n.sqrt()` and `n.log()` are real numbers that are known only when a graph runs,
    too. `float(n)`, `math.sqrt(n)` and `range(n)` ask for the number, which Python cannot put off.

    >>> import opweave as ow
    >>> n = ow.Size("n")
    >>> (2 * n + 4) // 2, n * 3 % 3, n - n, n == "n"
    (n + 2, 0, 0, True)
    >>> 1 / n, n ** -0.5, (n / 2).at({"n": 5})
    (1 / n, n ** -0.5, 2.5)
    >>> (-(-n // 2)).at({"n": 5})
    3

    Args:
        name: any string that is not empty.

    Raises:
        ValidationError: `name` is not a string, or empty; the order or the value of an unknown size is asked for.
    """

    __slots__ = ("_function", "_hash", "_text", "terms")
    terms: tuple[Term, ...]
    # Computed on demand: most sizes are intermediates of formulas.
    _text: str | None
    _hash: int | None
    _function: Callable[[Mapping[str, int]], int] | None

    def __new__(cls, name: str, /, terms: tuple[Term, ...] = ()) -> Self:
        if not isinstance(name, str) or not (name or terms):
            raise ValidationError(f"the name of a size must be a string that is not empty, got {name!r}")
        self = super().__new__(cls)
        self.terms = terms or (((Factor("name", name),), 1),)
        self._text = self._hash = self._function = None
        return self

    @property
    def name(self) -> str:
        """The name, for a size that is a name; empty for formulas.

        >>> import opweave as ow
        >>> ow.Size("n").name, (ow.Size("n") + 1).name
        ('n', '')
        """
        ((factors, coefficient), *more) = self.terms
        is_name = not more and coefficient == 1 and len(factors) == 1 and factors[0].kind == "name"
        return factors[0].text if is_name else ""

    @property
    def names(self) -> frozenset[str]:
        """The names that the size depends on.

        >>> import opweave as ow
        >>> sorted((ow.Size("n") * 2 + ow.Size("m")).names)
        ['m', 'n']
        """
        return frozenset(factor.text for factor in _factors_of(self) if factor.kind == "name")

    def at(self, sizes: Mapping[str, int]) -> int:
        """The number for sizes by name.

        >>> import opweave as ow
        >>> (ow.Size("n") * 2 + 1).at({"n": 3})
        7
        """
        if self._function is None:
            self._function = _function_of(self.terms)
        return self._function(sizes)

    def __str__(self) -> str:
        if self._text is None:
            self._text = _text(self.terms)
        return self._text

    __repr__ = __str__

    def __hash__(self) -> int:
        if self._hash is None:
            # Numbers that differ may have the same hash (-1 and -2, 1 and 2**61), texts have not: when hashes are equal,
            # dictionaries compare formulas, also those of other graphs, and the scope would decide, and record the answer.
            terms = tuple([(factors, f"{coefficient:x}") for factors, coefficient in self.terms])
            self._hash = hash(self.name or terms)  # a name may be the text of a formula
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_terms, (
            [([(f.kind, f.text, f.arguments) for f in factors], coefficient) for factors, coefficient in self.terms],
        )

    # Arithmetic ------------------------------------------------------------------------------------------------------

    def __add__(self, other: Any) -> Any:
        terms = _key_of(other)
        return lazy_imports.compute_real("+", self, other) if terms is None else _sum(self.terms, terms)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        if type(other) is int and not other:
            return self
        terms = _key_of(other)
        return lazy_imports.compute_real("-", self, other) if terms is None else _difference(self.terms, terms)

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __neg__(self) -> Size:
        return Size("", tuple([(factors, -coefficient) for factors, coefficient in self.terms]))

    def __pos__(self) -> Size:
        return self

    def __mul__(self, other: Any) -> Any:
        terms = _key_of(other)
        return lazy_imports.compute_real("*", self, other) if terms is None else _product(self.terms, terms)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        if terms_of(other) is None:
            return lazy_imports.compute_real("//", self, other)
        return divide(self, _dimension_of(other))

    def __rfloordiv__(self, other: Any) -> Any:
        if terms_of(other) is None:
            return lazy_imports.compute_real("//", other, self)
        return divide(_dimension_of(other), self)

    def __pow__(self, other: Any) -> Any:
        if not isinstance(other, int) or other < 0:
            return lazy_imports.compute_real("**", self, other)
        # The term with the most factors remains in the power: no other term cancels it out.
        check_count(other * max([_count([term]) for term in self.terms]))
        return multiply(*[self] * other)

    def __and__(self, other: Any) -> Any:
        return NotImplemented if terms_of(other) is None else call_of("&", self, _dimension_of(other))

    __rand__ = __and__

    def __mod__(self, other: Any) -> Any:
        return lazy_imports.compute_real("%", self, other) if terms_of(other) is None else self - self // other * other

    def __rmod__(self, other: Any) -> Any:
        return lazy_imports.compute_real("%", other, self) if terms_of(other) is None else other - other // self * self

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    __truediv__, __rtruediv__ = _real("/")
    __rpow__ = _real("**")[1]

    def sqrt(self) -> Any:
        """The square root, a real number; `numpy.sqrt` calls it, too.

        >>> import opweave as ow
        >>> (ow.Size("n") + 1).sqrt()
        sqrt(n + 1)
        """
        return self._real_function("sqrt")

    def log(self) -> Any:
        """The natural logarithm, a real number; `numpy.log` calls it, too.

        >>> import opweave as ow
        >>> ow.Size("n").log()
        log(n)
        """
        return self._real_function("log")

    def _real_function(self, name: str) -> Any:
        from .reals import RealSize  # imported late, since few graphs compute with real numbers of sizes

        return RealSize(name, self)

    # Operations on bits ask for the number.
    __or__, __ror__ = _of_numbers(operator.or_)
    __xor__, __rxor__ = _of_numbers(operator.xor)
    __lshift__, __rlshift__ = _of_numbers(operator.lshift)
    __rshift__, __rrshift__ = _of_numbers(operator.rshift)

    # Comparison ------------------------------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return bool(self.name) and self.name == other
        # Comparisons with 0 and with the same formula are frequent: compilers ask for each shape whether it is empty.
        if type(other) is int and other == 0:
            return _decide("zero", self)
        if isinstance(other, Size) and other.terms == self.terms:
            return True
        return NotImplemented if terms_of(other) is None else _decide("zero", self - other)

    def __lt__(self, other: Any) -> bool:
        if isinstance(other, float):
            return _compare_float(operator.lt, self, other, ceil)
        return NotImplemented if terms_of(other) is None else _decide("negative", self - other)

    def __le__(self, other: Any) -> bool:
        if isinstance(other, float):
            return _compare_float(operator.le, self, other, floor)
        return NotImplemented if terms_of(other) is None else _decide("negative", self - other - 1)

    def __gt__(self, other: Any) -> bool:
        if isinstance(other, float):
            return _compare_float(operator.gt, self, other, floor)
        return NotImplemented if terms_of(other) is None else _decide("negative", other - self)

    def __ge__(self, other: Any) -> bool:
        if isinstance(other, float):
            return _compare_float(operator.ge, self, other, ceil)
        return NotImplemented if terms_of(other) is None else _decide("negative", other - self - 1)

    def __bool__(self) -> bool:
        return not _decide("zero", self)

    def __index__(self) -> int:
        scope = current_scope.get()
        return refuse(f"{self} as a number") if scope is None else scope.number(self)

    __int__ = __index__

    def __float__(self) -> float:
        return float(int(self))


def _factors_of(size: Size) -> Iterator[Factor]:
    """The factors of all terms, and those of their arguments."""
    for factors, _ in size.terms:
        for factor in factors:
            yield factor
            for argument in factor.arguments:
                if isinstance(argument, Size):
                    yield from _factors_of(argument)


def variables_of(dimension: Dimension) -> list[str]:
    """The names of the sizes that a dimension depends on, with those without a formula, in order."""
    factors = _factors_of(dimension) if isinstance(dimension, Size) else ()
    return list(dict.fromkeys(factor.text for factor in factors if not factor.arguments))


def source_of(dimension: Dimension) -> str:
    """Python's expression for the number; `s` has the sizes by name."""
    if not isinstance(dimension, Size):
        return str(dimension)
    products = [
        _operation("*", "multiply", [str(coefficient), *[factor.source() for factor in factors]])
        for factors, coefficient in dimension.terms
    ]
    return _operation("+", "add", products)


def _operation(operator: str, function: str, operands: Sequence[str]) -> str:
    """The source of a sum or product."""
    if len(operands) <= MAX_OPERATORS + 1:
        return f" {operator} ".join(operands)
    return f"{function}({', '.join(operands)})"


def function_of(sources: Sequence[str]) -> Callable[[Mapping[str, int]], tuple[int, ...]]:
    """The function of sizes by name that computes dimensions, each written by `source_of`.

    >>> function_of([source_of(Size("n") * Size("m")), source_of(Size("n") // 2)])({"n": 5, "m": 3})
    (15, 2)
    """
    function: Callable[[Mapping[str, int]], tuple[int, ...]] = eval(
        f"lambda s: ({''.join(f'{source}, ' for source in sources)})", dict(FUNCTIONS)
    )
    return function


_unknown_numbers = count(1)


def unknown_size() -> Any:
    """A new size without a formula, such as the one that depends on which of two branches a function took."""
    return size_of({(Factor("unknown", UnknownName(f"?{next(_unknown_numbers)}")),): 1})


def unknown_name(size: object) -> UnknownName | None:
    """The name of a size without a formula; None for others."""
    if type(size) is not Size or len(size.terms) > 1:
        return None
    factors, coefficient = size.terms[0]
    name = factors[0].text if coefficient == 1 and len(factors) == 1 else ""
    return name if isinstance(name, UnknownName) else None


def is_unknown(size: object) -> bool:
    """Whether a dimension is a size without a formula."""
    return unknown_name(size) is not None


# ---------------------------------------------------------------------------------------------------------------------
# The normal form


def size_of(terms: Terms) -> Dimension:
    """The normal form of a sum of products: a number, if no names remain."""
    remaining = {factors: coefficient for factors, coefficient in terms.items() if coefficient}
    if remaining.keys() <= {()}:
        return remaining.get((), 0)
    check_count(_count(remaining.items()))
    check_characters(_characters(remaining))
    check_integers(remaining.values())
    ordered: Iterable[Term] = remaining.items()
    if len(remaining) > 1:
        ordered = sorted(ordered, key=lambda term: (-len(term[0]), [order_of(factor) for factor in term[0]]))
    return Size("", tuple(ordered))


def call_of(kind: str, *arguments: Dimension) -> Dimension:
    """The size that a function of sizes gives, one that is no polynomial."""
    check_integers([argument for argument in arguments if isinstance(argument, int)])
    if kind in INFIX:
        left, right = arguments
        first = f"({left})" if isinstance(left, Size) and not _is_product(left) else left
        second = f"({right})" if isinstance(right, Size) and not right.name else right
        text = f"{first} {kind} {second}"
    else:
        text = f"{kind}({', '.join(map(str, arguments))})"
    return size_of({(Factor(kind, text, arguments),): 1})


class SizesOfCall(dict[str, int]):
    """The sizes of a call by name, with the values of formulas and factors that were evaluated for them.

    The formulas of a program share most of their factors. Sizes may be added, but must not change. One formula is compiled for
    a call: a program has hundreds of them.
    """

    __slots__ = ("has_compiled", "values_of")

    def __init__(self) -> None:
        super().__init__()
        self.values_of: dict[Any, int] = {}
        self.has_compiled = False


@lru_cache(MAX_FUNCTIONS)
def _function_of(terms: tuple[Term, ...]) -> Callable[[Mapping[str, int]], int]:
    """The function that evaluates a formula for sizes by name. Equal formulas share it."""
    return _Evaluation(terms)


class _Evaluation:
    """A function that evaluates a formula for sizes by name.

    A program has many sizes, which are evaluated for each combination of names: generated code takes a tenth. Compiling it
    takes as long as a hundred evaluations, and most formulas are evaluated for the first sizes alone. For `SizesOfCall`, each
    formula and each factor is evaluated once.
    """

    def __init__(self, terms: tuple[Term, ...]) -> None:
        self._terms, self._calls = terms, 0
        self._function: Callable[[Mapping[str, int]], int] | None = None

    def __call__(self, sizes: Mapping[str, int]) -> int:
        if self._function is not None:
            return self._function(sizes)
        if type(sizes) is SizesOfCall:
            return self._for_call(sizes)
        self._calls += 1
        return _sum_at(self._terms, sizes) if self._calls < COMPILED_AT else self._compile()(sizes)

    def _for_call(self, sizes: SizesOfCall) -> int:
        value = sizes.values_of.get(self)
        if value is not None:
            return value
        self._calls += 1
        if self._calls >= COMPILED_AT and not sizes.has_compiled:
            sizes.has_compiled = True
            return self._compile()(sizes)
        value = sizes.values_of[self] = _shared_sum_at(self._terms, sizes)
        return value

    def _compile(self) -> Callable[[Mapping[str, int]], int]:
        function: Callable[[Mapping[str, int]], int]
        function = self._function = eval(f"lambda s: {source_of(Size('', self._terms))}", dict(FUNCTIONS))
        return function


def depth_of(dimension: Dimension) -> int:
    """The number of nested calls in a formula."""
    if not isinstance(dimension, Size):
        return 0
    return max([factor.depth for factors, _ in dimension.terms for factor in factors], default=0)


def count_of(dimension: Dimension) -> int:
    """The number of names and calls in a formula."""
    return _count(dimension.terms) if isinstance(dimension, Size) else 0


def characters_of(dimension: Dimension) -> int:
    """The length of the names and calls in a formula."""
    return _characters([factors for factors, _ in dimension.terms]) if isinstance(dimension, Size) else 0


def _count(terms: Iterable[Term]) -> int:
    return sum([factor.count for factors, _ in terms for factor in factors])


def _characters(products: Iterable[tuple[Factor, ...]]) -> int:
    return sum([len(factor.text) for factors in products for factor in factors])


def _product_count(left: Collection[Term], right: Collection[Term]) -> int:
    """The number of names and calls in a product, before equal terms are added."""
    return _count(left) * len(right) + _count(right) * len(left)


def _sum_at(terms: tuple[Term, ...], sizes: Mapping[str, int]) -> int:
    products = [multiply(number, *[_factor_at(factor, sizes) for factor in factors]) for factors, number in terms]
    result: int = add(*products)
    return result


def _factor_at(factor: Factor, sizes: Mapping[str, int]) -> int:
    if not factor.arguments:
        return sizes[UnknownName(factor.text) if factor.kind == "unknown" else factor.text]
    if factor.kind == "where":
        condition, left, right = factor.arguments
        return _at(left if _at(condition, sizes) else right, sizes)
    number: int = CALLS[factor.kind](*[_at(argument, sizes) for argument in factor.arguments])
    return number


def _at(dimension: Dimension, sizes: Mapping[str, int]) -> int:
    return _sum_at(dimension.terms, sizes) if isinstance(dimension, Size) else dimension


def _shared_sum_at(terms: tuple[Term, ...], sizes: SizesOfCall) -> int:
    """The value of a formula, whose factors are evaluated once for these sizes."""
    total, values_of = 0, sizes.values_of
    for factors, number in terms:
        for factor in factors:
            value = values_of.get(factor)
            if value is None:
                value = values_of[factor] = _shared_factor_at(factor, sizes)
            number *= value
        total += number
    return total


def _shared_factor_at(factor: Factor, sizes: SizesOfCall) -> int:
    if not factor.arguments:
        return _factor_at(factor, sizes)
    if factor.kind == "where":
        condition, left, right = factor.arguments
        return _shared_at(left if _shared_at(condition, sizes) else right, sizes)
    number: int = CALLS[factor.kind](*[_shared_at(argument, sizes) for argument in factor.arguments])
    return number


def _shared_at(dimension: Dimension, sizes: SizesOfCall) -> int:
    return _shared_sum_at(dimension.terms, sizes) if isinstance(dimension, Size) else dimension


def _is_product(size: Size) -> bool:
    return bool(size.name) or (len(size.terms) == 1 and size.terms[0][1] == 1)


def terms_of(value: object) -> Terms | None:
    """The terms of an integer or a size; None for other values."""
    if isinstance(value, Size):
        return dict(value.terms)
    if type(value) is int:
        return {(): value}
    if isinstance(value, bool) or not isinstance(value, Integral):
        return None
    return {(): operator.index(value)}


def _dimension_of(value: Any) -> Dimension:
    """A size, or an integer of any type as one of Python's."""
    return value if isinstance(value, Size) else operator.index(value)


def _key_of(value: object) -> tuple[Term, ...] | None:
    """The terms of an integer or a size, as a key; None for other values."""
    if isinstance(value, Size):
        return value.terms
    if type(value) is int:
        return (((), value),)
    terms = terms_of(value)
    return None if terms is None else tuple(terms.items())


@lru_cache(MAX_RESULTS)
def _sum(left: tuple[Term, ...], right: tuple[Term, ...]) -> Dimension:
    total = dict(left)
    for factors, coefficient in right:
        total[factors] = total.get(factors, 0) + coefficient
    return size_of(total)


@lru_cache(MAX_RESULTS)
def _difference(left: tuple[Term, ...], right: tuple[Term, ...]) -> Dimension:
    total = dict(left)
    for factors, coefficient in right:
        total[factors] = total.get(factors, 0) - coefficient
    return size_of(total)


@lru_cache(MAX_RESULTS)
def _product(left: tuple[Term, ...], right: tuple[Term, ...]) -> Dimension:
    check_count(_product_count(left, right))
    product: Terms = {}
    for one, a in left:
        for other, b in right:
            key = tuple(sorted((*one, *other), key=order_of))
            product[key] = product.get(key, 0) + a * b
    return size_of(product)


def divide(dividend: Dimension, divisor: Dimension) -> Dimension:
    """floor(dividend / divisor). Terms that the divisor divides leave the call: (n m + 3) // m = n + 3 // m."""
    if isinstance(dividend, int) and isinstance(divisor, int):
        return dividend // divisor
    if isinstance(dividend, int) and dividend == 0:
        return 0
    if isinstance(dividend, int) and dividend == -1 and interval(divisor)[0] >= 0:
        return -1  # the divisor is not 0
    if isinstance(divisor, int) or len(divisor.terms) == 1:
        ((factors, coefficient),) = ({(): divisor} if isinstance(divisor, int) else dict(divisor.terms)).items()
        if coefficient == 0:
            raise ZeroDivisionError(f"{dividend} // 0")
        quotient: Terms = {}
        remainder: Terms = {}
        for product, number in (terms_of(dividend) or {}).items():
            reduced = _without(product, factors)
            if reduced is None or number % coefficient:
                remainder[product] = number
            else:
                quotient[reduced] = number // coefficient
        if quotient:
            return size_of(quotient) + divide(size_of(remainder), divisor)
    if isinstance(divisor, int) and divisor < 0:
        return divide(-dividend, -divisor)
    if isinstance(dividend, Size) and isinstance(divisor, Size) and dividend.terms == divisor.terms:
        return 1
    return call_of("//", dividend, divisor)


def _without(product: Sequence[Factor], factors: Iterable[Factor]) -> tuple[Factor, ...] | None:
    """A product divided by some of its factors; None if it does not have all of them."""
    reduced = list(product)
    for factor in factors:
        if factor not in reduced:
            return None
        reduced.remove(factor)
    return tuple(reduced)


def _from_terms(terms: Iterable[tuple[Iterable[tuple[Any, ...]], int]]) -> Dimension:
    return size_of({tuple(Factor(*factor) for factor in factors): coefficient for factors, coefficient in terms})


def _text(terms: Iterable[Term]) -> str:
    texts: list[str] = []
    for factors, coefficient in terms:
        names = [
            f"({f.text})" if f.kind in INFIX else printable(f.text) if f.kind == "name" else f.text for f in factors
        ]
        sign = ("- " if coefficient < 0 else "+ ") if texts else "-" * (coefficient < 0)
        number = [str(abs(coefficient))] if abs(coefficient) != 1 or not names else []
        texts.append(sign + "*".join([*number, *names]))
    text = " ".join(texts)
    is_infix = len(texts) == 1 and text.startswith("(") and len(factors) == 1 and factors[0].kind in INFIX
    return text[1:-1] if is_infix else text


# ---------------------------------------------------------------------------------------------------------------------
# Bounds, and comparisons that ask no scope


def interval(dimension: Dimension) -> Interval:
    """Bounds of a dimension, if names are at least 0."""
    return _interval(dimension.terms) if isinstance(dimension, Size) else (dimension, dimension)


def _interval_of(terms: Iterable[tuple[tuple[Factor, ...], Any]]) -> Interval:
    low: Any = 0
    high: Any = 0
    for factors, coefficient in terms:
        least: Any = 1
        most: Any = 1
        for factor in factors:
            corners = [multiply_bounds(a, b) for a in (least, most) for b in factor.interval()]
            least, most = min(corners), max(corners)
        ends = multiply_bounds(coefficient, least), multiply_bounds(coefficient, most)
        low, high = add_bounds(low, min(ends)), add_bounds(high, max(ends))
    return low, high


_interval = lru_cache(MAX_INTERVALS)(_interval_of)
"""The bounds of a normal form. Each operation of a graph asks for those of its shapes, which are few."""


def linear_interval(size: Size) -> Interval:
    """Bounds of a difference: in `2 * (n // 2) - n`, the quotient cannot be replaced by bounds alone.

    With n // d = (n - r) / d and 0 <= r < d, the quotient becomes linear in n, and cancels out with other terms.

    >>> n = Size("n")
    >>> [linear_interval(size) for size in (n - 2 * (n // 2), 3 * ((n + 2) // 3) - n)]
    [(0, 1), (0, 2)]
    """
    return _linear_interval(size.terms)


@lru_cache(MAX_INTERVALS)
def _linear_interval(terms: tuple[Term, ...]) -> Interval:
    """Bounds of the sum of these terms; integers, since all terms are, or infinite."""
    low, high = _interval(terms)
    # Coefficients and remainders are numerators over `denominator`.
    numerators, denominator = dict(terms), 1
    remainder_low = remainder_high = 0
    for _ in range(MAX_QUOTIENTS):
        key = next((factors for factors in numerators if len(factors) == 1 and _is_quotient(factors[0])), None)
        if key is None:
            break
        dividend, divisor = key[0].arguments
        assert isinstance(divisor, int)
        scale = divisor // gcd(numerators[key], divisor)
        numerators = {factors: number * scale for factors, number in numerators.items()}
        denominator, remainder_low, remainder_high = denominator * scale, remainder_low * scale, remainder_high * scale
        factor = numerators.pop(key) // divisor
        for factors, coefficient in (terms_of(dividend) or {}).items():
            numerators[factors] = numerators.get(factors, 0) + factor * coefficient
        remainder = -factor * (divisor - 1)
        remainder_low, remainder_high = remainder_low + min(remainder, 0), remainder_high + max(remainder, 0)
        least, most = _interval_of((factors, number) for factors, number in numerators.items() if number)
        low = max(low, -divide_bound(-add_bounds(least, remainder_low), denominator))
        high = min(high, divide_bound(add_bounds(most, remainder_high), denominator))
    return low, high


def _is_quotient(factor: Factor) -> bool:
    return factor.kind == "//" and isinstance(factor.arguments[1], int) and factor.arguments[1] > 0


def is_static(shape: Iterable[Any]) -> bool:
    """Whether all dimensions are numbers."""
    return Size not in map(type, shape)


def is_symbolic(value: Any) -> bool:
    """Whether a dimension or an attribute has sizes."""
    return isinstance(value, Size) or (isinstance(value, tuple) and any(map(is_symbolic, value)))


def is_same_size(left: Dimension, right: Dimension) -> bool:
    """Whether dimensions are equal for all sizes; False if that is unknown."""
    if isinstance(left, Size) and isinstance(right, Size):
        return left.terms == right.terms  # normal forms
    difference = left - right
    return isinstance(difference, int) and difference == 0


def is_multiple(size: Dimension, divisor: int) -> bool:
    """Whether a dimension is a multiple of a number for all sizes, as far as formulas tell.

    >>> is_multiple(4 * Size("n") + 8, 4), is_multiple(Size("n"), 4)
    (True, False)
    """
    return is_same_size(size % divisor, 0)


def is_same_shape(left: Sequence[Dimension], right: Sequence[Dimension]) -> bool:
    """Whether shapes are equal for all sizes; False if that is unknown."""
    return len(left) == len(right) and all(map(is_same_size, left, right))


def may_equal(left: Dimension, right: Dimension) -> bool:
    """Whether dimensions are equal for some sizes; True if that is unknown. In a run, the real sizes decide."""
    if type(left) is type(right) is int:
        return left == right
    return left is right or _may("zero", left - right)


def may_stretch(size: Dimension, whole: Dimension) -> bool:
    """Whether a dimension is 1 or `whole` for some sizes; True if that is unknown. In a run, the real sizes decide.

    >>> may_stretch(Size("n"), Size("m")), may_stretch(2, Size("m") + 3)
    (True, False)
    """
    return may_be_one_of(size, whole, 1)


def may_be_one_of(size: Dimension, left: Dimension, right: Dimension) -> bool:
    """Whether a dimension is one of two for some sizes; True if that is unknown. In a run, the real sizes decide."""
    if type(size) is type(left) is type(right) is int:
        return size in (left, right)
    differences: list[Any] = []
    for difference in (size - left, size - right):
        answer = answer_for_all("zero", difference)
        if answer:
            return True
        if answer is None:
            differences.append(difference)
    if len(differences) == 2 and _product_count(differences[0].terms, differences[1].terms) <= MAX_FACTORS:
        # Code for both cases is the same: one answer keeps it valid for both.
        return _may("zero", differences[0] * differences[1])
    return any(_may("zero", difference) for difference in differences)


def may_be_within(value: Dimension, low: int, high: int) -> bool:
    """Whether a value is in [low, high] for some sizes; True if that is unknown. In a run, the real sizes decide."""
    return _may("negative", low - 1 - value) and _may("negative", value - high - 1)


def _may(question: Question, difference: Dimension) -> bool:
    answer = answer_for_all(question, difference)
    if answer is not None:
        return answer
    scope = current_scope.get()
    if scope is None or not scope.is_of_run:
        return True
    assert isinstance(difference, Size)
    return scope.decide((question, _primitive(difference) if question == "zero" else difference))


def may_equal_shape(left: Sequence[Dimension], right: Sequence[Dimension]) -> bool:
    """Whether shapes are equal for some sizes; True if that is unknown. In a run, the real sizes decide."""
    return left is right or (len(left) == len(right) and all(map(may_equal, left, right)))


def may_exceed(dimension: Dimension, length: float) -> bool:
    """Whether a dimension is more than `length` for some sizes; True if that is unknown."""
    return interval(dimension)[1] > length if isinstance(dimension, Size) else dimension > length
