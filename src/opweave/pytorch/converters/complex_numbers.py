"""Complex numbers: operands with a last axis of 2, the real and the imaginary part, and Fourier transforms.

Calls with a complex argument or result have separate converters (`converts_complex`): converters of real numbers would take
the parts for an axis of the tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree

from ... import composites
from ...context.builder import MLGraphBuilder
from ...core.dtypes import DataType
from ...core.graph import MLOperand
from ...core.shapes import broadcast
from ..registry import (
    CONVERTERS,
    AtenCall,
    NotConvertible,
    as_type,
    axis_of,
    converts,
    converts_complex,
    refuse_if,
)
from ..tensors import PARTS, data_type_of
from .elementwise import arc_tangent, length_of
from .padding import pad_evenly


@dataclass(frozen=True)
class Complex:
    """A complex tensor as its parts; `imaginary` is None for real numbers."""

    real: MLOperand
    imaginary: MLOperand | None


def _is_complex(meta: Any) -> bool:
    return isinstance(meta, torch.Tensor) and meta.dtype in PARTS


def _kind(call: AtenCall) -> DataType:
    """The data type of the parts: the widest one of the call."""
    metas = _pytree.tree_leaves([list(call.arguments), call.value])
    widest = max((meta.dtype for meta in metas if _is_complex(meta)), key=lambda dtype: dtype.itemsize)
    return data_type_of(widest, f"an operand of {call.name}")


def parts_of(b: MLGraphBuilder, x: MLOperand) -> Complex:
    """Split a complex operand."""
    real, imaginary = b.split(x, 2, axis=x.rank - 1)
    return Complex(b.reshape(real, x.shape[:-1]), b.reshape(imaginary, x.shape[:-1]))


def _read(b: MLGraphBuilder, value: Any, meta: Any, kind: DataType) -> Complex:
    """An argument as its parts."""
    if isinstance(value, complex):
        return Complex(as_type(b, value.real, kind), as_type(b, value.imag, kind))
    if not _is_complex(meta):
        return Complex(as_type(b, value, kind), None)
    parts = parts_of(b, value)
    assert parts.imaginary is not None
    return Complex(as_type(b, parts.real, kind), as_type(b, parts.imaginary, kind))


def join(b: MLGraphBuilder, x: Complex) -> MLOperand:
    """The operand of a complex tensor."""
    imaginary = as_type(b, 0, x.real.data_type) if x.imaginary is None else x.imaginary
    shape = broadcast(x.real.shape, imaginary.shape)
    columns = [
        b.reshape(part if part.shape == shape else b.expand(part, shape), [*shape, 1]) for part in (x.real, imaginary)
    ]
    return b.concat(columns, len(shape))


def _sum(b: MLGraphBuilder, x: Any, y: Any) -> Any:
    """A sum in which None is 0."""
    return b.add(x, y) if x is not None and y is not None else x if y is None else y


def _difference(b: MLGraphBuilder, x: Any, y: Any) -> Any:
    return x if y is None else b.neg(y) if x is None else b.sub(x, y)


def _product(b: MLGraphBuilder, x: Complex, y: Complex, multiply: Callable[..., Any]) -> Complex:
    """A product by a bilinear operation on the parts."""

    def times(a: Any, c: Any) -> Any:
        return None if a is None or c is None else multiply(a, c)

    real = _difference(b, times(x.real, y.real), times(x.imaginary, y.imaginary))
    imaginary = _sum(b, times(x.real, y.imaginary), times(x.imaginary, y.real))
    return Complex(real, imaginary)


def _add(b: MLGraphBuilder, x: Complex, y: Complex) -> Complex:
    return Complex(_sum(b, x.real, y.real), _sum(b, x.imaginary, y.imaginary))


def _subtract(b: MLGraphBuilder, x: Complex, y: Complex) -> Complex:
    return Complex(_difference(b, x.real, y.real), _difference(b, x.imaginary, y.imaginary))


def _multiply(b: MLGraphBuilder, x: Complex, y: Complex) -> Complex:
    return _product(b, x, y, b.mul)


def _divide(b: MLGraphBuilder, x: Complex, y: Complex) -> Complex:
    if y.imaginary is None:
        return Complex(b.div(x.real, y.real), None if x.imaginary is None else b.div(x.imaginary, y.real))
    # Both are divided by the larger part of the divisor, whose square may be infinite.
    size = b.max(b.abs(y.real), b.abs(y.imaginary))
    scaled = Complex(b.div(y.real, size), b.neg(b.div(y.imaginary, size)))
    assert scaled.imaginary is not None
    square = b.add(b.mul(scaled.real, scaled.real), b.mul(scaled.imaginary, scaled.imaginary))
    over = b.mul(square, size)
    result = _product(b, x, scaled, b.mul)
    assert result.imaginary is not None
    return Complex(b.div(result.real, over), b.div(result.imaginary, over))


_ARITHMETIC: dict[str, Callable[..., Complex]] = {"add": _add, "sub": _subtract, "mul": _multiply, "div": _divide}


def _arithmetic(compute: Callable[..., Complex], *, reverses: bool = False) -> Callable[..., MLOperand]:
    def convert(b: MLGraphBuilder, self: Any, other: Any, alpha: Any = 1, *, call: AtenCall) -> MLOperand:
        kind = _kind(call)
        x, y = (_read(b, value, meta, kind) for value, meta in zip((self, other), call.arguments, strict=False))
        x, y = (y, x) if reverses else (x, y)
        if not (isinstance(alpha, (int, float)) and alpha == 1):
            y = _multiply(b, y, _read(b, alpha, None, kind))
        return join(b, compute(b, x, y))

    return convert


for _name, _compute in _ARITHMETIC.items():
    converts_complex(f"aten.{_name}.Tensor", f"aten.{_name}.Scalar")(_arithmetic(_compute))
converts_complex("aten.rsub.Tensor", "aten.rsub.Scalar")(_arithmetic(_subtract, reverses=True))


def _products(name: str) -> Callable[..., MLOperand]:
    """The converter of a product whose converter for real numbers is `name`'s."""

    def convert(b: MLGraphBuilder, self: MLOperand, other: MLOperand, *, call: AtenCall) -> MLOperand:
        kind = _kind(call)
        x, y = (_read(b, value, meta, kind) for value, meta in zip((self, other), call.arguments, strict=True))
        return join(b, _product(b, x, y, lambda a, c: _on_parts(b, call, a, c)))

    return convert


for _name in ("matmul", "mm", "bmm", "mv", "dot"):
    converts_complex(f"aten.{_name}.default")(_products(_name))


def _on_parts(b: MLGraphBuilder, call: AtenCall, *args: Any, **kwargs: Any) -> Any:
    """Call the converter for real numbers."""
    if call.name not in CONVERTERS:
        raise NotConvertible(f"{call.name} has no converter for complex numbers")
    function, takes_call = CONVERTERS[call.name]
    return function(b, *args, **kwargs, **({"call": call} if takes_call else {}))


# Calls that treat both parts alike ------------------------------------------------------------------------------------

_VALUES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(
        (
            "alias.default", "alias_copy.default", "clone.default", "contiguous.default", "detach.default",
            "detach_copy.default", "lift_fresh.default", "lift_fresh_copy.default", "positive.default", "resolve_conj.default",
            "resolve_neg.default", "view.default", "reshape.default", "_unsafe_view.default", "view_copy.default",
            "flatten.using_ints", "unflatten.int", "unsqueeze.default", "squeeze.default", "squeeze.dim", "squeeze.dims",
            "permute.default", "transpose.int", "swapaxes.default", "swapdims.default", "t.default", "numpy_T.default",
            "movedim.int", "movedim.intlist", "moveaxis.int", "moveaxis.intlist", "mT.default", "expand.default",
            "broadcast_to.default", "split.Tensor", "split.sizes", "split_with_sizes.default", "chunk.default", "unbind.int",
            "repeat.default", "tile.default", "repeat_interleave.self_int", "flip.default", "roll.default", "slice.Tensor",
            "narrow.default", "select.int", "index_select.default", "gather.default", "index.Tensor", "unfold.default",
            "diagonal.default", "tril.default", "triu.default", "embedding.default", "take.default", "neg.default",
            "sum.default", "sum.dim_IntList", "mean.default", "mean.dim", "cumsum.default", "zeros_like.default",
            "empty_like.default", "new_zeros.default", "new_empty.default", "as_strided.default", "zero.default",
        ),
        (0,),
    ),
    **dict.fromkeys(("cat.default", "concat.default", "stack.default"), (0,)),
    **dict.fromkeys(("slice_scatter.default", "select_scatter.default", "expand_as.default", "view_as.default"), (0, 1)),
    **dict.fromkeys(("masked_fill.Scalar", "masked_fill.Tensor", "constant_pad_nd.default", "new_full.default"), (0, 2)),
    **dict.fromkeys(("index_put.default", "_unsafe_index_put.default"), (0, 2)),
    **dict.fromkeys(("scatter.src", "scatter_add.default", "index_copy.default", "index_add.default"), (0, 3)),
    **dict.fromkeys(("full_like.default", "fill.Scalar"), (0, 1)),
    "full.default": (1,),
    **dict.fromkeys(("where.self", "where.ScalarSelf", "where.ScalarOther"), (1, 2)),
}  # fmt: skip
"""Operator -> the positions of arguments that are complex numbers; others, such as indices and masks, are for both parts."""


def _by_parts(positions: Sequence[int]) -> Callable[..., Any]:
    def convert(b: MLGraphBuilder, *args: Any, call: AtenCall, **kwargs: Any) -> Any:
        metas = list(call.arguments)
        kind = _kind(call)

        def part_of(value: Any, meta: Any, part: int) -> Any:
            if isinstance(value, (list, tuple)):
                return [part_of(v, m, part) for v, m in zip(value, meta, strict=True)]
            if isinstance(value, (int, float, complex)):
                return value.imag if part else value.real
            if not isinstance(value, MLOperand):
                return value
            parts = _read(b, value, meta, kind)
            if not part:
                return parts.real
            return b.sub(parts.real, parts.real) if parts.imaginary is None else parts.imaginary

        results = []
        # With a real dtype, creation like a complex tensor has no imaginary part.
        for part in (0, 1) if call.dtype in PARTS else (0,):
            own = [part_of(v, metas[k], part) if k in positions else v for k, v in enumerate(args)]
            results.append(_on_parts(b, call, *own, **kwargs))
        if len(results) == 1:
            return results[0]
        real, imaginary = results
        if isinstance(real, tuple):
            return tuple(join(b, Complex(x, y)) for x, y in zip(real, imaginary, strict=True))
        return join(b, Complex(real, imaginary))

    return convert


for _name, _positions in _VALUES.items():
    converts_complex(f"aten.{_name}")(_by_parts(_positions))


# Parts, casts and functions -------------------------------------------------------------------------------------------


@converts_complex("aten.view_as_real.default", "aten.view_as_complex.default", "aten.view_as_real_copy.default")
def _(b: MLGraphBuilder, self: MLOperand) -> MLOperand:
    return self


@converts_complex("aten.complex.default")
def _(b: MLGraphBuilder, real: MLOperand, imag: MLOperand) -> MLOperand:
    return join(b, Complex(real, imag))


@converts_complex("aten.polar.default")
def _(b: MLGraphBuilder, abs: MLOperand, angle: MLOperand) -> MLOperand:
    return join(b, Complex(b.mul(abs, b.cos(angle)), b.mul(abs, b.sin(angle))))


@converts_complex("aten._conj.default", "aten.conj_physical.default", "aten._conj_physical.default")
def _(b: MLGraphBuilder, self: MLOperand) -> MLOperand:
    parts = parts_of(b, self)
    assert parts.imaginary is not None
    return join(b, Complex(parts.real, b.neg(parts.imaginary)))


@converts_complex("aten.to.dtype", "aten._to_copy.default", "aten.to.other", "prims.convert_element_type.default")
def _(b: MLGraphBuilder, self: MLOperand, *args: Any, call: AtenCall, **kwargs: Any) -> MLOperand:
    if call.is_bool:
        return b.reduce_max(b.not_equal(self, as_type(b, 0, self.data_type)), axes=[self.rank - 1])
    if call.dtype not in PARTS:
        return as_type(b, parts_of(b, self).real, call.data_type)
    if call.dtype_of(0) in PARTS:
        return as_type(b, self, call.data_type)
    return join(b, Complex(as_type(b, self, call.data_type), None))


@converts_complex("aten.abs.default")
def _(b: MLGraphBuilder, self: MLOperand) -> MLOperand:
    parts = parts_of(b, self)
    assert parts.imaginary is not None
    return length_of(b, parts.real, parts.imaginary)


@converts_complex("aten.angle.default")
def _(b: MLGraphBuilder, self: MLOperand) -> MLOperand:
    parts = parts_of(b, self)
    assert parts.imaginary is not None
    return arc_tangent(b, parts.imaginary, parts.real)


@converts("aten.angle.default")
def _(b: MLGraphBuilder, self: MLOperand, *, call: AtenCall) -> MLOperand:
    (x,) = call.promote(b, self)
    zero, pi = as_type(b, 0, x.data_type), as_type(b, math.pi, x.data_type)
    return b.where(b.is_nan(x), x, b.where(b.lesser(x, zero), pi, zero))


@converts_complex("aten.exp.default")
def _(b: MLGraphBuilder, self: MLOperand) -> MLOperand:
    parts = parts_of(b, self)
    assert parts.imaginary is not None
    size = b.exp(parts.real)
    return join(b, Complex(b.mul(size, b.cos(parts.imaginary)), b.mul(size, b.sin(parts.imaginary))))


@converts_complex("aten.log.default")
def _(b: MLGraphBuilder, self: MLOperand) -> MLOperand:
    parts = parts_of(b, self)
    assert parts.imaginary is not None
    return join(
        b, Complex(b.log(length_of(b, parts.real, parts.imaginary)), arc_tangent(b, parts.imaginary, parts.real))
    )


@converts_complex("aten.reciprocal.default")
def _(b: MLGraphBuilder, self: MLOperand) -> MLOperand:
    return join(b, _divide(b, Complex(as_type(b, 1, self.data_type), None), parts_of(b, self)))


@converts_complex("aten.pow.Tensor_Scalar")
def _(b: MLGraphBuilder, self: MLOperand, exponent: Any) -> MLOperand:
    refuse_if(exponent not in (1, 2, 3), f"it is a power of {exponent} of complex numbers")
    parts = parts_of(b, self)
    power = parts
    for _ in range(int(exponent) - 1):
        power = _multiply(b, power, parts)
    return join(b, power)


def _equality(name: str) -> Callable[..., MLOperand]:
    def convert(b: MLGraphBuilder, self: MLOperand, other: Any, *, call: AtenCall) -> MLOperand:
        kind = _kind(call)
        x, y = (_read(b, value, meta, kind) for value, meta in zip((self, other), call.arguments, strict=False))
        zero = as_type(b, 0, kind)
        same = [
            b.equal(first if first is not None else zero, second if second is not None else zero)
            for first, second in ((x.real, y.real), (x.imaginary, y.imaginary))
        ]
        is_same = b.logical_and(*same)
        return is_same if name == "eq" else b.logical_not(is_same)

    return convert


for _name in ("eq", "ne"):
    converts_complex(f"aten.{_name}.Tensor", f"aten.{_name}.Scalar")(_equality(_name))


# Fourier transforms ---------------------------------------------------------------------------------------------------


def _normalise(b: MLGraphBuilder, x: MLOperand, count: Any, normalization: int, inverse: bool) -> MLOperand:
    """Scale a transform: by 1, 1 / sqrt(count) or 1 / count; an inverse `composites.dft` is divided by the count already."""
    factors = {
        (0, False): 1, (1, False): 1 / count**0.5, (2, False): 1 / count,
        (0, True): count, (1, True): count**0.5, (2, True): 1,
    }  # fmt: skip
    factor = factors[normalization, inverse]
    return x if isinstance(factor, int) and factor == 1 else b.mul(x, as_type(b, factor, x.data_type))


def _transform(b: MLGraphBuilder, x: MLOperand, axes: Sequence[int], inverse: bool) -> MLOperand:
    for axis in axes:
        x = composites.dft(b, x, axis=axis, inverse=inverse)
    return x


def _axes(dim: Sequence[int], rank: int) -> list[int]:
    return [axis_of(axis, rank) for axis in dim]


@converts_complex("aten._fft_r2c.default")
def _(b: MLGraphBuilder, self: MLOperand, dim: Sequence[int], normalization: int, onesided: bool) -> MLOperand:
    *others, last = _axes(dim, self.rank)
    count = math.prod([self.shape[axis] for axis in (*others, last)])
    x = composites.dft(b, b.reshape(self, [*self.shape, 1]), axis=last, onesided=onesided)
    return _normalise(b, _transform(b, x, others, False), count, normalization, False)


@converts_complex("aten._fft_c2c.default")
def _(b: MLGraphBuilder, self: MLOperand, dim: Sequence[int], normalization: int, forward: bool) -> MLOperand:
    axes = _axes(dim, self.rank - 1)
    count = math.prod([self.shape[axis] for axis in axes])
    return _normalise(b, _transform(b, self, axes, not forward), count, normalization, not forward)


@converts_complex("aten._fft_c2r.default")
def _(b: MLGraphBuilder, self: MLOperand, dim: Sequence[int], normalization: int, last_dim_size: Any) -> MLOperand:
    *others, last = _axes(dim, self.rank - 1)
    count = math.prod([self.shape[axis] for axis in others]) * last_dim_size
    x = composites.dft(
        b, _transform(b, self, others, True), last_dim_size, axis=last, inverse=True, onesided=True
    )  # fmt: skip
    return _normalise(b, b.reshape(x, x.shape[:-1]), count, normalization, True)


@converts("aten.stft.default", "aten.stft.center")
@converts_complex("aten.stft.default", "aten.stft.center")
def _(b: MLGraphBuilder, self: MLOperand, n_fft: int, *args: Any, call: AtenCall, **kwargs: Any) -> MLOperand:
    names = ["hop_length", "win_length", "window"]
    names += ["center", "pad_mode"] if call.name.endswith("center") else []
    names += ["normalized", "onesided", "return_complex", "align_to_window"]
    options = dict(zip(names, args, strict=False)) | kwargs
    refuse_if(_is_complex(call.arguments[0]), "its signal is complex")
    refuse_if(options.get("align_to_window"), "its frames are aligned to the window")
    if options.get("center", call.name.endswith("center")):
        self = pad_evenly(b, self, n_fft // 2, options.get("pad_mode", "reflect"))
    hop, size = options.get("hop_length") or n_fft // 4, options.get("win_length") or n_fft
    window = options.get("window")
    before = (n_fft - size) // 2
    if window is None and size != n_fft:
        window = b.expand(as_type(b, 1, self.data_type), [size])
    if window is not None and size != n_fft:
        window = b.pad(window, [before], [n_fft - size - before])
    signal = b.reshape(self, [*(self.shape[:1] if self.rank > 1 else [1]), self.shape[-1], 1])
    onesided = options.get("onesided")
    y = composites.stft(
        b, signal, window, step=hop, frame_length=n_fft, onesided=True if onesided is None else onesided
    )  # fmt: skip
    y = b.transpose(y, permutation=[0, 2, 1, 3])
    y = _normalise(b, y, n_fft, 1 if options.get("normalized") else 0, False)
    return y if self.rank > 1 else b.reshape(y, y.shape[1:])
