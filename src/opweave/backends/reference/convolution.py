"""Reference rules: convolutions and resampling."""

from __future__ import annotations
