"""The command `opweave chat`: a conversation with a language model."""

from __future__ import annotations

import atexit
import json
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer
from rich.text import Text

from ..support.errors import DataError, ValidationError, require
from ..support.names import short_repr
from ..support.origins import check_hosts, check_origins
from ..support.sockets import listen_on
from .chat_commands import ChatLines, schema_of
from .common import PrecisionName, Verbose, app, console, errors, options_set

DEFAULT_ROOM = 2048
"""Maximum tokens of a conversation, unless the model was trained for fewer. Keys and values of SmolLM2 take 46 KB a token."""

DEFAULT_LIMIT = 1024
"""Maximum tokens of a reply: about 700 words. A small model may otherwise repeat itself until the context is full."""

SERVED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Options that requests for a served model may have, too."""

MAX_HISTORY = 1000
"""Number of lines that the file of the history keeps."""

ENDS = {
    "full": ("the context is full: the reply ends here; --context makes more room", "; /new begins a new conversation"),
    "limit": ("the reply has reached --limit", "; /set limit changes it"),
    "open": ("stopped", ""),
}
"""Reports of ends that need one, and what can be done about them in a conversation."""


@app.command()
def chat(
    options_of: typer.Context,
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
    min_p: Annotated[
        float, typer.Option(help="Leave out tokens with less than this share of the largest probability; 0: none.")
    ] = 0.0,
    repetition_penalty: Annotated[
        float,
        typer.Option(
            "--repeat-penalty",
            "--repetition-penalty",
            help="Above 1, the last 64 tokens become less likely to repeat; 1: no penalty.",
        ),
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
    limit: Annotated[int, typer.Option(min=1, help="Maximum tokens of a reply.")] = DEFAULT_LIMIT,
    stop: Annotated[
        list[str] | None, typer.Option(help="A text that ends a reply, and is not part of it. May be repeated.")
    ] = None,
    json_schema: Annotated[
        str, typer.Option(metavar="FILE", help="Replies are JSON that fits this schema: a file, or the schema itself.")
    ] = "",
    serve: Annotated[
        bool,
        typer.Option("--serve", help="Serve the model over HTTP for clients of OpenAI's API, until Ctrl-C or SIGTERM."),
    ] = False,
    name: Annotated[
        str | None, typer.Option(help="With --serve, the model's name in requests. Default: that of the file.")
    ] = None,
    host: Annotated[str, typer.Option(help="With --serve, the address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="With --serve, the port; 0 for any free one.")] = 8000,
    origin: Annotated[
        list[str] | None,
        typer.Option("--origin", help="With --serve, the origin of web pages that may send requests. May be repeated."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", help="With --serve, a further name of this machine in requests. May be repeated."),
    ] = None,
    device: Annotated[str, typer.Option(help="Where to run; `opweave devices` lists them.")] = "cpu",
    precision: PrecisionName = "float32",
    verbose: Verbose = False,
) -> None:
    """Chat with a language model: each line is a message, until the input ends.

    The line /help lists commands; Ctrl-C stops a reply. Replies are written to standard output, everything else to standard
    error.
    """
    from ..chat import GGUF, Decoder, LoRA, Model, Sampler, Vocabulary
    from ..context.context import ml

    start = perf_counter()
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "seed": seed}
    options: dict[str, Any] = {**sampling, "repetition_penalty": repetition_penalty}
    of_server = options_set(options_of, "name", "host", "port", "origin", "allow_host")
    require(serve or not of_server, f"{', '.join(of_server)}: only with --serve")
    if serve:
        unused = options_set(options_of, "prompt", "system", "seed", "stop", "json_schema")
        require(not unused, f"--serve takes no {', '.join(unused)}: requests have them")
        from ..deploy import ModelServer  # fails here if the extra is missing
        from ..scale.protocol import default_name

        # Wrong options fail before the model is loaded.
        check_origins(origin or [])
        check_hosts(allow_host or [])
        listen_on(host, port, 1, "--host and --port take others").close()
    sampler = Sampler(**options)
    if json_schema:
        schema_of(json_schema)
    options |= {"limit": limit, "stop": stop or [], "json_schema": json_schema}
    file = GGUF(model)
    place = ml.create_context(device=device, precision=precision)  # type: ignore[arg-type]
    network = Model(file, for_cpu=place.backend.space.is_host)
    most = network.sizes.context
    rule = f"--context must be in [1, {most}], the longest text that the model was trained for, got {context}"
    require(context is None or 0 < context <= most, rule)
    room = min(DEFAULT_ROOM, most) if context is None else context
    scales = _scales_of_files(adapter or [])
    adapters = {path.stem: LoRA(path) for path in scales}
    decoder = Decoder(network, place, room, cache=cache, adapters=adapters)  # type: ignore[arg-type]
    if scales:
        decoder.scale_adapters({path.stem: scale for path, scale in scales.items()})
    decoder.build(None if serve or json_schema else sampler)
    vocabulary = Vocabulary(file)  # last, because building it takes more memory for a while
    errors.print(Text(f"{model.name} on {device}, ready in {perf_counter() - start:.1f} s", "dim"))
    if serve:
        title = default_name(model) if name is None else name
        defaults = {option: value for option, value in options.items() if option in SERVED} | {"max_tokens": limit}
        server = ModelServer(
            {},
            language_models={title: (decoder, vocabulary)},
            defaults=defaults,
            host=host,
            port=port,
            origins=origin or [],
            hosts=allow_host or [],
        )
        server.run(lambda: _print_server(server.url, title))
        errors.print("stopped")
        return
    lines = ChatLines(decoder, vocabulary, system, options, sampler)
    if prompt is not None:
        _reply(lines, prompt, is_only=True)
        return
    for line in _lines():
        if not line:
            continue
        try:
            if line.startswith("/") and not line.startswith("//"):
                if text := lines.run(line):
                    errors.print(Text(text, "dim"), soft_wrap=True)
            else:
                _reply(lines, line[1:] if line.startswith("//") else line)
        # Often the context is full, and there is room for a shorter message.
        except (ValidationError, DataError, OSError) as error:
            is_full = str(error).startswith("the context is full")
            hint = ". /new begins a new conversation; --context makes more room" if is_full else ""
            errors.print(Text(f"{error}{hint}", "yellow"), soft_wrap=True)
        if lines.is_ended:
            return


def _print_server(url: str, name: str) -> None:
    """Print the address of a served model, and a command that sends a request."""
    console.print(f"{name} is served for clients of OpenAI's API:", f"{url}/v1", sep="\n", soft_wrap=True)
    request = {"model": name, "messages": [{"role": "user", "content": "How many days are in a week?"}]}
    sent = f"curl -sS -d {shlex.quote(json.dumps(request))} {url}/v1/chat/completions"
    page = f"The page {url}/ has a conversation, {url}/metrics is for Prometheus"
    console.print(sent, page, "Ctrl-C stops it", sep="\n", soft_wrap=True)
    console.file.flush()


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
    """The lines of standard input, with a prompt, line editing and a history if it is a terminal."""
    interactive = sys.stdin.isatty()
    if interactive:
        _keep_history()
    while True:
        try:
            yield (input("> ") if interactive else input()).strip()
        except (EOFError, KeyboardInterrupt):
            return


def _keep_history() -> None:
    """Let `input` edit lines, with those of earlier conversations as its history."""
    try:
        import readline  # `input` uses it once it is imported
    except ImportError:  # Windows, whose terminals edit lines themselves
        return
    path = history_path()
    with suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(MAX_HISTORY)

    def write() -> None:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            # Other users must not be able to read the history.
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
            readline.write_history_file(path)

    atexit.register(write)


def history_path() -> Path:
    """The file of the history: `$XDG_STATE_HOME/opweave/chat_history`."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "opweave" / "chat_history"


def _reply(lines: ChatLines, message: str, *, is_only: bool = False) -> None:
    conversation = lines.conversation
    reply = conversation.say(message, lines.limit, grammar=lines.grammar)
    try:
        for part in reply:
            console.print(part, end="", soft_wrap=True)
            console.file.flush()
    except KeyboardInterrupt:
        reply.close()
    console.print()
    statistics = conversation.reply
    if statistics.end in ENDS:
        report, remedy = ENDS[statistics.end]
        errors.print(Text(report if is_only else report + remedy, "yellow"), soft_wrap=True)
    errors.print(Text(str(statistics), "dim"))
