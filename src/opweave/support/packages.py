"""Optional packages: find installed ones, and warn once of broken ones. `errors.import_extra` imports them."""

from __future__ import annotations

import sys
import warnings
from importlib.util import find_spec

_told: set[str] = set()

_found: set[str] = set()
"""Packages that were found. They are not searched again: a search asks all places that Python imports from."""


def is_installed(module: str) -> bool:
    """Whether a package is installed, without importing it: it may still be broken.

    >>> is_installed("json"), is_installed("json.decoder"), is_installed("no_such_package.part")
    (True, True, False)
    """
    if module in sys.modules:
        return sys.modules[module] is not None
    if module in _found:
        return True
    try:
        if find_spec(module) is None:
            return False
    except (ImportError, ValueError):  # a part of a package that is not there, or import hooks that block it
        return False
    _found.add(module)
    return True


def warn_once(fault: str) -> None:
    """Warn of a package's fault, once in a process, about the line of the user's program; do nothing if the text is empty."""
    if not fault or fault in _told:
        return
    _told.add(fault)
    frame, level = sys._getframe(), 1
    while (
        frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == __name__.partition(".")[0]
    ):
        frame, level = frame.f_back, level + 1
    warnings.warn(fault, RuntimeWarning, stacklevel=level)
