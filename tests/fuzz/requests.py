"""Requests of the Open Inference Protocol, right and wrong ones, and what must come of each.

A request begins as a right one, whose result is that of the session. Most changes make it wrong in a way that is known; after
others the server may answer or refuse, and an answer must be that of the session for what was sent.
"""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from http.client import HTTPException
from itertools import accumulate, pairwise
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from support.served_models import served_model

import opweave as ow

HEADER = "Inference-Header-Content-Length"
TYPES = {
    "BOOL": np.dtype(bool),
    **{f"{sign}INT{bits}": np.dtype(f"{sign}int{bits}".lower()) for sign in ("", "U") for bits in (8, 16, 32, 64)},
    "FP16": np.dtype("float16"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "FP32": np.dtype("float32"),
    "FP64": np.dtype("float64"),
    "BYTES": np.dtype(object),
}
ELEMENTS = ["bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))]
ELEMENTS += ["float16", "bfloat16", "float", "double"]
EVERY = dict(zip(ELEMENTS, [name for name in TYPES if name != "BYTES"], strict=True))
"""The protocol's data types of numbers by ONNX's names."""


@cache
def models() -> dict[str, bytes]:
    """The models that are deployed, by name."""
    inputs = ", ".join(f"{name}[N,3] {name}" for name in EVERY)
    outputs = ", ".join(f"{name}[N,3] y_{name}" for name in EVERY)
    nodes = " ".join(f"y_{name} = Identity({name})" for name in EVERY)
    text = f'<ir_version: 10, opset_import: ["": 21]> every ({inputs}) => ({outputs}) {{ {nodes} }}'
    names = ("layer", "lookup", "strings", "running", "reshaped", "fixed", "mixed")
    return {name: served_model(name) for name in names} | {
        "every": onnx.parser.parse_model(text).SerializeToString(),
    }


INPUTS: dict[str, dict[str, tuple[str, tuple[int | None, ...]]]] = {
    "layer": {"x": ("FP32", (None, 16))},
    "lookup": {"ids": ("INT64", (None, 2))},
    "strings": {"s": ("BYTES", (None,))},
    "running": {"x": ("FP32", (None, 2))},
    "reshaped": {"x": ("FP32", (None, 6))},
    "fixed": {"x": ("FP32", (2, 3))},
    "mixed": {"a": ("FP32", (None,)), "flag": ("BOOL", (None,))},
    "every": {name: (kind, (None, 3)) for name, kind in EVERY.items()},
}
"""The inputs of each model; None is the number of rows."""
OUTPUTS = {"layer": ["y", "best"], "strings": ["t"], "every": [f"y_{name}" for name in EVERY]}
"""The outputs of models with another one than `y`."""

HAS_PREFIX = True
"""Whether the path of a model begins with its name, as in Ray Serve: a server on one machine has all models in one place."""


def prefix(model: str) -> str:
    """How paths of requests for a model begin."""
    return f"/{model}" if HAS_PREFIX else ""


Feed = Mapping[str, np.ndarray]


@cache
def session(model: str) -> ow.InferenceSession:
    """The witness."""
    return ow.InferenceSession(models()[model])


def results(model: str, feed: Feed) -> dict[str, np.ndarray]:
    """What a model computes."""
    return dict(zip(OUTPUTS.get(model, ["y"]), session(model).run(None, dict(feed)), strict=True))


@dataclass
class Draft:
    """A request in parts that can be changed.

    Attributes:
        model: the model that it is for.
        message: the JSON.
        binary: the bytes after it.
        headers: those that this module is about.
        path: the URL.
        method: the method.
        body: the whole body in place of `message` and `binary`, or None.
        encoding: how the body is compressed.
        is_chunked: whether it is sent in chunks.
        statuses: the statuses that it may have. A right one has 200 alone.
        damage: what happens to the body after it is compressed.
        spaces: how many follow the JSON, so that binary data are aligned.
    """

    model: str
    message: Any
    binary: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    path: str = ""
    method: str = "POST"
    body: bytes | None = None
    encoding: str = ""
    is_chunked: bool = False
    statuses: tuple[int, ...] = (200,)
    damage: Callable[[bytes], bytes] = bytes
    spaces: int = 0

    def whole(self) -> bytes:
        """The body before it is compressed."""
        if self.body is not None:
            return self.body
        text = json.dumps(self.message).encode()
        if self.binary and HEADER not in self.headers:
            self.spaces = -len(text) % 8
            self.headers[HEADER] = str(len(text) + self.spaces)
        return text + b" " * self.spaces + self.binary

    def raw(self, *, close: bool = False, version: str = "1.1") -> bytes:
        """The bytes of the HTTP request."""
        body = self.whole()
        if self.encoding:
            self.headers.setdefault("Content-Encoding", self.encoding)
            body = gzip.compress(body, 1) if self.encoding == "gzip" else zlib.compress(body, 1)
        body = self.damage(body)
        sent = dict(self.headers) | {"Host": "x"} | ({"Connection": "close"} if close else {})
        if self.is_chunked:
            sent["Transfer-Encoding"] = "chunked"
            ends = [*range(0, len(body), max(len(body) // 3, 1)), len(body)]
            parts = [body[a:b] for a, b in pairwise(ends) if b > a]
            body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
        elif self.method != "GET" or body:
            sent.setdefault("Content-Length", str(len(body)))
        lines = [f"{self.method} {self.path} HTTP/{version}", *(f"{name}: {value}" for name, value in sent.items())]
        return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + body


# Right requests ------------------------------------------------------------------------------------------------------


def array(rng: random.Random, model: str, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers of a data type that JSON holds exactly."""
    count = int(np.prod(shape))
    dtype = TYPES[kind]
    if kind == "BYTES":
        texts = [rng.choice(["", "naïve", "a\nb", "\U0001f600", "x" * rng.randint(0, 300)]) for _ in range(count)]
        return np.array(texts, object).reshape(shape)
    if model == "lookup":
        return np.array([rng.randint(-16, 15) for _ in range(count)], dtype).reshape(shape)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        numbers = [rng.choice([info.min, info.max, rng.randint(0, 100)]) for _ in range(count)]
        return np.array(numbers, dtype).reshape(shape)
    return np.array([rng.randint(-16, 16) / 8 for _ in range(count)]).astype(dtype).reshape(shape)


def binary(array: np.ndarray) -> bytes:
    """Binary data of the protocol."""
    if array.dtype != object:
        return array.tobytes()
    texts = [text.encode() for text in array.flat]
    return b"".join(len(text).to_bytes(4, "little") + text for text in texts)


def right(rng: random.Random) -> tuple[Draft, Feed]:
    """A request that is right, and its arrays."""
    model = rng.choice([*INPUTS, "layer", "lookup", "every"])
    rows = rng.choice([1, 1, 1, 2, 3, 5, rng.randint(1, 60)])
    shapes = {name: tuple(rows if n is None else n for n in shape) for name, (_, shape) in INPUTS[model].items()}
    feed = {name: array(rng, model, kind, shapes[name]) for name, (kind, _) in INPUTS[model].items()}
    entries, blob = [], b""
    is_binary = rng.random()
    for name, value in feed.items():
        entry: dict[str, Any] = {"name": name, "shape": list(value.shape), "datatype": INPUTS[model][name][0]}
        if rng.random() < is_binary:
            data = binary(value)
            blob += data
            entry["parameters"] = {"binary_data_size": len(data)}
        else:
            entry["data"] = (value if rng.random() < 0.5 else value.ravel()).tolist()
        entries.append(entry)
    message: dict[str, Any] = {"inputs": entries}
    if rng.random() < 0.3:
        message["id"] = rng.choice(["", "1", "é\n", "x" * 200, "\ud800"])
    if rng.random() < 0.3:
        message["parameters"] = rng.choice([{}, {"binary_data_output": True}, {"other": [1, {"a": 2}]}])
    if rng.random() < 0.3:
        names = OUTPUTS.get(model, ["y"])
        some = rng.sample(names, rng.randint(1, len(names)))
        message["outputs"] = [
            {"name": name} | ({"parameters": {"binary_data": rng.random() < 0.5}} if rng.random() < 0.5 else {})
            for name in some
        ]
    draft = Draft(
        model, message, blob, path=f"{prefix(model)}/v2/models/{model}{rng.choice(['', '', '/versions/1'])}/infer"
    )
    draft.encoding = rng.choice(["", "", "", "gzip", "deflate"])
    draft.is_chunked = rng.random() < 0.1
    if rng.random() < 0.2:
        draft.headers["Accept-Encoding"] = rng.choice(["gzip", "deflate", "br;q=1, *;q=0"])
    return draft, feed


def alone(rng: random.Random) -> tuple[Draft, Feed]:
    """A right request whose body is the only input, without JSON."""
    model = rng.choice(["layer", "fixed", "running", "lookup"])
    ((name, (kind, shape)),) = INPUTS[model].items()
    value = array(rng, model, kind, tuple(rng.randint(1, 9) if n is None else n for n in shape))
    draft = Draft(
        model, None, path=f"{prefix(model)}/v2/models/{model}/infer", body=value.tobytes(), headers={HEADER: "0"}
    )
    return draft, {name: value}


# Wrong requests ------------------------------------------------------------------------------------------------------

BIG = 10**4000
"""A number that takes no time to send, and must take none to refuse."""

SHAPES: list[Any] = [
    *(None, 1, "1", {}, [], [-1], [True], [1.0], ["1"], [None], [[1]], [2**31], [2**63], [2**64], [BIG], [BIG, BIG]),
    *([0, BIG], [1] * 65, [1] * 5000, [2**62, 2**62, 0], [10**4200] * 40, [float("nan")], [1, -BIG]),
]
DATA: list[Any] = [
    *(
        None,
        0,
        "",
        "x",
        {},
        [],
        [None],
        [{}],
        [[]],
        [[[]]],
        [1, [2]],
        [[1], [2, 3]],
        ["x"],
        ["x" * 100_000, *["y"] * 3000],
    ),
    *([float("nan")], [float("inf")], [1e308], [BIG], [1.5, BIG], [-1], [2**64], [True], [[True], [1]], [1e-400]),
    *(["\ud800"], ["\x00"], [b"x".hex()], [[[[[[1]]]]]], [0] * 5000),
]
OTHERS: list[Any] = [
    *(None, True, False, 0, 1, -1, 0.5, 2**31, 2**63, BIG, float("nan"), "", "x", "\ud800", "FP32", "x" * 5000),
    *([], [[]], [1], {}, {"name": "x"}, [{"name": "x"}], {"binary_data_size": 1}, {"shared_memory_region": "x"}),
]


def an_input(rng: random.Random, draft: Draft) -> dict[str, Any]:
    """One of the inputs of a message."""
    found: dict[str, Any] = rng.choice(draft.message["inputs"])
    return found


def wrong_names(rng: random.Random, draft: Draft) -> None:
    inputs = draft.message["inputs"]
    match rng.randrange(5):
        case 0:
            gone = inputs.pop(rng.randrange(len(inputs)))
            size = gone.get("parameters", {}).get("binary_data_size", 0)
            draft.binary = draft.binary[: len(draft.binary) - size]
        case 1:
            inputs.append({**inputs[0], "data": [1]})
        case 2:
            an_input(rng, draft)["name"] = rng.choice(["", "z", "\ud800", "x" * 10**5, "é", None, 1, ["x"]])
        case 3:
            an_input(rng, draft)["datatype"] = rng.choice(["", "fp32", "FP8", "\udfff", None, 1, ["FP32"], {}])
        case 4:
            draft.message["outputs"] = rng.choice(
                [[{"name": "z"}], [{"name": "\ud800"}], [{}], [1], ["y"], {"name": "y"}, "y", 1]
            )


def wrong_parameters(rng: random.Random, draft: Draft) -> None:
    match rng.randrange(4):
        case 0:
            draft.message["parameters"] = rng.choice([[1], "x", 1, {"binary_data_output": 1}, {"sequence_id": 1}])
        case 1:
            an_input(rng, draft)["parameters"] = rng.choice(
                [
                    [1],
                    "x",
                    {"shared_memory_region": "x"},
                    *({"binary_data_size": n} for n in (-1, True, "1", BIG, 2**63)),
                ]
            )
        case 2:
            draft.message["id"] = rng.choice([1, [], {}, True, 0.5])
        case 3:
            draft.headers[HEADER] = rng.choice(["-1", "x", "9" * 5000, "9" * 20, "1_0", "0x1", "1.0", "\xb2", "1,1"])


def wrong_bodies(rng: random.Random, draft: Draft) -> None:
    match rng.randrange(4):
        case 0:
            texts = [
                "",
                "null",
                "[]",
                "1",
                '"x"',
                "{",
                '{"inputs":',
                "[" * 10**5,
                '{"a":' * 10**4,
                "{} {}",
                "nul",
                "\ufeff{}",
            ]
            draft.body = rng.choice(
                [*(text.encode() for text in texts), b"\xff\xfe{", b"\x00" * 9, b"\xff" * 100, b"9" * 5000]
            )
            draft.headers.pop(HEADER, None)
        case 1:
            draft.whole()  # sets the header
            draft.headers.setdefault(HEADER, str(len(draft.whole())))
            draft.binary += rng.randbytes(rng.randint(1, 40))
        case 2:
            draft.encoding = "gzip"
            at = rng.random()
            draft.damage = rng.choice(
                [lambda b: b[: int(len(b) * at)], lambda b: b + b"x", lambda b: b"x" + b, lambda b: b + b]
            )
        case 3:
            draft.headers["Content-Encoding"] = rng.choice(["br", "gzip, gzip", "GZIPPED", "x" * 2000, "zstd", "\xe9"])


def elsewhere(rng: random.Random, draft: Draft) -> None:
    """A URL that does not exist, or a method that it does not have."""
    model = draft.model
    paths = [
        *(
            f"{prefix(model)}/v2/models/other/infer",
            f"{prefix(model)}/v2/models/{model}/versions/2/infer",
            f"{prefix(model)}/v2/modules",
        ),
        *(f"{prefix(model)}/v2/models/%ff%00/infer", f"{prefix(model)}/v1", "/none", "//"),
        *(
            f"{prefix(model)}/v2/models/{'x' * 3000}/infer",
            f"{prefix(model)}/../../etc/passwd",
            f"{prefix(model)}/v2/models/%2e%2e/infer",
        ),
        *(f"{prefix(model)}/v2/models/%ed%a0%80/infer", f"{prefix(model)}/v2/models//infer"),
    ]
    if rng.random() < 0.7:
        draft.path, draft.statuses = rng.choice(paths), (404,)
        return
    draft.statuses = (405,)
    if rng.random() < 0.5:
        draft.method = rng.choice(["GET", "PUT", "DELETE", "PATCH"])
    else:
        draft.path = rng.choice(
            [f"{prefix(model)}/v2", f"{prefix(model)}/v2/health/live", f"{prefix(model)}/v2/models/{model}"]
        )


WRONG = (wrong_names, wrong_parameters, wrong_bodies)


def wrong(rng: random.Random) -> Draft:
    """A request that must be refused."""
    draft, _ = right(rng)
    if rng.random() < 0.2:
        elsewhere(rng, draft)
    else:
        draft.statuses = (400,)
        rng.choice(WRONG)(rng, draft)
    return draft


def mutant(rng: random.Random) -> Draft:
    """A request with something else somewhere: refused, or answered for what it says."""
    draft, _ = right(rng) if rng.random() < 0.9 else alone(rng)
    draft.statuses = (200, 400)
    if draft.message is None or rng.random() < 0.3:
        body = bytearray(draft.whole())
        for _ in range(rng.choice([1, 1, 3, 20])):
            at = rng.randrange(len(body) + 1)
            body[at : at + rng.randint(0, 3)] = rng.randbytes(rng.randint(0, 3))
        draft.body = bytes(body)
    elif rng.random() < 0.4:
        an_input(rng, draft)["shape"] = rng.choice(SHAPES)
    elif rng.random() < 0.5:
        entry = an_input(rng, draft)
        entry["data"] = rng.choice(DATA)
        if rng.random() < 0.8 and "parameters" in entry:
            size = entry.pop("parameters")["binary_data_size"]
            draft.binary = draft.binary[size:]
    else:
        places: list[tuple[Any, Any]] = []

        def visit(value: Any) -> None:
            items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
            for key, item in items:
                places.append((value, key))
                visit(item)

        visit(draft.message)
        for _ in range(rng.choice([1, 1, 2, 5])):
            holder, key = rng.choice(places)
            holder[key] = rng.choice(OTHERS)
    return draft


def asking(rng: random.Random) -> Draft:
    """A right request without a body, for what a server tells about itself."""
    model = rng.choice(list(INPUTS))
    base = f"{prefix(model)}/v2"
    of_model = [f"{base}/models/{model}{each}" for each in ("", "/ready", "/stats", "/versions/1", "/versions/1/ready")]
    path = rng.choice([base, f"{base}/health/live", f"{base}/health/ready", f"{base}/models/stats", *of_model])
    return Draft(model, None, path=path, method="GET", body=b"")


# What was answered ---------------------------------------------------------------------------------------------------


def sent_feed(draft: Draft) -> dict[str, np.ndarray]:
    """The arrays that a request means, read in the plainest way."""
    body = draft.whole()
    kinds = INPUTS[draft.model]
    if draft.headers.get(HEADER) == "0":
        ((name, (kind, shape)),) = kinds.items()
        return {name: np.frombuffer(body, TYPES[kind]).reshape([-1 if n is None else n for n in shape])}
    size = int(draft.headers.get(HEADER, len(body)))
    data, feed = body[size:], {}
    for entry in json.loads(body[:size])["inputs"]:
        dtype = TYPES[entry["datatype"]]
        length = (entry.get("parameters") or {}).get("binary_data_size")
        if length is None:
            values = entry["data"]
            while values and isinstance(values[0], list):
                values = [item for items in values for item in items]
            if dtype.kind == "O":
                made = np.array(values, object)
            else:
                made = np.array([dtype.type(value) for value in values], dtype)
        else:
            part, data = data[:length], data[length:]
            made = np.array(texts_of(part), object) if dtype.kind == "O" else np.frombuffer(part, dtype)
        feed[entry["name"]] = made.reshape(entry["shape"])
    return feed


def texts_of(data: bytes) -> list[str]:
    """The strings of binary data."""
    found = []
    while data:
        size = int.from_bytes(data[:4], "little")
        found.append(data[4 : 4 + size].decode())
        data = data[4 + size :]
    return found


def wanted_of(draft: Draft) -> list[str]:
    """The outputs that a request asks for."""
    if draft.message is None and draft.body is not None and draft.headers.get(HEADER) == "0":
        return OUTPUTS.get(draft.model, ["y"])
    body = draft.whole()
    message = json.loads(body[: int(draft.headers.get(HEADER, len(body)))])
    return [entry["name"] for entry in message.get("outputs") or []] or OUTPUTS.get(draft.model, ["y"])


def answered(headers: Mapping[str, str], body: bytes) -> dict[str, np.ndarray]:
    """The outputs in a response."""
    size = int(headers.get(HEADER.lower(), len(body)))
    entries = json.loads(body[:size])["outputs"]
    sizes = [entry.get("parameters", {}).get("binary_data_size", 0) for entry in entries]
    if size + sum(sizes) != len(body):
        raise HTTPException(f"{len(body) - size - sum(sizes)} bytes of the response belong to no output")
    found = {}
    for entry, end, length in zip(entries, accumulate(sizes, initial=size), sizes, strict=False):
        dtype = TYPES[entry["datatype"]]
        part = body[end : end + length]
        if "data" in entry:
            made = np.array([value if dtype.kind == "O" else dtype.type(value) for value in entry["data"]], dtype)
        else:
            made = np.array(texts_of(part), object) if dtype.kind == "O" else np.frombuffer(part, dtype)
        found[entry["name"]] = made.reshape(entry["shape"])
    return found
