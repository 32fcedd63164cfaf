"""Models over HTTP on one machine, without a cluster: `opweave deploy`, and `opweave chat --serve`.

    from opweave.deploy import ModelServer

    with ModelServer({"classifier": "model.onnx"}) as server:
        print(server.url)

It needs the extra `server`, which is imported only on use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..support.errors import import_extra

if TYPE_CHECKING:  # at run time `__getattr__` imports it, since it imports the packages of the extra
    from .server import ModelServer as ModelServer

__all__ = ["ModelServer"]


def __getattr__(name: str) -> Any:
    if name != "ModelServer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for package in ("starlette", "uvicorn", "httptools", "prometheus_client"):
        import_extra(package, "server", "opweave.deploy.ModelServer")
    from .server import ModelServer

    return ModelServer


def __dir__() -> list[str]:
    return [*(name for name in globals() if name.startswith("__")), *__all__]
