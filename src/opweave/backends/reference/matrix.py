"""Reference rules: matrix products."""

from __future__ import annotations
