"""The table of the rules that all GPUs share; the rules are in `rules`."""

from __future__ import annotations

from ..rule_table import RuleTable


class GpuRules(RuleTable):
    """Rules that are written once for all GPUs. Each back end of a GPU begins with a copy of this table."""

    name = "gpu"


gpu = GpuRules()
