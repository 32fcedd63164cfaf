"""Optional packages: find installed ones, and warn once of broken ones. `errors.import_extra` imports them."""

from __future__ import annotations

import os
import sys
import warnings
from importlib.util import find_spec

_told: set[str] = set()

_found: set[str] = set()
"""Packages that were found. They are not searched again: a search asks all places that Python imports from."""


def is_installed(module: str) -> bool:
    """Whether a package is installed, without importing it: it may still be broken.

    >>> is_installed("json"), is_installed("json.decoder"), is_installed("no_such_package.part")
    (True, True, False)
    """
    if module in sys.modules:
        return sys.modules[module] is not None
    if module in _found:
        return True
    try:
        name = module.partition(".")[0]
        if name != module and (spec := find_spec(name)) is not None and spec.submodule_search_locations is None:
            return bool(shadow(name))  # a module has no parts: finding one would run it
        spec = find_spec(module)
    except (ImportError, ValueError):  # a part of a package that is not there, or import hooks that block it
        return bool(shadow(module))
    if spec is None or spec.origin is None:  # a folder without modules
        return False
    _found.add(module)
    return True


NEEDED = {
    "fastapi": "FastAPI",
    "halide": "Func",
    "httptools": "HttpRequestParser",
    "llguidance": "LLMatcher",
    "ml_dtypes": "bfloat16",
    "numpy": "ndarray",
    "onnx": "ModelProto",
    "onnxruntime": "InferenceSession",
    "openvino": "Core",
    "prometheus_client": "CollectorRegistry",
    "ray": "remote",
    "rich": "get_console",
    "safetensors": "safe_open",
    "tokenizers": "Tokenizer",
    "typer": "Typer",
    "uvicorn": "Server",
    "wasmtime": "Engine",
    "wgpu": "gpu",
}
"""Package -> an attribute of its module. A module of that name without it is another one, or is not initialised."""


def shadow(module: str) -> str:
    """The file in the program's folder, or the current one, that Python imports instead of a package; empty if none.

    >>> shadow("numpy.linalg"), shadow("no_such_package")
    ('', '')
    """
    name = module.partition(".")[0]
    try:
        spec = getattr(sys.modules.get(name), "__spec__", None) or find_spec(name)
    except (ImportError, ValueError):
        return ""
    file = spec.origin if spec is not None and spec.has_location else None
    if not file:
        return ""
    folder = os.path.dirname(os.path.abspath(file))
    if spec is not None and spec.submodule_search_locations is not None:
        folder = os.path.dirname(folder)
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    own = {os.getcwd(), *([os.path.dirname(os.path.abspath(script))] if script else [])}
    is_own = os.path.realpath(folder) in map(os.path.realpath, own)
    # Folders of installed packages have their metadata; a program may run there.
    return (
        file if is_own and not any(entry.endswith((".dist-info", ".egg-info")) for entry in os.listdir(folder)) else ""
    )


def shadow_text(module: str) -> str:
    """The rest of a message about a package that a file shadows; empty if none does."""
    file, name = shadow(module), module.partition(".")[0]
    return f", but {file} shadows the package {name}: rename it" if file else ""


def shadowed_requirement() -> str:
    """The message for a file that shadows a package that Opweave needs; empty if there is none."""
    texts = ((name, shadow_text(name)) for name in REQUIRED if name in sys.modules)
    return next((f"opweave needs {name}{text}" for name, text in texts if text), "")


REQUIRED = ("ml_dtypes", "numpy", "onnx", "onnxruntime", "rich", "typer")
"""Packages that are installed with Opweave."""


def warn_once(fault: str) -> None:
    """Warn of a package's fault, once in a process, about the line of the user's program; do nothing if the text is empty."""
    if not fault or fault in _told:
        return
    _told.add(fault)
    frame, level = sys._getframe(), 1
    while (
        frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == __name__.partition(".")[0]
    ):
        frame, level = frame.f_back, level + 1
    warnings.warn(fault, RuntimeWarning, stacklevel=level)
