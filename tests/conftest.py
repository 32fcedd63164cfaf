"""What all tests share."""

from __future__ import annotations

import os

os.environ.setdefault("OPWEAVE_STRICT", "1")  # faults of converters are raised, and do not hide behind fallback
