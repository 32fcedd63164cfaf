"""The API against the specification's own facts: names, order, arguments, types, defaults, enumerations and limits.

What differs must be listed in docs/deviations.md, and what is listed there must differ.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest
from support.graphs import run
from support.openvino_device import openvino_context
from support.specification import (
    DICTIONARIES,
    ENUMS,
    INTERFACES,
    PROSE_DEFAULTS,
    TABLES,
    Argument,
    arguments_of,
    flattened_arguments,
    is_operation,
    members_of,
)

import opweave as ow
from opweave.context.loss import Lost
from opweave.core.operation import Limits, Op
from opweave.ops import Operations
from opweave.support import hints
from opweave.support.names import camel_case, snake_case

OPS = Operations.listing()
CONTEXTS = {device: ow.ml.create_context(device=device) for device in ("cpu", "reference")}

TYPES = {
    "unsigned long": "int",
    "long": "Long",
    "double": "float",
    "float": "float",
    "boolean": "bool",
    "undefined": "None",
    "USVString": "str",
    "MLNumber": "Number",
    "MLOpSupportLimits": "dict[str, Any]",
    "MLNamedTensors": "Mapping[str, MLTensor]",
    "MLNamedOperands": "Mapping[str, MLOperand]",
    "FrozenArray<unsigned long>": "tuple[int, ...]",
    "(unsigned long or sequence<unsigned long>)": "int | Sequence[int]",
    "AllowSharedBufferSource": "Any",
    "GPUDevice": "Any",
}
"""Types of the specification -> our annotations; sequences, enumerations and interfaces are found by rule."""

# ---------------------------------------------------------------------------------------------------------------------
# What differs here, in the words of the first column of docs/deviations.md

Kind = Literal["addition", "change"]
Difference = tuple[Kind, str]


def same_type(specified: str, annotation: str, namespace: dict[str, Any]) -> bool:
    """Whether an annotation says what a type of the specification says."""
    if specified in ENUMS:
        choices = eval(annotation, namespace)
        return get_origin(choices) is Literal and list(get_args(choices)) == ENUMS[specified]
    if specified.startswith("sequence<"):
        return annotation.startswith("Sequence[") and same_type(specified[9:-1], annotation[9:-1], namespace)
    return annotation.replace("MLOperand", "Operand") == TYPES.get(specified, specified).replace("MLOperand", "Operand")


def compare_argument(
    where: str, wanted: Argument, got: inspect.Parameter, prose: Any, names: Any
) -> Iterator[Difference]:
    annotation = got.annotation
    if wanted.optional and wanted.default is None and got.default is None:
        annotation = annotation.removesuffix(" | None")
    if not same_type(wanted.type, annotation, names):
        yield "change", f"{where}: type"
    if wanted.keyword != (got.kind is got.KEYWORD_ONLY):
        yield "change", f"{where}: keyword"
    default = wanted.default if prose is None else prose
    if (got.default is got.empty) == wanted.optional:
        yield "change", f"{where}: optional"
    elif wanted.optional and (got.default != default or isinstance(got.default, bool) != isinstance(default, bool)):
        yield "change", f"{where}: default"


def compare_arguments(
    where: str, wanted: list[Argument], function: Any, signature: inspect.Signature
) -> Iterator[Difference]:
    got = {name: parameter for name, parameter in signature.parameters.items() if name != "self"}
    prose = PROSE_DEFAULTS.get(where.removeprefix("MLGraphBuilder."), {})
    for argument in wanted:
        key = f"{where}({argument.name})"
        if argument.name in got:
            found = got[argument.name]
            yield from compare_argument(key, argument, found, prose.get(argument.name), function.__globals__)
        else:
            yield "change", f"{key}: missing"
    names = [argument.name for argument in wanted]
    yield from (("addition", f"{where}({name})") for name in got if name not in names)
    for keyword in (False, True):
        wanted_order = [a.name for a in wanted if a.keyword == keyword and a.name in got]
        if [name for name in got if name in wanted_order] != wanted_order:
            yield "change", f"{where}: order"


def compare_method(where: str, overloads: list[dict[str, Any]], method: Any) -> Iterator[Difference]:
    yield from (("change", f"{where}({name})") for name in flattened_arguments(overloads))
    function = method.function if isinstance(method, Op) else method
    signature = inspect.signature(function)
    ours = {tuple(inspect.signature(o).parameters)[1:]: o for o in typing.get_overloads(function)}
    function = inspect.unwrap(function)
    if ours:
        for overload in overloads:
            wanted = list(arguments_of(overload))
            form = ours.pop(tuple(argument.name for argument in wanted), None)
            if form is None:
                yield "change", f"{where}({', '.join(argument.name for argument in wanted)}): missing"
            else:
                yield from compare_arguments(where, wanted, form, inspect.signature(form))
        yield from (("addition", f"{where}({', '.join(names)})") for names in ours)
    else:
        # An argument that not all overloads have can be left out.
        lists = [list(arguments_of(overload)) for overload in overloads]
        merged = {argument.name: argument for arguments in lists for argument in arguments}
        shared = [all(any(a.name == name for a in arguments) for arguments in lists) for name in merged]
        wanted = [
            argument if everywhere else dataclasses.replace(argument, optional=True)
            for argument, everywhere in zip(merged.values(), shared, strict=True)
        ]
        yield from compare_arguments(where, wanted, function, signature)
    result = signature.return_annotation.replace("Desc", "MLOperand")
    for overload in overloads:
        if overload["returns"] is not None:  # constructors
            yield from compare_result(where, overload["returns"], result, function.__globals__)


def compare_result(where: str, specified: str, annotation: str, namespace: dict[str, Any]) -> Iterator[Difference]:
    if specified.startswith("Promise<"):
        yield "change", f"{where}: promise"
        if annotation == f"{Lost.__name__}[{specified[8:-1]}]":  # the future itself
            return
        specified = specified.removeprefix("Promise<").removesuffix(">")
    if specified.startswith("sequence<"):
        same = annotation == f"tuple[{specified[9:-1]}, ...]"
    else:
        same = same_type(specified, annotation, namespace)
    if not same:
        yield "change", f"{where}: returns {specified}"


def resolved(limits: dict[str, Limits], name: str) -> tuple[set[str], tuple[int, int]]:
    """Data types and ranks of an operand, whatever they are the same as."""
    types, rank = limits[name].data_types, limits[name].ranks
    while isinstance(types, str):
        types = limits[types].data_types
    while isinstance(rank, str):
        rank = limits[rank].ranks
    return set(types), rank


def compare_limits(op: Op[..., Any]) -> Iterator[Difference]:
    table = {name: row.allowed for name, row in TABLES[op.name].items()}
    if list(op.limits) != list(table):
        yield "change", f"MLGraphBuilder.{op.name}: operands with limits"
    for name in table.keys() & op.limits.keys():
        # For a result it is all the same whether it must be float32, or like something that must be float32.
        tied = [
            (isinstance(limit.data_types, str), isinstance(limit.ranks, str))
            for limit in (op.limits[name], table[name])
        ]
        same = resolved(op.limits, name) == resolved(table, name) and (name not in op.operands or tied[0] == tied[1])
        if not same:
            yield "change", f"MLGraphBuilder.{op.name}({name}): limits"


def instances() -> dict[str, Any]:
    """One object of each interface."""
    context = CONTEXTS["reference"]
    builder = ow.MLGraphBuilder(context)
    operand = builder.exp(builder.input("x", "float32", [2]))
    tensor = context.create_tensor("float32", [2])
    found = [ow.ml, context, builder, operand, builder.build({"y": operand}), tensor]
    return {type(instance).__name__: instance for instance in found}


# What every class may have, or must have for reasons of Python alone.
ORDINARY = set(dir(type("Plain", (), {}))) | {"__annotations__", "__slots__", "__del__", "__firstlineno__"}
ORDINARY |= {"__static_attributes__", "__annotate__", "__annotate_func__", "__annotations_cache__"}


def public_members(instance: Any) -> list[str]:
    cls = type(instance)
    names = {*dir(cls), *getattr(instance, "__dict__", {})} - ORDINARY
    names = {name for name in names if not isinstance(inspect.getattr_static(cls, name, None), hints.Misnomer)}
    return sorted(name for name in names if not name.startswith("_") or name.endswith("__"))


@cache
def differences() -> frozenset[Difference]:
    """All that is not as the specification has it."""
    found: set[Difference] = set()
    objects = instances()
    for interface, members in INTERFACES.items():
        if interface not in objects:
            found.add(("change", f"{interface}: missing"))
            continue
        instance, cls = objects[interface], getattr(ow, interface)
        for member, overloads in members.items():
            name = "__init__" if member == "constructor" else snake_case(member)
            where = f"{interface}.{name}"
            got: Any = OPS.get(name) if is_operation(interface, member) else inspect.getattr_static(cls, name, None)
            if got is None:
                found.add(("change", f"{where}: missing"))
            elif overloads[0]["readonly_attribute"]:
                getter = got.fget
                result = inspect.signature(getter).return_annotation
                found |= set(compare_result(where, overloads[0]["returns"], result, getter.__globals__))
            else:
                found |= set(compare_method(where, overloads, got))
        specified = {snake_case(member) for member in members}
        own = {n for n in public_members(instance) if n not in specified}
        if interface == "MLOperand":  # all of them are one difference
            operations = {name for name, op in OPS.items() if op.positional[0] not in op.sequences}
            assert operations <= own
            own = own - operations | {": operations"}
        found |= {("addition", f"{interface}.{n}".replace(".:", ":")) for n in own}
    found |= {difference for op in OPS.values() for difference in compare_limits(op)}
    known = {*INTERFACES, *DICTIONARIES, *INTERFACES["NavigatorML"]}
    return frozenset(found | {("addition", f"opweave.{name}") for name in ow.__all__ if name not in known})


# ---------------------------------------------------------------------------------------------------------------------
# What cannot be seen in a signature, shown by what happens

DEMONSTRATIONS: dict[Difference, Callable[[], None]] = {}


def demonstrates(kind: Kind, where: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def register(function: Callable[[], None]) -> Callable[[], None]:
        DEMONSTRATIONS[kind, where] = function
        return function

    return register


def new_builder() -> ow.MLGraphBuilder:
    return ow.MLGraphBuilder(CONTEXTS["reference"])


@demonstrates("change", "MLContext.accelerated: the truth")
def _() -> None:
    assert not ow.ml.create_context(device="cpu", accelerated=True).accelerated


@demonstrates("change", "MLContext.dispatch: tensors that are updated")
def _() -> None:
    builder = new_builder()
    context = builder.context
    x = builder.input("x", "float32", [1, 1, 8])
    past = [builder.input(name, "float32", [1, 1, 4, 8]) for name in ("key", "value")]
    lengths = builder.input("lengths", "int32", [1])
    results = ow.composites.group_query_attention(x, x, x, *past, lengths, heads=1, groups=1)
    graph = builder.build(dict(zip(("y", "key", "value"), results, strict=True)))
    inputs = {
        n: context.create_tensor(d.data_type, d.shape, readable=True, writable=True) for n, d in graph.inputs.items()
    }
    inputs["x"].numpy()[:] = 2
    y = context.create_tensor("float32", (1, 1, 8), readable=True)
    context.dispatch(graph, inputs, {"y": y, "key": inputs["key"], "value": inputs["value"]})
    assert context.read_tensor(inputs["key"])[0, 0, :, 0].tolist() == [2, 0, 0, 0]


@demonstrates("change", "MLGraphBuilder.constant: memory")
def _() -> None:
    array = np.ones(3, "float32")
    assert np.shares_memory(new_builder().constant(array).value, array)


@demonstrates("change", "MLGraphBuilder.constant: uint32")
def _() -> None:
    assert new_builder().constant("uint32", 3_000_000_000).value == 3_000_000_000


@demonstrates("change", "MLGraphBuilder: conversions")
def _() -> None:
    builder = ow.MLGraphBuilder(CONTEXTS["cpu"])
    x = builder.input("x", "float32", [2.0, np.float32(3)])  # type: ignore[list-item]
    assert x.shape == builder.reshape(x, (2.0, np.float64(3))).shape == (2, 3)  # type: ignore[arg-type]
    for size in (2.5, True, "2", float("nan"), float("inf"), None, 2j):
        with pytest.raises(ow.ValidationError, match="must be a sequence of integers, got"):
            builder.input("y", "float32", [size])  # type: ignore[list-item]
        with pytest.raises(ow.ValidationError, match=r"new_shape\[0\] must be an integer, got"):
            builder.reshape(x, [size])  # type: ignore[list-item]
    for shape in ("6", {}, {2: 3}, 6):
        with pytest.raises(ow.ValidationError, match="must be a sequence of integers, got"):
            builder.input("y", "float32", shape)  # type: ignore[arg-type]
        with pytest.raises(ow.ValidationError, match="new_shape must be a sequence, got"):
            builder.reshape(x, shape)  # type: ignore[arg-type]


@demonstrates("change", "MLGraphBuilder.conv_transpose2d: groups")
def _() -> None:
    builder = ow.MLGraphBuilder(CONTEXTS["cpu"])
    x, w = builder.input("x", "float32", [1, 3, 4, 4]), builder.input("w", "float32", [3, 1, 2, 2])
    with pytest.raises(ow.ValidationError, match="groups"):
        builder.conv_transpose2d(x, w, groups=2)


@demonstrates("change", "MLGraphBuilder.max_pool2d: output sizes")
def _() -> None:
    builder = ow.MLGraphBuilder(CONTEXTS["cpu"])
    x = builder.input("x", "float32", [1, 1, 4, 4])
    pool = builder.max_pool2d(x, window_dimensions=[3, 3], padding=[1, 0, 1, 0], strides=[2, 2], output_sizes=[2, 2])
    assert pool.shape == (1, 1, 2, 2)
    with pytest.raises(ow.ValidationError, match="output_sizes must be"):
        builder.max_pool2d(x, window_dimensions=[3, 3], strides=[2, 2], output_sizes=[1, 2**20])


@demonstrates("change", "MLGraphBuilder.*2d: padded sizes")
def _() -> None:
    builder = ow.MLGraphBuilder(CONTEXTS["cpu"])
    x, w = builder.input("x", "float32", [1, 1, 4, 4]), builder.input("w", "float32", [1, 1, 2, 2])
    for call in (
        lambda: builder.conv2d(x, w, padding=[2**31, 0, 0, 0], strides=[2**31, 1]),
        lambda: builder.max_pool2d(x, padding=[2**31, 0, 0, 0], strides=[2**31, 1]),
        lambda: builder.conv_transpose2d(x, w, padding=[2**31, 2**31, 0, 0], strides=[2**31, 1]),
    ):
        with pytest.raises(ow.ValidationError, match="padded dimensions must be at most 2147483647, got"):
            call()


@demonstrates("change", "MLGraphBuilder.clamp: bounds left out")
def _() -> None:
    builder = new_builder()
    x = np.array([-np.inf, -2, 3, np.inf], "float32")
    graph = builder.build({"y": builder.clamp(builder.input("x", "float32", [4]))})
    np.testing.assert_array_equal(builder.context.compute(graph, {"x": x})["y"], x)


def of_nan(call: Callable[[Any, Any], Any], x: np.ndarray) -> list[np.ndarray]:
    """What the CPU and the reference compute of an input with NaN."""
    return [run(ow.ml.create_context(device=device), call, x) for device in ("cpu", "reference")]


def with_nan(at: int, *shape: int) -> np.ndarray:
    """Numbers, and a NaN."""
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    x.flat[at] = np.nan
    return x


for _name in ("reduce_max", "reduce_min"):

    @demonstrates("change", f"MLGraphBuilder.{_name}: NaN")
    def _(name: str = _name) -> None:
        got, wanted = of_nan(lambda b, x: getattr(b, name)(x, axes=[1]), with_nan(39, 2, 40))
        assert np.isnan(wanted).tolist() == [True, False]
        assert not np.isnan(got).any()


for _name in ("arg_max", "arg_min"):

    @demonstrates("change", f"MLGraphBuilder.{_name}: NaN")
    def _(name: str = _name) -> None:
        got, wanted = of_nan(lambda b, x: getattr(b, name)(x, 1), with_nan(39, 2, 40))
        assert wanted[0] == 39
        assert got[0] != 39


@demonstrates("change", "MLGraphBuilder.max_pool2d: NaN")
def _() -> None:
    got, wanted = of_nan(lambda b, x: b.max_pool2d(x, window_dimensions=[2, 2]), with_nan(27, 1, 2, 8, 8))
    assert np.isnan(wanted).sum() == 4
    assert np.isnan(got).sum() < 4


for _name, _gates in (("gru", 3), ("lstm", 4)):

    @demonstrates("change", f"MLGraphBuilder.{_name}: NaN")
    def _(name: str = _name, gates: int = _gates) -> None:
        random = np.random.default_rng(0)
        weight, recurrent = (random.standard_normal((1, gates * 4, size)).astype("float32") for size in (5, 4))
        bias = np.ones((1, gates * 4), "float32")
        given = with_nan(3, 3, 1, 5)
        got, wanted = of_nan(lambda b, x: getattr(b, name)(x, weight, recurrent, 3, 4, bias=bias)[0], given)
        assert np.isnan(wanted).all()
        assert not np.isnan(got).all()


@demonstrates("change", "MLGraphBuilder.relu: NaN on OpenVINO")
@demonstrates("change", "MLGraphBuilder.clamp: NaN on OpenVINO")
def _() -> None:
    results = {}
    for name, context in {"openvino": openvino_context(), "reference": CONTEXTS["reference"]}.items():
        builder = ow.MLGraphBuilder(context)
        product = builder.matmul(builder.input("x", "float32", [1, 6]), builder.constant(np.ones((6, 6), "float32")))
        outputs = {}
        for number, after in enumerate((product, product + 1, product * 2 - product)):
            outputs[f"relu{number}"] = builder.relu(after)
            outputs[f"clamp{number}"] = builder.clamp(after, min_value=0, max_value=6)
        graph = builder.build(outputs)
        results[name] = [*context.compute(graph, {"x": np.full((1, 6), np.nan, "float32")}).values()]
    assert np.isnan(results["reference"]).all()
    assert not np.isnan(results["openvino"]).any()


@demonstrates("change", "MLGraphBuilder.exp: large inputs on OpenVINO")
def _() -> None:
    results = {}
    for name, context in {"openvino": openvino_context(), "reference": CONTEXTS["reference"]}.items():
        builder = ow.MLGraphBuilder(context)
        graph = builder.build({"y": builder.exp(builder.input("x", "float32", [3]))})
        results[name] = context.compute(graph, {"x": np.float32([88.3, 88.5, 88.7])})["y"]
    assert np.isfinite(results["reference"]).all()
    assert np.isfinite(results["openvino"]).tolist() == [True, False, False]


@demonstrates("change", "MLGraphBuilder.max_pool2d: -inf")
def _() -> None:
    x = np.full((1, 1, 2, 2), -np.inf, "float32")
    results = {}
    for name, context in {"openvino": openvino_context(), **CONTEXTS}.items():
        builder = ow.MLGraphBuilder(context)
        graph = builder.build({"y": builder.max_pool2d(builder.input("x", "float32", x.shape))})
        results[name] = context.compute(graph, {"x": x})["y"].item()
    assert results["reference"] == -np.inf
    assert results["openvino"] == np.finfo("float32").min


@demonstrates("change", "MLGraphBuilder.softmax: NaN on OpenVINO")
def _() -> None:
    x = with_nan(1, 3)
    results = {}
    for name, context in {"openvino": openvino_context(), "reference": CONTEXTS["reference"]}.items():
        builder = ow.MLGraphBuilder(context)
        graph = builder.build({"y": builder.softmax(builder.input("x", "float32", x.shape), x.ndim - 1)})
        results[name] = np.isnan(context.compute(graph, {"x": x})["y"])
    assert results["reference"].sum() > results["openvino"].sum() > 0


@demonstrates("change", "MLGraphBuilder.batch_normalization: variance + epsilon of 0")
def _() -> None:
    x, mean, variance = np.float32([[3, 3], [1, 2]]), np.float32([2, 1]), np.float32([0, 4])
    results = {}
    for name, context in CONTEXTS.items():
        builder = ow.MLGraphBuilder(context)
        operands = [builder.input(each, "float32", [2]) for each in ("mean", "variance")]
        graph = builder.build(
            {"y": builder.batch_normalization(builder.input("x", "float32", [2, 2]), *operands, epsilon=0)}
        )
        results[name] = context.compute(graph, {"x": x, "mean": mean, "variance": variance})["y"].tolist()
    assert results["reference"] == [[np.inf, 1], [-np.inf, 0.5]]
    assert np.array_equal(results["cpu"], [[np.nan, 1], [np.nan, 0.5]], equal_nan=True)


def _results_beyond_float32(name: str, size: float, **options: Any) -> dict[str, np.ndarray]:
    x = np.float32([size, size / 2] * 8).reshape(1, 1, 4, 4)
    results = {}
    for key, context in CONTEXTS.items():
        builder = ow.MLGraphBuilder(context)
        operand = builder.input("x", "float32", x.shape)
        results[key] = context.compute(builder.build({"y": getattr(builder, name)(operand, **options)}), {"x": x})["y"]
    return results


@demonstrates("change", "MLGraphBuilder.reduce_mean: sums beyond float32")
@demonstrates("change", "MLGraphBuilder.average_pool2d: sums beyond float32")
@demonstrates("change", "MLGraphBuilder.reduce_log_sum: sums beyond float32")
@demonstrates("change", "MLGraphBuilder.reduce_l2: sums beyond float32")
@demonstrates("change", "MLGraphBuilder.l2_pool2d: sums beyond float32")
def _() -> None:
    for name, size, expected in (
        ("reduce_mean", 3e38, 2.25e38),
        ("average_pool2d", 3e38, 2.25e38),
        ("reduce_log_sum", 3e38, np.log(3e38) + np.log(12)),
        ("reduce_l2", 1e30, np.sqrt(10) * 1e30),
        ("l2_pool2d", 1e30, np.sqrt(10) * 1e30),
    ):
        results = _results_beyond_float32(name, size)
        np.testing.assert_allclose(results["reference"].item(), expected, rtol=1e-6)
        assert results["cpu"].item() == np.inf, name


@demonstrates("change", "MLGraphBuilder.layer_normalization: sums beyond float32")
@demonstrates("change", "MLGraphBuilder.instance_normalization: sums beyond float32")
def _() -> None:
    for name in ("layer_normalization", "instance_normalization"):
        results = _results_beyond_float32(name, 3e38)
        np.testing.assert_allclose(np.abs(results["reference"]), 1, rtol=1e-6)
        assert not np.abs(results["cpu"]).any() or np.isnan(results["cpu"]).all()


@demonstrates("change", "MLGraphBuilder.prelu: slopes that are not finite")
@demonstrates("change", "MLGraphBuilder.leaky_relu: slopes that are not finite")
@demonstrates("change", "MLGraphBuilder.elu: slopes that are not finite")
def _() -> None:
    x = np.float32([3, 0, -2])
    for context in CONTEXTS.values():
        builder = ow.MLGraphBuilder(context)
        operand = builder.input("x", "float32", [3])
        outputs = {"prelu": builder.prelu(operand, np.float32([np.inf, np.nan, 2]))}
        outputs |= {name: getattr(builder, name)(operand, alpha=1e39) for name in ("leaky_relu", "elu")}
        results = context.compute(builder.build(outputs), {"x": x})
        assert results["prelu"].tolist() == [3, 0, -4]
        assert results["leaky_relu"].tolist() == results["elu"].tolist() == [3, 0, -np.inf]


@demonstrates("addition", "MLGraphBuilder: numbers and arrays as operands")
def _() -> None:
    builder = new_builder()
    x = builder.input("x", "float16", [2])
    operands: list[Any] = [1, np.ones(2, "float16")]
    assert [builder.add(x, operand).data_type for operand in operands] == ["float16", "float16"]


@demonstrates("addition", "MLContext.create_exportable_tensor(usage)")
def _() -> None:
    assert inspect.signature(ow.MLContext.create_exportable_tensor).parameters["usage"].default is None


@demonstrates("addition", "MLGraphBuilder: data types of drafts and of ONNX")
def _() -> None:
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference", drafts=True))
    assert builder.input("x", "bfloat16", [2]).relu().data_type == "bfloat16"  # type: ignore[arg-type]


@demonstrates("addition", "MLGraphBuilder: dimensions of 0")
def _() -> None:
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference", drafts=True))
    with pytest.raises(ow.ValidationError, match=r"dimensions in \[1, "):
        new_builder().input("x", "float32", [0])
    assert builder.input("x", "float32", [0]).shape == (0,)


# ---------------------------------------------------------------------------------------------------------------------
# The tests


def declared() -> Iterator[Difference]:
    """The patterns that docs/deviations.md lists as changes and as additions, which drafts are, too."""
    page = (Path(__file__).parents[2] / "docs" / "deviations.md").read_text(encoding="utf-8")
    kinds: dict[str, tuple[Kind, str]] = {
        "Changes": ("change", "Why"),
        "Additions": ("addition", "Why"),
        "Drafts": ("addition", "Text"),
    }
    for heading, (kind, reason) in kinds.items():
        section = page.partition(f"## {heading}\n")[2].partition("\n## ")[0]
        rows = [line for line in section.splitlines() if line.startswith("|")]
        assert rows[:2] == [f"| Where | What | {reason} |", "|---|---|---|"]
        for row in rows[2:]:
            where, what, why = row.removeprefix("| ").removesuffix(" |").split(" | ")
            assert re.fullmatch(r"[^|]+\. \| [^|]+\.", f"{what} | {why}"), row
            assert re.fullmatch("`[^`]+`(, `[^`]+`)*", where), row
            yield from ((kind, pattern) for pattern in re.findall("`([^`]+)`", where))


DECLARED = list(declared())


def covers(declaration: Difference, difference: Difference) -> bool:
    # What is renamed is missing and added; that is a change, whereas a mere addition takes nothing away.
    return declaration[0] in (difference[0], "change") and fnmatchcase(difference[1], declaration[1])


def test_deviations_are_declared() -> None:
    undeclared = [d for d in differences() if not any(covers(declaration, d) for declaration in DECLARED)]
    assert sorted(undeclared) == []


def test_declared_deviations_exist() -> None:
    existing = differences() | set(DEMONSTRATIONS)
    assert len(DECLARED) > 80
    assert [d for d in DECLARED if not any(covers(d, difference) for difference in existing)] == []


def test_demonstrations_have_declared_deviation() -> None:
    assert [d for d in DEMONSTRATIONS if not any(covers(declaration, d) for declaration in DECLARED)] == []


@pytest.mark.parametrize("difference", DEMONSTRATIONS, ids=lambda d: d[1])
def test_demonstration(difference: Difference) -> None:
    DEMONSTRATIONS[difference]()


def test_operations_follow_specification_order() -> None:
    wanted = [member for member in INTERFACES["MLGraphBuilder"] if is_operation("MLGraphBuilder", member)]
    assert len(wanted) == 95
    assert [camel_case(name) for name in OPS] == wanted


def test_promises_have_a_twin_to_await() -> None:
    for interface, members in INTERFACES.items():
        for member, overloads in members.items():
            if overloads[0]["returns"] and overloads[0]["returns"].startswith("Promise<") and member != "lost":
                cls = getattr(ow, interface)
                method, twin = getattr(cls, snake_case(member)), getattr(cls, f"{snake_case(member)}_async")
                assert inspect.iscoroutinefunction(twin)
                assert inspect.signature(twin) == inspect.signature(method)


def test_lost_info_has_the_members_of_its_dictionary() -> None:
    fields = [field.name for field in dataclasses.fields(ow.MLContextLostInfo)]
    assert fields == [snake_case(member["name"]) for member in members_of("MLContextLostInfo")]


def test_operations_have_limits_table() -> None:
    assert set(TABLES) == set(OPS)


@pytest.mark.parametrize("device", CONTEXTS)
def test_op_support_limits_have_dictionary_members(device: str) -> None:
    limits = CONTEXTS[device].op_support_limits()
    for member in members_of("MLOpSupportLimits"):
        wanted = members_of(member["type"]) if member["type"] in DICTIONARIES else []
        given = limits[snake_case(member["name"])]
        assert list(given) == [snake_case(part["name"]) for part in wanted] if wanted else given, member["name"]
    assert list(limits) == [snake_case(member["name"]) for member in members_of("MLOpSupportLimits")]


def test_op_support_limits_by_specification_name() -> None:
    limits = CONTEXTS["reference"].op_support_limits()
    with pytest.warns(
        DeprecationWarning, match="the key 'maxTensorByteLength' is deprecated; it is 'max_tensor_byte_length'"
    ):
        assert limits["maxTensorByteLength"] == limits["max_tensor_byte_length"]
    with pytest.warns(DeprecationWarning, match="'averagePool2d'") as warned:
        limits["averagePool2d"]
    assert warned[0].filename == __file__
    with pytest.warns(DeprecationWarning, match="'rankRange'"):
        assert limits["conv2d"]["input"].get("rankRange") == {"min": 4, "max": 4}
    with pytest.warns(DeprecationWarning, match="'dataTypes'"):
        assert "dataTypes" in limits["input"]
    with pytest.raises(KeyError, match="noSuchThing"):
        limits["noSuchThing"]
    assert "noSuchThing" not in limits


@pytest.mark.whole
@pytest.mark.parametrize("device", CONTEXTS)
@pytest.mark.parametrize("op", OPS.values(), ids=lambda op: op.name)
def test_op_support_limits_include_required_types(op: Op[..., Any], device: str) -> None:
    supported = CONTEXTS[device].op_support_limits()[op.name]
    for name, row in TABLES[op.name].items():
        given = supported[name]
        assert set(row.required_types) <= set(given["data_types"]), name
        low, high = row.required_ranks
        assert given["rank_range"]["min"] <= low, name
        assert high <= given["rank_range"]["max"], name
