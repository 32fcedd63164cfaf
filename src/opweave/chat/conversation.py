"""A conversation with a language model."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from ..support.errors import DataError, ValidationError, require
from ..support.names import short_repr
from .decoder import Decoder
from .generation import Reply, StopTexts, generate
from .grammar import Grammar
from .sampling import Sampler
from .vocabulary import Message, Vocabulary


class Conversation:
    """Messages, and the model that replies to them.

    Args:
        decoder: the model.
        vocabulary: the tokens of the model.
        sampler: chooses tokens.
        system: the system message; default: that of the chat template.
        stop: texts that end a reply, and are not part of it.

    Raises:
        DataError: the vocabulary belongs to another model.
        ValidationError: a text of `stop` is empty.

    Attributes:
        sampler: chooses tokens; another one takes effect with the next message.
        stop: texts that end a reply; others take effect with the next message.
        messages: the messages so far.
        reply: counts and times of the latest reply.
    """

    def __init__(
        self,
        decoder: Decoder,
        vocabulary: Vocabulary,
        sampler: Sampler,
        system: str | None = None,
        *,
        stop: Sequence[str] = (),
    ) -> None:
        words = decoder.model.sizes.words
        if len(vocabulary) > words:
            raise DataError(f"the vocabulary must have at most {words} tokens, as the model has, got {len(vocabulary)}")
        # Check the texts now, not in the first reply.
        StopTexts(stop)
        self._decoder, self._vocabulary, self.sampler, self.stop = decoder, vocabulary, sampler, tuple(stop)
        self.messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        self.reply = Reply(0)

    def say(self, text: str, limit: int | None = None, *, grammar: Grammar | None = None) -> Generator[str]:
        """Send a message to the model, and return its reply.

        Args:
            text: the message.
            limit: maximum number of tokens of the reply; default: up to the end of the context.
            grammar: what the reply must be: JSON that fits a schema. It is complete unless `limit` or the context ends it.

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
        return self._generate(prompt, tokens, limit, grammar)

    def _generate(
        self, prompt: Message, tokens: list[int], limit: int | None, grammar: Grammar | None
    ) -> Generator[str]:
        self.reply, parts = Reply(0), [""]
        try:
            for part in generate(
                self._decoder,
                self._vocabulary,
                tokens,
                self.sampler,
                self.reply,
                limit=limit,
                stop=self.stop,
                grammar=grammar,
            ):
                parts.append(part)
                yield part
        finally:
            self.messages += [prompt, {"role": "assistant", "content": "".join(parts)}]
