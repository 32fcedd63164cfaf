"""Count lines of code and of docstrings, without blank lines and comments.

    python tools/count_lines.py              # src/opweave of this tree
    python tools/count_lines.py COMMIT ...   # of other commits, beside it

A line counts as docstring if a string stands alone there: of a module, class, function, or attribute. Stubs (.pyi) count as
docstrings: they describe.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tarfile
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = "src/opweave"

IGNORED = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def lines_of(text: str) -> tuple[int, int]:
    """The number of lines of code, and of docstrings, in the text of a module.

    >>> lines_of('"Says something."\\n\\nx = 1  # why\\n')
    (1, 1)
    """
    described: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            described.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    used: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in IGNORED:
            used.update(range(token.start[0], token.end[0] + 1))
    texts = text.splitlines()
    blank = {number for number in described if not texts[number - 1].strip()}
    return len(used - described), len(described - blank)


def count(files: Iterable[tuple[str, str]]) -> tuple[int, int]:
    """The number of lines of code, and of docstrings and stubs, in files given by name and text."""
    code = prose = 0
    for name, text in files:
        here = lines_of(text)
        if name.endswith(".pyi"):
            prose += sum(here)
        else:
            code, prose = code + here[0], prose + here[1]
    return code, prose


def files_here() -> Iterator[tuple[str, str]]:
    """The modules of this tree."""
    for pattern in ("*.py", "*.pyi"):
        for path in sorted((ROOT / SOURCE).rglob(pattern)):
            yield path.name, path.read_text(encoding="utf-8")


def files_of(commit: str) -> Iterator[tuple[str, str]]:
    """The modules of a commit."""
    data = subprocess.run(["git", "archive", commit, SOURCE], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            content = archive.extractfile(member) if member.name.endswith((".py", ".pyi")) else None
            if content is not None:
                yield member.name, content.read().decode()


def main(commits: list[str]) -> None:
    """Print a line for each commit, and for this tree."""
    code, prose = count(files_here())
    print(f"{'this tree':12} {code:7,} lines of code {prose:7,} of docstrings")
    for commit in commits:
        before = count(files_of(commit))
        shares = f"this tree has {code / before[0]:.1%} and {prose / before[1]:.1%}"
        print(f"{commit[:12]:12} {before[0]:7,} lines of code {before[1]:7,} of docstrings; {shares}")


if __name__ == "__main__":
    main(sys.argv[1:])
