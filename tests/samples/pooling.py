"""Calls of the operations in `opweave.ops.pooling`."""

from __future__ import annotations
