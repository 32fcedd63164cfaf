"""Fast path for a call that repeats a recent one: arrays of the same types and shapes, and the same requested outputs.

If ONNX Runtime runs all calls, shapes may differ: those of a language model change at each token.

The full path of `InferenceSession.run` has checked such a call and selected its program before. The fast path raises no errors
about arguments: a call with something new or wrong takes the full path, which has the messages.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from ... import memory
from ...support.errors import OperationError, ValidationError
from ...support.records import record
from ..model.arguments import Argument
from ..model.protobuf import TensorProto
from .direct import Direct
from .model_program import NOTHING_SHARED, ModelProgram

if TYPE_CHECKING:
    from .index_ranges import Range

Expected = tuple[str, np.dtype[Any], tuple[int, ...]]
"""Name, data type and shape of an array."""

NO_TYPE = np.dtype([("of no array", "V1")])
"""Data type of unknown outputs, equal to no other. (NumPy reads None as float64.)"""

MAX_REPEATS = 64
"""Maximum number of calls that a session keeps to repeat."""

MAX_DIRECT = 16
"""Maximum number of combinations of outputs for which a session keeps a direct call."""

MAX_SHAPES = 1024
"""Maximum number of further array shapes that a call remembers as valid."""

FEW_PAIRS = 64
"""Up to this number, pairs of arrays are checked for overlap at each call; more are sorted once, and remembered."""


class RepeatedCall:
    """A successful call of a session, to be repeated on other arrays of `feed`'s types.

    A repetition must have the same values of the `deciding` inputs, which determine shapes. `declared` has the inputs and the
    outputs of the model by name, if shapes may differ. `accepts` returns whether the engine's program for these shapes also
    runs other shapes, given in the order of `names`; targets take the full path then. `used` is the number of the last call
    that used this one, counted by `Repeats`.

    Attributes:
        accepted: with `accepts`, the shapes of calls, the last used ones last.
    """

    __slots__ = (
        "_accepts",
        "_apart",
        "_asked",
        "_declared",
        "_in_place",
        "_inputs",
        "_latest",
        "_other_outputs",
        "_others",
        "_outputs",
        "_ranges",
        "_return",
        "_taken",
        "_values",
        "_wanted",
        "accepted",
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
        accepts: Callable[[Mapping[str, tuple[int, ...]]], bool] | None = None,
    ) -> None:
        self._accepts = accepts
        self._latest: tuple[tuple[int, ...], ...] | None = None
        self.accepted: dict[tuple[tuple[int, ...], ...], None] = {}
        self.model, self._asked, self._ranges, self._in_place = model, asked, ranges, in_place
        self._declared = declared
        self.used = 0
        self._others: set[tuple[str, tuple[int, ...]]] = set()  # further shapes of inputs
        self._other_outputs: set[tuple[str, tuple[int, ...]]] = set()
        self._apart: _Apart | None = None  # the targets of the last call, if they are many
        # Inputs that the model does not read come last: they are only checked.
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
        """Whether calls of a model can be repeated: all inputs are tensors of numbers."""
        return all(i.element_type not in (0, TensorProto.BOOL) and i.dtype.kind in "iuf" for i in inputs)

    def run(self, asked: Any, feed: Any, out: Any) -> list[Any] | None:
        """Run a call; None if it does not repeat this one."""
        if asked is not self._asked and not (type(asked) is list and asked == self._asked):
            return None
        if type(feed) is not dict or len(feed) != len(self._inputs):
            return None
        inputs: list[np.ndarray] = []
        is_other = False
        for name, dtype, shape in self._inputs:
            value = feed.get(name)
            if type(value) is not np.ndarray:
                return None
            array = value.view()  # the caller can still change the data type and the shape of the array object
            flags = array.flags
            if array.dtype != dtype or not (flags.c_contiguous and flags.aligned):
                return None
            if array.shape != shape and (name, array.shape) not in self._others:
                if self._accepts is not None:
                    is_other = True
                elif self._declared is None or not self._declared[0][name].takes(array.shape):
                    return None
                else:
                    _note(self._others, name, array.shape)
            inputs.append(array)
        if self._values and any(feed[name].tobytes() != content for name, content in self._values):
            return None
        for value_range in self._ranges:
            if not value_range.fits(feed):
                return None
        if self._accepts is not None and ((is_other and out is not None) or not self._accept(inputs)):
            return None
        try:
            if out is None:
                return self._return(inputs if len(inputs) == self._taken else inputs[: self._taken])
            return self._run_into(feed, inputs, out)
        except OperationError:
            if self.model.is_open:  # the full path may compile the model instead
                return None
            raise

    def _accept(self, inputs: Sequence[np.ndarray]) -> bool:
        """Whether the program runs inputs of these shapes, which may differ from those of the recorded call."""
        accepted, shapes = self.accepted, tuple([array.shape for array in inputs])
        if shapes in accepted:
            if self._latest != shapes:
                self._latest = shapes
                accepted.pop(shapes, None)
                accepted[shapes] = None
            return True
        assert self._accepts is not None
        if not self._accepts({name: shape for (name, _, _), shape in zip(self._inputs, shapes, strict=True)}):
            return False
        if len(accepted) >= MAX_SHAPES:
            accepted.clear()
        accepted[shapes], self._latest = None, shapes
        return True

    @property
    def accepted_shapes(self) -> list[dict[str, tuple[int, ...]]]:
        """`accepted` by the names of inputs."""
        names = [name for name, _, _ in self._inputs]
        return [dict(zip(names, shapes, strict=True)) for shapes in tuple(self.accepted)]

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
        if len(targets) * (len(inputs) + len(targets)) <= FEW_PAIRS:
            return _overlap(inputs, targets)
        if self._apart is not None and self._apart.are(targets):  # as at each token of a language model
            return any(memory.meets(self._apart.ranges, array) for array in inputs)
        self._apart = _Apart.of(inputs, targets)
        return self._apart is None


class Repeats:
    """Recent calls of a session by input shapes, for callers that alternate between shapes.

    `last` is None if there is no call, or calls must select their program again. `count` is the number of calls, without
    repetitions of the last one. `direct` has direct calls by requested outputs, if ONNX Runtime runs all shapes.
    """

    __slots__ = ("_by_shapes", "_lock", "count", "direct", "last")

    def __init__(self) -> None:
        self._lock = Lock()  # held to add and drop calls, not to repeat them
        self.last: RepeatedCall | None = None
        self.count = 0
        self.direct: dict[Any, Direct] = {}
        self._by_shapes: dict[tuple[tuple[int, ...], ...], RepeatedCall] = {}

    def run(self, asked: Any, feed: Any, out: Any) -> list[Any] | None:
        """Run a call that repeats a recent one other than the last; None if there is no such call."""
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

    def keep(self, repeat: RepeatedCall, feed: Mapping[str, np.ndarray]) -> None:
        """Keep a call by its inputs, in the caller's order; drop the oldest one beyond MAX_REPEATS."""
        with self._lock:
            if len(self._by_shapes) >= MAX_REPEATS:
                del self._by_shapes[next(iter(self._by_shapes))]
            self._by_shapes[tuple([array.shape for array in feed.values()])] = repeat
            self.last = repeat
            repeat.used = self.count

    def keep_direct(self, asked: Sequence[str] | None, make: Callable[[], Direct | None]) -> None:
        """Keep the direct call for some outputs, if `make` returns one."""
        key = None if asked is None else tuple(asked)
        if key not in self.direct and len(self.direct) < MAX_DIRECT and (direct := make()):
            self.direct[key] = direct

    def by_use(self) -> list[RepeatedCall]:
        """All calls, least recently used first."""
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
    """Arrays that share no memory with each other, and their memory ranges.

    The references are weak. A resized array has new memory, which is disjoint, too.
    """

    arrays: Sequence[ref[np.ndarray]]
    ranges: Sequence[tuple[int, int]]

    @classmethod
    def of(cls, inputs: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> _Apart | None:
        """Record targets that share no memory with each other or with inputs; None if some do."""
        sources = {f"input {k}": array for k, array in enumerate(inputs)}
        try:
            memory.check_overlap(sources, {f"output {k}": array for k, array in enumerate(targets)})
        except ValidationError:
            return None
        return cls([ref(target) for target in targets], memory.merged_ranges(targets))

    def are(self, arrays: Sequence[np.ndarray]) -> bool:
        return len(arrays) == len(self.arrays) and all(a() is b for a, b in zip(self.arrays, arrays, strict=True))


def _note(shapes: set[tuple[str, tuple[int, ...]]], name: str, shape: tuple[int, ...]) -> None:
    """Remember a valid shape; forget all shapes beyond MAX_SHAPES."""
    if len(shapes) >= MAX_SHAPES:
        shapes.clear()
    shapes.add((name, shape))


def _overlap(inputs: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> bool:
    """Whether a target shares memory with another array; all arrays are contiguous."""
    others = list(inputs)
    for target in targets:
        for other in others:
            if np.may_share_memory(target, other):
                return True
        others.append(target)
    return False
