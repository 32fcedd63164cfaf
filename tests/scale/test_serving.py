"""Models behind Ray Serve, seen through `tritonclient`, which was not written for Opweave."""

from __future__ import annotations

import gzip
import json
import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPResponse
from threading import Barrier
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import numpy as np
import pytest
from support.ray_processes import NAME, left_over, marked, new_mark, private_bytes
from support.served_models import WEIGHTS, layer, served_model

import opweave as ow

pytest.importorskip("ray", reason="Ray is not installed")
pytest.importorskip("fastapi", reason="Ray's extra `serve` is not installed")
pytest.importorskip("tritonclient", reason="tritonclient is not installed")

import ray
from ray import serve
from tritonclient import http as triton
from tritonclient.utils import InferenceServerException

import opweave.scale

RANDOM = np.random.default_rng(6)


def declaring() -> Callable[[], None]:
    """A function that declares the operation of the model "custom"; as a nested one, it is pickled with its code."""

    def declare() -> None:
        @ow.op
        def triple(self: Any, x: ow.MLOperand) -> Any:
            return x.desc

        @triple.kernel("cpu")
        def _(x: np.ndarray, out: np.ndarray) -> None:
            np.multiply(x, 3, out=out)

        ow.register_onnx("test.serving", "Triple", triple)

    return declare


MODELS: dict[str, dict[str, Any]] = {
    "layer": {"replicas": 2, "wait": 0.05},
    "lookup": {"wait": 0.05},
    "strings": {},
    "fixed": {},
    "custom": {"operations": declaring()},
}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of a Ray Serve with the models of `MODELS`, each under its name as a path."""
    mark = new_mark()
    os.environ[NAME] = mark
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    try:
        ray.init("local", num_cpus=8, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20)
        serve.start(http_options={"port": port}, logging_config={"log_level": "ERROR", "enable_access_log": False})
        applications = {
            name: opweave.scale.deployment(served_model(name), name=name, **options) for name, options in MODELS.items()
        }
        serve.run_many([serve.RunTarget(made, name, f"/{name}") for name, made in applications.items()])
        yield f"127.0.0.1:{port}"
    finally:
        serve.shutdown()
        ray.shutdown()
        del os.environ[NAME]
    assert left_over(mark) == {}


@pytest.fixture
def client(address: str) -> Iterator[Any]:
    with triton.InferenceServerClient(f"{address}/layer", network_timeout=60, connection_timeout=60) as made:
        yield made


def tensor(array: np.ndarray, *, name: str = "x", is_binary: bool = True) -> Any:
    types = {"float32": "FP32", "float64": "FP64", "int64": "INT64", "object": "BYTES"}
    made = triton.InferInput(name, array.shape, types[array.dtype.name])
    made.set_data_from_numpy(array, binary_data=is_binary)
    return made


def rows(count: int) -> np.ndarray:
    return RANDOM.standard_normal((count, 16)).astype(np.float32)


def test_health_and_metadata(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("layer")
    assert client.is_model_ready("layer", "1")
    assert not client.is_model_ready("layer", "2")
    assert not client.is_model_ready("other")
    server = client.get_server_metadata()
    assert server == {"name": "opweave", "version": ow.__version__, "extensions": ["binary_tensor_data", "statistics"]}
    assert client.get_model_metadata("layer") == client.get_model_metadata("layer", "1")
    assert client.get_model_metadata("layer") == {
        "name": "layer",
        "versions": ["1"],
        "platform": "onnx_onnxv1",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 16]}],
        "outputs": [
            {"name": "y", "datatype": "FP32", "shape": [-1, 4]},
            {"name": "best", "datatype": "INT64", "shape": [-1]},
        ],
    }


@pytest.mark.parametrize("algorithm", [None, "gzip", "deflate"])
@pytest.mark.parametrize("is_binary_out", [False, True])
@pytest.mark.parametrize("is_binary_in", [False, True])
def test_inference(client: Any, is_binary_in: bool, is_binary_out: bool, algorithm: str | None) -> None:
    x = rows(100)
    outputs = [triton.InferRequestedOutput(name, binary_data=is_binary_out) for name in ("best", "y")]
    result = client.infer(
        "layer",
        [tensor(x, is_binary=is_binary_in)],
        outputs=outputs,
        request_id="41",
        request_compression_algorithm=algorithm,
        response_compression_algorithm=algorithm,
    )
    y, best = layer(x)
    np.testing.assert_allclose(result.as_numpy("y"), y, rtol=1e-5, atol=1e-6)
    assert result.as_numpy("best").tolist() == best.tolist()
    response = result.get_response()
    assert (response["model_name"], response["model_version"], response["id"]) == ("layer", "1", "41")
    assert all(("data" in output) != is_binary_out for output in response["outputs"])


def test_infer_with_raw_body(address: str) -> None:
    x = rows(2)
    url = f"http://{address}/layer/v2/models/layer/infer"
    with urlopen(Request(url, x.tobytes(), {"Inference-Header-Content-Length": "0"})) as response:
        length = int(response.headers["Inference-Header-Content-Length"])
        body = response.read()
    assert [output["name"] for output in json.loads(body[:length])["outputs"]] == ["y", "best"]
    y, _best = layer(x)
    np.testing.assert_allclose(np.frombuffer(body, np.float32, 8, length).reshape(2, 4), y, rtol=1e-5)


def test_strings(address: str) -> None:
    with triton.InferenceServerClient(f"{address}/strings") as client:
        for is_binary in (False, True):
            texts = np.array(["", "naïve", "a\nb"], object)
            result = client.infer("strings", [tensor(texts, name="s", is_binary=is_binary)])
            assert [text.decode() for text in result.as_numpy("t")] == texts.tolist()


def test_operations_of_users_travel(address: str) -> None:
    with triton.InferenceServerClient(f"{address}/custom") as client:
        result = client.infer("custom", [tensor(np.float32([[1, 2], [3, 4]]))])
        assert result.as_numpy("y").tolist() == [[3, 6], [9, 12]]


def test_infer_model_without_batch_axis(address: str) -> None:
    x = np.float32([[1, 2, 3], [4, 5, 6]])
    with triton.InferenceServerClient(f"{address}/fixed", concurrency=8) as client:
        calls = [client.async_infer("fixed", [tensor(x * n)]) for n in range(8)]
        assert [call.get_result().as_numpy("y").tolist() for call in calls] == [(-x * n).tolist() for n in range(8)]
        with pytest.raises(InferenceServerException, match=r"input 'x' must have shape \[2, 3\], got \[1, 3\]"):
            client.infer("fixed", [tensor(x[:1])])


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (tensor(rows(1), name="z"), "there is no input 'z'; the model has ['x']"),
        (tensor(rows(1)[:, :15]), "input 'x' must have shape [N, 16], got [1, 15]"),
        (tensor(rows(1)[0]), "input 'x' must have shape [N, 16], got [16]"),
        (tensor(rows(1).astype(np.float64)), "input 'x' must be FP32, which is tensor(float), got 'FP64'"),
        (tensor(np.array([["a"] * 16], object)), "input 'x' must be FP32, which is tensor(float), got 'BYTES'"),
    ],
)
def test_wrong_requests_are_400(client: Any, given: Any, text: str) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.infer("layer", [given])
    assert (caught.value.status(), caught.value.message()) == ("400", text)


def test_unknown_names_and_urls(client: Any, address: str) -> None:
    good = [tensor(rows(1))]
    with pytest.raises(InferenceServerException, match="there is no output 'z'") as caught:
        client.infer("layer", good, outputs=[triton.InferRequestedOutput("z")])
    assert caught.value.status() == "400"
    with pytest.raises(
        InferenceServerException, match="there is no model 'other' here; the model is at /layer/v2/models/layer"
    ) as caught:
        client.infer("other", good)
    assert caught.value.status() == "404"
    with pytest.raises(InferenceServerException, match="'layer' has no version '3', only '1'") as caught:
        client.infer("layer", good, model_version="3")
    assert caught.value.status() == "404"
    for path, body, status in (("v2/nothing", None, 404), ("v2/models/layer/infer", None, 405)):
        with pytest.raises(HTTPError) as failed:
            urlopen(Request(f"http://{address}/layer/{path}", body))
        assert failed.value.code == status
        assert list(json.loads(failed.value.read())) == ["error"]


def test_infer_serves_64_clients_at_once(client: Any, address: str) -> None:
    before = client.get_inference_statistics("layer")["model_stats"][0]
    start = Barrier(64)

    def call(number: int) -> int:
        x = np.random.default_rng(number).standard_normal((1 + number % 3, 16)).astype(np.float32)
        with triton.InferenceServerClient(f"{address}/layer", network_timeout=60) as own:
            start.wait()
            for _ in range(3):
                result = own.infer("layer", [tensor(x, is_binary=number % 2 == 0)])
                np.testing.assert_allclose(result.as_numpy("y"), layer(x)[0], rtol=1e-4, atol=1e-6)
        return 3 * len(x)

    with ThreadPoolExecutor(64) as pool:
        inferences = sum(pool.map(call, range(64)))
    after = client.get_inference_statistics("layer", "1")["model_stats"][0]
    # The two replicas together: requests were joined, and each was counted.
    assert after["inference_count"] - before["inference_count"] == inferences
    assert after["inference_stats"]["success"]["count"] - before["inference_stats"]["success"]["count"] == 64 * 3
    assert after["execution_count"] - before["execution_count"] < 64 * 3
    assert max(each["batch_size"] for each in after["batch_stats"]) > 3
    assert sum(each["compute_infer"]["count"] for each in after["batch_stats"]) == after["execution_count"]


def test_infer_wrong_request_does_not_affect_others(address: str) -> None:
    with triton.InferenceServerClient(f"{address}/lookup", concurrency=8) as client:
        for _ in range(3):
            ids = [np.array([[n, n + 1]]) for n in range(8)]
            ids[3] = np.array([[3, 99]])
            ids[5] = np.array([[3, 4, 5]])
            calls = [client.async_infer("lookup", [tensor(each, name="ids")]) for each in ids]
            for number, call in enumerate(calls):
                if number in (3, 5):
                    with pytest.raises(InferenceServerException, match=r"got 99|got \[1, 3\]") as caught:
                        call.get_result()
                    assert caught.value.status() == "400"
                else:
                    assert np.array_equal(call.get_result().as_numpy("y"), WEIGHTS[ids[number]])
        (found,) = client.get_inference_statistics("lookup")["model_stats"]
        assert (found["inference_stats"]["success"]["count"], found["inference_stats"]["fail"]["count"]) == (18, 6)


@pytest.mark.parametrize("is_announced", [True, False])
def test_bodies_have_a_limit(address: str, is_announced: bool) -> None:
    """A body that is not announced is refused as soon as it is too large."""
    host, port = address.split(":")
    size = "Content-Length: 268435457" if is_announced else "Transfer-Encoding: chunked"
    part = b"%x\r\n%s\r\n" % (1 << 24, bytes(1 << 24))
    with socket.create_connection((host, int(port)), 60) as connection:
        connection.sendall(f"POST /fixed/v2/models/fixed/infer HTTP/1.1\r\nHost: x\r\n{size}\r\n\r\n".encode())
        if not is_announced:
            for _ in range(17):
                connection.sendall(part)
        response = HTTPResponse(connection)
        response.begin()
        assert (response.status, json.load(response)) == (
            413,
            {"error": "the body is larger than the limit of 256.0 MiB"},
        )
    x = np.ones((2, 3), np.float32)
    with triton.InferenceServerClient(f"{address}/fixed") as client:
        assert client.infer("fixed", [tensor(x)]).as_numpy("y").tolist() == (-x).tolist()


def post(address: str, body: bytes, **headers: str) -> tuple[int, dict[str, Any]]:
    """The status and the JSON of the response to a request for the model "fixed"."""
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        with urlopen(Request(f"http://{address}/fixed/v2/models/fixed/infer", body, fields), timeout=60) as response:
            return response.status, json.load(response)
    except HTTPError as error:
        return error.code, json.load(error)


@pytest.mark.parametrize("unit", [b"[],", b"{},", b"1.5,"])
def test_infer_serves_others_while_it_decompresses(address: str, unit: bytes) -> None:
    head = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[2,3],"data":['
    bomb = gzip.compress(head + unit * ((64 << 20) // len(unit)) + unit[:-1] + b"]}]}", 1)
    plain = head + b"1,2,3,4,5,6]}]}"
    with ThreadPoolExecutor(4) as pool:
        refused = [pool.submit(post, address, bomb, Content_Encoding="gzip") for _ in range(3)]
        served = 0
        while not all(each.done() for each in refused):
            assert post(address, plain)[0] == 200
            served += 1
    assert served > 3
    for each in refused:
        status, found = each.result()
        assert status == 400
        assert "more than the limit of 256.0 MiB" in found["error"]


@pytest.mark.parametrize(
    ("body", "headers", "text"),
    [
        (b"[" * 100_000, {}, "nested at most 64 deep"),
        (gzip.compress(b"{}")[:-4], {"Content_Encoding": "gzip"}, "does not end"),
        (b"{}", {"Content_Encoding": "gzip"}, "the body is not gzip"),
        (b"{}", {"Content_Encoding": "gzip, gzip"}, "must be gzip or deflate"),
        (gzip.compress(bytes(300 << 20)), {"Content_Encoding": "gzip"}, "larger than the limit of 256.0 MiB"),
    ],
)
def test_infer_refuses_what_it_cannot_read(address: str, body: bytes, headers: dict[str, str], text: str) -> None:
    status, found = post(address, body, **headers)
    assert status == 400
    assert text in found["error"]


def test_infer_reads_a_body_in_parts(address: str) -> None:
    text = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[2,3],"data":[1,2,3,4,5,6]}]}'
    status, found = post(address, gzip.compress(text[:30]) + gzip.compress(text[30:]), Content_Encoding="GZIP")
    assert (status, found["outputs"][0]["data"]) == (200, [-1, -2, -3, -4, -5, -6])


@pytest.mark.parametrize("name", ["\u202egnp.exe", "<b>", "\x1b[31m", "a" * 3000, "a\r\nX-Injected: 1"])
def test_errors_escape_and_bound_what_clients_send(address: str, name: str) -> None:
    for url in (
        f"fixed/v2/models/{quote(name)}",
        f"fixed/v2/models/fixed/versions/{quote(name)}",
        f"fixed/v2/{quote(name)}",
    ):
        with pytest.raises(HTTPError) as failed:
            urlopen(f"http://{address}/{url}")
        body = failed.value.read()
        assert failed.value.code == 404
        assert failed.value.headers["Content-Type"] == "application/json"
        assert failed.value.headers["X-Injected"] is None
        assert body.isascii()
        text = json.loads(body)["error"]
        assert text.isprintable()
        assert len(text) < 500
    for inputs in (
        [{"name": name}],
        [{"name": "x", "parameters": {f"sequence_{name}": 1}, "shape": [1], "datatype": "FP32"}],
    ):
        status, found = post(address, json.dumps({"inputs": inputs}).encode())
        assert status == 400
        assert found["error"].isprintable()
        assert len(found["error"]) < 500


@pytest.mark.parametrize(
    ("options", "reserved"),
    [
        ({}, 0),
        ({"gpus": 2}, 0),
        ({"device": "gpu"}, 1),
        ({"device": "gpu:1", "gpus": 0.25}, 0.25),
        ({"device": "cuda"}, 1),
    ],
)
def test_deploy_reserves_gpus_for_replicas_on_gpus(options: dict[str, Any], reserved: float) -> None:
    made: Any = opweave.scale.deployment(served_model("layer"), **options)
    assert made._bound_deployment.ray_actor_options["num_gpus"] == reserved


@pytest.mark.parametrize("limit", ["max_body", "max_json"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "1M"])
def test_limits_of_bodies_are_checked(limit: str, value: Any) -> None:
    with pytest.raises(ow.ValidationError, match=f"{limit} must be a positive integer, got "):
        opweave.scale.deployment(served_model("layer"), **{limit: value})


@pytest.mark.parametrize("gpus", [0, -1, 1.5, True, "1", float("nan"), float("inf")])
def test_shares_of_gpus_are_checked(gpus: Any) -> None:
    with pytest.raises(ow.ValidationError, match="gpus must be a part of 1, or a number of whole GPUs, got "):
        opweave.scale.deployment(served_model("layer"), device="gpu", gpus=gpus)


def test_memory_stays_flat(address: str) -> None:
    """A short form of `python -m benchmarks serving --soak 100000`."""
    found = marked(os.environ[NAME])
    process = next(number for number, command in found.items() if "ServeReplica:fixed" in command)
    with triton.InferenceServerClient(f"{address}/fixed", concurrency=8) as client:
        x = [tensor(np.ones((2, 3), np.float32))]
        used = []
        for _ in range(3):
            for _ in range(25):
                for call in [client.async_infer("fixed", x) for _ in range(8)]:
                    call.get_result()
            used.append(private_bytes(process))
    assert used[2] - used[1] < 2 << 20, used
