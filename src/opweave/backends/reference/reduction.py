"""Reference rules: reductions."""

from __future__ import annotations
