"""Hands a large payload over to a page by HTTP: Chromium reads it faster than a frame of WebSocket."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from hmac import compare_digest
from threading import Condition

import numpy as np

from .stream import Stream


class _Offer:
    """A payload that waits for its page."""

    def __init__(self, payload: np.ndarray, origin: str | None) -> None:
        self.payload, self.origin = payload, origin
        self.key = secrets.token_urlsafe(32)
        self.stream: Stream | None = None  # that of the request that has come for it
        self.is_answered = self.is_over = False


class Handover:
    """A place for one payload at a time, of all pages together.

    With more, the payloads of a page could take all connections that a browser makes to a server (six), and wait for
    JavaScript, which may itself wait for an answer to `POST /sync`.
    """

    def __init__(self) -> None:
        self._offer: _Offer | None = None
        self._changed = Condition()

    def offer(self, payload: np.ndarray, origin: str | None) -> str | None:
        """Offer a payload to a page of this origin; the key by which it asks for it, or None if another one is offered."""
        with self._changed:
            if self._offer is not None:
                return None
            self._offer = _Offer(payload, origin)
            return self._offer.key

    def wait(self, key: str, timeout: float) -> bool:
        """Wait until a request for a payload is answered, or none comes in `timeout` seconds, or it is `abandon`ed.

        Returns:
            Whether the page needs nothing more: it got the payload, or said that it is unwanted.
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
    def taken(self, key: str, origin: str | None, stream: Stream) -> Iterator[np.ndarray | None]:
        """The payload for a key, whose request is answered in the block.

        None if there is none for this key and origin, or it is taken.
        """
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
        """End the offer of a key, if there is one, because its page has gone."""
        with self._changed:
            if self._offer is None or self._offer.key != key:
                return
            if self._offer.stream is not None:
                self._offer.stream.stop()  # its request ends, and says so
            else:
                self._offer.is_over = True
                self._changed.notify_all()
