"""A connection of a page: receives messages, passes them to contexts, and sends the answers."""

from __future__ import annotations

import logging
import secrets
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock

import numpy as np

from ..context.graph import MLGraph
from ..context.tensors import state_of
from ..support.errors import InvalidStateError, MLError, NotSupportedError
from ..support.names import count_of
from .counts import Counts
from .handover import Handover
from .http import shown_origin
from .lane import Lane
from .limits import ConnectionLimits, ServerBudget
from .messages import REQUIRED, Message, ProtocolError, error_name, parse_message, text_of
from .recording import Recording
from .served_builder import LogError
from .served_context import Answer, ServedContext, create_context, descriptor_of
from .stream import INTERNAL_ERROR, PROTOCOL_ERROR, DisconnectedError, WireError
from .wire import Messages

logger = logging.getLogger("opweave.serve")

MAX_ENDED = 65_536
"""Maximum number of ended contexts in one connection. Their numbers are kept, to ignore late messages for them."""

MAX_MESSAGE = 4000
"""Maximum characters of an error message to a client."""

SLOW = ("build", "tensor", "save", "load", "list", "delete")
"""Messages that take long, so the receiving thread does not run them."""


@dataclass
class _OpenContext:
    number: int
    context: ServedContext
    lane: Lane
    counts: Counts
    is_closing: bool = False  # destroyed by the client, which sends no more messages for it
    is_ended: bool = False  # lost or destroyed


class Connection:
    """Serves a page, a worker or a process of Node.js. `POST /sync` must send the `key`, from the same `origin`."""

    def __init__(
        self,
        messages: Messages,
        limits: ConnectionLimits,
        origin: str | None,
        device: str | None,
        handover: Handover,
        recording: Recording | None = None,
        drafts: bool = False,
    ) -> None:
        self._messages, self._limits, self.origin, self._device = messages, limits, origin, device
        self._handover = handover
        self._offered: str | None = None  # key of the payload that the page is to fetch
        self._recording, self._drafts = recording, drafts
        self.key = secrets.token_urlsafe(32)
        self._budget = ServerBudget(limits.memory)
        self._places: dict[int, _OpenContext] = {}
        self._ended: set[int] = set()
        self._lock = Lock()  # guards the two attributes above
        self._past = Counts()  # counts of contexts that have ended
        self._has_failed = False
        self._failing = Lock()  # held while the error is sent to the client

    # Receiving -------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Receive messages until the connection ends; then free everything."""
        try:
            while not self._has_failed:
                self._receive(parse_message(self._messages.text(self._limits.json)))
        except DisconnectedError:
            pass
        except WireError as error:
            self._fail(error.code, str(error))
        except ProtocolError as error:
            self._fail(PROTOCOL_ERROR, str(error))
        except Exception:
            logger.exception("a fault of the server ends a connection")
            self._fail(INTERNAL_ERROR, "a fault of the server")
        finally:
            self._end()

    def _receive(self, message: Message) -> None:
        kind = message["m"]
        if kind == "hello":
            self._hello(message)
            return
        place = self._places.get(message["c"])
        if place is None and message["c"] not in self._ended:
            raise ProtocolError(f"there is no context {message['c']}")
        if place is None or place.is_ended or place.is_closing:
            if "bin" in message:
                self._messages.skip(message["bin"])
            return
        place.counts.messages[kind] += 1
        payload = None
        if "bin" in message:
            if kind == "write":
                place.lane.settle()  # earlier messages use the tensor
            try:
                payload = place.context.memory_for(message)
            except (MLError, MemoryError) as error:
                place.lane.submit(partial(self._refuse, place, message, error), inline=True)
                self._messages.skip(message["bin"])
                return
            self._messages.payload(payload)
            place.counts.received_bytes += payload.size
        is_slow = kind in SLOW or message.get("apart", False)
        place.lane.submit(partial(self._handle, place, message, payload), inline=len(self._places) == 1 and not is_slow)
        place.is_closing = kind == "destroy"

    def _hello(self, message: Message) -> None:
        number = message["c"]
        if number in self._places or number in self._ended:
            raise ProtocolError(f"context {number} exists already")
        try:
            alive = sum(not (place.is_ended or place.is_closing) for place in list(self._places.values()))
            if alive >= self._limits.contexts:
                raise NotSupportedError(
                    f"createContext: a page may have {count_of(self._limits.contexts, 'context')} here at the same time"
                )
            context = ServedContext(
                create_context(message["options"], self._device, self._drafts),
                self._budget,
                self._limits,
                self._record,
                self.origin,
            )
        except Exception as error:
            self._answer_error(message["r"], error)
            return
        lane = Lane(f"opweave.serve context {number}", self._messages.stream.has_ended)
        place = _OpenContext(number, context, lane, Counts(contexts=1))
        place.counts.messages["hello"] += 1
        with self._lock:
            self._places[number] = place
        context.context.lost.add_done_callback(lambda info: self._on_loss(place, info.result().message))
        fields = {
            "session": self.key,
            "device": context.context.device.name,
            "accelerated": context.context.accelerated,
            "limits": context.limits(),
            "drafts": context.context.drafts,
        }
        self._answer(message["r"], Answer(fields))

    def _record(self, graph: MLGraph) -> None:
        if self._recording is not None:
            self._recording.add(graph, self.origin)

    # Handling --------------------------------------------------------------------------------------------------------

    def _handle(self, place: _OpenContext, message: Message, payload: np.ndarray | None) -> None:
        if place.is_ended or self._has_failed:
            return
        try:
            if message["m"] == "destroy":
                self._destroy(place)
                return
            answer = place.context.handle(message, payload)
            place.counts.graphs += message["m"] in ("build", "load")
            place.counts.dispatches += message["m"] == "dispatch"
            if answer is None:
                return
            if answer.payload is not None:
                place.counts.sent_bytes += answer.payload.size
                if message.get("apart") and self._hand_over(message["r"], answer.payload):
                    return
            self._answer(message["r"], answer)
        except DisconnectedError:
            pass
        except ProtocolError as error:
            self._fail(PROTOCOL_ERROR, str(error))
        except LogError as error:
            self._refuse(place, message, error.error)
        except Exception as error:
            self._refuse(place, message, error)

    def _refuse(self, place: _OpenContext, message: Message, error: BaseException) -> None:
        """Answer a request with an error. If the message is no request, end the context."""
        try:
            if "r" in REQUIRED[message["m"]]:
                self._answer_error(message["r"], error)
            else:
                state_of(place.context.context).lose(describe_error(error)["message"])
        except DisconnectedError:
            pass

    def _answer(self, request: int, answer: Answer) -> None:
        fields: Message = {"r": request, **answer.fields}
        if answer.payload is None:
            self._messages.send(text_of(fields))
        else:
            fields["bin"] = answer.payload.size
            self._messages.send(text_of(fields), answer.payload.data)

    def _hand_over(self, request: int, payload: np.ndarray) -> bool:
        """Let the page fetch tensor data by HTTP; return False if it does not, or if another payload is on offer."""
        key = self._handover.offer(payload, self.origin)
        if key is None:
            return False
        self._offered = key
        try:
            self._messages.send(text_of({"r": request, "bin": payload.size, "key": key}))
        except DisconnectedError:
            self._handover.abandon(key)
        return self._handover.wait(key, self._limits.handshake)

    def _answer_error(self, request: int, error: BaseException) -> None:
        self._messages.send(text_of({"r": request, "error": describe_error(error)}))

    def sync(self, message: Message) -> Message:
        """Answer `POST /sync`: the descriptors of results, or the shapes of outputs, and the first error."""
        place = self._places.get(message["c"])
        try:
            if place is None or place.is_ended:
                raise InvalidStateError("the context is lost")
            place.counts.messages["sync"] += 1
            if "g" in message:
                return {"shapes": place.context.compute_shapes(message["g"], message["shapes"])}
            results = place.context.sync(message["b"], message["log"])
        except LogError as error:
            before = [[descriptor_of(desc) for desc in descs] for descs in error.before]
            return {"operands": before, "at": error.index, "error": describe_error(error.error)}
        except (MLError, MemoryError) as error:
            return {"operands": [], "at": 0, "error": describe_error(error)}
        except ProtocolError as error:
            self._fail(PROTOCOL_ERROR, str(error))
            raise
        return {"operands": [[descriptor_of(desc) for desc in descs] for descs in results]}

    # The end ---------------------------------------------------------------------------------------------------------

    def _on_loss(self, place: _OpenContext, reason: str) -> None:
        """Tell the client that a context is lost, and free the context, unless the client has destroyed it."""
        if place.is_ended:
            return
        place.is_ended = True
        with suppress(DisconnectedError):
            self._messages.send(text_of({"c": place.number, "lost": reason}))
        place.lane.finish(place.context.destroy)

    def _destroy(self, place: _OpenContext) -> None:
        place.is_ended = True
        place.context.destroy()
        place.lane.close()
        if len(self._ended) >= MAX_ENDED:
            raise ProtocolError(f"a connection may have {MAX_ENDED:,} contexts in its time")
        with self._lock:
            del self._places[place.number]
            self._ended.add(place.number)
            self._past += place.counts
        logger.info("context %d of %s has ended: %s", place.number, self._client_name, place.counts)

    def _fail(self, code: int, reason: str) -> None:
        """End the connection after an error; callable from any thread."""
        with self._failing:
            if self._has_failed:
                return
            self._has_failed = True
            logger.warning("a connection from %s ends: %s", self._client_name, reason)
            with suppress(DisconnectedError):
                for place in list(self._places.values()):
                    if not place.is_ended:
                        self._messages.send(text_of({"c": place.number, "lost": reason}))
            self._messages.close(code, reason)
        self._handover.abandon(self._offered)

    def close(self, code: int, reason: str) -> None:
        """End the connection because the server ends; callable from any thread."""
        self._messages.close(code, reason)
        self._handover.abandon(self._offered)  # the receiving thread may wait for a context

    def _end(self) -> None:
        with self._failing:  # wait for a thread that sends the reason to the client
            self._has_failed = True
        self._messages.stop()
        self._handover.abandon(self._offered)
        places = list(self._places.values())
        for place in places:
            place.lane.close()
        for place in places:
            place.lane.join()
            place.is_ended = True
            place.context.destroy()
            logger.info("context %d of %s has ended: %s", place.number, self._client_name, place.counts)

    @property
    def _client_name(self) -> str:
        return shown_origin(self.origin)

    def counts(self) -> Counts:
        """Return the counts of the connection so far."""
        with self._lock:
            # `Counter.copy` is atomic; the receiving thread adds keys meanwhile.
            own = [replace(place.counts, messages=place.counts.messages.copy()) for place in self._places.values()]
            return sum([self._past, *own], Counts())


def describe_error(error: BaseException) -> Message:
    """An error as JavaScript receives it."""
    name = error_name(error)
    if name == "UnknownError":
        logger.error("a fault of the server", exc_info=error)
        return {"name": name, "message": _truncate(f"a fault of the server: {type(error).__name__}: {error}")}
    return {"name": name, "message": _truncate(str(error)) or "there is not enough memory"}


def _truncate(text: str) -> str:
    """Truncate a text to about `MAX_MESSAGE` characters; labels and names from the client may be longer."""
    return text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]}… ({len(text):,} characters)"
