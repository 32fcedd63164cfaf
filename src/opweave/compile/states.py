"""What is said of engines that may run a graph, and that nothing is known of: apart, for it is all that most sessions need."""

from __future__ import annotations

YET = "not verified yet"
"""What `explain` says of a rival that is verified once the graph was used for some seconds."""


SWITCHED_OFF = "not verified: switched off"
"""The same where `OPWEAVE_VERIFY=0` or `verify=False` says so: `tune` compares and measures engines then."""
