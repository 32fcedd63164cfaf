"""Choose how to run a node: candidates in order of preference, each with the reason why it does not apply.

The order is the same on all devices: the back end's own rule, the user's kernel for the device, the expression, the
decomposition, and the host for operations that a device lacks. On the host, a back end may name another one as its stand-in.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Literal

from ..backends import Backend
from ..core.graph import Node
from ..expr import kernels
from ..support.errors import NotSupportedError
from ..support.records import record
from .loops import EXPRESSION, formula_of
from .widen import may_widen, wide_decomposition

HOST_KERNELS = ("cpu", "wasm")
"""The devices of users' kernels that run on the host, the preferred one first."""


@record(eq=True)
class Implementation:
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
        refusals: cached results of `Backend.why_not` by node; new results are added.
        type_stand_ins: the host's back ends for data types beyond the specification that `host` lacks, in order.
        fallback: whether the host runs operations that the device lacks, or they are errors.
    """

    def __init__(
        self,
        backend: Backend,
        device: str,
        host: Backend,
        stand_in: Backend | None,
        fallback: Literal["auto", "error"],
        type_stand_ins: Sequence[Backend] = (),
        refusals: dict[Node, str | None] | None = None,
    ) -> None:
        self.refusals = {} if refusals is None else refusals
        self._type_stand_ins = type_stand_ins
        self._backend, self._device, self._host, self._stand_in = backend, device, host, stand_in
        self._fallback = fallback
        self._kinds: dict[Node, Hashable] = {}

    def candidates(self, node: Node) -> Iterator[Implementation]:
        """All ways to run a node, the preferred one first."""
        backend = self._backend
        if node.op.bodies:  # the device repeats the body, whatever the data types are
            yield Implementation(backend.name, "" if backend.supports(node) else "there is no kernel")
            yield Implementation(node.serial)
            return
        if backend is self._host:
            yield from self._host_candidates(node)
            return
        reason = self._refusal(node)
        yield Implementation(backend.name, "" if reason == "" else reason or "there is no kernel")
        obstacle = "" if reason is None else "its parts would have the same data types"
        if may_widen(node, backend):
            yield Implementation(None)
        elif node.op.decomposition is not None:
            yield Implementation(None, obstacle)
        yield from self._host_candidates(node)

    def _host_candidates(self, node: Node) -> Iterator[Implementation]:
        op = node.op
        refusal = self._host.why_not(node)
        yield Implementation(self._host.name, f"{self._host.name} has no rule for it" if refusal is None else refusal)
        if any(device in op.kernels for device in HOST_KERNELS):
            yield Implementation(node.serial)  # kernels stand alone
        if node.has_further_types:
            for other in self._type_stand_ins:
                yield Implementation(other.name, "" if other.supports(node) else f"{other.name} has no rule for it")
            if op.decomposition is not None and not op.is_derived:
                yield Implementation(None)
            return
        if op.formula is not None and not op.is_alternative:
            yield Implementation(EXPRESSION, self._why_no_loop(node))
        if op.decomposition is not None:
            yield Implementation(None)
        if self._stand_in is not None:
            other = self._stand_in
            yield Implementation(other.name, "" if other.supports(node) else f"{other.name} has no rule for it")

    def _why_no_loop(self, node: Node) -> str:
        """The reason not to compile an expression: without a compiler, an engine's kernels for its parts beat NumPy."""
        if self._host.expressions == "numpy" or kernels.is_compiled() or node.op.decomposition is None:
            return ""
        from ..expr.decompose import is_slow, refusal

        has_parts = not node.op.is_derived
        if not has_parts:
            formula = formula_of(node)
            has_parts = refusal(formula) is None and not is_slow(formula)
        return "no compiler is installed, and the engine has kernels for its parts" if has_parts else ""

    def decomposition_of(self, node: Node) -> Callable[..., Any] | None:
        """The function that replaces a node of kind None."""
        is_on_device = self._backend is not self._host
        return wide_decomposition(node) if is_on_device and may_widen(node, self._backend) else node.op.decomposition

    def choose(self, node: Node) -> Implementation | None:
        """Return the first candidate that applies; None if there is none.

        Raises:
            NotSupportedError: the device cannot run it, and the host must not or cannot, either.
        """
        reasons: list[str] = []
        for candidate in self.candidates(node):
            if not candidate.why_not:
                if self._fallback == "error" and reasons and not self._is_here(node, candidate):
                    raise NotSupportedError(
                        f"{node.title}: {self._device} cannot run it ({reasons[0]}), and fallback is 'error'"
                    )
                return candidate
            reasons.append(candidate.why_not)
        if self.reason(node):
            raise NotSupportedError(
                f"{node.title}: {self._device} cannot run it ({reasons[0]}), and there is no kernel for the host either"
            )
        return None

    def _is_here(self, node: Node, candidate: Implementation) -> bool:
        is_host = self._backend is self._host and not self.reason(node)
        return is_host or node.op.is_of_host or bool(node.op.bodies) or candidate.kind in (None, self._backend.name)

    def reason(self, node: Node) -> str:
        """The reason why the device cannot run a node; empty if it can run the node or its parts."""
        if node.op.bodies or (self._backend is not self._host and may_widen(node, self._backend)):
            return ""
        return "" if self._kinds.get(node) == self._backend.name else self._refusal(node) or ""

    def _refusal(self, node: Node) -> str | None:
        if node not in self.refusals:
            self.refusals[node] = self._backend.why_not(node)
        return self.refusals[node]

    def kinds(self, nodes: Iterable[Node]) -> dict[Node, Hashable]:
        """The kind of each node."""
        return {node: self.kind(node) for node in nodes}

    def kind(self, node: Node) -> Hashable:
        """The kind of a node; None if the node is decomposed."""
        if node not in self._kinds:
            chosen = self.choose(node)
            self._kinds[node] = None if chosen is None else chosen.kind
        return self._kinds[node]
