"""Generate the text that follows some tokens."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from ..support.errors import require
from ..support.names import short_repr
from .decoder import Decoder
from .grammar import Grammar
from .sampling import Sampler
from .vocabulary import Vocabulary


@dataclass
class Reply:
    """Token counts and times of a reply, and the reason for its end.

    Attributes:
        read: number of tokens read: tokens of the conversation that were not in the decoder's cache.
        read_seconds: the time to the first token of the reply.
        written: number of tokens of the reply.
        written_seconds: the time for all tokens of the reply but the first.
        end: the reason: "done" (the model ended the reply), "stop" (by one of the texts that end it), "full" (no room is
            left), "limit", or "open" (interrupted).

    >>> print(Reply(read=20, read_seconds=0.1, written=5, written_seconds=0.2))
    20 tokens read in 100 ms, 5 written, 20.0 tokens/s
    """

    read: int
    read_seconds: float = 0.0
    written: int = 0
    written_seconds: float = 0.0
    end: str = "open"

    def __str__(self) -> str:
        parts = [f"{self.read} tokens read in {self.read_seconds * 1e3:.0f} ms"]
        if self.written > 1:
            parts.append(f"{self.written} written, {(self.written - 1) / self.written_seconds:.1f} tokens/s")
        return ", ".join(parts)


def generate(
    decoder: Decoder,
    vocabulary: Vocabulary,
    tokens: Sequence[int],
    sampler: Sampler,
    reply: Reply,
    *,
    limit: int | None = None,
    stop: Sequence[str] = (),
    grammar: Grammar | None = None,
) -> Generator[str]:
    """Yield the parts of the text that follows tokens, as they are generated.

    Args:
        decoder: the model; only tokens that differ from those in its cache are read.
        vocabulary: the tokens of the model.
        tokens: at least one token, and fewer than the decoder has room for.
        sampler: chooses tokens.
        reply: gets counts, times, and the reason for the end.
        limit: maximum number of tokens.
        stop: texts that end the reply, and are not part of it.
        grammar: what the reply must be.
    """
    # The last token is read even if it is in the cache, for the logits of the next token.
    cached = max(0, min(common_length(tokens, decoder.tokens), len(tokens) - 1))
    decoder.forget(cached)
    reply.read = len(tokens) - cached
    words, added, texts = decoder.model.sizes.words, vocabulary.stream(), StopTexts(stop)
    constraint = None if grammar is None else grammar.start()
    start, new = perf_counter(), list(tokens[cached:])
    while True:
        # Without a grammar, pass no mask: the `compile` of a subclass of `Sampler` need not take one.
        mask: tuple[Any, ...] = () if constraint is None else (constraint.allowed(words),)
        token = decoder.choose(new, sampler, *mask)
        if not reply.written:
            reply.read_seconds = perf_counter() - start
        if token in vocabulary.ends:
            reply.end = "done"
            break
        if constraint is not None:
            constraint.accept(token)
        reply.written += 1
        part = texts.add(added(token))
        reply.written_seconds = perf_counter() - start - reply.read_seconds
        if texts.is_found:
            reply.end = "stop"
        elif constraint is not None and constraint.is_done:
            reply.end = "done"
        elif reply.written == limit:
            reply.end = "limit"
        elif len(decoder.tokens) == decoder.room:
            reply.end = "full"
        yield part
        if reply.end != "open":
            break
        new = [token]
    if rest := texts.rest():
        yield rest


class StopTexts:
    """Looks for texts that end a reply, also in pieces, and keeps back what may be the beginning of one.

    >>> texts = StopTexts(["END"])
    >>> texts.add("a E"), texts.add("Nough EN"), texts.add("D, more"), texts.is_found
    ('a ', 'ENough ', '', True)
    """

    def __init__(self, stop: Sequence[str]) -> None:
        require(not isinstance(stop, str), f"stop must be a sequence of texts, got {short_repr(stop)}")
        for text in stop:
            require(
                isinstance(text, str) and text != "", f"stop must be texts of some characters, got {short_repr(text)}"
            )
        self._stop, self._kept, self.is_found = tuple(stop), "", False

    def add(self, part: str) -> str:
        """Add a part of the reply, and return what certainly belongs to it."""
        if not self._stop:
            return part
        text = self._kept + part
        places = [place for end in self._stop if (place := text.find(end)) >= 0]
        if places:
            self.is_found, self._kept = True, ""
            return text[: min(places)]
        count = max((k for end in self._stop for k in range(1, len(end)) if text.endswith(end[:k])), default=0)
        self._kept = text[len(text) - count :]
        return text[: len(text) - count]

    def rest(self) -> str:
        """Return the text that was kept back, at the end of the reply."""
        rest, self._kept = self._kept, ""
        return rest


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """The number of tokens with which both begin."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((k for k, (a, b) in pairs if a != b), min(len(first), len(second)))
