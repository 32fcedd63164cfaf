"""Run a model on all GPUs of a machine, with one actor of Ray for each: rows per second with one actor, and with all.

python examples/gpus_on_ray.py                 # on the GPUs that Ray sees, through WebGPU
python examples/gpus_on_ray.py --device cuda
python examples/gpus_on_ray.py --device cpu --actors 2

It needs Ray and the back end of the device: pip install 'opweave[scale,webgpu]', or 'opweave[scale,cuda]'.
"""

from __future__ import annotations

import argparse
import sys
from time import perf_counter
from typing import Any

import numpy as np
import onnx.helper
import onnx.numpy_helper

from opweave.scale import Predictor

try:
    import ray
except ImportError:
    sys.exit("this example needs Ray: pip install 'opweave[scale]'")

WIDTH = 1024


class Worker(Predictor):
    """A predictor that says where it runs."""

    def place(self) -> str:
        """The device of this actor, and the GPUs that Ray has assigned to it."""
        assigned = ", ".join(map(str, ray.get_runtime_context().get_accelerator_ids()["GPU"])) or "none"
        return f"{self._session.context.device.name} (GPUs from Ray: {assigned})"


def model(layers: int) -> bytes:
    """A perceptron with `layers` layers of `WIDTH` values."""
    weights = np.random.default_rng(0).standard_normal((layers, WIDTH, WIDTH), np.float32) / WIDTH**0.5
    nodes, value = [], "x"
    for layer in range(layers):
        nodes.append(onnx.helper.make_node("MatMul", [value, f"w{layer}"], [f"m{layer}"]))
        nodes.append(onnx.helper.make_node("Relu", [f"m{layer}"], [f"v{layer}"]))
        value = f"v{layer}"
    ends = [onnx.helper.make_tensor_value_info(name, 1, ["rows", WIDTH]) for name in ("x", value)]
    constants = [onnx.numpy_helper.from_array(array, f"w{layer}") for layer, array in enumerate(weights)]
    graph = onnx.helper.make_graph(nodes, "perceptron", ends[:1], ends[1:], constants)
    content: bytes = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]).SerializeToString()
    return content


def rows_per_second(actors: list[Any], batch: Any, rows: int, batches: int) -> float:
    """Run `batches` batches on each actor, two at a time, and return the rows per second of all."""
    ray.get([actor.__call__.remote(batch) for actor in actors])  # compiles
    start, pending, left = perf_counter(), [], [batches] * len(actors)
    owner = {}
    for number, actor in enumerate([*actors, *actors]):
        number %= len(actors)
        if left[number]:
            left[number] -= 1
            owner[reference := actor.__call__.remote(batch)] = number
            pending.append(reference)
    while pending:
        (finished,), pending = ray.wait(pending)
        number = owner.pop(finished)
        if left[number]:
            left[number] -= 1
            owner[reference := actors[number].__call__.remote(batch)] = number
            pending.append(reference)
    return len(actors) * batches * rows / (perf_counter() - start)


def main() -> None:
    """Measure one actor, and one for each GPU; compare their results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="gpu", help="gpu, cuda, or cpu")
    parser.add_argument("--actors", type=int, help="default: the number of GPUs that Ray sees")
    parser.add_argument("--rows", type=int, default=4096, help="rows of a batch")
    parser.add_argument("--batches", type=int, default=20, help="batches of each actor")
    parser.add_argument("--layers", type=int, default=16)
    options = parser.parse_args()

    ray.init("local", include_dashboard=False, log_to_driver=False)
    try:
        seen = int(ray.cluster_resources().get("GPU", 0))
        on_gpu = options.device in ("gpu", "cuda")
        count = options.actors or seen
        if on_gpu and not 0 < count <= seen:
            need = f"; {count} actors need one each" if count else ""
            sys.exit(f"Ray sees {seen or 'no'} GPUs{need}: --device cpu --actors 2 runs without")
        stored = ray.put(np.frombuffer(model(options.layers), np.uint8))
        x = np.random.default_rng(1).random((options.rows, WIDTH), np.float32)
        batch = ray.put({"x": x})
        worker = ray.remote(Worker).options(num_cpus=1, num_gpus=1 if on_gpu else 0)
        workers = [worker.remote(stored, device=options.device) for _ in range(max(count, 1))]
        for number, place in enumerate(ray.get([actor.place.remote() for actor in workers])):
            print(f"actor {number}: {place}")
        results = [ray.get(actor.__call__.remote({"x": x[:8]})) for actor in workers]
        (name,) = results[0]
        if not all(np.allclose(result[name], results[0][name], rtol=1e-3, atol=1e-4) for result in results):
            sys.exit("the actors have different results")
        one = rows_per_second(workers[:1], batch, options.rows, options.batches)
        print(f"1 actor: {one:,.0f} rows/s")
        if len(workers) > 1:
            whole = rows_per_second(workers, batch, options.rows, options.batches)
            print(f"{len(workers)} actors: {whole:,.0f} rows/s, {whole / one:.2f}x")
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
