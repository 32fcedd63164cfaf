"""Products of few vectors: four lines of the matrix for an invocation, turns, and early loads; as C++ on the processor."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from triton_cases import Build, F, array, check_kernels, steps_of

import opweave as ow
from opweave import composites
from opweave.backends.gpu.contraction import gemv

FEATURES = replace(F, tensor_cores=None)
TOLERANCES = {"float32": 1e-5, "float16": 3e-3}


def four_lines(build: Build, *arrays: np.ndarray, constants: tuple[int, ...] = (1,)) -> None:
    """Check the results; the last kernel of a product computes four lines in an invocation."""
    steps = steps_of(build, arrays, constants, FEATURES)
    products = [step.kernel for step in steps if isinstance(step.kernel, gemv.ThinKernel)]
    assert products
    assert all("fours of lines" in kernel.source for kernel in products)
    tolerance = TOLERANCES[arrays[0].dtype.name]
    check_kernels(
        build, *arrays, constants=constants, kernels=[""] * len(steps), tolerance=tolerance, features=FEATURES
    )


def biased(b: ow.MLGraphBuilder, x: Any, w: Any, bias: Any) -> Any:
    return b.relu(b.add(b.matmul(x, w), bias))


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("data_type", ["float32", "float16"])
@pytest.mark.parametrize(("rows", "terms", "columns"), [(2, 2048, 36), (3, 2080, 32), (4, 4096, 20), (12, 2048, 1028)])
def test_rows(rows: int, terms: int, columns: int, data_type: str) -> None:
    """With terms that are no multiple of a round, lines that are none of a workgroup, and parts that do not all fit."""
    shapes = (rows, terms), (terms, columns), (columns,)
    four_lines(biased, *(array(*shape, data_type=data_type) for shape in shapes))


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("data_type", ["float32", "float16"])
@pytest.mark.parametrize(
    ("left", "right", "constant"),
    [
        ((36, 2048), (2048, 3), 0),  # the vectors are columns
        ((3, 4, 2048), (3, 2048, 24), 1),
        ((3, 2, 3, 2048), (1, 2, 2048, 24), 1),
    ],
)
def test_orders(left: tuple[int, ...], right: tuple[int, ...], constant: int, data_type: str) -> None:
    operands = array(*left, data_type=data_type), array(*right, data_type=data_type)
    four_lines(lambda b, x, y: b.matmul(x, y), *operands, constants=(constant,))


@pytest.mark.long
@pytest.mark.parametrize("data_type", ["float32", "float16"])
def test_products_of_the_same_vectors(data_type: str) -> None:
    """As one epilogue, and as sections of one kernel."""
    x, w, v = (array(*shape, data_type=data_type) for shape in ((3, 2048), (2048, 64), (2048, 32)))

    def gated(b: ow.MLGraphBuilder, x: Any, w: Any, u: Any) -> Any:
        gate = b.matmul(x, w)
        return b.mul(b.mul(gate, b.sigmoid(gate)), b.matmul(x, u))

    four_lines(gated, x, w / 32, w / 40, constants=(1, 2))
    four_lines(lambda b, x, w, v: b.concat([b.matmul(x, w), b.matmul(x, v)], axis=1), x, w, v, constants=(1, 2))


def test_gemv_has_one_line_per_team() -> None:
    (step,) = steps_of(biased, (array(1, 4096), array(4096, 64), array(64)), (1,), FEATURES)
    assert "4 lines for a workgroup" in step.kernel.source


@pytest.mark.long
def test_gemv_workgroup_computes_several_lines() -> None:
    def gated(b: ow.MLGraphBuilder, x: Any, scale: Any, w: Any, v: Any) -> Any:
        few = composites.rms_normalization(b, x, scale)
        return b.mul(b.sigmoid(b.matmul(few, w)), b.matmul(few, v))

    arrays = array(1, 2048), array(2048), array(2048, 4096) / 32, array(2048, 4096) / 32
    (step,) = steps_of(gated, arrays, (1, 2, 3), FEATURES)
    assert "lines 4 times for a workgroup" in step.kernel.source
    check_kernels(gated, *arrays, constants=(1, 2, 3), kernels=[""], tolerance=1e-5, features=FEATURES)


@pytest.mark.parametrize("terms", [2048, 8192])
def test_gemv_loads_constants_before_it_waits(terms: int) -> None:
    arrays = array(1, terms), array(terms, 2048), array(2048)
    for constants in (), (1,):
        (step,) = steps_of(biased, arrays, constants, FEATURES)
        head, _, work = step.kernel.source.partition("opweave_kernel(")[2].partition("let number")
        assert ("await_previous();" in work) == (1 in constants)
        assert ("await_previous();" in head) == (1 not in constants)
        before, _, after = work.partition("await_previous();")
        if constants:
            assert re.search(r"\bb0\[", before)
            assert not re.search(r"\ba\[", before)
            assert re.search(r"\ba\[", after)


@pytest.mark.long(rows=1)
@pytest.mark.parametrize(("terms", "columns"), [(2048, 256), (8192, 64), (64, 2048)])
def test_teams_add_up_with_one_barrier(terms: int, columns: int) -> None:
    """Inside of warps there is none: a team is a part of one, or several."""
    arrays = array(1, terms), array(terms, columns), array(columns)
    (step,) = steps_of(biased, arrays, (1,), FEATURES)
    assert step.kernel.source.count("    workgroupBarrier();") == 1
    check_kernels(biased, *arrays, kernels=[""], tolerance=1e-5, features=FEATURES)


@pytest.mark.long
def test_gemv_parts_are_added_in_a_loop() -> None:
    """Workgroups of 1,024 have 32 warps."""
    arrays = array(2, 4096), array(4096, 512), array(512)
    (step,) = steps_of(biased, arrays, (), FEATURES)
    assert step.kernel.invocations == (1024,)
    assert "warp < 32u" in step.kernel.source
    check_kernels(biased, *arrays, constants=(), kernels=[""], tolerance=1e-5, features=FEATURES)


@pytest.mark.long
def test_gemv_addend_is_read_before_sum() -> None:
    def added(b: ow.MLGraphBuilder, x: Any, w: Any, y: Any) -> Any:
        return b.add(b.matmul(x, w), y)

    for rows in (1, 2):
        arrays = array(rows, 2048), array(2048, 64), array(rows, 64)
        (step,) = steps_of(added, arrays, (1,), FEATURES)
        work = step.kernel.source.partition("let number")[2]
        assert ("x0[at]" in work) == (rows == 1)
        if rows == 1:
            assert work.index("await_previous();") < work.index("x0[at]") < work.index("fma(")
        check_kernels(added, *arrays, kernels=[""], tolerance=1e-5, features=FEATURES)


@pytest.mark.long
def test_gemv_constant_scale_is_read_early() -> None:
    def normalized(b: ow.MLGraphBuilder, x: Any, scale: Any, w: Any) -> Any:
        return b.matmul(composites.rms_normalization(b, b.relu(x), scale), w)

    arrays = array(1, 2048), array(2048), array(2048, 4096) / 32
    for constants in (2,), (1, 2):
        (step,) = steps_of(normalized, arrays, constants, FEATURES)
        before, _, after = step.kernel.source.partition("let number")[2].partition("await_previous();")
        assert "x1[" in before  # an input of the graph is not written by its kernels, either
        assert "x1[" not in after
        assert after.count("workgroupBarrier();") == 3
        check_kernels(normalized, *arrays, constants=constants, kernels=[""], tolerance=1e-5, features=FEATURES)


def test_gemv_of_part_of_concat_omits_other_inputs() -> None:
    """The kernel before has no buffer for an input of which all elements are cut off."""

    def cut(b: ow.MLGraphBuilder, x: Any, y: Any, w: Any) -> Any:
        return b.matmul(b.sigmoid(b.slice(b.concat([x, y], 1), [0, 0], [1, 64])), w)

    arrays = array(1, 64), array(1, 64), array(64, 64)
    check_kernels(cut, *arrays, constants=(2,), kernels=[""], tolerance=1e-5, features=FEATURES)
