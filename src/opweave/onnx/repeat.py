"""The short way of a call that is like the last one: arrays of the same types and shapes, and the same outputs asked for.

What the long way of `InferenceSession.run` has found out once is true for such a call, too. It only declines here: whatever
is wrong, or new, goes the long way, which has the messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .. import memory
from ..errors import ValidationError
from .arguments import Argument
from .messages import TensorProto
from .plan import Plan

FEW_PAIRS = 64
"""So many pairs of arrays are compared one by one; more are sorted."""


class Repeat:
    """A call of a session that went well, to be repeated on other arrays.

    Args:
        plan: what was run.
        feed: the arrays that it was run on, by name.
        asked: `output_names` of that call.
        names: the outputs that were returned.
    """

    __slots__ = ("_asked", "_executable", "_inputs", "_lock", "_names", "_outputs", "_plan", "_results")

    def __init__(
        self, plan: Plan, feed: Mapping[str, np.ndarray], asked: Sequence[str] | None, names: list[str]
    ) -> None:
        self._plan, self._asked, self._names, self._lock = plan, asked, names, plan.lock
        self._executable = plan.alone()
        # With an executable alone, arrays go by the names that it has for them.
        slot = str if self._executable is None else plan.slot
        self._inputs = [(name, slot(name), array.dtype, array.shape) for name, array in feed.items()]
        descs = {
            name: plan.desc(name) for name in plan.outputs if name not in plan.booleans
        }  # these are carried as uint8
        self._outputs = [
            (name, slot(name), np.dtype(desc.data_type), desc.shape, desc)
            for name, desc in descs.items()
            if desc is not None
        ]
        self._results = [slot(name) for name in names]

    @staticmethod
    def fits(inputs: Sequence[Argument]) -> bool:
        """Whether calls of a model can be repeated: plain tensors, whose values need no look."""
        return all(i.element_type not in (0, TensorProto.BOOL) and i.dtype.kind in "iuf" for i in inputs)

    def run(self, asked: Any, given: Any, out: Any) -> list[Any] | None:
        """The outputs of a call; None where it is not like the one before.

        Raises:
            OperationError: the engine failed.
        """
        if asked is not self._asked and not (type(asked) is list and asked == self._asked):
            return None
        if type(given) is not dict or len(given) != len(self._inputs):
            return None
        sources = {}
        for name, slot, dtype, shape in self._inputs:
            value = given.get(name)
            if type(value) is not np.ndarray:
                return None
            array = value.view()  # an owner can still change the data type and the shape of their array object
            flags = array.flags
            if array.dtype != dtype or array.shape != shape or not (flags.c_contiguous and flags.aligned):
                return None
            sources[slot] = array
        targets = {}
        if out is not None:
            if type(out) is not dict:
                return None
            for name, slot, dtype, shape, _ in self._outputs:
                value = out.get(name)
                if type(value) is np.ndarray:
                    if value.dtype != dtype or value.shape != shape or not value.flags.carray:
                        return None
                    targets[slot] = value
            if len(targets) != len(out) or _overlap(sources, targets):
                return None
        if self._executable is None:
            return self._plan.run(sources, self._names, targets)
        if len(targets) < len(self._outputs):
            for _, slot, _, _, desc in self._outputs:
                if slot not in targets:
                    targets[slot] = memory.empty(desc)
        with self._lock:
            self._executable.run(sources, targets)
        return [targets[slot] for slot in self._results]


def _overlap(sources: Mapping[str, np.ndarray], targets: Mapping[str, np.ndarray]) -> bool:
    """Whether a target, which is contiguous like all of them, shares memory with another array."""
    if len(targets) * (len(sources) + len(targets)) > FEW_PAIRS:
        try:
            memory.check_overlap({f"input {name}": array for name, array in sources.items()}, targets)
        except ValidationError:
            return True
        return False
    others = list(sources.values())
    for target in targets.values():
        for other in others:
            if np.may_share_memory(target, other):
                return True
        others.append(target)
    return False
