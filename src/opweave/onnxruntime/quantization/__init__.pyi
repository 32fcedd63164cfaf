from typing import Any

from onnxruntime.quantization import *  # noqa: F403

def __getattr__(name: str) -> Any: ...
