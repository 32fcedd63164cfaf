"""A call of the model's own session that stays bound to memory from run to run.

A language model has an input and an output for the keys and for the values of each layer, which are bound once. At each token
only a few inputs are bound anew, and only those are checked again.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import memory
from ..backends import BoundModel
from .symbolic import SymbolicModel

if TYPE_CHECKING:
    from .methods import OnnxRuntimeMethods


class KeptCall:
    """A call that has succeeded, to be repeated.

    Args:
        session: the session.
        feed: the arrays that it was run on, by name.
        targets: the memory that it wrote outputs into, by name; None for new memory at each run.
        shared: the outputs that lie in the memory of an input, and that input, by name.
        model: what ran it.
        bound: that, bound to this memory.
    """

    __slots__ = ("_bound", "_feed", "_model", "_session", "_targets", "_updated", "_written")

    def __init__(
        self,
        session: OnnxRuntimeMethods,
        feed: Mapping[str, np.ndarray],
        targets: Mapping[str, np.ndarray | None],
        shared: Mapping[str, str],
        model: SymbolicModel,
        bound: BoundModel,
    ) -> None:
        self._session, self._model, self._bound = session, model, bound
        self._feed, self._targets = dict(feed), dict(targets)
        self._updated = frozenset(shared.values())
        self._written = memory.merged_ranges(target for target in targets.values() if target is not None)

    @classmethod
    def of(
        cls, session: OnnxRuntimeMethods, feed: Mapping[str, Any], targets: Mapping[str, np.ndarray | None]
    ) -> KeptCall | None:
        """Keep a call that has succeeded; None where later ones may have to run in another way."""
        model = session._shape_cache.only_own
        if model is None or not session._repeatable or feed.keys() != session._inputs_by_name.keys():
            return None
        if not all(map(_is_read_in_place, feed.values())):
            return None
        given = {name: target for name, target in targets.items() if target is not None}
        shared = memory.in_place(feed, given, session._in_place)
        written, apart = memory.merged_ranges(given.values()), feed.keys() - shared.values()
        if any(memory.meets(written, feed[name]) for name in apart):
            return None  # the outputs were computed in other memory
        bound = model.bind(feed, targets, shared)
        return None if bound is None else cls(session, feed, targets, shared, model, bound)

    @property
    def is_current(self) -> bool:
        """Whether the session would run the call in the same way."""
        return self._session._shape_cache.only_own is self._model

    def reads(self, name: str, value: Any) -> bool:
        """Read an input from other memory from now on. False if the call must be checked as a whole instead.

        Raises:
            ValidationError: `value` has another data type or shape than the model declares.
        """
        if name in self._updated or not _is_read_in_place(value):
            return False
        array = self._session._inputs_by_name[name].as_input(value, self._session._context)
        if memory.meets(self._written, array):
            return False
        self._bound.read(name, array)
        self._feed[name] = array
        return True

    def writes(self, name: str, target: np.ndarray | None) -> bool:
        """Whether it writes an output into this memory. If not, the call must be checked as a whole."""
        known = self._targets.get(name)
        if target is None or known is None:
            return target is known and name in self._targets
        return memory.is_same(known, target) and (known.dtype, known.shape) == (target.dtype, target.shape)

    def run(self) -> dict[str, np.ndarray]:
        """Run the model; the bound outputs by name.

        Raises:
            InvalidStateError: the context is lost.
            ValidationError: values of an input are out of range.
            OperationError: the engine failed.
        """
        session = self._session
        begin = monotonic_ns()
        session._context.check_alive()
        for each in session._ranges:
            each.check(self._feed)
        results = self._bound.run()
        if session._run_trace is not None:
            session._run_trace.note("model_run", begin)
        return results


def _is_read_in_place(value: Any) -> bool:
    return type(value) is np.ndarray and value.flags.c_contiguous and value.flags.aligned
