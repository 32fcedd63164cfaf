"""Contexts on all devices of this machine, on each back end that drives them."""

from __future__ import annotations

from functools import cache

import opweave as ow

DEVICES = [f"{device.name} ({device.backend})" for device in ow.devices() if device.available]
"""Names for rows of tests."""


@cache
def context_on(device: str) -> ow.MLContext:
    """The context of one of `DEVICES`, the same for all tests."""
    name, _, backend = device.rstrip(")").partition(" (")
    return ow.ml.create_context(device=name, backend=backend)
