"""The page about GPUs: what was measured with WebGPU, and with CUDA."""

from __future__ import annotations

from . import cuda, cuda_models, webgpu
from .page import DOCS

PAGE = DOCS / "benchmarks-gpu.md"


def page() -> str:
    """The page, in Markdown, of all records that there are."""
    sections = [webgpu.section(webgpu.read(webgpu.RECORD))] if webgpu.RECORD.exists() else []
    sections += [cuda.section(cuda.read(cuda.RECORD))] if cuda.RECORD.exists() else []
    if cuda_models.RECORD.exists():
        sections.append(cuda_models.section(cuda_models.read(cuda_models.RECORD)))
    return "\n".join(["# On a GPU\n", *sections])


def write() -> None:
    """Write the page."""
    PAGE.write_text(page())
    print(f"wrote {PAGE}")
