"""Converters of PyTorch's operators, compared with PyTorch on sample calls: on a CPU, on the reference, with names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from aten_samples import Sample, all_samples
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils import _pytree

import opweave as ow
from opweave.pytorch.convert import ASSERTIONS, LabellingBuilder, ProgramConversion
from opweave.pytorch.program import shapes_needed
from opweave.pytorch.registry import COMPLEX_CONVERTERS, CONVERTERS
from opweave.pytorch.sizes import SizeNames
from opweave.pytorch.tensors import PARTS, array_of, data_type_of, shape_of, tensor_of

SAMPLES = all_samples()

MADE_WITHOUT_OPERANDS = {
    "aten.arange.default",
    "aten.arange.start",
    "aten.arange.start_step",
    "aten.empty.memory_format",
    "aten.full.default",
    "aten.ones.default",
    "aten.scalar_tensor.default",
    "aten.zeros.default",
    "aten.empty_like.default",
    "aten.new_empty.default",
    "aten.empty_strided.default",
    "aten.empty_permuted.default",
    "aten.new_empty_strided.default",
}
"""Operators whose calls have no operands, or results that are not defined: `test_from_torch.py` has them, with sizes."""


def operator_of(name: str) -> Any:
    namespace, packet, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


class Recorded:
    """A program with one call; its tensors are inputs. With `names`, sizes from 2 on are known only when it runs."""

    def __init__(self, target: Any, sample: Sample, *, names: bool) -> None:
        shapes = ShapeEnv()
        mode = FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True)
        leaves, structure = _pytree.tree_flatten((list(sample.args), sample.kwargs))
        self.tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        graph = torch.fx.Graph()
        values: list[Any] = []
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                node = graph.placeholder(f"x{len([v for v in values if isinstance(v, torch.fx.Node)])}")
                kind = DimDynamic.DUCK if names else DimDynamic.STATIC
                dims = [kind if size > 1 else DimDynamic.STATIC for size in leaf.shape]
                node.meta["val"] = mode.from_tensor(leaf, symbolic_context=StatelessSymbolicContext(dynamic_sizes=dims))
                values.append(node)
            else:
                values.append(leaf)
        args, kwargs = _pytree.tree_unflatten(values, structure)
        call = graph.call_function(target, tuple(args), kwargs)
        with enable_python_dispatcher():
            call.meta["val"] = target(*torch.fx.map_arg(args, _meta), **torch.fx.map_arg(kwargs, _meta))
        graph.output(call)
        self.module = torch.fx.GraphModule({}, graph)

    def convert(self, context: ow.MLContext) -> tuple[ow.MLGraph, list[Any]]:
        """The graph, and the value that PyTorch infers for each of its outputs."""
        builder = LabellingBuilder(context)
        sizes = SizeNames()
        inputs = []
        for node in self.module.graph.nodes:
            if node.op == "placeholder":
                meta = node.meta["val"]
                shape = []
                for size in shape_of(meta):
                    if not isinstance(size, int) and size.node.expr.is_Symbol:
                        sizes.values.setdefault(str(size.node.expr), ow.Size(str(size.node.expr)))
                        shape.append(str(size.node.expr))
                    else:
                        shape.append(int(size))
                inputs.append(builder.input(node.name, data_type_of(meta.dtype, "x"), shape))
        conversion = ProgramConversion(builder, sizes, takes_fallback=False)
        results, _ = conversion.run(self.module, inputs)
        (call,) = [node for node in self.module.graph.nodes if node.op == "call_function"]
        metas = call.meta["val"]
        results = list(results) if isinstance(results, (tuple, list)) else [results]
        metas = list(metas) if isinstance(metas, (tuple, list)) else [metas]
        kept = [(result, meta) for result, meta in zip(results, metas, strict=True) if result is not None]
        ends = {f"y{k}": builder.identity(conversion.operand_of(result)) for k, (result, _) in enumerate(kept)}
        self.places = [k for k, result in enumerate(results) if result is not None]
        return builder.build(ends | shapes_needed(builder, ends)), [meta for _, meta in kept]


def _meta(node: Any) -> Any:
    return node.meta["val"]


def check(got: Any, expected: Any, tolerance: float) -> None:
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    if expected.dtype in PARTS:
        got, expected = torch.view_as_real(got), torch.view_as_real(expected.resolve_conj())
    if not expected.dtype.is_floating_point:
        assert torch.equal(got, expected), (got, expected)
        return
    if expected.dtype in (torch.float16, torch.bfloat16):
        tolerance *= 1000 if expected.dtype is torch.float16 else 8000
    wide, want = got.double(), expected.double()
    special = ~torch.isfinite(want)
    assert torch.equal(torch.nan_to_num(wide[special]), torch.nan_to_num(want[special])), (got, expected)
    assert torch.equal(wide[special].isnan(), want[special].isnan()), (got, expected)
    off, size = (wide - want)[~special], want[~special]
    if off.numel():
        typical = float(size.square().mean().sqrt())
        assert float(off.abs().max()) <= tolerance * max(typical, float(size.abs().max()) / 8, 1e-3), (got, expected)


@pytest.fixture(scope="module", params=["cpu", "names", "reference"])
def place(request: pytest.FixtureRequest) -> tuple[ow.MLContext, bool]:
    device = "cpu" if request.param == "names" else request.param
    return ow.ml.create_context(device=device, verify=False), request.param == "names"


@pytest.mark.parametrize(
    ("name", "sample"),
    [
        pytest.param(name, s, id=f"{name.removeprefix('aten.')}-{number}", marks=pytest.mark.covers(name))
        for name, number, s in SAMPLES
    ],
)
def test_converter_agrees_with_pytorch(
    name: str, sample: Sample, place: tuple[ow.MLContext, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opweave.pytorch.convert.decompose", lambda *_: None)
    context, names = place
    if names and not sample.names:
        pytest.skip("its result depends on sizes")
    target = operator_of(name)
    recorded = Recorded(target, sample, names=names)
    graph, metas = recorded.convert(context)
    assert {node.op.name for node in _nodes(graph)}.isdisjoint({"torch_node"})
    feed = {f"x{k}": np.array(array_of(t), order="C") for k, t in enumerate(recorded.tensors)}
    results = context.compute(graph, {key: feed[key] for key in graph.inputs})
    expected = target(*sample.args, **sample.kwargs)
    wanted = list(expected) if isinstance(expected, (tuple, list)) else [expected]
    for k, (place_of_result, meta) in enumerate(zip(recorded.places, metas, strict=True)):
        check(tensor_of(results[f"y{k}"], meta.dtype), wanted[place_of_result], sample.tolerance)


def _nodes(graph: ow.MLGraph) -> Any:
    from opweave.context.graph import recorded_graph

    return recorded_graph(graph).nodes


COMPLEX_WITHOUT_SAMPLES = {
    *("aten.empty_like.default", "aten.new_empty.default", "aten.lift_fresh.default", "aten.full.default"),
    "aten._conj.default",
}
"""Operators of complex numbers whose results are not defined, are folded, or which the harness cannot record."""

FAMILIES_ELSEWHERE = {
    *("convolution", "ordering", "padding", "pooling", "quantized", "recurrent", "resizing", "statistics", "vision"),
    "windows",
}
"""Modules of converters whose calls are in `test_torch_families.py`."""


def _is_complex(name: str, sample: Sample) -> bool:
    leaves = _pytree.tree_leaves((sample.args, operator_of(name)(*sample.args, **sample.kwargs)))
    return any(isinstance(leaf, torch.Tensor) and leaf.is_complex() for leaf in leaves)


def test_every_converter_has_samples() -> None:
    calls: dict[bool, set[str]] = {False: set(), True: set()}
    for name, _, sample in SAMPLES:
        calls[_is_complex(name, sample)].add(name)
    assert calls[True] <= COMPLEX_CONVERTERS.keys()
    assert COMPLEX_CONVERTERS.keys() - calls[True] <= COMPLEX_WITHOUT_SAMPLES
    sampled = calls[False]
    assert sampled <= CONVERTERS.keys()
    own = {
        name
        for name, (function, _) in CONVERTERS.items()
        if function.__module__.rpartition(".")[2] not in FAMILIES_ELSEWHERE and not name.startswith("opweavetest.")
    }
    # Operators of packages that may not be imported have converters of PyTorch's own operators.
    functions = {CONVERTERS[name][0] for name in sampled}
    own -= {name for name in own if not name.startswith(("aten.", "prims.")) and CONVERTERS[name][0] in functions}
    assert own - sampled - MADE_WITHOUT_OPERANDS == set()


def test_names_are_operators_of_pytorch() -> None:
    for name in (*CONVERTERS, *COMPLEX_CONVERTERS, *ASSERTIONS):
        if name.startswith(("aten.", "prims.")):  # others belong to packages that may not be imported
            assert str(operator_of(name)) == name
