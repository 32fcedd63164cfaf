"""`navigator.ml` in JavaScript against a server that records what it gets; and the files that clients get."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support import node_js

import opweave as ow
from opweave.serve import client_files, idl

MAX_BYTES = 64 * 1024  # a page loads it before its own scripts


def test_script_has_all_parts() -> None:
    assert {path.stem for path in (client_files.FOLDER / "js").iterdir()} == {*client_files.PARTS}


def test_script_is_small_and_evaluates_nothing() -> None:
    script = client_files.webnn_js()
    assert len(script.encode()) <= MAX_BYTES
    assert not re.search(r"\beval\b|\bFunction\(|\bimport\b|\brequire\b", script)


def test_script_has_texts_of_parts() -> None:
    parts = [path.read_text(encoding="utf-8") for path in (client_files.FOLDER / "js").iterdir()]
    assert [part for part in [*parts, idl.table()] if part not in client_files.webnn_js()] == []


@pytest.mark.long(rows=2)
@pytest.mark.parametrize("file", sorted(path.name for path in node_js.JS.glob("*.test.mjs")))
def test_shim_in_node(file: str) -> None:
    out = node_js.run(["--expose-gc", "--test", str(node_js.JS / file)])
    assert re.search(r"^# pass [1-9]", out, re.MULTILINE), out
    assert "# skipped 0" in out, out


def test_files_for_clients(tmp_path: Path) -> None:
    package, extension = client_files.write_clients(tmp_path, url="http://127.0.0.1:1", token="</script>")
    described = json.loads((package / "package.json").read_text())
    assert described["version"] == ow.__version__
    assert {file.name for file in package.iterdir()} == {"package.json", *described["files"]}
    exported = [target for entry in described["exports"].values() for target in _targets(entry)]
    assert all((package / target).is_file() for target in exported)
    manifest = json.loads((extension / "manifest.json").read_text())
    assert manifest["version"] == ow.__version__
    assert manifest["content_scripts"][0]["js"] == ["options.js", "webnn.js"]
    options = (extension / "options.js").read_text()
    assert "</script>" not in options
    shown = node_js.run(["-e", f"{options}; console.log(JSON.stringify(opweaveOptions))"])
    assert json.loads(shown) == {"url": "http://127.0.0.1:1", "token": "</script>"}
    client_files.write_clients(tmp_path, url="http://127.0.0.1:2")
    assert "127.0.0.1:2" in (extension / "options.js").read_text()


def _targets(entry: str | dict[str, str]) -> list[str]:
    return [entry] if isinstance(entry, str) else list(entry.values())


def test_write_clients_reports_unwritable_file(tmp_path: Path) -> None:
    (tmp_path / "opweave-webnn" / "webnn.js").mkdir(parents=True)
    with pytest.raises(ow.DataError, match=r"webnn\.js"):
        client_files.write_clients(tmp_path)
