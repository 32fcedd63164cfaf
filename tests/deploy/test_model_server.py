"""A server of models on one machine, through `tritonclient`, a parser of Prometheus's text, and plain HTTP."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from threading import Barrier, Event, Semaphore, current_thread
from time import sleep
from typing import Any
from unittest.mock import Mock
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import onnx.parser
import pytest
from support.processes import handle_signals
from support.served_models import WEIGHTS, layer, served_model
from typer.testing import CliRunner

import opweave as ow
from opweave.cli import app
from opweave.cli.deploy import files_of

pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install 'opweave[server]'")
pytest.importorskip("httptools", reason="httptools is not installed: pip install 'opweave[server]'")
pytest.importorskip("prometheus_client", reason="prometheus_client is not installed: pip install 'opweave[server]'")
pytest.importorskip("tritonclient", reason="tritonclient is not installed")

from prometheus_client.parser import text_string_to_metric_families
from tritonclient import http as triton
from tritonclient.utils import InferenceServerException

from opweave.deploy import ModelServer, listening
from opweave.deploy.joining import Batcher
from opweave.deploy.listening import BoundedProtocol
from opweave.onnx.model.arguments import Argument
from opweave.scale import bodies, http
from opweave.scale.batches import BatchedModel
from opweave.scale.protocol import Interface

RANDOM = np.random.default_rng(8)

SCALED = """<ir_version: 10, opset_import: ["": 21]>
    scaled (float[N,16] x) => (float[N,4] y, int64[N] best) {
        two = Constant <value_float = 2.0> ()
        h = MatMul(x, weights) y = Mul(h, two) best = ArgMax <axis = 1, keepdims = 0> (h)
    }"""
"""A second version of the model "layer"."""

PICTURE = """<ir_version: 10, opset_import: ["": 21]>
    picture (float[N,3,4,4] x) => (float[N,3,4,4] y, float[N,3] mean) {
        axes = Constant <value_ints = [2, 3]> () mean = ReduceMean <keepdims = 0> (x, axes) y = Identity(x)
    }"""

BYTES = """<ir_version: 10, opset_import: ["": 21]>
    pixels (uint8[1,H,W,3] x) => (uint8[1,H,W,3] y) { y = Identity(x) }"""

TOTAL = """<ir_version: 10, opset_import: ["": 21]>
    total (float[N] x) => (float y) { y = ReduceSum <keepdims = 0> (x) }"""

SLOW = """<ir_version: 10, opset_import: ["": 21]>
    slow (float[N,2] x) => (float[N,2] y) { y = test.server.Pause(x) }"""

paused = Event()
"""Set while the model "slow" may run."""


def model(text: str) -> bytes:
    text = text.replace('["": 21]', '["": 21, "test.server": 1]')
    proto = onnx.parser.parse_model(text)
    if "weights" in text:
        proto.graph.initializer.append(onnx.numpy_helper.from_array(WEIGHTS, "weights"))
    return bytes(proto.SerializeToString())


def declare() -> None:
    """Declare the operation of the model "slow", which waits until it may go on."""

    @ow.op
    def pause(self: Any, x: ow.MLOperand) -> Any:
        return x.desc

    @pause.kernel("cpu")
    def _(x: np.ndarray, out: np.ndarray) -> None:
        paused.wait(60)
        np.copyto(out, x)

    ow.register_onnx("test.server", "Pause", pause)


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    models = {
        "layer": {"1": served_model("layer"), "2": model(SCALED)},
        **{name: served_model(name) for name in ("fixed", "mixed", "running", "strings", "lookup")},
        "picture": model(PICTURE),
        "pixels": model(BYTES),
        "total": model(TOTAL),
        "slow": model(SLOW),
    }
    with ModelServer(models, operations=declare, max_body=1 << 20, max_requests=40, threads=1) as made:
        yield made


@pytest.fixture(autouse=True)
def _may_run() -> None:
    paused.set()


@pytest.fixture
def client(server: ModelServer) -> Iterator[Any]:
    with triton.InferenceServerClient(server.url.removeprefix("http://"), concurrency=8) as made:
        yield made


def tensor(array: np.ndarray, name: str = "x") -> Any:
    types = {"float32": "FP32", "int64": "INT64", "object": "BYTES"}
    made = triton.InferInput(name, array.shape, types[array.dtype.name])
    made.set_data_from_numpy(array)
    return made


def ask(server: ModelServer, path: str, body: bytes | None = None, **headers: str) -> tuple[int, Any, bytes]:
    """The status, the headers and the body of a response."""
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        with urlopen(Request(server.url + path, body, fields), timeout=60) as response:
            return response.status, response.headers, response.read()
    except HTTPError as error:
        return error.code, error.headers, error.read()


def error_of(server: ModelServer, path: str, body: bytes | None = None, **headers: str) -> tuple[int, str]:
    status, _, text = ask(server, path, body, **headers)
    return status, json.loads(text)["error"]


def npy(array: np.ndarray) -> bytes:
    np.save(file := io.BytesIO(), array)
    return file.getvalue()


# The protocol ---------------------------------------------------------------------------------------------------------


def test_versions_of_a_model(client: Any) -> None:
    x = RANDOM.standard_normal((3, 16)).astype(np.float32)
    assert client.get_model_metadata("layer")["versions"] == ["1", "2"]
    first, second, latest = (client.infer("layer", [tensor(x)], model_version=v) for v in ("1", "2", ""))
    np.testing.assert_allclose(first.as_numpy("y"), layer(x)[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(second.as_numpy("y"), 2 * (x @ WEIGHTS), rtol=1e-5, atol=1e-6)
    assert np.array_equal(latest.as_numpy("y"), second.as_numpy("y"))
    assert latest.get_response()["model_version"] == "2"
    with pytest.raises(InferenceServerException, match=r"'layer' has no version '3', only \['1', '2'\]") as caught:
        client.infer("layer", [tensor(x)], model_version="3")
    assert caught.value.status() == "404"


def test_repository_index_and_health(client: Any) -> None:
    assert client.is_server_ready()
    assert client.is_model_ready("layer", "1")
    assert not client.is_model_ready("other")
    entries = client.get_model_repository_index()
    assert {(entry["name"], entry["version"]) for entry in entries} >= {("layer", "1"), ("layer", "2"), ("fixed", "1")}
    names = {(entry["name"], entry["version"]) for entry in client.get_inference_statistics()["model_stats"]}
    assert names == {(entry["name"], entry["version"]) for entry in entries}


def test_batcher_runs_together_what_came_meanwhile() -> None:
    batches: list[list[int]] = []

    async def main() -> list[int]:
        first = asyncio.Event()

        async def run(items: Sequence[int]) -> list[int]:
            batches.append(list(items))
            if len(batches) == 1:
                await first.wait()
            if 13 in items:
                raise KeyError("a defect")
            return [-item for item in items]

        batcher = Batcher(run, 4, 0)
        calls = [asyncio.create_task(batcher.submit(0))]
        await asyncio.sleep(0.01)
        calls += [asyncio.create_task(batcher.submit(item)) for item in (*range(1, 9), 13)]
        await asyncio.sleep(0.01)
        calls[2].cancel()  # a client that has left
        first.set()
        return await asyncio.gather(*calls, return_exceptions=True)  # type: ignore[return-value]

    results = asyncio.run(main())
    assert batches == [[0], [1, 3, 4], [5, 6, 7, 8], [13]]
    assert results[:2] + results[3:-1] == [0, -1, -3, -4, -5, -6, -7, -8]
    assert isinstance(results[-1], KeyError)


def test_batcher_waits_for_others() -> None:
    batches: list[list[int]] = []

    async def run(items: Sequence[int]) -> list[int]:
        batches.append(list(items))
        return list(items)

    async def main() -> None:
        batcher = Batcher(run, 3, 60)
        calls = [asyncio.create_task(batcher.submit(item)) for item in range(2)]
        await asyncio.sleep(0.05)
        assert batches == []
        await asyncio.gather(*calls, batcher.submit(2))

    asyncio.run(main())
    assert batches == [[0, 1, 2]]


def test_quick_models_run_in_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """And give the same results. A single slow run changes nothing, most of them or a long one go back to a thread."""
    threads: list[str] = []
    run = BatchedModel.run

    def watched(self: BatchedModel, requests: Any) -> Any:
        threads.append(current_thread().name.partition("_")[0].removeprefix("opweave-"))
        return run(self, requests)

    def ask_often(rows: int, count: int) -> list[Any]:
        x = np.ones((rows, 16), np.float32)
        answers = [np.load(io.BytesIO(ask(server, path, npy(x), **headers)[2])).tolist() for _ in range(count)]
        assert answers == [layer(x)[1].tolist()] * count
        return [threads.pop(0) for _ in range(count)]

    monkeypatch.setattr(BatchedModel, "run", watched)
    monkeypatch.setattr(http, "QUICK_NANOSECONDS", 10**10)
    monkeypatch.setattr(http, "LONG_NANOSECONDS", 10**11)
    monkeypatch.setattr(http, "QUICK_RUNS", 3)
    path, headers = (
        "/v2/models/layer/infer?output=best",
        {"Content_Type": "application/x-npy", "Accept": "application/x-npy"},
    )
    with ModelServer({"layer": served_model("layer")}) as server:
        assert ask_often(1, 5) == ["serving"] * 3 + ["server"] * 2
        assert ask_often(2, 1) == ["serving"]  # other shapes have other times
        monkeypatch.setattr(http, "QUICK_NANOSECONDS", 0)
        assert ask_often(1, 4) == ["server"] * 2 + ["serving"] * 2
        monkeypatch.setattr(http, "QUICK_NANOSECONDS", 10**10)
        assert ask_often(1, 3) == ["serving"] * 2 + ["server"]
        monkeypatch.setattr(http, "LONG_NANOSECONDS", 0)
        assert ask_often(1, 2) == ["server", "serving"]


def test_heads_and_bodies_are_sent_together() -> None:
    """A head whose body comes later is sent before; a large body is not copied behind its head."""
    parts: list[bytes] = []

    class Transport:
        def __init__(self) -> None:
            self.is_closing = self.get_extra_info = None

        def write(self, data: bytes) -> None:
            parts.append(bytes(data))

        def close(self) -> None:
            parts.append(b"close")

        abort = close

    async def main() -> None:
        transport = listening.WholeResponses(Transport(), asyncio.get_running_loop())
        head, large = b"HTTP/1.1 200 OK\r\n\r\n", bytes(listening.MAX_HELD_BYTES + 1)
        for writes, expected in (
            ([head, b"body"], [head + b"body"]),
            ([head, memoryview(b"body"), b"more"], [head + b"body", b"more"]),
            ([head, large], [head, large]),
            ([head, b"HTTP/1.1", b"more"], [head + b"HTTP/1.1", b"more"]),
            ([head], [head]),
        ):
            parts.clear()
            for data in writes:
                transport.write(data)
            await asyncio.sleep(0)
            assert parts == expected
        for end, expected in ((transport.close, [head, b"close"]), (transport.abort, [b"close"])):
            parts.clear()
            transport.write(head)
            end()
            await asyncio.sleep(0)
            assert parts == expected

    asyncio.run(main())


def test_joined_requests_get_their_own_results() -> None:
    rows = [RANDOM.standard_normal((1, 16)).astype(np.float32) for _ in range(6)]
    with ModelServer({"layer": served_model("layer")}, wait=0.2, batch=6) as server, ThreadPoolExecutor(6) as pool:
        path, headers = (
            "/v2/models/layer/infer?output=y",
            {"Content_Type": "application/x-npy", "Accept": "application/x-npy"},
        )
        answers = list(pool.map(lambda row: ask(server, path, npy(row), **headers)[2], rows))
        (found,) = json.loads(ask(server, "/v2/models/stats")[2])["model_stats"]
    for row, answer in zip(rows, answers, strict=True):
        np.testing.assert_allclose(np.load(io.BytesIO(answer)), layer(row)[0], rtol=1e-4, atol=1e-6)
    assert found["inference_count"] == 6
    assert found["execution_count"] < 6


def test_wrong_requests_do_not_affect_others_in_their_batch(client: Any) -> None:
    ids = [np.array([[n, n + 1]]) for n in range(8)]
    ids[3] = np.array([[3, 99]])
    calls = [client.async_infer("lookup", [tensor(row, "ids")]) for row in ids]
    for number, call in enumerate(calls):
        if number == 3:
            with pytest.raises(InferenceServerException, match="got 99"):
                call.get_result()
        else:
            assert np.array_equal(call.get_result().as_numpy("y"), WEIGHTS[ids[number]])


def test_many_clients_at_once(server: ModelServer) -> None:
    start = Barrier(16)

    def call(number: int) -> None:
        x = np.random.default_rng(number).standard_normal((1 + number % 3, 16)).astype(np.float32)
        with triton.InferenceServerClient(server.url.removeprefix("http://")) as own:
            start.wait()
            for _ in range(3):
                result = own.infer("layer", [tensor(x)], model_version="1")
                np.testing.assert_allclose(result.as_numpy("y"), layer(x)[0], rtol=1e-4, atol=1e-6)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(call, range(16)))


def test_too_many_requests_are_503(server: ModelServer) -> None:
    paused.clear()
    body = json.dumps({"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}).encode()
    with ThreadPoolExecutor(60) as pool:
        calls = [pool.submit(ask, server, "/v2/models/slow/infer", body) for _ in range(60)]
        refused: list[int] = []
        for _ in range(500):
            refused = [call.result()[0] for call in calls if call.done()]
            if len(refused) >= 20:
                break
            sleep(0.02)
        paused.set()
        statuses = sorted(call.result()[0] for call in calls)
    assert set(refused) == {503}
    assert (statuses.count(200), statuses.count(503)) == (40, 20)


# Files ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_body(server: ModelServer, order: Any) -> None:
    x = np.asarray(RANDOM.standard_normal((5, 16)).astype(np.float32), order=order)
    path = "/v2/models/layer/versions/1/infer"
    status, headers, body = ask(
        server, path + "?output=y", npy(x), Content_Type="application/x-npy", Accept="application/x-npy"
    )
    assert (status, headers["content-type"]) == (200, "application/x-npy")
    np.testing.assert_allclose(np.load(io.BytesIO(body)), layer(x)[0], rtol=1e-5, atol=1e-6)
    _, _, body = ask(server, path, npy(x), Content_Type="application/x-npy", Accept="application/x-npz")
    assert np.load(io.BytesIO(body))["best"].tolist() == layer(x)[1].tolist()
    _, _, body = ask(server, path, npy(x), Content_Type="application/x-npy")
    assert [output["name"] for output in json.loads(body)["outputs"]] == ["y", "best"]


def test_npy_body_is_read_in_place(server: ModelServer) -> None:
    ow.memory.copies.reset()
    x = np.ones((2, 3), np.float32)
    status, _, _ = ask(server, "/v2/models/fixed/infer", npy(x), Content_Type="application/x-npy")
    assert (status, ow.memory.copies.count) == (200, 0)


def test_npz_body(server: ModelServer) -> None:
    np.savez_compressed(file := io.BytesIO(), a=np.float32([1, 2]), flag=np.array([True, False]))
    headers = {"Content_Type": "application/x-npz", "Accept": "application/x-npy"}
    status, _, body = ask(server, "/v2/models/mixed/infer", file.getvalue(), **headers)
    assert (status, np.load(io.BytesIO(body)).tolist()) == (200, [1, 0])


HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': %s}"


def damaged(header: str, data: bytes = b"") -> bytes:
    text = header.encode().ljust(118)
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


@pytest.mark.parametrize(
    ("name", "kind", "body", "text"),
    [
        ("fixed", "npy", b"nothing", "the body is not an .npy file"),
        ("fixed", "npy", npy(np.ones((2, 3)))[:-1], "needs 48 bytes, got 47"),
        (
            "fixed",
            "npy",
            npy(np.ones((2, 3))),
            "input 'x' must be FP32, which is tensor(float), got an array of float64",
        ),
        ("fixed", "npy", npy(np.ones((3, 2), np.float32)), "input 'x' must have shape [2, 3], got [3, 2]"),
        ("fixed", "npy", npy(np.array(["a"])), "arrays must have numbers"),
        ("fixed", "npy", npy(np.ones(6, ">f4")), "in the order of this machine"),
        ("fixed", "npy", damaged(HEADER.replace("<f4", "|O") % "(1,)", bytes(8)), "arrays must have numbers"),
        ("fixed", "npy", damaged(HEADER % f"({2**62}, {2**62})"), "no array can have the shape"),
        ("fixed", "npy", damaged(HEADER % "(-2, -3)", bytes(24)), "no array can have the shape"),
        ("fixed", "npy", damaged(HEADER % f"({'1, ' * 20})", bytes(4)), "must have shape"),
        ("mixed", "npy", npy(np.ones(2)), "is for models with one input; this model has 2"),
        ("fixed", "npz", b"PK\x03\x04", "the body is not an .npz file"),
        ("strings", "npy", npy(np.ones(2)), "input 's' has strings"),
    ],
)
def test_wrong_files_are_400(server: ModelServer, name: str, kind: str, body: bytes, text: str) -> None:
    status, message = error_of(server, f"/v2/models/{name}/infer", body, Content_Type=f"application/x-{kind}")
    assert status == 400
    assert text in message


def test_npy_of_a_scalar(server: ModelServer) -> None:
    body = json.dumps({"inputs": [{"name": "x", "shape": [2], "datatype": "FP32", "data": [3, 4]}]}).encode()
    for kind in ("npy", "npz"):
        status, _, data = ask(server, "/v2/models/total/infer", body, Accept=f"application/x-{kind}")
        loaded = np.load(io.BytesIO(data))
        value = loaded if kind == "npy" else loaded["y"]
        assert (status, value.shape, value.tolist()) == (200, (), 7.0)


def test_wrong_method_and_address(server: ModelServer) -> None:
    assert error_of(server, "/v2/models/fixed/infer") == (405, "'/v2/models/fixed/infer' takes POST, got 'GET'")
    assert error_of(server, "/v2/model/x") == (404, "there is nothing at '/v2/model/x'")


def test_npz_that_expands_beyond_the_limit(server: ModelServer) -> None:
    np.savez_compressed(file := io.BytesIO(), x=np.zeros(1 << 20, np.float32))
    assert len(file.getvalue()) < 1 << 16
    found = error_of(server, "/v2/models/fixed/infer", file.getvalue(), Content_Type="application/x-npz")
    assert found == (400, "the arrays of the body are larger than the limit of 1.0 MiB")


@pytest.mark.parametrize(("method", "text"), [(zipfile.ZIP_DEFLATED, "an .npz file"), (zipfile.ZIP_BZIP2, "deflated")])
def test_npz_that_expands_beyond_what_it_announces(method: int, text: str) -> None:
    with zipfile.ZipFile(file := io.BytesIO(), "w", method) as archive:
        archive.writestr("x.npy", npy(np.zeros(1 << 25, np.float32)))
    real = (1 << 27) + 128
    body = file.getvalue().replace(real.to_bytes(4, "little"), (8).to_bytes(4, "little"))
    interface = Interface("fixed", [Argument("x", "tensor(float)", 1, (2, 3))], [])
    tracemalloc.start()
    try:
        with pytest.raises(ow.ValidationError, match=text):
            bodies._archive(body, interface, 1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 1 << 25
    finally:
        tracemalloc.stop()


BLACK = np.zeros((3, 4, 3), np.uint8)


def picture(array: np.ndarray, kind: str = "PNG") -> bytes:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    image.fromarray(array).save(file := io.BytesIO(), kind)
    return file.getvalue()


@pytest.mark.parametrize(
    ("kind", "body", "text"),
    [
        ("application/x-www-form-urlencoded", picture(BLACK), "send Content-Type: image/png"),
        (
            "",
            picture(BLACK, "JPEG"),
            "the body looks like image/jpeg, but the request has no header Content-Type; send",
        ),
        ("image/webp", b"RIFF\x00\x00\x00\x00WEBP", "pictures must be image/jpeg or image/png"),
        ("image/png", b"GIF89a", "the body is not a PNG picture"),
        ("image/x-none", b"nothing", "the body looks like image/x-none, but the request has the header Content-Type"),
        ("application/octet-stream", npy(BLACK), "send Content-Type: application/x-npy"),
        ("text/plain", b"PK\x03\x04", "send Content-Type: application/x-npz"),
    ],
)
def test_files_without_their_type_are_recognised(server: ModelServer, kind: str, body: bytes, text: str) -> None:
    status, message = error_of(server, "/v2/models/pixels/infer", body, Content_Type=kind)
    assert status == 400
    assert text in message


def test_png_body(server: ModelServer) -> None:
    pixels = RANDOM.integers(0, 256, (4, 4, 3), np.uint8)
    headers = {"Content_Type": "image/png", "Accept": "application/x-npy"}
    path = "/v2/models/picture/infer?output=y"
    _, _, body = ask(server, path, picture(pixels), **headers)
    wanted = pixels.transpose(2, 0, 1)[None] / np.float32(255)
    np.testing.assert_allclose(np.load(io.BytesIO(body)), wanted, rtol=1e-6)
    _, _, body = ask(server, f"{path}&mean=0.5,0.25,0&std=2&scale=1&order=bgr", picture(pixels), **headers)
    mean = np.float32([0.5, 0.25, 0]).reshape(1, 3, 1, 1)
    wanted = (pixels[..., ::-1].transpose(2, 0, 1)[None] - mean) / 2
    np.testing.assert_allclose(np.load(io.BytesIO(body)), wanted, rtol=1e-6)


def test_picture_is_resized_and_cropped(server: ModelServer) -> None:
    pixels = np.zeros((8, 16, 3), np.uint8)
    pixels[:, 2:14] = 255  # what a crop keeps, and what its filter reads around it
    headers = {"Content_Type": "image/png", "Accept": "application/x-npy"}
    path = "/v2/models/picture/infer?output=mean"
    _, _, stretched = ask(server, path, picture(pixels), **headers)
    _, _, cropped = ask(server, f"{path}&fit=crop", picture(pixels), **headers)
    assert np.load(io.BytesIO(stretched)).max() < 0.9
    assert np.load(io.BytesIO(cropped)).round(1).tolist() == [[1.0] * 3]


def test_jpeg_body(server: ModelServer) -> None:
    body = picture(np.full((16, 16, 3), 128, np.uint8), "JPEG")
    status, _, body = ask(
        server, "/v2/models/pixels/infer", body, Content_Type="image/jpeg", Accept="application/x-npy"
    )
    assert status == 200
    assert np.abs(np.load(io.BytesIO(body)).astype(int) - 128).max() <= 2


@pytest.mark.parametrize("height", [1, 3, 4, 5])
def test_picture_of_an_output(server: ModelServer, height: int) -> None:
    """Also of a height that could be a number of channels."""
    pixels = RANDOM.integers(0, 256, (height, 7, 3), np.uint8)
    status, headers, body = ask(
        server, "/v2/models/pixels/infer", picture(pixels), Content_Type="image/png", Accept="image/png"
    )
    assert (status, headers["content-type"]) == (200, "image/png")
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed").open(io.BytesIO(body))
    assert np.array_equal(np.asarray(image), pixels)


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        ("layer/infer", b"", "takes no picture"),
        ("picture/infer", b"\x89PNG nothing", "the body is not a PNG picture"),
        ("picture/infer", b"GIF89a", "the body is not a PNG picture: it does not begin as one"),
        ("picture/infer?std=0", None, "std must not be 0"),
        ("picture/infer?mean=1e39", None, "mean must be one finite number, or 3 separated by commas, got '1e39'"),
        ("picture/infer?mean=1,2", None, "mean must be one finite number, or 3 separated by commas, got '1,2'"),
        ("picture/infer?scale=nan", None, "scale must be a finite number, got 'nan'"),
        ("picture/infer?order=x", None, "order must be rgb or bgr, got 'x'"),
        ("picture/infer?size=3", None, "has the options"),
        ("picture/infer?output=z", None, "there is no output 'z'"),
        ("pixels/infer?scale=2", None, "pixels are not scaled"),
        ("pixels/infer?width=16384&height=16384", None, "a picture of 16384 x 16384 is too large"),
        ("pixels/infer?width=99999", None, "width must be 1 to 16384"),
        ("mixed/infer", None, "is for models with one input"),
    ],
)
def test_wrong_pictures_are_400(server: ModelServer, path: str, body: bytes | None, text: str) -> None:
    sent = picture(np.zeros((3, 3, 3), np.uint8)) if body is None else body
    status, message = error_of(server, f"/v2/models/{path}", sent, Content_Type="image/png")
    assert status == 400
    assert text in message


def test_picture_that_expands_beyond_the_limit(server: ModelServer) -> None:
    bomb = picture(np.zeros((5000, 5000), np.uint8))
    assert len(bomb) < 1 << 20
    found = error_of(server, "/v2/models/picture/infer", bomb, Content_Type="image/png")
    assert found == (400, "a picture of 5000 x 5000 is too large")


# Metrics, the page, other sites ---------------------------------------------------------------------------------------


def samples(server: ModelServer) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    _, headers, body = ask(server, "/metrics")
    assert headers["content-type"].startswith("text/plain")
    families = text_string_to_metric_families(body.decode())
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def test_metrics(server: ModelServer, client: Any) -> None:
    labels = {("model", "mixed"), ("version", "1")}
    before = samples(server)
    copies = ("opweave_copies_total", frozenset({("reason", "an example")}))
    ow.memory.copies.add(7, "an example")
    for _ in range(3):
        client.infer("mixed", [tensor(np.float32([1, 2]), "a"), triton_flags()])
    for _ in range(2):
        with pytest.raises(InferenceServerException):
            client.infer("mixed", [tensor(np.float32([1, 2]), "a")])
    error_of(server, "/v2/models/none/infer", b"{}")
    host, port = server.url.removeprefix("http://").split(":")
    with closing(HTTPConnection(host, int(port), timeout=60)) as connection:
        connection.putrequest("POST", "/v2/models/mixed/infer")
        connection.putheader("Content-Length", str(2 << 20))
        connection.endheaders()  # the body does not come
        assert connection.getresponse().status == 413
    after = samples(server)

    def grown(name: str, *more: tuple[str, str]) -> float:
        key = name, frozenset(labels | set(more))
        return after[key] - before.get(key, 0)

    assert grown("opweave_request_seconds_count") == 3
    assert grown("opweave_queue_seconds_count") == 3
    assert grown("opweave_execution_seconds_count") == 3
    assert grown("opweave_batch_rows_sum") == 6
    assert grown("opweave_batch_rows_bucket", ("le", "2.0")) == 3
    assert grown("opweave_errors_total", ("kind", "ValidationError")) == 2
    assert grown("opweave_errors_total", ("kind", "HTTP413")) == 1
    assert after["opweave_requests_in_progress", frozenset(labels)] == 0
    assert after[copies] - before.get(copies, 0) == 1
    unknown = frozenset({("kind", "HTTP404"), ("model", ""), ("version", "")})
    assert after["opweave_errors_total", unknown] >= 1
    assert not any("none" in dict(keys).values() for _, keys in after), "clients add no series"


def triton_flags() -> Any:
    made = triton.InferInput("flag", [2], "BOOL")
    made.set_data_from_numpy(np.array([True, False]))
    return made


def test_page_and_pictures_of_models(server: ModelServer) -> None:
    status, headers, body = ask(server, "/")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in headers["content-security-policy"]
    for name in re.findall(r'(?:href|src)="(page\.\w+)"', body.decode()):
        assert ask(server, f"/{name}")[0] == 200
    names = [entry["name"] for entry in json.loads(ask(server, "/v2/models")[2])["models"]]
    assert names[:3] == ["layer", "layer", "fixed"]
    for name in ("layer", "running", "slow"):
        status, headers, body = ask(server, f"/v2/models/{name}/picture")
        assert (status, headers["content-type"], body[:4]) == (200, "image/svg+xml", b"<svg")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "127.0.0.1:1"}, 200),
        ({"Host": "localhost"}, 200),
        ({"Host": "[::1]:8000"}, 200),
        ({"Host": "rebound.example:8000"}, 403),
        ({"Host": "127.0.0.1.example"}, 403),
        ({"Origin": "https://example.com"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "localhost:5", "Origin": "http://localhost:5"}, 200),
        ({"Host": "localhost:5", "Origin": "http://localhost:6"}, 403),
    ],
)
def test_other_sites_are_refused(server: ModelServer, headers: dict[str, str], status: int) -> None:
    assert ask(server, "/v2", **headers)[0] == status


def test_named_origins_and_hosts() -> None:
    page = "http://localhost:3000"
    names = ["Models.example", "other.example.", "[FE80::0:1]"]
    with ModelServer({"fixed": served_model("fixed")}, origins=[page], hosts=names) as server:
        for host in ("models.example", "models.example.:80", "OTHER.example", "[fe80::1]:80"):
            status, headers, _ = ask(server, "/v2", Origin=page, Host=host)
            assert (status, headers["access-control-allow-origin"]) == (200, page)
        assert ask(server, "/v2", Origin="http://localhost:3001")[0] == 403


def test_responses_are_sent_at_once(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """With Nagle's algorithm, a response of two parts would take 40 ms."""
    made: list[int] = []
    begin = BoundedProtocol.connection_made

    def connection_made(self: BoundedProtocol, transport: Any) -> None:
        begin(self, transport)
        made.append(transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    monkeypatch.setattr(BoundedProtocol, "connection_made", connection_made)
    ask(server, "/v2")
    assert len(made) == 1
    assert made[0] != 0


def test_heads_have_a_limit(server: ModelServer) -> None:
    address = server.url.removeprefix("http://").split(":")
    with socket.create_connection((address[0], int(address[1])), 60) as connection:
        connection.sendall(b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n")
        sent = 0
        with suppress(OSError):  # the server hangs up
            while sent < 1 << 23:
                connection.sendall(b"a: " + b"b" * 8000 + b"\r\n")
                sent += 8000
                sleep(0.001)
        assert sent < 1 << 22


def exchange(server: ModelServer, *parts: bytes, pause: float = 0) -> bytes:
    """What the server sends until it closes the connection."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 60) as connection:
        for part in parts:
            connection.sendall(part)
            sleep(pause)
        received = b""
        with suppress(ConnectionResetError):
            while data := connection.recv(1 << 16):
                received += data
        return received


@pytest.mark.parametrize(
    ("head", "text"),
    [
        (b"Content-Length: 99999999999999999999", "Content-Length overflow"),
        (b"Content-Length: -1", "Invalid character in Content-Length"),
        (b"Content-Length: 1\r\nContent-Length: 2", "Content-Length"),
        (b"Content-Length: 1\r\nTransfer-Encoding: chunked", "Transfer-Encoding can't be present with Content-Length"),
        (b"Transfer-Encoding: chunked\r\n\r\nzz", "Invalid character in chunk size"),
        (b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff", "Chunk size overflow"),
        (b"a\x00: b", "Invalid header token"),
    ],
)
def test_what_is_no_request_is_400_with_the_reason(server: ModelServer, head: bytes, text: str) -> None:
    reply = exchange(server, b"POST /v2/models/fixed/infer HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n\r\n")
    status, _, body = reply.rpartition(b"HTTP/1.1 400 Bad Request\r\n")[2].partition(b"\r\n\r\n")
    assert b"application/json" in status
    error = json.loads(body)["error"]
    assert error.startswith("the request is not HTTP/1.1: ")
    assert text in error


def progress(server: ModelServer, name: str) -> float:
    return samples(server)["opweave_requests_in_progress", frozenset({("model", name), ("version", "1")})]


def test_slow_heads_end(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of later requests; time between requests does not count."""
    monkeypatch.setattr(listening, "HEAD_SECONDS", 0.3)
    whole = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for parts, count in (([b"GET /v2 HTTP/1.1\r\n"], 0), ([whole, whole + b"GET /v2"], 2)):
        assert exchange(server, *parts, pause=0.5).count(b'{"live":true}') == count


def test_slow_bodies_end(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "BODY_SECONDS", 0.5)
    head = b"POST /v2/models/pixels/infer HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-npy\r\n"
    for sent in (
        b"Content-Length: 100\r\n\r\nabc",
        b"Content-Length: 1000000\r\n\r\n" + bytes(1000),
        b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
    ):
        assert exchange(server, head + sent) == b""
    for _ in range(100):
        if not (left := progress(server, "pixels")):
            break
        sleep(0.1)
    assert left == 0
    body = npy(np.zeros((1, 100, 200, 3), np.uint8))
    size = b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    parts = [body[start : start + 20000] for start in range(0, len(body), 20000)]
    assert exchange(server, head + size, *parts, pause=0.25).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"batch": 0}, "batch must be a positive integer, got 0"),
        ({"wait": -1}, "wait must be a number of seconds, got -1"),
        ({"port": 1 << 16}, "port must be in [0, 65535], got 65536"),
        ({"device": "none"}, "there is no device 'none'"),
        ({"origins": "http://a"}, "origins must be a sequence of strings, got 'http://a'"),
        ({"origins": ["localhost:3000"]}, "an origin is like 'http://localhost:5173', without a path, got"),
        ({"origins": None}, "origins must be a sequence of strings, got None"),
        *(
            ({"origins": [origin]}, f"without a path, got {origin!r}")
            for origin in (
                "http://a,b",
                "http://a:b:c",
                "http://a:b",
                "http://münchen.de",
                "http://[abc]",
                "file://",
                "*",
            )
        ),
        *(
            ({"origins": [origin]}, f"an origin must be as browsers send it, {sent!r}, got {origin!r}")
            for origin, sent in {
                "http://Models.Example": "http://models.example",
                "http://a:80": "http://a",
                "https://a:443": "https://a",
                "http://a:": "http://a",
                "http://a/": "http://a",
                "http://user@a:5": "http://a:5",
                "http://[::0:1]:5": "http://[::1]:5",
            }.items()
        ),
        *(
            ({"hosts": [host]}, f"a host is like 'models.example', without a port, got {host!r}")
            for host in ("models.example:80", "*", "a,b", "user@host", "[abc]", "1.2.3", "", "münchen.de")
        ),
        (
            {"language_models": {"tiny": "tiny.gguf"}},
            "must map names to pairs of a Decoder and a Vocabulary, got 'tiny.gguf'",
        ),
    ],
)
def test_wrong_arguments(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ow.MLError, match=re.escape(text)):
        ModelServer({"fixed": served_model("fixed")}, **options)


@pytest.mark.parametrize(
    ("host", "cause", "text"),
    [
        (
            "a b",
            socket.gaierror(-2, "No such name"),
            "cannot listen on a b:0: No such name; --host and --port take others",
        ),
        ("a\0b", None, r"cannot listen on 'a\x00b:0': "),  # refused before the resolver is asked
        ("é" * 70, None, "cannot listen on ééé"),
    ],
    ids=["unknown", "NUL", "long"],
)
def test_hosts_that_cannot_be_resolved(
    host: str, cause: Exception | None, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if cause is not None:
        monkeypatch.setattr(socket, "create_server", Mock(side_effect=cause))
    with pytest.raises(ow.OperationError, match=re.escape(text)):
        ModelServer({"fixed": served_model("fixed")}, host=host)


def test_wrong_models() -> None:
    rows: list[tuple[Any, str]] = [
        ({}, "a server must have a model"),
        ({"a b": served_model("fixed")}, "name must be letters"),
        ({"a": {}}, "must have a version"),
        ({"a": {"1/2": served_model("fixed")}}, "versions must be letters"),
        ({"a": b"nothing"}, "not an ONNX model"),
    ]
    for models, text in rows:
        with pytest.raises(ow.MLError, match=text):
            ModelServer(models)
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        pytest.raises(ow.OperationError, match="Address already in use"),
    ):
        ModelServer({"fixed": served_model("fixed")}, port=other.getsockname()[1])


def test_server_serves_once() -> None:
    server = ModelServer({"fixed": served_model("fixed")}).start()
    with pytest.raises(ow.InvalidStateError, match="serves once"):
        server.start()
    server.close()
    with pytest.raises(ow.InvalidStateError, match="serves once"):
        server.run()
    server.close()
    server = ModelServer({"fixed": served_model("fixed")})
    server.stop()
    with pytest.raises(ow.InvalidStateError, match="that has been stopped cannot be started"):
        server.start()
    server.run()  # ends at once, as a signal may come before


# The command ----------------------------------------------------------------------------------------------------------


def test_files_of_arguments(tmp_path: Path) -> None:
    for name in ("b.onnx", "a/10/model.onnx", "a/2/model.onnx", "a/old/model.onnx"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = files_of([str(tmp_path), "c=x=1.onnx", "b:7=y.onnx"])
    versions_of = {name: list(versions) for name, versions in found.items()}
    assert versions_of == {"b": ["1", "7"], "a": ["old", "2", "10"], "c": ["1"]}
    assert files_of(["x.onnx"], "y") == {"y": {"1": Path("x.onnx")}}
    wrong: list[tuple[list[str], str | None, str]] = [
        (["x.onnx", "x=y.onnx"], None, "the model 'x' has version '1' twice"),
        (["x.onnx", "y.onnx"], "z", "--name is for one model"),
        (["=x.onnx"], None, "a name, a version and a file have characters: NAME:VERSION=FILE, got '=x.onnx'"),
        (["x.onnx="], None, "a name, a version and a file have characters: NAME:VERSION=FILE, got 'x.onnx='"),
        ([""], None, "a file has characters: FILE or NAME=FILE, got ''"),
        (["a:=x.onnx"], None, "NAME:VERSION=FILE, got 'a:=x.onnx'"),
        ([str(tmp_path / "a")], None, "has no NAME.onnx and no NAME/VERSION/model.onnx"),
    ]
    for texts, title, text in wrong:
        with pytest.raises(ow.ValidationError, match=text):
            files_of(texts, title)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--replicas", "2"], "--replicas needs --ray"),
        (["other.onnx", "--ray"], "--ray serves one model"),
        (["--ray", "--grace", "30", "--allow-host", "a"], "--ray takes no --allow-host, --grace"),
        (["--max-body", "3Q"], "--max-body must be a size like 512M or 2G, got '3Q'"),
    ],
)
def test_options_of_ray(arguments: list[str], text: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["deploy", str(tmp_path / "x.onnx"), *arguments])
    assert text in str(result.exception)


def started(*arguments: object) -> tuple[subprocess.Popen[str], list[str]]:
    """The command, in a process that serves, and what it has printed."""
    process = subprocess.Popen(
        [sys.executable, "-m", "opweave", "deploy", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=handle_signals,
    )
    assert process.stdout is not None
    lines: list[str] = []
    while not lines or "Ctrl-C" not in lines[-1]:
        lines.append(process.stdout.readline().strip())
        assert lines[-1], process.communicate()
    return process, lines


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def test_deploy_prints_an_example_that_runs(tmp_path: Path) -> None:
    """The example is for the version that a URL without one means, wherever it is among the arguments."""
    path, older, port = tmp_path / "a layer.onnx", tmp_path / "older.onnx", free_port()
    path.write_bytes(served_model("layer"))
    older.write_bytes(served_model("fixed"))
    process, lines = started(f"a:10={path}", f"a:2={older}", f"b:3={path}", "--port", port)
    try:
        sources = "a layer.onnx (version 10), older.onnx (version 2) are served on cpu:"
        assert lines[:2] == [sources, f"http://127.0.0.1:{port}/v2/models/a"]
        answer = subprocess.run(lines[-3], shell=True, capture_output=True, text=True)
        assert [output["name"] for output in json.loads(answer.stdout)["outputs"]] == ["y", "best"], answer.stderr
    finally:
        process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "stopped\n")


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("keeps", [True, False], ids=["kept", "new"])
def test_sigterm_under_load_loses_no_request(keeps: bool, tmp_path: Path) -> None:
    """Each request on a connection that was made gets its answer; then connections are refused."""
    path, port = tmp_path / "layer.onnx", free_port()
    path.write_bytes(served_model("layer"))
    process, _ = started(path, "--port", port, "--threads", 1)
    x = np.ones((1, 16), np.float32)
    body, wanted = npy(x), layer(x)[1].tolist()
    answers = Semaphore(0)  # how many answers come in a second depends on the machine

    def load(_: int) -> tuple[int, str]:
        """How many requests were answered, and why the last one was not."""
        count, connection = 0, None
        while True:
            if connection is None:
                connection = HTTPConnection("127.0.0.1", port, timeout=60)
                try:
                    connection.connect()
                except ConnectionRefusedError:
                    return count, "refused"
                except OSError as error:  # the listening socket was closed during the handshake
                    return count, f"not accepted: {error!r}"
            try:
                connection.request(
                    "POST", "/v2/models/layer/infer?output=best", body, {"Content-Type": "application/x-npy"}
                )
                response = connection.getresponse()
                text = response.read()
            except Exception as error:
                return count, f"lost: {error!r}"
            if response.status != 200 or json.loads(text)["outputs"][0]["data"] != wanted:
                return count, f"wrong: {response.status}"
            count += 1
            answers.release()
            if response.will_close or not keeps:
                connection.close()
                connection = None

    with ThreadPoolExecutor(8) as pool:
        clients = [pool.submit(load, number) for number in range(8)]
        assert all(answers.acquire(timeout=60) for _ in range(100))
        process.terminate()
        ends = [client.result(60) for client in clients]
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "stopped\n")
    assert sum(count for count, _ in ends) >= 100
    assert {end for _, end in ends} == {"refused"}


@pytest.mark.long
def test_sigterm_waits_for_a_request_that_runs(tmp_path: Path) -> None:
    module = tmp_path / "slow_operation.py"
    module.write_text(
        "import time\nimport numpy as np\nimport opweave as ow\n\n@ow.op\ndef pause(self, x):\n    return x.desc\n\n"
        "@pause.kernel('cpu')\ndef _(x, out):\n    time.sleep(1.5)\n    np.copyto(out, x)\n\n"
        "ow.register_onnx('test.server', 'Pause', pause)\n"
    )
    path, port = tmp_path / "slow.onnx", free_port()
    path.write_bytes(model(SLOW))
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "opweave", "deploy", path, "--port", str(port), "--operations", module.stem],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=handle_signals,
    )
    assert process.stdout is not None
    assert any("Ctrl-C" in line for line in iter(process.stdout.readline, ""))
    with socket.create_connection(("127.0.0.1", port), 60) as connection:
        body = npy(np.float32([[1, 2]]))
        fields = f"Host: localhost\r\nContent-Type: application/x-npy\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(f"POST /v2/models/slow/infer HTTP/1.1\r\n{fields}".encode() + body)
        sleep(0.3)
        process.terminate()
        response = HTTPResponse(connection)
        response.begin()
        assert (response.status, response.headers["connection"]) == (200, "close")
        assert json.load(response)["outputs"][0]["data"] == [1, 2]
    assert process.wait(60) == 0


@pytest.mark.long
def test_deploy_names_missing_extra(tmp_path: Path) -> None:
    (tmp_path / "x.onnx").write_bytes(served_model("fixed"))
    code = f"""
import sys
sys.modules["uvicorn"] = None
sys.argv = ["opweave", "deploy", {str(tmp_path / "x.onnx")!r}]
from opweave.cli import main
main()
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode == 1
    assert found.stderr == "error: opweave.deploy.ModelServer needs uvicorn: pip install 'opweave[server]'\n"
