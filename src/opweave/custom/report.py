"""The result of checking an operation without a device."""

from __future__ import annotations

from dataclasses import dataclass

from ..support.errors import MLError
from ..support.names import count_of


@dataclass(frozen=True, slots=True)
class KernelCheck:
    """The check of one kernel, expression or decomposition.

    Attributes:
        kind: the device of a kernel, "expression" or "decomposition".
        done: description of a check that succeeded: "compiled for sm_80, sm_90"; else empty.
        checker: the compilers with their versions.
        operands: data types and shapes of the calls that were checked.
        warnings: the compiler's warnings.
        fault: the error in the source; None if there is none.
        obstacle: the reason why nothing was checked, such as a missing package; None if the check ran.
    """

    kind: str
    done: str = ""
    checker: str = ""
    operands: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    fault: MLError | None = None
    obstacle: MLError | None = None

    @property
    def result(self) -> str:
        """The result in a line."""
        if self.fault is not None:
            return str(self.fault).partition("\n")[0]
        if self.obstacle is not None:
            return f"not checked: {self.obstacle}"
        warnings = f", {count_of(len(self.warnings), 'warning')}" if self.warnings else ""
        return f"{self.done}{warnings}"

    def __str__(self) -> str:
        by = f" by {self.checker}" if self.checker and self.done else ""
        operands = f" ({'; '.join(self.operands)})" if self.done else ""
        warnings = f", {count_of(len(self.warnings), 'warning')}" if self.warnings else ""
        first = f"{self.kind}: {self.done}{by}{operands}{warnings}" if self.done else f"{self.kind}: {self.result}"
        return "\n".join([first, *self.warnings])


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The checks of an operation, as `op.check` returns them; `print(report)` shows a line for each, and warnings.

    Attributes:
        checks: one for each kernel, and for the expression or decomposition.
    """

    checks: tuple[KernelCheck, ...]

    def __str__(self) -> str:
        return "\n".join(map(str, self.checks))
