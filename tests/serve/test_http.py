"""Who may connect, and what pages may read."""

from __future__ import annotations

import http.client
import json
import socket

import pytest
from support.served_clients import ORIGIN, Client, PlainClient, RefusedError, request

import opweave as ow
from opweave import MLError
from opweave.serve import ConnectionLimits, Server
from opweave.serve.server import MAX_KEY_BYTES


def answer(server: Server, method: str, path: str, **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    response = connection.getresponse()
    response.read()
    connection.close()
    return response


def test_health_and_the_script(server: Server) -> None:
    status, text = request(server, "GET", "/health")
    assert (status, json.loads(text)) == (200, {"opweave": ow.__version__, "protocol": 1})
    status, text = request(server, "GET", "/webnn.js?token=x")
    assert status == 200
    assert server.script.endswith(text)
    assert json.dumps(server.token) in server.script
    assert server.url in server.script


def test_http_origin_headers(server: Server) -> None:
    ours = answer(server, "GET", "/health", Origin=ORIGIN)
    assert ours.headers["Access-Control-Allow-Origin"] == ORIGIN
    assert "Origin" in ours.headers["Vary"]
    others = answer(server, "GET", "/health", Origin="https://evil.example")
    assert others.headers["Access-Control-Allow-Origin"] is None
    for path in ("/nothing", "/stats"):  # and read why they are refused
        refused = answer(server, "GET", path, Origin=ORIGIN)
        assert refused.status in (401, 404)
        assert refused.headers["Access-Control-Allow-Origin"] == ORIGIN
        assert answer(server, "GET", path, Origin="https://evil.example").headers["Access-Control-Allow-Origin"] is None
    preflight = {"Access_Control_Request_Method": "POST", "Access_Control_Request_Private_Network": "true"}
    ours = answer(server, "OPTIONS", "/sync", Origin=ORIGIN, **preflight)
    assert ours.status == 204
    assert ours.headers["Access-Control-Allow-Private-Network"] == "true"
    others = answer(server, "OPTIONS", "/sync", Origin="https://evil.example", **preflight)
    assert others.headers["Access-Control-Allow-Private-Network"] is None
    assert "*" not in str(ours.headers) + str(others.headers)


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "reason"),
    [
        ("/payload", b"x" * (MAX_KEY_BYTES + 1), {}, 413, "the body has 257 B, more than the limit of 256 B"),
        ("/health", b"x", {}, 413, "the body has 1 B, more than the limit of 0 B"),
        ("/sync", b"", {"Content-Length": "many"}, 400, "Content-Length is not a number"),
        ("/sync", b"", {"Transfer-Encoding": "chunked"}, 501, "a body must have a Content-Length"),
        ("/sync", b"", {"Content-Type": "image/png"}, 415, "the Content-Type must be"),
    ],
)
def test_http_refused_body_is_readable(
    server: Server, path: str, body: bytes, headers: dict[str, str], status: int, reason: str
) -> None:
    for origin, allowed in {ORIGIN: ORIGIN, "https://evil.example": None}.items():
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
        connection.request("POST", path, body, {"Content-Type": "text/plain", "Origin": origin} | headers)
        response = connection.getresponse()
        assert response.status == status
        assert response.read().decode().startswith(reason)
        assert response.headers["Access-Control-Allow-Origin"] == allowed
        connection.close()


@pytest.mark.parametrize(
    "origin",
    [
        b"https://evil.example\x9b31m",
        b"https://evil.example/\xe2\x80\xae",
        b"https://<script>alert(1)</script>",
        b"https://evil.example\tx",
        b"https://evil.example;reboot",
        b"https://$(reboot)",
        b"https://" + b"a" * 5000,
        b"\x85",
    ],
)
def test_http_refused_origin_is_escaped_and_bounded(
    server: Server, origin: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """In the response, and in the log, which does not offer it as an option for the shell."""
    for path, upgrade in (("/stats", b""), ("/", b"Upgrade: opweave\r\nConnection: Upgrade\r\n")):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            head = f"GET {path} HTTP/1.1\r\nHost: localhost:{server.port}\r\nConnection: close\r\n".encode()
            connection.sendall(head + upgrade + b"Origin: " + origin + b"\r\n\r\n")
            response = http.client.HTTPResponse(connection)
            response.begin()
            text = response.read().decode()
        assert response.status == 403
        assert response.headers["Content-Type"] == "text/plain"
        assert text.startswith("pages of '")
        assert text.isprintable()
        assert text.isascii() or b"\xe2" in origin
        assert len(text) < 400
    lines = [record.getMessage() for record in caplog.records if "was refused" in record.getMessage()]
    assert len(lines) == 2
    for line in lines:
        assert line.isprintable()
        assert line.endswith("' was refused")
        assert len(line) < 400


def test_http_refused_origin_is_offered_as_option(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    status, text = request(server, "GET", "/stats", origin="http://[::1]:5173")
    assert status == 403
    assert text.startswith("pages of http://[::1]:5173 may not connect; `opweave serve --origin` allows them")
    assert "a page of http://[::1]:5173 was refused; --origin http://[::1]:5173 allows it" in caplog.text


def test_http_requests_share_a_connection(server: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
    for _ in range(3):
        connection.request("GET", "/health")
        response = connection.getresponse()
        assert response.status == 200
        response.read()
        assert connection.sock is not None
    connection.close()


def test_http_client_without_origin_needs_token(server: Server) -> None:
    for kind in (Client, PlainClient):
        with kind(server, origin=None) as client:
            assert "session" in client.hello()
    with pytest.raises(RefusedError, match="401"):
        PlainClient(server, origin=None, headers={"Sec-Opweave-Protocol": "opweave.webnn.1, token.x"})


def test_http_stats_need_token_and_origin(server: Server) -> None:
    bearer = {"Authorization": f"Bearer {server.token}"}
    with Client(server) as client:
        client.hello()
        for origin in (ORIGIN, None):
            status, text = request(server, "GET", "/stats", origin=origin, **bearer)
            assert status == 200
            assert json.loads(text)["contexts"] == server.stats().contexts > 0
    assert request(server, "GET", "/stats", origin="https://evil.example", **bearer)[0] == 403
    assert request(server, "GET", "/stats") == (401, "no token was sent; set OPWEAVE_TOKEN")
    assert request(server, "GET", "/stats", Authorization="Bearer x") == (401, "the token is wrong")
    with Server(port=0, origins=[ORIGIN], token=None) as open_server:
        assert request(open_server, "GET", "/stats")[0] == 200


def test_http_any_origin_needs_token() -> None:
    with Server(port=0, any_origin=True, token="secret") as server:
        with Client(server, origin="https://anywhere.example") as client:
            assert "session" in client.hello()
        with pytest.raises(RefusedError, match="401"):
            Client(server, headers={"Sec-WebSocket-Protocol": "opweave.webnn.1, token.secre"})


def test_http_without_token_checks_origin() -> None:
    with Server(port=0, origins=[ORIGIN], token=None) as server:
        assert "token" not in server.script.partition("\n")[0]
        with Client(server) as client:
            assert "session" in client.hello()
        with pytest.raises(RefusedError, match="403"):
            Client(server, origin="http://localhost:1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"port": -1}, r"port must be in \[0, 65535\], got -1"),
        ({"host": "0.0.0.0"}, "host must be '127.0.0.1' or '::1', got '0.0.0.0'"),
        ({"origins": "http://localhost"}, "origins must be a sequence"),
        ({"origins": ["*"]}, "got '\\*'"),
        ({"origins": ["http://localhost:1/"]}, "as browsers send it, 'http://localhost:1', got"),
        ({"any_origin": True, "token": None}, "any_origin needs a token"),
        ({"token": "a b"}, "token must be"),
        ({"device": "abacus"}, "abacus"),
    ],
)
def test_server_rejects_invalid_arguments(options: dict[str, object], message: str) -> None:
    with pytest.raises(MLError, match=message):
        Server(**{"port": 0, **options})


def test_connection_limits_rejects_zero() -> None:
    with pytest.raises(ow.ValidationError, match="memory must be a positive integer, got 0"):
        ConnectionLimits(memory=0)


def test_close_ends_connections() -> None:
    with Server(port=0, origins=[ORIGIN]) as server:
        client = Client(server)
        client.hello()
    kind, data = client.receive()
    assert (kind, data[:2]) == (8, b"\x03\xe9")
    assert repr(server).endswith("closed>")
    server.close()
    client.socket.close()
    with pytest.raises(ow.InvalidStateError, match="is closed; make another one"):
        server.start()


def test_ipv6() -> None:
    try:
        server = Server(port=0, host="::1")
    except ow.OperationError as error:
        pytest.skip(str(error))
    with server:
        assert server.url == f"http://[::1]:{server.port}"
        connection = http.client.HTTPConnection("::1", server.port, timeout=600)
        connection.request("GET", "/health")
        assert connection.getresponse().status == 200
        connection.close()
