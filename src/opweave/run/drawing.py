"""The result of `MLGraph.draw`."""

from __future__ import annotations

import re

PAGE_HEIGHT = 640
"""Height of a page in a notebook, in pixels."""


class Drawing(str):
    """The text of an SVG file, or of a page in HTML. Notebooks show the drawing, and `repr` is short.

    >>> Drawing('<svg width="80" height="20"></svg>')
    <Drawing 80 x 20, 34 characters of SVG>
    """

    __slots__ = ()

    @property
    def is_page(self) -> bool:
        """Whether the drawing is a page, for a graph that is too large for one picture."""
        return not self.startswith("<svg")

    def __repr__(self) -> str:
        if self.is_page:
            return f"<Drawing as a page, {len(self):,} characters of HTML>"
        size = re.search(r'width="(\d+)" height="(\d+)"', self)
        return f"<Drawing {f'{size[1]} x {size[2]}, ' if size else ''}{len(self):,} characters of SVG>"

    def _repr_html_(self) -> str:
        if not self.is_page:
            # Not part of the file: other viewers than browsers take height:auto for a height of 0.
            return self.replace("<svg ", '<svg style="max-width:100%;height:auto" ', 1)
        from html import escape  # loads a table of all entities, which most processes do not need

        style = f"width:100%;height:{PAGE_HEIGHT}px;border:1px solid #8886;border-radius:8px"
        # The page is of a separate origin: its script has no access to the notebook.
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{escape(self)}"></iframe>'
