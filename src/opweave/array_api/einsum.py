"""Sums of products by subscripts, which the standard does not have, with NumPy's meaning."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

from .. import ops
from ..composites.contraction import contract
from ..core.dtypes import WIDE
from ..lazy.array import Array
from ..support.errors import ValidationError, require
from ..support.names import short_repr
from .arguments import convert, promote_operands
from .complex_array import ComplexArray
from .complex_numbers import promote_complex
from .public import on_complex


def einsum(subscripts: Any, /, *operands: Any) -> Array:
    """Compute a sum of products, whose axes have letters as labels, as NumPy does.

    Axes with the same label have the same size, or 1, which broadcasts. Labels that the result lacks are summed. A label that
    an operand has twice stands for its diagonal, and "..." for all other axes, which the result must have.
    Operands are multiplied from left to right, by `matmul` where that sums.

    Args:
        subscripts: the labels of each operand, separated by commas, and behind "->" those of the result; without "->",
            they are those that occur once, sorted. NumPy's other form is allowed, too: `einsum(x, [0, 1], y, [1, 2], [0, 2])`.
        operands: integers, floats or complex numbers.

    Returns: An array in the promoted data type.
    Raises: the subscripts do not fit the operands, a label has several sizes, or there is no common data type.

    >>> a, b = xp.asarray([[1.0, 2.0], [3.0, 4.0]]), xp.asarray([1.0, 10.0])
    >>> xp.einsum("ij,j->i", a, b).tolist(), xp.einsum("ii", a).tolist(), xp.einsum("i,j->ij", b, b).tolist()
    ([21.0, 43.0], 5.0, [[1.0, 10.0], [10.0, 100.0]])
    """
    formula, values = _formula_of(subscripts, operands)
    arrays, dtype = promote_operands("einsum", "numeric", *values)
    require(all(isinstance(x, Array) for x in arrays), f"einsum: takes arrays, got {short_repr(values)}")
    if dtype.kind != "f" and arrays[0].data_type not in WIDE:
        # Sums of int32 have the same low bits.
        arrays = [ops.cast(x, "int32") for x in arrays]
    return convert(_contract(formula, arrays), dtype)


def _contract(formula: str, arrays: Sequence[Array]) -> Array:
    terms, arrow, result_labels = formula.partition("->")
    if arrow and "..." not in result_labels:
        for term, x in zip(terms.split(","), arrays, strict=False):
            letters = sum(map(str.isalpha, term))
            # PyTorch, whose calls are contracted, too, sums these axes.
            fits = "..." not in term or x.rank <= letters
            require(fits, f"einsum: the result of {formula!r} lacks '...', which stands for axes of {x.desc}")
    try:
        result: Array = contract(ops, formula, arrays)
    except ValidationError as error:
        raise ValidationError(f"einsum: {error}") from error
    return result


def _formula_of(subscripts: Any, operands: Sequence[Any]) -> tuple[str, Sequence[Any]]:
    """Return subscripts as text, and the operands."""
    if isinstance(subscripts, str):
        require(len(operands) > 0, f"einsum: {subscripts!r} takes at least one operand")
        return subscripts, operands
    items = [subscripts, *operands]
    pairs = len(items) // 2
    require(pairs > 0, "einsum: takes subscripts and operands, or operands each followed by a list of labels")
    terms = ",".join(map(_text_of, items[1 : 2 * pairs : 2]))
    return (f"{terms}->{_text_of(items[-1])}" if len(items) % 2 else terms), items[0 : 2 * pairs : 2]


def _text_of(labels: Any) -> str:
    letters = string.ascii_uppercase + string.ascii_lowercase
    require(
        isinstance(labels, (list, tuple)) and all(label is ... or label in range(len(letters)) for label in labels),
        f"einsum: labels must be a list of integers in [0, {len(letters)}) and '...', got {short_repr(labels)}",
    )
    return "".join("..." if label is ... else letters[label] for label in labels)


@on_complex("einsum")
def _(subscripts: Any, /, *operands: Any) -> ComplexArray:
    formula, values = _formula_of(subscripts, operands)
    real, *others = promote_complex("einsum", *values)
    # A product of n complex numbers has 2 ** n terms: choose a part of each.
    terms: list[tuple[list[Array], int]] = [([real.real], 0), ([real.imag], 1)]
    for x in others:
        terms = [([*parts, part], turns + turn) for parts, turns in terms for part, turn in ((x.real, 0), (x.imag, 1))]
    sums: list[Any] = [None, None]
    for parts, turns in terms:
        product: Any = _contract(formula, parts)
        total = sums[turns % 2]
        is_negative = turns % 4 > 1
        if total is None:
            sums[turns % 2] = ops.neg(product) if is_negative else product
        else:
            sums[turns % 2] = ops.sub(total, product) if is_negative else ops.add(total, product)
    result = ComplexArray(*sums)
    # With one operand, the parts may be those of the operand: return a copy.
    return +result if len(values) == 1 else result


__all__ = ["einsum"]
