"""The steps of examples/Dockerfile, in order, without Docker: in a folder, and in an environment for its Python packages."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from support.processes import handle_signals
from support.served_models import served_model

pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install 'opweave[server]'")

ROOT = Path(__file__).parents[2]
FILE = ROOT / "examples" / "Dockerfile"


def steps() -> Iterator[tuple[str, str]]:
    """The instructions of the file, and what follows each."""
    for line in FILE.read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, rest = line.partition(" ")
            yield name, rest


def run(command: str, folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(command, shell=True, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


@pytest.mark.long
def test_dockerfile_steps_serve_models(tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    venv.create(packages, with_pip=True)
    target = Path(sysconfig.get_path("purelib", vars={"base": str(packages)}))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {
        "PATH": f"{packages / 'bin'}:{os.environ['PATH']}",
        "VIRTUAL_ENV": str(packages),
    }
    run("pip install hatchling", tmp_path, environment)
    # The step installs what was copied, and nothing else: the requirements are those of this environment. "0" means yes here.
    environment |= {"PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0"}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder, check, process = tmp_path, "", None
    for name, rest in steps():
        if name == "WORKDIR":
            folder = tmp_path / rest.lstrip("/")
            (folder / "models").mkdir(parents=True)
            (folder / "models" / "fixed.onnx").write_bytes(served_model("fixed"))
        elif name == "COPY":
            *sources, goal = rest.split()
            for source in sources:
                place = folder / goal / Path(source).name if goal.endswith("/") else folder / goal
                place.parent.mkdir(parents=True, exist_ok=True)
                if (ROOT / source).is_dir():
                    shutil.copytree(ROOT / source, place)
                else:
                    shutil.copy(ROOT / source, place)
        elif name == "RUN":
            run(rest, folder, environment)
            paths = [path for path in sys.path if Path(path).name == "site-packages"]
            (target / "requirements.pth").write_text("\n".join(paths))
        elif name == "ENV":
            environment |= dict(pair.split("=", 1) for pair in rest.split())
            environment |= {"OPWEAVE_CACHE": str(tmp_path / "cache"), "PORT": str(port)}
        elif name == "HEALTHCHECK":
            check = rest.removeprefix("CMD ")
        elif name == "CMD":
            process = subprocess.Popen(rest, shell=True, cwd=folder, env=environment, preexec_fn=handle_signals)
        else:
            assert name in ("FROM", "USER", "EXPOSE")
    assert process is not None
    try:
        end = monotonic() + 60
        while True:
            try:
                found = urlopen(f"http://127.0.0.1:{port}/v2/models/fixed").read()
                break
            except URLError:
                assert monotonic() < end
                assert process.poll() is None
                sleep(0.1)
        assert b'"name":"fixed"' in found
        run(check, folder, environment)
        code = [str(packages / "bin" / "python"), "-c", "import opweave; print(opweave.__file__)"]
        installed = subprocess.run(code, env=environment, cwd=folder, capture_output=True, text=True, check=True).stdout
        assert installed.startswith(str(packages)), "what runs is what was copied"
    finally:
        process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    with pytest.raises(AssertionError):
        run(check, folder, environment)
