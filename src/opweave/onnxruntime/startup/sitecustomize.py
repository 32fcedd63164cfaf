"""Replace ONNX Runtime by Opweave when the program first imports it.

Python imports this file when it starts, if this folder is on `PYTHONPATH` (`opweave exec`). Nothing of Opweave is imported
before `onnxruntime` is. `OPWEAVE_REPLACE_ONNXRUNTIME=0` switches the replacement off.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # importing `typing` takes milliseconds of each process
if TYPE_CHECKING:
    from typing import Any

NAME = "onnxruntime"


class ReplacingFinder:
    """Finds `onnxruntime` by the other finders, and starts the replacement when the module has been executed."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The spec of `onnxruntime`, whose loader also starts the replacement; None for all other modules."""
        if name != NAME:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        # Without a location, the spec is that of a folder with this name, which is no module.
        if spec is not None and spec.has_location:
            self._start_after(spec.loader)
        return spec

    def _start_after(self, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            replacement = replacement_of_environment()
            execute(module)
            del loader.exec_module
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                if replacement is not None:
                    replacement.start()

        loader.exec_module = exec_module


def replacement_of_environment() -> Any:
    """The replacement that the environment describes; None, with a warning, if this Python has no Opweave."""
    try:
        from opweave.onnx.session.environment import replacement
    except ImportError as error:
        import warnings

        text = f"onnxruntime is not replaced by Opweave in this process: {error}"
        warnings.warn(text, RuntimeWarning, stacklevel=1)
        return None
    return replacement()


def start() -> None:
    """Install the finder, or replace `onnxruntime` now if a `.pth` file has imported it."""
    if NAME not in sys.modules:
        sys.meta_path.insert(0, ReplacingFinder())
    elif (replacement := replacement_of_environment()) is not None:
        replacement.start()


def run_next() -> None:
    """Remove this folder from `sys.path`, and run the `sitecustomize` that this one hides."""
    own = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != own]
    this = sys.modules.pop(__name__)
    try:
        __import__("sitecustomize")
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules[__name__] = this


if __name__ == "sitecustomize":  # and not a module of the package
    if os.environ.get("OPWEAVE_REPLACE_ONNXRUNTIME", "").strip() != "0":
        start()
    run_next()
