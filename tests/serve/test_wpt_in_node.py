"""The cases of the Web Platform Tests from JavaScript: Node.js, the script and the server, as a page would use them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import node_js, wpt
from support.webgpu_device import gpu_context

from opweave.serve import Server

STRIDES = {"cpu": 1, "reference": 20, "gpu": 40}
"""One case of so many runs, unless `--all` asks for all: the reference and software adapters are slow."""


def failures(server: Server, kind: str, stride: int, folder: Path = wpt.DATA / "wpt") -> tuple[int, dict[str, str]]:
    """Run every `stride`-th case; return how many these were, and the messages of those that fail, by id."""
    arguments = [str(node_js.package() / "node.mjs"), kind, str(folder / kind), str(stride)]
    environment = {"OPWEAVE_URL": server.url, "OPWEAVE_TOKEN": server.token or ""}
    out = node_js.run([str(node_js.JS / "wpt_node.mjs"), *arguments], environment)
    result = json.loads(out)
    return result["ran"], result["failures"]


@pytest.mark.long
def test_validation() -> None:
    with Server(port=0, device="cpu") as server:
        ran, failed = failures(server, "validation", 1)
    assert ran == len(wpt.cases("validation")) == 574
    assert sorted(failed) == sorted(wpt.expected_failures("validation")), failed


@pytest.mark.long
@pytest.mark.parametrize("device", STRIDES)
def test_conformance(device: str, pytestconfig: pytest.Config) -> None:
    name = gpu_context().device.name if device == "gpu" else device
    stride = 1 if pytestconfig.option.all else STRIDES[device]
    with Server(port=0, device=name) as server:
        ran, failed = failures(server, "conformance", stride)
        stats = server.stats()
    assert ran == len(wpt.cases("conformance")[::stride])
    cases = {case["id"] for case in wpt.cases("conformance")[::stride]}
    expected = cases.intersection(wpt.expected_failures("webgpu") if device == "gpu" else ())
    assert sorted(failed) == sorted(expected), failed
    assert stats.dispatches == ran - len(expected)


def test_wpt_runner_detects_wrong_results(tmp_path: Path) -> None:
    """Cases that are made wrong on purpose fail, each with what is wrong."""
    case = next(
        case for case in wpt.cases("conformance") if case["op"] == "abs" and case["inputs"]["absInput"]["shape"]
    )
    value, data_type, shape = (json.loads(json.dumps(case)) for _ in range(3))
    value["expected"]["absOutput"]["data"][0] += 1
    data_type["expected"]["absOutput"]["dataType"] = "uint8"
    shape["expected"]["absOutput"]["shape"].append(1)
    accepted = {"steps": [{"throws": "TypeError", "steps": [_input([1])]}]}
    refused = {"steps": [_input([0])]}
    checked = {"steps": [_input([1]), {"check": "%0", "shape": [2]}]}
    for kind, made in {"conformance": (value, data_type, shape), "validation": (accepted, refused, checked)}.items():
        (tmp_path / kind).mkdir()
        lines = [json.dumps({**one, "id": str(number)}) for number, one in enumerate(made)]
        (tmp_path / kind / "abs.jsonl").write_text("\n".join(lines))
    with Server(port=0, device="cpu") as server:
        _, conformance = failures(server, "conformance", 1, tmp_path)
        _, validation = failures(server, "validation", 1, tmp_path)
    wanted = ["absOutput[0] is", "expected uint8", r"absOutput: "]
    assert all(text in conformance[str(number)] for number, text in enumerate(wanted)), conformance
    wanted = ["expected TypeError", "dimensions in [1,", "got float32 [1]"]
    assert all(text in validation[str(number)] for number, text in enumerate(wanted)), validation


def _input(shape: list[int]) -> dict[str, Any]:
    return {"call": "input", "args": ["x", {"dataType": "float32", "shape": shape}], "result": "%0"}
