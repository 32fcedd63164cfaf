"""Operations beyond the specification that Opweave includes: named compositions of its operations.

Engines that have a kernel for a composite use it; otherwise the composite is decomposed. Composites are called like custom
operations: with operands, `swiglu(gate, x)` adds a node to their graph; with arrays or tensors, it computes.

>>> import numpy as np
>>> from opweave import composites
>>> print(composites.log_softmax(np.float32([0, 0])).round(3))
[-0.693 -0.693]
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..core.operation import Op
from ..support.hints import operation
from ..support.lazy_imports import composite_names

if TYPE_CHECKING:
    from .activation import (
        fast_gelu as fast_gelu,
        geglu as geglu,
        quick_gelu as quick_gelu,
        swiglu as swiglu,
        thresholded_relu as thresholded_relu,
    )
    from .attention import (
        group_query_attention as group_query_attention,
        multi_head_attention as multi_head_attention,
        scaled_dot_product_attention as scaled_dot_product_attention,
    )
    from .bits import (
        bit_cast as bit_cast,
        bitwise_and as bitwise_and,
        bitwise_not as bitwise_not,
        bitwise_or as bitwise_or,
        bitwise_xor as bitwise_xor,
        shift_left as shift_left,
        shift_right as shift_right,
    )
    from .convolve import (
        col2im as col2im,
        conv_transpose as conv_transpose,
        convolution as convolution,
        deform_conv as deform_conv,
    )
    from .cumulative import (
        cumulative_product as cumulative_product,
    )
    from .elementary import (
        acos as acos,
        acosh as acosh,
        asin as asin,
        asinh as asinh,
        atan as atan,
        atanh as atanh,
        cosh as cosh,
        erf_inv as erf_inv,
        expm1 as expm1,
        log1p as log1p,
        sinh as sinh,
    )
    from .fourier import (
        dft as dft,
        stft as stft,
    )
    from .grid import (
        affine_grid as affine_grid,
        grid_sample as grid_sample,
    )
    from .integers import (
        integer_conv2d as integer_conv2d,
        integer_matmul as integer_matmul,
    )
    from .linear_algebra import (
        det as det,
        inverse as inverse,
    )
    from .movement import (
        center_crop_pad as center_crop_pad,
        depth_to_space as depth_to_space,
        space_to_depth as space_to_depth,
    )
    from .normalization import (
        group_normalization as group_normalization,
        local_response_normalization as local_response_normalization,
        log_softmax as log_softmax,
        rms_norm as rms_norm,
        rms_normalization as rms_normalization,
        skip_layer_norm as skip_layer_norm,
        skip_rms_norm as skip_rms_norm,
    )
    from .placement import (
        compress as compress,
        non_zero as non_zero,
        tensor_scatter as tensor_scatter,
        unique as unique,
    )
    from .pool import (
        average_pool as average_pool,
        lp_pool as lp_pool,
        max_pool as max_pool,
        max_pool_with_indices as max_pool_with_indices,
        max_unpool as max_unpool,
    )
    from .quantization import (
        gather_n_bits as gather_n_bits,
        matmul_n_bits as matmul_n_bits,
        pack_bits as pack_bits,
        pack_blocks as pack_blocks,
    )
    from .quantized import (
        dequantized_matmul as dequantized_matmul,
        dynamic_quantize_linear as dynamic_quantize_linear,
        quantized_add as quantized_add,
        quantized_conv2d as quantized_conv2d,
        quantized_leaky_relu as quantized_leaky_relu,
        quantized_matmul as quantized_matmul,
        quantized_mean as quantized_mean,
        quantized_mul as quantized_mul,
        quantized_sigmoid as quantized_sigmoid,
    )
    from .random import (
        bernoulli as bernoulli,
        multinomial as multinomial,
        random_key as random_key,
        random_normal as random_normal,
        random_uniform as random_uniform,
    )
    from .recurrences import (
        causal_conv_with_state as causal_conv_with_state,
        leaky_integrator as leaky_integrator,
        linear_attention as linear_attention,
        selective_scan as selective_scan,
    )
    from .recurrent import (
        ragged_gru as ragged_gru,
        ragged_lstm as ragged_lstm,
    )
    from .regions import (
        crop_and_resize as crop_and_resize,
        max_roi_pool as max_roi_pool,
        roi_align as roi_align,
    )
    from .requantized import (
        quantized_concat as quantized_concat,
    )
    from .resizing import (
        resize as resize,
    )
    from .rotary import (
        rotary_embedding as rotary_embedding,
    )
    from .scatter import (
        scatter_reduce as scatter_reduce,
    )
    from .selection import (
        hard_max as hard_max,
        one_hot as one_hot,
        top_k as top_k,
    )
    from .single_gate import (
        rnn as rnn,
    )
    from .suppression import (
        non_max_suppression as non_max_suppression,
    )

_HOMES: Mapping[str, tuple[str, ...]] = {
    ".activation": ("fast_gelu", "geglu", "quick_gelu", "swiglu", "thresholded_relu"),
    ".attention": ("group_query_attention", "multi_head_attention", "scaled_dot_product_attention"),
    ".bits": ("bit_cast", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "shift_left", "shift_right"),
    ".convolve": ("col2im", "conv_transpose", "convolution", "deform_conv"),
    ".cumulative": ("cumulative_product",),
    ".elementary": ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "erf_inv", "expm1", "log1p", "sinh"),
    ".fourier": ("dft", "stft"),
    ".grid": ("affine_grid", "grid_sample"),
    ".integers": ("integer_conv2d", "integer_matmul"),
    ".linear_algebra": ("det", "inverse"),
    ".movement": ("center_crop_pad", "depth_to_space", "space_to_depth"),
    ".normalization": (
        "group_normalization",
        "local_response_normalization",
        "log_softmax",
        "rms_norm",
        "rms_normalization",
        "skip_layer_norm",
        "skip_rms_norm",
    ),
    ".placement": ("compress", "non_zero", "tensor_scatter", "unique"),
    ".pool": ("average_pool", "lp_pool", "max_pool", "max_pool_with_indices", "max_unpool"),
    ".quantization": ("gather_n_bits", "matmul_n_bits", "pack_bits", "pack_blocks"),
    ".quantized": (
        "dequantized_matmul",
        "dynamic_quantize_linear",
        "quantized_add",
        "quantized_conv2d",
        "quantized_leaky_relu",
        "quantized_matmul",
        "quantized_mean",
        "quantized_mul",
        "quantized_sigmoid",
    ),
    ".random": ("bernoulli", "multinomial", "random_key", "random_normal", "random_uniform"),
    ".recurrences": ("causal_conv_with_state", "leaky_integrator", "linear_attention", "selective_scan"),
    ".recurrent": ("ragged_gru", "ragged_lstm"),
    ".regions": ("crop_and_resize", "max_roi_pool", "roi_align"),
    ".requantized": ("quantized_concat",),
    ".resizing": ("resize",),
    ".rotary": ("rotary_embedding",),
    ".scatter": ("scatter_reduce",),
    ".selection": ("hard_max", "one_hot", "top_k"),
    ".single_gate": ("rnn",),
    ".suppression": ("non_max_suppression",),
}
"""Names by module; a module is imported when one of its names is first asked for."""

# A literal, as type checkers need for `import *`; a test compares it with the table.
__all__ = [
    "acos",
    "acosh",
    "affine_grid",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "average_pool",
    "bernoulli",
    "bit_cast",
    "bitwise_and",
    "bitwise_not",
    "bitwise_or",
    "bitwise_xor",
    "causal_conv_with_state",
    "center_crop_pad",
    "col2im",
    "compress",
    "conv_transpose",
    "convolution",
    "cosh",
    "crop_and_resize",
    "cumulative_product",
    "deform_conv",
    "depth_to_space",
    "dequantized_matmul",
    "det",
    "dft",
    "dynamic_quantize_linear",
    "erf_inv",
    "expm1",
    "fast_gelu",
    "gather_n_bits",
    "geglu",
    "grid_sample",
    "group_normalization",
    "group_query_attention",
    "hard_max",
    "integer_conv2d",
    "integer_matmul",
    "inverse",
    "leaky_integrator",
    "linear_attention",
    "local_response_normalization",
    "log1p",
    "log_softmax",
    "lp_pool",
    "matmul_n_bits",
    "max_pool",
    "max_pool_with_indices",
    "max_roi_pool",
    "max_unpool",
    "multi_head_attention",
    "multinomial",
    "non_max_suppression",
    "non_zero",
    "one_hot",
    "pack_bits",
    "pack_blocks",
    "quantized_add",
    "quantized_concat",
    "quantized_conv2d",
    "quantized_leaky_relu",
    "quantized_matmul",
    "quantized_mean",
    "quantized_mul",
    "quantized_sigmoid",
    "quick_gelu",
    "ragged_gru",
    "ragged_lstm",
    "random_key",
    "random_normal",
    "random_uniform",
    "resize",
    "rms_norm",
    "rms_normalization",
    "rnn",
    "roi_align",
    "rotary_embedding",
    "scaled_dot_product_attention",
    "scatter_reduce",
    "selective_scan",
    "shift_left",
    "shift_right",
    "sinh",
    "skip_layer_norm",
    "skip_rms_norm",
    "space_to_depth",
    "stft",
    "swiglu",
    "tensor_scatter",
    "thresholded_relu",
    "top_k",
    "unique",
]


@composite_names.provide
def _names() -> list[str]:
    return __all__


def is_composite(op: Op[..., Any], *names: str) -> bool:
    """Whether an operation is one of the composites of these names; other composites are not imported.

    >>> from opweave import composites, ops
    >>> is_composite(composites.max_pool, "max_pool"), is_composite(ops.matmul, "max_pool", "swiglu")
    (True, False)
    """
    return op.name in names and op is (globals().get(op.name) or __getattr__(op.name))


def __getattr__(name: str) -> Any:
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None and (name.startswith("_") or not name.isidentifier()):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # First: `ops`, `expr` and `custom` import one another. Threads that enter this circle at different modules get
    # parts of modules.
    from .. import ops

    import_module(".declare", __name__)
    if home is not None:
        value = globals()[name] = getattr(import_module(home, __name__), name)
        return value
    if find_spec(f"{__name__}.{name}"):
        return import_module(f".{name}", __name__)
    hint = operation(name, __all__, "opweave.ops.", ops.Operations.listing())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return [*(name for name in globals() if name.startswith("__")), *__all__]
