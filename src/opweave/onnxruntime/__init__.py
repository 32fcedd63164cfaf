"""ONNX Runtime's module with Opweave's sessions: `import opweave.onnxruntime as ort`.

It has all names and submodules of the `onnxruntime` that is installed. These are Opweave's: `InferenceSession`, `IOBinding`,
`get_available_providers` and `get_device`, as within `opweave.onnx.replacing_onnxruntime()`. `SessionOptions`, `RunOptions`
and `LoraAdapter` derive from ONNX Runtime's classes; all other names are the same objects.

>>> import numpy as np, opweave as ow, opweave.onnxruntime as ort
>>> from onnx.parser import parse_model
>>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = Relu(x) }'
>>> session = ort.InferenceSession(parse_model(text).SerializeToString())
>>> session.run(None, {"x": np.float32([-1, 2])})[0].tolist()
[0.0, 2.0]
>>> isinstance(session, ow.InferenceSession)
True
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from typing import Any

import onnxruntime

from ..onnx.ort_api.adapters import RECORDED
from ..onnx.ort_api.options import UNREADABLE, available_providers, get_device, record_calls
from ..onnx.session.replaced import ReplacedSession
from ..onnx.session.replaced_binding import ReplacedBinding


def _recording(name: str) -> type:
    """Derive a class of options that records the calls whose effect cannot be read back."""
    cls = getattr(onnxruntime, name)
    methods = {method: record_calls(method, getattr(cls, method)) for method in UNREADABLE.get(name, ())}
    if name in RECORDED:
        method, record = RECORDED[name]
        methods[method] = record(getattr(cls, method))
    return type(name, (cls,), {"__module__": __name__, "__doc__": cls.__doc__, **methods})


_OWN = {
    "IOBinding": ReplacedBinding,
    "InferenceSession": ReplacedSession,
    "LoraAdapter": _recording("LoraAdapter"),
    "RunOptions": _recording("RunOptions"),
    "SessionOptions": _recording("SessionOptions"),
    "get_available_providers": available_providers,
    "get_device": get_device,
}
_MACHINERY = (
    "__builtins__",
    "__cached__",
    "__doc__",
    "__file__",
    "__loader__",
    "__name__",
    "__package__",
    "__path__",
    "__spec__",
)
globals().update({name: value for name, value in vars(onnxruntime).items() if name not in _MACHINERY} | _OWN)
__all__ = [name for name in dir(onnxruntime) if not name.startswith("_")]


def __getattr__(name: str) -> Any:
    return getattr(onnxruntime, name)


def __dir__() -> list[str]:
    return dir(onnxruntime)


def _original(name: str) -> str:
    return f"onnxruntime{name.removeprefix(__name__)}"


class _Submodules:
    """Finds `opweave.onnxruntime.capi…` and all other submodules: those of `onnxruntime`, as the same objects."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The spec of a submodule; None for modules that are not below this package, or are its own."""
        if not name.startswith(f"{__name__}.") or name.startswith(f"{__name__}.startup"):
            return None
        return ModuleSpec(name, self) if find_spec(_original(name)) else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Let the import system make an empty module, which `exec_module` replaces."""

    def exec_module(self, module: Any) -> None:
        """Put ONNX Runtime's module into the place of `module`."""
        sys.modules[module.__name__] = import_module(_original(module.__name__))


sys.meta_path.insert(0, _Submodules())  # type: ignore[arg-type]
