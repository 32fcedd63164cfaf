"""Language models for clients of OpenAI's API: chat completions, completions and models, also in streams.

The API: https://platform.openai.com/docs/api-reference. A model has one decoder, so requests for it run one after the other,
in the order in which they come.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from time import perf_counter, time
from typing import Any
from uuid import uuid4

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request as HTTPRequest
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Match, Route

from ..chat import Decoder, Grammar, Reply, Sampler, Vocabulary
from ..chat.generation import generate
from ..scale.http import body_of, kind_of
from ..support.cache import Cache
from ..support.errors import MLError, ValidationError, require
from ..support.names import short_repr
from .metrics import ServerMetrics

MAX_BODY_BYTES = 1 << 24
"""Maximum bytes of a request: a text of `MAX_TEXT` characters fits."""

DEFAULT_CHAT_TOKENS = 1024
"""Maximum tokens of a reply that names no maximum, as in `opweave chat`."""

DEFAULT_TOKENS = 16
"""Maximum tokens of a completion that names no maximum, as in OpenAI's API."""

MAX_STOP = 16
"""Maximum number of texts at which a reply stops."""

MAX_SAMPLERS = 8
"""Number of combinations of options whose graphs are kept."""

MAX_GRAMMARS = 16
"""Number of schemas whose grammars are kept."""

SAMPLING = {"temperature": 0.8, "top_p": 0.95, "top_k": 40, "min_p": 0.0, "repetition_penalty": 1.0}
"""Options of `Sampler` that a request may have, and their defaults: those of `opweave chat`."""

SPELLINGS = {"repetition_penalty": "repeat_penalty", "max_tokens": "max_completion_tokens"}
"""Options -> their names in llama.cpp's server, and in newer versions of OpenAI's API."""

log = logging.getLogger("opweave")

REFUSED: Mapping[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "best_of": (None, 1),
    "logprobs": (None, False, 0),
    "top_logprobs": (None, 0),
    "logit_bias": (None, {}),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "tools": (None, []),
    "functions": (None, []),
    "echo": (None, False),
    "suffix": (None, ""),
    "audio": (None,),
    "modalities": (None, ["text"]),
}
"""Options that would change the result and are not supported, and the values that change nothing."""

LanguageModels = Mapping[str, tuple[Decoder, Vocabulary]]


class RequestError(Exception):
    """An error with a status and a code of OpenAI's API."""

    def __init__(self, text: str, status: int = 400, code: str | None = None) -> None:
        super().__init__(text)
        self.status, self.code = status, code


class _NotServed:
    """An ASGI application for addresses that are not served: `Route` passes requests of all methods to it.

    As Starlette does, it redirects a path that is served without the slash at its end.
    """

    def __init__(self, served: Sequence[Route]) -> None:
        self._served = served

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        http = HTTPRequest(scope)
        other = {**scope, "path": http.url.path.removesuffix("/")}
        if other["path"] != http.url.path and any(route.matches(other)[0] is Match.FULL for route in self._served):
            response = _without_slash(http)
        else:
            there = "POST /v1/chat/completions, POST /v1/completions, GET /v1/models"
            text = f"there is no {http.method} {short_repr(http.url.path)} here, only {there}"
            response = _error_response(RequestError(text, 404))
        await response(scope, receive, send)


def _without_slash(http: HTTPRequest) -> Response:
    return RedirectResponse(http.url.replace(path=http.url.path.removesuffix("/")))


@dataclass
class Completion:
    """A request and its reply.

    Attributes:
        encode: makes the tokens of the prompt, in the thread of the model.
        sampling: options of `Sampler`.
        seed: the seed of the random numbers.
        limit: maximum number of tokens.
        stop: texts at which the reply stops.
        schema: a JSON schema that the reply fits; {} for any JSON object.
        reply: counts of tokens, and the reason for the end.
        prompt: number of tokens of the prompt.
        is_cancelled: whether nobody waits for the reply.
        parts: the parts of the reply, then None; or an error.
    """

    encode: Callable[[], list[int]]
    sampling: Mapping[str, float]
    seed: int | None
    limit: int
    stop: Sequence[str]
    schema: Mapping[str, Any] | None
    reply: Reply = field(default_factory=lambda: Reply(0))
    prompt: int = 0
    is_cancelled: bool = False
    parts: asyncio.Queue[str | Exception | None] = field(default_factory=asyncio.Queue)


class CompletionQueue:
    """Runs the requests for one model, one after the other.

    Attributes:
        count: the number of requests that wait or run.
    """

    def __init__(self, decoder: Decoder, vocabulary: Vocabulary) -> None:
        self.decoder, self.vocabulary = decoder, vocabulary
        self.count = 0
        self._samplers: Cache[tuple[tuple[str, float], ...], Sampler] = Cache(MAX_SAMPLERS)
        self._grammars: Cache[str, Grammar] = Cache(MAX_GRAMMARS)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="opweave-chat")

    def close(self) -> None:
        """Let the thread end."""
        self._thread.shutdown(wait=False)

    def submit(self, completion: Completion) -> None:
        """Run a request after those before it."""
        loop = asyncio.get_running_loop()

        def put(part: str | Exception | None) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(completion.parts.put_nowait, part)

        def run() -> None:
            try:
                if not completion.is_cancelled:
                    self._generate(completion, put)
                put(None)
            except Exception as error:
                put(error)

        self._thread.submit(run)

    def _generate(self, completion: Completion, put: Callable[[str], None]) -> None:
        tokens, room = completion.encode(), self.decoder.room
        completion.prompt = len(tokens)
        if not 0 < len(tokens) < room:
            text = f"the prompt must have 1 to {room - 1} tokens, as the context has {room}, got {len(tokens)}"
            raise RequestError(text, code="context_length_exceeded" if tokens else None)
        sampler = self._sampler(completion.sampling)
        sampler.reseed(completion.seed)
        grammar = None if completion.schema is None else self._grammar(completion.schema)
        parts = generate(
            self.decoder,
            self.vocabulary,
            tokens,
            sampler,
            completion.reply,
            limit=completion.limit,
            stop=completion.stop,
            grammar=grammar,
        )
        with closing(parts):
            for part in parts:
                put(part)
                if completion.is_cancelled:
                    break

    def _sampler(self, options: Mapping[str, float]) -> Sampler:
        key = tuple(sorted(options.items()))
        sampler = self._samplers.get(key)
        return self._samplers.put(key, Sampler(**options)) if sampler is None else sampler  # type: ignore[arg-type]

    def _grammar(self, schema: Mapping[str, Any]) -> Grammar:
        key = json.dumps(schema, sort_keys=True)
        grammar = self._grammars.get(key)
        if grammar is None:
            grammar = self._grammars.put(key, Grammar(self.vocabulary, schema or None))
        return grammar


class ChatRoutes:
    """The routes of language models.

    Args:
        models: a decoder and a vocabulary by name.
        metrics: the counters.
        max_body: maximum bytes of a request.
        max_requests: maximum number of requests of a model at a time.
        defaults: options of requests that do not name them: those of `SAMPLING`, and `max_tokens` of a chat.
    """

    def __init__(
        self,
        models: LanguageModels,
        metrics: ServerMetrics,
        max_body: int,
        max_requests: int,
        defaults: Mapping[str, Any],
    ) -> None:
        self._defaults = {**SAMPLING, "max_tokens": DEFAULT_CHAT_TOKENS}
        for name, value in defaults.items():
            require(name in self._defaults, f"defaults may have {[*self._defaults]}, got {short_repr(name)}")
            self._defaults[name] = value
        self._completion({}, list, self._defaults["max_tokens"], None)  # refuses wrong values
        rule = "language_models must map names to pairs of a Decoder and a Vocabulary, got "
        require(isinstance(models, Mapping), f"{rule}{short_repr(models)}")
        for parts in models.values():
            is_pair = isinstance(parts, (tuple, list)) and len(parts) == 2
            require(
                is_pair and isinstance(parts[0], Decoder) and isinstance(parts[1], Vocabulary),
                f"{rule}{short_repr(parts)}",
            )
        self._queues = {name: CompletionQueue(*parts) for name, parts in models.items()}
        self._metrics, self._created = metrics, int(time())
        self._max_body, self._max_requests = min(max_body, MAX_BODY_BYTES), max_requests
        for name, queue in self._queues.items():
            metrics.observe_chat(name, lambda queue=queue: queue.count)  # type: ignore[misc]

    @property
    def names(self) -> list[str]:
        """The names of the models."""
        return [*self._queues]

    def close(self) -> None:
        """Let the threads end."""
        for queue in self._queues.values():
            queue.close()

    def routes(self) -> list[Route]:
        """The routes."""
        served = self._served()
        return [
            *served,
            *(Route(path, _NotServed(served)) for path in ("/v1", "/v1/{path:path}")),
        ]

    def _served(self) -> list[Route]:
        return [
            Route("/v1/chat/completions", self._answering(self._chat), methods=["POST"]),
            Route("/v1/completions", self._answering(self._text), methods=["POST"]),
            Route("/v1/models", self._listing),
            Route("/v1/models/{name:path}", self._answering(self._model)),
        ]

    def _answering(self, handler: Callable[[HTTPRequest], Awaitable[Response]]) -> Callable[[HTTPRequest], Any]:
        """Wrap a handler, so that errors have the form of OpenAI's API."""

        async def answer(http: HTTPRequest) -> Response:
            try:
                return await handler(http)
            except Exception as error:
                if not isinstance(error, (RequestError, MLError, HTTPException, ClientDisconnect)):
                    self._metrics.add_error(kind_of(error))
                    log.exception("a request for a language model failed")
                return _error_response(error)

        return answer

    async def _listing(self, http: HTTPRequest) -> Response:
        return JSONResponse({"object": "list", "data": [self._entry(name) for name in self._queues]})

    async def _model(self, http: HTTPRequest) -> Response:
        name = http.path_params["name"]
        if name not in self._queues and (name == "" or name.removesuffix("/") in self._queues):
            return _without_slash(http)
        self._queue(name)
        return JSONResponse(self._entry(name))

    def _entry(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._created, "owned_by": "opweave"}

    def _queue(self, name: Any) -> CompletionQueue:
        queue = self._queues.get(name) if isinstance(name, str) else None
        if queue is None:
            text = f"there is no model {short_repr(name)} here; the models are {self.names}"
            raise RequestError(text, 404, "model_not_found")
        return queue

    async def _read(self, http: HTTPRequest) -> dict[str, Any]:
        body = await body_of(http, self._max_body)
        try:
            message = json.loads(body, parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"the request is not JSON: {error}") from None
        if not isinstance(message, dict):
            raise RequestError(f"the request must be a JSON object, got {short_repr(message)}")
        for name, values in REFUSED.items():
            if name in message and message[name] not in values:
                raise RequestError(f"{name} is not supported here, got {short_repr(message[name])}")
        return message

    async def _chat(self, http: HTTPRequest) -> Response:
        message = await self._read(http)
        queue = self._queue(message.get("model"))
        messages, vocabulary = _messages(message.get("messages")), queue.vocabulary
        completion = self._completion(
            message,
            lambda: vocabulary.encode(vocabulary.render(messages)),
            self._defaults["max_tokens"],
            _schema(message.get("response_format")),
        )
        return await self._run(http, message, queue, completion, is_chat=True)

    async def _text(self, http: HTTPRequest) -> Response:
        message = await self._read(http)
        queue, prompt = self._queue(message.get("model")), message.get("prompt")
        if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
            prompt = prompt[0]
        vocabulary, words = queue.vocabulary, queue.decoder.model.sizes.words

        def encode() -> list[int]:
            if not isinstance(prompt, list):
                return vocabulary.encode(prompt)  # type: ignore[arg-type]  # which refuses what is no text
            fits = all(isinstance(k, int) and not isinstance(k, bool) and 0 <= k < words for k in prompt)
            require(fits, f"prompt must be a text, or tokens in [0, {words}), got {short_repr(prompt)}")
            return list(prompt)

        completion = self._completion(message, encode, DEFAULT_TOKENS, None)
        return await self._run(http, message, queue, completion, is_chat=False)

    def _completion(
        self,
        message: Mapping[str, Any],
        encode: Callable[[], list[int]],
        default_limit: Any,
        schema: Mapping[str, Any] | None,
    ) -> Completion:
        """Check the options of a request."""
        title, limit = _option(message, "max_tokens", default_limit)
        is_count = isinstance(limit, int) and not isinstance(limit, bool) and limit > 0
        require(is_count, f"{title} must be a positive integer, got {short_repr(limit)}")
        stop = message.get("stop")
        texts = [stop] if isinstance(stop, str) else [] if stop is None else stop
        fits = isinstance(texts, list) and len(texts) <= MAX_STOP and all(isinstance(t, str) and t for t in texts)
        require(fits, f"stop must be a text, or a list of at most {MAX_STOP}, got {short_repr(stop)}")
        options = {name: _option(message, name, self._defaults[name]) for name in SAMPLING}
        sampling = {name: value for name, (_, value) in options.items()}
        try:
            Sampler(**sampling)  # refuses values out of range
        except ValidationError as error:
            name, space, text = str(error).partition(" ")
            raise ValidationError(f"{options[name][0]}{space}{text}") from None
        seed = message.get("seed")
        is_seed = seed is None or (isinstance(seed, int) and not isinstance(seed, bool))
        require(is_seed, f"seed must be an integer, got {short_repr(seed)}")
        return Completion(encode, sampling, None if seed is None else seed % (1 << 64), limit, texts, schema)

    async def _run(
        self,
        http: HTTPRequest,
        message: Mapping[str, Any],
        queue: CompletionQueue,
        completion: Completion,
        *,
        is_chat: bool,
    ) -> Response:
        name, start = message["model"], perf_counter()
        form = _ResponseForm(name, is_chat=is_chat)
        is_stream = _flag(message, "stream")
        options = message.get("stream_options") or {}
        require(isinstance(options, dict), f"stream_options must be an object, got {short_repr(options)}")
        has_usage = _flag(options, "include_usage")
        if queue.count >= self._max_requests:
            self._metrics.add_chat(name, 0, "HTTP503")
            raise RequestError(f"the model {name!r} has {queue.count} requests already; try again later", 503)
        queue.count += 1
        queue.submit(completion)
        watch = asyncio.create_task(_watch(http, completion))

        is_ended = False

        def end(error: Exception | None = None) -> None:
            nonlocal is_ended
            if is_ended:
                return
            is_ended = True
            queue.count -= 1
            completion.is_cancelled = True
            watch.cancel()
            self._metrics.add_tokens(name, completion.reply.read, completion.reply.written)
            self._metrics.add_chat(name, perf_counter() - start, "" if error is None else _kind_of(error))

        try:
            # Errors of the prompt and of options come before the first part, while there is still a status to send.
            first = await _next_part(completion)
            if not is_stream:
                parts, part = [], first
                while part is not None:
                    parts.append(part)
                    part = await _next_part(completion)
                end()
                return JSONResponse(form.whole("".join(parts), completion))
        except BaseException as error:
            end(error if isinstance(error, Exception) else ClientDisconnect())
            raise

        async def stream() -> AsyncIterator[bytes]:
            try:
                part = first
                if is_chat:
                    yield form.chunk({"role": "assistant", "content": ""})
                while part is not None:
                    if part:
                        yield form.chunk(part)
                    part = await _next_part(completion)
                yield form.chunk(None, _finish(completion.reply))
                if has_usage:
                    yield form.usage(completion)
                yield b"data: [DONE]\n\n"
                end()
            except Exception as error:
                end(error)
                if not isinstance(error, (MLError, RequestError)):
                    log.exception("a request for a language model failed")
                yield b"data: %s\n\n" % json.dumps({"error": _error_of(error)}).encode()

        return EventStream(stream(), lambda: end(ClientDisconnect()))


def _option(message: Mapping[str, Any], name: str, default: Any) -> tuple[str, Any]:
    """The name that a request has for an option, and its value. Null is the default; values of two names must be equal."""
    names = [title for title in (name, SPELLINGS.get(name)) if title is not None and message.get(title) is not None]
    if not names:
        return name, default
    values = [message[title] for title in names]
    rule = f"{' and '.join(names)} must be equal, got {' and '.join(map(short_repr, values))}"
    require(all(value == values[0] for value in values), rule)
    return names[0], values[0]


class EventStream(StreamingResponse):
    """A response of server-sent events.

    Args:
        events: the events.
        on_end: called when the response has ended, also if the client left before the first event.
    """

    def __init__(self, events: AsyncIterator[bytes], on_end: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._on_end = on_end

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Send the events."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()


async def _next_part(completion: Completion) -> str | None:
    part = await completion.parts.get()
    if isinstance(part, Exception):
        raise part
    return part


async def _watch(http: HTTPRequest, completion: Completion) -> None:
    """End a request whose client leaves."""
    while (await http.receive())["type"] != "http.disconnect":
        pass
    completion.is_cancelled = True


class _ResponseForm:
    """The JSON of responses."""

    def __init__(self, model: str, *, is_chat: bool) -> None:
        kind, prefix = ("chat.completion", "chatcmpl") if is_chat else ("text_completion", "cmpl")
        self._is_chat, self._kind = is_chat, kind
        self._about = {"id": f"{prefix}-{uuid4().hex}", "created": int(time()), "model": model}

    def whole(self, text: str, completion: Completion) -> dict[str, Any]:
        """The response with all of a reply."""
        message = {"role": "assistant", "content": text, "refusal": None}
        content: dict[str, Any] = {"message": message} if self._is_chat else {"text": text}
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": _finish(completion.reply)}
        return {**self._about, "object": self._kind, "choices": [choice], "usage": _usage(completion)}

    def chunk(self, part: str | dict[str, str] | None, finish: str | None = None) -> bytes:
        """An event of a stream with a part of the reply, or with the reason for its end."""
        if self._is_chat:
            delta = {"content": part} if isinstance(part, str) else part or {}
            content: dict[str, Any] = {"delta": delta}
        else:
            content = {"text": part or ""}
        return self._event([{"index": 0, **content, "logprobs": None, "finish_reason": finish}])

    def usage(self, completion: Completion) -> bytes:
        """The last event, with the counts of tokens."""
        return self._event([], usage=_usage(completion))

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        kind = f"{self._kind}.chunk" if self._is_chat else self._kind
        data = {**self._about, "object": kind, "choices": choices, **more}
        return b"data: %s\n\n" % json.dumps(data, ensure_ascii=False).encode()


def _finish(reply: Reply) -> str:
    return "length" if reply.end in ("limit", "full") else "stop"


def _usage(completion: Completion) -> dict[str, Any]:
    written = completion.reply.written
    return {
        "prompt_tokens": completion.prompt,
        "completion_tokens": written,
        "total_tokens": completion.prompt + written,
        "prompt_tokens_details": {"cached_tokens": completion.prompt - completion.reply.read},
    }


# Options of a request ---------------------------------------------------------------------------------------------------


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON")


def _flag(message: Mapping[str, Any], name: str) -> bool:
    value = message.get(name)
    require(value is None or isinstance(value, bool), f"{name} must be true or false, got {short_repr(value)}")
    return bool(value)


def _messages(messages: Any) -> list[dict[str, Any]]:
    """The messages for a chat template: contents in parts become one text."""
    require(
        isinstance(messages, list) and bool(messages), f"messages must be a list of objects, got {short_repr(messages)}"
    )
    plain = []
    for message in messages:
        fits = isinstance(message, dict) and isinstance(message.get("role"), str)
        require(fits, f"each message must be an object with a role, got {short_repr(message)}")
        role, content = message["role"], message.get("content")
        if isinstance(content, list):
            for part in content:
                is_text = isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
                require(is_text, f"parts of a message must be texts, got {short_repr(part)}")
            content = "".join(part["text"] for part in content)
        require(isinstance(content, str), f"the content of a message must be a text, got {short_repr(content)}")
        plain.append({**message, "role": "system" if role == "developer" else role, "content": content})
    return plain


def _schema(form: Any) -> Mapping[str, Any] | None:
    """The JSON schema of `response_format`: {} for any object, None for any text."""
    if form is None:
        return None
    kind = form.get("type") if isinstance(form, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return {}
    entry = form.get("json_schema") if kind == "json_schema" else None
    schema = entry.get("schema") if isinstance(entry, dict) else None
    rule = "response_format must have the type text, json_object or json_schema (with json_schema.schema)"
    require(isinstance(schema, dict) and bool(schema), f"{rule}, got {short_repr(form)}")
    return dict(schema or {})


# Errors -----------------------------------------------------------------------------------------------------------------


def _kind_of(error: Exception) -> str:
    return f"HTTP{error.status}" if isinstance(error, RequestError) else kind_of(error)


def _status_of(error: Exception) -> int:
    if isinstance(error, HTTPException):
        return int(error.status_code)
    return error.status if isinstance(error, RequestError) else 400 if isinstance(error, MLError) else 500


def _error_of(error: Exception) -> dict[str, Any]:
    status = _status_of(error)
    text = str(error.detail) if isinstance(error, HTTPException) else str(error)
    if status == 500:
        text = f"{type(error).__name__}: {text}"
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"message": text[:4000], "type": kind, "param": None, "code": getattr(error, "code", None)}


def _error_response(error: Exception) -> Response:
    if isinstance(error, ClientDisconnect):
        return Response(status_code=400)  # nobody reads it
    headers = {"Retry-After": "1"} if _status_of(error) == 503 else None
    return JSONResponse({"error": _error_of(error)}, _status_of(error), headers)
