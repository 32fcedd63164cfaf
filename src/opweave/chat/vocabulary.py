"""Convert text to tokens and back, and conversations to text, as a GGUF file specifies."""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..support.errors import DataError, MLError, NotSupportedError, import_extra, require
from ..support.names import first_surrogate, short_repr
from .budget import MAX_TEXT
from .gguf import GGUF
from .metadata import Metadata
from .template import Template, plain_data, plain_mappings, plain_messages

SPACE = "▁"
"""The character that stands for a space in vocabularies of SentencePiece."""

NORMAL, CONTROL, USER_DEFINED, BYTE = 1, 3, 4, 6
"""Types of tokens. Control tokens have no text; tokens defined by users are never split."""

ENDS = {
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "</s>",
}
"""Control tokens that end a reply, besides the ones in the file."""

KEEPING_SPACES = {"<s>", "<|endoftext|>"}
"""The special tokens of Phi 3 that whitespace may follow. The tokenizer drops the whitespace behind all others, and templates
write a line break there. Files do not say so."""

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
"""Regular expressions by `tokenizer.ggml.pre`. They split text, one after the other, before bytes are merged."""


def _characters_of_bytes() -> dict[str, int]:
    """The bytes by the characters that stand for them in vocabularies like GPT-2's."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + k): byte for k, byte in enumerate(hidden)}


_BYTES = _characters_of_bytes()

Message = Mapping[str, Any]
"""A message of a conversation: `role` ("system", "user" or "assistant"), `content`, and other entries that templates read."""

SHORT_NAMES = {"unknown": "unk", "padding": "pad", "seperator": "sep"}
"""Names of special tokens in templates by the names in files, where they differ (`tokenizer.ggml.seperator_token_id`)."""

MAX_PARTS = 2**22
"""Maximum number of pairs of tokens where one starts, or ends, with the other; a vocabulary of 256,000 has about 10^6."""


class Vocabulary:
    """The tokens of a model, and its chat template.

    Args:
        file: the model.

    Raises:
        NotSupportedError: the kind of vocabulary is not supported.
        DataError: the file lacks a part of the vocabulary, or parts do not fit together.
        MissingExtraError: without the extra `chat`.

    Attributes:
        ends: the tokens that end a reply.
    """

    def __init__(self, file: GGUF) -> None:
        self._file, self._about = file, Metadata(file, "tokenizer.ggml.")
        self._templates: dict[str, Template] = {}
        self._library = import_extra("tokenizers", "chat", "the vocabulary of a language model")
        with self._convert_errors("the vocabulary"):
            self._read()

    def _read(self) -> None:
        about = self._about
        kind = about.text("model")
        makers: dict[str, Callable[[], Any]] = {"gpt2": self._byte_tokenizer, "llama": self._piece_tokenizer}
        if kind not in makers:
            raise NotSupportedError(f"{self._file.path} has tokens of type {kind}; {', '.join(makers)} are read")
        self._tokens = about.texts("tokens")
        if not self._tokens:
            about.refuse("tokens", "a list of at least one token")
        self._types = types = about.numbers("token_type", len(self._tokens), whole=True)
        self._is_of_bytes, self._guidance = kind == "gpt2", None
        self._begins_with_space = False
        self._parts: Any = None
        suffix = "_token_id"
        ids = {
            name.removeprefix("tokenizer.ggml.").removesuffix(suffix): self._token(name.removeprefix("tokenizer.ggml."))
            for name in self._file.metadata
            if name.startswith("tokenizer.ggml.") and name.endswith(suffix)
        }
        self._special = {f"{SHORT_NAMES.get(name, name)}_token": self._tokens[k] for name, k in ids.items()}
        self._tokenizer = makers[kind]()

        self._tokenizer.add_tokens(self._added_tokens(USER_DEFINED))
        self._tokenizer.add_special_tokens(self._added_tokens(CONTROL))
        is_begun = about.flag("add_bos_token", kind == "llama" or about.text("pre", None) == "llama-bpe")
        self._begin = ids.get("bos") if is_begun else None
        self.ends = {int(k) for k in np.flatnonzero(types == CONTROL) if self._tokens[k] in ENDS}
        self.ends |= {ids[name] for name in ("eos", "eot", "eom") if name in ids}

    def _added_tokens(self, kind: int) -> list[Any]:
        """The tokens of a type, to find in a text before it is divided."""
        drops_spaces = not self._is_of_bytes and self._file.metadata.get("general.architecture") == "phi3"
        tokens = [self._tokens[k] for k in np.flatnonzero(self._types == kind) if self._tokens[k]]
        return [
            self._library.AddedToken(token, normalized=False, rstrip=drops_spaces and token not in KEEPING_SPACES)
            for token in tokens
        ]

    def __len__(self) -> int:
        return len(self._tokens)

    def _token(self, name: str) -> int:
        number: int = self._about.count(name, least=0, most=len(self._tokens) - 1)
        return number

    @contextmanager
    def _convert_errors(self, part: str) -> Iterator[None]:
        """Raise `DataError` for any error that the contents of the file cause in a library."""
        try:
            yield
        except MLError:
            raise
        except BaseException as error:
            # Panics of Rust libraries do not derive from `Exception`.
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            raise DataError(f"{part} of {self._file.path} is not valid: {error}") from None

    def _byte_tokenizer(self) -> Any:
        lib, split = self._library, self._about.text("pre")
        if split not in SPLITS:
            raise NotSupportedError(f"{self._file.path} splits text as {split} does; {', '.join(SPLITS)} are known")
        merges = [tuple(pair.split(" ")) for pair in self._about.texts("merges")]
        if wrong := [k for k, pair in enumerate(merges) if len(pair) != 2]:
            self._about.refuse("merges", f"pairs of tokens, element {wrong[0]} too")
        tokenizer = lib.Tokenizer(
            lib.models.BPE(
                {token: k for k, token in enumerate(self._tokens)},
                merges,
                ignore_merges=split == "llama-bpe",  # whole words of the vocabulary are taken first, as Llama 3 does
            )
        )
        splits = [lib.pre_tokenizers.Split(lib.Regex(pattern), "isolated") for pattern in SPLITS[split]]
        in_bytes = lib.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = lib.pre_tokenizers.Sequence([*splits, in_bytes])
        return tokenizer

    def _piece_tokenizer(self) -> Any:
        """Create a tokenizer that merges pieces by score, as SentencePiece does."""
        lib, ids = self._library, {token: k for k, token in enumerate(self._tokens)}
        scores = self._about.numbers("scores", len(self._tokens), whole=False).tolist()
        starts, ends = _starts(ids), _starts({token[::-1] for token in ids})
        ranked: list[tuple[float, int, int]] = []
        for token, score in zip(self._tokens, scores, strict=True):
            others = {len(token) - length for length in ends[token[::-1]]}
            ranked += [(-score, ids[token[:k]], ids[token[k:]]) for k in starts[token] if k in others]
        merges = [(self._tokens[first], self._tokens[second]) for _, first, second in sorted(ranked)]
        unknown = self._tokens[self._about.count("unknown_token_id", 0, least=0, most=len(self._tokens) - 1)]
        tokenizer = lib.Tokenizer(lib.models.BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
        self._begins_with_space = has_prefix = self._about.flag("add_space_prefix", True)
        steps = [lib.normalizers.Replace(" ", SPACE)]
        tokenizer.normalizer = lib.normalizers.Sequence(
            [lib.normalizers.Prepend(SPACE), *steps] if has_prefix else steps
        )
        return tokenizer

    def encode(self, text: str) -> list[int]:
        """Divide a text into tokens.

        Args:
            text: any text of at most `MAX_TEXT` characters. Names of control tokens in it become these tokens.

        Returns:
            The numbers of the tokens.

        Raises:
            ValidationError: `text` is no text, has half of a surrogate pair, or is too long.
        """
        require(isinstance(text, str), f"text must be a str, got {short_repr(text)}")
        require(len(text) <= MAX_TEXT, f"text must have at most {MAX_TEXT:,} characters, got {len(text):,}")
        surrogate = first_surrogate(text)
        require(not surrogate, f"text must be Unicode, got {surrogate}")
        with self._convert_errors("the vocabulary"):
            tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return tokens if self._begin is None or tokens[:1] == [self._begin] else [self._begin, *tokens]

    def encode_part(self, text: str) -> list[int]:
        """Divide a part of a text into tokens, without those that begin a text, and without control tokens.

        Args:
            text: a part that does not begin a text.
        """
        if self._parts is None:
            # The same pieces, without the space in front of a text.
            parts = self._library.Tokenizer(self._tokenizer.model)
            if self._is_of_bytes:
                parts.pre_tokenizer = self._tokenizer.pre_tokenizer
            else:
                parts.normalizer = self._library.normalizers.Replace(" ", SPACE)
            parts.add_tokens(self._added_tokens(USER_DEFINED))
            self._parts = parts
        tokens: list[int] = self._parts.encode(text, add_special_tokens=False).ids
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """Join tokens to a text.

        Returns:
            The text, without control tokens. Bytes that are no characters become U+FFFD.
        """
        for token in tokens:
            is_number = isinstance(token, (int, np.integer)) and not isinstance(token, bool)
            require(
                is_number and 0 <= token < 2**32, f"tokens must be integers in [0, 4294967295], got {short_repr(token)}"
            )
        text = b"".join(self._text_of(int(token)) for token in tokens).decode(errors="replace")
        return text.removeprefix(" ") if self._begins_with_space else text

    def stream(self) -> Callable[[int], str]:
        """Return a function that takes the tokens of a text one at a time, and returns the text that each adds.

        The last token of a character adds it.
        """
        decoder, begins_with_space = getincrementaldecoder("utf-8")("replace"), self._begins_with_space

        def add(token: int) -> str:
            nonlocal begins_with_space
            text = decoder.decode(self._text_of(token))
            if text and begins_with_space:
                begins_with_space, text = False, text.removeprefix(" ")
            return text

        return add

    def _text_of(self, token: int) -> bytes:
        """The bytes that a token adds to a text; none for control tokens, and for those that only the network has."""
        return b"" if token >= len(self) or self.is_control(token) else self.bytes_of(token)

    def guidance(self) -> Any:
        """The tokens for llguidance, which computes masks of the tokens that a grammar allows."""
        if self._guidance is None:
            library = import_extra("llguidance", "chat", "a reply in JSON")
            self._guidance = library.LLTokenizer(
                library.TokenizerWrapper(_GuidanceTokens(self)), eos_token=sorted(self.ends)
            )
        return self._guidance

    def bytes_of(self, token: int) -> bytes:
        """The bytes of a token's text, which may be a part of a character; its name for a control token."""
        text = self._tokens[token]
        if self.is_control(token):
            return text.encode()
        if not self._is_of_bytes:
            match = re.fullmatch(r"<0x([0-9A-F]{2})>", text)
            return bytes([int(match[1], 16)]) if match else text.replace(SPACE, " ").encode()
        is_text = int(self._types[token]) == USER_DEFINED or not _BYTES.keys() >= set(text)
        return text.encode() if is_text else bytes(map(_BYTES.__getitem__, text))

    def is_control(self, token: int) -> bool:
        """Whether a token has no text."""
        return int(self._types[token]) not in (NORMAL, BYTE, USER_DEFINED)

    def render(
        self,
        messages: Iterable[Message],
        *,
        tools: Iterable[Mapping[str, Any]] | None = None,
        documents: Iterable[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        limit: int = MAX_TEXT,
        **variables: Any,
    ) -> str:
        """Write a conversation by the template of the file, as `apply_chat_template` of Transformers does.

        Args:
            messages: each with "role" ("system", "user" or "assistant"), "content", and other entries that the template reads.
            tools: JSON schemas of functions that the model may call.
            documents: texts that the model may read, mostly with "title" and "text".
            add_generation_prompt: whether the text ends with the beginning of the next reply.
            limit: maximum characters of the text.
            **variables: other variables of the template, such as `enable_thinking=False`. They override special tokens of
                the same name.

        Returns:
            The text for `encode`.

        Raises:
            ValidationError: a message, tool or document is no mapping, or a text has half of a surrogate pair.
            DataError: the file has no template, or the template refuses these messages, writes more than `limit` characters,
                or takes too much memory or time.
        """
        template = self._template_for(tools is not None)
        values = {
            "messages": plain_messages(messages),
            "tools": plain_mappings("tools", tools),
            "documents": plain_mappings("documents", documents),
            "add_generation_prompt": plain_data(add_generation_prompt, "add_generation_prompt"),
            **self._special,
            **{name: plain_data(value, name) for name, value in variables.items()},
        }
        with self._convert_errors("the chat template"):
            return template.render(values, limit)

    def _template_for(self, has_tools: bool) -> Template:
        """The template of the file; for tools, the special one if there is one."""
        metadata = self._file.metadata
        keys = ["tokenizer.chat_template.tool_use"] * has_tools + ["tokenizer.chat_template"]
        key = next((key for key in keys if key in metadata), None)
        if key is None:
            raise DataError(f"{self._file.path} has no chat template (tokenizer.chat_template)")
        if key not in self._templates:
            with self._convert_errors("the chat template"):
                self._templates[key] = Template(Metadata(self._file).text(key), self._file.path)
        return self._templates[key]


class _GuidanceTokens:
    """The attributes of a tokenizer that llguidance asks for."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        numbers = range(len(vocabulary))
        self.eos_token_id, self.bos_token_id = min(vocabulary.ends, default=0), None
        self.tokens = [vocabulary.bytes_of(number) for number in numbers]
        self.special_token_ids = [number for number in numbers if vocabulary.is_control(number)]

    def __call__(self, text: bytes) -> list[int]:
        return self._vocabulary.encode_part(text.decode(errors="replace"))


def _starts(tokens: Iterable[str]) -> dict[str, list[int]]:
    """The lengths of the proper prefixes of each token that are tokens, too, in the time of a sort.

    >>> _starts(["abc", "a", "ab", "b", "abd"])
    {'a': [], 'ab': [1], 'abc': [1, 2], 'abd': [1, 2], 'b': []}
    """
    starts: dict[str, list[int]] = {}
    count = 0
    # In sorted order, a token follows its prefixes, and all tokens in between share them.
    chain: list[str] = []
    for token in sorted(tokens):
        while chain and not token.startswith(chain[-1]):
            chain.pop()
        starts[token] = [len(prefix) for prefix in chain if prefix]
        chain.append(token)
        count += len(chain)
        if count > MAX_PARTS:
            raise ValueError(f"tokens must start and end with other tokens at most {MAX_PARTS:,} times")
    return starts
