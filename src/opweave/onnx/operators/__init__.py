"""Converters of the ONNX operators; one file a family."""

from . import math as math
