"""NVRTC, which compiles kernels without a GPU, and the cache of what it has compiled. Run by `make test-cuda`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import cuda_on_cpu
import pytest
import wpt
from cuda_cases import compiled

import opweave as ow
import opweave.expr as ex
from opweave import disk_cache
from opweave.backends.cuda import compiler, devices, nvrtc
from opweave.expr import trace
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
        assert all(binary.startswith(b"\x7fELF") for binary in binaries)


def cases(case: wpt.Case) -> Sequence[Kernel]:
    return compiled(case, cuda_on_cpu.FEATURES).kernels


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_architectures(architecture: str, cached: Path) -> None:
    (binary,) = compiler.binaries(made(), architecture)
    assert binary.startswith(b"\x7fELF")


def test_what_is_compiled_is_kept(cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compiler.binaries([*made(), *made()], "sm_90")
    assert first[0] == first[1]
    assert [(entry.kind, entry.path.suffix) for entry in disk_cache.entries()] == [("compiled kernel", ".cubin")]
    with monkeypatch.context() as patch:
        patch.setattr(nvrtc, "results", lambda requests: [b"never"] * len(requests))
        assert compiler.binaries(made(), "sm_90") == first[:1]
        assert compiler.binaries(made(), "sm_80") == [b"never"]  # another architecture
    assert len(disk_cache.clear()) == 2
    assert disk_cache.entries() == []


def test_several_processes_compile(cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    plain = compiler._in_process

    def counted(requests: list[tuple[str, Sequence[str]]]) -> list[bytes | str]:
        asked.append(len(requests))
        return plain(requests)

    monkeypatch.setattr(compiler, "processors", lambda: 2)
    monkeypatch.setattr(compiler, "_in_process", counted)
    many = [kernel for size in range(2 * compiler.MIN_A_PROCESS + 1) for kernel in made(shape=(64 + size, 3))]
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
