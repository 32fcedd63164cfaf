"""What all campaigns share: child processes under limits, progress, and files that reproduce a finding."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import random
import resource
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from math import inf
from pathlib import Path
from threading import Lock
from typing import TextIO

PER_PROCESSOR = 3 * 2**27
"""Address space of the threads that libraries start for a processor. An estimate: with 32 processors, 12 GiB were enough."""
MEMORY = 2 * 2**30 + PER_PROCESSOR * max(0, (os.cpu_count() or 1) - 2)
"""Address space of a child, in bytes. Some libraries count all processors of the machine, not those of the process."""
THREADS = {
    "MALLOC_ARENA_MAX": "2",
    "MKL_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "2",
    "OPENBLAS_NUM_THREADS": "1",
}
"""Variables of children for libraries that start threads when they are imported, before the process is bound to processors.
Without MALLOC_ARENA_MAX, glibc reserves 64 MiB of address space for each thread that allocates memory."""
SECONDS = 20
MESSAGE = 20_000
"""The characters of a message that are kept."""
FINDINGS = frozenset({"finding", "died"})
"""The words for cases that found something."""
TESTS = Path(__file__).resolve().parents[1]


class Finding(Exception):  # noqa: N818  (it is what a campaign looks for)
    """What a case found; the message says what is wrong."""


@dataclass(frozen=True)
class Campaign:
    """Cases of one kind, each made from random numbers alone.

    Attributes:
        name: what it is called on the command line.
        about: one line for `--help`.
        case: runs a case with random numbers of its own and its number, and returns in one word what came of it, or that
            word and how many units it ran. Whatever it raises is a finding.
        count: how many cases the whole campaign has.
        short: how many of them run in `make test`.
        batch: how many cases a child process runs before a new one takes its place.
        memory: the address space of a child, in bytes; None for no limit (drivers of GPUs map terabytes).
        seconds: the processor time of a case.
        patience: for how many seconds a case may take no processor time, as it does when it waits for a pipe or a lock,
            before it is ended.
        unit: what is counted, in the plural: a case is one unless it returns another number.
        outcomes: the words that `case` may return; None for any.
        write: writes what a case consists of into files that begin with a path, and returns them; None if the command is
            all there is to tell.
        describe: the text of what a case consists of, which is written beside its findings, and printed before it runs alone.
        reduce: makes a finding smaller, with processes of its own: takes what `case` does and a folder for files, and returns
            the kind of the smaller finding in one line, and its text.
        prepare: called once, in the parent, with a folder for files that all children read.
        setup: called once in each child, with that folder.
        environment: variables of the children besides those of the parent.
        needs: packages without which it cannot run, as they are imported.
        obstacle: returns what else keeps it from running on this machine; an empty string if nothing does.
    """

    name: str
    about: str
    case: Callable[[random.Random, int], str | tuple[str, int]]
    count: int
    short: int
    batch: int = 400
    memory: int | None = MEMORY
    seconds: int = SECONDS
    patience: int = 120
    unit: str = "cases"
    outcomes: frozenset[str] | None = None
    write: Callable[[random.Random, int, Path], list[Path]] | None = None
    describe: Callable[[random.Random, int], str] | None = None
    reduce: Callable[[random.Random, int, Path], tuple[str, str]] | None = None
    prepare: Callable[[Path], None] | None = None
    setup: Callable[[Path], None] | None = None
    environment: dict[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    obstacle: Callable[[], str] | None = None

    def missing(self) -> str:
        """Why it cannot run here; empty if it can."""
        if missing := [package for package in self.needs if find_spec(package) is None]:
            return f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed"
        return self.obstacle() if self.obstacle is not None else ""

    def on(self, backend: str, case: Callable[..., str], count: int) -> Campaign:
        """This campaign on another back end, with `count` cases; `case` takes its name as `backend`."""
        name, about = f"{self.name}-{backend}", f"{self.about}, on {backend}"
        memory = None if self.memory is None else 2 * self.memory  # for the libraries and threads of a second engine
        changes = {"name": name, "about": about, "count": count, "memory": memory, "needs": (*self.needs, backend)}
        return replace(self, case=partial(case, backend=backend), **changes)

    def rng(self, seed: int, number: int) -> random.Random:
        """The random numbers of a case, the same on every machine."""
        return random.Random(f"{self.name} {seed} {number}")


@dataclass
class Result:
    """What a campaign gave: how often each outcome came, how many units ran, and the findings by the number of their case."""

    outcomes: Counter[str] = field(default_factory=Counter)
    units: int = 0
    findings: dict[int, str] = field(default_factory=dict)


def run(
    campaign: Campaign,
    numbers: Iterable[int],
    *,
    seed: int,
    out: Path,
    most: int = 50,
    jobs: int = 1,
    minutes: float = inf,
    progress: TextIO | None = None,
) -> Result:
    """Run cases of a campaign in child processes.

    Args:
        campaign: which one.
        numbers: the numbers of the cases.
        seed: what their random numbers are made from, besides their numbers.
        out: the folder for the files of findings; made when there is one.
        most: the number of findings after which it stops.
        jobs: how many children run at a time, each on two processors of its own as long as there are enough.
        minutes: after which no case is begun.
        progress: where to tell how far it is.
    """
    state = _Progress(campaign, list(numbers), seed, out, most, progress)
    state.end = time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory(prefix="opweave-fuzz-") as name, ThreadPoolExecutor(jobs) as pool:
        folder = Path(name)
        if campaign.prepare is not None:
            campaign.prepare(folder)
        workers = [pool.submit(_work, state, folder, pair) for pair in processor_pairs(jobs)]
        try:
            for worker in workers:
                worker.result()
        finally:
            state.is_stopped = True
    state.tell(state.summary(" done"))
    return state.result


def processor_pairs(jobs: int) -> list[list[int]]:
    """Two processors for each of the children that run at a time; empty lists where processes cannot be bound.

    A library that starts a thread for each of 64 processors would exceed the address space of a child with their stacks.
    """
    if not hasattr(os, "sched_getaffinity"):
        return [[] for _ in range(jobs)]
    available = sorted(os.sched_getaffinity(0))
    return [[available[(2 * job + k) % len(available)] for k in range(2)] for job in range(jobs)]


class _Progress:
    """The cases that are left of a campaign, and what came of the others; several threads use it."""

    def __init__(
        self, campaign: Campaign, pending: list[int], seed: int, out: Path, most: int, progress: TextIO | None
    ) -> None:
        self.campaign, self.seed, self.result = campaign, seed, Result()
        self.is_stopped, self.end = False, inf
        self._pending, self._out, self._most, self._progress = pending, out, most, progress
        self._total, self._told = len(pending), time.monotonic()
        self._lock = Lock()

    def take(self) -> list[int]:
        """The cases of a new child; empty once there are none."""
        with self._lock:
            count = 0 if self.is_stopped else self.campaign.batch
            taken, self._pending = self._pending[:count], self._pending[count:]
            return taken

    def give_back(self, numbers: list[int]) -> None:
        """Cases that a child did not come to."""
        with self._lock:
            self._pending = numbers + self._pending

    def note(self, number: int, word: str, what: str, units: int) -> None:
        """What came of a case."""
        with self._lock:
            self.result.outcomes[word] += 1
            self.result.units += units
            if what:
                self.result.findings[number] = what
                report(self.campaign, self.seed, number, what, self._out)
                self.tell(f"{self.campaign.name} {number}: {what.splitlines()[0]}")
                self.is_stopped |= len(self.result.findings) >= self._most
            self.is_stopped |= time.monotonic() > self.end
            if time.monotonic() - self._told > 10:
                self._told = time.monotonic()
                self.tell(self.summary())

    def summary(self, done: str = "") -> str:
        """How far the campaign is, in one line."""
        counts = ", ".join(f"{word} {count}" for word, count in self.result.outcomes.most_common())
        far = f"{self.campaign.name}: {sum(self.result.outcomes.values())} of {self._total}"
        return f"{far}{done}, {len(self.result.findings)} findings ({counts})"

    def tell(self, text: str) -> None:
        if self._progress is not None:
            print(text[:300], file=self._progress, flush=True)


def _work(state: _Progress, folder: Path, processors: list[int]) -> None:
    """Run cases in one child after the other, until there are none."""
    while batch := state.take():
        with Child(state.campaign, state.seed, folder, processors) as child:
            while batch and not child.is_dead and not state.is_stopped:
                number = batch.pop(0)
                state.note(number, *child.ask(number))
        state.give_back(batch)


def report(campaign: Campaign, seed: int, number: int, what: str, out: Path) -> Path:
    """Write what is needed to reproduce a finding: the command, what happened, and the files of the case."""
    out.mkdir(parents=True, exist_ok=True)
    stem = out / f"{campaign.name}-{seed}-{number}"
    files = []
    if campaign.write is not None or campaign.describe is not None:
        try:
            if campaign.write is not None:
                files = campaign.write(campaign.rng(seed, number), number, stem)
            if campaign.describe is not None:
                what += f"\n{campaign.describe(campaign.rng(seed, number), number)}"
        except Exception as error:
            what += f"\nits files could not be written: {error!r}"
    command = f"cd {shlex.quote(str(TESTS))} && {shlex.quote(sys.executable)} -m fuzz {campaign.name}"
    text = stem.with_suffix(".txt")
    lines = [f"{command} --seed {seed} --case {number}", *(f"file: {path}" for path in files), "", what]
    text.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="replace")
    return text


def reported(campaign: Campaign, seed: int, out: Path) -> list[int]:
    """The numbers of the cases whose findings are in a folder."""
    names = (path.stem.removeprefix(f"{campaign.name}-{seed}-") for path in out.glob(f"{campaign.name}-{seed}-*.txt"))
    return sorted(int(name) for name in names if name.isdecimal())


class Child:
    """A process that runs cases, one after the other."""

    def __init__(self, campaign: Campaign, seed: int, folder: Path, processors: list[int]) -> None:
        self._campaign = campaign
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the child)
        environment = os.environ | THREADS | campaign.environment
        environment.pop("OPWEAVE_STRICT", None)  # faults of ours must be errors of ours, as users see them
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        command = [sys.executable, "-m", "fuzz", campaign.name, "--seed", str(seed), "--child", str(folder)]
        command += ["--processors", *map(str, processors)] if processors else []
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=TESTS,
            env=environment,
        )
        self.is_dead = False

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def ask(self, number: int) -> tuple[str, str, int]:
        """What came of a case: a word, what is wrong, if something is, and how many units ran to the end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it is dead, and the next line says how
            self._process.stdin.write(b"%d\n" % number)
            self._process.stdin.flush()
        patience = self._campaign.patience
        used = -1
        while not (ready := select.select([self._process.stdout], [], [], patience)[0]):
            before, used = used, _ticks(self._process.pid)
            if used == before:
                break
        line = self._process.stdout.readline() if ready else b""
        if line.endswith(b"\n"):
            word, what, units = json.loads(line)
            return word, what, units
        if not ready:
            self._process.send_signal(signal.SIGABRT)  # its stack is written
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
            self._process.kill()
        code = self._process.wait()
        self.is_dead = True
        self._errors.seek(0)
        errors = self._errors.read().decode(errors="replace")
        why = f"it waited for {patience} s" if not ready else _ending(code, self._campaign.seconds)
        return "died", f"{why}\n{errors[-6000:]}", 0


def _ticks(pid: int) -> int:
    """The processor time of a process, in ticks; -1 where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return -1
    return int(fields[11]) + int(fields[12])


def _ending(code: int, seconds: int) -> str:
    if code == -signal.SIGXCPU:
        return f"it took more than {seconds} s of processor time"
    return f"the process ended: {signal.Signals(-code).name if code < 0 else f'exit status {code}'}"


def bind(processors: list[int]) -> None:
    """Run this process on these processors alone, before a library counts them; on all if there are none."""
    if processors:
        os.sched_setaffinity(0, processors)


def serve(campaign: Campaign, seed: int, folder: Path) -> None:
    """Run the cases whose numbers come from the standard input; a line of JSON for each goes to the standard output."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what engines print must not come between
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if campaign.memory is not None:
        resource.setrlimit(resource.RLIMIT_AS, (campaign.memory, campaign.memory))
    faulthandler.enable()
    faulthandler.register(signal.SIGXCPU, chain=True)
    if campaign.setup is not None:
        campaign.setup(folder)
    gc.freeze()  # collections need not look at modules
    gc.set_threshold(100_000, 20, 20)  # a case makes and drops tens of thousands of objects
    for line in sys.stdin:
        print(json.dumps(attempt(campaign, seed, int(line))), file=answers, flush=True)


def attempt(campaign: Campaign, seed: int, number: int) -> tuple[str, str, int]:
    """Run one case in this process, under its limit of processor time; the result is that of `_Child.ask`."""
    used = time.process_time()
    limit = int(used) + campaign.seconds + 1
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (limit if hard < 0 else min(limit, hard), hard))
    try:
        made = campaign.case(campaign.rng(seed, number), number)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return "finding", _described(error), 0
    word, units = made if isinstance(made, tuple) else (made, 1)
    if campaign.outcomes is not None and word not in campaign.outcomes:
        return "finding", f"it gave {word!r}", units
    return word, "", units


def _described(error: BaseException) -> str:
    try:
        first = str(error) if isinstance(error, Finding) else f"{type(error).__name__}: {error}"
        return f"{first[:MESSAGE]}\n{''.join(traceback.format_exception(error))[-8000:]}"
    except Exception as other:  # a message that cannot be formatted is what some campaigns look for
        return f"{type(error).__name__}, whose message raises {other!r}"
