"""What ends a reply, what constrains it, and texts that arrive in pieces."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import tiny_models, webgpu_device

import opweave as ow
from opweave import DataError, ValidationError
from opweave.chat import GGUF, Conversation, Decoder, Grammar, Model, Sampler, Vocabulary
from opweave.chat.generation import StopTexts


class Replay(Sampler):
    """Chooses given tokens, whatever the logits."""

    def __init__(self, tokens: Sequence[int]) -> None:
        super().__init__()
        self._tokens = iter(tokens)

    def compile(self, context: ow.MLContext, words: int, *, is_masked: bool = False) -> Any:
        return self

    def choose(self, logits: ow.MLTensor, recent: Any, target: ow.MLTensor, allowed: Any = None) -> int:
        target.numpy()[...] = token = next(self._tokens)
        return token


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Decoder, Vocabulary]:
    path = tmp_path_factory.mktemp("models") / "x.gguf"
    tiny_models.write(path)
    file = GGUF(path)
    return Decoder(Model(file), ow.ml.create_context(device="cpu"), 250), Vocabulary(file)


def conversation(parts: tuple[Decoder, Vocabulary], reply: str, stop: Sequence[str] = ()) -> Conversation:
    decoder, known = parts
    decoder.forget(0)
    return Conversation(decoder, known, Replay([*known.encode(reply), tiny_models.END]), stop=stop)


# Stop -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "stop", "text", "end"),
    [
        ("one two three", ["two"], "one ", "stop"),
        ("one two three", ["three", " tw"], "one", "stop"),
        ("one tw", ["two"], "one tw", "done"),
        ("aaab", ["aab"], "a", "stop"),
        ("hello", ["hell"], "", "stop"),
        ("abcabd", ["abd"], "abc", "stop"),
        ("größer", ["ß"], "grö", "stop"),
        ("\n\n", ["\n\n\n"], "\n\n", "done"),
    ],
)
def test_stop_ends_reply(parts: tuple[Decoder, Vocabulary], reply: str, stop: list[str], text: str, end: str) -> None:
    talk = conversation(parts, reply, stop)
    assert "".join(talk.say("Who?")) == text
    assert talk.reply.end == end
    assert talk.messages[-1]["content"] == text


def test_stop_texts_in_pieces_equal_whole_texts() -> None:
    random = np.random.default_rng(2)
    for _ in range(300):
        text = "".join(random.choice(["a", "b", "c"], 12))
        stop = ["".join(random.choice(["a", "b"], random.integers(1, 4))) for _ in range(2)]
        texts, found = StopTexts(stop), ""
        for character in text:
            found += texts.add(character)
            if texts.is_found:
                break
        found += texts.rest()
        places = {end: text.find(end) for end in stop if end in text}
        first = min((place + len(end) for end, place in places.items()), default=0)
        # The text that is complete first; of several, the one that begins first.
        expected = min((place for end, place in places.items() if place + len(end) == first), default=len(text))
        assert found == text[:expected]


def test_stop_rejects_empty_texts(parts: tuple[Decoder, Vocabulary]) -> None:
    with pytest.raises(ValidationError, match="stop must be texts of some characters, got ''"):
        conversation(parts, "x", ["", "y"])


# Unicode --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["grüße", "日本語", "a😀b", "👩‍👩‍👧", "é\u0301", "�", "x � y"])
def test_characters_that_span_tokens(parts: tuple[Decoder, Vocabulary], text: str) -> None:
    """Each byte of these is a token. No part has half a character, or a replacement character that is not in the text."""
    talk = conversation(parts, f"{text}.")
    pieces = list(talk.say("Who?"))
    assert "".join(pieces) == f"{text}."
    assert all(piece.count("\ufffd") <= text.count("\ufffd") for piece in pieces)
    assert talk.reply.written > len(text) or text.isascii()


def test_reply_that_ends_within_a_character(parts: tuple[Decoder, Vocabulary]) -> None:
    talk = conversation(parts, "a😀")
    assert "".join(talk.say("Who?", limit=3)) == "a"


# Choices --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("top_k", [0, 10])
@pytest.mark.parametrize("min_p", [0.05, 0.3, 1.0])
def test_sampler_min_p(min_p: float, top_k: int) -> None:
    logits = np.random.default_rng(4).standard_normal(40) * 2
    probabilities = np.exp(logits / 0.7)
    likely = set(np.flatnonzero(probabilities >= min_p * probabilities.max()))
    sampler = Sampler(temperature=0.7, top_k=top_k, top_p=1, min_p=min_p, seed=3)
    chosen = {sampler(logits) for _ in range(400)}
    assert chosen <= likely
    assert len(chosen) > len(likely) // 2


@pytest.mark.parametrize("min_p", [-0.1, 1.1, float("nan")])
def test_sampler_rejects_min_p_out_of_range(min_p: float) -> None:
    with pytest.raises(ValidationError, match=r"min_p must be in \[0, 1\], got"):
        Sampler(min_p=min_p)


@pytest.mark.parametrize(
    "options",
    [{"temperature": 0}, {"top_k": 3}, {"top_k": 0, "top_p": 0.5}, {"temperature": 1e38, "top_k": 0}],
    ids=str,
)
@pytest.mark.parametrize("device", ["cpu", "reference", "gpu"])
def test_sampler_chooses_among_allowed_tokens(device: str, options: dict[str, Any]) -> None:
    context = webgpu_device.gpu_context() if device == "gpu" else ow.ml.create_context(device=device)
    logits = np.random.default_rng(0).standard_normal((1, 1, 50)).astype(np.float32)
    choice = Sampler(seed=1, **options).compile(context, 50, is_masked=True)
    source = context.create_tensor("float32", [1, 1, 50], readable=True, writable=True)
    context.write_tensor(source, logits)
    target = context.create_tensor("int32", [1, 1], readable=True)
    for number in range(50):
        allowed = np.arange(50) % 7 == number % 7 if number < 40 else np.arange(50) == number
        token = choice.choose(source, [], target, allowed)
        assert allowed[token]
        if options.get("temperature") == 0:
            assert token == np.where(allowed, logits[0, 0], -np.inf).argmax()


def test_reseed_repeats_choices_of_a_compiled_sampler(parts: tuple[Decoder, Vocabulary]) -> None:
    decoder, known = parts
    sampler = Sampler(temperature=2, top_k=0, top_p=1)
    found = []
    for seed in (1, 2, 1):
        sampler.reseed(seed)
        decoder.forget(0)
        found.append([decoder.choose(known.encode("hello") if not k else [k], sampler) for k in range(8)])
    assert found[0] == found[2] != found[1]


# Grammars -------------------------------------------------------------------------------------------------------------

SCHEMA = {
    "type": "object",
    "properties": {
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"enum": ["bird", "fïsh"]},
        "is_alive": {"type": "boolean"},
        "legs": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["count", "kind", "is_alive", "legs"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("seed", range(4))
def test_grammar_makes_json_of_random_weights(parts: tuple[Decoder, Vocabulary], seed: int) -> None:
    """The weights of the model are random, so nothing but the grammar makes this JSON."""
    pytest.importorskip("llguidance", reason="llguidance is not installed: pip install 'opweave[chat]'")
    decoder, known = parts
    decoder.forget(0)
    talk = Conversation(decoder, known, Sampler(temperature=3, top_k=0, top_p=1, seed=seed))
    value = json.loads("".join(talk.say("Who?", grammar=Grammar(known, SCHEMA))))
    assert talk.reply.end == "done"
    assert list(value) == ["count", "kind", "is_alive", "legs"]
    assert 0 <= value["count"] <= 99
    assert value["kind"] in ("bird", "fïsh")
    assert isinstance(value["is_alive"], bool)
    assert len(value["legs"]) <= 2


PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *'▁{}[]":,01cd', '▁{"', '":', "▁▁"]
IN_PIECES = {
    "model": "llama",
    "tokens": PIECES,
    "scores": [float(-number) for number in range(len(PIECES))],
    "token_type": [2, 3, 3, *[6] * 256, *[1] * (len(PIECES) - 259)],
    "eos_token_id": 2,
}


@pytest.mark.parametrize(
    "about",
    [{}, {"add_bos_token": True}, {**IN_PIECES, "add_space_prefix": True}, {**IN_PIECES, "add_space_prefix": False}],
    ids=["bytes", "bytes that begin with a token", "pieces", "pieces without a space in front"],
)
def test_grammar_allows_tokens_of_all_vocabularies(about: dict[str, Any], tmp_path: Path) -> None:
    """Tokens that begin texts, and a space in front of a text, are not parts of a reply."""
    pytest.importorskip("llguidance", reason="llguidance is not installed: pip install 'opweave[chat]'")
    path, random = tmp_path / "x.gguf", np.random.default_rng(3)
    about = {"bos_token_id": 1, **about}
    tiny_models.write(path, metadata={f"tokenizer.ggml.{name}": value for name, value in about.items()})
    known = Vocabulary(GGUF(path))
    constraint, tokens = Grammar(known, SCHEMA).start(), list[int]()
    while not constraint.is_done:
        token = int(random.choice(np.flatnonzero(constraint.allowed(len(known)))))
        if token in known.ends:
            break
        constraint.accept(token)
        tokens.append(token)
    assert list(json.loads(known.decode(tokens))) == ["count", "kind", "is_alive", "legs"]


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "nothing"}, "schema: Invalid type"),
        ({"type": "string", "pattern": "(("}, "schema: regex parse error"),
        ({"$ref": "https://example.com/schema"}, "does not fetch"),
        ({"anyOf": []}, "schema: Unsatisfiable schema"),
        ({"minimum": float("nan")}, "schema must be JSON"),
        ({"description": "x" * 70_000}, "schema must have at most 65,536 characters"),
        ([], "schema must be a mapping"),
    ],
)
def test_wrong_schemas(parts: tuple[Decoder, Vocabulary], schema: Any, text: str) -> None:
    pytest.importorskip("llguidance", reason="llguidance is not installed: pip install 'opweave[chat]'")
    with pytest.raises(ValidationError, match=text):
        Grammar(parts[1], schema)


def test_grammar_needs_a_token_that_ends_replies(tmp_path: Path) -> None:
    pytest.importorskip("llguidance", reason="llguidance is not installed: pip install 'opweave[chat]'")
    about = {"tokenizer.ggml.eos_token_id": None, "tokenizer.ggml.token_type": [1] * len(tiny_models.TOKENS)}
    tiny_models.write(tmp_path / "x.gguf", metadata=about)
    with pytest.raises(DataError, match="the vocabulary must have a token that ends a reply"):
        Grammar(Vocabulary(GGUF(tmp_path / "x.gguf")), SCHEMA)


def test_bytes_of_tokens_join_to_the_text(parts: tuple[Decoder, Vocabulary]) -> None:
    known = parts[1]
    for text in ("hello grüße 日本", "a\n\tb"):
        assert b"".join(map(known.bytes_of, known.encode(text))).decode() == text
    assert known.is_control(tiny_models.END)
