"""Send large payloads to pages by HTTP, which Chromium reads faster than WebSocket frames."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from hmac import compare_digest
from threading import Condition

import numpy as np

from .stream import Stream


class _Offer:
    def __init__(self, payload: np.ndarray, origin: str | None) -> None:
        self.payload, self.origin = payload, origin
        self.key = secrets.token_urlsafe(32)
        self.stream: Stream | None = None  # the stream of the request that fetches the payload
        self.is_answered = self.is_over = False


class Handover:
    """Slot for one payload at a time, shared by all pages.

    With more slots, payloads could occupy all six connections that a browser opens to a server, and deadlock: they wait for
    JavaScript, which may wait for the answer to `POST /sync`.
    """

    def __init__(self) -> None:
        self._offer: _Offer | None = None
        self._changed = Condition()

    def offer(self, payload: np.ndarray, origin: str | None) -> str | None:
        """Offer a payload to a page of this origin; return the key to fetch it, or None if another payload is on offer."""
        with self._changed:
            if self._offer is not None:
                return None
            self._offer = _Offer(payload, origin)
            return self._offer.key

    def wait(self, key: str, timeout: float) -> bool:
        """Wait until the page has fetched or declined a payload.

        Returns False if no request comes within `timeout` seconds, and after `abandon`.
        """
        with self._changed:
            offer = self._offer
            if offer is None or offer.key != key:
                return False
            self._changed.wait_for(lambda: offer.stream is not None or offer.is_over, timeout)
            if offer.stream is not None:
                self._changed.wait_for(lambda: offer.is_over)
            self._offer = None
            return offer.is_answered

    @contextmanager
    def take(self, key: str, origin: str | None, stream: Stream) -> Iterator[np.ndarray | None]:
        """Yield the payload for a key and an origin, or None; the block answers the request."""
        with self._changed:
            offer = self._offer
            is_right = offer is not None and compare_digest(offer.key.encode(), key.encode()) and offer.origin == origin
            if offer is None or not is_right or offer.stream is not None or offer.is_over:
                offer = None
            else:
                offer.stream = stream
                self._changed.notify_all()
        if offer is None:
            yield None
            return
        try:
            yield offer.payload
            offer.is_answered = True
        finally:
            with self._changed:
                offer.is_over = True
                self._changed.notify_all()

    def abandon(self, key: str | None) -> None:
        """End the offer of a key, if there is one, because the page has gone."""
        with self._changed:
            if self._offer is None or self._offer.key != key:
                return
            if self._offer.stream is not None:
                self._offer.stream.stop()  # ends the request, which sets `is_over`
            else:
                self._offer.is_over = True
                self._changed.notify_all()
