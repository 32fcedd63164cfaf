"""NVRTC, which compiles kernels without a GPU, and the cache of what it has compiled. Run by `make test-cuda`."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import cuda_on_cpu
import numpy as np
import pytest
import wpt
from cuda_cases import compiled

import opweave as ow
import opweave.expr as ex
from opweave import disk_cache
from opweave.backends.cuda import compiler, devices, nvidia, nvrtc
from opweave.expr import ir, trace
from opweave.expr.gpu import Kernel, kernels
from opweave.graph import Desc

pytestmark = pytest.mark.skipif(not devices.is_installed(), reason="needs the extra cuda: make test-cuda")

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
SAMPLED = 8
"""One of so many distinct kernels is compiled in each run, for one architecture; all of them with `--all`."""


def made(function: object = ex.sin, shape: tuple[int, ...] = (64,)) -> list[Kernel]:
    return kernels(trace(function, "sample", [Desc("float32", shape)]), cuda_on_cpu.FEATURES)  # type: ignore[arg-type]


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("OPWEAVE_CACHE", str(folder))
    return folder


def test_kernels_of_the_conformance_cases_compile(request: pytest.FixtureRequest, cached: Path) -> None:
    whole = request.config.option.all
    found = {kernel.source: kernel for case in wpt.cases("conformance") for kernel in cases(case)}
    chosen = [found[source] for source in sorted(found)][:: 1 if whole else SAMPLED]
    assert len(chosen) > 100
    for architecture in ARCHITECTURES if whole else ("sm_90",):
        binaries = compiler.binaries(chosen, architecture)
        assert all(binary.image.startswith(b"\x7fELF") for binary in binaries)


def cases(case: wpt.Case) -> Sequence[Kernel]:
    return compiled(case, cuda_on_cpu.FEATURES).kernels


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_architectures(architecture: str, cached: Path) -> None:
    (binary,) = compiler.binaries(made(), architecture)
    assert binary.image.startswith(b"\x7fELF")


def test_what_is_compiled_is_kept(cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compiler.binaries([*made(), *made()], "sm_90")
    assert first[0] == first[1]
    assert [(entry.kind, entry.path.suffix) for entry in disk_cache.entries()] == [("compiled kernel", ".cubin")]
    with monkeypatch.context() as patch:
        patch.setattr(nvrtc, "results", lambda requests: [{"image": b"never"}] * len(requests))
        assert compiler.binaries(made(), "sm_90") == first[:1]
        assert compiler.binaries(made(), "sm_80") == [replace(first[0], image=b"never")]  # another architecture
    assert len(disk_cache.clear()) == 2
    assert disk_cache.entries() == []


def test_several_processes_compile(cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    plain = compiler._in_process

    def counted(of: compiler.Compiler, requests: list[tuple[str, Any]]) -> list[compiler.Result]:
        asked.append(len(requests))
        return plain(of, requests)

    monkeypatch.setattr(compiler, "processors", lambda: 2)
    monkeypatch.setattr(compiler, "_in_process", counted)
    many = [
        kernel for size in range(2 * compiler.COMPILERS[""].min_a_process + 1) for kernel in made(shape=(64 + size, 3))
    ]
    binaries = compiler.binaries(many, "sm_90")
    assert sorted(asked) == [6, 7]
    monkeypatch.setenv("OPWEAVE_CACHE", str(cached) + "-other")
    for kernel, binary in zip(many[:2], binaries, strict=False):
        assert compiler.binaries([kernel], "sm_90") == [binary]


def test_a_kernel_that_does_not_compile(cached: Path) -> None:
    (kernel,) = made()
    wrong = replace(kernel, title="sin 's'", source=kernel.source.replace("let flat =", "let flat = undeclared +"))
    with pytest.raises(ow.OperationError) as caught:
        compiler.binaries([wrong], "sm_90")
    number = wrong.source.splitlines().index("    let flat = undeclared + global.x;") + 1
    assert str(caught.value) == (
        f"sin 's': line {number}: identifier \"undeclared\" is undefined: let flat = undeclared + global.x;"
    )
    assert disk_cache.entries() == []


def test_an_architecture_that_does_not_exist(cached: Path) -> None:
    with pytest.raises(ow.OperationError, match="NVRTC_ERROR_INVALID_OPTION"):
        compiler.binaries(made(), "sm_1")


# ---------------------------------------------------------------------------------------------------------------------
# Triton

TRITON = """
import triton
import triton.language as tl

TYPES = {"x": "fp32", "y": "fp32"}


@triton.jit
def opweave_kernel(x, y):
    line, column = tl.arange(0, 64)[:, None], tl.arange(0, 64)[None, :]
    matrix = tl.load(x + line * 64 + column)
    tl.store(y + line * 64 + column, tl.dot(matrix, matrix, input_precision="tf32x3"))
"""

needs_triton = pytest.mark.skipif(not compiler.triton_version(), reason="needs triton: make test-cuda")


def product(source: str = TRITON, max_shared: int = 99 << 10) -> Kernel:
    buffers = tuple(ir.Input(k, Desc("float32", (64, 64))) for k in range(2))
    options = (("max_shared", max_shared), ("num_stages", 3), ("num_warps", 4))
    return Kernel(
        "a product",
        source,
        buffers,
        (False, True),
        (1, 1, 1),
        "opweave_kernel",
        invocations=(128,),
        compiler="triton",
        options=options,
    )


@needs_triton
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_triton(architecture: str, cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (first, _) = compiler.binaries([product(), *made()], architecture)
    assert first.image.startswith(b"\x7fELF")
    assert (first.entry_point, first.invocations, first.trailing) == ("opweave_kernel", (128, 1, 1), 2)
    assert 0 < first.shared <= 99 << 10
    assert "triton" not in sys.modules
    monkeypatch.setattr(compiler, "_in_process", None)
    assert compiler.binaries([product()], architecture) == [first]


@needs_triton
def test_what_triton_refuses(cached: Path) -> None:
    with pytest.raises(ow.OperationError, match=r"(?s)a product: CompilationError: .*undeclared is not defined"):
        compiler.binaries([product(TRITON.replace("line * 64", "undeclared * 64"))], "sm_90")
    with pytest.raises(ow.OperationError, match=r"a product: ValueError: \d+ bytes of shared memory, 64 are allowed"):
        compiler.binaries([product(max_shared=64)], "sm_90")
    assert disk_cache.entries() == []


def test_arguments_as_the_driver_takes_them() -> None:
    values, pointers = nvidia._arguments([0x1234, np.float32(1.5).tobytes(), b"0123456789abcdef", 2**63])
    assert pointers[0] == values.ctypes.data
    assert not (pointers % 16).any()
    read = [
        bytes((ctypes.c_char * size).from_address(int(at))) for at, size in zip(pointers, (8, 4, 16, 8), strict=True)
    ]
    assert read == [
        (0x1234).to_bytes(8, sys.byteorder),
        np.float32(1.5).tobytes(),
        b"0123456789abcdef",
        (2**63).to_bytes(8, sys.byteorder),
    ]
