"""An ONNX model as a Ray Serve application that implements the Open Inference Protocol v2 over HTTP."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from ray import serve
from ray.serve import Application
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HTTPRequest

from ..backends import PRECISIONS, Precision
from ..onnx.model.protobuf import ModelProto
from ..support.errors import require
from ..support.names import short_repr
from . import protocol
from .http import EXCEPTION_HANDLERS, ProtocolRoutes, ServedModel, compression
from .predictor import is_gpu, open_session
from .protocol import Interface, ModelFile

MAX_ONGOING = 100
"""Maximum number of requests in a replica, unless two batches have more; further requests wait in Ray's proxy."""


def deployment(
    model: ModelFile,
    *,
    name: str | None = None,
    batch: int = 8,
    wait: float = 0.005,
    threads: int = 1,
    device: str = "cpu",
    precision: Precision = "float32",
    gpus: float = 1,
    operations: str | Callable[[], object] | None = None,
    replicas: int = 1,
    max_body: int = protocol.MAX_BODY_BYTES,
    max_json: int = protocol.MAX_JSON_BYTES,
) -> Application:
    """Create a Ray Serve application that runs an ONNX model for clients of the Open Inference Protocol v2.

    Args:
        model: the path of an `.onnx` file, which each node of the cluster must have, or the bytes of one, or a ModelProto.
        name: the model's name in requests: letters, digits, ".", "_" and "-". Default: that of the file.
        batch: maximum number of rows of a batch of several requests; 1 runs each request alone. Requests for models whose
            first dimension is fixed always run alone.
        wait: seconds that a request waits for others to form a batch.
        threads: threads of each replica; Ray reserves as many CPUs.
        device: where to run, as in `create_context`. With "gpu", a replica runs on the GPU that Ray has reserved for it.
        precision: how engines compute float32 operations, as in `create_context`.
        gpus: the share of a GPU that Ray reserves for each replica on a GPU; two replicas with 0.5 share a GPU.
        operations: declares custom operations in each replica: the name of a module to import, or a function to call, as for
            `Predictor`.
        replicas: number of processes that run the model.
        max_body: maximum bytes of the body of a request, both compressed and uncompressed.
        max_json: maximum bytes of memory for reading the JSON and the strings of a request.

    Returns:
        An application for `ray.serve.run`.

    Raises:
        DataError: the model cannot be read.
        ValidationError: an argument is wrong.
        NotSupportedError: the protocol has no type for an input or output of the model.
    """
    counts = {"batch": batch, "threads": threads, "replicas": replicas, "max_body": max_body, "max_json": max_json}
    for option, value in counts.items():
        is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        require(is_count, f"{option} must be a positive integer, got {short_repr(value)}")
    is_time = isinstance(wait, (int, float)) and not isinstance(wait, bool) and 0 <= wait < float("inf")
    require(is_time, f"wait must be a number of seconds, got {short_repr(wait)}")
    require(isinstance(device, str), f"device must be a name, got {short_repr(device)}")
    choices = ", ".join(map(repr, PRECISIONS))
    require(precision in PRECISIONS, f"precision must be one of {choices}, got {short_repr(precision)}")
    is_share = (
        isinstance(gpus, (int, float))
        and not isinstance(gpus, bool)
        and (0 < gpus <= 1 or (gpus > 1 and float(gpus).is_integer()))
    )
    require(is_share, f"gpus must be a part of 1, or a number of whole GPUs, got {short_repr(gpus)}")
    interface = Interface.load(model, name)
    ray_deployment = serve.deployment(
        Replica,
        name=interface.name,
        num_replicas=replicas,
        ray_actor_options={"num_cpus": threads, "num_gpus": gpus if is_gpu(device) else 0},
        max_ongoing_requests=max(MAX_ONGOING, 2 * batch),
        max_constructor_retry_count=3,
    )
    limits = max_body, max_json
    return ray_deployment.bind(
        _portable(model), interface.name, batch, float(wait), threads, device, precision, operations, replicas, limits
    )


def _portable(model: ModelFile) -> str | bytes:
    """Convert a model for replicas: to an absolute path, or to bytes."""
    if isinstance(model, (str, os.PathLike)):
        return os.path.abspath(model)
    return model.SerializeToString() if isinstance(model, ModelProto) else bytes(model)


@serve.ingress()
class Replica(ProtocolRoutes):
    """One process of a deployment: the model, and the HTTP routes of the protocol."""

    def __init__(
        self,
        model: str | bytes,
        name: str,
        batch: int,
        wait: float,
        threads: int,
        device: str,
        precision: Precision,
        operations: str | Callable[[], object] | None,
        replicas: int,
        limits: tuple[int, int],
    ) -> None:
        for handler in logging.getLogger("ray.serve").handlers:  # so that our warnings are in the replica's log
            logging.getLogger("opweave").addHandler(handler)
        session = open_session(model, threads, device, precision, operations)
        max_body, max_json = limits
        own_code = operations is not None
        self._model = ServedModel(
            session, name, batch=batch, max_body=max_body, max_json=max_json, has_own_code=own_code
        )
        self._model.join = serve.batch(max_batch_size=batch, batch_wait_timeout_s=wait)(self._model.run)
        self._replicas = replicas

    def __serve_build_asgi_app__(self) -> Starlette:
        """The HTTP routes; Ray calls this when the replica starts."""
        return Starlette(routes=self.routes(), middleware=[compression()], exception_handlers=EXCEPTION_HANDLERS)

    async def state(self) -> dict[str, Any]:
        """The statistics of this replica, for the replica that answers a client."""
        return self._model.statistics.state()

    async def states_of(self, http: HTTPRequest) -> list[tuple[ServedModel, list[dict[str, Any]]]]:
        """The statistics of all replicas."""
        if "name" in http.path_params:
            self.find(http)
        states = [self._model.statistics.state()]
        if self._replicas > 1:
            place = serve.get_replica_context()
            handle = serve.get_deployment_handle(place.deployment, place.app_name)
            states = await handle.broadcast("state").results_async()
        return [(self._model, states)]

    def find(self, http: HTTPRequest) -> ServedModel:
        """The model, if a URL names it."""
        own, version = self._model.version, http.path_params.get("version", self._model.version)
        name = http.path_params["name"]
        if name != self._model.name:
            place = f"{http.scope.get('root_path', '')}/v2/models/{self._model.name}"
            raise HTTPException(404, f"there is no model {short_repr(name)} here; the model is at {place}")
        if version != own:
            raise HTTPException(404, f"the model {name!r} has no version {short_repr(version)}, only {own!r}")
        return self._model
