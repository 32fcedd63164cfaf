"""Operations of the draft for sizes that are known only when a graph runs: results, shape chains, errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opweave as ow
from opweave.composites import center_crop_pad, rotary_embedding
from opweave.context.dynamic_graph_state import DynamicGraphState
from opweave.core.dtypes import ANY, FLOATS, INTEGERS
from opweave.core.operation import Op
from opweave.core.size_functions import larger
from opweave.ops import Operations, chains, elementwise
from opweave.support.names import camel_case

DRAFTS = Operations.drafts()
SIZES = ({"n": 3, "m": 2}, {"n": 2, "m": 5}, {"n": 1, "m": 1}, {"n": 3, "m": 2})


def context_on(device: str) -> ow.MLContext:
    return ow.ml.create_context(device=device, drafts=True)


@pytest.fixture(params=["reference", "cpu"])
def context(request: pytest.FixtureRequest) -> ow.MLContext:
    return context_on(request.param)


def at(shape: Sequence[Any], sizes: Mapping[str, int]) -> list[int]:
    return [sizes[size] if isinstance(size, str) else size for size in shape]


def head(b: Any, x: Any, count: int = 1) -> Any:
    """The first sizes of x as a vector."""
    return b.slice(b.shape(x), [0], [count])


def vector(b: Any, *parts: Any) -> Any:
    """A uint32 vector of numbers and vectors."""
    return b.concat([np.uint32([part]) if isinstance(part, int) else part for part in parts], 0)


class Case:
    """A call on an input of some shape: the results, the shapes in formulas, and NumPy's results."""

    def __init__(
        self,
        shape: Sequence[Any],
        call: Callable[[Any, Any], Any],
        expected: str,
        witness: Callable[[np.ndarray], Any],
        types: Sequence[str] = ANY,
    ) -> None:
        self.shape, self.call, self.expected, self.witness, self.types = shape, call, expected, witness, types


def padded(x: np.ndarray, mode: Any, **options: Any) -> np.ndarray:
    return np.pad(x, [(0, x.shape[0] - 1), (1, 1)], mode, **options)


CASES = {
    "shape": Case(["n", 4, "m"], lambda b, x: b.shape(x), "[3]", lambda x: np.uint32(x.shape)),
    "range": Case(
        ["n"], lambda b, x: b.range(1, b.squeeze(b.shape(x)) + 1, 1), "[n]", lambda x: np.arange(1, len(x) + 1)
    ),
    "range-step": Case(
        ["n", "m"],
        lambda b, x: b.range(0, b.reduce_product(b.shape(x)), 3),
        "[-((-m*n) // 3)]",
        lambda x: np.arange(0, x.size, 3),
    ),
    "range-down": Case(
        ["n"],
        lambda b, x: b.range(b.cast(b.squeeze(b.shape(x)), "int32"), -2, -2),
        "[-((-n) // 2) + 1]",
        lambda x: np.arange(len(x), -2, -2),
    ),
    "squeeze": Case(["n", 1, 4, 1], lambda b, x: b.squeeze(x, axes=[3]), "[n, 1, 4]", lambda x: x[..., 0]),
    "unsqueeze": Case(["n", 4], lambda b, x: b.unsqueeze(x, [3, 0]), "[1, n, 4, 1]", lambda x: x[None, :, :, None]),
    "reshape_to_2d": Case(["n", 2, "m"], lambda b, x: b.reshape_to_2d(x), "[n, 2*m]", lambda x: x.reshape(len(x), -1)),
    "reshape_to_2d-end": Case(
        ["n", "m"], lambda b, x: b.reshape_to_2d(x, axis=2), "[m*n, 1]", lambda x: x.reshape(-1, 1)
    ),
    "reshape_dynamic": Case(
        ["n", 2, 3],
        lambda b, x: b.reshape_dynamic(x, vector(b, head(b, x), 6)),
        "[n, 6]",
        lambda x: x.reshape(-1, 6),
    ),
    "reshape_dynamic-product": Case(
        ["n", 2, "m"],
        lambda b, x: b.reshape_dynamic(
            x, vector(b, 2, b.reduce_product(b.shape(x), keep_dimensions=True) / np.uint32([2]))
        ),
        "[2, m*n]",
        lambda x: x.reshape(2, -1),
    ),
    "expand_dynamic": Case(
        ["n", 1],
        lambda b, x: b.expand_dynamic(x, vector(b, 2, b.shape(x) * np.uint32([1, 4]))),
        "[2, n, 4]",
        lambda x: np.broadcast_to(x, (2, len(x), 4)),
    ),
    "slice_dynamic": Case(
        ["n", "m"],
        lambda b, x: b.slice_dynamic(x, b.shape(x) / np.uint32(2), b.shape(x) - b.shape(x) / np.uint32(2)),
        "[n - (n // 2), m - (m // 2)]",
        lambda x: x[x.shape[0] // 2 :, x.shape[1] // 2 :],
    ),
    "slice_dynamic-strides": Case(
        ["n", 8],
        lambda b, x: b.slice_dynamic(x, np.int64([0, 1]), b.cast(vector(b, head(b, x), 6), "int64"), strides=[2, 3]),
        "[-((-n) // 2), 2]",
        lambda x: x[::2, 1:7:3],
    ),
    "pad_dynamic": Case(
        ["n", 4],
        lambda b, x: b.pad_dynamic(x, np.uint32([0, 1]), vector(b, head(b, x) - np.uint32([1]), 1), value=7),
        "[2*n - 1, 6]",
        lambda x: padded(x, "constant", constant_values=7),
    ),
    "pad_dynamic-edge": Case(
        ["n", 4],
        lambda b, x: b.pad_dynamic(x, np.uint32([0, 1]), vector(b, head(b, x) - np.uint32([1]), 1), mode="edge"),
        "[2*n - 1, 6]",
        lambda x: padded(x, "edge"),
    ),
    "pad_dynamic-reflection": Case(
        ["n", 4],
        lambda b, x: b.pad_dynamic(x, np.uint32([0, 1]), vector(b, head(b, x) - np.uint32([1]), 1), mode="reflection"),
        "[2*n - 1, 6]",
        lambda x: padded(x, "reflect"),
    ),
    "split_dynamic": Case(
        ["n", 4],
        lambda b, x: b.split_dynamic(b.concat([x, x, x], 0), vector(b, head(b, x), 1, head(b, x) * 2 - 1)),
        "[n, 4] [1, 4] [2*n - 1, 4]",
        lambda x: np.split(np.concatenate([x, x, x]), [len(x), len(x) + 1]),
    ),
    "split_dynamic-axis": Case(
        [2, "n"],
        lambda b, x: b.split_dynamic(
            b.concat([x, x, x], 1), vector(b, b.slice(b.shape(x), [1], [1]) * np.uint32([2, 1])), axis=1
        ),
        "[2, 2*n] [2, n]",
        lambda x: (np.concatenate([x, x], 1), x),
    ),
    "resample2d_dynamic": Case(
        [1, 2, "n", "m"],
        lambda b, x: b.resample2d_dynamic(x, b.slice(b.shape(x), [2], [2]) * np.uint32([2, 3])),
        "[1, 2, 2*n, 3*m]",
        lambda x: x.repeat(2, 2).repeat(3, 3),
        (*FLOATS, "int8", "uint8"),
    ),
    "resample2d_dynamic-axes": Case(
        ["n", "m", 1, 2],
        lambda b, x: b.resample2d_dynamic(x, head(b, x, 2) * np.uint32([1, 2]), mode="nearest-neighbor", axes=[0, 1]),
        "[n, 2*m, 1, 2]",
        lambda x: x.repeat(2, 1),
        (*FLOATS, "int8", "uint8"),
    ),
    "tile_dynamic": Case(
        ["n", 2],
        lambda b, x: b.tile_dynamic(x, vector(b, head(b, x), 2)),
        "[n*n, 4]",
        lambda x: np.tile(x, (len(x), 2)),
    ),
    "modulus_floor": Case(["n", 5], lambda b, x: b.modulus_floor(x, 3), "[n, 5]", lambda x: x % x.dtype.type(3)),
    "modulus_truncate": Case(
        ["n", 5], lambda b, x: b.modulus_truncate(x, 3), "[n, 5]", lambda x: np.fmod(x, x.dtype.type(3))
    ),
}
ROWS = [(name, data_type) for name, case in CASES.items() for data_type in case.types]


def as_tuple(results: Any) -> tuple[Any, ...]:
    return tuple(results) if isinstance(results, (tuple, list)) else (results,)


def values(data_type: str, shape: Sequence[int]) -> np.ndarray:
    low = 0 if data_type.startswith("u") else -60
    return np.random.default_rng(0).integers(low, 60, shape).astype(data_type)


@pytest.mark.parametrize(("name", "data_type"), ROWS)
def test_results_agree_with_numpy_for_all_sizes(context: ow.MLContext, name: str, data_type: str) -> None:
    case = CASES[name]
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", data_type, case.shape)  # type: ignore[arg-type]
    results = as_tuple(case.call(builder, x))
    assert " ".join(str(list(result.shape)) for result in results) == case.expected
    graph = builder.build({str(k): result for k, result in enumerate(results)})
    for sizes in SIZES:
        array = values(data_type, at(case.shape, sizes))
        computed = context.compute(graph, {"x": array})
        assert graph.compute_shapes({"x": array.shape}) == {k: v.shape for k, v in computed.items()}
        for value, expected in zip(computed.values(), as_tuple(case.witness(array)), strict=True):
            np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize("name", CASES)
def test_results_agree_with_numpy_for_static_shapes(context: ow.MLContext, name: str) -> None:
    case = CASES[name]
    builder = ow.MLGraphBuilder(context)
    array = values(case.types[0], at(case.shape, SIZES[0]))
    results = as_tuple(case.call(builder, builder.input("x", case.types[0], array.shape)))  # type: ignore[arg-type]
    graph = builder.build({str(k): result for k, result in enumerate(results)})
    for value, expected in zip(
        context.compute(graph, {"x": array}).values(), as_tuple(case.witness(array)), strict=True
    ):
        np.testing.assert_array_equal(value, expected)


def test_resample2d_dynamic_interpolates_as_resample2d(context: ow.MLContext) -> None:
    x = np.random.default_rng(0).random((1, 2, 3, 4)).astype("float32")
    builder = ow.MLGraphBuilder(context)
    image = builder.input("x", "float32", [1, 2, "n", "m"])
    double = builder.slice(builder.shape(image), [2], [2]) * np.uint32([2, 2])
    graph = builder.build({"y": builder.resample2d_dynamic(image, double, mode="linear")})
    expected = ow.ops.resample2d(x, mode="linear", sizes=[6, 8]).numpy()
    np.testing.assert_allclose(context.compute(graph, {"x": x})["y"], expected, rtol=1e-6)


# Moduli ---------------------------------------------------------------------------------------------------------------


def operands_of(data_type: str) -> list[np.ndarray]:
    """All pairs of edges, and random pairs of many magnitudes."""
    random = np.random.default_rng(1)
    if data_type in FLOATS:
        info = np.finfo(data_type)
        edges: list[Any] = [np.nan, np.inf, 0.0, info.max, info.smallest_subnormal, 1e-7, 0.1, 0.3, 7.1, 1.5, 2, 3]
        edges += [-float(edge) for edge in edges]
        noise = [random.standard_normal(2000) * 10 ** random.uniform(-3, 3, 2000) for _ in range(2)]
    else:
        bounds = np.iinfo(data_type)
        edges = [bounds.min, bounds.min + 1, bounds.max, bounds.max - 1, 0, 1, 2, 3, 5, 100]
        edges += [-1, -2, -3, -5] if bounds.min else []
        noise = [
            random.integers(bounds.min, bounds.max, 2000, data_type, endpoint=True)
            >> random.integers(0, bounds.bits - 1, 2000).astype(data_type)
            for _ in range(2)
        ]
    pairs = np.meshgrid(np.array(edges, data_type), np.array(edges, data_type))
    return [np.concatenate([pair.ravel(), more.astype(data_type)]) for pair, more in zip(pairs, noise, strict=True)]


MODULI = {elementwise.modulus_floor: np.remainder, elementwise.modulus_truncate: np.fmod}


@pytest.mark.parametrize("data_type", ANY)
@pytest.mark.parametrize("op", MODULI, ids=lambda op: op.name)
@pytest.mark.parametrize("form", ["rule", "constant", "decomposition"])
def test_modulus_is_exact(context: ow.MLContext, op: Any, data_type: Any, form: str) -> None:
    a, b = operands_of(data_type)
    builder = ow.MLGraphBuilder(context)
    x = builder.input("a", data_type, a.shape)
    y = builder.constant(b) if form == "constant" else builder.input("b", data_type, b.shape)
    rest = op.decomposition(builder, x, y) if form == "decomposition" else op(builder, x, y)
    graph = builder.build({"rest": rest})
    with np.errstate(all="ignore"):
        wide = [array.astype("float64") if data_type in FLOATS else array for array in (a, b)]
        expected = MODULI[op](*wide).astype(data_type)
        is_huge = (np.abs(wide[0] / wide[1]) >= 2.0**46) & np.isfinite(a) & (b != 0)
    result = context.compute(graph, {name: array for name, array in {"a": a, "b": b}.items() if name in graph.inputs})[
        "rest"
    ]
    if form == "decomposition" and data_type in FLOATS:
        assert not result[is_huge].any()
        result, expected = result[~is_huge], expected[~is_huge]
    np.testing.assert_array_equal(result, expected)


# Shape chains ---------------------------------------------------------------------------------------------------------


def links() -> dict[str, Callable[[Any, Any, Any], Any]]:
    """Operations of chains on two vectors of 3 elements, the second of which has no 0 and no names; results are like them."""

    def binary(name: str) -> Callable[[Any, Any, Any], Any]:
        return lambda b, x, y: getattr(b, name)(x, y)

    def compare(name: str) -> Callable[[Any, Any, Any], Any]:
        return lambda b, x, y: b.where(getattr(b, name)(x, y), x, y)

    def logic(name: str) -> Callable[[Any, Any, Any], Any]:
        return lambda b, x, y: b.cast(getattr(b, name)(b.greater(x, y), b.equal(x, y)), x.data_type)

    def as_vector(reduced: Any, b: Any) -> Any:
        return b.expand(reduced, [3])

    arithmetic = ("add", "sub", "mul", "div", "max", "min", "modulus_floor", "modulus_truncate")
    comparisons = ("equal", "not_equal", "greater", "greater_or_equal", "lesser", "lesser_or_equal")
    return {
        **{name: binary(name) for name in arithmetic},
        **{name: compare(name) for name in comparisons},
        **{name: logic(name) for name in ("logical_and", "logical_or", "logical_xor")},
        "div-reversed": lambda b, x, y: b.div(y, x),
        "modulus_floor-reversed": lambda b, x, y: b.modulus_floor(y, x),
        "logical_not": lambda b, x, y: b.cast(b.logical_not(b.lesser(x, y)), x.data_type),
        "gather": lambda b, x, y: b.gather(x, np.int32([-1, 0, 7])),
        "gather-by-size": lambda b, x, y: b.gather(y, b.cast(x, "uint32")),
        "gather_elements": lambda b, x, y: b.gather_elements(x, np.int64([2, 2, 0])),
        "slice": lambda b, x, y: b.concat([b.slice(x, [1], [2]), b.slice(y, [0], [1])], 0),
        "slice_dynamic": lambda b, x, y: b.slice_dynamic(b.concat([x, y], 0), np.uint32([2]), np.uint32([3])),
        "reshape": lambda b, x, y: b.reshape(b.transpose(b.reshape(b.concat([x, y], 0), [3, 2])), [6])[:3],
        "squeeze": lambda b, x, y: b.squeeze(b.unsqueeze(x, [0])),
        "reshape_to_2d": lambda b, x, y: b.reshape(b.reshape_to_2d(x), [3]),
        "tile": lambda b, x, y: b.tile(b.slice(x, [2], [1]), [3]),
        "tile_dynamic": lambda b, x, y: b.tile_dynamic(b.slice(x, [2], [1]), np.int32([3])),
        "split": lambda b, x, y: b.concat(b.split(x, [1, 2])[::-1], 0),
        "split_dynamic": lambda b, x, y: b.concat(b.split_dynamic(x, np.int32([2, 1]))[::-1], 0),
        "reverse": lambda b, x, y: b.reverse(x),
        "range": lambda b, x, y: b.range(b.squeeze(b.slice(x, [0], [1])), b.squeeze(b.slice(x, [0], [1])) + 6, 2),
        "identity": lambda b, x, y: b.identity(x),
        "clamp": lambda b, x, y: b.clamp(x, min_value=2, max_value=9),
        "cast": lambda b, x, y: b.cast(b.cast(x, "uint8"), x.data_type),
        "cast-signed": lambda b, x, y: b.cast(b.cast(x, "int8"), x.data_type),
        "reduce_sum": lambda b, x, y: as_vector(b.reduce_sum(x), b),
        "reduce_product": lambda b, x, y: as_vector(b.reduce_product(b.slice(x, [0], [2])), b),
        "reduce_max": lambda b, x, y: as_vector(b.reduce_max(x), b),
        "reduce_min": lambda b, x, y: as_vector(b.reduce_min(x, axes=[0], keep_dimensions=True), b),
        "cumulative_sum": lambda b, x, y: b.cumulative_sum(x, 0),
        "cumulative_sum-reversed": lambda b, x, y: b.cumulative_sum(x, 0, exclusive=True, reversed=True),
        "triangular": lambda b, x, y: b.reduce_sum(b.triangular(b.expand(x, [3, 3]), upper=False), axes=[0]),
    }


LINKS = links()
SIGNED_LINKS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "abs": lambda b, x, y: b.abs(b.sub(y, x)),
    "neg": lambda b, x, y: b.neg(x),
    "sign": lambda b, x, y: b.sign(b.sub(x, y)),
}


def formulas_agree(build: Callable[[Any, Any, Any], Any], data_type: str) -> bool:
    """Compare the formulas of a chain with what the reference computes of it, for sizes from 1 to 9.

    Returns False if the formulas are too long.
    """
    context = context_on("reference")
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", ["n", "m"])
    sizes = builder.cast(builder.concat([builder.shape(x), builder.shape(x)[:1] * 2], 0), data_type)
    end = build(builder, sizes, builder.constant(np.array([2, 5, 3], data_type)))
    assert end.shape == (3,)
    try:
        formulas = chains.values_of("end", end)
    except ow.ValidationError as error:
        if "at most" not in str(error):
            raise
        return False
    graph = builder.build({"end": end})
    modulus = 1 << np.iinfo(data_type).bits
    for n, m in ((1, 1), (2, 7), (9, 4), (3, 3)):
        computed = context.compute(graph, {"x": np.ones((n, m), "float32")})["end"].tolist()
        numbers = [f if isinstance(f, int) else f.at({"n": n, "m": m}) for f in formulas]
        assert [number % modulus for number in numbers] == [number % modulus for number in computed], formulas
    return True


WIDE_LINKS = ("cumulative_sum", "reduce_sum", "reduce_product", "triangular", "range")
"""Those that take no integers of 8 bits, and the range, whose length depends on sizes if its ends wrap around."""

LINK_ROWS = [
    (name, data_type)
    for name in LINKS | SIGNED_LINKS
    for data_type in INTEGERS
    if not (name in SIGNED_LINKS and data_type.startswith("u"))
    and not (name.startswith(WIDE_LINKS) and data_type.endswith("int8"))
]


@pytest.mark.parametrize(("name", "data_type"), LINK_ROWS)
def test_chain_has_the_values_that_the_reference_computes(name: str, data_type: str) -> None:
    # In 8 bits, formulas have a remainder after each operation, and may be too long.
    assert formulas_agree((LINKS | SIGNED_LINKS)[name], data_type) or data_type.endswith("int8")


@pytest.mark.parametrize("data_type", ["int32", "uint32", "int64"])
def test_chains_of_ten_nodes_have_the_values_that_the_reference_computes(data_type: str) -> None:
    random = np.random.default_rng(0)
    names = [
        name for name in LINKS if name not in ("range", "modulus_floor-reversed", "div-reversed", "gather-by-size")
    ]
    agreed = 0
    for _ in range(20):
        chosen = [names[k] for k in random.integers(len(names), size=10)]

        def build(b: Any, x: Any, y: Any, chosen: Sequence[str] = tuple(chosen)) -> Any:
            for name in chosen:
                x = LINKS[name](b, x, y)
            return x

        agreed += formulas_agree(build, data_type)
    assert agreed >= 8


@pytest.mark.parametrize("data_type", ["int32", "uint32", "int64", "uint64"])
def test_chain_that_wraps_around_for_all_sizes_is_a_size(context: ow.MLContext, data_type: str) -> None:
    builder = ow.MLGraphBuilder(context)
    x, largest = builder.input("x", "float32", ["n"]), np.array([np.iinfo(data_type).max], data_type)
    size = builder.cast(builder.shape(x), data_type) + largest + largest + np.array([2], data_type)
    down = builder.cast(builder.cast(size, "int8"), "int32") - np.int32([2**31 - 1]) - np.int32([2**31 - 1])
    whole = builder.expand_dynamic(np.float32([1]), size)
    assert whole.shape == ("n",)
    graph = builder.build({"y": whole, "z": builder.pad_dynamic(x, np.int32([0]), down - np.int32([1]))})
    for n in (1, 4):
        results = context.compute(graph, {"x": np.ones(n, "float32")})
        assert [array.shape for array in results.values()] == [(n,), (2 * n + 1,)]


def test_chain_of_an_unsigned_type_that_seems_negative_wraps_around(context: ow.MLContext) -> None:
    """The formula n - 2 - 2**32 wraps around twice for n = 1, and once for other sizes."""
    builder = ow.MLGraphBuilder(context)
    x, half = builder.input("x", "float32", ["n"]), np.array([2**31], "uint32")
    start = builder.shape(x) - half - half - np.array([2], "uint32")
    graph = builder.build({"y": builder.slice_dynamic(x, start, np.int32([1]))})
    for n in (2, 5):
        x_array = np.arange(n, dtype="float32")
        np.testing.assert_array_equal(context.compute(graph, {"x": x_array})["y"], x_array[n - 2 : n - 1])
    with pytest.raises(ow.ValidationError, match="slice_dynamic"):
        context.compute(graph, {"x": np.ones(1, "float32")})


def test_chain_of_many_nodes_needs_no_recursion() -> None:
    builder = ow.MLGraphBuilder(context_on("reference"))
    x = builder.input("x", "float32", ["n"])
    size = builder.shape(x)
    for _ in range(3000):
        size = builder.identity(size)
    assert builder.expand_dynamic(np.float32([0]), size).shape == ("n",)


def test_chains_are_not_run(context: ow.MLContext) -> None:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", ["n", 2, 3])
    shape = vector(builder, head(builder, x) * np.uint32([2]), 3)
    graph = builder.build({"y": builder.reshape_dynamic(x, shape)})
    context.compute(graph, {"x": np.ones((4, 2, 3), "float32")})
    text = graph.explain()
    assert text.count("not run") == 4, text
    assert [placement.op.name for placement in graph.placements() if placement.detail != "not run"] == [
        "reshape_dynamic"
    ]


def test_chain_is_data_as_well(context: ow.MLContext) -> None:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", ["n", "m"])
    size = builder.reduce_product(builder.shape(x), keep_dimensions=True)
    graph = builder.build(
        {"mean": builder.reduce_sum(x) / builder.cast(size, "float32"), "flat": builder.reshape_dynamic(x, size)}
    )
    for shape in ((2, 3), (4, 1)):
        result = context.compute(graph, {"x": np.full(shape, 5, "float32")})
        assert result["mean"].tolist() == [5]
        assert result["flat"].shape == (shape[0] * shape[1],)


def test_sizes_may_be_0(context: ow.MLContext) -> None:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", ["n", 2, 3])
    rows = head(builder, x)
    outputs = {
        "reshape": builder.reshape_dynamic(x, vector(builder, rows, 6)),
        "range": builder.range(0, builder.squeeze(rows), 1),
        "tile": builder.tile_dynamic(np.float32([1]), rows),
        "quotient": builder.reshape_dynamic(x, vector(builder, builder.reduce_product(builder.shape(x)) / rows, rows)),
        "maximum": builder.expand_dynamic(np.float32([7]), builder.max(rows, np.uint32([1]))),
    }
    graph = builder.build(outputs)
    results = context.compute(graph, {"x": np.ones((0, 2, 3), "float32")})
    assert {name: value.shape for name, value in results.items()} == {
        "reshape": (0, 6),
        "range": (0,),
        "tile": (0,),
        "quotient": (0, 0),
        "maximum": (1,),
    }
    assert results["maximum"].tolist() == [7]
    assert context.compute(graph, {"x": np.ones((2, 2, 3), "float32")})["quotient"].shape == (6, 2)


def test_program_serves_several_sizes() -> None:
    context = context_on("cpu")
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", ["n", 4])
    positions = builder.range(0, builder.squeeze(head(builder, x)), 1)
    graph = builder.build(
        {"y": x + builder.reshape_dynamic(builder.cast(positions, "float32"), vector(builder, head(builder, x), 1))}
    )
    for n in (2, 5, 9):
        expected = np.ones((n, 4), "float32") + np.arange(n, dtype="float32")[:, None]
        np.testing.assert_array_equal(context.compute(graph, {"x": np.ones((n, 4), "float32")})["y"], expected)


# Errors ---------------------------------------------------------------------------------------------------------------


BUILD_ERRORS: list[tuple[Callable[[Any, Any, Any], Any], str]] = [
    (
        lambda b, x, v: b.reshape_dynamic(x, v, label="r"),
        r"reshape_dynamic 'r': new_shape must be computed from shapes and integer constants, but got input 'v'",
    ),
    (
        lambda b, x, v: b.expand_dynamic(x, b.add(b.cast(b.shape(x), "int32"), v, label="sum")),
        r"expand_dynamic: new_shape must be computed .*, but add 'sum' reads input 'v'",
    ),
    (
        lambda b, x, v: b.tile_dynamic(x, b.cast(b.ceil(b.cast(b.shape(x), "float32"), label="up"), "int32")),
        r"tile_dynamic: repetitions must be computed .*, but cast reads the result of ceil 'up', float32\[2\]",
    ),
    (
        lambda b, x, v: b.slice_dynamic(x, b.cast(np.float32([0, 0]), "int32"), b.shape(x)),
        r"slice_dynamic: starts must be computed .*, but cast reads a constant float32\[2\]",
    ),
    (
        lambda b, x, v: b.slice_dynamic(x, np.int32([0, 0]), b.pow(b.shape(x), np.uint32([1, 1]))),
        r"slice_dynamic: sizes must be computed .*, but got the result of pow, uint32\[2\]",
    ),
    (
        lambda b, x, v: b.reshape_dynamic(x, b.range(0, b.squeeze(head(b, x)), 1)),
        r"reshape_dynamic: new_shape must be computed from values of known shape, but got uint32\[n\] of range",
    ),
    (
        lambda b, x, v: b.reshape_dynamic(x, b.slice(np.zeros(70000, "int32"), [0], [1])),
        r"new_shape must be computed from values of at most 65536 elements, but slice reads int32\[70000\]",
    ),
    (lambda b, x, v: b.reshape_dynamic(x, np.float32([1])), r"new_shape must be int32, .* or uint16, got float32\[1\]"),
    (lambda b, x, v: b.reshape_dynamic(x, np.int32([[1]])), r"new_shape must have rank 1, got int32\[1, 1\]"),
    (lambda b, x, v: b.reshape_dynamic(x, [2, 3]), r"new_shape must be an operand, got \[2, 3\]"),
    (
        lambda b, x, v: b.reshape_dynamic(x, np.int32([7])),
        r"new_shape must have the 3\*n elements of float32\[n, 3\], got \[7\]: 7",
    ),
    (lambda b, x, v: b.reshape_dynamic(x, np.int32([-3, -1])), r"new_shape must not be negative, got \[-3, -1\]"),
    (
        lambda b, x, v: b.expand_dynamic(x, np.int32([2, 5])),
        r"float32\[n, 3\] cannot be broadcast to new_shape \[2, 5\]",
    ),
    (
        lambda b, x, v: b.slice_dynamic(x, np.int32([0]), np.int32([1])),
        r"starts must have a value for each of 2 dimensions",
    ),
    (
        lambda b, x, v: b.slice_dynamic(x, np.int32([0, 2]), np.int32([1, 2])),
        r"starts \[0, 2\] \+ sizes \[1, 2\] must be within",
    ),
    (
        lambda b, x, v: b.slice_dynamic(x, np.int32([0, 0]), np.int32([1, 1]), strides=[0, 1]),
        r"strides must be greater than 0",
    ),
    (
        lambda b, x, v: b.pad_dynamic(x, np.int32([0]), np.int32([0, 0])),
        r"beginning_padding must have a value for each of 2",
    ),
    (
        lambda b, x, v: b.pad_dynamic(x, np.int32([0, 0]), np.int32([0, 3]), mode="reflection"),
        r"ending_padding of a reflection",
    ),
    (lambda b, x, v: b.pad_dynamic(x, np.int32([0, 0]), np.int32([0, 3]), mode="wrap"), r"mode must be 'constant'"),
    (
        lambda b, x, v: b.split_dynamic(x, np.int32([1, 1]), axis=1),
        r"splits must add up to the 3 elements of axis 1, got \[1, 1\]",
    ),
    (lambda b, x, v: b.split_dynamic(x, np.int32([3]), axis=2), r"axis must be in \[0, 2\), got 2"),
    (lambda b, x, v: b.split_dynamic(x, np.ones(9000, "int32")), r"splits must make 1 to 8192 parts, got 9000"),
    (
        lambda b, x, v: b.resample2d_dynamic(b.unsqueeze(x, [0, 1]), np.int32([2])),
        r"sizes must be 2 positive integers, got \[2\]",
    ),
    (lambda b, x, v: b.resample2d_dynamic(x, np.int32([2, 2])), r"input must have rank 4, got float32\[n, 3\]"),
    (lambda b, x, v: b.range(0, b.squeeze(head(b, x)), 0), r"range: delta must not be 0"),
    (lambda b, x, v: b.range(0, 4, 1), r"range: start must be an operand, got 0"),
    (lambda b, x, v: b.range(b.constant("float32", 0), 4, 1), r"start must be int32, .*, got float32\[\]"),
    (
        lambda b, x, v: b.range(0, b.squeeze(b.slice(v, [0], [1])), 1),
        r"limit must be computed .*, but slice reads input 'v'",
    ),
    (lambda b, x, v: b.squeeze(x, axes=[1]), r"squeeze: axes must have size 1, got \[1\] of float32\[n, 3\]"),
    (lambda b, x, v: b.squeeze(x, axes=[2]), r"axes must be in \[0, 2\), got \[2\]"),
    (lambda b, x, v: b.unsqueeze(x, [1, 1]), r"axes must differ, got \[1, 1\]"),
    (lambda b, x, v: b.unsqueeze(x, [3]), r"axes must be in \[0, 3\), got \[3\]"),
    (lambda b, x, v: b.unsqueeze(x, list(range(7))), r"at most 8 dimensions, got 9"),
    (lambda b, x, v: b.reshape_to_2d(x, axis=3), r"axis must be in \[0, 2\], got 3"),
    (lambda b, x, v: b.shape(np.float32(1)), r"shape: input must have a rank in \[1, 8\], got float32\[\]"),
    (lambda b, x, v: b.modulus_floor(x, v), r"modulus_floor: b must have the data type of a, float32, got int32\[2\]"),
]


@pytest.mark.parametrize(("call", "message"), BUILD_ERRORS, ids=[message for _, message in BUILD_ERRORS])
def test_build_refuses(call: Callable[[Any, Any, Any], Any], message: str) -> None:
    builder = ow.MLGraphBuilder(context_on("reference"))
    with pytest.raises(ow.ValidationError, match=message):
        call(builder, builder.input("x", "float32", ["n", 3]), builder.input("v", "int32", [2]))


RUN_ERRORS: list[tuple[Callable[[Any, Any], Any], str]] = [
    (
        lambda b, x: b.reshape_dynamic(x, vector(b, head(b, x) / np.uint32([2]), 6), label="halves"),
        r"compute: reshape_dynamic 'halves': new_shape must have the 15 elements of .*, got \[2, 6\]: 12; the sizes are n = 5",
    ),
    (
        lambda b, x: b.slice_dynamic(x, np.int32([0, 0]), b.cast(b.shape(x), "int32") - np.int32([7, 0])),
        r"slice_dynamic: sizes must not be negative, got \[-2, 3\]; the sizes are n = 5",
    ),
    (
        lambda b, x: b.slice_dynamic(x, np.int32([0, 0]), b.shape(x) - np.uint32([7, 0])),
        r"slice_dynamic: starts \[0, 0\] \+ sizes \[4294967294, 3\] must be within \[5, 3\]",
    ),
    (
        lambda b, x: b.squeeze(b.slice_dynamic(x, np.int32([0, 0]), vector(b, head(b, x) / np.uint32([5]), 3))),
        r"squeeze: the rank .* must not depend on sizes: .* float32\[n // 5, 3\], and a size of 1 makes it float32\[3\]",
    ),
    (
        lambda b, x: b.squeeze(x, axes=[0]),
        r"squeeze: axes must have size 1, got \[0\] of float32\[5, 3\]; the sizes are n = 5",
    ),
    (
        lambda b, x: b.expand_dynamic(x, b.concat([np.uint32([4]), b.slice(b.shape(x), [1], [1])], 0)),
        r"expand_dynamic: float32\[5, 3\] cannot be broadcast to new_shape \[4, 3\]",
    ),
    (
        lambda b, x: b.split_dynamic(x, vector(b, 4, head(b, x) / np.uint32([2])))[0],
        r"split_dynamic: splits must add up to the 5 elements of axis 0, got \[4, 2\]",
    ),
    (
        lambda b, x: b.tile_dynamic(x, vector(b, head(b, x) * np.uint32([2**30]), 1)),
        r"tile_dynamic: .*must have dimensions in \[0, 2147483647\]",
    ),
]


@pytest.mark.parametrize(("call", "message"), RUN_ERRORS, ids=[message for _, message in RUN_ERRORS])
def test_run_refuses(context: ow.MLContext, call: Callable[[Any, Any], Any], message: str) -> None:
    builder = ow.MLGraphBuilder(context)
    graph = builder.build({"y": call(builder, builder.input("x", "float32", ["n", 3]))})
    with pytest.raises(ow.ValidationError, match=message):
        context.compute(graph, {"x": np.ones((5, 3), "float32")})


def test_wrapped_sizes_that_contradict_the_formula_are_refused() -> None:
    builder = ow.MLGraphBuilder(context_on("reference"))
    x = builder.input("x", "float32", ["n", "m"])
    product = builder.reduce_product(builder.shape(x), keep_dimensions=True)
    graph = builder.build({"y": builder.expand_dynamic(np.float32([0]), product)})
    assert graph.outputs["y"].shape == (ow.Size("n") * ow.Size("m"),)
    with pytest.raises(
        ow.ValidationError, match=r"m\*n is 4295098369, but an integer type of the operands makes it 131073"
    ):
        graph.compute_shapes({"x": [2**16 + 1, 2**16 + 1]})


def test_node_of_which_only_the_shape_is_read_does_not_check_its_input(context: ow.MLContext) -> None:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [1, "n", 4])
    tables = [builder.input(name, "float32", ["rows", 2]) for name in ("cosines", "sines")]
    turned = rotary_embedding(builder, x, *tables, heads=1, positions=builder.input("positions", "int64", [1, "n"]))
    feeds = {"x": np.ones((1, 3, 4), "float32"), "positions": np.array([[0, 7, 1]])}
    feeds |= dict.fromkeys(("cosines", "sines"), np.ones((2, 2), "float32"))
    graph = builder.build({"shape": builder.shape(turned)})
    assert context.compute(graph, feeds)["shape"].tolist() == [1, 3, 4]
    reading = ow.MLGraphBuilder(context)
    x = reading.input("x", "float32", [1, "n", 4])
    tables = [reading.input(name, "float32", ["rows", 2]) for name in ("cosines", "sines")]
    turned = rotary_embedding(reading, x, *tables, heads=1, positions=reading.input("positions", "int64", [1, "n"]))
    graph = reading.build({"shape": reading.shape(turned), "turned": turned})
    with pytest.raises(ow.ValidationError, match=r"positions must be in \[0, 1\]"):
        context.compute(graph, feeds)


def test_range_of_a_chain_in_another_part_of_the_graph() -> None:
    context = context_on("cpu")

    @ow.op
    def negated(self: Any, x: ow.MLOperand) -> ow.Desc:
        return x.desc

    @negated.kernel("cpu")
    def _(x: np.ndarray, out: np.ndarray) -> None:
        out[...] = -x.astype("int64")

    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", ["n"])
    count = builder.shape(x) + np.uint32([1])
    doubled = builder.cast(count * np.uint32([2]), "int64")
    data = negated(builder, doubled)
    numbers = builder.range(0, builder.reduce_min(doubled), 1)
    graph = builder.build({"count": doubled, "y": builder.mul(numbers, data), "x": negated(builder, x)})
    for n in (2, 4):
        results = context.compute(graph, {"x": np.ones(n, "float32")})
        assert results["y"].tolist() == [-k * 2 * (n + 1) for k in range(2 * (n + 1))]


@pytest.mark.parametrize("mode", ["reflection", "edge"])
def test_paddings_of_eight_names(context: ow.MLContext, mode: Any) -> None:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [f"n{k}" for k in range(8)])
    padding = builder.shape(x) / np.uint32(2)
    graph = builder.build({"y": builder.pad_dynamic(x, padding, padding, mode=mode)})
    array = np.arange(2 * 3 * 3, dtype="float32").reshape(2, 3, 3, 1, 1, 1, 1, 1)
    widths = [(size // 2, size // 2) for size in array.shape]
    expected = np.pad(array, widths, "reflect" if mode == "reflection" else "edge")
    assert np.array_equal(context.compute(graph, {"x": array})["y"], expected)


def test_drafts_need_the_switch() -> None:
    context = ow.ml.create_context(device="reference")
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [2, 3])
    with pytest.raises(ow.ValidationError, match=r"squeeze 's': .*draft.*create_context\(drafts=True\)"):
        builder.squeeze(x, label="s")
    assert not DRAFTS.keys() & context.op_support_limits().keys()
    limits = context_on("reference").op_support_limits()
    assert set(DRAFTS) <= limits.keys()
    assert limits["reshape_dynamic"]["new_shape"] == {"data_types": list(INTEGERS), "rank_range": {"min": 1, "max": 1}}
    assert x.shape == (2, 3)
    assert not any(hasattr(ow.ops, name) for name in DRAFTS)


def test_cases_call_all_drafts() -> None:
    assert len(DRAFTS) == 14
    assert {name.partition("-")[0] for name in CASES} == set(DRAFTS)
    assert all(isinstance(op, Op) and op.is_draft for op in DRAFTS.values())


# Files ----------------------------------------------------------------------------------------------------------------

OPERATORS = {
    "shape": "Shape", "range": "Range", "squeeze": "Squeeze", "unsqueeze": "Unsqueeze", "reshape_to_2d": "Flatten",
    "reshape_dynamic": "Reshape", "expand_dynamic": "Expand", "slice_dynamic": "Slice", "pad_dynamic": "Pad",
    "split_dynamic": "Split", "resample2d_dynamic": "Resize", "tile_dynamic": "Tile",
    "modulus_floor": "Mod", "modulus_truncate": "Mod",
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_saved_model_computes_sizes(name: str, tmp_path: Path) -> None:
    onnx, ort = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    case = CASES[name]
    builder = ow.MLGraphBuilder(context_on("cpu"))
    results = as_tuple(case.call(builder, builder.input("x", "float32", case.shape)))  # type: ignore[arg-type]
    path = tmp_path / "model.onnx"
    ow.onnx.save(builder.build({f"y{k}": result for k, result in enumerate(results)}), path)
    assert OPERATORS[name.partition("-")[0]] in {node.op_type for node in onnx.load(path).graph.node}
    session = ort.InferenceSession(path)
    for sizes in SIZES:
        array = values("float32", at(case.shape, sizes))
        for value, expected in zip(session.run(None, {"x": array}), as_tuple(case.witness(array)), strict=True):
            np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize("name", CASES)
def test_javascript_calls_the_draft(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    builder = ow.MLGraphBuilder(context_on("cpu"))
    results = as_tuple(case.call(builder, builder.input("x", "float32", case.shape)))  # type: ignore[arg-type]
    ow.js.save(builder.build({f"y{k}": result for k, result in enumerate(results)}), tmp_path / "model.js")
    text = (tmp_path / "model.js").read_text()
    assert f"builder.{camel_case(name.partition('-')[0])}(" in text
    assert f'x: {{ dataType: "float32", shape: {str(case.shape).replace(chr(39), chr(34))} }},' in text


def test_javascript_refuses_numbers_that_depend_on_sizes(tmp_path: Path) -> None:
    builder = ow.MLGraphBuilder(context_on("cpu"))
    x = builder.input("x", "float32", ["n", 2])
    graph = builder.build({"y": builder.reshape(x, [x.shape[0] * 2], label="flat")})
    with pytest.raises(
        ow.NotSupportedError,
        match=r"reshape 'flat': newShape must not have sizes with names in JavaScript, got \[2\*n\]",
    ):
        ow.js.save(graph, tmp_path / "model.js")


def test_reductions_of_no_sizes(context: ow.MLContext) -> None:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", ["n"])
    none = builder.slice(builder.shape(x), [0], [0])
    results = {
        name: getattr(builder, name)(none, keep_dimensions=True)
        for name in ("reduce_sum", "reduce_product", "reduce_max")
    }
    outputs = {name: builder.expand_dynamic(np.float32([1]), result) for name, result in results.items()}
    graph = builder.build({**outputs, "sum": results["reduce_sum"]})
    shapes = {name: array.shape for name, array in context.compute(graph, {"x": np.ones(3, "float32")}).items()}
    assert shapes == {"reduce_sum": (0,), "reduce_product": (1,), "reduce_max": (0,), "sum": (1,)}


# Programs with names --------------------------------------------------------------------------------------------------


def cell(b: Any, x: Any, gates: int) -> Any:
    """The state of a recurrent cell with one element, a size that has a name in the operands."""
    weight = b.input("weight", "float32", ["rows", x.shape[1]])
    recurrent = b.input("recurrent", "float32", ["rows", "hidden"])
    state = b.input("state", "float32", [3, "hidden"])
    if gates == 3:
        return b.gru_cell(x, weight, recurrent, state, 1)
    return b.lstm_cell(x, weight, recurrent, state, state, 1)[0]


@pytest.mark.parametrize("gates", [3, 4])
def test_results_of_decompositions_have_the_declared_dimensions(context: ow.MLContext, gates: int) -> None:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [3, "n"])
    state = cell(builder, x, gates)
    rows = builder.cast(builder.shape(state), "uint8")
    for op in (builder.min, builder.max, builder.sub):  # of a formula, this would be a long one
        rows = op(rows, np.uint8([0]))
        rows = builder.cast(builder.cast(rows, "int64"), "uint8")
    graph = builder.build({"squeezed": builder.squeeze(state), "tiled": builder.tile_dynamic(state, rows)})
    assert graph.outputs["squeezed"].shape == (3,)
    for n in (2, 5):
        feeds = {
            "x": np.ones((3, n), "float32"),
            "weight": np.ones((gates, n), "float32"),
            "recurrent": np.ones((gates, 1), "float32"),
            "state": np.ones((3, 1), "float32"),
        }
        results = context.compute(graph, feeds)
        assert results["squeezed"].shape == (3,)
        assert results["tiled"].shape == (0, 0)


def test_composites_with_names_give_chains_their_declared_sizes(context: ow.MLContext) -> None:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "uint32", ["n", "n", "m"])
    cropped = center_crop_pad(builder, x, [x.shape[0], 7, 6], axes=[0, 1, 2])
    sizes = builder.slice(builder.shape(cropped), [1], [1])
    for _ in range(3):  # of a formula, the last one would be a long one
        sizes = builder.cast(builder.cast(sizes, "uint8"), "int64")
        sizes = builder.min(builder.max(sizes, np.int64([3])), np.int64([9]))
    times = builder.concat([builder.min(sizes, np.int64([2]))] * 3, 0)
    graph = builder.build({"y": builder.tile_dynamic(cropped, times)})
    for n, m in ((4, 5), (9, 2), (4, 6)):
        array = np.arange(n * n * m, dtype="uint32").reshape(n, n, m)
        once = context.compute(graph, {"x": array})["y"]
        assert once.shape == (2 * n, 14, 12)
        np.testing.assert_array_equal(once[:n, :7, :6], once[n:, 7:, 6:])


def test_repetitions_that_wrap_around(context: ow.MLContext) -> None:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", ["n"])
    graph = builder.build({"y": builder.tile_dynamic(x, builder.shape(x) - np.uint32([9]))})
    for n, expected in ((11, 22), (0, 0), (12, 36), (0, 0), (10, 10)):
        assert context.compute(graph, {"x": np.ones(n, "float32")})["y"].shape == (expected,)
    if context.device.name == "cpu":
        reason = "tile_dynamic: repetitions must not be negative, got [n - 9]"
        assert f"compiled for numbers where formulas of sizes do not hold: {reason}" in graph.explain()
    with pytest.raises(ow.ValidationError, match="tile_dynamic: "):
        context.compute(graph, {"x": np.ones(3, "float32")})


def test_names_are_not_tried_again_where_they_failed(context: ow.MLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", ["n", "m"])
    rows, columns = builder.split(builder.shape(x) - np.uint32([9, 0]), 2)
    graph = builder.build({"y": builder.tile_dynamic(x, builder.concat([rows, columns], 0))})
    attempts: list[Any] = []
    attempt = DynamicGraphState._open_program

    def counted(*args: Any) -> Any:
        attempts.append(args)
        return attempt(*args)

    monkeypatch.setattr(DynamicGraphState, "_open_program", counted)
    is_compiled = context.device.name == "cpu"
    for n, m, attempted in ((0, 3, 1), (0, 5, 1), (0, 8, 1), (11, 3, 2), (12, 4, 2), (0, 7, 2)):
        y = context.compute(graph, {"x": np.ones((n, m), "float32")})["y"]
        assert y.shape == (n and n * (n - 9), m * m)
        assert len(attempts) == (attempted if is_compiled else 0)
    assert is_compiled == ("compiled for numbers where" in graph.explain())


@pytest.mark.parametrize("data_type", ["int64", "uint64"])
def test_sizes_that_no_attribute_can_hold(context: ow.MLContext, data_type: Any) -> None:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", ["n"])
    sizes = builder.cast(builder.cast(builder.shape(x), "int8") - np.int8([2]), data_type)
    graph = builder.build({"y": builder.tile_dynamic(x, sizes * np.array([2**40], data_type))})
    assert graph.compute_shapes({"x": [2]}) == {"y": (0,)}
    message = "repetitions must not be negative" if data_type == "int64" else "repetitions must be at most 4294967295"
    with pytest.raises(ow.ValidationError, match=message):
        graph.compute_shapes({"x": [0]})
    with pytest.raises(ow.ValidationError, match="repetitions must be at most 4294967295, got"):
        context.compute(graph, {"x": np.ones(3, "float32")})


def test_range_whose_step_wraps_around(context: ow.MLContext) -> None:
    builder = ow.MLGraphBuilder(context)
    count = builder.cast(builder.reduce_max(builder.shape(builder.input("x", "float32", ["n"]))), "uint64")
    graph = builder.build({"y": builder.range(count, 9, builder.max(count - 2, 0))})
    for n, expected in ((1, [1]), (3, [3, 4, 5, 6, 7, 8]), (4, [4, 6, 8]), (0, [0]), (9, [])):
        assert context.compute(graph, {"x": np.ones(n, "float32")})["y"].tolist() == expected, n
    with pytest.raises(ow.ValidationError, match="delta must not be 0"):
        context.compute(graph, {"x": np.ones(2, "float32")})


def test_casts_keep_the_lowest_bits(context: ow.MLContext) -> None:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", ["n"])
    start = builder.cast(builder.squeeze(builder.shape(x) - np.uint32([4])), "int32")
    graph = builder.build({"y": builder.range(start, 2, 1)})
    assert graph.outputs["y"].shape == (larger(6 - ow.Size("n"), 0),)
    for n in (3, 5, 1, 6, 8):
        assert context.compute(graph, {"x": np.ones(n, "float32")})["y"].tolist() == list(range(n - 4, 2))


def test_value_of_a_chain_that_is_no_formula_of_its_integer_type() -> None:
    """Products of 32 bits wrap around, which formulas do not: a program with names would begin elsewhere."""
    context = context_on("cpu")
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "uint8", ["n"])
    size = builder.cast(builder.shape(x), "int32")
    product = builder.mul(size, builder.mul(size, np.int32([2**28 + 1])))
    start = builder.min(builder.max(product, np.int32([0])), np.int32([1]))
    graph = builder.build({"y": builder.slice_dynamic(x, start, np.int32([1]))})
    for n in (2, 3, 5, 2, 6):
        wrapped = np.int64(n * n * (2**28 + 1)).astype("int32")
        expected = min(max(int(wrapped), 0), 1)
        assert context.compute(graph, {"x": np.arange(n, dtype="uint8")})["y"].tolist() == [expected], n


def test_function_with_a_loop_is_not_tried_for_huge_sizes() -> None:
    context = context_on("reference")
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", ["n"])
    size = builder.cast(builder.shape(x) - np.uint32([12]), "int64")  # 4,294,967,295 for n = 11
    rows = builder.expand_dynamic(np.float32([1]), size)

    @ow.composite
    def added_up(b: Any, x: Any) -> Any:
        total = b.reduce_sum(x, axes=[0], keep_dimensions=True) * 0
        for k in range(x.shape[0]):
            total = total + b.slice(x, [k], [1])
        return total

    graph = builder.build({"y": added_up(builder, rows)})
    assert context.compute(graph, {"x": np.ones(15, "float32")})["y"].tolist() == [3]
