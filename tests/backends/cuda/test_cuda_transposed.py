"""Transposed convolutions on tensor cores, by Triton's interpreter against NumPy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from triton_cases import WGMMA_TF32, F, array, check_kernels, instructions, steps_of

import opweave as ow
from opweave import composites
from opweave.backends.cuda import compiler
from opweave.backends.gpu.contraction import tensor_tiles
from opweave.backends.gpu.contraction.tensor import TensorTile
from opweave.expr.gpu import TensorCores

pytestmark = [
    pytest.mark.skipif(not compiler.triton_version(), reason="needs the extra cuda: make test-cuda"),
    pytest.mark.usefixtures("small_tiles"),
]

CASES: list[tuple[int, int, tuple[int, int], int, dict[str, Any]]] = [
    (1, 32, (6, 5), 32, {"filter": (4, 4), "strides": [2, 2], "padding": [1, 1, 1, 1]}),
    (2, 32, (5, 4), 40, {"filter": (3, 3), "strides": [2, 2], "padding": [1, 0, 0, 1], "output_padding": [1, 1]}),
    (2, 20, (4, 6), 33, {"filter": (5, 3), "strides": [3, 2], "padding": [2, 1, 1, 0]}),
    (1, 64, (5, 5), 64, {"filter": (2, 2), "strides": [2, 2], "groups": 2}),
    (1, 32, (4, 4), 32, {"filter": (2, 3), "strides": [3, 4]}),  # phases without a tap
    (1, 32, (5, 4), 32, {"filter": (3, 3), "strides": [2, 2], "output_sizes": [12, 9]}),
    (2, 32, (6, 7), 36, {"filter": (3, 3), "padding": [1, 1, 1, 1]}),
    (1, 32, (6, 7), 32, {"filter": (3, 2), "dilations": [2, 3], "padding": [1, 2, 0, 1]}),
]
"""Batches, channels, size, output channels, options."""


def transposed(case: int, layout: Any, data_type: str = "float32") -> tuple[Any, np.ndarray, np.ndarray]:
    """The function that builds a case, the image and the filter."""
    batches, channels, size, outputs, more = CASES[case]
    options = dict(more)
    height, width = options.pop("filter")
    image = array(batches, channels, *size, data_type=data_type)
    filter = array(channels, outputs // options.get("groups", 1), height, width, data_type=data_type)
    if layout == "nhwc":
        image = np.ascontiguousarray(image.transpose(0, 2, 3, 1))

    def build(b: ow.MLGraphBuilder, x: Any, w: Any, *others: Any) -> Any:
        found = b.conv_transpose2d(x, w, input_layout=layout, **options)
        for other in others:
            found = b.add(found, other)
        return b.relu(found) if others else found

    return build, image, filter


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_options(case: int, layout: Any) -> None:
    """Each phase of the strides is a convolution of its own, of one kernel."""
    build, image, filter = transposed(case, layout)
    check_kernels(build, image, filter)


@pytest.mark.parametrize(
    ("size", "taps", "options"),
    [
        ((3, 4, 3), (3, 3, 2), {"strides": [2, 1, 3], "padding": [1, 0, 1, 1, 0, 0], "output_padding": [1, 0, 2]}),
        ((4, 3, 4), (2, 2, 2), {"strides": [2, 2, 2], "groups": 2}),
        ((3, 4, 5), (3, 2, 3), {"dilations": [1, 2, 1], "padding": [1, 1, 0, 0, 1, 2]}),
        ((30,), (5,), {"strides": [3]}),
    ],
)
def test_transposed_convolution_of_any_axes(
    size: tuple[int, ...], taps: tuple[int, ...], options: dict[str, Any]
) -> None:
    image, filter = array(2, 32, *size), array(32, 32 // options.get("groups", 1), *taps)
    check_kernels(lambda b, x, w: composites.conv_transpose(x, w, **options), image, filter)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("case", [1, 3])
def test_conv_transpose2d_epilogue_is_fused(case: int, layout: Any) -> None:
    """A bias, a residual, and an array that changes along the width only."""
    build, image, filter = transposed(case, layout)
    reference = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
    operands = [reference.input(name, "float32", a.shape) for name, a in (("x", image), ("w", filter))]
    shape = build(reference, *operands).shape
    nchw = layout == "nchw"
    channels, width = (shape[1], shape[3]) if nchw else (shape[3], shape[2])
    bias = array(*((1, channels, 1, 1) if nchw else (channels,)))
    check_kernels(build, image, filter, bias, array(*shape), array(*((width,) if nchw else (width, 1))))


@pytest.mark.parametrize("small_tiles", [3], indirect=True)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_parts_of_sums_are_added(layout: Any) -> None:
    build, image, filter = transposed(0, layout)
    check_kernels(build, image, filter, kernels=("triton", ""))


def test_halves() -> None:
    build, image, filter = transposed(1, "nchw", "float16")
    check_kernels(build, image, filter, tolerance=1e-3)


@pytest.mark.parametrize("layout", ["iohw", "hwoi", "ohwi"])
def test_layouts_of_filters(layout: Any) -> None:
    filter = np.ascontiguousarray(array(32, 40, 3, 3).transpose(["iohw".index(letter) for letter in layout]))
    check_kernels(
        lambda b, x, w: b.conv_transpose2d(x, w, strides=[2, 1], filter_layout=layout),
        *(array(1, 32, 5, 6), filter),
    )


@pytest.mark.parametrize("case", [6, 7])
def test_conv_transpose2d_of_computed_filter(case: int) -> None:
    """They are read as they are, without strides."""
    build, image, filter = transposed(case, "nchw")
    check_kernels(build, image, filter, constants=())


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_120"])
def test_kernels_compile(architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For sm_90 to wgmma of TF32."""
    monkeypatch.setenv("OPWEAVE_CACHE", str(tmp_path))
    monkeypatch.setattr(tensor_tiles, "choose", lambda *_: (TensorTile(64, 64, 32, 4, 3), 1))
    build, image, filter = transposed(3, "nchw")
    (step,) = steps_of(build, (image, filter), (1,), replace(F, tensor_cores=TensorCores("tf32", 99 << 10)))
    (binary,) = compiler.binaries([step.kernel], architecture)
    assert 0 < binary.shared <= 99 << 10
    assert any(map(WGMMA_TF32.fullmatch, instructions(binary.image, tmp_path))) == (architecture == "sm_90")


def test_conv_transpose2d_tensor_core_conditions() -> None:
    build, image, filter = transposed(0, "nchw")
    apart: Any = lambda b, x, w: b.conv_transpose2d(x, w, strides=[2, 2], dilations=[2, 2])  # noqa: E731
    cases: list[tuple[Any, tuple[int, ...]]] = [(build, ()), (apart, (1,))]  # nothing divides these filters
    for each, constants in cases:
        assert {step.kernel.compiler for step in steps_of(each, (image, filter), constants, F)} == {""}
