"""The short way of a call that is like the last one: arrays of the same types and shapes, and the same outputs asked for.

What the long way of `InferenceSession.run` has found out once is true for such a call, too. It only declines here: whatever
is wrong, or new, goes the long way, which has the messages.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from .. import memory
from ..errors import OperationError, ValidationError
from .arguments import Argument
from .messages import TensorProto
from .plan import Plan
from .symbolic import SymbolicModel

Expected = tuple[str, str, np.dtype[Any], tuple[int, ...]]
"""The name of an array, what the plan or its only part calls it, its data type and its shape."""

FEW_PAIRS = 64
"""So many pairs of arrays are compared one by one; more are sorted."""


class Repeat:
    """A call of a session that went well, to be repeated on other arrays.

    Args:
        plan: what was run.
        feed: the arrays that it was run on, by name.
        asked: `output_names` of that call.
        names: the outputs that were returned.
        deciding: the inputs whose values decide about shapes; those of a repetition must be the same.
    """

    __slots__ = (
        "_alone",
        "_asked",
        "_descs",
        "_inputs",
        "_names",
        "_outputs",
        "_plan",
        "_returned",
        "_values",
    )

    def __init__(
        self,
        plan: Plan | SymbolicModel,
        feed: Mapping[str, np.ndarray],
        asked: Sequence[str] | None,
        names: list[str],
        deciding: Collection[str] = (),
    ) -> None:
        self._plan, self._asked, self._names = plan, asked, names
        # An output that is asked for twice is copied by the plan.
        self._alone = plan.alone() if len(set(names)) == len(names) else None
        # With one part alone, arrays go by the names that it has for them.
        slot = str if self._alone is None else plan.slot
        carried = set(plan.booleans)  # as uint8
        found = {name: plan.desc(name) for name in plan.outputs if name not in carried}
        self._descs = {name: desc for name, desc in found.items() if desc is not None}
        self._inputs: list[Expected] = [(name, slot(name), array.dtype, array.shape) for name, array in feed.items()]
        self._outputs: list[Expected] = [
            (name, slot(name), np.dtype(desc.data_type), desc.shape) for name, desc in self._descs.items()
        ]
        self._returned = [slot(name) for name in names]
        self._values = [(name, feed[name].tobytes()) for name in deciding]

    @staticmethod
    def fits(inputs: Sequence[Argument]) -> bool:
        """Whether calls of a model can be repeated: plain tensors of numbers."""
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
        if not self._decides_alike(given):
            return None
        targets = {}
        if out is not None:
            if type(out) is not dict:
                return None
            for name, slot, dtype, shape in self._outputs:
                value = out.get(name)
                if type(value) is np.ndarray:
                    if value.dtype != dtype or value.shape != shape or not value.flags.carray:
                        return None
                    targets[slot] = value
            if len(targets) != len(out) or _overlap(sources, targets):
                return None
        if isinstance(self._plan, SymbolicModel):
            try:
                return self._plan.run(sources, self._names, targets)
            except OperationError:  # the long way finds out more
                return None
        if self._alone is None:
            return self._plan.run(sources, self._names, targets)
        return self._run(sources, targets)

    def _decides_alike(self, given: Mapping[str, np.ndarray]) -> bool:
        """Whether the inputs that decide about shapes have the values of the call that is repeated."""
        return not self._values or all(given[name].tobytes() == content for name, content in self._values)

    def _run(self, sources: dict[str, np.ndarray], targets: dict[str, np.ndarray]) -> list[Any]:
        """Run the one part that there is."""
        assert self._alone is not None
        if not targets and (found := self._alone.run_new(sources, self._returned)) is not None:
            return found
        for name, slot, _, _ in self._outputs:
            if slot not in targets:
                targets[slot] = memory.empty(self._descs[name])
        self._alone.run(sources | targets)
        return [targets[slot] for slot in self._returned]


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
