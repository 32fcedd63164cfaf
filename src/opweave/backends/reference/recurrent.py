"""Reference rules: recurrent networks."""

from __future__ import annotations
