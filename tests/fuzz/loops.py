"""Models of Scan, Loop and If with random bodies: nested, several states, reversed, no iteration, early ends, named sizes.

ONNX Runtime runs the model as it is; sessions that may not fall back run it on other devices, and must agree.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper
from support.onnx import run_again

import opweave as ow
from fuzz.frame import MEMORY, Campaign, Finding
from fuzz.sizes import obstacle

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
LENGTHS = (0, 1, 2, 3, 4, 5, 5, 6, 7, 8, 11, 40)
MAX_DEPTH = 3


@dataclass
class Scope:
    """Names of values with their shapes: floats that may be read, and nodes and constants that are written."""

    floats: dict[str, tuple[int, ...]]
    nodes: list[NodeProto] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)

    def inner(self) -> Scope:
        return Scope(dict(self.floats))


class Case:
    """A random model and its inputs."""

    def __init__(self, rng: random.Random) -> None:
        self.r, self.numbers = rng, np.random.default_rng(rng.getrandbits(64))
        self._count = 0
        self.feeds: dict[str, np.ndarray] = {}
        self.shape = tuple(rng.choice([1, 2, 3, 4, 5]) for _ in range(rng.choice([0, 1, 1, 2, 2, 3])))
        self.outer = Scope({})
        self.words: list[str] = []
        for _ in range(rng.randint(1, 3)):
            self.outer.floats[self.input(self.array(self.shape))] = self.shape
        outputs: list[str] = []
        for _ in range(rng.choice([1, 1, 2])):
            outputs += self.control(self.outer, 0)
        self.outputs = outputs

    # Values ----------------------------------------------------------------------------------------------------------

    def name(self, kind: str) -> str:
        self._count += 1
        return f"{kind}{self._count}"

    def array(self, shape: Sequence[int]) -> np.ndarray:
        return self.numbers.uniform(-1, 1, shape).astype(np.float32)

    def input(self, array: np.ndarray) -> str:
        name = self.name("in")
        self.feeds[name] = array
        return name

    def constant(self, scope: Scope, array: Any) -> str:
        name = self.name("c")
        scope.constants[name] = np.asarray(array)
        return name

    def add(
        self, scope: Scope, op_type: str, inputs: Sequence[str], shape: tuple[int, ...] | None, **attributes: Any
    ) -> str:
        name = self.name("v")
        scope.nodes.append(helper.make_node(op_type, inputs, [name], **attributes))
        if shape is not None:
            scope.floats[name] = shape
        return name

    def pick(self, scope: Scope, shape: tuple[int, ...]) -> str:
        """A value of a shape: one that there is, or a new one."""
        names = [name for name, other in scope.floats.items() if other == shape]
        if names and self.r.random() < 0.9:
            return self.r.choice(names[-6:])
        return self.constant(scope, self.array(shape))

    def floats(self, scope: Scope, shape: tuple[int, ...], depth: int) -> str:
        """A new value of a shape, of one or a few nodes; finite, and of magnitude 1 at most."""
        for _ in range(self.r.randint(1, 3)):
            self.node(scope, shape)
        if depth < MAX_DEPTH and self.r.random() < 0.12:
            self.control(scope, depth, shape)
        return self.add(scope, self.r.choice(["Tanh", "Sin", "Softsign"]), [self.pick(scope, shape)], shape)

    def node(self, scope: Scope, shape: tuple[int, ...]) -> None:
        x, y = self.pick(scope, shape), self.pick(scope, shape)
        kind = self.r.choice(["two", "two", "one", "reduce", "matmul", "where", "rows", "integer"])
        if kind == "two":
            self.add(scope, self.r.choice(["Add", "Sub", "Mul", "Max", "Min"]), [x, y], shape)
        elif kind == "one":
            self.add(scope, self.r.choice(["Neg", "Abs", "Sigmoid", "Relu", "Cos", "Identity"]), [x], shape)
        elif kind == "where":
            flag = self.add(scope, self.r.choice(["Greater", "Less"]), [x, y], None)
            self.add(scope, "Where", [flag, x, y], shape)
        elif kind == "reduce" and shape:
            axes = self.constant(scope, np.array([self.r.randrange(len(shape))], np.int64))
            mean = self.add(scope, self.r.choice(["ReduceMean", "ReduceMax"]), [x, axes], None, keepdims=1)
            self.add(scope, "Sub", [y, mean], shape)
        elif kind == "matmul" and len(shape) >= 2:
            weight = self.constant(scope, self.array((shape[-1], shape[-1])) / shape[-1])
            self.add(scope, "MatMul", [x, weight], shape)
        elif kind == "rows" and shape:
            self.add(scope, "Softmax", [x], shape, axis=self.r.randrange(len(shape)))
        elif kind == "integer":
            whole = self.add(
                scope,
                "Cast",
                [self.add(scope, "Mul", [x, self.constant(scope, np.float32(8))], None)],
                None,
                to=TensorProto.INT32,
            )
            self.add(
                scope,
                "Mul",
                [self.add(scope, "Cast", [whole], None, to=FLOAT), self.constant(scope, np.float32(0.125))],
                shape,
            )

    # Control flow ----------------------------------------------------------------------------------------------------

    def control(self, scope: Scope, depth: int, shape: tuple[int, ...] | None = None) -> list[str]:
        """Add a node with bodies; the values that it gives may be read later. Returns the names of all of them."""
        kind = self.r.choice(["scan", "scan", "loop", "loop", "if"])
        self.words.append(f"{'  ' * depth}{kind}")
        shape = self.shape if shape is None else shape
        return {"scan": self.scan, "loop": self.loop, "if": self.choice}[kind](scope, depth + 1, shape)

    def graph(
        self, scope: Scope, inputs: Sequence[Any], outputs: Sequence[tuple[str, int, tuple[int, ...]]]
    ) -> GraphProto:
        infos = [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in outputs]
        initializers = [numpy_helper.from_array(array, name) for name, array in scope.constants.items()]
        return helper.make_graph(scope.nodes, self.name("body"), inputs, infos, initializers)

    def choice(self, scope: Scope, depth: int, shape: tuple[int, ...]) -> list[str]:
        number = self.r.randint(1, 2)
        graphs = []
        for _ in range(2):
            inner = scope.inner()
            results = [self.floats(inner, shape, depth) for _ in range(number)]
            graphs.append(self.graph(inner, [], [(name, FLOAT, shape) for name in results]))
        flag = self.flag(scope, shape)
        names = [self.name("y") for _ in range(number)]
        scope.nodes.append(helper.make_node("If", [flag], names, then_branch=graphs[0], else_branch=graphs[1]))
        scope.floats |= dict.fromkeys(names, shape)
        return names

    def flag(self, scope: Scope, shape: tuple[int, ...], limit: float | None = None) -> str:
        """A condition that depends on data."""
        total = self.add(scope, "ReduceSum", [self.pick(scope, shape)], None, keepdims=0)
        limit = self.r.uniform(-1, 1) if limit is None else limit
        return self.add(
            scope, self.r.choice(["Less", "Greater"]), [total, self.constant(scope, np.float32(limit))], None
        )

    def states(
        self, scope: Scope, inner: Scope, shape: tuple[int, ...], least: int
    ) -> tuple[list[str], list[Any], list[str]]:
        """The first values of states, their infos in the body, and their names there."""
        first = [self.pick(scope, shape) for _ in range(self.r.randint(least, 3))]
        names = [self.name("s") for _ in first]
        inner.floats |= dict.fromkeys(names, shape)
        return first, [helper.make_tensor_value_info(name, FLOAT, shape) for name in names], names

    def next_states(self, inner: Scope, names: Sequence[str], shape: tuple[int, ...], depth: int) -> list[str]:
        results = []
        for name in names:
            if self.r.random() < 0.1:  # it never changes, or two states are swapped
                results.append(self.add(inner, "Identity", [self.r.choice(names)], shape))
            else:
                self.add(inner, "Add", [name, self.pick(inner, shape)], shape)
                results.append(self.floats(inner, shape, depth))
        return results

    def scan(self, scope: Scope, depth: int, shape: tuple[int, ...]) -> list[str]:
        inner = scope.inner()
        first, infos, states = self.states(scope, inner, shape, 0)
        length = self.r.choice(LENGTHS if depth < 2 else LENGTHS[:8])
        scanned, axes, directions = [], [], []
        for _ in range(self.r.randint(1, 2)):
            axis = self.r.randint(0, len(shape)) if length else 0  # ONNX Runtime divides by 0 for others
            whole = (*shape[:axis], length, *shape[axis:])
            is_input = depth == 1 and self.r.random() < 0.8
            scanned.append(self.input(self.array(whole)) if is_input else self.constant(scope, self.array(whole)))
            axes.append(axis - (self.r.random() < 0.3) * (len(shape) + 1))
            directions.append(int(self.r.random() < 0.4))
            name = self.name("x")
            infos.append(helper.make_tensor_value_info(name, FLOAT, shape))
            inner.floats[name] = shape
        following = self.next_states(inner, states, shape, depth)
        elements = [self.floats(inner, shape, depth) for _ in range(self.r.randint(0 if first else 1, 2))]
        body = self.graph(inner, infos, [(name, FLOAT, shape) for name in (*following, *elements)])
        options: dict[str, Any] = {"scan_input_axes": axes, "scan_input_directions": directions}
        out_axes = [self.r.randint(0, len(shape)) if length else 0 for _ in elements]
        if elements:
            options |= {
                "scan_output_axes": out_axes,
                "scan_output_directions": [self.r.randint(0, 1) for _ in elements],
            }
        finals, stacked = [self.name("y") for _ in first], [self.name("z") for _ in elements]
        inputs, outputs = [*first, *scanned], [*finals, *stacked]
        scope.nodes.append(
            helper.make_node("Scan", inputs, outputs, body=body, num_scan_inputs=len(scanned), **options)
        )
        scope.floats |= dict.fromkeys(finals, shape)
        for name, axis in zip(stacked, out_axes, strict=True):
            scope.floats[name] = (*shape[:axis], length, *shape[axis:])
        return outputs if depth == 1 else finals

    def loop(self, scope: Scope, depth: int, shape: tuple[int, ...]) -> list[str]:
        inner = scope.inner()
        first, infos, states = self.states(scope, inner, shape, 1)
        length = self.r.choice(LENGTHS if depth < 2 else LENGTHS[:8])
        kind = self.r.choice(["known", "known", "input", "computed", "early", "early", "endless"])
        if depth > 1 and kind in ("input", "endless"):
            kind = "early"
        position, go = self.name("i"), self.name("go")
        turn = self.add(inner, "Cast", [position], None, to=FLOAT)
        part = self.add(inner, "Mul", [turn, self.constant(inner, np.float32(0.03125))], None)
        inner.floats[self.add(inner, "Add", [part, self.constant(inner, self.array(shape))], None)] = shape
        following = self.next_states(inner, states, shape, depth)
        has_elements = kind in ("known", "input") and self.r.random() < 0.6
        elements = [self.floats(inner, shape, depth)] if has_elements else []
        flag = self.add(inner, "Identity", [go], None)
        if kind == "early":
            flag = self.flag(inner, shape)
        elif kind == "endless":  # the number of the iteration ends it at the latest
            early = self.flag(inner, shape)
            late = self.add(inner, "Less", [turn, self.constant(inner, np.float32(length + 0.5))], None)
            flag = self.add(inner, "And", [early, late], None)
        infos = [
            helper.make_tensor_value_info(position, INT64, ()), helper.make_tensor_value_info(go, BOOL, ()), *infos
        ]  # fmt: skip
        results = [(flag, BOOL, ()), *((name, FLOAT, shape) for name in (*following, *elements))]
        body = self.graph(inner, infos, results)
        trips = {
            "known": lambda: self.constant(scope, np.int64(length)),
            "input": lambda: self.input(np.array(length, np.int64)),
            "computed": lambda: self.computed(scope, shape, length),
            "early": lambda: self.constant(scope, np.int64(length)),
            "endless": lambda: self.r.choice(["", self.constant(scope, np.int64(2**62))]),
        }[kind]()
        condition = self.constant(scope, np.array(True)) if kind == "endless" else self.r.choice(
            ["", self.constant(scope, np.array(True)), self.flag(scope, shape) if not elements else ""]
        )  # fmt: skip
        finals, stacked = [self.name("y") for _ in first], [self.name("z") for _ in elements]
        outputs = [*finals, *stacked]
        scope.nodes.append(helper.make_node("Loop", [trips, condition, *first], outputs, body=body))
        scope.floats |= dict.fromkeys(finals, shape)
        return outputs if depth == 1 else finals

    def computed(self, scope: Scope, shape: tuple[int, ...], most: int) -> str:
        """A number of iterations that depends on data."""
        total = self.add(scope, "ReduceSum", [self.pick(scope, shape)], None, keepdims=0)
        scaled = self.add(scope, "Mul", [total, self.constant(scope, np.float32(3.3))], None)
        low, high = (self.constant(scope, np.float32(limit)) for limit in (-1, most))
        return self.add(scope, "Cast", [self.add(scope, "Clip", [scaled, low, high], None)], None, to=INT64)

    # The model -------------------------------------------------------------------------------------------------------

    def model(self) -> onnx.ModelProto:
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in self.feeds.items()
        ]
        outputs = [helper.make_empty_tensor_value_info(name) for name in self.outputs]
        initializers = [numpy_helper.from_array(array, name) for name, array in self.outer.constants.items()]
        graph = helper.make_graph(self.outer.nodes, "loops", inputs, outputs, initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        return onnx.shape_inference.infer_shapes(model)


@cache
def context(device: str) -> ow.MLContext:
    return ow.ml.create_context(device=device)


def compare(rng: random.Random, number: int, devices: Sequence[str] = ("cpu", "reference")) -> str:
    """Run a model on devices, and compare it with ONNX Runtime."""
    case = Case(rng)
    model = case.model()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        engine = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        expected = engine.run(case.outputs, case.feeds)
    except Exception as error:  # the engine has errors of many kinds
        return (
            "refused by the engine"
            if "Fail" in type(error).__name__ or "Invalid" in type(error).__name__
            else "engine error"
        )
    for device in devices:
        try:
            session = ow.InferenceSession(model, context(device), specialise="always", fallback="error")
            results = run_again(session, case.feeds, case.outputs)
        except ow.MLError as error:
            raise Finding(f"{device}: {error}") from error
        for name, ours, wanted in zip(case.outputs, results, expected, strict=True):
            if ours.shape != wanted.shape or ours.dtype != wanted.dtype:
                raise Finding(f"{device}: {name} is {ours.dtype}{ours.shape}, wanted {wanted.dtype}{wanted.shape}")
            if not np.allclose(ours, wanted, rtol=1e-3, atol=1e-3):
                worst = np.abs(ours - wanted).max()
                raise Finding(f"{device}: {name} is off by {worst:.3g}")
    return "agreed"


def describe(rng: random.Random, number: int) -> str:
    case = Case(rng)
    return "\n".join([*case.words, onnx.printer.to_text(case.model())])


_CAMPAIGN = Campaign(
    "loops",
    "models of Scan, Loop and If with random bodies: cpu and reference against ONNX Runtime",
    compare,
    count=2000,
    short=60,
    batch=100,
    memory=2 * MEMORY,
    describe=describe,
    outcomes=frozenset({"agreed", "refused by the engine"}),
)


def _gpu(device: str, where: str, count: int, short: int) -> Campaign:
    return replace(
        _CAMPAIGN,
        name=f"loops-{device}",
        about=f"models of Scan, Loop and If with random bodies: {where} against ONNX Runtime",
        case=partial(compare, devices=[device]),
        count=count,
        short=short,
        batch=50,
        memory=None,
        seconds=120,
        obstacle=partial(obstacle, device),
    )


_ALL = (_CAMPAIGN, _gpu("gpu-software", "WebGPU", 200, 8), _gpu("cuda", "CUDA", 1000, 8))
CAMPAIGNS = {campaign.name: campaign for campaign in _ALL}
