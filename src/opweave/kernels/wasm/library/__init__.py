"""Ready-made kernels: float32, in portable WebAssembly with SIMD, built from `kernels.c` by `tools/build_wasm.py`.

    module = library.load()
    relu6.kernel("wasm", module, "relu", signature=library.SIGNATURES["relu"])

The signatures use the parameter names of the WebNN operation of the same name, or `x` if there is none. Layouts are
nchw and oihw.
"""

from __future__ import annotations

from pathlib import Path

from ..loader import TIMEOUT, load as load_module
from ..module import Module

PATH = Path(__file__).parent / "kernels.wasm"
"""The module file, to load it with other options than `load` has."""

SIGNATURES: dict[str, str] = {
    "add": "a*:float32, b*:float32, out*, out.size",
    "relu": "input*:float32, out*, out.size",
    "conv2d": "input*:float32, filter*:float32, bias*:float32, out*, input.shape[0], input.shape[1], input.shape[2], "
    "input.shape[3], filter.shape[0], filter.shape[2], filter.shape[3], out.shape[2], out.shape[3], padding[0], padding[2], "
    "strides[0], strides[1], dilations[0], dilations[1], groups",
    "box3": "x*:float32, out*, x.outer[-2], x.shape[-2], x.shape[-1]",
    "rgb_to_ycbcr": "x*:float32, out*, x.outer[-3], x.strides[-3]",
    "ycbcr_to_rgb": "x*:float32, out*, x.outer[-3], x.strides[-3]",
    "top_k": "x*:float32, out0*:float32, out1*:int32, x.outer[-1], x.shape[-1], k",
}
"""The signature of each kernel.

`add` takes two tensors of the same shape. `box3` is the mean of 3 × 3 windows over the last two axes, without padding.
The colour conversions are full-range ITU-R BT.601 in [0, 1], for `[..., 3, height, width]`. `top_k` returns values in
descending order, and int32 indices.
"""


def load(*, memory_limit: int | None = None, timeout: float | None = TIMEOUT) -> Module:
    """Load the library into a new memory; for the options see `opweave.wasm.load`."""
    return load_module(PATH, memory_limit=memory_limit, timeout=timeout)
