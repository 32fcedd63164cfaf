"""Frames and requests, without what they mean: the vectors of RFC 6455, and random parts."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import numpy as np
import pytest
from support.served_clients import sized

from opweave.serve.http import HttpError, read_request
from opweave.serve.stream import DisconnectedError, Stream, WireError
from opweave.serve.wire import MAX_JOINED_BYTES, SHORT_BYTES, Messages, PlainMessages, WebSocketMessages, unmask

# https://www.rfc-editor.org/rfc/rfc6455#section-5.7
MASKED_HELLO = bytes.fromhex("818537fa213d7f9f4d5158")
MASKED_PONG = bytes.fromhex("8a8537fa213d7f9f4d5158")
UNMASKED_HELLO = bytes.fromhex("810548656c6c6f")
UNMASKED_256 = bytes.fromhex("827e0100")
UNMASKED_64K = bytes.fromhex("827f0000000000010000")


@contextmanager
def fed(data: bytes, *, step: int = 0, seed: int = 0) -> Iterator[tuple[Stream, socket.socket]]:
    """A stream that gets these bytes, in random pieces of at most `step`; and the other end."""
    ours, theirs = socket.socketpair()
    draw = random.Random(seed)

    def feed() -> None:
        at = 0
        while at < len(data):
            count = draw.randint(1, step) if step else len(data)
            theirs.sendall(data[at : at + count])
            at += count

    thread = Thread(target=feed)
    thread.start()
    with ours, theirs:
        yield Stream(ours), theirs
        thread.join()


def frame(kind: int, data: bytes, key: bytes, final: bool) -> bytes:
    size = len(data)
    length = (
        bytes([0x80 | size])
        if size < 126
        else struct.pack(">BH", 254, size)
        if size < 2**16
        else struct.pack(">BQ", 255, size)
    )
    masked = bytes(byte ^ key[i % 4] for i, byte in enumerate(data))
    return bytes([final << 7 | kind]) + length + key + masked


def test_websocket_standard_vectors() -> None:
    # The standard's text "Hello" is here the contents of a binary frame.
    hello = b"\x82" + MASKED_HELLO[1:]
    with fed(MASKED_PONG + hello) as (stream, _):
        target = np.zeros(5, np.uint8)
        WebSocketMessages(stream).payload(target)
        assert target.tobytes() == b"Hello"
    with fed(MASKED_HELLO) as (stream, _), pytest.raises(WireError, match="expected a binary frame, got text"):
        WebSocketMessages(stream).text(100)
    with fed(UNMASKED_HELLO) as (stream, _), pytest.raises(WireError, match="no mask"):
        WebSocketMessages(stream).text(100)
    assert WebSocketMessages.header(1, 5) + b"Hello" == UNMASKED_HELLO
    assert WebSocketMessages.header(2, 256) == UNMASKED_256
    assert WebSocketMessages.header(2, 65536) == UNMASKED_64K


def test_ping_is_answered_with_its_data() -> None:
    ping = bytes([0x89]) + MASKED_HELLO[1:]
    with fed(ping + frame(2, sized(b"{}"), b"abcd", True)) as (stream, other):
        assert WebSocketMessages(stream).text(100) == b"{}"
        assert other.recv(100) == bytes.fromhex("8a0548656c6c6f")


def test_close_is_answered_with_its_code() -> None:
    close = frame(8, struct.pack(">H", 1001) + b"bye", b"abcd", True)
    with fed(close) as (stream, other):
        with pytest.raises(DisconnectedError):
            WebSocketMessages(stream).text(100)
        assert other.recv(100) == bytes.fromhex("880203e9")


@pytest.mark.parametrize("size", [0, 1, 3, 7, 8, 9, 64, SHORT_BYTES, SHORT_BYTES + 1, SHORT_BYTES + 1000])
def test_unmask_in_place_at_any_offset(size: int) -> None:
    draw = np.random.default_rng(size)
    for start in range(9):
        for offset in range(5):
            memory = draw.integers(0, 256, start + size, dtype=np.uint8)
            data, key = memory[start:], bytes(draw.integers(0, 256, 4, dtype=np.uint8))
            expected = [byte ^ key[(offset + i) % 4] for i, byte in enumerate(data.tolist())]
            unmask(data.data, key, offset)
            assert data.tolist() == expected


def parts_of(data: bytes, draw: random.Random) -> list[bytes]:
    """The data in random parts, some of them empty."""
    cuts = sorted(draw.choices(range(len(data) + 1), k=draw.randrange(6)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def random_messages(draw: random.Random) -> list[tuple[bytes, bytes]]:
    """Texts and payloads."""
    sizes = [0, 1, 5, 125, 126, 127, 4000, 4097, 65535, 65536, 66_000]
    return [
        (draw.randbytes(draw.choice(sizes)), draw.randbytes(draw.choice(sizes))) for _ in range(draw.randrange(1, 12))
    ]


@pytest.mark.parametrize("seed", range(40))
def test_messages_in_random_frames(seed: int) -> None:
    """In WebSocket messages that begin anywhere, frames of all sizes with pings between, and pieces of all sizes."""
    draw = random.Random(seed)
    messages = random_messages(draw)
    sent = b""
    for whole in parts_of(b"".join(sized(text) + payload for text, payload in messages), draw):
        parts = parts_of(whole, draw)
        for number, part in enumerate(parts):
            if draw.random() < 0.3:
                sent += frame(9, b"ping", draw.randbytes(4), True)
            sent += frame(0 if number else 2, part, draw.randbytes(4), number == len(parts) - 1)
    with fed(sent, step=draw.choice([0, 7, 1000, 100_000]), seed=seed) as (stream, _):
        check_all(WebSocketMessages(stream), messages, draw)


def check_all(received: Messages, messages: list[tuple[bytes, bytes]], draw: random.Random) -> None:
    for text, payload in messages:
        assert received.text(len(text)) == text
        if draw.random() < 0.2:
            received.skip(len(payload))
            continue
        start = draw.randrange(8)
        memory = np.zeros(start + len(payload) + 8, np.uint8)
        received.payload(memory[start : start + len(payload)])
        assert memory[start : start + len(payload)].tobytes() == payload
        assert not memory[:start].any()
        assert not memory[start + len(payload) :].any()


@pytest.mark.parametrize("seed", range(10))
def test_messages_without_frames(seed: int) -> None:
    draw = random.Random(seed)
    messages = random_messages(draw)
    sent = b"".join(sized(text) + payload for text, payload in messages)
    with fed(sent, step=draw.choice([0, 3, 5000]), seed=seed) as (stream, _):
        check_all(PlainMessages(stream), messages, draw)


@pytest.mark.parametrize("kind", [WebSocketMessages, PlainMessages])
@pytest.mark.parametrize("size", [0, 4, MAX_JOINED_BYTES, MAX_JOINED_BYTES + 1, 2**22])
def test_messages_send_payload(kind: type[Messages], size: int) -> None:
    ours, theirs = socket.socketpair()
    data = np.random.default_rng(1).integers(0, 256, size, dtype=np.uint8)
    got = bytearray()
    header = WebSocketMessages.header
    if kind is PlainMessages:
        expected = sized(b"ab") + data.tobytes()
    elif size <= MAX_JOINED_BYTES:
        expected = header(2, 6 + size) + sized(b"ab") + data.tobytes()
    else:
        expected = header(2, 6) + sized(b"ab") + header(2, size) + data.tobytes()

    def read() -> None:
        while len(got) < len(expected):
            got.extend(theirs.recv(2**20))

    with ours, theirs:
        thread = Thread(target=read)
        thread.start()
        kind(Stream(ours)).send(b"ab", data.data)
        thread.join()
    assert got == expected


@pytest.mark.parametrize("kind", [WebSocketMessages, PlainMessages])
def test_text_rejects_size_beyond_limit(kind: type[Messages]) -> None:
    size = (101).to_bytes(4, "little")
    with fed(size if kind is PlainMessages else frame(2, size, b"abcd", False)) as (stream, _):
        with pytest.raises(WireError, match="more than the limit of 100 B") as found:
            kind(stream).text(100)
        assert found.value.code == 1009


@pytest.mark.parametrize("step", [0, 1, 5])
def test_request_parsing(step: int) -> None:
    text = (
        "GET /a/b?token=x HTTP/1.1\r\nHost: LocalHost:80\r\nconnection:  keep-alive, Upgrade \r\nUPGRADE: WebSocket\r\n"
        "Sec-WebSocket-Protocol: a\r\nSec-WebSocket-Protocol: b , c\r\n\r\nrest"
    )
    with fed(text.encode(), step=step) as (stream, _):
        request = read_request(stream)
        assert (request.method, request.path) == ("GET", "/a/b")
        assert request.is_for_this_machine()
        assert request.keeps_alive
        assert request.upgrades() == "websocket"
        assert request.tokens("sec-websocket-protocol") == ["a", "b", "c"]
        assert request.origin is None
        assert stream.read(4) == b"rest"


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8801", "[::1]:1", "LOCALHOST:65535"])
def test_is_for_this_machine_accepts_local_names(host: str) -> None:
    with fed(f"GET / HTTP/1.0\r\nHost: {host}\r\n\r\n".encode()) as (stream, _):
        request = read_request(stream)
        assert request.is_for_this_machine()
        assert not request.keeps_alive


def test_request_of_disconnected_client() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        theirs.sendall(b"GET / HTTP/1.1\r\nHost:")
        theirs.close()
        with pytest.raises(DisconnectedError):
            read_request(Stream(ours))


def test_request_deadline() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        stream = Stream(ours)
        stream.set_deadline(0.05)
        theirs.sendall(b"GET / HTTP/1.1\r\n")
        with pytest.raises((TimeoutError, HttpError)):
            read_request(stream)
