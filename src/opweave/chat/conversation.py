"""A conversation with a language model."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from time import perf_counter

from ..support.errors import DataError, ValidationError, require
from ..support.names import short_repr
from .decoder import Decoder
from .sampling import Sampler
from .vocabulary import Message, Vocabulary


@dataclass
class Reply:
    """Token counts and times of a reply, and the reason for its end.

    Attributes:
        read: number of tokens read: tokens of the conversation that were not in the decoder's cache.
        read_seconds: the time to the first token of the reply.
        written: number of tokens of the reply.
        written_seconds: the time for all tokens of the reply but the first.
        end: the reason: "done" (the model ended the reply), "full" (no room is left), "limit", or "open" (interrupted).

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


class Conversation:
    """Messages, and the model that replies to them.

    Args:
        decoder: the model.
        vocabulary: the tokens of the model.
        sampler: chooses tokens.
        system: the system message; default: that of the chat template.

    Raises:
        DataError: the vocabulary belongs to another model.

    Attributes:
        messages: the messages so far.
        reply: counts and times of the latest reply.
    """

    def __init__(self, decoder: Decoder, vocabulary: Vocabulary, sampler: Sampler, system: str | None = None) -> None:
        words = decoder.model.sizes.words
        if len(vocabulary) > words:
            raise DataError(f"the vocabulary must have at most {words} tokens, as the model has, got {len(vocabulary)}")
        self._decoder, self._vocabulary, self._sampler = decoder, vocabulary, sampler
        self.messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        self.reply = Reply(0)

    def say(self, text: str, limit: int | None = None) -> Generator[str]:
        """Send a message to the model, and return its reply.

        Args:
            text: the message.
            limit: maximum number of tokens of the reply; default: up to the end of the context.

        Returns:
            The parts of the reply, as they are generated. Closing the generator ends the reply early.

        Raises:
            ValidationError: the message is no text, or the conversation with it has no room. `messages` stays the same.
            DataError: the chat template refuses the message, or takes too much memory or time.
        """
        require(isinstance(text, str), f"text must be a str, got {short_repr(text)}")
        is_count = limit is None or (isinstance(limit, int) and not isinstance(limit, bool) and limit > 0)
        require(is_count, f"limit must be a positive integer or None, got {short_repr(limit)}")
        prompt = {"role": "user", "content": text}
        room = self._decoder.room
        tokens = self._vocabulary.encode(self._vocabulary.render([*self.messages, prompt]))
        if len(tokens) >= room:
            raise ValidationError(
                f"the context is full: with this message the conversation has {len(tokens)} tokens, and there is room "
                f"for {room}, the reply included"
            )
        return self._generate(prompt, tokens, limit)

    def _generate(self, prompt: Message, tokens: list[int], limit: int | None) -> Generator[str]:
        decoder, reply = self._decoder, Reply(0)
        # The last token is read even if it is in the cache, for the logits of the next token.
        cached = min(_common_length(tokens, decoder.tokens), len(tokens) - 1)
        decoder.forget(cached)
        self.reply, reply.read = reply, len(tokens) - cached
        start, added, parts = perf_counter(), self._vocabulary.stream(), [""]
        try:
            token = decoder.choose(tokens[cached:], self._sampler)
            reply.read_seconds = perf_counter() - start
            while token not in self._vocabulary.ends:
                reply.written += 1
                parts.append(added(token))
                reply.written_seconds = perf_counter() - start - reply.read_seconds
                yield parts[-1]
                if reply.written == limit or len(decoder.tokens) == decoder.room:
                    reply.end = "limit" if reply.written == limit else "full"
                    return
                token = decoder.choose([token], self._sampler)
            reply.end = "done"
        finally:
            self.messages += [prompt, {"role": "assistant", "content": "".join(parts)}]


def _common_length(first: list[int], second: list[int]) -> int:
    pairs = enumerate(zip(first, second, strict=False))
    return next((k for k, (a, b) in pairs if a != b), min(len(first), len(second)))
