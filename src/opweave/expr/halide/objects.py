"""Write object files: by Halide, or by llvmlite from Halide's LLVM code."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from ...support.errors import OperationError, import_extra
from .fusion import edit
from .mathematics import hl

llvm = import_extra("llvmlite.binding", "halide", "compiling expressions")
llvm.initialize_native_target()
llvm.initialize_native_asmprinter()

MAX_WRITTEN_BYTES = 2**26
"""Free space to require before Halide writes an object file: Halide ends the process if a write fails."""


def temporary_bytes(write: Callable[[str], object]) -> bytes:
    """Return the contents of the file that `write(path)` writes; `OperationError` if there is not enough space."""
    try:
        _check_file_sizes()
        if hasattr(os, "memfd_create"):  # an anonymous file in memory
            descriptor = os.memfd_create("opweave")
            with os.fdopen(descriptor, "rb") as file:
                write(f"/proc/self/fd/{descriptor}")
                return file.read()
        with tempfile.TemporaryDirectory(prefix="opweave-") as folder:
            free = shutil.disk_usage(folder).free
            if free < MAX_WRITTEN_BYTES:
                raise OSError(errno.ENOSPC, f"{folder} has {free:,} bytes left, and {MAX_WRITTEN_BYTES:,} are wanted")
            path = Path(folder) / "object.o"
            write(str(path))
            return path.read_bytes()
    except OSError as error:
        raise OperationError(f"no room for compiled code: {error.strerror or error}") from None


def _check_file_sizes() -> None:
    """Raise if the process limits file sizes (`ulimit -f`), which also applies to files in memory."""
    try:
        import resource
    except ImportError:  # Windows has no such limits
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit != resource.RLIM_INFINITY and limit < MAX_WRITTEN_BYTES:
        raise OSError(errno.EFBIG, f"files are limited to {limit:,} bytes, and {MAX_WRITTEN_BYTES:,} are wanted")


@cache
def target() -> Any:
    """The Halide target of this machine."""
    return hl.get_host_target().with_feature(hl.TargetFeature.StrictFloat)


def assemble(code: str) -> bytes:
    """Compile LLVM code to an object file; `RuntimeError` if this LLVM cannot parse it."""
    machine = llvm.Target.from_default_triple().create_target_machine(opt=3, reloc="pic", codemodel="default")
    return bytes(machine.emit_object(llvm.parse_assembly(code)))


def object_of(module: Any) -> bytes:
    code = temporary_bytes(partial(_write, module, hl.OutputFileType.llvm_assembly)).decode()
    try:
        return assemble(edit(code))
    except RuntimeError:  # llvmlite's LLVM cannot parse the output of Halide's LLVM
        return temporary_bytes(partial(_write, module, hl.OutputFileType.object))


def _write(module: Any, kind: Any, path: str) -> None:
    module.compile({kind: path})


def compile_runtime() -> bytes:
    return temporary_bytes(lambda path: hl.compile_standalone_runtime(path, hl.get_host_target()))
