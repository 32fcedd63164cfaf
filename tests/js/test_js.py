"""`opweave.js`: modules build, in JavaScript, the graph that they were made from; results are the same to the last bit."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes, urljoin, urlsplit

import numpy as np
import onnx
import pytest
from hypothesis import Phase, given, settings, strategies as st
from js_modules import CPU, Arrays, Modules, expected
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file
from samples import Call, Make
from support import node_js, wpt
from support.agreement import outputs_of, record
from support.composite_cases import CASES
from typer.testing import CliRunner

import opweave as ow
from opweave import composites
from opweave.cli import app
from opweave.context.graph import recorded_graph
from opweave.core.dtypes import ANY
from opweave.js import safetensors
from opweave.js.api import webnn_only
from opweave.serve import Server
from opweave.support.names import camel_case

STRIDE = 12
"""One of so many cases of the Web Platform Tests runs, unless `--all` asks for all."""


@pytest.fixture
def modules(tmp_path: Path) -> Modules:
    return Modules(tmp_path)


def assert_same(got: Arrays, wanted: Arrays, what: str) -> None:
    assert got.keys() == wanted.keys(), what
    for name, array in wanted.items():
        np.testing.assert_array_equal(got[name], array, err_msg=f"{what} {name}", strict=True)
        if array.dtype.kind == "f":  # also of zeros
            np.testing.assert_array_equal(np.signbit(got[name]), np.signbit(array), err_msg=f"{what} {name}")


@pytest.mark.long
def test_cases_of_the_web_platform_tests(modules: Modules, pytestconfig: pytest.Config) -> None:
    """All operations, data types and options; inputs and constants."""
    cases = [case for case in wpt.cases("conformance") if not wpt.is_large(case)]
    seen: set[str] = set()
    chosen = []
    for number, case in enumerate(cases):
        if pytestconfig.option.all or number % STRIDE == 0 or case["op"] not in seen:
            chosen.append(case)
        seen.add(case["op"])
    feeds = []
    for case in chosen:
        graph, arrays = wpt.build_conformance(CPU, case)
        modules.add(graph, arrays)
        feeds.append(arrays)
    for case, graph, feed, got in zip(chosen, modules.graphs, feeds, modules.run(), strict=True):
        assert_same(got, CPU.compute(graph, {name: feed[name] for name in graph.inputs}), case["id"])


def residual(context: ow.MLContext) -> tuple[ow.MLGraph, dict[str, np.ndarray]]:
    """A network with constants of several sizes and types, shared and labelled."""
    random = np.random.default_rng(5)
    b = ow.MLGraphBuilder(context)
    x = b.input("image", "float32", [1, 3, 8, 8])
    weights = b.constant(random.standard_normal((3, 3, 3, 3)).astype("float32"))
    y = x
    for k in range(2):
        y = b.relu(b.conv2d(y, weights, padding=[1, 1, 1, 1], label=f"block.{k}"))
    y = b.add(b.mul(y, 0.1), x, label="sum")
    left, right = b.split(y, [1, 2], axis=1)
    half = b.cast(b.add(b.cast(right, "float16"), random.standard_normal((2, 8, 8)).astype("float16")), "float32")
    indices = b.constant(np.arange(20, dtype="int64") % 8)
    z = b.concat([b.gather(left, indices, axis=2), b.gather(half, indices, axis=2)], 1)
    graph = b.build({"largest": b.arg_max(z, 1, output_data_type="int64"), "z": b.clamp(z, max_value=float("inf"))})
    return graph, {"image": random.standard_normal((1, 3, 8, 8)).astype("float32")}


def test_save_module_text(tmp_path: Path) -> None:
    graph, _ = residual(CPU)
    written = ow.js.save(graph, tmp_path / "net.js", title="net.onnx")
    assert written == [tmp_path / "net.js", tmp_path / "net.safetensors", tmp_path / "net.d.ts"]
    text = written[0].read_text()
    assert text.startswith(f"// Made by opweave {ow.__version__} from net.onnx: a WebNN graph of ")
    for line in (
        "// Data types: float32, float16, int64",
        "// Not all browsers and devices have float16 and int64: context.opSupportLimits() tells.",
        '//   import { build } from "./net.js";',
        '  image: { dataType: "float32", shape: [1, 3, 8, 8] },',
        '  const image = builder.input("image", inputs.image);',
        '  const block_0_filter = constant("block_0.filter");',
        "  const relu = builder.relu(block_0);",
        '  const mul = builder.mul(relu_2, literal("float32", [], Float32Array.of(0.1)));',
        '  const sum = builder.add(mul, image, { label: "sum" });',
        "  const [split, split_1] = builder.split(sum, [1, 2], { axis: 1 });",
        '  const argMax = builder.argMax(concat, 1, { outputDataType: "int64" });',
    ):
        assert line in text.splitlines(), line
    assert max(map(len, text.splitlines())) <= 130
    assert text.count('constant("block_0.filter")') == 1
    assert set(load_file(written[1])) == {"block_0.filter", "add.b", "gather.indices"}


def test_module_equals_graph(modules: Modules) -> None:
    graph, feed = residual(CPU)
    modules.add(graph, feed)
    assert_same(modules.run()[0], CPU.compute(graph, feed), "network")


def test_bits_of_floats_are_refused() -> None:
    for source, target in (("float32", "int32"), ("uint32", "float32"), ("int8", "uint8")):
        builder = ow.MLGraphBuilder(ow.ml.create_context(device="cpu", drafts=True))
        x: ow.MLOperand = builder.input("x", source, [4])  # type: ignore[arg-type]
        y = ow.composites.bit_cast(x, target, label="bits")
        graph = recorded_graph(builder.build({"y": builder.cast(y, "float32")}))
        if "float" in source + target:
            with pytest.raises(ow.NotSupportedError, match="bit_cast 'bits'"):
                webnn_only(graph)
        else:
            webnn_only(graph)


@pytest.mark.long
def test_composites_are_decomposed(modules: Modules) -> None:
    """Calls of each, as the tests of composites make them; the first is the smallest one."""
    made: list[tuple[str, dict[str, np.ndarray]]] = []
    refused, scalars = set[str](), set[str]()

    @settings(max_examples=4, database=None, derandomize=True, phases=[Phase.generate])
    @given(st.data())
    def add(data: st.DataObject) -> None:
        for op, case in CASES.items():
            call, _ = case.make(Make(data.draw, {"x": case.types[0]}))
            builder, result, arrays = record(CPU, op, call)
            if any(array.ndim == 0 for array in arrays.values()):
                scalars.add(op.name)
                continue  # ONNX Runtime fuses the parts of a GELU into a kernel that refuses scalars
            graph = builder.build(outputs_of(result))
            try:
                webnn_only(recorded_graph(graph))
            except ow.NotSupportedError:
                refused.add(op.name)
                continue
            assert camel_case(op.name) + "(" not in modules.add(graph, arrays).read_text()
            made.append((op.name, arrays))

    add()
    names = {name for name, _ in made}
    # Of floats, if one is drawn; `test_bits_of_floats_are_refused` has these.
    assert refused <= {"bit_cast"}
    assert len(names | refused | scalars) == len(CASES)
    assert len(names) > 50
    for (name, feed), graph, got in zip(made, modules.graphs, modules.run(), strict=True):
        assert_same(got, expected(graph, feed), name)


@pytest.mark.long
def test_formulas_of_positions_and_bits_are_written(modules: Modules) -> None:
    random = np.random.default_rng(7)
    image = random.standard_normal((2, 4, 5, 6)).astype("float32")
    grid = random.uniform(-1.2, 1.2, (2, 3, 4, 2)).astype("float32")
    rois = np.float32([[0, 0, 3, 4], [1, 2, 5, 4.5], [4, 4, 2, 2]])
    places = np.concatenate([np.float32([[0], [1], [5]]), rois], axis=1)
    offset = random.standard_normal((2, 18, 5, 6)).astype("float32")
    filter = random.standard_normal((3, 4, 3, 3)).astype("float32")
    calls = [
        (composites.grid_sample, Call(image, grid, mode="cubic", padding_mode="reflection")),
        (composites.roi_align, Call(image, rois, np.int64([0, 1, 1]), output_height=2, output_width=3)),
        (composites.max_roi_pool, Call(image, places, pooled_shape=[2, 3])),
        (composites.deform_conv, Call(image, filter, offset, padding=[1, 1, 1, 1])),
        (composites.max_pool_with_indices, Call(image, window_dimensions=[3, 2], padding=[1, 0, 0, 1])),
        (composites.random_uniform, Call(np.uint32([1, 2, 3, 4]), [3, 5])),
    ]
    feeds = []
    for op, call in calls:
        builder, result, arrays = record(CPU, op, call)
        modules.add(builder.build(outputs_of(result)), arrays)
        feeds.append(arrays)
    for (op, _), feed, graph, got in zip(calls, feeds, modules.graphs, modules.run(), strict=True):
        assert_same(got, expected(graph, feed), op.name)
        for name, array in CPU.compute(graph, feed).items():
            np.testing.assert_allclose(got[name], array, rtol=1e-5, atol=1e-5, err_msg=op.name)


@ow.op
def secret(self: ow.MLGraphBuilder, x: ow.MLOperand) -> ow.Desc:
    return x.desc


@secret.kernel("cpu")
def _(x: np.ndarray, out: np.ndarray) -> None:
    out[...] = x


def test_custom_operations_are_refused_by_name(tmp_path: Path) -> None:
    b = ow.MLGraphBuilder(CPU)
    graph = b.build({"y": secret(b, b.input("x", "float32", [2]), label="mine")})
    with pytest.raises(ow.NotSupportedError, match=r"secret 'mine': the back end WebNN has no rule for float32\[2\]"):
        ow.js.save(graph, tmp_path / "model.js")
    assert list(tmp_path.iterdir()) == []


def test_names_cannot_break_out(modules: Modules) -> None:
    hostile = [
        "class",
        "__proto__",
        "builder",
        "*/ alert(1) //",
        'a"; throw 1; "',
        "\u2028\n`${x}`",
        "…",
        "3d",
        "12",
        "constructor",
        "Float32Array",
    ]
    b = ow.MLGraphBuilder(CPU)
    operands = [b.input(name, "float32", [2]) for name in hostile]
    outputs = {}
    for name, operand in zip(hostile, operands, strict=True):
        big = np.arange(20, dtype="float32").reshape(10, 2)
        small = np.float32([1, 2])
        outputs[name + "?"] = b.add(b.add(b.relu(operand, label=name), big, label=name), small, label=name)
    outputs["__proto__"] = b.neg(operands[0])
    graph = b.build(outputs)
    feed = {name: np.float32([k, -k]) for k, name in enumerate(hostile)}
    modules.add(graph, feed)
    ow.js.save(graph, modules.folder / "0" / "model.mjs", title="*/ \n throw 1 //")
    assert_same(modules.run()[0], CPU.compute(graph, feed), "names")


def test_numbers_of_all_kinds(modules: Modules) -> None:
    b = ow.MLGraphBuilder(CPU)
    outputs: dict[str, ow.MLOperand] = {}
    feed: dict[str, np.ndarray] = {}
    for data_type in ANY:
        x = b.input(data_type, data_type, [3])
        values = [0, 1, 100] if data_type.startswith("u") else [-100, -1, 100]
        feed[data_type] = np.array(values, data_type)
        outputs[data_type] = b.clamp(x, min_value=-3 if data_type[0] != "u" else 1, max_value=7)
        big = np.iinfo(data_type).max if data_type[0] in "iu" else np.finfo(data_type).max
        outputs[f"{data_type} constant"] = b.where(b.constant("uint8", 1), np.array([big, 0, 1], data_type), x)
    wide = b.input("wide", "int64", [2])
    feed["wide"] = np.array([2**60 + 3, -(2**62)], "int64")
    outputs["wide"] = b.clamp(wide, min_value=-(2**61) - 1, max_value=2**60 + 1)
    single = b.input("single", "float32", [4])
    feed["single"] = np.array([np.nan, np.inf, -0.0, 1e-45], "float32")
    special = np.float32([np.nan, -np.inf, -0.0, 1.4e-45])
    outputs["special"] = b.where(b.constant("uint8", 1), special, single)
    outputs["leaky"] = b.leaky_relu(single, alpha=0.1)
    outputs["padded"] = b.pad(single, [1], [1], value=float("-inf"))
    outputs["negative zero"] = b.pad(single, [1], [1], value=-0.0)
    outputs["beyond float32"] = b.linear(single, beta=-1e40)
    graph = b.build(outputs)
    text = modules.add(graph, feed).read_text()
    assert "{ alpha: 0.1 }" in text
    assert "{ beta: -1e300 }" in text  # Web IDL's `double` takes no infinity
    assert "minValue: -2305843009213693953n" in text
    assert "Float32Array.of(NaN, -Infinity, -0, 1e-45)" in text
    assert_same(modules.run()[0], CPU.compute(graph, feed), "numbers")


def test_graphs_without_weights_have_one_file(tmp_path: Path) -> None:
    b = ow.MLGraphBuilder(CPU)
    graph = b.build({"y": b.relu(b.input("x", "float32", [2]))})
    assert ow.js.save(graph, tmp_path / "m.js") == [tmp_path / "m.js", tmp_path / "m.d.ts"]
    text = (tmp_path / "m.js").read_text()
    assert "export async function build(context) {" in text
    assert "safetensors" not in text


@ow.composite
def first_doubled(b: Any, x: Any, y: Any) -> Any:
    return b.mul(x, 2.0)


def test_inputs_that_no_operation_reads_are_left_out(modules: Modules) -> None:
    """`build` of WebNN refuses them."""
    builder = ow.MLGraphBuilder(CPU)
    x, hostile = builder.input("x", "float32", [2]), builder.input("*/ y\n", "float32", [3])
    graph = builder.build({"z": first_doubled(builder, x, hostile)})
    assert list(graph.inputs) == ["x", "*/ y\n"]
    feed = {"x": np.float32([1, -2]), "*/ y\n": np.zeros(3, "float32")}
    text = modules.add(graph, feed).read_text()
    assert text.count("builder.input(") == 1
    assert "// Left out, since no operation reads them: * / y\\n\n" in text
    (results,) = modules.run()
    assert_same(results, {"z": np.float32([2, -4])}, "module")


def test_missing_weights_are_named(modules: Modules) -> None:
    graph, feed = residual(CPU)
    path = modules.add(graph, feed)
    arrays = load_file(path.with_suffix(".safetensors"))
    del arrays["add.b"]
    with path.with_suffix(".safetensors").open("wb") as file:
        safetensors.write(file, arrays)
    with pytest.raises(AssertionError, match=r"the weights have no tensor add\.b"):
        modules.run()


def test_weights_are_readable_by_safetensors(tmp_path: Path) -> None:
    arrays: dict[str, np.ndarray] = {name: np.arange(k + 1).astype(name) for k, name in enumerate(ANY)}
    arrays["transposed"] = np.arange(6, dtype="float32").reshape(2, 3).T
    with (tmp_path / "w.safetensors").open("wb") as file:
        safetensors.write(file, arrays)
    found = load_file(tmp_path / "w.safetensors")
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array, strict=True)
    start = 8 + int.from_bytes((tmp_path / "w.safetensors").read_bytes()[:8], "little")
    header = json.loads((tmp_path / "w.safetensors").read_bytes()[8:start])
    assert start % 8 == 0
    assert all(entry["data_offsets"][0] % arrays[name].itemsize == 0 for name, entry in header.items())


NAMES = """
const { ml } = await import(`${process.env.OPWEAVE_PACKAGE}/node.mjs`);
const { build, inputs, outputs } = await import(process.env.MODULE);
const graph = await build(await ml.createContext());
console.log(JSON.stringify([inputs, outputs, graph.computeShapes({ x: [2, 3, 9, 8] })]));
"""


def test_save_with_names(tmp_path: Path) -> None:
    """Sizes that the operations compute by themselves are left out."""
    b = ow.MLGraphBuilder(ow.ml.create_context(device="cpu", drafts=True))
    shape = [{"name": "n", "max_size": 8}, 3, "h", {"name": "w", "min_size": 4}]
    pooled = b.max_pool2d(b.input("x", "float32", shape), window_dimensions=[3, 3], strides=[2, 2])
    graph = b.build({"y": b.resample2d(b.concat([pooled, pooled], 0), scales=[2, 2])})
    path, types = ow.js.save(graph, tmp_path / "m.mjs")
    hint = '{ readonly name: "n"; readonly minSize: 1; readonly maxSize: 8 }'
    assert (
        f'readonly shape: readonly [{hint}, 3, "h", {{ readonly name: "w"; readonly minSize: 4 }}]' in types.read_text()
    )
    with Server(port=0, device="cpu", drafts=True) as server:
        variables = {"OPWEAVE_URL": server.url, "OPWEAVE_TOKEN": server.token or "", "MODULE": str(path)}
        text = node_js.run(["--input-type=module", "-e", NAMES], variables)
    inputs, outputs, shapes = json.loads(text)
    named = [{"name": "n", "minSize": 1, "maxSize": 8}, 3, "h", {"name": "w", "minSize": 4}]
    assert inputs == {"x": {"dataType": "float32", "shape": named}}
    assert outputs["y"]["shape"] == ["2*n", 3, "2*((h - 3) // 2) + 2", "2*((w - 3) // 2) + 2"]
    assert shapes == {"y": [*graph.compute_shapes({"x": [2, 3, 9, 8]})["y"]]}


def test_save_refuses_sizes_with_names_as_arguments(tmp_path: Path) -> None:
    b = ow.MLGraphBuilder(ow.ml.create_context(device="cpu", drafts=True))
    x = b.input("x", "float32", ["n", 4])
    graph = b.build({"y": b.reshape(x, [x.shape[0], 2, 2], label="r")})
    message = r"save: reshape 'r': newShape must not have sizes with names in JavaScript, got \[n, 2, 2\]; save\(\.{3}, input_"
    with pytest.raises(ow.NotSupportedError, match=message):
        ow.js.save(graph, tmp_path / "m.js")
    ow.js.save(graph, tmp_path / "m.js", input_shapes={"x": [3, 4]})
    assert "builder.reshape(x, [3, 2, 2], " in (tmp_path / "m.js").read_text()
    with pytest.raises(ow.ValidationError, match=r"save: input 'x' must be float32\[n, 4\], got the shape \[3, 5\]"):
        ow.js.save(graph, tmp_path / "m.js", input_shapes={"x": [3, 5]})


def range_to_size(b: ow.MLGraphBuilder, x: ow.MLOperand) -> Any:
    positions = b.range(b.constant("int32", 0), x.shape[0], b.constant("int32", 2), label="p")  # type: ignore[arg-type]
    return b.concat([positions, b.cast(x, "int32")], 0)


@pytest.mark.parametrize(
    ("subject", "make"),
    [
        ("range 'p': limit must not be", range_to_size),
        ("mul 'm': b must not be", lambda b, x: b.mul(x, x.shape[0], label="m")),
        ("mul 'm': b must not be", lambda b, x: b.mul(x, 1 / x.shape[0], label="m")),
        (
            "resize 'r': its operations of WebNN must not have constants that are",
            lambda b, x: composites.resize(x, axes=[0], sizes=[7 * x.shape[0]], mode="linear", label="r"),
        ),
    ],
)
def test_save_refuses_constants_of_sizes_with_names(tmp_path: Path, subject: str, make: Any) -> None:
    b = ow.MLGraphBuilder(ow.ml.create_context(device="cpu", drafts=True))
    graph = b.build({"y": make(b, b.input("x", "float32", ["n"]))})
    rule = (
        "computed from sizes with names in JavaScript, got n; save(..., input_shapes={...}) saves it for certain sizes"
    )
    with pytest.raises(ow.NotSupportedError, match=re.escape(f"save: {subject} {rule}")):
        ow.js.save(graph, tmp_path / "m.js")
    ow.js.save(graph, tmp_path / "m.js", input_shapes={"x": [3]})


def test_bad_arguments_are_explained(tmp_path: Path) -> None:
    b = ow.MLGraphBuilder(CPU)
    graph = b.build({"y": b.relu(b.input("x", "float32", [2]))})
    with pytest.raises(ow.ValidationError, match=r"the name of a module must end in .js or .mjs, got 'model.ts'"):
        ow.js.save(graph, "model.ts")
    with pytest.raises(ow.ValidationError, match="save takes an MLGraph, got str"):
        ow.js.save("graph", tmp_path / "m.js")  # type: ignore[arg-type]
    with pytest.raises(ow.DataError, match="No such file or directory"):
        ow.js.save(graph, tmp_path / "nowhere" / "m.js")
    graph.destroy()
    with pytest.raises(ow.InvalidStateError):
        ow.js.save(graph, tmp_path / "m.js")


def test_models_are_converted_by_the_command(tmp_path: Path, modules: Modules) -> None:
    weights = np.random.default_rng(2).standard_normal((4, 5)).astype("float32")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"], name="dense/MatMul"), helper.make_node("Relu", ["m"], ["y"])]
    values = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 5])]
    made = helper.make_graph(nodes, "g", values, outputs, [numpy_helper.from_array(weights, "w")])
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "model.onnx")

    def run(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, ["convert", str(tmp_path / "model.onnx"), *arguments], terminal_width=300)
        assert result.exit_code == code, result.output
        return re.sub(r"\s+", " ", result.output)

    output = run(str(tmp_path / "net.js"), "--fix-shapes", "batch=2")
    assert re.search(r"wrote \S*net.js, \S+ KiB wrote \S*net.safetensors, \d+ B", output)
    assert "from model.onnx: a WebNN graph of 2 operations" in (tmp_path / "net.js").read_text()
    assert "--operators is for .onnx files" in run(str(tmp_path / "n.js"), "--operators", "onnxruntime", code=2)
    graph, feed = ow.onnx.load(model, fix_shapes={"batch": 2}), {"x": np.float32([[1, -2, 3, 4], [5, 6, -7, 8]])}
    modules.add(graph, feed)
    assert_same(modules.run()[0], graph.context.compute(graph, feed), "model")


def test_load_weights_in_node_names_requirement(modules: Modules) -> None:
    path = modules.add(*residual(CPU))
    script = (
        f"const {{ loadWeights }} = await import({json.dumps(path.as_uri())}); await loadWeights().catch(console.log);"
    )
    out = node_js.run(["--input-type=module", "-e", script])
    weights = path.with_suffix(".safetensors").as_uri()
    assert f"{weights} cannot be fetched; in Node.js: build(context, readFileSync(…))" in out


@pytest.mark.parametrize("name", ["a b#1?%20", "c:d\\e", "\udcff\u2028"])
def test_names_of_files_are_urls(tmp_path: Path, name: str) -> None:
    graph, _ = residual(CPU)
    path, weights, _ = ow.js.save(graph, tmp_path / f"{name}.mjs")
    url = re.search('new URL\\("(.*?)"', path.read_text())
    assert url is not None
    got = urlsplit(urljoin(tmp_path.as_uri() + "/", url[1]))
    assert os.fsdecode(unquote_to_bytes(got.path)) == str(weights)
    assert f'import {{ build }} from "./{url[1].removesuffix(".safetensors")}.mjs"' in path.read_text()


def test_weights_are_fetched_beside_the_module(modules: Modules) -> None:
    graph, feed = residual(CPU)
    path = modules.add(graph, feed)
    script = f"""
    import {{ readFileSync }} from "node:fs";
    globalThis.fetch = async (url) => new Response(readFileSync(url), {{ status: 200 }});
    const {{ loadWeights }} = await import({json.dumps(path.as_uri())});
    console.log((await loadWeights()).byteLength);
    globalThis.fetch = async (url) => new Response("", {{ status: 404, statusText: "Not Found" }});
    await loadWeights().catch((error) => console.log(error.message));
    """
    out = node_js.run(["--input-type=module", "-e", script])
    size, message = out.strip().splitlines()
    assert int(size) == path.with_suffix(".safetensors").stat().st_size
    assert message.endswith("404 Not Found")


@ow.composite
def unchanged(b: Any, x: Any) -> Any:
    return x


@ow.composite
def constant_beside(b: Any, x: Any) -> Any:
    return b.constant(np.arange(4, dtype="float32")), x, x


def test_save_of_composites_that_return_operands(modules: Modules) -> None:
    """WebNN refuses outputs that are inputs or constants."""
    x = np.float32([1, -2, 3, 4])
    for function in (unchanged, constant_beside):
        builder = ow.MLGraphBuilder(CPU)
        results = function(builder.input("x", "float32", [4]))
        outputs = {f"y{k}": y for k, y in enumerate(results if isinstance(results, tuple) else (results,))}
        modules.add(builder.build(outputs), {"x": x})
    constants = np.arange(4, dtype="float32")
    expected_arrays: list[list[np.ndarray]] = [[x], [constants, x, x]]
    for got, wanted in zip(modules.run(), expected_arrays, strict=True):
        assert_same(got, {f"y{k}": array for k, array in enumerate(wanted)}, "composite")
