"""A plugin of pytest: `navigator.ml` for the pages of a test, and graphs compared with files.

pytest loads it where Opweave is installed. Fixtures:

- `webnn`: a running `opweave.serve.Server`. The pages of pytest-playwright have its `navigator.ml`, if the test has one of the
  fixtures `page` and `context`.
- `webnn_record`: the graphs that clients of `webnn` build, as `RecordedGraphs`.
- `assert_graph_snapshot`: a function that compares graphs with a file beside the test.

Options: `--webnn-device NAME`, `--webnn-update`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ..context.graph import MLGraph
    from .server import Server

FOLDER = "__snapshots__"
"""Name of the folders of snapshots, each beside the tests' files."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("opweave")
    group.addoption(
        "--webnn-device",
        metavar="NAME",
        help="the device of the fixture webnn, a name of `opweave devices`; default: chosen by pages",
    )
    group.addoption(
        "--webnn-update",
        action="store_true",
        help="write the snapshots of graphs, instead of comparing graphs with them",
    )


class RecordedGraphs:
    """The graphs that clients of a server have built.

    Attributes:
        folder: has each different graph as an ONNX model and as text: graph-0001.onnx, graph-0001.txt and so on.
    """

    def __init__(self, server: Server, folder: Path) -> None:
        self._server, self.folder = server, folder

    @property
    def texts(self) -> list[str]:
        """The operations of each different graph as text, in the order in which the graphs were built."""
        return self._server.recorded

    @property
    def models(self) -> list[Path]:
        """The ONNX models of the graphs that have one, in order."""
        return sorted(self.folder.glob("graph-*.onnx"))

    def __len__(self) -> int:
        return len(self.texts)


@pytest.fixture
def webnn(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of `navigator.ml` on this machine, for one test.

    Pages of any origin may connect with the server's token, which the pages of pytest-playwright get in an initial script. Its
    counts tell whether a page has computed on WebNN: `webnn.stats().dispatches`.
    """
    from . import Server

    folder = None
    if "webnn_record" in request.fixturenames:
        folder = request.getfixturevalue("tmp_path") / "graphs"
    device = request.config.getoption("--webnn-device")
    with Server(port=0, any_origin=True, device=device, record=folder) as server:
        for name in ("context", "page"):
            if name in request.fixturenames:
                request.getfixturevalue(name).add_init_script(server.script)
                break
        yield server


@pytest.fixture
def webnn_record(webnn: Server, tmp_path: Path) -> RecordedGraphs:
    """The graphs that clients of the fixture `webnn` build during the test."""
    return RecordedGraphs(webnn, tmp_path / "graphs")


@pytest.fixture
def assert_graph_snapshot(request: pytest.FixtureRequest) -> Callable[..., None]:
    """A function that fails a test when graphs are no longer those of an earlier run.

    `assert_graph_snapshot(graphs, name="")` takes an `MLGraph`, the text of one, or a sequence of these, such as
    `webnn_record.texts`. It compares their texts, without the values of constants, with the file of the test in
    `__snapshots__`; `name` distinguishes several comparisons in one test. `pytest --webnn-update` writes the files.
    """
    module = Path(request.node.path)
    is_update = bool(request.config.getoption("--webnn-update"))

    def check(graphs: MLGraph | str | Sequence[MLGraph | str], name: str = "") -> None:
        __tracebackhide__ = True
        stem = "-".join(filter(None, [request.node.name, name]))
        path = module.parent / FOLDER / module.stem / (re.sub(r"[^\w.\-\[\]]", "_", stem) + ".txt")
        text = _text_of(graphs)
        if is_update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        if not path.exists():
            pytest.fail(f"there is no snapshot {path}; pytest --webnn-update writes it", pytrace=False)
        expected = path.read_text(encoding="utf-8")
        if expected != text:
            lines = difflib.unified_diff(expected.splitlines(), text.splitlines(), str(path), "this run", lineterm="")
            pytest.fail(
                "\n".join(["the graphs are not those of the snapshot; pytest --webnn-update accepts them", *lines]),
                pytrace=False,
            )

    return check


def _text_of(graphs: Any) -> str:
    """The text of a snapshot: graphs are separated by an empty line."""
    from ..context.graph import MLGraph, recorded_graph

    items = [graphs] if isinstance(graphs, (str, MLGraph)) else list(graphs)
    for item in items:
        if not isinstance(item, (str, MLGraph)):
            raise TypeError(f"assert_graph_snapshot takes graphs or their texts, got {type(item).__name__}")
    texts = [item if isinstance(item, str) else str(recorded_graph(item)) for item in items]
    return "\n\n".join(text.strip() for text in texts) + "\n"
