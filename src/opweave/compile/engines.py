"""The choice of an engine for a graph: the context's own, unless another was verified and measured to be faster.

Engines rewrite graphs, and some rewrites are wrong or end the process. So without a request, an engine is used only for
graphs on which its results were compared, after a trial in a separate process (`backends.isolation`): by `tune`, or by a
child process beside a program that uses the graph (`verification`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..backends import Backend
from ..core.graph import Graph, Node
from ..core.graph_digest import digest_graph
from ..support import digests, disk_cache
from ..support.errors import MLError
from ..support.formatting import duration, size, sizes_text, table
from ..support.records import field, record
from ..support.tuned import has_tuning
from .keys import FORMAT, KIND as KIND, key_of, machine as machine, versions as versions
from .states import SWITCHED_OFF as SWITCHED_OFF, YET as YET


@record(eq=True)
class Measurement:
    """Times of the engines for one graph, or for a model and the shapes of its inputs, which `subject` names.

    Attributes:
        model: the name of the model; empty for a graph.
        chosen: the engine that runs the graph or model from now on; empty if the default engine stays.
        seconds: the median time of a run on the first engine, and for others this time multiplied by the median ratio to the
            first engine in rounds.
        refused: why the others were not measured or do not count, by engine.
        rounds: number of measurements of each engine.
        machine: the processor, and how many threads an operation may use.
        versions: of Opweave and the engines.
        note: why the fastest one was not chosen, or why none was tried; empty otherwise.
        memory: the bytes by which a process grew that built it on each engine; empty where that was not measured.
        is_kept: whether it is in the cache on disk, for other processes and later builds.
    """

    model: str
    subject: str
    chosen: str
    seconds: Mapping[str, float]
    refused: Mapping[str, str]
    rounds: int
    machine: str
    versions: str
    note: str = ""
    memory: Mapping[str, int] = field(default_factory=dict)
    is_kept: bool = False

    @property
    def title(self) -> str:
        """The measured graph or model."""
        return f"{self.model}: {self.subject}" if self.model else self.subject

    @property
    def remark(self) -> str:
        """Further remarks: refused engines, and whether the measurement is kept."""
        notes = self._notes()
        if not self.is_kept:
            notes.append(_not_kept() if self.rounds or self.refused else "there is no other engine for it")
        return "; ".join(notes)

    @property
    def reason(self) -> str:
        """The chosen engine, and why, in a line."""
        return self.reason_on(self.chosen)

    def reason_on(self, name: str) -> str:
        """An engine by name, with the verdicts on it and the others, in a line."""
        first = next(iter(self.seconds), "")
        own = f"{name}, verified, {self._ratio(name)}" if name in self.seconds and name != first else name
        return "; ".join([own, *self.verdicts(name)])

    def verdicts(self, without: str = "") -> list[str]:
        """The verdicts on the rivals, except for the rival `without`."""
        first = next(iter(self.seconds), "")
        verdicts = [f"{name} verified, {self._ratio(name)}" for name in self.seconds if name not in (first, without)]
        if self.seconds:
            verdicts.append(", ".join(f"{name} {duration(seconds)}" for name, seconds in self.seconds.items()))
        if self.memory:
            verdicts.append(f"memory: {', '.join(f'{name} {size(taken)}' for name, taken in self.memory.items())}")
        return [*verdicts, *self._notes()]

    def _ratio(self, name: str) -> str:
        """The time on an engine as a multiple of that on the first, as in "0.7x"."""
        ratio = self.seconds[name] / max(next(iter(self.seconds.values())), 1e-9)
        return f"{ratio:.2f}".rstrip("0").rstrip(".") + "x"

    def _notes(self) -> list[str]:
        return [*filter(None, [self.note]), *(f"{name} refused: {reason}" for name, reason in self.refused.items())]


def _not_kept() -> str:
    """A remark with the reason why measurements are not kept."""
    reason = disk_cache.obstacle()
    return f"not kept: {reason}" if reason else "not kept"


@record(eq=True, slots=False)
class Tuning:
    """Measurements of `MLGraph.tune` and `InferenceSession.tune`; a prompt and `print` show them as a table."""

    measurements: tuple[Measurement, ...]

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        names = list(dict.fromkeys(name for measurement in self.measurements for name in measurement.seconds))
        rows = [("tuned", *names, "chosen", "")]
        for measurement in self.measurements:
            times = [duration(measurement.seconds[name]) if name in measurement.seconds else "-" for name in names]
            rows.append((measurement.title, *times, measurement.chosen or "the default", measurement.remark))
        return "\n".join(table(rows, words=len(rows[0])))


@record(eq=True)
class EngineChoice:
    """The back end that runs a graph, without rivals; the reason is empty where there is no choice.

    `untried` are the rivals that may be faster and are not verified, and why they are expected to be. Without `fuse`, the
    engine runs all operations that it has kernels for.
    """

    backend: Backend
    reason: str = ""
    untried: Mapping[str, str] = field(default_factory=dict)
    fuse: bool = True


def choose_engine(graph: Graph, backend: Backend, alone: bool = True) -> EngineChoice:
    """Choose the engine for a graph of a context on `backend`: its own, unless a rival was measured to be faster.

    A graph that is not `alone` keeps its own: threads of two engines would compete. Measurements also decide whether loops
    replace kernels of the engine.
    """
    if not backend.rivals and not has_tuning():
        return EngineChoice(backend)
    without_loops = way_without_loops(graph, backend)
    if not backend.rivals and not without_loops:
        return EngineChoice(backend)
    ways = backend.tunable(graph)
    own = next(iter(ways))
    if not alone and backend.rivals:
        return EngineChoice(ways[own], f"{own}, since other graphs run between its runs")
    for measurement in find(lambda: digest(graph), ways).values():
        if not measurement.chosen:
            return EngineChoice(ways[own], measurement.reason_on(own))
        if measurement.chosen in ways:
            return EngineChoice(ways[measurement.chosen], measurement.reason)
        if measurement.chosen == without_loops:
            return EngineChoice(ways[own], measurement.reason, fuse=False)
    if not backend.rivals:
        return EngineChoice(backend)
    untried, notes = expect_gains(graph, backend.rivals)
    return EngineChoice(ways[own], "; ".join([own, *notes]), untried)


def prefers_other_way(graph: Graph, backend: Backend) -> bool:
    """Whether another engine, or a program without loops, was measured to run a static graph faster than the default."""
    choice = choose_engine(graph, backend)
    return choice.backend.name != backend.name or not choice.fuse


def way_without_loops(graph: Graph, backend: Backend) -> str:
    """Name of the way to run a graph by kernels of the engine alone; empty if no compiled loop replaces one of them.

    The table of `winners` says which kernels are replaced. It was measured on one machine, so `tune` compares both.
    """
    # Sessions read measurements without the compiler of expressions.
    from ..expr import kernels
    from .winners import wins

    is_able = backend.gains_from_loops and kernels.is_compiled()
    return f"{backend.name} without loops" if is_able and any(wins(node, backend.name) for node in graph.nodes) else ""


def expect_gains(graph: Graph, rivals: Iterable[Backend]) -> tuple[dict[str, str], list[str]]:
    """The rivals that are expected to run a graph faster, and why; and for the others, why not."""
    untried: dict[str, str] = {}
    notes: list[str] = []
    for rival in rivals:
        if lacking := rival.lacks(graph):
            notes.append(f"{rival.name} not verified: cannot run {lacking}")
            continue
        is_faster, why = rival.gains(graph)
        if is_faster:
            untried[rival.name] = why
        else:
            notes.append(f"{rival.name} not verified: not expected to be faster: {why}")
    return untried, notes


def describe_choice(choice: str, untried: Mapping[str, str], state: str | Measurement = YET) -> str:
    """The choice between engines, as `explain` shows it. `state` is the verdict on the untried rivals, or a text for all."""
    if isinstance(state, Measurement):
        return "; ".join([choice, *state.verdicts(), "what is built from now on follows this"]) if untried else choice
    return "; ".join([choice, *(f"{name} {state}: expected to be faster ({why})" for name, why in untried.items())])


def engine_of(choice: str) -> str:
    """The name of the engine that a choice begins with."""
    return re.split("[,;:]", choice, maxsplit=1)[0]


def is_unverified(name: str, ways: Mapping[str, Backend]) -> bool:
    """Whether a way to run a graph has another engine than the first way."""
    return name in ways and ways[name].name != next(iter(ways.values())).name


def find(digest: Callable[[], str], ways: Mapping[str, Backend], on: str = "") -> dict[str, Measurement]:
    """Measurements of a graph or model on this machine with these versions, by `Measurement.subject`.

    `digest` is called if anything was measured on this machine. `on` is a result of `machine`, by default that for `ways`.
    """
    if not has_tuning():
        return {}
    key = key_of(digest(), on or machine(ways), versions(ways))
    return {measurement.subject: measurement for measurement in _parse(disk_cache.load(key, KIND))}


def keep(digest: str, measurement: Measurement, on: str = "") -> bool:
    """Keep a measurement beside those for other shapes; return whether that is possible.

    `on` is a result of `versions`, by default that of the measurement.
    """
    import json
    from dataclasses import asdict

    key = key_of(digest, measurement.machine, on or measurement.versions)
    measured = {item.subject: item for item in _parse(disk_cache.load(key, KIND))} | {measurement.subject: measurement}
    data = json.dumps({"format": FORMAT, "measured": [asdict(item) for item in measured.values()]}).encode()
    return disk_cache.store(key, KIND, data)


def keep_for_names(outline: str, backend: Backend, measurement: Measurement) -> None:
    """Store a measurement of one shape of a graph with names; `outline` identifies the graph.

    A measurement that chooses the default only replaces an earlier one: without a file, new shapes need no search.
    """
    ways = _all_ways(backend)
    if measurement.chosen != backend.name or measurement.subject in find(lambda: outline, ways):
        keep(outline, measurement, versions(ways))


def has_other_way(outline: str, backend: Backend, sizes: Mapping[str, int]) -> bool:
    """Whether a graph with names was measured to run faster in another way than the default, for these sizes."""
    text = sizes_text(sizes)
    return any(
        measurement.chosen != backend.name and measurement.subject.partition(", ")[2] == text
        for measurement in find(lambda: outline, _all_ways(backend)).values()
    )


def _all_ways(backend: Backend) -> dict[str, Backend]:
    """The engines for a graph with names: which of them can run its operations depends on their shapes."""
    return {engine.name: engine for engine in (backend, *backend.rivals)}


def kept_measurements() -> list[Measurement]:
    """All kept measurements, also of other versions, the most recently used first."""
    entries = [entry for entry in disk_cache.entries() if entry.kind == disk_cache.KINDS[KIND]]
    measured = [measurement for entry in entries for measurement in _parse(disk_cache.load(entry.key, KIND))]
    # Those of graphs with names are also kept for the static graphs.
    return [measurement for place, measurement in enumerate(measured) if measurement not in measured[:place]]


def titles(key: str) -> list[str]:
    """The models and graphs whose measurements the cache keeps under a key, without counting as a use of them."""
    measurements = _parse(disk_cache.load(key, KIND, is_use=False))
    return list(dict.fromkeys(item.model or item.subject for item in measurements))


def digest(graph: Graph) -> str:
    """A digest of a graph's operations, attributes, shapes, data types and small constants.

    Operations of users enter by what they are made of, as far as that is known: another one may have the same name.
    """
    return digest_graph(
        _with_parts(graph),
        lambda operand: operand.value.tobytes() if operand.desc.byte_length <= digests.SMALL_BYTES else b"",
    )


def _with_parts(graph: Graph) -> Graph:
    """The graph with operations of users decomposed, except those that kernels run beside all engines."""
    from .choose import HOST_KERNELS
    from .legalise import legalise
    from .winners import is_own

    def stays(node: Node) -> bool:
        return is_own(node.op) or node.op.decomposition is None or not node.op.kernels.keys().isdisjoint(HOST_KERNELS)

    if all(map(stays, graph.nodes)):
        return graph
    try:
        return legalise(graph, stays)[0]
    except MLError:  # compiled loops run expressions that have no parts
        return graph


def outline(graph: Graph) -> str:
    """A digest without constants, which takes no memory: mapped weights are not read."""
    return digest_graph(graph, lambda operand: b"")


def _parse(data: bytes | None) -> list[Measurement]:
    if data is None:
        return []
    import json
    from dataclasses import fields

    names = [item.name for item in fields(Measurement)]
    try:
        measured: list[dict[str, Any]] = json.loads(data)["measured"]
        return [Measurement(**{name: item[name] for name in names} | {"is_kept": True}) for item in measured]
    except (ValueError, KeyError, TypeError, RecursionError):  # a different format, or a damaged file
        return []
