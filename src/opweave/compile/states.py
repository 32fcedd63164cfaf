"""States of engines without a verdict. A separate module, because most sessions need nothing else."""

from __future__ import annotations

YET = "not verified yet"
"""State, as `explain` shows it, of a rival that is verified once the graph was used for some seconds."""


SWITCHED_OFF = "not verified: switched off"
"""State of a rival with `OPWEAVE_VERIFY=0` or `verify=False`; `tune` still compares and measures engines."""
