"""The protocols of kernels, and the node that a kernel is prepared for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from ..support.errors import MLError, OperationError, declaration_line, require, user_line

if TYPE_CHECKING:
    import numpy as np

    from ..core.graph import Desc
    from ..core.operation import Op
    from ..memory.spaces import Space

Descs: TypeAlias = "Desc | tuple[Desc, ...] | None"
Arrays: TypeAlias = "np.ndarray | tuple[np.ndarray, ...] | None"


# Not a record: type checkers take the operation of one for a method.
@dataclass(frozen=True, slots=True)
class KernelCall:
    """The node that a kernel is prepared for: operands and parameters by name; `title` starts every message."""

    title: str
    op: Op[..., Any]
    inputs: Mapping[str, Descs]
    attributes: Mapping[str, Any]
    outputs: tuple[Desc, ...]

    def check_names(self, names: Sequence[str], *more: str) -> None:
        """Require that a kernel takes only parameters of the operation, `out`, and `more`."""
        declared = [*self.inputs, *self.attributes, "out"]
        unknown = [name for name in names if name not in declared and name not in more]
        require(not unknown, f"{self.title}: the kernel takes {unknown}; the operation has {declared}")

    def error_of(self, error: Exception, function: Callable[..., Any]) -> OperationError:
        """Return the error to raise for an exception in a kernel, with the line in the file of a user's function."""
        if str(getattr(function, "__module__", "")).startswith("opweave."):
            return OperationError(f"{self.title}: {type(error).__name__}: {error}")
        message = str(error) if isinstance(error, MLError) else f"the kernel raised {type(error).__name__}: {error}"
        # Errors of a compiler have no line of the function.
        line = user_line(error, function) or declaration_line(function)
        return OperationError(f"{self.title}: {message}{line}")


def parameters_of(function: Callable[..., Any]) -> list[str]:
    """The parameter names of a user's kernel; `ValueError` if it has no signature, as some C functions."""
    parameters = inspect.signature(function).parameters.values()
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    fits = all(parameter.kind in named for parameter in parameters)
    require(fits, f"a kernel takes the operation's parameters and out, got ({', '.join(map(str, parameters))})")
    return [parameter.name for parameter in parameters]


class PreparedKernel(Protocol):
    """A kernel prepared for one node."""

    @property
    def space(self) -> Space:
        """Memory space that operands and results must be in."""

    @property
    def detail(self) -> str:
        """A description for `explain()`."""

    def bind(self, inputs: Mapping[str, Arrays], outputs: Sequence[np.ndarray]) -> Callable[[], None]:
        """Return a function that runs the kernel once, synchronously, on arrays of the declared data types and shapes."""


class Kernel(Protocol):
    """An implementation of an operation for a device."""

    def prepare(self, call: KernelCall) -> PreparedKernel:
        """Prepare the kernel for a node; error messages start with `call.title`."""
