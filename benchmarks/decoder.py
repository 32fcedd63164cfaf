"""A language model whose cache grows: every token is a new shape. Tokens a second, and memory, beside ONNX Runtime.

    python tools/make_smollm2.py growing build/smollm2.onnx
    python -m benchmarks decoder build/smollm2.onnx

Both decode the same text alternately, each in a process of its own: in one process the threads of one engine, which go on
spinning after a token, would slow the other one down.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import typer

from .measure import Ratio, peak_mib, processes

PROMPT = [1, 4093, 198, 504, 3575, 282, 4649, 314]
"""The first tokens of a text; which words they stand for does not matter."""

Run = Callable[[dict[str, Any]], list[Any]]


class Decoder:
    """A text that grows by one token at each step; the most likely one is taken."""

    def __init__(self, run: Run, inputs: list[tuple[str, list[Any]]], outputs: list[str]) -> None:
        self._run = run
        caches = [(name, shape) for name, shape in inputs if name.startswith("past_key_values.")]
        self._names = {name: outputs.index(name.replace("past_key_values", "present")) for name, _ in caches}
        self._past = {name: np.zeros((1, shape[1], 0, shape[3]), np.float32) for name, shape in caches}
        self._next = list(PROMPT)
        self._length = 0
        self.tokens: list[int] = []
        self.times: list[float] = []

    def step(self) -> None:
        """Decode one token."""
        count = len(self._next)
        positions = np.arange(self._length, self._length + count, dtype=np.int64)[None]
        begin = perf_counter()
        feed = {"input_ids": np.array([self._next], np.int64), "position_ids": positions, **self._past}
        results = self._run(feed)
        self._past = {name: results[position] for name, position in self._names.items()}
        token = int(results[0][0, -1].argmax())
        self.times.append(perf_counter() - begin)
        self._length += count
        self._next = [token]
        self.tokens.append(token)


def decoder(engine: str, path: str) -> Decoder:
    """A decoder of "opweave" or "onnxruntime"."""
    session: Any
    if engine == "opweave":
        import opweave as ow

        session = ow.InferenceSession(path)
    else:
        import onnxruntime

        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    inputs = [(argument.name, argument.shape) for argument in session.get_inputs()]
    outputs = [argument.name for argument in session.get_outputs()]
    return Decoder(lambda feed: session.run(None, feed), inputs, outputs)


def alone(engine: str, path: str, tokens: str) -> None:
    """Decode in this process, and print the tokens and its peak memory."""
    text = decoder(engine, path)
    for _ in range(int(tokens)):
        text.step()
    print(json.dumps({"tokens": text.tokens, "peak_mib": peak_mib(), "seconds": median(text.times[1:])}))


def main(
    model: Annotated[Path, typer.Argument(help="The file that tools/make_smollm2.py writes.")],
    tokens: Annotated[int, typer.Option(help="How many to decode.")] = 64,
    rounds: Annotated[int, typer.Option(help="How many processes of each engine.")] = 5,
) -> None:
    """Decode a text with a language model whose cache grows, in Opweave and in ONNX Runtime."""
    ways = {engine: (engine, str(model), str(tokens)) for engine in ("onnxruntime", "opweave")}
    found = processes("benchmarks.decoder", ways, turns=rounds)
    for engine, values in found.items():
        print(f"{engine:12} {1 / median(values['seconds']):6.1f} tokens/s, {max(values['peak_mib']):6.0f} MiB")
    texts = {tuple(text) for values in found.values() for text in values["tokens"]}
    ratio = Ratio.of(found["onnxruntime"]["seconds"], found["opweave"]["seconds"])
    same = "the same" if len(texts) == 1 else "DIFFERENT"
    print(f"opweave makes {ratio} the tokens of ONNX Runtime; the texts are {same}")


if __name__ == "__main__":
    alone(*sys.argv[1:])
