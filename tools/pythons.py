"""The Pythons of this machine.

python tools/pythons.py --newest

prints the newest of the versions that pyproject.toml lists; it is an error if none is newer than the Python that runs this.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent

Version = tuple[int, int]


def tested_versions() -> list[Version]:
    """The versions that the package says it runs on, in its classifiers."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return sorted((int(a), int(b)) for a, b in re.findall(r'"Programming Language :: Python :: (\d+)\.(\d+)"', text))


def found(versions: Iterable[Version]) -> Iterator[str]:
    """An interpreter of each version that is here: of `PATH`, of pyenv, or beside the one that runs this."""
    folders = [Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions"), Path(sys.base_prefix).parent]
    for major, minor in versions:
        name = f"python{major}.{minor}"
        beside = [path for folder in folders for path in sorted(folder.glob(f"*/bin/{name}"), reverse=True)]
        for python in [shutil.which(name), *map(str, beside)]:
            if python and _runs(python):
                yield python
                break


def _runs(python: str) -> bool:
    """Whether it makes environments; pyenv's command for a version that is not selected fails."""
    return subprocess.run([python, "-c", "import ensurepip, venv"], capture_output=True).returncode == 0


def newest() -> str | None:
    """The newest one that is newer than this one, and not newer than what the package is tested on."""
    return next(found(v for v in reversed(tested_versions()) if v > sys.version_info[:2]), None)


if __name__ == "__main__":
    if sys.argv[1:] != ["--newest"]:
        sys.exit(__doc__)
    if (python := newest()) is None:
        sys.exit(
            f"no Python that is newer than {sys.version_info[0]}.{sys.version_info[1]}, and listed in pyproject.toml, is here"
        )
    print(python)
