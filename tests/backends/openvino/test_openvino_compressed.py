"""Constants of 8 bits that OpenVINO keeps as such for lookups and products: it takes all scales for those of columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.graphs import outputs_of
from support.openvino_device import openvino_context

import opweave as ow
from opweave.backends.openvino import openvino
from opweave.backends.openvino.sessions import compile
from opweave.core.graph import Graph

Shape = tuple[int, ...]

FORMS = ("dequantize_linear", "product", "product of float16", "difference and product")


def more(*forms: str) -> list[Any]:
    """Rows that are in no sample."""
    return [pytest.param(form, marks=pytest.mark.covers()) for form in forms]


def dequantised(b: Any, form: str, array: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> Any:
    """The floats for a constant, by the operation or written out."""
    if form == "dequantize_linear":
        return b.dequantize_linear(b.constant(array), b.constant(scale), b.constant(zero))
    data_type = "float16" if "float16" in form else "float32"
    x = b.cast(b.constant(array), data_type)
    if form.startswith("difference"):
        x = b.sub(x, b.constant(zero.astype(data_type)))
    return b.cast(b.mul(x, b.constant(scale.astype(data_type))), "float32")


def constants(data_type: str, shape: Shape, part: Shape, zero: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Integers, scales that differ much, and zero points."""
    rng = np.random.default_rng([*shape, *part, zero])
    info = np.iinfo(data_type)  # type: ignore[type-var]
    scale = rng.uniform(0.01, 0.1, part).astype(np.float32)
    zeros = np.clip(rng.integers(0, 9, part) + zero, info.min, info.max) if zero else np.zeros(part)
    return rng.integers(info.min, info.max, shape, data_type, endpoint=True), scale, zeros.astype(data_type)


def check_compressed(build: Any, feeds: dict[str, np.ndarray], tolerance: float = 1e-5) -> None:
    """Compare OpenVINO's results with the reference's."""
    contexts = openvino_context(), ow.ml.create_context(device="reference")
    ours, theirs = (outputs_of(context, build, feeds) for context in contexts)
    for name, wanted in theirs.items():
        np.testing.assert_allclose(ours[name], wanted, rtol=tolerance, atol=tolerance * np.abs(wanted).max())


TABLES: list[tuple[Shape, Shape]] = [
    ((50,), (50,)),
    ((50,), (1,)),
    ((50, 16), (1, 16)),
    ((50, 16), (50, 1)),
    ((50, 16), (1, 1)),
    ((50, 16), (50, 16)),
    ((9, 3, 16), (1, 1, 16)),
    ((9, 3, 16), (1, 3, 1)),
    ((4, 9, 2, 8), (1, 9, 1, 1)),
    ((4, 9, 2, 8), (1, 1, 1, 8)),
]

ROUTES = {
    "transposed": lambda b, d: b.transpose(d),
    "reshaped": lambda b, d: b.reshape(d, [*d.shape, 1]),
    "sliced": lambda b, d: b.slice(d, [0] * d.rank, [max(1, size - 1) for size in d.shape]),
}


@pytest.mark.parametrize("form", [*FORMS[::3], *more(*FORMS[1:3])])
@pytest.mark.parametrize(("shape", "part"), TABLES)
def test_gather_from_dequantised_tables(shape: Shape, part: Shape, form: str) -> None:
    """Along each axis; numbers were wrong, and memory beyond the scales was read and written."""
    data_type = "uint8" if (len(shape) + sum(part) + len(form)) % 2 else "int8"
    known = constants(data_type, shape, part, 0 if form.startswith("product") else 3)

    def build(b: Any, i: Any) -> Any:
        table = dequantised(b, form, *known)
        looked = {f"directly {axis}": b.gather(table, i, axis=axis) for axis in range(len(shape))}
        looked |= {name: b.gather(route(b, table), i, axis=len(shape) - 1) for name, route in ROUTES.items()}
        fixed = b.gather(table, b.constant(np.array([[1, -2]], np.int32)))
        looked["read twice"] = b.mul(b.gather(table, i), b.cast(b.reduce_max(i), "float32"))
        looked["positions known"] = b.mul(fixed, b.cast(b.reduce_max(i), "float32"))
        return looked

    check_compressed(build, {"i": np.array([[3, 0, -1], [1, 99, 2]], np.int64)}, 1e-5 if "16" not in form else 2e-3)


@pytest.mark.parametrize("form", FORMS)
def test_gather_of_dequantised_table(form: str) -> None:
    known = constants("uint8", (50, 16), (1, 16), 0 if form.startswith("product") else 5)

    def build(b: Any, i: Any) -> Any:
        table = dequantised(b, form, *known)
        rows = b.gather(table, i)
        return {
            "elements": b.gather_elements(table, b.cast(b.expand(b.reshape(i, [3, 1]), [3, 16]), "int32")),
            "nd": b.gather_nd(table, b.reshape(i, [3, 1])),
            "product": b.matmul(rows, b.constant(np.linspace(-1, 1, 64, dtype=np.float32).reshape(16, 4))),
            "split": b.split(rows, 2, axis=1)[1],
        }

    check_compressed(build, {"i": np.array([3, 49, 7], np.int64)}, 1e-5 if "16" not in form else 2e-3)


def test_gather_keeps_tables_in_8_bits() -> None:
    b = ow.MLGraphBuilder(openvino_context())
    table = dequantised(b, "dequantize_linear", *constants("int8", (1000, 64), (1, 64), 3))
    graph = Graph.reaching({"y": b.gather(table, b.input("i", "int32", [5]))})
    nodes = compile(openvino, graph, "cpu")._compiled.get_runtime_model().get_ordered_ops()
    large = [
        node.get_output_element_type(0).get_type_name()
        for node in nodes
        if node.get_output_size() and list(node.get_output_shape(0)) == [1000, 64]
    ]
    assert large == ["i8"]


def product(b: Any, name: str, x: Any, w: Any) -> Any:
    if name == "turned":
        return b.matmul(x, b.transpose(w))
    if name == "gemm turned":
        return b.gemm(x, w, b_transpose=True)
    if name == "einsum":
        return b.matmul(b.reshape(x, [x.shape[0], 1, x.shape[1]]), w)
    if name == "left":
        return b.matmul(w, b.transpose(x))
    return getattr(b, name)(x, w)


@pytest.mark.parametrize("form", [FORMS[0], *more(*FORMS[1:])])
@pytest.mark.parametrize("part", ["rows", "columns", "one", "all"])
@pytest.mark.parametrize("name", ["matmul", "gemm", "turned", "gemm turned", "einsum", "left"])
def test_products_of_few_rows_by_dequantised_weights(name: str, part: str, form: str) -> None:
    """Scales of rows, which are summed over, were taken for those of columns: results were off by 29 to 155%."""
    depth, columns = 64, 32
    shape = (columns, depth) if name in ("turned", "gemm turned", "left") else (depth, columns)
    size: Shape = {
        "rows": (shape[0], 1),
        "columns": (1, shape[1]),
        "one": (1, 1),
        "all": shape,
    }[part]
    for data_type, rows in (("int8", 1), ("uint8", 2), ("int8", 4), ("uint8", 17)):
        known = constants(data_type, shape, size, 0 if form.startswith("product") else 7)
        x = np.random.default_rng(rows).standard_normal((rows, depth)).astype(np.float32)
        check_compressed(
            lambda b, x, known=known: {"y": product(b, name, x, dequantised(b, form, *known))}, {"x": x}, 2e-3
        )


@pytest.mark.parametrize("axis", [None, 0, 1, 2])
@pytest.mark.parametrize("name", ["conv2d", "conv_transpose2d", "groups", "batches"])
def test_products_by_dequantised_weights_of_other_operations(name: str, axis: int | None) -> None:
    shapes = {"conv2d": (6, 4, 3, 3), "conv_transpose2d": (4, 6, 3, 3), "groups": (4, 1, 3, 3), "batches": (2, 8, 16)}
    shape: Shape = shapes[name]
    part = tuple(size if number == axis else 1 for number, size in enumerate(shape))
    size = (2, 3, 8) if name == "batches" else (1, 4, 7, 7)
    x = np.random.default_rng(0).standard_normal(size).astype(np.float32)

    def build(b: Any, x: Any, known: Any) -> Any:
        w = dequantised(b, "dequantize_linear", *known)
        if name == "groups":
            return {"y": b.conv2d(x, w, groups=4)}
        return {"y": b.matmul(x, w) if name == "batches" else getattr(b, name)(x, w)}

    for data_type, zero in (("int8", 0), ("uint8", 7)):
        known = constants(data_type, shape, part, zero)
        check_compressed(lambda b, x, known=known: build(b, x, known), {"x": x}, 1e-4)


@pytest.mark.parametrize("form", FORMS[:2])
def test_weights_with_scales_of_columns_stay_in_8_bits(form: str) -> None:
    b = ow.MLGraphBuilder(openvino_context())
    weights = dequantised(b, form, *constants("int8", (256, 512), (1, 512), 0))
    graph = Graph.reaching({"y": b.matmul(b.input("x", "float32", [1, 256]), weights)})
    nodes = compile(openvino, graph, "cpu")._compiled.get_runtime_model().get_ordered_ops()
    sizes = [(node.get_output_element_type(0).get_type_name(), list(node.get_output_shape(0))) for node in nodes]
    assert [kind for kind, shape in sizes if sorted(shape) == [256, 512]][:1] == ["i8"], sizes
    assert not [kind for kind, shape in sizes if sorted(shape) == [256, 512] and kind == "f32"], sizes
