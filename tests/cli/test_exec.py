"""`opweave exec`, and the folder of its `sitecustomize`: programs run as by Python, with Opweave in place of ONNX Runtime."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.onnx import model, node
from support.processes import handle_signals
from typer.testing import CliRunner

from opweave.cli import app, execute

PYTHON = [sys.executable]
EXEC = [sys.executable, "-m", "opweave", "exec"]

OPEN = """
import onnxruntime
def where(_=None):
    session = onnxruntime.InferenceSession("model.onnx")
    return type(session).__module__.partition(".")[0]
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proto = model([node("Relu", "x", "y")], {"x": "float32[2]"}, {"y": "float32[2]"}, opset=17)
    (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("OPWEAVE_REPLACE")]:
        monkeypatch.delenv(name)


def write(name: str, text: str) -> str:
    Path(name).write_text(text)
    return name


def run(*command: str, text: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    return subprocess.run(command, input=text, capture_output=True, text=True, env=environment, timeout=60)


def on_path(*folders: str) -> str:
    """A PYTHONPATH that begins with the folder of the `sitecustomize`."""
    return os.pathsep.join(
        filter(None, [str(execute.FOLDER), *folders, os.environ.get("PYTHONPATH")])
    )  # "" is a folder


# As by Python --------------------------------------------------------------------------------------------------------

FACTS = (
    "import sys; print(__name__, sys.argv, sys.path, sys.flags.dev_mode, sys.stdin.read()); sys.exit(3 + len(sys.argv))"
)
WAYS = {
    "file": ["facts.py", "--device", "x", "--", "-I"],
    "module": ["-m", "facts", "--report"],
    "code": ["-c", FACTS, "--", "y"],
    "stdin": [],
    "options": ["-X", "dev", "facts.py", "--help"],
}


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("way", WAYS)
def test_exec_runs_as_python_does(way: str) -> None:
    write("facts.py", FACTS)
    text = FACTS if way == "stdin" else "typed"
    ours, theirs = (run(*start, *WAYS[way], text=text) for start in (EXEC, PYTHON))
    assert (ours.returncode, ours.stdout, ours.stderr) == (theirs.returncode, theirs.stdout, theirs.stderr)
    assert theirs.returncode >= 4


def test_exec_runs_programs_of_the_path() -> None:
    write("where.py", f"{OPEN}\nprint(where())")
    script = Path(write("a-program", f"#!{sys.executable}\nimport where"))
    script.chmod(0o755)
    path = f"{Path.cwd()}{os.pathsep}{os.environ['PATH']}"
    assert run(*EXEC, "--", "a-program", PATH=path).stdout == "opweave\n"
    assert run("a-program", PATH=path).stdout == "onnxruntime\n"


def test_exec_shows_tracebacks_of_python() -> None:
    write("fails.py", "import onnxruntime\ndef f():\n    return 1 / 0\nf()")
    ours, theirs = (run(*start, "fails.py") for start in (EXEC, PYTHON))
    assert "ZeroDivisionError" in theirs.stderr
    assert (ours.returncode, ours.stderr) == (theirs.returncode, theirs.stderr)


@pytest.mark.parametrize("start", [EXEC, PYTHON], ids=["exec", "python"])
def test_exec_passes_signals(start: list[str]) -> None:
    write("waits.py", "import time\nprint('ready', flush=True)\ntime.sleep(40)")
    options: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "preexec_fn": handle_signals}
    with subprocess.Popen([*start, "waits.py"], **options) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGINT
    assert re.findall(r'^  File "(.*)"', errors, re.MULTILINE) == [f"{Path.cwd()}/waits.py"]


# In place of ONNX Runtime --------------------------------------------------------------------------------------------


@pytest.mark.long
def test_exec_replaces_in_child_processes() -> None:
    write(
        "children.py",
        f"""
import subprocess, sys
from multiprocessing import get_context
{OPEN}
if __name__ == "__main__":
    places = [where()]
    for way in ("fork", "spawn", "forkserver"):
        with get_context(way).Pool(1) as pool:
            places += pool.map(where, [0])
    code = "import children; print(children.where())"
    places.append(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip())
    print(*places)
""",
    )
    assert run(*EXEC, "children.py").stdout.split() == ["opweave"] * 5
    assert run(*PYTHON, "children.py").stdout.split() == ["onnxruntime"] * 5


@pytest.mark.long
def test_exec_options_choose_one_context() -> None:
    write(
        "app.py", "import onnxruntime as o\ns = o.InferenceSession('model.onnx')\nprint(s.context, s.context.precision)"
    )
    done = run(*EXEC, "--device=reference", "--precision", "ieee", "--threads", "1", "app.py")
    assert done.stdout == "<MLContext on reference> ieee\n", done.stderr


def test_exec_reports_sessions() -> None:
    write(
        "app.py",
        """
import os
import onnxruntime as o
for providers in (None, ["DmlExecutionProvider", "CPUExecutionProvider"], ["CPUExecutionProvider"]):
    o.InferenceSession("model.onnx", providers=providers)
try:
    o.InferenceSession(b"abc")
except o.capi.onnxruntime_pybind11_state.InvalidProtobuf:
    pass
if (child := os.fork()) == 0:
    o.InferenceSession(open("model.onnx", "rb").read())
else:
    os.waitpid(child, 0)
""",
    )
    lines = [line for line in run(*EXEC, "--report", "app.py").stderr.splitlines() if line.startswith("opweave: ")]
    why = "float32; ONNX Runtime, uncompiled: no other way to run it was measured to be faster"
    missing = "for CPUExecutionProvider, without a device for DmlExecutionProvider"
    assert lines[:3] == [
        f"opweave: a model of {Path('model.onnx').stat().st_size} bytes: 1 node on cpu (for CPUExecutionProvider), {why}",
        f"opweave: model.onnx: 1 node on cpu (for CPUExecutionProvider), {why} (2 sessions)",
        f"opweave: model.onnx: 1 node on cpu ({missing}), {why}",
    ]  # the child process ends first
    assert lines[3].startswith("opweave: a model of 3 bytes: failed: ")
    assert len(lines) == 4
    assert "opweave: " not in run(*EXEC, "app.py").stderr


@pytest.mark.long
def test_exec_reports_tuned_sessions() -> None:
    pytest.importorskip("openvino")
    write(
        "app.py",
        """
import onnxruntime as o
import opweave as ow
ow.InferenceSession("model.onnx", providers=["CPUExecutionProvider"]).tune(seconds=0)
print(o.InferenceSession("model.onnx").explain().splitlines()[0])
""",
    )
    done = run(*EXEC, "--report", "app.py", OPWEAVE_CACHE="cache")
    sentence = re.fullmatch(r"your program runs this on (.+?), because (.+?)(; pass .*)?\n", done.stdout)
    assert sentence is not None, done.stdout + done.stderr
    assert sentence[2].startswith("it was measured to be faster (")
    assert done.stderr.splitlines()[-1].endswith(f", float32; {sentence[1]}: {sentence[2]}")


def test_exec_sets_variables_and_keeps_python_path(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(os, "execve", lambda *arguments: calls.append(arguments))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(execute.FOLDER), "", "/a"]))
    CliRunner().invoke(app, ["exec", "--threads=2", "app.py", "--threads", "3"])
    ((file, command, variables),) = calls
    assert (file, command) == (sys.executable, [sys.executable, "app.py", "--threads", "3"])
    assert variables["PYTHONPATH"] == os.pathsep.join([str(execute.FOLDER), "/a"])
    ours = {name: value for name, value in variables.items() if name.startswith("OPWEAVE_REPLACE")}
    assert ours == {"OPWEAVE_REPLACE_ONNXRUNTIME": "1", "OPWEAVE_REPLACE_THREADS": "2"}


WRONG = {
    "--precision half app.py": "precision must be one of 'float32', .*, got 'half'",
    "--device nonsense app.py": "there is no device 'nonsense'; available: 'cpu'",
    "--precision float16 --device reference app.py": "precision 'float16': device 'reference' .*cannot compute so",
    "--threads 0 app.py": "'--threads': .*greater than or equal to 1",
    "--threads app.py": "'--threads': .*valid integer",
    "--device": "'--device' requires an argument",
    "--devise cpu app.py": "No such option: --devise",
    "-X dev -sI app.py": "-I makes Python ignore PYTHONPATH",
    "-E -m app": "-E makes Python ignore PYTHONPATH",
    "--": "the program is missing after --",
    "-- no-such-program": "there is no program 'no-such-program' on the PATH",
}


@pytest.mark.parametrize("words", WRONG)
def test_exec_rejects(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "execve", lambda *_: pytest.fail("it runs"))
    result = CliRunner().invoke(app, ["exec", *words.split()], env={"COLUMNS": "200", "TERM": "dumb"})
    assert result.exit_code != 0
    assert re.search(WRONG[words], f"{result.output} {result.exception}"), result.output


# The folder on PYTHONPATH --------------------------------------------------------------------------------------------


def test_exec_prints_the_folder() -> None:
    assert run(*EXEC, "--path").stdout == f"{execute.FOLDER}\n"


@pytest.mark.long(rows=1)
@pytest.mark.parametrize(("value", "place"), [("", "opweave"), ("1", "opweave"), ("0", "onnxruntime")])
def test_folder_replaces_unless_switched_off(value: str, place: str) -> None:
    code = f"{OPEN}\nprint(where())"
    assert run(*PYTHON, "-c", code, PYTHONPATH=on_path(), OPWEAVE_REPLACE_ONNXRUNTIME=value).stdout == f"{place}\n"


def test_folder_costs_nothing_without_onnxruntime() -> None:
    code = "import sys; print(sys.path, *sorted(sys.modules))"
    ours = run(*PYTHON, "-c", code, PYTHONPATH=on_path()).stdout.split()
    assert set(ours) - set(run(*PYTHON, "-c", code).stdout.split()) <= {"sitecustomize", "__future__"}


ORDERS: dict[str, str] = {
    "opweave first": "import opweave.backends.onnxruntime.native",
    "session first": "import opweave as ow; ow.InferenceSession('model.onnx')",
    "replacing first": "import opweave as ow; ow.onnx.replacing_onnxruntime().start()",
    "names first": "from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession",
    "spec first": "import importlib.util; importlib.util.find_spec('onnxruntime')",
    "module first": "import opweave.onnxruntime",
}


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("order", ORDERS)
def test_folder_replaces_in_any_order_of_imports(order: str) -> None:
    done = run(*PYTHON, "-c", f"{ORDERS[order]}\n{OPEN}\nprint(where())", PYTHONPATH=on_path())
    assert done.stdout == "opweave\n", done.stderr


def test_folder_may_have_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(execute.FOLDER)
    path = os.pathsep.join(filter(None, [str(tmp_path / "link"), os.environ.get("PYTHONPATH")]))
    code = f"import sys; print(sys.path)\n{OPEN}\nprint(where())"
    assert run(*PYTHON, "-c", code, PYTHONPATH=path).stdout == run(*PYTHON, "-c", code).stdout.replace(
        "onnxruntime", "opweave"
    )


def test_folder_runs_the_next_sitecustomize(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    write("other/sitecustomize.py", "print('theirs')\nVALUE = 7")
    code = f"{OPEN}\nimport sitecustomize\nprint(sitecustomize.VALUE, where())"
    done = run(*PYTHON, "-c", code, PYTHONPATH=on_path(str(tmp_path / "other")))
    assert done.stdout == "theirs\n7 opweave\n", done.stderr


def test_folder_replaces_onnxruntime_imported_before() -> None:
    """`site` runs `.pth` files, which may import it, before `sitecustomize`."""
    file = str(execute.FOLDER / "sitecustomize.py")
    start = f"import runpy; runpy.run_path({file!r}, run_name='sitecustomize')"
    done = run(
        *PYTHON, "-c", f"import onnxruntime, sys; sys.modules['sitecustomize'] = sys\n{start}\n{OPEN}\nprint(where())"
    )
    assert done.stdout == "opweave\n", done.stderr


def test_folder_warns_without_opweave(tmp_path: Path) -> None:
    (tmp_path / "opweave").mkdir()
    write("opweave/__init__.py", "")
    done = run(*PYTHON, "-c", f"{OPEN}\nprint(where())", PYTHONPATH=on_path(str(tmp_path)))
    assert done.stdout == "onnxruntime\n"
    assert "onnxruntime is not replaced by Opweave in this process: No module named 'opweave.onnx'" in done.stderr


SETTINGS: dict[str, tuple[str, str]] = {
    "OPWEAVE_REPLACE_ONNXRUNTIME": ("yes", "must be 0 or 1, got 'yes'"),
    "OPWEAVE_REPLACE_PRECISION": ("half", "must be one of float32, ieee, tf32, bfloat16, float16, got 'half'"),
    "OPWEAVE_REPLACE_THREADS": ("two", "must be a positive integer, got 'two'"),
    "OPWEAVE_REPLACE_REPORT": ("2", "must be 0 or 1, got '2'"),
}


@pytest.mark.parametrize("variable", SETTINGS)
def test_folder_rejects_wrong_settings(variable: str) -> None:
    value, message = SETTINGS[variable]
    code = (
        "for _ in range(2):\n  try: import onnxruntime\n  except Exception as error: print(type(error).__name__, error)"
    )
    done = run(*PYTHON, "-c", code, PYTHONPATH=on_path(), **{variable: value})
    assert done.stdout == f"ValidationError {variable} {message}\n" * 2, done.stderr
