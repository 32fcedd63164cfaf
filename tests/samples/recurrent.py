"""Calls of the operations in `opweave.ops.recurrent`."""

from __future__ import annotations
