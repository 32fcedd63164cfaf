"""Measure the kernels of a session with the engine's counters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import KernelTime, Measured
from .sessions import OpenVinoSession

NOT_KERNELS = ("Input", "Output", "Const")


class MeasuredOpenVinoSession(OpenVinoSession, Measured):
    """A session that records the times of its kernels.

    The engine's counters are averages of all runs so far. The first run is subtracted, which is slower than all others.
    """

    def __init__(self, sources: Mapping[str, Sequence[str]], *arguments: Any) -> None:
        super().__init__(*arguments)
        self._sources = sources
        self._count = 0
        self._first: dict[str, float] = {}
        self._request: Any = None

    def call_of(self, request: Any, arrays: Sequence[np.ndarray]) -> Callable[[], None]:
        call = super().call_of(request, arrays)

        def measured_call() -> None:
            call()
            self._count, self._request = self._count + 1, request
            if self._count == 1:
                self._first = _averages(request)

        return measured_call

    def finish(self) -> list[KernelTime]:
        """Return the kernels in the order of their execution, without the first run of each.

        There is one time for each, the mean.
        """
        # The nodes that run; `_first` also has those that are part of another kernel.
        nodes = {node.get_friendly_name(): node for node in self._compiled.get_runtime_model().get_ordered_ops()}
        infos = {name: nodes[name].get_rt_info() for name in self._first if name in nodes}
        about = {name: {key: value.astype(str) for key, value in info.items()} for name, info in infos.items()}
        about = {name: texts for name, texts in about.items() if texts["layerType"] not in NOT_KERNELS}
        owners = _owners(
            {name: entry["originalLayersNames"].split(",") for name, entry in about.items()}, self._sources
        )
        averages = _averages(self._request) if self._request else {}
        kernels = []
        for name in about:
            first = self._first[name]
            later = max(averages.get(name, 0.0) * self._count - first, 0.0)
            mean = later / (self._count - 1) if self._count > 1 else first
            result = f"{about[name]['outputPrecisions']}{list(map(int, nodes[name].get_output_shape(0)))}"
            kernels.append(KernelTime(owners[name], about[name]["layerType"], result, mean, mean))
        return kernels


def _averages(request: Any) -> dict[str, float]:
    """Return the average seconds of the kernels of all runs so far, in whole microseconds."""
    return {info.node_name: info.real_time.total_seconds() for info in request.profiling_info}


def sources_of(model: Any) -> dict[str, list[str]]:
    """Return the names of the nodes that each node of a model reads, in the model's order, without constants."""
    sources: dict[str, list[str]] = {}
    for node in model.get_ordered_ops():
        names = [value.get_node().get_friendly_name() for value in node.input_values()]
        read = [name for name in names if name in sources]
        if read or node.get_type_name() == "Parameter":
            sources[node.get_friendly_name()] = read
    return sources


def _owners(kernels: Mapping[str, Sequence[str]], sources: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the labels or names of the operations that each kernel fuses; empty for kernels that the engine added.

    The engine names some nodes of a kernel. Those before them belong to it, too, unless it names them for another kernel.

    >>> sources = {"x": [], "conv2d#0": ["x"], "add#1": ["conv2d#0"], "relu#2": ["add#1"], "head#3": ["relu#2"]}
    >>> _owners({"a": ["relu#2", "constant_5"], "b": ["head#3"], "c": [""]}, sources)
    {'a': 'conv2d + add + relu', 'b': 'head', 'c': ''}
    """
    homes = {name: kernel for kernel, names in kernels.items() for name in names if name in sources}
    for name in reversed(list(sources)):
        for source in sources[name] if name in homes else ():
            homes.setdefault(source, homes[name])
    order: dict[str, list[str]] = {kernel: [] for kernel in kernels}
    for name in sources:
        if name in homes and (label := name.rpartition("#")[0]):
            order[homes[name]].append(label)
    return {kernel: " + ".join(dict.fromkeys(labels)) for kernel, labels in order.items()}
