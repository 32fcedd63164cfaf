"""What all tests share."""

from __future__ import annotations

import os

os.environ.setdefault("OPWEAVE_STRICT", "1")  # faults of converters are raised, and do not hide behind fallback

try:
    from hypothesis import HealthCheck, settings
except ImportError:  # the environment of `make test-torch` has none
    pass
else:
    # The same examples on each machine, however fast it is: bounded by their number, with seeds made from the tests' names.
    settings.register_profile(
        "same everywhere", deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )
    settings.load_profile("same everywhere")
