"""Sessions that must compile a model, and compile it once for all shapes: own operations, and `fallback="error"`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.testing import assert_allclose
from onnx import ModelProto
from onnx.helper import make_attribute
from onnx.reference import ReferenceEvaluator
from support.onnx import model, node

import opweave as ow
from opweave.backends.onnxruntime import sessions
from opweave.onnx.session.shape_cache import ShapeCache

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
    "positions of floats": [
        node("Shape", "x", "s"), node("Gather", "s zero0", "n"), node("Cast", "n", "f", to=1),
        node("Range", "minus_f f two_0", "p"), node("Shape", "p", "k"), node("Gather", "k zero0", "l"),
        node("Cast", "l", "g", to=1), node("Add", "p g", "q"), node("ReduceSum", "q", "r", keepdims=0),
        node("Mul", "x r", "y"),
    ],
    "padding": [node("Pad", "x pads", "p"), node("Abs", "p", "y")],
    "mean by a size": [
        node("Shape", "x", "s"), node("Gather", "s zero0", "n"), node("Cast", "n", "f", to=1), node("Div", "x f", "y"),
    ],
    "scale by a root": [
        node("Shape", "x", "s"), node("Cast", "s", "f", to=1), node("Sqrt", "f", "r"), node("ReduceProd", "two_f", "p"),
        node("Gather", "s zero", "n"), node("Cast", "n", "g", to=1), node("Sqrt", "g", "q"), node("Div", "one_f q", "t"),
        node("Mul", "x t", "y"),
    ],
    "integers of sizes": [
        node("Shape", "x", "s"), node("Gather", "s zero", "n"), node("Sub", "n hundred", "d"), node("Div", "d two", "h"),
        node("Cast", "x", "i", to=7), node("Add", "i h", "a"), node("Mul", "a n", "y"),
    ],
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
    "two_f": np.float32([2]), "one_f": np.float32([1]), "hundred": np.int64([101]), "minus_f": np.float32(-3),
    "two_0": np.float32(2),
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


POSITIONED: list[dict[str, Any]] = [
    {"mode": "nearest", "nearest_mode": "floor"},
    {"mode": "nearest", "nearest_mode": "ceil", "coordinate_transformation_mode": "align_corners"},
    {"mode": "nearest", "coordinate_transformation_mode": "half_pixel_symmetric"},
    {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    {"mode": "linear", "coordinate_transformation_mode": "asymmetric"},
    {"mode": "cubic"},
    {"mode": "cubic", "coordinate_transformation_mode": "align_corners", "exclude_outside": 1},
]


@pytest.mark.parametrize("attributes", POSITIONED, ids=lambda options: "-".join(map(str, options.values())))
@pytest.mark.parametrize("form", ["sizes", "scales"])
def test_resize_with_other_positions_is_compiled_once(form: str, attributes: Any, loaded: list[bytes]) -> None:
    """Positions are computed by the engine, or by Python for each combination of sizes."""
    resize = node("Resize", "x", "y", **attributes)
    if form == "sizes":
        resize.input.extend(["", "", "t"])
        nodes = [node("Shape", "z", "s"), node("Concat", "lead s", "t", axis=0), resize]
        proto = model(
            nodes, {"x": "float32[1, 2, h, w]", "z": "float32[p, q]"}, {"y": ""}, {"lead": np.int64([1, 2])}, opset=19
        )
        shapes = [((4, 5), (7, 3)), ((6, 3), (9, 11)), ((8, 9), (8, 9)), ((5, 4), (30, 31))]
        evaluate(proto, [{"x": [1, 2, *old], "z": list(new)} for old, new in shapes])
    else:
        resize.input.extend(["", "scales"])
        scales = {"scales": np.float32([1, 1, 1.5, 0.75])}
        proto = model([resize], {"x": "float32[1, 2, h, w]"}, {"y": ""}, scales, opset=19)
        evaluate(proto, [{"x": [1, 2, h, w]} for h, w in [(2, 4), (5, 3), (3, 8), (9, 2)]])
    assert len(loaded) <= 2  # the tables of Python, and the operations beside a loop


def evaluate(proto: ModelProto, calls: list[dict[str, list[int]]]) -> None:
    """Compare calls of several shapes with ONNX's reference evaluator, and count the programs."""
    session = ow.InferenceSession(proto.SerializeToString(), fallback="error")
    witness = ReferenceEvaluator(proto)
    for sizes in calls:
        feed = {name: RNG.normal(size=shape).astype("float32") for name, shape in sizes.items()}
        for result, expected in zip(session.run(None, feed), witness.run(None, feed), strict=True):
            assert_allclose(result, expected, rtol=1e-4, atol=1e-4)
    named = session._parts.shape_cache._named
    assert len(named) == 1
    assert "one by one" not in session.explain()


def test_sizes_that_decide_are_compiled_anew(loaded: list[bytes]) -> None:
    """The filter of an axis that shrinks has as many taps as the scale says."""
    nodes = [node("Shape", "z", "s"), node("Concat", "lead s", "t", axis=0), node("Resize", "x", "y", mode="linear")]
    nodes[2].input.extend(["", "", "t"])
    nodes[2].attribute.append(make_attribute("antialias", 1))
    inputs = {"x": "float32[1, 1, h, 8]", "z": "float32[p, q]"}
    proto = model(nodes, inputs, {"y": ""}, {"lead": np.int64([1, 1])}, opset=19)
    check(proto, ({"x": [1, 1, h, 8], "z": [h // 2, 4]} for h in (8, 12, 6, 8)), fallback="error")
    assert 1 <= len(loaded) <= 3


def test_wrong_sizes_are_errors_of_the_operation() -> None:
    proto = model([node("Add", "x z", "y")], {"x": "float32[n, 2]", "z": "float32[m, 2]"}, {"y": ""}, opset=17)
    session = ow.InferenceSession(proto.SerializeToString(), fallback="error")
    x = np.ones((3, 2), "float32")
    assert session.run(None, {"x": x, "z": x})[0].shape == (3, 2)
    with pytest.raises(ow.MLError, match="broadcast"):
        session.run(None, {"x": x, "z": np.ones((2, 2), "float32")})
    assert session.run(None, {"x": x, "z": x[:1]})[0].shape == (3, 2)


def dense() -> ow.InferenceSession:
    proto = model(NODES["dense"], {"x": "float32[n, 8]"}, {"y": "float32[n, 8]"}, WEIGHTS, opset=17)
    return ow.InferenceSession(proto.SerializeToString(), fallback="error")


def dense_of(x: np.ndarray) -> np.ndarray:
    result: np.ndarray = np.maximum(x @ WEIGHTS["w"] + WEIGHTS["b"], 0)
    return result


def test_further_sizes_take_the_path_of_repeated_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[Any] = []
    select = ShapeCache.select

    def note(*args: Any) -> Any:
        chosen.append(args)
        return select(*args)

    monkeypatch.setattr(ShapeCache, "select", note)
    session = dense()
    for n in (4, 6, 3, 4, 30, 1, 6):
        x = RNG.normal(size=(n, 8)).astype("float32")
        assert_allclose(session.run(None, {"x": x})[0], dense_of(x), rtol=1e-4, atol=1e-5)
    assert len(chosen) == 1
    assert list(session.shapes()) == [f"x [{n}, 8]" for n in (3, 4, 30, 1, 6)]


def test_further_sizes_are_checked() -> None:
    session = dense()
    for n in (4, 6):
        session.run(None, {"x": np.ones((n, 8), "float32")})
    for shape, message in (((4, 7), r"\[4, 7\]"), ((4, 8, 1), r"\[4, 8, 1\]"), ((8,), r"\[8\]")):
        with pytest.raises(ow.ValidationError, match=message):
            session.run(None, {"x": np.ones(shape, "float32")})
    assert session.run(None, {"x": np.ones((0, 8), "float32")})[0].shape == (0, 8)
    assert session.run(None, {"x": np.ones((5, 8), "float32")})[0].shape == (5, 8)


def test_further_sizes_write_into_targets() -> None:
    session = dense()
    for n in (4, 6, 4, 9, 6):
        x, y = RNG.normal(size=(n, 8)).astype("float32"), np.full((n, 8), np.nan, "float32")
        assert session.run(None, {"x": x}, out={"y": y})[0] is y
        assert_allclose(y, dense_of(x), rtol=1e-4, atol=1e-5)
        assert_allclose(session.run(None, {"x": x[:2]})[0], y[:2], rtol=1e-4, atol=1e-5)
        with pytest.raises(ow.ValidationError, match="y"):
            session.run(None, {"x": x}, out={"y": np.empty((n + 1, 8), "float32")})


def test_further_sizes_of_one_name_are_the_same_in_all_inputs(loaded: list[bytes]) -> None:
    proto = model([node("Add", "x z", "y")], {"x": "float32[n, 2]", "z": "float32[n, 2]"}, {"y": ""}, opset=17)
    session = ow.InferenceSession(proto.SerializeToString(), fallback="error")
    for x, z in ((3, 3), (4, 4), (5, 5), (1, 5), (5, 1), (4, 4)):
        (y,) = session.run(None, {"x": np.full((x, 2), 2, "float32"), "z": np.full((z, 2), 3, "float32")})
        assert_allclose(y, np.full((max(x, z), 2), 5))
    with pytest.raises(ow.MLError):
        session.run(None, {"x": np.ones((4, 2), "float32"), "z": np.ones((5, 2), "float32")})


def test_models_for_all_sizes_have_one_copy_of_the_weights(loaded: list[bytes]) -> None:
    """A session keeps few shapes of a large model compiled; those that share its weights are not counted."""
    weights = {"w": np.zeros((8, 2_000_000), "float32")}
    declared = {"x": "float32[n, 8]"}, {"y": "float32[n, 2000000]"}
    proto = model([node("MatMul", "x w", "y")], *declared, weights, opset=17)
    session = ow.InferenceSession(proto.SerializeToString(), fallback="error")
    out = np.empty((12, 2_000_000), "float32")
    for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12):
        session.run(None, {"x": np.ones((n, 8), "float32")}, out={"y": out[:n]})
    assert len(session.shapes()) == 12
    assert len(loaded) == 1


@pytest.mark.long
def test_tuned_shapes_keep_their_program(cache_folder: Path) -> None:
    session = dense()
    for n in (4, 6, 5):
        session.run(None, {"x": np.ones((n, 8), "float32")})
    session.tune(seconds=0)
    for n in (4, 6, 5, 7, 8):
        x = RNG.normal(size=(n, 8)).astype("float32")
        assert_allclose(session.run(None, {"x": x})[0], dense_of(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("types", [(2, 1), (10, 1), (1, 2, 7), (5, 6, 1)])
def test_ranges_up_to_sizes_that_a_cast_has_changed(types: tuple[int, ...]) -> None:
    """Through uint8, float16 or int16; the range is of floats or of int64."""
    nodes = [node("Shape", "x", "s"), node("Gather", "s zero0", "n"), node("Mul", "n factor", "t0")]
    nodes += [node("Cast", f"t{k}", f"t{k + 1}", to=type) for k, type in enumerate(types)]
    nodes += [
        node("Range", f"first t{len(types)} step", "r"),
        node("Cast", "r", "f", to=1),
        node("ReduceMean", "f", "m", keepdims=0),
        node("Add", "x m", "y"),
    ]
    bounds: dict[str, Any] = (
        {"first": 0, "step": 1} if types[-1] == 7 else {"first": np.float32(0), "step": np.float32(1)}
    )
    constants = {"zero0": np.int64(0), "factor": np.int64(2053), **{k: np.asarray(v) for k, v in bounds.items()}}
    proto = model(nodes, {"x": "float32[n, 8]"}, {"y": ""}, constants, opset=17)
    check(proto, ({"x": [n, 8]} for n in (3, 20)), fallback="error")
