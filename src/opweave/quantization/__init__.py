"""Models with narrower weights: 8 and 4 bits in blocks or by channel, 16 bits, and integers throughout (`quantize`)."""

from __future__ import annotations

from .api import quantize
from .result import KeptWeights, LayerDifference, OutputError, Quantization

__all__ = ["KeptWeights", "LayerDifference", "OutputError", "Quantization", "quantize"]
