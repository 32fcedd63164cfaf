"""ONNX Runtime rules: inverse trigonometric and hyperbolic functions, bits, determinants and inverses.

`dft` and `stft` have no rules: for lengths that are no powers of two, the engine's kernels take up to 50 times as long as the
decompositions, and have relative errors of 3e-5 for 400 elements, and of 2e-2 for 65521.
"""

from __future__ import annotations

from typing import Any

from ....composites import bits, cumulative, elementary, linear_algebra, regions
from ....core.graph import Graph, Operand
from ....expr import kernels
from .. import kernels as engine_kernels
from ..backend import ort
from ..emit import MICROSOFT, Emitter, Value
from ..records import Subgraph, field, value_info
from .shared import is_single


def _has_no_loops(input: Operand) -> bool:
    """Whether there is no compiler: loops have smaller errors than these kernels, up to 4.3 ULP, and are faster."""
    return is_single(input) and not kernels.is_compiled()


ort.rename({elementary.acos: "Acos", elementary.asin: "Asin", elementary.atan: "Atan"}, when=_has_no_loops)
ort.rename({elementary.acosh: "Acosh", elementary.asinh: "Asinh", elementary.atanh: "Atanh"}, when=is_single)
ort.rename({elementary.cosh: "Cosh", elementary.sinh: "Sinh"}, when=is_single)
ort.rename({bits.bitwise_and: "BitwiseAnd", bits.bitwise_or: "BitwiseOr", bits.bitwise_xor: "BitwiseXor"})
ort.rename({bits.bitwise_not: "BitwiseNot"})


@ort.lower(linear_algebra.det, when=is_single)
def _(ctx: Emitter, input: Value) -> Value:
    result: Value = ctx.emit("Det", input, shape=ctx.output.shape)
    return result


@ort.lower_contrib(linear_algebra.inverse, when=is_single)
def _(ctx: Emitter, input: Value) -> Value:
    result: Value = ctx.emit("Inverse", input, domain=MICROSOFT, shape=ctx.output.shape)
    return result


_MULTIPLIED = ("float32", "float16", "int32", "int64", "uint32", "uint64")
"""Data types of cumulative products; float16 is converted to float32."""

_OLD = (regions.max_roi_pool, regions.roi_align)
"""Operations for which the engine has no kernels in the operator set of CumProd."""


def _has_newer_kernels(graph: Graph) -> bool:
    return not any(node.op in _OLD for node in graph.nodes)


def _has_cumulative_product(input: Operand) -> bool:
    return input.data_type in _MULTIPLIED and engine_kernels.has_newer("CumProd")


@ort.lower_contrib(cumulative.cumulative_product, when=_has_cumulative_product)
def _(ctx: Emitter, input: Value, axis: int, exclusive: bool, reversed: bool) -> Value:
    x = ctx.cast(input, "float32") if input.data_type == "float16" else input
    if ctx.answer(_has_newer_kernels):
        order: dict[str, Any] = {"exclusive": int(exclusive), "reverse": int(reversed)}
        y: Value = ctx.emit("CumProd", x, ctx.constant(axis), shape=x.dims, **order)
    else:
        y = _scanned_product(ctx, x, axis, bool(exclusive), bool(reversed))
    return ctx.cast(y, input.data_type)


def _scanned_product(ctx: Emitter, x: Value, axis: int, exclusive: bool, reversed: bool) -> Value:
    """Multiply slice by slice with Scan, which all operator sets have."""
    rest = [size for k, size in enumerate(x.dims) if k != axis]
    shape = [size if isinstance(size, int) else None for size in rest]
    nodes = [("Mul", ["total", "x"], ["next"]), ("Identity", ["total" if exclusive else "next"], ["y"])]
    body = b"".join(
        field(
            1, b"".join([*(field(1, name) for name in read), *(field(2, name) for name in written), field(4, op_type)])
        )
        for op_type, read, written in nodes
    )
    body += field(2, "product")
    body += b"".join(field(11, value_info(name, x.data_type, shape)) for name in ("total", "x"))
    body += b"".join(field(12, value_info(name, x.data_type, shape)) for name in ("next", "y"))
    direction = [int(reversed)]
    _, y = ctx.emit(
        "Scan",
        ctx.full(rest, 1, x.data_type),
        x,
        outputs=2,
        data_type=x.data_type,
        shape=x.dims,
        body=Subgraph(body),
        num_scan_inputs=1,
        scan_input_axes=[axis],
        scan_input_directions=direction,
        scan_output_axes=[axis],
        scan_output_directions=direction,
    )
    scanned: Value = y
    return scanned
