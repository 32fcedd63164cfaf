"""What the design promises, as data: all that benchmarks and the gate of real models compare figures with.

A limit on a ratio is exceeded when the lower quartile of the ratios of pairs lies beyond it, so that noise does not fail it;
limits on other values are compared with medians.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from .measure import Ratio


@dataclass(frozen=True)
class Budget:
    """A limit.

    Attributes:
        limit: the largest value that is allowed.
        of: what is limited: our value ("us", "ms", "s", "MiB", "share"), its "ratio" to the other one, or by how much it
            exceeds that ("us more", "ms more", "MiB more").
    """

    limit: float
    of: Literal["ratio", "share", "us", "ms", "s", "MiB", "us more", "ms more", "MiB more"] = "ratio"

    def __str__(self) -> str:
        return f"<= {self.limit:g}x" if self.of == "ratio" else f"<= {self.limit:g} {self.of}"

    def holds(self, *, ours: float = 0.0, theirs: float | None = None, ratio: Ratio | None = None) -> bool:
        """Whether a figure is within the limit.

        Args:
            ours: our value, in the budget's unit.
            theirs: the value that it is compared with.
            ratio: the ratio of both, for a limit on ratios.

        >>> Budget(1.05).holds(ratio=Ratio(1.049, 1.2, 1.3)), Budget(8, "us").holds(ours=9)
        (True, False)
        """
        if self.of == "ratio":
            assert ratio is not None, "a limit on a ratio needs one"
            return ratio.low <= self.limit
        return ours - (theirs or 0.0 if self.of.endswith("more") else 0.0) <= self.limit


BUDGETS = {
    "dispatch": Budget(8, "us"),
    "dispatch on OpenVINO": Budget(1.5),
    "compute": Budget(15, "us"),
    "import": Budget(20, "ms"),
    "import builder": Budget(100, "ms more"),
    "net": Budget(1.05),
    "loops": Budget(0.65),
    "threads": Budget(1.05),
    "build": Budget(1.3),
    "memory": Budget(1.15),
    "imports for ONNX": Budget(10, "MiB more"),
    "fused": Budget(1.0),
    "expression against ONNX Runtime": Budget(0.33),
    "expression against memcpy": Budget(1.5),
    "bound expression": Budget(3, "us"),
    "called expression": Budget(10, "us"),
    "note": Budget(5, "us"),
    "op": Budget(20, "us"),
    "op-level chain": Budget(1.05),
    "op-level model": Budget(1.1),
    "recurrence": Budget(0.25, "ms"),
    "recurrence against Scan": Budget(0.1),
    "another revision": Budget(1.05),
    "shapes in turn": Budget(2, "us more"),
    "session": Budget(1.05),
    "short session": Budget(2, "us more"),
    "repeated sizes": Budget(2, "us more"),
    "new sizes": Budget(1.2),
    "new sizes, an operation": Budget(50, "us more"),
}
"""Of docs/benchmarks.md, and of comparisons with another revision; sessions: of models with many shapes, and of small ones;
sizes: of docs/sizes.md, as a multiple of ONNX Runtime's time for calls of 10 ms and more, and for each operation of others."""

TRAFFIC = {
    "total": Budget(1.05),
    "with the first": Budget(1.1),
    "95th percentile": Budget(1.1),
    "worst second call": Budget(1.3),
}
"""Of a sequence of calls with many shapes, as multiples of ONNX Runtime's times: of all calls but the first; of all calls; of
the calls but the first; and of that second call with a shape whose lower quartile is the largest."""

CUSTOM_TRAFFIC = {"total": Budget(1.15)}
"""The same of a model with custom operations, which ONNX Runtime runs as operators of ONNX."""

LIBRARIES = {"memory": Budget(1.1)}
"""Of a library inside `replacing_onnxruntime()`, as a multiple of what it takes on ONNX Runtime."""

COLD = {
    "time": Budget(50, "ms more"),
    "memory": Budget(12, "MiB more"),
    "module": Budget(5, "ms"),
}
"""Of a fresh process that runs a tiny ONNX model once: beyond ONNX Runtime alone, and the import of each of Opweave's modules,
without the modules that it imports."""

START_UP = {
    ("MiniLM-L6, 64 words", "openvino"): Budget(60, "ms"),
    ("Piper voice, 40 phonemes", "onnxruntime"): Budget(100, "ms"),
}
"""Of loading a saved graph and its first call in a fresh process, beyond the imports and the context, by model and engine."""

WEBGPU = {
    "ResNet-50, batch 1, float32": {"on the device": Budget(2.0, "ms")},
    "a token of 8 layers": {"to encode one": Budget(4.0, "us")},
    "plcmos_v2, 64 frames": {"build": Budget(1.0, "s"), "until done": Budget(3.0, "ms")},
}
"""On an H200 with WebGPU, by network and column."""

CUDA = {
    "ResNet-50, batch 1, float32": Budget(0.70, "ms"),
    "ResNet-50, batch 1, tf32": Budget(0.60, "ms"),
    "ResNet-50, batch 1, float16": Budget(0.55, "ms"),
    "ResNet-50, batch 32, float32": Budget(6.5, "ms"),
    "ResNet-50, batch 32, tf32": Budget(4.0, "ms"),
    "ResNet-50, batch 32, float16": Budget(2.3, "ms"),
    "conv2d 100x100, 100 to 100, add, relu, float32": Budget(0.060, "ms"),
    "conv2d 100x100, 100 to 100, add, relu, tf32": Budget(0.035, "ms"),
    "matmul 4096, float32": Budget(2 * 4096**3 / 70e9, "ms"),
    **dict.fromkeys(("matmul 4096, float16", "matmul 4096, bfloat16"), Budget(2 * 4096**3 / 550e9, "ms")),
    "a token of 8 layers": Budget(0.45, "ms"),
    "MiniLM-L6, 64 words, batch 1": Budget(1.1),
    "MiniLM-L6, 64 words, batch 32": Budget(1.1),
    "ViT-B/16, batch 1": Budget(1.1),
    "ViT-B/16, batch 32": Budget(1.1),
    "plcmos_v2, 64 frames": Budget(3.0, "ms"),
    "conv2d, a custom kernel, conv2d": Budget(0.002, "ms more"),
}
"""On an H200 with CUDA: milliseconds on the clock (in a row for a product, and more than its parts for a custom kernel), and
ratios to PyTorch, compiled, as a CUDA graph."""

CUDA_BUILDS = {"plcmos_v2, 64 frames": Budget(1.0, "s")}
"""On an H200 with CUDA: seconds to build, without the cache on disk."""

CUDA_MODEL = Budget(3.0, "s")
"""On an H200 with CUDA: the time to build a model of the gate, without the cache on disk."""

GPU_SIZES = {"new": Budget(30.0, "ms"), "time": Budget(1.15), "memory": Budget(1.2)}
"""On an H200, models with dynamic dimensions: a call with new sizes; time and memory beside the same model with numbers."""

CUDA_NETWORK = {"time": Budget(1.0), "build": Budget(5.0, "s")}
"""On an H200 with CUDA: a call of an architecture, from arrays to arrays, beside torch.compile; seconds to build."""

CUDA_RECURRENCE = Budget(1.0)
"""On an H200 with CUDA: selective scans and linear attention beside the forms in chunks that PyTorch compiles."""

TRAFFIC_OF_RECURRENCE = 2
"""Of the same: the time as a multiple of that of the memory traffic."""

TORCH = {
    "error": Budget(1e-5, "share"),
    "error, rounded activations": Budget(2e-2, "share"),
    "from a program": Budget(0.3),
    "from the module": Budget(0.8),
}
"""Of modules of PyTorch as graphs: the root mean square of differences from eager PyTorch, relative to that of the results
(2e-2: activations of 8 bits, where a sum in another order is rounded to another integer); and the time of loading beside
`torch.onnx.export` and a session."""

TORCH_COMPILE = {
    "cpu, float32": {"mean": Budget(1.0), "each": Budget(1.2), "compiling": Budget(0.3)},
    "cuda, float32": {"mean": Budget(0.8), "compiling": Budget(0.3)},
    "cuda, tf32": {"mean": Budget(0.9), "compiling": Budget(0.3)},
}
"""Of torch.compile(backend="opweave") beside inductor, as multiples of its times: the geometric mean of calls, each network,
and the geometric mean of first calls with empty caches."""

LANGUAGE = {
    "float16": {
        "token": Budget(0.60, "ms"),
        "short": Budget(3.0, "ms"),
        "long": Budget(20.0, "ms"),
        "build": Budget(3.0, "s"),
    },
    "float32": {
        "token": Budget(0.75, "ms"),
        "short": Budget(3.0, "ms"),
        "long": Budget(60.0, "ms"),
        "build": Budget(3.0, "s"),
    },
    "WebGPU": {"token": Budget(2.6, "ms")},
}
"""On an H200: a language model of 1.1 billion weights of 4 bits, with CUDA by precision, and with WebGPU. The limits are for a
token at a length of 2,048, the first token of prompts of 64 and 1,024, and the build."""

CUDA_START_UP = {
    "ResNet-50": Budget(250, "ms"),
    "DenseNet-121": Budget(400, "ms"),
    "Llama, 1.1 billion weights in Q4_0": Budget(500, "ms"),
}
"""On an H200 with CUDA: loading a network and its first call in a fresh process, without imports and the context."""

SAVED_SIZE = 1.1
"""Largest size of a saved graph, as a multiple of the size of its weights."""

MEMORY_OF_LANGUAGE = 1.5
"""For the language model with CUDA: memory of the device, as a multiple of the file and the cache."""

CONTRACTIONS = Budget(1.1)
"""On an H200 with CUDA: the geometric mean of the ratios of contractions to PyTorch, for each precision."""

INTEROP = {
    "memory": 1.02,
    "woven us": 30,
    "woven noise": 0.03,
    "GPU fused ms": 0.11,
    "GPU beside ms": 0.02,
    "GPU custom": 6,
    "GPU without copies": 0.5,
}
"""Of custom operations beside built-in ones (docs/interop.md): the ratio of a built-in operation on a module's memory to the
host's; what a graph may take beyond its parts, in microseconds, or as noise; and on an H200, milliseconds of the fused kernel
and of separate shaders beyond it, the least ratio of all custom to it, and the largest share of the time with copies."""

GATE = {
    "difference": 2e-3,
    "steady": 1.05,
    "new shapes": 1.5,
    "new shape": 3.0,
    "memory": 1.3,
    "threads": len(os.sched_getaffinity(0)) + 8,
}
"""Of the gate of real models: the difference of results relative to the largest element; ratios of times to ONNX Runtime's at
the first shape (in a row, and after pauses), of the median of the new shapes, and of each of them; the ratio of peak memory;
threads of the process."""

DECODER = {
    "growing": {"rate": 0.9, "memory": 1500.0},
    "genai": {"rate": 0.95, "memory": 1500.0},
}
"""Of language models as ONNX files, in both forms: the least ratio of tokens a second to ONNX Runtime's, with which the upper
quartile is compared, and the largest peak memory in MiB."""
