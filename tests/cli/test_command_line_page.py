"""docs/command-line.md, which is made from the program."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from opweave.cli import app

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## opweave ([a-z ]+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))


def help_of(*command: str) -> str:
    result = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "160", "TERM": "dumb"})
    assert result.exit_code == 0
    return result.output


def commands(text: str) -> list[str]:
    """The commands that a help text lists."""
    (listed,) = re.findall(r"─ Commands ─.*?\n(.*?)╰", text, re.DOTALL)
    return re.findall(r"^│ ([a-z]+) ", listed, re.MULTILINE)


def test_page_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import write_command_line  # type: ignore[import-not-found]

    assert write_command_line.text() == PAGE, "run `make docs`"


def test_page_has_all_commands() -> None:
    found = {name for name in commands(help_of()) if name != "cache"}
    found |= {f"cache {name}" for name in commands(help_of("cache"))}
    assert len(found) > 14
    assert set(SECTIONS) == found


@pytest.mark.parametrize("command", SECTIONS)
def test_page_section_equals_help(command: str) -> None:
    shown = help_of(*command.split())
    options = {option for option in re.findall(r"^│ \*? *(--[\w-]+)", shown, re.MULTILINE) if option != "--help"}
    rows = dict(re.findall(r"^\| `(?:-\w, )?(--[\w-]+)[^|]*`.*?\|(?: `(.*?)`)? ", SECTIONS[command], re.MULTILINE))
    assert set(rows) == options
    defaults = re.findall(r"\[default: ([^\]]+)\]", shown)
    assert sorted(default for default in rows.values() if default) == sorted(defaults)
