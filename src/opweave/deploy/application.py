"""The HTTP application of a server on one machine: several models and versions, metrics, a page for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ..scale.examples import example_shapes
from ..scale.http import EXCEPTION_HANDLERS, ProtocolRoutes, ServedModel, compression, kind_of
from ..scale.protocol import HEADER_LENGTH
from ..support.errors import MLError
from ..support.names import short_repr
from .metrics import ServerMetrics

if TYPE_CHECKING:
    from .completions import ChatRoutes

POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; " \
         "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"  # fmt: skip
"""The page runs its own script alone."""

PICTURE_POLICY = "default-src 'none'; style-src 'unsafe-inline'"

PAGE_FILES = {
    "/": ("page.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
}

EXAMPLE_SIZES = (1, 8, 64, 224)
"""Sizes of dynamic dimensions to try for the drawing of a model, and for an example: images need more than 1."""

MAX_EXAMPLE_ELEMENTS = 1 << 22
"""Maximum number of elements of an example, which the page sends as JSON: 8 MB of text."""

Versions = Mapping[str, ServedModel]


class ServerRoutes(ProtocolRoutes):
    """The routes of a server.

    Args:
        models: the versions of each model by name.
        metrics: the counters.
        chats: the routes of language models, if there are any.
    """

    def __init__(self, models: Mapping[str, Versions], metrics: ServerMetrics, chats: ChatRoutes | None = None) -> None:
        self._models, self._metrics, self._chats = models, metrics, chats
        self._pictures: dict[tuple[str, str], str | MLError] = {}
        for versions in models.values():
            for model in versions.values():
                metrics.observe(model)

    def find(self, http: HTTPRequest) -> ServedModel:
        """The model that a URL names; without a version the latest one."""
        name, version = http.path_params["name"], http.path_params.get("version")
        versions = self._models.get(name)
        if versions is None:
            self._metrics.add_error("HTTP404")
            raise HTTPException(404, f"there is no model {short_repr(name)} here; the models are {[*self._models]}")
        if version is None:
            return versions[latest(versions)]
        if version not in versions:
            self._metrics.add_error("HTTP404")
            raise HTTPException(404, f"the model {name!r} has no version {short_repr(version)}, only {[*versions]}")
        return versions[version]

    def versions_of(self, model: ServedModel) -> list[str]:
        """All versions of a model."""
        return [*self._models[model.name]]

    async def states_of(self, http: HTTPRequest) -> list[tuple[ServedModel, list[dict[str, Any]]]]:
        """The statistics of one version, of all versions of a model, or of all models."""
        if "version" in http.path_params:
            models = [self.find(http)]
        elif "name" in http.path_params:
            models = [*self._models[self.find(http).name].values()]
        else:
            models = [model for versions in self._models.values() for model in versions.values()]
        return [(model, [model.statistics.state()]) for model in models]

    def application(self, origins: Sequence[str]) -> Starlette:
        """The routes, and what surrounds them."""
        routes = [
            *self.routes(),
            *(self._chats.routes() if self._chats is not None else ()),
            Route("/metrics", self._text_of_metrics),
            Route("/v2/models", self._listing),
            Route("/v2/repository/index", self._index, methods=["POST"]),
            Route("/v2/models/{name}/picture", self._picture),
            Route("/v2/models/{name}/versions/{version}/picture", self._picture),
            *(Route(path, self._page) for path in PAGE_FILES),
        ]
        middleware = [compression()]
        if origins:
            exposed = [HEADER_LENGTH]
            middleware.insert(
                0,
                Middleware(
                    CORSMiddleware,
                    allow_origins=[*origins],
                    allow_methods=["GET", "POST"],
                    allow_headers=["*"],
                    expose_headers=exposed,
                ),
            )
        handlers = dict(EXCEPTION_HANDLERS)
        handlers[Exception] = self._fail
        return Starlette(routes=routes, middleware=middleware, exception_handlers=handlers)

    async def _fail(self, http: HTTPRequest, error: Exception) -> Response:
        """Answer a defect; inference requests have counted it."""
        if not http.url.path.endswith("/infer"):
            self._metrics.add_error(kind_of(error))
        response: Response = EXCEPTION_HANDLERS[Exception](http, error)
        return response

    async def _text_of_metrics(self, http: HTTPRequest) -> Response:
        content, media_type = self._metrics.text(http.headers.get("accept", ""))
        return Response(content, media_type=media_type)

    async def _index(self, http: HTTPRequest) -> Response:
        """The models, as in Triton's extension for repositories."""
        entries = [
            {"name": name, "version": version, "state": "READY", "reason": ""}
            for name, versions in self._models.items()
            for version in versions
        ]
        return JSONResponse(entries)

    async def _listing(self, http: HTTPRequest) -> Response:
        """The metadata of all models, for the page: with shapes of examples, of which the first that fit are right."""
        models = [
            {**model.interface.metadata([version]), "examples": _examples(model)}
            for versions in self._models.values()
            for version, model in versions.items()
        ]
        chats = [] if self._chats is None else self._chats.names
        return JSONResponse({"models": models, "language_models": chats})

    async def _picture(self, http: HTTPRequest) -> Response:
        """A drawing of the model as SVG."""
        model = self.find(http)
        key = model.name, model.version
        if key not in self._pictures:

            def draw() -> str | MLError:
                try:
                    return _drawing_of(model)
                except MLError as error:  # kept, too: each try compiles the model
                    return error

            self._pictures[key] = await model.in_reader(draw)
        drawing = self._pictures[key]
        if isinstance(drawing, MLError):
            # The error is kept: without this, each answer would lengthen its traceback, which holds the frames of requests.
            raise drawing.with_traceback(None)
        headers = {"Content-Security-Policy": PICTURE_POLICY, "X-Content-Type-Options": "nosniff"}
        return Response(drawing, media_type="image/svg+xml", headers=headers)

    async def _page(self, http: HTTPRequest) -> Response:
        name, media_type = PAGE_FILES[http.url.path]
        content = files(__package__).joinpath(name).read_bytes()
        headers = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"}
        return Response(content, media_type=f"{media_type}; charset=utf-8", headers=headers)


def latest(versions: Mapping[str, Any]) -> str:
    """The version with the largest number; of versions that are no numbers, the last one."""
    return max(versions, key=lambda version: (int(version) if version.isdecimal() else -1, [*versions].index(version)))


def _examples(model: ServedModel) -> list[dict[str, list[int]]]:
    shapes = [example_shapes(model.interface, size) for size in EXAMPLE_SIZES]
    if shapes[0] == shapes[-1]:
        return shapes[:1]
    return [example for example in shapes if sum(map(prod, example.values())) <= MAX_EXAMPLE_ELEMENTS] or shapes[:1]


def _drawing_of(model: ServedModel) -> str:
    """Draw a model, for the first sizes of its dynamic dimensions that fit it."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "model.svg")
        for size in EXAMPLE_SIZES[:-1]:
            with suppress(MLError):
                return str(model.session.draw(path, input_shapes=example_shapes(model.interface, size)))
        return str(model.session.draw(path, input_shapes=example_shapes(model.interface, EXAMPLE_SIZES[-1])))
