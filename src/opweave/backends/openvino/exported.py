"""Compiled models in saved graphs.

The engine exports a compiled model with its weights, and imports the model in less time than compiling takes. Some models
come back with other results, so the import is compared with the compiled model before it is written. The key of a model has
all that the model is made from: the graph with the contents of its constants, the processor, and versions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import __version__
from ...composites import is_composite
from ...core.graph import Graph, Node
from ...core.graph_digest import digest_graph
from ...ops import recurrent
from ...support import disk_cache
from ...support.digests import digest
from ...support.processors import processor_lines, processor_name, processors
from .. import How
from . import devices

if TYPE_CHECKING:
    from .backend import OpenVino

KIND = "blob"
"""Kind of a compiled model among the parts of a file."""

RUNS = 3
"""Runs that an imported model is compared in: the engine may overwrite in the first one what it computed while loading."""

RECURRENT = (recurrent.gru, recurrent.lstm)
"""Version 2026.4.1 exports constant weights of a GRU in the order of its kernels, and reorders them again at the import."""

HEADER_BYTES = 8


def imported(key: str) -> tuple[Any, list[How], Mapping[str, Any], np.ndarray] | None:
    """The compiled model of a key, how its nodes run, its options, and the memory that it reads; None if no file has it."""
    data = disk_cache.load(key, KIND)
    if data is None:
        return None
    length = int.from_bytes(data[:HEADER_BYTES], "little")
    header = json.loads(data[HEADER_BYTES : HEADER_BYTES + length])
    content = np.frombuffer(data, np.uint8, offset=HEADER_BYTES + length)
    try:
        compiled = _import(content, header["options"])
    except RuntimeError:  # another build of the engine with the same version has exported it
        return None
    return compiled, header["done"], header["options"], content


def export(compiled: Any, graph: Graph, done: Mapping[Node, How], options: Mapping[str, Any]) -> bytes | str:
    """The content of a file with a compiled model, or the reason why there is none."""
    for node in graph.nodes:
        if node.op in RECURRENT or is_composite(node.op, "rnn"):
            return f"{node.title}: OpenVINO may import a recurrent network with wrong weights"
    try:
        model = compiled.export_model()
        content = model if isinstance(model, bytes) else model.getvalue()
        if not _gives_the_same(compiled, _import(np.frombuffer(content, np.uint8), options)):
            return "OpenVINO imports the model with other results"
    except RuntimeError as error:
        return f"OpenVINO does not export the model: {error}"
    header = json.dumps({"done": [done[node] for node in graph.nodes], "options": dict(options)}).encode()
    return len(header).to_bytes(HEADER_BYTES, "little") + header + content


def _import(content: np.ndarray, options: Mapping[str, Any]) -> Any:
    return devices.core().import_model(devices.engine().Tensor(content), devices.engine_name("cpu"), dict(options))


def _gives_the_same(compiled: Any, other: Any) -> bool:
    """Whether another model computes the same bits from random inputs, in each of several runs of one request."""
    generator = np.random.default_rng(0)
    requests = [model.create_infer_request() for model in (compiled, other)]
    for run in range(RUNS):
        inputs = []
        for port in compiled.inputs:
            shape, data_type = tuple(port.get_shape()), port.get_element_type().to_dtype()
            if data_type.kind == "f":
                inputs.append((generator.normal(size=shape) * 4.0**run / 4).astype(data_type))
            else:  # they may be indices
                inputs.append(generator.integers(0, 2, shape).astype(data_type))
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
    contents = digest_graph(graph, lambda operand: _digest(operand.value))
    inputs = [(name, str(operand.desc)) for name, operand in graph.inputs.items()]
    threads = processors() if backend.threads is None else backend.threads
    words = contents, inputs, backend.precision, threads, _machine(), __version__, devices.version(), _code()
    return digest(repr(words).encode()).hexdigest()


def _digest(array: np.ndarray) -> bytes:
    # OpenSSL uses the processor's instructions for SHA-256: BLAKE2b takes three times as long.
    from hashlib import sha256

    return sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).digest()


@cache
def _machine() -> str:
    return f"{processor_name()} {next(processor_lines('flags'), '')}"


@cache
def _code() -> str:
    """A digest of this back end, whose rules make the model."""
    hasher = digest()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        hasher.update(path.read_bytes())
    return hasher.hexdigest()
