"""The command line.

`opweave demo | run | info | bench | profile | tune | diff | convert | exec`
`opweave chat | deploy | serve | cache | devices | ops | doctor`
"""

from __future__ import annotations

from .entry import app as app, main as main
