"""The Open Inference Protocol, from bytes to arrays and back, without a server."""

from __future__ import annotations

import gzip
import json
import tracemalloc
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx.parser
import pytest
from support.served_models import TEXTS, identity, served_model

import opweave as ow
from opweave.memory import copies
from opweave.scale import protocol
from opweave.scale.examples import example
from opweave.scale.protocol import Interface
from opweave.scale.statistics import ServingStatistics, report
from opweave.support import formatting


def entry(**changed: Any) -> dict[str, Any]:
    given = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3], **changed}
    return {key: value for key, value in given.items() if value is not None}


def message(*inputs: dict[str, Any], **others: Any) -> bytes:
    return json.dumps({"inputs": inputs, **others}).encode()


def error(model: bytes, body: bytes, header_length: str | None = None) -> str:
    with pytest.raises(ow.ValidationError) as caught:
        Interface.load(model).parse(body, header_length)
    return str(caught.value)


VALUES: dict[str, tuple[str, list[Any]]] = {
    "bool": ("BOOL", [True, False, True]),
    "int8": ("INT8", [-128, 0, 127]),
    "uint8": ("UINT8", [0, 1, 255]),
    "int16": ("INT16", [-(2**15), 0, 2**15 - 1]),
    "uint16": ("UINT16", [0, 1, 2**16 - 1]),
    "int32": ("INT32", [-(2**31), 0, 2**31 - 1]),
    "uint32": ("UINT32", [0, 1, 2**32 - 1]),
    "int64": ("INT64", [-(2**63), 0, 2**63 - 1]),
    "uint64": ("UINT64", [0, 1, 2**64 - 1]),
    "float16": ("FP16", [-0.5, 65504.0, 2.0**-24]),
    "bfloat16": ("BF16", [-0.5, 1.0, 2.0**100]),
    "float": ("FP32", [0.1, -3, 2.0**-149]),
    "double": ("FP64", [0.1, -3, 5e-324]),
    "string": ("BYTES", ["", "naïve", "a\nb"]),
}


@pytest.mark.parametrize("element_type", VALUES)
@pytest.mark.parametrize("is_binary", [False, True], ids=["JSON", "binary"])
def test_data_types_round_trip(element_type: str, is_binary: bool) -> None:
    datatype, values = VALUES[element_type]
    names = {"float": "float32", "double": "float64", "string": "object", "bfloat16": ml_dtypes.bfloat16}
    array = np.array([values], names.get(element_type, element_type))
    served = Interface.load(identity(element_type))
    assert served.metadata()["inputs"] == [{"name": "x", "datatype": datatype, "shape": [-1, 3]}]
    outputs = [{"name": "y", "parameters": {"binary_data": is_binary}}]
    if is_binary:
        strings = b"".join(len(v.encode()).to_bytes(4, "little") + v.encode() for v in values if isinstance(v, str))
        data = strings or array.tobytes()
        given = entry(datatype=datatype, data=None, parameters={"binary_data_size": len(data)})
        header = message(given, outputs=outputs)
        request = served.parse(header + data, str(len(header)))
    else:
        request = served.parse(message(entry(datatype=datatype, data=values), outputs=outputs))
    assert request.feed["x"].dtype == array.dtype
    assert np.array_equal(request.feed["x"], array)
    body, headers = served.respond(request, {"y": array})
    length = int(headers[protocol.HEADER_LENGTH]) if is_binary else len(body)
    (output,) = json.loads(body[:length])["outputs"]
    assert (output["name"], output["datatype"], output["shape"]) == ("y", datatype, [1, 3])
    if is_binary:
        assert body[length:] == data
        assert output["parameters"] == {"binary_data_size": len(data)}
    else:
        assert np.array_equal(np.array([output["data"]], array.dtype), array)


@pytest.mark.parametrize("offset", range(4))
def test_parse_aligned_binary_inputs_are_views(offset: int) -> None:
    header = message(entry(data=None, shape=[2, 3], parameters={"binary_data_size": 24}))
    header += b" " * (-len(header) % 4 + offset)
    body = header + np.arange(6, dtype=np.float32).tobytes()
    before = copies.by_reason[protocol.UNALIGNED].count
    found = Interface.load(identity("float")).parse(body, str(len(header))).feed["x"]
    assert found.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found.flags.aligned
    assert np.shares_memory(found, np.frombuffer(body, np.uint8)) == (not offset)
    assert copies.by_reason[protocol.UNALIGNED].count - before == bool(offset)


def test_parse_raw_body_of_only_input() -> None:
    served = Interface.load(identity("float"))
    request = served.parse(np.arange(6, dtype=np.float32).tobytes(), "0")
    assert request.feed["x"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert request.outputs == {"y": True}
    assert "got 7 bytes" in error(identity("float"), bytes(7), "0")
    assert "this model has 2 inputs" in error(served_model("mixed"), bytes(8), "0")
    assert "BYTES" in error(identity("string"), bytes(8), "0")
    assert "at most one dynamic dimension" in error(served_model("reshaped"), bytes(8), "0")


def test_parse_accepts_nested_and_flat_data() -> None:
    served = Interface.load(identity("float"))
    flat = served.parse(message(entry(shape=[2, 3], data=[1, 2, 3, 4, 5, 6])))
    nested = served.parse(message(entry(shape=[2, 3], data=[[1, 2, 3], [4, 5, 6]])))
    assert np.array_equal(flat.feed["x"], nested.feed["x"])


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"name": "z"}, "there is no input 'z'; the model has ['x']"),
        ({"name": None}, "each of 'inputs' must be an object with a name"),
        ({"datatype": "FP64"}, "input 'x' must be FP32, which is tensor(float), got 'FP64'"),
        ({"datatype": "BYTES", "data": ["a"] * 3}, "input 'x' must be FP32, which is tensor(float), got 'BYTES'"),
        ({"datatype": None}, "input 'x': 'datatype' is missing"),
        ({"shape": None}, "input 'x': 'shape' is missing"),
        ({"shape": 3}, "'shape' must be a list of sizes, got 3"),
        ({"shape": [1, -3]}, "'shape' must be a list of sizes, got [1, -3]"),
        ({"shape": [1, True]}, "'shape' must be a list of sizes, got [1, True]"),
        ({"shape": [0, 10**30], "data": []}, "no array can have the shape [0, 1000000000000000000000000000000]"),
        ({"shape": [1] * 99, "data": [1]}, "no array can have the shape"),
        ({"shape": [10**9, 3]}, "'data' must have shape [1000000000, 3] or 3000000000 values, got 3 values"),
        ({"shape": [1, 100]}, "input 'x' must have shape [N, 3], got [1, 100]"),
        ({"shape": [4], "data": [1, 2, 3]}, "input 'x' must have shape [N, 3], got [4]"),
        (
            {"shape": [10**4000] * 2},
            "no array can have the shape [an integer of 13,288 bits, an integer of 13,288 bits]",
        ),
        ({"data": None}, "input 'x': 'data' is missing"),
        ({"data": 1}, "'data' must be a list, got 1"),
        ({"data": [1, 2]}, "'data' must have shape [1, 3] or 3 values, got 2 values"),
        ({"data": [[1], [2], [3]]}, "got lists of shape [3, 1]"),
        ({"data": [[1, 2], [3]]}, "the lists in 'data' must have equal lengths"),
        ({"data": ["a", "b", "c"]}, "'data' must hold FP32, got ['a', 'b', 'c']"),
        ({"data": [True, False, True]}, "'data' must hold FP32"),
        ({"data": [1, None, 2]}, "'data' must hold FP32"),
        ({"data": [1, 10**400, 2.5]}, "'data' must hold FP32"),
        ({"data": [[1, 2], 3]}, "the lists in 'data' must have equal lengths"),
        ({"data": [1, [2, 3]]}, "the lists in 'data' must have equal lengths"),
        ({"data": [1, {}, 2]}, "'data' must hold FP32"),
        ({"data": [1, 1e300, 2]}, "'data' has values that FP32 cannot hold"),
        ({"parameters": 3}, "'parameters' must be an object, got 3"),
        ({"parameters": {"shared_memory_region": "a"}}, "the parameters ['shared_memory_region'] are not supported"),
        ({"parameters": {"binary_data_size": 12}}, "has both 'data' and binary_data_size"),
        ({"parameters": {"binary_data_size": 12}, "data": None}, "binary_data_size must be at most 0"),
    ],
)
def test_wrong_inputs_are_named(changed: dict[str, Any], text: str) -> None:
    assert text in error(identity("float"), message(entry(**changed)))


@pytest.mark.parametrize(
    ("values", "text"),
    [([1.5, 1, 1], "must hold INT8"), ([128, 1, 1], "cannot hold"), ([2**70, 1, 1], "must hold INT8")],
)
def test_integers_are_not_rounded_or_wrapped(values: list[Any], text: str) -> None:
    assert text in error(identity("int8"), message(entry(datatype="INT8", data=values)))


def test_floats_may_be_written_as_large_integers() -> None:
    """As JavaScript writes them: JSON.stringify(1e20) is 100000000000000000000."""
    for element_type, values in {"float": [10**20, 1, -(10**30)], "double": [2**64, 0.5, 10**300]}.items():
        request = Interface.load(identity(element_type)).parse(
            message(entry(datatype=VALUES[element_type][0], data=values))
        )
        assert request.feed["x"].tolist() == [np.array(values, float).astype(request.feed["x"].dtype).tolist()]
    assert "cannot hold" in error(identity("float"), message(entry(data=[10**39, 0, 0])))
    assert "must hold FP64" in error(identity("double"), message(entry(datatype="FP64", data=[10**400, 0, 0])))


@pytest.mark.parametrize("values", [[-1, 0, 0], [2**64, 0, 0], [2**63, -1, 0], [2.0**63, 0, 0]])
def test_large_unsigned_integers_are_exact(values: list[Any]) -> None:
    assert "UINT64" in error(identity("uint64"), message(entry(datatype="UINT64", data=values)))


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "the body is empty"),
        (
            b"{not json}",
            "the request is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        ),
        (b"\xff\xfe{", "the request is not JSON"),
        (b"[" * 100_000, "the request is not JSON"),
        (b"[]", "the request must be a JSON object, got []"),
        (b"{}", "'inputs' is missing"),
        (b'{"inputs": {}}', "'inputs' must be a list of objects, got {}"),
        (b'{"inputs": [3]}', "each of 'inputs' must be an object with a name, got 3"),
        (message(), "inputs must hold ['x']; got none"),
        (message(entry(), entry()), "input 'x' is given twice"),
        (message(entry(), id=3), "id must be a string, got 3"),
        (message(entry(), outputs=[{"name": "z"}]), "there is no output 'z'; the model has ['y']"),
        (message(entry(), outputs=[{"name": "y"}] * 2), "output 'y' is asked for twice"),
        (message(entry(), outputs=[{"name": "y", "parameters": {"classification": 3}}]), "['classification'] are not"),
        (message(entry(), outputs=[{"name": "y", "parameters": {"binary_data": 1}}]), "must be true or false, got 1"),
        (message(entry(), outputs={}), "'outputs' must be a list of objects, got {}"),
        (message(entry(), parameters=0), "the request: 'parameters' must be an object, got 0"),
        (message(entry(), parameters={"sequence_id": 3}), "the parameters ['sequence_id'] are not supported"),
        (message(entry()) + b"1234", "the request is not JSON: Extra data"),
        (message(entry()) + b"1234", "; for binary data send the header Inference-Header-Content-Length"),
        (message(entry()) + np.float32([1, 2]).tobytes(), "; for binary data send the header"),
        (bytes(12), "; for binary data send the header"),
    ],
)
def test_parse_rejects_invalid_request(body: bytes, text: str) -> None:
    assert text in error(identity("float"), body)


def test_parse_wrong_header_size_message() -> None:
    body = message(entry())
    assert "send the header" not in error(identity("float"), body + b"1234", str(len(body) + 4))


def test_parse_rejects_impossible_shape() -> None:
    """Where the model takes any size, their product may still be too large, even if one of them is 0."""
    text = error(served_model("reshaped"), message(entry(shape=[0, 2**62], data=[])))
    assert text == "input 'x': no array can have the shape [0, 4611686018427387904]"


def test_parse_of_damaged_requests_raises_only_own_errors() -> None:
    """Random bytes of a request are replaced, removed or repeated, and the size of its JSON is moved."""
    random = np.random.default_rng(8)
    header = message(
        entry(data=None, parameters={"binary_data_size": 12}), id="7", outputs=[{"name": "y", "parameters": {}}]
    )
    pieces = [
        b"[",
        b"]",
        b"{",
        b"}",
        b'"',
        b",",
        b"null",
        b"true",
        b"-1",
        b"1e999",
        b"99999999999999999999",
        b"\xff",
        b"",
    ]
    served, refused = Interface.load(identity("float")), 0
    for _ in range(4000):
        body = bytearray(header + np.float32([1, 2, 3]).tobytes())
        for _ in range(random.integers(1, 4)):
            start = int(random.integers(len(body)))
            body[start : start + int(random.integers(4))] = pieces[random.integers(len(pieces))]
        length = str(len(header) + random.choice([0, 0, 0, -1, 1, len(body)]))
        try:
            served.parse(bytes(body), length)
        except ow.ValidationError:
            refused += 1
    assert refused > 2000


def test_sizes_of_binary_data_are_checked() -> None:
    def sent(size: Any, left: int) -> str:
        header = message(entry(data=None, parameters={"binary_data_size": size}))
        return error(identity("float"), header + bytes(left), str(len(header)))

    assert "FP32 of shape [1, 3] needs 12 bytes, got 8" in sent(8, 8)
    assert "4 bytes after the JSON belong to no input" in sent(12, 16)
    assert "binary_data_size must be at most 4" in sent(12, 4)
    assert "binary_data_size must be at most 4" in sent(-12, 4)
    assert "binary_data_size must be at most 4" in sent("12", 4)
    assert "must be at most 4, the size of the body, got '5'" in error(identity("float"), b"1234", "5")
    assert "must be at most 4, the size of the body, got '999" in error(identity("float"), b"1234", "9" * 5000)
    for wrong in ("-1", "abc", ""):
        text = f"Inference-Header-Content-Length must be a whole number of bytes, got {wrong!r}"
        assert error(identity("float"), b"1234", wrong) == text


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x05\0\0\0abc", "ends after the data"),
        (b"\x01\0", "ends after the data"),
        (b"\x01\0\0\0\xff", "must be UTF-8"),
        (b"\x01\0\0\0a", "needs 3 strings, got 1"),
    ],
)
def test_damaged_strings_are_refused(data: bytes, text: str) -> None:
    header = message(entry(datatype="BYTES", data=None, parameters={"binary_data_size": len(data)}))
    assert text in error(identity("string"), header + data, str(len(header)))
    half = message(entry(datatype="BYTES", data=["a", "b\ud800", "c"]))
    assert "strings must be Unicode, got '\\ud800' at index 1" in error(identity("string"), half)


def test_outputs_are_chosen_with_their_form() -> None:
    served = Interface.load(served_model("layer"))
    given = entry(shape=[1, 16], data=[0.5] * 16)
    results = {"y": np.ones((1, 4), np.float32), "best": np.array([3])}
    request = served.parse(message(given, id="7", parameters={"binary_data_output": True, "priority": 3}))
    assert request.outputs == {"y": True, "best": True}
    request = served.parse(message(given, id="7", outputs=[{"name": "best"}]))
    body, headers = served.respond(request, results)
    assert headers == {"Content-Type": "application/json"}
    assert json.loads(body) == {
        "model_name": "model",
        "model_version": "1",
        "id": "7",
        "outputs": [{"name": "best", "datatype": "INT64", "shape": [1], "data": [3]}],
    }


def test_respond_rejects_nan_in_json() -> None:
    served = Interface.load(identity("float"))
    request = served.parse(message(entry()))
    with pytest.raises(ow.NotSupportedError, match=r"output 'y' has NaN or infinity.*binary_data"):
        served.respond(request, {"y": np.float32([[1, np.nan, 2]])})


def test_load_rejects_types_and_names_beyond_protocol() -> None:
    with pytest.raises(ow.NotSupportedError, match=r"input 's' is seq\(tensor\(float\)\), for which"):
        Interface.load(served_model("sequence"))
    with pytest.raises(ow.NotSupportedError, match=r"input 'x' is tensor\(complex64\)"):
        Interface.load(identity("complex64"))
    with pytest.raises(ow.ValidationError, match="name must be letters"):
        Interface.load(identity("float"), "a/b")


def test_load_default_name_from_file(tmp_path: Path) -> None:
    path = tmp_path / "a layer (new).v2.onnx"
    path.write_bytes(served_model("layer"))
    assert Interface.load(path).name == Interface.load(str(path)).name == "a-layer-new-.v2"
    assert Interface.load(served_model("layer")).name == "model"


@pytest.mark.parametrize("name", [name for name in TEXTS if name != "sequence"])
def test_example_can_be_parsed(name: str) -> None:
    served = Interface.load(served_model(name))
    for size in (1, 8, 100):
        body, header_length = example(served, size)
        request = served.parse(body, str(header_length))
        assert not any(np.any(array.astype(bool)) for array in request.feed.values())


def test_compressed_bodies() -> None:
    body = message(entry())
    assert protocol.decompress(body, None) == protocol.decompress(body, "identity") == body
    assert protocol.decompress(gzip.compress(body), "gzip") == body
    assert protocol.decompress(zlib.compress(body), "deflate") == body
    for damaged, text in (
        (body, "not gzip"),
        (gzip.compress(body)[:-3], "does not end"),
        (gzip.compress(body) + b"1", "end"),
    ):
        with pytest.raises(ow.ValidationError, match=text):
            protocol.decompress(damaged, "gzip")
    with pytest.raises(ow.ValidationError, match="must be gzip or deflate, got 'br'"):
        protocol.decompress(body, "br")


def test_decompress_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MAX_BODY_BYTES", 1000)
    assert len(protocol.decompress(gzip.compress(bytes(1000)), "gzip")) == 1000
    with pytest.raises(ow.ValidationError, match="larger than the limit of 1000 B"):
        protocol.decompress(gzip.compress(bytes(10**6)), "gzip")


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "x-gzip", "deflate", "identity", ""])
def test_decompress_bounds_result(encoding: str) -> None:
    pack: Any = {"deflate": zlib.compress, "identity": bytes, "": bytes}.get(encoding, gzip.compress)
    for size in (0, 1, 10**6):
        data = random_bytes(size)
        assert protocol.decompress(pack(data), encoding) == data
        if pack is not bytes:
            assert protocol.decompress(pack(data), encoding, size) == data
            with pytest.raises(
                ow.ValidationError, match=f"larger than the limit of {formatting.size(max(size - 1, 0))}"
            ):
                protocol.decompress(pack(data + b"1"), encoding, max(size - 1, 0))


def random_bytes(size: int) -> bytes:
    return np.random.default_rng(size).bytes(size)


def test_uncompressed_takes_the_parts_of_a_gzip_body() -> None:
    parts = [random_bytes(size) for size in (0, 10, 300_000, 1, 0, 500_000)]
    assert protocol.decompress(b"".join(map(gzip.compress, parts)), "gzip") == b"".join(parts)
    many = gzip.compress(b"1")
    assert protocol.decompress(many * protocol.MAX_MEMBERS, "gzip") == b"1" * protocol.MAX_MEMBERS
    with pytest.raises(ow.ValidationError, match="at most 4,096 parts"):
        protocol.decompress(many * (protocol.MAX_MEMBERS + 1), "gzip")
    with pytest.raises(ow.ValidationError, match="larger than the limit of 6 B"):
        protocol.decompress(many * 7, "gzip", 6)


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", b""),
        ("gzip", zlib.compress(b"1")),
        ("deflate", gzip.compress(b"1", mtime=0)),
        ("deflate", zlib.compress(b"1") * 2),
        ("gzip", gzip.compress(b"1", mtime=0) + bytes(8)),
        ("gzip", gzip.compress(b"1", mtime=0) + gzip.compress(b"2", mtime=0)[:-1]),
        ("gzip", gzip.compress(random_bytes(10**6), mtime=0)[:-9]),
        ("gzip", b'{"inputs": []}'),
    ],
)
def test_uncompressed_refuses_other_data(encoding: str, body: bytes) -> None:
    with pytest.raises(ow.ValidationError, match=f"the body is not {encoding}"):
        protocol.decompress(body, encoding)


@pytest.mark.parametrize("encoding", ["gzip, gzip", "br", "gzip\r\nX: 1", "\u202e"])
def test_uncompressed_refuses_other_encodings(encoding: str) -> None:
    with pytest.raises(ow.ValidationError, match="must be gzip or deflate") as caught:
        protocol.decompress(b"", encoding)
    assert str(caught.value).isprintable()


def onnx_identity(type: str) -> bytes:
    text = f'<ir_version: 10, opset_import: ["": 21]> same ({type} x) => ({type} y) {{ y = Identity(x) }}'
    data: bytes = onnx.parser.parse_model(text).SerializeToString()
    return data


@pytest.mark.parametrize("unit", ["[],", "{},", "1.5,", "1,", '"",', '"ab",', '{"a":1},', "[[1]],", "null,", '[""],'])
@pytest.mark.parametrize("where", ["data", "parameters", "outputs"])
@pytest.mark.parametrize("max_json", [1 << 20, 1 << 23])
def test_parse_bounds_the_memory_of_json(unit: str, where: str, max_json: int) -> None:
    """Objects of Python take up to 40 times their text. What is refused is refused before it is read."""
    served = replace(Interface.load(identity("float")), max_json=max_json)
    texts = {"data": "[1,2,3]", "parameters": "null", "outputs": "null"}
    texts[where] = f"[{unit * (max_json // 3)}{unit[:-1]}]"
    text = '{"inputs":[{"name":"x","datatype":"FP32","shape":[1,3],"data":%(data)s,"parameters":%(parameters)s}]'
    text += ',"outputs":%(outputs)s}'
    tracemalloc.start()
    try:
        with pytest.raises(ow.ValidationError) as caught:
            served.parse((text % texts).encode())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * max_json + 8 * len(text % texts)
    assert f"more than the limit of {formatting.size(max_json)}" in str(caught.value)


@pytest.mark.parametrize("text", ["[", "{", '{"a":', '[{"a":['])
def test_parse_bounds_how_deep_json_is_nested(text: str) -> None:
    found = error(identity("float"), b'{"inputs": ' + text.encode() * 20_000)
    assert "the request is not JSON: lists and objects must be nested at most 64 deep, got " in found
    quoted = message(entry(parameters={"note": "[" * 1000 + '\\"[{'}))
    assert Interface.load(identity("float")).parse(quoted).feed["x"].shape == (1, 3)


@pytest.mark.long
def test_parse_reads_long_lists_as_short_ones() -> None:
    """Lists of numbers of more than 64 KiB are read in pieces, with the same results and errors."""
    random = np.random.default_rng(1)
    served, size = Interface.load(identity("float")), 90_000
    values = random.standard_normal(size).astype(np.float32).tolist()
    flat = message(entry(shape=[size // 3, 3], data=values))
    assert served.parse(flat).feed["x"].ravel().tolist() == values
    nested = [values[start : start + 3] for start in range(0, size, 3)]
    assert served.parse(message(entry(shape=[size // 3, 3], data=nested))).feed["x"].ravel().tolist() == values
    wide = Interface.load(onnx_identity("float[N,K]"))
    rows = [values[: size // 2], [0] * (size // 2), values[size // 2 :]]  # the second one is short text
    assert wide.parse(message(entry(shape=[3, size // 2], data=rows))).feed["x"].tolist() == rows
    for wrong, text in (
        (flat.replace(b"0.", b"0.,", 1), "not JSON"),
        (flat.replace(b"]}", b",]}"), "not JSON"),
        (flat.replace(b'"data": [', b'"data": [,'), "not JSON"),
        (message(entry(shape=[size // 3, 3], data=[*values, 1])), "must have shape"),
        (message(entry(shape=[size // 3, 3], data=[*values[:-1], True, 1])), "must have shape"),
        (message(entry(shape=[size // 3, 3], data=[*values[:-1], "1"])), "must hold FP32"),
        (message(entry(shape=[size // 3, 3], data=[*values[:-1], [1]])), "equal lengths"),
        (message(entry(shape=values)), "'shape' must be a list of sizes, got a list of 90,000 numbers"),
        (message({"name": values}), "must be an object with a name"),
    ):
        assert text in error(identity("float"), wrong)
    empty = message(entry(shape=[0, 3], data=[])).replace(b"[]", b"[" + b" " * 100_000 + b"]")
    assert served.parse(empty).feed["x"].shape == (0, 3)
    for start in ("", "a"):  # a string that has no end, and lists in it
        assert "not JSON" in error(identity("float"), f'{{"{start}{json.dumps([0] * size) * 3}'.encode())
    text = json.dumps([0] * size) * 3  # a list in a string stays text
    request = Interface.load(identity("string")).parse(message(entry(datatype="BYTES", data=[text, '\\"' + text, "["])))
    assert request.feed["x"].ravel().tolist() == [text, '\\"' + text, "["]


@pytest.mark.parametrize("dtype", ["int64", "uint64", "int8", "uint8", "float", "double", "bool"])
@pytest.mark.parametrize(
    "special", [2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -1, 0.5, 1e300, 127, 128, True]
)
def test_parse_converts_numbers_of_long_lists_as_of_short_ones(dtype: str, special: Any) -> None:
    served = Interface.load(identity(dtype))
    kind = served.metadata()["inputs"][0]["datatype"]
    found: list[Any] = []
    for count in (1, 40_000):
        data = [*[1, 0, special] * count]
        try:
            request = served.parse(message(entry(shape=[count, 3], datatype=kind, data=data)))
            found.append(request.feed["x"][-1].tolist())
        except ow.ValidationError as error:
            found.append(str(error).partition("must hold")[0].partition("has values")[0])
    assert found[0] == found[1]


def test_parse_bounds_strings_in_place_of_numbers() -> None:
    """An array of them would take 4 bytes for each character of the longest, for every element: 40 GB."""
    data = ["x" * 10**6, *["y"] * (3 * 10**4 - 1)]
    assert "'data' must hold FP32, got ['xxx" in error(identity("float"), message(entry(shape=[10**4, 3], data=data)))


def test_statistics_of_replicas_add_up() -> None:
    one, other = ServingStatistics(), ServingStatistics()
    for each in (one, other):
        each.add_execution(3, (1, 10, 100))
        each.add_success(1, 1000, 5, (1, 10, 100))
        each.add_success(2, 1000, 5, (1, 10, 100))
    other.add_execution(1, (2, 20, 200))
    other.add_failure(7)
    found = report("model", "1", [one.state(), other.state()])
    assert (found["name"], found["version"], found["last_inference"] > 0) == ("model", "1", True)
    assert (found["inference_count"], found["execution_count"]) == (6, 3)
    assert found["inference_stats"]["success"] == {"count": 4, "ns": 4000}
    assert found["inference_stats"]["fail"] == {"count": 1, "ns": 7}
    assert found["inference_stats"]["queue"] == {"count": 4, "ns": 20}
    assert found["inference_stats"]["compute_infer"] == {"count": 4, "ns": 40}
    small, large = found["batch_stats"]
    assert (small["batch_size"], small["compute_output"]) == (1, {"count": 1, "ns": 200})
    assert (large["batch_size"], large["compute_infer"]) == (3, {"count": 2, "ns": 20})
