"""A fresh process that runs a tiny ONNX model once: Opweave beside ONNX Runtime alone, and what Opweave's imports take.

`python -m benchmarks cold` measures processes of both alternately, and writes docs/benchmarks-cold.md. Bytecode is compiled
beforehand. The processes measure nothing themselves but their peak memory: what they loaded to do so would hide that Opweave
loads it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from . import conclusions
from .budgets import COLD
from .measure import ROOT, environment, tell
from .page import Table, machine, yes

MODELS = {"static": "float[2]", "dynamic": "float[n]"}
"""The type of the only input, and of the only output, by the name of the model."""

RUN = 'run(None, {"x": np.ones(2, np.float32)})'

ONNXRUNTIME = f"""
import numpy as np, onnxruntime
onnxruntime.InferenceSession(PATH, providers=["CPUExecutionProvider"]).{RUN}
"""

WAYS = {
    "`ow.InferenceSession`": f"""
import numpy as np, opweave as ow
ow.InferenceSession(PATH).{RUN}
""",
    "`replacing_onnxruntime()`": f"""
import numpy as np, onnxruntime, opweave as ow
with ow.onnx.replacing_onnxruntime():
    onnxruntime.InferenceSession(PATH, providers=["CPUExecutionProvider"]).{RUN}
""",
}
"""What a process of Opweave runs, by what it calls."""

PEAK = """
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM:")))
"""

IMPORT_TIMES = 5
"""How many processes the times of imports are of; the least of each module counts, as noise only adds to it."""

SHOWN = 12
"""How many modules the page lists."""

HEADER = ["model", "run by", "time", "more", "processor time", "more", "peak memory", "more", "holds"]


@dataclass
class Figures:
    """Figures of processes that do the same.

    Attributes:
        wall: milliseconds from the start of each process to its end.
        cpu: milliseconds of processor time, of all threads, user and system.
        memory: peak memory in MiB.
    """

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)

    def add(self, code: str, variables: Mapping[str, str]) -> None:
        """Run a process, and add its figures."""
        start = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-c", code + PEAK], stdout=subprocess.PIPE, text=True, cwd=ROOT, env=variables
        )
        assert process.stdout is not None
        said = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"this process failed:\n{code}")
        self.wall.append(wall * 1e3)
        self.cpu.append((usage.ru_utime + usage.ru_stime) * 1e3)
        self.memory.append(int(said.split()[1]) / 1024)


def write_models(folder: Path) -> dict[str, Path]:
    """Write a model of one relu with a static shape, and one with a dynamic shape."""
    from onnx.parser import parse_model

    paths = {}
    for name, type in MODELS.items():
        text = f'<ir_version: 8, opset_import: ["": 17]> g ({type} x) => ({type} y) {{ y = Relu(x) }}'
        paths[name] = folder / f"{name}.onnx"
        paths[name].write_bytes(parse_model(text).SerializeToString())
    return paths


def coded(code: str, path: Path) -> str:
    """The program of a process for the model at a path."""
    return code.replace("PATH", repr(str(path)))


def measured(programs: Mapping[str, str], turns: int) -> dict[str, Figures]:
    """Run programs alternately, after a turn that compiles what they import."""
    variables = environment(ROOT / "src")
    found = {name: Figures() for name in programs}
    for turn in range(turns + 1):
        tell(f"{len(programs)} processes, {f'{turn} of {turns}' if turn else 'to warm up'}")
        for name, program in list(programs.items())[:: 1 if turn % 2 else -1]:
            (found[name] if turn else Figures()).add(program, variables)
    return found


def import_times(program: str) -> dict[str, float]:
    """Milliseconds that each of Opweave's modules takes in a process, without the modules that it imports."""
    variables = environment(ROOT / "src")
    least: dict[str, float] = {}
    for _ in range(IMPORT_TIMES):
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-c", program],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
            env=variables,
        )
        for own, name in re.findall(r"^import time: +(\d+) \| +\d+ \| +(opweave\S*)", done.stderr, re.MULTILINE):
            least[name] = min(least.get(name, float("inf")), int(own) / 1e3)
    return dict(sorted(least.items(), key=lambda item: -item[1]))


def row(model: str, way: str, ours: Figures, theirs: Figures) -> list[str]:
    """A row of the table: medians of ours, and how much they exceed those of ONNX Runtime alone."""
    holds = COLD["time"].holds(ours=median(ours.wall), theirs=median(theirs.wall)) and COLD["memory"].holds(
        ours=median(ours.memory), theirs=median(theirs.memory)
    )
    cells = [model, way]
    for unit, mine, others in (
        ("ms", ours.wall, theirs.wall),
        ("ms", ours.cpu, theirs.cpu),
        ("MiB", ours.memory, theirs.memory),
    ):
        cells += [f"{median(mine):.0f} {unit}", f"{median(mine) - median(others):+.1f} {unit}"]
    return [*cells, yes(holds)]


def alone(model: str, figures: Figures) -> list[str]:
    """The row of ONNX Runtime alone."""
    wall, cpu, memory = median(figures.wall), median(figures.cpu), median(figures.memory)
    return [model, "ONNX Runtime alone", f"{wall:.0f} ms", "", f"{cpu:.0f} ms", "", f"{memory:.0f} MiB", "", ""]


def markdown(rows: Sequence[Sequence[str]], modules: Mapping[str, float], turns: int) -> str:
    slowest = list(modules.items())[:SHOWN]
    listed = [[f"`{name}`", f"{took:.1f} ms", yes(COLD["module"].holds(ours=took))] for name, took in slowest]
    more = f"{COLD['time'].limit:g} ms and {COLD['memory'].limit:g} MiB"
    most = f"{COLD['module'].limit:g} ms"
    return f"""# Cold starts

A fresh process imports NumPy and the runtime, loads an ONNX model of one relu, and runs it once: a serverless function, a
command-line tool, or a worker that was just started. Opweave imports only what the session uses. It may take {more} more than
ONNX Runtime alone.

{Table(HEADER, rows, right=range(2, 8))}

Made by `python -m benchmarks cold` on: {machine()}.

Medians of {turns} processes each, which ran alternately. The time is that of the whole process, from its start to its end, and
processor time that of all its threads. Bytecode was compiled before. Times are comparable
within the table alone: they depend on what else the machine does, unlike memory.

## Modules

Opweave imports {len(modules)} modules for the first run of the dynamic model. None may take more than {most} without what it
imports. The slowest ones (`python -X importtime`, which itself takes time; the least of {IMPORT_TIMES} processes):

{Table(["module", "time", "holds"], listed, right=[1])}
"""


def main(turns: Annotated[int, typer.Option(help="processes of each kind")] = 15) -> None:
    """Measure fresh processes that run a tiny model once, and write docs/benchmarks-cold.md."""
    rows = []
    with TemporaryDirectory() as folder:
        paths = write_models(Path(folder))
        for model, path in paths.items():
            programs = {"": coded(ONNXRUNTIME, path), **{way: coded(code, path) for way, code in WAYS.items()}}
            found = measured(programs, turns)
            theirs = found.pop("")
            rows.append(alone(model, theirs))
            rows += [row(model, way, ours, theirs) for way, ours in found.items()]
        modules = import_times(coded(next(iter(WAYS.values())), paths["dynamic"]))
    page = markdown(rows, modules, turns)
    print(page)
    conclusions.write("benchmarks-cold.md", page)
