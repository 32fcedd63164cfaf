"""Modules of rules by the module that declares their operations.

A module of rules is imported when one of its rules is first looked up.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...rule_table import OPERATIONS

FAMILIES: Mapping[str, str] = {
    **OPERATIONS,
    "opweave.ops.constants": "dynamic",
    "opweave.ops.dynamic": "dynamic",
    "opweave.composites.activation": "activation",
    "opweave.composites.attention": "attention",
    "opweave.composites.bits": "mathematics",
    "opweave.composites.control": "control",
    "opweave.composites.convolve": "convolution",
    "opweave.composites.cumulative": "mathematics",
    "opweave.composites.elementary": "mathematics",
    "opweave.composites.grid": "sampling",
    "opweave.composites.integers": "integers",
    "opweave.composites.linear_algebra": "mathematics",
    "opweave.composites.movement": "movement",
    "opweave.composites.normalization": "normalization",
    "opweave.composites.pool": "pooling",
    "opweave.composites.quantization": "quantization",
    "opweave.composites.quantized": "integers",
    "opweave.composites.recurrences": "attention",
    "opweave.composites.recurrent": "recurrent",
    "opweave.composites.regions": "sampling",
    "opweave.composites.requantized": "integers",
    "opweave.composites.resizing": "sampling",
    "opweave.composites.rotary": "attention",
    "opweave.composites.scatter": "indexing",
    "opweave.composites.selection": "selection",
    "opweave.composites.single_gate": "recurrent",
    "opweave.composites.suppression": "selection",
}
