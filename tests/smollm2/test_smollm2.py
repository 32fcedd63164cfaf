"""SmolLM2, a language model of 135 million weights of 4 bits, against what PyTorch computes with them in float32."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import smollm2_file, webgpu_device
from typer.testing import CliRunner

import opweave as ow
from opweave.chat import GGUF, Decoder, Model, Vocabulary
from opweave.cli import app

KNOWN = np.load(Path(__file__).parents[1] / "data" / "smollm2.npz")
TOKENS = KNOWN["tokens"].tolist()
CPU = ow.ml.create_context(device="cpu")
PROMPT, CONTINUED = "The capital of France is", " Paris.\n\nThe answer is"


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(GGUF(smollm2_file.path()))


@pytest.fixture(scope="module")
def vocabulary(model: Model) -> Vocabulary:
    return Vocabulary(model.file)


@pytest.fixture
def decoder(model: Model) -> Decoder:
    """With a room that ends with the text."""
    return Decoder(model, CPU, len(TOKENS))


def greedy(decoder: Decoder, tokens: list[int], count: int) -> list[int]:
    """The most likely tokens after those of a text, which are read one at a time."""
    for token in tokens:
        logits = decoder.feed([token])
    chosen = [int(logits.argmax())]
    while len(chosen) < count:
        chosen.append(int(decoder.feed(chosen[-1:]).argmax()))
    return chosen


def test_decoder_logits_are_close_to_those_of_floats(decoder: Decoder) -> None:
    """Up to the end of the room. Products round their inputs to 8 bits, as those of llama.cpp do."""
    found = np.array([decoder.feed([token]).copy() for token in TOKENS])
    error = found[:, KNOWN["words"]] - KNOWN["logits"]
    assert np.sqrt((error**2).mean()) < 0.25
    assert (found.argmax(axis=1) == KNOWN["likeliest"]).sum() >= 76
    with pytest.raises(ow.ValidationError, match="1 tokens do not fit into the 0 that are left of 80"):
        decoder.feed([0])


def test_decoder_logits_do_not_depend_on_chunks(model: Model) -> None:
    decoder = Decoder(Model(model.file, quantized=False), CPU, 100)
    for first in (1, 33, 79):
        decoder.forget(0)
        decoder.feed(TOKENS[:first])
        found = decoder.feed(TOKENS[first:])
        np.testing.assert_allclose(found[KNOWN["words"]], KNOWN["logits"][-1], atol=1e-3)


def test_decoder_continues_text(decoder: Decoder, vocabulary: Vocabulary) -> None:
    assert vocabulary.decode(greedy(decoder, vocabulary.encode(PROMPT), 7)) == CONTINUED
    ow.memory.copies.reset()
    decoder.feed([0])
    assert ow.memory.copies.count == 0


def test_decoder_with_a_cache_of_int8(model: Model) -> None:
    """The error that docs/chat.md states: 0.089 (rms), where logits vary by 4.9 (`tools/cache_types.py`)."""
    each = Decoder(Model(model.file, quantized=False), CPU, len(TOKENS), cache="int8")
    rows = np.array([each.feed([token]).copy() for token in TOKENS])
    error = rows[:, KNOWN["words"]] - KNOWN["logits"]
    assert 1e-2 < np.sqrt((error**2).mean()) < 0.12
    assert (rows.argmax(axis=1) == KNOWN["likeliest"]).sum() >= 78


def test_encode_equals_llama_cpp(vocabulary: Vocabulary) -> None:
    """The numbers are those of llama.cpp."""
    text = "Hello, world!  It's 1234 degrees\n\n\tok\n<|im_start|>Ünïcode 日本語 don't"
    wanted = [
        *(19556, 28, 905, 17, 216, 657, 506, 216, 33, 34, 35, 36, 5027, 1116, 197, 2231, 198, 1),
        *(142, 246, 94, 25972, 4635, 17097, 241, 115, 40993, 179, 120, 248, 1326, 982),
    ]
    assert vocabulary.encode(text) == wanted
    assert vocabulary.decode(wanted) == text.replace("<|im_start|>", "")


def test_chat_command_replies() -> None:
    options = ["--temperature", "0", "-p", "How many days are in a week?"]
    result = CliRunner().invoke(app, ["chat", str(smollm2_file.path()), *options])
    assert result.stdout == "A week is approximately 7 days.\n"
    assert "38 tokens read in " in result.stderr


PEAK = """
import sys
from opweave.cli import app
app(["chat", *sys.argv[1:]], standalone_mode=False)
with open("/proc/self/status") as file:
    print(next(int(line.split()[1]) for line in file if line.startswith("VmHWM")))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how much memory a process had at its peak")
def test_chat_command_peak_memory() -> None:
    """The engine holds the weights, 112 MB, in a form of its own; a temporary file has the model's."""
    command = [sys.executable, "-c", PEAK, str(smollm2_file.path()), "-p", "How many days are in a week?"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[-1]) * 1024 <= 340e6


def test_decoder_on_gpu(model: Model, vocabulary: Vocabulary) -> None:
    """With the same matrices as floats."""
    decoder = Decoder(Model(model.file, quantized=False), webgpu_device.gpu_context(), 32)
    assert vocabulary.decode(greedy(decoder, vocabulary.encode(PROMPT), 7)) == CONTINUED


def test_served_to_the_client_of_openai(model: Model, vocabulary: Vocabulary) -> None:
    pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install 'opweave[server]'")
    openai = pytest.importorskip("openai", reason="openai is not installed")
    from opweave.deploy import ModelServer

    question: list[Any] = [{"role": "user", "content": "How many days are in a week?"}]
    with ModelServer({}, language_models={"smollm2": (Decoder(model, CPU, 200), vocabulary)}) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        options = {"model": "smollm2", "messages": question, "temperature": 0}
        found = client.chat.completions.create(**options)
        assert found.choices[0].message.content == "A week is approximately 7 days."
        assert found.choices[0].finish_reason == "stop"
        parts = [
            event.choices[0].delta.content or "" for event in client.chat.completions.create(**options, stream=True)
        ]
        assert "".join(parts) == found.choices[0].message.content
        assert len(parts) > 5
        schema = {"type": "object", "properties": {"days": {"type": "integer"}}, "required": ["days"]}
        form = {
            "type": "json_schema",
            "json_schema": {"name": "week", "schema": schema | {"additionalProperties": False}},
        }
        found = client.chat.completions.create(**options, response_format=form)
        assert found.choices[0].message.content == '{"days": 7}'
        client.close()
