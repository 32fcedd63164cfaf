"""Single nodes of every operator that ONNX defines, with random attributes, types, ranks, and inputs that are missing."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.defs import OpSchema

from fuzz.frame import Campaign
from fuzz.models import OUTCOMES, load_and_run, writer
from fuzz.mutation import HUGE

SIZES = [1, 1, 2, 2, 3, 4, 8]
WORDS = [
    "",
    "constant",
    "linear",
    "nearest",
    "SAME_UPPER",
    "VALID",
    "mean",
    "sum",
    "none",
    "ij,jk->ik",
    "NOTSET",
    "add",
]


@cache
def schemas() -> list[OpSchema]:
    """The latest version of every operator, sorted by domain and name."""
    found: list[OpSchema] = sorted(onnx.defs.get_all_schemas(), key=lambda s: (s.domain, s.name))
    return found


@cache
def engine_schemas() -> list[Any]:
    """The engine's own operators, sorted by name."""
    from onnxruntime.capi import onnxruntime_pybind11_state as engine

    found = [s for s in engine.get_all_operator_schema() if s.domain == "com.microsoft"]
    return sorted(found, key=lambda s: s.name)


def some_int(rng: random.Random) -> int:
    return rng.choice(HUGE) if rng.random() < 0.15 else rng.choice([-2, -1, 0, 0, 1, 1, 1, 2, 2, 3, 4])


def some_float(rng: random.Random) -> float:
    return rng.choice([0.0, 0.5, 1.0, 2.0, -1.0, 1e-5, 1e38, float("nan"), float("inf")])


def some_array(rng: random.Random, element_type: int, rank: int | None = None) -> np.ndarray:
    rank = rng.choice([0, 1, 1, 2, 2, 3, 4, 4, 5]) if rank is None else rank
    shape = [0 if rng.random() < 0.03 else rng.choice(SIZES) for _ in range(rank)]
    if element_type == TensorProto.STRING:
        return np.full(shape, "a", object)
    dtype = helper.tensor_dtype_to_np_dtype(element_type)
    if dtype.kind in "iu":
        low = 0 if dtype.kind == "u" else -2
        values = np.array([rng.randint(low, 4) for _ in range(int(np.prod(shape)))], np.int64).reshape(shape)
        if values.size and dtype == np.int64 and rng.random() < 0.1:
            values.reshape(-1)[0] = rng.choice(HUGE)
        return values.astype(dtype)
    values = np.array([rng.uniform(-2, 2) for _ in range(int(np.prod(shape)))]).reshape(shape)
    return np.asarray(values > 0) if dtype.kind == "b" else values.astype(dtype)


def body(rng: random.Random, inputs: int) -> onnx.GraphProto:
    """A sub-graph that hands on what it gets, or what is around it."""
    types = [TensorProto.INT64, TensorProto.BOOL, TensorProto.FLOAT]
    names = [f"b{k}" for k in range(inputs)]
    infos = [helper.make_tensor_value_info(n, types[min(k, 2)], None) for k, n in enumerate(names)]
    outs = rng.randint(1, 3)
    nodes = []
    for k in range(outs):
        source = rng.choice([*names, "x0"])
        op = rng.choice(["Identity", "Identity", "Neg", "Max", "Relu"])
        nodes.append(helper.make_node(op, [source, ""] if op == "Max" and rng.random() < 0.5 else [source], [f"r{k}"]))
    return helper.make_graph(nodes, "body", infos, [onnx.ValueInfoProto(name=f"r{k}") for k in range(outs)])


def some_attribute(rng: random.Random, name: str, kind: Any) -> onnx.AttributeProto | None:
    if rng.random() < 0.08:
        kind = rng.choice([OpSchema.AttrType.INT, OpSchema.AttrType.INTS, OpSchema.AttrType.STRING])
    few = rng.randint(0, 5)
    match getattr(OpSchema.AttrType, kind.name):  # the engine has the same names
        case OpSchema.AttrType.INT:
            return helper.make_attribute(name, some_int(rng))
        case OpSchema.AttrType.INTS:
            return helper.make_attribute(name, [some_int(rng) for _ in range(few)], attr_type=onnx.AttributeProto.INTS)
        case OpSchema.AttrType.FLOAT:
            return helper.make_attribute(name, some_float(rng))
        case OpSchema.AttrType.FLOATS:
            values = [some_float(rng) for _ in range(few)]
            return helper.make_attribute(name, values, attr_type=onnx.AttributeProto.FLOATS)
        case OpSchema.AttrType.STRING:
            return helper.make_attribute(name, rng.choice(WORDS))
        case OpSchema.AttrType.STRINGS:
            words = [rng.choice(WORDS) for _ in range(few)]
            return helper.make_attribute(name, words, attr_type=onnx.AttributeProto.STRINGS)
        case OpSchema.AttrType.TENSOR:
            array = some_array(rng, rng.choice([TensorProto.FLOAT, TensorProto.INT64]))
            return helper.make_attribute(name, numpy_helper.from_array(array, "t"))
        case OpSchema.AttrType.GRAPH:
            return helper.make_attribute(name, body(rng, rng.choice([0, 2, 3])))
    return None


_TYPES = {
    f"tensor({name.lower()})": value
    for name, value in TensorProto.DataType.items()
    if value in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 16)
}


def node_model(rng: random.Random, number: int) -> bytes:
    """A model of one node of ONNX; the operators take turns."""
    return _model(rng, schemas()[number % len(schemas())])


def engine_model(rng: random.Random, number: int) -> bytes:
    """A model of one node of the engine's own operators; they take turns."""
    return _model(rng, engine_schemas()[number % len(engine_schemas())])


def _model(rng: random.Random, schema: Any) -> bytes:
    constraints = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    count = rng.randint(schema.min_input, max(schema.min_input, min(schema.max_input, schema.min_input + 4, 9)))
    count += rng.choice([0, 0, 0, 0, 0, 0, -1, 1])
    infos: list[onnx.ValueInfoProto] = []
    initializers, names = [], []
    chosen: dict[str, int] = {}
    rank = rng.choice([None, 1, 2, 3, 4])
    for k in range(max(count, 0)):
        formal = schema.inputs[min(k, len(schema.inputs) - 1)] if schema.inputs else None
        text = getattr(formal, "type_str", None) or getattr(formal, "typeStr", None) or "tensor(float)"
        allowed = sorted(_TYPES[t] for t in constraints.get(text, [text]) if t in _TYPES) or [TensorProto.FLOAT]
        likely = TensorProto.FLOAT if TensorProto.FLOAT in allowed else rng.choice(allowed)
        kind = chosen.setdefault(text, likely if rng.random() < 0.7 else rng.choice(allowed))
        if rng.random() < 0.04:
            kind = rng.choice(sorted(_TYPES.values()))
        optional = formal is not None and formal.option.name == "Optional"
        if rng.random() < (0.3 if optional else 0.05):
            names.append("")
            continue
        name = f"x{k}"
        names.append(name)
        array = some_array(rng, kind, rank if k == 0 or rng.random() < 0.4 else None)
        if rng.random() < 0.45 and k:
            initializers.append(numpy_helper.from_array(array, name))
        else:
            shape = ["n" if rng.random() < 0.05 else size for size in array.shape]
            infos.append(helper.make_tensor_value_info(name, kind, shape))
    if "x0" not in names:  # bodies name it
        infos.append(helper.make_tensor_value_info("x0", TensorProto.FLOAT, [2]))
    outputs = [f"y{k}" for k in range(max(1, min(schema.max_output, rng.choice([1, 1, 2, 3]))))]
    outputs = [*outputs, "surplus"] if rng.random() < 0.05 else outputs
    node = helper.make_node(schema.name, names, outputs, domain=schema.domain, name=rng.choice(["", "it"]))
    for name in sorted(schema.attributes):
        attribute = schema.attributes[name]
        if rng.random() < (0.95 if attribute.required else 0.4):
            made = some_attribute(rng, name, attribute.type)
            if made is not None:
                node.attribute.append(made)
    named = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph([node], "node", infos, named, initializers)
    imports = [helper.make_opsetid("", rng.choice([21, 21, 21, 22, 23, 24]))]
    if schema.domain:
        imports.append(helper.make_opsetid(schema.domain, schema.since_version))
    return bytes(helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString())


CAMPAIGNS = {
    "nodes": Campaign(
        "nodes",
        "one node of every operator of ONNX: random attributes, types, ranks, missing and surplus inputs",
        lambda rng, number: load_and_run(node_model(rng, number)),
        count=10000,
        short=100,
        outcomes=OUTCOMES,
        write=writer(node_model),
    ),
    "contrib": Campaign(
        "contrib",
        "one node of every operator of ONNX Runtime itself",
        lambda rng, number: load_and_run(engine_model(rng, number)),
        count=10000,
        short=60,
        outcomes=OUTCOMES,
        write=writer(engine_model),
    ),
}
