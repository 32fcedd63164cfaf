"""Compiled recurrences: Halide's code for a step, repeated by a loop in native code.

A step is one or two programs (`recurrent_step`), or several steps that keep states in registers. They read and write slices by
pointers, which the loop moves from step to step; the states before and after a step swap their memory. Where rows are
independent of each other, each thread runs all steps for some of them. The loop is compiled once and cached on disk.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np

from ... import memory
from ...support.disk_cache import load_or_make
from ...support.errors import OperationError
from ..elements import Array
from ..evaluate import through_copies
from ..ir import Call, Formula, Output, Source, walk
from ..limits import too_much_work, work_of_elements
from ..recurrence import Along, Recurrence
from ..recurrent_step import DividedStep, RowDivision, divide_step, join_steps, rows_of, take_rows
from ..vocabulary import DEAR
from . import runtime
from .image import Code, load, pack
from .kernel import KIND, KernelCalls, Part
from .schedule import operations

MIN_TASK_OPERATIONS = 1 << 17
"""Operations of all steps per thread: half of what Halide gives a task. An estimate."""

MAX_JOINED = 8
"""The largest number of steps to join: calling a step takes about 60 ns, as long as 100 vectors of a filter take."""

MAX_JOINED_WORK = 400
"""The largest work of compiling joined steps, in units of `limits.work`."""

MIN_ROW_OPERATIONS = 2048
"""Operations of a step per thread, below which the call of a step takes longer than the step. An estimate."""

REPEAT = "repeat"
"""The word in the key of the loop, which all recurrences share."""

TIME_NOT_FIRST = "a sequence whose axis of time is not in front"
FIRST_STATES = "the first states of a recurrence, whose memory gets the last ones"
"""Reasons for copies at each run."""


class HalideLoop:
    """A recurrence that Halide compiled; `detail` describes it in tables.

    Raises:
        OperationError: Halide cannot compile a step, or may not, because it would take too long.
    """

    def __init__(self, recurrence: Recurrence) -> None:
        self.recurrence = recurrence
        divided = divide_step(recurrence)
        problem = next(filter(None, map(too_much_work, divided.programs)), "")
        if problem:
            raise OperationError(f"{recurrence.name}: {problem}")
        # Outputs in the order in which the programs write them.
        self.order = [*divided.early, *divided.late]
        self.programs, self.joined, self.steps = divided.programs, None, 1
        count = _joined_count(recurrence)
        if count > 1 and (joined := join_steps(recurrence, count)) is not None:
            self.joined, self.steps = joined, count
        self.rows, self.counts = self._divide_rows(divided)
        self._parts: dict[tuple[int, int], Part] = {}
        for rows in set(self.counts):
            for number in range(len(self.programs) + (self.joined is not None)):
                self.part(number, rows)
        self.detail = f"{self.part(0, self.counts[0]).detail.partition(', ')[0]}, one loop over the steps"
        self.detail += f", vectorised by {self.part(0, self.counts[0]).compiled.lanes}"
        self.detail += f", {len(self.counts)} thread{'s' if len(self.counts) > 1 else ''}"

    def _divide_rows(self, divided: DividedStep) -> tuple[RowDivision | None, list[int]]:
        """The rows, and the number of rows of each thread; 0 if rows depend on each other."""
        candidates = rows_of(divided, self.recurrence.states)
        rows = next((rows for rows in candidates if rows.is_contiguous()), None)
        if rows is None:
            return None, [0]
        work = sum(
            output.desc.element_count * (2 + operations(output.body)) for p in self.programs for output in p.outputs
        )
        threads = max(1, min(runtime.threads(), rows.extent, work // MIN_ROW_OPERATIONS))
        size = -(-rows.extent // threads)
        if self.joined is not None:
            rows = _with_joined(rows, self.joined, self.recurrence, self.steps)
        return rows, [min(size, rows.extent - start) for start in range(0, rows.extent, size)]

    def part(self, number: int, rows: int) -> Part:
        """The code of a program for a number of rows; the last program joins several steps."""
        key = number, rows
        if key not in self._parts:
            program = self.program(number)
            if self.rows is not None:
                program = take_rows(program, self.rows, rows)
            self._parts[key] = Part(program)
        return self._parts[key]

    def program(self, number: int) -> Formula:
        if number < len(self.programs):
            return self.programs[number]
        assert self.joined is not None
        return self.joined

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Callable[[], None]:
        count = self.recurrence.states
        for place, output in enumerate(outputs):
            for number, array in enumerate(inputs):
                is_state = place == number < count and output.ctypes.data == array.ctypes.data
                if not is_state and np.may_share_memory(array, output):
                    results = [np.empty_like(item) for item in outputs]
                    return through_copies(self.bind(inputs, results), results, outputs)
        return _LoopBinding(self, inputs, outputs).run

    def cache_keys(self) -> Iterable[tuple[str, str]]:
        shared = [runtime.runtime_key(), runtime.key(REPEAT)]
        return [(key, KIND) for key in (*shared, *(part.key for part in self._parts.values()))]

    @property
    def parts(self) -> list[tuple[int, int]]:
        """The first row, and the number of rows, of each thread."""
        starts = [sum(self.counts[:k]) for k in range(len(self.counts))]
        return list(zip(starts, self.counts, strict=True))


def _with_joined(rows: RowDivision, joined: Formula, recurrence: Recurrence, count: int) -> RowDivision:
    """Rows for the program that joins several steps, too."""
    axes, step = dict(rows.axes), recurrence.step
    others = iter(joined.inputs)
    for source, along in zip(step.inputs, (*[None] * recurrence.states, *recurrence.inputs), strict=True):
        for _ in range(1 if along is None else count):
            other = next(others)
            if source in rows.axes:
                axes[other] = rows.axes[source]
    axes.update(dict.fromkeys(joined.outputs, rows.axes[step.outputs[0]]))
    return RowDivision(rows.extent, axes)


def _joined_count(recurrence: Recurrence) -> int:
    """The number of steps to join, by the work of compiling them."""
    work = work_of_elements(recurrence.step)
    if any(isinstance(node, Call) and node.name in DEAR for node in walk(*recurrence.step.roots)):
        return 1  # a step then takes longer than calling it
    count = MAX_JOINED
    while count > 1 and count * work > MAX_JOINED_WORK:
        count //= 2
    return count


@dataclass
class _SlicedSequence:
    """A sequence in memory whose first axis is that of time; `source` is copied to or from it, if not None."""

    array: Array
    along: Along
    source: Array | None

    @property
    def stride(self) -> int:
        """Bytes from a slice to the next in memory."""
        return int(self.array.nbytes // max(1, self.array.shape[0]))

    def address(self, step: int) -> int:
        """The address of the slice of a step."""
        return _address(self.array) + self.along.position(step, self.array.shape[0]) * self.stride

    @property
    def move(self) -> int:
        """Bytes from the slice of a step to that of the next step."""
        return -self.stride if self.along.backward else self.stride


class _LoopBinding:
    """A loop on certain memory."""

    def __init__(self, loop: HalideLoop, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        recurrence = loop.recurrence
        self.loop, self.kept = loop, (inputs, outputs)
        count = recurrence.states
        self.sequences = [
            None if along is None else _in_steps(array, along)
            for along, array in zip(recurrence.inputs, inputs[count:], strict=True)
        ]
        self.constants = list(inputs[count:])
        self.results = [
            _in_steps(array, along) for along, array in zip(recurrence.outputs, outputs[count:], strict=True)
        ]
        self.length = next(sequence.array.shape[0] for sequence in self.sequences if sequence is not None)
        self.initial, self.final = list(inputs[:count]), list(outputs[:count])
        # The two memories of each state: the last step writes the final one.
        self.spare = [np.empty_like(state) for state in self.final]
        # The first step reads the operands, unless it would write over one that it still reads.
        self.in_place = [
            _address(initial) == _address(final) for initial, final in zip(self.initial, self.final, strict=True)
        ]
        # Per thread: segments of joined steps and of single ones.
        self.blocks = self.length // loop.steps if loop.joined is not None else 0
        self.singles = self.length - self.blocks * loop.steps
        self.swaps = self.blocks + self.singles
        self.calls: list[KernelCalls] = []
        self.tables: list[Array] = []
        tasks = [self._task(start, rows) for start, rows in loop.parts]
        # Waking threads pays only for enough work.
        elements = sum(output.desc.element_count * (2 + operations(output.body)) for output in recurrence.step.outputs)
        is_parallel = len(tasks) > 1 and elements * self.length >= MIN_TASK_OPERATIONS * len(tasks)
        self.copies = self._copies_of_states()
        self.closure = self._table([len(tasks), is_parallel, *tasks])
        self.entry, self.address = _loop(), self.closure.ctypes.data

    def _table(self, numbers: Sequence[int]) -> Array:
        self.tables.append(np.array(numbers, np.int64))
        return self.tables[-1]

    def _task(self, start: int, rows: int) -> int:
        """The address of the table of a thread: its segments."""
        loop, segments = self.loop, list[int]()
        number = len(loop.programs)
        for programs, swaps, steps in (([number], self.blocks, loop.steps), (range(number), self.singles, 1)):
            if swaps and not segments and not all(self.in_place):
                segments.append(self._segment(programs, start, rows, 0, 1, steps))
                swaps -= 1
            if swaps:
                done = self.length - swaps * steps if steps == 1 else (self.blocks - swaps) * steps
                segments.append(self._segment(programs, start, rows, done, swaps, steps))
        return int(self._table([len(segments), *segments]).ctypes.data)

    def _copies_of_states(self) -> list[tuple[Array, Array]]:
        """The copies of states before the first step: target and source."""
        arrays = list(zip(self.initial, self.final, self.spare, self.in_place, strict=True))
        if not self.length:
            return [(final, initial) for initial, final, _, is_same in arrays if not is_same]
        return [(spare, initial) for initial, _, spare, is_same in arrays if is_same and self.swaps % 2]

    def _operands(self, count: int, joined: int) -> list[tuple[str, int, int]]:
        """The role of each of `count` inputs of a program: "state" or "input", a number, and the step; 1 for new states."""
        states = len(self.final)
        roles = [("state", number, 0) for number in range(states)]
        for number, sequence in enumerate(self.sequences):
            roles += [("input", number, step) for step in range(1 if sequence is None else joined)]
        return [*roles, *(("state", number, 1) for number in range(count - len(roles)))]

    def _segment(self, programs: Sequence[int], start: int, rows: int, first: int, count: int, joined: int) -> int:
        """The address of the table of a segment: `count` repetitions of programs, each for `joined` steps, from `first` on."""
        loop = self.loop
        states = loop.recurrence.states
        # Swaps from the start of this segment on.
        remaining = self.singles + self.blocks - first // joined if joined > 1 else self.length - first
        calls: list[int] = []
        adds: list[int] = []
        toggles: list[int] = []
        written = 0
        axes = {} if loop.rows is None else loop.rows.axes

        def offset(array: Source | Output, item: int) -> int:
            """Bytes to the first row of a thread in a slice."""
            axis = axes.get(array)
            return 0 if axis is None else start * math.prod(array.desc.shape[axis + 1 :]) * item

        def place(fields: Sequence[int], address: int, move: int = 0, swap: int = 0) -> None:
            for field in fields:
                ctypes.c_int64.from_address(field).value = address
                if move:
                    adds.extend((field, move))
                if swap:
                    toggles.extend((field, swap))

        def state(fields: Sequence[int], number: int, is_new: bool, array: Source | Output) -> None:
            final, spare = _address(self.final[number]), _address(self.spare[number])
            shift = offset(array, self.final[number].itemsize)
            # The state after the last swap is the final one.
            is_final = (remaining - is_new) % 2 == 0
            if first == 0 and not is_new and not self.in_place[number]:
                place(fields, _address(self.initial[number]) + shift)
            else:
                place(fields, (final if is_final else spare) + shift, swap=(final + shift) ^ (spare + shift))

        for program_number in programs:
            part, whole = loop.part(program_number, rows), loop.program(program_number)
            call = KernelCalls(part, ())
            self.calls.append(call)
            calls += [number for pair in call.addresses for number in pair]
            for number, (kind, index, step) in enumerate(self._operands(len(whole.inputs), joined)):
                fields, source = call.fields_of(number), whole.inputs[number]
                if kind == "state":
                    state(fields, index, step > 0, source)
                    continue
                sequence, array = self.sequences[index], self.constants[index]
                shift = offset(source, array.itemsize)
                if sequence is None:
                    place(fields, _address(array) + shift)
                else:
                    place(fields, sequence.address(first + step) + shift, sequence.move * joined)
            base = len(whole.inputs)
            is_first = program_number == programs[0]
            outputs = [call.fields_of(base + number) for number in range(len(whole.outputs))]
            if is_first:
                for number in range(states):
                    state(outputs[number], number, True, whole.outputs[number])
            for position, fields in enumerate(outputs[states if is_first else 0 :]):
                if joined > 1:
                    result, step = self.results[position // joined], position % joined
                else:
                    result, step = self.results[loop.order[written]], 0
                    written += 1
                shift = offset(whole.outputs[position + (states if is_first else 0)], result.array.itemsize)
                place(fields, result.address(first + step) + shift, result.move * joined)
        head = [count, len(calls) // 2, len(adds) // 2, len(toggles) // 2]
        return int(self._table([*head, *calls, *adds, *toggles]).ctypes.data)

    def run(self) -> None:
        """Run all steps."""
        for sequence in self.sequences:
            if sequence is not None and sequence.source is not None:
                moved = np.moveaxis(sequence.source, sequence.along.axis, 0)
                memory.copy(sequence.array, moved, TIME_NOT_FIRST)
        for target, initial in self.copies:
            memory.copy(target, initial, FIRST_STATES)
        if self.length and self.entry(self.address):
            raise OperationError(f"{self.loop.recurrence.name}: {runtime.last_error()}")
        for result in self.results:
            if result.source is not None:
                moved = np.moveaxis(result.source, result.along.axis, 0)
                memory.copy(moved, result.array, TIME_NOT_FIRST)


def _in_steps(array: Array, along: Along) -> _SlicedSequence:
    """A sequence with the axis of time in front: a view if its slices are contiguous, else other memory."""
    if math.prod(array.shape[: along.axis]) == 1:
        shape = (array.shape[along.axis], *array.shape[: along.axis], *array.shape[along.axis + 1 :])
        return _SlicedSequence(array.reshape(shape), along, None)
    moved = np.moveaxis(array, along.axis, 0)
    return _SlicedSequence(np.empty(moved.shape, array.dtype), along, array)


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


# ---------------------------------------------------------------------------------------------------------------------
# The loop

_LOOP = """
declare i32 @halide_do_par_for(ptr, ptr, i32, i32, ptr)

; A task's table: the number of segments, and their addresses. A segment's table: repetitions; the numbers of calls, of
; additions and of swaps; then pairs: function and arguments; place and number to add; place and number to flip bits by.
define internal i32 @segment(ptr %table) {
entry:
  %repetitions = load i64, ptr %table
  %calls.at = getelementptr i64, ptr %table, i64 1
  %calls.count = load i64, ptr %calls.at
  %adds.at = getelementptr i64, ptr %table, i64 2
  %adds.count = load i64, ptr %adds.at
  %swaps.at = getelementptr i64, ptr %table, i64 3
  %swaps.count = load i64, ptr %swaps.at
  %calls = getelementptr i64, ptr %table, i64 4
  %calls.words = shl i64 %calls.count, 1
  %adds = getelementptr i64, ptr %calls, i64 %calls.words
  %adds.words = shl i64 %adds.count, 1
  %swaps = getelementptr i64, ptr %adds, i64 %adds.words
  br label %step

step:
  %number = phi i64 [ 0, %entry ], [ %number.next, %swapped ]
  %is.more = icmp ult i64 %number, %repetitions
  br i1 %is.more, label %call, label %end

call:
  %k = phi i64 [ 0, %step ], [ %k.next, %called ]
  %is.call = icmp ult i64 %k, %calls.count
  br i1 %is.call, label %invoke, label %add

invoke:
  %k.word = shl i64 %k, 1
  %function.at = getelementptr i64, ptr %calls, i64 %k.word
  %function = load ptr, ptr %function.at
  %arguments.at = getelementptr i64, ptr %function.at, i64 1
  %arguments = load ptr, ptr %arguments.at
  %code = call i32 %function(ptr %arguments)
  %is.error = icmp ne i32 %code, 0
  br i1 %is.error, label %end, label %called

called:
  %k.next = add i64 %k, 1
  br label %call

add:
  %a = phi i64 [ 0, %call ], [ %a.next, %added ]
  %is.add = icmp ult i64 %a, %adds.count
  br i1 %is.add, label %added, label %swap

added:
  %a.word = shl i64 %a, 1
  %a.at = getelementptr i64, ptr %adds, i64 %a.word
  %a.place = load ptr, ptr %a.at
  %a.number.at = getelementptr i64, ptr %a.at, i64 1
  %a.number = load i64, ptr %a.number.at
  %a.old = load i64, ptr %a.place
  %a.new = add i64 %a.old, %a.number
  store i64 %a.new, ptr %a.place
  %a.next = add i64 %a, 1
  br label %add

swap:
  %s = phi i64 [ 0, %add ], [ %s.next, %flipped ]
  %is.swap = icmp ult i64 %s, %swaps.count
  br i1 %is.swap, label %flipped, label %swapped

flipped:
  %s.word = shl i64 %s, 1
  %s.at = getelementptr i64, ptr %swaps, i64 %s.word
  %s.place = load ptr, ptr %s.at
  %s.bits.at = getelementptr i64, ptr %s.at, i64 1
  %s.bits = load i64, ptr %s.bits.at
  %s.old = load i64, ptr %s.place
  %s.new = xor i64 %s.old, %s.bits
  store i64 %s.new, ptr %s.place
  %s.next = add i64 %s, 1
  br label %swap

swapped:
  %number.next = add i64 %number, 1
  br label %step

end:
  ; Move all pointers back, for the next run.
  %result = phi i32 [ 0, %step ], [ %code, %invoke ]
  br label %back

back:
  %b = phi i64 [ 0, %end ], [ %b.next, %moved ]
  %is.back = icmp ult i64 %b, %adds.count
  br i1 %is.back, label %moved, label %flips

moved:
  %b.word = shl i64 %b, 1
  %b.at = getelementptr i64, ptr %adds, i64 %b.word
  %b.place = load ptr, ptr %b.at
  %b.number.at = getelementptr i64, ptr %b.at, i64 1
  %b.number = load i64, ptr %b.number.at
  %b.old = load i64, ptr %b.place
  %b.total = mul i64 %b.number, %number
  %b.new = sub i64 %b.old, %b.total
  store i64 %b.new, ptr %b.place
  %b.next = add i64 %b, 1
  br label %back

flips:
  %parity = and i64 %number, 1
  %is.odd = icmp eq i64 %parity, 1
  br i1 %is.odd, label %flip, label %done

flip:
  %f = phi i64 [ 0, %flips ], [ %f.next, %turned ]
  %is.flip = icmp ult i64 %f, %swaps.count
  br i1 %is.flip, label %turned, label %done

turned:
  %f.word = shl i64 %f, 1
  %f.at = getelementptr i64, ptr %swaps, i64 %f.word
  %f.place = load ptr, ptr %f.at
  %f.bits.at = getelementptr i64, ptr %f.at, i64 1
  %f.bits = load i64, ptr %f.bits.at
  %f.old = load i64, ptr %f.place
  %f.new = xor i64 %f.old, %f.bits
  store i64 %f.new, ptr %f.place
  %f.next = add i64 %f, 1
  br label %flip

done:
  ret i32 %result
}

define internal i32 @task(ptr %user, i32 %number, ptr %closure) {
entry:
  %wide = sext i32 %number to i64
  %word = add i64 %wide, 2
  %own.at = getelementptr i64, ptr %closure, i64 %word
  %own = load ptr, ptr %own.at
  %count = load i64, ptr %own
  br label %next

next:
  %k = phi i64 [ 1, %entry ], [ %k.next, %run ]
  %is.more = icmp ule i64 %k, %count
  br i1 %is.more, label %run, label %done

run:
  %at = getelementptr i64, ptr %own, i64 %k
  %table = load ptr, ptr %at
  %code = call i32 @segment(ptr %table)
  %k.next = add i64 %k, 1
  %is.error = icmp ne i32 %code, 0
  br i1 %is.error, label %failed, label %next

failed:
  ret i32 %code

done:
  ret i32 0
}

; The closure: the number of tasks, whether threads run them, and the addresses of their tables.
define i32 @opweave_repeat(ptr %closure) {
entry:
  %tasks = load i64, ptr %closure
  %count = trunc i64 %tasks to i32
  %flag.at = getelementptr i64, ptr %closure, i64 1
  %flag = load i64, ptr %flag.at
  %is.parallel = icmp ne i64 %flag, 0
  br i1 %is.parallel, label %parallel, label %serial

parallel:
  %code = call i32 @halide_do_par_for(ptr null, ptr @task, i32 0, i32 %count, ptr %closure)
  ret i32 %code

serial:
  %k = phi i32 [ 0, %entry ], [ %k.next, %run ]
  %is.more = icmp slt i32 %k, %count
  br i1 %is.more, label %run, label %done

run:
  %failure = call i32 @task(ptr null, i32 %k, ptr %closure)
  %k.next = add i32 %k, 1
  %is.error = icmp ne i32 %failure, 0
  br i1 %is.error, label %failed, label %serial

failed:
  ret i32 %failure

done:
  ret i32 0
}
"""


@cache
def _code() -> Code:
    """The loop, which all recurrences share."""
    return load(load_or_make(runtime.key(REPEAT), _compile), runtime.address)


def _compile() -> bytes:
    from .objects import assemble

    return pack([assemble(_LOOP)])


@cache
def _loop() -> Callable[[int], int]:
    prototype = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)  # releases the GIL
    return partial(prototype(_code().address("opweave_repeat")))
