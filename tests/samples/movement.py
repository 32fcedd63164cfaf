"""Calls of the operations in `opweave.ops.movement`."""

from __future__ import annotations
