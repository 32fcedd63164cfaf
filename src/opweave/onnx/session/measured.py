"""Measurements of a model by `InferenceSession.tune` in this process or others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...backends import Backend
    from ...compile.engines import Measurement


def find_measured(digest: Callable[[], str], ways: Mapping[str, Backend]) -> dict[str, Measurement]:
    """Find the measurements of a model by shapes as text; load no modules if there is only one engine in `ways`."""
    if len(ways) < 2:
        return {}
    from ...support import disk_cache

    if not disk_cache.has(disk_cache.TUNING):
        return {}
    from ...compile import keys

    model = digest()
    if not disk_cache.exists(keys.key_of(model, keys.machine(ways), keys.versions(ways)), keys.KIND):
        return {}
    from ...compile import engines

    return engines.find(lambda: model, ways)
