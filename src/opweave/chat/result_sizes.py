"""Bound the characters of the results of filters and methods in templates, by the arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .budget import MAX_TEXT, size_of_printf, size_of_replaced


def _size_of_padded(value: str, width: int = 80, *_: Any) -> int:
    return width


def _size_of_joined(sep: str, values: list[Any]) -> int:
    return len(sep) * len(values) + sum(len(value) for value in values if isinstance(value, (str, bytes)))


def _size_of_joined_list(values: Any, d: str = "", attribute: Any = None) -> int:
    items = sum(len(value) for value in values if isinstance(value, str))
    return len(str(d)) * len(values) + items


def _size_of_translated(value: str, table: Any) -> int:
    values = table.values() if isinstance(table, Mapping) else table
    return len(value) * max((len(text) for text in values if isinstance(text, str)), default=1)


def _size_of_stripped(value: str, chars: str | None = None) -> int:
    # Each stripped character is searched for in `chars`, so the time is the product of both lengths.
    return len(value) * len(chars or "") // 256


def _size_of_tabs(value: str, tabsize: int = 8) -> int:
    return len(value) + value.count("\t" if isinstance(value, str) else b"\t") * tabsize


def _size_of_indented(s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> int:
    return len(s) + (len(s.splitlines()) + 1) * (len(width) if isinstance(width, str) else width)


def _size_of_wrapped(
    s: str, width: int = 79, break_long_words: bool = True, wrapstring: str | None = None, break_on_hyphens: bool = True
) -> int:
    # Regular expressions split the text into words, which takes longer than other filters.
    return 16 * len(s) * (1 + len(wrapstring or "\n"))


def _size_of_links(
    value: str,
    trim_url_limit: Any = None,
    nofollow: Any = False,
    target: str | None = None,
    rel: str | None = None,
    extra_schemes: Any = None,
) -> int:
    return 16 * len(value) * (1 + len(target or "") + len(rel or ""))


def size_of_lipsum(n: int = 5, html: bool = True, min: int = 20, max: int = 100) -> int:
    """Bound the characters of Jinja's `lipsum`."""
    words = min if min > max else max
    return 16 * n * words


def _size_of_sum(iterable: Any, attribute: Any = None, start: Any = 0) -> int:
    # Adding up lists takes quadratic time.
    return 0 if isinstance(start, (int, float)) else MAX_TEXT + 1


FILTER_SIZES: dict[str, Callable[..., int]] = {
    "center": _size_of_padded,
    "indent": _size_of_indented,
    "replace": size_of_replaced,
    "format": lambda value, *args, **options: size_of_printf(str(value), options or args),
    "wordwrap": _size_of_wrapped,
    "batch": lambda value, linecount, fill_with=None: 8 * linecount,
    "slice": lambda value, slices, fill_with=None: 64 * slices,
    "join": _size_of_joined_list,
    "round": lambda value, precision=0, method="common": MAX_TEXT // 256 * abs(precision),
    "urlize": _size_of_links,
    "sum": _size_of_sum,
    "trim": _size_of_stripped,
}

METHOD_SIZES: dict[str, Callable[..., int]] = {
    **dict.fromkeys(["center", "ljust", "rjust", "zfill"], _size_of_padded),
    **dict.fromkeys(["strip", "lstrip", "rstrip"], _size_of_stripped),
    "expandtabs": _size_of_tabs,
    "replace": size_of_replaced,
    "join": _size_of_joined,
    "translate": _size_of_translated,
}
