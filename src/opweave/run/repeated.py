"""Runners of operations with bodies: a loop repeats a program, a branch runs one of two.

The states of a loop alternate between two places, and the last iteration writes into the results, so that no state is copied
if the number of iterations is known before. On the host, slices of scanned operands and elements of stacked results are views.
On a device, the program takes the whole arrays and the number of the iteration, which is one of its states: the same few
bindings are launched again and again, and nothing is read but the condition of a loop that has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from threading import RLock
from typing import TYPE_CHECKING, Literal

import numpy as np

from ..backends import Aliases, How, Runner
from ..core.graph import Desc, Node
from ..core.size_values import at, values_at
from ..core.sizes import Dimension
from ..memory import Plan
from ..memory.spaces import Memory, Space
from ..support.names import count_of
from ..support.records import record
from .program import Program

if TYPE_CHECKING:
    from ..backends.exports import Exported

CONTINUES = "from the device to see whether a loop continues"
"""Reason to read the condition of a loop from a device."""

CHOOSES = "from the device to choose a branch"
BOUNDS = "from the device for the number of iterations of a loop"
NO_ITERATIONS = "the result of a loop without an iteration"
ENDED = "the result of a loop that ended by its condition"

COUNTER = Desc("int32", ())
"""The number of the iteration, as a state of a program on a device."""

MAX_NAMES = 8
"""The largest number of operations of a body in its description."""

Where = Literal["first", "result", "scratch"]
"""The memory of states: the operands, the results, or memory of the runner."""

Places = Sequence[int]


@record(frozen=False)
class LoopForm:
    """The operands and results of a loop.

    Attributes:
        states, scanned, captured: positions of the operands among the inputs of the runner.
        count, condition: positions of the number of iterations and of the first condition; None if there are none.
        length: the number of iterations; None if it is known only when the loop runs.
        takes_position: whether the body takes the number of the iteration; never on a device, where it is a state.
        gives_condition: whether the body decides whether the loop continues.
        backward: whether the last slice of each scanned operand comes first.
        stacked_backward: whether the first element of each stacked result comes last.
        state_descs: the descriptors of the states.
        steps: the number of iterations of the second program, which a loop on a device may have.
    """

    states: Places
    scanned: Places
    captured: Places
    count: int | None
    condition: int | None
    length: Dimension | None
    takes_position: bool
    gives_condition: bool
    backward: Sequence[bool]
    stacked_backward: Sequence[bool]
    state_descs: Sequence[Desc]
    steps: int = 1

    def at(self, sizes: Mapping[str, int]) -> LoopForm:
        """The form with numbers in place of sizes."""
        from dataclasses import replace

        descs = [Desc(desc.data_type, values_at(desc.shape, sizes)) for desc in self.state_descs]
        length = None if self.length is None else at(self.length, sizes)
        return replace(self, length=length, state_descs=descs)


class BodyRunner(Runner):
    """A runner of an operation whose bodies are `programs`; `title` names the operation."""

    def __init__(self, title: str, programs: Sequence[Program], space: Space) -> None:
        self.title, self.programs, self.space = title, programs, space
        self.threads = sum(program.threads for program in programs)

    def complete(self) -> None:
        """Finish compiling the bodies."""
        for program in self.programs:
            for step in program.steps:
                if step.part is not None:
                    step.part.runner.complete()
        self.plan = sum((program.plan for program in self.programs), Plan())

    def abandon(self) -> None:
        """Abandon the bodies."""
        for program in self.programs:
            for step in program.steps:
                if step.part is not None:
                    step.part.runner.abandon()

    def cache_keys(self) -> Iterable[tuple[str, str]]:
        """Key and kind of the files of the bodies in the cache on disk."""
        return {key for program in self.programs for key in program.cache_keys()}

    def exporters(self) -> Iterable[Callable[[], Exported]]:
        """See `Runner.exporters`."""
        return [exporter for program in self.programs for exporter in program.exporters()]

    def at(self, sizes: Mapping[str, int]) -> BodyRunner:
        """The runner for these sizes."""
        version = copy(self)
        version.programs = [program.at(sizes, ()) for program in self.programs]
        version.plan = sum((program.plan for program in version.programs), Plan())
        return version

    def read_number(self, array: Memory, reason: str) -> int:
        """Read a scalar, from the device if it is there."""
        if isinstance(array, np.ndarray):
            return int(array.item())
        target = np.empty(array.desc.shape, array.desc.data_type)
        self.space.read([array], [target], reason)  # type: ignore[attr-defined]
        return int(target.item())

    def describe_programs(self, heads: Sequence[str]) -> tuple[How, str]:
        """Name the engines, and the operations of each body behind its head."""
        engines: dict[str, None] = {}
        texts = []
        for head, program in zip(heads, self.programs, strict=False):
            engines.update(dict.fromkeys(p.detail.partition(":")[0] for p in program.placements))
            names = list(dict.fromkeys(placement.op.name for placement in program.placements))
            texts.append(f"{head} {', '.join(names[:MAX_NAMES])}{', …' if len(names) > MAX_NAMES else ''}")
        return "composed", f"{' and '.join(engines)}: {'; '.join(texts)}"


class BranchRunner(BodyRunner):
    """Runs the first program if a flag is not 0, else the second one. `places` are the places of the inputs of each."""

    def __init__(
        self, title: str, programs: Sequence[Program], space: Space, condition: int, captured: Sequence[int]
    ) -> None:
        super().__init__(title, programs, space)
        self.condition, self.captured = condition, captured

    def bind(self, inputs: Sequence[Memory], outputs: Sequence[Memory]) -> Callable[[], None]:
        """Bind both programs when they are first chosen."""
        arguments = [inputs[place] for place in self.captured]
        calls: dict[int, Callable[[], None]] = {}
        flag = inputs[self.condition]

        def run() -> None:
            number = 0 if self.read_number(flag, CHOOSES) else 1
            if number not in calls:
                calls[number] = self.programs[number].bind(arguments, outputs)
            calls[number]()

        return run

    def run(self, inputs: Sequence[Memory], outputs: Sequence[Memory]) -> None:
        """Run the chosen program once."""
        program = self.programs[0 if self.read_number(inputs[self.condition], CHOOSES) else 1]
        program.run([inputs[place] for place in self.captured], outputs)

    def describe(self, nodes: Sequence[Node]) -> tuple[How, str]:
        """Describe both bodies."""
        return self.describe_programs(["if so", "else"])


class LoopRunner(BodyRunner):
    """Repeats a program. On a device, a second program of several iterations does most of the work."""

    def __init__(self, title: str, programs: Sequence[Program], space: Space, form: LoopForm) -> None:
        super().__init__(title, programs, space)
        self.form = form

    def at(self, sizes: Mapping[str, int]) -> BodyRunner:
        """The runner for these sizes."""
        version = super().at(sizes)
        assert isinstance(version, LoopRunner)
        version.form = self.form.at(sizes)
        return version

    def bind(self, inputs: Sequence[Memory], outputs: Sequence[Memory]) -> Callable[[], None]:
        """Bind the loop to memory."""
        kind = _HostLoop if self.space.is_host else _DeviceLoop
        return kind(self, inputs, outputs)

    def describe(self, nodes: Sequence[Node]) -> tuple[How, str]:
        """Describe the body, after the number of its iterations."""
        length = self.form.length
        if length is None:
            times = "repeated"
        else:
            times = count_of(length, "time") if isinstance(length, int) else f"{length} times"
        return self.describe_programs([times])


class _BoundLoop:
    """A loop bound to memory. Calls of several threads run one after the other."""

    def __init__(self, owner: LoopRunner, inputs: Sequence[Memory], outputs: Sequence[Memory]) -> None:
        self.owner, self.form, self.programs = owner, owner.form, owner.programs
        form = self.form
        number = len(form.states)
        self._lock = RLock()
        self._first = [inputs[place] for place in form.states]
        self._results, self._stacked = list(outputs[:number]), list(outputs[number:])
        self._scanned = [inputs[place] for place in form.scanned]
        self._captured = [inputs[place] for place in form.captured]
        self._count = None if form.count is None else inputs[form.count]
        self._condition = None if form.condition is None else inputs[form.condition]
        self._scratch: list[Memory] = []
        self._flag: Memory = owner.space.allocate(Desc("uint8", ())) if form.gives_condition else None
        self._prepare()

    def _prepare(self) -> None:
        """Allocate memory and prepare bindings for the calls."""

    def _step(self, iteration: int, steps: int, source: Where, target: Where) -> None:
        """Run iterations."""
        raise NotImplementedError

    def _states(self, where: Where) -> list[Memory]:
        if where == "first":
            return self._first
        if where == "result":
            return self._results
        if not self._scratch:
            space = self.owner.space
            self._scratch = [space.allocate(desc) for desc in self.form.state_descs]
        return self._scratch

    def __call__(self) -> None:
        with self._lock:
            self._run()

    def _run(self) -> None:
        form, owner = self.form, self.owner
        count = form.length
        if self._count is not None:
            count = owner.read_number(self._count, BOUNDS)
        if self._condition is not None and not owner.read_number(self._condition, CONTINUES):
            count = 0
        if count is not None and count <= 0:
            self._copy(self._first, NO_ITERATIONS)
            return
        source: Where = "first"
        iteration = 0
        many = 1 if count is None or form.gives_condition else form.steps
        while count is None or iteration < count:
            # The last run of a program writes into the results.
            left = 0 if count is None else count - iteration
            steps = many if left >= many else 1
            runs = 1 if count is None else left // many + left % many
            target: Where = "scratch" if (runs % 2 == 0 if count is not None else source == "result") else "result"
            self._step(iteration, steps, source, target)
            source = target
            iteration += steps
            if form.gives_condition and iteration != count and not owner.read_number(self._flag, CONTINUES):
                break
        if source == "scratch":
            self._copy(self._scratch, ENDED)

    def _copy(self, sources: Sequence[Memory], reason: str) -> None:
        for source, result in zip(sources, self._results, strict=False):
            self.owner.space.copy(result, source, reason)  # type: ignore[attr-defined]


class _HostLoop(_BoundLoop):
    """A loop on the host: the program runs on views of slices."""

    def _prepare(self) -> None:
        form = self.form
        self._is_alike = not (form.scanned or self._stacked or form.takes_position)
        self._calls: dict[tuple[Where, Where], Callable[[], None]] = {}

    def _step(self, iteration: int, steps: int, source: Where, target: Where) -> None:
        program = self.programs[0]
        if self._is_alike:
            key = source, target
            if key not in self._calls:
                self._calls[key] = program.bind(*self._memory(0, source, target))
            self._calls[key]()
        else:
            program.run(*self._memory(iteration, source, target))

    def _memory(self, iteration: int, source: Where, target: Where) -> tuple[list[Memory], list[Memory]]:
        form = self.form
        position = [np.array(iteration, np.int64)] if form.takes_position else []
        slices = [_slice(*pair, iteration) for pair in zip(self._scanned, form.backward, strict=True)]
        elements = [_slice(*pair, iteration) for pair in zip(self._stacked, form.stacked_backward, strict=True)]
        flag = [self._flag] if form.gives_condition else []
        inputs = [*position, *self._states(source), *slices, *self._captured]
        return inputs, [*flag, *self._states(target), *elements]


def _slice(array: np.ndarray, is_backward: bool, iteration: int) -> np.ndarray:
    # The dots keep a slice of rank 0 a view.
    view: np.ndarray = array[len(array) - 1 - iteration if is_backward else iteration, ...]
    return view


class _DeviceLoop(_BoundLoop):
    """A loop on a device: a few bindings of the program, launched in turn.

    The program takes the counter, the states, the scanned and the captured arrays, and the stacked results, which it writes in
    place. It returns the counter, the condition if there is one, the states and the stacked results.
    """

    def _prepare(self) -> None:
        space, form = self.owner.space, self.form
        self._counters: dict[Where, Memory] = {
            "first": space.allocate(COUNTER), "result": space.allocate(COUNTER), "scratch": space.allocate(COUNTER)
        }  # fmt: skip
        inputs = 1 + len(form.states) + len(form.scanned) + len(form.captured)
        outputs = 1 + int(form.gives_condition) + len(form.states)
        self._shared: Aliases = tuple((inputs + k, outputs + k) for k in range(len(self._stacked)))
        self._calls: dict[tuple[int, Where, Where], Callable[[], None]] = {}

    def _step(self, iteration: int, steps: int, source: Where, target: Where) -> None:
        key = steps, source, target
        if key not in self._calls:
            flag = [self._flag] if self.form.gives_condition else []
            inputs = [self._counters[source], *self._states(source), *self._scanned, *self._captured, *self._stacked]
            outputs = [self._counters[target], *flag, *self._states(target), *self._stacked]
            program = self.programs[0 if steps == 1 else 1]
            self._calls[key] = program.bind(inputs, outputs, self._shared)
        self._calls[key]()
