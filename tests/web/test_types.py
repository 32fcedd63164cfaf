"""The types of the package for Node.js, in TypeScript."""

from __future__ import annotations

import json
import subprocess
from dataclasses import fields
from pathlib import Path

import numpy as np
from libraries import HERE, NODE_MODULES, missing
from support import node_js

import opweave as ow
from opweave.serve import Counts
from opweave.serve.client_files import FOLDER, write_clients

OPTIONS = ["--noEmit", "--strict", "--target", "es2022", "--lib", "es2022,dom"]


def install_types(folder: Path) -> None:
    """Install the package for Node.js, with its types."""
    write_clients(folder)
    (folder / "node_modules").mkdir()
    (folder / "node_modules" / "opweave-webnn").symlink_to(folder / "opweave-webnn")


def test_typescript_program(tmp_path: Path) -> None:
    """`types.mts` compiles, with the errors that it expects, as Node.js and as bundlers find modules."""
    if not (NODE_MODULES / "typescript").is_dir():
        missing("TypeScript is not installed: npm ci --prefix tests/web")
    node_js.need()
    install_types(tmp_path)
    (tmp_path / "types.mts").write_text((HERE / "types.mts").read_text())
    compiler = ["node", str(NODE_MODULES / "typescript" / "bin" / "tsc"), *OPTIONS]
    for found in (["--module", "nodenext"], ["--module", "esnext", "--moduleResolution", "bundler"]):
        ran = subprocess.run(
            [*compiler, *found, "types.mts"], cwd=tmp_path, capture_output=True, text=True, timeout=600
        )
        assert ran.returncode == 0, ran.stdout


def test_types_of_converted_modules(tmp_path: Path) -> None:
    """Programs with a module of a graph compile, in both kinds of files, with the errors that they expect."""
    if not (NODE_MODULES / "typescript").is_dir():
        missing("TypeScript is not installed: npm ci --prefix tests/web")
    node_js.need()
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
    x = builder.input("an image", "float32", [1, 4])
    graph = builder.build({"y": builder.matmul(x, builder.constant(np.ones((4, 10), "float32")))})
    for suffix in ("js", "mjs"):
        ow.js.save(graph, tmp_path / f"net.{suffix}")
    (tmp_path / "package.json").write_text('{"type": "module"}')
    install_types(tmp_path)
    program = """
import "opweave-webnn";
import { build, inputs, loadWeights, outputs } from "./net.SUFFIX";
const graph: MLGraph = await build(await navigator.ml.createContext(), loadWeights());
const shape: readonly [1, 4] = inputs["an image"].shape;
const type: "float32" = outputs.y.dataType;
const builder = new MLGraphBuilder(await navigator.ml.createContext());
builder.input("x", inputs["an image"]);
// @ts-expect-error: there is no such output
outputs.z;
// @ts-expect-error: the shape is another one
const other: readonly [1, 5] = inputs["an image"].shape;
console.log(graph, shape, type, other);
"""
    for suffix, file in {"js": "a.ts", "mjs": "b.mts"}.items():
        (tmp_path / file).write_text(program.replace("SUFFIX", suffix))
    compiler = ["node", str(NODE_MODULES / "typescript" / "bin" / "tsc"), *OPTIONS, "--module", "nodenext"]
    ran = subprocess.run([*compiler, "a.ts", "b.mts"], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stdout


def test_stats_type_equals_server() -> None:
    declared = (FOLDER / "server.d.mts").read_text().partition("interface Stats {")[2].partition("}")[0]
    names = {line.partition(":")[0].strip() for line in declared.splitlines() if ": " in line and "/**" not in line}
    assert names == {*json.loads(Counts().to_json())}
    assert len(names) == len(fields(Counts))
