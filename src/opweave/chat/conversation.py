"""A conversation with a language model."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from time import perf_counter

from ..errors import ValidationError
from .decoder import Decoder
from .sampling import Sampler
from .vocabulary import Message, Vocabulary


@dataclass
class Reply:
    """What a reply took.

    Attributes:
        read: how many tokens of the prompt had to be read: those that are not remembered.
        read_seconds: how long that took, with the first token of the reply.
        written: how many tokens the reply has.
        written_seconds: how long those after the first one took.
        end: why it ended: "done" (by the model), "full" (the room), "limit", or "open" if it was interrupted.
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
        vocabulary: its tokens.
        sampler: how tokens are chosen.
        system: what the model is told first; default: what its template says.

    Attributes:
        messages: all so far.
        reply: what the latest reply took.
    """

    def __init__(self, decoder: Decoder, vocabulary: Vocabulary, sampler: Sampler, system: str | None = None) -> None:
        self._decoder, self._vocabulary, self._sampler = decoder, vocabulary, sampler
        self.messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        self.reply = Reply(0)

    def say(self, text: str, limit: int | None = None) -> Generator[str]:
        """Say something to the model.

        Args:
            text: the message.
            limit: the most tokens of the reply; default: as many as there is room for.

        Returns:
            The parts of the reply, as they come. Whoever stops in between keeps what has come.

        Raises:
            ValidationError: there is no room for the conversation with this message, which is then dropped.
        """
        said = {"role": "user", "content": text}
        tokens = self._vocabulary.encode(self._vocabulary.render([*self.messages, said]))
        room = self._decoder.room
        if len(tokens) >= room:
            raise ValidationError(
                f"the context is full: with this message the conversation has {len(tokens)} tokens, and there is room "
                f"for {room}, the reply included"
            )
        return self._replies(said, tokens, limit)

    def _replies(self, said: Message, tokens: list[int], limit: int | None) -> Generator[str]:
        decoder, reply = self._decoder, Reply(0)
        # The last token is read again even if it is remembered: its logits are needed.
        known = min(_equal(tokens, decoder.tokens), len(tokens) - 1)
        decoder.forget(known)
        self.reply, reply.read = reply, len(tokens) - known
        start, added, parts = perf_counter(), self._vocabulary.stream(), [""]
        try:
            token = self._sampler(decoder.feed(tokens[known:]))
            reply.read_seconds = perf_counter() - start
            while token not in self._vocabulary.ends:
                reply.written += 1
                parts.append(added(token))
                reply.written_seconds = perf_counter() - start - reply.read_seconds
                yield parts[-1]
                if reply.written == limit or len(decoder.tokens) == decoder.room:
                    reply.end = "limit" if reply.written == limit else "full"
                    return
                token = self._sampler(decoder.feed([token]))
            reply.end = "done"
        finally:
            self.messages += [said, {"role": "assistant", "content": "".join(parts)}]


def _equal(first: list[int], second: list[int]) -> int:
    """How many tokens at the beginning of both are the same."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((k for k, (a, b) in pairs if a != b), min(len(first), len(second)))
