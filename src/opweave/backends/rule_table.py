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

OPERATIONS = {
    f"opweave.ops.{name}": name
    for name in (
        *("activation", "convolution", "elementwise", "indexing", "logical", "matrix", "movement", "normalization"),
        *("pooling", "quantization", "recurrent", "reduction"),
    )
}
"""Modules of rules for the specification's operations by the module that declares these, in back ends that name them alike."""


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
        self._of_composites: dict[str, list[Rule]] = {}
        # Copies of a back end share the rules and their loading.
        self._loading = _Loading(self.load, self.load_for)

    @property
    def rules(self) -> dict[Op[..., Any], list[Rule]]:
        """Rules by operation, in the order in which they are tried; loaded on first use."""
        if not self._loading.is_done:
            self._loading.run()
        from .. import composites  # imported late, because most graphs have none

        for name in self._of_composites:
            self._rules_so_far(getattr(composites, name))
        return self._rules

    @rules.setter
    def rules(self, rules: dict[Op[..., Any], list[Rule]]) -> None:
        self._rules, self._of_composites, self._loading = rules, {}, _Loading()

    def rules_of(self, op: Op[..., Any]) -> Sequence[Rule]:
        """The rules of an operation, in the order in which they are tried; loaded on first use, with those of its module."""
        loading = self._loading
        if not (loading.is_done or op.__module__ in loading.modules):
            loading.run(op.__module__)
        return self._rules_so_far(op)

    def _rules_so_far(self, op: Op[..., Any] | str) -> Sequence[Rule]:
        """The rules of an operation, or of a composite of this name, that are registered so far."""
        if isinstance(op, str):
            return self._of_composites.get(op, ())
        rules = self._rules.get(op)
        if rules is None and op.name in self._of_composites:
            from ..composites import is_composite

            if is_composite(op, op.name):  # users' operations may have the same name
                rules = self._rules[op] = self._of_composites[op.name]
        return rules or ()

    def load(self) -> None:
        """Import the modules that register rules, on first use. Most processes never load the rules of GPUs."""

    def load_for(self, module: str) -> None:
        """Import the modules that register rules of operations that `module` declares; by default, all."""
        self._loading.run()

    def lower(
        self, *ops: Op[..., Any] | str, when: Callable[..., bool] | None = None
    ) -> Callable[[RuleFunction], RuleFunction]:
        """Register the decorated function as the rule of `ops`, tried after earlier ones.

        A text is the name of a composite, whose module is not imported then. All rules of a back end for a composite are
        registered in one of the two ways.

        Raises:
            ValidationError: an op already has a rule for all nodes, so that no later rule would be tried.
        """

        def register(function: RuleFunction) -> RuleFunction:
            for op in ops:
                rules = self._rules_so_far(op) if isinstance(op, str) else self.rules_of(op)
                name = op if isinstance(op, str) else op.name
                is_open = all(rule.when is not None for rule in rules)
                require(is_open, f"{self.name}: {name} has a rule already")
                if isinstance(op, str):
                    self._of_composites.setdefault(op, []).append(Rule(function, when))
                elif rules:
                    self._rules[op].append(Rule(function, when))
                else:
                    self._rules[op] = [Rule(function, when)]
            return function

        return register


class _Loading:
    """Run `load` once, and `load_for` once for each module, in the first thread that asks; other threads wait.

    Both may call `run` again in the same thread.

    Attributes:
        is_done: whether all rules are loaded.
        modules: the modules of operations whose rules are loaded. Those that an import loads within another are added
            when the outermost ends: a file of rules serves several modules of operations, and may be half imported.
    """

    def __init__(self, load: Callable[[], None] | None = None, load_for: Callable[[str], None] | None = None) -> None:
        self.is_done, self._load, self._load_for, self._lock = load is None, load, load_for, RLock()
        self.modules: set[str] = set()
        self._running: set[str | None] = set()
        self._inner: set[str] = set()

    def run(self, module: str | None = None) -> None:
        with self._lock:
            if self.is_done or module in self.modules | self._inner or not self._running.isdisjoint({module, None}):
                return
            self._running.add(module)
            try:
                if module is None and self._load is not None:
                    self._load()
                    self.is_done = True
                elif module is not None and self._load_for is not None:
                    self._load_for(module)
                    self._inner.add(module)
                if len(self._running) == 1:
                    self.modules |= self._inner
            finally:
                self._running.discard(module)
                if not self._running:
                    self._inner.clear()
