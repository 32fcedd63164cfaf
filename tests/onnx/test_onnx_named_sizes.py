"""Sessions that must compile a model, and compile it once for all shapes: own operations, and `fallback="error"`."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.testing import assert_allclose
from onnx import ModelProto
from support.onnx import model, node

import opweave as ow
from opweave.backends.onnxruntime import sessions

RNG = np.random.default_rng(0)
WEIGHTS = {"w": RNG.normal(size=(8, 8)).astype("float32"), "b": np.float32(np.arange(8))}


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The models for which sessions of ONNX Runtime are created."""
    models: list[bytes] = []
    load = sessions._load

    def note(proto: bytes, *args: Any) -> Any:
        models.append(proto)
        return load(proto, *args)

    monkeypatch.setattr(sessions, "_load", note)
    return models


def check(
    proto: ModelProto, shapes: Iterator[dict[str, list[int]]], beside: ModelProto | None = None, **options: Any
) -> None:
    """Compare calls of several shapes with ONNX Runtime."""
    session = ow.InferenceSession(proto.SerializeToString(), **options)
    plain = onnxruntime.InferenceSession((beside or proto).SerializeToString(), providers=["CPUExecutionProvider"])
    for sizes in shapes:
        feed = {name: RNG.normal(size=shape).astype("float32") for name, shape in sizes.items()}
        for result, expected in zip(session.run(None, feed), plain.run(None, feed), strict=True):
            assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
            assert result.dtype == expected.dtype


NODES = {
    "dense": [node("MatMul", "x w", "h"), node("Add", "h b", "a"), node("Relu", "a", "y")],
    "reshape by Shape": [
        node("Shape", "x", "s"), node("Gather", "s zero", "n"), node("Concat", "n three", "t", axis=0),
        node("Reshape", "x t", "r"), node("Softmax", "r", "y", axis=1),
    ],
    "flatten with -1": [node("Reshape", "x minus", "y")],
    "slice to the end": [node("Slice", "x one large zero", "s"), node("Neg", "s", "y")],
    "expand to a shape": [node("Shape", "x", "s"), node("Expand", "single s", "e"), node("Mul", "x e", "y")],
    "concat with itself": [node("Concat", "x x", "c", axis=0), node("ReduceMean", "c", "y", axes=[1], keepdims=1)],
    "positions": [
        node("Shape", "x", "s"), node("Gather", "s zero0", "n"), node("Range", "zero_ n one_", "p"),
        node("Cast", "p", "f", to=1), node("Unsqueeze", "f one", "u"), node("Add", "x u", "y"),
    ],
    "padding": [node("Pad", "x pads", "p"), node("Abs", "p", "y")],
    "half of a size": [
        node("Shape", "x", "s"), node("Gather", "s zero", "n"), node("Div", "n two", "h"),
        node("Slice", "x nil h zero", "y0"), node("Neg", "y0", "y"),
    ],
}  # fmt: skip
CONSTANTS = {
    **WEIGHTS,
    "zero": np.int64([0]), "zero0": np.int64(0), "three": np.int64([2, 4]), "minus": np.int64([-1, 4]),
    "one": np.int64([1]), "large": np.int64([2**63 - 1]), "single": np.float32([[2]]), "zero_": np.int64(0),
    "one_": np.int64(1), "pads": np.int64([1, 0, 2, 0]), "two": np.int64([2]), "nil": np.int64([0]),
}  # fmt: skip


@pytest.mark.parametrize("name", NODES)
def test_model_is_compiled_once_for_all_sizes(name: str, loaded: list[bytes]) -> None:
    used = {value for one in NODES[name] for value in one.input}
    constants = {key: value for key, value in CONSTANTS.items() if key in used}
    proto = model(NODES[name], {"x": "float32[n, 8]"}, {"y": ""}, constants, opset=17)
    check(proto, ({"x": [n, 8]} for n in (4, 6, 2, 9, 4, 30)), fallback="error")
    assert len(loaded) == 1


def test_own_operation_is_compiled_once_for_all_sizes(loaded: list[bytes]) -> None:
    @ow.composite
    def halved(b: Any, x: ow.MLOperand) -> ow.MLOperand:
        return b.mul(b.sigmoid(x), 0.5)

    ow.register_onnx("com.example.sizes", "Halved", halved)
    both = [
        [node("MatMul", "x w", "h"), node("Halved", "h", "y", domain="com.example.sizes")],
        [node("MatMul", "x w", "h"), node("Sigmoid", "h", "s"), node("Mul", "s half", "y")],
    ]
    own, plain = (
        model(
            nodes,
            {"x": "float32[batch, time, 8]"},
            {"y": ""},
            {"w": WEIGHTS["w"], **extra},
            domains=["com.example.sizes"],
        )
        for nodes, extra in zip(both, ({}, {"half": np.float32(0.5)}), strict=True)
    )
    check(own, ({"x": [n, m, 8]} for n, m in [(2, 3), (5, 3), (1, 7), (2, 2)]), plain)
    assert len(loaded) == 1


def test_names_with_two_sizes_are_two_names(loaded: list[bytes]) -> None:
    nodes = [node("ReduceSum", "x", "a", keepdims=0), node("ReduceSum", "z", "c", keepdims=0), node("Add", "a c", "y")]
    proto = model(nodes, {"x": "float32[n]", "z": "float32[n]"}, {"y": ""}, opset=17)
    check(proto, ({"x": [n], "z": [m]} for n, m in [(2, 2), (3, 3), (2, 5), (7, 1)]), fallback="error")
    assert len(loaded) == 2


RESIZED: dict[str, tuple[dict[str, Any], dict[str, np.ndarray]]] = {
    "double": ({"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}, {}),
    "triple by half pixels": ({"mode": "nearest"}, {"scales": np.float32([1, 1, 3, 1])}),
    "double by interpolation": ({"mode": "linear"}, {}),
    "like another": ({"mode": "linear"}, {"sizes": np.int64([])}),
    "like another, as PyTorch does": (
        {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"},
        {"sizes": np.int64([])},
    ),
}


@pytest.mark.parametrize("name", RESIZED)
def test_resize_is_compiled_once_for_all_sizes(name: str, loaded: list[bytes]) -> None:
    attributes, constants = RESIZED[name]
    inputs = {"x": "float32[1, 2, h, w]"}
    if "sizes" in constants:
        nodes = [
            node("Shape", "z", "s"),
            node("Concat", "lead s", "t", axis=0),
            node("Resize", "x  t", "y", **attributes),
        ]
        del nodes[2].input[:]
        nodes[2].input.extend(["x", "", "", "t"])
        proto = model(nodes, {**inputs, "z": "float32[p, q]"}, {"y": ""}, {"lead": np.int64([1, 2])}, opset=17)
        shapes = [((4, 5), (7, 3)), ((6, 3), (9, 11)), ((8, 9), (2, 5)), ((5, 4), (30, 31))]
        check(proto, ({"x": [1, 2, *old], "z": list(new)} for old, new in shapes), fallback="error")
    else:
        nodes = [node("Resize", "x", "y", **attributes)]
        nodes[0].input.extend(["", "scales"])
        scales = constants.get("scales", np.float32([1, 1, 2, 2]))
        proto = model(nodes, inputs, {"y": ""}, {"scales": scales}, opset=17)
        check(proto, ({"x": [1, 2, h, w]} for h, w in [(2, 3), (5, 7), (3, 4), (9, 2)]), fallback="error")
    assert len(loaded) == 1


def test_sizes_that_decide_are_compiled_anew(loaded: list[bytes]) -> None:
    """Resize computes positions from numbers of sizes where ONNX Runtime's float32 decides."""
    nodes = [node("Resize", "x", "y", mode="nearest", nearest_mode="floor")]
    nodes[0].input.extend(["", "scales"])
    proto = model(nodes, {"x": "float32[1, 1, h, 3]"}, {"y": ""}, {"scales": np.float32([1, 1, 1.5, 2])}, opset=17)
    check(proto, ({"x": [1, 1, h, 3]} for h in (2, 5, 3, 2)), fallback="error")
    assert 1 <= len(loaded) <= 3


def test_wrong_sizes_are_errors_of_the_operation() -> None:
    proto = model([node("Add", "x z", "y")], {"x": "float32[n, 2]", "z": "float32[m, 2]"}, {"y": ""}, opset=17)
    session = ow.InferenceSession(proto.SerializeToString(), fallback="error")
    x = np.ones((3, 2), "float32")
    assert session.run(None, {"x": x, "z": x})[0].shape == (3, 2)
    with pytest.raises(ow.MLError, match="broadcast"):
        session.run(None, {"x": x, "z": np.ones((2, 2), "float32")})
    assert session.run(None, {"x": x, "z": x[:1]})[0].shape == (3, 2)
