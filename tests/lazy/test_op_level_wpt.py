"""The conformance cases of the specification, its operations called one at a time on arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import wpt

import opweave as ow
from opweave.ops import Operations
from opweave.support.names import snake_case

CONTEXT = ow.ml.create_context(device="cpu")


def run_case(case: wpt.Case) -> dict[str, np.ndarray]:
    """Call the operators of a case: constants are given as NumPy's arrays, inputs as ours."""
    operands: dict[str, Any] = {}
    for name, tensor in case["inputs"].items():
        array = wpt.array_of(tensor)
        operands[name] = array if tensor["constant"] else ow.array(array)
    for step in case["operators"]:
        op = getattr(ow.ops, snake_case(step["name"]))
        positional, options = [], {}
        for argument in step["arguments"]:
            ((name, value),) = argument.items()
            if name == "options":
                options = {snake_case(k): wpt.number(v) for k, v in value.items()}
                options |= {k: operands[v] for k, v in options.items() if k in op.operands}
            elif snake_case(name) in op.operands:
                positional.append([operands[item] for item in value] if isinstance(value, list) else operands[value])
            else:
                positional.append(wpt.number(value))
        result = op(*positional, **options)
        names = step["outputs"]
        operands |= {names: result} if isinstance(names, str) else dict(zip(names, result, strict=True))
    wanted = list(case["expected"])
    return dict(zip(wanted, ow.read(*(operands[name] for name in wanted)), strict=True))


def cases_that_pass() -> list[wpt.Case]:
    known = wpt.expected_failures("onnxruntime")
    return [case for case in wpt.cases("conformance") if case["id"] not in known]


@pytest.mark.parametrize("name", Operations.listing())
def test_operations_conform(name: str) -> None:
    """All cases in which the operation comes, but large ones and those that are known to fail on this back end."""
    assert getattr(ow.ops, name) is getattr(Operations, name)
    cases = [
        case
        for case in cases_that_pass()
        if not wpt.is_large(case) and any(snake_case(step["name"]) == name for step in case["operators"])
    ]
    assert cases
    with CONTEXT:
        for case in cases:
            wpt.check_conformance(case, run_case(case))


@pytest.mark.long
def test_large_tensors_conform() -> None:
    cases = [case for case in cases_that_pass() if wpt.is_large(case)]
    assert [case["op"] for case in cases] == ["add", "add"]
    with CONTEXT:
        for case in cases:
            wpt.check_conformance(case, run_case(case))
