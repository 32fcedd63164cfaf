"""The page about GPUs: what was measured with WebGPU, and with CUDA."""

from __future__ import annotations

from . import conclusions, cuda, cuda_models, cuda_networks, cuda_recurrences, cuda_startup, gpu_sizes, language, webgpu
from .page import DOCS
from .record import read

PAGE = DOCS / "benchmarks-gpu.md"


def page() -> str:
    """The page, in Markdown, of all records that there are."""
    sections = [webgpu.section(read(webgpu.RECORD, webgpu.row_of))] if webgpu.RECORD.exists() else []
    sections += [cuda.section(read(cuda.RECORD, cuda.Row))] if cuda.RECORD.exists() else []
    if cuda_models.RECORD.exists():
        sections.append(cuda_models.section(read(cuda_models.RECORD, cuda_models.Row)))
    if cuda_networks.RECORD.exists():
        sections.append(cuda_networks.section(read(cuda_networks.RECORD, cuda_networks.Row)))
    if cuda_recurrences.RECORD.exists():
        sections.append(cuda_recurrences.section(read(cuda_recurrences.RECORD, cuda_recurrences.Row)))
    if gpu_sizes.RECORD.exists():
        sections.append(gpu_sizes.section(read(gpu_sizes.RECORD, gpu_sizes.Row)))
    if language.RECORD.exists():
        sections.append(language.section(read(language.RECORD, language.Row)))
    if cuda_startup.RECORD.exists():
        sections.append(cuda_startup.section(read(cuda_startup.RECORD, cuda_startup.Row)))
    return conclusions.completed(PAGE.name, "\n".join(["# On a GPU\n", *sections]))


def write() -> None:
    """Write the page."""
    conclusions.write(PAGE.name, page())
    print(f"wrote {PAGE}")
