"""Kernels in CUDA C++ on the processor: a witness of their results where there is no GPU.

They are compiled as C++ by any compiler (`$CXX`, g++, clang++, or the one of the package ziglang), behind a header that makes
threads of coroutines (`cuda_on_cpu.h`). What depends on the hardware is not seen here: races, alignment, speed.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import mmap
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from opweave.core.graph import Desc
from opweave.expr.gpu import Buffer, Features, GpuKernel
from opweave.expr.gpu.cuda import CUDA, PRELUDE
from opweave.kernels.cuda.source import NAMESPACE
from opweave.support.processors import processors

FEATURES = Features(
    dialect=CUDA,
    float16=True,
    int64=True,
    subgroups=True,
    max_buffers=64,
    max_invocations=1024,
    max_shared=49152,
)
"""Those of NVIDIA's GPUs."""

HEADER = Path(__file__).with_suffix(".h").read_text("utf-8")
OPTIONS = ("-std=c++17", "-O1", "-fPIC", "-shared", "-ffp-contract=off", "-w", "-U_FORTIFY_SOURCE")
"""Arguments of the compiler. Fortified `longjmp` refuses to change stacks, which threads of a block do."""
WORDS = ("let", "var", "loop", "select")
"""Macros of the prelude."""
MEETINGS = ("workgroupBarrier(", "subgroupShuffleXor(", "__syncthreads(", "__shfl_xor_sync(")
"""Functions in which threads wait for each other."""
FAILURES = {
    1: "reads or writes outside of its buffers",
    2: "has too many threads in a block",
    3: "has threads that wait for others which never come: at a barrier, or for the exchange of a register",
}
"""The results of a launch."""
BATCH = 24
"""Kernels that are compiled together."""
START = "\n".join([HEADER, PRELUDE, "}"])
"""The header of all kernels, whose own text is shorter."""


@cache
def compiler() -> list[str]:
    """The command of a C++ compiler; tests that need it are skipped where there is none."""
    if sys.platform != "linux":
        pytest.skip("coroutines for the threads of a block are made for Linux")
    for name in (os.environ.get("CXX", ""), "g++", "clang++"):
        if name and shutil.which(shlex.split(name)[0]):
            return shlex.split(name)
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("needs a C++ compiler: g++, clang++, or pip install ziglang")
    return [sys.executable, "-m", "ziglang", "c++"]


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="opweave-cuda-on-cpu-")


@cache
def _start() -> list[str]:
    """The arguments that include `START`, which is compiled once in a process: that halves the time of short kernels."""
    header = Path(_folder().name) / "start.h"
    header.write_text(START, "utf-8")
    version = subprocess.run([*compiler(), "--version"], capture_output=True, text=True, check=True).stdout
    is_clang = "clang" in version
    precompiled = header.with_suffix(".pch" if is_clang else ".h.gch")
    options = [option for option in OPTIONS if option != "-shared"]
    command = [*compiler(), *options, "-x", "c++-header", str(header), "-o", str(precompiled)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stderr[:4000]}"
    return ["-include-pch", str(precompiled)] if is_clang else ["-include", str(header)]


class Functions:
    """Compiled kernels by their source."""

    def __init__(self) -> None:
        self._known: dict[str, ctypes._CFuncPtr] = {}  # type: ignore[name-defined]

    def prepare(self, sources: Iterable[str]) -> None:
        """Compile sources that are new, many at a time."""
        fresh = [source for source in dict.fromkeys(sources) if source not in self._known]
        if fresh:
            _start()  # once, before threads ask for it at the same time
        batches = [fresh[start : start + BATCH] for start in range(0, len(fresh), BATCH)]
        with ThreadPoolExecutor(processors()) as pool:
            list(pool.map(self._compile, batches))

    def __getitem__(self, source: str) -> ctypes._CFuncPtr:  # type: ignore[name-defined]
        self.prepare([source])
        return self._known[source]

    def _compile(self, sources: Sequence[str]) -> None:
        lines: list[str] = []
        words: tuple[str, ...]
        for number, source in enumerate(sources):
            if PRELUDE in source:
                text = source.partition(PRELUDE)[2].rstrip().removesuffix("}  // namespace opweave")
                entry, words, space = "opweave_kernel", (), "opweave"
            else:  # of a user: it stands alone, and the words of WGSL are not in its way
                found = re.search(r'extern "C"\s[^;{}]*?__global__[^;{}]*?\b(\w+)\s*\([^()]*\)\s*\{', source)
                assert found, source
                text, entry, words, space = source, found[1], WORDS, "of_users"
            coroutines = str(any(word in text for word in MEETINGS)).lower()
            lines += [
                *(f'#pragma push_macro("{word}")\n#undef {word}' for word in words),
                f"#define {entry} kernel_{number}",
                f"namespace {space} {{ namespace of_{number} {{",
                text,
                *([f"using namespace {NAMESPACE};"] if f"namespace {NAMESPACE} {{" in text else []),
                "} }",
                f"#undef {entry}",
                *(f'#pragma pop_macro("{word}")' for word in words),
                f'extern "C" int launch_{number}(void** arguments, const unsigned* sizes) {{',
                f"    return on_cpu::launch({space}::of_{number}::kernel_{number}, arguments, sizes, {coroutines});",
                "}",
            ]
        text = "\n".join(lines)
        name = Path(_folder().name) / hashlib.sha256(text.encode()).hexdigest()[:16]
        name.with_suffix(".cpp").write_text(text, "utf-8")
        library = name.with_suffix(".so")
        command = [*compiler(), *OPTIONS, *_start(), "-o", str(library), str(name.with_suffix(".cpp"))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(command)}:\n{done.stderr[:4000]}"
        loaded = ctypes.CDLL(str(library))
        for number, source in enumerate(sources):
            self._known[source] = loaded[f"launch_{number}"]


functions = Functions()


class Guarded:
    """Memory between pages that cannot be accessed; it ends right before one, but for the alignment of 16 bytes.

    Attributes:
        array: its bytes.
        address: where they begin.
    """

    def __init__(self, count: int) -> None:
        page = mmap.PAGESIZE
        padded = max(16, -(-count // 16) * 16)
        size = -(-padded // page) * page
        self._map = mmap.mmap(-1, size + 2 * page)
        whole = np.frombuffer(self._map, np.uint8)
        start = whole.ctypes.data
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        for guard in (start, start + page + size):
            assert protect(ctypes.c_void_p(guard), ctypes.c_size_t(page), 0) == 0, os.strerror(ctypes.get_errno())
        at = page + size - padded
        whole[page : page + size] = 0xAB
        self.array = whole[at : at + count]
        self.address = start + at

    @classmethod
    def of(cls, desc: Desc, given: np.ndarray | None = None) -> Guarded:
        """Memory for a tensor; without an array, it holds nonsense."""
        made = cls(desc.byte_length)
        if given is not None:
            made.array[:] = np.ascontiguousarray(given).reshape(-1).view(np.uint8)
        return made

    def view(self, desc: Desc) -> np.ndarray:
        """The tensor in it."""
        return self.array.view(desc.data_type).reshape(desc.shape)


def launch(kernel: GpuKernel, arguments: Sequence[int | bytes], workgroups: tuple[int, int, int] | None = None) -> None:
    """Run a kernel on addresses and numbers; `workgroups` are those of the sizes of a run.

    Raises:
        AssertionError: it reads or writes outside of its memory, or its threads wait for each other forever.
    """
    sizes = (*(workgroups or kernel.workgroups), *(*kernel.invocations, 1, 1)[:3])
    numbers = [ctypes.create_string_buffer(given) for given in arguments if isinstance(given, bytes)]
    rest = map(ctypes.addressof, numbers)
    pointers = (ctypes.c_void_p * len(arguments))(*(next(rest) if isinstance(a, bytes) else a for a in arguments))
    failed = functions[kernel.source](pointers, (ctypes.c_uint * 6)(*sizes))
    assert failed == 0, f"{kernel.title} {FAILURES[failed]}\n{kernel.source.partition(PRELUDE)[2]}"


class Runner:
    """Runs kernels on arrays."""

    def __init__(self) -> None:
        self.buffers: dict[Buffer, Guarded] = {}

    def fill(self, buffer: Buffer, array: np.ndarray | None = None) -> None:
        """Memory for a buffer; without an array, it holds nonsense."""
        self.buffers[buffer] = Guarded.of(buffer.desc, array)

    def run(self, made: Sequence[GpuKernel]) -> None:
        functions.prepare(kernel.source for kernel in made)
        for kernel in made:
            for buffer in kernel.bindings:
                if buffer not in self.buffers:
                    self.fill(buffer)
            launch(kernel, [self.buffers[buffer].address for buffer in kernel.bindings])

    def result(self, buffer: Buffer) -> np.ndarray:
        return self.buffers[buffer].view(buffer.desc)
