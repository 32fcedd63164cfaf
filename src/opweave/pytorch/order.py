"""The order in which Mesa and Triton are loaded: each has an LLVM, and the second one to be loaded may end the process."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.util import find_spec

from ..support.errors import OperationError

DRIVERS = ("libvulkan_lvp", "libLLVM", "swrast_dri", "libgallium")
"""Parts of the names of libraries that Mesa loads with its LLVM."""


def mapped_libraries() -> Iterable[str]:
    """The paths of the libraries in this process; none on systems other than Linux."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            return {line.split(maxsplit=5)[5].strip() for line in file if line.count(" ") > 4 and "/" in line}
    except OSError:
        return ()


def check_order() -> None:
    """Import Triton before PyTorch does, or raise an error where that would end the process.

    Mesa's LLVM may follow Triton's, but not the other way round: after `wgpu` has opened an adapter of Mesa, an import of
    Triton, as by `torch.export` and `torch.compile`, ends the process without a message.

    Raises:
        OperationError: Mesa's LLVM is loaded, and Triton is installed, but not imported.
    """
    if "triton" in sys.modules or find_spec("triton") is None:
        return
    loaded = sorted(path for path in mapped_libraries() if any(name in path for name in DRIVERS))
    if loaded:
        raise OperationError(
            f"from_torch: PyTorch would import Triton, which ends a process that has loaded Mesa's LLVM ({loaded[0]}); put "
            "`import triton` before the first context on a WebGPU device, or `pip uninstall triton` if you do not use it"
        )
    try:
        import triton  # noqa: F401
    except Exception:  # a broken Triton is PyTorch's own matter, which says so
        return
