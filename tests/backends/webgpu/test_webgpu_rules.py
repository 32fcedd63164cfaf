"""Index expressions of operations, evaluated with NumPy, against the reference: shapes and options beyond the samples.

On calls like the samples `test_agreement` compares their kernels with the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from samples import SAMPLES, Call, Make
from support.agreement import REFERENCE, assert_agree, outputs_of, record, run
from support.webgpu_device import gpu_context

from opweave.backends.gpu.rules.results import Scatter
from opweave.backends.webgpu import webgpu
from opweave.core.graph import Graph, Node
from opweave.core.operation import Op
from opweave.expr import Traced, compute, trace
from opweave.expr.evaluate import evaluate
from opweave.expr.ir import Formula
from opweave.expr.simplify import simplify
from opweave.kernels.expression import in_data_type
from opweave.ops import Operations

OPS = Operations.listing()
CELLS = {OPS[name] for name in ("gru_cell", "lstm_cell")}

few = settings(max_examples=15)


def program_of(node: Node) -> Formula:
    """What a node computes; of a scatter the array it starts from, the values, and their positions along each axis."""

    def whole(*arrays: Traced) -> tuple[Traced, ...]:
        rest = iter(arrays)

        def given(value: Any) -> Any:
            return tuple(map(given, value)) if isinstance(value, tuple) else None if value is None else next(rest)

        (rule,) = webgpu.rules[node.op]
        made = rule((), {**{name: given(value) for name, value in node.inputs.items()}, **node.attributes})
        if isinstance(made, Scatter):
            return scattered(made)
        results = made if isinstance(made, tuple) else (made,)
        return tuple(in_data_type(r, o.data_type) for r, o in zip(results, node.outputs, strict=True))

    return trace(whole, node.op.name, [operand.desc for operand in node.operands])


def scattered(made: Scatter) -> tuple[Traced, ...]:
    def along(axis: int) -> Callable[..., Traced]:
        return lambda *p: made.at(*p)[axis] + 0

    axes = [compute(made.shape, along(axis)) for axis in range(made.into.rank)]
    return made.into, compute(made.shape, made.value), *axes


def computed(program: Formula, node: Node, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The results of a node by NumPy."""
    outputs = [np.empty(output.desc.shape, output.desc.data_type) for output in program.outputs]
    evaluate(program, arrays, outputs)
    if len(outputs) == len(node.outputs):
        return outputs
    into, values, *positions = outputs
    for axis, (places, size) in enumerate(zip(positions, into.shape, strict=True)):
        assert places.min() >= 0, axis
        assert places.max() < size, axis
    into[tuple(positions)] = values
    return [into]


def check_rule(op: Op[..., Any], call: Call) -> Formula:
    """Compare the rule with the reference, as it is and simplified; return the simplified program."""
    _, result, arrays = record(REFERENCE, op, call)
    graph = Graph.reaching(outputs_of(result))
    (node,) = graph.nodes
    names = {operand: name for name, operand in graph.inputs.items()}
    given = [arrays[names[operand]] for operand in node.operands]
    wanted = run(REFERENCE, op, call)
    program = program_of(node)
    for each in (program, simple := simplify(program)):
        got = dict(zip(wanted, computed(each, node, given), strict=True))
        assert_agree(SAMPLES[op], call, got, wanted)
    return simple


def test_operations_have_formula_or_rule() -> None:
    assert {op for op in OPS.values() if op.formula is None and op not in webgpu.rules} == CELLS
    assert [op.name for op in webgpu.rules if op.formula is not None and not op.is_alternative] == []


def test_positions_beyond_int32_are_for_another_back_end() -> None:
    call = Call(np.arange(50001, dtype=np.float32).reshape(1, 1, 1, -1), mode="linear", sizes=[1, 50000])
    builder, result, arrays = record(gpu_context(), OPS["resample2d"], call)
    graph = builder.build({"y": result})
    assert "not a value of index" in graph.explain()
    got = gpu_context().compute(graph, arrays)["y"]
    np.testing.assert_allclose(got, run(REFERENCE, OPS["resample2d"], call)["y0"], rtol=1e-6, atol=1e-6)


# Larger shapes and other options than those of the samples ------------------------------------------------------------


def image(make: Make, shape: Sequence[int], low: float = -4, high: float = 4) -> np.ndarray:
    return make.array("input", shape, low, high)


def drawn(function: Callable[[Make], None], data_type: str = "float32", examples: int = 60) -> None:
    """Call a test with what draws its parts."""

    @settings(few, max_examples=examples)
    @given(st.data())
    def test(data: st.DataObject) -> None:
        function(Make(data.draw, dict.fromkeys(("input", "filter", "bias", "indices", "updates"), data_type)))

    test()


@pytest.mark.long
@pytest.mark.parametrize("name", ["average_pool2d", "l2_pool2d", "max_pool2d"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_windows_slide_everywhere(name: str, layout: str) -> None:
    def one(make: Make) -> None:
        taps = [make.integer(1, 5), make.integer(1, 5)]
        strides, dilations = [make.integer(1, 6), make.integer(1, 6)], [make.integer(1, 4), make.integer(1, 4)]
        padding = [make.integer(0, 7) for _ in range(4)]
        sizes = {"n": 1, "c": 2}
        for a, size, dilation in zip("hw", taps, dilations, strict=True):
            sizes[a] = (size - 1) * dilation + make.integer(1, 9)
        rounding = make.choice(["floor", "ceil"])
        x = image(make, [sizes[a] for a in layout])
        check_rule(
            OPS[name],
            Call(
                x,
                window_dimensions=taps,
                strides=strides,
                dilations=dilations,
                padding=padding,
                layout=layout,
                output_shape_rounding=rounding,
            ),
        )

    drawn(one)


def test_unused_strides_may_exceed_int32() -> None:
    x, most = np.ones([1, 1, 3, 3], np.float32), [2**32 - 1] * 2
    for name in ("average_pool2d", "max_pool2d"):
        check_rule(OPS[name], Call(x, strides=most))
        check_rule(OPS[name], Call(x[..., :1, :1], window_dimensions=[1, 1], dilations=most))
    check_rule(OPS["slice"], Call(x, [0] * 4, [1] * 4, strides=[2**32 - 1] * 4))
    check_rule(OPS["triangular"], Call(x, diagonal=2**31 - 1))


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("mode", ["nearest-neighbor", "linear"])
@pytest.mark.parametrize("data_type", ["float32", "uint8", "int8"])
def test_images_are_resampled_to_all_sizes(mode: str, data_type: str) -> None:
    def one(make: Make) -> None:
        sizes = [make.integer(1, 48), make.integer(1, 48)]
        most = 4 if data_type == "float32" else 255
        x = image(make, [1, make.integer(1, 40), make.integer(1, 40), 1], -most, most)
        check_rule(OPS["resample2d"], Call(x, mode=mode, sizes=sizes, axes=[1, 2]))

    drawn(one, data_type)


def test_large_images_of_integers_are_resampled() -> None:
    """Sums that int32 does not hold are float32."""
    x = np.arange(256, dtype=np.uint8).reshape(1, 1, 1, 256) * np.ones([1, 1, 37, 1], np.uint8)
    program = check_rule(OPS["resample2d"], Call(x, mode="linear", sizes=[1999, 1787]))
    assert "round_even" in str(program)


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("data_type", ["float32", "float16", "int32"])
def test_long_lines_are_summed_up(data_type: str) -> None:
    def one(make: Make) -> None:
        x = make.array("input", [2, make.choice([31, 32, 33, 64, 65, 1000, 1024, 1025, 2100]), 2], 0, 2)
        x[:, 40:] = 0  # what is summed up stays exact
        x[:, -1] = 3
        check_rule(OPS["cumulative_sum"], Call(x, 1, exclusive=make.boolean(), reversed=make.boolean()))

    drawn(one, data_type, examples=20)


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reversed", [False, True])
def test_cumulative_sum_of_infinities(exclusive: bool, reversed: bool) -> None:
    x = np.zeros(100, np.float32)
    x[70] = np.inf
    check_rule(OPS["cumulative_sum"], Call(x, 0, exclusive=exclusive, reversed=reversed))


@pytest.mark.parametrize("data_type", ["int32", "uint32"])
def test_quantised_integers_of_32_bits_are_exact_without_64(data_type: str) -> None:
    info = np.iinfo(data_type)
    edges = np.array([info.min, info.min + 1, info.max // 2, info.max - 1, info.max], data_type)
    steps = np.float32(
        [0, 1, -1, 2**24, -(2**24), 2**31, -(2**31), 2**32, -(2**32), 2**33, 1e30, -1e30, np.inf, -np.inf]
    )
    one = np.ones([1, 5], np.float32)
    program = check_rule(OPS["quantize_linear"], Call(np.stack([steps] * 5, 1), one, edges[None]))
    assert "int64" not in str(program)
    program = check_rule(OPS["dequantize_linear"], Call(np.stack([edges] * 5), one, edges[None]))
    assert "int64" not in str(program)


# What a device has to do for it ---------------------------------------------------------------------------------------


def text(name: str, *shapes: Sequence[int], **options: Any) -> str:
    """The last line of the simplified program: what one element of the result is."""
    _, result, _ = record(REFERENCE, OPS[name], Call(*(np.zeros(shape, np.float32) for shape in shapes), **options))
    (node,) = Graph.reaching(outputs_of(result)).nodes
    return str(simplify(program_of(node))).splitlines()[-1].strip()


PICTURE = [1, 8, 56, 56]


@pytest.mark.parametrize(
    ("name", "shapes", "options", "wanted"),
    [
        (
            "max_pool2d",
            [PICTURE],
            {"window_dimensions": [2, 2], "strides": [2, 2]},
            "max(r0 < 2, r1 < 2: x0[0, j, (k * 2) + r0, (l * 2) + r1])",
        ),
        (
            "max_pool2d",
            [PICTURE],
            {"window_dimensions": [3, 3], "strides": [2, 2], "padding": [1, 1, 1, 1]},
            "max(r0 < 3, r1 < 3: x0[0, j, max(((k * 2) + r0) - 1, 0), max(((l * 2) + r1) - 1, 0)])",
        ),
        ("average_pool2d", [PICTURE], {}, "sum(r0 < 56, r1 < 56: x0[0, j, r0, r1]) / 3136.0"),
        (
            "average_pool2d",
            [[1, 9, 9, 8]],
            {"window_dimensions": [3, 3], "layout": "nhwc"},
            "sum(r0 < 3, r1 < 3: x0[0, j + r0, k + r1, l]) / 9.0",
        ),
        ("resample2d", [PICTURE], {"sizes": [112, 28]}, "x0[0, j, k // 2, l * 2]"),
        ("resample2d", [PICTURE], {"sizes": [56, 56], "mode": "linear"}, "x0[0, j, k, l]"),
        ("reshape", [[1, 197, 768]], {"new_shape": [197, 12, 64]}, "x0[0, i, (j * 64) + k]"),
        ("pad", [[4, 4]], {"beginning_padding": [0, 0], "ending_padding": [0, 0]}, "x0[i, j]"),
        (
            "pad",
            [[4, 4]],
            {"beginning_padding": [0, 1], "ending_padding": [0, 0]},
            "where((j - 1) >= 0, x0[i, max(j - 1, 0)], 0.0)",
        ),
        (
            "pad",
            [[4, 4]],
            {"beginning_padding": [1, 0], "ending_padding": [0, 2], "mode": "edge"},
            "x0[max(i - 1, 0), min(j, 3)]",
        ),
        (
            "pad",
            [[4, 4]],
            {"beginning_padding": [1, 0], "ending_padding": [0, 2], "mode": "reflection"},
            "x0[abs(i - 1), 3 - abs(3 - j)]",
        ),
        ("slice", [[9, 9]], {"starts": [0, 1], "sizes": [9, 8], "strides": [1, 3]}, "x0[i, (j * 3) + 1]"),
        ("tile", [[4, 4]], {"repetitions": [1, 2]}, "x0[i, j % 4]"),
        ("expand", [[1, 4]], {"new_shape": [2, 3, 4]}, "x0[0, k]"),
        ("triangular", [[4, 4]], {"diagonal": -7}, "x0[i, j]"),
        (
            "softmax",
            [[4, 4]],
            {"axis": 1},
            "exp(x0[i, j] - t0) / sum(r1 < 4: exp(x0[i, r1] - t0))",
        ),
    ],
)
def test_rule_formula_is_minimal(
    name: str, shapes: Sequence[Sequence[int]], options: dict[str, Any], wanted: str
) -> None:
    assert text(name, *shapes, **options) == wanted


def test_concat_chooses_between_operands() -> None:
    call = Call([np.zeros([2, 3], np.float32), np.ones([2, 1], np.float32)], 1)
    assert "where(j < 3, x0[i, min(j, 2)], x1[i, 0])" in str(check_rule(OPS["concat"], call))
