"""Sizes, times, memory and tables as text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .names import count_of, printable, visible


def table(rows: Sequence[Sequence[str]], words: int) -> list[str]:
    r"""The lines of a table; the first `words` columns are aligned left, the others right.

    >>> table([("step", "time"), ("relu", "3 us")], words=1)
    ['step  time', 'relu  3 us']
    """
    rows = [[cell.replace("\n", r"\n") for cell in row] for row in rows]  # a name of a model may have ends of lines
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row[:words], widths, strict=False)]
        cells += [cell.rjust(width) for cell, width in zip(row[words:], widths[words:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines


def markup(text: str) -> str:
    r"""Escape a text for HTML and XML; characters that are invisible or that XML forbids are shown by their codes.

    >>> print(markup("a<b\x1b"))
    a&lt;b\x1b
    """
    from html import escape  # loads a table of all entities, which most processes do not need

    return escape(visible(text))


def shorten(text: str, limit: int) -> str:
    """At most `limit` characters of a text.

    >>> shorten("softmax", 5)
    'soft…'
    """
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def intermediates(pieces: int, total: int, peak: int) -> str:
    """Summary of intermediates: their number, the sum of their sizes, and the bytes that they take.

    >>> intermediates(3, 320, 192)
    '320 B in 3 pieces, which share 192 B'
    """
    if not pieces:
        return "none"
    text = f"{size(total)} in {count_of(pieces, 'piece')}"
    return f"{text}, which share {size(peak)}" if peak < total else f"{text}, none used again"


def size(count: int) -> str:
    """A number of bytes.

    >>> size(192), size(8192), size(1300000)
    ('192 B', '8.0 KiB', '1.2 MiB')
    """
    if count < 1024:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, 4)
    return f"{count / 1024**power:.1f} {('KiB', 'MiB', 'GiB', 'TiB')[power - 1]}"


def duration(seconds: float, like: float | None = None) -> str:
    """A time; with `like`, in the unit in which that time is written.

    >>> duration(2.5e-6), duration(0.0123), duration(1.5), duration(-3e-6), duration(0.0123, like=2.0)
    ('2.5 us', '12.30 ms', '1.50 s', '-3.0 us', '0.01 s')
    """
    scale = abs(seconds if like is None else like)
    if scale < 1e-3:
        return f"{seconds * 1e6:.1f} us"
    return f"{seconds * 1e3:.2f} ms" if scale < 1 else f"{seconds:.2f} s"


def sizes_text(sizes: Mapping[str, int]) -> str:
    """Sizes by name, in a line.

    >>> sizes_text({"n": 3, "batch size": 1})
    "n = 3, 'batch size' = 1"
    """
    return ", ".join(f"{printable(name)} = {size}" for name, size in sizes.items())


def chosen_text(sizes: Sequence[Mapping[str, int]], tailored: int) -> str:
    """The line of `explain` about the sizes that kernels with names were chosen for.

    >>> chosen_text([{"n": 3}, {"n": 40}], 1)
    'kernels chosen for n = 3; n = 40: 1 program compiled in the background'
    """
    chosen = "; ".join(map(sizes_text, sizes))
    return f"kernels chosen for {chosen}: {count_of(tailored, 'program')} compiled in the background"


def json_value(value: Any) -> Any:
    """Nested dictionaries, lists and tuples as JSON has them: infinite numbers and NaN are strings.

    >>> json_value({"errors": (0.5, float("inf"))})
    {'errors': [0.5, 'inf']}
    """
    if isinstance(value, Mapping):
        return {name: json_value(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
