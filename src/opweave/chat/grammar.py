"""Constrain replies to JSON, by masks of tokens that a grammar allows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..support.errors import DataError, ValidationError, import_extra, require
from ..support.names import short_repr
from .vocabulary import Vocabulary

MAX_SCHEMA = 1 << 16
"""Maximum characters of a schema. The library bounds what it makes of one."""


class Grammar:
    """JSON that fits a schema, as a grammar of tokens, for `Conversation.say`.

    llguidance computes the masks. It refuses parts of JSON Schema that it does not know; the text has no whitespace between
    tokens of JSON but a space.

    Args:
        vocabulary: the tokens of the model.
        schema: a JSON schema. Default: any JSON object.

    Raises:
        ValidationError: the schema is not valid, or has parts that are not supported.
        DataError: the vocabulary has no token that ends a reply.
        MissingExtraError: without the extra `chat`.
    """

    def __init__(self, vocabulary: Vocabulary, schema: Mapping[str, Any] | None = None) -> None:
        library = import_extra("llguidance", "chat", "a reply in JSON")
        require(schema is None or isinstance(schema, Mapping), f"schema must be a mapping, got {short_repr(schema)}")
        try:
            text = json.dumps({"type": "object"} if schema is None else dict(schema), allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValidationError(f"schema must be JSON: {error}") from None
        require(len(text) <= MAX_SCHEMA, f"schema must have at most {MAX_SCHEMA:,} characters, got {len(text):,}")
        if not vocabulary.ends:
            raise DataError("the vocabulary must have a token that ends a reply (tokenizer.ggml.eos_token_id)")
        self.words = len(vocabulary)
        self._tokens = vocabulary.guidance()
        # A small model may write whitespace for ever where it is allowed.
        options = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
        self._matcher = library.LLMatcher
        try:
            self._text = library.LLMatcher.grammar_from_json_schema(text, overrides=options)
        except ValueError as error:  # JSON of Python that llguidance does not read, such as half of a surrogate pair
            raise ValidationError(f"schema: {error}") from None
        reason = self._matcher(self._tokens, self._text, log_level=0).get_error()
        require(not reason, f"schema: {reason}")

    def start(self) -> Constraint:
        """The beginning of a text."""
        return Constraint(self._matcher(self._tokens, self._text, log_level=0), self.words)


class Constraint:
    """The state of a grammar within one text."""

    def __init__(self, matcher: Any, words: int) -> None:
        self._matcher, self._words = matcher, words

    @property
    def is_done(self) -> bool:
        """Whether the text is complete, and nothing can follow."""
        return bool(self._matcher.is_stopped())

    def allowed(self, words: int) -> np.ndarray:
        """The tokens that may follow, bool [words], where `words` is the number of logits.

        Raises:
            DataError: the grammar takes more than the library allows.
        """
        mask = self._matcher.compute_bitmask()
        self._check()
        bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")[: self._words].astype(bool)
        allowed = np.zeros(words, bool)
        allowed[: len(bits)] = bits
        return allowed

    def accept(self, token: int) -> None:
        """Add a token to the text.

        Raises:
            DataError: it is not allowed.
        """
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise DataError(f"the grammar of the reply failed: {self._matcher.get_error()}")
