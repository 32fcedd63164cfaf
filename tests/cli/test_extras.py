"""Extras as `opweave doctor` lists them: read from metadata of packages."""

from __future__ import annotations

import sys
import tomllib
from importlib import invalidate_caches
from pathlib import Path

import pytest
from typer.testing import CliRunner

from opweave import NotSupportedError
from opweave.cli import app
from opweave.cli.extras import PURPOSES, missing_requirements

FOR_DEVELOPERS = {"all", "dev", "site"}


def package(folder: Path, name: str, version: str, *requirements: str, extras: tuple[str, ...] = ()) -> None:
    """Metadata of an installed package."""
    place = folder / f"{name}-{version}.dist-info"
    place.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Provides-Extra: {extra}" for extra in extras] + [f"Requires-Dist: {text}" for text in requirements]
    (place / "METADATA").write_text("\n".join([*lines, ""]))


@pytest.fixture(autouse=True)
def _packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [
        "always",
        'engine>=2; extra == "fast"',
        'fine<2; extra == "fast"',
        'gone; extra == "fast"',
        'other; extra == "fast" and sys_platform == "nowhere"',
        'cluster[data]>=1; extra == "wide"',
        'us[fast]; extra == "both"',
        'fine; extra == "light"',
    ]
    package(tmp_path, "us", "1.0", *asked, extras=("fast", "wide", "both", "light"))
    package(tmp_path, "engine", "1.9")
    package(tmp_path, "fine", "1.5")
    package(tmp_path, "cluster", "3.0", 'tables; extra == "data"', extras=("data",))
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    invalidate_caches()


@pytest.mark.parametrize(
    ("extra", "lacking"),
    [
        ("fast", ["engine>=2", "gone"]),
        ("wide", ["tables"]),
        ("both", ["engine>=2", "gone"]),
        ("light", []),
    ],
)
def test_missing_packages_of_extra(extra: str, lacking: list[str]) -> None:
    assert missing_requirements(extra, "us") == lacking


def test_unknown_packages_and_extras() -> None:
    with pytest.raises(NotSupportedError, match="nothing is not installed as a package"):
        missing_requirements("fast", "nothing")
    with pytest.raises(NotSupportedError, match="the installed package us has no extra 'slow'"):
        missing_requirements("slow", "us")


def test_purposes_name_every_user_extra() -> None:
    file = Path(__file__).parents[2] / "pyproject.toml"
    declared = tomllib.loads(file.read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert set(PURPOSES) == {name for name in declared if name not in FOR_DEVELOPERS and not name.endswith("-tests")}


def test_doctor_lists_missing_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"halide": ["engine>=2", "gone"]}
    monkeypatch.setattr("opweave.cli.system.missing_requirements", lambda extra: found.get(extra, []))
    lines = CliRunner().invoke(app, ["doctor"], env={"COLUMNS": "200"}).output.splitlines()
    (line,) = (line for line in lines if "extra halide" in line)
    assert "missing engine>=2, gone: pip install 'opweave[halide]'" in line
    (line,) = (line for line in lines if "extra wasm" in line)
    assert "installed (runs WebAssembly kernels)" in line
