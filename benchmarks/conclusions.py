"""The sentence and the chart on top of each page of measurements, computed from the tables of the page.

`python -m benchmarks.conclusions` renews all of them, `docs/measured.md`, which collects the sentences, and the numbers of
`docs/faster.md`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from statistics import geometric_mean, median

from .charts import Bar, Bars, Dots
from .page import DOCS, NUMBER, Table, replace_part, tables

BLOCK = re.compile(r"<!-- conclusion -->\n.*?<!-- end -->\n", re.DOTALL)


@dataclass(frozen=True)
class Conclusion:
    """What a page comes to.

    Attributes:
        text: a sentence or two.
        chart: the picture below it; None for none.
    """

    text: str
    chart: Bars | Dots | None = None


def _with(text: str, *columns: str) -> Table:
    """The table of a page that has these columns; with several, the rows of all of them."""
    matches = [each for each in tables(text) if set(columns) <= set(each.header)]
    return Table(matches[0].header, [row for each in matches if each.header == matches[0].header for row in each.rows])


def _x(values: Sequence[float]) -> str:
    return f"{median(values):.2f}x"


RATIO = "ratio (quartiles)"


def cpu(text: str) -> Conclusion:
    rows = _with(text, "what", RATIO)
    beside = rows.where("which is", "^(ONNX Runtime(, bound|, run..)?|session creation)$")
    networks = beside.where("what", "^(?!.*8 threads).*(, run|, build|with loops)$").where("what", "run$|loops$")
    groups = {
        "networks, time": networks.numbers(RATIO),
        "networks, memory": beside.where("what", "peak memory").numbers(RATIO),
        "from 8 threads": beside.where("what", "8 threads").numbers(RATIO),
        "tiny graphs": beside.where("what", "relu$|the same$").numbers(RATIO),
        "fused chains": rows.where("which is", "operation by operation").numbers(RATIO),
    }
    return Conclusion(
        f"Networks take {_x(groups['networks, time'])} of ONNX Runtime's time and "
        f"{_x(groups['networks, memory'])} of its "
        f"memory, as medians; the best {min(groups['networks, time']):.2f}x of the time. A chain of "
        f"element-wise operations "
        f"that is compiled as one loop takes {_x(groups['fused chains'])} of the time of the operations one by one. "
        f"{rows.held()} budgets hold.",
        Dots("Share of ONNX Runtime's time or memory (less is better)", groups),
    )


def small(text: str) -> Conclusion:
    rows = _with(text, "what", RATIO)
    groups = {
        pause: rows.where("what", f"{pause}$").numbers(RATIO) for pause in ("in a row", "after 30 ms", "after 100 ms")
    }
    shares = ", ".join(f"{_x(values)} ({pause})" for pause, values in groups.items())
    return Conclusion(
        f"A call of a small model takes {shares} of ONNX Runtime's time, as the median of "
        f"{len(groups['in a row'])} models. "
        f"{rows.held()} budgets hold.",
        Dots("Share of ONNX Runtime's time (less is better)", groups),
    )


def traffic(text: str) -> Conclusion:
    rows = _with(text, "model", "pause").where("holds", "^(yes|NO)$")
    columns = ("total", "with the first", "95th percentile", "worst second call")
    groups = {column: rows.numbers(column) for column in columns}
    return Conclusion(
        f"Models with changing shapes take {_x(groups['total'])} of ONNX Runtime's time in traffic, "
        f"as a median; with the first "
        f"call, which loads, {_x(groups['with the first'])}. {rows.held()} rows are within their limits.",
        Dots("Share of ONNX Runtime's time (less is better)", groups),
    )


def cold(text: str) -> Conclusion:
    rows = _with(text, "run by", "time")
    base = rows.where("run by", "alone")
    ours = rows.where("run by", "`")
    more = [float(row[3].split()[0]) for row in ours.rows]
    memory = [float(row[7].split()[0]) for row in ours.rows]
    bars = [
        Bar(
            f"{row[0]}, {'ONNX Runtime' if 'alone' in row[1] else 'Opweave'}",
            float(row[2].split()[0]),
            "alone" not in row[1],
        )
        for row in [*base.rows, *ours.where("run by", "Session").rows]
    ]
    return Conclusion(
        f"A fresh process with Opweave takes {min(more):.0f} to {max(more):.0f} ms and "
        f"{min(memory):.1f} to {max(memory):.1f} MiB "
        f"more than with ONNX Runtime alone. {rows.held()} rows are within both limits.",
        Bars("A process from start to end, milliseconds", sorted(bars, key=lambda bar: bar.label), " ms"),
    )


def gpu(text: str) -> Conclusion:
    webgpu = _with(text, "TFLOP/s", "ratio")
    cuda = _with(text, "on the clock", "PyTorch")
    shares: dict[str, list[float]] = {"WebGPU, single products": webgpu.numbers("ratio")}
    names = [cuda.header.index(name) for name in ("", "precision", "on the clock", "in a row", "PyTorch")]
    for row in cuda.rows:
        name, precision, clock, flow, torch = (row[place] for place in names)
        if torch:
            is_network = ", batch" in name
            kind = "CUDA, networks" if is_network else f"CUDA, {precision}"
            ours = clock if is_network else flow
            shares.setdefault(kind, []).append(float(ours.split()[0]) / float(torch.split()[0]))
    shares = {name: values for name, values in shares.items() if len(values) > 1}
    (resnet,) = cuda.where("", "^ResNet-50, batch 1$").where("precision", "^float16$").cells("on the clock")
    return Conclusion(
        f"On an NVIDIA H200, networks with CUDA take {_x(shares['CUDA, networks'])} of PyTorch's "
        f"time, as a median of networks and "
        f"precisions; ResNet-50 in float16 takes {resnet}. Single products and convolutions with WebGPU take "
        f"{_x(shares['WebGPU, single products'])}.",
        Dots("Share of PyTorch's time (less is better)", shares),
    )


def models(text: str) -> Conclusion:
    rows = _with(text, "steady", "loading")
    groups = {
        "a call": rows.numbers("steady"),
        "first call of a shape": rows.numbers("new shapes: median, worst"),
        "memory": rows.numbers("memory"),
        "loading": rows.numbers("loading"),
    }
    worst = max(rows.numbers("difference"))
    return Conclusion(
        f"Over {len(rows.rows)} models from packages, a call takes {_x(groups['a call'])} of ONNX "
        f"Runtime's time, the process "
        f"{_x(groups['memory'])} of its memory, and loading {_x(groups['loading'])}, as medians. "
        f"Results differ by at most "
        f"{worst:g}. {rows.held()} models are within the limits.",
        Dots("Share of ONNX Runtime's time or memory (less is better)", groups),
    )


def torch_modules(text: str) -> Conclusion:
    rows = _with(text, "from a program", "from the module")
    on_cpu, _, on_gpu = text.partition("## torch.compile with CUDA")
    compiled = {
        place: [each for each in tables(part) if each.header[:1] == ["compiled"] and each.numbers("ratio")]
        for place, part in {"a CPU": on_cpu, "a GPU": on_gpu}.items()
    }
    groups = {
        "loading from a program": rows.numbers("from a program"),
        "loading from the module": rows.numbers("from the module"),
    }
    plain = rows.where("kind", "^(?!quantised)")
    whole = rows.where("in PyTorch", "^none$")
    sentences = [
        f"Of {len(rows.rows)} modules, {len(whole.rows)} run without an operator of PyTorch; errors in float32 are at most "
        f"{max(plain.numbers('error')):g} of the result."
    ]
    if groups["loading from a program"]:
        sentences.append(
            f"Loading takes {_x(groups['loading from a program'])} of the time of an export to ONNX and a session from a "
            f"program, and {_x(groups['loading from the module'])} from a module, as medians."
        )
    for place, parts in compiled.items():
        for each in parts:
            groups[f"a call on {place}"], groups[f"compiling on {place}"] = (
                each.numbers("ratio"),
                each.numbers("compiling"),
            )
            sentences.append(
                f"Calls of torch.compile take {geometric_mean(each.numbers('ratio')):.2f}x of inductor's time on {place}, "
                f"and first calls {geometric_mean(each.numbers('compiling')):.2f}x, as geometric means."
            )
    groups = {name: values for name, values in groups.items() if values}
    chart = Dots("Share of the time of torch.onnx.export or inductor (less is better)", groups) if groups else None
    return Conclusion(" ".join(sentences), chart)


def interop(text: str) -> Conclusion:
    """From the page's own comparison with what is all built in."""
    ways = dict(
        re.findall(
            r"^- (All custom|With copies|In shared memory) .* and (.*) times as long on 2 threads", text, re.MULTILINE
        )
    )
    return Conclusion(
        f"On two threads, custom operations in the memory of the built-in ones take "
        f"{ways['In shared memory']} times as long as built-in "
        f"operations alone; with copies in and out, {ways['With copies']} times; and if all operations are custom, "
        f"{ways['All custom']} times."
    )


def engine_gains(rows: Table) -> list[float]:
    """How many times as fast as ONNX Runtime OpenVINO is, for each model that both run."""
    pairs = zip(rows.cells("ONNX Runtime"), rows.cells("OpenVINO"), strict=True)
    return [
        float(onnxruntime.split()[0]) / float(openvino.split()[0])
        for onnxruntime, openvino in pairs
        if "ms" in onnxruntime and "ms" in openvino
    ]


def engines(text: str) -> Conclusion:
    rows = _with(text, "chosen", "after tuning")
    columns = ("before tuning", "before tuning, rested", "after tuning", "after tuning, rested")
    groups = {column: rows.numbers(column) for column in columns}
    gains = engine_gains(rows)
    return Conclusion(
        f"For {sum(gain > 1.05 for gain in gains)} of {len(gains)} models OpenVINO is more than 5% "
        f"faster than ONNX Runtime, up to "
        f"{max(gains):.1f} times. Before tuning, a model takes {_x(groups['before tuning'])} of ONNX "
        f"Runtime's time; after it, "
        f"{_x(groups['after tuning'])} of the time of the faster engine, as medians. {rows.held()} rows hold.",
        Dots("Share of ONNX Runtime's, then of the faster engine's time", groups),
    )


def agreement(text: str) -> Conclusion:
    rows = _with(text, "after tuning", "OpenVINO").where("OpenVINO", "^right")
    tries, leaves = rows.where("rule of thumb", "^tries"), rows.where("rule of thumb", "^(?!tries)")
    groups = {"the rule tries it": tries.numbers("OpenVINO"), "the rule does not": leaves.numbers("OpenVINO")}
    every = _with(text, "after tuning", "OpenVINO")
    worst = max(*every.numbers("before tuning"), *every.numbers("after tuning"))
    faster = sum(value <= 0.95 for value in rows.numbers("OpenVINO"))
    return Conclusion(
        f"The results of {len(every.rows)} models differ from ONNX Runtime's by at most {worst:g} of "
        f"the largest number, before and after tuning. OpenVINO "
        f"is right for {len(rows.rows)} of them, and takes at most 0.95 of the time for {faster}.",
        Dots("OpenVINO's share of ONNX Runtime's time (less is better)", groups),
    )


def op_level(text: str) -> Conclusion:
    """From the rows of docs/benchmarks.md that follow its three convolutions."""
    rows = _with(text, "what", RATIO)
    start = next(number for number, row in enumerate(rows.rows) if row[0] == "op-level: conv2d three times")
    beside = rows.rows[start : start + 4]
    bars = [Bar("Opweave", float(beside[0][1].split()[0]))]
    bars += [Bar(re.sub(r" \d[\d.+a-z]*|, one thread", "", row[3]), float(row[2].split()[0]), False) for row in beside]
    ratios = {row[3]: float(row[4].split("x")[0]) for row in beside}
    torch = next(ratio for name, ratio in ratios.items() if name.startswith("PyTorch"))
    return Conclusion(
        f"Three convolutions that are called one at a time take {ratios['one graph']:.2f}x of the time of one graph, "
        f"{ratios['three ONNX Runtime sessions']:.2f}x of three sessions of ONNX Runtime, and {torch:.2f}x of PyTorch "
        f"([benchmarks](benchmarks.md)).",
        Bars("conv2d three times, milliseconds (less is better)", sorted(bars, key=lambda bar: bar.value), " ms"),
    )


def kernels(text: str) -> Conclusion:
    rows = _with(text, "Operation", "Loop from")
    gains = {
        f"{size} elements": [
            float(match[1]) for cell in rows.cells(size) if (match := re.search(rf"({NUMBER})x", cell))
        ]
        for size in rows.header[1:-1]
    }
    loops = sum(cell[:1].isdigit() for cell in rows.cells("Loop from"))
    return Conclusion(
        f"{loops} of {len(rows.rows)} measured operations run as compiled loops, from the size in the "
        f"last column on. For "
        f"{list(gains)[-1]}, the loop of an operation is {max(list(gains.values())[-1]):.0f} times as "
        f"fast as the kernel at best, "
        f"and {median(list(gains.values())[-1]):.1f} times as the median.",
        Dots("Gain of the loop over the kernel (more is better)", gains),
    )


def composites(text: str) -> Conclusion:
    rows = _with(text, "Composite", "Gain")
    gains = rows.numbers("Gain")
    groups: dict[str, list[float]] = {}
    for name, gain in zip(rows.cells("Composite"), gains, strict=True):
        groups.setdefault(name.strip("`"), []).append(gain)
    return Conclusion(
        f"A composite's kernel is {median(gains):.1f} times as fast as its parts, as the median of "
        f"{len(gains)} sizes, and "
        f"{max(gains):.0f} times at best.",
        Dots("Gain of the kernel over the parts (more is better)", groups),
    )


def precision(text: str) -> Conclusion:
    rows = next(each for each in tables(text) if each.header[0] == "" and len(each.header) > 3)
    groups = {
        name.removeprefix("cpu, "): [value for value in rows.numbers(name) if value > 0] for name in rows.header[1:]
    }
    low = next(name for name in groups if "bfloat16" in name)
    speed = _with(text, "float32 takes", "holds")
    (gain,) = speed.where("precision", "bfloat16").numbers("float32 takes")
    return Conclusion(
        f"In float32, the largest error of a model is {median(groups['onnxruntime, float32']):.0e} of "
        f"its largest element, as a "
        f"median; in bfloat16 it is {median(groups[low]):.0e}, and ResNet-50 runs {gain:.1f} times as fast.",
        Dots("Largest error of each model (less is better)", groups, unit="", mark=None),
    )


def libraries(text: str) -> Conclusion:
    rows = _with(text, "library", "Opweave, memory")
    groups = {"time": rows.numbers("Opweave"), "memory": rows.numbers("Opweave, memory")}
    return Conclusion(
        f"Whole programs of {len(rows.rows)} libraries take {_x(groups['time'])} of the time and "
        f"{_x(groups['memory'])} of the memory "
        f"that they take with ONNX Runtime, as medians. Times include imports and loading ([cold "
        f"starts](benchmarks-cold.md)).",
        Dots("Share of ONNX Runtime's time or memory (less is better)", groups),
    )


def chat(text: str) -> Conclusion:
    rows = _with(text, "opweave", "llama.cpp")
    _, ours, theirs = rows.rows[0][:3]
    first = rows.where(rows.header[0], "^first token")
    bars = [Bar("Opweave", float(ours.split()[0])), Bar("llama.cpp", float(theirs.split()[0]), False)]
    return Conclusion(
        f"On a CPU, {rows.header[0]} decodes {ours}, and {theirs} in llama.cpp. The first token of a "
        f"prompt of 64 takes "
        f"{first.numbers('ratio')[0]:.2f}x of the time, and the process "
        f"{rows.where(rows.header[0], '^peak').numbers('ratio')[0]:.2f}x "
        f"of the memory.",
        Bars("Tokens per second while decoding (more is better)", bars, ""),
    )


def serving(text: str) -> Conclusion:
    rows = _with(text, "deployment", "requests/s")
    ours = rows.where("deployment", "^opweave$")
    shares = ours.numbers("opweave / bare")
    bars = [
        Bar(
            f"{row[0].split(' (')[1].split(')')[0]}, {row[1]} "
            f"client{'s' if row[1] != '1' else ''}{'' if row[2] == 'opweave' else ', bare'}",
            float(row[3]),
            row[2] == "opweave",
        )
        for row in rows.rows
    ]
    return Conclusion(
        f"A deployment answers {min(shares):.2f} to {max(shares):.2f} times as many requests as ONNX "
        f"Runtime in a minimal "
        f"deployment (*bare*), which has no protocol.",
        Bars("Requests per second (more is better)", bars, ""),
    )


def scale(text: str) -> Conclusion:
    rows = _with(text, "ResNet-50", "ratio")
    actors = rows.where("ResNet-50", "^images/s")
    shares = actors.numbers("ratio")
    bars = []
    for label, ours, theirs in (row[:3] for row in actors.rows):
        bars += [
            Bar(f"Opweave, {label.removeprefix('images/s, ')}", float(ours)),
            Bar("ONNX Runtime", float(theirs), False),
        ]
    memory = rows.where("ResNet-50", "memory").numbers("ratio")[0]
    return Conclusion(
        f"Actors of Ray Data process {min(shares):.2f} to {max(shares):.2f} times as many images per second as plain "
        f"processes with ONNX Runtime. A further actor takes {memory:.2f}x of the private memory.",
        Bars("ResNet-50, images per second (more is better)", bars, ""),
    )


def campaign(text: str) -> Conclusion:
    rows = _with(text, "Campaign", "Cases")
    cases = [int(cell.replace(",", "")) for cell in rows.cells("Cases")]
    findings, still = (sum(map(int, rows.cells(column))) for column in ("Found", "Open"))
    return Conclusion(
        f"{len(rows.rows)} campaigns ran {sum(cases):,} cases and had {findings} findings, of which {still} are open."
    )


PAGES: dict[str, Callable[[str], Conclusion]] = {
    "models.md": models,
    "models-torch.md": torch_modules,
    "benchmarks.md": cpu,
    "benchmarks-small.md": small,
    "benchmarks-traffic.md": traffic,
    "benchmarks-cold.md": cold,
    "benchmarks-gpu.md": gpu,
    "engines.md": engines,
    "engines-agreement.md": agreement,
    "kernels.md": kernels,
    "interop.md": interop,
    "op-level.md": op_level,
    "composites.md": composites,
    "precision.md": precision,
    "onnxruntime.md": libraries,
    "chat.md": chat,
    "serving.md": serving,
    "scale.md": scale,
    "campaign.md": campaign,
}
"""File in docs/ -> what its tables come to, in the order of docs/measured.md."""

SOURCES = {"op-level.md": "benchmarks.md"}
"""Pages whose tables are on another page."""


def image(name: str) -> Path:
    """The path of the chart of a page, in docs/."""
    return Path("images", f"chart-{Path(name).stem}.svg")


def conclusion(name: str, text: str | None = None) -> Conclusion:
    """What a page comes to; its text is that of the file if it is not passed."""
    source = SOURCES.get(name, name)
    return PAGES[name](
        text if text is not None and source == name else DOCS.joinpath(source).read_text(encoding="utf-8")
    )


def completed(name: str, text: str) -> str:
    """The text of a page with its conclusion between its lines "<!-- conclusion -->" and "<!-- end -->".

    In a page without these lines, it is written below the title.
    """
    result = conclusion(name, text)
    block = f"<!-- conclusion -->\n{result.text}\n"
    if result.chart:
        block += f"\n![{result.chart.title}]({image(name).as_posix()})\n"
    block += "<!-- end -->\n"
    if BLOCK.search(text):
        return BLOCK.sub(lambda _: block, text, count=1)
    title, rest = text.split("\n\n", 1)
    return f"{title}\n\n{block}\n{rest}"


def write(name: str, text: str) -> None:
    """Write a page with its conclusion, and its chart."""
    DOCS.joinpath(name).write_text(completed(name, text), encoding="utf-8")
    if chart := conclusion(name, text).chart:
        DOCS.joinpath(image(name)).write_text(chart.svg(), encoding="utf-8")


def overview() -> str:
    """The table of docs/measured.md: each page, and what it comes to."""
    rows = []
    for name in PAGES:
        title = DOCS.joinpath(name).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        rows.append([f"[{title}]({name})", conclusion(name).text])
    return str(Table(["Page", "What it comes to"], rows))


def gains() -> str:
    """The table of docs/faster.md: what each step gives."""
    cpu_rows, gpu_text, interop_text, served = (
        DOCS.joinpath(name).read_text(encoding="utf-8")
        for name in ("benchmarks.md", "benchmarks-gpu.md", "interop.md", "serving.md")
    )
    rows = _with(cpu_rows, "what", RATIO)
    cuda = _with(gpu_text, "on the clock", "PyTorch")

    def took(what: str, column: str = "Opweave") -> float:
        return rows.where("what", f"^{re.escape(what)}$").numbers(column)[0]

    def on_gpu(name: str, precision: str) -> float:
        return cuda.where("", f"^{name}$").where("precision", f"^{precision}$").numbers("on the clock")[0]

    on_openvino = engine_gains(_with(DOCS.joinpath("engines.md").read_text(encoding="utf-8"), "chosen", "after tuning"))
    speed = _with(DOCS.joinpath("precision.md").read_text(encoding="utf-8"), "float32 takes", "holds")
    (low,) = speed.where("precision", "bfloat16").numbers("float32 takes")
    built_in = _with(interop_text, "conv2d", "2 threads, ms").where("", "^4")
    one, two = built_in.numbers("1 thread, ms")[0], built_in.numbers("2 threads, ms")[0]
    requests = (
        _with(served, "deployment", "requests/s")
        .where("deployment", "^opweave$")
        .where("model", "batches")
        .numbers("requests/s")
    )
    loops = rows.where("what", "with loops$").numbers(RATIO)
    chains = median(rows.where("which is", "operation by operation").numbers(RATIO))
    image, images = on_gpu("ResNet-50, batch 1", "float32"), on_gpu("ResNet-50, batch 32", "float32")
    measured = [
        ("[Tune](#tune)", f"up to {max(on_openvino):.1f} times as fast on OpenVINO", {"engines": "engines.md"}),
        (
            "[Fix the shapes](#fix-the-shapes)",
            f"AlexNet, Inception v1 and ZFNet: {min(loops):.2f}x to {max(loops):.2f}x of the time",
            {"loops": "benchmarks.md"},
        ),
        (
            "[Choose the device](#choose-the-device)",
            f"ResNet-50: {took('ResNet-50 b1, run'):.1f} ms on 2 cores, {image:.2f} ms on an H200",
            {"resnet50": "benchmarks.md", "cuda": "benchmarks-gpu.md"},
        ),
        (
            "[Lower the precision](#lower-the-precision)",
            f"{low:.1f} times as fast in bfloat16 on a CPU, "
            f"{image / on_gpu('ResNet-50, batch 1', 'float16'):.1f} times in float16 on an H200",
            {"precision": "precision.md", "cuda": "benchmarks-gpu.md"},
        ),
        (
            "[Set the threads](#set-the-threads)",
            f"a convolution: {one:.1f} ms with one thread, {two:.1f} ms with two",
            {"interop": "interop.md"},
        ),
        (
            "[Batch](#batch)",
            f"{32 * image / images:.1f} times as many images per second on a GPU; 16 clients get "
            f"{requests[1] / requests[0]:.1f} times as many answers as one",
            {"cuda": "benchmarks-gpu.md", "serving": "serving.md"},
        ),
        (
            "[Reuse memory](#reuse-memory)",
            f"{took('compute of the same'):.1f} us for a small graph with arrays, "
            f"{took('dispatch of a 16-element relu'):.1f} us on tensors",
            {"overhead": "benchmarks.md"},
        ),
        (
            "[Compile expressions](#compile-expressions)",
            f"a chain of element-wise operations takes {chains:.2f}x of the time",
            {"fusion": "benchmarks.md"},
        ),
    ]

    def source(command: str, page: str) -> str:
        title = DOCS.joinpath(page).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        return f"`python -m benchmarks {command}` ([{title}]({page}))"

    rows_of_table = [[step, text, ", ".join(starmap(source, pages.items()))] for step, text, pages in measured]
    return str(Table(["Step", "What it gives", "Measured by"], rows_of_table))


def write_all() -> None:
    """Renew all pages and charts, and the tables that are made of them."""
    for name in PAGES:
        write(name, DOCS.joinpath(name).read_text(encoding="utf-8"))
    replace_part(DOCS / "measured.md", overview(), "conclusions")
    replace_part(DOCS / "faster.md", gains(), "gains")


if __name__ == "__main__":
    write_all()
