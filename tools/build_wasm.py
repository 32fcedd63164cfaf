"""Build the WebAssembly library: src/opweave/kernels/wasm/library/kernels.c -> kernels.wasm.

    python tools/build_wasm.py [target]

The compiler is the `ziglang` package (clang and wasm-ld), whose version decides about the bytes; it is pinned in the extra
`dev`, and a test compares what it makes with what is committed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

LIBRARY = Path(__file__).parent.parent / "src" / "opweave" / "kernels" / "wasm" / "library"
FLAGS = [
    "-target",
    "wasm32-freestanding",
    "-mcpu=generic+simd128+relaxed_simd",
    "-std=c17",
    "-O3",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-nostdlib",
    "-fno-builtin",  # there is no memcpy to call
    "-ffp-contract=off",  # products and sums are fused only where the source says so
    "-s",
    "-Wl,--no-entry",
    "-Wl,-z,stack-size=65536",
]


def build(source: Path, target: Path) -> None:
    """Compile one C file into a module; raises `CalledProcessError` after the compiler has said why."""
    # Relative names, and no cache shared with anybody: nothing of this machine gets into the module.
    with tempfile.TemporaryDirectory() as folder:
        cache = {"ZIG_GLOBAL_CACHE_DIR": folder, "ZIG_LOCAL_CACHE_DIR": folder, "PATH": "", "HOME": folder}
        command = [sys.executable, "-m", "ziglang", "cc", *FLAGS, "-o", f"{folder}/kernels.wasm", source.name]
        subprocess.run(command, cwd=source.parent, env=cache, check=True)
        target.write_bytes(Path(folder, "kernels.wasm").read_bytes())


if __name__ == "__main__":
    build(LIBRARY / "kernels.c", Path(sys.argv[1]) if sys.argv[1:] else LIBRARY / "kernels.wasm")
