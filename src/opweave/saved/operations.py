"""Names of operations in files.

Operations of WebNN are `webnn:NAME`; others are named by their module. An untrusted file must not import a third-party module:
unless the file is trusted, the module must have been imported before.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from typing import Any

from ..core.operation import Op
from ..ops import Operations
from ..support.errors import DataError, MLError, NotSupportedError, cause_text
from ..support.names import short_repr

PACKAGE = __name__.partition(".")[0]

ROOMS = ("ops", "composites")
"""Rooms whose modules declare operations. They are imported for untrusted files, too."""

STANDARD = "webnn"


def standard_operations() -> dict[str, Op[..., Any]]:
    """The operations of WebNN and its drafts, by name."""
    return Operations.listing() | Operations.drafts()


def reference_of(op: Op[..., Any]) -> str:
    """The name by which `find_operation` finds an operation; empty if there is none.

    >>> from opweave import composites, ops
    >>> reference_of(ops.conv2d), reference_of(composites.quick_gelu)
    ('webnn:conv2d', 'opweave.composites.activation:quick_gelu')
    """
    if standard_operations().get(op.name) is op:
        return f"{STANDARD}:{op.name}"
    module, name = str(op.__module__), op.__qualname__
    return f"{module}:{name}" if module in sys.modules and _attribute(sys.modules[module], name) is op else ""


def _attribute(module: Any, name: str) -> Any:
    """An attribute by its dotted name, without running code of modules and classes; None if there is none."""
    value = module
    for part in name.split("."):
        try:
            value = vars(value).get(part)
        except TypeError:  # an object without attributes
            return None
    return value


def find_operation(reference: str, path: str, may_import: bool) -> Op[..., Any]:
    """The operation of a name in the file `path`.

    Raises:
        DataError: this is no name of an operation.
        NotSupportedError: its module has not been imported, or has no such operation.
    """
    module, _, name = reference.partition(":")
    if module == STANDARD:
        op = vars(Operations).get(name)
        if not isinstance(op, Op):
            raise NotSupportedError(f"{path}: WebNN has no operation {short_repr(name)} in this version of Opweave")
        return op
    value = _find(module, name, path, may_import)
    if not isinstance(value, Op) or value.__qualname__ != name:
        raise NotSupportedError(f"{path}: it needs the operation {short_repr(name)}, which the module {module} lacks")
    return value


def _find(module: str, name: str, path: str, may_import: bool) -> Any:
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", module) or not name:
        raise DataError(f"{path}: it is damaged: {short_repr(f'{module}:{name}')} names no operation")
    own = re.fullmatch(rf"{PACKAGE}\.({'|'.join(ROOMS)})\.\w+", module)
    if module not in sys.modules and (own or may_import):
        try:
            import_module(module)
        except MLError:
            raise
        except Exception as error:  # whatever a module of the user raises
            raise NotSupportedError(
                f"{path}: it needs {short_repr(name)} of the module {module}, which cannot be imported: {cause_text(error)}"
            ) from error
    if module not in sys.modules:
        raise NotSupportedError(
            f"{path}: it needs the operation {short_repr(name)} of the module {module}; import this module before, or pass "
            f"trusted=True if you trust the file, which imports the module (on the command line, --operations {module})"
        )
    return _attribute(sys.modules[module], name)
