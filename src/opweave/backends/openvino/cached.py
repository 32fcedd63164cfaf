"""Compiled models in the cache on disk.

The engine exports a compiled model with its weights, and imports the model in a fraction of the time that compiling takes. The
key of a model has all that the model is made from: the graph with the contents of its constants, options, the processor, and
versions.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import __version__
from ...core.graph import Graph
from ...core.graph_digest import digest_graph
from ...memory.identity import digests_of
from ...support import disk_cache
from ...support.digests import digest
from ...support.processors import processor_lines, processor_name
from . import devices

if TYPE_CHECKING:
    from .backend import OpenVino

KIND = "blob"
"""Kind of the files in the cache on disk."""

MIN_SECONDS = 0.03
"""The shortest time to compile a model that is kept: importing one takes some milliseconds."""

SHARE = 4
"""A model is kept if it takes at most 1/4 of the cache's limit, so that it does not replace everything else."""


def compile_model(
    backend: OpenVino, graph: Graph, model: Any, device: str, options: Mapping[str, Any], arrays: list[np.ndarray]
) -> tuple[Any, str]:
    """Compile a model, or import it from the cache; return it with its key, which is empty if it is not cached.

    `arrays` gets the memory that an imported model reads. Raises what the engine raises.
    """
    name = devices.engine_name(device)
    is_cached = device == "cpu" and disk_cache.limit() > 0 and is_cacheable(backend, graph)
    key = key_of(graph, options) if is_cached else ""
    if key and (data := disk_cache.load(key, KIND)) is not None:
        content = np.frombuffer(data, np.uint8)
        try:
            compiled = devices.core().import_model(devices.engine().Tensor(content), name, options)
        except RuntimeError:  # of another build of the engine with the same version
            pass
        else:
            arrays.append(content)
            return compiled, key
    start = time.perf_counter()
    compiled = devices.core().compile_model(model, name, options)
    if not key or time.perf_counter() - start < MIN_SECONDS:
        return compiled, ""
    exported = compiled.export_model().getvalue()
    if len(exported) > disk_cache.limit() // SHARE or not _gives_the_same(compiled, exported, name, options):
        return compiled, ""
    return compiled, key if disk_cache.store(key, KIND, exported) else ""


def _gives_the_same(compiled: Any, exported: bytes, name: str, options: Mapping[str, Any]) -> bool:
    """Whether the imported model computes the same bits from random inputs.

    Version 2026.4.1 exports constant weights of GRU in the order of its kernels, and reorders them again when it imports them.
    """
    generator = np.random.default_rng(0)
    inputs = []
    for port in compiled.inputs:
        shape, data_type = tuple(port.get_shape()), port.get_element_type().to_dtype()
        if data_type.kind == "f":
            inputs.append(generator.normal(size=shape).astype(data_type))
        else:
            inputs.append(generator.integers(0, 2, shape).astype(data_type))
    content = np.frombuffer(exported, np.uint8)
    try:
        imported = devices.core().import_model(devices.engine().Tensor(content), name, options)
        results = [
            [array.tobytes() for array in model.create_infer_request().infer(inputs).values()]
            for model in (compiled, imported)
        ]
    except RuntimeError:
        return False
    return results[0] == results[1]


def is_cacheable(backend: OpenVino, graph: Graph) -> bool:
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


def key_of(graph: Graph, options: Mapping[str, Any]) -> str:
    """The key of a graph and options for this processor and these versions."""
    digests = digests_of(operand.value for operand in graph.constants)
    contents = digest_graph(graph, lambda operand: digests[id(operand.value)])
    inputs = [(name, operand.desc) for name, operand in graph.inputs.items()]
    words = (contents, inputs, sorted(options.items()), _machine(), __version__, devices.version(), _code())
    return digest(repr(words).encode()).hexdigest()


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
