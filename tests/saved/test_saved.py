"""Files of compiled graphs: `MLGraph.save` and `MLContext.load`."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import saved_operations as own
from hypothesis import given, settings, strategies as st
from row_sample import examples
from samples import SAMPLES, Call, Make, type_choices
from support.composite_cases import CASES
from support.processes import run_python

import opweave as ow
from opweave import composites, memory
from opweave.composites import control
from opweave.context.graph import recorded_graph
from opweave.core.bodies import Body, make_body
from opweave.core.dtypes import INFO, numpy_type
from opweave.core.graph import Desc
from opweave.core.operation import Op
from opweave.core.sizes import Size
from opweave.ops import Operations
from opweave.ops.recorder import Recorder
from opweave.saved.container import Container, ContainerWriter
from opweave.saved.operations import find_operation, reference_of
from opweave.saved.parts import AUTHENTICATION, DIGEST, seal

REFERENCE = ow.ml.create_context(device="reference")
DRAFTS = ow.ml.create_context(device="reference", drafts=True)
CPU = ow.ml.create_context(device="cpu", backend="onnxruntime")


def reloaded(graph: ow.MLGraph, folder: Path) -> ow.MLGraph:
    """The graph from a file that it was saved in."""
    path = folder / "graph.opweave"
    graph.save(path)
    return graph.context.load(path)


def assert_same(one: ow.MLGraph, other: ow.MLGraph, feeds: dict[str, np.ndarray]) -> None:
    """Require the same inputs, outputs, operations and results, bit for bit."""
    assert dict(one.inputs) == dict(other.inputs)
    assert str(recorded_graph(one)) == str(recorded_graph(other))
    results = [graph.context.compute(graph, {name: feeds[name] for name in graph.inputs}) for graph in (one, other)]
    assert [*results[0]] == [*results[1]]
    for name, array in results[0].items():
        assert array.dtype == results[1][name].dtype
        assert array.tobytes() == results[1][name].tobytes()


def saved_call(context: ow.MLContext, op: Op[..., Any], call: Call, folder: Path) -> None:
    """Save a call whose first array is an input, and whose other ones are constants; compare the results."""
    builder, feeds = ow.MLGraphBuilder(context), dict[str, np.ndarray]()

    def operand(value: Any) -> Any:
        if isinstance(value, list) and value and isinstance(value[0], np.ndarray):
            return [operand(item) for item in value]
        if not isinstance(value, np.ndarray):
            return value
        if feeds:
            return builder.constant(value)
        feeds["x"] = value
        return builder.input("x", value.dtype.name, value.shape)

    args = [operand(value) for value in call.args]
    result = op(builder, *args, **{name: operand(value) for name, value in call.kwargs.items()}, label="the call")
    results = result if isinstance(result, tuple) else (result,)
    graph = builder.build({f"y{number}": each for number, each in enumerate(results)})
    assert_same(graph, reloaded(graph, folder), feeds)


few = settings(max_examples=examples(4, in_sample=2))


@pytest.mark.parametrize("name", [name for name, op in Operations.listing().items() if op in SAMPLES])
@given(data=st.data())
@few
def test_save_each_operation(name: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    op = Operations.listing()[name]
    types = data.draw(st.sampled_from(type_choices(op, REFERENCE.backend.limits(op))))
    saved_call(REFERENCE, op, SAMPLES[op].make(Make(data.draw, types)), tmp_path_factory.mktemp("op"))


@pytest.mark.parametrize("op", CASES, ids=lambda op: op.name)
@given(data=st.data())
@few
def test_save_each_composite(op: Op[..., Any], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    data_type = data.draw(st.sampled_from(CASES[op].types))  # type: ignore[index]
    call, _ = CASES[op].make(Make(data.draw, {"x": data_type}))  # type: ignore[index]
    saved_call(REFERENCE, op, call, tmp_path_factory.mktemp("op"))


def test_every_operation_of_opweave_has_a_name_in_files() -> None:
    everything = [*Operations.listing().values(), *Operations.drafts().values()]
    everything += [op for name in composites.__all__ if isinstance(op := getattr(composites, name), Op)]
    everything += [op for op in vars(control).values() if isinstance(op, Op)]
    for op in everything:
        assert find_operation(reference_of(op), "file", may_import=False) is op


def convolutions(context: ow.MLContext) -> tuple[ow.MLGraph, np.ndarray]:
    """A graph with large and small constants, and a view of one of them."""
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [1, 3, 8, 8])
    filter = np.random.default_rng(0).normal(size=(64, 3, 3, 3)).astype(np.float32)
    y = x.conv2d(builder.constant(filter), padding=[1, 1, 1, 1], bias=builder.constant(np.ones(64, "float32")))
    again = x.conv2d(builder.constant(filter), padding=[1, 1, 1, 1], label="again")
    flat = builder.reduce_sum(builder.constant(filter.reshape(-1)))
    return builder.build({"y": y.relu() + again, "z": flat + builder.reduce_max(x)}), filter


def test_save_writes_each_weight_once_and_load_maps_it(tmp_path: Path) -> None:
    graph, filter = convolutions(CPU)
    memory.copies.reset()
    loaded = reloaded(graph, tmp_path)
    assert memory.copies.bytes == 0
    path = tmp_path / "graph.opweave"
    assert path.stat().st_size < 1.5 * filter.nbytes
    constants = [operand.value for operand in recorded_graph(loaded).constants if operand.desc.byte_length > 4096]
    assert len(constants) == 3
    assert len({array.ctypes.data for array in constants}) == 1
    assert constants[0].ctypes.data % 64 == 0
    assert not constants[0].flags.writeable
    assert type(memory.owner(constants[0])).__name__ == "mmap"
    assert_same(graph, loaded, {"x": np.random.default_rng(1).normal(size=(1, 3, 8, 8)).astype("float32")})


def test_save_writes_a_safetensors_file(tmp_path: Path) -> None:
    graph, filter = convolutions(REFERENCE)
    graph.save(tmp_path / "graph.opweave")
    data = (tmp_path / "graph.opweave").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    (entry,) = [entry for name, entry in header.items() if name.startswith("constant.")]
    start, stop = entry["data_offsets"]
    assert (entry["dtype"], entry["shape"]) == ("F32", [64, 3, 3, 3])
    assert data[8 + length + start : 8 + length + stop] == filter.tobytes()


def test_save_replaces_the_file_that_the_graph_was_loaded_from(tmp_path: Path) -> None:
    graph, _ = convolutions(REFERENCE)
    loaded = reloaded(graph, tmp_path)
    again = reloaded(loaded, tmp_path)
    feeds = {"x": np.ones((1, 3, 8, 8), "float32")}
    assert_same(graph, loaded, feeds)
    assert_same(graph, again, feeds)
    assert [path.name for path in tmp_path.iterdir()] == ["graph.opweave"]


def test_save_graph_with_names(tmp_path: Path) -> None:
    builder = ow.MLGraphBuilder(DRAFTS)
    x = builder.input("x", "float32", [{"name": "n", "min_size": 2, "max_size": 9}, "two words"])
    y = builder.concat([x, x], 0)
    y = builder.reshape(y, [y.shape[0] * y.shape[1]])
    rows = builder.constant(np.float32(1)).expand([x.shape[0] // 2, (x.shape[1] + 1) // 2])
    flags = builder.shape(x)
    graph = builder.build({"y": y * (1 / x.shape[0]), "rows": rows, "shape": flags})
    loaded = reloaded(graph, tmp_path)
    state: Any = next(iter(recorded_graph(loaded).outputs.values())).builder
    assert {name: (hint.min_size, hint.max_size) for name, hint in state.size_hints.items()} == {"n": (2, 9)}
    for shape in ((2, 3), (5, 4)):
        assert_same(graph, loaded, {"x": np.random.default_rng(0).normal(size=shape).astype("float32")})


@pytest.mark.parametrize("data_type", [name for name in INFO if INFO[name].bits != 64 or name == "float64"])
@pytest.mark.parametrize("count", [1, 3, 20001])
def test_save_constant_of_each_data_type(data_type: str, count: int, tmp_path: Path) -> None:
    codes = np.random.default_rng(0).integers(0, 2 if "e8m0" not in data_type else 100, count).astype("float32")
    array = codes.astype(numpy_type(data_type))
    builder = ow.MLGraphBuilder(DRAFTS)
    x = builder.input("x", data_type, [2])
    graph = builder.build({"y": builder.concat([x, builder.constant(array)], 0)})  # type: ignore[arg-type]
    loaded = reloaded(graph, tmp_path)
    assert_same(graph, loaded, {"x": array[:1].repeat(2)})
    if count > 1000:
        bits = INFO[data_type].bits
        assert (tmp_path / "graph.opweave").stat().st_size < count * bits / 8 + 2000


def body_of(function: Callable[..., Any], *descs: Desc) -> Body:
    return make_body(Recorder(), list(descs), function)


def test_save_bodies(tmp_path: Path) -> None:
    scalar, row = Desc("float32", ()), Desc("float32", (3,))
    table = np.arange(3, dtype="float32")
    inner = body_of(lambda b, x: [x * b.constant(table)], row)
    other = body_of(lambda b, x: [b.neg(x)], row)
    unused = Desc("int64", ())

    def step(b: Any, position: Any, total: Any, x: Any) -> Any:
        chosen = control.branch(b, b.cast(b.reduce_max(x).greater(total), "uint8"), [x], body=inner, other=other)
        return [total + b.reduce_sum(chosen[0]), chosen[0]]

    body = body_of(step, unused, scalar, row)
    builder = ow.MLGraphBuilder(REFERENCE)
    x = builder.input("x", "float32", [4, 3])
    zero = builder.constant("float32", 0)
    total, rows = control.loop(builder, [zero], [x], [], body=body, length=4, takes_position=True)
    graph = builder.build({"total": total, "rows": rows})
    loaded = reloaded(graph, tmp_path)
    feeds = {"x": np.random.default_rng(0).normal(size=(4, 3)).astype("float32")}
    assert_same(graph, loaded, feeds)
    (node,) = [node for node in recorded_graph(loaded).nodes if node.op.bodies]
    assert [*node.attributes["body"].graph.inputs] == ["x0", "x1", "x2"]


@pytest.mark.parametrize("context", [REFERENCE, CPU], ids=["reference", "cpu"])
def test_save_custom_operations_by_name(context: ow.MLContext, tmp_path: Path) -> None:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [5, 4])
    y = own.centred(builder, own.scaled_square(builder, x, scale=0.5), axis=1)
    y = own.leaky_sum(builder, builder.constant(np.zeros(4, "float32")), y, rate=0.25)
    y = y[0] if isinstance(y, tuple) else y
    graph = builder.build({"y": own.add_number(builder, y, number=3)})
    assert_same(graph, reloaded(graph, tmp_path), {"x": np.arange(20, dtype="float32").reshape(5, 4)})


def test_save_rejects_operation_without_a_module(tmp_path: Path) -> None:
    @ow.expression
    def local(x: Any) -> Any:
        return x * 2

    builder = ow.MLGraphBuilder(REFERENCE)
    graph = builder.build({"y": local(builder, builder.input("x", "float32", [2]), label="head")})
    with pytest.raises(
        ow.NotSupportedError, match=r"local 'head': a file names operations by their module, and test_saved"
    ):
        graph.save(tmp_path / "graph.opweave")
    assert not [*tmp_path.iterdir()]


LOAD = """
import sys, opweave as ow
context = ow.ml.create_context(device="reference")
path, trusted, folder = sys.argv[1:]
sys.path.insert(0, folder)
try:
    print(context.load(path, trusted=trusted == "True"))
except ow.NotSupportedError as error:
    print(error)
print("saved_operations" in sys.modules)
"""


def test_load_imports_modules_of_users_for_trusted_files_alone(tmp_path: Path) -> None:
    builder = ow.MLGraphBuilder(REFERENCE)
    path = tmp_path / "graph.opweave"
    builder.build({"y": own.scaled_square(builder, builder.input("x", "float32", [2]))}).save(path)
    folder = str(Path(own.__file__).parent)
    refused, is_there = run_python(LOAD, str(path), "False", folder).splitlines()
    assert "needs the operation 'scaled_square' of the module saved_operations; import this module before" in refused
    assert is_there == "False"
    graph, is_there = run_python(LOAD, str(path), "True", folder).splitlines()
    assert (graph, is_there) == ("<MLGraph (x: float32[2]) -> (y: float32[2]), 1 operation on reference>", "True")


# ---------------------------------------------------------------------------------------------------------------------
# Files of strangers


def small_file(folder: Path) -> Path:
    builder = ow.MLGraphBuilder(REFERENCE)
    x = builder.input("x", "float32", [2, 3])
    weights = builder.constant(np.ones((3, 400), "float32"))
    path = folder / "graph.opweave"
    builder.build({"y": builder.softmax(x.matmul(weights), 1)}).save(path)
    return path


def changed(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Change the manifest of a file, and write the file again."""
    container = Container.open(path)
    manifest = json.loads(container.section("opweave.manifest").tobytes())
    change(manifest)
    return with_manifest(path, json.dumps(manifest).encode())


def with_manifest(path: Path, text: bytes) -> Path:
    """Write a file again, with another manifest."""
    container, writer = Container.open(path), ContainerWriter()
    for name in container.names:
        if name not in (DIGEST, AUTHENTICATION):
            data = text if name == "opweave.manifest" else container.section(name).tobytes()
            writer.add(name, "uint8", (len(data),), data)
    seal(writer)
    other = path.with_name("changed.opweave")
    writer.write(other)
    return other


def attributes_of(manifest: dict[str, Any]) -> dict[str, Any]:
    """The attributes of the last node."""
    attributes: dict[str, Any] = manifest["graph"]["nodes"][-1][2]
    return attributes


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "an unknown operation": (lambda m: m.update(operations=["webnn:sofftmax", *m["operations"][1:]]), "no operation 'sofft"),
    "a function of another module": (lambda m: m.update(operations=["os:system"] * 2), "the module os lacks"),
    "a module with a path": (lambda m: m.update(operations=["../os:system"] * 2), "names no operation"),
    "an object of Opweave": (lambda m: m.update(operations=["opweave.ops.matrix:require"] * 2), "matrix lacks"),
    "an axis out of range": (lambda m: attributes_of(m).update(axis=7), r"softmax: axis must be in \[0, 2\)"),
    "a text for an axis": (lambda m: attributes_of(m).update(axis="1"), "softmax: axis must be an integer"),
    "a size for an axis": (lambda m: attributes_of(m).update(axis={"size": [[[["name", "n"]], 1]]}), "softmax"),
    "an unknown attribute": (lambda m: attributes_of(m).update(other=1), "an attribute of softmax"),
    "an unknown kind of value": (lambda m: attributes_of(m).update(axis={"code": "1"}), "is no kind of value"),
    "a call of anything": (
        lambda m: attributes_of(m).update(axis={"size": [[[["__import__", [[[["name", "n"]], 1]]]], 1]]}),
        "a call in a size",
    ),
    "a real number that is no formula": (lambda m: attributes_of(m).update(axis={"real": 7}), "a call of a formula"),
    "a size for a formula": (lambda m: attributes_of(m).update(axis={"real": {"size": []}}), "a call of a formula"),
    "a huge power": (lambda m: attributes_of(m).update(axis={"real": ["**", 10, ["**", 10, 10]]}), "axis must be an integer"),
    "a list for an operation": (lambda m: m["graph"]["nodes"][0].__setitem__(0, [0]), "a number below 2"),
    "an operand that follows": (lambda m: m["graph"]["nodes"][0][1].update(a=2), "a number below 2"),
    "an operand before the first": (lambda m: m["graph"]["nodes"][0][1].update(a=-1), "a number below 2"),
    "a truth value for an operand": (lambda m: m["graph"]["nodes"][0][1].update(a=True), "a number below 2"),
    "no outputs": (lambda m: m["graph"].update(outputs=[]), "outputs must not be empty"),
    "an input as output": (lambda m: m["graph"].update(outputs=[["y", 0]]), "is not the result of an operation"),
    "a small constant beyond the section": (lambda m: m["constants"][0].__setitem__(2, 4096), "the place of a small"),
    "a negative place": (lambda m: m["constants"][0].__setitem__(2, -16), "the place of a small constant"),
    "a constant in the manifest": (lambda m: m["constants"][0].__setitem__(2, "opweave.manifest"), "the section of a"),
    "a constant that is missing": (lambda m: m["constants"][0].__setitem__(2, "constant.7"), "is missing"),
    "a larger shape": (lambda m: m["constants"][0].__setitem__(1, [3, 401]), "bytes of a constant"),
    "a huge shape": (lambda m: m["constants"][0].__setitem__(1, [2**31 - 1] * 8), "bytes of a constant"),
    "an unknown data type": (lambda m: m["constants"][0].__setitem__(0, "object"), "a data type"),
    "no list of nodes": (lambda m: m["graph"].update(nodes=7), "expected a graph"),
    "no hints": (lambda m: m.pop("size_hints"), "lacks 'size_hints'"),
    "rules that are no list": (lambda m: m.update(size_rules={"n": 3}), "a list of rules for sizes"),
    "a rule that calls": (lambda m: m.update(size_rules=[["exit(n)", {"n": "n"}]]), "a rule of the sizes"),
    "a rule of lists": (lambda m: m.update(size_rules=[["n > 2", {"n": []}]]), "a name or a size"),
    "hints that are none": (lambda m: m.update(size_hints={"n": [3, 2]}), "the least and greatest size"),
    "a wrong shape of an input": (lambda m: m["graph"]["inputs"][0].__setitem__(2, [2, -3]), "dimensions in"),
    "a formula of sizes in an input": (
        lambda m: m["graph"]["inputs"][0].__setitem__(2, [2, [[[["name", "n"]], 2]]]), "a name that is not empty"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_load_rejects_changed_manifest(name: str, tmp_path: Path) -> None:
    change, message = CHANGES[name]
    path = changed(small_file(tmp_path), change)
    with pytest.raises(ow.MLError, match=message) as caught:
        REFERENCE.load(path)
    assert str(path) in str(caught.value)


def test_load_rejects_values_that_are_nested_deeply(tmp_path: Path) -> None:
    path = with_manifest(small_file(tmp_path), b"[" * 10**6)
    with pytest.raises(ow.DataError, match="nested too deeply"):
        REFERENCE.load(path)


def test_load_rejects_changed_bytes(tmp_path: Path) -> None:
    """All bytes but those of weights are covered by a digest, or checked."""
    path = small_file(tmp_path)
    data, generator = path.read_bytes(), np.random.default_rng(0)
    start, stop = data.index(np.float32(1).tobytes() * 9), data.rindex(np.float32(1).tobytes() * 9) + 36
    for place in generator.integers(0, len(data), 300):
        is_authentication = place >= len(data) - 32  # which no one asks for without compiled parts
        if start <= place < stop or data[place] == 0 or is_authentication:  # weights and padding
            continue
        path.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        with pytest.raises(ow.DataError, match=re.escape(str(path))):
            REFERENCE.load(path)


def with_header(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Change the header of a file."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    return path


HEADERS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "another format": (lambda h: h.update(__metadata__={"format": "pt"}), "no saved graph of Opweave"),
    "no metadata": (lambda h: h.pop("__metadata__"), "no saved graph of Opweave"),
    "a later version": (
        lambda h: h["__metadata__"].update(version="2"), "a later version of Opweave has written it, in format 2"
    ),
    "no version": (lambda h: h["__metadata__"].update(version="-1"), "must be a number, got '-1'"),
    "a gap": (lambda h: h.pop("constant.0"), "and the one before ends at 0"),
    "an overlap": (lambda h: h["constant.0"].update(data_offsets=[64, 64 + 4800]), "begins at 64"),
    "too many bytes": (lambda h: h.update(more={"dtype": "U8", "shape": [9], "data_offsets": [0, 9]}), "begins at 0"),
    "an unknown type": (lambda h: h["constant.0"].update(dtype="O"), "is damaged"),
    "negative offsets": (lambda h: h["constant.0"].update(data_offsets=[-4800, 0]), "is damaged"),
    "floats as offsets": (lambda h: h["constant.0"].update(data_offsets=[0.0, 4800.0]), "is damaged"),
    "a wrong shape": (lambda h: h["constant.0"].update(shape=[3, 399]), "which are not"),
    "many dimensions": (lambda h: h["constant.0"].update(shape=[2**62] * 1000), "is damaged"),
}  # fmt: skip


@pytest.mark.parametrize("name", HEADERS)
def test_load_rejects_changed_header(name: str, tmp_path: Path) -> None:
    change, message = HEADERS[name]
    with pytest.raises(ow.DataError, match=message):
        REFERENCE.load(with_header(small_file(tmp_path), change))


FILES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda data: b"", "at least 8 bytes, got 0"),
    "a few bytes": (lambda data: data[:5], "at least 8 bytes, got 5"),
    "a model of ONNX": (lambda data: b"\x08\x0a\x12\x07pytorch" * 9, "no saved graph of Opweave"),
    "half of the header": (lambda data: data[:100], "the file is truncated: its header has"),
    "half of the weights": (lambda data: data[:2000], "the file is truncated: its sections have"),
    "a byte less": (lambda data: data[:-1], "the file is truncated"),
    "a byte more": (lambda data: data + b"x", "1 bytes follow its sections"),
    "a huge header": (lambda data: (2**60).to_bytes(8, "little") + data[8:], "no saved graph of Opweave"),
    "a broken header": (lambda data: data[:9] + b"\xff\xfe" + data[11:], "it is damaged"),
}


@pytest.mark.parametrize("name", FILES)
def test_load_rejects_file(name: str, tmp_path: Path) -> None:
    change, message = FILES[name]
    path = small_file(tmp_path)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ow.DataError, match=message):
        REFERENCE.load(path)


def test_load_rejects_what_is_no_file(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.opweave", tmp_path):
        with pytest.raises(ow.DataError, match=str(path)):
            REFERENCE.load(path)
    with pytest.raises(ow.ValidationError, match="load: path must be a path, got 7"):
        REFERENCE.load(7)  # type: ignore[arg-type]
    with pytest.raises(ow.ValidationError, match="trusted must be True or False"):
        REFERENCE.load(tmp_path, trusted="yes")  # type: ignore[arg-type]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pipes with names")
def test_load_does_not_wait_for_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ow.DataError, match="is a regular file"):
        REFERENCE.load(tmp_path / "pipe")


def test_save_and_load_of_lost_objects(tmp_path: Path) -> None:
    context = ow.ml.create_context(device="reference")
    builder = ow.MLGraphBuilder(context)
    graph = builder.build({"y": builder.input("x", "float32", [2]).neg()})
    path = tmp_path / "graph.opweave"
    graph.save(path)
    graph.destroy()
    with pytest.raises(ow.InvalidStateError, match="the graph is destroyed"):
        graph.save(path)
    with pytest.raises(ow.DataError, match="No such file or directory"):
        context.load(path).save(tmp_path / "missing" / "graph.opweave")
    context.destroy()
    with pytest.raises(ow.InvalidStateError):
        context.load(path)


def test_save_keeps_special_numbers(tmp_path: Path) -> None:
    builder = ow.MLGraphBuilder(REFERENCE)
    x = builder.input("x", "float32", [3])
    graph = builder.build(
        {"y": x.clamp(min_value=-math.inf, max_value=math.inf), "z": builder.pad(x, [1], [1], value=math.nan)}
    )
    assert_same(graph, reloaded(graph, tmp_path), {"x": np.float32([1, math.inf, math.nan])})


def test_large_numbers_in_formulas(tmp_path: Path) -> None:
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference", drafts=True))
    x = builder.input("x", "float32", ["n"])
    n = x.shape[0]
    graph = builder.build({"y": x * (5**n), "z": x * ((2**64 * n + 3) // (n + 1))})
    assert_same(graph, reloaded(graph, tmp_path), {"x": np.float32([1, 2, 3])})


def test_decode_dimension_is_the_size_that_was_encoded() -> None:
    from opweave.core.size_functions import choose, floored_remainder, is_less, larger
    from opweave.saved.values import decode_dimension, encode_dimension

    n, m = Size("n"), Size("m")
    for size in (
        n,
        2 * n + 1,
        n * m - 3,
        (n + 1) // 2 * m,
        larger(n, m),
        choose(is_less(n, 4), n, m),
        floored_remainder(n, m),
        2**64 * n - 2**2047 * m,
    ):
        text = json.dumps(encode_dimension(size))
        assert decode_dimension(json.loads(text)) == size
        assert str(decode_dimension(json.loads(text))) == str(size)
