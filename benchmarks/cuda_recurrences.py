"""Selective scans and linear attention with CUDA, beside the forms in chunks that PyTorch compiles.

python -m benchmarks cuda_recurrences --json results.json     # the file keeps finished rows, and the next run resumes
python -m benchmarks cuda_recurrences --render results.json   # writes docs/benchmarks-gpu.md

Needs the extra cuda, and torch. Each case has a process of its own, in which both compute the same numbers from tensors on the
device to tensors on the device.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Annotated, Any, cast

import numpy as np
import typer

from .budgets import CUDA_RECURRENCE, TRAFFIC_OF_RECURRENCE
from .measure import Ratio, alone, alternate, in_process
from .page import DOCS, Table, versions, yes
from .record import Record, resumed
from .rows import dispatched

RECORD = DOCS / "benchmarks-cuda-recurrences.json"

SECONDS = 300
"""Time limit of a process: PyTorch compiles unrolled loops for a minute."""

LAUNCHES = 20
"""Launches of a call, which then synchronises with the device."""

BANDWIDTH, LAUNCH, LEAST = 3.6e12, 10.0, 50.0
"""Bytes a second, microseconds besides, and microseconds of traffic from which on there is a limit to it."""

SIZE, HEAD_SIZE = 16, 128
"""Elements of a state: of a channel of Mamba, and of a channel of a head of Mamba 2."""


@dataclass(frozen=True)
class Case:
    """A recurrence and its sizes.

    Attributes:
        rule: "scan" for Mamba, "scan of heads" for Mamba 2, or a rule of `linear_attention`.
        width: channels of a scan, or of a head, or keys and values of a head.
    """

    rule: str
    batches: int
    tokens: int
    heads: int
    width: int

    @property
    def name(self) -> str:
        heads = "" if self.rule == "scan" else f"{self.heads} heads of "
        return f"{self.rule.replace('_', ' ')}, {self.batches} x {self.tokens:,} tokens, {heads}{self.width:,}"

    @property
    def traffic(self) -> float:
        """Microseconds to read the operands once and write the outputs once."""
        tokens = self.batches * self.tokens
        if self.rule == "scan":
            return 4e6 * tokens * (3 * self.width + 2 * SIZE) / BANDWIDTH
        if self.rule == "scan of heads":
            return 4e6 * tokens * (2 * self.heads * self.width + self.heads + 2 * HEAD_SIZE) / BANDWIDTH
        gates = {"linear": 0, "gated": 1, "delta": 1, "gated_delta": 2}[self.rule]
        return 4e6 * tokens * self.heads * (4 * self.width + gates) / BANDWIDTH


CASES = (
    Case("scan", 1, 1024, 1, 768),
    Case("scan", 1, 4096, 1, 1536),
    Case("scan", 8, 1024, 1, 2048),
    Case("scan of heads", 1, 4096, 32, 64),
    Case("scan of heads", 8, 2048, 32, 64),
    Case("linear", 1, 2048, 16, 64),
    Case("gated", 1, 1024, 8, 64),
    Case("gated", 1, 4096, 16, 64),
    Case("gated", 12, 1024, 16, 64),
    Case("gated", 8, 1024, 16, 128),
    Case("gated_delta", 1, 1024, 8, 64),
    Case("gated_delta", 1, 4096, 16, 128),
    Case("gated_delta", 12, 1024, 16, 64),
)

PRECISIONS = {"float32": CASES, "tf32": tuple(case for case in CASES if case.rule != "scan")}


@dataclass
class Row:
    """A case in one precision.

    Attributes:
        name: the case, and the precision behind a slash.
        ours: microseconds on the device; the median.
        theirs: PyTorch's.
        ratio: of pairs: the quartiles.
        traffic: microseconds that the operands and outputs take at least.
        error: the difference from PyTorch's results, relative to the largest.
    """

    name: str
    ours: float
    theirs: float
    ratio: list[float]
    traffic: float
    error: float

    def faults(self) -> list[str]:
        """The limits that the case exceeds."""
        holds = {"PyTorch": CUDA_RECURRENCE.holds(ratio=Ratio(*self.ratio))}
        if self.traffic >= LEAST:
            holds["traffic"] = self.ours <= TRAFFIC_OF_RECURRENCE * self.traffic + LAUNCH
        return [name for name, is_held in holds.items() if not is_held]


def section(record: Record[Row]) -> str:
    """The part of the page about GPUs, in Markdown."""
    rows = [
        [
            *row.name.rsplit("/", 1),
            f"{row.ours:.0f} us",
            f"{row.theirs:.0f} us",
            f"{row.ratio[1]:.2f}x",
            f"{row.traffic:.0f} us",
            f"{row.error:.0e}",
            ", ".join(row.faults()) or yes(True),
        ]
        for row in record.rows
    ]
    head = ["", "precision", "Opweave", "PyTorch", "ratio", "traffic", "difference", "holds"]
    text = f"""## Recurrences with CUDA

Written by `python -m benchmarks cuda_recurrences`: {record.device}; {record.machine}.

`selective_scan` of Mamba, with states of {SIZE} elements for each channel, and of Mamba 2 ("of heads"), with {HEAD_SIZE};
and `linear_attention`; beside them the same in chunks of tokens, compiled by `torch.compile` and captured in a CUDA graph.
Times are from tensors on the device to tensors on the device. "Traffic" is the time to read all operands and write all
outputs once, at {BANDWIDTH / 1e12:g} TB/s. The limits are {CUDA_RECURRENCE} of PyTorch's time, and, where the traffic takes
{LEAST:g} us, {TRAFFIC_OF_RECURRENCE:g}x of it and {LAUNCH:g} us. The last column names the limits that are exceeded, or says
yes.

{Table(head, rows, right=range(2, 7))}
"""
    failed = "".join(f"- {name}: {reason}\n" for name, reason in sorted(record.failures.items()))
    return f"{text}\nNot measured:\n\n{failed}" if failed else text


def main(
    only: Annotated[str, typer.Option(help="A part of the names of cases. Default: all.")] = "",
    keep: Annotated[Path, typer.Option("--json", help="Where results are kept, after each case.")] = RECORD,
    render: Annotated[Path | None, typer.Option(help="Measure nothing, and make the page of this file.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="How many cases are compiled at the same time.")] = 4,
    again: Annotated[bool, typer.Option(help="Measure also what the file already has.")] = False,
) -> None:
    """Measure the cases that the file does not have, and write the page. Takes a few minutes."""
    from .gpu_page import write

    if render is not None:
        RECORD.write_text(render.read_text())
        write()
        return
    import opweave as ow

    device = ow.ml.create_context(device="cuda").device.description
    record = resumed(keep, Row, device, versions("opweave", "cuda-bindings", "triton", "torch"))
    order = [f"{case.name}/{precision}" for precision, cases in PRECISIONS.items() for case in cases]
    finished = set() if again else {row.name for row in record.rows}
    lock = Lock()
    with TemporaryDirectory(prefix="opweave-recurrences-") as folder, ThreadPoolExecutor(jobs) as pool:

        def measure(name: str) -> None:
            rows, failure = [], ""
            try:
                rows = [Row(**in_process("benchmarks.cuda_recurrences", "case", name, folder, timeout=SECONDS))]
            except (RuntimeError, TimeoutError) as error:
                failure = str(error).splitlines()[-1][:300]
            with lock:
                record.rows = [*(row for row in record.rows if row.name != name), *rows]
                record.rows.sort(key=lambda row: order.index(row.name))
                record.failures.pop(name, None)
                if failure:
                    record.failures[name] = failure
                record.write(keep)
                print(f"{name}: {failure or rows[0]}", flush=True)

        list(pool.map(measure, [name for name in order if only in name and name not in finished]))
    if keep == RECORD:
        write()


# In a separate process ---------------------------------------------------------------------------------------------


def _measure(name: str, folder: Path) -> Row:
    import torch

    precision: Any = name.rpartition("/")[2]
    case = next(case for case in CASES if name == f"{case.name}/{precision}")
    feed, arguments = _numbers(case)
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    theirs, expected = _capture(*_pytorch(case, [torch.from_numpy(array).cuda() for array in arguments]))
    ours, result_of = _opweave(case, feed, precision)
    ours()
    result, reference = result_of(), expected.cpu().numpy()
    with alone(folder):
        times = alternate({"ours": ours, "theirs": theirs}, pairs=15, seconds=0.02)
    return Row(
        name,
        1e6 / LAUNCHES * median(times["ours"]),
        1e6 / LAUNCHES * median(times["theirs"]),
        list(vars(Ratio.of(times["ours"], times["theirs"])).values()),
        case.traffic,
        float(np.abs(result.reshape(reference.shape) - reference).max() / np.abs(reference).max()),
    )


def _numbers(case: Case) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
    """The operands by name as Opweave takes them, and in order as PyTorch's functions do."""
    random = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        values: np.ndarray = random.standard_normal(shape, np.float32)
        return values

    lines = case.batches, case.tokens
    if case.rule == "scan":
        x, b, c = normal(*lines, case.width), normal(*lines, SIZE), normal(*lines, SIZE)
        delta = random.uniform(0, 0.1, x.shape).astype(np.float32)
        a = -random.uniform(0, 1, (case.width, SIZE)).astype(np.float32)
        return {"input": x, "delta": delta, "a": a, "b": b, "c": c}, [x, delta, a, b, c]
    if case.rule == "scan of heads":
        x, b, c = normal(*lines, case.heads, case.width), normal(*lines, 1, HEAD_SIZE), normal(*lines, 1, HEAD_SIZE)
        delta = random.uniform(0, 0.1, (*lines, case.heads)).astype(np.float32)
        a = -random.uniform(0, 1, case.heads).astype(np.float32)
        return {"input": x, "delta": delta, "a": a, "b": b, "c": c}, [x, delta, a, b, c]
    query, key, value = (normal(*lines, case.heads, case.width) for _ in range(3))
    key /= np.linalg.norm(key, axis=-1, keepdims=True)
    operands = {"query": query, "key": key, "value": value}
    operands["decay"] = -random.uniform(0, 0.2, (*lines, case.heads)).astype(np.float32)
    operands["beta"] = random.uniform(0, 1, (*lines, case.heads)).astype(np.float32)
    if "gated" not in case.rule:
        del operands["decay"]
    if "delta" not in case.rule:
        del operands["beta"]
    feed = {
        name: array.reshape(*lines, -1) if name in ("query", "key", "value") else array
        for name, array in operands.items()
    }
    zeros = np.zeros((*lines, case.heads), np.float32)
    return feed, [query, key, value, operands.get("decay", zeros), operands.get("beta", zeros)]


def _opweave(
    case: Case, feed: Mapping[str, np.ndarray], precision: Any
) -> tuple[Callable[[], object], Callable[[], np.ndarray]]:
    """A function that dispatches the graph several times, and waits; and one that reads the output."""
    import opweave as ow
    from opweave import composites

    context = ow.ml.create_context(device="cuda", precision=precision)
    builder = ow.MLGraphBuilder(context)
    operands = {name: builder.input(name, "float32", list(array.shape)) for name, array in feed.items()}
    if "scan" in case.rule:
        y, state = composites.selective_scan(**operands)
    else:
        y, state = composites.linear_attention(
            **operands, heads=case.heads, groups=case.heads, update_rule=cast(Any, case.rule)
        )
    graph = builder.build({"y": y, "state": state}, fallback="error")
    dispatch, outputs = dispatched(graph, context, feed)
    engine: Any = context.backend.space

    def call() -> None:
        for _ in range(LAUNCHES):
            dispatch()
        engine.wait()

    return call, lambda: context.read_tensor(outputs["y"])


def _capture(function: Callable[..., Any], arguments: list[Any]) -> tuple[Callable[[], object], Any]:
    """A function that replays PyTorch's compiled function several times, and waits; and its output."""
    import torch

    compiled = torch.compile(function)
    stream = torch.cuda.Stream()
    with torch.inference_mode(), torch.cuda.stream(cast(Any, stream)):
        for _ in range(3):
            compiled(*arguments)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=cast(Any, stream)):
            result = compiled(*arguments)

    def call() -> None:
        for _ in range(LAUNCHES):
            graph.replay()
        torch.cuda.synchronize()

    call()
    return call, result


def _pytorch(case: Case, tensors: list[Any]) -> tuple[Callable[..., Any], list[Any]]:
    if case.rule == "scan":
        return _scan, [*tensors, 16 if case.tokens <= 1024 else 32]
    if case.rule == "scan of heads":
        return _scan_of_heads, tensors
    scale = 1 / math.sqrt(case.width)
    if "delta" in case.rule:
        return _delta, [*tensors, scale]
    return _gated, [*tensors[:4], scale]


def _scan(x: Any, delta: Any, a: Any, b: Any, c: Any, length: int) -> Any:
    """A selective scan in chunks: the steps of all chunks at once, then the shares of the states before chunks."""
    import torch

    batches, tokens, channels = x.shape
    count = tokens // length
    x, delta, b, c = (tensor.reshape(batches, count, length, -1) for tensor in (x, delta, b, c))
    state = torch.zeros(batches, count, channels, SIZE, device=x.device)
    outputs = []
    for t in range(length):
        added = (delta[:, :, t] * x[:, :, t])[..., None] * b[:, :, t, None, :]
        state = torch.exp(delta[:, :, t, :, None] * a) * state + added
        outputs.append((state * c[:, :, t, None, :]).sum(-1))
    total = delta.cumsum(2)
    first = torch.zeros(batches, channels, SIZE, device=x.device)
    before = []
    for chunk in range(count):
        before.append(first)
        first = torch.exp(total[:, chunk, -1, :, None] * a) * first + state[:, chunk]
    firsts = torch.stack(before, 1)
    for t in range(length):
        kept = torch.exp(total[:, :, t, :, None] * a) * firsts
        outputs[t] = outputs[t] + (kept * c[:, :, t, None, :]).sum(-1)
    return torch.stack(outputs, 2).reshape(batches, tokens, channels)


CHUNK = 64
"""Tokens of a chunk of linear attention in PyTorch."""


def _chunks(decay: Any, *tensors: Any) -> tuple[Any, Any, list[Any]]:
    """Decays summed in chunks, factors from token to token, and tensors as [batches, heads, chunks, CHUNK, ...]."""
    import torch

    batches, tokens, heads = decay.shape
    shape = batches, heads, tokens // CHUNK, CHUNK
    sums = decay.transpose(1, 2).reshape(shape).cumsum(-1)
    past = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=decay.device).tril()
    factors = (sums[..., :, None] - sums[..., None, :]).masked_fill(~past, -torch.inf).exp()
    return sums, factors, [tensor.transpose(1, 2).reshape(*shape, -1) for tensor in tensors]


def _tokens(outputs: Any) -> Any:
    """Outputs [batches, heads, chunks, CHUNK, values] as [batches, tokens, heads, values]."""
    batches, heads, *_, values = outputs.shape
    return outputs.reshape(batches, heads, -1, values).transpose(1, 2)


def _gated(query: Any, key: Any, value: Any, decay: Any, scale: float) -> Any:
    """Linear attention in chunks."""
    import torch

    sums, factors, (q, k, v) = _chunks(decay, query * scale, key, value)
    inner = ((q @ k.transpose(-1, -2)) * factors) @ v
    end = sums[..., -1:]
    added = (k * (end - sums).exp()[..., None]).transpose(-1, -2) @ v
    state, before = torch.zeros_like(added[:, :, 0]), []
    for chunk in range(added.shape[2]):
        before.append(state)
        state = state * end.exp()[:, :, chunk, :, None] + added[:, :, chunk]
    return _tokens(inner + (q * sums.exp()[..., None]) @ torch.stack(before, 2))


def _scan_of_heads(x: Any, delta: Any, a: Any, b: Any, c: Any) -> Any:
    """A selective scan of Mamba 2, which is linear attention."""
    heads = x.shape[2]
    return _gated(c.expand(-1, -1, heads, -1), b.expand(-1, -1, heads, -1), x * delta[..., None], delta * a, 1.0)


def _delta(query: Any, key: Any, value: Any, decay: Any, beta: Any, scale: float) -> Any:
    """The delta rule in chunks."""
    import torch

    sums, factors, (q, k, v, share) = _chunks(decay, query * scale, key, value, beta[..., None])
    unit = torch.eye(CHUNK, device=q.device)
    lower = (((k * share) @ k.transpose(-1, -2)) * factors).tril(-1)
    inverse = torch.linalg.solve_triangular(unit + lower, unit.expand_as(lower), upper=False, unitriangular=True)
    changes, reads = inverse @ (v * share), inverse @ (k * share * sums.exp()[..., None])
    inner, end = (q @ k.transpose(-1, -2)) * factors, sums[..., -1:]
    last, first = (k * (end - sums).exp()[..., None]).transpose(-1, -2), q * sums.exp()[..., None]
    state, outputs = torch.zeros_like(last[:, :, 0] @ v[:, :, 0]), []
    for chunk in range(q.shape[2]):
        change = changes[:, :, chunk] - reads[:, :, chunk] @ state
        outputs.append(first[:, :, chunk] @ state + inner[:, :, chunk] @ change)
        state = state * end.exp()[:, :, chunk, :, None] + last[:, :, chunk] @ change
    return _tokens(torch.stack(outputs, 2))


if __name__ == "__main__":
    if sys.argv[1:2] == ["case"]:
        print(json.dumps(asdict(_measure(sys.argv[2], Path(sys.argv[3])))))
    else:
        typer.run(main)
