"""The types of the package for Node.js, in TypeScript."""

from __future__ import annotations

import json
import subprocess
from dataclasses import fields
from pathlib import Path

from libraries import HERE, NODE_MODULES, missing
from support import node_js

from opweave.serve import Counts
from opweave.serve.client_files import FOLDER, write_clients

OPTIONS = ["--noEmit", "--strict", "--target", "es2022", "--lib", "es2022,dom"]


def test_typescript_program(tmp_path: Path) -> None:
    """`types.mts` compiles, with the errors that it expects, as Node.js and as bundlers find modules."""
    if not (NODE_MODULES / "typescript").is_dir():
        missing("TypeScript is not installed: npm ci --prefix tests/web")
    node_js.need()
    write_clients(tmp_path)
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "opweave-webnn").symlink_to(tmp_path / "opweave-webnn")
    (tmp_path / "types.mts").write_text((HERE / "types.mts").read_text())
    compiler = ["node", str(NODE_MODULES / "typescript" / "bin" / "tsc"), *OPTIONS]
    for found in (["--module", "nodenext"], ["--module", "esnext", "--moduleResolution", "bundler"]):
        ran = subprocess.run(
            [*compiler, *found, "types.mts"], cwd=tmp_path, capture_output=True, text=True, timeout=600
        )
        assert ran.returncode == 0, ran.stdout


def test_stats_type_equals_server() -> None:
    declared = (FOLDER / "server.d.mts").read_text().partition("interface Stats {")[2].partition("}")[0]
    names = {line.partition(":")[0].strip() for line in declared.splitlines() if ": " in line and "/**" not in line}
    assert names == {*json.loads(Counts().to_json())}
    assert len(names) == len(fields(Counts))
