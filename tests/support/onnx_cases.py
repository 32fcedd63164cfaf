"""ONNX's own backend tests as cases that `InferenceSession` runs: used by the tests, and by `tools/onnx_expectations.py`."""

from __future__ import annotations

import fcntl
import pickle
import tomllib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.backend.test.loader as loader
import onnxruntime
from onnx import TensorProto, numpy_helper
from packaging.requirements import Requirement

import opweave as ow
from opweave.onnx.convert.trace import TracedNode
from opweave.onnx.session.session import InferenceSession
from support.onnx import run_with_other_floats
from support.onnx_nodes import compiled_models

EXPECT = Path(__file__).parents[1] / "expect"

KEPT = (
    Path(__file__).parents[2] / ".pytest_cache" / f"onnx-backend-cases-{onnx.__version__}-numpy-{np.__version__}.pickle"
)
"""The cases as they were made last: making them takes seconds of each process that collects tests."""

UNIT = 2.0**-24
"""Half a unit in the last place of float32, relative to the number."""

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
"""The kinds of cases that come with the `onnx` package, except its networks."""


@dataclass(frozen=True)
class Case:
    """One backend test.

    Attributes:
        name: its name in ONNX, with the kind in front unless that is "node".
        rtol: the tolerance, relative to what is expected.
        atol: the tolerance, absolute.
        source: the case as ONNX's loader gives it.
    """

    name: str
    rtol: float
    atol: float
    source: Any

    def load(self) -> tuple[onnx.ModelProto, list[tuple[list[Any], list[Any]]]]:
        """The model, and its inputs and outputs."""
        if self.source.model is not None:
            sets = [([_value(i) for i in ins], [_value(o) for o in outs]) for ins, outs in self.source.data_sets]
            return self.source.model, sets
        folder = Path(self.source.model_dir)
        model = onnx.load(folder / "model.onnx")
        sets = []
        for data in sorted(folder.glob("test_data_set*")):
            inputs = [
                _stored(data / f"input_{k}.pb", v) for k, v in enumerate(_files(data, "input", model.graph.input))
            ]
            outputs = [
                _stored(data / f"output_{k}.pb", v) for k, v in enumerate(_files(data, "output", model.graph.output))
            ]
            sets.append((inputs, outputs))
        assert sets, f"{folder} has no data"
        return model, sets


@cache
def cases() -> dict[str, Case]:
    """All cases by name. The first process makes them; others wait for it, and read what it has kept."""
    KEPT.parent.mkdir(exist_ok=True)
    with KEPT.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if KEPT.exists():
            kept: dict[str, Case] = pickle.loads(KEPT.read_bytes())
            return kept
        made = _made()
        new = KEPT.with_suffix(".new")
        new.write_bytes(pickle.dumps(made))
        new.replace(KEPT)
        return made


def _made() -> dict[str, Case]:
    found = {}
    with warnings.catch_warnings():  # NumPy's, of the overflows that the cases are about
        warnings.simplefilter("ignore")
        for kind in KINDS:
            for source in sorted(loader.load_model_tests(kind=kind), key=lambda source: source.name):
                name = source.name if kind == "node" else f"{kind}/{source.name}"
                found[name] = Case(name, source.rtol, source.atol, source)
    return found


def read_list(name: str) -> dict[str, dict[str, str]]:
    """A list of `expect/`: reasons by the names of the cases, in a table for each of the engine's versions; "" is for all."""
    entries: dict[str, Any] = tomllib.loads((EXPECT / f"{name}.toml").read_text(encoding="utf-8"))
    tables = {key: entry for key, entry in entries.items() if isinstance(entry, dict)}
    return {"": {key: entry for key, entry in entries.items() if key not in tables}, **tables}


def is_installed(versions: str) -> bool:
    """Whether the engine is of such a version: "onnxruntime<1.32", or "" for any."""
    return not versions or Requirement(versions).specifier.contains(onnxruntime.__version__, prereleases=True)


def merged(tables: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """The tables of a list that hold for the installed engine, as one."""
    return {name: reason for key, table in tables.items() if is_installed(key) for name, reason in table.items()}


@cache
def expected(name: str) -> dict[str, str]:
    """A list of `expect/` for the installed engine, by the names of the cases."""
    return merged(read_list(name))


@cache
def context(backend: str = "onnxruntime") -> ow.MLContext:
    """The context that cases run in."""
    return ow.ml.create_context(device="cpu", backend=backend)


def run(case: Case, backend: str = "onnxruntime") -> list[TracedNode]:
    """Run a case several times, and return the nodes that fell back at first.

    Raises:
        AssertionError: something else comes out than ONNX says, of the first run or of one behind a run with other floats.
    """
    model, sets = case.load()
    onnxruntime.set_seed(0)  # or random numbers are now and then those that a case happens to expect
    session = InferenceSession(model, context(backend), specialise="always")
    assert sets
    steps: dict[int, TracedNode] = {}
    for inputs, outputs in sets:
        names = [argument.name for argument in session.get_inputs()]
        assert len(inputs) == len(names), f"the case has {len(inputs)} values for the inputs {names}"
        feed = dict(zip(names, inputs, strict=True))
        got = session.run(None, feed)
        for compiled in compiled_models(session):
            for segment in compiled.sections:
                if segment.kind == "fallback":
                    steps |= {id(step): step for step in segment.nodes}
        run_with_other_floats(session, feed)
        for results in (got, session.run(None, feed)):
            check(results, outputs, case.rtol, max(case.atol, transform_rounding(model, inputs)))
    return list(steps.values())


def transform_rounding(model: onnx.ModelProto, inputs: Sequence[Any]) -> float:
    """How far a Fourier transform in float32 may be off; 0 for other models.

    Each result is a sum of n products, which is rounded at most n times; so are the products and their factors, about four
    times altogether. Each time that is half a unit in the last place of what the magnitudes sum up to, however near to zero
    the result is: with a tolerance relative to the result, whether a zero comes out well enough is up to the machine.
    """
    (node, *others) = model.graph.node
    if others or node.op_type not in ("DFT", "STFT"):
        return 0.0
    signal = np.linalg.norm(inputs[0].astype(np.float64), axis=-1)  # real or complex: the last axis has the parts
    attributes = {a.name: a.i for a in node.attribute}
    given = dict(zip((value.name for value in model.graph.input), inputs, strict=True))
    if node.op_type == "STFT":
        names = [*node.input, ""]
        length = len(given[names[2]]) if names[2] else int(given[names[3]])
        return (length + 4) * UNIT * np.lib.stride_tricks.sliding_window_view(signal, length, axis=1).sum(-1).max()
    axis = int(given[node.input[2]]) if len(node.input) > 2 else attributes.get("axis", 1)
    total, terms = signal.sum(axis if axis >= 0 else axis + 1).max(), signal.shape[axis if axis >= 0 else axis + 1]
    if not attributes.get("inverse"):
        return (terms + 4) * UNIT * total
    if attributes.get("onesided"):  # the other half is the conjugate of this one
        terms, total = 2 * (terms - 1), 2 * total
    return (terms + 4) * UNIT * total / terms


def check(got: Any, wanted: Any, rtol: float, atol: float, where: str = "outputs") -> None:
    """Assert that two values are of one kind, type and shape, and equal within the tolerance."""
    if wanted is None:
        assert got is None, f"{where}: {got!r} instead of nothing"
    elif isinstance(wanted, (list, tuple)):
        assert isinstance(got, (list, tuple)), f"{where}: {type(got).__name__} instead of a sequence"
        assert len(got) == len(wanted), f"{where}: {len(got)} values instead of {len(wanted)}"
        for k, (a, b) in enumerate(zip(got, wanted, strict=True)):
            check(a, b, rtol, atol, f"{where}[{k}]")
    else:
        assert isinstance(got, np.ndarray), f"{where}: {type(got).__name__} instead of an array"
        assert got.shape == np.shape(wanted), f"{where}: {got.shape} instead of {np.shape(wanted)}"
        if wanted.dtype.kind in "OUS":
            assert got.dtype.kind in "OUS", f"{where}: {got.dtype} instead of strings"
            assert got.tolist() == wanted.tolist(), where
            return
        assert got.dtype == wanted.dtype, f"{where}: {got.dtype} instead of {wanted.dtype}"
        if wanted.dtype.kind == "c" or wanted.dtype.name in ("float64", "int64", "uint64"):
            np.testing.assert_allclose(got, wanted, rtol=rtol, atol=atol, err_msg=where)
            return
        if wanted.dtype.name == "bfloat16":
            rtol = max(rtol, 2**-6)  # two units in the last place, as in ONNX's own runner
        exact, reference = got.astype(np.float64), wanted.astype(np.float64)
        np.testing.assert_allclose(exact, reference, rtol=rtol, atol=atol, err_msg=where)


def _value(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else value


def _files(folder: Path, kind: str, values: Sequence[onnx.ValueInfoProto]) -> Sequence[onnx.ValueInfoProto]:
    """The inputs or outputs of which a data set has values: initializers have none."""
    return values[: len(list(folder.glob(f"{kind}_*.pb")))]


def _stored(path: Path, info: onnx.ValueInfoProto) -> Any:
    data = path.read_bytes()
    match info.type.WhichOneof("value"):
        case "sequence_type":
            return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
        case "optional_type":
            return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(TensorProto.FromString(data))
