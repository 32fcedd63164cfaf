"""Commands among the lines of `opweave chat`, and the options that they change."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..support.errors import DataError, ValidationError, require
from ..support.names import short_repr

if TYPE_CHECKING:
    from ..chat import Conversation, Decoder, Grammar, Sampler, Vocabulary

HELP = """\
/help            these lines
/new             begin a new conversation
/system TEXT     begin a new conversation with this system message; without TEXT, show it
/set             show the options
/set NAME VALUE  change one; without VALUE, back to its default
/exit            end, as the end of the input (Ctrl-D) does
//TEXT           a message that begins with /
Ctrl-C stops a reply."""

COMMANDS = ("/help", "/new", "/system", "/set", "/exit")


def _number(text: str) -> float:
    return float(text)


def _count_or_none(text: str) -> int | None:
    return None if text in ("none", "") else int(text)


def _texts(text: str) -> list[str]:
    """One text to stop at; escapes as in JSON, such as \\n."""
    return [] if text == "" else [str(json.loads(f'"{text}"'))]


READERS: dict[str, Callable[[str], Any]] = {
    "temperature": _number,
    "top_k": int,
    "top_p": _number,
    "min_p": _number,
    "repetition_penalty": _number,
    "seed": _count_or_none,
    "limit": _count_or_none,
    "stop": _texts,
    "json_schema": str,
}
"""Functions that read the values of `/set`, by the names of options."""

OF_SAMPLER = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")

ALIASES = {"repeat_penalty": "repetition_penalty"}


def schema_of(text: str) -> Any:
    """A JSON schema from the value of `--json-schema`: the path of a file, or JSON."""
    is_inline = text.lstrip().startswith("{")
    try:
        return json.loads(text if is_inline else Path(text).read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"--json-schema: {short_repr(text)} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise DataError(f"--json-schema: {'the text' if is_inline else text} is not JSON: {error}") from None


def _sampler_of(options: Mapping[str, Any]) -> Sampler:
    from ..chat import Sampler

    return Sampler(**{name: options[name] for name in OF_SAMPLER})


class ChatLines:
    """Carries out commands, and holds the options of replies.

    Args:
        decoder: the model.
        vocabulary: its tokens.
        system: the system message.
        options: values by the names of `READERS`.
        sampler: a sampler with these options that `Decoder.build` has compiled. Default: a new one.

    Attributes:
        conversation: the current conversation.
        is_ended: whether `/exit` was entered.
    """

    def __init__(
        self,
        decoder: Decoder,
        vocabulary: Vocabulary,
        system: str | None,
        options: dict[str, Any],
        sampler: Sampler | None = None,
    ) -> None:
        self._decoder, self._vocabulary, self._system = decoder, vocabulary, system
        self._defaults, self._options = dict(options), dict(options)
        self._grammar: Grammar | None = None
        self.is_ended = False
        self.conversation: Conversation
        self._begin(sampler)
        self._apply(options, sampler)

    @property
    def limit(self) -> int | None:
        """The maximum number of tokens of a reply."""
        limit: int | None = self._options["limit"]
        return limit

    @property
    def grammar(self) -> Grammar | None:
        """The grammar of replies, if they are constrained."""
        return self._grammar

    def _begin(self, sampler: Sampler | None = None) -> None:
        from ..chat import Conversation

        self._decoder.forget(0)
        sampler = sampler or _sampler_of(self._options)
        self.conversation = Conversation(
            self._decoder, self._vocabulary, sampler, self._system, stop=self._options["stop"]
        )

    def _apply(self, options: dict[str, Any], sampler: Sampler | None = None) -> None:
        """Use changed options; if one is wrong, nothing has changed."""
        from ..chat import Grammar
        from ..chat.generation import StopTexts

        sampler = sampler or _sampler_of(options)
        StopTexts(options["stop"])
        limit = options["limit"]
        require(limit is None or limit > 0, f"limit must be positive, got {short_repr(limit)}")
        schema = options["json_schema"]
        if not schema:
            self._grammar = None
        elif self._grammar is None or schema != self._options["json_schema"]:
            self._grammar = Grammar(self._vocabulary, schema_of(schema))
        self._options = options
        self.conversation.sampler, self.conversation.stop = sampler, tuple(options["stop"])

    def run(self, line: str) -> str:
        """Carry out a command, and return what to show.

        Raises:
            ValidationError: there is no such command or option, or the value is wrong.
        """
        command, _, rest = line.partition(" ")
        rest = rest.strip()
        if command in ("/exit", "/quit"):
            self.is_ended = True
            return ""
        if command == "/help":
            return HELP
        if command == "/new":
            self._begin()
            return "a new conversation"
        if command == "/system":
            if not rest:
                return "the system message of the chat template" if self._system is None else self._system
            self._system = rest
            self._begin()
            return "a new conversation, with this system message"
        if command == "/set":
            return self._set(rest)
        hint = "".join(f"; did you mean {name}?" for name in get_close_matches(command, COMMANDS, 1))
        raise ValidationError(f"there is no command {short_repr(command)}{hint or ';'} /help lists them")

    def _set(self, text: str) -> str:
        if not text:
            return "\n".join(f"{_option_name(name)} {_value_text(value)}" for name, value in self._options.items())
        title, separator, value = text.partition(" ")
        name = title.lstrip("-").replace("-", "_").lower()
        name = ALIASES.get(name, name)
        if name not in READERS:
            hint = "".join(f"; did you mean {_option_name(n)}?" for n in get_close_matches(name, READERS, 1))
            names = ", ".join(map(_option_name, READERS))
            raise ValidationError(f"there is no option {short_repr(title)}{hint or ';'} options are {names}")
        if not separator:
            changed = self._defaults[name]
        else:
            try:
                changed = READERS[name](value.strip())
            except ValueError:
                rule = "a text with escapes as in JSON" if name == "stop" else "a number"
                raise ValidationError(f"{_option_name(name)} must be {rule}, got {short_repr(value)}") from None
        self._apply(self._options | {name: changed})
        return f"{_option_name(name)} {_value_text(changed)}"


def _option_name(name: str) -> str:
    return name.replace("_", "-")


def _value_text(value: Any) -> str:
    if value is None or value in ("", []):
        return "none"
    return (
        ", ".join(map(json.dumps, value)) if isinstance(value, Sequence) and not isinstance(value, str) else str(value)
    )
