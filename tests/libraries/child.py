"""A process for one library: `python child.py LIBRARY before|after`. It fails unless Opweave gives what ONNX Runtime gives.

"before": the library is imported, and runs on ONNX Runtime, before it runs on Opweave; "after": it is imported when Opweave
has taken the place of ONNX Runtime, and runs on ONNX Runtime when that is over.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping, Sequence
from numbers import Number
from typing import Any

import numpy as np
import onnxruntime
from programs import PROGRAMS

import opweave as ow
from opweave.backends.onnxruntime.native import NativeSession

TOLERANCE = 2e-3
"""Of numbers, relative to the largest one beside them: networks on other kernels differ in last bits."""

PIXELS = 1
"""Of coordinates, which are whole numbers of pixels."""


def sessions() -> list[Any]:
    """All sessions that the library holds; those that Opweave's engine has made for itself are none of its."""
    gc.collect()
    found = [o for o in gc.get_objects() if issubclass(type(o), onnxruntime.InferenceSession)]
    return [session for session in found if not isinstance(session, NativeSession)]


def differences(got: Any, wanted: Any, where: str = "") -> list[str]:
    """Where two results differ."""
    if isinstance(wanted, Mapping):
        if set(got) != set(wanted):
            return [f"{where}: {got} for {wanted}"]
        return [text for key in wanted for text in differences(got[key], wanted[key], f"{where}.{key}")]
    if isinstance(wanted, np.ndarray) or (isinstance(wanted, Sequence) and _are_numbers(wanted)):
        a, b = np.asarray(got), np.asarray(wanted)
        if a.shape != b.shape or a.dtype != b.dtype:
            return [f"{where}: {a.dtype} {a.shape} for {b.dtype} {b.shape}"]
        allowed = PIXELS if b.dtype.kind in "iu" else TOLERANCE * max(1e-3, float(np.abs(b).max(initial=0)))
        error = float(np.abs(a.astype("float64") - b).max(initial=0))
        return [f"{where}: off by {error}, {allowed} allowed"] if error > allowed else []
    if isinstance(wanted, Sequence) and not isinstance(wanted, (str, bytes)):
        if len(got) != len(wanted):
            return [f"{where}: {len(got)} results for {len(wanted)}"]
        pairs = enumerate(zip(got, wanted, strict=True))
        return [text for k, (a, b) in pairs for text in differences(a, b, f"{where}[{k}]")]
    if isinstance(wanted, Number):
        return differences([got], [wanted], where)
    return [] if got == wanted else [f"{where}: {got!r} for {wanted!r}"]


def _are_numbers(values: Sequence[Any]) -> bool:
    return not isinstance(values, (str, bytes)) and bool(values) and all(isinstance(value, Number) for value in values)


def on_onnx_runtime(program: Any) -> Any:
    results = program()
    assert not any(isinstance(session, ow.InferenceSession) for session in sessions())
    return results


def on_opweave(program: Any) -> Any:
    made: list[Any] = []
    with ow.onnx.replacing_onnxruntime():
        init = ow.InferenceSession.__init__

        def noted(self: Any, *args: Any, **kwargs: Any) -> None:
            made.append(type(self).__name__)
            init(self, *args, **kwargs)

        ow.InferenceSession.__init__ = noted  # type: ignore[method-assign]
        try:
            results = program()
        finally:
            ow.InferenceSession.__init__ = init  # type: ignore[method-assign]
        assert all(isinstance(session, ow.InferenceSession) for session in sessions())
    assert made, "the library made no session"
    return results


def main(library: str, order: str) -> None:
    program = PROGRAMS[library]
    if order == "before":
        wanted, got = on_onnx_runtime(program), on_opweave(program)
    else:
        got, wanted = on_opweave(program), on_onnx_runtime(program)
    assert wanted, "nothing was found"
    found = differences(got, wanted)
    assert not found, "\n".join(found)
    print(f"{library}: {str(wanted)[:400]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
