"""Calls of the operations in `opweave.ops.activation`."""

from __future__ import annotations
