"""Say which links of a built documentation site lead nowhere: python tools/check_site.py FOLDER.

Links within the site are followed, with the places that they name in a page; addresses elsewhere are not.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

GENERATED = {"genindex.html", "py-modindex.html", "search.html"}
"""Pages that Sphinx makes: they repeat links of others."""


class Page(HTMLParser):
    """The links of a page, and the places in it that links can name."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name == "id" and value:
                self.places.add(value)
            elif name in ("href", "src") and value:
                self.links.append(value)


def broken_links(folder: Path) -> list[str]:
    """The links that lead nowhere, each with its page."""
    pages = {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in folder.rglob("*.html")}
    found = []
    for path, page in pages.items():
        if path.name in GENERATED:
            continue
        for link in dict.fromkeys(page.links):
            address = urlsplit(link)
            if address.scheme or address.netloc:
                continue
            target = (path.parent / unquote(address.path)).resolve() if address.path else path
            missing = not target.is_file()
            if not missing and address.fragment and target in pages:
                missing = unquote(address.fragment) not in pages[target].places
            if missing:
                found.append(f"{path.relative_to(folder.resolve())}: {link}")
    return sorted(found)


if __name__ == "__main__":
    broken = broken_links(Path(sys.argv[1]))
    print("\n".join(broken) or "no broken links")
    sys.exit(bool(broken))
