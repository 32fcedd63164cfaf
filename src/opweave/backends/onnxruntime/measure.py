"""Measure the kernels of a session with the engine's profiler."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from ...core.graph import Desc
from ...support.errors import OperationError
from .. import KernelTime, Measured
from .emit import Emitter, Value
from .sessions import OrtSession

SUFFIX = "_kernel_time"
"""Name suffix of the profiler events that hold the duration of a kernel."""
MAX_FUSED_OPERATORS = 4
"""Number of operators to follow back from a fused kernel's result, to find the operator that the kernel is named after."""


class MeasuredOrtSession(OrtSession, Measured):
    """A session whose profiler writes the times of kernels into `folder`."""

    def __init__(self, folder: TemporaryDirectory[str], owners: Owners, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._folder, self._owners = folder, owners

    def finish(self) -> list[KernelTime]:
        """Return the kernels in the order of their execution, without the first run of each."""
        with self._folder:
            try:
                events = json.loads(Path(self._session.end_profiling()).read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise OperationError(f"ONNX Runtime's profiler gives no times: {error}") from None
        times: dict[tuple[str, str], list[int]] = {}
        about: dict[tuple[str, str], Mapping[str, Any]] = {}
        for event in events:
            if event.get("cat") == "Node" and event["name"].endswith(SUFFIX):
                key = event["name"].removesuffix(SUFFIX), str(event["args"].get("node_index"))
                times.setdefault(key, []).append(event["dur"])
                about[key] = event["args"]
        kernels = []
        for (name, index), measured in times.items():
            later = measured[1:] or measured
            arguments = about[name, index]
            shapes = ", ".join(
                f"{kind}{shape}" for output in arguments["output_type_shape"] for kind, shape in output.items()
            )
            kernel = arguments["op_name"]
            kernels.append(
                KernelTime(self._owners(name, kernel), kernel, shapes, median(later) / 1e6, min(later) / 1e6)
            )
        return kernels


class Owners:
    """Find the operations that a kernel computes. The engine names a kernel after its node, a fused one after its result."""

    def __init__(self, ctx: Emitter, outputs: Mapping[str, tuple[Value, Desc]]) -> None:
        self._nodes = {node.name: node for node in ctx.nodes}
        self._makers = {name: node for node in ctx.nodes for name in node.outputs}
        self._outputs = {name: value.name for name, (value, _) in outputs.items()}

    def __call__(self, name: str, kernel: str) -> str:
        """Return labels or names of operations; empty for a kernel that the engine added."""
        stem = name.removesuffix("_nchwc")  # suffix of convolutions in the engine's blocked layout
        node = self._nodes.get(stem) or self._makers.get(self._outputs.get(stem, stem))
        labels: list[str] = []
        while node is not None:
            labels.insert(0, node.name.rpartition("#")[0])
            if node.op_type in kernel or len(labels) == MAX_FUSED_OPERATORS:
                break
            node = self._makers.get(node.inputs[0]) if node.inputs else None
        if node is None or node.op_type not in kernel:
            labels = labels[-1:]
        return " + ".join(labels)


__all__ = ["MeasuredOrtSession", "Owners"]
