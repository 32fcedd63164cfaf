"""Settings of Ray Serve, which reads them when it is imported."""

from __future__ import annotations

import os

# Seconds. Serve ends its proxies if they take longer to start: with the default of 5, again and again on a busy machine.
os.environ.setdefault("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60")
