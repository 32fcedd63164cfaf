"""Normalisations and softmax."""

from __future__ import annotations
