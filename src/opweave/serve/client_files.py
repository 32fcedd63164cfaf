"""The files for JavaScript clients: the script of a page, the package for Node.js, and the extension for browsers."""

from __future__ import annotations

import json
import re
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

_SPACED = re.compile(
    r"""(                                   # what stays as it is:
      "(?:[^"\\]|\\.)*"                     # a string,
    | `(?:[^`$]|\$(?!{)|\${[^`}]*(?:`[^`]*`)?[^`}]*})*`   # a template, which may have another in it,
    | (?<![\w)\]])/[^/ ].*?/(?=\w*[.,)])     # a regular expression: what precedes is no operand
    )
    | [ ]*([=(){}\[\],;:?<>&|*!])[ ]*       # punctuation; `+`, `-` and `/` keep their spaces: `a + +b`
    """,
    re.VERBOSE,
)
"""A literal, or punctuation with the spaces around it."""

_HEAD = """// navigator.ml on Opweave. Made from src/opweave/serve/js, which has the comments.
(() => {
"use strict";
"""


@cache
def webnn_js() -> str:
    """The script that defines `navigator.ml` in a page or worker; `opweaveOptions` has the address of the server."""
    parts = (FOLDER / "js" / f"{part}.js" for part in PARTS)
    lines = (line.lstrip() for part in parts for line in part.read_text(encoding="utf-8").splitlines())
    code = (re.sub(r"(?<=[;,{]) // .*", "", line) for line in lines if line and not line.startswith("// "))
    compact = (_SPACED.sub(lambda match: match[1] or match[2], line) for line in code)
    joined = re.sub(r"(?<=[;,{}(\[])\n", "", "\n".join(compact))
    return f"{_HEAD}{idl.table()}\n{joined}\n}})();\n"


def options_script(**options: Any) -> str:
    """The script that precedes `webnn_js()`.

    >>> options_script(url="http://127.0.0.1:8801", token="abc")
    'globalThis.opweaveOptions = {"url": "http://127.0.0.1:8801", "token": "abc"};\\n'

    Args:
        options: `url` and `token` of the server; `mode`: "strict" or "lazy"; `force`: whether to replace an existing
            `navigator.ml`.
    """
    safe = json.dumps(options).replace("</", r"<\/")  # which would end a script element
    return f"globalThis.opweaveOptions = {safe};\n"


def write_clients(folder: Path, **options: Any) -> list[Path]:
    """Write the folders `opweave-webnn` (for Node.js) and `opweave-extension`, and return them.

    `options` are those of `options_script`, for the extension.
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
