"""The child process that runs an engine: it compiles and runs the graphs of the messages that it receives."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, BinaryIO

import numpy as np

from ... import memory
from ...core.graph import Desc
from ...support.errors import NotSupportedError, OperationError
from .. import Runner
from .messages import START, Close, Compile, Free, Refusal, Run, receive, send

OOM_SCORE = "1000"
"""Maximum of Linux's `oom_score_adj`: the process is the first to be killed when memory runs out."""

PR_SET_PDEATHSIG = 1
"""Option of Linux's `prctl`: the signal that a process receives when its parent ends."""


def serve() -> None:
    """Answer messages from standard input on standard output, until the input ends or a message closes the child."""
    requests, answers = prepare()
    send(answers, None)  # the parent's time limits start here
    compiled: dict[int, tuple[Runner, Sequence[Desc]]] = {}
    while True:
        try:
            request = receive(requests)
        except EOFError:
            break
        answer: Any
        try:
            if isinstance(request, Close):
                compiled.clear()
                gc.collect()  # an engine that has damaged the heap crashes here
                send(answers, None)
                break
            answer = _answer(request, compiled)
        except Exception as error:  # any exception of an engine is a refusal
            is_known = isinstance(error, (NotSupportedError, OperationError))
            kind: type[Exception] = type(error) if is_known else OperationError
            answer = Refusal(kind, str(error) if is_known else f"{type(error).__name__}: {error}")
        send(answers, answer)
    os._exit(0)  # skip destructors of libraries: their order at exit is undefined


def prepare() -> tuple[BinaryIO, BinaryIO]:
    """Tie this process to its parent, redirect its standard streams, and return the streams of requests and answers."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # engines print to them
        os.dup2(nowhere, stream)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this process
    _end_before_parent()
    answers.write(START)
    return requests, answers


def _answer(request: Compile | Run | Free, compiled: dict[int, tuple[Runner, Sequence[Desc]]]) -> Any:
    if isinstance(request, Compile):
        graph = request.graph.graph()
        runner = request.backend.backend().compile(graph, **request.options)
        runner.complete()
        compiled[request.runner] = runner, [operand.desc for operand in graph.outputs.values()]
        return None
    if isinstance(request, Free):
        compiled.pop(request.runner, None)
        return None
    runner, descs = compiled[request.runner]
    outputs: list[np.ndarray] = [memory.empty(desc) for desc in descs]
    runner.run(request.inputs, outputs)
    return outputs


def _end_before_parent() -> None:
    """Let Linux kill this process when its parent ends, and before other processes when memory runs out."""
    if sys.platform != "linux":
        return
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(OOM_SCORE)
    import ctypes

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
