"""Which data types the engine has kernels for, read from its own registry."""

from __future__ import annotations

from collections import defaultdict
from functools import cache

PROVIDER = "CPUExecutionProvider"
_NAMES = {"float": "float32", "double": "float64"}


@cache
def _registry() -> dict[tuple[str, str], set[str]]:
    from onnxruntime.capi import _pybind_state as engine

    from .emit import OPSET

    table: dict[tuple[str, str], set[str]] = defaultdict(set)
    for kernel in engine.get_all_opkernel_def():
        first, last = kernel.version_range
        if kernel.provider != PROVIDER or (not kernel.domain and not first <= OPSET <= last):
            continue
        constraints = kernel.type_constraints
        # "T", or "T1" where there are several, is the type of the first operand in nearly all schemas.
        types = constraints.get("T") or constraints.get("T1") or ()
        names = (name.removeprefix("tensor(").removesuffix(")") for name in types)
        table[kernel.domain, kernel.op_name].update(_NAMES.get(name, name) for name in names)
    return table


def data_types(op_type: str, domain: str = "") -> frozenset[str] | None:
    """The data types of the first operand for which there is a kernel; None where the registry says nothing."""
    found = _registry().get((domain, op_type))
    return frozenset(found) if found else None
