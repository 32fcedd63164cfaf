"""`opweave serve`: what it prints, and that what it prints works."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import node_js
from support.served_clients import PlainClient
from typer.testing import CliRunner

from opweave.cli import app
from opweave.cli.serve import PORT, state_of_port
from opweave.serve import Server, server


@contextmanager
def serving(*options: str, folder: Path | None = None) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """What `opweave serve` prints until it waits, and its process."""
    command = [sys.executable, "-m", "opweave", "serve", "--device", "cpu", *options]
    environment = {name: value for name, value in os.environ.items() if name != "OPWEAVE_TOKEN"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=folder
    ) as process:
        assert process.stdout is not None
        text = ""
        try:
            for line in process.stdout:
                text += line
                if line.startswith("Ctrl-C"):
                    break
            yield text, process
        finally:
            process.kill()


@pytest.mark.long
def test_serve_prints_script_tag() -> None:
    with serving("--port", "0", "--stats") as (text, process):
        found = re.search(r'<script src="http://127\.0\.0\.1:(\d+)/webnn\.js\?token=([\w-]+)"></script>', text)
        assert found is not None, text
        assert "No page may connect yet" in text
        assert state_of_port(int(found[1])).startswith(f"port {found[1]} answers: opweave ")
        process.send_signal(signal.SIGINT)
        assert process.wait(300) == 0
        assert process.stderr is not None
        assert "all: 0 connections, 0 contexts, " in process.stderr.read()


@pytest.mark.long
def test_serve_drafts_offers_names() -> None:
    for options, has_drafts in (([], False), (["--drafts"], True)):
        with serving("--port", "0", "--token", "t", *options) as (text, _):
            found = re.search(r"http://127\.0\.0\.1:(\d+)", text)
            assert found is not None, text
            with PlainClient(SimpleNamespace(port=int(found[1]), token="t"), origin=None) as client:  # type: ignore[arg-type]
                assert client.hello()["drafts"] is has_drafts


def test_serve_with_model_suggests_deploy() -> None:
    result = CliRunner().invoke(app, ["serve", "m.onnx"], env={"COLUMNS": "160", "TERM": "dumb"})
    assert result.exit_code == 2
    assert "serve is for web pages (navigator.ml); to serve a model over HTTP: opweave deploy m.onnx" in result.output


def test_serve_default_port() -> None:
    assert PORT == server.PORT


@pytest.mark.long
def test_node_connects_as_it_says(tmp_path: Path) -> None:
    node_js.need()
    (tmp_path / "program.mjs").write_text("console.log((await navigator.ml.createContext()).accelerated)")
    options = "--socket", str(tmp_path / "s.sock"), "--write", str(tmp_path / "my clients"), "--stats"
    with serving(*options) as (text, process):
        found = re.search(r"^  (OPWEAVE_URL=.*)$", text, re.MULTILINE)
        assert found is not None, text
        assert "<script" not in text
        assert (tmp_path / "my clients" / "opweave-extension" / "manifest.json").is_file()
        ran = subprocess.run(found[1], shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=600)
        assert (ran.stdout, ran.returncode) == ("false\n", 0), ran.stderr
        process.terminate()
        process.wait(300)
        assert process.stderr is not None
        ended, total = process.stderr.read().splitlines()
        assert ended.startswith("context 1 of a program has ended: 0 graphs")
        assert total.startswith("all: 1 connection, 1 context, 0 graphs")
    assert not (tmp_path / "s.sock").exists()


@pytest.mark.long
def test_serve_write_prints_node_command(tmp_path: Path) -> None:
    node_js.need()
    (tmp_path / "program.mjs").write_text("console.log((await navigator.ml.createContext()).accelerated)")
    with serving("--port", "0", "--write", "clients", folder=tmp_path) as (text, _):
        (command,) = re.findall(r"^  (OPWEAVE_URL=.*)$", text, re.MULTILINE)
        ran = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert (ran.stdout, ran.returncode) == ("false\n", 0), ran.stderr


def test_serve_writes_package_before_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class StartedError(Exception):
        pass

    def start(_: Server) -> None:
        assert (tmp_path / "opweave-webnn" / "package.json").is_file()
        raise StartedError

    monkeypatch.setattr(Server, "start", start)
    result = CliRunner().invoke(app, ["serve", "--port", "0", "--write", str(tmp_path)])
    assert isinstance(result.exception, StartedError), result.exception


def test_serve_fails_if_package_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(app, ["serve", "--port", "0", "--write", str(tmp_path / "file")])
    assert str(result.exception) == f"write: {tmp_path / 'file'} is a file, not a folder"
    assert result.output == ""


@pytest.mark.long(rows=3)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--origin", "localhost:5173"], "an origin is like 'http://localhost:5173'"),
        (["--origin", "http://localhost:5173/app"], "as browsers send it, 'http://localhost:5173', got"),
        (["--no-token", "--any-origin"], "any_origin needs a token"),
        (["--max-memory", "much"], "--max-memory must be a size like 512M or 2G, got 'much'"),
        (["--device", "abacus"], "abacus"),
        (["--token", "a b"], "token must be"),
        (["--token", ""], "token must be True, None or letters, digits and . _ ~ -, got ''"),
    ],
)
def test_serve_errors(options: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["serve", "--port", "0", *options])
    assert result.exit_code != 0
    assert message in str(result.exception)


@pytest.mark.parametrize(
    ("options", "environment", "name"),
    [
        (["--token", "abc"], {}, "--token"),
        ([], {"OPWEAVE_TOKEN": "abc"}, "OPWEAVE_TOKEN"),
        (["--token", "abc"], {"OPWEAVE_TOKEN": "abc"}, "--token"),
    ],
)
def test_serve_rejects_token_with_no_token(options: list[str], environment: dict[str, str], name: str) -> None:
    terminal = {"COLUMNS": "160", "TERM": "dumb"}
    result = CliRunner().invoke(app, ["serve", "--port", "0", "--no-token", *options], env=environment | terminal)
    assert result.exit_code == 2
    assert f"--no-token and {name} exclude each other" in result.output


def test_serve_reports_port_in_use() -> None:
    with Server(port=0) as server:
        result = CliRunner().invoke(app, ["serve", "--port", str(server.port)])
        assert f":{server.port}: Address already in use; " in str(result.exception)
        assert str(result.exception).endswith("; use port 0 (`--port 0`) for any free port")


def test_doctor_checks_serve_port(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    with socket.socket() as silent:  # no other process gets its port
        silent.bind(("127.0.0.1", 0))
        port: Any = silent.getsockname()[1]
        assert state_of_port(port) == f"nothing listens on port {port}: `opweave serve`"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert state_of_port(port).startswith(f"something else listens on port {port}")
