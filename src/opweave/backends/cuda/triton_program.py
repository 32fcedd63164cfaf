"""Compile Triton kernels to binaries, which needs no GPU.

`fork_server` runs this file in separate processes, because Triton's LLVM and that of Mesa's drivers crash a process that loads
both. It imports nothing of Opweave. The ABI is that of Triton 3.3 and later: the arguments are pointers aligned to 16 bytes,
then pointers to scratch memory.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def result(request: tuple[str, Mapping[str, int]]) -> dict[str, Any] | str:
    """Compile a source that defines a kernel `opweave_kernel`; return the fields of `Compiled`, or the text of the error.

    The options are "architecture", "arguments" (number of pointers and sizes), "max_shared" (bytes), "num_warps", "num_stages"
    and "starts_early" (whether the kernel may start while the previous one ends).
    """
    try:
        with tempfile.TemporaryDirectory(prefix="opweave-triton-") as folder:
            return _compile(*request, Path(folder))
    except Exception as error:  # Triton raises errors of many types
        return _text_of(error)


def _text_of(error: BaseException) -> str:
    """The text of an error, and of the error in the innermost Triton function that caused it, which says what is wrong."""
    text, inner = f"{type(error).__name__}: {error}", error
    while inner.__cause__ is not None:
        inner = inner.__cause__
    return text if inner is error else f"{text}\n{type(inner).__name__}: {inner}"


def prepare() -> None:
    """Load Triton, with the modules that the first kernel needs.

    No kernel is compiled here: requests would have to wait, and the next kernel would compile hardly faster.
    """
    import triton.compiler.compiler
    from triton import knobs

    # Triton runs each of its assemblers once per process for its version; Hopper and later have a separate one.
    names = ("ptxas", "ptxas_blackwell")
    asking = [threading.Thread(target=getattr, args=(knobs.nvidia, name, None)) for name in names]
    for thread in asking:
        thread.start()
    import triton.compiler.code_generator

    for thread in asking:
        thread.join()
    # Replace Triton's cache keys, which hash all files of Triton, one of 500 MB: its cache is deleted after one kernel here.
    # If a version of Triton does not call this function, compiling is slower, not wrong.
    numbers = itertools.count()
    triton.compiler.compiler.get_cache_key = lambda *_, **__: str(next(numbers))
    # Line information would be two thirds of a binary, about a file that is deleted after compiling.
    os.environ["TRITON_DISABLE_LINE_INFO"] = "1"


VECTORS = 100
"""First architecture with vector instructions for float32: Blackwell."""


def _skip_vectorizer() -> None:
    """Disable LLVM's SLP vectorizer, in the process of a kernel: it takes up to a tenth of the time.

    Before `VECTORS`, only 16-bit numbers have vector instructions. Values are float32 here, and Triton vectorises loads and
    stores itself, so only some index arithmetic would gain. Versions of Triton without this argument, which exists for sm_80,
    compile as before.
    """
    from triton.backends.nvidia import compiler

    optimize, name = compiler.llvm.optimize_module, "disable_slp_vectorizer"
    if name in (optimize.__doc__ or ""):
        compiler.llvm.optimize_module = lambda *arguments, **named: optimize(*arguments, **{**named, name: True})


def _compile(source: str, options: Mapping[str, int], folder: Path) -> dict[str, Any]:
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    if options["architecture"] < VECTORS:
        _skip_vectorizer()
    os.environ["TRITON_CACHE_DIR"] = str(folder / "cache")
    file = folder / "kernel.py"  # Triton reads the text of functions from their file
    file.write_text(source, "utf-8")
    spec = importlib.util.spec_from_file_location("opweave_triton", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    vars(module)["STARTS_EARLY"] = tl.constexpr(options["starts_early"])
    kernel = module.opweave_kernel
    count = options["arguments"]
    # "=i32" is a number, "=i32:4" a multiple of 4. Other types are those of arrays, whose addresses are multiples of 16.
    types = [module.TYPES[name] for name in kernel.arg_names]
    texts = [type[1:].partition(":")[0] if type.startswith("=") else f"*{type}" for type in types]
    signature = dict(zip(kernel.arg_names, texts, strict=True))
    if len(signature) != count:
        raise ValueError(f"the kernel must take {count} arguments, it takes {len(signature)}")
    multiples = (int(type.partition(":")[2] or 1) if type.startswith("=") else 16 for type in types)
    aligned = {(number,): [["tt.divisibility", multiple]] for number, multiple in enumerate(multiples) if multiple > 1}
    target = GPUTarget("cuda", options["architecture"], 32)
    stages = options["num_stages"]
    while True:
        # Only tensor cores and calls of `fma` fuse products and sums, so that other code has the same results everywhere.
        # Triton's overflow checks for integers are for its debug mode, and would be discarded.
        compile_options = {
            "num_warps": options["num_warps"],
            "num_stages": stages,
            "enable_fp_fusion": False,
            "sanitize_overflow": False,
        }
        compiled = triton.compile(ASTSource(kernel, signature, attrs=aligned), target=target, options=compile_options)
        if compiled.metadata.shared <= options["max_shared"] or stages == 1:
            break
        # Each stage holds the operands of one step in shared memory.
        stages -= 1
    data = compiled.metadata
    if data.shared > options["max_shared"]:
        raise ValueError(f"{data.shared} bytes of shared memory, {options['max_shared']} are allowed")
    if data.global_scratch_size or data.profile_scratch_size or data.num_ctas != 1:
        raise ValueError("kernels with scratch memory, or clusters, are not supported")
    parameters = re.search(r"\.entry [^(]*\((.*?)\)", compiled.asm["ptx"], re.DOTALL)
    assert parameters is not None
    return {
        "image": compiled.asm["cubin"],
        "entry_point": data.name,
        "invocations": (32 * data.num_warps, 1, 1),
        "shared": data.shared,
        "trailing": parameters[1].count(".param") - count,
    }
