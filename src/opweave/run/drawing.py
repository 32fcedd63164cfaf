"""The result of `MLGraph.draw`."""

from __future__ import annotations

import re


class Drawing(str):
    """The text of an SVG file. Notebooks show the drawing, and `repr` is short.

    >>> Drawing('<svg width="80" height="20"></svg>')
    <Drawing 80 x 20, 34 characters of SVG>
    """

    __slots__ = ()

    def __repr__(self) -> str:
        size = re.search(r'width="(\d+)" height="(\d+)"', self)
        return f"<Drawing {f'{size[1]} x {size[2]}, ' if size else ''}{len(self):,} characters of SVG>"

    def _repr_html_(self) -> str:
        # Not part of the file: other viewers than browsers take height:auto for a height of 0.
        return self.replace("<svg ", '<svg style="max-width:100%;height:auto" ', 1)
