"""What runs in the processes of clusters; they import it from here, since pytest's own modules are not importable there."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from opweave.backends import Device
from opweave.memory import copies
from opweave.scale import Predictor
from opweave.support.processors import processors


class Watched(Predictor):
    """A predictor that adds columns which tell about its process, and can end it.

    Args:
        fatal_row: the `id` of a row; the process that gets it first is killed. None for no row.
        folder: where a file tells that it has happened.
        pause: seconds to wait before each batch, so that something can happen meanwhile.
        arguments: those of `Predictor`.
    """

    def __init__(
        self, *arguments: Any, fatal_row: int | None = None, folder: str = "", pause: float = 0, **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self._fatal_row, self._killed, self._pause = fatal_row, Path(folder, "killed"), pause

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        if self._fatal_row is not None and self._fatal_row in batch["id"] and not self._killed.exists():
            self._killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self._pause)
        before = copies.count
        result = super().__call__(batch)
        is_writable = any(batch[column].flags.writeable for column in self._inputs)
        import ray

        told = {
            "copies": copies.count - before,
            "is_writable": is_writable,
            "process": os.getpid(),
            "node": ray.get_runtime_context().get_node_id(),
            "processors": processors(),
            "size": len(batch["id"]),
        }
        return result | {name: np.full(len(batch["id"]), value) for name, value in told.items()}


class OfTwoGPUs:
    """In an actor: what a predictor would run on if its machine had two GPUs."""

    def device(self, name: str) -> tuple[str, str]:
        """The node, and the device that `name` means there."""
        import ray

        from opweave.scale import predictor

        kinds: list[Any] = [("cpu", "cpu"), ("gpu", "gpu"), ("gpu:1", "gpu"), ("cuda", "gpu"), ("cuda:1", "gpu")]
        predictor.devices = lambda: [Device(name, kind, "test", "") for name, kind in kinds]  # type: ignore[attr-defined]
        return ray.get_runtime_context().get_node_id(), predictor.assigned_device(name)
