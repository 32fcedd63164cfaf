"""Words: camelCase of the specification <-> snake_case of Python, the only renaming in the project; and plurals."""

from __future__ import annotations

import re

# A capital starts a new word after a lower-case letter or a digit; "NaN" is one word.
_WORD_START = re.compile(r"(?<=[a-z0-9])(?=NaN|(?!N$)[A-Z])")
_CAPITALISED = {"nan": "NaN", "nd": "ND"}


def snake_case(name: str) -> str:
    """The Python name of a name in the specification.

    >>> [snake_case(n) for n in ("argMin", "isNaN", "l2Pool2d", "gatherND", "reduceLogSumExp", "conv2d")]
    ['arg_min', 'is_nan', 'l2_pool2d', 'gather_nd', 'reduce_log_sum_exp', 'conv2d']
    """
    return _WORD_START.sub("_", name).lower()


def camel_case(name: str) -> str:
    """The specification's name of a Python name.

    >>> [camel_case(n) for n in ("arg_min", "is_nan", "l2_pool2d", "gather_nd", "conv_transpose2d")]
    ['argMin', 'isNaN', 'l2Pool2d', 'gatherND', 'convTranspose2d']
    """
    first, *rest = name.split("_")
    return first + "".join(_CAPITALISED.get(word, word.capitalize()) for word in rest)


def counted(number: int, word: str) -> str:
    """A number of things, for people.

    >>> counted(1, "node"), counted(2, "node")
    ('1 node', '2 nodes')
    """
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"
