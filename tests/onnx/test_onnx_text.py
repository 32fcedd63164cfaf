"""Bytes that are not UTF-8 where ONNX has text, and strings that have no UTF-8."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from session_models import CONTEXT, message, session
from support.onnx import BOOL, FLOAT, model, node

import opweave as ow

DESCRIPTIVE = [
    *(
        "@producer@",
        "@version@",
        "@domain@",
        "@doc@",
        "@graph@",
        "@graph_doc@",
        "@node@",
        "@node_doc@",
        "@metadata@",
        "@entry@",
    ),
    *("@node_metadata@", "@node_entry@", "@branch@", "@value_doc@", "@tensor_doc@", "@denotation@", "@axis@"),
]
NAMES = {
    "@operators@": "OperatorSetIdProto.domain",
    "@input@": "NodeProto.input",
    "@operator@": "NodeProto.op_type",
    "@attribute@": "AttributeProto.name",
    "@inner@": "ValueInfoProto.name",
    "@value@": "ValueInfoProto.name",
    "@size@": "Dimension.dim_param",
    "@tensor@": "TensorProto.name",
    "@function@": "FunctionProto.name",
}


def full_of_text() -> onnx.ModelProto:
    """A model in which all kinds of text are in use."""
    add = helper.make_node("Add", ["x", "w"], ["@output@"], "@node@", doc_string="@node_doc@")
    add.metadata_props.add(key="@node_metadata@", value="@node_entry@")
    branches = [
        helper.make_graph([node("Relu", "@output@", name)], name, [], [onnx.ValueInfoProto(name=name)])
        for name in ("@inner@", "other")
    ]
    branches[0].name = "@branch@"
    nodes = [add, helper.make_node("If", ["go"], ["z"], then_branch=branches[0], else_branch=branches[1])]
    x = helper.make_tensor_value_info("x", FLOAT, ["n", 3], doc_string="@value_doc@")
    x.type.denotation, x.type.tensor_type.shape.dim[0].denotation = "@denotation@", "@axis@"
    w = numpy_helper.from_array(np.ones(3, np.float32), "w")
    w.doc_string = "@tensor_doc@"
    go, z = helper.make_tensor_value_info("go", BOOL, []), helper.make_tensor_value_info("z", FLOAT, ["n", 3])
    graph = helper.make_graph(nodes, "@graph@", [x, go], [z], [w], "@graph_doc@")
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    proto.producer_name, proto.producer_version, proto.domain, proto.doc_string = DESCRIPTIVE[:4]
    proto.metadata_props.add(key="@metadata@", value="@entry@")
    return proto


def spoiled(proto: onnx.ModelProto, text: str) -> bytes:
    """The model with bytes in place of that text that are not UTF-8, and as many."""
    data = proto.SerializeToString()
    assert text.encode() in data
    return data.replace(text.encode(), b"\xa5" * len(text))


@pytest.mark.parametrize("is_proto", [False, True])
@pytest.mark.parametrize("text", DESCRIPTIVE)
def test_metadata_text_may_be_any_bytes(text: str, is_proto: bool) -> None:
    data = spoiled(full_of_text(), text)
    proto = onnx.ModelProto.FromString(data)
    loaded = ow.InferenceSession(proto if is_proto else data, CONTEXT)
    for rows in (2, 4):
        (z,) = loaded.run(None, {"x": np.ones((rows, 3), np.float32), "go": np.array(True)})
        assert z.tolist() == [[2.0] * 3] * rows
    told = str(loaded.get_modelmeta())
    assert told == str(session(full_of_text()).get_modelmeta()).replace(text, "\ufffd" * len(text))
    assert proto.SerializeToString() == data, "the user's model stays as it is"


@pytest.mark.parametrize("text", NAMES)
def test_load_rejects_names_not_in_utf8(text: str) -> None:
    proto = full_of_text()
    add = proto.graph.node[0]
    match text:
        case "@operators@":
            proto.opset_import.append(helper.make_opsetid(text, 1))
        case "@input@":
            add.input[1] = text
        case "@operator@":
            add.op_type = text
        case "@attribute@":
            add.attribute.append(helper.make_attribute(text, 1))
        case "@value@":
            proto.graph.value_info.append(helper.make_tensor_value_info(text, FLOAT, [2]))
        case "@size@":
            proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = text
        case "@tensor@":
            proto.graph.initializer[0].name = text
        case "@function@":
            body = [node("Relu", "a", "b")]
            proto.functions.append(helper.make_function("local", text, ["a"], ["b"], body, list(proto.opset_import)))
    got = message(lambda: ow.InferenceSession(spoiled(proto, text), CONTEXT), ow.DataError)
    bad = b"\xa5" * len(text)
    assert got == f"the model: {NAMES[text]} must be text in UTF-8, got {bad!r}"


def test_load_rejects_file_names_not_in_utf8(tmp_path: Path) -> None:
    proto = model([node("Add", "x w", "z")], [("x", FLOAT, [2])], [("z", FLOAT, None)])
    tensor = TensorProto(name="w", data_type=FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="@place@")
    proto.graph.initializer.append(tensor)
    path = tmp_path / "model.onnx"
    path.write_bytes(spoiled(proto, "@place@"))
    got = message(lambda: ow.InferenceSession(path, CONTEXT), ow.DataError)
    assert got == f"the data of 'w': {chr(0xFFFD) * 7}: No such file or directory"


@pytest.mark.parametrize("size", [2, "n"])
def test_run_rejects_strings_not_in_utf8(size: int | str) -> None:
    proto = model([node("Identity", "x", "z")], [("x", TensorProto.STRING, [size])], [("z", TensorProto.STRING, None)])
    loaded = session(proto)
    with pytest.raises(ow.OperationError, match="surrogates not allowed"):
        loaded.run(None, {"x": np.array(["\ud800", "a"], object)})


def test_save_rejects_names_not_in_utf8(tmp_path: Path) -> None:
    b = ow.MLGraphBuilder(CONTEXT)
    graph = b.build({"y": b.relu(b.input("\ud800", "float32", [2]))})
    got = message(lambda: ow.onnx.save(graph, tmp_path / "saved.onnx"), ow.ValidationError)
    assert got == "ONNX names must be encodable in UTF-8, got '\\ud800'"
