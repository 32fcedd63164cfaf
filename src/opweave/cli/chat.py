"""The command `opweave chat`: a conversation with a language model."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from ..support.errors import ValidationError, require
from ..support.names import short_repr
from .common import PrecisionName, Verbose, app, console, errors

if TYPE_CHECKING:
    from ..chat import Conversation

DEFAULT_ROOM = 2048
"""Maximum tokens of a conversation, unless the model was trained for fewer. Keys and values of SmolLM2 take 46 KB a token."""

ENDS = {
    "full": "the context is full: the reply ends here. /new begins a new conversation; --context makes more room",
    "limit": "the reply has reached --limit",
    "open": "stopped",
}


@app.command()
def chat(
    model: Annotated[Path, typer.Argument(help="A .gguf file of a language model.")],
    prompt: Annotated[str | None, typer.Option("-p", "--prompt", help="Reply to this message, and exit.")] = None,
    system: Annotated[str | None, typer.Option(help="The system message. Default: that of the chat template.")] = None,
    temperature: Annotated[
        float, typer.Option(help="0 always chooses the most likely token; higher is more varied.")
    ] = 0.8,
    top_k: Annotated[int, typer.Option(help="Sample from this number of the most likely tokens; 0: from all.")] = 40,
    top_p: Annotated[
        float, typer.Option(help="Sample from the most likely tokens with this total probability.")
    ] = 0.95,
    repetition_penalty: Annotated[
        float, typer.Option(help="Above 1, the last 64 tokens become less likely to repeat; 1: no penalty.")
    ] = 1.0,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the random numbers; the same seed gives the same replies.")
    ] = None,
    context: Annotated[
        int | None, typer.Option(help=f"Maximum tokens of a conversation. Default: {DEFAULT_ROOM}.")
    ] = None,
    cache: Annotated[
        str, typer.Option(help="The data type of cached keys and values: float32, float16 or int8.")
    ] = "float32",
    adapter: Annotated[
        list[str] | None,
        typer.Option(help="A .gguf file of an adapter (LoRA) for the model, or PATH=SCALE. May be repeated."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Maximum tokens of a reply. Default: up to the end of the context.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where to run; `opweave devices` lists them.")] = "cpu",
    precision: PrecisionName = "float32",
    verbose: Verbose = False,
) -> None:
    """Chat with a language model: each line is a message, until the input ends.

    The line /new begins a new conversation; Ctrl-C stops a reply. Replies are written to standard output, everything else to
    standard error.
    """
    from ..chat import GGUF, Conversation, Decoder, LoRA, Model, Sampler, Vocabulary
    from ..context.context import ml

    start = perf_counter()
    sampler = Sampler(
        temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, repetition_penalty=repetition_penalty
    )
    file = GGUF(model)
    place = ml.create_context(device=device, precision=precision)  # type: ignore[arg-type]
    network = Model(file, for_cpu=place.backend.space.is_host)
    room = min(DEFAULT_ROOM, network.sizes.context) if context is None else context
    scales = _scales_of_files(adapter or [])
    adapters = {path.stem: LoRA(path) for path in scales}
    decoder = Decoder(network, place, room, cache=cache, adapters=adapters)  # type: ignore[arg-type]
    if scales:
        decoder.scale_adapters({path.stem: scale for path, scale in scales.items()})
    decoder.build()
    vocabulary = Vocabulary(file)  # last, because building it takes more memory for a while
    errors.print(Text(f"{model.name} on {device}, ready in {perf_counter() - start:.1f} s", "dim"))

    def begin() -> Conversation:
        decoder.forget(0)
        return Conversation(decoder, vocabulary, sampler, system)

    conversation = begin()
    for line in _lines() if prompt is None else [prompt]:
        if line == "/new":
            conversation = begin()
        elif line:
            try:
                _reply(conversation, line, limit)
            except ValidationError as error:  # often a full context; there may be room for a shorter message
                if prompt is not None:
                    raise
                is_full = str(error).startswith("the context is full")
                hint = ". /new begins a new conversation; --context makes more room" if is_full else ""
                errors.print(Text(f"{error}{hint}", "yellow"), soft_wrap=True)


def _scales_of_files(texts: Sequence[str]) -> dict[Path, float]:
    """The files of adapters and their scales, from texts PATH or PATH=SCALE."""
    scales: dict[Path, float] = {}
    for text in texts:
        path, separator, number = text.rpartition("=")
        if not separator or Path(text).exists():
            path, number = text, "1"
        try:
            scale = float(number)
        except ValueError:
            raise ValidationError(f"--adapter must be PATH or PATH=SCALE, got {short_repr(text)}") from None
        stems = {other.stem for other in scales}
        require(Path(path).stem not in stems, f"--adapter: two adapters have the name {short_repr(Path(path).stem)}")
        scales[Path(path)] = scale
    return scales


def _lines() -> Iterator[str]:
    """The lines of standard input, with a prompt if it is a terminal."""
    interactive = sys.stdin.isatty()
    while True:
        try:
            yield (input("> ") if interactive else input()).strip()
        except (EOFError, KeyboardInterrupt):
            return


def _reply(conversation: Conversation, message: str, limit: int | None) -> None:
    reply = conversation.say(message, limit)
    try:
        for part in reply:
            console.print(part, end="", soft_wrap=True)
            console.file.flush()
    except KeyboardInterrupt:
        reply.close()
    console.print()
    statistics = conversation.reply
    if statistics.end in ENDS:
        errors.print(Text(ENDS[statistics.end], "yellow"), soft_wrap=True)
    errors.print(Text(str(statistics), "dim"))
