"""The deviations from the specification and their reasons, as data.

`tests/test_registry.py` compares every object, method, argument, default, enumeration and limit with the specification.
It fails for a difference that is not listed, and for a listed one that no longer exists. `docs/deviations.md` is
generated: `python -m opweave.deviations docs/deviations.md`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True)
class Deviation:
    """An addition to the specification, or a difference from it.

    Attributes:
        where: what it applies to, by Python names with `*` as wildcard: members `MLContext.compute`, arguments
            `MLContext.read_tensor(out)`, or aspects `MLContext.read_tensor: returns ArrayBuffer`.
        kind: "addition" or "change".
        what: what Opweave does.
        reason: why.
    """

    where: tuple[str, ...]
    kind: Literal["addition", "change"]
    what: str
    reason: str


CHANGES = [
    Deviation(
        ("NavigatorML: missing",),
        "change",
        "`navigator.ml` is `opweave.ml`.",
        "There is no `navigator` outside of browsers.",
    ),
    Deviation(
        ("*: promise",),
        "change",
        "Methods that return a promise in the specification are blocking, and have an awaitable twin, `…_async`. `lost` is a "
        "future, which can be awaited, too.",
        "On a CPU the work is done when the method returns, and most Python code is not asynchronous.",
    ),
    Deviation(
        ("*(options)", "*(descriptor)"),
        "change",
        "Members of dictionaries are separate arguments: `data_type, shape` for descriptors, keywords for options.",
        "Python has keyword arguments, and a misspelt one is an error rather than ignored.",
    ),
    Deviation(
        ("MLContext.read_tensor(output_data): missing", "MLContext.read_tensor(out)"),
        "change",
        "The array to read into is passed as `out=`.",
        "This is the name in NumPy.",
    ),
    Deviation(
        ("MLContext.read_tensor: returns ArrayBuffer", "MLContext.read_tensor: returns undefined"),
        "change",
        "`read_tensor` always returns an array of the tensor's data type and shape, even if it reads into given memory.",
        "Bytes would have to be converted by hand.",
    ),
    Deviation(
        ("MLContext.accelerated: the truth",),
        "change",
        "`accelerated` reports whether the device is a GPU or an NPU; in the specification it repeats the option.",
        "The caller knows the option, but not the device that was chosen.",
    ),
    Deviation(
        ("MLGraphBuilder.constant: memory",),
        "change",
        "Constants are kept by reference, not copied. Do not change an array while its graph is in use.",
        "Weights are large, and a second copy would waste memory.",
    ),
    Deviation(
        ("MLGraphBuilder.constant: uint32",),
        "change",
        "Numbers cast to uint32 are clamped to [0, 2³² - 1]; the specification casts them to a signed 32-bit integer.",
        "A mistake in the specification: the upper half of uint32 could not be used.",
    ),
    Deviation(
        ("MLGraphBuilder.clamp: bounds left out",),
        "change",
        "An omitted bound of `clamp` has no effect; in the specification the default is +∞ for the lower and -∞ for the "
        "upper one.",
        "A mistake in the specification, which its own emulation contradicts.",
    ),
    Deviation(
        ("MLGraphBuilder: conversions",),
        "change",
        "2.5, True and '2' are errors where integers are required; Web IDL converts them to 2, 1 and 2. 2.0 is accepted, also "
        "as a NumPy scalar. Any iterable except strings and mappings is a sequence.",
        "Such values are mistakes; Python has integers.",
    ),
    Deviation(
        ("MLGraphBuilder.conv_transpose2d: groups",),
        "change",
        "`groups` of `conv_transpose2d` must divide the input channels; the specification does not require it.",
        "Otherwise the result is undefined, and no engine can compute it.",
    ),
    Deviation(
        ("MLGraphBuilder.max_pool2d: output sizes",),
        "change",
        "`output_sizes` of pooling can be combined with `padding`, and must be one of the two roundings; the specification "
        "sets the padding to 0, and requires `output_sizes` smaller than `strides`.",
        "Mistakes in the specification: the Web Platform Tests and browsers combine both options.",
    ),
    Deviation(
        ("MLGraphBuilder.*2d: padded sizes",),
        "change",
        "Padded dimensions of convolutions and pooling are limited to 2³¹ - 1, like all dimensions.",
        "The specification limits operands only, but engines create a padded operand.",
    ),
    Deviation(
        ("MLGraphBuilder.is_nan(a): limits", "MLGraphBuilder.is_infinite(a): limits"),
        "change",
        "`is_nan` and `is_infinite` accept float32 and float16 only; the specification's table allows any data type.",
        "The specification contradicts itself: the steps of both methods throw for other types.",
    ),
    Deviation(
        (
            *("MLGraphBuilder.reduce_max: NaN", "MLGraphBuilder.reduce_min: NaN"),
            *("MLGraphBuilder.arg_max: NaN", "MLGraphBuilder.arg_min: NaN", "MLGraphBuilder.max_pool2d: NaN"),
        ),
        "change",
        "If a value is NaN, these operations return NaN (or its position) on the reference device; on the CPU the result "
        "depends on the position of the NaN.",
        "The specification does not define it. ONNX Runtime's kernels compare, and comparisons with NaN are false. A separate "
        "test for NaN would multiply the time of `reduce_max` by 1.3 to 2.3, of `arg_max` by up to 1.4, and of `max_pool2d` "
        "by 1.2 to 1.5 (`benchmarks/nan.py`, one thread).",
    ),
    Deviation(
        ("MLGraphBuilder.gru: NaN", "MLGraphBuilder.lstm: NaN"),
        "change",
        "After a NaN in an operand, states are NaN on the reference device; on the CPU they may be numbers if there is a "
        "bias.",
        "The specification does not define it. ONNX Runtime's kernels clamp sums with a bias to finite numbers, even NaN.",
    ),
]

ADDITIONS = [
    Deviation(
        ("ML.*_async", "MLContext.*_async", "MLGraphBuilder.*_async"),
        "addition",
        "Awaitable twins of blocking methods.",
        "See above: they return what the specification's promises resolve to.",
    ),
    Deviation(
        ("opweave.devices", "opweave.Device", "ML.create_context(device)", "MLContext.device"),
        "addition",
        "The devices of this machine can be listed, and selected by name.",
        "Preferences suit web pages, which must not know the machine; programs on a server must.",
    ),
    Deviation(
        ("MLContext.compute",),
        "addition",
        "`compute(graph, {name: array})` runs a graph on arrays, and returns arrays.",
        "It is the common case, in one line and without tensors.",
    ),
    Deviation(
        ("MLContext.tensor_from",),
        "addition",
        "`tensor_from(array)` creates a tensor over existing memory, including that of other libraries through DLPack.",
        "It avoids copies between NumPy, PyTorch and graphs.",
    ),
    Deviation(
        ("MLContext.create_exportable_tensor", "MLContext.export_to_gpu", "MLTensor.gpu_buffer"),
        "addition",
        "`create_exportable_tensor` creates a tensor for a `GPUDevice`, and `with context.export_to_gpu(tensor) as buffer` "
        "lends it to the user's shaders, as in later drafts; `tensor.gpu_buffer` is its buffer.",
        "Tensors of a WebGPU device are buffers; `tensor_from(buffer, data_type, shape)` is the inverse.",
    ),
    Deviation(
        ("MLTensor.numpy", "MLTensor.__array__", "MLTensor.__dlpack__", "MLTensor.__dlpack_device__"),
        "addition",
        "Tensors can be read in place, as arrays of NumPy and of all libraries that support DLPack.",
        "It avoids copying results.",
    ),
    Deviation(
        ("MLGraphBuilder.constant(array)",),
        "addition",
        "`constant(array)` uses the data type and shape of the array.",
        "Arrays have both.",
    ),
    Deviation(
        ("MLGraphBuilder: numbers and arrays as operands",),
        "addition",
        "Numbers and arrays passed as operands become constants of the data type of the first operand.",
        "`builder.max(x, 0)` is short and unambiguous.",
    ),
    Deviation(
        ("MLOperand.__*__", "MLOperand: operations"),
        "addition",
        "Python's operators on operands (`a @ b + c`, `x[..., 1:]`), and every operation as a method (`x.relu()`).",
        "Formulas read like formulas.",
    ),
    Deviation(
        ("*.__getattr__",),
        "addition",
        "The error for an unknown attribute suggests the right one (`averagePool2d`, `dataType`).",
        "The specification's names are camelCase, Opweave's are snake_case.",
    ),
    Deviation(
        ("MLOperand.rank", "MLOperand.desc", "MLTensor.desc"),
        "addition",
        "The number of dimensions; data type and shape as one object.",
        "Both are often needed.",
    ),
    Deviation(
        ("MLGraph.inputs", "MLGraph.outputs", "MLGraphBuilder.inputs"),
        "addition",
        "Data types and shapes of a graph's inputs and outputs, by name.",
        "Users of a graph that they did not build need to know its inputs.",
    ),
    Deviation(
        ("MLGraph.devices", "MLGraph.explain", "MLGraph.placements"),
        "addition",
        "The device that runs each operation of a graph, and whether it uses one kernel, several, or a decomposition.",
        "Performance that cannot be explained cannot be improved.",
    ),
    Deviation(
        ("*.destroyed", "*.context", "MLContext.power_preference"),
        "addition",
        "State that the specification's objects have internally.",
        "Messages and tests need it.",
    ),
    Deviation(
        ("opweave.InferenceSession", "opweave.onnx"),
        "addition",
        "ONNX models run as WebNN graphs, with ONNX Runtime for operators that WebNN cannot express; graphs can be saved as "
        "ONNX.",
        "Networks are distributed as `.onnx` files; on the Web, a framework on top of WebNN loads them.",
    ),
    Deviation(
        (
            "opweave.op",
            "opweave.expression",
            "opweave.composite",
            "opweave.composites",
            "opweave.expr",
            "opweave.wasm",
            "opweave.wgsl",
            "opweave.register_onnx",
        ),
        "addition",
        "Custom operations (expressions, composites, kernels) in graphs, on arrays, and in ONNX models.",
        "They are the purpose of Opweave (https://github.com/webmachinelearning/webnn/issues/6).",
    ),
    Deviation(
        ("MLGraphBuilder.build(fallback)",),
        "addition",
        "`fallback='error'` refuses graphs with operations that the device does not support, instead of running these on the "
        "CPU.",
        "Copies to the CPU can make a graph slow.",
    ),
    Deviation(
        ("MLGraphBuilder.build(fuse)",),
        "addition",
        "Chains of element-wise operations are fused into one loop, unless `fuse=False`.",
        "Engines read and write memory once for each operation.",
    ),
    Deviation(
        ("MLContext.create_tensor(memory)",),
        "addition",
        "Tensors can be allocated in the memory of a WebAssembly module.",
        "WebAssembly functions cannot access other memory (https://github.com/webmachinelearning/webnn/issues/156).",
    ),
    Deviation(
        ("opweave.Array", "opweave.array", "opweave.ops", "opweave.read", "MLContext.__enter__", "MLContext.__exit__"),
        "addition",
        "Operations can be called one by one on arrays; they are computed as one graph when a value is read.",
        "Frameworks on top of WebNN work this way (https://github.com/webmachinelearning/webnn/issues/156).",
    ),
    Deviation(
        ("ML.create_context(deferred)",),
        "addition",
        "In contexts with `deferred=True`, dispatches are deferred until a result is read, and then run together.",
        "Chains of small graphs run as one, and intermediate results that are never read are not written.",
    ),
    Deviation(
        ("opweave.jit",),
        "addition",
        "`@opweave.jit` compiles a function of arrays to a graph on its first call.",
        "Code that calls operations one by one runs as fast as a graph, without a builder.",
    ),
    Deviation(
        ("MLGraph.profile", "MLGraph.draw"),
        "addition",
        "The time, memory traffic and copies of each segment of a graph; a drawing of the graph.",
        "Performance that cannot be measured cannot be improved.",
    ),
    Deviation(
        ("opweave.Desc", "opweave.Limits"),
        "addition",
        "Data type and shape of an operand, and the limits of both.",
        "Shape rules of custom operations use them.",
    ),
    Deviation(
        ("opweave.memory",),
        "addition",
        "The counter of copies, `opweave.memory.copies`.",
        "It shows where copies are made, or that there are none.",
    ),
    Deviation(
        ("opweave.*Error",),
        "addition",
        "Exceptions: `ValidationError` (also a `TypeError`) where the specification throws `TypeError`, and one for each "
        "`DOMException`.",
        "Opweave's errors can be distinguished from others.",
    ),
    Deviation(
        (
            "MLContext.backend",
            "MLContext.check_*",
            "MLContext.lose",
            "MLGraph.check_*",
            "MLTensor.borrowed",
            "MLTensor.memory",
            "MLTensor.release_bindings",
            "MLGraphBuilder.add_node",
            "MLGraphBuilder.as_operand",
            "MLGraphBuilder.check_open",
            "MLGraphBuilder.limits",
            "MLGraphBuilder.listing",
            "MLGraphBuilder.make_node",
            "MLGraphBuilder.max_byte_length",
            "MLGraphBuilder.owns",
            "MLOperand.builder",
            "MLOperand.is_*",
            "MLOperand.name",
            "MLOperand.node",
            "MLOperand.value",
        ),
        "addition",
        "Interfaces used by operations, back ends and passes.",
        "Other packages can implement these, too.",
    ),
]

DEVIATIONS = [*CHANGES, *ADDITIONS]


def render() -> str:
    """The deviations as a Markdown page."""

    def table(rows: Sequence[Deviation]) -> list[str]:
        lines = ["| Where | What | Why |", "|---|---|---|"]
        for row in rows:
            where = ", ".join(f"`{pattern}`" for pattern in row.where)
            lines.append(f"| {where} | {row.what} | {row.reason} |")
        return lines

    lines = [
        "# Deviations from the specification",
        "",
        "Opweave follows the [Web Neural Network API](https://www.w3.org/TR/webnn/), editor's draft of 2026-06-26. Names are",
        "the specification's in snake_case. This page lists all other differences. It is generated by `make docs` from",
        "`opweave.deviations`, and a test verifies the list.",
        "",
        "## Changes",
        "",
        *table(CHANGES),
        "",
        "## Additions",
        "",
        *table(ADDITIONS),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    page = render()
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(page, encoding="utf-8")
    else:
        print(page, end="")
