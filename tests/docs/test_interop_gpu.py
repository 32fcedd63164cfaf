"""The benchmark of shaders beside graphs: all ways compute the same, in the same buffers; its page says what was measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support import webgpu_device

import opweave as ow
from benchmarks.interop.gpu_page import HEADING, chart, image, section
from benchmarks.interop.gpu_report import GpuLine, GpuReport

DOCS = Path(__file__).parents[2] / "docs"


def recorded() -> list[GpuReport]:
    return [GpuReport.read(json.dumps(value)) for value in json.loads((DOCS / "interop-gpu.json").read_text())]


@pytest.mark.long
def test_interop_ways_compute_the_same() -> None:
    pytest.importorskip("wgpu", reason="wgpu is not installed")
    from benchmarks.interop.gpu import Kernels, Tests

    tests = Tests(webgpu_device.gpu_context().create_tensor("float32", [1]).gpu_buffer._device, 4)
    data = tests.data
    padded = np.pad(data.image[0], ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    expected = np.maximum(np.einsum("cyxij,ocij->oyx", windows, data.weights) + data.bias, 0)[None]
    copies: dict[int, list[int]] = {}
    for way in tests.all():
        way.run()
        np.testing.assert_allclose(way.result(), expected, rtol=1e-4, atol=1e-4, err_msg=str(way.line))
        ow.memory.copies.reset()
        way.run()
        copies.setdefault(way.line.test, []).append(ow.memory.copies.count)
        kernels = way.gpu(1)
        assert isinstance(kernels, Kernels)
        assert kernels.count == {1: 3, 2: 3, 4: 1}.get(way.line.test, kernels.count)
        assert kernels.median >= kernels.fastest > 0
    assert tests.shared
    assert copies == {1: [0], 2: [2], 3: [0, 0, 0], 4: [0]}


def test_interop_page_and_charts_are_current() -> None:
    reports = recorded()
    page = (DOCS / "interop.md").read_text()
    assert section(reports) == page[page.index(f"\n{HEADING}\n") :]
    for report in reports:
        assert (DOCS / image(report)).read_text() == chart(report)
        assert GpuReport.read(report.to_json()) == report


@pytest.mark.parametrize(
    ("test", "changed", "row"),
    [
        (4, {"gpu": (0.12, 0.1)}, "| All built in, on the device | at most 0.11 ms | 0.120 ms | NO |"),
        (
            3,
            {"gpu": (0.14, 0.1)},
            "| Own shaders in the same buffers, beyond that | at most 0.02 ms | +0.040 ms | NO |",
        ),
        (1, {"gpu": (0.50, 0.4)}, "| All custom, compared with it | at least 6 times | 5.0 times | NO |"),
        (3, {"wall": (8.0, 7.0)}, "| at most 50% | 80% | NO |"),
        (3, {"copies": 1}, "| Copies in the same buffers | none | 1 | NO |"),
    ],
)
def test_budgets_are_checked(test: int, changed: dict[str, object], row: str) -> None:
    lines = [
        GpuLine(1, "own", "own", (1.0, 0.9), (1.5, 1.4), 1.1, 3, 0),
        GpuLine(2, "built-in", "own", (0.11, 0.1), (10.0, 9.0), 9.5, 3, 2),
        GpuLine(3, "built-in", "own", (0.11, 0.1), (0.5, 0.4), 0.2, 3, 0),
        GpuLine(4, "built-in", "built-in", (0.1, 0.09), (0.4, 0.3), 0.1, 1, 0),
    ]
    report = GpuReport("NVIDIA H200", False, "a machine", 100, 50, True, lines)
    assert "| NO |" not in section([report])
    broken = replace(report, lines=[replace(line, **changed) if line.test == test else line for line in lines])
    text = section([broken])
    assert row in text
    assert text.count("| NO |") == 1
