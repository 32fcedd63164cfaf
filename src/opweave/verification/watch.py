"""Count the time for which a process uses graphs and models that another engine may run faster, and have it verified.

Repeated calls take no longer: a thread that wakes once a second asks each graph or session to record its next call, where that
call is checked anyway. The processor time of the period is divided between the recorded graphs and sessions. A session is
watched from the next time that the thread wakes, so that a process that ends before loads no other engine (`add_later`).
Modules for verification are imported when verification begins (`process`).
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping
from threading import RLock, Thread
from time import monotonic, process_time, sleep
from typing import TYPE_CHECKING, Any, Protocol
from weakref import ref

from ..support import lazy_imports

if TYPE_CHECKING:
    from ..compile.engines import Measurement
    from ..compile.uses import Sample, Use
    from .process import Child, Task

    class Watchable(Protocol):
        """A graph or session, by its internal parts; `use` is the record of its use, once it has begun."""

        use: Use | None

        def watch(self) -> object:
            """Begin to record its use, with `_Watch.add`, if other engines may be verified for it."""

        def ask_use(self) -> None:
            """Make the next call record its inputs."""

        def verification(self, key: Any, sample: Mapping[str, Sample]) -> Task | Measurement | str:
            """The task of a child process for calls of a key, a kept verdict, or the reason why there can be none."""


PERIOD_SECONDS = 1.0

RETRY_SECONDS = 10.0
"""Time until another attempt to start a child, if another process of this machine has one, or memory is missing."""

MAX_VERIFIED = 4
"""Maximum combinations of shapes of a session that are verified in a process."""


class _Watch:
    """The thread that counts uses and starts children. It is a daemon, and ends when there is nothing to watch."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._uses: list[Use] = []
        self._later: list[ref[Watchable]] = []
        self._thread: Thread | None = None
        self._child: tuple[Child, Use, Hashable] | None = None
        self._spent, self._retry = 0.0, 0.0
        self._is_registered = False

    def add(self, owner: Watchable, most: int) -> Use:
        """Begin to record the use of a graph or session, unless that has begun."""
        from ..compile.uses import Use

        with self._lock:
            if (use := owner.use) is None:
                use = owner.use = Use(owner, most)
                self._uses.append(use)
                self._start()
        return use

    def add_later(self, owner: Watchable) -> None:
        """Let the thread call `owner.watch()` when it wakes next."""
        with self._lock:
            self._later.append(ref(owner))
            self._start()

    def _start(self) -> None:
        if not self._is_registered:
            self._is_registered = True
            if hasattr(os, "register_at_fork"):
                os.register_at_fork(after_in_child=self._after_fork)
        if self._thread is None:
            self._spent = process_time()
            self._thread = Thread(target=self._work, name="opweave-uses", daemon=True)
            self._thread.start()

    def _after_fork(self) -> None:
        """Forget the child of the parent process, and all uses there."""
        child = self._child
        self.__init__()  # type: ignore[misc]
        self._is_registered = True
        if child is not None:
            child[0].abandon()

    def _work(self) -> None:
        while True:
            sleep(PERIOD_SECONDS)
            self._look()
            with self._lock:
                later, self._later = self._later, []
            for weak in later:
                if (owner := weak()) is not None:
                    _begin_to_watch(owner)
                del owner
            with self._lock:
                self._uses = [use for use in self._uses if not use.is_over]
                if not self._uses and not self._later and self._child is None:
                    self._thread = None
                    return

    def _look(self) -> None:
        """Count the uses of the last period, and start or end a child."""
        now = process_time()
        seconds, self._spent = now - self._spent, now
        with self._lock:
            uses = list(self._uses)
        used = [(use, key) for use in uses if (key := use.pop_use()) is not None]
        for use, key in used:
            use.count(key, seconds / len(used))
        self._look_after_child()
        for use in uses:
            owner = use.owner()
            if owner is None:
                continue
            if use.sample is not None and self._child is None and monotonic() >= self._retry:
                self._begin(use, owner)
            if not use.is_asked and not use.is_over:
                use.is_asked = True
                owner.ask_use()
            del owner

    def _begin(self, use: Use, owner: Watchable) -> None:
        from .process import Child, Later, Task, begin

        assert use.sample is not None
        key, sample = use.sample
        begun: Child | Measurement | str
        try:
            task = owner.verification(key, sample)
            begun = begin(task) if isinstance(task, Task) else task
        except Exception as error:  # no caller in this thread can handle it
            begun = f"{type(error).__name__}: {error}"
        if isinstance(begun, Child):
            self._child = begun, use, key
        elif isinstance(begun, Later):
            self._retry = monotonic() + RETRY_SECONDS
            use.waiting[key] = f"not verified yet: {begun}"
        else:
            use.end(key, f"not verified: {begun}" if isinstance(begun, str) else begun)

    def _look_after_child(self) -> None:
        """Take the verdict of a child that has ended."""
        if self._child is None:
            return
        child, use, key = self._child
        verdict = child.poll()
        if verdict is None:
            return
        from .process import Later

        self._child = None
        if isinstance(verdict, Later):
            use.waiting[key], self._retry = f"not verified yet: {verdict}", monotonic() + RETRY_SECONDS
            return
        use.end(key, f"not verified: {verdict}" if isinstance(verdict, str) else verdict)


def _begin_to_watch(owner: Watchable) -> None:
    try:
        owner.watch()
    except Exception as error:  # no caller in this thread can handle it
        from logging import getLogger

        getLogger("opweave").warning("other engines are not verified: %s: %s", type(error).__name__, error)


watch = _Watch()


@lazy_imports.watch_graph.provide
def watch_graph(graph: Any) -> Use:
    """See `lazy_imports.watch_graph`."""
    return watch.add(graph, 1)
