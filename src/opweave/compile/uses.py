"""The use of graphs and sessions that another engine may run faster: the processor time of their calls."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from .states import YET

if TYPE_CHECKING:
    from .engines import Measurement

THRESHOLD_SECONDS = 3.0
"""Processor time after which a graph, or a model for some shapes, is verified. An estimate: building and comparing takes a few
seconds of a processor, too, and programs that end earlier would gain nothing."""

MAX_SHAPES = 16
"""Maximum combinations of shapes of a session whose use is counted at a time; a new one replaces the oldest."""

MAX_PERIODS = 120
"""Periods of use after which a session is not watched any more: its shapes do not recur."""

SAMPLE_BYTES = 2**24
"""Total size of the inputs that are copied for verification. Elements are drawn from other inputs."""

DRAWN_ELEMENTS = 2**14

Sample = tuple[np.ndarray, tuple[int, ...]]
"""The values of an input, or some of them, and its shape."""


class Use:
    """The use of one graph or session. At most `most` of its keys are verified.

    Attributes:
        states: the verdict, or the reason why there is none, for each key whose verification has ended.
        waiting: the reason why verification has not begun yet, for each key for which there is one.
        is_asked: whether the next call must be recorded.
    """

    __slots__ = ("_key", "_most", "_periods", "_seconds", "_wanted", "is_asked", "owner", "sample", "states", "waiting")

    def __init__(self, owner: Any, most: int) -> None:
        self.owner: ref[Any] = ref(owner)
        self.states: dict[Hashable, str | Measurement] = {}
        self.waiting: dict[Hashable, str] = {}
        self.is_asked = False
        self.sample: tuple[Hashable, dict[str, Sample]] | None = None
        self._key: Hashable = None
        self._wanted: Hashable = None
        self._seconds: dict[Hashable, float] = {}
        self._periods, self._most = 0, most

    def note(self, key: Hashable, names: Sequence[str], arrays: Sequence[Any]) -> None:
        """Record a call. Calls that run one program have equal keys. The arrays are copied if the call is sampled."""
        self.is_asked, self._key = False, key
        if self._wanted == key and self.sample is None and all(isinstance(array, np.ndarray) for array in arrays):
            self.sample = key, sample_of(dict(zip(names, arrays, strict=True)))

    def skip(self) -> None:
        """Record a call whose key already has a verdict."""
        self.is_asked = False
        self._periods += 1

    def state(self, key: Hashable) -> str | Measurement:
        """The state of the rivals for calls of a key."""
        return self.states.get(key) or self.waiting.get(key, YET)

    @property
    def is_over(self) -> bool:
        """Whether the graph or session no longer needs to be watched."""
        if self.owner() is None or len(self.states) >= self._most:
            return True
        # Once there is a sample, its verification runs in a child process, or waits for that of another program.
        return self.sample is None and self._periods > MAX_PERIODS

    def pop_use(self) -> Hashable:
        """Remove and return the key of the last noted call; None if there was none since the last time."""
        key, self._key = self._key, None
        return key

    def count(self, key: Hashable, seconds: float) -> None:
        """Count processor time for calls of a key, and ask for a sample of their inputs if it is enough."""
        self._periods += 1
        if key in self.states:
            return
        self._seconds[key] = self._seconds.get(key, 0.0) + seconds
        if len(self._seconds) > MAX_SHAPES:
            del self._seconds[next(iter(self._seconds))]
        if self._wanted is None and self._seconds.get(key, 0.0) >= THRESHOLD_SECONDS:
            self._wanted = key

    def end(self, key: Hashable, state: str | Measurement) -> None:
        """Record that the verification of a key has ended."""
        self.states[key] = state
        self._seconds.pop(key, None)
        self._wanted = self.sample = None


def sample_of(arrays: Mapping[str, np.ndarray]) -> dict[str, Sample]:
    """Copies of small inputs, and elements of large ones."""
    left, samples = SAMPLE_BYTES, dict[str, Sample]()
    for name, array in sorted(arrays.items(), key=lambda item: item[1].nbytes):
        if array.nbytes <= left:
            left -= array.nbytes
            samples[name] = np.array(array, order="C"), array.shape
        else:
            step = max(array.size // DRAWN_ELEMENTS, 1)
            samples[name] = np.array(array.reshape(-1)[::step]), array.shape
    return samples
