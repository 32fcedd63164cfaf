"""Capabilities of ONNX Runtime's kernels: data types, from the engine's registry, and saturation of integer products."""

from __future__ import annotations

from collections import defaultdict
from functools import cache

from ...core.dtypes import SPELLINGS
from . import devices

PROVIDER = "CPUExecutionProvider"
_NAMES = {"float": "float32", "double": "float64", **SPELLINGS}


@cache
def _registry() -> dict[tuple[str, str], set[str]]:
    from onnxruntime.capi import _pybind_state as engine

    from .records import OPSET

    table: dict[tuple[str, str], set[str]] = defaultdict(set)
    for kernel in engine.get_all_opkernel_def():
        first, last = kernel.version_range
        if kernel.provider != PROVIDER:
            continue
        if not kernel.domain and not first <= OPSET <= last:  # `OPSET` is a version of ONNX's own domain, ""
            continue
        constraints = kernel.type_constraints
        # In nearly all schemas the type of the first operand is "T", or "T1" if there are several.
        types = constraints.get("T") or constraints.get("T1") or ()
        names = (name.removeprefix("tensor(").removesuffix(")") for name in types)
        table[kernel.domain, kernel.op_name].update(_NAMES.get(name, name) for name in names)
    return table


def data_types(op_type: str, domain: str = "") -> frozenset[str] | None:
    """Return the data types of the first operand that have a kernel; None if the registry does not list them."""
    types = _registry().get((domain, op_type))
    return frozenset(types) if types else None


@cache
def has_newer(op_type: str) -> bool:
    """Whether the engine has the kernel of an operator of `records.NEWER`."""
    from onnxruntime.capi import _pybind_state as engine

    from .records import NEWER

    registry = (kernel for kernel in engine.get_all_opkernel_def() if kernel.provider == PROVIDER and not kernel.domain)
    return any(kernel.op_name == op_type and kernel.version_range[0] <= NEWER[op_type] for kernel in registry)


@cache
def orders_nan() -> bool:
    """Whether TopK counts NaN as larger than all numbers: before version 1.32, its place is arbitrary."""
    major, minor, *_ = devices.version().split(".")
    return (int(major), int(minor)) >= (1, 32)


@cache
def saturates() -> bool:
    """Whether matrix products of uint8 by int8 are wrong on this processor, measured by one product of two vectors.

    On x86 without VNNI instructions, the engine adds pairs of products in 16 bits, which saturate
    (https://github.com/microsoft/onnxruntime/issues/6004). `options.PRECISE_PRODUCTS` helps constant operands only.
    """
    import numpy as np
    from onnxruntime import SessionOptions

    from .native import NativeSession
    from .records import IR_VERSION, OPSET, field, value_info

    # Write the protobuf messages by hand: an `Emitter` would read the registry, and every process runs this for its first
    # session.
    node = field(1, "a") + field(1, "b") + field(2, "y") + field(4, "MatMulInteger")  # input, input, output, op_type
    inputs = field(11, value_info("a", "uint8", (1, 64))) + field(11, value_info("b", "int8", (64, 1)))
    outputs = field(12, value_info("y", "int32", (1, 1)))
    graph = field(1, node) + field(2, "products") + inputs + outputs
    opset = field(1, "") + field(2, OPSET)  # domain, version
    model = field(1, IR_VERSION) + field(7, graph) + field(8, opset)
    options = SessionOptions()
    options.intra_op_num_threads = 1
    session = NativeSession(model, options, providers=[PROVIDER])
    feed = {"a": np.full((1, 64), 255, "uint8"), "b": np.full((64, 1), 127, "int8")}
    return bool(session.run(None, feed)[0] != 64 * 255 * 127)
