"""Operations that move elements."""

from __future__ import annotations
