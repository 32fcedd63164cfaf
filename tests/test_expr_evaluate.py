"""The NumPy evaluator against plain Python, and against what is known."""

from __future__ import annotations

from typing import Any

import numpy as np
from expr_plain import Space
from expr_programs import Case, index_form, pointwise
from hypothesis import given, settings

from opweave.dtypes import FLOATS
from opweave.expr.evaluate import evaluate


def evaluated(case: Case, precision: Any = "float32") -> list[np.ndarray]:
    program = case.program()
    wide = precision == "float64"
    descs = [output.desc for output in program.outputs]
    outputs = [np.empty(d.shape, "float64" if wide and d.data_type in FLOATS else d.data_type) for d in descs]
    evaluate(program, case.arrays, outputs, precision=precision)
    return outputs


def in_python(case: Case, outputs: list[np.ndarray], *, single: bool) -> list[np.ndarray]:
    space = Space(single=single)
    made = case.function(space, *(space.array(array) for array in case.arrays))
    results = []
    for plain, output in zip(made if isinstance(made, tuple) else (made,), outputs, strict=True):
        assert plain.shape == output.shape
        with np.errstate(all="ignore"):
            floats = "float32" if single else "float64"
            dtype = floats if plain.type in FLOATS else {"index": "int64"}.get(plain.type, plain.type)
            results.append(np.array(plain.values, dtype).astype(output.dtype).reshape(plain.shape))
    return results


@settings(max_examples=400, deadline=None)
@given(pointwise(exact=True))
def test_exact_functions_agree_with_plain_python_bit_for_bit(case: Case) -> None:
    outputs = evaluated(case)
    for got, wanted in zip(outputs, in_python(case, outputs, single=True), strict=True):
        np.testing.assert_array_equal(got, wanted)


@settings(max_examples=300, deadline=None)
@given(pointwise(exact=False))
def test_smooth_functions_in_float64_agree_with_plain_python(case: Case) -> None:
    outputs = evaluated(case, "float64")
    for got, wanted in zip(outputs, in_python(case, outputs, single=False), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-11, atol=1e-320)


@settings(max_examples=300, deadline=None)
@given(index_form())
def test_index_form_agrees_with_plain_python(case: Case) -> None:
    outputs = evaluated(case)
    for got, wanted in zip(outputs, in_python(case, outputs, single=True), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=0 if case.exact else 1e-6)
