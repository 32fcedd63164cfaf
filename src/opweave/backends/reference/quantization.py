"""Reference rules: quantisation."""

from __future__ import annotations
