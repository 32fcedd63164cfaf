"""What one process measures, on the processors that it was given: `python -m benchmarks.interop.measure REPEAT SECONDS`.

ONNX Runtime, Halide and Numba take as many threads as the process may use processors. The last line written is JSON.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress

import opweave as ow

from ..measure import calls_within, per_call
from .operations import (
    BUILT_IN,
    NHWC,
    Chain,
    Data,
    HostCopies,
    Operations,
    expressions,
    tensor,
    with_numba,
    with_numpy,
    with_wasm,
)
from .tfjs import MissingError, TensorFlowJs

CHANNELS, SIZE = 100, 100
SMALL = 16, 32
"""Channels and size at which a convolution takes so little that 30 us would show."""
HEAP = "built-in, tensors in the heap of a module"
PLACES = 3
"""On how many pairs of tensors an operation is measured, where one memory is compared with another."""

Measure = Callable[[float], float]
"""Takes how many seconds to measure for, gives seconds a call."""


@dataclass
class Line:
    """One way to do it.

    Attributes:
        test: of the issue: 1 to 4; 0 for a convolution alone.
        conv: what does the convolution.
        rest: what does add and relu.
        median: milliseconds a call, the middle of all turns.
        fastest: the best of all turns.
        copies: copies of tensors in one run.
    """

    test: int
    conv: str
    rest: str
    median: float
    fastest: float
    copies: int


@dataclass
class Pair:
    """Two ways to do the same: a graph against its parts, or one memory against another.

    Attributes:
        what: the custom operations, or the built-in one.
        size: channels, height and width.
        ours: microseconds a call, in the best of all turns.
        theirs: of what it is compared with.
        copies: copies of tensors in one run of ours.
    """

    what: str
    size: tuple[int, int]
    ours: float
    theirs: float
    copies: int


@dataclass
class Report:
    """What a process measured.

    Attributes:
        threads: how many processors it had.
        lines: the tests.
        convolutions: the convolution alone.
        woven: conv -> custom -> conv against its parts.
        memories: tensors in the memory of a module against those on the host.
        others: what else the numbers are of.
        missing: what is left out, and why.
        load: how many processes wanted to run, in the last minute, at the end.
    """

    threads: int
    lines: list[Line] = field(default_factory=list)
    convolutions: list[Line] = field(default_factory=list)
    woven: list[Pair] = field(default_factory=list)
    memories: list[Pair] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    load: float = 0.0

    @classmethod
    def read(cls, text: str) -> Report:
        """What `json.dumps(asdict(report))` wrote."""
        values: dict[str, Any] = json.loads(text)
        for name, kind in {"lines": Line, "convolutions": Line, "woven": Pair, "memories": Pair}.items():
            values[name] = [kind(**value) for value in values[name]]
        return cls(**values)


def stretch(function: Callable[[], object], seconds: float) -> float:
    """Seconds a call, measured for about `seconds`."""
    return per_call(function, calls_within(function, seconds))


class Clock:
    """Measures functions alternately, and shows the progress on standard error."""

    def __init__(self, repeat: int, seconds: float) -> None:
        self.repeat, self.seconds = repeat, seconds

    def turns(self, functions: list[Measure], title: str, *, parts: int = 1) -> list[list[float]]:
        """Seconds a call of each function in each turn (A, B, C, A, B, C, …), after a turn to warm up.

        There are `parts` times as many turns, each that much shorter.
        """
        times: list[list[float]] = [[] for _ in functions]
        repeat = self.repeat * parts
        with Progress(console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(title, total=(repeat + 1) * len(functions))
            for turn in range(repeat + 1):
                for function, values in zip(functions, times, strict=True):
                    value = function(self.seconds / parts)
                    if turn:
                        values.append(value)
                    progress.advance(task)
        return times

    def pair(
        self,
        what: str,
        ours: Callable[[], object],
        theirs: Callable[[], object],
        title: str,
        data: Data,
        *,
        parts: int = 5,
    ) -> Pair:
        """Measure two ways to do the same.

        The best of many short turns is taken: what else runs on the machine only adds to a time, and here small differences
        count.
        """
        copies = copies_of(ours)
        first, second = self.turns([partial(stretch, ours), partial(stretch, theirs)], title, parts=parts)
        return Pair(what, data.image.shape[1:3], min(first) * 1e6, min(second) * 1e6, copies)


def copies_of(function: Callable[[], object]) -> int:
    """How many copies of tensors one call makes, once it is warm."""
    function()
    ow.memory.copies.reset()
    function()
    return ow.memory.copies.count


def measured(lines: list[tuple[Line, Measure]], clock: Clock, title: str) -> list[Line]:
    """The lines, with their times."""
    times = clock.turns([measure for _, measure in lines], title)
    for (line, _), values in zip(lines, times, strict=True):
        line.median, line.fastest = statistics.median(values) * 1e3, min(values) * 1e3
    return [line for line, _ in lines]


def row(test: int, conv: str, rest: str, function: Callable[[], object]) -> tuple[Line, Measure]:
    return Line(test, conv, rest, 0.0, 0.0, copies_of(function)), partial(stretch, function)


# What is measured ----------------------------------------------------------------------------------------------------


def kinds(context: ow.MLContext, report: Report) -> dict[str, Operations]:
    """The custom operations that there are here, by what they are called; what is left out is noted."""
    made = expressions()
    engine = Chain(context, Data.random(4, 8), made, "add relu").engine()
    found = {f"expressions ({engine})": made, "NumPy kernels": with_numpy()}
    if find_spec("wasmtime") is None:
        report.missing.append("WebAssembly: wasmtime is not installed")
    else:
        found["WebAssembly kernels"] = with_wasm()
    numba = with_numba()
    if numba is None:
        report.missing.append("Numba kernels: Numba is not installed")
    else:
        found["Numba kernels"] = numba
    return found


def tests(context: ow.MLContext, report: Report, node: TensorFlowJs | None, clock: Clock) -> None:
    """The four tests of the issue; all results are compared with each other first."""
    data = Data.random(CHANNELS, SIZE)
    steps = "conv add relu"
    whole = Chain(context, data, BUILT_IN, steps)
    whole()
    expected = whole.target.numpy()
    lines: list[tuple[Line, Measure]] = []

    def add(test: int, conv: str, rest: str, chain: Chain | HostCopies) -> None:
        chain()
        agree(f"{conv}, {rest}", chain.target.numpy(), expected)
        lines.append(row(test, conv, rest, chain))

    if node is not None:
        agree(node.description, node.result, expected)
        theirs = "TensorFlow.js, WebAssembly"
        lines.append((Line(1, theirs, theirs, 0, 0, 0), partial(node.seconds, "all")))
    if find_spec("wasmtime") is not None:
        ours = "our WebAssembly"
        add(1, ours, ours, Chain(context, data, with_wasm(conv=True), steps))
    add(2, "built-in", "NumPy, on a copy", HostCopies(context, data))
    for name, operations in kinds(context, report).items():
        add(3, "built-in", name, Chain(context, data, operations, steps))
    add(4, "built-in", "built-in", whole)
    report.lines = measured(lines, clock, "tests 1 to 4")


def convolutions(context: ow.MLContext, report: Report, node: TensorFlowJs | None, clock: Clock) -> None:
    """The convolution alone: built-in on tensors in linear memory, and as WebAssembly."""
    data = Data.random(CHANNELS, SIZE)
    lines: list[tuple[Line, Measure]] = []
    if node is not None:
        lines.append((Line(0, "TensorFlow.js, WebAssembly", "", 0, 0, 0), partial(node.seconds, "conv")))
    names = {True: "our WebAssembly", False: HEAP}
    chains = {name: Chain(context, data, with_wasm(conv=own), "conv") for own, name in names.items()}
    nhwc = Chain(context, data.nhwc(), NHWC, "conv")
    chains["built-in, tensors in nhwc"] = nhwc
    chains["built-in"] = Chain(context, data, BUILT_IN, "conv")
    lines += [row(0, name, "", chain) for name, chain in chains.items()]
    expected = chains["built-in"].target.numpy()
    for name, chain in chains.items():
        got = chain.target.numpy()
        agree(f"the convolution alone, {name}", got.transpose(0, 3, 1, 2) if chain is nhwc else got, expected)
    report.convolutions = measured(lines, clock, "conv2d alone")


def woven(context: ow.MLContext, report: Report, clock: Clock) -> None:
    """Two convolutions, add and relu between them, as one graph, against three graphs on such tensors."""
    for channels, size in ((CHANNELS, SIZE), SMALL):
        data = Data.random(channels, size)
        for name, operations in kinds(context, Report(0)).items():
            whole = Chain(context, data, operations, "conv add relu conv")
            first = Chain(context, data, operations, "conv")
            middle = Chain(context, data, operations, "add relu", first.target)
            last = Chain(context, data, operations, "conv", middle.target)

            def parts(chains: Iterable[Chain] = (first, middle, last)) -> None:
                for chain in chains:
                    chain()

            whole()
            parts()
            agree(f"conv -> {name} -> conv", whole.target.numpy(), last.target.numpy())
            title = f"conv -> {name} -> conv, {size} x {size}"
            report.woven.append(clock.pair(name, whole, parts, title, data))


def memories(context: ow.MLContext, report: Report, clock: Clock) -> None:
    """The same built-in operation on tensors in the memory of a module, and on the host."""
    inside = with_wasm()
    for step, name in {"conv": "conv2d", "relu": "relu"}.items():
        for channels, size in ((CHANNELS, SIZE), SMALL):
            data = Data.random(channels, size)

            def places(operations: Operations, data: Data = data, step: str = step) -> Callable[[], None]:
                """Calls on several pairs of tensors in turn: where exactly a tensor lies makes a few percent."""
                chains = []
                for _ in range(PLACES):
                    source, target = (tensor(context, data, operations) for _ in range(2))
                    context.write_tensor(source, data.image)
                    chains.append(Chain(context, data, BUILT_IN, step, source, target))
                turn = itertools.cycle(chains)
                return lambda: next(turn)()

            title = f"{name}, linear memory, {size} x {size}"
            report.memories.append(clock.pair(name, places(inside), places(BUILT_IN), title, data, parts=20))


def agree(what: str, got: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4, err_msg=what)


def versions() -> list[str]:
    """The installed compilers of custom operations, with their versions."""
    return [f"{name} {metadata.version(name)}" for name in ("halide", "wasmtime", "numba") if find_spec(name)]


def main(repeat: int, seconds: float) -> None:
    report = Report(len(os.sched_getaffinity(0)), others=versions())
    context = ow.ml.create_context(device="cpu")
    clock = Clock(repeat, seconds)
    with ExitStack() as stack:
        node = None
        try:
            node = stack.enter_context(TensorFlowJs(Data.random(CHANNELS, SIZE)))
            report.others.insert(0, node.description)
        except MissingError as error:
            report.missing.append(f"TensorFlow.js: {error}")
        tests(context, report, node, clock)
        if find_spec("wasmtime") is not None:
            convolutions(context, report, node, clock)
    if find_spec("wasmtime") is not None:
        memories(context, report, clock)
    woven(context, report, clock)
    report.load = os.getloadavg()[0]
    print(json.dumps(asdict(report)))


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
