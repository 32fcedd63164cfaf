"""Models that are broken: each gives one error of ours that says what is wrong; none crashes, hangs or takes all memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from session_models import CONTEXT, X, message, session, sum_model
from support.onnx import BOOL, FLOAT, model, node

import opweave as ow
from opweave import memory
from opweave.onnx.model.model import Model

INT64 = TensorProto.INT64


SHAPE_RULE = "the tensor 'w' must have at most 1024 axes of 0 or more, and fewer than 2**63 elements"


def fails(source: object, error: type[ow.MLError]) -> str:
    """The message of loading a model, or of running it on an input of ones."""

    def run() -> None:
        s = ow.InferenceSession(source, CONTEXT)
        s.run(
            None,
            {i.name: np.ones([2 if isinstance(n, str) else n for n in i.shape], "float32") for i in s.get_inputs()},
        )

    text = message(run, error)
    assert "\n" not in text.strip()
    return text


# Files ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "it is empty"),
        (b"Hello, this is no model.\n", "not an ONNX model"),
        (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", "not an ONNX model"),
        (b"\x00" * 100, "not an ONNX model"),
        (onnx.ModelProto(ir_version=8).SerializeToString(), "there is no graph in it"),
    ],
)
def test_load_rejects_files_that_are_no_models(content: bytes, text: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    got = fails(path, ow.DataError)
    assert got.startswith(f"{path}: ")
    assert text in got
    assert text in fails(content, ow.DataError)


def test_load_rejects_unreadable_sources(tmp_path: Path) -> None:
    assert fails(tmp_path / "none.onnx", ow.DataError) == f"{tmp_path}/none.onnx: No such file or directory"
    assert fails(tmp_path, ow.DataError) == f"{tmp_path}: Is a directory"
    assert "null" in fails("a\0b", ow.DataError)
    for source, name in ((None, "NoneType"), (3, "int"), ([b""], "list"), (sum_model().graph, "GraphProto")):
        assert fails(source, ow.DataError) == f"a model must be a path, bytes or an onnx.ModelProto, got {name}"


def test_load_rejects_truncated_model() -> None:
    weights = {"w": np.ones((2, 3), np.float32)}
    proto = model([node("Mul", "x w", "z")], [("x", FLOAT, [2, 3])], [("z", FLOAT, [2, 3])], weights)
    data = proto.SerializeToString()
    for length in range(1, len(data)):
        try:
            ow.InferenceSession(data[:length], CONTEXT)
        except ow.MLError:
            continue
        # What is left may be a model again: the operator sets stand at the end.
        assert data[length:].startswith(b"B"), length


# External data -------------------------------------------------------------------------------------------------------


def external(folder: Path, **entries: str) -> Path:
    """A model z = x + w whose w lies in a file of its own; `entries` replace what the model says about it."""
    proto = model([node("Add", "x w", "z")], [("x", FLOAT, [4, 100])], [("z", FLOAT, [4, 100])])
    (folder / "weights.bin").write_bytes(np.ones((4, 100), np.float32).tobytes())
    tensor = TensorProto(name="w", data_type=FLOAT, dims=[4, 100], data_location=TensorProto.EXTERNAL)
    for key, value in ({"location": "weights.bin", "offset": "0", "length": "1600"} | entries).items():
        if value:
            tensor.external_data.add(key=key, value=value)
    proto.graph.initializer.append(tensor)
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_external_data_are_mapped_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "opweave.onnx.model.model.SMALL_BYTES", 1000
    )  # smaller ones are copied, and bring no pages along
    for entries in ({}, {"length": ""}, {"offset": ""}):
        path = external(tmp_path, **entries)
        s = ow.InferenceSession(path, CONTEXT)
        assert s.run(None, {"x": np.ones((4, 100), np.float32)})[0].max() == 2
        loaded = Model.load(path)
        array = loaded.array(loaded.proto.graph.initializer[0])
        assert memory.find_in_files(array, memory.mapped_files([array])) == (str(tmp_path / "weights.bin"), 0)


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ({"location": "missing.bin"}, "the data of 'w': missing.bin: No such file or directory"),
        ({"location": ""}, "the data of 'w'"),
        ({"location": "../weights.bin"}, "the data of 'w' are outside of the model's folder: '../weights.bin'"),
        ({"location": "/etc/passwd"}, "the data of 'w' are outside of the model's folder: '/etc/passwd'"),
        ({"location": "link.bin"}, "the data of 'w' are outside of the model's folder: 'link.bin'"),
        ({"location": "a\0b"}, "the data of 'w'"),
        ({"location": "x" * 5000}, "the data of 'w'"),
        ({"location": "empty.bin"}, "the data of 'w': empty.bin: cannot mmap an empty file"),
        ({"offset": "4"}, "the data of 'w' end beyond the file weights.bin: 4 + 1600 of 1600 bytes"),
        ({"offset": "-4"}, "the data of 'w' end beyond the file weights.bin: -4 + 1600 of 1600 bytes"),
        ({"offset": "many"}, "the data of 'w': offset and length must be integers, got {"),
        ({"offset": "9" * 5000}, "the data of 'w': offset and length must be integers, got {"),
        ({"length": "1596"}, "the tensor 'w' must have 1600 bytes for float32[4, 100], got 1596"),
        ({"length": "10000000000"}, "the data of 'w' end beyond the file weights.bin"),
        ({"length": "-1600"}, "the data of 'w' end beyond the file weights.bin"),
    ],
)
def test_load_rejects_missing_external_data(entries: dict[str, str], text: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "weights.bin").write_bytes(bytes(1600))
    (folder / "link.bin").symlink_to(tmp_path / "weights.bin")
    (folder / "empty.bin").touch()
    assert fails(external(folder, **entries), ow.DataError).startswith(text)


def test_truncated_external_data(tmp_path: Path) -> None:
    path = external(tmp_path)
    os.truncate(tmp_path / "weights.bin", 1000)
    text = "the data of 'w' end beyond the file weights.bin: 0 + 1600 of 1000 bytes"
    assert fails(path, ow.DataError) == text


def test_external_data_of_bytes_have_no_place(tmp_path: Path) -> None:
    text = "the data of 'w' are in a file, and a model of bytes has no folder to look in"
    assert fails(external(tmp_path).read_bytes(), ow.DataError) == text


# Graphs --------------------------------------------------------------------------------------------------------------


Change = Callable[[onnx.ModelProto], object]


def rename_output(proto: onnx.ModelProto) -> None:
    proto.graph.node[0].output[0] = "x"


def make_cycle(proto: onnx.ModelProto) -> None:
    proto.graph.node[0].input[1] = "z"


def name_input_twice(proto: onnx.ModelProto) -> None:
    proto.graph.input[1].name = "x"


def subgraph(proto: onnx.ModelProto) -> None:
    branch = helper.make_graph(
        [node("Relu", "nowhere", "q")], "branch", [], [helper.make_tensor_value_info("q", FLOAT, None)]
    )
    proto.graph.node[1].CopyFrom(node("If", "s", "z", then_branch=branch, else_branch=branch))


def bad_constant(proto: onnx.ModelProto) -> None:
    proto.graph.node.insert(0, helper.make_node("Constant", [], ["c"], name="odd"))


def bad_initializer(**fields: object) -> Change:
    def change(proto: onnx.ModelProto) -> None:
        tensor = numpy_helper.from_array(np.ones(6, np.float32), "w")
        tensor.MergeFrom(TensorProto(**fields))
        proto.graph.initializer.append(tensor)
        proto.graph.node[0].input[1] = "w"

    return change


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (lambda p: p.graph.ClearField("input"), ow.DataError, "Add uses 'x', which nothing makes"),
        (lambda p: p.graph.ClearField("node"), ow.DataError, "nothing makes the output 'z'"),
        (lambda p: p.graph.ClearField("output"), ow.DataError, "the model has no outputs"),
        (lambda p: p.ClearField("opset_import"), ow.DataError, "the model does not say which operator sets it uses"),
        (
            make_cycle,
            ow.DataError,
            "the graph has a cycle, in which each node uses a result of the one before: ['Add -> s', 'Relu -> z', 'Add -> s']",
        ),
        (rename_output, ow.DataError, "Add makes 'x', which exists already"),
        (name_input_twice, ow.DataError, "inputs must have different names, got ["),
        (subgraph, ow.DataError, "Relu inside of If uses 'nowhere', which nothing makes"),
        (bad_constant, ow.DataError, "Constant 'odd' must have one attribute, got 0"),
        (bad_initializer(dims=[-6]), ow.DataError, f"{SHAPE_RULE}, got the shape [6, -6]"),
        (bad_initializer(dims=[2**40]), ow.DataError, f"the tensor 'w' must have {24 * 2**40} bytes"),
        (bad_initializer(dims=[2**62, 2**62]), ow.DataError, f"{SHAPE_RULE}, got the shape [6, {2**62}, {2**62}]"),
        (bad_initializer(raw_data=b"12"), ow.DataError, "the tensor 'w' must have 24 bytes for float32[6], got 2"),
        (bad_initializer(data_type=77), ow.DataError, "the tensor 'w' must have a data type of ONNX, got 77"),
        (bad_initializer(data_type=0), ow.DataError, "the tensor 'w' must have a data type of ONNX, got 0"),
        (
            lambda p: p.graph.initializer.extend([numpy_helper.from_array(X, "w")] * 2),
            ow.DataError,
            "initializers need names of their own; without or used twice: ['w']",
        ),
        (
            lambda p: p.graph.initializer.append(TensorProto(name="w", data_type=FLOAT, dims=[3], float_data=[1.0])),
            ow.DataError,
            "the tensor 'w' cannot be read",
        ),
        (lambda p: p.graph.input[0].ClearField("type"), ow.DataError, "the input 'x' must have a data type of ONNX"),
        (
            lambda p: setattr(p.graph.input[0].type.tensor_type, "elem_type", 99),
            ow.DataError,
            "the input 'x' must have a data type of ONNX",
        ),
        (
            lambda p: setattr(p.graph.output[0].type.tensor_type, "elem_type", INT64),
            ow.DataError,
            "the output 'z' is declared as int64, and is float",
        ),
        (
            lambda p: setattr(p.graph.node[0], "op_type", ""),
            ow.DataError,
            "each node must have an operator (op_type), got none for '",
        ),
        (
            lambda p: setattr(p.graph.node[0], "op_type", "Frob"),
            ow.OperationError,
            "Frob: ONNX has no operator Frob in its own domain",
        ),
        (lambda p: setattr(p.graph.node[0], "domain", "no.such"), ow.OperationError, "Add: neither Opweave nor"),
        (lambda p: p.graph.node[1].input.append("x"), ow.OperationError, "ONNX Runtime does not take Relu"),
        (lambda p: p.graph.node[1].ClearField("input"), ow.OperationError, "ONNX Runtime does not take Relu"),
        (
            lambda p: setattr(p.opset_import[0], "version", 99),
            ow.NotSupportedError,
            "the version of ONNX's operator set must be in [1, ",
        ),
        (
            lambda p: setattr(p.opset_import[0], "version", -1),
            ow.NotSupportedError,
            "the version of ONNX's operator set must be in [1, ",
        ),
    ],
)
def test_load_rejects_broken_graphs(change: Change, error: type[ow.MLError], text: str) -> None:
    proto = sum_model()
    change(proto)
    assert fails(proto, error).startswith(text)
    assert fails(proto.SerializeToString(), error).startswith(text)


@pytest.mark.parametrize(
    ("divided", "text"),
    [
        (
            node("MaxPool", "x", "z", kernel_shape=[1, 1], strides=[0, 1]),
            "MaxPool: strides must be positive and less than 2**31, got [0, 1]",
        ),
        (node("Conv", "x x", "z", group=0), "Conv: group must be positive and less than 2**31, got 0"),
        (
            node("DepthToSpace", "x", "z", blocksize=0),
            "DepthToSpace: blocksize must be positive and less than 2**31, got 0",
        ),
        (node("Split", "x", "z", num_outputs=0), "Split: num_outputs must be positive and less than 2**31, got 0"),
    ],
)
def test_load_rejects_attributes_of_zero(divided: onnx.NodeProto, text: str) -> None:
    proto = model([divided], [("x", FLOAT, [1, 1, 2, 2])], [("z", FLOAT, None)])
    assert message(lambda: session(proto), ow.DataError) == text


def test_sequences_of_parts_without_elements() -> None:
    nodes = [node("SplitToSequence", "x zero", "s", axis=0), node("ConcatFromSequence", "s", "z", axis=0)]
    proto = model(nodes, [("x", FLOAT, [2, 3])], [("z", FLOAT, None)], {"zero": np.array(0)})
    assert message(lambda: session(proto), ow.DataError) == "SplitToSequence: split must be positive, got 0"


def test_initializers_with_name_of_another_type() -> None:
    tensor = TensorProto(name="w", data_type=BOOL, dims=[3], raw_data=b"\x00\x01\x07")
    proto = model([node("Not", "w", "z")], [], [("z", BOOL, [3])])
    proto.graph.initializer.append(tensor)
    assert fails(proto, ow.DataError) == "the tensor 'w' must hold 0 and 1 for bool, got 7"


def test_sparse_initializers() -> None:
    values = numpy_helper.from_array(np.float32([5, 7]), "w")
    indices = numpy_helper.from_array(np.int64([1, 3]), "")
    proto = model([node("Add", "x w", "z")], [("x", FLOAT, [4])], [("z", FLOAT, [4])])
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))
    assert session(proto).run(None, {"x": np.zeros(4, np.float32)})[0].tolist() == [0, 5, 0, 7]
    for dims, error in (([3], ow.DataError), ([-4], ow.DataError), ([2**50], ow.DataError)):
        proto.graph.sparse_initializer[0].dims[:] = dims
        assert "the sparse tensor 'w'" in fails(proto, error)


def test_load_deeply_nested_branches() -> None:
    value = helper.make_tensor_value_info("q", FLOAT, None)
    graph = last = helper.make_graph([node("Relu", "x", "q")], "inner", [], [value])
    for _ in range(20):  # protobuf itself has a limit not far beyond
        graph = helper.make_graph([node("If", "c", "q", then_branch=graph, else_branch=last)], "outer", [], [value])
    s = session(model(list(graph.node), [("x", FLOAT, [2]), ("c", BOOL, [])], [("q", FLOAT, None)]))
    for condition in (True, False):
        assert s.run(None, {"x": np.float32([-1, 2]), "c": np.array(condition)})[0].tolist() == [0, 2]


@pytest.mark.parametrize("turns", [[], [np.int64(2**63 - 1)]])
def test_load_rejects_endless_loop(turns: list[np.int64]) -> None:
    body = helper.make_graph(
        [node("Identity", "go", "q"), node("Identity", "q", "on"), node("Add", "a x", "b")],
        "body",
        [helper.make_tensor_value_info(*value) for value in (("i", INT64, []), ("go", BOOL, []), ("a", FLOAT, [3]))],
        [helper.make_tensor_value_info(*value) for value in (("on", BOOL, []), ("b", FLOAT, [3]))],
    )
    loop = helper.make_node("Loop", ["t" if turns else "", "c", "x"], ["z"], body=body, name="long")
    arrays = {"t": np.array(turns[0])} if turns else {}
    proto = model([loop], [("x", FLOAT, [3]), ("c", BOOL, [])], [("z", FLOAT, [3])], arrays)
    text = message(lambda: session(proto), ow.OperationError)
    assert text == "Loop 'long' would never end: its body returns the condition unchanged"


# Sizes ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op_type", "inputs"),
    [
        ("ConstantOfShape", [np.int64([10**6, 10**6])]),
        ("ConstantOfShape", [np.int64([2**40, 2**40])]),
        ("ConstantOfShape", [np.int64([-4])]),
        ("Expand", [np.float32([1]), np.int64([10**6, 10**6])]),
        ("Tile", [np.float32([1]), np.int64([10**12])]),
        ("Range", [np.int64(0), np.int64(10**12), np.int64(1)]),
        ("Range", [np.float32(0), np.float32(1e12), np.float32(1)]),
        ("Pad", [np.float32([1]), np.int64([0, 10**12])]),
        ("OneHot", [np.int64([1]), np.int64(10**12), np.float32([0, 1])]),
        ("Resize", [np.ones((1, 1, 1, 1), np.float32), None, np.float32([1, 1, 1e6, 1e6])]),
        ("CenterCropPad", [np.float32([1]), np.int64([10**12])]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_huge_results_are_rejected_before_allocation(op_type: str, inputs: list[np.ndarray | None]) -> None:
    constants = {f"c{k}": array for k, array in enumerate(inputs) if array is not None}
    names = [f"c{k}" if array is not None else "" for k, array in enumerate(inputs)]
    nodes = [helper.make_node(op_type, names, ["y"]), node("Cast", "y", "f", to=FLOAT), node("ReduceSum", "f x", "z")]
    nodes[-1] = node("ReduceSum", "f", "t", keepdims=0)
    nodes.append(node("Add", "t x", "z"))
    proto = model(nodes, [("x", FLOAT, [1])], [("z", FLOAT, None)], constants)
    fails(proto, ow.MLError)


def test_load_huge_declared_input_is_not_allocated() -> None:
    proto = model([node("Relu", "x", "z")], [("x", FLOAT, [2**20, 2**20, 2**20])], [("z", FLOAT, None)])
    text = message(lambda: session(proto), ow.OperationError)
    assert text == "Relu: there is no memory for its output 'z' of shape [1048576, 1048576, 1048576]"
