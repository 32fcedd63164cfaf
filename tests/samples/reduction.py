"""Calls of the operations in `opweave.ops.reduction`."""

from __future__ import annotations
