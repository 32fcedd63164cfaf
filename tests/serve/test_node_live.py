"""The package for Node.js with the real server."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

import pytest
from support import node_js

from opweave import memory
from opweave.serve import ConnectionLimits, Server, client_files

EXITS = """
const { ml } = await import(`${process.env.OPWEAVE_PACKAGE}/node.mjs`);
const context = await ml.createContext();
context.lost.then(() => console.log("lost"));
const builder = new MLGraphBuilder(context);
console.log(builder.relu(builder.input("x", { dataType: "float32", shape: [2] })).shape);
const tensor = await context.createTensor({ dataType: "float32", shape: [2], readable: true });
console.log(await context.readTensor(tensor));
"""


def environment(server: Server) -> dict[str, str]:
    return {"OPWEAVE_URL": server.url, "OPWEAVE_TOKEN": server.token or ""}


@contextmanager
def unix_socket(path: Path, port: int) -> Iterator[None]:
    """A Unix socket that forwards to a port, as a tunnel or a container would."""

    def forward(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def accept() -> None:
        with suppress(OSError):
            while True:
                client = listener.accept()[0]
                server = socket.create_connection(("127.0.0.1", port))
                for pair in ((client, server), (server, client)):
                    Thread(target=forward, args=pair, daemon=True).start()

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        Thread(target=accept, daemon=True).start()
        yield
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.long
def test_against_the_server(tmp_path: Path) -> None:
    with Server(port=0, device="cpu") as server, unix_socket(tmp_path / "s", server.port):
        before = memory.copies.count
        variables = {**environment(server), "OPWEAVE_SOCKET": str(tmp_path / "s")}
        out = node_js.run(["--test", str(node_js.JS / "live.mjs")], variables)
        assert memory.copies.count == before
    assert re.search(r"^# pass 15$", out, re.MULTILINE), out


def test_node_example_with_sizes(tmp_path: Path) -> None:
    """The program in docs/sizes.md prints what its comment says."""
    page = (node_js.ROOT / "docs" / "sizes.md").read_text(encoding="utf-8")
    program = page.partition("```js\n")[2].partition("```")[0]
    client_files.write_clients(tmp_path / "clients")
    (tmp_path / "program.mjs").write_text(program)
    with Server(port=0, device="cpu", drafts=True) as server:
        out = node_js.run([str(tmp_path / "program.mjs")], environment(server))
    assert out.strip() == program.strip().rpartition("// ")[2]


@pytest.mark.parametrize("mode", ["strict", "lazy"])
def test_sizes_with_names(mode: str) -> None:
    with Server(port=0, device="cpu", drafts=True) as server:
        only = ["--test-name-pattern", "dispatch|computeShapes"] if mode == "lazy" else []
        out = node_js.run(
            [*only, "--test", str(node_js.JS / "sizes.mjs")], {**environment(server), "OPWEAVE_MODE": mode}
        )
    assert re.search(r"^# pass 10$" if mode == "strict" else r"^# pass 5$", out, re.MULTILINE), out


def test_graphs_by_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPWEAVE_CACHE", str(tmp_path / "cache"))
    limits = ConnectionLimits(graphs=2, graph_bytes=2**20)
    with Server(port=0, device="cpu", drafts=True, limits=limits) as server:
        out = node_js.run(["--test", str(node_js.JS / "graphs_by_key.mjs")], environment(server))
    assert re.search(r"^# pass 6$", out, re.MULTILINE), out


NO_DRAFTS = """
const { ml } = await import(`${process.env.OPWEAVE_PACKAGE}/node.mjs`);
const builder = new MLGraphBuilder(await ml.createContext());
try {
  builder.input("x", { dataType: "float32", shape: ["n"] });
} catch (error) {
  console.log(String(error), "computeShapes" in MLGraph.prototype, "loadGraph" in MLContext.prototype);
}
"""


def test_names_need_a_server_with_drafts() -> None:
    with Server(port=0, device="cpu") as server:
        out = node_js.run(["--input-type=module", "-e", NO_DRAFTS], environment(server))
    assert out == 'TypeError: input: descriptor.shape[0] must be an integer in [0, 4294967295], got "n" false false\n'


def test_node_process_exits_when_idle() -> None:
    with Server(port=0, device="cpu") as server:
        out = node_js.run(["--input-type=module", "-e", EXITS], environment(server))
    assert out.startswith("[ 2 ]")
    assert "lost" not in out


ENDS = """
const { ml } = await import(`${process.env.OPWEAVE_PACKAGE}/node.mjs`);
const context = await ml.createContext();
console.log("ready");
const alive = setInterval(() => {}, 1000);
console.log((await context.lost).message);
clearInterval(alive);
"""


def test_node_learns_reason_of_server_end() -> None:
    with (
        Server(port=0, device="cpu") as server,
        node_js.started(["--input-type=module", "-e", ENDS], environment(server)) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        server.close()
        assert "has ended (1001, the server ends)" in process.communicate(timeout=node_js.HANG_SECONDS)[0]


def test_node_page_example(tmp_path: Path) -> None:
    """The program in docs/web-javascript.md prints what its comment says."""
    page = (node_js.ROOT / "docs" / "web-javascript.md").read_text(encoding="utf-8")
    program = page.partition("```js\n")[2].partition("```")[0]
    client_files.write_clients(tmp_path / "clients")
    (tmp_path / "program.mjs").write_text(program)
    with Server(port=0, device="cpu") as server:
        out = node_js.run([str(tmp_path / "program.mjs")], environment(server))
    assert out.strip() == program.strip().rpartition("// ")[2]
