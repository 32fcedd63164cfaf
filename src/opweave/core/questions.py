"""Questions that only values answer, which operands do not have while their graph is built: what to call instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from ..support.errors import ValidationError, caller_line
from .sizes import Symbol

CHOOSE = "{}where(condition, a, b) chooses by values"

READ = ""
"""No operation replaces the question: the value must be computed. Classes add how."""

COMPARISONS = {
    "__lt__": ("<", "lesser"),
    "__le__": ("<=", "lesser_or_equal"),
    "__gt__": (">", "greater"),
    "__ge__": (">=", "greater_or_equal"),
    "__eq__": ("==", "equal"),
    "__ne__": ("!=", "not_equal"),
}
"""Special methods -> Python's sign, and the operation."""

SIGNS = {name: sign for sign, name in COMPARISONS.values()}

QUESTIONS = {
    "__bool__": ("bool()", CHOOSE),
    "__contains__": ("'in'", "{}equal(x, y) compares"),
    "__float__": ("float()", READ),
    "__int__": ("int()", READ),
    "__index__": ("int()", READ),
    "__complex__": ("complex()", READ),
    "__round__": ("round()", "{}round_even(x) rounds"),
    "__trunc__": ("trunc()", READ),
    "__floor__": ("floor()", "{}floor(x) does that"),
    "__ceil__": ("ceil()", "{}ceil(x) does that"),
    "__array__": ("NumPy", READ),
    "__buffer__": ("a buffer", READ),
}
"""Special methods -> the question, and what to call instead, with a place for `builder.` or `ow.ops.`."""

INFIX = {
    "floordiv": ("'//'", "{0}floor({0}div(x, y)) rounds down"),
    "mod": ("'%'", "x - y * {0}floor({0}div(x, y)) is the remainder"),
    "divmod": ("divmod()", "{0}floor({0}div(x, y)) rounds down"),
    "and": ("'&'", "{}logical_and(x, y) takes conditions"),
    "or": ("'|'", "{}logical_or(x, y) takes conditions"),
    "xor": ("'^'", "{}logical_xor(x, y) takes conditions"),
    "lshift": ("'<<'", "{}mul(x, 2**n) does that"),
    "rshift": ("'>>'", "{0}floor({0}div(x, 2**n)) does that"),
}
"""Infix operators that operands do not have -> the operator, and what to call instead."""


_OF_DESCRIPTORS: dict[str, Callable[[Any], Any]] = {
    "shape": lambda x: x.shape,
    "ndim": lambda x: x.rank,
    "size": lambda x: x.desc.element_count,
}
"""NumPy's functions that need no values."""


def is_value(other: object) -> bool:
    """Whether an infix operator may take `other`: a number, a size, an array, or an operand.

    Operands have `__array__` for its error.
    """
    return isinstance(other, (float, int, Symbol)) or hasattr(other, "__array__")


class Questionable:
    """Base of operands of graphs: special methods that need values raise `NoValueError`."""

    __slots__ = ()
    _place = "builder."
    """Place of the operations, in advice."""

    def _refuse(self, question: str, advice: str) -> NoReturn:
        """Raise the error for a question; `advice` is as in `QUESTIONS`."""
        raise NotImplementedError

    def _refuse_function(self, library: str, function: Any, method: str = "__call__") -> NoReturn:
        """Raise the error for a function of NumPy ("np") or PyTorch ("torch") that takes arrays."""
        raise NotImplementedError

    def _compares_identity(self, other: Any) -> bool:
        """Whether `==` compares identity, as Python's collections do."""
        raise NotImplementedError

    def _refuse_ufunc(self, ufunc: Any, method: str) -> NoReturn:
        self._refuse_function("np", ufunc, method)

    def __array_function__(self, function: Any, *_: Any) -> Any:
        if function.__name__ in _OF_DESCRIPTORS:
            return _OF_DESCRIPTORS[function.__name__](self)
        return self._refuse_function("np", function)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        values: list[Any] = [args, *(kwargs or {}).values()]
        while not isinstance(value := values.pop(0), Questionable):
            values += value if isinstance(value, (list, tuple)) else []
        cls._refuse_function(value, "torch", function)

    def __pos__(self) -> Any:
        return self

    def __invert__(self) -> NoReturn:
        self._refuse_operator("'~'", "{}logical_not(x) takes conditions")

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        self._refuse_operator("'x[i] = y'", "operands never change: {0}where and {0}scatter_nd make others")

    def __format__(self, spec: str) -> str:
        return str(self) if not spec else self._refuse("format()", READ)

    def _refuse_operator(self, operator: str, advice: str) -> NoReturn:
        text = advice.format(self._place)
        raise ValidationError(f"{operator}: operands have no such operator, got {self!r}{caller_line()}; {text}")


def _question(name: str, question: str, advice: str) -> Callable[..., NoReturn]:
    def refuse(self: Questionable, *_: Any, **__: Any) -> NoReturn:
        self._refuse(question, advice)

    refuse.__name__ = name
    return refuse


def _comparison(name: str, sign: str, operation: str) -> Callable[[Questionable, Any], Any]:
    advice, is_equality = f"{{}}{operation}(x, y) compares elements", name in ("__eq__", "__ne__")

    def compare(self: Questionable, other: Any) -> Any:
        if not is_value(other) or (is_equality and (other is self or self._compares_identity(other))):
            return NotImplemented  # Python compares identity, or raises TypeError
        return self._refuse(f"'{sign}'", advice)

    compare.__name__ = name
    return compare


def _infix(name: str, sign: str, advice: str) -> Callable[[Questionable, Any], Any]:
    def operator(self: Questionable, other: Any) -> Any:
        return self._refuse_operator(sign, advice) if is_value(other) else NotImplemented

    operator.__name__ = name
    return operator


for _name, (_text, _advice) in QUESTIONS.items():
    setattr(Questionable, _name, _question(_name, _text, _advice))
for _name, (_text, _advice) in COMPARISONS.items():
    setattr(Questionable, _name, _comparison(_name, _text, _advice))
for _name, (_text, _advice) in INFIX.items():
    for _method in (f"__{_name}__", f"__r{_name}__"):
        setattr(Questionable, _method, _infix(_method, _text, _advice))
