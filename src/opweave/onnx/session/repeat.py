"""The fast path of a call that is like a recent one: arrays of the same types and shapes, and the same outputs asked for.

Where the model's own session runs all calls, shapes may differ: a language model gets others at each token.

What the full path of `InferenceSession.run` has checked and selected once holds for such a call, too. The fast path raises no
errors about arguments: a call with something new or wrong takes the full path, which has the messages.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from threading import Lock
from typing import Any
from weakref import ref

import numpy as np

from ... import memory
from ...support.errors import OperationError, ValidationError
from ...support.records import record
from ..model.arguments import Argument
from ..model.protobuf import TensorProto
from .direct import Direct
from .index_ranges import Range
from .model_program import NOTHING_SHARED, ModelProgram

Expected = tuple[str, np.dtype[Any], tuple[int, ...]]
"""The name of an array, its data type and its shape."""

NO_TYPE = np.dtype([("of no array", "V1")])
"""The data type of outputs that are not known. None would not do: NumPy takes it for float64."""

MAX_REPEATS = 64
"""The most calls that a session keeps to repeat them."""

MAX_DIRECT = 16
"""The most combinations of outputs for which a session keeps a direct call."""

MAX_SHAPES = 1024
"""The most shapes of arrays that a call knows to fit the model, where shapes may differ."""

FEW_PAIRS = 64
"""Up to this number, pairs of arrays are compared one by one at each call; more are sorted, and not compared again."""


class Repeat:
    """A successful call of a session, to be repeated on other arrays.

    Args:
        model: what ran it.
        feed: the arrays that it was run on, by name.
        asked: `output_names` of that call.
        names: the outputs that were returned.
        deciding: the inputs whose values determine shapes; those of the next call must be the same.
        ranges: of the values of inputs.
        in_place: the outputs that may use the memory of an input, and that input, by name.
        targets: the memory that the call wrote outputs into, by name.
        declared: if shapes may differ, the inputs and the outputs that the model declares, by name.

    Attributes:
        model: as above.
        used: the number of the call at which it was last chosen (`Repeats`).
    """

    __slots__ = (
        "_apart",
        "_asked",
        "_declared",
        "_in_place",
        "_inputs",
        "_other_outputs",
        "_others",
        "_outputs",
        "_ranges",
        "_return",
        "_taken",
        "_values",
        "_wanted",
        "model",
        "used",
    )

    def __init__(
        self,
        model: ModelProgram,
        feed: Mapping[str, np.ndarray],
        asked: Sequence[str] | None,
        names: list[str],
        deciding: Collection[str] = (),
        ranges: Sequence[Range] = (),
        in_place: Mapping[str, str] = NOTHING_SHARED,
        targets: Mapping[str, Any] = NOTHING_SHARED,
        declared: tuple[Mapping[str, Argument], Mapping[str, Argument]] | None = None,
    ) -> None:
        self.model, self._asked, self._ranges, self._in_place = model, asked, ranges, in_place
        self._declared = declared
        self.used = 0
        self._others: set[tuple[str, tuple[int, ...]]] = set()  # further shapes of inputs
        self._other_outputs: set[tuple[str, tuple[int, ...]]] = set()
        self._apart: _Apart | None = None  # the targets of the last call, if they are many
        # Those that the model does not take come last: they are only checked.
        order = dict.fromkeys([*model.inputs, *feed])
        self._inputs: list[Expected] = [(name, feed[name].dtype, feed[name].shape) for name in order]
        self._taken = len(model.inputs)
        self._outputs: list[Expected] = [(name, NO_TYPE, ()) for name in model.outputs]
        for k, name in enumerate(model.outputs):
            if name in model.results:
                desc, dtype = model.results[name]
                self._outputs[k] = name, dtype, desc.shape
            elif isinstance(array := targets.get(name), np.ndarray):
                self._outputs[k] = name, array.dtype, array.shape
        self._wanted = [model.outputs.index(name) for name in names]
        self._return = model.returning(self._wanted)  # for calls without targets
        self._values = [(name, feed[name].tobytes()) for name in deciding]

    @staticmethod
    def fits(inputs: Sequence[Argument]) -> bool:
        """Whether calls of a model can be repeated: plain tensors of numbers."""
        return all(i.element_type not in (0, TensorProto.BOOL) and i.dtype.kind in "iuf" for i in inputs)

    def run(self, asked: Any, feed: Any, out: Any) -> list[Any] | None:
        """The outputs of a call; None where it is not like the one before.

        Raises:
            OperationError: the engine failed.
        """
        if asked is not self._asked and not (type(asked) is list and asked == self._asked):
            return None
        if type(feed) is not dict or len(feed) != len(self._inputs):
            return None
        inputs: list[np.ndarray] = []
        for name, dtype, shape in self._inputs:
            value = feed.get(name)
            if type(value) is not np.ndarray:
                return None
            array = value.view()  # an owner can still change the data type and the shape of their array object
            flags = array.flags
            if array.dtype != dtype or not (flags.c_contiguous and flags.aligned):
                return None
            if array.shape != shape and (name, array.shape) not in self._others:
                if self._declared is None or not self._declared[0][name].takes(array.shape):
                    return None
                _note(self._others, name, array.shape)
            inputs.append(array)
        if self._values and any(feed[name].tobytes() != content for name, content in self._values):
            return None
        for value_range in self._ranges:
            if not value_range.fits(feed):
                return None
        try:
            if out is None:
                return self._return(inputs if len(inputs) == self._taken else inputs[: self._taken])
            return self._run_into(feed, inputs, out)
        except OperationError:
            if self.model.is_open:  # the full path finds out more
                return None
            raise

    def _run_into(self, feed: dict[str, np.ndarray], inputs: list[np.ndarray], out: Any) -> list[Any] | None:
        """`run` with targets; `inputs` are the checked arrays of `feed`, in order."""
        if type(out) is not dict:
            return None
        outputs: list[np.ndarray | None] = []
        targets: list[np.ndarray] = []
        for name, dtype, shape in self._outputs:
            value = out.get(name)
            if value is not None:
                if type(value) is not np.ndarray or value.dtype != dtype or not value.flags.carray:
                    return None
                if value.shape != shape and (name, value.shape) not in self._other_outputs:
                    if self._declared is None or not self._declared[1][name].takes(value.shape):
                        return None
                    _note(self._other_outputs, name, value.shape)
                targets.append(value)
            outputs.append(value)
        shared, others = NOTHING_SHARED, inputs
        if self._in_place and (shared := memory.in_place(feed, out, self._in_place)):
            updated = set(shared.values())
            others = [a for a, (name, _, _) in zip(inputs, self._inputs, strict=True) if name not in updated]
        if len(targets) != len(out) or self._overlap(others, targets):
            return None
        return self.model.run(inputs[: self._taken], outputs, self._wanted, shared)

    def _overlap(self, inputs: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> bool:
        """Whether a target shares memory with another array."""
        if len(targets) * (len(inputs) + len(targets)) <= FEW_PAIRS:
            return _overlap(inputs, targets)
        if self._apart is not None and self._apart.are(targets):  # those of a language model at each token
            return any(memory.meets(self._apart.ranges, array) for array in inputs)
        self._apart = _Apart.of(inputs, targets)
        return self._apart is None


class Repeats:
    """Recent calls of a session by the shapes of their inputs, for calls whose shapes come in turn.

    Attributes:
        last: the call that was made last; None if there is none, or calls are to choose again what runs them.
        count: the number of calls, of which those like the last one count once.
        direct: by the outputs asked for, what runs calls of any shapes if the model's own session runs them all.
    """

    __slots__ = ("_by_shapes", "_lock", "count", "direct", "last")

    def __init__(self) -> None:
        self._lock = Lock()  # held while calls are added and forgotten, not while they are repeated
        self.last: Repeat | None = None
        self.count = 0
        self.direct: dict[Any, Direct] = {}
        self._by_shapes: dict[tuple[tuple[int, ...], ...], Repeat] = {}

    def run(self, asked: Any, feed: Any, out: Any) -> list[Any] | None:
        """The outputs of a call that is like a recent one, but not like the last; else None.

        Raises:
            OperationError: the engine failed.
        """
        if len(self._by_shapes) < 2 or type(feed) is not dict:
            return None
        try:
            repeat = self._by_shapes.get(tuple([value.shape for value in feed.values()]))
        except (AttributeError, TypeError):  # not arrays
            return None
        if repeat is None or repeat is self.last or (results := repeat.run(asked, feed, out)) is None:
            return None
        self.last = repeat
        self.count += 1
        repeat.used = self.count
        return results

    def keep(self, repeat: Repeat, feed: Mapping[str, np.ndarray]) -> None:
        """Keep a call, and forget the oldest one if there are many.

        Args:
            repeat: the call.
            feed: its inputs, in the order of the user.
        """
        with self._lock:
            if len(self._by_shapes) >= MAX_REPEATS:
                del self._by_shapes[next(iter(self._by_shapes))]
            self._by_shapes[tuple([array.shape for array in feed.values()])] = repeat
            self.last = repeat
            repeat.used = self.count

    def keep_direct(self, asked: Sequence[str] | None, make: Callable[[], Direct | None]) -> None:
        """Keep what runs all calls for some outputs, if there is such a thing."""
        key = None if asked is None else tuple(asked)
        if key not in self.direct and len(self.direct) < MAX_DIRECT and (direct := make()):
            self.direct[key] = direct

    def by_use(self) -> list[Repeat]:
        """All calls; those that were used last come last."""
        with self._lock:
            return sorted(self._by_shapes.values(), key=lambda repeat: repeat.used)

    def clear(self) -> None:
        """Forget all calls."""
        with self._lock:
            self.last = None
            self._by_shapes.clear()
            self.direct = {}


@record
class _Apart:
    """Arrays that were found to lie apart.

    Attributes:
        arrays: weak references to them. The memory of one that is resized is new, so that it still lies apart.
        ranges: where they lie.
    """

    arrays: Sequence[ref[np.ndarray]]
    ranges: Sequence[tuple[int, int]]

    @classmethod
    def of(cls, inputs: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> _Apart | None:
        """For targets that share no memory with each other or with inputs; None if some do."""
        sources = {f"input {k}": array for k, array in enumerate(inputs)}
        try:
            memory.check_overlap(sources, {f"output {k}": array for k, array in enumerate(targets)})
        except ValidationError:
            return None
        return cls([ref(target) for target in targets], memory.merged_ranges(targets))

    def are(self, arrays: Sequence[np.ndarray]) -> bool:
        """Whether these are the arrays."""
        return len(arrays) == len(self.arrays) and all(a() is b for a, b in zip(self.arrays, arrays, strict=True))


def _note(shapes: set[tuple[str, tuple[int, ...]]], name: str, shape: tuple[int, ...]) -> None:
    """Note a further shape that the model takes or gives; forget all if they are many."""
    if len(shapes) >= MAX_SHAPES:
        shapes.clear()
    shapes.add((name, shape))


def _overlap(inputs: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> bool:
    """Whether a target, which is contiguous like all of them, shares memory with another array."""
    others = list(inputs)
    for target in targets:
        for other in others:
            if np.may_share_memory(target, other):
                return True
        others.append(target)
    return False
