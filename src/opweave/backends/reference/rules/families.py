"""Modules of rules by the module that declares their operations. They are imported when a rule is first looked up."""

from __future__ import annotations

from collections.abc import Mapping

from ...rule_table import OPERATIONS

FAMILIES: Mapping[str, str] = {
    **OPERATIONS,
    "opweave.composites.bits": "elementwise",
    "opweave.composites.convolve": "convolution",
    "opweave.composites.pool": "pooling",
    "opweave.composites.scatter": "indexing",
    "opweave.composites.suppression": "selection",
}
