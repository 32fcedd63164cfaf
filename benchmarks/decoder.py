"""A language model whose cache grows: every token is a new shape. Tokens a second, and memory, beside ONNX Runtime.

    python tools/export_smollm2.py build/smollm2.onnx
    python -m benchmarks.decoder build/smollm2.onnx

Both decode the same text in processes of their own, in turns: in one process the threads of one engine, which go on spinning
after a token, would slow the other one down.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

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


def alone(engine: str, path: str, tokens: int) -> None:
    """Decode in this process, and print the tokens and its peak memory."""
    text = decoder(engine, path)
    for _ in range(tokens):
        text.step()
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"tokens": text.tokens, "megabytes": megabytes, "seconds": median(text.times[1:])}))


def main() -> None:
    """Measure both, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="the .onnx file that tools/export_smollm2.py writes")
    parser.add_argument("--tokens", type=int, default=64, help="how many to decode")
    parser.add_argument("--rounds", type=int, default=5, help="how many processes of each")
    parser.add_argument("--alone", choices=["opweave", "onnxruntime"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.alone:
        alone(arguments.alone, arguments.model, arguments.tokens)
        return
    engines = ("onnxruntime", "opweave")
    root = Path(__file__).parents[1]
    found: dict[str, list[dict[str, Any]]] = {engine: [] for engine in engines}
    for turn in range(arguments.rounds):
        for engine in engines[:: 1 if turn % 2 else -1]:
            command = [sys.executable, "-m", "benchmarks.decoder", arguments.model, "--alone", engine]
            command += ["--tokens", str(arguments.tokens)]
            done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)
            found[engine].append(json.loads(done.stdout.splitlines()[-1]))
    for engine, runs in found.items():
        seconds = median(run["seconds"] for run in runs)
        print(f"{engine:12} {1 / seconds:6.1f} tokens/s, {max(run['megabytes'] for run in runs):6.0f} MB")
    ratios = [a["seconds"] / b["seconds"] for a, b in zip(*(found[engine] for engine in engines), strict=True)]
    texts = {tuple(run["tokens"]) for runs in found.values() for run in runs}
    print(
        f"opweave makes {median(ratios):.2f} times the tokens of ONNX Runtime ({min(ratios):.2f} to {max(ratios):.2f}); "
        f"the texts are {'the same' if len(texts) == 1 else 'DIFFERENT'}"
    )


if __name__ == "__main__":
    main()
