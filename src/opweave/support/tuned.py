"""Whether anything was tuned: sessions ask each time that they load a model, and cannot look at all files of the cache."""

from __future__ import annotations

import os
import sys

TUNING = "tuning"
"""Kind of the files with measurements, and name of the folder that says which graphs and models have such files."""


def has_tuning(prefix: str = "") -> bool:
    """Whether anything was tuned: a graph or model whose keys begin with `prefix` (`digests.prefix_of`), or any at all.

    `disk_cache.load` says whether its file is there still, and can be trusted. Caches are too large to be listed.
    """
    place = cache_place()
    return place is not None and os.path.exists(os.path.join(place, TUNING, prefix))


def cache_place() -> str | None:
    """The path of `disk_cache.directory`."""
    chosen = os.environ.get("OPWEAVE_CACHE")
    if chosen:
        return os.path.join(os.getcwd(), chosen)
    home = os.path.expanduser("~")  # "~" itself where there is neither $HOME nor an entry in the user database
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA") or os.path.join(home, "AppData", "Local")
        path = os.path.join(local, "opweave", "cache")
    elif sys.platform == "darwin":
        path = os.path.join(home, "Library", "Caches", "opweave")
    else:
        # The XDG specification: "If an implementation encounters a relative path … it should consider the path invalid".
        named = os.environ.get("XDG_CACHE_HOME", "")
        path = os.path.join(named if os.path.isabs(named) else os.path.join(home, ".cache"), "opweave")
    return path if os.path.isabs(path) else None
