"""Arrays of other libraries, known by their protocols; `tests/pytorch` tries PyTorch's own."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.foreign import Foreign

import opweave as ow
from opweave.memory import pool

CONTEXT = ow.ml.create_context(device="cpu")
X = np.array([1, -2, 3], "float32")


class Parameter(Foreign):
    """An array that is exported without its gradient only."""

    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("use detach()")

    def detach(self) -> Foreign:
        return Foreign(self.array)


def doubled() -> ow.MLGraph:
    builder = ow.MLGraphBuilder(CONTEXT)
    return builder.build({"y": builder.input("x", "float32", [3]) * 2})


def test_parameters_are_taken_without_their_gradient() -> None:
    assert ow.MLGraphBuilder(CONTEXT).constant(Parameter(X)).value.ctypes.data == X.ctypes.data
    np.testing.assert_array_equal(CONTEXT.compute(doubled(), {"x": Parameter(X)})["y"], X * 2)
    assert ow.array(Parameter(X)).tolist() == X.tolist()


def test_results_are_written_into_arrays_of_others() -> None:
    target = np.zeros(3, "float32")
    results = CONTEXT.compute(doubled(), {"x": X}, {"y": Foreign(target)})  # type: ignore[dict-item]
    np.testing.assert_array_equal(target, X * 2)
    assert results["y"].ctypes.data == target.ctypes.data
    with pytest.raises(ow.ValidationError, match=r"output 'y' must be an array float32\[3\], got float32\[2\]"):
        CONTEXT.compute(doubled(), {"x": X}, {"y": Foreign(np.zeros(2, "float32"))})  # type: ignore[dict-item]


@pytest.mark.parametrize(("dtype", "to"), [("float64", "float32"), (ml_dtypes.bfloat16, "float32"), (bool, "uint8")])
def test_conversion_error_names_type_and_remedy(dtype: Any, to: str) -> None:
    with pytest.raises(ow.ValidationError, match=rf"is not a data type of WebNN .*array\.astype\('{to}'\) converts it"):
        ow.MLGraphBuilder(CONTEXT).constant(np.zeros(3, dtype))


@pytest.mark.long
def test_array_copies_reuse_memory() -> None:
    values = np.zeros(pool.LARGE // 4 + 16, "float32")
    addresses, others = set(), []
    for _ in range(6):
        addresses.add(ow.array(values).numpy().ctypes.data)
        others.append(np.ones_like(values))  # takes what was given back to the system
    assert len(addresses) <= 2  # fresh memory is taken until the size has recurred
    assert ow.array(values).tolist()[:3] == [0, 0, 0]
