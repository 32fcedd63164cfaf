"""Rules of users: `@backend.lower(op)` works on each back end, for operations of users and built-in ones, or raises."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

import numpy as np
import pytest
from support.webgpu_device import gpu_context

import opweave as ow
from opweave import composites, expr
from opweave.backends import discover, find
from opweave.backends.onnxruntime.emit import Emitter, Value
from opweave.backends.rule_table import RuleTable
from opweave.compile.widen import may_widen
from opweave.context.graph import program_of
from opweave.ops import elementwise

X = np.float32([[1, -2, 3]])


def on_arrays(x: np.ndarray, factor: float) -> np.ndarray:
    return x * factor + 1


def emitted(ctx: Emitter, x: Value, factor: float) -> Value:
    return ctx.emit("Add", ctx.emit("Mul", x, ctx.scalar(factor, x)), ctx.scalar(1, x))


def of_expressions(x: expr.Traced, factor: float) -> expr.Traced:
    return x * factor + 1


RULES: dict[str, Callable[..., Any]] = {"reference": on_arrays, "cpu": emitted, "webgpu": of_expressions}


@pytest.fixture(params=RULES)
def context(request: pytest.FixtureRequest) -> ow.MLContext:
    return gpu_context() if request.param == "webgpu" else ow.ml.create_context(device=request.param)


class Nested(RuleTable):
    """Rules whose modules ask for one another while they are imported, as decorators do."""

    name = "nested"

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures
        self.early: set[str] = set()

    def load_for(self, module: str) -> None:
        if module == "first":
            self._loading.run("second")
            self.early |= self._loading.modules
            if self.failures:
                self.failures -= 1
                raise KeyboardInterrupt


def test_rules_are_loaded_when_the_outermost_import_ends() -> None:
    table = Nested(1)
    with pytest.raises(KeyboardInterrupt):
        table._loading.run("first")
    assert table._loading.modules == set()
    table._loading.run("first")
    assert (table.early, table._loading.modules) == (set(), {"first", "second"})


def test_back_end_of_others_with_a_sequence_of_types_and_without_families(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = copy(find("reference"))
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
    node = builder.input("x", "float32", [2]).relu().node
    assert node is not None
    monkeypatch.setattr(backend, "computes", ("float32",))
    monkeypatch.setattr(backend, "stores", ("float16",))
    assert backend.supports(node)
    assert not may_widen(node, backend)
    monkeypatch.setattr(backend, "families", "opweave.backends.reference.rules")
    with pytest.raises(ow.ValidationError, match=r"^reference: opweave\.backends\.reference\.rules must have"):
        backend.load_for("opweave.ops.matrix")


def scaled() -> Any:
    """A new operation, `x * factor + 1`, whose kernels compute something else."""

    @ow.op
    def scaled(self, x: ow.MLOperand, *, factor: float = 2.0):  # type: ignore[no-untyped-def]
        return x.desc

    @scaled.kernel("cpu")
    def _(x, factor, out):  # type: ignore[no-untyped-def]
        out[...] = -1

    scaled.kernel("webgpu", "fn main(i: u32) { store_out(i, load_x(i) - load_x(i) - 1.0); }")
    return scaled


def computed(context: ow.MLContext, op: Any, **options: Any) -> tuple[list[Any], ow.MLGraph]:
    builder = ow.MLGraphBuilder(context)
    graph = builder.build({"y": op(builder, builder.input("x", "float32", [1, 3]), **options)})
    return context.compute(graph, {"x": X})["y"].tolist(), graph


def test_lower_rule_precedes_kernels(context: ow.MLContext) -> None:
    op = scaled()
    result, graph = computed(context, op)
    assert result == [[-1, -1, -1]]
    assert [placement.how for placement in graph.placements()] == ["kernel"]
    context.backend.lower(op)(RULES["webgpu" if context.backend.name == "webgpu" else context.device.name])
    for factor in (2.0, 3.0):
        result, graph = computed(context, op, factor=factor)
        assert result == (X * factor + 1).tolist()
        (placement,) = graph.placements()
        assert placement.how in ("native", "composed")
        assert placement.device == context.device.name


def test_lower_when(context: ow.MLContext) -> None:
    """Others run as they would without it."""
    op, name = scaled(), context.backend.name
    context.backend.lower(op, when=lambda x, factor: factor == 3)(RULES[{"onnxruntime": "cpu"}.get(name, name)])
    assert computed(context, op, factor=3.0)[0] == (X * 3 + 1).tolist()
    assert computed(context, op, factor=4.0)[0] == [[-1, -1, -1]]


def test_lower_rejects_unreachable_rule(context: ow.MLContext) -> None:
    backend = context.backend
    with pytest.raises(ow.ValidationError, match=f"{backend.name}: transpose has a rule already"):
        backend.lower(ow.ops.transpose)(of_expressions)
    op = scaled()
    backend.lower(op)(of_expressions)
    with pytest.raises(ow.ValidationError, match=f"{backend.name}: scaled has a rule already"):
        backend.lower(op)(of_expressions)


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_lower_by_name_is_for_the_composite_alone(name: str) -> None:
    """Not for an operation of a user that has the same name."""
    backend = discover()[name]

    @ow.expression
    def local_response_normalization(x: Any) -> Any:
        return x + 1.0

    composite = composites.local_response_normalization
    assert backend.rules_of(local_response_normalization) == ()
    assert backend.rules_of(composite) is backend.rules[composite]
    with pytest.raises(ow.ValidationError, match=f"{name}: conv_transpose has a rule already"):
        backend.lower("conv_transpose")(of_expressions)


def test_lower_webgpu_rule_is_fused() -> None:
    """It is an expression, which operations before and after it are fused with."""
    op = scaled()
    context = gpu_context()
    context.backend.lower(op)(of_expressions)
    builder = ow.MLGraphBuilder(context)
    graph = builder.build(
        {"y": builder.relu(op(builder, elementwise.neg(builder, builder.input("x", "float32", [1, 3]))))}
    )
    assert context.compute(graph, {"x": X})["y"].tolist() == np.maximum(-2 * X + 1, 0).tolist()
    (step,) = program_of(graph).steps
    assert len(step.part.runner.steps) == 1  # type: ignore[union-attr]
