"""The files for JavaScript clients: the script of a page, the package for Node.js, and the extension for browsers."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from ..support.files import atomic_writer, make_folder
from . import idl

FOLDER = Path(__file__).parent
PARTS = ("conversions", "interfaces", "connection", "builder", "context", "install")
NODE = ("package.json", "node.mjs", "node-sync.mjs", "playwright.mjs", "server.mjs")
TYPES = ("node.d.mts", "playwright.d.mts", "server.d.mts")
EXTENSION = ("extension/manifest.json",)


@cache
def webnn_js() -> str:
    """The script that defines `navigator.ml` in a page or worker; `opweaveOptions` has the address of the server."""
    parts = [(FOLDER / "js" / f"{part}.js").read_text(encoding="utf-8") for part in PARTS]
    head = '// navigator.ml on Opweave, made from src/opweave/serve/js.\n(() => {\n"use strict";'
    # The table comes first: conversions need the enumerations in it.
    return "\n".join([head, idl.table(), *parts, "})();", ""])


def options_script(**options: Any) -> str:
    """The script that precedes `webnn_js()`.

    >>> options_script(url="http://127.0.0.1:8801", token="abc")
    'globalThis.opweaveOptions = {"url": "http://127.0.0.1:8801", "token": "abc"};\\n'

    Args:
        options: `url` and `token` of the server; `mode`: "strict" or "lazy"; `force`: whether to replace an existing
            `navigator.ml`.
    """
    # "</" would end a script element.
    safe = json.dumps(options).replace("</", r"<\/")
    return f"globalThis.opweaveOptions = {safe};\n"


def write_clients(folder: Path, **options: Any) -> list[Path]:
    """Write the folders `opweave-webnn` (for Node.js) and `opweave-extension`, and return them.

    `options` is passed to `options_script`, for the extension.
    """
    package, extension = folder / "opweave-webnn", folder / "opweave-extension"
    files = {extension / "options.js": options_script(**options).encode()}
    files[package / "README.md"] = (FOLDER / "package.md").read_bytes()
    files[package / "webnn.d.ts"] = ((FOLDER / "webnn.d.ts").read_text(encoding="utf-8") + idl.types()).encode()
    for target, names in {package: NODE + TYPES, extension: EXTENSION}.items():
        make_folder(target, "write")
        files |= {target / Path(name).name: (FOLDER / name).read_bytes() for name in names}
        files[target / "webnn.js"] = webnn_js().encode()
    for path, contents in files.items():
        with atomic_writer(path) as file:
            file.write(contents)
    return [package, extension]
