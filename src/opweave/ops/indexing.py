"""Gather and scatter."""

from __future__ import annotations
