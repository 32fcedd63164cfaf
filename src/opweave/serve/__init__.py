"""`navigator.ml` for browsers and Node.js: web code that uses WebNN runs on Opweave, on the same machine.

    from opweave.serve import Server

    with Server(port=0, origins=["http://localhost:5173"]) as server:
        page.add_init_script(server.script)  # Playwright: before the scripts of the page
        page.goto("http://localhost:5173")
        print(server.stats())

A script in the page, `webnn.js`, defines the interfaces of WebNN and sends calls to the server, which calls Opweave. Tensor
data is received into the memory of the tensor, and sent from there, without a copy in Python.
"""

from __future__ import annotations

from .counts import Counts as Counts
from .limits import ConnectionLimits as ConnectionLimits
from .server import Server as Server

__all__ = ["ConnectionLimits", "Counts", "Server"]


def __dir__() -> list[str]:
    return [*(name for name in globals() if name.startswith("__")), *__all__]
