"""The pass that replaces what a back end cannot do by its decomposition."""

from __future__ import annotations

import numpy as np
import pytest

import opweave as ow
from opweave.compile.legalise import legalise
from opweave.core.graph import Builder, Desc, Graph, Node, Operand
from opweave.core.operation import Limits, op

CONTEXT = ow.ml.create_context(device="reference")


@op(x=Limits(("float32",)))
def _twice_plus(self: Builder, x: Operand, y: Operand, *, label: str = "") -> Desc:
    return x.desc


@_twice_plus.decompose
def _(b: ow.MLGraphBuilder, x: Operand, y: Operand) -> Operand:
    return x * 2 + y


def built(label: str = "") -> Graph:
    """A graph whose builder is closed, as it is when a back end compiles."""
    builder = ow.MLGraphBuilder(CONTEXT)
    x, y = builder.input("x", "float32", [2]), builder.constant(np.array([10, 20], "float32"))
    graph = Graph.reaching({"z": _twice_plus(builder, x, y, label=label)})
    builder.build({"unused": builder.exp(x)})
    return graph


def supports(node: Node) -> bool:
    return node.op is not _twice_plus


def test_decompositions_may_use_operators_on_inputs_and_constants() -> None:
    legal, _ = legalise(built(), supports)
    assert [node.op.name for node in legal.nodes] == ["mul", "add"]
    runner = CONTEXT.backend.compile(legal, device="reference", power_preference="default")
    result = np.empty(2, "float32")
    runner.bind([np.array([1, 2], "float32")], [result])()
    np.testing.assert_array_equal(result, [12, 24])


def test_legalise_returns_origin_of_nodes() -> None:
    graph = built("stem")
    legal, origin = legalise(graph, supports)
    assert [node.label for node in legal.nodes] == ["stem/mul", "stem/add"]
    assert {origin[node] for node in legal.nodes} == set(graph.nodes)


def test_constants_are_not_copied() -> None:
    graph = built()
    legal, _ = legalise(graph, supports)
    assert legal.constants[-1].value is graph.constants[0].value


def test_legalise_rejects_node_without_rule_or_decomposition() -> None:
    with pytest.raises(ow.NotSupportedError) as error:
        legalise(built("stem"), lambda node: False, "sparse")
    assert str(error.value) == (
        "mul 'stem/mul': the back end sparse has no rule for float32[2], float32[], and the operation has no decomposition"
    )


def test_build_rejects_operation_that_nothing_computes() -> None:
    @ow.op
    def mystery(self, x: ow.MLOperand):  # type: ignore[no-untyped-def]
        return x.desc

    builder = ow.MLGraphBuilder(CONTEXT)
    y = mystery(builder.input("x", "float32", [2]), label="why")
    with pytest.raises(ow.NotSupportedError) as error:
        builder.build({"y": y})
    assert str(error.value) == (
        "mystery 'why': the back end reference has no rule for float32[2], "
        "and the operation has no kernel, expression or decomposition"
    )
