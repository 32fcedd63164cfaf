from typing import Any

from onnxruntime.capi._pybind_state import *  # noqa: F403

def __getattr__(name: str) -> Any: ...
