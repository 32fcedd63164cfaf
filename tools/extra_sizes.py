"""Write how much each extra adds to an installation into its table: `python tools/extra_sizes.py [PAGE]`.

The size of an extra is that of the installed distributions that it requires, and that Opweave without extras does not
require. Rows of extras that are not installed for this Python keep their sizes: `make docs` measures those of the
environment of the tests; the Python of `.venv-scale` measures `scale`, and that of `.venv-cuda` measures `cuda`.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PAGE = Path(__file__).parent.parent / "docs" / "start.md"
NONE = "none"
ROW = re.compile(rf"^\| (?P<name>`(?P<extra>[\w-]+)`|{NONE}) \| (?P<size>[^|]*) \|", re.MULTILINE)
"""Rows of the table; that of `NONE` is Opweave without extras, which is not between backquotes."""


def required(
    name: str, extras: frozenset[str], names: set[tuple[str, frozenset[str]]]
) -> set[tuple[str, frozenset[str]]]:
    """Add a distribution and all that it requires.

    Args:
        name: of the distribution.
        extras: those of its extras that are required, too.
        names: what was found before.

    Raises:
        PackageNotFoundError: one of them is not installed.
    """
    key = canonicalize_name(name), extras
    if key in names:
        return names
    names.add(key)
    for line in distribution(name).requires or []:
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras or {""}):
            required(requirement.name, frozenset(requirement.extras), names)
    return names


@cache
def installed(extra: str) -> frozenset[str]:
    """Names of the distributions of Opweave with an extra, or with none for ""."""
    return frozenset(name for name, _ in required("opweave", frozenset({extra} - {""}), set()))


def size_of(item: Distribution) -> int:
    """Bytes of the files of a distribution."""
    paths = [Path(str(item.locate_file(file))) for file in item.files or []]
    return sum(path.stat().st_size for path in paths if path.is_file() and path.suffix != ".pyc")


def megabytes(extra: str) -> str | None:
    """What an extra adds, or what Opweave takes without any for "", rounded to two digits; None if it is not installed."""
    try:
        names = installed(extra) - installed("") if extra else installed("")
        total = sum(size_of(distribution(name)) for name in names)
    except PackageNotFoundError:
        return None
    return f"{float(f'{total / 1e6:.2g}'):,g} MB"


def with_sizes(text: str) -> str:
    """A page with the sizes of the extras that are installed."""

    def row(match: re.Match[str]) -> str:
        return f"| {match['name']} | {megabytes(match['extra'] or '') or match['size']} |"

    return ROW.sub(row, text)


if __name__ == "__main__":
    path = Path(sys.argv[1]) if sys.argv[1:] else PAGE
    path.write_text(with_sizes(path.read_text(encoding="utf-8")), encoding="utf-8")
