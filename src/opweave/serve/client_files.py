"""The files for JavaScript clients: what a page loads, the package for Node.js, and the extension for browsers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..files import atomic_writer

FOLDER = Path(__file__).parent
NODE = ("package.json", "webnn.js", "node.mjs", "node-sync.mjs", "playwright.mjs")
EXTENSION = ("extension/manifest.json", "webnn.js")


def webnn_js() -> str:
    """The script that defines `navigator.ml` in a page or worker; `opweaveOptions` says where the server is."""
    return (FOLDER / "webnn.js").read_text(encoding="utf-8")


def options_script(**options: Any) -> str:
    """The script that precedes `webnn_js()`.

    >>> options_script(url="http://127.0.0.1:8801", token="abc")
    'globalThis.opweaveOptions = {"url": "http://127.0.0.1:8801", "token": "abc"};\\n'

    Args:
        options: `url` and `token` of the server; `mode`: "strict" or "lazy"; `force`: whether to replace a `navigator.ml`
            that is there.
    """
    safe = json.dumps(options).replace("</", r"<\/")  # which would end a script element
    return f"globalThis.opweaveOptions = {safe};\n"


def write_clients(folder: Path, **options: Any) -> list[Path]:
    """Write the package for Node.js and the extension for browsers.

    Args:
        folder: where to; it gets the folders `opweave-webnn` and `opweave-extension`. Files of theirs are replaced.
        options: as for `options_script`; the extension connects with them.

    Returns:
        The two folders.

    Raises:
        DataError: a file cannot be written.
    """
    package, extension = folder / "opweave-webnn", folder / "opweave-extension"
    texts = {package / Path(name).name: FOLDER / name for name in NODE}
    texts |= {extension / Path(name).name: FOLDER / name for name in EXTENSION}
    for target in (package, extension):
        target.mkdir(parents=True, exist_ok=True)
    for target, source in texts.items():
        with atomic_writer(target) as file:
            file.write(source.read_bytes())
    with atomic_writer(extension / "options.js") as file:
        file.write(options_script(**options).encode())
    return [package, extension]
