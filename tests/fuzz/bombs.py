"""Models and files that once killed, filled or stopped a process: small ones, each with the outcome that it must have.

A row is a name, what to do, and what must come of it: "result", or the beginning of an error's class and message. The process
of a case has 2 GiB and 20 s.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import opweave as ow
from fuzz.engine_bombs import BUILDS
from fuzz.frame import Campaign, Finding
from fuzz.models import MESSAGE, array_for, context

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
LEAST = -(2**63)

Build = Callable[[Path], Any]
"""Makes a model (a ModelProto, bytes or a path) in a folder of its own; or does something else, and returns None."""


@dataclass(frozen=True)
class Bomb:
    """One row."""

    name: str
    build: Build
    expected: str


BOMBS: list[Bomb] = []


def bomb(expected: str, *arguments: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the decorated function as a row; with `arguments`, as a row for each of them."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        name = function.__name__.strip("_")
        for argument in arguments:
            build = lambda folder, argument=argument: function(folder, argument)  # noqa: E731
            BOMBS.append(Bomb(f"{name}-{argument}", build, expected))
        if not arguments:
            BOMBS.append(Bomb(name, function, expected))
        return function

    return register


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Any] = (("x", FLOAT, [2, 3]),),
    outputs: Sequence[str] = ("z",),
    opset: int = 21,
    **arrays: np.ndarray,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "bomb",
        [helper.make_tensor_value_info(*value) for value in inputs],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def node(op_type: str, inputs: Sequence[str], outputs: Sequence[str] = ("z",), **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, list(inputs), list(outputs), **attributes)


# Nodes that ONNX Runtime does not check ------------------------------------------------------------------------------


@bomb("DataError: ", "Max", "Min", "Sum", "Mean")
def absent_input(folder: Path, op_type: str) -> Any:
    return model([node(op_type, ["x", ""])])


@bomb("DataError: Einsum: its inputs must not be absent")
def absent_operand_of_einsum(folder: Path) -> Any:
    return model([node("Einsum", ["x", ""], equation="ij,kj->ik")])


@bomb("DataError: Max inside of If: its inputs must not be absent")
def absent_input_in_a_branch(folder: Path) -> Any:
    graphs = [
        helper.make_graph([node(op, inputs, ["q"])], op, [], [onnx.ValueInfoProto(name="q")])
        for op, inputs in (("Max", ["x", ""]), ("Relu", ["x"]))
    ]
    choice = node("If", ["c"], then_branch=graphs[0], else_branch=graphs[1])
    return model([choice], [("x", FLOAT, [2, 3]), ("c", BOOL, [])])


@bomb("DataError: Max: its inputs must not be absent")
def absent_input_in_a_function(folder: Path) -> Any:
    imports = [helper.make_opsetid("", 21)]
    function = helper.make_function("local", "f", ["a"], ["b"], [node("Max", ["a", ""], ["b"])], imports)
    proto = model([node("f", ["x"], domain="local")])
    proto.opset_import.append(helper.make_opsetid("local", 1))
    proto.functions.append(function)
    return proto


@bomb("DataError: Split: num_outputs must be", 1, 2, 2**31)
def split(folder: Path, count: int) -> Any:
    return model([node("Split", ["x"], ["z", "z1", "z2"], axis=1, num_outputs=count)], outputs=["z", "z1", "z2"])


@bomb("DataError: Attention: kv_num_heads must be positive", 0, 2**40, LEAST)
def attention(folder: Path, heads: int) -> Any:
    nodes = [node("Attention", ["q", "q", "q"], q_num_heads=4, kv_num_heads=heads)]
    return model(nodes, [("q", FLOAT, [1, 4, 24])], opset=23)


@bomb("result")
def layer_normalization_with_an_absent_bias(folder: Path) -> Any:
    return model([node("LayerNormalization", ["x", "s", ""], ["z", "m"])], outputs=["z", "m"], s=np.ones(3, np.float32))


@bomb("DataError: LayerNormalization: bias must be broadcastable")
def layer_normalization_with_an_empty_bias(folder: Path) -> Any:
    arrays = {"s": np.ones(3, np.float32), "b": np.ones(0, np.float32)}
    return model([node("LayerNormalization", ["x", "s", "b"])], **arrays)


@bomb("DataError: TfIdfVectorizer: ", {"ngram_indexes": [0]}, {"max_skip_count": 2**40})
def tf_idf_vectorizer(folder: Path, changes: dict[str, Any]) -> Any:
    attributes = {
        "mode": "TF",
        "min_gram_length": 1,
        "max_gram_length": 2,
        "max_skip_count": 0,
        "ngram_counts": [0, 2],
        "ngram_indexes": [0, 1, 2],
        "pool_int64s": [1, 2, 1, 2],
    }
    return model([node("TfIdfVectorizer", ["t"], **(attributes | changes))], [("t", INT64, [1, 4])])


@bomb("DataError: RandomNormalLike: scale must be positive", 0.0, float("nan"))
def random_normal_like(folder: Path, scale: float) -> Any:
    return model([node("RandomNormalLike", ["x"], scale=scale)])


@bomb("DataError: RandomUniform: low must not exceed high")
def random_uniform(folder: Path) -> Any:
    return model([node("RandomUniform", [], low=2.0, high=1.0, shape=[2])])


@bomb("DataError: GatherND: batch_dims must be")
def gather_nd(folder: Path) -> Any:
    return model([node("GatherND", ["x", "i"], batch_dims=-(2**31))], i=np.int64([[0]]))


@bomb("DataError: RoiAlign: sampling_ratio must be at most")
def roi_align(folder: Path) -> Any:
    arrays = {"r": np.float32([[0, 0, 1, 1]]), "i": np.int64([0])}
    return model([node("RoiAlign", ["x", "r", "i"], sampling_ratio=2**40)], [("x", FLOAT, [1, 4, 8, 8])], **arrays)


@bomb("DataError: DepthToSpace: blocksize must be positive")
def depth_to_space(folder: Path) -> Any:
    return model([node("DepthToSpace", ["x"], blocksize=2**40)], [("x", FLOAT, [1, 4, 8, 8])])


@bomb("result")
def smallest_integer_by_minus_one(folder: Path) -> Any:
    return model([node("Div", ["a", "b"])], a=np.int64([LEAST]), b=np.int64([-1]))


# What grows ----------------------------------------------------------------------------------------------------------


@bomb("DataError: the model: the number of nodes, those of functions included: 2147483648")
def nested_functions(folder: Path) -> Any:
    functions = []
    for level in range(31):
        inner, domain = ("Relu", "") if level == 30 else (f"f{level + 1}", "local")
        nodes = [node(inner, [a], [b], domain=domain) for a, b in (("a", "b"), ("b", "c"))]
        imports = [helper.make_opsetid("", 21), helper.make_opsetid("local", 1)]
        functions.append(helper.make_function("local", f"f{level}", ["a"], ["c"], nodes, imports))
    proto = model([node("f0", ["x"], domain="local")])
    proto.opset_import.append(helper.make_opsetid("local", 1))
    proto.functions.extend(functions)
    return proto


@bomb("DataError: the function 'f' calls itself")
def function_that_calls_itself(folder: Path) -> Any:
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("local", 1)]
    proto = model([node("f", ["x"], domain="local")])
    proto.opset_import.append(helper.make_opsetid("local", 1))
    proto.functions.append(
        helper.make_function("local", "f", ["a"], ["b"], [node("f", ["a"], ["b"], domain="local")], imports)
    )
    return proto


@bomb("loaded", "Concat", "Tile")
def doubled_22_times(folder: Path, op_type: str) -> Any:
    """Only to run it takes the gigabyte that it computes."""
    nodes = []
    for k in range(22):
        inputs, attributes = ([f"d{k}"] * 2, {"axis": 0}) if op_type == "Concat" else ([f"d{k}", "two"], {})
        nodes.append(node(op_type, inputs, [f"d{k + 1}"], **attributes))
    nodes += [node("ReduceMax", ["d22"], ["m"], keepdims=0), node("Add", ["x", "m"])]
    ow.InferenceSession(model(nodes, d0=np.ones(64, np.float32), two=np.int64([2])), context("onnxruntime"))
    return "loaded"


@bomb("DataError: the sparse tensor 'w0' has the shape [2000000000]; bytes of such tensors")
def sparse_tensor_of_8_gb(folder: Path) -> Any:
    return sparse([2_000_000_000], 1)


@bomb("DataError: the sparse tensor 'w1' has the shape [250000000]; bytes of such tensors")
def twelve_sparse_tensors_of_1_gb(folder: Path) -> Any:
    return sparse([250_000_000], 12)


def sparse(dims: list[int], count: int) -> onnx.ModelProto:
    proto = model([node("Relu", ["x"])])
    for k in range(count):
        values = numpy_helper.from_array(np.float32([5]), f"w{k}")
        indices = numpy_helper.from_array(np.int64([1]), "")
        proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, dims))
    return proto


@bomb("DataError: Reshape: input 1 has a value for each axis")
def input_of_sizes(folder: Path) -> Any:
    return model([node("Reshape", ["x", "sizes"])], [("x", FLOAT, [2, 3]), ("sizes", INT64, [2**31 - 1])])


@bomb("OperationError: ", "ConstantOfShape", "Range", "OneHot", "Pad", "Resize", "Expand", "Tile")
def huge_result(folder: Path, op_type: str) -> Any:
    one, many = np.float32([1]), np.int64([2**40])
    inputs: dict[str, list[np.ndarray | None]] = {
        "ConstantOfShape": [many],
        "Range": [np.int64(0), np.int64(2**62), np.int64(1)],
        "OneHot": [np.int64([1]), np.int64(2**40), np.float32([0, 1])],
        "Pad": [one, np.int64([0, 2**40])],
        "Resize": [one, None, np.float32([1e18])],
        "Expand": [one, many],
        "Tile": [one, many],
    }
    arrays = {f"a{k}": array for k, array in enumerate(inputs[op_type]) if array is not None}
    names = [f"a{k}" if array is not None else "" for k, array in enumerate(inputs[op_type])]
    nodes = [node(op_type, names, ["y"]), node("Cast", ["y"], ["f"], to=FLOAT), node("ReduceSum", ["f"], ["t"])]
    return model([*nodes, node("Add", ["x", "t"])], [("x", FLOAT, [1])], **arrays)


@bomb("OperationError: Relu: there is no memory for its output 'z'")
def huge_input(folder: Path) -> Any:
    proto = model([node("Relu", ["x"])], [("x", FLOAT, [2**31 - 1] * 4)])
    ow.InferenceSession(proto, context("onnxruntime"), specialise="always")


@bomb("ValidationError: input 'x' must have shape [2147483647, 2147483647, 2147483647, 2147483647], got [2, 3]")
def array_for_a_huge_input(folder: Path) -> Any:
    proto = model([node("Relu", ["x"])], [("x", FLOAT, [2**31 - 1] * 4)])
    ow.InferenceSession(proto, context("onnxruntime")).run(None, {"x": np.ones((2, 3), np.float32)})


@bomb("OperationError: Loop would never end")
def loop_without_end(folder: Path) -> Any:
    body = helper.make_graph(
        [node("Identity", ["go"], ["on"]), node("Add", ["a", "x"], ["b"])],
        "body",
        [helper.make_tensor_value_info(*value) for value in (("i", INT64, []), ("go", BOOL, []), ("a", FLOAT, [2, 3]))],
        [helper.make_tensor_value_info(*value) for value in (("on", BOOL, []), ("b", FLOAT, [2, 3]))],
    )
    return model([node("Loop", ["", "c", "x"], body=body)], [("x", FLOAT, [2, 3]), ("c", BOOL, [])])


@bomb("result")
def loop_of_150000_nodes(folder: Path) -> Any:
    nodes = [node("Relu", [f"a{k}"], [f"a{k + 1}"]) for k in range(600)]
    body = helper.make_graph(
        [node("Identity", ["go"], ["on"]), *nodes],
        "body",
        [
            helper.make_tensor_value_info(*value)
            for value in (("i", INT64, []), ("go", BOOL, []), ("a0", FLOAT, [2, 3]))
        ],
        [helper.make_tensor_value_info(*value) for value in (("on", BOOL, []), ("a600", FLOAT, [2, 3]))],
    )
    return model([node("Loop", ["t", "", "x"], body=body)], t=np.int64(250))


@bomb("result")
def branches_30_levels_deep(folder: Path) -> Any:
    value = onnx.ValueInfoProto(name="q")
    graph = last = helper.make_graph([node("Relu", ["x"], ["q"])], "inner", [], [value])
    for _ in range(28):
        choice = node("If", ["c"], ["q"], then_branch=graph, else_branch=last)
        graph = helper.make_graph([choice], "outer", [], [value])
    return model(list(graph.node), [("x", FLOAT, [2]), ("c", BOOL, [])], ["q"])


@bomb("result")
def chain_of_10000_nodes(folder: Path) -> Any:
    nodes = [node("Neg", [f"a{k}" if k else "x"], [f"a{k + 1}" if k < 9999 else "z"]) for k in range(10000)]
    return model(nodes)


@bomb("result")
def forty_segments(folder: Path) -> Any:
    nodes = []
    for k in range(20):  # what WebNN has, and what it has not, in turn
        nodes.append(node("Neg", [f"a{k}" if k else "x"], [f"b{k}"]))
        nodes.append(node("Det", [f"b{k}"], [f"c{k}"]))
        nodes.append(node("Add", [f"b{k}", f"c{k}"], [f"a{k + 1}" if k < 19 else "z"]))
    return model(nodes, [("x", FLOAT, [3, 3])])


# Names and numbers ---------------------------------------------------------------------------------------------------


@bomb("NotSupportedError: operator set 'ai.onnx.ml': the version must be in [1, 2147483647], got 1099511627776")
def version_of_an_operator_set(folder: Path) -> Any:
    proto = model([node("Relu", ["x"], domain="ai.onnx.ml")])
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 2**40))
    return proto


@bomb("DataError: Shape makes no output 1, which the model calls 'more'")
def surplus_output(folder: Path) -> Any:
    return model([node("Shape", ["x"], ["z", "more"])], outputs=["z", "more"])


@bomb("DataError: the tensor 'w' must have at most 1024 axes", 2**62, 1)
def tensor_of_1500_axes(folder: Path, size: int) -> Any:
    proto = model([node("Relu", ["x"])])
    proto.graph.initializer.append(TensorProto(name="w", data_type=FLOAT, dims=[size] * 1500, raw_data=b"1234"))
    return proto


@bomb("OperationError: ")
def name_of_10_mb(folder: Path) -> Any:
    return model([node("N" * 10**7, ["x"], name="n" * 10**7)])


@bomb("DataError: ")
def names_that_are_no_text(folder: Path) -> Any:
    return (
        model([node("Relu", ["x"], ["abcdefg"])], outputs=["abcdefg"])
        .SerializeToString()
        .replace(b"abcdefg", b"\xff" * 7)
    )


@bomb("OperationError: ONNX Runtime does not take")
def attribute_that_is_no_text(folder: Path) -> Any:
    proto = model([node("Relu", ["x"])])
    attribute = onnx.AttributeProto(name="mode", type=onnx.AttributeProto.STRING, s=b"\xff\xfe")
    proto.graph.node[0].attribute.append(attribute)
    return proto


@bomb("DataError: the model: not an ONNX model", 1000)
def message_in_message(folder: Path, depth: int) -> Any:
    data = b""
    for _ in range(depth):  # graph -> node -> attribute -> graph …
        for key in (0x3A, 0x32, 0x2A, 0x0A):
            length, size = len(data), b""
            while length >= 0x80:
                size, length = size + bytes([length & 0x7F | 0x80]), length >> 7
            data = bytes([key]) + size + bytes([length]) + data
    return data


# Files ---------------------------------------------------------------------------------------------------------------

NO_FILE = "it is a pipe, a socket or a device, and only files can be read"


@bomb(f"DataError: {{folder}}/model.onnx: {NO_FILE}")
def pipe_as_model(folder: Path) -> Any:
    os.mkfifo(folder / "model.onnx")
    return folder / "model.onnx"


@bomb(f"DataError: /dev/zero: {NO_FILE}")
def device_as_model(folder: Path) -> Any:
    return Path("/dev/zero")


@bomb("DataError: {folder}/model.onnx: ")
def link_to_itself_as_model(folder: Path) -> Any:
    (folder / "model.onnx").symlink_to(folder / "model.onnx")
    return folder / "model.onnx"


@bomb("DataError: {folder}/model.onnx: ")
def model_of_3_gib_of_zeros(folder: Path) -> Any:
    (folder / "model.onnx").touch()
    os.truncate(folder / "model.onnx", 3 * 2**30)
    return folder / "model.onnx"


def external(folder: Path, location: str, dims: Sequence[int] = (2, 3)) -> Path:
    proto = model([node("Add", ["x", "w"])])
    tensor = TensorProto(name="w", data_type=FLOAT, dims=dims, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    proto.graph.initializer.append(tensor)
    (folder / "model.onnx").write_bytes(proto.SerializeToString())
    return folder / "model.onnx"


@bomb(f"DataError: the data of 'w': weights: {NO_FILE}")
def pipe_with_weights(folder: Path) -> Any:
    os.mkfifo(folder / "weights")
    return external(folder, "weights")


@bomb("DataError: the data of 'w' are outside of the model's folder")
def device_with_weights(folder: Path) -> Any:
    (folder / "weights").symlink_to("/dev/zero")
    return external(folder, "weights")


@bomb("DataError: the data of 'w'")
def weights_of_3_gib_of_zeros(folder: Path) -> Any:
    (folder / "weights").touch()
    os.truncate(folder / "weights", 3 * 2**30)
    return external(folder, "weights", [3 * 2**28])


# Arguments -----------------------------------------------------------------------------------------------------------


@bomb("ValidationError: reduce_sum: axes must have at most")
def axes_without_end(folder: Path) -> Any:
    b = ow.MLGraphBuilder(context("onnxruntime"))
    b.reduce_sum(b.input("x", "float32", [2]), axes=range(10**9))


@bomb("DataError: OneHot: input 1 must hold one value, got the shape [0, 1]")
def depth_without_a_value(folder: Path) -> Any:
    arrays = {"d": np.ones((0, 1), np.float32), "v": np.float32([0, 1])}
    return model([node("OneHot", ["x", "d", "v"])], **arrays)


@bomb("ValidationError: input 'x': shape must have at most")
def shape_without_end(folder: Path) -> Any:
    ow.MLGraphBuilder(context("onnxruntime")).input("x", "float32", range(10**9))


@bomb("OperationError: ")
def feed_of_one_element_that_is_4_tb(folder: Path) -> Any:
    proto = model([node("ReduceSum", ["x"])], [("x", FLOAT, ["n", "m"])])
    feed = np.broadcast_to(np.float32(0), (2**20, 2**20))
    ow.InferenceSession(proto, context("onnxruntime")).run(None, {"x": feed})


@bomb("DataError: Unique: slices along axis 1 must not be empty, got the shape [2, 2, 0]")
def unique_empty_slices(folder: Path) -> Any:
    return model([node("Unique", ["x"], axis=1)], [("x", FLOAT, [2, 2, 0])])


@bomb("DataError: Einsum: axis 'j' of 'ij,kj->ik' is summed, so it must not be empty, got the shape [2, 0]")
def empty_sum_of_einsum(folder: Path) -> Any:
    return model([node("Einsum", ["x", "x"], equation="ij,kj->ik")], [("x", FLOAT, [2, 0])])


@bomb("DataError: LayerNormalization: axis must be in -1024..1024, got 2147483648")
def large_axis_of_layer_normalization(folder: Path) -> Any:
    nodes = [node("LayerNormalization", ["x", "s"], ["z", "m"], axis=2**31)]
    return model(nodes, outputs=["z", "m"], s=np.ones(3, np.float32))


BOMBS += [Bomb(*row) for row in BUILDS]

# The campaign --------------------------------------------------------------------------------------------------------


def case(rng: random.Random, number: int) -> str:
    """Explode one bomb; "result", or the class of the error."""
    row = BOMBS[number]
    with TemporaryDirectory(prefix="opweave-bomb-") as name:
        folder = Path(name)
        try:
            made = row.build(folder)
            if made is not None and not isinstance(made, str):
                session = ow.InferenceSession(made, context("onnxruntime"))
                session.run(None, {argument.name: array_for(argument) for argument in session.get_inputs()})
                session.explain()
                with suppress(ow.MLError):  # the other way to run it is only to end
                    ow.InferenceSession(made, context("onnxruntime"), specialise="always")
            got = made if isinstance(made, str) else "result"
        except ow.MLError as error:
            got = f"{type(error).__name__}: {error}"
        expected = row.expected.format(folder=folder) if "{folder}" in row.expected else row.expected
    if not got.startswith(expected) or len(got) > MESSAGE:
        raise Finding(f"{row.name}: {got[:500]!r} ({len(got)} characters) instead of {expected!r}")
    return got.partition(":")[0]


CAMPAIGNS = {
    "bombs": Campaign(
        "bombs",
        "models and files that once killed, filled or stopped a process",
        case,
        count=len(BOMBS),
        short=len(BOMBS),
        batch=10,
    )
}
