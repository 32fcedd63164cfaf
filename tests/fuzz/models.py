"""Mutants of models: each gives a result, or an error of Opweave with a message of reasonable length."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from onnx import TensorProto, helper

import opweave as ow
from fuzz import mutation
from fuzz.frame import Campaign, Finding

OUTCOMES = frozenset({"result", "DataError", "ValidationError", "NotSupportedError", "OperationError"})

MESSAGE = 4000
"""How many characters the message of an error may have."""

EMPTY: dict[str, Any] = {"seq": [], "map": {}, "optional": None}
"""What is given to inputs that are no tensors."""

_sources: list[bytes] = []  # of the child: ONNX's test models


@cache
def context(backend: str) -> ow.MLContext:
    """The context that all cases of a process run in."""
    return ow.ml.create_context(device="cpu", backend=backend)


def array_for(argument: Any) -> Any:
    """Ones of the type and shape that an input declares; named sizes become 2, and large ones at most 64."""
    kind, _, rest = argument.type.partition("(")
    if kind in EMPTY:
        return EMPTY[kind]
    name = rest.rstrip(")")
    shape = [min(size, 64) if isinstance(size, int) and size >= 0 else 2 for size in argument.shape or ()]
    if name == "string":
        return np.full(shape, "a", object)
    if name == "undefined":
        return np.ones(shape, np.float32)
    return np.ones(shape, helper.tensor_dtype_to_np_dtype(TensorProto.DataType.Value(name.upper())))


def check_message(error: ow.MLError) -> str:
    """The class of an error; `Finding` if its message says nothing, or never ends."""
    text = str(error)
    if not text.strip():
        raise Finding(f"{type(error).__name__} without a message")
    if len(text) > MESSAGE:
        raise Finding(f"{type(error).__name__} with a message of {len(text)} characters: {text[:300]} …")
    return type(error).__name__


def load_and_run(data: bytes, backend: str = "onnxruntime") -> str:
    """Load a model, run it, and explain it, in both ways to run one; what came of it, compiled."""
    compiled = _load_and_run(data, backend, "always")
    _load_and_run(data, backend, "auto")
    return compiled


def _load_and_run(data: bytes, backend: str, specialise: Literal["always", "auto"]) -> str:
    try:
        session = ow.InferenceSession(data, context(backend), specialise=specialise)
        feed = {argument.name: array_for(argument) for argument in session.get_inputs()}
        for _ in range(2):
            session.run(None, feed)
        session.explain()
    except ow.MLError as error:
        return check_message(error)
    return "result"


def mutant(rng: random.Random, number: int) -> bytes:
    """A mutant of one of the small models; every 50th of them is unchanged."""
    sources = mutation.seeds()
    if number % 50 == 0:
        return bytes(sources[number // 50 % len(sources)].SerializeToString())
    return mutation.tame(mutation.mutate(rng, rng.choice(sources)))


def backend_mutant(rng: random.Random, number: int) -> bytes:
    """A mutant of one of ONNX's test models."""
    if not _sources:
        _sources.extend(_test_models())
    source = onnx.ModelProto.FromString(_sources[rng.randrange(len(_sources))])
    return mutation.tame(mutation.mutate(rng, source))


def _test_models() -> list[bytes]:
    from support.onnx_cases import cases

    models = [case.source.model for case in cases().values() if case.source.model is not None]
    return [model.SerializeToString() for model in models]


def backend_case(rng: random.Random, number: int, backend: str = "onnxruntime") -> str:
    """Load and run a mutant of one of ONNX's test models."""
    return load_and_run(backend_mutant(rng, number), backend)


def prepare(folder: Path) -> None:
    """Write ONNX's test models to one file: to make them takes seconds."""
    sequence = onnx.SequenceProto(tensor_values=[TensorProto(raw_data=data) for data in _test_models()])
    (folder / "models.pb").write_bytes(sequence.SerializeToString())


def setup(folder: Path) -> None:
    """Read ONNX's test models."""
    sequence = onnx.SequenceProto.FromString((folder / "models.pb").read_bytes())
    _sources.extend(tensor.raw_data for tensor in sequence.tensor_values)


def writer(make: Callable[[random.Random, int], bytes]) -> Callable[[random.Random, int, Path], list[Path]]:
    """What writes the model of a case into a file."""

    def write(rng: random.Random, number: int, stem: Path) -> list[Path]:
        path = stem.with_suffix(".onnx")
        path.write_bytes(make(rng, number))
        return [path]

    return write


_BACKEND = Campaign(
    "backend",
    "mutants of the models of ONNX's backend tests",
    backend_case,
    count=40_000,
    short=60,
    outcomes=OUTCOMES,
    write=writer(backend_mutant),
    prepare=prepare,
    setup=setup,
)

CAMPAIGNS = {
    "models": Campaign(
        "models",
        "mutants of small models: bytes, names, attributes, types, order",
        lambda rng, number: load_and_run(mutant(rng, number)),
        count=40_000,
        short=100,
        outcomes=OUTCOMES,
        write=writer(mutant),
    ),
    "backend": _BACKEND,
    "backend-openvino": _BACKEND.on("openvino", backend_case, 20_000),
}
