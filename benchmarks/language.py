"""A language model of 1.1 billion weights on a GPU, beside Transformers with PyTorch's compiler.

    python -m benchmarks language                        # writes docs/benchmarks-gpu.md
    python -m benchmarks language --render results.json  # writes the page of a file

Needs the extras cuda and gpu, and torch and transformers. The file, Llama in Q4_0 with random weights, is made by
`tools/make_llama.py`. Each row is measured in its own process: CUDA by precision, WebGPU, and PyTorch in bfloat16.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Annotated, Any

import typer

from .budgets import LANGUAGE, MEMORY_OF_LANGUAGE
from .measure import in_process, script
from .page import DOCS, Table, versions, yes
from .record import Record, resumed

RECORD = DOCS / "benchmarks-cuda-language.json"

CONTEXTS = {
    "float16": ("cuda", "float16", "float16"),
    "float32": ("cuda", "float32", "float32"),
    "WebGPU": ("gpu", "float32", "float16"),
}
"""Device, precision and data type of the cache for each of Opweave's rows."""

ROOM, SHORT, LONG, STEPS = 2048, 64, 1024, 60
"""Tokens in the cache; of the prompts; and decoded ones, the last that fit into the cache."""

TURNS = 7
"""How often a prompt is read."""

SECONDS = 400
"""How long one process may take."""


@dataclass
class Row:
    """The model in Opweave, with CUDA in one precision or with WebGPU, or in PyTorch.

    Attributes:
        name: the precision for CUDA, otherwise "WebGPU" or "PyTorch".
        token: milliseconds a token at the end of the cache; the median.
        short: milliseconds to the first token of a short prompt.
        long: of a long prompt.
        build: seconds until kernels and weights are on the device; of PyTorch, to compile.
        memory: MiB of the device beyond CUDA's own context.
        least: MiB of the file, or of the weights, and the cache.
    """

    name: str
    token: float
    short: float
    long: float
    build: float
    memory: float
    least: float

    @property
    def has_memory_limit(self) -> bool:
        """Whether `MEMORY_OF_LANGUAGE` applies: for rows with CUDA."""
        return CONTEXTS.get(self.name, ("",))[0] == "cuda"

    def faults(self) -> list[str]:
        """The limits that are exceeded."""
        limits = LANGUAGE.get(self.name, {})
        names = [name for name, limit in limits.items() if not limit.holds(ours=getattr(self, name))]
        if self.has_memory_limit and self.memory > MEMORY_OF_LANGUAGE * self.least:
            names.append("memory")
        return names


def section(record: Record[Row]) -> str:
    """The part of the page about GPUs, in Markdown."""
    head = [
        "",
        "build",
        "a token",
        f"prompt of {SHORT}",
        f"prompt of {LONG:,}",
        "memory",
        "file and cache",
        "limits",
        "holds",
    ]
    rows = []
    for row in record.rows:
        limits = LANGUAGE.get(row.name, {})
        numbers = [f"{row.build:.2f} s", f"{row.token:.3f} ms", f"{row.short:.2f} ms", f"{row.long:.1f} ms"]
        numbers += [f"{row.memory:.0f} MiB", f"{row.least:.0f} MiB"]
        texts = [f"{name} {limit}" for name, limit in limits.items()]
        texts += [f"memory <= {MEMORY_OF_LANGUAGE:g}x"] if row.has_memory_limit else []
        holds = ", ".join(row.faults()) or (yes(True) if limits else "")
        rows.append([row.name, *numbers, "; ".join(texts), holds])
    return f"""## A language model

Written by `python -m benchmarks language`: {record.device}; {record.machine}.

Llama with 1.1 billion weights in Q4_0 ({ROOM:,} tokens of cache), whose matrices stay quantised as in the file. The rows are
CUDA in two precisions; WebGPU, which computes in float32 with a cache in float16; and the same network of Transformers in
bfloat16 with a static cache, compiled by `torch.compile(mode="reduce-overhead")`. A token is one of the last {STEPS} that
fit into the cache; it is chosen by its logits on the device, and only its number is read. The time of a prompt ends with
its first token. Builds find no kernels in the cache on disk. Memory is that of the device without CUDA's own context.
PyTorch uses no CUDA graphs here, since the cache counts its tokens in a tensor that the compiled step writes. The last
column names the limits that are exceeded, or says yes.

{Table(head, rows, right=range(1, 7))}
"""


def main(
    keep: Annotated[Path, typer.Option("--json", help="Where results are kept.")] = RECORD,
    render: Annotated[Path | None, typer.Option(help="Measure nothing, and make the page of this file.")] = None,
    model: Annotated[Path | None, typer.Option(help="A GGUF file. Default: one that is made.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="A precision, WebGPU or PyTorch. Default: all.")] = None,
) -> None:
    """Measure the model, and write the page. Earlier rows of the same device and versions are kept."""
    from .gpu_page import write

    if render is not None:
        RECORD.write_text(render.read_text())
        write()
        return
    import opweave as ow

    description = ow.ml.create_context(device="cuda").device.description
    record = resumed(keep, Row, description, versions("opweave", "cuda-bindings", "triton", "torch", "transformers"))
    names = (*CONTEXTS, "PyTorch")
    with TemporaryDirectory(prefix="opweave-language-") as folder:
        path = model or make(Path(folder) / "llama.gguf")
        for name in names:
            if only and name not in only:
                continue
            extra = {"OPWEAVE_CACHE": f"{folder}/{name}", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
            try:
                values = in_process("benchmarks.language", name, str(path), timeout=SECONDS, extra=extra)
            except (RuntimeError, TimeoutError) as error:
                record.failures[name] = str(error)[-300:]
                print(f"{name}: {error}", file=sys.stderr, flush=True)
                continue
            row = Row(**values)
            record.rows = sorted(
                [row, *(each for each in record.rows if each.name != name)], key=lambda each: names.index(each.name)
            )
            record.failures.pop(name, None)
            print(row, flush=True)
            record.write(keep)
    if keep == RECORD:
        write()


def make(path: Path) -> Path:
    """Make the model."""
    module = script("make_llama")
    with path.open("wb") as file:
        module.write(file, module.Sizes())
    return path


# In a separate process ---------------------------------------------------------------------------------------------


def free_bytes() -> int:
    """Free memory of the device of the current context."""
    from cuda.bindings import driver

    error, free, _ = driver.cuMemGetInfo()
    assert not error, error
    return int(free)


def in_primary_context() -> None:
    """Make the primary context of the first device current."""
    from cuda.bindings import driver

    driver.cuInit(0)
    _, context = driver.cuDevicePrimaryCtxRetain(0)
    driver.cuCtxSetCurrent(context)


def times(step: Callable[[int], object], count: int) -> float:
    """Milliseconds of a call, which takes the number of the turn; the median."""
    found = []
    for turn in range(count):
        start = perf_counter()
        step(turn)
        found.append(perf_counter() - start)
    return 1e3 * median(found)


def decoder_of(name: str, path: str, sampler: Any) -> Any:
    """The decoder of a file, with the context of a row; its graph and that of the sampler are compiled."""
    import opweave as ow
    from opweave.chat import GGUF, Decoder, Model

    device, precision, cache = CONTEXTS[name]
    context = ow.ml.create_context(device=device, precision=precision)  # type: ignore[arg-type]
    decoder = Decoder(Model(GGUF(path), for_cpu=False), context, ROOM, cache=cache)  # type: ignore[arg-type]
    decoder.build(sampler)
    return decoder


def opweave(name: str, path: str) -> Row:
    """Measure Opweave."""
    import numpy as np

    import opweave as ow
    from opweave.chat import Sampler

    in_primary_context()
    device, precision, _ = CONTEXTS[name]
    ow.ml.create_context(device=device, precision=precision)  # type: ignore[arg-type]
    free = free_bytes()
    start = perf_counter()
    greedy = Sampler(temperature=0)
    decoder = decoder_of(name, path, greedy)
    decoder.forget(0)
    decoder.choose([1], greedy)
    build = perf_counter() - start
    words = decoder.model.sizes.words
    text = np.random.default_rng(0).integers(0, words, ROOM).tolist()

    def prompt(length: int) -> Callable[[int], object]:
        def read(turn: int) -> None:
            decoder.forget(0)
            decoder.choose(text[turn : turn + length], greedy)

        return read

    short, long = (times(prompt(length), TURNS + 2) for length in (SHORT, LONG))
    decoder.forget(0)
    token = decoder.choose(text[: ROOM - STEPS], greedy)

    def decode(turn: int) -> None:
        nonlocal token
        token = decoder.choose([token], greedy)

    step = times(decode, STEPS)
    s = decoder.model.sizes
    cache = 2 * s.layers * s.groups * s.size * ROOM * (2 if decoder.cache == "float16" else 4)
    memory = free - free_bytes()
    return Row(name, step, short, long, build, memory / 2**20, (os.path.getsize(path) + cache) / 2**20)


def pytorch(path: str) -> Row:
    """Measure Transformers."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

    from opweave.chat import GGUF, Model

    s = Model(GGUF(path)).sizes
    hidden = GGUF(path).weights["blk.0.ffn_up.weight"].shape[0]
    config = LlamaConfig(
        vocab_size=s.words, hidden_size=s.width, intermediate_size=hidden, num_hidden_layers=s.layers,
        num_attention_heads=s.heads, num_key_value_heads=s.groups, head_dim=s.size, max_position_embeddings=2 * ROOM,
        tie_word_embeddings=True,
    )  # fmt: skip
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model: Any = LlamaForCausalLM(config).eval().requires_grad_(False)
        cache = StaticCache(config=config, max_cache_len=ROOM)
        # Before it is compiled: tensors at fixed addresses may be written by CUDA graphs.
        cache.early_initialization(1, s.groups, s.size, torch.bfloat16, torch.device("cuda"))
        for layer in cache.layers:
            torch._dynamo.mark_static_address(layer.cumulative_length)
        text = torch.randint(0, s.words, (1, ROOM))

    def forward(tokens: Any) -> Any:
        logits = model(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        return logits[:, -1].argmax(-1, keepdim=True)

    compiled = torch.compile(forward, mode="reduce-overhead", dynamic=False)

    def choose(tokens: Any) -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        token = compiled(tokens).clone()
        token.item()
        return token

    def prompt(length: int) -> Callable[[int], object]:
        def read(turn: int) -> None:
            cache.reset()
            choose(text[:, :length])

        return read

    with torch.inference_mode():
        start = perf_counter()
        cache.reset()
        token = choose(text[:, :1])
        build = perf_counter() - start
        for length in (SHORT, LONG):  # compiles, and captures graphs
            for turn in range(3):
                prompt(length)(turn)
        short, long = (times(prompt(length), TURNS) for length in (SHORT, LONG))
        cache.reset()
        choose(text[:, :LONG])
        for _ in range(ROOM - LONG - STEPS):
            choose(token)

        def decode(turn: int) -> None:
            nonlocal token
            token = choose(token)

        step = times(decode, STEPS)
    memory = torch.cuda.memory_reserved()
    least = 2 * sum(p.numel() for p in model.parameters()) + 4 * s.layers * s.groups * s.size * ROOM
    return Row("PyTorch", step, short, long, build, memory / 2**20, least / 2**20)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] in (*CONTEXTS, "PyTorch"):
        name, path = sys.argv[1:]
        print(json.dumps(vars(pytorch(path) if name == "PyTorch" else opweave(name, path))))
    else:
        typer.run(main)
