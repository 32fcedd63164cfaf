"""Sixteen threads on contexts, graphs, tensors and sessions that they share, some of which are destroyed meanwhile."""

from __future__ import annotations

import io
import random
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np

import opweave as ow
from fuzz.frame import Campaign, Finding

THREADS = 16
STEPS = 12


@ow.expression
def scaled(x: Any, *, scale: float = 2.0) -> Any:
    return x * scale + 1


@cache
def model() -> bytes:
    """A model of ONNX that gives 3 x + 1, of any length."""
    from onnx import TensorProto, helper, numpy_helper

    constants = [numpy_helper.from_array(np.float32(v), n) for n, v in {"three": 3, "one": 1}.items()]
    nodes = [helper.make_node("Mul", ["x", "three"], ["t"]), helper.make_node("Add", ["t", "one"], ["y"])]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy")
    graph = helper.make_graph(nodes, "line", [x], [y], constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    file = io.BytesIO(made.SerializeToString())
    return file.getvalue()


def build(context: ow.MLContext, size: int, factor: float) -> ow.MLGraph:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [size])
    weights = builder.constant(np.full(size, factor, np.float32))
    return builder.build({"y": builder.add(builder.mul(x, weights), 1.0)})


class Shared:
    """What the threads of a case share."""

    def __init__(self, rng: random.Random) -> None:
        self.size = rng.choice([1, 3, 1000, 70_000])
        self.context = ow.ml.create_context(device=rng.choice(["cpu", "cpu", "reference"]), deferred=rng.random() < 0.3)
        self.graph = build(self.context, self.size, 2.0)
        self.session = ow.InferenceSession(model())
        self.tensor = self.context.create_tensor("float32", [self.size], readable=True, writable=True)
        self.result = self.context.create_tensor("float32", [self.size], readable=True)
        self.ends = rng.random() < 0.4
        self.ended = False


def expect(found: np.ndarray, wanted: np.ndarray, what: str) -> None:
    if not np.allclose(found, wanted, rtol=1e-6):
        raise Finding(f"{what}: {found.ravel()[:4]} instead of {wanted.ravel()[:4]}")


def steps(shared: Shared, rng: random.Random) -> None:
    """What one thread does."""
    for number in range(STEPS):
        value = np.full(shared.size, rng.randint(-9, 9), np.float32)
        context = shared.context
        match rng.choice(
            ["compute", "compute", "dispatch", "tensor", "build", "session", "session", "array", "own", "end"]
        ):
            case "compute":
                expect(context.compute(shared.graph, {"x": value})["y"], value * 2 + 1, "compute")
            case "dispatch":
                context.write_tensor(shared.tensor, value)
                context.dispatch(shared.graph, {"x": shared.tensor}, {"y": shared.result})
                found = context.read_tensor(shared.result)
                if not np.isin(found, np.arange(-9, 10) * 2 + 1).all() and found.any():
                    raise Finding(f"dispatch: {found[:4]}")
            case "tensor":
                own = context.tensor_from(value.copy())
                expect(context.read_tensor(own), value, "read")
                own.destroy()
            case "build":
                graph = build(context, shared.size, float(number))
                expect(context.compute(graph, {"x": value})["y"], value * number + 1, "own graph")
            case "session":
                length = rng.randint(1, 5)
                expect(shared.session.run(None, {"x": value[:length]})[0], value[:length] * 3 + 1, "session")
            case "array":
                scale = float(rng.randint(1, 3))
                expect(np.asarray(scaled(ow.array(value), scale=scale)), value * scale + 1, "expression")
            case "own":
                with ow.ml.create_context() as mine:
                    expect(
                        mine.compute(build(mine, 3, 4.0), {"x": np.ones(3, np.float32)})["y"], np.full(3, 5.0), "own"
                    )
            case "end":
                if shared.ends and number > STEPS // 2 and rng.random() < 0.2:
                    shared.ended = True
                    rng.choice([context.destroy, shared.graph.destroy, shared.tensor.destroy, shared.result.destroy])()


def case(rng: random.Random, number: int) -> str:
    shared = Shared(rng)
    seeds = [rng.getrandbits(64) for _ in range(THREADS)]

    def work(seed: int) -> None:
        try:
            steps(shared, random.Random(seed))
        except (ow.InvalidStateError, ow.ValidationError):
            if not shared.ended:  # nothing was destroyed
                raise

    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(work, seed) for seed in seeds]:
            done.result()
    shared.context.destroy()
    return "ended" if shared.ended else "result"


CAMPAIGNS = {
    "threads": Campaign(
        "threads",
        f"{THREADS} threads on shared contexts, graphs, tensors and sessions, which some of them destroy",
        case,
        count=2000,
        short=10,
        batch=50,
        memory=None,  # threads reserve more than they use
        seconds=60,
        outcomes=frozenset({"result", "ended"}),
    )
}
