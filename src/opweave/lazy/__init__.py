"""Collect operations on arrays, dispatches of deferred contexts and `@jit` functions, and run them as compiled graphs.

`compile_now` and `wait` control compilation in the background, `statistics` counts graphs, and `profile` lists what reads ran.
"""

from typing import TYPE_CHECKING, Any

from .background import compile_now, statistics, wait

if TYPE_CHECKING:
    from .records import profile

__all__ = ["compile_now", "profile", "statistics", "wait"]


def __getattr__(name: str) -> Any:
    if name != "profile":  # loads what records calls
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .records import profile

    return profile


def __dir__() -> list[str]:
    return [*(name for name in globals() if name.startswith("__")), *__all__]
