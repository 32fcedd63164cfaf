from typing import Any

from onnxruntime.capi.onnxruntime_inference_collection import *  # noqa: F403

def __getattr__(name: str) -> Any: ...
