"""The page: what is measured, why, and what came out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..budgets import INTEROP
from ..page import Table, yes
from .chart import TITLES
from .measure import CHANNELS, HEAP, SIZE, Line, Pair, Report

IMAGE = (1, CHANNELS, SIZE, SIZE)
FILTER = (CHANNELS, CHANNELS, 3, 3)
ISSUE = "https://github.com/webmachinelearning/webnn/issues/6#issuecomment-536408448"


def markdown(reports: list[Report], machine: str, command: str, image: str) -> str:
    """The page, with the chart at `image`."""
    sections = [
        _head(reports, machine, command, image),
        _tests(reports),
        _convolutions(reports),
        _memories(reports),
        _woven(reports),
        _how(reports),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _head(reports: Sequence[Report], machine: str, command: str, image: str) -> str:
    return f"""# Custom operations beside built-in ones

A framework has its own operations; an engine has the heavy ones, tuned for the machine. The cost of using both in one network
depends on the boundary between them: without shared memory, each result is copied out and in again, and with different
layouts, it is also transposed. WebNN's issue 6 measured this in a browser, with four tests of
conv2d → add → relu ([the tests]({ISSUE})). These are the same tests on the CPU, and
[on GPUs](#on-a-gpu).

![conv2d, add and relu: milliseconds of each way to do them]({image})

Made by `{command}` on: {machine}."""


def _tests(reports: Sequence[Report]) -> str:
    header = ["", "conv2d", "add, relu", *_columns(reports, "ms"), "copies a run"]
    rows = []
    for number, line in enumerate(reports[0].lines):
        times = [_both(report.lines[number]) for report in reports]
        rows.append([TITLES[line.test].replace("  ", ". "), line.conv, line.rest, *times, _copies(line)])
    built_in = [_line(report.lines, 4) for report in reports]
    says = []
    for test, what in {
        1: "All custom takes",
        2: "With copies it takes",
        3: "In shared memory it takes",
    }.items():
        parts = []
        for report, base in zip(reports, built_in, strict=True):
            ratios = [line.median / base.median for line in report.lines if line.test == test]
            if ratios:
                low, high = (
                    f"{value:.2g}" if value >= 1.95 else f"{value:.2f}" for value in (min(ratios), max(ratios))
                )
                parts.append(f"{low if low == high else f'{low} to {high}'} times as long on {_threads(report)}")
        if parts:
            says.append(f"- {what} {' and '.join(parts)}.")
    text = "\n".join(says)
    return f"""## The tests

Input float32 {list(IMAGE)}, filter {list(FILTER)} (in the issue [3, 3, 100, 100], which is hwio), "same"
padding as in the issue, so the output is as large as the input; a bias for each channel. Milliseconds: the median, and the
fastest in brackets.

{Table(header, rows)}

Compared with all built in:

{text}

1. All custom: a framework alone, with its own kernels in portable WebAssembly.
2. The built-in convolution, but its result is copied out (`context.read_tensor`); NumPy adds and clamps on the copy, which is
   copied in again (`context.write_tensor`).
3. The built-in convolution, and the two custom operations after it in the same graph, on the same memory. The two
   expressions are compiled into one loop; each of the other kernels is a separate pass.
4. All built in: the engine fuses the three into one."""


def _convolutions(reports: Sequence[Report]) -> str:
    if not reports[0].convolutions:
        return ""
    rows = [
        [line.conv, *(_both(report.convolutions[number]) for report in reports)]
        for number, line in enumerate(reports[0].convolutions)
    ]
    says = []
    for report in reports:
        found = {line.conv: line.median for line in report.convolutions}
        heap, nhwc = found.pop(HEAP), found.pop("built-in, tensors in nhwc") / found.pop("built-in")
        others = " and ".join(f"{name} {took / heap:.1f} times" for name, took in found.items())
        says.append(
            f"- On {_threads(report)}, {others} as long as the built-in one on tensors in the heap; the built-in one with "
            f"channels last (nhwc) {nhwc:.2f} times as long as with channels first."
        )
    text = "\n".join(says)
    return f"""## The convolution alone

Issue 156 asks for single operations that frameworks with WebAssembly kernels can call on tensors in their heap.
Milliseconds: the median, and the fastest in brackets.

{Table(["conv2d", *_columns(reports, "ms")], rows)}

Ratios of the times:

{text}

The WebAssembly kernels run on one thread, with 128-bit vectors; the engine uses all features of the processor. Images
with channels last, as in TensorFlow, are converted inside the graph."""


def _memories(reports: Sequence[Report]) -> str:
    rows = []
    for report in reports:
        for pair in report.memories:
            holds = round(pair.ours / pair.theirs, 2) <= INTEROP["memory"]
            ratio = f"{pair.ours / pair.theirs:.2f}x"
            rows.append(
                [pair.what, _size(pair), str(report.threads), _us(pair.ours), _us(pair.theirs), ratio, yes(holds)]
            )
    if not rows:
        return ""
    header = ["built-in operation", "size", "threads", "module's memory, us", "host's memory, us", "ratio", "holds"]
    return f"""## Tensors in the memory of a WebAssembly module

`context.create_tensor(…, memory=module)` allocates a tensor in the linear memory of a module. A built-in operation may take
{INTEROP["memory"]} times as long there as in host memory. The address of a tensor alone changes times by a few
percent, so calls alternate between several tensors. The fastest of many alternating runs:

{Table(header, rows)}"""


def _woven(reports: Sequence[Report]) -> str:
    rows = []
    for report in reports:
        for pair in report.woven:
            beyond = pair.ours - pair.theirs
            allowed = max(INTEROP["woven us"], INTEROP["woven noise"] * pair.theirs)
            holds = beyond <= allowed and pair.copies == 0
            rows.append(
                [
                    pair.what, _size(pair), str(report.threads), _us(pair.ours), _us(pair.theirs), f"{beyond:+.0f}",
                    str(pair.copies), yes(holds),
                ]
            )  # fmt: skip
    header = ["add, relu", "size", "threads", "one graph, us", "its parts, us", "difference, us", "copies", "holds"]
    return f"""## Weaving: conv2d → add, relu → conv2d

One graph of two built-in convolutions with custom operations between them is compared with three graphs (convolution, custom
operations, convolution) that are dispatched one after the other on tensors of the same kind. The one graph may take
{INTEROP["woven us"]} us more than its parts, and make no copy. For large images, that is a thousandth of the time, so
differences within {INTEROP["woven noise"]:.0%} count as noise; the small images show the overhead. The fastest of many
alternating runs:

{Table(header, rows)}"""


def _how(reports: Sequence[Report]) -> str:
    others = "; ".join(_unique(text for report in reports for text in report.others))
    missing = _unique(text for report in reports for text in report.missing)
    lines = [
        "## How it is measured",
        "",
        "Each number of threads has its own process, limited to that many processors, which measures all variants alternately",
        "(A, B, C, A, B, C, …). First, it checks that their results agree within 1e-4. Copies are counted by",
        "`opweave.memory.copies` in one run, once everything is bound. WebAssembly modules run without a time limit, as in a",
        f"browser. TensorFlow.js measures itself, without copying its result out. Versions: {others}.",
        "",
        "Load average of the machine at the end (1 is one busy processor): "
        + ", ".join(f"{report.load:.1f} ({_threads(report)})" for report in reports)
        + ".",
    ]
    if missing:
        lines += ["", "Left out:", "", *(f"- {text}" for text in missing)]
    return "\n".join(lines)


# Cells ---------------------------------------------------------------------------------------------------------------


def _columns(reports: Sequence[Report], unit: str) -> list[str]:
    return [f"{_threads(report)}, {unit}" for report in reports]


def _threads(report: Report) -> str:
    return "1 thread" if report.threads == 1 else f"{report.threads} threads"


def _both(line: Line) -> str:
    return f"{line.median:.1f} ({line.fastest:.1f})"


def _copies(line: Line) -> str:
    return "" if "TensorFlow" in line.conv else str(line.copies)


def _line(lines: Iterable[Line], test: int) -> Line:
    return next(line for line in lines if line.test == test)


def _size(pair: Pair) -> str:
    channels, size = pair.size
    return f"[1, {channels}, {size}, {size}]"


def _us(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _unique(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))
