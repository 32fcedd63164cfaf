"""A second engine for the CPU, for tests of the choice between engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opweave as ow
from opweave import backends
from opweave.backends.onnxruntime import OnnxRuntime, ort
from opweave.compile import tuning
from opweave.graph import Graph


class Rival(OnnxRuntime):
    """A second engine for the CPU: ONNX Runtime again, under another name."""

    name = "rival"

    def __init__(self) -> None:
        super().__init__()
        self.rules = ort.rules
        self.refuses, self.error = False, 0.0

    def version(self) -> str:
        return "1"

    def gains(self, graph: Graph) -> tuple[bool, str]:
        count = len(graph.nodes)
        return count > 1, f"{count} operations"

    def compile(self, graph: Graph, **options: Any) -> Any:
        if self.refuses:
            raise ow.OperationError("it does not want to")
        runner = super().compile(graph, **options)
        if self.error:  # relative to each result
            bind = runner.bind

            def wrong(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> Callable[[], None]:
                call = bind(inputs, outputs)

                def run() -> None:
                    call()
                    for output in outputs:
                        output *= np.asarray(1 - self.error, output.dtype)

                return run

            runner.bind, runner.returning = wrong, lambda *_: None
            runner.run = lambda inputs, outputs: wrong(inputs, outputs)()
        runner.describe = lambda nodes: ("native", "Rival")
        return runner


def add_rival(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Rival:
    """Let contexts on the CPU choose between ONNX Runtime and a rival, with a cache of their own."""
    made = Rival()
    monkeypatch.setattr(
        backends, "competing", lambda device, precision: [made] if device.backend == "onnxruntime" else []
    )
    monkeypatch.setenv("OPWEAVE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tuning, "PAUSE_SECONDS", 0)
    monkeypatch.setattr(tuning, "SLICE_SECONDS", 0)
    return made


def faster(monkeypatch: pytest.MonkeyPatch, seconds: Sequence[float]) -> None:
    """Let the engines, in the order of a context, take so many seconds."""

    def alternate(runs: Any, times: dict[str, list[float]], _: float) -> None:
        for each, value in zip(times.values(), seconds, strict=True):
            each += [value] * tuning.MIN_ROUNDS

    monkeypatch.setattr(tuning, "_alternate", alternate)
