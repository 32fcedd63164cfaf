"""Signs of accelerators, which are read without loading an engine."""

from __future__ import annotations

import os
import sys

GPU_FILES = {"/dev": ("nvidia", "dxg", "kgsl-3d", "mali"), "/dev/dri": ("renderD",)}
"""Prefixes of device files that drivers of GPUs make on Linux, by folder. "dxg" belongs to the Windows Subsystem for Linux."""

NPU_FILES = {"/sys/class/accel": ("accel",)}
"""Prefixes of device files that drivers of NPUs make on Linux, by folder."""


def may_have_gpu() -> bool:
    """Whether a GPU may exist; only Linux shows its hardware as files."""
    return sys.platform != "linux" or any(_has_file(folder, prefixes) for folder, prefixes in GPU_FILES.items())


def may_have_accelerator() -> bool:
    """Whether a GPU or an NPU may exist."""
    return may_have_gpu() or any(_has_file(folder, prefixes) for folder, prefixes in NPU_FILES.items())


def _has_file(folder: str, prefixes: tuple[str, ...]) -> bool:
    try:
        return any(name.startswith(prefixes) for name in os.listdir(folder))
    except OSError:  # there is no such folder
        return False
