"""Modules of rules by the module that declares their operations. They are imported when a rule is first looked up."""

from __future__ import annotations

from collections.abc import Mapping

FAMILIES: Mapping[str, str] = {
    "opweave.ops.activation": "activation",
    "opweave.ops.convolution": "convolution",
    "opweave.ops.elementwise": "elementwise",
    "opweave.ops.indexing": "indexing",
    "opweave.ops.logical": "logical",
    "opweave.ops.matrix": "matrix",
    "opweave.ops.movement": "movement",
    "opweave.ops.normalization": "normalization",
    "opweave.ops.pooling": "pooling",
    "opweave.ops.quantization": "quantization",
    "opweave.ops.recurrent": "recurrent",
    "opweave.ops.reduction": "reduction",
    "opweave.composites.attention": "attention",
    "opweave.composites.convolve": "convolution",
    "opweave.composites.grid": "sampling",
    "opweave.composites.normalization": "normalization",
    "opweave.composites.pool": "pooling",
    "opweave.composites.rotary": "attention",
    "opweave.composites.scatter": "indexing",
    "opweave.composites.single_gate": "recurrent",
}
