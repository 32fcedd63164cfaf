"""Calls of the operations in `opweave.ops.quantization`."""

from __future__ import annotations
