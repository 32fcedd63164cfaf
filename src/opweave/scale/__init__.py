"""Models on more than one machine: clusters copy `Predictor` and `deployment` to their processes.

    from opweave.scale import Predictor, deployment

    predict = Predictor("model.onnx", inputs={"image": "x"})   # {column: input}
    predict({"image": images})                                 # in this process; docs/scale.md: in the actors of Ray
    ray.serve.run(deployment("model.onnx"))                    # for clients of the Open Inference Protocol

Ray is imported only on use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..support.errors import import_extra
from .predictor import Predictor as Predictor

if TYPE_CHECKING:  # at run time `__getattr__` imports it, since it imports Ray
    from .serving import deployment as deployment

__all__ = ["Predictor", "deployment"]


def __getattr__(name: str) -> Any:
    if name != "deployment":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for package in ("ray", "fastapi"):  # fastapi comes with ray[serve]
        import_extra(package, "scale", "opweave.scale.deployment")
    from .serving import deployment

    return deployment


def __dir__() -> list[str]:
    return [*(name for name in globals() if name.startswith("__")), *__all__]
