"""`opweave deploy`, as it is used: a process, a line for the shell, Ctrl-C."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from ray_processes import NAME, left_over, marked, new_mark
from served_models import served_model
from typer.testing import CliRunner

import opweave as ow
from opweave.cli import app

with_ray = pytest.mark.skipif(
    find_spec("ray") is None or find_spec("fastapi") is None, reason="Ray with its extra `serve` is not installed"
)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@pytest.fixture
def layer(tmp_path: Path) -> Path:
    path = tmp_path / "a layer.onnx"
    path.write_bytes(served_model("layer"))
    return path


@with_ray
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_it_serves_until_ctrl_c_and_leaves_no_process(layer: Path, tmp_path: Path) -> None:
    mark, port = new_mark(), free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "opweave", "deploy", str(layer), "--port", str(port), "--threads", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {NAME: mark},
        start_new_session=True,  # Ctrl-C reaches all processes of a terminal, as the signal below does those of the session
    )
    assert process.stdout is not None
    lines: list[str] = []
    while not lines or "Ctrl-C" not in lines[-1]:
        lines.append(process.stdout.readline())
        assert lines[-1], process.communicate()
    title, url, example, _ = [line.strip() for line in lines]
    assert title == "a layer.onnx is served on cpu by 1 replica of 1 thread:"
    assert url == f"http://127.0.0.1:{port}/v2/models/a-layer"
    answer = subprocess.run(example, shell=True, capture_output=True, text=True)
    assert [output["name"] for output in json.loads(answer.stdout)["outputs"]] == ["y", "best"], answer.stderr
    assert any("ServeReplica" in command for command in marked(mark).values())
    os.killpg(process.pid, signal.SIGINT)
    output, errors = process.communicate()
    assert (process.returncode, output, errors.strip()) == (0, "", "stopping")
    assert left_over(mark) == {}


@with_ray
@pytest.mark.parametrize("is_ours", [True, False])
def test_why_a_replica_does_not_start_is_told(is_ours: bool, layer: Path, tmp_path: Path) -> None:
    custom, module = tmp_path / "custom.onnx", tmp_path / "fails_in_workers.py"
    custom.write_bytes(served_model("custom"))
    module.write_text("import sys\nif 'default_worker' in sys.argv[0]: raise KeyError('only here')\n")
    given = [str(custom)] if is_ours else [str(layer), "--operations", module.stem]
    mark = new_mark()
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "opweave", "deploy", *given, "--port", str(free_port()), "--threads", "1"],
        capture_output=True,
        text=True,
        env=os.environ | {NAME: mark, "PYTHONPATH": path},
    )
    text = "Triple: neither Opweave nor ONNX Runtime has the operator Triple" if is_ours else "KeyError: 'only here'"
    assert done.stderr.startswith(f"error: the model cannot be served: {text}"), done.stderr
    assert done.returncode == 1
    assert left_over(mark) == {}


def error(*arguments: object) -> str:
    """The error of the command, in this process."""
    result = CliRunner().invoke(app, ["deploy", *map(str, arguments)])
    assert isinstance(result.exception, ow.MLError), result.output
    return str(result.exception)


def test_wrong_models_names_and_devices(layer: Path, tmp_path: Path) -> None:
    sequence, bad = tmp_path / "sequence.onnx", tmp_path / "bad.onnx"
    sequence.write_bytes(served_model("sequence"))
    bad.write_bytes(b"\xff" * 100)
    assert "not an ONNX model" in error(bad)
    assert "No such file" in error(tmp_path / "none.onnx")
    assert "input 's' is seq(tensor(float)), for which the Open Inference Protocol has no type" in error(sequence)
    assert error(layer, "--name", "a b") == "name must be letters, digits, '.', '_' and '-', got 'a b'"
    assert "there is no device 'none'" in error(layer, "--device", "none")
    assert "precision 'tf32': device 'cpu' cannot compute so" in error(layer, "--precision", "tf32")


def test_a_port_in_use_is_named(layer: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        text = f"cannot listen on 127.0.0.1:{port}: Address already in use; --port takes another"
        assert error(layer, "--port", port) == text


def test_without_ray_the_extra_is_named(layer: Path) -> None:
    code = f"""
import sys
sys.modules["ray"] = None
sys.argv = ["opweave", "deploy", {str(layer)!r}]
from opweave.cli import main
main()
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode == 1
    assert found.stderr == "error: opweave.scale.deployment needs ray: pip install 'opweave[scale]'\n"


def test_help_needs_no_ray() -> None:
    result = CliRunner().invoke(app, ["deploy", "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert all(
        option in result.output for option in ("--name", "--port", "--batch", "--wait", "--device", "--replicas")
    )
