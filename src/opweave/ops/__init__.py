"""The 95 operations of the specification, and those of drafts, one file for each family.

`docs.py` adds sentences that their docstrings share.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..core.operation import Op
from ..core.operators import Operators
from ..support.hints import operation
from . import (  # noqa: F401  (`_FAMILIES` below)
    activation,
    convolution,
    dynamic,
    elementwise,
    indexing,
    logical,
    matrix,
    movement,
    normalization,
    pooling,
    quantization,
    recurrent,
    reduction,
)
from .docs import complete
from .operations import Operations as Operations

if TYPE_CHECKING:
    from .signatures import *  # noqa: F403  (the operations, with exact signatures)


def __getattr__(name: str) -> Any:
    hint = "" if name.startswith("_") else operation(name, Operations.listing())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")


_FAMILIES = [value for value in globals().values() if isinstance(value, ModuleType)]
_NAMES = """
arg_min arg_max batch_normalization cast clamp concat conv2d conv_transpose2d cumulative_sum
add sub mul div max min pow
equal not_equal greater greater_or_equal lesser lesser_or_equal
logical_not logical_and logical_or logical_xor is_nan is_infinite
abs ceil cos erf exp floor identity log neg reciprocal round_even sin sign sqrt tan
dequantize_linear quantize_linear elu expand gather gather_elements gather_nd gelu gemm
gru gru_cell hard_sigmoid hard_swish instance_normalization layer_normalization leaky_relu linear lstm lstm_cell
matmul pad average_pool2d l2_pool2d max_pool2d prelu
reduce_l1 reduce_l2 reduce_log_sum reduce_log_sum_exp reduce_max reduce_mean reduce_min reduce_product
reduce_sum reduce_sum_square
relu resample2d reshape reverse scatter_elements scatter_nd sigmoid slice softmax softplus softsign split tanh
tile transpose triangular where
"""  # in the order of the specification
_NAMES_OF_DRAFTS = """
modulus_floor modulus_truncate
shape range squeeze unsqueeze reshape_to_2d
reshape_dynamic expand_dynamic slice_dynamic pad_dynamic split_dynamic resample2d_dynamic tile_dynamic
"""  # methods of builders alone: operands and arrays have a property `shape`
_DECLARED = {name: value for family in _FAMILIES for name, value in vars(family).items() if isinstance(value, Op)}
_LISTING = {name: _DECLARED[name] for name in _NAMES.split()}


def _method(op: Op[..., Any]) -> Callable[..., Any]:
    def method(self: Operators, /, *args: Any, **kwargs: Any) -> Any:
        return self._apply(op.name, self, *args, **kwargs)

    method.__name__, method.__doc__ = op.name, op.__doc__
    method.__signature__ = op.__signature__.replace(  # type: ignore[attr-defined]
        parameters=list(op.__signature__.parameters.values())[1:]
    )
    return method


class _LateMethod:
    """A method of operands and arrays, which replaces this when it is first read: programs call few of them."""

    def __init__(self, op: Op[..., Any]) -> None:
        self._op = op

    def __get__(self, instance: Operators | None, owner: type) -> Any:
        method = _method(self._op)
        setattr(Operators, self._op.name, method)
        return method.__get__(instance, owner)


globals().update(_LISTING)  # type checkers read the names in `signatures`
for _name, _op in _LISTING.items():
    complete(_op)
    setattr(Operations, _name, _op)
    if _op.positional[0] not in _op.sequences:
        setattr(Operators, _name, _LateMethod(_op))
_MOVES = """
expand gather gather_elements gather_nd identity pad reshape reverse scatter_elements scatter_nd slice split squeeze tile
transpose triangular unsqueeze
"""
_NARROW: dict[str, tuple[str, ...]] = dict.fromkeys(_MOVES.split(), ("input",)) | {
    "cast": ("input", "output"),
    "concat": ("inputs",),
    "dequantize_linear": ("input",),
    "quantize_linear": ("zero_point", "output"),
    "where": ("true_value",),
}
"""Operands and results that may have narrow types: of operations that move elements, cast and (de)quantise."""
for _name, _operands in _NARROW.items():
    _DECLARED[_name].narrow = frozenset(_operands)
for _name in _NAMES_OF_DRAFTS.split():
    _op = _DECLARED[_name]
    _op.is_draft = True
    complete(_op)
    setattr(Operations, _name, _op)


def __dir__() -> list[str]:
    return [*(name for name in globals() if name.startswith("__")), *_LISTING]
