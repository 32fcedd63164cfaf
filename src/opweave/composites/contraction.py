"""Sums of products as NumPy's `einsum` writes them, composed of diagonals, sums, transpositions and products.

Each axis has a label: a letter of the subscripts. The axes of an ellipsis have the labels "…1" (the last), "…2" and so on, so
that axes with the same label broadcast to each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any

from ..core.dtypes import INFO
from ..core.sizes import is_same_size
from ..support.errors import ValidationError, require


@dataclass(frozen=True)
class _Term:
    """An operand, and the label of each of its axes."""

    operand: Any
    labels: tuple[str, ...]

    def size(self, label: str) -> int:
        """The size of an axis; 1 if the term has no such axis, as in broadcasting."""
        return self.operand.shape[self.labels.index(label)] if label in self.labels else 1


def contract(b: Any, subscripts: str, operands: Sequence[Any]) -> Any:
    """Compute the sum of products that NumPy's `einsum` defines.

    Args:
        b: a builder, or a module with operations on arrays.
        subscripts: the labels of the axes of each operand, and those of the result behind "->".
        operands: operands of `b`, of one data type that `reduce_sum` takes.

    Returns: An operand of `b`.

    Raises:
        ValidationError: the subscripts do not fit the operands.
    """
    left, arrow, result = subscripts.replace(" ", "").partition("->")
    parts = left.split(",")
    require(len(parts) == len(operands), f"{subscripts!r} has {len(parts)} terms for {len(operands)} operands")
    terms = [_Term(x, _labels(part, x.rank)) for part, x in zip(parts, operands, strict=True)]
    hidden = max((sum(label.startswith("…") for label in term.labels) for term in terms), default=0)
    if arrow:  # an ellipsis in the result stands for the longest one of the terms
        result_labels = _labels(result, hidden + len(result.replace("...", "")) if "..." in result else len(result))
    else:
        letters = [label for term in terms for label in term.labels if label.isalpha()]
        result_labels = (*_ellipsis(hidden), *sorted(label for label in letters if letters.count(label) == 1))
    missing = [label for label in result_labels if not any(label in term.labels for term in terms)]
    if missing or len(set(result_labels)) < len(result_labels):
        raise ValidationError(f"the result of {subscripts!r} is not made of the operands' axes")

    terms = [_diagonal(b, term) for term in terms]
    largest = {label: _common_size(label, terms) for term in terms for label in term.labels}
    terms = [_without_broadcasts(b, term, largest) for term in terms]
    while len(terms) > 1:
        first, second, *rest = terms
        kept = {*result_labels, *(label for term in rest for label in term.labels)}
        terms = [_multiply(b, _sum(b, first, {*kept, *second.labels}), second, kept, result_labels), *rest]
    (term,) = terms
    return _transpose(b, _sum(b, term, set(result_labels)), result_labels).operand


def _common_size(label: str, terms: Sequence[_Term]) -> Any:
    """Return the size to which the axes with a label broadcast."""
    sizes = [term.size(label) for term in terms if label in term.labels]
    sizes = [size for size in sizes if not is_same_size(size, 1)] or [1]
    if all(is_same_size(size, sizes[0]) for size in sizes):
        return sizes[0]
    numbers = dict.fromkeys(size for size in sizes if isinstance(size, int) and size != 1)
    require(len(numbers) < 2, f"the label {label!r} stands for sizes {' and '.join(map(str, numbers))}")
    return 0 if 0 in numbers else max(sizes)


def _ellipsis(count: int) -> tuple[str, ...]:
    return tuple(f"…{i}" for i in range(count, 0, -1))


def _labels(subscript: str, rank: int) -> tuple[str, ...]:
    """The labels of an operand of this rank, for its term in the equation, such as "ij" or "i...k"."""
    before, dots, after = subscript.partition("...")
    hidden = rank - len(before) - len(after)
    letters = before + after
    if hidden < 0 or (hidden and not dots) or not all(letter.isascii() and letter.isalpha() for letter in letters):
        raise ValidationError(f"the term {subscript!r} does not fit an operand of rank {rank}")
    return (*before, *_ellipsis(hidden), *after)


def _diagonal(b: Any, term: _Term) -> _Term:
    """Replace pairs of axes with the same label by their diagonal."""
    for label in dict.fromkeys(term.labels):
        while term.labels.count(label) > 1:
            first = term.labels.index(label)
            second = term.labels.index(label, first + 1)
            others = [axis for axis in range(len(term.labels)) if axis not in (first, second)]
            x = b.transpose(term.operand, permutation=[*others, first, second])
            *shape, rows, columns = x.shape
            require(rows == columns, f"the label {label!r} stands for sizes {rows} and {columns}")
            # In a flattened matrix of n rows, the elements of the diagonal are n + 1 elements apart.
            flat = b.reshape(x, [*shape, rows * rows])
            ones = [1] * len(shape)
            x = b.slice(flat, [0] * flat.rank, flat.shape, strides=[*ones, rows + 1])
            term = _Term(x, (*(term.labels[axis] for axis in others), label))
    return term


def _without_broadcasts(b: Any, term: _Term, largest: Mapping[str, int]) -> _Term:
    """Drop the axes of size 1 that are larger in another term."""
    labels = tuple(
        label
        for label in term.labels
        if is_same_size(term.size(label), largest[label]) or term.size(label) > 1 or term.size(label) == 0
    )
    return _Term(_reshape(b, term.operand, [term.size(label) for label in labels]), labels)


def _sum(b: Any, term: _Term, needed: set[str]) -> _Term:
    """Sum a term over the axes whose labels are not in `needed`."""
    axes = [axis for axis, label in enumerate(term.labels) if label not in needed]
    if not axes:
        return term
    return _Term(b.reduce_sum(term.operand, axes=axes), tuple(label for label in term.labels if label in needed))


def _transpose(b: Any, term: _Term, labels: Sequence[str]) -> _Term:
    """Transpose a term to the order of `labels`."""
    permutation = [term.labels.index(label) for label in labels]
    if permutation == list(range(len(labels))):
        return term
    return _Term(b.transpose(term.operand, permutation=permutation), tuple(labels))


def _multiply(b: Any, first: _Term, second: _Term, needed: set[str], wanted: Sequence[str]) -> _Term:
    """Multiply two terms, and sum over the axes that nothing else needs."""
    second = _sum(b, second, {*needed, *first.labels})
    common = [label for label in first.labels if label in second.labels]
    summed = [label for label in common if label not in needed]
    place = {label: i for i, label in enumerate(wanted)}

    def order(label: str) -> int:
        """The position of an axis in the result, so that few results have to be transposed; -1 if it is summed later."""
        return place.get(label, -1)

    batch = sorted((label for label in common if label in needed), key=order)
    rows = sorted((label for label in first.labels if label not in common), key=order)
    columns = sorted((label for label in second.labels if label not in common), key=order)
    if not summed or INFO[first.operand.data_type].kind != "f":
        labels = sorted({*first.labels, *second.labels}, key=lambda label: (order(label), label))
        spread = (_spread(b, term, labels) for term in (first, second))
        return _sum(b, _Term(reduce(b.mul, spread), tuple(labels)), needed)
    if rows and columns and order(columns[0]) < order(rows[0]):
        first, second, rows, columns = second, first, columns, rows
    left = _as_matrices(b, first, batch, rows, summed)
    right = _as_matrices(b, second, batch, summed, columns)
    product = b.matmul(left, right)
    sizes = [first.size(label) for label in rows], [second.size(label) for label in columns]
    shape = [*product.shape[: len(batch)], *sizes[0], *sizes[1]]
    return _Term(_reshape(b, product, shape), (*batch, *rows, *columns))


def _spread(b: Any, term: _Term, labels: Sequence[str]) -> Any:
    """Give an operand an axis for each of `labels`, of size 1 where the term has none."""
    term = _transpose(b, term, [label for label in labels if label in term.labels])
    return _reshape(b, term.operand, [term.size(label) for label in labels])


def _as_matrices(b: Any, term: _Term, batch: Sequence[str], rows: Sequence[str], columns: Sequence[str]) -> Any:
    """Reshape an operand to a stack of matrices [*batch, rows, columns]."""
    ordered = _transpose(b, term, [*batch, *rows, *columns])
    sizes = [term.size(label) for label in batch]
    shape = [*sizes, prod(term.size(label) for label in rows), prod(term.size(label) for label in columns)]
    return _reshape(b, ordered.operand, shape)


def _reshape(b: Any, x: Any, shape: Sequence[int]) -> Any:
    return x if x.shape == tuple(shape) else b.reshape(x, shape)
