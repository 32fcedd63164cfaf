"""The width of texts in drawings."""

from __future__ import annotations

from unicodedata import east_asian_width

NARROW, WIDE = frozenset("iljtfrI.,:;'|![]() "), frozenset("mwMWQO@%→×")


def text_width(text: str, font: float = 12, bold: bool = False) -> float:
    """An upper estimate of the width of a text in common fonts."""
    units = 0.0
    for letter in text:
        if east_asian_width(letter) in "WF":
            units += 1.05
        elif letter in NARROW:
            units += 0.4
        elif letter in WIDE:
            units += 0.97
        else:
            units += 0.72 if letter.isupper() else 0.635
    return units * font * (1.1 if bold else 1.0)
