"""Names and values in text: camelCase of the specification <-> snake_case of Python, plurals, files and values in messages."""

from __future__ import annotations

import re
import reprlib
import warnings
from collections.abc import Container, Sequence
from typing import Any

# Patterns stay text until `re` compiles them at their first use: compiling takes 1 ms, and most programs never use them.

# A capital starts a new word after a lower-case letter or a digit; "NaN" is one word.
_WORD_START = r"(?<=[a-z0-9])(?=NaN|(?!N$)[A-Z])"
_CAPITALISED = {"nan": "NaN", "nd": "ND"}


def snake_case(name: str) -> str:
    """Convert a name of the specification to Python's.

    >>> [snake_case(n) for n in ("argMin", "isNaN", "l2Pool2d", "gatherND", "reduceLogSumExp", "conv2d")]
    ['arg_min', 'is_nan', 'l2_pool2d', 'gather_nd', 'reduce_log_sum_exp', 'conv2d']
    """
    return re.sub(_WORD_START, "_", name).lower()


def camel_case(name: str) -> str:
    """Convert a Python name to the specification's.

    >>> [camel_case(n) for n in ("arg_min", "is_nan", "l2_pool2d", "gather_nd", "conv_transpose2d")]
    ['argMin', 'isNaN', 'l2Pool2d', 'gatherND', 'convTranspose2d']
    """
    first, *rest = name.split("_")
    return first + "".join(_CAPITALISED.get(word, word.capitalize()) for word in rest)


def file_name(path: str) -> str:
    """The name of a source file for messages. Jupyter gives the file of each cell a number as its name.

    >>> file_name("/home/me/model.py"), file_name("/tmp/ipykernel_93/3804694844.py")
    ('model.py', 'notebook cell')
    """
    folder, _, name = path.replace("\\", "/").rpartition("/")
    return "notebook cell" if folder.rpartition("/")[2].startswith("ipykernel_") else name


def printable(name: str) -> str:
    """Quote and escape a name, which may contain control characters; identifiers stay as they are."""
    return name if name.isidentifier() else repr(name)


_INVISIBLE = (
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Pattern of characters that control terminals or the direction of text, separate lines, are invisible, are halves of
surrogate pairs, or are forbidden in XML; except for tabs, ends of lines, and the two joiners of emoji and of Indic scripts."""


def visible(text: str) -> str:
    r"""Show characters that control terminals or the direction of text by their codes, as `repr` does.

    Names from models, file names and messages may have them. All text that is printed, drawn or raised passes through here.

    >>> print(visible("a\x1b[2J \u202eb\ufeff\ud800"))
    a\x1b[2J \u202eb\ufeff\ud800
    """
    return re.sub(_INVISIBLE, lambda match: match[0].encode("unicode-escape").decode("ascii"), text)


class _Bounded(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother = 4, 200, 400
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = self.maxfrozenset = self.maxdeque = 12

    def repr_int(self, x: int, level: int) -> str:
        # Python refuses to print integers of more than 4,300 digits.
        return repr(x) if x.bit_length() <= 512 else f"an integer of {x.bit_length():,} bits"

    def repr_ndarray(self, x: Any, level: int) -> str:
        return repr(x) if x.size <= 4 else f"an array of {x.dtype}{list(x.shape)}"


_bounded = _Bounded()


def short_repr(value: Any) -> str:
    """The `repr` of a value for messages: long ones are truncated, and an object whose `repr` fails is shown by its type.

    >>> short_repr([1, 2]), short_repr("x"), short_repr(10**5000)
    ('[1, 2]', "'x'", 'an integer of 16,610 bits')
    >>> short_repr(range(10**9)), short_repr(list(range(10**5)))
    ('range(0, 1000000000)', '[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ...]')
    """
    try:
        return _bounded.repr(value)
    except Exception:  # `__repr__` is the user's code
        return f"<{type(value).__name__}>"


class SnakeCaseDict(dict[str, Any]):
    """A dictionary with snake_case keys that also accepts the specification's names, with a DeprecationWarning.

    >>> import warnings
    >>> with warnings.catch_warnings(action="ignore"):
    ...     SnakeCaseDict(data_types=["int8"])["dataTypes"]
    ['int8']
    """

    def _stored_key(self, key: Any) -> Any:
        if super().__contains__(key) or not isinstance(key, str):
            return key
        snake = snake_case(key)
        if not super().__contains__(snake):
            return key
        warnings.warn(f"the key {key!r} is deprecated; it is {snake!r} now", DeprecationWarning, stacklevel=3)
        return snake

    def __getitem__(self, key: str) -> Any:
        return super().__getitem__(self._stored_key(key))

    def __contains__(self, key: object) -> bool:
        return super().__contains__(self._stored_key(key))

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of a key, or `default`."""
        return super().get(self._stored_key(key), default)


def listing(instance: object, hidden: Container[str] = ()) -> list[str]:
    """The names that `dir` lists: public attributes and special methods, without those in `hidden`.

    >>> listing(1j)[-3:]
    ['conjugate', 'imag', 'real']
    """
    names = object.__dir__(instance)
    return sorted(n for n in names if n not in hidden and (not n.startswith("_") or n.startswith("__")))


def count_of(number: int, word: str) -> str:
    """A count with a noun in singular or plural.

    >>> count_of(1, "node"), count_of(2, "node")
    ('1 node', '2 nodes')
    """
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def either(names: Sequence[str]) -> str:
    """List alternatives.

    >>> either(["float32", "float16", "int8"])
    'float32, float16 or int8'
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def first_surrogate(text: str) -> str:
    """Describe the first lone surrogate in a text, which cannot be encoded; empty if there is none.

    >>> first_surrogate("a\\ud800b"), first_surrogate("ab")
    ("'\\\\ud800' at index 1, half of a surrogate pair, which is no character", '')
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"{text[error.start]!r} at index {error.start}, half of a surrogate pair, which is no character"
    return ""
