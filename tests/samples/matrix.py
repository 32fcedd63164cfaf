"""Calls of the operations in `opweave.ops.matrix`."""

from __future__ import annotations
