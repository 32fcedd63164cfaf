"""Models on more than one machine: what Ray copies to the processes of a cluster.

Importing this package loads neither Ray nor an engine.
"""

from __future__ import annotations
