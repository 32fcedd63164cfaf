"""Write src/opweave/serve/webnn.js: the parts in src/opweave/serve/js, and the table of operations, in one file.

python tools/write_webnn.py [FILE]
"""

from __future__ import annotations

import sys
from pathlib import Path

from opweave.serve import idl

FOLDER = Path(__file__).parent.parent / "src" / "opweave" / "serve"
PARTS = ("conversions", "interfaces", "connection", "builder", "context", "install")

HEAD = """// navigator.ml on Opweave. Made by tools/write_webnn.py from the parts in js/, which have the comments; do not edit.
(() => {
"use strict";
"""


def main(path: Path = FOLDER / "webnn.js") -> None:
    """Write the file."""
    path.write_text(text(), encoding="utf-8")


def text() -> str:
    """The whole file: the table first, since conversions need the enumerations. Comments and indentation stay in the parts."""
    lines = (line for part in PARTS for line in (FOLDER / "js" / f"{part}.js").read_text(encoding="utf-8").splitlines())
    code = (line.lstrip() for line in lines if line.strip() and not line.lstrip().startswith("// "))
    return "\n".join([HEAD + idl.table(), *code, "})();", ""])


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
