"""SECURITY.md: each limit that it names is that of the code."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import opweave as ow
from opweave.expr import limits as of_expressions
from opweave.scale import protocol
from opweave.serve import ConnectionLimits
from opweave.support import disk_cache, processors

PAGE = Path(__file__).parents[2] / "SECURITY.md"


def rows() -> dict[str, str]:
    """The table of limits: what is limited, and how."""
    table = PAGE.read_text(encoding="utf-8").partition("\n## Limits\n")[2].partition("\n\n`")[0]
    cells = [re.split(r" ?\| ?", line)[1:3] for line in table.strip().splitlines()[2:]]
    return {cell[0]: cell[1] for cell in cells}


def numbers(text: str) -> list[int]:
    """The numbers of a cell, in bytes where it has a unit of them."""
    units = {"MiB": 2**20, "GiB": 2**30}
    found = re.findall(r"(\d[\d,]*)(?: (MiB|GiB))?", text)
    return [int(number.replace(",", "")) * units.get(unit, 1) for number, unit in found]


def limits() -> dict[str, list[int]]:
    """The numbers in the code, by how the rows of the table begin."""
    of_models, of_connections = ow.onnx.ModelLimits(), ConnectionLimits()
    timeout = inspect.signature(ow.wasm.load).parameters["timeout"].default
    assert of_models.folded_bytes == of_models.dense_bytes
    return {
        "nodes of a model": [of_models.nodes, of_models.folded_bytes],
        "memory and time of a WebAssembly module": [timeout],
        "nodes of an expression": [of_expressions.MAX_NODES, of_expressions.MAX_WORK // 1000],
        "memory and contexts of a connection": [of_connections.memory, of_connections.contexts],
        "body of a request to a deployment": [protocol.MAX_BODY_BYTES, protocol.MAX_JSON_BYTES],
        "the cache on disk": [disk_cache.DEFAULT_LIMIT],
        "threads": [],
    }


def test_security_limits_equal_code() -> None:
    found = {what: numbers(default) for what, default in rows().items()}
    wanted = limits()
    assert len(found) == len(wanted)
    for (what, values), (start, expected) in zip(found.items(), wanted.items(), strict=True):
        assert what.startswith(start)
        assert values == expected, what


@pytest.mark.parametrize("text", re.findall(r"`(OPWEAVE_\w+)`", PAGE.read_text(encoding="utf-8")))
def test_security_variables_are_read(text: str) -> None:
    code = [inspect.getsource(module) for module in (disk_cache, processors)]
    assert any(f'"{text}"' in each for each in code)
