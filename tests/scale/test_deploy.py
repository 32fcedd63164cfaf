"""`opweave deploy --ray`, as it is used: a process, a line for the shell, Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from time import sleep
from urllib.request import urlopen

import pytest
from support.processes import handle_signals
from support.ray_processes import NAME, left_over, marked, new_mark
from support.served_models import served_model
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
def test_deploy_serves_until_interrupt(tmp_path: Path) -> None:
    mark, port, model = new_mark(), free_port(), tmp_path / "a sum.onnx"
    model.write_bytes(served_model("running"))
    options = ["--port", str(port), "--threads", "99", "--wait", "0.5", "--batch", "2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "opweave", "deploy", "--ray", str(model), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {NAME: mark},
        start_new_session=True,  # Ctrl-C reaches all processes of a terminal, as the signal below does those of the session
        preexec_fn=handle_signals,
    )
    assert process.stdout is not None
    lines: list[str] = []
    while not lines or "Ctrl-C" not in lines[-1]:
        lines.append(process.stdout.readline())
        assert lines[-1], process.communicate()
    title, url, sizes, example, end = [line.strip() for line in lines]
    assert title == "a sum.onnx is served on cpu by 1 replica of 99 threads:"
    assert url == f"http://127.0.0.1:{port}/v2/models/a-sum"
    assert sizes == "The example has zeros, and sizes for dynamic dimensions: x [N, 2] as [1, 2]"
    answer = subprocess.run(example, shell=True, capture_output=True, text=True)
    assert [output["name"] for output in json.loads(answer.stdout)["outputs"]] == ["y"], answer.stderr
    assert any("ServeReplica" in command for command in marked(mark).values())
    # Serve gives each replica a gRPC port on all interfaces, which needs Ray's token.
    others = [number for number, command in marked(mark).items() if "ServeReplica" not in command]
    assert {address for number in others for address in listening(number)} == {"127.0.0.1"}
    with ThreadPoolExecutor(2) as pool:  # in a batch, the second row is added to the first one
        rows = list(pool.map(lambda number: send(f"{url}/infer", [number, number]), (1, 2)))
    assert rows == [[1, 1], [2, 2]]
    logs = Path(end.removeprefix("Ctrl-C stops it. Its logs are in "))
    assert any("requests run one by one" in path.read_text() for path in logs.glob("replica_opweave_a-sum_*.log"))
    os.killpg(process.pid, signal.SIGINT)
    output, errors = process.communicate()
    assert (process.returncode, output) == (0, "")
    warning, stopping = errors.strip().splitlines()
    assert re.fullmatch(r"warning: 99 threads on \d+ processors? wait for each other: --threads and .*", warning)
    assert stopping == "stopping"
    assert left_over(mark) == {}


def started(model: Path, mark: str) -> subprocess.Popen[str]:
    """The command, in a process."""
    return subprocess.Popen(
        [sys.executable, "-m", "opweave", "deploy", "--ray", str(model), "--port", str(free_port()), "--threads", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {NAME: mark},
        start_new_session=True,
        preexec_fn=handle_signals,
    )


@with_ray
@pytest.mark.parametrize("signals", [["SIGTERM"], ["SIGHUP", "SIGTERM", "SIGINT"]], ids=" ".join)
def test_deploy_ends_with_status_0_and_leaves_no_process_after(signals: list[str], layer: Path) -> None:
    mark = new_mark()
    process = started(layer, mark)
    assert process.stdout is not None
    assert any("Ctrl-C stops it" in line for line in iter(process.stdout.readline, ""))
    for name in signals:
        process.send_signal(signal.Signals[name])
        sleep(0.2)
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, "stopping\n")
    assert left_over(mark) == {}


@with_ray
def test_deploy_ends_after_sigterm_while_it_starts(layer: Path) -> None:
    mark = new_mark()
    process = started(layer, mark)
    while not any("raylet" in command for command in marked(mark).values()):
        assert process.poll() is None
        sleep(0.02)
    process.terminate()
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, "stopping\n")
    assert left_over(mark) == {}


@with_ray
def test_deploy_leaves_no_process_after_sigkill(layer: Path) -> None:
    mark = new_mark()
    process = started(layer, mark)
    assert process.stdout is not None
    assert any("Ctrl-C stops it" in line for line in iter(process.stdout.readline, ""))
    process.kill()
    assert left_over(mark, 60) == {}


def send(url: str, data: list[int]) -> list[float]:
    """The result of a request of one row."""
    given = {"name": "x", "shape": [1, len(data)], "datatype": "FP32", "data": data}
    with urlopen(url, json.dumps({"inputs": [given]}).encode()) as response:
        values: list[float] = json.load(response)["outputs"][0]["data"]
    return values


def listening(process: int) -> set[str]:
    """The addresses on which a process listens."""
    open_files = []
    for path in Path(f"/proc/{process}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            open_files.append(os.readlink(path))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A" and f"socket:[{rest[5]}]" in open_files:  # 0A is TCP_LISTEN
                words = bytes.fromhex(local.partition(":")[0])  # words of four bytes, in the order of the machine
                number = b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
                address = ip_address(number)
                found.add(str(getattr(address, "ipv4_mapped", None) or address))
    return found


@with_ray
@pytest.mark.parametrize("is_ours", [True, False])
def test_deploy_reports_replica_failure(is_ours: bool, layer: Path, tmp_path: Path) -> None:
    custom, module = tmp_path / "custom.onnx", tmp_path / "fails_in_workers.py"
    custom.write_bytes(served_model("custom"))
    module.write_text("import sys\nif 'default_worker' in sys.argv[0]: raise KeyError('only here')\n")
    given = [str(custom)] if is_ours else [str(layer), "--operations", module.stem]
    mark = new_mark()
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "opweave", "deploy", "--ray", *given, "--port", str(free_port()), "--threads", "1"],
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
    result = CliRunner().invoke(app, ["deploy", "--ray", *map(str, arguments)])
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


def test_deploy_reports_port_in_use(layer: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        text = f"cannot listen on 127.0.0.1:{port}: Address already in use; --host and --port take others"
        assert error(layer, "--port", port) == text


@pytest.mark.long
def test_deploy_names_missing_extra(layer: Path) -> None:
    code = f"""
import sys
sys.modules["ray"] = None
sys.argv = ["opweave", "deploy", "--ray", {str(layer)!r}]
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
