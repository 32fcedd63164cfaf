"""ONNX Runtime's own session class, even if a program has replaced `InferenceSession`."""

from __future__ import annotations

# Taken from the module that defines it: programs replace `onnxruntime.InferenceSession`.
from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession


class NativeSession(InferenceSession):  # type: ignore[misc]
    """A session of ONNX Runtime itself, also while `opweave.onnx.replacing_onnxruntime` is active.

    `replacing_onnxruntime` changes `InferenceSession.__init__`; this class keeps the one that was there before.
    """

    __init__ = InferenceSession.__init__
