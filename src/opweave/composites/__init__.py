"""Operations beyond the specification that Opweave includes: named compositions of its operations.

Engines that have a kernel for a composite use it; otherwise the composite is decomposed. Composites are called like custom
operations: with operands, `swiglu(gate, x)` adds a node to their graph; with arrays or tensors, it computes.

>>> import numpy as np
>>> from opweave import composites
>>> print(composites.log_softmax(np.float32([0, 0])).round(3))
[-0.693 -0.693]
"""

from __future__ import annotations

from typing import NoReturn

from ..support.hints import operation
from ..support.lazy_imports import composite_names
from .activation import fast_gelu, geglu, quick_gelu, swiglu, thresholded_relu
from .attention import group_query_attention, multi_head_attention, scaled_dot_product_attention
from .bits import bit_cast, bitwise_and, bitwise_not, bitwise_or, bitwise_xor, shift_left, shift_right
from .convolve import col2im, conv_transpose, convolution, deform_conv
from .cumulative import cumulative_product
from .elementary import acos, acosh, asin, asinh, atan, atanh, cosh, erf_inv, expm1, log1p, sinh
from .fourier import dft, stft
from .grid import affine_grid, grid_sample
from .integers import integer_conv2d, integer_matmul
from .linear_algebra import det, inverse
from .movement import center_crop_pad, depth_to_space, space_to_depth
from .normalization import (
    group_normalization,
    local_response_normalization,
    log_softmax,
    rms_norm,
    rms_normalization,
    skip_layer_norm,
    skip_rms_norm,
)
from .placement import compress, non_zero, tensor_scatter, unique
from .pool import average_pool, lp_pool, max_pool, max_pool_with_indices, max_unpool
from .quantization import gather_n_bits, matmul_n_bits, pack_bits, pack_blocks
from .quantized import (
    dequantized_matmul,
    dynamic_quantize_linear,
    quantized_add,
    quantized_conv2d,
    quantized_leaky_relu,
    quantized_matmul,
    quantized_mean,
    quantized_mul,
    quantized_sigmoid,
)
from .random import bernoulli, multinomial, random_key, random_normal, random_uniform
from .recurrences import causal_conv_with_state, leaky_integrator, linear_attention, selective_scan
from .recurrent import ragged_gru, ragged_lstm
from .regions import crop_and_resize, max_roi_pool, roi_align
from .requantized import quantized_concat
from .resizing import resize
from .rotary import rotary_embedding
from .scatter import scatter_reduce
from .selection import hard_max, one_hot, top_k
from .single_gate import rnn
from .suppression import non_max_suppression

__all__ = [
    "acos", "acosh", "affine_grid", "asin", "asinh", "atan", "atanh", "average_pool", "bernoulli", "bit_cast",
    "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "causal_conv_with_state", "center_crop_pad", "col2im",
    "compress", "conv_transpose", "convolution", "cosh", "crop_and_resize", "cumulative_product", "deform_conv",
    "depth_to_space", "dequantized_matmul", "det", "dft", "dynamic_quantize_linear", "erf_inv", "expm1", "fast_gelu",
    "gather_n_bits", "geglu", "grid_sample", "group_normalization", "group_query_attention", "hard_max",
    "integer_conv2d", "integer_matmul", "inverse", "leaky_integrator", "linear_attention",
    "local_response_normalization", "log1p", "log_softmax", "lp_pool", "matmul_n_bits", "max_pool",
    "max_pool_with_indices", "max_roi_pool", "max_unpool", "multi_head_attention", "multinomial", "non_max_suppression",
    "non_zero", "one_hot", "pack_bits", "pack_blocks", "quantized_add", "quantized_concat", "quantized_conv2d",
    "quantized_leaky_relu", "quantized_matmul", "quantized_mean", "quantized_mul", "quantized_sigmoid", "quick_gelu",
    "ragged_gru", "ragged_lstm", "random_key", "random_normal", "random_uniform", "resize", "rms_norm",
    "rms_normalization", "rnn", "roi_align", "rotary_embedding", "scaled_dot_product_attention", "scatter_reduce",
    "selective_scan", "shift_left", "shift_right", "sinh", "skip_layer_norm", "skip_rms_norm", "space_to_depth", "stft",
    "swiglu", "tensor_scatter", "thresholded_relu", "top_k", "unique",
]  # fmt: skip


@composite_names.provide
def _names() -> list[str]:
    return __all__


def __getattr__(name: str) -> NoReturn:
    from .. import ops

    hint = "" if name.startswith("_") else operation(name, __all__, "opweave.ops.", ops.Operations.listing())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return [*(name for name in globals() if name.startswith("__")), *__all__]
