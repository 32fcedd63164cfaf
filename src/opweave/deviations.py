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
        "There is no navigator outside of a browser.",
    ),
    Deviation(
        ("*: promise",),
        "change",
        "Methods that return a promise there return the value itself, and have a twin to await, `…_async`. `lost` is a "
        "future, which can be awaited as well.",
        "On a CPU work is done when the method returns; most Python is not asynchronous.",
    ),
    Deviation(
        ("*(options)", "*(descriptor)"),
        "change",
        "The members of dictionaries are arguments themselves: `data_type, shape` for descriptors, keywords for options.",
        "Python has keyword arguments; a misspelt one is an error instead of being ignored.",
    ),
    Deviation(
        ("MLContext.read_tensor(output_data): missing", "MLContext.read_tensor(out)"),
        "change",
        "The array to read into is the keyword `out=`.",
        "That is its name in NumPy.",
    ),
    Deviation(
        ("MLContext.read_tensor: returns ArrayBuffer", "MLContext.read_tensor: returns undefined"),
        "change",
        "`read_tensor` returns an array of the tensor's data type and shape, also where it was given the memory.",
        "Bytes would have to be given data type and shape by hand.",
    ),
    Deviation(
        ("MLContext.accelerated: the truth",),
        "change",
        "`accelerated` tells whether the device is a GPU or an NPU; there it repeats the option.",
        "What was asked for is known; what came of it is not.",
    ),
    Deviation(
        ("MLGraphBuilder.constant: memory",),
        "change",
        "Constants are kept by reference, not copied. Do not change an array while its graph is in use.",
        "Weights are large, and a second copy of them serves nobody.",
    ),
    Deviation(
        ("MLGraphBuilder.constant: uint32",),
        "change",
        "Numbers cast to uint32 are clamped to [0, 2³² - 1]; the text casts them to a signed 32-bit integer.",
        "A mistake in the text: uint32 could not hold its own upper half.",
    ),
    Deviation(
        ("MLGraphBuilder.clamp: bounds left out",),
        "change",
        "A bound of `clamp` that is left out does not limit; the text makes the lower one +∞ and the upper one -∞.",
        "A mistake in the text, which its own emulation contradicts.",
    ),
    Deviation(
        ("MLGraphBuilder: conversions",),
        "change",
        "Where integers are wanted, 2.5, True and '2' are errors; Web IDL makes 2, 1 and 2 of them. 2.0 is taken, also one of "
        "NumPy. Sequences are anything but strings and mappings.",
        "These are mistakes wherever they occur; Python has integers.",
    ),
    Deviation(
        ("MLGraphBuilder.conv_transpose2d: groups",),
        "change",
        "`groups` of `conv_transpose2d` must divide the input channels; the text does not ask for it.",
        "What a group would consist of is not said, and no engine computes it.",
    ),
    Deviation(
        ("MLGraphBuilder.max_pool2d: output sizes",),
        "change",
        "`output_sizes` of pools go together with `padding`, and are the sizes that either rounding gives; the text sets the "
        "padding to 0 then, and wants `output_sizes` smaller than `strides`.",
        "Mistakes in the text: the Web Platform Tests, and browsers, use both options together.",
    ),
    Deviation(
        ("MLGraphBuilder.*2d: padded sizes",),
        "change",
        "Padded dimensions of convolutions and pools are at most 2³¹ - 1, as all dimensions are.",
        "The text limits operands only, but engines make an operand of them.",
    ),
    Deviation(
        ("MLGraphBuilder.is_nan(a): limits", "MLGraphBuilder.is_infinite(a): limits"),
        "change",
        "`is_nan` and `is_infinite` take float32 and float16 only; the table of their limits says any data type.",
        "The text contradicts itself: the steps of both methods throw for other types.",
    ),
    Deviation(
        (
            *("MLGraphBuilder.reduce_max: NaN", "MLGraphBuilder.reduce_min: NaN"),
            *("MLGraphBuilder.arg_max: NaN", "MLGraphBuilder.arg_min: NaN", "MLGraphBuilder.max_pool2d: NaN"),
        ),
        "change",
        "Of values among which there is a NaN, these operations give NaN (or its position) on the reference device; on the "
        "CPU it depends on where the NaN stands.",
        "The text does not say. ONNX Runtime's kernels compare, and a comparison with NaN is false. To look for NaN first "
        "makes `reduce_max` take 1.3 to 2.3 times as long, `arg_max` up to 1.4 times, and `max_pool2d` 1.2 to 1.5 times "
        "(`benchmarks/nan.py`, one thread).",
    ),
    Deviation(
        ("MLGraphBuilder.gru: NaN", "MLGraphBuilder.lstm: NaN"),
        "change",
        "NaN in an operand makes the states after it NaN on the reference device; on the CPU they may be numbers if there is "
        "a bias.",
        "The text does not say. When ONNX Runtime's kernels add a bias they limit the sum to finite numbers, of NaN too.",
    ),
]

ADDITIONS = [
    Deviation(
        ("ML.*_async", "MLContext.*_async", "MLGraphBuilder.*_async"),
        "addition",
        "Twins to await.",
        "See above: they return what the specification's promises resolve to.",
    ),
    Deviation(
        ("opweave.devices", "opweave.Device", "ML.create_context(device)", "MLContext.device"),
        "addition",
        "The devices of this machine can be listed, and one of them asked for by name.",
        "Preferences are for pages that must not know the machine; a program on a server has to.",
    ),
    Deviation(
        ("MLContext.compute",),
        "addition",
        "`compute(graph, {name: array})` runs a graph on arrays, and returns arrays.",
        "The common case in one line, without tensors.",
    ),
    Deviation(
        ("MLContext.tensor_from",),
        "addition",
        "`tensor_from(array)` makes a tensor of memory that exists, also of another library's through DLPack.",
        "No copy between NumPy, PyTorch and a graph.",
    ),
    Deviation(
        ("MLContext.create_exportable_tensor", "MLContext.export_to_gpu", "MLTensor.gpu_buffer"),
        "addition",
        "`create_exportable_tensor` makes a tensor for a `GPUDevice`, and `with context.export_to_gpu(tensor) as buffer` "
        "lends it to the user's own shaders, as those of later drafts do; `tensor.gpu_buffer` is its buffer.",
        "Tensors of a WebGPU device are its buffers; `tensor_from(buffer, data_type, shape)` is the way back.",
    ),
    Deviation(
        ("MLTensor.numpy", "MLTensor.__array__", "MLTensor.__dlpack__", "MLTensor.__dlpack_device__"),
        "addition",
        "Tensors can be looked at in place, as arrays of NumPy and of everything that speaks DLPack.",
        "No copy on the way out either.",
    ),
    Deviation(
        ("MLGraphBuilder.constant(array)",),
        "addition",
        "`constant(array)` takes data type and shape from the array.",
        "Arrays know both.",
    ),
    Deviation(
        ("MLGraphBuilder: numbers and arrays as operands",),
        "addition",
        "Where an operation takes operands, numbers and arrays become constants, in the data type of the first operand.",
        "`builder.max(x, 0)` says what is meant.",
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
        "The error for an attribute that is not there names the one that was meant (`averagePool2d`, `dataType`).",
        "The names of the specification are in camelCase, those here in snake_case.",
    ),
    Deviation(
        ("MLOperand.rank", "MLOperand.desc", "MLTensor.desc"),
        "addition",
        "The number of dimensions; data type and shape in one.",
        "Both are needed all the time.",
    ),
    Deviation(
        ("MLGraph.inputs", "MLGraph.outputs", "MLGraphBuilder.inputs"),
        "addition",
        "Data types and shapes of a graph's inputs and outputs, by name.",
        "Who gets a graph from elsewhere has to know what to feed it.",
    ),
    Deviation(
        ("MLGraph.devices", "MLGraph.explain", "MLGraph.placements"),
        "addition",
        "Where each operation of a graph runs, and whether by one kernel, by several, or by its decomposition.",
        "Performance that cannot be explained cannot be improved.",
    ),
    Deviation(
        ("*.destroyed", "*.context", "MLContext.power_preference"),
        "addition",
        "State that objects have in the specification too, but do not show.",
        "For messages and tests.",
    ),
    Deviation(
        ("opweave.InferenceSession", "opweave.onnx"),
        "addition",
        "ONNX models run on WebNN graphs, and what WebNN cannot express in ONNX Runtime; graphs can be written as ONNX.",
        "Networks come as `.onnx` files; on the Web a framework does this on top of WebNN.",
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
        "Custom operations: expressions, composites, kernels; in graphs, on arrays, and inside of ONNX models.",
        "What Opweave exists for (https://github.com/webmachinelearning/webnn/issues/6).",
    ),
    Deviation(
        ("MLGraphBuilder.build(fallback)",),
        "addition",
        "`fallback='error'` refuses graphs of which the device lacks something, instead of running that on the CPU.",
        "Who needs the device for all of it must not be surprised by copies.",
    ),
    Deviation(
        ("MLGraphBuilder.build(fuse)",),
        "addition",
        "Chains of element-wise operations become one loop, unless `fuse=False` says otherwise.",
        "Engines go through memory once for each of them.",
    ),
    Deviation(
        ("MLContext.create_tensor(memory)",),
        "addition",
        "Tensors can lie in the memory of a WebAssembly module.",
        "Operations in WebAssembly see nothing else (https://github.com/webmachinelearning/webnn/issues/156).",
    ),
    Deviation(
        ("opweave.Array", "opweave.array", "opweave.ops", "opweave.read", "MLContext.__enter__", "MLContext.__exit__"),
        "addition",
        "Operations can be called one by one, on arrays; what is read is computed as one graph.",
        "What frameworks do on top of WebNN (https://github.com/webmachinelearning/webnn/issues/156).",
    ),
    Deviation(
        ("ML.create_context(deferred)",),
        "addition",
        "In contexts with `deferred=True` dispatches wait until somebody looks, and run together then.",
        "Chains of small graphs run as one; results that nobody looks at are not written.",
    ),
    Deviation(
        ("opweave.jit",),
        "addition",
        "`@opweave.jit` makes a graph of a function of arrays when it is called for the first time.",
        "Programs that call operations one by one run at a graph's speed, and need no builder.",
    ),
    Deviation(
        ("MLGraph.profile", "MLGraph.draw", "MLGraph.direct"),
        "addition",
        "How long each segment of a graph takes, what it moves and copies; the graph as a picture.",
        "Performance that cannot be measured cannot be improved.",
    ),
    Deviation(
        ("opweave.Desc", "opweave.Limits"),
        "addition",
        "Data type and shape; what an operand may be.",
        "Shape rules of custom operations are written with them.",
    ),
    Deviation(
        ("opweave.memory",),
        "addition",
        "The counter of copies, `opweave.memory.copies`.",
        "Proof that there are none.",
    ),
    Deviation(
        ("opweave.*Error",),
        "addition",
        "Exceptions: `ValidationError` (also a `TypeError`) where the specification throws `TypeError`, and one for each "
        "`DOMException`.",
        "Errors of ours can be told from others.",
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
        "What operations, back ends and passes are made of.",
        "They can be written outside of this package, too.",
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
        "the specification's in snake_case. This page lists all else that differs; it is made by `make docs` from",
        "`opweave.deviations`, and a test holds that list to the truth.",
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
