"""Save a compiled graph in a file, and load it: `MLGraph.save` and `MLContext.load`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..context.builder import NamedBuilder, build_variants
from ..context.context import MLContext
from ..context.graph import MLGraph, recorded_graph, state_of, variants_of
from ..context.tensors import check_alive
from ..core.graph import Desc, Operand
from ..support import lazy_imports
from ..support.errors import DataError, ValidationError, require, require_flags
from ..support.names import printable, short_repr
from .container import Container, ContainerWriter, read_json
from .graphs import (
    GraphReader,
    GraphWriter,
    decode_guards,
    decode_hints,
    decode_rules,
    encode_guards,
    encode_hints,
    encode_rules,
)
from .parts import FileParts, add_contents, add_exported, add_parts, seal
from .values import Damaged

if TYPE_CHECKING:
    from pathlib import Path

MANIFEST = "opweave.manifest"

KEY = "opweave.key"
"""The section of the key by which `MLContext.save_graph` keeps a graph."""

LAYOUTS = ("plain", "device")

MAX_MANIFEST_BYTES = 2**28
"""Maximum size of the manifest: some million nodes."""


@lazy_imports.save_graph.provide
def save(graph: MLGraph, path: str | Path, layout: str) -> None:
    """Write a graph into a file; see `MLGraph.save`."""
    require(layout in LAYOUTS, f"save: layout must be one of {list(LAYOUTS)}, got {short_repr(layout)}")
    writer_of(graph, is_exported=layout == "device").write(path)


def writer_of(graph: MLGraph, key: str = "", is_exported: bool = False) -> ContainerWriter:
    """The complete file of a graph, not written yet.

    Args:
        graph: the graph.
        key: the key of `MLContext.save_graph`, if it has one.
        is_exported: whether the file has compiled models with their weights, too.
    """
    variants = variants_of(graph)  # before the graph: `destroy` drops the variants last
    recorded, state = recorded_graph(graph), state_of(graph)
    writer = ContainerWriter()
    graphs = GraphWriter(writer)
    builder: Any = next(iter(recorded.outputs.values())).builder
    encoded = [{"graph": graphs.encode(item.graph), **encode_guards(item.guards)} for item in variants]
    manifest: dict[str, Any] = {
        "opweave": __version__,
        **({"variants": encoded} if variants else {"graph": graphs.encode(recorded)}),
        "operations": graphs.operations,
        "constants": graphs.constants,
        "size_hints": encode_hints(getattr(builder, "size_hints", {})),
        "fuse": state.is_fused,
    }
    if rules := getattr(state, "size_rules", ()):
        manifest["size_rules"] = encode_rules(rules)
    graphs.finish()
    if is_exported:
        # Programs for several sizes may share a session, which is exported once.
        exporters = dict.fromkeys(exporter for program in state.programs for exporter in program.exporters())
        manifest["left_out"] = add_exported(writer, (exporter() for exporter in exporters))
    text = json.dumps(manifest, separators=(",", ":"), allow_nan=False).encode()
    writer.add(MANIFEST, "uint8", (len(text),), text)
    add_parts(writer, {key for program in state.programs for key in program.cache_keys()})
    add_contents(writer, {key: part for program in state.programs for key, part in program.saved_parts().items()})
    if key:
        content = key.encode()
        writer.add(KEY, "uint8", (len(content),), content)
    seal(writer)
    return writer


@lazy_imports.load_graph.provide
def load(context: MLContext, path: str | Path, trusted: bool) -> MLGraph:
    """Read a graph from a file, and compile it; see `MLContext.load`."""
    return load_file(context, path, trusted)


def load_file(
    context: MLContext,
    path: str | Path,
    trusted: bool,
    check: Callable[[Mapping[str, Operand]], object] = lambda outputs: None,
) -> MLGraph:
    """Read a graph from a file, and compile it; `check` gets the outputs before that."""
    require(isinstance(path, (str, PathLike)), f"load: path must be a path, got {short_repr(path)}")
    require_flags(trusted=trusted)
    check_alive(context)
    container = Container.open(path)
    try:
        parts = FileParts(container, trusted)
        manifest = read_manifest(container)
        parts.left_out = [printable(reason) for reason in manifest.get("left_out", ())]
        graph = _build(context, container, manifest, trusted, check)
    except Damaged as error:
        raise DataError(f"{container.path}: it is damaged: {error}") from None
    except ValidationError as error:
        raise type(error)(f"{container.path}: {error}") from None
    state = state_of(graph)
    state.origin = parts.describe
    return graph


def _build(
    context: MLContext,
    container: Container,
    manifest: dict[str, Any],
    trusted: bool,
    check: Callable[[Mapping[str, Operand]], object],
) -> MLGraph:
    hints, rules = decode_hints(manifest["size_hints"]), decode_rules(manifest.get("size_rules", []))
    reader = GraphReader(
        container, manifest["operations"], manifest["constants"], trusted, context.backend.max_byte_length
    )

    def outputs_of(entry: Any) -> tuple[NamedBuilder, dict[str, Operand]]:
        builder = NamedBuilder(context)
        builder.size_hints, builder.size_rules = hints, rules
        return builder, reader.decode(entry, builder, _add_input)

    has_variants, variants = "variants" in manifest, []
    try:
        if not has_variants:
            builder, outputs = outputs_of(manifest["graph"])
        for entry in manifest["variants"] if has_variants else ():
            guards = decode_guards(entry)
            with guards.deciding():  # as when the graph was converted
                _, outputs = outputs_of(entry["graph"])
            variants.append((outputs, guards))
    except (RecursionError, OverflowError) as error:
        raise Damaged(f"its values are too deep or too large: {error}") from None
    except (KeyError, ZeroDivisionError) as error:
        raise Damaged(f"a size has no number: {error}") from None
    if not has_variants:
        check(outputs)
        return builder.build(outputs, fuse=manifest["fuse"])
    for outputs, _ in variants:
        check(outputs)
    return build_variants(variants, manifest["fuse"])


def _add_input(builder: Any, name: str, desc: Desc) -> Operand:
    operand: Operand = builder.input(name, desc.data_type, desc.shape)
    return operand


def reasons_of(path: Path) -> list[str]:
    """The reasons why a file lacks parts that engines compiled."""
    return list(map(printable, read_manifest(Container.open(path)).get("left_out", ())))


def read_manifest(container: Container) -> dict[str, Any]:
    """The manifest of a file, with all its names."""
    if MANIFEST in container and container.size(MANIFEST) > MAX_MANIFEST_BYTES:
        raise Damaged(f"its manifest has {container.size(MANIFEST)} bytes")
    try:
        manifest = read_json(container.section(MANIFEST).tobytes())
    except ValueError as error:
        raise DataError(f"{container.path}: {error}") from None
    types: dict[str, type] = {
        "opweave": str, "operations": list, "constants": list, "size_hints": dict, "fuse": bool
    }  # fmt: skip
    if isinstance(manifest, dict) and "variants" in manifest:
        types["variants"] = list
    else:
        types["graph"] = dict
    for name, kind in types.items():
        if not isinstance(manifest, dict) or not isinstance(manifest.get(name), kind):
            raise Damaged(f"its manifest lacks {name!r}")
    reasons = manifest.get("left_out", [])
    if not isinstance(reasons, list) or not all(isinstance(reason, str) for reason in reasons):
        raise Damaged("its manifest has reasons that are no texts")
    complete: dict[str, Any] = manifest
    return complete
