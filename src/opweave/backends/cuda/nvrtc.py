"""Compile CUDA C++ with NVRTC, which needs neither a GPU nor a driver.

`fork_server` runs this file in separate processes, because NVRTC compiles one kernel per process at a time. It imports nothing
of Opweave.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class FailedError(Exception):
    """NVRTC rejects a source; the message is its log."""


def version() -> tuple[int, int]:
    from cuda.bindings import nvrtc

    error, major, minor = nvrtc.nvrtcVersion()
    _check(error)
    return major, minor


def architectures() -> list[str]:
    """Return the architectures that NVRTC compiles for."""
    from cuda.bindings import nvrtc

    error, numbers = nvrtc.nvrtcGetSupportedArchs()
    _check(error)
    return [f"sm_{number}" for number in numbers]


def compile_source(source: str, options: Sequence[str]) -> tuple[bytes, str]:
    """Compile to a binary for the architecture in `options`, and return the log, too; raises `FailedError`."""
    from cuda.bindings import nvrtc

    error, program = nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], [])
    _check(error)
    try:
        encoded = [option.encode() for option in options]
        (error,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
        if error == nvrtc.nvrtcResult.NVRTC_ERROR_COMPILATION:
            raise FailedError(_log(program))
        _check(error)
        error, size = nvrtc.nvrtcGetCUBINSize(program)
        _check(error)
        binary = b" " * size
        _check(*nvrtc.nvrtcGetCUBIN(program, binary))
        return binary, _log(program)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _log(program: Any) -> str:
    from cuda.bindings import nvrtc

    error, size = nvrtc.nvrtcGetProgramLogSize(program)
    _check(error)
    if size <= 1:  # only the terminator, which NVRTC would write into Python's shared object for this byte
        return ""
    text = b" " * size
    _check(*nvrtc.nvrtcGetProgramLog(program, text))
    return text.rstrip(b"\0 \n").decode(errors="replace")


def _check(error: Any) -> None:
    if int(error) != 0:
        raise FailedError(f"NVRTC: {error.name}")


def result(request: tuple[str, Sequence[str]]) -> dict[str, Any] | str:
    """Compile a source with options; return the fields `image` and `log` of `CompiledText`, or the text of the error."""
    try:
        image, log = compile_source(*request)
        return {"image": image, "log": log}
    except FailedError as error:
        return str(error)


def prepare() -> None:
    version()
