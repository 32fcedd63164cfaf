"""Back ends run graphs. Each holds one rule for each op that it supports, keyed by the op itself.

    @reference.lower(softmax)
    def _(input: Array, axis: int) -> Array: ...

A rule takes, by name, the arguments that the back end passes to all its rules (such as an emitter), then the op's parameters
that it needs. Rules for the same op are tried in order; `when=` says which nodes a rule accepts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .base import (
    Backend as Backend,
    Device as Device,
    How as How,
    Measured as Measured,
    ModelSource as ModelSource,
    NumbersNeededError as NumbersNeededError,
    PowerPreference as PowerPreference,
    Returning as Returning,
    Runner as Runner,
    Spinning as Spinning,
    TakingFeeds as TakingFeeds,
)
from .discovery import (
    BUILT_IN as BUILT_IN,
    COMPETING as COMPETING,
    claim as claim,
    default_devices as default_devices,
    devices as devices,
    discover as discover,
    find as find,
    find_device as find_device,
    may_accelerate as may_accelerate,
    rival_names as rival_names,
    rivals_of as rivals_of,
)
from .precision import KEEPS_FLOAT32 as KEEPS_FLOAT32, PRECISIONS as PRECISIONS, Precision as Precision
from .rule_table import Rule as Rule, RuleFunction as RuleFunction

if TYPE_CHECKING:
    from .reports import KernelTime as KernelTime, Placement as Placement  # at run time by `__getattr__`
    from .updates import Aliases as Aliases, Update as Update


def __getattr__(name: str) -> Any:
    if name in ("KernelTime", "Placement"):
        from . import reports

        return getattr(reports, name)
    if name in ("Aliases", "Update"):
        from . import updates

        return getattr(updates, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
