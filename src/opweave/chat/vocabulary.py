"""Text to tokens and back, and conversations as text, by what a GGUF file says of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NoReturn

from ..errors import DataError, MLError, NotSupportedError, import_extra
from .gguf import GGUF

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
"""Types of tokens. Control tokens stand for no text; tokens defined by users are never split."""

ENDS = {"<|im_end|>", "<|eot_id|>", "<|end|>", "<|endoftext|>", "<end_of_turn>", "</s>"}
"""Control tokens that end a reply, besides those that the file names."""

_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

SPLITS = {
    "gpt-2": [_WORDS],
    "smollm": [r"\p{N}", _WORDS],
    "llama-bpe": [_LLAMA_3],
    "qwen2": [_LLAMA_3.replace("{1,3}", "")],
}
"""The regular expressions that split text, one after the other, before bytes are merged; by `tokenizer.ggml.pre`."""

Message = Mapping[str, str]
"""A message of a conversation: its `role` ("system", "user" or "assistant") and its `content`."""


class Vocabulary:
    """The tokens of a model, and its chat template.

    Args:
        file: the model.

    Raises:
        NotSupportedError: the vocabulary is of another kind than those that are read.
        DataError: the file lacks a part of the vocabulary, or its parts do not fit.
        MissingExtraError: without the extra `chat`.

    Attributes:
        ends: the tokens that end a reply.
    """

    def __init__(self, file: GGUF) -> None:
        self._file = file
        self._library = import_extra("tokenizers", "chat", "the vocabulary of a language model")
        with self._foreign("the vocabulary"):
            self._read()

    def _read(self) -> None:
        self._tokens: list[str] = self._need("tokens")
        types = list(self._need("token_type"))
        kind = self._need("model")
        makers: dict[str, Callable[[], Any]] = {"gpt2": self._bytewise, "llama": self._piecewise}
        if kind not in makers:
            raise NotSupportedError(f"{self._file.path} has tokens of type {kind}; {', '.join(makers)} are read")
        self._tokenizer = makers[kind]()

        def of_type(wanted: int) -> list[Any]:
            found = [token for token, each in zip(self._tokens, types, strict=True) if each == wanted]
            return [self._library.AddedToken(token, normalized=False) for token in found]

        self._tokenizer.add_tokens(of_type(USER_DEFINED))
        self._tokenizer.add_special_tokens(of_type(CONTROL))
        begins = self._about("add_bos_token", kind == "llama" or self._about("pre") == "llama-bpe")
        self._begin = self._about("bos_token_id") if begins else None
        self.ends = {k for k, each in enumerate(types) if each == CONTROL and self._tokens[k] in ENDS}
        self.ends |= {self._about(name) for name in ("eos_token_id", "eot_token_id")} - {None}

    @contextmanager
    def _foreign(self, what: str) -> Iterator[None]:
        """Raise `DataError` for any error that the contents of the file cause in a library."""
        try:
            yield
        except MLError:
            raise
        except Exception as error:
            raise DataError(f"{what} of {self._file.path} is not valid: {error}") from None

    def _about(self, name: str, default: Any = None) -> Any:
        return self._file.metadata.get(f"tokenizer.ggml.{name}", default)

    def _need(self, name: str) -> Any:
        found = self._about(name)
        if found is None:
            raise DataError(f"{self._file.path} lacks tokenizer.ggml.{name}")
        return found

    def _bytewise(self) -> Any:
        """A tokenizer that merges bytes, as GPT-2's does."""
        lib, split = self._library, self._need("pre")
        if split not in SPLITS:
            raise NotSupportedError(f"{self._file.path} splits text as {split} does; {', '.join(SPLITS)} are known")
        merges = [tuple(pair.split(" ")) for pair in self._need("merges")]
        made = lib.Tokenizer(
            lib.models.BPE(
                {token: k for k, token in enumerate(self._tokens)},
                merges,
                ignore_merges=split == "llama-bpe",  # whole words of the vocabulary are taken first, as Llama 3 does
            )
        )
        splits = [lib.pre_tokenizers.Split(lib.Regex(pattern), "isolated") for pattern in SPLITS[split]]
        in_bytes = lib.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        made.pre_tokenizer = lib.pre_tokenizers.Sequence([*splits, in_bytes])
        made.decoder = lib.decoders.ByteLevel()
        return made

    def _piecewise(self) -> Any:
        """A tokenizer that merges the pieces of the best score, as SentencePiece does."""
        lib, known = self._library, {token: k for k, token in enumerate(self._tokens)}
        ranked: list[tuple[float, int, int]] = []
        for token, score in zip(self._tokens, self._need("scores").tolist(), strict=True):
            for k in range(1, len(token)):
                first, second = known.get(token[:k]), known.get(token[k:])
                if first is not None and second is not None:
                    ranked.append((-score, first, second))
        merges = [(self._tokens[first], self._tokens[second]) for _, first, second in sorted(ranked)]
        unknown = self._tokens[self._about("unknown_token_id", 0)]
        made = lib.Tokenizer(lib.models.BPE(known, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
        space, has_prefix = "▁", self._about("add_space_prefix", True)
        steps = [lib.normalizers.Replace(" ", space)]
        made.normalizer = lib.normalizers.Sequence([lib.normalizers.Prepend(space), *steps] if has_prefix else steps)
        decoders = [lib.decoders.Replace(space, " "), lib.decoders.ByteFallback(), lib.decoders.Fuse()]
        made.decoder = lib.decoders.Sequence([*decoders, lib.decoders.Strip(" ", 1, 0)] if has_prefix else decoders)
        return made

    def encode(self, text: str) -> list[int]:
        """Divide a text into tokens.

        Args:
            text: any text. Names of control tokens in it become these tokens.

        Returns:
            The numbers of the tokens.
        """
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return tokens if self._begin is None or tokens[:1] == [self._begin] else [self._begin, *tokens]

    def decode(self, tokens: Sequence[int]) -> str:
        """Join tokens to a text.

        Args:
            tokens: their numbers.

        Returns:
            The text, without control tokens.
        """
        text: str = self._tokenizer.decode(list(tokens))
        return text

    def stream(self) -> Callable[[int], str]:
        """A function that takes the tokens of a text one at a time, and returns what each adds to the text.

        A character of several tokens is added by the last of them.
        """
        decoder = self._library.decoders.DecodeStream(skip_special_tokens=True)
        return lambda token: decoder.step(self._tokenizer, token) or ""

    def render(self, messages: Iterable[Message]) -> str:
        """Write a conversation by the template of the file, up to the beginning of the next reply.

        Args:
            messages: each with "role" ("system", "user" or "assistant") and "content".

        Returns:
            The text for `encode`.

        Raises:
            DataError: the file has no template, or the template refuses these messages.
        """
        template = self._file.metadata.get("tokenizer.chat_template")
        if template is None:
            raise DataError(f"{self._file.path} has no chat template (tokenizer.chat_template)")

        def refuse(message: str) -> NoReturn:
            raise DataError(f"the chat template of {self._file.path} says: {message}")

        # The template is a program of the file's author, which must not reach Python's objects.
        sandbox = import_extra("jinja2.sandbox", "chat", "the template of a conversation")
        environment = sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        special = {name: self._about(f"{name}_id") for name in ("bos_token", "eos_token")}
        with self._foreign("the chat template"):
            text: str = environment.from_string(template).render(
                messages=list(messages),
                add_generation_prompt=True,
                raise_exception=refuse,
                strftime_now=lambda form: datetime.now().strftime(form),
                **{name: "" if token is None else self._tokens[token] for name, token in special.items()},
            )
        return text
