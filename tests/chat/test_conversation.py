"""Conversations, the choice of tokens, and `opweave chat`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import tiny_models, webgpu_device
from support.processes import run_python
from typer.testing import CliRunner, Result

import opweave as ow
from opweave import DataError, ValidationError
from opweave.chat import GGUF, Conversation, Decoder, Model, Sampler, Vocabulary
from opweave.cli import app, chat


class Scripted(Sampler):
    """Chooses the tokens of given replies, whatever the logits."""

    def __init__(self, known: Vocabulary, *replies: str) -> None:
        super().__init__()
        self._tokens = iter([token for text in replies for token in [*known.encode(text), tiny_models.END]])

    def compile(self, context: ow.MLContext, words: int, *, is_masked: bool = False) -> Any:
        return self

    def choose(self, logits: ow.MLTensor, recent: Any, target: ow.MLTensor) -> int:
        target.numpy()[...] = token = next(self._tokens)
        return token


@pytest.fixture
def path(tmp_path: Path) -> Path:
    tiny_models.write(tmp_path / "x.gguf")
    return tmp_path / "x.gguf"


def conversation(path: Path, *replies: str, room: int = 150, system: str | None = None) -> Conversation:
    file = GGUF(path)
    known = Vocabulary(file)
    decoder = Decoder(Model(file), ow.ml.create_context(device="cpu"), room)
    return Conversation(decoder, known, Scripted(known, *replies) if replies else Sampler(seed=0), system)


def test_say_reads_only_new_tokens(path: Path) -> None:
    talk = conversation(path, "hello", "hell é", system="Be brief.")
    parts = list(talk.say("Who?"))
    assert parts == ["hello"]
    assert (talk.reply.end, talk.reply.written) == ("done", 1)
    first = talk.reply.read
    assert "".join(talk.say("And?")) == "hell é"
    # <|end|>\n<|start|>user\nAnd?<|end|>\n<|start|>assistant\n
    assert talk.reply.read == len("E.SuserN" + "And?" + "E.SassistantN") < first
    assert [message["role"] for message in talk.messages] == ["system", "user", "assistant", "user", "assistant"]
    assert [message["content"] for message in talk.messages[2::2]] == ["hello", "hell é"]


def test_say_with_kv_cache_equals_rereading(path: Path) -> None:
    """A second message continues the keys and values of the first, which a model that forgot all has to read again."""
    talk = conversation(path)
    "".join(talk.say("hello", limit=5))
    text = talk._vocabulary.encode(talk._vocabulary.render([*talk.messages, {"role": "user", "content": "hell"}]))
    "".join(talk.say("hell", limit=1))
    assert talk.reply.read < len(text)
    assert talk._decoder.tokens == text
    fresh = conversation(path)._decoder
    fresh.feed(text)
    np.testing.assert_allclose(talk._decoder.feed([1]), fresh.feed([1]), atol=1e-3)


def test_full_context_ends_reply(path: Path) -> None:
    talk = conversation(path, "o" * 200, room=60)
    text = "".join(talk.say("Who?"))
    assert talk.reply.end == "full"
    assert text == "o" * talk.reply.written
    assert len(talk._decoder.tokens) == 60
    with pytest.raises(ValidationError, match=r"the context is full: with this message the conversation has \d+ tokens, "
                       "and there is room for 60, the reply included"):  # fmt: skip
        talk.say("And?")
    assert len(talk.messages) == 2  # the message is dropped


@pytest.mark.parametrize("text", ["a\ud800b", "\udcff", None, b"a", 3])
def test_say_rejects_non_text(text: Any, path: Path) -> None:
    talk = conversation(path, "hello")
    with pytest.raises(ValidationError, match=r"text must be a str|must be text, got '.ud"):
        talk.say(text)
    assert talk.messages == []
    assert "".join(talk.say("hello")) == "hello"


def test_say_rejects_surrogate_in_system_message(path: Path) -> None:
    with pytest.raises(ValidationError, match=r"messages\[0\]\['content'\] must be text, got '.udc80' at index 1"):
        conversation(path, "hello", system="a\udc80").say("hello")


@pytest.mark.parametrize("limit", [0, -1, 1.5, "1", True])
def test_say_rejects_limits_that_are_no_counts(limit: Any, path: Path) -> None:
    with pytest.raises(ValidationError, match="limit must be a positive integer or None, got"):
        conversation(path, "hello").say("hello", limit)


def test_conversation_rejects_the_vocabulary_of_another_model(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    tiny_models.write(other, shapes={"token_embd.weight": (200, tiny_models.WIDTH)})
    with pytest.raises(DataError, match="the vocabulary must have at most 200 tokens, as the model has, got 264"):
        conversation(other)


def test_sampler_rejects_logits_without_a_largest() -> None:
    for logits in ([0.0, np.nan], [np.inf, 0.0], [-np.inf, -np.inf]):
        for temperature in (0.0, 0.8):
            with pytest.raises(ValidationError, match="logits must be numbers of which the largest is finite, got"):
                Sampler(temperature=temperature)(np.array(logits))
    assert Sampler(temperature=0)(np.array([-np.inf, 1.0])) == 1


def test_reply_ends_at_limit_or_close(path: Path) -> None:
    talk = conversation(path, "hello hello hello")
    assert "".join(talk.say("Who?", limit=2)) == "hello hello"
    assert talk.reply.end == "limit"
    talk = conversation(path, "hello hello hello")
    reply = talk.say("Who?")
    assert next(reply) == "hello"
    reply.close()
    assert talk.reply.end == "open"
    assert talk.messages[-1] == {"role": "assistant", "content": "hello"}


def test_sampler_seed_is_reproducible() -> None:
    logits = np.random.default_rng(0).standard_normal(1000).astype("float32")

    def chosen(seed: int | None) -> list[int]:
        sampler = Sampler(seed=seed)
        return [sampler(logits) for _ in range(20)]

    assert chosen(1) == chosen(1) != chosen(2)
    assert chosen(None) != chosen(None)


def host_probabilities(logits: np.ndarray, temperature: float, top_k: int, top_p: float) -> np.ndarray:
    """The distribution that a sampler must follow, by sorting in float64."""
    order = np.argsort(-logits, kind="stable")[: top_k or None]
    weights = np.exp((logits[order] - logits[order[0]]) / temperature)
    weights /= weights.sum()
    kept = int(np.searchsorted(weights.cumsum(), top_p)) + 1
    probabilities = np.zeros(len(logits))
    probabilities[order[:kept]] = weights[:kept] / weights[:kept].sum()
    return probabilities


@pytest.mark.long
@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(1, 0, 1), (0.5, 0, 1), (1, 5, 1), (0.7, 0, 0.8), (1.3, 7, 0.6), (2, 0, 0.99), (1, 0, 0.01), (1e-30, 3, 1)],
)
@pytest.mark.parametrize("device", ["cpu", "reference", "gpu"])
def test_sampler_follows_probabilities(device: str, temperature: float, top_k: int, top_p: float) -> None:
    """Pearson's test, whose statistic exceeds this bound in one of 10,000 samples."""
    count = 1500 if device == "cpu" else 200  # software adapters and the reference are slow
    logits = np.random.default_rng(4).standard_normal(40) * 2
    expected = host_probabilities(logits, temperature, top_k, top_p) * count
    sampler = Sampler(temperature=temperature, top_k=top_k, top_p=top_p, seed=3)
    context = webgpu_device.gpu_context() if device == "gpu" else ow.ml.create_context(device=device)
    with context:
        counts = np.bincount([sampler(logits) for _ in range(count)], minlength=40)
    assert (counts[expected == 0] == 0).all()
    # Tokens of which few are expected are counted together.
    few = (expected > 0) & (expected < 5)
    pairs = [
        *zip(counts[expected >= 5], expected[expected >= 5], strict=True),
        (counts[few].sum(), expected[few].sum()),
    ]
    statistic = sum((n - e) ** 2 / e for n, e in pairs if e)
    degrees = sum(e > 0 for _, e in pairs) - 1
    # Wilson and Hilferty's approximation of the quantile of 0.9999.
    bound = degrees * (1 - 2 / (9 * degrees) + 3.72 * (2 / (9 * degrees)) ** 0.5) ** 3 if degrees else 1e-9
    assert statistic <= bound


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_sampler_penalises_recent_tokens(device: str) -> None:
    """As Transformers' RepetitionPenaltyLogitsProcessor does: by logits of either sign, each token once."""
    context = webgpu_device.gpu_context() if device == "gpu" else ow.ml.create_context(device=device)
    sampler = Sampler(temperature=0, repetition_penalty=1.5)
    with context:
        logits = np.array([2.0, 1.5, -1.0, 1.4])
        assert sampler(logits) == 0
        assert sampler(logits, [0]) == 1
        assert sampler(logits, [0, 0, 1, 0]) == 3
        assert sampler(logits, [3, *[0] * 63, 1]) == 3
        logits = np.array([-3.0, -1.0, -1.2])
        assert sampler(logits, [1]) == 2
        assert sampler(logits, [2, 1]) == 1


def test_sampler_seed_gives_the_same_tokens_on_devices() -> None:
    logits = np.random.default_rng(0).standard_normal(1000).astype("float32")
    chosen = []
    for context in (ow.ml.create_context(device="cpu"), ow.ml.create_context(device="reference")):
        sampler = Sampler(seed=5)
        with context:
            chosen.append([sampler(logits) for _ in range(50)])
    assert chosen[0] == chosen[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1}, "temperature must be 0 or more, got -1"),
        ({"top_k": -1}, "top_k must be 0 or more, got -1"),
        ({"top_p": 0}, r"top_p must be in \(0, 1\], got 0"),
        ({"seed": -1}, "seed must be 0 or more, got -1"),
        ({"temperature": float("nan")}, "temperature must be 0 or more, got nan"),
        ({"temperature": "hot"}, "temperature must be a number, got 'hot'"),
        ({"temperature": None}, "temperature must be a number, got None"),
        ({"top_k": 2.5}, r"top_k must be an integer, got 2\.5"),
        ({"top_k": True}, "top_k must be an integer, got True"),
        ({"top_p": float("nan")}, r"top_p must be in \(0, 1\], got nan"),
        ({"top_p": "1"}, "top_p must be a number, got '1'"),
        ({"seed": 1.5}, r"seed must be an integer, got 1\.5"),
        ({"repetition_penalty": 0}, "repetition_penalty must be greater than 0, got 0"),
        ({"repetition_penalty": float("nan")}, "repetition_penalty must be greater than 0, got nan"),
        ({"repetition_penalty": float("inf")}, "repetition_penalty must be greater than 0, got inf"),
        ({"repetition_penalty": "1"}, "repetition_penalty must be a number, got '1'"),
    ],
)
def test_sampler_rejects_options_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Sampler(**options)


# The command ---------------------------------------------------------------------------------------------------------


def run_chat(path: Path, *options: str, text: str = "") -> Result:
    result = CliRunner().invoke(app, ["chat", str(path), *options], input=text, env={"COLUMNS": "200"})
    assert result.exit_code == 0 or result.exception is not None
    return result


def test_chat_rejects_unsupported_precision(path: Path) -> None:
    assert run_chat(path, "--precision", "ieee", "--limit", "2", "-p", "hello").exit_code == 0
    error = run_chat(path, "--precision", "tf32").exception
    assert isinstance(error, ow.NotSupportedError)
    assert "precision 'tf32': device 'cpu' cannot compute so" in str(error)


def test_chat_options_of_cache_and_penalty(path: Path) -> None:
    options = [
        "--cache",
        "float16",
        "--repetition-penalty",
        "1e30",
        "--temperature",
        "0",
        "--limit",
        "20",
        "-p",
        "hello",
    ]
    result = run_chat(path, *options)
    assert result.exit_code == 0
    assert "20 written" in result.stderr
    error = run_chat(path, "--cache", "int4", "-p", "hello").exception
    assert isinstance(error, ValidationError)
    assert "cache must be 'float32', 'float16' or 'int8', got 'int4'" in str(error)


def test_penalty_keeps_tokens_from_repeating(path: Path) -> None:
    model = Model(GGUF(path))

    def text(penalty: float) -> list[int]:
        decoder = Decoder(model, ow.ml.create_context(device="cpu"), 60)
        sampler, tokens = Sampler(temperature=0, repetition_penalty=penalty), [5]
        for _ in range(40):
            tokens.append(decoder.choose(tokens[len(decoder.tokens) :], sampler))
        return tokens

    assert len(set(text(1e6))) == 41 > len(set(text(1.0)))


def test_chat_reads_messages_from_lines(path: Path) -> None:
    """The same seed gives the same replies; /new forgets what was said."""
    result = run_chat(path, "--seed", "4", "--limit", "8", text="hello\n\n/new\nhell\n")
    assert result.exit_code == 0
    assert result.stdout
    assert result.stdout == run_chat(path, "--seed", "4", "--limit", "8", text="hello\n/new\nhell").stdout
    first, *lines = result.stderr.splitlines()
    assert first.startswith("x.gguf on cpu, ready in ")
    took = [line for line in lines if "tokens read in" in line]
    # <|start|>user\n…<|end|>\n<|start|>assistant\n, all of it again after /new
    assert [line.split()[0] for line in took] == [str(len("SuserN") + 1 + len("E.SassistantN"))] * 2
    assert all("8 written, " in line and line.endswith(" tokens/s") for line in took)
    assert lines.count("the reply has reached --limit; /set limit changes it") == 2


def test_chat_prompt_option_gives_one_reply(path: Path) -> None:
    result = run_chat(path, "-p", "hello", "--temperature", "0", "--context", "40", "--system", "hell")
    assert result.exit_code == 0
    assert "the context is full: the reply ends here; --context makes more room\n" in result.stderr


def test_chat_continues_after_full_context(path: Path) -> None:
    result = run_chat(path, "--context", "30", "--limit", "1", text=f"{'x' * 40}\nhello\n")
    assert result.exit_code == 0
    assert "the context is full: with this message the conversation has 59 tokens" in result.stderr
    assert "20 tokens read in" in result.stderr
    result = run_chat(path, "--context", "10", "-p", "hello")
    assert isinstance(result.exception, ValidationError)


def test_chat_rejects_a_prompt_with_half_of_a_surrogate_pair(path: Path) -> None:
    """The shell passes bytes that are no UTF-8 so."""
    for options in (["-p", "a\udcff"], ["-p", "a", "--system", "\udcff"]):
        error = run_chat(path, *options).exception
        assert isinstance(error, ValidationError)
        assert "half of a surrogate pair" in str(error)


def test_chat_keeps_interrupted_reply(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    say = Conversation.say

    def interrupted(self: Conversation, text: str, limit: int | None = None, *, grammar: Any = None) -> Iterator[str]:
        reply = say(self, text, limit)

        class Stopped:
            close = reply.close

            def __iter__(self) -> Iterator[str]:
                yield next(reply)
                raise KeyboardInterrupt

        return Stopped()  # type: ignore[return-value]

    monkeypatch.setattr(Conversation, "say", interrupted)
    result = run_chat(path, text="hello\nhell\n")
    assert result.exit_code == 0
    assert result.stderr.count("stopped") == 2
    assert chat.ENDS["open"][0] == "stopped"


def test_control_characters_are_escaped(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Conversation, "say", lambda self, text, limit, grammar: iter(["a\x1b[31m[b]\n"]))
    assert run_chat(path, "-p", "hello").stdout == "a\\x1b[31m[b]\n\n"


# Commands ------------------------------------------------------------------------------------------------------------


def test_chat_help_and_unknown_commands(path: Path) -> None:
    result = run_chat(path, text="/help\n/hepl\n/nothing at all\n/exit\nhello\n")
    assert result.exit_code == 0
    assert result.stdout == "", "nothing is a message"
    assert all(f"{name} " in result.stderr for name in ("/help", "/new", "/system", "/set", "/exit", "//TEXT"))
    assert "there is no command '/hepl'; did you mean /help? /help lists them" in result.stderr
    assert "there is no command '/nothing'; /help lists them" in result.stderr


def test_chat_message_that_begins_with_a_slash(path: Path) -> None:
    result = run_chat(path, "--limit", "1", text="//x\n")
    assert f"{len('SuserN/xE.SassistantN')} tokens read" in result.stderr


def test_chat_set_changes_options(path: Path) -> None:
    lines = [
        "/set limit 3",
        "/set temperature 0",
        "/set --repeat-penalty 1.5",
        "/set min-p 0.1",
        "/set stop a\\n",
        "hello",
        "/set",
    ]
    result = run_chat(path, text="\n".join(lines))
    assert "3 written" in result.stderr
    shown = dict(line.split(" ", 1) for line in result.stderr.splitlines()[-9:])
    assert shown == {
        "temperature": "0.0",
        "top-k": "40",
        "top-p": "0.95",
        "min-p": "0.1",
        "seed": "none",
        "repetition-penalty": "1.5",
        "limit": "3",
        "stop": '"a\\n"',
        "json-schema": "none",
    }


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("/set temprature 1", "there is no option 'temprature'; did you mean temperature? options are temperature, "),
        ("/set temperature hot", "temperature must be a number, got 'hot'"),
        ("/set temperature -1", "temperature must be 0 or more, got -1.0"),
        ("/set min-p 2", "min_p must be in [0, 1], got 2.0"),
        ("/set limit 0", "limit must be positive, got 0"),
        ("/set json-schema none.json", "--json-schema: 'none.json' cannot be read: No such file or directory"),
        ("/set json-schema {", "--json-schema: the text is not JSON"),
    ],
)
def test_chat_wrong_options_change_nothing(line: str, text: str, path: Path) -> None:
    result = run_chat(path, "--limit", "2", "--temperature", "0", text=f"/set\n{line}\n/set\nhello\n")
    assert text in result.stderr
    assert "2 written" in result.stderr
    assert result.stderr.count("temperature 0.0\n") == 2
    assert result.stderr.count("json-schema none\n") == 2


def test_chat_set_back_to_default(path: Path) -> None:
    result = run_chat(path, "--limit", "2", text="/set limit 5\n/set limit\nhello\n")
    assert "2 written" in result.stderr


def test_chat_system_message(path: Path) -> None:
    result = run_chat(path, "--limit", "1", text="/system\n/system Be brief.\n/system\nhi\n")
    assert "the system message of the chat template" in result.stderr
    assert "\nBe brief.\n" in result.stderr
    assert f"{len('SsystemNBe brief.E.SuserNhiE.SassistantN')} tokens read" in result.stderr


def test_chat_json_schema_and_stop(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("llguidance", reason="llguidance is not installed: pip install 'opweave[chat]'")
    schema = tmp_path / "schema.json"
    schema.write_text('{"enum": ["yes", "no"]}')
    assert run_chat(path, "--json-schema", str(schema), "-p", "hello").stdout.strip() in ('"yes"', '"no"')
    result = run_chat(path, "--json-schema", '{"const": [1, 2]}', "--stop", ", ", "-p", "hello")
    assert result.stdout == "[1\n"
    result = run_chat(path, "--json-schema", "none.json", "-p", "hello")
    assert "'none.json' cannot be read" in str(result.exception)
    assert "ready" not in result.stderr, "the model was loaded before"
    assert "the reply has reached --limit\n" in run_chat(path, "--limit", "1", "-p", "hello").stderr
    error = run_chat(path, "--json-schema", '{"type": 3}', "-p", "hello").exception
    assert isinstance(error, ValidationError)


def test_history_is_kept_for_its_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
import readline
from opweave.cli.chat import _keep_history
_keep_history()
print([readline.get_history_item(k + 1) for k in range(readline.get_current_history_length())])
readline.add_history("a line")
"""
    pytest.importorskip("readline", reason="this Python has no readline")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert [run_python(code).strip() for _ in range(2)] == ["[]", "['a line']"]
    assert (tmp_path / "opweave" / "chat_history").stat().st_mode & 0o077 == 0
