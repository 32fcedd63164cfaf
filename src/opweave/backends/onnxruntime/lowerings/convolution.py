"""ONNX Runtime rules: convolutions and resampling."""

from __future__ import annotations
