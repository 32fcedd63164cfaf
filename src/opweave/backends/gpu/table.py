"""The table of the rules that all GPU back ends share; `rules` fills it."""

from __future__ import annotations

from ..rule_table import RuleTable


class GpuRules(RuleTable):
    """Rules for all GPUs. Each GPU back end starts with a copy of this table."""

    name = "gpu"


gpu = GpuRules()
