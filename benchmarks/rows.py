"""What the tables of docs/benchmarks.md are made of, and ONNX Runtime beside Opweave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from .budgets import BUDGETS, Budget
from .measure import Ratio, Way
from .page import yes

HEADER = ["what", "Opweave", "compared with", "which is", "ratio (quartiles)", "budget", "holds"]
SCALE = {"us": 1e6, "ms": 1e3, "MiB": 1.0}


@dataclass(frozen=True)
class Row:
    """One comparison.

    Attributes:
        what: what was measured.
        unit: of both values.
        ours: our value.
        theirs: the value that it is compared with; None where there is a budget only.
        against: whose value that is.
        ratio: of the values of pairs.
        budget: the limit that must hold.
    """

    what: str
    unit: str
    ours: float
    theirs: float | None
    against: str
    ratio: Ratio | None
    budget: Budget | None

    @classmethod
    def of(
        cls,
        what: str,
        unit: str,
        ours: Sequence[float],
        theirs: Sequence[float] = (),
        against: str = "",
        budget: str = "",
    ) -> Row:
        """A row of values in seconds, or MiB, that were measured in pairs.

        Args:
            what: what was measured.
            unit: "us", "ms" or "MiB".
            ours: our values.
            theirs: the values that they are compared with; none where there is a budget only.
            against: whose values those are.
            budget: the name of the budget, see `BUDGETS`; "" for none.
        """
        scale = SCALE[unit]
        ratio = Ratio.of(ours, theirs) if theirs else None
        beside = median(theirs) * scale if theirs else None
        return cls(what, unit, median(ours) * scale, beside, against, ratio, BUDGETS[budget] if budget else None)

    @property
    def holds(self) -> bool:
        return self.budget is None or self.budget.holds(ours=self.ours, theirs=self.theirs, ratio=self.ratio)

    def cells(self) -> list[str]:
        """The row as text, see `HEADER`."""
        theirs = "" if self.theirs is None else f"{self.theirs:.3g} {self.unit}"
        ratio, budget = str(self.ratio or ""), str(self.budget or "")
        return [self.what, f"{self.ours:.3g} {self.unit}", theirs, self.against, ratio, budget, yes(self.holds)]


def onnxruntime_session(model: Any, *, threads: int = 0) -> Any:
    """A session of ONNX Runtime on the CPU.

    Args:
        model: the path of a model, its bytes, or an `MLGraph`, which is exported.
        threads: how many it may use; 0 leaves that to it.
    """
    import onnxruntime

    import opweave as ow

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # it warns of constants that no node reads
    options.intra_op_num_threads = threads
    with TemporaryDirectory() as folder:
        if isinstance(model, ow.MLGraph):
            ow.onnx.save(model, Path(folder, "model.onnx"))
            model = Path(folder, "model.onnx")
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def bound(session: Any, feed: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]) -> Way:
    """A run of a session of ONNX Runtime on memory that is bound once."""
    from onnxruntime import OrtValue

    binding = session.io_binding()
    for name, array in feed.items():
        binding.bind_ortvalue_input(name, OrtValue.ortvalue_from_numpy(array))
    for name, array in outputs.items():
        binding.bind_ortvalue_output(name, OrtValue.ortvalue_from_numpy(array))
    binding.arrays = [*feed.values(), *outputs.values()]  # ONNX Runtime before 1.32 does not keep what is bound
    return lambda: session.run_with_iobinding(binding)


def dispatched(graph: Any, context: Any, feed: Mapping[str, np.ndarray]) -> tuple[Way, dict[str, Any]]:
    """A dispatch of a graph on tensors in the memory of its device, and the tensors that it writes."""
    inputs = {name: _tensor_of(context, array) for name, array in feed.items()}
    shapes = graph.compute_shapes({name: array.shape for name, array in feed.items()})
    outputs = {
        name: context.create_tensor(graph.outputs[name].data_type, shape, readable=True)
        for name, shape in shapes.items()
    }
    return lambda: context.dispatch(graph, inputs, outputs), outputs


def _tensor_of(context: Any, array: np.ndarray) -> Any:
    """A tensor with the elements of an array; on the host it has the memory of the array, which other engines read, too."""
    from opweave.memory.spaces import HOST

    if context.backend.space is HOST:
        return context.tensor_from(array)
    tensor = context.create_tensor(str(array.dtype), array.shape, writable=True)
    context.write_tensor(tensor, array)
    return tensor


def beside_onnxruntime(graph: Any, context: Any, feed: Mapping[str, np.ndarray]) -> dict[str, Way]:
    """The same graph in Opweave and in ONNX Runtime, both bound; their results agree."""
    ours, results = dispatched(graph, context, feed)
    expected = {name: np.zeros_like(tensor.numpy()) for name, tensor in results.items()}
    theirs = bound(onnxruntime_session(graph), feed, expected)
    ours()
    theirs()
    for name, tensor in results.items():
        np.testing.assert_allclose(tensor.numpy(), expected[name], rtol=1e-3, atol=1e-4)
    return {"ours": ours, "theirs": theirs}
