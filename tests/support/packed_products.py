"""Products by packed weights in all forms that the rule of GPUs takes, with the kernels of a device, and NumPy's results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from opweave.backends.gpu.contraction.kernels import Contraction, by_table
from opweave.backends.webgpu import webgpu
from opweave.composites import matmul_n_bits, pack_bits
from opweave.core.graph import Desc
from opweave.expr import ir
from opweave.expr.gpu import Features, GpuKernel
from opweave.expr.tracing import inputs_of, make_formula, of_input

NAMES = ("input", "weight", "scale", "zero_point", "bias", "minimum", "upper", "scale_unit", "minimum_unit")


UNITS = ("scale_unit", "minimum_unit")


@dataclass(frozen=True)
class Form:
    """The form of a product.

    Attributes:
        block_terms, block_lines: size of a block along the inner axis, and along the columns, which it divides.
        padding: surplus numbers of a column.
        others: the optional operands, separated by spaces; with "scale_unit", scales are int8, and minima uint8.
        upper_bits: bits of the numbers besides `bits`; blocks and columns are then multiples of 8.
        units: units of a row, which divide the blocks.
    """

    rows: int
    inner: int
    columns: int
    bits: int = 4
    block_terms: int = 32
    block_lines: int = 1
    padding: int = 0
    others: str = ""
    data_type: str = "float32"
    upper_bits: int = 0
    units: int = 1

    def __str__(self) -> str:
        blocks = f"{self.block_lines}x{self.block_terms}"
        others = f"-{self.others.replace(' ', '-')}" if self.others else ""
        bits = f"{self.bits}+{self.upper_bits}" if self.upper_bits else str(self.bits)
        sizes = f"{self.rows}x{self.inner}x{self.columns}"
        return f"{sizes}-{bits}bits-{blocks}+{self.padding}{others}-{self.units}-{self.data_type}"


@dataclass(frozen=True)
class PackedProduct:
    """A product: its form, its operands by name, and the result in float64."""

    form: Form
    arrays: dict[str, np.ndarray]
    expected: np.ndarray

    @property
    def tolerance(self) -> float:
        return 2e-3 if self.form.data_type == "float16" else 1e-5

    def check(self, result: np.ndarray, tolerance: float | None = None) -> None:
        tolerance = self.tolerance if tolerance is None else tolerance
        largest = float(np.abs(self.expected).max())
        shaped = result.reshape(self.expected.shape).astype("float64")
        np.testing.assert_allclose(
            shaped, self.expected, rtol=tolerance, atol=tolerance * largest, err_msg=str(self.form)
        )


def product_of(form: Form, seed: int = 0) -> PackedProduct:
    """Draw the operands."""
    random = np.random.default_rng(seed)
    groups, blocks = form.columns // form.block_lines, -(-form.inner // form.block_terms)
    numbers = random.integers(0, 2 ** (form.bits + form.upper_bits), (form.columns, form.inner + form.padding))
    x = random.standard_normal((form.rows, form.inner)).astype(form.data_type)
    scale = (random.random((groups, blocks)) / 2**form.bits + 0.01).astype(form.data_type)
    zeros = random.integers(0, 2**form.bits, (groups, blocks))
    minimum = random.standard_normal((groups, blocks)).astype(form.data_type)
    bias = random.standard_normal(form.columns).astype(form.data_type)
    units = {name: (random.random((groups, form.units)) / 64 + 0.01).astype(form.data_type) for name in UNITS}
    if "scale_unit" in form.others:
        scale = random.integers(-32, 32, (groups, blocks)).astype("int8")
    if "minimum_unit" in form.others:
        minimum = random.integers(0, 200, (groups, blocks)).astype("uint8")
    packed = pack_bits(numbers % 2**form.bits, bits=form.bits)
    arrays = {"input": x, "weight": packed[:, None], "scale": scale}
    optional = {"zero_point": pack_bits(zeros, bits=form.bits), "bias": bias, "minimum": minimum, **units}
    arrays |= {name: optional[name] for name in form.others.split()}
    if form.upper_bits:
        arrays["upper"] = pack_bits(numbers >> form.bits, bits=form.upper_bits)[:, None]

    def of_elements(array: np.ndarray, unit: str = "") -> np.ndarray:
        values = array.astype("float64")
        if unit in arrays:
            values = values * arrays[unit].astype("float64").repeat(blocks // form.units, axis=1)
        repeated = values.repeat(form.block_lines, axis=0).repeat(form.block_terms, axis=1)
        return repeated[:, : form.inner]

    matrix = numbers[:, : form.inner].astype("float64")
    if "minimum" in arrays:
        matrix = matrix * of_elements(scale, "scale_unit") + of_elements(minimum, "minimum_unit")
    else:
        middle = of_elements(zeros) if "zero_point" in arrays else 2 ** (form.bits + form.upper_bits - 1)
        matrix = (matrix - middle) * of_elements(scale, "scale_unit")
    expected = x.astype("float64") @ matrix.T
    return PackedProduct(form, arrays, expected + bias if "bias" in arrays else expected)


def random_form(random: np.random.Generator, most: int = 140) -> Form:
    """Draw a form: sizes that are whole words and vectors, and sizes that are not."""
    inner = int(random.integers(1, most)) if random.random() < 0.5 else 32 * int(random.integers(1, 9))
    lines = int(random.choice([1, 1, 1, 2, 3, 4, 8, 20]))
    columns = lines * int(random.integers(1, 1 + max(1, most // 2 // lines)))
    form = Form(
        rows=int(random.choice([1, 1, 2, 5, 12, 13, 33, 130])),
        inner=inner,
        columns=columns,
        bits=int(random.choice([4, 8])),
        block_terms=int(random.choice([1, 2, 4, 7, 8, 16, 32, 64, 2 * most])),
        block_lines=int(random.choice([1, lines, columns])),
        padding=int(random.choice([0, 0, 1, 5, 32])),
        others=str(random.choice(["", "zero_point", "bias zero_point", "minimum", "bias minimum"])),
        data_type=str(random.choice(["float32", "float32", "float16"])),
    )
    if random.random() < 0.5:  # aligned, as most models have it
        block = form.block_terms if form.block_terms in (16, 32, 64) else 32
        form = replace(form, block_terms=block, block_lines=1, inner=-(-inner // 32) * 32, padding=0)
    return form


def random_k_form(random: np.random.Generator) -> Form:
    """Draw a form with numbers of 2 to 6 bits, and units: those of K formats, and others."""
    bits = int(random.choice([2, 4]))
    block, blocks = int(random.choice([8, 16, 24, 32])), int(random.integers(1, 13))
    units = int(random.choice([k for k in range(1, blocks + 1) if blocks % k == 0]))
    missing = int(random.choice([0, 0, 3, block - 1]))  # the last block may not be full
    lines = int(random.choice([1, 1, 1, 4]))
    others = ["scale_unit", "scale_unit bias", "minimum", "minimum minimum_unit scale_unit", "minimum scale_unit", ""]
    return Form(
        rows=int(random.choice([1, 2, 5, 13, 33])),
        inner=blocks * block - missing,
        columns=lines * int(random.integers(1, 30)),
        bits=bits,
        block_terms=block,
        block_lines=lines,
        padding=missing,
        others=str(random.choice(others)),
        data_type=str(random.choice(["float32", "float32", "float16"])),
        upper_bits=int(random.choice([1, 2] if bits == 4 else [0, 1])),
        units=units,
    )


@dataclass(frozen=True)
class PackedKernels:
    """The kernels of a product, and the inputs that stand for its operands."""

    contraction: Contraction
    sources: dict[str, ir.Input]
    kernels: Sequence[GpuKernel]

    def arrays(self, product: PackedProduct) -> dict[ir.Input, np.ndarray]:
        """The arrays that the kernels read."""
        plain = {source: product.arrays[name] for name, source in self.sources.items()}
        return plain | {source: constant.make() for source, constant in self.contraction.arranged.items()}


def kernels_of(
    product: PackedProduct,
    features: Features,
    *,
    is_constant: bool = True,
    choose: Callable[[Contraction], Any] = by_table,
) -> PackedKernels:
    """The kernels that the rule of GPUs makes; the weight and its blocks are constants, or inputs."""
    form, arrays = product.form, product.arrays
    inputs, traced = inputs_of([Desc(array.dtype.name, array.shape) for array in arrays.values()])  # type: ignore[arg-type]
    named = dict(zip(arrays, traced, strict=True))
    sources = dict(zip(arrays, inputs, strict=True))
    (rule,) = webgpu.rules[matmul_n_bits]
    operands = {name: named.get(name) for name in NAMES}
    products = rule.function(**operands, bits=form.bits, block_size=form.block_terms, upper_bits=form.upper_bits)
    constants = {s: arrays[name] for name, s in sources.items() if is_constant and name not in ("input", "bias")}
    desc = Desc(form.data_type, (form.rows, form.columns))  # type: ignore[arg-type]
    contraction = Contraction(products.problem, ir.Input(len(inputs), desc), constants, features, choose)
    result = products.finish(of_input(contraction.result))
    epilogue = None
    if not isinstance(result.body, ir.Load):
        read = tuple(source for source in ir.sources(result.body) if isinstance(source, ir.Input))
        epilogue = make_formula("result", read, (result,))
    return PackedKernels(contraction, sources, contraction.kernels(epilogue, "sample"))
