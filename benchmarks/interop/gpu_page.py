"""The part of the page that is about WebGPU devices: a section for each, with a chart."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from ..budgets import INTEROP
from ..page import Table, yes
from .chart import STYLE, TITLES, WIDTH
from .gpu_report import CHANNELS, GpuLine, GpuReport

HEADING = "## On a GPU"
COMMAND = "python -m benchmarks.interop --device gpu"

ALL = {**TITLES, 3: "3  Built-in conv2d; custom operations in the same buffers", 0: "For comparison"}


def section(reports: Sequence[GpuReport]) -> str:
    """The section, to stand at the end of the page; empty without reports."""
    if not reports:
        return ""
    parts = [_head(), *map(_device, reports), _how(reports)]
    return "\n" + "\n\n".join(parts) + "\n"


def image(report: GpuReport) -> str:
    """The name of a device's chart, beside the page."""
    name = "software" if report.software else re.sub(r"[^a-z0-9]+", "-", report.device.lower()).strip("-")
    return f"images/interop-{name}.svg"


def _head() -> str:
    return f"""{HEADING}

The same four tests, where a framework has its own shaders, and Opweave's graphs run on the same WebGPU device
([webgpu.md](webgpu.md)). What the convolution writes is a buffer that the shaders read, and the order of the queue is the only
synchronisation.

1. All custom: a framework alone, with shaders in WGSL; the convolution computes one element of the result in each thread.
2. The built-in convolution, but its result is read (`context.read_tensor`) and written again (`context.write_tensor`)
   to where the framework's shaders find it.
3. The built-in convolution, and the framework's shaders after it on the same buffer (`context.tensor_from(buffer, …)`),
   with their own commands on the same queue, without waiting; or as expressions in the same graph, where they
   become a part of the convolution's kernel.
4. All built in: one kernel."""


def _device(report: GpuReport) -> str:
    image_size = [1, CHANNELS, report.size, report.size]
    header = ["", "conv2d", "add, relu", "on the device, ms", "wall, ms", "in a row, ms", "kernels", "copies a run"]
    rows = [
        [
            ALL[line.test].replace("  ", ". "), line.conv, line.rest, _both(line.gpu), _both(line.wall), _ms(line.row),
            _count(line.kernels), _count(line.copies),
        ]
        for line in report.lines
    ]  # fmt: skip
    pretends = (
        "A software adapter, which runs on the processor: it shows that results are right, not what is fast.\n"
        * report.software
    )
    same = "is" if report.shared else "IS NOT"
    text = f"""### {report.device}

{pretends}Input float32 {image_size}, filter {[CHANNELS, CHANNELS, 3, 3]}, padding 1. Measured on:
{report.machine}.

![conv2d, add and relu on {report.device}]({image(report)})

{Table(header, rows)}

The buffer that the convolution writes in test 3 {same} the same object that the shaders read
(`tensor.gpu_buffer is buffer`)."""
    if "H200" in report.device:
        text += f"\n\n{Table(['', 'budget', 'measured', 'holds'], _budgets(report))}"
    if report.missing:
        text += "\n\nLeft out: " + "; ".join(report.missing) + "."
    return text.replace("\n\n\n", "\n\n")


def _budgets(report: GpuReport) -> list[list[str]]:
    """What is promised of an H200, and whether it holds, of the middle of all runs."""
    one, two, three, four = (report.line(test) for test in (1, 2, 3, 4))
    gpu, wall = [(0.0, 0.0) if line.gpu is None else line.gpu for line in (one, three, four)], (two.wall, three.wall)
    custom, shared, built_in = (median for median, _ in gpu)
    copied, woven = (0.0 if pair is None else pair[0] for pair in wall)
    fused, beside, naive, half = (
        INTEROP[name] for name in ("GPU fused ms", "GPU beside ms", "GPU custom", "GPU without copies")
    )
    rows = [
        ("All built in, on the device", f"at most {fused} ms", f"{built_in:.3f} ms", built_in <= fused),
        (
            "Own shaders in the same buffers, beyond that",
            f"at most {beside} ms", f"{shared - built_in:+.3f} ms", shared - built_in <= beside,
        ),
        (
            "All custom, compared with it",
            f"at least {naive} times", f"{custom / built_in:.1f} times", custom >= naive * built_in,
        ),
        (
            "Without copies, compared with those through the host (wall)",
            f"at most {half:.0%}", f"{woven / copied:.0%}", woven <= half * copied,
        ),
        ("Copies in the same buffers", "none", _count(three.copies), three.copies == 0),
    ]  # fmt: skip
    return [[what, budget, found, yes(holds)] for what, budget, found, holds in rows]


def _how(reports: Sequence[GpuReport]) -> str:
    runs = ", ".join(f"{report.repeat} on {report.device}" for report in reports)
    return f"""### How it is measured on a GPU

Milliseconds: the median, and the fastest in brackets ({runs}).
"On the device" is the time between timestamps around the kernels; the graph's are those of `graph.profile()`, those of the
shaders are around a pass of their own. "Wall" is from the first call in Python until the device is done, which is known once
four bytes are read. "In a row" is the time per run if the device is waited for only after the last one. Before that all
results must agree within 1e-4. Copies are those that `opweave.memory.copies` counts. PyTorch's times are those of CUDA's
events around 20 runs; its results with TF32 agree within 2e-2 only. Made by `{COMMAND}`."""


# The chart -----------------------------------------------------------------------------------------------------------

LEFT, RIGHT, BETWEEN = 260, 62, 70
BAR, STEP, HEAD, TOP, BOTTOM = 14, 22, 30, 96, 18


def chart(report: GpuReport) -> str:
    """Two columns of bars: on the device, and from call to result."""
    width = (WIDTH - LEFT - RIGHT - BETWEEN) / 2
    starts = {"gpu": LEFT, "wall": LEFT + width + BETWEEN}
    longest = {key: max((_first(line, key) for line in report.lines), default=1.0) or 1.0 for key in starts}
    body: list[str] = []
    y, test = TOP, -1
    for line in report.lines:
        if line.test != test:
            test = line.test
            body.append(f'<text class="head" x="24" y="{y + 17}">{escape(ALL[test])}</text>')
            y += HEAD - 2
            below = y + STEP * sum(other.test == test for other in report.lines) - STEP + BAR
            body += [
                f'<line class="line" x1="{x - 0.5:g}" x2="{x - 0.5:g}" y1="{y - 3}" y2="{below + 3}"/>'
                for x in starts.values()
            ]
        name = line.conv if test in (0, 1) else line.rest
        body.append(f'<text x="{LEFT - 12}" y="{y + 11.5}" text-anchor="end">{escape(name)}</text>')
        for key, start in starts.items():
            took = _first(line, key)
            long = max(took / longest[key] * width, 1)
            body.append(
                f'<rect class="t{test}" x="{start:g}" y="{y}" width="{long:.1f}" height="{BAR}" rx="2"/>'
                f'<text class="soft" x="{start + long + 7:.1f}" y="{y + 11.5}">{_ms(took)}</text>'
            )
        y += STEP
    height = y + BOTTOM
    size = f"float32 [1, {CHANNELS}, {report.size}, {report.size}]"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:g}" '
            f'viewBox="0 0 {WIDTH} {height:g}" role="img" aria-labelledby="title">',
            f'<title id="title">conv2d, add and relu on {escape(report.device)}: milliseconds of each way</title>',
            f"<style>{STYLE}\n  .t0 {{ fill: #8250df }}\n</style>",
            f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:g}" rx="8"/>',
            f'<text class="title" x="24" y="36">conv2d → add → relu on {escape(report.device)}, {size}</text>',
            '<text class="soft" x="24" y="62">milliseconds; shorter is better</text>',
            f'<text class="head" x="{starts["gpu"]:g}" y="84">on the device</text>',
            f'<text class="head" x="{starts["wall"]:g}" y="84">from call to result (wall)</text>',
            *body,
            "</svg>\n",
        ]
    )  # fmt: skip


def _first(line: GpuLine, key: str) -> float:
    pair: tuple[float, float] | None = getattr(line, key)
    return 0.0 if pair is None else pair[0]


# Cells ---------------------------------------------------------------------------------------------------------------


def _both(pair: tuple[float, float] | None) -> str:
    return "" if pair is None else f"{_ms(pair[0])} ({_ms(pair[1])})"


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 10 else f"{value:.0f}"


def _count(value: int | None) -> str:
    return "" if value is None else str(value)
