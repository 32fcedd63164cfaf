"""Rules of back ends, and tables of rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import RLock
from typing import TYPE_CHECKING, Any

from ..support.errors import require
from ..support.records import record
from .precision import Precision

if TYPE_CHECKING:
    from ..core.graph import Node
    from ..core.operation import Op

RuleFunction = Callable[..., Any]


@record
class Rule:
    """Implementation of one op by a back end.

    Attributes:
        function: called with the back end's arguments, and the op's parameters that the function names.
        when: predicate for nodes, of `precision` and the op's parameters that it names; None accepts all.
    """

    function: RuleFunction
    when: Callable[..., bool] | None

    def accepts(self, node: Node, precision: Precision) -> bool:
        if self.when is None:
            return True
        from ..core.operation import call_with

        return call_with(self.when, {"precision": precision, **node.inputs, **node.attributes})

    def __call__(self, provided: Sequence[Any], arguments: Mapping[str, Any]) -> Any:
        from ..core.operation import call_with

        return call_with(self.function, arguments, *provided)


class RuleTable:
    """The rules of a back end, or rules that several back ends share; `name` starts error messages."""

    name: str

    def __init__(self) -> None:
        self._rules: dict[Op[..., Any], list[Rule]] = {}
        # Copies of a back end share both.
        self._loading = _Loading(self.load)

    @property
    def rules(self) -> dict[Op[..., Any], list[Rule]]:
        """Rules by operation, in the order in which they are tried; loaded on first use."""
        if not self._loading.is_done:
            self._loading.run()
        return self._rules

    @rules.setter
    def rules(self, rules: dict[Op[..., Any], list[Rule]]) -> None:
        self._rules, self._loading = rules, _Loading()

    def load(self) -> None:
        """Import the modules that register rules, on first use. Most processes never load the rules of GPUs."""

    def lower(
        self, *ops: Op[..., Any], when: Callable[..., bool] | None = None
    ) -> Callable[[RuleFunction], RuleFunction]:
        """Register the decorated function as the rule of `ops`, tried after earlier ones.

        Raises:
            ValidationError: an op already has a rule for all nodes, so that no later rule would be tried.
        """

        def register(function: RuleFunction) -> RuleFunction:
            for op in ops:
                is_open = all(rule.when is not None for rule in self.rules.get(op, ()))
                require(is_open, f"{self.name}: {op.name} has a rule already")
                self.rules.setdefault(op, []).append(Rule(function, when))
            return function

        return register


class _Loading:
    """Run `load` once, in the first thread that asks; other threads wait. `load` may ask again in the same thread."""

    def __init__(self, load: Callable[[], None] | None = None) -> None:
        self.is_done, self._load, self._lock, self._is_running = load is None, load, RLock(), False

    def run(self) -> None:
        with self._lock:
            if self.is_done or self._is_running or self._load is None:
                return
            self._is_running = True
            try:
                self._load()
                self.is_done = True
            finally:
                self._is_running = False
