"""A language model as an ONNX file, token by token: tokens a second, and memory, beside ONNX Runtime.

    python tools/make_smollm2.py growing build/smollm2.onnx
    python tools/make_smollm2.py genai build/smollm2-genai.onnx
    python -m benchmarks decoder build/smollm2.onnx build/smollm2-genai.onnx

Each form is run as its users do:

- growing: `run` returns longer keys and values, which are the inputs of the next token.
- genai: keys and values have room for 512 tokens, and a binding has the same OrtValues as past and as present.

Both engines decode the same text alternately, each in a separate process: in one process the threads of one engine, which go
on spinning after a token, would slow the other one down. Exits with 1 if a limit is exceeded.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Annotated, Any

import numpy as np
import typer

from .budgets import DECODER
from .measure import Ratio, peak_mib, processes

PROMPT = [1, 4093, 198, 504, 3575, 282, 4649, 314]
"""The first tokens of a text; which words they stand for does not matter."""

ROOM = 512
"""Of keys and values that are updated in place."""


class Decoder:
    """A text that grows by one token at each step; the most likely one is taken.

    Args:
        session: an InferenceSession of either engine.
    """

    def __init__(self, session: Any) -> None:
        self._session = session
        self._shapes = {i.name: i.shape for i in session.get_inputs() if i.name.startswith("past_key_values.")}
        self._presents = {name: name.replace("past_key_values", "present") for name in self._shapes}
        self._next = list(PROMPT)
        self._length = 0
        self.tokens: list[int] = []
        self.times: list[float] = []
        self.processor_times: list[float] = []

    def logits(self, tokens: np.ndarray) -> np.ndarray:
        """The logits [1, tokens, words] after tokens [1, tokens] that follow the text so far."""
        raise NotImplementedError

    def step(self) -> None:
        """Decode one token."""
        begin, begin_processor = perf_counter(), process_time()
        token = int(self.logits(np.array([self._next], np.int64))[0, -1].argmax())
        self.processor_times.append(process_time() - begin_processor)
        self.times.append(perf_counter() - begin)
        self._length += len(self._next)
        self._next = [token]
        self.tokens.append(token)


class Growing(Decoder):
    """Keys and values come back longer."""

    def __init__(self, session: Any) -> None:
        super().__init__(session)
        outputs = [output.name for output in session.get_outputs()]
        self._positions = {name: outputs.index(present) for name, present in self._presents.items()}
        self._past = {name: np.zeros((1, shape[1], 0, shape[3]), "f4") for name, shape in self._shapes.items()}

    def logits(self, tokens: np.ndarray) -> np.ndarray:
        positions = np.arange(self._length, self._length + tokens.size, dtype=np.int64)[None]
        results = self._session.run(None, {"input_ids": tokens, "position_ids": positions, **self._past})
        self._past = {name: results[position] for name, position in self._positions.items()}
        logits: np.ndarray = results[0]
        return logits


class InPlace(Decoder):
    """Keys and values are updated where they are."""

    def __init__(self, session: Any) -> None:
        from onnxruntime import OrtValue

        super().__init__(session)
        self._binding = session.io_binding()
        self._binding.bind_output("logits")  # the first of its outputs
        for name, shape in self._shapes.items():
            value = OrtValue.ortvalue_from_numpy(np.zeros((1, shape[1], ROOM, shape[3]), np.float32))
            self._binding.bind_ortvalue_input(name, value)
            self._binding.bind_ortvalue_output(self._presents[name], value)

    def logits(self, tokens: np.ndarray) -> np.ndarray:
        self._binding.bind_cpu_input("input_ids", tokens)
        self._binding.bind_cpu_input("attention_mask", np.ones((1, self._length + tokens.size), np.int64))
        self._binding.bind_output("logits")  # else ONNX Runtime writes into the memory of the last ones
        self._session.run_with_iobinding(self._binding)
        logits: np.ndarray = self._binding.get_outputs()[0].numpy()
        return logits


def decoder(engine: str, path: str) -> Decoder:
    """A decoder of "opweave" or "onnxruntime"."""
    session: Any
    if engine == "opweave":
        import opweave as ow

        # On the processor, whatever else there is: that is what the other engine runs on.
        session = ow.InferenceSession(path, context=ow.ml.create_context(device="cpu"))
    else:
        import onnxruntime

        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return Growing(session) if form_of(session) == "growing" else InPlace(session)


def form_of(session: Any) -> str:
    """The form of a model, as tools/make_smollm2.py calls it."""
    return "growing" if "position_ids" in {i.name for i in session.get_inputs()} else "genai"


def alone(engine: str, path: str, tokens: str) -> None:
    """Decode in this process, and print the tokens, its peak memory, and what the median token takes."""
    text = decoder(engine, path)
    for _ in range(int(tokens)):
        text.step()
    found = {
        "form": form_of(text._session),
        "tokens": text.tokens,
        "peak_mib": peak_mib(),
        "seconds": median(text.times[1:]),
        "processor_seconds": median(text.processor_times[1:]),
    }
    print(json.dumps(found))


def main(
    models: Annotated[list[Path], typer.Argument(help="Files that tools/make_smollm2.py writes.")],
    tokens: Annotated[int, typer.Option(help="How many to decode.")] = 64,
    rounds: Annotated[int, typer.Option(help="How many processes of each engine.")] = 5,
) -> None:
    """Decode a text with a language model as an ONNX file, in Opweave and in ONNX Runtime."""
    faults = [fault for model in models for fault in judge(model.resolve(), tokens, rounds)]
    for fault in faults:
        print(f"exceeded: {fault}")
    if faults:
        raise typer.Exit(1)


def judge(model: Path, tokens: int, rounds: int) -> list[str]:
    """Measure a model, and print what was found; the limits that it exceeds."""
    ways = {engine: (engine, str(model), str(tokens)) for engine in ("onnxruntime", "opweave")}
    found = processes("benchmarks.decoder", ways, turns=rounds)
    ours, theirs = found["opweave"], found["onnxruntime"]
    form = ours["form"][0]
    print(f"{model.name} ({form}), {tokens} tokens")
    for engine, values in found.items():
        rate, processor = 1 / median(values["seconds"]), median(values["processor_seconds"]) * 1e3
        memory = max(values["peak_mib"])
        print(f"  {engine:12} {rate:6.1f} tokens/s, {processor:.2f} ms of processor time a token, {memory:.0f} MiB")
    rate = Ratio.of(theirs["seconds"], ours["seconds"])
    processor = Ratio.of(ours["processor_seconds"], theirs["processor_seconds"])
    print(f"  opweave makes {rate} the tokens a second of ONNX Runtime, with {processor} its processor time")
    texts = {tuple(text) for values in found.values() for text in values["tokens"]}
    limits, faults = DECODER[form], []
    if rate.high < limits["rate"]:
        faults.append(f"{form}: {rate} the tokens a second, at least {limits['rate']}x is wanted")
    if max(ours["peak_mib"]) > limits["memory"]:
        faults.append(f"{form}: {max(ours['peak_mib']):.0f} MiB, at most {limits['memory']:.0f} are allowed")
    if len(texts) > 1:
        faults.append(f"{form}: the texts differ")
    return faults


if __name__ == "__main__":
    alone(*sys.argv[1:])
