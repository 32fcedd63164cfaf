"""Reference rules: normalisations and softmax."""

from __future__ import annotations
