"""Calls of the operations in `opweave.ops.normalization`."""

from __future__ import annotations
