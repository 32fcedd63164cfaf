"""Calls of the operations in `opweave.ops.indexing`."""

from __future__ import annotations
