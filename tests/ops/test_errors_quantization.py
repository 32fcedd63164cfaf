"""What the quantisation operations say about wrong arguments."""

from __future__ import annotations

import pytest

import opweave as ow

CONTEXT = ow.ml.create_context(device="reference")
TYPES = {"dequantize_linear": ("int8", "float32", "int8"), "quantize_linear": ("float32", "float32", "int8")}

ROWS: list[tuple[tuple[int, ...], tuple[int, ...], str]] = [
    ((2, 3), (2, 1), "zero_point must have the shape of scale, got int8[2, 1] and float32[2, 3]"),
    ((3, 3), (3, 3), "the dimensions of scale must divide those of input, got [3, 3] and [4, 6]"),
    ((4, 12), (4, 12), "the dimensions of scale must divide those of input, got [4, 12] and [4, 6]"),
]


def call(name: str, scale: tuple[int, ...], zero_point: tuple[int, ...]) -> None:
    builder = ow.MLGraphBuilder(CONTEXT)
    shapes = {"input": (4, 6), "scale": scale, "zero_point": zero_point}
    operands = [builder.input(n, t, s) for (n, s), t in zip(shapes.items(), TYPES[name], strict=True)]
    getattr(builder, name)(*operands, label="stem")


@pytest.mark.parametrize("name", TYPES)
def test_quantization_valid_calls(name: str) -> None:
    call(name, (2, 3), (2, 3))


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.whole
@pytest.mark.parametrize(("scale", "zero_point", "message"), ROWS)
def test_message(name: str, scale: tuple[int, ...], zero_point: tuple[int, ...], message: str) -> None:
    with pytest.raises(ow.ValidationError) as error:
        call(name, scale, zero_point)
    assert str(error.value) == f"{name} 'stem': {message}"
