from typing import Any

from onnxruntime.capi import *  # noqa: F403

def __getattr__(name: str) -> Any: ...
