"""`info`, `bench` and `profile` describe the session of a program with the same model and options, which is the witness."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from support.onnx import model, node
from typer.testing import CliRunner

import opweave as ow
from opweave import cli
from opweave.compile.engines import Measurement, keep, machine, versions
from opweave.onnx.session.parts import parts_of

pytestmark = [pytest.mark.default_choice, pytest.mark.long]

OPERATIONS = """
import opweave as ow


@ow.expression
def tripled(x):
    return x * 3


ow.register_onnx("test.session", "Tripled", tripled)
"""
PROGRAM = """
import json, os, sys
import numpy as np
import opweave as ow

path, options, module, rows = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3], int(sys.argv[4])
if module:
    __import__(module)
if "limits" in options:
    options["limits"] = ow.onnx.ModelLimits(**options["limits"])
session = ow.InferenceSession(path, **options)
sentence = session.explain().splitlines()[0]
shape = [size if isinstance(size, int) else rows for size in session.get_inputs()[0].shape]
for _ in range(3):
    session.run(None, {"x": np.ones(shape, np.float32)})
dynamic = [size for size in session.get_inputs()[0].shape if not isinstance(size, int)]
ways, engines = list(session.shapes().values()), [name for name in ("openvino",) if name in sys.modules]
lines = session.explain().splitlines()
sections = [line for line in lines if line.startswith("section ")]
print(json.dumps({"sentence": sentence, "dynamic": dynamic, "ways": ways, "engines": engines, "sections": len(sections)}))
"""
WIDTH = 8


def dense(rows: int | str, cast: int | None = None, quantised: bool = False) -> onnx.ModelProto:
    """X @ w, in float32, or in another type in between, or quantised."""
    weights = {"w": np.eye(WIDTH, dtype=np.float32)}
    nodes = [node("MatMul", "x w", "y")]
    if cast is not None:
        nodes = [node("Cast", "x", "a", to=cast), node("Cast", "w", "v", to=cast), node("MatMul", "a v", "p")]
        nodes += [node("Cast", "p", "y", to=TensorProto.FLOAT)]
    if quantised:
        weights |= {"scale": np.float32(0.05), "zero": np.uint8(128)}  # type: ignore[dict-item]
        nodes = [node("QuantizeLinear", "x scale zero", "q"), node("DequantizeLinear", "q scale zero", "d")]
        nodes += [node("MatMul", "d w", "y")]
    return model(nodes, {"x": f"float32[{rows}, {WIDTH}]"}, {"y": f"float32[{rows}, {WIDTH}]"}, weights)


def normalised(size: int, more: bool = False) -> onnx.ModelProto:
    """A response normalisation, perhaps after a node that WebNN cannot express."""
    shape = f"float32[1, 4, {size}, {size}]"
    if not more:
        return model([node("LRN", "x", "y", size=3)], {"x": shape}, {"y": shape}, {})
    nodes = [node("Dropout", "x ratio training", "a"), node("LRN", "a", "y", size=3)]
    return model(nodes, {"x": shape}, {"y": shape}, {"ratio": np.float32(0), "training": np.bool_(True)})


def own(rows: int) -> onnx.ModelProto:
    proto = model([node("Relu", "x", "y")], {"x": f"float32[{rows}]"}, {"y": f"float32[{rows}]"}, {})
    proto.graph.node[0].op_type, proto.graph.node[0].domain = "Tripled", "test.session"
    proto.opset_import.add(domain="test.session", version=1)
    return proto


def plant(path: Path, rows: int, chosen: str) -> None:
    """Keep a measurement that has chosen an engine for these rows."""
    cache = parts_of(ow.InferenceSession(path)).shape_cache
    subject, seconds = f"x [{rows}, {WIDTH}]", {"ONNX Runtime, uncompiled": 2e-3, "onnxruntime": 2e-3, "openvino": 1e-3}
    place = machine(cache.ways), versions(cache.ways)
    measurement = Measurement(path.name, subject, chosen, seconds, {}, 5, *place, is_kept=True)
    assert keep(cache.digest(), measurement)


@pytest.mark.parametrize(
    ("proto", "arguments", "options", "chosen"),
    [
        pytest.param(dense("n"), [], {}, "onnxruntime, uncompiled", id="dynamic"),
        pytest.param(dense(4), [], {}, "onnxruntime, uncompiled", id="static"),
        pytest.param(
            dense("n"), ["--fix-shapes", "n=4"], {"fix_shapes": {"n": 4}}, "onnxruntime, uncompiled", id="fixed"
        ),
        pytest.param(
            dense("n"), ["--limit", "nodes=9"], {"limits": {"nodes": 9}}, "onnxruntime, uncompiled", id="limits"
        ),
        pytest.param(normalised(512), [], {}, "onnxruntime", id="compiled"),
        pytest.param(normalised(16), [], {}, "onnxruntime, uncompiled", id="small"),
        pytest.param(normalised(512, more=True), [], {}, "onnxruntime, uncompiled", id="sections"),
        pytest.param(dense("n", cast=TensorProto.FLOAT16), [], {}, "onnxruntime, uncompiled", id="float16"),
        pytest.param(dense("n", quantised=True), [], {}, "onnxruntime, uncompiled", id="quantised"),
        pytest.param(own(4), ["--operations", "operations_of_session"], {}, "onnxruntime", id="own operation"),
        pytest.param(dense(1), [], {}, "openvino", id="tuned"),
        pytest.param(dense("n"), [], {}, "openvino", id="tuned for one shape"),
    ],
)
def test_info_bench_and_profile_agree_with_a_program(
    proto: onnx.ModelProto,
    arguments: list[str],
    options: dict[str, Any],
    chosen: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, module = tmp_path / "model.onnx", "operations_of_session"
    path.write_bytes(proto.SerializeToString())
    (tmp_path / f"{module}.py").write_text(OPERATIONS)
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPWEAVE_THREADS", "1")
    monkeypatch.setenv("COLUMNS", "200")
    if chosen == "openvino":
        pytest.importorskip("openvino")
        monkeypatch.setenv("OPWEAVE_CACHE", str(tmp_path / "cache"))
        plant(path, 1, chosen)

    def command(*words: str) -> str:
        done = CliRunner().invoke(cli.app, [*words, *arguments], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    program = [
        sys.executable,
        "program.py",
        str(path),
        json.dumps(options),
        module if "--operations" in arguments else "",
        "1",
    ]
    ran = json.loads(
        subprocess.run(program, check=True, capture_output=True, text=True, env=os.environ, timeout=120).stdout
    )

    bench = json.loads(command("bench", str(path), "--engines", "auto", "--seconds", "0.02", "--json"))
    itself, auto = bench["engines"]
    (choice,) = auto["choices"].values()
    assert (auto["chosen"], auto["device"]) == (chosen, "cpu")
    assert {way.partition(":")[0] for way in ran["ways"]} == {
        "compiled" if choice["is_compiled"] else "ONNX Runtime, uncompiled"
    }
    assert ran["engines"] == [name for name in ("openvino",) if name == choice["engine"]]
    assert choice["sections"] == ran["sections"]
    assert choice["threads"] == 1
    assert choice["dynamic"].get("x", []) == ran["dynamic"]
    assert ("reason" in itself) == ("--operations" in arguments)  # ONNX Runtime itself has no such operator
    assert auto["difference"] < 1e-3

    lines = command("info", str(path)).splitlines()
    prefix = f"With fix_shapes={options['fix_shapes']}, " if "fix_shapes" in options else ""
    assert lines[0] == prefix + ran["sentence"]
    rows = {line[1:20].strip(): line[20:].strip() for line in lines}
    assert rows["threads"] == "1"
    assert rows["dynamic dimensions"] == (f"{', '.join(ran['dynamic'])} of x" if ran["dynamic"] else "none")
    assert rows["limits"].startswith(f"nodes {options.get('limits', {}).get('nodes', 10**6)}, ")
    measured = command("profile", str(path), "--repeat", "1")
    assert measured.startswith(prefix + ran["sentence"]) or prefix
    assert ("ONNX Runtime, uncompiled\n" in measured) is not choice["is_compiled"]
    others = [line for line in lines if line.startswith("calls with x ")]
    if chosen == "openvino" and ran["dynamic"]:
        assert choice["sentence"].startswith("your program runs this on openvino, compiled, because it was measured")
        assert others[0].startswith("calls with x [1, 8] run on openvino, compiled when a shape is first used, because")
    elif not prefix:
        assert not others
        assert ran["sentence"] == choice["sentence"].replace(", compiled when a shape is first used", ", compiled")
