"""`Predictor` in one process, as it also runs in each process of a cluster."""

from __future__ import annotations

import pickle
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx.parser
import onnxruntime as ort
import pytest

import opweave as ow
from opweave.memory import copies
from opweave.scale import Predictor, predictor
from opweave.support import processors

LAYER = """g (float[{rows}, 3] x, float[{rows}, 3] z) => (float[{rows}, 2] y, float[{rows}, 3] s)
<float[3, 2] w = {{1, 2, 3, 4, 5, 6}}> {{ s = Add(x, z) y = MatMul(s, w) }}"""

WORDS = """g (int64[n, 2] ids) => (float[n, 2, 1] y) <float[4, 1] w = {1, 2, 3, 4}> { y = Gather(w, ids) }"""


def model(graph: str, **names: Any) -> bytes:
    text = graph.format(**names) if names else graph
    header = '<ir_version: 8, opset_import: ["": 17, "test.scale": 1]>'
    return onnx.parser.parse_model(f"{header} {text}").SerializeToString()


def batch(rows: int) -> dict[str, np.ndarray]:
    made = np.arange(rows * 6, dtype="float32").reshape(2, rows, 3)
    return {"x": made[0], "z": made[1]}


def expected(rows: int) -> dict[str, np.ndarray]:
    session = ort.InferenceSession(model(LAYER, rows="n"), providers=["CPUExecutionProvider"])
    return dict(zip("ys", session.run(["y", "s"], batch(rows)), strict=True))


@pytest.mark.parametrize("fixed", ["n", "1", "4"])
@pytest.mark.parametrize("rows", [1, 3, 4, 5, 8])
def test_predictor_equals_onnxruntime_for_any_rows(fixed: str, rows: int) -> None:
    found = Predictor(model(LAYER, rows=fixed))(batch(rows))
    assert found.keys() == {"y", "s"}
    for name, values in expected(rows).items():
        np.testing.assert_allclose(found[name], values, rtol=1e-6)


@pytest.mark.parametrize("fixed", ["n", "4"])
def test_predictor_of_no_rows(fixed: str) -> None:
    found = Predictor(model(LAYER, rows=fixed))(batch(0))
    assert {name: (values.shape, values.dtype) for name, values in found.items()} == {
        "y": ((0, 2), np.dtype("float32")),
        "s": ((0, 3), np.dtype("float32")),
    }


def test_predictor_of_no_rows_keeps_sizes_of_inputs() -> None:
    text = "g (float[steps,n,4] x) => (float[steps,n,4] y) { y = Relu(x) }"
    data = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}').SerializeToString()
    predict = Predictor(data, axes={"x": 1, "y": 1})
    blocks = [predict({"x": np.ones((rows, 3, 4), np.float32)})["y"] for rows in (2, 0)]
    assert np.concatenate(blocks).shape == (2, 3, 4)
    assert predict({"x": np.empty(0, object)})["y"].shape == (0, 0, 4)
    unranked = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')
    unranked.graph.input[0].type.tensor_type.ClearField("shape")
    assert Predictor(unranked.SerializeToString(), axes={"y": 1})({"x": np.ones((0, 3), np.float32)})["y"].shape == (
        0,
        0,
        4,
    )


def test_predictor_keeps_precision_in_other_processes() -> None:
    predict = Predictor(model(LAYER, rows="n"), precision="ieee")
    for made in (predict, pickle.loads(pickle.dumps(predict))):
        assert made._session.context.precision == "ieee"
    with pytest.raises(ow.NotSupportedError, match="precision 'tf32': device 'cpu' cannot compute so"):
        Predictor(model(LAYER, rows="n"), precision="tf32")


def test_columns_have_names_of_their_own_and_others_are_kept() -> None:
    predict = Predictor(model(LAYER, rows="n"), inputs={"left": "x", "right": "z"}, outputs={"y": "score"})
    given = {"id": np.array([5, 6]), "left": batch(2)["x"], "right": batch(2)["z"], "label": ["a", "b"]}
    found = predict(given)
    assert list(found) == ["id", "label", "score"]
    assert found["id"] is given["id"]
    assert found["label"] is given["label"]
    np.testing.assert_allclose(found["score"], expected(2)["y"], rtol=1e-6)


RECURRENT = """g (float[2, {rows}, 3] x, float[{rows}] z) => (float[2, 1, {rows}, 4] y, float[1, {rows}, 4] h,
    float[4, {rows}] t) <float[1, 4, 3] w = {{{w}}}, float[1, 4, 4] r = {{{r}}}, int64[1] first = {{0}}> {{
    y, h = RNN<hidden_size = 4>(x, w, r) s = Squeeze(h, first) q = Transpose<perm = [1, 0]>(s) t = Add(q, z) }}"""
"""Rows along the second axis of x and h, the third of y, the last of t, and the first of z."""

AXES = {"x": 1, "y": 2, "h": -2, "t": -1}


def recurrent(rows: str) -> bytes:
    values = np.random.default_rng(1).uniform(-1, 1, 28).round(3)
    return model(RECURRENT, rows=rows, w=", ".join(map(str, values[:12])), r=", ".join(map(str, values[12:])))


def sequences(rows: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(2)
    return {"x": random.random((rows, 2, 3), np.float32), "z": random.random(rows, np.float32)}


@pytest.mark.parametrize("fixed", ["n", "1", "4"])
@pytest.mark.parametrize("rows", [0, 1, 3, 4, 6])
def test_rows_along_other_axes(fixed: str, rows: int) -> None:
    """Columns have their rows first, whatever the axes of the model; ONNX Runtime computes what they must be."""
    predict = pickle.loads(pickle.dumps(Predictor(recurrent(fixed), axes=AXES)))
    columns = predict(sequences(rows))
    assert {name: values.shape for name, values in columns.items()} == {
        "y": (rows, 2, 1, 4),
        "h": (rows, 1, 4),
        "t": (rows, 4),
    }
    session = ort.InferenceSession(recurrent("1"), providers=["CPUExecutionProvider"])
    for row in range(rows):
        given = sequences(rows)
        y, h, t = session.run(["y", "h", "t"], {"x": given["x"][row][:, None], "z": given["z"][row : row + 1]})
        np.testing.assert_allclose(columns["y"][row], y[:, :, 0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(columns["h"][row], h[:, 0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(columns["t"][row], t[:, 0], rtol=1e-5, atol=1e-6)


def test_columns_in_the_layout_of_the_model_are_not_copied() -> None:
    predict, given = Predictor(recurrent("n"), axes=AXES), sequences(3)
    copies.reset()
    predict(given)
    assert copies.by_reason[predictor.OTHER_AXIS].bytes == given["x"].nbytes
    given["x"] = np.moveaxis(np.ascontiguousarray(np.moveaxis(given["x"], 0, 1)), 1, 0)
    copies.reset()
    columns = predict(given)
    assert copies.count == 0
    assert columns["h"].base is not None, "a view of the output"


@pytest.mark.parametrize(
    ("axes", "text"),
    [
        ({"u": 1}, "axes: 'u' is neither an input nor an output of the model"),
        ({"y": 4}, "axes['y'] must be in [-4, 4), as it has 4 axes, got 4"),
        ({"y": True}, "axes['y'] must be an integer, got True"),
        ({"y": "n"}, "axes['y'] must be an integer, got 'n'"),
        (["y"], "axes must map inputs and outputs to axes, got ['y']"),
    ],
)
def test_wrong_axes(axes: Any, text: str) -> None:
    with pytest.raises(ow.ValidationError, match=re.escape(text)):
        Predictor(recurrent("n"), axes=axes)


def test_error_about_rows_names_their_axis() -> None:
    given = sequences(3)
    with pytest.raises(
        ow.ValidationError, match=r"got shape \[2, 1, 3, 4\]; axes=\{'y': 2\} says that they are along axis 2"
    ):
        Predictor(recurrent("n"), axes={"x": 1})(given)
    with pytest.raises(ow.ValidationError, match=r"each of the 3 rows along axis 3, got shape \[2, 1, 3, 4\]"):
        Predictor(recurrent("n"), axes={"x": 1, "y": 3})(given)


@pytest.mark.parametrize(("fixed", "rows"), [("n", 5), ("4", 4)])
def test_read_only_columns_are_read_in_place(fixed: str, rows: int) -> None:
    predict, given = Predictor(model(LAYER, rows=fixed)), batch(rows)
    for values in given.values():
        values.flags.writeable = False
    predict(given)
    before = copies.count
    for _ in range(3):
        predict(given)
    assert copies.count == before


def test_copies_for_a_fixed_number_of_rows_are_counted() -> None:
    predict = Predictor(model(LAYER, rows="4"))
    copies.reset()
    predict(batch(6))
    assert copies.by_reason[predictor.FIXED_ROWS].count == 4  # two inputs of the last part, two results


def test_predictor_takes_rows_as_separate_arrays() -> None:
    rows = np.empty(2, object)
    rows[:] = list(batch(2)["x"])
    copies.reset()
    found = Predictor(model(LAYER, rows="n"))({"x": rows, "z": list(batch(2)["z"])})
    np.testing.assert_allclose(found["y"], expected(2)["y"], rtol=1e-6)
    assert copies.by_reason[predictor.SEPARATE_ROWS].count == 2


@pytest.mark.parametrize("kind", ["path", "bytes", "array"])
def test_pickled_predictors_give_the_same(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = model(LAYER, rows="n")
    (tmp_path / "model.onnx").write_bytes(data)
    monkeypatch.chdir(tmp_path)
    given: Any = {"path": "model.onnx", "bytes": data, "array": np.frombuffer(data, np.uint8)}[kind]
    predict = Predictor(given, outputs={"y": "y"}, threads=1)
    monkeypatch.chdir("/")
    again = pickle.loads(pickle.dumps(predict))
    np.testing.assert_array_equal(again(batch(3))["y"], predict(batch(3))["y"])
    assert again._session.context.backend.threads == 1


# ---------------------------------------------------------------------------------------------------------------------
# Errors


def ragged() -> np.ndarray:
    rows = np.empty(3, object)
    rows[:] = [np.ones(3, "float32"), np.ones(3, "float32"), np.ones(4, "float32")]
    return rows


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([1], "a batch must map columns to arrays, got list"),
        (SimpleNamespace(columns=[]), "got SimpleNamespace; pass batch_format='numpy' to map_batches"),
        ({"x": batch(2)["x"]}, r"the batch has no column 'b' (input 'z'); its columns: ['x']"),
        (
            {**batch(2), "b": np.zeros((2, 3))},
            "column 'b' (input 'z') must be float32, got float64; .astype('float32') converts it",
        ),
        ({**batch(2), "b": np.array([["a"]])}, "column 'b' (input 'z') must be float32, got <U1"),
        (
            {**batch(2), "b": np.zeros((2, 4), "float32")},
            "column 'b' (input 'z') must have shape [?, 3], got [2, 4]",
        ),
        ({**batch(2), "b": np.float32(1)}, "column 'b' (input 'z') must be an array of rows, got float32"),
        ({**batch(2), "b": np.array(1, "float32")}, "column 'b' (input 'z') must be an array of rows, got a scalar"),
        ({**batch(2), "b": batch(3)["z"]}, "columns must have the same number of rows, got {'x': 2, 'b': 3}"),
        ({**batch(2), "b": ragged()}, "column 'b' (input 'z'), row 2, must have shape [3], got [4]"),
        (
            {**batch(2), "b": batch(2)["z"], "id": [1, 2, 3]},
            "column 'id' must have as many rows as the inputs, 2, got 3",
        ),
        (
            {**batch(2), "b": batch(2)["z"], "id": 3},
            "column 'id' must have as many rows as the inputs, 2, got no rows",
        ),
        (
            {**batch(2), "b": [[1.0, 2.0, 3.0]] * 2},
            "column 'b' (input 'z') must be float32, got rows of float64; np.asarray(rows, 'float32') converts them",
        ),
        (
            {**batch(2), "b": [batch(2)["z"][0], [1.0, 2.0, 3.0]]},
            "column 'b' (input 'z'), row 1, must be float32, got float64; .astype('float32') converts it",
        ),
        ({**batch(2), "b": [batch(2)["z"][0], None]}, "column 'b' (input 'z'): row 1 is None"),
        ({**batch(2), "b": [None, None]}, "column 'b' (input 'z'): row 0 is None"),
        ({**batch(2), "b": batch(2)["z"], "y": 0}, "output 'y' goes to 'y', which is a column of the batch already"),
    ],
)
def test_predictor_rejects_wrong_columns(given: Any, text: str) -> None:
    predict = Predictor(model(LAYER, rows="n"), inputs={"x": "x", "b": "z"})
    with pytest.raises(ow.ValidationError) as caught:
        predict(given)
    assert text in str(caught.value)


@pytest.mark.parametrize("rows", ["n", "2"])
def test_predictor_names_row_with_wrong_values(rows: str) -> None:
    predict = Predictor(model(WORDS.replace("[n", f"[{rows}")), inputs={"tokens": "ids"})
    tokens = np.array([[0, 1], [2, 3], [3, 4], [1, 1]])
    with pytest.raises(ow.ValidationError, match=r"^row 2 of the columns 'tokens' \(input 'ids'\): .*\b4\b"):
        predict({"tokens": tokens})
    assert predict({"tokens": tokens[:2]})["y"].tolist() == [[[1], [2]], [[3], [4]]]


def test_rows_of_different_shapes_are_named() -> None:
    predict = Predictor(model("g (float[n, m] x) => (float[n, m] y) { y = Relu(x) }"))
    with pytest.raises(ow.ValidationError, match=r"row 2, must have the shape of row 0, \[3\], got \[4\]"):
        predict({"x": ragged()})


def test_outputs_have_a_row_for_each_row() -> None:
    text = "g (float[n, 2] x) => (float y) { y = ReduceMax<keepdims = 0>(x) }"
    with pytest.raises(ow.ValidationError, match=r"output 'y' must have a row for each of the 3 rows, got shape \[\]"):
        Predictor(model(text))({"x": np.ones((3, 2), "float32")})


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"inputs": {"a": "x"}}, r"inputs must give each input of the model once; it has \['x', 'z'\], got \['x'\]"),
        ({"inputs": {"a": "x", "b": "x"}}, r"inputs must give each input of the model once"),
        ({"inputs": ["x", "z"]}, r"inputs must map names to names, got \['x', 'z'\]"),
        ({"outputs": {}}, r"outputs must map names to names, got \{\}"),
        (
            {"inputs": {"x": "a", "z": "b"}},
            r"^inputs maps \{column: input\}: 'a' is not an input of the model \(\['x', 'z'\]\); "
            r"did you mean \{'a': 'x', 'b': 'z'\}\?$",
        ),
        ({"inputs": {"a": "X", "b": "z"}}, r"'X' is not an input of the model \(.*\); did you mean 'x' for 'X'\?$"),
        (
            {"outputs": {"label": "y"}},
            r"^outputs maps \{output: column\}: 'label' is not an output of the model \(\['y', 's'\]\); "
            r"did you mean \{'y': 'label'\}\?$",
        ),
        ({"outputs": {"q": "label"}}, r"'q' is not an output of the model \(\['y', 's'\]\)$"),
        ({"outputs": {"y": "a", "s": "a"}}, r"outputs must go to different columns, got"),
        ({"operations": 3}, "operations must be a module's name or a function, got 3"),
        ({"threads": 0}, "threads must be a positive integer"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ow.ValidationError, match=text):
        Predictor(model(LAYER, rows="n"), **arguments)


def test_inputs_without_rows_are_refused() -> None:
    text = "g (float[n] x, float z) => (float[r] y) { y = Add(x, z) }"
    with pytest.raises(ow.ValidationError, match=r"input 'z' is tensor\(float\)\[\], which has no rows"):
        Predictor(model(text))


def test_predictor_rejects_different_row_counts() -> None:
    text = "g (float[2, 1] x, float[3] z) => (float[2, 3] y) { y = Add(x, z) }"
    with pytest.raises(ow.ValidationError, match="inputs must have the same number of rows in the model"):
        Predictor(model(text))


# ---------------------------------------------------------------------------------------------------------------------
# Operations of one's own, and threads

TWICE = "g (float[n] x) => (float[r] y) { y = test.scale.Twice(x) }"


def declare() -> None:
    @ow.expression
    def twice(x: Any) -> Any:
        return x + x

    ow.register_onnx("test.scale", "Twice", twice)


def test_predictor_imports_module_of_operations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "import opweave as ow\n\n@ow.expression\ndef twice(x):\n    return x + x\n\n"
    (tmp_path / "twice_of_scale.py").write_text(source + "ow.register_onnx('test.scale', 'Twice', twice)\n")
    monkeypatch.syspath_prepend(tmp_path)
    predict = Predictor(model(TWICE), operations="twice_of_scale")
    assert "twice_of_scale" in sys.modules
    assert predict({"x": np.float32([1, 2, 3])})["y"].tolist() == [2, 4, 6]


def test_predictor_calls_function_of_operations() -> None:
    predict = pickle.loads(pickle.dumps(Predictor(model(TWICE), operations=declare)))
    assert predict({"x": np.float32([1, 2])})["y"].tolist() == [2, 4]


def test_share_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "_share", float("inf"))
    whole = processors.processors()
    processors.share_processors(1)
    assert processors.processors() == 1
    processors.share_processors(1000)
    assert processors.processors() == whole


def test_predictor_repr_before_init() -> None:
    """Ray shows the actor of which the constructor failed."""
    assert "Predictor object" in repr(Predictor.__new__(Predictor))
