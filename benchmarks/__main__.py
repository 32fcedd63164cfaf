"""All benchmarks: `python -m benchmarks --help` lists them.

Without arguments, all that docs/benchmarks.md shows are run, and the page is written with docs/benchmarks.json.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module

import typer

from . import conclusions
from .page import DOCS, Table, machine
from .record import record_of
from .rows import HEADER, Row

TABLES = {
    "overhead": "dispatch and compute of a small graph; imports",
    "convolution": "conv2d + bias + relu against ONNX Runtime",
    "resnet50": "ResNet-50 as a graph: run, build, peak memory",
    "architectures": "nine image classifiers as ONNX models: run, peak memory",
    "loops": "networks on ONNX Runtime with compiled loops instead of slow kernels",
    "fusion": "chains of element-wise operations, compiled and by the engine",
    "expressions": "compiled expressions against ONNX Runtime and memcpy",
    "threads": "one graph in 8 threads at the same time",
    "op_level": "operations called one at a time, against one graph",
}
"""The parts of docs/benchmarks.md."""

OTHERS = {
    "against": "hot paths of the working tree against another revision",
    "chat": "a language model beside llama.cpp; writes docs/chat.md",
    "cold": "fresh processes that run a tiny model beside ONNX Runtime; writes docs/benchmarks-cold.md",
    "composites": "kernels for composites against their parts; writes docs/composites.md",
    "cuda": "networks with CUDA beside PyTorch; writes docs/benchmarks-gpu.md",
    "cuda_models": "ONNX models from packages with CUDA beside ONNX Runtime; writes docs/benchmarks-gpu.md",
    "cuda_networks": "architectures with CUDA beside torch.compile; writes docs/benchmarks-gpu.md",
    "cuda_recurrences": "selective scans and linear attention with CUDA beside PyTorch; writes docs/benchmarks-gpu.md",
    "cuda_startup": "loading and first calls with CUDA in fresh processes; writes docs/benchmarks-gpu.md",
    "cuda_tune": "tiles of CUDA's tensor cores; writes the table that they are chosen by, beside cuBLAS and cuDNN",
    "engines": "the engine that is chosen for models beside both engines; writes docs/engines.md",
    "gpu_sizes": "models with dynamic dimensions on a GPU, at new sizes; writes docs/benchmarks-gpu.md",
    "decoder": "language models as ONNX files beside ONNX Runtime, token by token",
    "kernels": "ONNX Runtime's kernels against compiled expressions; writes docs/kernels.md and what runs as loops",
    "interop": "custom operations beside built-in ones; writes docs/interop.md",
    "nan": "what it would cost to propagate NaN where ONNX Runtime does not",
    "language": "a language model of 1.1 billion weights with CUDA beside Transformers; writes docs/benchmarks-gpu.md",
    "precision": "each precision of each device beside float64; writes docs/precision.md",
    "recurrences": "recurrences beside ONNX Runtime's Scan; writes docs/recurrences.md",
    "scale": "a model in Ray's actors beside plain processes; writes docs/scale.md",
    "serve": "navigator.ml in Node.js and Chromium; writes docs/web.md",
    "server": "a model behind `opweave deploy` beside ONNX Runtime behind Starlette; writes docs/serving.md",
    "serving": "a model behind Ray Serve beside ONNX Runtime there; writes docs/serving.md",
    "libraries": "libraries that call ONNX Runtime beside the same on Opweave; writes docs/onnxruntime.md",
    "sizes": "graphs whose sizes recur or are new beside ONNX Runtime; writes docs/sizes.md",
    "small": "sessions of small models beside ONNX Runtime's, after pauses; writes docs/benchmarks-small.md",
    "startup": "fresh processes that run a model from a saved graph beside the model; writes docs/start-up.md",
    "torch": "modules of PyTorch as graphs and in torch.compile; writes docs/models-torch.md",
    "traffic": "models with dynamic dimensions in traffic beside ONNX Runtime; writes docs/benchmarks-traffic.md",
    "verification": "calls of a model while another engine is verified; writes docs/engines.md",
    "web": "ONNX Runtime Web on navigator.ml beside Opweave in Python; writes docs/web.md",
    "webgpu": "networks and contractions on a GPU; writes docs/benchmarks-gpu.md",
}
"""Benchmarks with their own options."""


def usage() -> str:
    def lines(benchmarks: dict[str, str]) -> str:
        return "\n".join(f"  {name:14} {what}" for name, what in benchmarks.items())

    return f"""{(__doc__ or "").strip()}

python -m benchmarks [NAME …]        those of docs/benchmarks.md, all by default:
{lines(TABLES)}

python -m benchmarks NAME [OPTIONS]  others; `python -m benchmarks NAME --help` says more:
{lines(OTHERS)}"""


def markdown(rows: Sequence[Row]) -> str:
    return f"""# Benchmarks

Made by `make bench` (which is `python -m benchmarks`) on: {machine()}.

{Table(HEADER, [row.cells() for row in rows])}

Values are medians. What is compared runs alternately (A, B, A, B, …), each alone after a pause of 0.2 s, in which threads of
the other engine stop spinning; a ratio is the median of the ratios of pairs, with quartiles, and holds if its lower quartile
is within the budget. Runs after 30 or 100 ms each come after such a pause, others in a row. Build time and peak memory are
those of separate processes. The machine is shared: differences of a few percent are noise. ResNet-50 has random weights
and batch normalisation folded into its convolutions; ONNX Runtime reads it from a file, Opweave builds it from memory-mapped
weights.
"""


def main(names: Sequence[str]) -> None:
    """Measure, print a table, and write the page if all were measured."""
    rows: list[Row] = []
    for name in names or TABLES:
        rows += import_module(f"benchmarks.{name}").rows()
    Table(HEADER, [row.cells() for row in rows]).show([row.holds for row in rows])
    if not names:
        conclusions.write("benchmarks.md", markdown(rows))
        record_of(rows).write(DOCS / "benchmarks.json")


def command(name: str) -> Callable[..., object]:
    """The function with the options of one of `OTHERS`."""
    module = "benchmarks.interop.__main__" if name == "interop" else f"benchmarks.{name}"
    try:
        found: Callable[..., object] = import_module(module).main
    except ModuleNotFoundError as error:
        where = f"{module.replace('.', '/')}.py begins with what to install"
        raise SystemExit(f"the benchmark {name} needs the package {error.name}; {where}") from None
    return found


if __name__ == "__main__":
    first, *rest = sys.argv[1:] or [""]
    if first in OTHERS:
        app = typer.Typer(add_completion=False)
        app.command()(command(first))
        app(rest, prog_name=f"python -m benchmarks {first}")
    elif first in ("-h", "--help"):
        print(usage())
    elif unknown := [name for name in sys.argv[1:] if name not in TABLES]:
        raise SystemExit(f"there is no benchmark {', '.join(unknown)}\n\n{usage()}")
    else:
        main(sys.argv[1:])
