"""Values of attributes in the manifest of a saved graph, which is JSON.

Numbers, texts, None and truth values are those of JSON, and tuples are lists. Everything else is an object with one name, the
kind of value: `{"size": ...}`. Sizes are rebuilt by the arithmetic of `core.sizes`: no text of a file is evaluated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np

from ..core.bodies import Body
from ..core.reals import FUNCTIONS as REAL_FUNCTIONS, RealSize
from ..core.size_calls import add, multiply
from ..core.size_terms import Factor
from ..core.sizes import Dimension, Size, call_of, is_same_size
from ..ops.constants import HostFunction, integers_from, real_numbers
from ..support.errors import NotSupportedError
from ..support.names import short_repr

MAX_DEPTH = 64
"""Maximum depth of tuples, formulas and bodies in each other."""

ARGUMENTS: Mapping[str, range] = {
    **dict.fromkeys(("//", "/", "%", "<", "==", "&", "fmod"), range(2, 3)),
    "where": range(3, 4),
    **dict.fromkeys(("max", "min", "broadcast"), range(2, 1000)),
}
"""Numbers of arguments of a call in a size, by kind."""

FUNCTIONS = {str(function): function for function in (real_numbers, integers_from)}
"""The functions of sizes that users' graphs have; those of decompositions are in no file."""

REAL_ARGUMENTS: Mapping[str, int] = {name: 1 if name.isalpha() else 2 for name in REAL_FUNCTIONS}


class Damaged(ValueError):  # noqa: N818  (becomes a `DataError` that names the file)
    """A value of a file is not one that `encode` writes."""


def encode(value: Any, encode_body: Callable[[Body], Any], encode_array: Callable[[np.ndarray], Any]) -> Any:
    """The value as JSON.

    Args:
        value: the value of an attribute.
        encode_body: writes a body.
        encode_array: writes an array.

    Raises:
        NotSupportedError: files cannot hold values of this type.

    >>> encode((1, 2.5, float("nan"), Size("n") + 1), str, str)
    [1, 2.5, {'float': 'nan'}, {'size': [[[['name', 'n']], 1], [[], 1]]}]
    """

    def recur(value: Any) -> Any:
        return encode(value, encode_body, encode_array)

    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, float)):
        return value if isinstance(value, int) or math.isfinite(value) else {"float": str(float(value))}
    if isinstance(value, (tuple, list)):
        return [recur(item) for item in value]
    if isinstance(value, np.generic):
        return recur(value.item())
    if isinstance(value, Size):
        return {"size": _terms(value)}
    if isinstance(value, RealSize):
        return {"real": [recur(item) for item in value.formula]}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {"mapping": [[key, recur(item)] for key, item in value.items()]}
    if isinstance(value, Body):
        return {"body": encode_body(value)}
    if isinstance(value, np.ndarray):
        return {"array": encode_array(value)}
    if isinstance(value, HostFunction) and FUNCTIONS.get(str(value)) is value:
        return {"function": str(value)}
    raise NotSupportedError(
        f"files hold numbers, texts, sizes, arrays, and tuples and dictionaries of them, got {short_repr(value)}"
    )


def _terms(size: Size) -> list[Any]:
    return [[[_factor(factor) for factor in factors], coefficient] for factors, coefficient in size.terms]


def _factor(factor: Factor) -> list[Any]:
    if factor.arguments:
        return [factor.kind, *map(encode_dimension, factor.arguments)]
    if factor.kind != "name":
        raise NotSupportedError(f"files cannot hold {factor.text}, a size without a formula")
    return ["name", factor.text]


def encode_dimension(dimension: Dimension) -> Any:
    """A dimension as JSON: a number, or the terms of a size."""
    return _terms(dimension) if isinstance(dimension, Size) else dimension


def decode_dimension(value: Any, depth: int = 0) -> Dimension:
    """The dimension that `encode_dimension` has written.

    >>> decode_dimension(encode_dimension((Size("n") + 1) // 2 * Size("m")))
    ((n + 1) // 2)*m

    Raises:
        Damaged: the value is not one that encode_dimension writes.
    """
    if type(value) is int:
        return value
    _require(isinstance(value, list) and depth < MAX_DEPTH, "a size", value)
    products: list[Any] = []
    for term in value:
        _require(isinstance(term, list) and len(term) == 2 and isinstance(term[0], list), "a size", value)
        factors, coefficient = term
        _require(type(coefficient) is int, "a size", value)
        products.append(multiply(coefficient, *[_decode_factor(factor, depth) for factor in factors]))
    dimension: Dimension = add(*products)
    return dimension


def _decode_factor(value: Any, depth: int) -> Any:
    _require(isinstance(value, list) and len(value) > 1 and isinstance(value[0], str), "a factor of a size", value)
    kind, *arguments = value
    if kind == "name":
        is_name = len(arguments) == 1 and isinstance(arguments[0], str) and arguments[0] != ""
        _require(is_name, "a name of a size", value)
        return Size(arguments[0])
    _require(len(arguments) in ARGUMENTS.get(kind, ()), "a call in a size", value)
    return call_of(kind, *[decode_dimension(argument, depth + 1) for argument in arguments])


def decode(
    value: Any,
    decode_body: Callable[[Any], Body],
    decode_array: Callable[[Any], np.ndarray],
    depth: int = 0,
) -> Any:
    """The value that `encode` has written; the functions read bodies and arrays.

    Raises:
        Damaged: `encode` has not written it.
    """

    def recur(item: Any) -> Any:
        return decode(item, decode_body, decode_array, depth + 1)

    _require(depth < MAX_DEPTH, "a value that is not nested too deeply", value)
    if isinstance(value, list):
        return tuple(map(recur, value))
    if not isinstance(value, dict):
        return value
    _require(len(value) == 1, "a value", value)
    ((kind, content),) = value.items()
    if kind == "float":
        _require(content in ("nan", "inf", "-inf"), "a float", content)
        return float(content)
    if kind == "size":
        return decode_dimension(content)
    if kind == "real":
        formula = recur(content)
        _require(isinstance(formula, tuple), "a call of a formula of numbers", formula)
        check_formula(formula)
        return RealSize(*formula)
    if kind == "mapping":
        is_mapping = isinstance(content, list) and all(
            isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) for pair in content
        )
        _require(is_mapping, "a dictionary", content)
        return {key: recur(item) for key, item in content}
    if kind == "body":
        return decode_body(content)
    if kind == "array":
        return decode_array(content)
    if kind == "function":
        _require(isinstance(content, str) and content in FUNCTIONS, "a function of sizes", content)
        return FUNCTIONS[content]
    raise Damaged(f"{short_repr(kind)} is no kind of value")


def check_computed(function: Any, arguments: Any, shape: Any) -> None:
    """Require a call of a function of sizes that takes a short time, and gives as many elements as the shape has.

    Raises:
        Damaged: it is none.
    """
    _require(isinstance(arguments, tuple) and isinstance(shape, tuple), "arguments of a function of sizes", arguments)
    if function is real_numbers:
        for formula in arguments:
            check_formula(formula)
            if isinstance(formula, tuple):
                RealSize(*formula)  # raises the error of a formula that is too long
        count: Any = len(arguments)
    else:
        is_call = function is integers_from and len(arguments) == 2
        are_numbers = all(isinstance(item, (int, Size)) and not isinstance(item, bool) for item in arguments)
        _require(is_call and are_numbers, "arguments of a function of sizes", arguments)
        count = arguments[1]
    are_sizes = all(isinstance(size, (int, Size)) and not isinstance(size, bool) for size in shape)
    _require(are_sizes and is_same_size(prod(shape), count), f"a shape of {count} elements", shape)


def check_formula(formula: Any) -> None:
    """Require a formula that `core.reals.evaluate` can compute.

    Raises:
        Damaged: it is none.
    """
    if not isinstance(formula, tuple):
        is_number = isinstance(formula, (int, float, Size)) and not isinstance(formula, bool)
        _require(is_number, "a number in a formula", formula)
        return
    name = formula[0] if formula else None
    is_call = isinstance(name, str) and REAL_ARGUMENTS.get(name) == len(formula) - 1
    _require(is_call, "a formula of numbers", formula)
    for argument in formula[1:]:
        check_formula(argument)


def _require(condition: bool, expected: str, value: Any) -> None:
    if not condition:
        raise Damaged(f"expected {expected}, got {short_repr(value)}")
