"""Small models, and mutants of models: bytes changed, or fields of their messages."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HUGE = [-(2**63), -(2**31), -1, 0, 1, 2, 3, 7, 2**16, 2**31 - 1, 2**31, 2**40, 2**63 - 1]


@cache
def seeds() -> list[onnx.ModelProto]:
    """Small models with all kinds of nodes: convolution, shapes as values, sub-graphs, quantisation, sequences."""
    float_, int64 = TensorProto.FLOAT, TensorProto.INT64

    def node(op_type: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
        return helper.make_node(op_type, inputs.split(), outputs.split(), **attributes)

    def model(nodes: list[onnx.NodeProto], inputs: Any, outputs: Any, **arrays: np.ndarray) -> onnx.ModelProto:
        infos = [[helper.make_tensor_value_info(*value) for value in values] for values in (inputs, outputs)]
        tensors = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
        graph = helper.make_graph(nodes, "seed", infos[0], infos[1], tensors)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)

    branch = [
        helper.make_graph([node(op, "x", f"{op}y")], op, [], [helper.make_tensor_value_info(f"{op}y", float_, None)])
        for op in ("Relu", "Neg")
    ]
    body = helper.make_graph(
        [node("Identity", "go", "on"), node("Add", "a x", "b")],
        "body",
        [
            helper.make_tensor_value_info("i", int64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("a", float_, [2, 3]),
        ],
        [helper.make_tensor_value_info("on", TensorProto.BOOL, []), helper.make_tensor_value_info("b", float_, [2, 3])],
    )
    small = [("x", float_, [2, 3])]
    return [
        model(
            [
                node("Conv", "x w b", "c", pads=[1, 1, 1, 1], strides=[2, 2]),
                node("BatchNormalization", "c s s s s", "n", epsilon=1e-3),
                node("MaxPool", "n", "p", kernel_shape=[2, 2]),
                node("GlobalAveragePool", "p", "g"),
                node("Flatten", "g", "f"),
                node("Gemm", "f m", "h", transB=1, alpha=0.5),
                node("Softmax", "h", "z", axis=-1),
            ],
            [("x", float_, ["n", 3, 8, 8])],
            [("z", float_, ["n", 5])],
            w=np.ones((4, 3, 3, 3), np.float32),
            b=np.ones(4, np.float32),
            s=np.ones(4, np.float32),
            m=np.ones((5, 4), np.float32),
        ),
        model(
            [
                node("Shape", "x", "s"),
                node("Gather", "s zero", "n", axis=0),
                node("Unsqueeze", "n axis", "u"),
                node("Concat", "u minus", "t", axis=0),
                node("Reshape", "x t", "r"),
                node("Slice", "r starts ends axes", "l"),
                node("ConstantOfShape", "s", "k", value=numpy_helper.from_array(np.float32([2]))),
                node("Expand", "k s", "e"),
                node("Tile", "e reps", "d"),
                node("Pad", "l pads", "q", mode="constant"),
                node("ReduceMean", "q axes", "z", keepdims=0),
                node("Transpose", "d", "v", perm=[1, 0]),
            ],
            [("x", float_, ["n", 6])],
            [("z", float_, None), ("v", float_, None)],
            zero=np.int64(0),
            axis=np.int64([0]),
            minus=np.int64([-1]),
            starts=np.int64([1]),
            ends=np.int64([5]),
            axes=np.int64([1]),
            reps=np.int64([1, 2]),
            pads=np.int64([0, 1, 0, 1]),
        ),
        model(
            [node("If", "c", "y", then_branch=branch[0], else_branch=branch[1]), node("Loop", "t c y", "z", body=body)],
            [*small, ("c", TensorProto.BOOL, [])],
            [("z", float_, [2, 3])],
            t=np.int64(3),
        ),
        model(
            [
                node("QuantizeLinear", "x scale zero", "q"),
                node("DequantizeLinear", "q scale zero", "d"),
                node("SplitToSequence", "d", "s", axis=0),
                node("ConcatFromSequence", "s", "y", axis=0),
                node("NonZero", "y", "n"),
                node("Cast", "n", "z", to=float_),
                node("LSTM", "l w r", "o o1 o2", hidden_size=2),
                node("Resize", "p  scales", "v", mode="linear"),
                node("Einsum", "x x", "k", equation="ij,kj->ik"),
            ],
            [*small, ("l", float_, [2, 1, 3]), ("p", float_, [1, 1, 2, 2])],
            [("z", float_, None), ("o", float_, None), ("k", float_, None)],
            scale=np.float32(0.1),
            zero=np.uint8(3),
            w=np.ones((1, 8, 3), np.float32),
            r=np.ones((1, 8, 2), np.float32),
            scales=np.float32([1, 1, 2, 2]),
        ),
    ]


def mutate(rng: random.Random, source: onnx.ModelProto) -> bytes:
    """A mutant: bytes changed, cut or repeated, or fields of the model changed, one to four times."""
    if rng.random() < 0.4:
        data = bytearray(source.SerializeToString())
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data))
            match rng.randrange(4):
                case 0:
                    data[at] ^= 1 << rng.randrange(8)
                case 1:
                    data[at] = rng.randrange(256)
                case 2:
                    del data[at : at + rng.randint(1, 8)]
                case _:
                    data[at:at] = data[at : at + rng.randint(1, 8)]
            if not data:
                break
        return bytes(data)
    proto = onnx.ModelProto()
    proto.CopyFrom(source)
    for _ in range(rng.randint(1, 4)):
        rng.choice(CHANGES)(rng, proto)
    return bytes(proto.SerializeToString())


def graphs(proto: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """The graph of a model, and those inside of it."""
    pending = [proto.graph]
    while pending:
        graph = pending.pop()
        yield graph
        pending += [a.g for n in graph.node for a in n.attribute if a.HasField("g")]


def some_node(rng: random.Random, proto: onnx.ModelProto) -> onnx.NodeProto:
    nodes = [node for graph in graphs(proto) for node in graph.node]
    return rng.choice(nodes) if nodes else onnx.NodeProto()


def names(proto: onnx.ModelProto) -> list[str]:
    found = {name for graph in graphs(proto) for node in graph.node for name in [*node.input, *node.output]}
    return [*sorted(found), "", "no such name"]


def change_edge(rng: random.Random, proto: onnx.ModelProto) -> None:
    node = some_node(rng, proto)
    edges = node.output if rng.random() < 0.3 else node.input
    if edges:
        edges[rng.randrange(len(edges))] = rng.choice(names(proto))


def change_arity(rng: random.Random, proto: onnx.ModelProto) -> None:
    node = some_node(rng, proto)
    edges = node.output if rng.random() < 0.3 else node.input
    if edges and rng.random() < 0.5:
        del edges[rng.randrange(len(edges))]
    else:
        edges.append(rng.choice(names(proto)))


@cache
def operators() -> list[str]:
    return sorted({schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain})


def change_operator(rng: random.Random, proto: onnx.ModelProto) -> None:
    some_node(rng, proto).op_type = rng.choice(operators())


def change_attribute(rng: random.Random, proto: onnx.ModelProto) -> None:
    node = some_node(rng, proto)
    if not node.attribute:
        node.attribute.append(helper.make_attribute(rng.choice(["axis", "pads", "to", "mode"]), rng.choice(HUGE)))
        return
    attribute = rng.choice(node.attribute)
    match rng.randrange(4):
        case 0:
            attribute.i = rng.choice(HUGE)
            if attribute.ints:
                attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(HUGE)
        case 1:
            del attribute.ints[rng.randrange(len(attribute.ints) + 1) :]
            attribute.f = rng.choice([0.0, -1.0, float("nan"), float("inf"), 1e38])
        case 2:
            attribute.type = rng.choice(onnx.AttributeProto.AttributeType.values())
        case _:
            node.attribute.remove(attribute)


def change_tensor(rng: random.Random, proto: onnx.ModelProto) -> None:
    tensors = proto.graph.initializer
    if not tensors:
        return
    tensor = rng.choice(tensors)
    match rng.randrange(5):
        case 0 if tensor.dims:
            tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(HUGE)
        case 1:
            tensor.data_type = rng.randrange(30)
        case 2:
            tensor.raw_data = tensor.raw_data[: rng.randrange(len(tensor.raw_data) + 1)]
        case 3:
            count = len(tensor.raw_data) // 8
            if tensor.data_type == TensorProto.INT64 and count:
                tensor.raw_data = np.array([rng.choice(HUGE) for _ in range(count)], np.int64).tobytes()
            else:
                tensor.raw_data = rng.randbytes(len(tensor.raw_data))
        case _:
            tensors.remove(tensor)


def change_value(rng: random.Random, proto: onnx.ModelProto) -> None:
    values = [v for graph in graphs(proto) for v in [*graph.input, *graph.output]]
    if not values:
        return
    value = rng.choice(values)
    tensor = value.type.tensor_type
    match rng.randrange(4):
        case 0 if tensor.shape.dim:
            rng.choice(tensor.shape.dim).dim_value = rng.choice(HUGE)
        case 1:
            tensor.elem_type = rng.randrange(30)
        case 2:
            value.name = rng.choice(names(proto))
        case _:
            value.ClearField("type")


def change_order(rng: random.Random, proto: onnx.ModelProto) -> None:
    graph = rng.choice(list(graphs(proto)))
    if not graph.node:
        return
    nodes = list(graph.node)
    if rng.random() < 0.5:
        rng.shuffle(nodes)
    else:
        nodes.insert(rng.randrange(len(nodes)), rng.choice(nodes))
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies[: rng.randint(0, len(copies))] if rng.random() < 0.3 else copies)


def change_opset(rng: random.Random, proto: onnx.ModelProto) -> None:
    if proto.opset_import:
        proto.opset_import[0].version = rng.choice([*HUGE, *range(1, 30)])


CHANGES: list[Callable[[random.Random, onnx.ModelProto], None]] = [
    change_edge,
    change_arity,
    change_operator,
    change_attribute,
    change_attribute,
    change_tensor,
    change_tensor,
    change_value,
    change_order,
    change_opset,
]


def tame(data: bytes) -> bytes:
    """The mutant with numbers of turns that end within the time: a loop is not wrong for being long."""
    try:
        proto = onnx.ModelProto.FromString(data)
    except Exception:
        return data
    loops = {node.input[0] for node in proto.graph.node if node.op_type == "Loop" and node.input}
    for tensor in proto.graph.initializer:
        if tensor.name in loops and tensor.data_type == TensorProto.INT64 and len(tensor.raw_data) == 8:
            turns = int.from_bytes(tensor.raw_data, "little", signed=True)
            tensor.raw_data = np.int64(min(turns, 10000)).tobytes()
    return bytes(proto.SerializeToString())
