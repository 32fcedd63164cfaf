"""Rules of back ends, and the tables that hold them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import RLock
from typing import TYPE_CHECKING, Any

from ..core.graph import Node
from ..support.errors import require
from ..support.records import record
from .precision import Precision

if TYPE_CHECKING:
    from ..core.operation import Op

RuleFunction = Callable[..., Any]


@record
class Rule:
    """How a back end does one op.

    Attributes:
        function: called with what the back end provides, and the op's parameters it names.
        when: which nodes it accepts, by the op's parameters it names, and `precision`; None for all.
    """

    function: RuleFunction
    when: Callable[..., bool] | None

    def accepts(self, node: Node, precision: Precision) -> bool:
        """Whether this rule can do `node`."""
        if self.when is None:
            return True
        from ..core.operation import call_with

        return call_with(self.when, {"precision": precision, **node.inputs, **node.attributes})

    def __call__(self, provided: Sequence[Any], arguments: Mapping[str, Any]) -> Any:
        from ..core.operation import call_with

        return call_with(self.function, arguments, *provided)


class RuleTable:
    """The rules of a back end, or those that several share.

    Attributes:
        name: leads the messages of errors.
    """

    name: str

    def __init__(self) -> None:
        self._rules: dict[Op[..., Any], list[Rule]] = {}
        self._loading = _Loading(self.load)  # copies of a back end share both

    @property
    def rules(self) -> dict[Op[..., Any], list[Rule]]:
        """The rules by operation, in the order in which they are tried; they are loaded when they are first read."""
        if not self._loading.is_done:
            self._loading.run()
        return self._rules

    @rules.setter
    def rules(self, rules: dict[Op[..., Any], list[Rule]]) -> None:
        self._rules, self._loading = rules, _Loading()

    def load(self) -> None:
        """Import what adds rules when they are first read. Most processes do without those of GPUs."""

    def lower(
        self, *ops: Op[..., Any], when: Callable[..., bool] | None = None
    ) -> Callable[[RuleFunction], RuleFunction]:
        """Register the decorated function as the rule of `ops`, tried after those registered before.

        Raises:
            ValidationError: one of them has a rule for all nodes already, after which no other would be tried.
        """

        def register(function: RuleFunction) -> RuleFunction:
            for op in ops:
                is_open = all(rule.when is not None for rule in self.rules.get(op, ()))
                require(is_open, f"{self.name}: {op.name} has a rule already")
                self.rules.setdefault(op, []).append(Rule(function, when))
            return function

        return register


class _Loading:
    """Runs a function once, in the first thread that asks for it; the others wait.

    Args:
        load: the function, during which the thread may ask again; None for nothing.
    """

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


__all__ = ["Rule", "RuleFunction", "RuleTable"]
