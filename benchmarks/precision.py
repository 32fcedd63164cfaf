"""How far each precision of each device is from float64, on models and graphs; and how much faster ResNet-50 is.

    python -m gate.packages
    python -m benchmarks precision

What is compared with is the graph in NumPy's float64 from its inputs to its outputs, which are rounded to float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import opweave as ow
from gate import catalog
from opweave.backends import Device, Precision
from opweave.backends.reference import backend as reference
from opweave.core.graph import Graph, Node, Operand, map_operands

from .measure import Parts, Ratio, Way, alternate, elapsed, tell
from .models import photograph
from .page import DOCS, Table, machine, replace_part, versions, yes
from .resnet50 import SHAPE, graph as resnet50, random_weights
from .rows import dispatched

PAGE = DOCS / "precision.md"

CLASSIFIERS = ("Magika", "PP-OCR cls v2", "PP-OCRv4 rec", "PP-OCRv5 cls", "PP-OCRv5 rec", "ddddocr common")
"""Models whose answer is the position of the largest element along the last axis of their only output."""

SLOW = ("DNSMOS bak ovr", "DNSMOS personal", "DNSMOS P.835", "DNSMOS sig", "PP-OCRv4 det")
"""Models that take more than 20 s in float64."""

MIXED = ("Piper voice", "ddddocr old")
"""Models with nodes that WebNN cannot express, for which there is no float64."""

LAST_START = 380
"""Seconds after which no further model is begun."""

DIFFERENT_IEEE = ("onnxruntime",)
"""The back ends where "ieee" is another computation than "float32" for something that is measured here."""

FASTER = 1.8
"""How many times as fast as in float32 ResNet-50 is to be where a device has bfloat16 or float16."""

Place = tuple[str, str, Precision]
"""A back end, its device, and a precision."""


class Exact(reference.Reference):
    """The reference, without the rounding to float32 between operations."""

    def __init__(self) -> None:
        super().__init__()
        self.rules = reference.reference.rules

    def evaluate(self, node: Node, arrays: Mapping[Operand, np.ndarray]) -> tuple[np.ndarray, ...]:
        rule = self.rule(node)
        assert rule is not None, node
        with np.errstate(all="ignore"):
            result = rule(
                (), {**map_operands(node.inputs, lambda operand: widened(arrays[operand])), **node.attributes}
            )
        results = result if isinstance(result, tuple) else (result,)
        return tuple(
            widened(np.asarray(value)) if output.data_type in ("float32", "float16") else value.astype(output.data_type)
            for value, output in zip(results, node.outputs, strict=True)
        )

    def compile(self, graph: Graph, **_: Any) -> Any:
        return ExactRunner(self, graph)


class ExactRunner(reference._Interpreter):
    """Rounds outputs when all is computed."""

    def run(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        wide = [np.empty(array.shape, widened(array).dtype) for array in outputs]
        super().run(inputs, wide)
        for array, value in zip(outputs, wide, strict=True):
            array[...] = value


def widened(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64) if array.dtype.kind == "f" else array


# ---------------------------------------------------------------------------------------------------------------------
# What is computed

Subject = Callable[[ow.MLContext], list[np.ndarray]]
"""Computes something in a context."""


def factors() -> tuple[np.ndarray, np.ndarray]:
    """Matrices to multiply."""
    random = np.random.default_rng(2)
    return random.standard_normal((512, 1024), np.float32), random.standard_normal((1024, 512), np.float32)


def product(context: ow.MLContext) -> list[np.ndarray]:
    """A product of float32."""
    a, b = factors()
    return _computed(context, a, lambda builder, x: builder.matmul(x, builder.constant(b)))


def quantised_product(context: ow.MLContext) -> list[np.ndarray]:
    """A product with constant weights of 8 bits, which are dequantised."""
    random = np.random.default_rng(3)
    a = random.standard_normal((512, 1024), np.float32)
    weights = random.integers(-127, 128, (1024, 512), "int8")
    scale, zero = np.full((1, 512), 0.01, "float32"), np.zeros((1, 512), "int8")

    def build(builder: ow.MLGraphBuilder, x: ow.MLOperand) -> ow.MLOperand:
        return builder.matmul(x, builder.dequantize_linear(*map(builder.constant, (weights, scale, zero))))

    return _computed(context, a, build)


def _computed(context: ow.MLContext, array: np.ndarray, build: Callable[..., ow.MLOperand]) -> list[np.ndarray]:
    builder = ow.MLGraphBuilder(context)
    graph = builder.build({"y": build(builder, builder.input("x", "float32", array.shape))})
    return list(context.compute(graph, {"x": array}).values())


def residual_network(context: ow.MLContext) -> list[np.ndarray]:
    """ResNet-50 with random weights."""
    return list(context.compute(resnet50(context, random_weights()), {"x": photograph(SHAPE)}).values())


GRAPHS: dict[str, Subject] = {
    "product, 512 x 1024 x 512": product,
    "product with 8-bit weights": quantised_product,
    "ResNet-50, random weights": residual_network,
}


def of_model(name: str, packages: Path) -> Subject:
    """A model of the catalogue at the smallest of its shapes."""
    entry = catalog.entry(name)

    def run(context: ow.MLContext) -> list[np.ndarray]:
        with entry.path(packages) as path:
            session = ow.InferenceSession(path, context=context, specialise="always", fallback="error")
            feeds = entry.feeds({value.name: value.type for value in session.get_inputs()})
            feed = min(feeds, key=lambda feed: sum(array.size for array in feed.values()))
            return list(session.run(None, feed))

    return run


# ---------------------------------------------------------------------------------------------------------------------
# Measuring


@cache
def devices() -> list[Device]:
    """Those that are measured: neither the reference nor what only pretends to be a GPU, nor those of plug-ins."""
    return [
        device
        for device in ow.devices()
        if device.available and device.name != "reference" and "software" not in device.name and not device.provider
    ]


def places() -> list[Place]:
    """All precisions of the devices that differ."""
    return [
        (device.backend, device.name, precision)
        for device in devices()
        for precision in device.precisions
        if precision != "ieee" or device.backend in DIFFERENT_IEEE
    ]


def context_of(place: Place) -> ow.MLContext:
    backend, device, precision = place
    return ow.ml.create_context(backend=backend, device=device, precision=precision)


def errors(found: Sequence[np.ndarray], exact: Sequence[np.ndarray]) -> tuple[float, float]:
    """The largest error as a share of the largest element, and the rms error as a share of the rms; of several outputs, the
    worst.

    >>> errors([np.float32([1, 2])], [np.float32([1, 4])])[0]
    0.5
    """
    largest = rms = 0.0
    for one, other in zip(found, exact, strict=True):
        if other.dtype.kind == "f":
            wide, difference = widened(other), widened(one) - other
            largest = max(largest, float(np.abs(difference).max() / np.abs(wide).max()))
            rms = max(rms, float(np.sqrt((difference**2).mean() / (wide**2).mean())))
    return largest, rms


def compared(subject: Subject, is_classifier: bool) -> list[str]:
    """Compute something in float64 and in all precisions; the errors, as cells of a table."""
    exact = subject(ow.MLContext(Exact(), ow.Device("float64", "cpu", "reference", ""), "default"))
    cells = []
    for place in places():
        found = subject(context_of(place))
        same = found[0].argmax(-1) == exact[0].argmax(-1) if is_classifier else np.empty(0)
        cells.append(cell(*errors(found, exact), int(same.sum()), same.size))
    return cells


def in_order() -> str:
    """The errors of sums of float32 in order, for `product`."""
    a, b = factors()
    total = np.zeros((len(a), b.shape[1]), np.float32)
    for k in range(a.shape[1]):
        total += a[:, k, None] * b[k]
    return cell(*errors([total], [a.astype(np.float64) @ b.astype(np.float64)]), 0, 0)


def cell(largest: float, rms: float, same: int, count: int) -> str:
    """Errors, for a table.

    >>> cell(3.21e-7, 4e-8, 19, 20)
    '3.2e-07, 4.0e-08; 19 of 20'
    """
    return f"{largest:.1e}, {rms:.1e}" + (f"; {same} of {count}" if count else "")


def speed() -> list[list[str]]:
    """How much faster ResNet-50 is in fewer bits, as rows of a table."""
    rows = []
    for device in devices():
        fewer: list[Precision] = [p for p in device.precisions if p not in ("float32", "ieee")]
        if not fewer:
            continue
        runs: dict[str, Way] = {}
        asked: list[Precision] = ["float32", *fewer]
        for precision in asked:
            context = context_of((device.backend, device.name, precision))
            runs[precision] = dispatched(resnet50(context, random_weights()), context, {"x": photograph(SHAPE)})[0]
        times = alternate(runs, seconds=0.4)
        for precision in fewer:
            ratio = Ratio.of(times["float32"], times[precision])
            place = f"{device.name} ({device.backend})"
            rows.append([place, precision, str(ratio), f">= {FASTER}", yes(ratio.high >= FASTER)])
    return rows


def main(
    packages: Annotated[Path, typer.Option(help="Where the packages of models are installed.")] = catalog.PACKAGES,
    model: Annotated[
        list[str] | None, typer.Option(help="A model or graph, by a part of its name. Default: all.")
    ] = None,
    errors: Annotated[bool, typer.Option(help="Compare with float64.")] = True,
    times: Annotated[bool, typer.Option(help="Measure times.")] = True,
) -> None:
    """Compare each precision of each device with float64, and write the tables of docs/precision.md."""
    on = f"on: {machine()}, {versions('openvino').partition(', ')[2] or 'without openvino'}"
    parts, left = Parts(), [*SLOW, *MIXED]
    names = [*GRAPHS, *(entry.name for entry in catalog.entries() if entry.name not in left)]
    chosen = [name for name in names if not model or any(part.lower() in name.lower() for part in model)]
    rows = []
    for name in chosen if errors else ():
        if elapsed() > LAST_START:
            left.append(name)
            continue
        subject = GRAPHS[name] if name in GRAPHS else of_model(name, packages.resolve())
        cells = parts.run(name, partial(compared, subject, name in CLASSIFIERS))
        if cells is not None:
            rows.append([name, *cells])
            tell(" | ".join(cells))
    if rows:
        header = ["", *(f"{device}, {backend}, {precision}" for backend, device, precision in places())]
        note = f"Sums of float32 in order, for the product in the first row: {in_order()}. Left out: {', '.join(left)}."
        text = f"Made by `python -m benchmarks precision` {on}.\n\n{Table(header, rows)}\n\n{note}"
        print(text)
        if not model:
            replace_part(PAGE, text)
    if times and not model:
        measured = parts.run("ResNet-50, times", speed)
        made = Table(["device", "precision", "float32 takes", "wanted", "holds"], measured or ())
        text = f"Measured {on}.\n\n{made}" if measured else f"No device has fewer bits {on}."
        print(text)
        replace_part(PAGE, text, "speed")
    parts.end()
