"""The state of a context: what belongs to it, and why it was lost."""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

from ..memory.spaces import TensorSpace
from ..support.errors import InvalidStateError
from ..support.records import record

if TYPE_CHECKING:
    from .loss import Lost

    class Destructible(Protocol):
        """A graph or tensor."""

        def destroy(self) -> None:
            """Release it."""


@record(eq=True)
class MLContextLostInfo:
    """The reason why a context was lost (`MLContextLostInfo`).

    Attributes:
        message: the reason, as text.

    >>> import opweave as ow
    >>> context = ow.ml.create_context(device="reference")
    >>> context.destroy()
    >>> context.lost.result().message
    'destroy() was called'
    """

    message: str


class ContextState:
    """The state of a context: users see the attributes of `MLContext`, but not these.

    Attributes:
        lost_info: the reason, as soon as the context is lost.
        compute_policy: see `MLContext.compute_policy`.
        drafts: whether the context has what only drafts of the specification contain.
        verifies: whether other engines may be verified for its graphs.
        shares_processors: whether another process needs the processors after each run, so that threads of engines must sleep
            soon.
        at_loss: called once the context is lost.
    """

    __slots__ = (
        "__weakref__",
        "_graphs",
        "_is_torn_down",
        "_lock",
        "_lost",
        "_space",
        "_tensors",
        "at_loss",
        "compute_policy",
        "drafts",
        "lost_info",
        "shares_processors",
        "verifies",
    )

    def __init__(self, space: TensorSpace) -> None:
        self._space = space
        self._lock = RLock()
        self._tensors: WeakSet[Destructible] = WeakSet()
        self._graphs: WeakSet[Destructible] = WeakSet()
        self._lost: Lost[MLContextLostInfo] | None = None  # made when it is first read
        self._is_torn_down = False  # whether it is lost, and its graphs and tensors are destroyed
        self.lost_info: MLContextLostInfo | None = None
        self.drafts = self.verifies = self.shares_processors = False
        self.compute_policy: Any = "default"
        self.at_loss: Callable[[], object] | None = None
        space.attach(self)

    def check_alive(self) -> None:
        """Raise `InvalidStateError` once the context is lost."""
        info = self.lost_info
        if info is not None:
            raise InvalidStateError(f"the context is lost: {info.message}")

    def add_graph(self, graph: Destructible) -> None:
        """Destroy the graph with the context."""
        with self._lock:
            self.check_alive()
            self._graphs.add(graph)

    def add_tensor(self, tensor: Destructible) -> None:
        """Destroy the tensor with the context."""
        with self._lock:
            self.check_alive()
            self._tensors.add(tensor)

    @property
    def lost(self) -> Lost[MLContextLostInfo]:
        """See `MLContext.lost`."""
        from .loss import Lost

        with self._lock:
            if self._lost is None:
                self._lost = Lost()
                if self._is_torn_down:
                    assert self.lost_info is not None
                    self._lost.set_result(self.lost_info)
            return self._lost

    def lose(self, message: str) -> None:
        """Mark the context lost, destroy its graphs and tensors, and resolve `lost`. Back ends call it if the device fails."""
        info = MLContextLostInfo(message)
        with self._lock:
            if self.lost_info is not None:
                return
            self.lost_info = info
            graphs, tensors = list(self._graphs), list(self._tensors)
        if self.at_loss is not None:
            self.at_loss()
        for graph in graphs:
            graph.destroy()
        for tensor in tensors:
            tensor.destroy()
        self._space.detach(self)
        # Resolve `lost` last, when everything is destroyed, and without the lock, as callbacks may wait for other threads.
        with self._lock:
            lost, self._is_torn_down = self._lost, True
        if lost is not None:
            lost.set_result(info)
