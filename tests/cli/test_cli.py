"""The command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import opweave as ow
from opweave import backends
from opweave.backends import discover
from opweave.cli import app
from opweave.inspect import support
from opweave.ops import Operations


def run(*args: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(args), terminal_width=200, env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result.output


def test_version() -> None:
    assert run("--version").strip() == f"opweave {ow.__version__}"


def test_help_names_every_command() -> None:
    text = run("--help")
    assert all(command in text for command in ("demo", "devices", "ops", "doctor"))


def test_devices_are_listed() -> None:
    text = run("devices")
    assert "cpu" in text
    assert "reference" in text
    assert "onnxruntime" in text


def test_hints_name_extras_in_brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = backends.Device("gpu", "gpu", "webgpu", "any GPU :smile:", False, "pip install 'opweave[webgpu]'")
    monkeypatch.setattr(backends, "devices", lambda: [missing])
    text = " ".join(run("devices").split())  # a narrow terminal wraps it
    assert "gpu (webgpu): any GPU :smile: pip install 'opweave[webgpu]'" in text


def test_devices_are_a_line_each_in_a_narrow_terminal() -> None:
    lines = CliRunner().invoke(app, ["devices"], terminal_width=80, env={"COLUMNS": "80"}).output.splitlines()
    here = [device for device in backends.devices() if device.available]
    for device, line in zip(here, lines[1:], strict=False):
        assert line.split()[:3] == [device.name, device.kind, device.backend]
        assert line.endswith(device.description)


def test_doctor_reports_versions_and_extras() -> None:
    text = run("doctor")
    for word in ("opweave", "Python", "CPU features", "numpy", "onnxruntime", "extra demo", "devices"):
        assert word in text
    text = " ".join(text.split())  # a narrow terminal wraps it
    for device in backends.devices():
        assert (f"{device.name} ({device.backend})" in text) is device.available


@pytest.mark.long
def test_ops_lists_all_operations() -> None:
    lines = run("ops").splitlines()
    assert [name for name in Operations.listing() if not any(line.startswith(f"{name} ") for line in lines)] == []


def test_ops_suggests_the_name_that_was_meant() -> None:
    assert "did you mean" in run("ops", "softmaks", code=2)


OPERATIONS = """
import numpy as np
import opweave as ow

@ow.op
def doubled(self, x: ow.MLOperand):
    return x.desc

@doubled.kernel("cpu")
def _(x, out):
    np.multiply(x, 2, out=out)

def declare():
    @ow.op
    def hidden(self, x: ow.MLOperand):
        return ow.Desc("float32", (x.shape[4],))
    hidden.kernel("cpu", lambda x, out: None)
    return hidden

KEPT = [declare()]
"""

WRONG = """
@ow.op
def wrong(self, x: ow.MLOperand):
    return x.desc

@wrong.kernel("cpu")
def _(x, out):
    out[...] = [[missing]]
"""


def test_ops_check_shows_each_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checked_operations.py").write_text(OPERATIONS)
    rows = [line.split() for line in run("ops", "--check", "checked_operations").splitlines()]
    assert rows[0] == ["operation", "kind", "checked", "by", "result"]
    assert rows[1][:5] == ["doubled", "cpu", "parameters", "and", "names"]
    assert rows[2][:3] == ["hidden", "not", "checked:"]
    assert [row[0] for row in rows if row[0] in ("doubled", "hidden")] == ["doubled", "hidden"]
    run("ops", "--check", "checked_operations", "--strict", code=1)
    run("ops", "--check", "checked_operations", "--strict", "doubled")
    assert "did you mean 'doubled'" in run("ops", "--check", "checked_operations", "double", code=2)


def test_ops_check_leaves_with_1_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong_operations.py").write_text(OPERATIONS + WRONG)
    text = run("ops", "--check", "wrong_operations", code=1)
    number = (OPERATIONS + WRONG).splitlines().index("    out[...] = [[missing]]") + 1
    assert f"wrong: the kernel (wrong_operations.py, line {number}): name 'missing' is not defined" in text
    assert f"{number} │     out[...] = [[missing]]" in text


def test_ops_check_rejects_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some_operations.py").write_text(OPERATIONS)
    assert "there is no module 'no_such_module'" in run("ops", "--check", "no_such_module", code=2)
    assert "json declares no operations" in run("ops", "--check", "json", code=2)
    assert "--arch must be compute capabilities" in run("ops", "--check", "some_operations", "--arch", "x", code=2)
    assert "--arch and --strict are for --check" in run("ops", "--strict", code=2)
    assert "--core is for the operations of WebNN" in run("ops", "--check", "some_operations", "--core", code=2)


def test_core_operations_have_no_decomposition() -> None:
    text = run("ops", "--core")
    assert "\nexp " in text
    assert "\nsoftmax " not in text


@pytest.mark.whole
@pytest.mark.parametrize("name", Operations.listing())
def test_support_is_complete(name: str) -> None:
    for backend, how in support.support(Operations.listing()[name], discover()).items():
        assert None not in how.values(), f"{backend} cannot do {name} for some data type: {how}"


@pytest.mark.long
def test_errors_are_one_line(tmp_path: Path) -> None:
    missing = tmp_path / "missing.jpg"
    result = subprocess.run([sys.executable, "-m", "opweave", "demo", missing], capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.long
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a disk that is always full")
def test_full_disk_error_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "opweave", "ops"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert result.returncode == 1
    assert result.stderr.startswith("error: ")
    assert "No space left" in result.stderr
    assert len(result.stderr.splitlines()) == 1
