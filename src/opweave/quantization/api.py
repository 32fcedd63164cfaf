"""`opweave.quantize`: write a model with fewer bits, and measure what changed."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args

import numpy as np

from ..backends.onnxruntime.opsets import missing_nodes
from ..onnx.files import MAX_EMBEDDED_BYTES, write_model
from ..onnx.model.limits import DEFAULT, ModelLimits
from ..onnx.model.model import Model
from ..onnx.session.load import arguments_of
from ..support.errors import DataError, NotSupportedError, require
from ..support.files import resolve_links
from ..support.names import count_of, short_repr
from ..support.progress import report_work
from ..support.refusals import require_names
from .comparison import ResultErrors, check_loads, compare_outputs, layers_or_note
from .contents import MIN_ELEMENTS, ModelContents, external_files
from .result import KeptWeights, LayerDifference, Quantization
from .static import quantize_throughout
from .weights import NarrowedLayer, describe_kept, is_excluded, narrow_weights

Form = Literal["int8", "int4", "static", "float16", "bfloat16"]
"""The form of the new model."""

FIRST_OPSETS = {"int8": 13, "int4": 21, "float16": 6, "bfloat16": 13}
"""The first operator set that has the nodes of each form. A `block_size` needs that of "int4"."""

FIRST_HALF_OPSET = 19
"""The first operator set whose `DequantizeLinear` makes float16."""

WEIGHTS_ALONE = ("GRU", "Gather", "LSTM", "RNN")
"""Operators whose weights alone become narrower in the form "static": ONNX Runtime does not compute them on integers."""

Samples = Mapping[str, Any] | Iterable[Mapping[str, Any]]


def quantize(
    model: Any,
    path: str | Path,
    to: Form = "int8",
    *,
    inputs: Samples | None = None,
    block_size: int | None = None,
    exclude: Sequence[str] = (),
    reduce_range: bool = False,
    seconds: float = 1.0,
    limits: ModelLimits = DEFAULT,
) -> Quantization:
    """Write an ONNX model with fewer bits, and compare it with the original.

    The new model has operators of ONNX alone, so that other engines read it, too:

    - "int8": weights in 8 bits, with a scale for each channel; `DequantizeLinear` widens them.
    - "int4": weights in 4 bits, with a scale and a zero point for each block along the axis that a product sums over.
      Weights whose axes no block divides, such as those of depthwise convolutions, get 8 bits.
    - "static": weights in 8 bits, and products that compute on integers, with ranges measured on `inputs`.
    - "float16" and "bfloat16": weights in 16 bits, which `Cast` widens. The `precision` of a session sets the type that
      engines compute in.

    With `inputs`, the result has the error of each layer, both on the inputs that the layer has in the original and end to
    end; the errors of the outputs; and the times of both models, which run alternately.

    >>> import numpy as np, opweave as ow, tempfile
    >>> builder = ow.MLGraphBuilder(ow.ml.create_context(device="cpu"))
    >>> weights = np.random.default_rng(0).standard_normal((64, 32)).astype("float32")
    >>> graph = builder.build({"y": builder.matmul(builder.input("x", "float32", [2, 64]), builder.constant(weights))})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ow.onnx.save(graph, f"{folder}/model.onnx")
    ...     result = ow.quantize(f"{folder}/model.onnx", f"{folder}/int8.onnx", inputs={"x": weights[:, :2].T})
    >>> [layer.form for layer in result.layers], result.outputs[0].relative < 0.02, result.ratio < 0.35
    (['int8, channels'], True, True)

    Args:
        model: the path of an `.onnx` file, its bytes, or an `onnx.ModelProto`.
        path: the file to write. Weights are written into a second file, `NAME.data`, if the original has such a file, or if
            they are larger than 1.5 GB. Existing files are replaced once the new ones are complete.
        to: the form of the new model.
        inputs: a sample, that is, an array for each input by name; or several samples. "static" needs about 100 samples of
            real data.
        block_size: the elements of a block, for "int8" and "int4"; where it does not divide an axis, another size is chosen.
            Default: no blocks in 8 bits, 32 in 4 bits.
        exclude: names of nodes or weights that stay as they are; `*` and `?` stand for any characters.
        reduce_range: with "static", use 7 bits of each weight: on processors without VNNI or a similar instruction, the sums
            of pairs of products exceed 16 bits otherwise.
        seconds: how long to measure both models.
        limits: bounds for loading the models.

    Returns:
        A table to `print`, and its numbers.

    Raises:
        ValidationError: an argument is wrong, or `path` is a file of the original.
        NotSupportedError: no weights can become narrower; the model cannot be converted to the operator set that the form
            needs; or "static" for a model with operators that ONNX Runtime does not have.
        DataError: the model cannot be read, or the new one not be written.
        OperationError: ONNX Runtime refuses the model.
    """
    require(to in get_args(Form), f"quantize: `to` must be one of {list(get_args(Form))}, got {short_repr(to)}")
    is_size = isinstance(block_size, int) and not isinstance(block_size, bool) and 16 <= block_size <= 1024
    require(
        block_size is None or is_size,
        f"quantize: block_size must be in [16, 1024] or None, got {short_repr(block_size)}",
    )
    has_blocks = to in ("int8", "int4")
    require(block_size is None or has_blocks, f"quantize: block_size is for 'int8' and 'int4', got {to!r}")
    require(not reduce_range or to == "static", f"quantize: reduce_range is for 'static', got {to!r}")
    names = not isinstance(exclude, str) and all(isinstance(name, str) for name in exclude)
    require(names, f"quantize: exclude must be a list of names, got {short_repr(exclude)}")
    source = Model.load(model, limits)
    feeds = _feeds(source, inputs)
    rule = "quantize: 'static' needs sample inputs, of real data: the ranges of tensors are measured on them"
    require(to != "static" or bool(feeds), rule)
    if to == "static":
        _check_engine(source)
    target, old_bytes = _check_target(model, source, path)
    contents = ModelContents(source)
    _check_names(contents, exclude)
    with TemporaryDirectory(prefix=".opweave-", dir=_existing(target.parent, path)) as scratch:
        folder = Path(scratch)
        layers, kept = list[NarrowedLayer](), list[KeptWeights]()
        if to == "static":
            with report_work(f"measuring ranges on {count_of(len(feeds), 'sample')}"):
                contents, layers, kept = quantize_throughout(contents, feeds, exclude, reduce_range, limits, folder)
            _raise_for_halves(contents, to)
            others, more = narrow_weights(contents, "int8", None, exclude, WEIGHTS_ALONE)
            layers, kept = [*layers, *others], list({item.name: item for item in (*kept, *more)}.values())
        else:
            opset = FIRST_OPSETS["int4"] if block_size else FIRST_OPSETS[to]
            contents.raise_opset(opset, f"the form {to!r}")
            if to == "int8":
                _raise_for_halves(contents, to)
            with report_work("rounding weights"):
                layers, kept = narrow_weights(contents, to, block_size, exclude)
        if not layers:
            none = f": it has no weights of {MIN_ELEMENTS} elements or more, or they are quantised"
            reasons = f": {describe_kept(kept)}" if kept else none
            raise NotSupportedError(f"quantize: no weights of the model can become narrower{reasons}")
        total = sum(array.nbytes for array in contents.stored.values())
        is_external = contents.is_external or total > MAX_EMBEDDED_BYTES
        complete = folder / target.name
        written = write_model(contents.proto, contents.stored, complete, "quantize", is_external, MIN_ELEMENTS * 4)
        check_loads(complete, limits)
        new_bytes = sum(file.stat().st_size for file in written)
        files = _move(written, target)
    return _compare(source, model, files, to, feeds, layers, kept, old_bytes, new_bytes, seconds, limits)


def _compare(
    source: Model,
    model: Any,
    files: Sequence[Path],
    to: Form,
    feeds: Sequence[Mapping[str, np.ndarray]],
    layers: Sequence[NarrowedLayer],
    kept: Sequence[KeptWeights],
    old_bytes: int,
    new_bytes: int,
    seconds: float,
    limits: ModelLimits,
) -> Quantization:
    name = model if isinstance(model, (str, os.PathLike)) else "the model"
    # Where no block fits, weights get 8 bits instead of 4.
    types = sorted({layer.form.partition(",")[0] for layer in layers})
    title = f"{Path(name).name} as {to if to == 'static' else ' and '.join(types)}"
    errors: dict[str, ResultErrors] = {}
    notes: tuple[str, ...] = ()
    result: dict[str, Any] = {}
    if feeds:
        with report_work("comparing layers"):
            results = {layer.result: layer.new_result or layer.result for layer in layers}
            errors, notes = layers_or_note(source, Model.load(files[0], limits), results, feeds[0])
        with report_work("comparing outputs"):
            outputs, before, after = compare_outputs(model, files[0], feeds, seconds, limits)
        result = {"outputs": tuple(outputs), "old_seconds": before, "new_seconds": after, "samples": len(feeds)}
    else:
        notes = ("without sample inputs, only weights were compared",)
    unknown = ResultErrors(float("nan"), float("nan"))
    rows = []
    for layer in layers:
        change = errors.get(layer.result, unknown)
        rows.append(LayerDifference(layer.title, layer.weights, layer.form, layer.error, change.own, change.total))
    return Quantization(title, tuple(files), old_bytes, new_bytes, tuple(rows), tuple(kept), notes=notes, **result)


def _feeds(source: Model, inputs: Samples | None) -> list[dict[str, np.ndarray]]:
    """The samples, checked: an array of the right type and shape for each input."""
    if inputs is None:
        return []
    samples = [inputs] if isinstance(inputs, Mapping) else inputs
    require(isinstance(samples, Iterable), f"quantize: inputs must map names to arrays, got {short_repr(inputs)}")
    arguments = {argument.name: argument for argument in arguments_of(source, None)}
    feeds = []
    for sample in samples:
        require(isinstance(sample, Mapping), f"quantize: a sample must map names to arrays, got {short_repr(sample)}")
        require_names("quantize: inputs", sample, arguments)
        arrays = {name: np.asarray(value) for name, value in sample.items()}
        for name, array in arrays.items():
            arguments[name].check(array, f"quantize: input {name!r}")
        feeds.append(arrays)
    require(bool(feeds), "quantize: inputs must have at least one sample, got none")
    return feeds


def _check_names(contents: ModelContents, exclude: Sequence[str]) -> None:
    """Require that each pattern matches a node or weights."""
    graph = contents.proto.graph
    names = [*(node.name for node in graph.node), *(tensor.name for tensor in graph.initializer)]
    for pattern in exclude:
        require(
            is_excluded(names, [pattern]),
            f"quantize: exclude has {short_repr(pattern)}, which matches no node and no weights",
        )


def _check_engine(source: Model) -> None:
    """Require operators that ONNX Runtime has: its tool runs the model."""
    for node in missing_nodes(source.proto):
        title = f"{node.op_type} {node.name!r}" if node.name else node.op_type
        raise NotSupportedError(
            f"quantize: 'static' measures ranges in ONNX Runtime, which does not have {title} of the domain {node.domain!r}; "
            "the other forms narrow weights alone, without it"
        )


def _raise_for_halves(contents: ModelContents, to: Form) -> None:
    """Convert a model with float16 constants to the operator set whose `DequantizeLinear` makes float16."""
    if contents.has_halves:
        contents.raise_opset(FIRST_HALF_OPSET, f"the form {to!r} of float16 weights")


def _check_target(model: Any, source: Model, path: str | Path) -> tuple[Path, int]:
    """Return the file to write and the bytes of the original; reject a file of the original."""
    target, mode = resolve_links(path)
    rule = f"quantize: the path must be a regular file, got {path}"
    require(mode is None or stat.S_ISREG(mode), rule)
    require(target.name != "", rule)
    if not isinstance(model, (str, os.PathLike)):
        size = len(model) if isinstance(model, (bytes, bytearray, memoryview)) else model.ByteSize()
        return target, size
    original = Path(os.path.realpath(model))
    data = [original.parent / location for location in external_files(source.proto)]
    own = {original, *map(Path, map(os.path.realpath, data))}
    new = {target, target.with_name(f"{target.name}.data")}
    if both := own & new:
        require(False, f"quantize: {min(both).name} is a file of the original, which must not be replaced; got {path}")
    return target, sum(file.stat().st_size for file in own if file.is_file())


def _existing(folder: Path, path: str | Path) -> Path:
    if not folder.is_dir():
        raise DataError(f"{path}: {os.strerror(errno.ENOENT)}")
    if not os.access(folder, os.W_OK):
        raise DataError(f"{path}: {os.strerror(errno.EACCES)}")
    return folder


def _move(written: Sequence[Path], target: Path) -> list[Path]:
    """Move the new files to their places: the weights first, since the model refers to them."""
    files = [target.with_name(file.name) for file in written]
    try:
        for file, place in reversed(list(zip(written, files, strict=True))):
            os.replace(file, place)
    except OSError as error:
        raise DataError(f"{target}: {error.strerror or error}") from None
    return files
