"""Reference rules: operations that move elements."""

from __future__ import annotations
