"""Run the cases of the Web Platform Tests (format: the README beside the cases) with the names they have."""

from __future__ import annotations

import json
import re
import tomllib
from contextlib import suppress
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opweave as ow
from opweave.core.dtypes import ANY
from opweave.support.names import snake_case
from support.graphs import assert_same, reversed_elements

Case = dict[str, Any]

ROOT = Path(__file__).parents[1]
DATA = ROOT / "data"
SPECIAL = {"NaN": np.nan, "Infinity": np.inf, "-Infinity": -np.inf, "-0": -0.0}


@cache
def cases(name: str) -> list[Case]:
    """All cases of a kind, "conformance" or "validation", operation by operation."""
    files = sorted((DATA / "wpt" / name).glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]


@cache
def expected_failures(name: str) -> dict[str, str]:
    """Case id -> reason, from `expect/<name>.toml`."""
    path = ROOT / "expect" / f"{name}.toml"
    return tomllib.loads(path.read_text()) if path.exists() else {}


def array_of(tensor: Case) -> np.ndarray:
    """The array of an input or an expectation."""
    data, data_type, shape = tensor["data"], tensor["dataType"], tensor["shape"]
    if not isinstance(data, list):
        return np.full(shape, SPECIAL.get(data, data) if isinstance(data, str) else data, data_type)
    values = [SPECIAL.get(value, value) if isinstance(value, str) else value for value in data]
    return np.array(values, data_type).reshape(shape)


def is_large(case: Case) -> bool:
    """Whether a tensor of the case has millions of elements."""
    return any(prod(tensor["shape"]) > 2**20 for part in ("inputs", "expected") for tensor in case[part].values())


def without_data_types(case: Case) -> str:
    """What a case has in common with those that differ from it by data types only."""
    tensors = [
        [name, tensor["shape"], tensor.get("constant")]
        for part in ("inputs", "expected")
        for name, tensor in case[part].items()
    ]
    return re.sub(rf"\b({'|'.join(ANY)})\b", "type", json.dumps([case["name"], case["operators"], tensors]))


def build_conformance(context: ow.MLContext, case: Case) -> tuple[ow.MLGraph, dict[str, np.ndarray]]:
    """The graph of a case, and the arrays of its inputs and constants."""
    builder = ow.MLGraphBuilder(context)
    operands: dict[str, Any] = {}
    arrays = {name: array_of(tensor) for name, tensor in case["inputs"].items()}
    for name, tensor in case["inputs"].items():
        if tensor["constant"]:
            operands[name] = builder.constant(tensor["dataType"], tensor["shape"], arrays[name])
        else:
            operands[name] = builder.input(name, tensor["dataType"], tensor["shape"])
    for step in case["operators"]:
        op = getattr(type(builder), snake_case(step["name"]))
        positional, options = [], {}
        for argument in step["arguments"]:
            ((name, value),) = argument.items()
            if name == "options":
                options = {snake_case(k): number(v) for k, v in value.items()}
                options |= {k: operands[v] for k, v in options.items() if k in op.operands}
            elif snake_case(name) in op.operands:
                positional.append([operands[item] for item in value] if isinstance(value, list) else operands[value])
            else:
                positional.append(number(value))
        result = getattr(builder, op.name)(*positional, **options)
        names = step["outputs"]
        operands |= {names: result} if isinstance(names, str) else dict(zip(names, result, strict=True))
    return builder.build({name: operands[name] for name in case["expected"]}), arrays


def run_conformance(context: ow.MLContext, case: Case) -> dict[str, np.ndarray]:
    """Build the graph of a case, run it through tensors as `compute_again` does, and return the outputs of the last run."""
    graph, arrays = build_conformance(context, case)
    inputs, outputs = {}, {}
    for name, desc in graph.inputs.items():
        inputs[name] = context.create_tensor(desc.data_type, desc.shape, writable=True)
    for name, desc in graph.outputs.items():
        outputs[name] = context.create_tensor(desc.data_type, desc.shape, readable=True)

    def run(is_reversed: bool = False) -> dict[str, np.ndarray]:
        for name, tensor in inputs.items():
            context.write_tensor(tensor, reversed_elements(arrays[name]) if is_reversed else arrays[name])
        context.dispatch(graph, inputs, outputs)
        return {name: context.read_tensor(tensor) for name, tensor in outputs.items()}

    first = run()
    if inputs and not is_large(case):
        with suppress(ow.MLError):
            run(is_reversed=True)
    last = run()
    for name, array in last.items():
        assert_same(array, first[name], f"{name} of a later run")
    return last


def number(value: Any) -> Any:
    return SPECIAL.get(value, value) if isinstance(value, str) else value


def check_conformance(case: Case, results: dict[str, np.ndarray]) -> None:
    """Assert that data types, shapes and values are as expected, within the case's tolerance."""
    for name, tensor in case["expected"].items():
        expected, got = array_of(tensor), results[name]
        assert got.dtype == expected.dtype, f"{name}: {got.dtype}, expected {expected.dtype}"
        assert got.shape == expected.shape, f"{name}: {got.shape}, expected {expected.shape}"
        wrong = ~within(got, expected, case["tolerance"])
        if "signed-zeros" in case.get("flags", ()):
            wrong |= (expected == 0) & (np.signbit(got) != np.signbit(expected))
        if wrong.any():
            at = tuple(np.argwhere(wrong)[0])
            raise AssertionError(
                f"{name}: {wrong.sum()} of {wrong.size} differ by more than {case['tolerance']}; "
                f"first at {list(map(int, at))}: {got[at]!r}, expected {expected[at]!r}"
            )


def within(got: np.ndarray, expected: np.ndarray, tolerance: Case) -> Any:
    """For each element, whether it is within the tolerance."""
    metric = tolerance["metric"]
    if metric == "ULP":
        near = np.asarray(got == expected)
        other = ~near  # few or none: cases may have millions of elements
        near[other] = ulp_distance(got[other], expected[other]) <= tolerance["value"]
        return near
    a, e = got.astype(np.float64), expected.astype(np.float64)
    atol = tolerance["value"] if metric == "ATOL" else tolerance["atol"] + tolerance["rtol"] * np.abs(e)
    with np.errstate(invalid="ignore"):
        return (np.abs(a - e) <= atol) | (a == e) | (np.isnan(a) & np.isnan(e))


def ulp_distance(a: np.ndarray, b: np.ndarray) -> Any:
    """Distance of floats as ordered integers (+0 equals -0, NaN equals NaN); of integers the difference."""
    if a.dtype.kind != "f":
        return np.abs(a.astype(object) - b.astype(object)).astype(np.float64)
    integer = np.dtype(f"i{a.dtype.itemsize}")

    def ordered(array: np.ndarray) -> Any:
        bits = array.view(integer).astype(np.int64)
        return np.where(bits < 0, np.iinfo(integer).min - bits, bits)

    distance = np.abs(ordered(np.atleast_1d(a)) - ordered(np.atleast_1d(b))).astype(np.float64).reshape(a.shape)
    both, either = np.isnan(a) & np.isnan(b), np.isnan(a) | np.isnan(b)
    return np.where(both, 0.0, np.where(either, np.inf, distance))


_BUFFERS = {
    "Float32Array": "float32",
    "Float16Array": "float16",
    "Int32Array": "int32",
    "Uint32Array": "uint32",
    "BigInt64Array": "int64",
    "BigUint64Array": "uint64",
    "Int8Array": "int8",
    "Uint8Array": "uint8",
    "Uint16Array": "uint16",
    "Int16Array": "int16",
}


def run_validation(context: ow.MLContext, case: Case) -> None:
    """Run the steps of a validation case; raises AssertionError where one does not do as it should."""
    builders: dict[int, ow.MLGraphBuilder] = {}
    results: dict[str, Any] = {}

    def value_of(value: Any) -> Any:
        if isinstance(value, list):
            return [value_of(item) for item in value]
        if not isinstance(value, dict):
            return value
        if "$ref" in value:
            return results[value["$ref"]]
        if "$number" in value:
            return SPECIAL[value["$number"]]
        if "$bigint" in value:
            return int(value["$bigint"])
        if "$buffer" in value:
            if "byteLength" in value:
                return bytearray(value["byteLength"])
            return np.array(value_of(value.get("data", [0] * value["length"])), _BUFFERS[value["$buffer"]])
        return {name: value_of(item) for name, item in value.items() if item != {"$undefined": True}}

    def call(step: Case) -> None:
        number = step.get("builder", 0)
        builder = builders.setdefault(number, ow.MLGraphBuilder(context))
        method = getattr(builder, snake_case(step["call"]))
        args = [value_of(arg) for arg in step["args"] if arg != {"$undefined": True}]
        options = {}
        if step["call"] in ("input", "constant"):  # descriptors are flattened
            args = [item for arg in args for item in (arg.values() if isinstance(arg, dict) else [arg])]
        elif step["call"] != "build" and args and isinstance(args[-1], dict):
            options = {snake_case(name): value for name, value in args.pop().items()}
        result = method(*args, **options)
        names = step.get("result")
        if isinstance(names, str):
            results[names] = result
        elif isinstance(names, list):
            results.update(zip(names, result, strict=True))

    def call_all(steps: list[Case]) -> None:
        for step in steps:
            call(step)

    for step in case["steps"]:
        if "throws" in step:
            error = TypeError if step["throws"] == "TypeError" else ow.InvalidStateError
            with pytest.raises(error) as raised:
                call_all(step["steps"])
            assert isinstance(raised.value, ow.MLError), f"not an error of ours: {raised.value!r}"
            continue
        if "check" in step:
            operand = results[step["check"]]
            assert step.get("dataType", operand.data_type) == operand.data_type
            assert tuple(step.get("shape", operand.shape)) == operand.shape
        else:
            call(step)
