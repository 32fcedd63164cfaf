from typing import Any

from onnxruntime.capi.onnxruntime_pybind11_state import *  # noqa: F403

def __getattr__(name: str) -> Any: ...
