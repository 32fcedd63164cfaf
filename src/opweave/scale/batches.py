"""Run concurrent requests as one batch, if the results of each request are the same as alone."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter_ns

import numpy as np

from ..onnx.model.arguments import Argument
from ..onnx.session.parts import parts_of
from ..onnx.session.session import InferenceSession
from ..support.cache import Cache
from ..support.errors import MLError, OperationError
from .proofs import Proofs, Shapes
from .protocol import InferenceRequest, Interface

log = logging.getLogger("opweave")

MAX_REASONS = 1024
"""Maximum number of shapes for which the reason to run alone is cached."""


@dataclass(frozen=True, slots=True)
class Execution:
    """A run of the model, with nanoseconds for joining the inputs, running the model, and splitting the outputs.

    `started` is the start by `perf_counter_ns`.
    """

    rows: int
    started: int
    durations: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """The outputs or the error of a request, and the run that computed the outputs."""

    outcome: Mapping[str, np.ndarray] | MLError
    rows: int = 1
    execution: Execution | None = None


class BatchedModel:
    """Runs requests of many clients; an error in one does not affect the others.

    Requests are joined along the first dimension, up to `batch` rows, if it is dynamic in all inputs and outputs, the other
    dimensions of the requests agree, and a proof for these dimensions shows that rows are independent (see `batch_axis`). The
    contents of a request never decide whether others are joined.
    """

    def __init__(self, session: InferenceSession, interface: Interface, batch: int) -> None:
        self._session, self._parts, self._batch = session, parts_of(session), batch
        self._names = [output.name for output in interface.outputs]
        self._proofs, self._is_joined = Proofs(session), False
        self._reasons: Cache[Shapes, str] = Cache(MAX_REASONS)
        self._why_never = "the batch is 1" if batch == 1 else why_alone(interface.inputs, interface.outputs)
        shapes = [(argument.dims or ())[1:] for argument in interface.inputs]
        fixed = tuple(tuple(size for size in shape if isinstance(size, int)) for shape in shapes)
        if not self._why_never and fixed == tuple(shapes):  # all requests have these shapes
            self._why_never = self._why_mixed(fixed, 2, [1])

    @property
    def why_alone(self) -> str:
        """The reason why requests run alone, of the latest ones; empty if some were, or may be, joined."""
        latest = self._reasons.items()[-1:]
        return self._why_never or (latest[0][1] if latest and not self._is_joined else "")

    def runs_alone(self, request: InferenceRequest) -> bool:
        """Whether a checked request will certainly run alone, so that it need not wait for others."""
        return bool(self._why_never or self._reasons.get(self._shapes_of(request)))

    def check(self, request: InferenceRequest) -> InferenceRequest:
        """Check the inputs of a request for the declared shapes and ranges; return it with arrays that the engine can read."""
        context = self._session.context
        feed = {a.name: a.as_input(request.feed[a.name], context) for a in self._parts.inputs}
        for indices in self._parts.ranges:
            indices.check(feed)
        return InferenceRequest(request.id, feed, request.outputs)

    def run(self, requests: Sequence[InferenceRequest]) -> list[BatchAnswer]:
        """Run checked requests, and return their answers in order. Only defects of a kernel or of this package raise."""
        answers: dict[int, BatchAnswer] = {}
        for group in self._groups(requests):
            answers |= zip(group, self._run_group([requests[number] for number in group]), strict=True)
        return [answers[number] for number in range(len(requests))]

    def _groups(self, requests: Sequence[InferenceRequest]) -> list[list[int]]:
        """Group requests that run together, by index: at most `batch` rows, or one request."""
        if len(requests) == 1:
            return [[0]]
        groups: list[list[int]] = []
        latest: dict[Shapes, tuple[int, list[int]]] = {}  # rows and requests of the last group with these shapes
        for number, request in enumerate(requests):
            rows = {array.shape[:1] for array in request.feed.values()}
            count = min(rows)[0] if len(rows) == 1 and min(rows) and not self.runs_alone(request) else 0
            if not count:
                groups.append([number])
                continue
            key = self._shapes_of(request)
            before, group = latest.get(key, (0, []))
            if not group or before + count > self._batch:
                before, group = 0, []
                groups.append(group)
            group.append(number)
            latest[key] = before + count, group
        return groups

    def _run_group(self, group: Sequence[InferenceRequest]) -> list[BatchAnswer]:
        counts = [next(iter(request.feed.values())).shape[0] for request in group] if len(group) > 1 else []
        if not counts or self._why_mixed(self._shapes_of(group[0]), sum(counts), counts):
            return [self._run_alone(request) for request in group]
        self._is_joined = True
        try:
            return self._run_joined(group)
        except MLError:  # alone, only the request that caused it fails
            return [self._run_alone(request) for request in group]

    def _why_mixed(self, shapes: Shapes, rows: int, counts: Sequence[int]) -> str:
        """Return, log and cache the reason why requests of these shapes and rows cannot be joined; empty if they can."""
        for count in dict.fromkeys(counts):
            if reason := self._proofs.why_mixed(shapes, rows, count):
                # One line of the log for each reason: clients choose the shapes.
                if reason not in dict(self._reasons.items()).values():
                    log.warning("requests run one by one: %s; shapes of a row: %s", reason, [*map(list, shapes)])
                return self._reasons.put(shapes, reason)
        return ""

    def _shapes_of(self, request: InferenceRequest) -> Shapes:
        return tuple(request.feed[argument.name].shape[1:] for argument in self._parts.inputs)

    def _run_alone(self, request: InferenceRequest) -> BatchAnswer:
        started = perf_counter_ns()
        first = next(iter(request.feed.values()), None)
        rows = first.shape[0] if first is not None and first.ndim and not self._why_never else 1
        try:
            results = self._session.run(None, request.feed)
        except MLError as error:
            empty = [f"input {name!r} of shape {list(a.shape)}" for name, a in request.feed.items() if not a.size]
            if empty:  # the engine's message has internal names
                log.info("a request without elements failed: %s", error)
                error = OperationError(f"the model cannot compute without elements: {', '.join(empty)}")
            return BatchAnswer(error)
        execution = Execution(rows, started, (0, perf_counter_ns() - started, 0))
        return BatchAnswer(dict(zip(self._names, results, strict=True)), rows, execution)

    def _run_joined(self, group: Sequence[InferenceRequest]) -> list[BatchAnswer]:
        """Run requests as one batch; `MLError` if the engine fails, or an output does not have the rows of the inputs."""
        times = [perf_counter_ns()]
        names = list(group[0].feed)
        counts = [request.feed[names[0]].shape[0] for request in group]
        feed = {name: np.concatenate([request.feed[name] for request in group]) for name in names}
        times.append(perf_counter_ns())
        results = self._session.run(None, feed)
        times.append(perf_counter_ns())
        for name, result in zip(self._names, results, strict=True):
            if not result.ndim or result.shape[0] != sum(counts):
                raise OperationError(f"output {name!r} of {sum(counts)} rows has the shape {list(result.shape)}")
        ends = np.cumsum(counts)[:-1]
        parts = [np.split(result, ends) for result in results]
        times.append(perf_counter_ns())
        steps = [end - start for start, end in pairwise(times)]
        execution = Execution(sum(counts), times[0], (steps[0], steps[1], steps[2]))
        return [
            BatchAnswer(dict(zip(self._names, outputs, strict=True)), count, execution)
            for count, *outputs in zip(counts, *parts, strict=True)
        ]


def why_alone(inputs: Sequence[Argument], outputs: Sequence[Argument]) -> str:
    """The reason why declarations forbid joining requests along the first dimension; empty if they allow it."""
    for kind, arguments in (("input", inputs), ("output", outputs)):
        for argument in arguments:
            if not argument.dims:
                return f"{kind} {argument.name!r} has no first dimension"
            if isinstance(argument.dims[0], int):
                return f"the first dimension of {kind} {argument.name!r} is {argument.dims[0]}"
    names = sorted({a.dims[0] for a in inputs if a.dims and isinstance(a.dims[0], str)})
    if len(names) > 1:
        return f"the first dimensions of the inputs are different ones: {names}"
    return "" if inputs and outputs else "it has no inputs or no outputs"
