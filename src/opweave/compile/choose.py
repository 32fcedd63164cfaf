"""Choose how to run a node: candidates in order of preference, each with the reason why it does not apply.

The order is the same on all devices: the back end's own rule, the user's kernel for the device, the expression, the
decomposition, and the host for operations that a device lacks. On the host, a back end may name another one as its stand-in.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Literal

from ..backends import Backend
from ..core.graph import Node
from ..expr import kernels, limits
from ..kernels.expression import descs_of, program_of
from ..support.errors import NotSupportedError
from ..support.processors import processors
from .winners import wins

HOST_KERNELS = ("cpu", "wasm")
"""The devices of users' kernels that run on the host, the preferred one first."""

EXPRESSION = "expression"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to run a node; `why_not` is empty if it applies.

    Nodes of one `kind` may run together. None is a decomposition, whose nodes are chosen one by one.
    """

    kind: Hashable
    why_not: str = ""


class Chooser:
    """Chooses how to run the nodes of a graph.

    Args:
        host: the host's back end; `backend` itself if that runs on the host.
        stand_in: the host's back end for what `host` cannot run in any way; None if there is none.
        fallback: whether the host runs operations that the device lacks, or they are errors.

    Attributes:
        taken: nodes that run in compiled loops though an engine could run them.
    """

    def __init__(
        self, backend: Backend, device: str, host: Backend, stand_in: Backend | None, fallback: Literal["auto", "error"]
    ) -> None:
        self.backend, self.device, self.host, self.stand_in = backend, device, host, stand_in
        self.fallback = fallback
        self.engine: kernels.Engine = host.expressions
        self.taken: set[Node] = set()
        self._kinds: dict[Node, Hashable] = {}  # without regard to `taken`

    def candidates(self, node: Node) -> Iterator[Candidate]:
        """All ways to run a node, the preferred one first."""
        backend = self.backend
        if backend is self.host:
            yield from self._host_candidates(node)
            return
        reason = backend.why_not(node)
        yield Candidate(backend.name, "" if reason == "" else reason or "there is no kernel")
        obstacle = "" if reason is None else "its parts would have the same data types"
        if node.op.decomposition is not None:
            yield Candidate(None, obstacle)
        yield from self._host_candidates(node)

    def _host_candidates(self, node: Node) -> Iterator[Candidate]:
        op = node.op
        refusal = self.host.why_not(node)
        yield Candidate(self.host.name, f"{self.host.name} has no rule for it" if refusal is None else refusal)
        if any(device in op.kernels for device in HOST_KERNELS):
            yield Candidate(node.serial)  # kernels stand alone
        if op.formula is not None and not op.is_alternative:
            yield Candidate(EXPRESSION, self._why_no_loop(node))
        if op.decomposition is not None:
            yield Candidate(None)
        if self.stand_in is not None:
            other = self.stand_in
            yield Candidate(other.name, "" if other.supports(node) else f"{other.name} has no rule for it")

    def _why_no_loop(self, node: Node) -> str:
        """The reason not to compile an expression: without a compiler, an engine's kernels for its parts beat NumPy."""
        if self.engine == "numpy" or kernels.is_compiled() or node.op.decomposition is None:
            return ""
        from ..expr.decompose import refusal

        formula = (node.op, descs_of(node.inputs), node.attributes)
        has_parts = not node.op.is_derived or refusal(program_of(*formula)) is None
        return "no compiler is installed, and the engine has kernels for its parts" if has_parts else ""

    def choose(self, node: Node) -> Candidate | None:
        """Return the first candidate that applies; None if there is none.

        Raises:
            NotSupportedError: the device cannot run it, and the host must not or cannot, either.
        """
        reasons: list[str] = []
        for candidate in self.candidates(node):
            if not candidate.why_not:
                if self.fallback == "error" and reasons and not self._is_here(node, candidate):
                    raise NotSupportedError(
                        f"{node.title}: {self.device} cannot run it ({reasons[0]}), and fallback is 'error'"
                    )
                return candidate
            reasons.append(candidate.why_not)
        if self.reason(node):
            raise NotSupportedError(
                f"{node.title}: {self.device} cannot run it ({reasons[0]}), and there is no kernel for the host either"
            )
        return None

    def _is_here(self, node: Node, candidate: Candidate) -> bool:
        is_host = self.backend is self.host and not self.reason(node)
        return is_host or candidate.kind in (None, self.backend.name)

    def reason(self, node: Node) -> str:
        """The reason why the device cannot run a node; empty if it can run the node or its parts."""
        return "" if self._kinds.get(node) == self.backend.name else self.backend.why_not(node) or ""

    def kind(self, node: Node) -> Hashable:
        """The kind of a node; None if the node is decomposed."""
        if node in self.taken:
            return EXPRESSION
        if node not in self._kinds:
            chosen = self.choose(node)
            self._kinds[node] = None if chosen is None else chosen.kind
        return self._kinds[node]

    @property
    def threads(self) -> int:
        """Number of threads that an operation on the host may use."""
        return self.host.threads or processors()

    # Loops ---------------------------------------------------------------------------------------------------------------

    def could_be_loop(self, node: Node) -> bool:
        """Whether the engine of the host runs a node that could be a compiled loop."""
        return node.op.formula is not None and self.kind(node) == self.host.name

    def wins(self, node: Node) -> bool:
        """Whether a compiled loop for a node is faster than the kernel of the host's engine."""
        return wins(node, self.host.name) and self.could_be_loop(node)

    @staticmethod
    def is_pointwise(node: Node) -> bool:
        """Whether the expression of a node reads its operands at the index that it writes."""
        return program_of(node.op, descs_of(node.inputs), node.attributes).is_pointwise

    def is_expression(self, node: Node) -> bool:
        """Whether a node runs in a compiled loop."""
        return self.kind(node) == EXPRESSION

    @staticmethod
    def may_fit(producer: Node, consumer: Node) -> bool:
        """Whether the shapes of two expressions allow that they become one loop."""
        return len(consumer.outputs) == 1 and any(consumer.outputs[0].shape == o.shape for o in producer.outputs)

    @staticmethod
    def fits(producer: Node, consumer: Node) -> bool:
        """Whether two expressions become one loop: `consumer` reads the result of `producer` at the index that it writes."""
        return Chooser.may_fit(producer, consumer) and Chooser.is_pointwise(consumer)

    @staticmethod
    def work(node: Node) -> int:
        """The cost of compiling an expression, in units of the limit."""
        return limits.work_of_elements(program_of(node.op, descs_of(node.inputs), node.attributes))
