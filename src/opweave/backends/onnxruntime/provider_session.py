"""Sessions on the device of a plug-in provider: assignment of nodes, and copies to and from the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ... import memory
from ...core.graph import Node
from .. import How, Returning
from .sessions import OrtSession

TO_DEVICE = "inside an engine: to the device of a plug-in provider, or back"
"""Reason for copies of inputs and outputs that a provider keeps in device memory."""

Written = Mapping[Node, Sequence[tuple[str, str]]]


class ProviderSession(OrtSession):
    """A graph compiled for the device of a plug-in provider. Nodes that the provider does not take run on the CPU.

    `written` has name and operator of the ONNX nodes emitted for each node of the graph.
    """

    def __init__(self, provider: str, written: Written, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._assignment = Assignment(provider, self._session, written)
        # The device may hold copies of the memory, so aliased inputs and outputs may be separate there.
        self.updates = [replace(update, pairs=()) for update in self.updates]
        self._reads = [_is_on_device(place) for place in self._session.get_input_memory_infos()]
        self._writes = [_is_on_device(place) for place in self._session.get_output_memory_infos()]
        self.copies_nothing = not any((*self._reads, *self._writes))

    def bind(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> Callable[[], None]:
        # Creating a binding copies inputs to the device, so each run needs a new binding.
        return lambda: self.run(inputs, outputs)

    def run(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        super().run(inputs, outputs)
        self._count(inputs, outputs)

    def returning(self, outputs: Sequence[int]) -> Returning | None:
        call = super().returning(outputs)
        if call is None or self.copies_nothing:
            return call

        def run(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
            results: list[np.ndarray] = call(inputs)
            arrays: list[np.ndarray | None] = [None] * len(self._outputs)
            for k, result in zip(outputs, results, strict=True):
                arrays[k] = result
            self._count(inputs, arrays)
            return results

        return run

    def describe(self, nodes: Sequence[Node]) -> tuple[How, str]:
        return super().describe(nodes)[0], self._assignment.text(nodes)

    def is_left(self, nodes: Sequence[Node]) -> bool:
        return self._assignment.is_left(nodes)

    def _count(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray | None]) -> None:
        pairs = (*zip(inputs, self._reads, strict=False), *zip(outputs, self._writes, strict=True))
        sizes = [array.nbytes for array, is_copied in pairs if is_copied and array is not None]
        if sizes:
            memory.copies.add(sum(sizes), TO_DEVICE, len(sizes))


def _is_on_device(place: Any) -> bool:
    """Whether a value is in memory that the processor cannot access."""
    return place is not None and "cpu" not in place.name.lower()


class Assignment:
    """Assignment of a session's nodes to the provider, or to ONNX Runtime's kernels for the CPU."""

    def __init__(self, provider: str, session: Any, written: Written) -> None:
        self.provider, self._written = provider, written
        subgraphs = session.get_provider_graph_assignment_info()
        self._homes = {node.name: part.ep_name for part in subgraphs for node in part.get_nodes()}

    def text(self, nodes: Sequence[Node]) -> str:
        taken, left = set[str](), list[str]()
        for name, op_type, home in self._parts(nodes):
            if home == self.provider:
                taken.add(name)
            else:
                left.append(op_type)
        operators = ", ".join(dict.fromkeys(left))
        if taken and left:
            return f"{self.provider}, and ONNX Runtime on the CPU: {operators}"
        if left:
            return f"ONNX Runtime on the CPU: {self.provider} leaves {operators}"
        return self.provider if taken else "ONNX Runtime, merged into another operation or computed in advance"

    def is_left(self, nodes: Sequence[Node]) -> bool:
        """Whether the provider takes nothing of these nodes of the graph."""
        homes = [home for *_, home in self._parts(nodes)]
        return bool(homes) and self.provider not in homes

    def _parts(self, nodes: Sequence[Node]) -> Iterator[tuple[str, str, str]]:
        """Yield name, operator and provider of each ONNX node that the optimiser has kept."""
        for node in nodes:
            for name, op_type in self._written[node]:
                if name in self._homes:
                    yield name, op_type, self._homes[name]
