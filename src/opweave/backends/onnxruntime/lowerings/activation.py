"""ONNX Runtime rules: activation functions."""

from __future__ import annotations
