"""Measure the kernels of a session with the engine's profiler.

The engine names some kernels after a node of the model, some after a value, and others after their operator alone. Which nodes
a kernel computes is therefore read from the optimised graph, whose values keep the names that they have in the model.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from ...support.errors import OperationError
from .. import KernelTime, Measured
from .constants import all_graphs
from .model import ModelSession
from .sessions import OrtSession

SUFFIX = "_kernel_time"
"""Name suffix of the profiler events that hold the duration of a kernel."""
RUN = "model_run"
"""Name of the profiler event of a whole run, which follows the events of its kernels."""
BLOCKED = "_nchwc"
"""Name suffix of kernels in the engine's blocked layout, behind the name of the value that the kernel computes."""
COPIED = re.compile(r"_token_\d+$")
"""Name suffix of kernels that replace a node, as those of quantised convolutions in the layout NHWC do."""
CONTROL = ("If", "Loop", "Scan")
"""Operators whose time includes that of other kernels."""
GRAPH, WEIGHTS = "graph.onnx", "weights"
"""Names of the files of the optimised graph."""
MIN_WEIGHT_BYTES = "1024"
"""Size from which constants are written to the file of weights."""


class ModelNode(NamedTuple):
    """A node of a model or of its optimised graph; `title` is its label or name for people, empty if Opweave has added it."""

    name: str
    op_type: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    title: str = ""


class KernelRecording:
    """The times of a session's kernels, which the engine writes to a temporary folder.

    Args:
        options: the options of the session, to which the recording is added.
        graph: the GraphProto that the session loads.
        title_of: returns the title of a node by its name.
        is_readable: whether the engine can write its optimised graph: it cannot for plug-in providers.
    """

    def __init__(self, options: Any, graph: Any, title_of: Callable[[str], str], is_readable: bool = True) -> None:
        self._folder = TemporaryDirectory(prefix="opweave-")
        self._nodes = list(_nodes_of(graph, title_of))
        self._constants = {tensor.name for inner in all_graphs(graph) for tensor in inner.initializer}
        self._is_readable = is_readable
        options.enable_profiling, options.profile_file_prefix = True, os.path.join(self._folder.name, "times")
        if is_readable:
            options.optimized_model_filepath = os.path.join(self._folder.name, GRAPH)
            for key, value in (("file_name", WEIGHTS), ("min_size_in_bytes", MIN_WEIGHT_BYTES)):
                options.add_session_config_entry(f"session.optimized_model_external_initializers_{key}", value)
            with suppress(OSError):  # a system without such links writes the weights
                os.symlink(os.devnull, os.path.join(self._folder.name, WEIGHTS))

    def finish(self, session: Any) -> list[KernelTime]:
        """Return the kernels in the order of their execution, without the first run."""
        with self._folder:
            try:
                events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise OperationError(f"ONNX Runtime's profiler gives no times: {error}") from None
            kernels = self._read_graph() if self._is_readable else []
        owners = Owners(self._nodes, self._constants, kernels)
        runs, about = run_times(events)
        runs = runs[1:] or runs
        measured = []
        for (name, index), arguments in about.items():
            times = [run.get((name, index), 0) / 1e6 for run in runs]
            shapes = ", ".join(
                f"{kind}{shape}" for output in arguments["output_type_shape"] for kind, shape in output.items()
            )
            measured.append(KernelTime(owners(name), arguments["op_name"], shapes, median(times), min(times)))
        return measured

    def _read_graph(self) -> list[ModelNode]:
        import onnx

        proto = onnx.load(os.path.join(self._folder.name, GRAPH), load_external_data=False)
        return list(_nodes_of(proto.graph, lambda name: ""))


class MeasuredOrtSession(OrtSession, Measured):
    """A session of a graph that measures its kernels."""

    def __init__(self, recording: KernelRecording, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._recording = recording

    def finish(self) -> list[KernelTime]:
        return self._recording.finish(self._session)


class MeasuredModelSession(ModelSession, Measured):
    """A session of an ONNX model that measures its kernels."""

    def __init__(self, proto: Any, constants: Mapping[str, Any], *settings: Any) -> None:
        self._titles = _name_nodes(proto.graph)
        super().__init__(proto, constants, *settings)

    def before_loading(self, proto: Any, options: Any) -> None:
        self._recording = KernelRecording(options, proto.graph, lambda name: self._titles.get(name, ""))

    def finish(self) -> list[KernelTime]:
        return self._recording.finish(self.session)


def run_times(
    events: Iterable[Mapping[str, Any]],
) -> tuple[list[dict[tuple[str, str], int]], dict[tuple[str, str], Mapping[str, Any]]]:
    """Return the microseconds of each kernel in each run, and what the profiler says of each kernel.

    A kernel inside of a loop runs several times in a run. The times of other kernels are subtracted from a control operator's.
    """
    runs: list[dict[tuple[str, str], int]] = []
    about: dict[tuple[str, str], Mapping[str, Any]] = {}
    times: dict[tuple[str, str], int] = defaultdict(int)
    ended: list[tuple[int, int]] = []  # start and duration of kernels that no control operator contains so far
    for event in events:
        if event.get("name") == RUN:
            runs.append(times)
            times = defaultdict(int)
            ended.clear()
        elif event.get("cat") == "Node" and event["name"].endswith(SUFFIX):
            arguments, start, duration = event["args"], event["ts"], event["dur"]
            inner = 0
            while arguments["op_name"] in CONTROL and ended and ended[-1][0] >= start:
                inner += ended.pop()[1]
            ended.append((start, duration))
            key = event["name"].removesuffix(SUFFIX), str(arguments.get("node_index"))
            times[key] += max(duration - inner, 0)
            about.setdefault(key, arguments)
    return runs, about


def _name_nodes(graph: Any) -> dict[str, str]:
    """Give nodes unique names, and return their titles by name: the name in the model, or the first output without one."""
    titles: dict[str, str] = {}
    for node in (node for inner in all_graphs(graph) for node in inner.node):
        output = next((name for name in node.output if name), node.op_type)
        title = node.name or output
        if not node.name or node.name in titles:
            node.name = output
        while node.name in titles:
            node.name += "_"
        titles[node.name] = title
    return titles


def _nodes_of(graph: Any, title_of: Callable[[str], str]) -> Iterator[ModelNode]:
    """Yield the nodes of a GraphProto and its sub-graphs."""
    for inner in all_graphs(graph):
        for node in inner.node:
            yield ModelNode(node.name, node.op_type, node.input[:], node.output[:], title_of(node.name))


class Owners:
    """Find the nodes of a model that a kernel computes.

    These are the nodes between the values that the kernel reads and those that it writes. In the blocked layout, the values
    between kernels are new, and a kernel has the name of a value instead.

    Args:
        nodes: the nodes of the model.
        constants: the names of its constants.
        kernels: the nodes of the optimised graph; empty if it is unknown.
    """

    def __init__(self, nodes: Sequence[ModelNode], constants: Collection[str], kernels: Sequence[ModelNode]) -> None:
        self._by_name = {node.name: node for node in nodes}
        # Branches may use a name for different values.
        counts = Counter(name for node in nodes for name in node.outputs)
        self._producers: dict[str, ModelNode] = {}
        folded = {"", *constants}
        for node in nodes:
            if node.op_type == "Constant" or (node.inputs and folded.issuperset(node.inputs)):
                folded.update(node.outputs)
            else:
                self._producers |= {name: node for name in node.outputs if counts[name] == 1}
        self._ranks = {name: rank for rank, name in enumerate(self._by_name)}
        anchors = {kernel.name: self._anchor(kernel.name) for kernel in kernels}
        homes = {anchor.name: kernel for kernel, anchor in anchors.items() if anchor is not None}
        values = {name for kernel in kernels for name in kernel.outputs}
        # Names of nodes by the name of the kernel that computes them.
        self._nodes = {kernel.name: self._between(kernel, anchors[kernel.name], values, homes) for kernel in kernels}
        self._add_fused(nodes)

    def __call__(self, name: str) -> str:
        """Return labels or names of nodes; empty for a kernel that the engine has added."""
        names = self._nodes.get(name)
        if names is None:
            anchor = self._anchor(name)
            names = set() if anchor is None else {anchor.name}
        titles = (self._by_name[name].title for name in sorted(names, key=self._ranks.__getitem__))
        return " + ".join(dict.fromkeys(filter(None, titles)))

    def _anchor(self, name: str) -> ModelNode | None:
        """The node that a kernel is named after. Passes of the optimiser append their name after a slash."""
        if name.endswith(BLOCKED):
            value = name.removesuffix(BLOCKED)
            converted = value.removesuffix("_bn").removesuffix("_mul")  # what became a convolution
            if (producer := self._producers.get(value) or self._producers.get(converted)) is not None:
                return producer
        while name and name not in self._by_name:
            name = COPIED.sub("", name) if COPIED.search(name) else name.rpartition("/")[0]
        return self._by_name.get(name)

    def _between(
        self, kernel: ModelNode, anchor: ModelNode | None, values: Collection[str], homes: Mapping[str, str]
    ) -> set[str]:
        """The names of the nodes behind the outputs of a kernel, as far as no other kernel is named after them."""
        is_blocked = kernel.name.endswith(BLOCKED)
        owned = set() if anchor is None else {anchor.name}
        pending = [anchor] if is_blocked else [self._producers.get(name) for name in kernel.outputs]
        visited = set[str]()
        while pending:
            node = pending.pop()
            if node is None or node.name in visited or homes.get(node.name, kernel.name) != kernel.name:
                continue
            visited.add(node.name)
            if not (is_blocked and node.op_type in kernel.op_type):
                pending += [self._producers.get(name) for name in node.inputs if name not in values]
        return owned | visited

    def _add_fused(self, nodes: Sequence[ModelNode]) -> None:
        """Add what follows a convolution in the blocked layout to its kernel, if it belongs to no kernel."""
        homes = {node: kernel for kernel, names in self._nodes.items() for node in names}
        order = {kernel: rank for rank, kernel in enumerate(self._nodes)}
        for node in nodes:
            producers = (self._producers.get(name) for name in node.inputs)
            kernels = [
                homes[producer.name] for producer in producers if producer is not None and producer.name in homes
            ]
            last = max(kernels, key=order.__getitem__, default="")
            if node.name not in homes and last.endswith(BLOCKED):
                homes[node.name] = last
                self._nodes[last].add(node.name)


__all__ = ["KernelRecording", "MeasuredModelSession", "MeasuredOrtSession", "ModelNode", "Owners", "run_times"]
