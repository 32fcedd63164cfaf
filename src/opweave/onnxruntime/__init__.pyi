# Type checkers see the types of the ONNX Runtime that is installed; what it leaves untyped is `Any`.
from typing import Any

from onnxruntime import *  # noqa: F403

def __getattr__(name: str) -> Any: ...
