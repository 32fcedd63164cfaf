"""SmolLM2 as an ONNX file in the style of ONNX Runtime GenAI: the same tokens as in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from support import smollm2_file

import opweave as ow
from opweave import memory
from opweave.chat import GGUF, Vocabulary

ROOM, COUNT = 64, 8


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    gguf, path = smollm2_file.path(), tmp_path_factory.mktemp("smollm2") / "model.onnx"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[2] / "tools"))
        import make_smollm2  # type: ignore[import-not-found]
    make_smollm2.genai(*make_smollm2.read(gguf), path)
    yield path
    path.unlink()


class Text:
    """A text that goes on with the most likely tokens; keys and values are updated in place.

    Args:
        session: of either engine.
        tokens: how it begins.
    """

    def __init__(self, session: Any, tokens: list[int]) -> None:
        self.session, self.tokens, self.length = session, list(tokens), 0
        shapes = {i.name: (1, i.shape[1], ROOM, i.shape[3]) for i in session.get_inputs() if len(i.shape) == 4}
        self.past = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        self.present = {name.replace("past_key_values", "present"): array for name, array in self.past.items()}

    def feed(self) -> dict[str, np.ndarray]:
        """The tokens that are not read yet, and a mask of all."""
        given, self.length = self.tokens[self.length :], len(self.tokens)
        return {"input_ids": np.array([given]), "attention_mask": np.ones((1, self.length), np.int64)}

    def add(self, logits: np.ndarray) -> None:
        self.tokens.append(int(logits[0, -1].argmax()))

    def by_binding(self) -> list[int]:
        """A binding has the same OrtValues as past and as present."""
        binding = self.session.io_binding()
        binding.bind_output("logits")
        values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in self.past.items()}
        for (name, value), present in zip(values.items(), self.present, strict=True):
            binding.bind_ortvalue_input(name, value)
            binding.bind_ortvalue_output(present, value)
        for _ in range(COUNT):
            for name, array in self.feed().items():
                binding.bind_cpu_input(name, array)
            binding.bind_output("logits")
            self.session.run_with_iobinding(binding)
            self.add(binding.get_outputs()[0].numpy())
        return self.tokens

    def by_run(self) -> list[int]:
        """`run` writes into the arrays that it reads."""
        for _ in range(COUNT):
            self.add(self.session.run(["logits"], self.feed() | self.past, out=self.present)[0])
        return self.tokens


def test_session_text_equals_onnxruntime(model: Path) -> None:
    vocabulary = Vocabulary(GGUF(smollm2_file.path()))
    prompt = vocabulary.encode("The capital of France is")
    theirs = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    expected = Text(theirs, prompt).by_binding()
    assert vocabulary.decode(expected).startswith("The capital of France is Paris.")
    session = ow.InferenceSession(model, context=ow.ml.create_context(device="cpu"))
    memory.copies.reset()
    for way in (Text.by_binding, Text.by_run):
        assert way(Text(session, prompt)) == expected
    assert memory.copies.count == 0, memory.copies
    assert "compiled" not in session.shapes().values()
    with pytest.raises(ow.ValidationError, match=r"indices must be in \[-49152, 49151\].* got 49152"):
        Text(session, [49152]).by_run()
    for array in (text := Text(session, prompt)).past.values():
        array.fill(np.nan)  # room that is not used may hold anything
    assert text.by_run() == expected
