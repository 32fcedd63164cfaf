"""Recurrences on the host: compiled loops, or NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from ..core.graph import Node, iter_operands
from ..expr.recurrence import Recurrence, compile_recurrence
from ..memory.spaces import HOST
from ..support.errors import OperationError
from .base import Arrays, KernelCall
from .expression import descs_of


def recurrence_of(node: Node) -> Recurrence:
    """The recurrence that computes the results of a node."""
    assert node.op.recurrence is not None, node
    recurrence: Recurrence = node.op.recurrence(descs_of(node.inputs), node.attributes)
    return recurrence


class RecurrenceKernel:
    """The kernel of all operations with a recurrence."""

    def prepare(self, call: KernelCall) -> PreparedRecurrence:
        return PreparedRecurrence(call)


class PreparedRecurrence:
    space = HOST

    def __init__(self, call: KernelCall) -> None:
        assert call.op.recurrence is not None
        self.call = call
        self.recurrence: Recurrence = call.op.recurrence(call.inputs, call.attributes)
        self.loop = compile_recurrence(self.recurrence)

    @property
    def detail(self) -> str:
        return self.loop.detail

    def cache_keys(self) -> Iterable[tuple[str, str]]:
        return self.loop.cache_keys()

    def bind(self, inputs: Mapping[str, Arrays], outputs: Sequence[np.ndarray]) -> Callable[[], None]:
        run = self.loop.bind(list(iter_operands(inputs)), outputs)
        name, title = self.recurrence.name, self.call.title

        def run_all_steps() -> None:
            try:
                run()
            except OperationError as error:
                raise OperationError(f"{title}: {str(error).removeprefix(f'{name}: ')}") from error

        return run_all_steps
