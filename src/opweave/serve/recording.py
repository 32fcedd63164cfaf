"""Write the graphs that clients build, each as an ONNX model with weights, as text and as a page; a page lists them."""

from __future__ import annotations

import hashlib
import html
import logging
import re
from contextlib import suppress
from pathlib import Path
from threading import Lock

import numpy as np

from ..context.graph import MLGraph, recorded_graph
from ..onnx.export import save
from ..support.errors import DataError, InvalidStateError, MLError
from ..support.files import atomic_writer, make_folder
from ..support.formatting import size
from ..support.names import count_of
from .http import shown_origin
from .served_builder import has_names

logger = logging.getLogger(__name__)

MAX_BYTES = 16 * 2**30
"""Maximum bytes of weights in one recording, so that a page cannot fill the disk."""

INDEX = "index.html"

_NAME = re.compile(r"graph-(\d+)\.txt")

_PAGE = """<!doctype html>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width">
<title>Recorded graphs</title>
<style>
  :root {{ color-scheme: light dark }}
  body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }}
  li {{ margin: 0.5rem 0; overflow-wrap: anywhere }}
</style>
<h1>Recorded graphs</h1>
<ol>
{items}
</ol>
"""


class Recording:
    """A folder of the graphs that clients build.

    `graph-0001.onnx` is the first graph, `graph-0001.txt` describes it, and `graph-0001.html` draws it. `index.html` lists all
    graphs of the folder. Numbering continues after an earlier recording.
    Equal graphs are written once; `texts` has the text of each. After `max_bytes` of weights, graphs are written as text only.
    """

    def __init__(self, folder: str | Path, max_bytes: int = MAX_BYTES) -> None:
        self.folder, self._max_bytes = make_folder(folder, "record"), max_bytes
        try:
            matches = [_NAME.fullmatch(path.name) for path in self.folder.iterdir()]
        except OSError as error:
            raise DataError(f"{folder}: {error.strerror or error}") from None
        self._last = max((int(match[1]) for match in matches if match), default=0)
        self._written = 0
        self.texts: list[str] = []
        self._known: dict[bytes, str] = {}
        self._lock = Lock()  # guards the four attributes above

    def add(self, graph: MLGraph, origin: str | None) -> None:
        """Write a graph; `origin` is None for a program. Errors are logged and do not reach the client."""
        try:
            recorded = recorded_graph(graph)
        except InvalidStateError:  # the client has destroyed its context
            return
        client = f"a page of {shown_origin(origin)}" if origin is not None else "a program"
        constants = [np.ascontiguousarray(operand.value) for operand in recorded.constants]
        weights = sum(array.nbytes for array in constants)
        text = str(recorded)
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass"))
        for array in constants:
            digest.update(array.reshape(-1).view(np.uint8).data)
        with self._lock:
            existing = self._known.get(digest.digest())
            if existing is None:
                self._last += 1
                self.texts.append(text)
                name = self._known[digest.digest()] = f"graph-{self._last:04}"
                fits = self._written + weights <= self._max_bytes
                self._written += weights if fits else 0
        count = count_of(len(recorded.nodes), "operation")
        if existing is not None:
            logger.info("%s has built %s again, %s", client, existing, count)
            return
        heading = [f"{name}: {count}, weights of {size(weights)}, built by {client}"]
        heading.append(self._onnx(graph, name, fits))
        heading += ["" if has_names(graph) else f"runs on {', '.join(graph.devices)}", ""]
        try:
            with atomic_writer(self.folder / f"{name}.txt") as file:
                file.write("\n".join([*heading, graph.explain(), ""]).encode("utf-8", "backslashreplace"))
            with suppress(MLError):  # the client may have destroyed its context meanwhile
                graph.draw(self.folder / f"{name}.html")
            with self._lock, atomic_writer(self.folder / INDEX) as file:
                file.write(_index(self.folder).encode("utf-8", "backslashreplace"))
        except (MLError, OSError) as error:
            logger.warning("%s is not recorded: %s", name, error)
            return
        logger.info("%s: %s of %s, %s", self.folder / name, count, client, size(weights))

    def _onnx(self, graph: MLGraph, name: str, fits: bool) -> str:
        """Write the ONNX model; return a line for the log."""
        if not fits:
            return f"not written as ONNX: this recording has more than {size(self._max_bytes)} of weights"
        try:
            save(graph, self.folder / f"{name}.onnx")
        except MLError as error:
            return f"not written as ONNX: {error}"
        return f"written as {name}.onnx"


def _index(folder: Path) -> str:
    """The page that lists the graphs of a folder, with links to their files."""
    items = []
    for path in sorted(folder.iterdir()):
        if _NAME.fullmatch(path.name) is None:
            continue
        with path.open(encoding="utf-8", errors="replace") as file:
            description = file.readline().strip().partition(": ")[2]
        forms = {".html": "drawing", ".txt": "text", ".onnx": "ONNX model"}
        links = [
            f'<a href="{path.stem}{suffix}">{form}</a>'
            for suffix, form in forms.items()
            if path.with_suffix(suffix).exists()
        ]
        items.append(f'<li value="{int(path.stem[6:])}">{html.escape(description)}: {", ".join(links)}</li>')
    return _PAGE.format(items="\n".join(items))
