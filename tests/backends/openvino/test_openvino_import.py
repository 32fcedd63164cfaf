"""The import of OpenVINO, which must not use the network or write into the user's home."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

USES = {
    "a context": "ow.ml.create_context(backend='openvino', device='cpu')",
    "a graph": "b = ow.MLGraphBuilder(ow.ml.create_context(backend='openvino', device='cpu'));"
    " b.build({'y': b.relu(b.input('x', 'float32', [3]))})",
    "devices": "ow.devices()",
}

CHILD = """
import json, socket, sys, threading, time
attempts = []
def refuse(*given, **options):
    attempts.append(repr(given))
    raise OSError("no network")
for name in ("create_connection", "getaddrinfo"):
    setattr(socket, name, refuse)
for name in ("connect", "connect_ex", "sendto"):
    setattr(socket.socket, name, refuse)
import opweave as ow
{use}
import openvino
openvino.convert_model  # still there for the user
deadline = time.monotonic() + 5
while any("send" in repr(each) or "Pool" in repr(each) for each in threading.enumerate()) and time.monotonic() < deadline:
    time.sleep(0.05)
time.sleep(0.3)
print(json.dumps({{"attempts": attempts, "telemetry": "openvino_telemetry.main" in sys.modules}}))
"""


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_openvino_is_imported_without_telemetry(tmp_path: Path, use: str) -> None:
    pytest.importorskip("openvino", reason="openvino is not installed")
    home = tmp_path / "home"
    home.mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    environment |= {"HOME": str(home), "LOCALAPPDATA": str(home), "OPWEAVE_CACHE": str(tmp_path / "cache")}
    child = [sys.executable, "-c", CHILD.format(use=use)]
    done = subprocess.run(child, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"attempts": [], "telemetry": False}
    assert not [path for path in home.rglob("*") if "intel" in path.name.lower() or "openvino" in path.name.lower()]
