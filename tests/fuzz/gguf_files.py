"""Mutants of small GGUF files: each value of the metadata and each tensor replaced, and bytes changed or cut."""

from __future__ import annotations

import random
import struct
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fuzz.frame import Campaign, Finding

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
FORMS = {
    U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"
}  # fmt: skip
"""How `struct` packs the types of metadata."""

TEXTS = [
    *(
        "",
        "llama",
        "qwen2",
        "gpt2",
        "yarn",
        "none",
        "smollm",
        "\x1b[2J\u202e",
        "a" * 10_000,
        "h e",
        "{{ 1",
        "{% for m in %}",
    ),
    *("{{ messages }}", "{{ 'a' * 10**9 }}", "{{ tools|tojson }}", "{{ 10 ** (10 ** 9) }}", "{{ '\\ud800' }}"),
    "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
]
NUMBERS = [
    0,
    1,
    2,
    3,
    7,
    8,
    64,
    255,
    2**15,
    2**16 - 1,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63 - 1,
    2**64 - 1,
    -1,
    -(2**31),
    -(2**63),
]
FLOATS = [0.0, -0.0, 1e-5, -1.0, 1e-45, 3e38, 1.5, float("nan"), float("inf"), float("-inf"), 2.0]
BYTES = [b"\xed\xa0\x80", b"\xff\xfe", b"a\x00b"]
"""Texts that are no UTF-8: a lone surrogate, no character at all; and one with a zero."""

Entry = tuple[str, bytes]
"""The name of a property, and its type and value as they are stored."""
Info = tuple[str, list[int], int, int]
"""The name of a tensor, its sizes, type and place."""


def string(text: str | bytes) -> bytes:
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def some_value(rng: random.Random) -> bytes:
    """A type and a value of it, of any size."""
    kind = rng.choice([*FORMS, STRING, ARRAY, ARRAY, 13, 255])
    if kind == ARRAY:
        item = rng.choice([*FORMS, STRING, ARRAY, 99])
        count = rng.choice([0, 1, 2, 264, 263, 265])
        claimed = rng.choice([count, count, count, 2**32, 2**63])
        body = b"".join(some_scalar(rng, item) for _ in range(count))
        return struct.pack("<IIQ", kind, item, claimed) + body
    return struct.pack("<I", kind) + some_scalar(rng, kind)


def some_scalar(rng: random.Random, kind: int) -> bytes:
    if kind == STRING:
        return string(rng.choice([*TEXTS, *BYTES]))
    form = FORMS.get(kind, "I")
    if form in "fd":
        return struct.pack(f"<{form}", rng.choice(FLOATS))
    size = struct.calcsize(form)
    return (rng.choice(NUMBERS) % 2 ** (8 * size)).to_bytes(size, "little")


@cache
def sources() -> list[tuple[list[Entry], list[Info], bytes]]:
    """The metadata, tensors and data of the files that are changed."""
    from support import tiny_models

    found = []
    with tempfile.TemporaryDirectory() as name:
        for kind in ("llama", "qwen2"):
            path = Path(name) / f"{kind}.gguf"
            tiny_models.write(path, architecture=kind, formats={"attn_q": "Q4_0", "ffn_down": "Q4_K", "ffn_up": "F16"})
            found.append(parsed(path.read_bytes()))
    return found


def parsed(data: bytes) -> tuple[list[Entry], list[Info], bytes]:
    """The parts of a valid file."""
    at = 8

    def take(form: str) -> Any:
        nonlocal at
        at += struct.calcsize(form)
        return struct.unpack_from(f"<{form}", data, at - struct.calcsize(form))[0]

    def text() -> str:
        nonlocal at
        size = take("Q")
        at += size
        return data[at - size : at].decode()

    def skip(kind: int) -> None:
        if kind == STRING:
            text()
        elif kind == ARRAY:
            item, count = take("I"), take("Q")
            for _ in range(count):
                skip(item)
        else:
            take(FORMS[kind])

    tensors, entries = take("Q"), take("Q")
    metadata: list[Entry] = []
    for _ in range(entries):
        name, start = text(), at
        skip(take("I"))
        metadata.append((name, data[start:at]))
    infos = [(text(), [take("Q") for _ in range(take("I"))], take("I"), take("Q")) for _ in range(tensors)]
    return metadata, infos, data[-(-at // 32) * 32 :]


def written(metadata: list[Entry], infos: list[Info], data: bytes) -> bytes:
    """A file of these parts."""
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(infos), len(metadata))]
    parts += [string(name) + value for name, value in metadata]
    parts += [
        string(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, at)
        for name, sizes, kind, at in infos
    ]
    head = b"".join(parts)
    return head + bytes(-len(head) % 32) + data


def mutant(rng: random.Random, number: int) -> bytes:
    """A file with one to three changes. The first cases replace each property by values of each type in turn."""
    metadata, infos, data = (list(part) if isinstance(part, list) else part for part in rng.choice(sources()))
    if number % 4 < 2:
        at = number // 4 % len(metadata)
        metadata[at] = (metadata[at][0], some_value(rng))
    for _ in range(rng.randint(0 if number % 4 < 2 else 1, 2)):
        rng.choice(CHANGES)(rng, metadata, infos)
    whole = bytearray(written(metadata, infos, data))
    match rng.randrange(8):
        case 0:
            del whole[rng.randrange(len(whole)) :]
        case 1:
            for _ in range(rng.choice([1, 4, 100])):
                whole[rng.randrange(min(len(whole), rng.choice([100, 10_000, len(whole)])))] = rng.randrange(256)
        case 2:
            at = rng.randrange(len(whole))
            whole[at:at] = rng.randbytes(rng.randint(1, 64))
    return bytes(whole)


def change_property(rng: random.Random, metadata: list[Entry], infos: list[Info]) -> None:
    if metadata:
        at = rng.randrange(len(metadata))
        metadata[at] = (metadata[at][0], some_value(rng))


def add_property(rng: random.Random, metadata: list[Entry], infos: list[Info]) -> None:
    tokens = ("unknown", "padding", "bos", "eot", "mask", "seperator", "x\x1b")
    names = [f"tokenizer.ggml.{token}_token_id" for token in tokens]
    names += [
        "llama.attention.key_length",
        "llama.rope.dimension_count",
        "llama.rope.scaling.type",
        "general.alignment",
    ]
    names += [
        "llama.rope.scaling.factor",
        "tokenizer.ggml.add_bos_token",
        "tokenizer.ggml.scores",
        metadata[0][0] if metadata else "",
    ]
    metadata.append((rng.choice(names), some_value(rng)))


def remove_property(rng: random.Random, metadata: list[Entry], infos: list[Info]) -> None:
    if metadata:
        del metadata[rng.randrange(len(metadata))]


def change_tensor(rng: random.Random, metadata: list[Entry], infos: list[Info]) -> None:
    if not infos:
        return
    number = rng.randrange(len(infos))
    name, sizes, kind, at = infos[number]
    match rng.randrange(6):
        case 0:
            sizes = [*sizes]
            sizes[rng.randrange(len(sizes))] = rng.choice([0, 1, 2, 31, 32, 63, 65, 256, 2**31, 2**32, 2**63])
        case 1:
            sizes = rng.choice([[], sizes[:1], [*sizes, 1], [1] * 5, sizes[::-1], [2**16] * 4])
        case 2:
            kind = rng.choice([*range(40), 2**31])
        case 3:
            at = rng.choice([0, 1, 7, 2**31, 2**63, 2**64 - 1])
        case 4:
            name = rng.choice(
                [infos[0][0], "", "blk.7.attn_q.weight", "blk.-1.attn_q.weight", "rope_freqs.weight", "output.weight"]
            )
        case _:
            del infos[number]
            return
    infos[number] = (name, sizes, kind, at)


CHANGES: list[Callable[[random.Random, list[Entry], list[Info]], None]] = [
    *(change_property, change_property, add_property, add_property, remove_property, change_tensor, change_tensor)
]


def run(rng: random.Random, number: int) -> str:
    """Read a mutant, and let the model reply if it is one."""
    import opweave as ow
    from opweave.chat import GGUF, Conversation, Decoder, Model, Sampler, Vocabulary

    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "m.gguf"
        path.write_bytes(mutant(rng, number))
        read = "file"
        try:
            file = GGUF(path)
            vocabulary = Vocabulary(file)
            read = "vocabulary"
            vocabulary.decode(vocabulary.encode("hello hell\u00e9 <|start|>"))
            vocabulary.render([{"role": "user", "content": "hello"}], tools=[{"name": "f"}])
            read = "template"
            model = Model(file)
            read = "model"
            # The logits of 4 tokens, and a reply of 2.
            decoder = Decoder(model, ow.ml.create_context(device="reference"), min(64, model.sizes.context))
            talk = Conversation(decoder, vocabulary, Sampler(seed=1))
            reply = "".join(talk.say("hi", 2))
        except ow.MLError as error:
            text = str(error)
            if str(path.name) not in text and read not in ("model", "template"):
                raise Finding(f"the message does not name the file: {text}") from None
            return f"{read}: {type(error).__name__}"
    if not isinstance(reply, str):
        raise Finding(f"the reply is {reply!r}")
    return "reply"


def write(rng: random.Random, number: int, stem: Path) -> list[Path]:
    """The file of a case."""
    path = stem.with_suffix(".gguf")
    path.write_bytes(mutant(rng, number))
    return [path]


np.seterr(all="ignore")  # weights of other types are any numbers

CAMPAIGNS = {
    "gguf": Campaign(
        name="gguf",
        about="mutants of small GGUF files: each property of each type, tensors, templates and bytes; read, rendered and run",
        case=run,
        count=2_000,
        short=60,
        write=write,
        needs=("gguf", "tokenizers", "jinja2"),
    )
}
