"""Calls of the operations in `opweave.ops.convolution`."""

from __future__ import annotations
