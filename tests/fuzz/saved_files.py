"""Mutants of saved graphs: bytes, fields of the header, and values of the manifest, with and without correct digests."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fuzz.frame import Campaign, Finding

NUMBERS = [
    *(0, 1, 2, 3, 7, 8, 15, 16, 64, 255, 4096, 2**15, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, 10**30),
    *(-1, -2, -(2**31), -(2**63)),
]
OTHERS: list[Any] = [
    *(
        None,
        True,
        False,
        0.0,
        -0.0,
        0.5,
        -1.5,
        1e300,
        1e-300,
        "",
        "x",
        "float32",
        "int4",
        "float8_e8m0fnu",
        "object",
        "n",
    ),
    *(
        "webnn:relu",
        "webnn:loop",
        "os:system",
        "opweave.composites.control:loop",
        "opweave.composites.grid:grid_sample",
    ),
    *("constant.0", "opweave.small", "opweave.manifest", "\ud800", "\x1b[2J", "a" * 10_000, [], {}, [[]], [[[]]]),
    *({"float": "nan"}, {"float": "inf"}, {"float": "x"}, {"size": []}, {"size": [[[["name", "n"]], 1]]}, {"size": 7}),
    *({"size": [[[["//", [[[["name", "n"]], 1]], 0]], 1]]}, {"size": [[[["where", 1, 2]], 1]]}, {"array": 0}),
    *({"real": ["sqrt", -1]}, {"real": ["**", 10, ["**", 10, 10]]}, {"real": ["/", 1, 0]}, {"real": []}, {"real": 1}),
    *(
        {"function": "opweave.ops.constants:integers_from"},
        {"function": "os:system"},
        {"body": {}},
        {"mapping": [["a", 1]]},
    ),
]


@cache
def sources() -> list[bytes]:
    """Saved graphs of all kinds: weights, names of sizes, bodies, narrow types, composites."""
    import opweave as ow
    from opweave import composites
    from opweave.composites.control import loop
    from opweave.core.bodies import make_body
    from opweave.core.dtypes import numpy_type
    from opweave.core.graph import Desc
    from opweave.ops.recorder import Recorder

    context = ow.ml.create_context(device="reference", drafts=True)
    graphs: list[ow.MLGraph] = []
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [1, 3, 8, 8])
    y = builder.conv2d(x, builder.constant(np.ones((40, 3, 3, 3), "float32")), bias=builder.constant(np.ones(40, "f4")))
    y = builder.max_pool2d(builder.relu(y), window_dimensions=[2, 2], strides=[2, 2], label="pool")
    y = builder.softmax(builder.reshape(y, [1, 360]), 1)
    graphs.append(builder.build({"y": y, "z": composites.quick_gelu(builder, y, alpha=1.5)}))
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [{"name": "n", "min_size": 1, "max_size": 8}, "m"])
    flat = builder.reshape(builder.concat([x, x], 0), [2 * x.shape[0] * x.shape[1]])
    graphs.append(
        builder.build({"y": flat * (1 / x.shape[0]), "z": builder.expand(builder.reduce_sum(x), [x.shape[0] // 2 + 1])})
    )
    builder = ow.MLGraphBuilder(context)
    scalar, row = Desc("float32", ()), Desc("float32", (3,))
    body = make_body(Recorder(), [scalar, row], lambda b, total, x: [total + b.reduce_sum(x), x * 2])
    x = builder.input("x", "float32", [4, 3])
    total, rows = loop(builder, [builder.constant("float32", 0)], [x], [], body=body, length=4)
    codes = builder.constant(np.arange(8).reshape(2, 4).astype(numpy_type("int4")))
    scale = builder.constant(np.ones((2, 1), "float32"))
    zero = builder.constant(np.zeros((2, 1)).astype(numpy_type("int4")))
    graphs.append(builder.build({"total": total, "rows": rows, "w": builder.dequantize_linear(codes, scale, zero)}))
    contents = []
    with tempfile.TemporaryDirectory() as name:
        for graph in graphs:
            graph.save(Path(name) / "graph.opweave")
            contents.append((Path(name) / "graph.opweave").read_bytes())
    return contents


def header_of(data: bytes) -> tuple[Any, int]:
    """The header of a valid file, and where its sections begin."""
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), 8 + length


def places(value: Any) -> list[tuple[Any, Any]]:
    """The containers of JSON, each with the keys of its values."""
    found: list[tuple[Any, Any]] = []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found.append((value, key))
        found += places(item)
    return found


def change_json(rng: random.Random, value: Any) -> None:
    """Change, remove, repeat or swap values somewhere inside. New values are copies, which later changes may change, too."""
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        inside = places(value)
        if not inside:
            return
        container, key = rng.choice(inside)
        other, other_key = rng.choice(inside)
        match rng.randrange(6):
            case 0 | 1:
                container[key] = deepcopy(rng.choice(NUMBERS if isinstance(container[key], int) else OTHERS))
            case 2:
                container[key] = deepcopy(rng.choice(NUMBERS + OTHERS))
            case 3:
                del container[key]
            case 4:
                container[key] = json.loads(json.dumps(other[other_key]))
            case _ if isinstance(container, list):
                container.insert(key, json.loads(json.dumps(other[other_key])))


def mutant(rng: random.Random, path: Path) -> str:
    """Write a changed file; what was changed."""
    data = rng.choice(sources())
    kind = rng.choice(["bytes", "header", "manifest", "manifest", "manifest"])
    if kind == "bytes":
        path.write_bytes(changed_bytes(rng, data))
    elif kind == "header":
        header, start = header_of(data)
        change_json(rng, header)
        text = json.dumps(header).encode()
        path.write_bytes(rng.choice([len(text)] * 9 + [2**40]).to_bytes(8, "little") + text + data[start:])
    else:
        path.write_bytes(data)
        change_manifest(path, lambda manifest: change_json(rng, manifest))
    return kind


def changed_bytes(rng: random.Random, data: bytes) -> bytes:
    whole = bytearray(data)
    match rng.randrange(3):
        case 0:
            del whole[rng.randrange(len(whole)) :]
        case 1:
            for _ in range(rng.choice([1, 4, 100])):
                whole[rng.randrange(min(len(whole), rng.choice([100, 2000, len(whole)])))] = rng.randrange(256)
        case _:
            at = rng.randrange(len(whole))
            whole[at:at] = rng.randbytes(rng.randint(1, 64))
    return bytes(whole)


def change_manifest(path: Path, change: Callable[[Any], object]) -> None:
    """Write a file again with a changed manifest, and correct digests."""
    from opweave.saved.container import Container, ContainerWriter
    from opweave.saved.parts import AUTHENTICATION, DIGEST, seal

    container, writer = Container.open(path), ContainerWriter()
    for name in container.names:
        data = container.section(name).tobytes()
        if name == "opweave.manifest":
            manifest = json.loads(data)
            change(manifest)
            data = json.dumps(manifest).encode()
        if name not in (DIGEST, AUTHENTICATION):
            writer.add(name, "uint8", (len(data),), data)
    seal(writer)
    writer.write(path)


@cache
def loading_context() -> Any:
    """The context that loads all mutants of a process: making one takes as long as most cases."""
    import opweave as ow

    return ow.ml.create_context(device="reference", drafts=True)


def run(rng: random.Random, number: int) -> str:
    """Load a mutant, and run the graph if it is one."""
    import opweave as ow

    context = loading_context()
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "m.opweave"
        kind = mutant(rng, path)
        try:
            graph = context.load(path)
        except ow.MLError as error:
            if path.name not in str(error):
                raise Finding(f"the message does not name the file: {error}") from None
            return f"{kind}: {type(error).__name__}"
        try:
            feeds = {
                name: np.zeros([size if isinstance(size, int) else 3 for size in desc.shape], desc.data_type)
                for name, desc in graph.inputs.items()
                if all(not isinstance(size, int) or size < 10_000 for size in desc.shape)
            }
            context.compute(graph, feeds)
        except ow.MLError as error:
            return f"run: {type(error).__name__}"
    return "result"


def write(rng: random.Random, number: int, stem: Path) -> list[Path]:
    """The file of a case."""
    path = stem.with_suffix(".opweave")
    mutant(rng, path)
    return [path]


np.seterr(all="ignore")  # weights of other types are any numbers

CAMPAIGNS = {
    "files": Campaign(
        name="files",
        about="mutants of saved graphs: bytes, fields of the header, values of the manifest; loaded and run",
        case=run,
        count=100_000,
        short=60,
        write=write,
        environment={"OPWEAVE_CACHE_BYTES": "0"},
    )
}
