"""The page about GPUs: what was measured with WebGPU, and with CUDA."""

from __future__ import annotations

from . import conclusions, cuda, cuda_models, webgpu
from .device_results import read
from .page import DOCS

PAGE = DOCS / "benchmarks-gpu.md"


def page() -> str:
    """The page, in Markdown, of all records that there are."""
    sections = [webgpu.section(webgpu.read(webgpu.RECORD))] if webgpu.RECORD.exists() else []
    sections += [cuda.section(read(cuda.RECORD, cuda.Row))] if cuda.RECORD.exists() else []
    if cuda_models.RECORD.exists():
        sections.append(cuda_models.section(read(cuda_models.RECORD, cuda_models.Row)))
    return conclusions.completed(PAGE.name, "\n".join(["# On a GPU\n", *sections]))


def write() -> None:
    """Write the page."""
    conclusions.write(PAGE.name, page())
    print(f"wrote {PAGE}")
