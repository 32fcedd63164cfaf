"""`Predictor`: an ONNX model as a picklable function of batches, for the processes of a cluster."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from .. import memory
from ..backends import Precision, devices
from ..context.context import ml
from ..onnx.model.arguments import Argument, shape_text
from ..onnx.session.parts import parts_of
from ..onnx.session.session import InferenceSession
from ..support.errors import MLError, ValidationError, require
from ..support.hints import names as meant_names
from ..support.names import short_repr
from ..support.processors import share_processors

SEPARATE_ROWS = "rows that are separate arrays"
"""The reason for copying the rows of a column into one array."""

FIXED_ROWS = "a model with a fixed number of rows"
"""The reason for copies if a batch has a different number of rows: the last rows are padded, and results concatenated."""

OTHER_AXIS = "rows that are not along the first axis of an input"
"""The reason for a copy of a column into the layout of the model (`Predictor(axes=)`)."""


class Predictor:
    """Runs an ONNX model on batches: dictionaries of columns, which are arrays with a row for each example.

    It works in a single process, and in each process of a cluster: a pickle has the arguments alone.

        dataset.map_batches(
            Predictor,
            fn_constructor_args=("model.onnx",),
            fn_constructor_kwargs={"inputs": {"image": "x"}, "outputs": {"y": "label"}},
            compute=ray.data.ActorPoolStrategy(size=4), num_cpus=2, batch_size=64, batch_format="numpy",
        )

    Args:
        model: the path of an ONNX file that each machine can read; the bytes of one; or a reference to bytes in Ray's object
            store. With `ray.put(np.fromfile(path, np.uint8))`, all processes of a machine share the memory of the weights.
        inputs: the model's input for each column that it reads, {column: input}. Default: columns with the inputs' names.
        outputs: the column for each output that is computed, {output: column}. Default: all outputs, under their names.
        axes: the axis of the rows, {input or output of the model: axis}, for those where it is not the first one; negative
            numbers count from the last axis. Columns always have their rows first: `axes={"h": 1}` makes an output `h` of
            shape [layers, rows, width] a column of shape [rows, layers, width], which is a view. A column for such an input
            is copied if it is not a view of the model's layout.
        threads: maximum number of threads of an operation on the CPU. In a worker of Ray, default and maximum are the
            processors that Ray has assigned to the worker (`num_cpus`). Elsewhere as for `create_context`.
        device: the name of a device of `opweave.devices()` to run on. In a worker of Ray, "gpu" and "cuda" are the GPU that
            Ray has assigned to the worker (`num_gpus`).
        precision: how engines compute float32 operations, as in `create_context`.
        operations: declares custom operations in each process: the name of a module to import, or a function to call. The
            WebAssembly modules that a function refers to are pickled with it.

    Raises:
        DataError: the model cannot be read.
        ValidationError: an argument is wrong: the model has no such input or output, Ray has assigned fewer processors or
            no GPU.
        NotSupportedError: there is no such device here, or it cannot compute in this precision.

    A model with a fixed number of rows runs several times, the last time with padding; others run once on all rows.

    >>> import onnx.parser
    >>> model = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17]>
    ...     g (float[batch, 2] x) => (float[batch, 2] y) { y = Relu(x) }''')
    >>> predict = Predictor(model.SerializeToString(), inputs={"feature": "x"})
    >>> batch = predict({"id": np.array([7, 8]), "feature": np.float32([[-1, 1], [2, -2]])})
    >>> batch["id"].tolist(), batch["y"].tolist()
    ([7, 8], [[0.0, 1.0], [2.0, 0.0]])
    """

    def __init__(
        self,
        model: Any,
        inputs: Mapping[str, str] | None = None,
        outputs: Mapping[str, str] | None = None,
        *,
        axes: Mapping[str, int] | None = None,
        threads: int | None = None,
        device: str = "cpu",
        precision: Precision = "float32",
        operations: str | Callable[[], object] | None = None,
    ) -> None:
        if isinstance(model, (str, os.PathLike)):
            model = os.path.abspath(model)  # other processes have other working directories
        make = partial(
            type(self), axes=axes, threads=threads, device=device, precision=precision, operations=operations
        )
        self._recipe = make, (model, inputs, outputs)
        self._session = open_session(model, threads, device, precision, operations)
        parts = parts_of(self._session)
        self._axes = _axes(axes, [*parts.inputs, *parts.outputs.values()])
        rows_first = [_rows_first(argument, self._axes) for argument in parts.inputs]
        self._rows = _fixed_rows(rows_first)
        self._inputs = _by_column(rows_first, inputs)
        self._outputs = _by_output(parts.outputs, outputs)
        self._names = list(self._outputs)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self._recipe

    def __repr__(self) -> str:
        if not hasattr(self, "_outputs"):  # Ray also prints objects whose __init__ failed
            return object.__repr__(self)
        return f"<Predictor {list(self._inputs)} -> {list(self._outputs.values())}: {self._session!r}>"

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Run the model on a batch.

        Args:
            batch: the columns, each an array of shape [rows, …]. C-contiguous arrays are read in place, even read-only ones.

        Returns:
            The columns that are not inputs, unchanged, and the columns of the outputs.

        Raises:
            ValidationError: a column is missing, is too long or too short, or does not fit the model. The message names
                the column, and the row if other rows fit.
            OperationError: the engine failed. The message names the row if other rows can be computed.
        """
        if not isinstance(batch, Mapping):
            # A data frame of pandas, or a table of Arrow.
            hint = "; pass batch_format='numpy' to map_batches" if hasattr(batch, "columns") else ""
            raise ValidationError(f"a batch must map columns to arrays, got {type(batch).__name__}{hint}")
        feed: dict[str, np.ndarray] = {}
        for column, argument in self._inputs.items():
            if column not in batch:
                columns = f"its columns: {list(batch)}"
                raise ValidationError(f"the batch has no column {column!r} (input {argument.name!r}); {columns}")
            feed[argument.name] = _array(column, batch[column], argument)
        result = {column: values for column, values in batch.items() if column not in self._inputs}
        rows = len(next(iter(feed.values())))
        if result:
            self._check_others(result, rows)
        if any(len(array) != rows for array in feed.values()):
            counts = {column: len(feed[argument.name]) for column, argument in self._inputs.items()}
            raise ValidationError(f"columns must have the same number of rows, got {counts}")
        outputs = self._run(feed, rows)
        for output, column in self._outputs.items():
            result[column] = outputs[output]
        return result

    def _check_others(self, columns: Mapping[str, Any], rows: int) -> None:
        """Require that columns other than inputs have `rows` rows, and no name of an output's column."""
        for output, column in self._outputs.items():
            if column in columns:
                raise ValidationError(f"output {output!r} goes to {column!r}, which is a column of the batch already")
        for column, values in columns.items():
            count = _count(values)
            if count != rows:
                got = "no rows" if count is None else count
                raise ValidationError(f"column {column!r} must have as many rows as the inputs, {rows}, got {got}")

    def _run(self, feed: Mapping[str, np.ndarray], rows: int) -> dict[str, Any]:
        if not rows:
            declared, sizes = parts_of(self._session).outputs, self._sizes_of(feed)
            return {name: _no_rows(_rows_first(declared[name], self._axes), sizes) for name in self._outputs}
        size = self._rows or rows
        if rows == size:
            return self._run_part(feed, 0)
        parts = []
        for start in range(0, rows, size):
            part = {name: array[start : start + size] for name, array in feed.items()}
            if (missing := start + size - rows) > 0:
                part = {name: np.concatenate([a, np.repeat(a[-1:], missing, axis=0)]) for name, a in part.items()}
                memory.copies.add(sum(array.nbytes for array in part.values()), FIXED_ROWS, len(part))
            parts.append(self._run_part(part, start))
        whole = {name: np.concatenate([part[name] for part in parts])[:rows] for name in self._outputs}
        memory.copies.add(sum(array.nbytes for array in whole.values()), FIXED_ROWS, len(whole))
        return whole

    def _sizes_of(self, feed: Mapping[str, np.ndarray]) -> dict[int | str | None, int]:
        """The sizes of the inputs' named dimensions; inputs without a declared rank have none."""
        shapes = [(a.dims, feed[a.name].shape) for a in self._inputs.values() if a.dims is not None]
        return {
            dim: size for dims, shape in shapes for dim, size in zip(dims, shape, strict=True) if isinstance(dim, str)
        }

    def _run_part(self, feed: Mapping[str, np.ndarray], first: int) -> dict[str, Any]:
        """Run the model on one batch of rows. `first` is the index of the first row, for messages."""
        rows, names = len(next(iter(feed.values()))), self._names
        try:
            results = self._session.run(names, self._as_declared(feed))
        except MLError as error:
            for row in range(rows):
                alone = {name: np.repeat(array[row : row + 1], self._rows or 1, axis=0) for name, array in feed.items()}
                try:
                    self._session.run(names, self._as_declared(alone))
                except MLError as cause:
                    columns = ", ".join(f"{c!r} (input {a.name!r})" for c, a in self._inputs.items())
                    raise type(cause)(f"row {first + row} of the columns {columns}: {cause}") from error
            raise
        outputs = dict(zip(names, results, strict=True))
        for name, values in outputs.items():
            axis, shape = self._axes.get(name, 0), np.shape(values)
            if not (-len(shape) <= axis < len(shape) and shape[axis] == rows):
                place = "" if axis == 0 else f" along axis {axis}"
                others = [other for other, size in enumerate(shape) if size == rows]
                hint = f"; axes={{{name!r}: {others[0]}}} says that they are along axis {others[0]}" if others else ""
                text = (
                    f"output {name!r} must have a row for each of the {rows} rows{place}, got shape {list(shape)}{hint}"
                )
                raise ValidationError(text)
            if axis:
                outputs[name] = np.moveaxis(values, axis, 0)
        return outputs

    def _as_declared(self, feed: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """The arrays with their rows along the axes that the model declares."""
        if not self._axes.keys() & feed.keys():
            return feed
        turned = {}
        for name, array in feed.items():
            turned[name] = np.moveaxis(array, 0, self._axes.get(name, 0))
            if not turned[name].flags.c_contiguous:
                memory.copies.add(array.nbytes, OTHER_AXIS)
                turned[name] = np.ascontiguousarray(turned[name])
        return turned


def open_session(
    model: Any,
    threads: int | None,
    device: str,
    precision: Precision,
    operations: str | Callable[[], object] | None,
) -> InferenceSession:
    """Open a session in a process of a cluster, or any other; takes the arguments of `Predictor`."""
    context = ml.create_context(device=assigned_device(device), threads=threads, precision=precision)
    _take_share(context.backend.threads)
    if isinstance(operations, str):
        import_module(operations)
    elif operations is not None:
        require(callable(operations), f"operations must be a module's name or a function, got {short_repr(operations)}")
        operations()
    return InferenceSession(_content(model), context=context)


def is_gpu(device: str) -> bool:
    """Whether a device is a GPU, by the first part of its name, since it may be on another machine.

    >>> is_gpu("gpu:1"), is_gpu("cuda"), is_gpu("cpu"), is_gpu("gpu-software")
    (True, True, False, False)
    """
    kind = device.partition(":")[0]
    if kind in ("cpu", "gpu"):  # without a look for devices, which loads the back ends
        return kind == "gpu"
    return any(device.kind == "gpu" and device.name.partition(":")[0] == kind for device in devices())


def gpus(device: str = "gpu") -> list[str]:
    """The names of this machine's GPUs of a kind by number: "gpu", "gpu:1", …"""
    pattern = rf"{re.escape(device.partition(':')[0])}(:\d+)?"
    return [item.name for item in devices() if item.available and re.fullmatch(pattern, item.name)]


def assigned_device(device: str) -> str:
    """The device to run on: in a worker of Ray, "gpu" is the GPU assigned to the worker.

    Ray hides other GPUs from CUDA alone, whose first GPU is then the assigned one. Of other kinds, all workers of a machine
    would run on the first GPU.
    """
    worker = _ray_worker()
    if worker is None or ":" in device or not is_gpu(device):
        return device
    numbers = worker.get_accelerator_ids()["GPU"]
    share = "num_gpus=1, or a part of 1 for workers that share one"
    require(bool(numbers), f"device {device!r} needs a GPU from Ray, which has assigned none to this worker: {share}")
    if device != "gpu":
        return device
    rule = f"Ray calls the GPU of this worker {numbers[0]!r}; device 'gpu' needs numbers in CUDA_VISIBLE_DEVICES"
    require(numbers[0].isdecimal(), rule)
    names = gpus()
    return names[int(numbers[0]) % len(names)] if names else device


def _content(model: Any) -> Any:
    """Resolve references to Ray's object store, and view arrays as bytes."""
    ray = sys.modules.get("ray")
    if ray is not None and isinstance(model, ray.ObjectRef):
        model = ray.get(model)
    return np.ascontiguousarray(model).data if isinstance(model, np.ndarray) else model


def _take_share(threads: int | None) -> None:
    """In a worker of Ray, use the assigned processors alone."""
    worker = _ray_worker()
    if worker is None:
        return
    assigned = worker.get_assigned_resources().get("CPU", 1)  # actors may have none; one is fair
    share = max(1, int(assigned))
    rule = f"threads must be within num_cpus: {threads} of them, and Ray has assigned {assigned:g} to this worker"
    require(threads is None or threads <= share, rule)
    share_processors(share)


def _ray_worker() -> Any:
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized() or ray.get_runtime_context().worker.mode != ray.WORKER_MODE:
        return None
    return ray.get_runtime_context()


def _axes(axes: Any, declared: Sequence[Argument]) -> dict[str, int]:
    """The axes of rows other than 0, not negative where the rank is known."""
    if axes is None:
        return {}
    ranks = {argument.name: None if argument.dims is None else len(argument.dims) for argument in declared}
    require(isinstance(axes, Mapping), f"axes must map inputs and outputs to axes, got {short_repr(axes)}")
    checked = {}
    for name, axis in axes.items():
        hint = meant_names([name], list(ranks)) if isinstance(name, str) else ""
        text = (
            f"axes: {short_repr(name)} is neither an input nor an output of the model ({short_repr(list(ranks))}){hint}"
        )
        require(name in ranks, text)
        is_axis = isinstance(axis, int | np.integer) and not isinstance(axis, bool)
        require(is_axis, f"axes[{name!r}] must be an integer, got {short_repr(axis)}")
        rank = ranks[name]
        if rank is None:
            require(not any(a.name == name and not a.element_type for a in declared), f"axes: {name!r} is no tensor")
        else:
            rule = f"axes[{name!r}] must be in [{-rank}, {rank}), as it has {rank} axes, got {axis}"
            require(-rank <= axis < rank, rule)
        checked[name] = int(axis) if rank is None else int(axis) % rank
    return {name: axis for name, axis in checked.items() if axis}


def _rows_first(argument: Argument, axes: Mapping[str, int]) -> Argument:
    """An input or output as columns have it: with its rows along the first axis."""
    axis, dims = axes.get(argument.name, 0), argument.dims
    if not axis or dims is None:
        return argument
    return argument.with_dims((dims[axis], *(dim for other, dim in enumerate(dims) if other != axis)))


def _by_column(declared: Sequence[Argument], inputs: Mapping[str, str] | None) -> dict[str, Argument]:
    """The inputs of a model by column, with any number of rows."""
    names = [argument.name for argument in declared]
    columns = _name_mapping("inputs", {name: name for name in names} if inputs is None else inputs)
    input_names = list(columns.values())
    _check_known("{column: input}", "input", columns, input_names, names)
    require(
        sorted(input_names) == sorted(names),
        f"inputs must give each input of the model once; it has {names}, got {input_names}",
    )
    by_name = {}
    for argument in declared:
        dims = argument.dims
        has_rows = bool(argument.element_type) and dims != ()
        require(has_rows, f"input {argument.name!r} is {argument.type}{shape_text(dims or ())}, which has no rows")
        by_name[argument.name] = argument.with_dims(None if dims is None else (None, *dims[1:]))
    return {column: by_name[name] for column, name in columns.items()}


def _by_output(declared: Mapping[str, Argument], outputs: Mapping[str, str] | None) -> dict[str, str]:
    columns = _name_mapping("outputs", {name: name for name in declared} if outputs is None else outputs)
    _check_known("{output: column}", "output", columns, list(columns), list(declared))
    require(len(set(columns.values())) == len(columns), f"outputs must go to different columns, got {columns}")
    return columns


def _name_mapping(label: str, mapping: Any) -> dict[str, str]:
    fits = (
        isinstance(mapping, Mapping) and all(isinstance(n, str) for pair in mapping.items() for n in pair) and mapping
    )
    require(bool(fits), f"{label} must map names to names, got {short_repr(mapping)}")
    return dict(mapping)


def _check_known(
    form: str, kind: str, columns: Mapping[str, str], names: Sequence[str], declared: Sequence[str]
) -> None:
    """Require names of the model in a mapping between columns and inputs, or outputs."""
    unknown = [name for name in names if name not in declared]
    if not unknown:
        return
    turned = {value: key for key, value in columns.items()}
    is_turned = all(name in declared for name in (turned if kind == "output" else columns))
    hint = f"; did you mean {turned}?" if is_turned else meant_names(unknown, declared)
    text = f"{kind}s maps {form}: {unknown[0]!r} is not an {kind} of the model ({short_repr(declared)}){hint}"
    raise ValidationError(text)


def _fixed_rows(inputs: Sequence[Argument]) -> int | None:
    """The number of rows that a model takes; None if it takes any."""
    sizes = {argument.name: argument.dims[0] for argument in inputs if argument.dims}
    fixed = {name: size for name, size in sizes.items() if isinstance(size, int)}
    require(
        len(set(fixed.values())) <= 1, f"inputs must have the same number of rows in the model, it declares {sizes}"
    )
    return next(iter(fixed.values()), None)


def _array(column: str, values: Any, argument: Argument) -> np.ndarray:
    """Convert a column to an array that fits an input, with any number of rows."""
    label = f"column {column!r} (input {argument.name!r})"
    if isinstance(values, np.ndarray) and (values.dtype != object or argument.dtype == object):
        require(values.ndim > 0, f"{label} must be an array of rows, got a scalar")
        try:
            argument.check(values, label)
        except ValidationError as error:
            raise _of_column(error, values, argument, label) from None
        return values
    if not np.iterable(values):
        raise ValidationError(f"{label} must be an array of rows, got {type(values).__name__}")
    rows = [np.asarray(row) for row in values]
    inner = argument.with_dims(None if argument.dims is None else argument.dims[1:])
    expected = argument.dtype
    if expected.kind != "O" and rows and all(row.dtype not in (expected, object) for row in rows):
        text = f"{label} must be {expected}, got rows of {rows[0].dtype}"
        raise ValidationError(f"{text}; np.asarray(rows, {expected.name!r}) converts them")
    for number, row in enumerate(rows):
        is_none = row.dtype == object and row.ndim == 0 and row.item() is None
        require(not is_none, f"{label}: row {number} is None")
        try:
            inner.check(row, f"{label}, row {number},")
        except ValidationError as error:
            raise _of_column(error, row, inner, f"{label}, row {number},") from None
        same = f"{label}, row {number}, must have the shape of row 0, {list(rows[0].shape)}, got {list(row.shape)}"
        require(row.shape == rows[0].shape, same)
    array = np.stack(rows) if rows else _no_rows(argument, {})
    memory.copies.add(array.nbytes, SEPARATE_ROWS)
    return array


def _of_column(error: ValidationError, array: np.ndarray, argument: Argument, label: str) -> ValidationError:
    """Name data types as NumPy does, in an error about a column."""
    got, expected = array.dtype, argument.dtype
    if got == expected or expected.kind == "O":
        return error
    hint = f"; .astype({expected.name!r}) converts it" if got.kind in "biuf" else ""
    return ValidationError(f"{label} must be {expected}, got {got}{hint}")


def _count(values: Any) -> int | None:
    """The number of rows of a column; None for a scalar."""
    try:
        return len(values)
    except TypeError:
        return None


def _no_rows(argument: Argument, sizes: Mapping[int | str | None, int]) -> np.ndarray:
    """A column without rows. Dimensions whose sizes are not known are 0."""
    shape = [dim if isinstance(dim, int) else sizes.get(dim, 0) for dim in (argument.dims or ())[1:]]
    return np.empty([0, *shape], argument.dtype)
