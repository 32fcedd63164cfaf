"""Measure the kernels of a session with the engine's counters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np

from .. import KernelTime, Measured
from .sessions import OpenVinoSession

NOT_KERNELS = ("Input", "Output", "Const")


class MeasuredOpenVinoSession(OpenVinoSession, Measured):
    """A session that records the times of its kernels."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._runs: list[Sequence[Any]] = []

    def call_of(self, request: Any, arrays: Sequence[np.ndarray]) -> Callable[[], None]:
        call = super().call_of(request, arrays)

        def measured_call() -> None:
            call()
            self._runs.append(request.profiling_info)

        return measured_call

    def finish(self) -> list[KernelTime]:
        """Return the kernels in the order of their execution, without the first run of each."""
        nodes = {node.get_friendly_name(): node for node in self._compiled.get_runtime_model().get_ordered_ops()}
        times: dict[str, list[float]] = {}
        for run in self._runs:
            for info in run:
                if info.status == info.EXECUTED and info.node_type not in NOT_KERNELS:
                    times.setdefault(info.node_name, []).append(info.real_time.total_seconds())
        kernels = []
        for name, measured in times.items():
            later = measured[1:] or measured
            about = {key: value.astype(str) for key, value in nodes[name].get_rt_info().items()}
            result = f"{about['outputPrecisions']}{list(map(int, nodes[name].get_output_shape(0)))}"
            owners = _owners(about["originalLayersNames"])
            kernels.append(KernelTime(owners, about["layerType"], result, median(later), min(later)))
        return kernels


def _owners(names: str) -> str:
    """Return the labels or names of the operations that a kernel fuses; empty for a kernel that the engine added.

    >>> _owners("conv2d#0,conv2d#1,constant_5,relu#2")
    'conv2d + relu'
    """
    labels = (name.rpartition("#")[0] for name in names.split(","))
    return " + ".join(dict.fromkeys(label for label in labels if label))
