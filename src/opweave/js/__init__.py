"""Write graphs as JavaScript modules for WebNN, which run in browsers, and in Node.js on `opweave serve`.

    ow.js.save(graph, "model.mjs")  # and model.safetensors, its weights, and model.d.mts, its types

In JavaScript:

    import { build } from "./model.mjs";
    const context = await navigator.ml.createContext();
    const graph = await build(context);
"""

from __future__ import annotations

from .api import SUFFIXES as SUFFIXES, save, webnn_only as webnn_only

__all__ = ["save"]


def __dir__() -> list[str]:
    return [*(name for name in globals() if name.startswith("__")), *__all__]
