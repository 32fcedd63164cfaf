"""A second engine for the CPU, for tests of the choice between engines."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opweave as ow
from opweave import backends
from opweave.backends.onnxruntime import OnnxRuntime, ort
from opweave.compile import engines, tuning
from opweave.core.graph import Graph


class Rival(OnnxRuntime):
    """A second engine for the CPU: ONNX Runtime again, under another name."""

    name = "rival"

    def __init__(self) -> None:
        super().__init__()
        self.rules = ort.rules
        self.refuses, self.error, self.wrong_output = False, 0.0, -1  # of all outputs
        self.fault, self.faulty_run = "", False  # one of FAULTS, while the engine compiles or runs
        self.where = ""  # the module without which there is no fault: the processes that import it have one
        self.remembers = False  # whether it looks results up: it gives the right ones faster

    def version(self) -> str:
        return "1"

    def gains(self, graph: Graph) -> tuple[bool, str]:
        count = len(graph.nodes)
        return count > 1, f"{count} operations"

    def compile(self, graph: Graph, **options: Any) -> Any:
        if self.refuses:
            raise ow.OperationError("it does not want to")
        is_here = not self.where or self.where in sys.modules
        if self.fault and not self.faulty_run and is_here:
            FAULTS[self.fault]()
        runner = super().compile(graph, **options)
        if self.fault and self.faulty_run and is_here:
            runner.bind = runner.run = lambda *_: FAULTS[self.fault]()
        if self.error:  # relative to each result
            bind = runner.bind

            def wrong(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> Callable[[], None]:
                call = bind(inputs, outputs)

                def run() -> None:
                    call()
                    for number, output in enumerate(outputs):
                        if self.wrong_output in (-1, number):
                            output *= np.asarray(1 - self.error, output.dtype)

                return run

            runner.bind, runner.returning = wrong, lambda *_: None
            runner.run = lambda inputs, outputs: wrong(inputs, outputs)()
        if self.remembers:
            _remember(runner)
        runner.describe = lambda nodes: ("native", "Rival")
        return runner


def _remember(runner: Any) -> None:
    """Let a runner look up the results of inputs that it had before."""
    bind, results = runner.bind, dict[tuple[bytes, ...], list[np.ndarray]]()

    def bound(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> Callable[[], None]:
        call = bind(inputs, outputs)

        def run() -> None:
            key = tuple(array.tobytes() for array in inputs)
            if key not in results:
                call()
                results[key] = [output.copy() for output in outputs]
            for output, result in zip(outputs, results[key], strict=True):
                output[...] = result

        return run

    runner.bind, runner.returning = bound, lambda *_: None
    runner.run = lambda inputs, outputs: bound(inputs, outputs)()


def _eat() -> None:
    """Take memory until the process ends."""
    taken = []
    while True:
        taken.append(bytearray(os.urandom(2**20) * 16))


def _spin() -> None:
    while True:
        pass


FAULTS: dict[str, Callable[[], Any]] = {
    "signal": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "exit": lambda: os._exit(3),
    "wait": lambda: time.sleep(600),
    "spin": _spin,
    "memory": _eat,
}
"""What a faulty engine does to its process."""


def rivals_of_onnxruntime(rival: Rival) -> dict[str, Callable[..., Any]]:
    """The functions of `backends` by name, if there is only this rival, and only for ONNX Runtime."""
    return {
        "rival_names": lambda device: (f"rival {id(rival)}",) if device.backend == "onnxruntime" else (),
        "rivals_of": lambda device, precision: [rival] if device.backend == "onnxruntime" else [],
    }


def add_rival(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_trials: bool = False) -> Rival:
    """Let contexts on the CPU choose between ONNX Runtime and a rival, with a cache of their own.

    Args:
        monkeypatch: takes it back.
        tmp_path: the folder for the cache.
        has_trials: whether the rival is tried in a process of its own, which takes a second.
    """
    made = Rival()
    if not has_trials:
        monkeypatch.setattr(engines, "is_unverified", lambda name, ways: False)
    for name, function in rivals_of_onnxruntime(made).items():
        monkeypatch.setattr(backends, name, function)
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
