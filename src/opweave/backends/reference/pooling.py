"""Reference rules: pooling."""

from __future__ import annotations
