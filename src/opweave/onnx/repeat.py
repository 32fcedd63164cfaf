"""The short way of a call that is like the last one: arrays of the same types and shapes, and the same outputs asked for.

What the long way of `InferenceSession.run` has found out once is true for such a call, too. It only declines here: whatever
is wrong, or new, goes the long way, which has the messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .. import memory
from .arguments import Argument
from .messages import TensorProto
from .plan import Plan

Signature = tuple[np.dtype[Any], tuple[int, ...]]
"""Data type and shape."""


class Repeat:
    """A call of a session that went well, to be repeated on other arrays.

    Args:
        plan: what was run.
        feed: the arrays that it was run on, by name.
        asked: `output_names` of that call.
        names: the outputs that were returned.
    """

    __slots__ = ("_asked", "_inputs", "_names", "_outputs", "_plan")

    def __init__(
        self, plan: Plan, feed: Mapping[str, np.ndarray], asked: Sequence[str] | None, names: list[str]
    ) -> None:
        self._plan, self._asked, self._names = plan, asked, names
        self._inputs = [(name, f"input {name}", array.dtype, array.shape) for name, array in feed.items()]
        descs = {name: plan.desc(name) for name in plan.outputs}
        self._outputs: dict[str, Signature] = {
            name: (np.dtype(desc.data_type), desc.shape) for name, desc in descs.items() if desc is not None
        }
        for name in plan.booleans:  # NumPy's bool is carried as uint8
            self._outputs.pop(name, None)

    @staticmethod
    def fits(inputs: Sequence[Argument]) -> bool:
        """Whether calls of a model can be repeated: plain tensors, whose values need no look."""
        return all(i.element_type not in (0, TensorProto.BOOL) and i.dtype.kind in "iuf" for i in inputs)

    def run(self, asked: Any, given: Any, out: Any) -> list[Any] | None:
        """The outputs of a call; None where it is not like the one before.

        Raises:
            ValidationError: an array to write into overlaps another one.
            OperationError: the engine failed.
        """
        if asked is not self._asked and not (type(asked) is list and asked == self._asked):
            return None
        if type(given) is not dict or len(given) != len(self._inputs):
            return None
        feed = {}
        for name, _, dtype, shape in self._inputs:
            value = given.get(name)
            if type(value) is not np.ndarray:
                return None
            array = value.view()  # an owner can still change the data type and the shape of their array object
            if array.dtype != dtype or array.shape != shape:
                return None
            flags = array.flags
            if not (flags.c_contiguous and flags.aligned):
                return None
            feed[name] = array
        if out is not None and not self._takes(feed, out):
            return None
        return self._plan.run(feed, self._names, out or {})

    def _takes(self, feed: Mapping[str, np.ndarray], out: Any) -> bool:
        """Whether results can be written into the arrays `out`."""
        if type(out) is not dict:
            return False
        for name, target in out.items():
            if type(target) is not np.ndarray or (target.dtype, target.shape) != self._outputs.get(name):
                return False
            if not target.flags.carray:  # C-contiguous, aligned and writable
                return False
        sources = {label: feed[name] for name, label, _, _ in self._inputs}
        memory.check_overlap(sources, {f"output {name}": target for name, target in out.items()})
        return True
