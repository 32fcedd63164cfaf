"""Text to tokens and back, and chat templates."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import tiny_models
from tiny_models import TOKENS

from opweave import DataError, MissingExtraError, NotSupportedError
from opweave.chat import GGUF, Vocabulary

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


def test_characters_come_with_their_last_token(tmp_path: Path) -> None:
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


def test_a_token_at_the_beginning(tmp_path: Path) -> None:
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


def test_other_vocabularies_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    with pytest.raises(NotSupportedError, match="has tokens of type bert; gpt2, llama are read"):
        vocabulary(path, tokenizer__ggml__model="bert")
    with pytest.raises(NotSupportedError, match="splits text as tekken does; gpt-2, smollm, llama-bpe, qwen2"):
        vocabulary(path, tokenizer__ggml__pre="tekken")
    with pytest.raises(DataError, match=r"x\.gguf lacks tokenizer\.ggml\.scores"):
        pieces(scores=None)


MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingExtraError, match=r"needs tokenizers: pip install 'opweave\[chat\]'"):
        pieces()


def test_damaged_vocabularies_are_refused() -> None:
    with pytest.raises(DataError, match=r"the vocabulary of x\.gguf is not valid: zip\(\)"):
        pieces(token_type=[1, 3])
    with pytest.raises(DataError, match=r"the vocabulary of x\.gguf is not valid"):
        pieces(model="gpt2", pre="smollm", merges=["h x"])


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
def test_templates_that_fail_or_reach_for_python(template: str, message: str, tmp_path: Path) -> None:
    known = vocabulary(tmp_path / "x.gguf", tokenizer__chat_template=template)
    with pytest.raises(DataError, match=message):
        known.render(MESSAGES)


def test_a_file_without_a_template(tmp_path: Path) -> None:
    known = pieces()
    with pytest.raises(DataError, match="has no chat template"):
        known.render(MESSAGES)
