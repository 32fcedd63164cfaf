"""Text to tokens and back, and chat templates."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from support import tiny_models
from support.tiny_models import TOKENS

from opweave import DataError, MissingExtraError, NotSupportedError, ValidationError
from opweave.chat import GGUF, Vocabulary, vocabulary as vocabulary_module

PIECES = [
    "<unk>",
    "<s>",
    "</s>",
    *(f"<0x{byte:02X}>" for byte in range(256)),
    "▁",
    "h",
    "e",
    "l",
    "o",
    "he",
    "ll",
    "el",
    "▁he",
]
SCORES = [0.0] * 259 + [-9.0, -8, -7, -6, -5, -1, -2, -4, -3]


METADATA = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": PIECES,
    "tokenizer.ggml.scores": np.array(SCORES),
    "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * 9],
}


def vocabulary(path: Path, **metadata: Any) -> Vocabulary:
    tiny_models.write(path, metadata={name.replace("__", "."): value for name, value in metadata.items()})
    return Vocabulary(GGUF(path))


def pieces(**changes: Any) -> Vocabulary:
    """A vocabulary as SentencePiece makes it."""
    about = {
        "model": "llama",
        "tokens": PIECES,
        "scores": np.array(SCORES),
        "token_type": [2, 3, 3, *[6] * 256, *[1] * 9],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        **changes,
    }
    metadata = {f"tokenizer.ggml.{name}": value for name, value in about.items()}
    metadata["general.architecture"] = metadata.pop("tokenizer.ggml.architecture", "llama")
    return Vocabulary(cast(GGUF, SimpleNamespace(path="x.gguf", metadata=metadata)))


def test_bytes_are_merged(tmp_path: Path) -> None:
    known = vocabulary(tmp_path / "x.gguf")
    tokens = known.encode("hello hello 12")
    assert [TOKENS[token] for token in tokens] == ["hello", "Ġhello", "Ġ", "1", "2"]  # digits stand alone
    assert known.decode(tokens) == "hello hello 12"
    assert known.ends == {tiny_models.END}


def test_control_tokens_stand_for_no_text(tmp_path: Path) -> None:
    known = vocabulary(tmp_path / "x.gguf")
    tokens = known.encode("<|start|>hell<tool>o<|end|>")
    assert [TOKENS[token] for token in tokens] == ["<|start|>", "hell", "<tool>", "o", "<|end|>"]
    assert known.decode(tokens) == "hell<tool>o"


def test_stream_yields_characters_with_their_last_token(tmp_path: Path) -> None:
    known = vocabulary(tmp_path / "x.gguf")
    add = known.stream()
    assert [add(token) for token in known.encode("hé\N{SNOWMAN}<|end|>!")] == [
        "h",
        "",
        "é",
        "",
        "",
        "\N{SNOWMAN}",
        "",
        "!",
    ]


def test_encode_adds_bos_token(tmp_path: Path) -> None:
    start = TOKENS.index("<|start|>")
    plain = vocabulary(tmp_path / "x.gguf", tokenizer__ggml__bos_token_id=start)
    assert plain.encode("hell") == [TOKENS.index("hell")]
    known = vocabulary(tmp_path / "x.gguf", tokenizer__ggml__bos_token_id=start, tokenizer__ggml__add_bos_token=1)
    assert known.encode("hell") == known.encode("<|start|>hell") == [start, TOKENS.index("hell")]


def test_pieces_are_merged_by_their_scores() -> None:
    known = pieces()
    tokens = known.encode("hello hell</s>é")
    assert [PIECES[k] for k in tokens] == ["<s>", "▁he", "ll", "o", "▁he", "ll", "</s>", "▁", "<0xC3>", "<0xA9>"]
    assert known.decode(tokens) == "hello hell é"
    assert known.ends == {2}
    scores = np.array(SCORES)
    scores[PIECES.index("el")] = -0.5
    known = pieces(scores=scores, add_space_prefix=False)
    assert [PIECES[k] for k in known.encode("hello")] == ["<s>", "h", "el", "l", "o"]


def test_stream_of_bytes_that_are_no_characters() -> None:
    """Bytes before and after them keep their text."""
    known, random = pieces(), np.random.default_rng(0)
    choices = [PIECES.index(piece) for piece in ("<0x0A>", "<0xC3>", "<0xA9>", "<0xF0>", "h", "▁he", "</s>", "<unk>")]
    for count in range(60):
        # The last one ends what was kept back.
        tokens = [*map(int, random.choice(choices, count % 9)), PIECES.index("o")]
        raw = b"".join(known.bytes_of(token) for token in tokens if not known.is_control(token))
        text = raw.decode(errors="replace").removeprefix(" ")
        assert "".join(map(known.stream(), tokens)) == known.decode(tokens) == text


def test_all_tokens_that_end_a_message_end_replies() -> None:
    """Those of Llama 3: of a text, of a turn, and of a message that calls a tool; and whatever the file names."""
    names = ["<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<other>", "<call>"]
    tokens, scores = [*PIECES, *names], np.array([*SCORES, *[0.0] * 5])
    count = len(PIECES)
    types = [2, 3, 3, *[6] * 256, *[1] * 9, *[3] * 5]
    known = pieces(tokens=tokens, scores=scores, token_type=types, eom_token_id=count + 4)
    assert known.ends == {2, count, count + 1, count + 2, count + 4}


@pytest.mark.parametrize(("architecture", "spaces"), [("phi3", []), ("llama", ["▁", "<0x0A>"])])
def test_phi_3_drops_whitespace_behind_special_tokens(architecture: str, spaces: list[str]) -> None:
    """As `tokenizer.json` of Phi 3 says: all special tokens but the first and the last of a text."""
    tokens, scores = [*PIECES, "<|end|>"], np.array([*SCORES, 0.0])
    types = [2, 3, 3, *[6] * 256, *[1] * 9, 3]
    known = pieces(architecture=architecture, tokens=tokens, scores=scores, token_type=types)
    ids = known.encode("he<|end|>\n<|end|>\nhe<s> he")
    first, last = ["<s>", "▁he", "<|end|>", *spaces, "<|end|>"], ["<s>", "▁", "▁he"]
    assert [tokens[k] for k in ids] == [*first, *([*spaces, "he"] if spaces else ["▁he"]), *last]


def test_vocabulary_rejects_other_kinds(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    with pytest.raises(NotSupportedError, match="has tokens of type bert; gpt2, llama are read"):
        vocabulary(path, tokenizer__ggml__model="bert")
    with pytest.raises(NotSupportedError, match="splits text as tekken does; gpt-2, smollm, llama-bpe, qwen2"):
        vocabulary(path, tokenizer__ggml__pre="tekken")
    with pytest.raises(DataError, match=r"x\.gguf lacks tokenizer\.ggml\.scores"):
        pieces(scores=None)


MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]


def test_vocabulary_names_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingExtraError, match=r"needs tokenizers: pip install 'opweave\[chat\]'"):
        pieces()


def test_damaged_vocabularies_are_refused() -> None:
    with pytest.raises(DataError, match=r"the vocabulary of x\.gguf is not valid"):
        pieces(model="gpt2", pre="smollm", merges=["h x"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"token_type": [1, 3]}, r"token_type must be of 268 elements, as many as there are tokens, got \[1, 3\]"),
        ({"token_type": [1.5] * 268}, "token_type must be a list of integers, got"),
        ({"token_type": "1"}, "token_type must be a list of integers, got '1'"),
        ({"token_type": 7}, "token_type must be a list of integers, got 7"),
        ({"token_type": ["1"] * 268}, "token_type must be a list of integers"),
        ({"scores": np.zeros(3)}, "scores must be of 268 elements"),
        ({"scores": np.full(268, np.nan)}, "scores must be a list of numbers without NaN"),
        ({"scores": ["a"] * 268}, "scores must be a list of numbers"),
        ({"tokens": np.arange(268)}, "tokens must be a list of texts"),
        ({"tokens": "abc"}, "tokens must be a list of texts, got 'abc'"),
        ({"tokens": []}, r"tokens must be a list of at least one token, got \[\]"),
        ({"tokens": None}, r"x\.gguf lacks tokenizer\.ggml\.tokens"),
        ({"model": 3}, "model must be text, got 3"),
        ({"model": ["llama"]}, r"model must be text, got \['llama'\]"),
        ({"unknown_token_id": 268}, r"unknown_token_id must be an integer in \[0, 267\], got 268"),
        ({"bos_token_id": -1}, r"bos_token_id must be an integer in \[0, 267\], got -1"),
        ({"bos_token_id": 1.0}, "bos_token_id must be an integer"),
        ({"eos_token_id": "2"}, "eos_token_id must be an integer"),
        ({"eos_token_id": True}, "eos_token_id must be an integer"),
        ({"eot_token_id": 2**32 - 1}, "eot_token_id must be an integer"),
        ({"padding_token_id": 999}, "padding_token_id must be an integer"),
        ({"mask_token_id": [1]}, "mask_token_id must be an integer"),
        ({"add_bos_token": "yes"}, "add_bos_token must be true or false, got 'yes'"),
        ({"add_space_prefix": 2}, "add_space_prefix must be true or false, got 2"),
        ({"model": "gpt2", "pre": 1, "merges": []}, "pre must be text, got 1"),
        ({"model": "gpt2", "pre": "smollm", "merges": [1]}, "merges must be a list of texts"),
        ({"model": "gpt2", "pre": "smollm", "merges": ["h"]}, "merges must be pairs of tokens, element 0 too, got"),
        (
            {"model": "gpt2", "pre": "smollm", "merges": ["h e", "h e l"]},
            "merges must be pairs of tokens, element 1 too",
        ),
        ({"model": "gpt2", "pre": "smollm", "merges": np.arange(3)}, "merges must be a list of texts"),
    ],
)
def test_vocabulary_rejects_values_of_other_types_and_ranges(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        pieces(**changes)


def test_vocabulary_rejects_a_template_that_is_no_text() -> None:
    with pytest.raises(DataError, match=r"tokenizer\.chat_template must be text, got 7"):
        Vocabulary(
            cast(GGUF, SimpleNamespace(path="x.gguf", metadata={**METADATA, "tokenizer.chat_template": 7}))
        ).render(MESSAGES)


def test_vocabulary_reads_tokens_of_any_length() -> None:
    """In the time that sorting takes; slices of a token for each place where it may be divided take hours."""
    length = 2**20
    long = [length, length - 1, length // 2]
    tokens = [*PIECES, *("l" * n for n in long)]
    known = pieces(
        tokens=tokens, scores=np.array([*SCORES, -1.0, -1.0, -1.0]), token_type=[2, 3, 3, *[6] * 256, *[1] * 12]
    )
    assert [tokens[k] for k in known.encode("hello")] == ["<s>", "▁he", "ll", "o"]
    assert len(known) == len(tokens)


def test_vocabulary_merges_all_pairs_of_pieces() -> None:
    """The pieces that a token starts and ends with are those that comparing all of its parts finds."""
    random = np.random.default_rng(2)
    tokens = sorted({"".join(random.choice(list("ab"), random.integers(1, 8))) for _ in range(100)})
    starts = vocabulary_module._starts(tokens)
    for token in tokens:
        assert starts[token] == [k for k in range(1, len(token)) if token[:k] in tokens]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\ud800b", r"text must be Unicode, got '\\ud800' at index 1, half of a surrogate pair"),
        ("\udcff", r"text must be Unicode, got '\\udcff' at index 0"),
        (b"a", "text must be a str, got b'a'"),
        (None, "text must be a str, got None"),
        ("a" * (2**22 + 1), "text must have at most 4,194,304 characters, got 4,194,305"),
    ],
)
def test_encode_rejects_non_text(text: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        pieces().encode(text)


@pytest.mark.parametrize("token", [-1, 2**32, 1.5, "a", None, True])
def test_decode_rejects_invalid_tokens(token: Any) -> None:
    with pytest.raises(ValidationError, match=r"tokens must be integers in \[0, 4294967295\], got"):
        pieces().decode([259, token])


def test_templates_write_conversations(tmp_path: Path) -> None:
    wanted = "<|start|>system\nBe brief.<|end|>\n<|start|>user\nHello<|end|>\n<|start|>assistant\n"
    assert vocabulary(tmp_path / "x.gguf").render(MESSAGES) == wanted
    template = (
        "{{ eos_token }}|{{ bos_token }}\n  {% for m in messages %}\n    {% if loop.last %}\n{{ m.content }}{% break %}"
    )
    template += "{% endif %}\n  {% endfor %}{{ strftime_now('%%') }}"
    known = vocabulary(tmp_path / "x.gguf", tokenizer__chat_template=template)
    assert known.render(MESSAGES) == "<|end|>|\nHello%"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('no system role') }}", r"the chat template of .*x\.gguf says: no system role"),
        ("{% for m in %}", r"the chat template of .*x\.gguf is not valid: Expected an expression"),
        ("{{ messages.__class__.__mro__ }}", "access to attribute '__class__' of 'list' object is unsafe"),
        ("{{ messages.append(1) }}", "access to attribute 'append' of 'list' object is unsafe"),
        ("{{ 1 + 'a' }}", r"the chat template of .*x\.gguf is not valid: unsupported operand"),
    ],
)
def test_render_rejects_failing_and_unsafe_templates(template: str, message: str, tmp_path: Path) -> None:
    known = vocabulary(tmp_path / "x.gguf", tokenizer__chat_template=template)
    with pytest.raises(DataError, match=message):
        known.render(MESSAGES)


def test_render_without_template(tmp_path: Path) -> None:
    known = pieces()
    with pytest.raises(DataError, match="has no chat template"):
        known.render(MESSAGES)
