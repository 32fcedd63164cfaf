"""Compiled models in saved graphs.

The engine exports a compiled model with its weights. Importing a model is faster than compiling if the graph has many
operations. It is slower if the graph has many weights, which are hashed and reordered. Therefore both are timed before a model
is written. Some models give other results after the import, so the import is also compared with the compiled model. The key of
a model covers the graph with the contents of its constants, the processor, and versions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import __version__
from ...composites import is_composite
from ...core.graph import Graph, Node
from ...core.graph_digest import digest_graph
from ...ops import recurrent
from ...support import disk_cache
from ...support.digests import digest, digest_of_file
from ...support.processors import processors
from .. import How
from ..exports import COMPILED, RUNS, Exported, checksum, machine, pack, random_inputs, unpack
from . import devices

if TYPE_CHECKING:
    from .backend import OpenVino

RECURRENT = (recurrent.gru, recurrent.lstm)
"""Version 2026.4.1 exports constant weights of a GRU in the order of its kernels, and reorders them again at the import."""

MIN_GAIN = 1.2
"""Least time of compiling, as a multiple of the time of loading, for which the model is saved. An estimate: a file with the
model is twice as large, and is read from the disk."""

TURNS = 2
"""Number of times that compiling and loading are timed, alternately; the shortest times count."""


def imported(key: str) -> tuple[Any, list[How], Mapping[str, Any], np.ndarray] | None:
    """The compiled model of a key, how its nodes run, its options, and the memory that it reads; None if no file has it."""
    data = disk_cache.load(key, COMPILED)
    if data is None:
        return None
    header, model = unpack(data)
    content = np.frombuffer(model, np.uint8)
    try:
        compiled = _import(content, header["options"])
    except RuntimeError:  # another build of the engine with the same version has exported it
        return None
    return compiled, header["done"], header["options"], content


def export(
    backend: OpenVino,
    graph: Graph,
    compiled: Any,
    done: Mapping[Node, How],
    options: Mapping[str, Any],
    again: Callable[[], object],
) -> Exported:
    """The compiled model of a graph, if `again`, which compiles the graph, takes `MIN_GAIN` times as long as loading it."""
    if not is_exportable(backend, graph):
        return Exported(reason="a rule or an attribute of a user has no name in a file")
    for node in graph.nodes:
        if node.op in RECURRENT or is_composite(node.op, "rnn"):
            return Exported(reason=f"{node.title}: OpenVINO may import a recurrent network with wrong weights")
    try:
        model = compiled.export_model()
        content = model if isinstance(model, bytes) else model.getvalue()
        if not _gives_the_same(compiled, _import(np.frombuffer(content, np.uint8), options)):
            return Exported(reason="OpenVINO imports the model with other results")
        header = {"done": [done[node] for node in graph.nodes], "options": dict(options)}
        part = pack(header, content)
        gain = _gain(again, lambda: _load(backend, graph, part))
    except RuntimeError as error:
        return Exported(reason=f"OpenVINO does not export the model: {error}")
    if gain < MIN_GAIN:
        return Exported(
            reason=f"compiling takes {gain:.1f} times the processor time of checking and importing the model, "
            f"less than {MIN_GAIN} times"
        )
    return Exported({(key_of(backend, graph), COMPILED): part})


def _load(backend: OpenVino, graph: Graph, part: bytes) -> Any:
    """Copy, check and import a part, as a process does that loads it from a file."""
    copy = np.frombuffer(part, np.uint8).tobytes()
    digest_of_file([copy])
    key_of(backend, graph)
    header, model = unpack(copy)
    return _import(np.frombuffer(model, np.uint8), header["options"])


def _gain(compile: Callable[[], object], load: Callable[[], object]) -> float:
    """The processor time of `compile`, as a multiple of that of `load`. Other processes hardly change processor times."""
    seconds: dict[Callable[[], object], float] = {}
    for _ in range(TURNS):
        for function in (compile, load):
            start = process_time()
            function()
            seconds[function] = min(process_time() - start, seconds.get(function, float("inf")))
    return seconds[compile] / max(seconds[load], 1e-9)


def _import(content: np.ndarray, options: Mapping[str, Any]) -> Any:
    return devices.core().import_model(devices.engine().Tensor(content), devices.engine_name("cpu"), dict(options))


def _gives_the_same(compiled: Any, other: Any) -> bool:
    """Whether another model computes the same bits from random inputs, in each of several runs of one request."""
    requests = [model.create_infer_request() for model in (compiled, other)]
    types = [(port.get_element_type().to_dtype(), tuple(port.get_shape())) for port in compiled.inputs]
    for run in range(RUNS):
        inputs = random_inputs(types, run)
        results = [[array.tobytes() for array in request.infer(inputs).values()] for request in requests]
        if results[0] != results[1]:
            return False
    return True


def is_exportable(backend: OpenVino, graph: Graph) -> bool:
    """Whether a key identifies the model: rules are Opweave's, and the texts of attributes say their whole values."""
    for node in graph.nodes:
        rule = backend.rule(node)
        if rule is None or not rule.function.__module__.startswith(f"{__package__}."):
            return False
        if not all(map(_is_plain, node.attributes.values())):
            return False
    return True


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str)


def key_of(backend: OpenVino, graph: Graph) -> str:
    """The key of a graph on this processor, with these versions."""
    contents = digest_graph(graph, lambda operand: b"%08x" % checksum(operand.value))
    inputs = [(name, str(operand.desc)) for name, operand in graph.inputs.items()]
    threads = processors() if backend.threads is None else backend.threads
    words = contents, inputs, backend.precision, threads, machine(), __version__, devices.version(), _code()
    return digest(repr(words).encode()).hexdigest()


@cache
def _code() -> str:
    """A digest of this back end, whose rules make the model."""
    hasher = digest()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        hasher.update(path.read_bytes())
    return hasher.hexdigest()
