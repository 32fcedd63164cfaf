"""Base class of back ends that run kernels on GPUs."""

from __future__ import annotations

from abc import abstractmethod
from copy import copy
from typing import TYPE_CHECKING, Any

from ...core.dtypes import ANY, WIDENED, DataType
from ...core.graph import Graph, Node
from ...memory.spaces import ABSENT
from .. import Backend
from .table import gpu

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...core.operation import Op
    from ...expr.gpu import Features, GpuKernel
    from .contraction.kernels import Contraction
    from .contraction.tensor import TensorTile


class GpuBackend(Backend):
    """A back end for GPUs, with the shared rules and its own; `title` is its name in `explain()`."""

    title: str
    stores = frozenset(WIDENED)
    may_take_names = True
    folds_constants = False

    def load(self) -> None:
        from . import rules as rules  # the import fills the table

        self._rules.update((op, list(rules)) for op, rules in gpu.rules.items())

    def for_absent_device(self) -> Backend:
        variant = copy(self)
        variant.space = ABSENT
        return variant

    @property
    @abstractmethod
    def features(self) -> Features:
        """Features of the device. The registered instance has every feature that affects support."""

    def tile(self, contraction: Contraction) -> tuple[TensorTile, int]:
        """The tile of a contraction on tensor cores, and its split-K factor."""
        from .contraction.kernels import by_table

        return by_table(contraction)

    def tiles_in_use(self) -> str:
        """A text that identifies the measured tiles from which `tile` chooses; empty if there are none."""
        return ""

    def begin(self, kernels: Sequence[GpuKernel]) -> list[Any]:
        """Start to compile kernels while the graph is scheduled. The caller holds the result until all are scheduled."""
        return []

    def data_types(self, op: Op[..., Any], operand: str) -> tuple[DataType, ...] | None:
        if self.features.int64:
            return None
        return tuple(t for t in ANY if t not in ("int64", "uint64"))

    def why_not(self, node: Node) -> str | None:
        from .forms import refusal_of

        return refusal_of(node, self, self.features)

    def saved_refusals(self, graph: Graph) -> dict[Node, str | None]:
        from .plan_keys import saved_refusals

        return saved_refusals(graph, self)

    def refusals_part(self, graph: Graph, refusals: Mapping[Node, str | None]) -> dict[tuple[str, str], bytes]:
        from .plan_keys import refusals_part

        return refusals_part(graph, self, refusals)

    def supports(self, node: Node) -> bool:
        return self.why_not(node) == ""

    def gains_from_narrow(self, node: Node) -> bool:
        """Whether a kernel reads the packed numbers of `node`, which are a fraction of the bytes of the matrix."""
        return self.supports(node)
