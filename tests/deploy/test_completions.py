"""Language models over HTTP, through OpenAI's own client."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from urllib.request import Request, urlopen

import pytest
from support import tiny_models
from support.processes import handle_signals
from typer.testing import CliRunner

import opweave as ow
from opweave.chat import GGUF, Decoder, Model, Sampler, Vocabulary
from opweave.cli import app

pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install 'opweave[server]'")
pytest.importorskip("prometheus_client", reason="prometheus_client is not installed: pip install 'opweave[server]'")
pytest.importorskip("openai", reason="openai is not installed")

import openai

from opweave.deploy import ModelServer

ROOM = 120
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    tiny_models.write(path)
    return path


@pytest.fixture(scope="module")
def server(path: Path) -> Iterator[ModelServer]:
    file = GGUF(path)
    decoder = Decoder(Model(file), ow.ml.create_context(device="cpu"), ROOM)
    models = {"tiny": (decoder, Vocabulary(file))}
    with ModelServer({}, language_models=models, defaults={"max_tokens": 12}, max_requests=8) as made:
        yield made


@pytest.fixture
def client(server: ModelServer) -> Any:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60)


def expected(path: Path, prompt: str, count: int) -> str:
    """The likeliest text that follows a prompt, by a decoder of its own."""
    file = GGUF(path)
    decoder, known = Decoder(Model(file), ow.ml.create_context(device="cpu"), ROOM), Vocabulary(file)
    tokens, sampler, texts = known.encode(prompt), Sampler(temperature=0), known.stream()
    text = ""
    for _ in range(count):
        tokens = [decoder.choose(tokens, sampler)]
        text += texts(tokens[0])
    return text


def prompt_of(content: str) -> str:
    return f"<|start|>user\n{content}<|end|>\n<|start|>assistant\n"


def test_models(client: Any) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "opweave"
    with pytest.raises(openai.NotFoundError, match=r"there is no model 'other' here; the models are \['tiny'\]"):
        client.models.retrieve("other")


def test_chat_completion_equals_decoder(client: Any, path: Path) -> None:
    found = client.chat.completions.create(model="tiny", messages=HI, temperature=0, max_tokens=10)
    assert found.choices[0].message.content == expected(path, prompt_of("hi"), 10)
    assert found.choices[0].finish_reason == "length"
    count = len(Vocabulary(GGUF(path)).encode(prompt_of("hi")))
    assert (found.usage.prompt_tokens, found.usage.completion_tokens, found.usage.total_tokens) == (
        count,
        10,
        count + 10,
    )


def test_stream_equals_whole(client: Any) -> None:
    options = {"model": "tiny", "messages": HI, "temperature": 1.3, "seed": 5, "max_tokens": 20}
    whole = client.chat.completions.create(**options)
    events = list(client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    parts = [event.choices[0].delta.content or "" for event in events if event.choices]
    assert "".join(parts) == whole.choices[0].message.content
    assert events[0].choices[0].delta.role == "assistant"
    assert [event.choices[0].finish_reason for event in events[:-1]] == [None] * (len(events) - 2) + ["length"]
    assert events[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert {event.id for event in events} == {events[0].id}


def test_completion_of_text_and_of_tokens(client: Any, path: Path) -> None:
    wanted = expected(path, "hello", 5)
    for prompt in ("hello", ["hello"], Vocabulary(GGUF(path)).encode("hello")):
        found = client.completions.create(model="tiny", prompt=prompt, temperature=0, max_tokens=5)
        assert (found.choices[0].text, found.object) == (wanted, "text_completion")
    parts = client.completions.create(model="tiny", prompt="hello", temperature=0, max_tokens=5, stream=True)
    assert "".join(part.choices[0].text for part in parts) == wanted
    assert client.completions.create(model="tiny", prompt="hello").usage.completion_tokens <= 16


def test_async_client_and_contents_in_parts(server: ModelServer, path: Path) -> None:
    import asyncio

    async def main() -> str:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
            found = await client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": parts}], temperature=0, max_completion_tokens=10
            )
            return str(found.choices[0].message.content)

    assert asyncio.run(main()) == expected(path, prompt_of("hi"), 10)


def test_stop_and_default_length(client: Any, path: Path) -> None:
    text = expected(path, prompt_of("hi"), 12)
    found = client.chat.completions.create(model="tiny", messages=HI, temperature=0)
    assert found.choices[0].message.content == text, "the default of this server is 12 tokens"
    end = text[4:6]
    found = client.chat.completions.create(model="tiny", messages=HI, temperature=0, stop=[end])
    assert found.choices[0].message.content == text[: text.find(end)]
    assert found.choices[0].finish_reason == "stop"


def test_response_format_is_a_schema(client: Any) -> None:
    pytest.importorskip("llguidance", reason="llguidance is not installed: pip install 'opweave[chat]'")
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    found = client.chat.completions.create(model="tiny", messages=HI, response_format=form, max_tokens=50)
    assert json.loads(found.choices[0].message.content)["n"] in (1, 2)
    assert found.choices[0].finish_reason == "stop"


def test_requests_wait_for_each_other(server: ModelServer, path: Path) -> None:
    """Eight at once; each gets the text that it gets alone."""

    def ask(number: int) -> str:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as own:
            found = own.completions.create(model="tiny", prompt="hello" * (number + 1), temperature=0, max_tokens=6)
            return str(found.choices[0].text)

    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(ask, range(8)))
    assert texts == [expected(path, "hello" * (number + 1), 6) for number in range(8)]


def in_progress(server: ModelServer) -> float:
    text = urlopen(f"{server.url}/metrics").read().decode()
    (value,) = re.findall(r'^opweave_requests_in_progress\{model="tiny",version=""\} (\S+)$', text, re.MULTILINE)
    return float(value)


def test_a_client_that_leaves_ends_its_request(server: ModelServer, client: Any) -> None:
    stream = client.chat.completions.create(model="tiny", messages=HI, max_tokens=90, stream=True)
    next(iter(stream))
    stream.close()
    body = json.dumps({"model": "tiny", "messages": HI, "max_tokens": 90}).encode()
    host, port = server.url.removeprefix("http://").split(":")
    with closing(socket.create_connection((host, int(port)))) as connection:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        sleep(0.05)
    end = monotonic() + 30
    while in_progress(server) and monotonic() < end:
        sleep(0.02)
    assert in_progress(server) == 0
    assert client.completions.create(model="tiny", prompt="a", max_tokens=1).usage.completion_tokens == 1


def test_metrics_of_tokens(server: ModelServer, client: Any) -> None:
    def counts() -> dict[str, float]:
        text = urlopen(f"{server.url}/metrics").read().decode()
        found = re.findall(r'^opweave_tokens_total\{kind="(\w+)",model="tiny"\} (\S+)$', text, re.MULTILINE)
        return {kind: float(value) for kind, value in found}

    before = counts()
    client.completions.create(model="tiny", prompt="zyx", max_tokens=4, temperature=0)
    after = counts()
    assert after["written"] - before.get("written", 0) <= 4
    assert after["read"] - before.get("read", 0) == 3


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"temperature": -1}, "temperature must be 0 or more, got -1"),
        ({"temperature": 10**400}, "temperature must be in the range of float64, got an integer of"),
        ({"top_p": "x"}, "top_p must be a number, got 'x'"),
        ({"n": 2}, "n is not supported here, got 2"),
        ({"logprobs": True}, "logprobs is not supported here, got True"),
        ({"frequency_penalty": 0.5}, "frequency_penalty is not supported here"),
        ({"repetition_penalty": 0, "repeat_penalty": None}, "repetition_penalty must be greater than 0, got 0"),
        ({"repetition_penalty": None, "repeat_penalty": 0}, "repeat_penalty must be greater than 0, got 0"),
        (
            {"repeat_penalty": 5, "repetition_penalty": 1.5},
            "repetition_penalty and repeat_penalty must be equal, got 1.5 and 5",
        ),
        ({"max_completion_tokens": 0}, "max_completion_tokens must be a positive integer, got 0"),
        (
            {"max_completion_tokens": 3, "max_tokens": 4},
            "max_tokens and max_completion_tokens must be equal, got 4 and 3",
        ),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools is not supported here"),
        ({"messages": []}, "messages must be a list of objects, got []"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "parts of a message must be texts"),
        ({"messages": [{"content": "x"}]}, "each message must be an object with a role"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "half of a surrogate pair"),
        ({"messages": [{"role": "user", "content": "x" * 300}]}, "the prompt must have 1 to 119 tokens"),
        ({"max_tokens": 0}, "max_tokens must be a positive integer, got 0"),
        ({"stop": [""]}, "stop must be a text, or a list of at most 16"),
        ({"stop": ["x"] * 17}, "stop must be a text, or a list of at most 16"),
        ({"seed": 1.5}, "seed must be an integer, got 1.5"),
        ({"response_format": {"type": "xml"}}, "response_format must have the type text, json_object or json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}},
            "schema: Invalid type",
        ),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"\ud800": 1}}}}, "schema: "),
        ({"max_completion_tokens": None, "max_tokens": -1}, "max_tokens must be a positive integer, got -1"),
        ({"stream": "yes"}, "stream must be true or false, got 'yes'"),
    ],
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_wrong_requests_are_400(server: ModelServer, options: dict[str, Any], text: str, stream: bool) -> None:
    body = json.dumps({"model": "tiny", "messages": HI, "stream": stream, **options}).encode()
    status, error = failure(server, body)
    assert (status, error["type"]) == (400, "invalid_request_error")
    assert text in error["message"]


@pytest.mark.parametrize(
    ("method", "address"),
    [
        ("POST", "/embeddings"),
        ("POST", "/models"),
        ("POST", "/models/"),
        ("PUT", "/chat/completions"),
        ("PATCH", "/x"),
        ("OPTIONS", "/x"),
        ("GET", ""),
        ("GET", "/"),
    ],
)
def test_unknown_addresses_have_the_form_of_openai(server: ModelServer, method: str, address: str) -> None:
    status, error = failure(server, b"{}", address, method)
    text = f"there is no {method} '/v1{address}' here, only POST /v1/chat/completions, POST /v1/completions, GET /v1/models"
    assert (status, error["message"]) == (404, text)


@pytest.mark.parametrize(
    ("method", "address"),
    [("POST", "/v1/chat/completions"), ("POST", "/v1/completions"), ("GET", "/v1/models"), ("GET", "/v1/models/tiny")],
)
def test_addresses_with_a_slash_at_the_end_are_redirected(server: ModelServer, method: str, address: str) -> None:
    with closing(HTTPConnection(server.url.removeprefix("http://"))) as connection:
        connection.request(method, f"{address}/?a=1", b"{}")
        response = connection.getresponse()
        assert (response.status, response.headers["location"]) == (307, f"{server.url}{address}?a=1")


def failure(
    server: ModelServer, body: bytes, path: str = "/chat/completions", method: str = "POST"
) -> tuple[int, dict[str, Any]]:
    from urllib.error import HTTPError

    with pytest.raises(HTTPError) as caught:
        urlopen(Request(f"{server.url}/v1{path}", body, method=method))
    return caught.value.code, json.loads(caught.value.read())["error"]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"{", "the request is not JSON"),
        (b"[" * 100_000, "the request is not JSON"),
        (b"[]", "the request must be a JSON object"),
        (b'{"model": "tiny", "temperature": NaN}', "NaN is no number of JSON"),
        (b'{"model": "tiny", "messages": "hi"}', "messages must be a list of objects, got 'hi'"),
    ],
)
def test_bodies_that_are_no_requests(server: ModelServer, body: bytes, text: str) -> None:
    status, error = failure(server, body)
    assert status == 400
    assert text in error["message"]


def test_wrong_prompts_of_tokens(server: ModelServer) -> None:
    for prompt in ([], [1, 99999], [True], [1.5], None, 7):
        body = json.dumps({"model": "tiny", "prompt": prompt}).encode()
        assert failure(server, body, "/completions")[0] == 400


def test_bodies_have_a_limit(server: ModelServer) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with closing(HTTPConnection(host, int(port), timeout=60)) as connection:
        connection.putrequest("POST", "/v1/completions")
        connection.putheader("Content-Length", str((1 << 24) + 1))
        connection.endheaders()  # the body does not come
        response = connection.getresponse()
        assert response.status == 413
        assert "larger than the limit of 16.0 MiB" in json.load(response)["error"]["message"]


def test_wrong_defaults(path: Path) -> None:
    file = GGUF(path)
    models = {"tiny": (Decoder(Model(file), ow.ml.create_context(device="cpu"), 20), Vocabulary(file))}
    for defaults, text in (({"size": 1}, "defaults may have"), ({"top_p": 2}, r"top_p must be in \(0, 1\], got 2")):
        with pytest.raises(ow.ValidationError, match=text):
            ModelServer({}, language_models=models, defaults=defaults)


def test_chat_serve_is_a_command(path: Path) -> None:
    options = ["--port", "0", "--context", "100", "--limit", "7", "--temperature", "0", "--name", "other"]
    process = subprocess.Popen(
        [sys.executable, "-m", "opweave", "chat", str(path), "--serve", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=handle_signals,
    )
    assert process.stdout is not None
    try:
        title, url, example, page, end = (process.stdout.readline().strip() for _ in range(5))
        assert title == "other is served for clients of OpenAI's API:"
        assert page.startswith(f"The page {url.removesuffix('v1')} has a conversation")
        assert end == "Ctrl-C stops it"
        with openai.OpenAI(base_url=url, api_key="none") as client:
            found = client.chat.completions.create(model="other", messages=HI)
            assert found.choices[0].message.content == expected(path, prompt_of("hi"), 7)
        answer = subprocess.run(example, shell=True, capture_output=True, text=True)
        assert json.loads(answer.stdout)["model"] == "other", answer.stderr
    finally:
        process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert errors.endswith("stopped\n")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--serve", "-p", "hi", "--seed", "1"], "--serve takes no --prompt, --seed: requests have them"),
        (["-p", "hi", "--port", "8000", "--allow-host", "a"], "--port, --allow-host: only with --serve"),
        (
            ["--context", "300"],
            "--context must be in [1, 256], the longest text that the model was trained for, got 300",
        ),
    ],
)
def test_chat_options_that_do_not_fit(options: list[str], text: str, path: Path) -> None:
    result = CliRunner().invoke(app, ["chat", str(path), *options])
    assert text in str(result.exception)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--origin", "http://a/"], "an origin must be as browsers send it, 'http://a', got 'http://a/'"),
        (["--allow-host", "a:1"], "a host is like 'models.example', without a port, got 'a:1'"),
        (["--host", "a\0"], "cannot listen on 'a\\x00:8000'"),
    ],
)
def test_chat_serve_checks_options_before_it_reads_the_model(options: list[str], text: str) -> None:
    result = CliRunner().invoke(app, ["chat", "missing.gguf", "--serve", *options])
    assert text in str(result.exception)
