"""Calls of every composite, right and wrong, also with data types beyond the specification: an engine against the reference.

A call is right, or has wild arguments, or operands with extreme values: NaN, infinities, indices out of range. Each gives an
error that names the composite, or results of the declared types and shapes. Results are compared where they are defined: of
right calls, and of those whose integers alone are extreme.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import numpy as np
from samples import Call
from support.graphs import compute_again

import opweave as ow
from fuzz.builder import LARGEST, RandomMake, record, spoiled
from fuzz.frame import Campaign, Finding
from opweave import composites
from opweave.core.dtypes import ANY, FLOATS, INFO, extend_types
from opweave.lazy.custom_call import CustomOp

OUTCOMES = frozenset({"refused", "large", "agreed", "computed"})

MESSAGE = 4000
"""Maximum number of characters of an error."""

TOLERANCES = {"float64": 1e-4, "float32": 1e-4, "float16": 3e-2, "bfloat16": 2e-1}
"""How far floats may be apart, relative to the largest of a result; sums of bfloat16 are rounded after each operation."""


# Calls of composites that have no witness in `support.composite_cases` and `support.window_cases` -----------------------


def _image(make: RandomMake) -> np.ndarray:
    return make.array("x", [make.integer(1, 2), make.integer(1, 3), make.integer(1, 6), make.integer(1, 6)])


def _grid_sample(make: RandomMake) -> Call:
    image = _image(make)
    grid = make.array("x", [image.shape[0], make.integer(1, 4), make.integer(1, 4), 2], -2, 2) / 2
    return Call(
        image,
        grid.astype(image.dtype),
        mode=make.choice(["linear", "nearest", "cubic"]),
        padding_mode=make.choice(["zeros", "border", "reflection"]),
        align_corners=make.boolean(),
    )


def _regions(make: RandomMake) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    image, count = _image(make), make.integer(1, 4)
    # Not on edges between elements, where the last bit decides.
    boxes = make.random.integers(-16, 48, (count, 4)) / 8 + 0.03125
    images = make.random.integers(0, image.shape[0], count).astype(make.choice(["int32", "int64"]))
    return image, boxes.astype(image.dtype), images


def _roi_align(make: RandomMake) -> Call:
    sizes = {"output_height": make.integer(1, 3), "output_width": make.integer(1, 3)}
    return Call(*_regions(make), mode=make.choice(["avg", "max"]), sampling_ratio=make.integer(1, 3), **sizes)


def _crop_and_resize(make: RandomMake) -> Call:
    image, boxes, images = _regions(make)
    size = [make.integer(1, 4), make.integer(1, 4)]
    return Call(image, (boxes / 8).astype(image.dtype), images, size, extrapolation_value=make.number(-2, 2))


def _max_roi_pool(make: RandomMake) -> Call:
    image, boxes, images = _regions(make)
    rois = np.concatenate([images[:, None].astype(image.dtype), boxes], 1)
    return Call(image, rois, pooled_shape=[make.integer(1, 3), make.integer(1, 3)])


def _response(make: RandomMake) -> Call:
    return Call(_image(make), make.integer(1, 5), alpha=make.number(0, 1))


def _thresholded(make: RandomMake) -> Call:
    return Call(make.array("x", make.shape()), alpha=make.number(0, 2))


def _key(make: RandomMake) -> np.ndarray:
    return make.random.integers(0, 2**32, 4, np.uint32)


def _random_uniform(make: RandomMake) -> Call:
    return Call(_key(make), list(make.shape(0, 4)), low=make.number(-2, 0), high=make.number(0, 2))


def _random_normal(make: RandomMake) -> Call:
    return Call(_key(make), list(make.shape(0, 4)), mean=make.number(-2, 2), scale=make.number(0, 2))


def _bernoulli(make: RandomMake) -> Call:
    return Call(make.array("x", make.shape(0, 4), 0, 1), _key(make))


def _multinomial(make: RandomMake) -> Call:
    return Call(make.array("x", [make.integer(1, 3), make.integer(1, 6)]), _key(make), make.integer(1, 5))


Maker = Callable[[RandomMake], Call]

OTHERS: dict[str, Maker] = {
    "bernoulli": _bernoulli,
    "crop_and_resize": _crop_and_resize,
    "grid_sample": _grid_sample,
    "local_response_normalization": _response,
    "max_roi_pool": _max_roi_pool,
    "multinomial": _multinomial,
    "random_normal": _random_normal,
    "random_uniform": _random_uniform,
    "roi_align": _roi_align,
    "thresholded_relu": _thresholded,
}

WITHOUT_CALLS = {"random_key"}
"""Composites with a state, whose results differ from call to call."""


@cache
def makers() -> dict[CustomOp[Any], tuple[Maker, tuple[str, ...]]]:
    """Composite -> what makes a call, and the data types of its operand "x"."""
    from support.composite_cases import CASES
    from support.window_cases import MAKERS

    def of_case(op: CustomOp[Any], make: RandomMake) -> Call:
        return CASES[op].make(make)[0]

    def of_window(op: CustomOp[Any], make: RandomMake) -> Call:
        return MAKERS[op](make.rng).call

    table: dict[CustomOp[Any], tuple[Maker, tuple[str, ...]]] = {}
    for name in composites.__all__:
        op = getattr(composites, name)
        if not isinstance(op, CustomOp) or name in WITHOUT_CALLS:
            continue
        if op in CASES:
            table[op] = partial(of_case, op), tuple(CASES[op].types)
        elif op in MAKERS:
            table[op] = partial(of_window, op), ("float32",)
        else:
            table[op] = OTHERS[name], FLOATS
    return table


# Wild and extreme arguments ------------------------------------------------------------------------------------------


def changed(call: Call, change: Callable[[np.ndarray], np.ndarray]) -> Call:
    """The call with other arrays."""
    args = [change(value) if isinstance(value, np.ndarray) else value for value in call.args]
    kwargs = {name: change(value) if isinstance(value, np.ndarray) else value for name, value in call.kwargs.items()}
    return Call(*args, **kwargs)


def extreme(rng: random.Random, array: np.ndarray, kinds: str) -> np.ndarray:
    """The array with some extreme values, if it is of one of the kinds "f", "i" and "u"."""
    if array.dtype.kind not in kinds or not array.size or rng.random() < 0.3:
        return array
    if array.dtype.kind == "f":
        values: list[float] = [np.nan, np.inf, -np.inf, -0.0, float(np.finfo(array.dtype).max), 1e-40, 2.0**31]
    else:
        info = np.iinfo(array.dtype)
        values = [
            info.min,
            info.max,
            info.max - 1,
            0,
            *(value for value in (-1, 2**31 - 1, 2**31) if value <= info.max),
        ]
    array = array.copy()
    for _ in range(rng.randint(1, 3)):
        with np.errstate(all="ignore"):
            array.reshape(-1)[rng.randrange(array.size)] = np.array(rng.choice(values)).astype(array.dtype)
    return array


def widest(rng: random.Random, data_type: str, types: tuple[str, ...]) -> str:
    """A data type beyond the specification that operands of these types may have; the type itself if there is none."""
    takes_all = set(types) >= set(ANY)
    return rng.choice([t for t in extend_types(types, takes_all) if t not in ANY] or [data_type])  # type: ignore[arg-type]


def beyond(array: np.ndarray, data_type: str, other: str) -> np.ndarray:
    """Arrays of `data_type` in another one, of which all values are defined."""
    if array.dtype.name != data_type:
        return array
    info, wide = INFO[other], array.astype("float64")
    if info.kind == "f":
        return np.asarray(np.clip(wide, -info.largest, info.largest).astype(other))
    return np.asarray(np.clip(np.nan_to_num(wide), info.lowest, info.highest).astype(other))


def in_float32(call: Call) -> Call | None:
    """The call with float32 in place of float64 and bfloat16; None if it has neither."""
    types = ("float64", "bfloat16")
    arrays = [*call.args, *call.kwargs.values()]
    if not any(isinstance(array, np.ndarray) and array.dtype.name in types for array in arrays):
        return None
    return changed(call, lambda array: array.astype("float32") if array.dtype.name in types else array)


# Cases ---------------------------------------------------------------------------------------------------------------


@cache
def contexts(device: str, backend: str) -> tuple[ow.MLContext, ow.MLContext]:
    """The reference, and a device, for all data types."""
    return (
        ow.ml.create_context(device="reference", backend="reference", drafts=True),
        ow.ml.create_context(device=device, backend=backend, drafts=True),
    )


def case_of(rng: random.Random) -> tuple[CustomOp[Any], Call, str]:
    """A composite, a call, and what is special about it: empty, "indices", "extreme", "wild" or "beyond"."""
    table = makers()
    op = rng.choice(list(table))
    make, types = table[op]
    data_type = rng.choice(types)
    call = make(RandomMake(rng, {"x": data_type}))
    kind = rng.choice(["", "", "indices", "extreme", "wild", "wild", "beyond", "beyond"])
    if kind == "beyond":
        from opweave.core.dtypes import numpy_type

        other = widest(rng, data_type, types)
        numpy_type(other)
        call = changed(call, lambda array: beyond(array, data_type, other))
    elif kind in ("indices", "extreme"):
        call = changed(call, lambda array: extreme(rng, array, "iu" if kind == "indices" else "fiu"))
    elif kind == "wild":
        call = spoiled(rng, op, call)
    return op, call, kind


def _outputs(result: Any) -> dict[str, Any]:
    return {f"y{k}": one for k, one in enumerate(result if isinstance(result, tuple) else (result,))}


def case(rng: random.Random, number: int, device: str, backend: str) -> str:
    """Build a call on the reference and on a device, run both, and compare."""
    reference, context = contexts(device, backend)
    op, call, kind = case_of(rng)
    try:
        builder, result, arrays = record(reference, op, call)
    except ow.MLError as error:
        text = str(error)
        if kind in ("", "indices", "extreme"):
            raise Finding(f"{op.name}({call}) is right, and refused: {text}") from error
        if not text.startswith(op.name) or len(text) > MESSAGE:
            raise Finding(f"{op.name}({call}): the message is {text[:300]!r}") from error
        return "refused"
    outputs = _outputs(result)
    if max(one.desc.element_count for one in outputs.values()) > LARGEST:
        return "large"
    graph = builder.build(outputs)
    wanted = _computed(reference, graph, arrays, f"{op.name}({call}) on the reference")
    other, twin, _ = record(context, op, call)
    results = _computed(context, other.build(_outputs(twin)), arrays, f"{op.name}({call})")
    for name, operand in outputs.items():
        for where, computed in {"the reference": wanted, device: results}.items():
            array = None if computed is None else computed[name]
            if array is not None and (array.dtype.name, array.shape) != (operand.data_type, operand.shape):
                raise Finding(f"{op.name}({call}) should be {operand.desc}, {where} gives {array.dtype}{array.shape}")
    if kind in ("extreme", "wild") or wanted is None or results is None:
        return "computed"
    for arrays_of in (wanted, results):
        _clear_unused(op, call, arrays_of)
    types = {array.dtype.name for array in (*arrays.values(), *wanted.values()) if array.dtype.name in TOLERANCES}
    tolerance = max((TOLERANCES[name] for name in types), default=1e-4)
    for name, expected in wanted.items():
        if what := disagreement(results[name], expected, tolerance):
            raise Finding(f"{op.name}({call}) [{kind}]: {name}: {what}")
    if kind == "beyond" and op is not composites.bit_cast and (plain := in_float32(call)) is not None:
        builder, result, arrays = record(reference, op, plain)
        base = _computed(reference, builder.build(_outputs(result)), arrays, f"{op.name}({plain}) on the reference")
        if base is not None:
            _clear_unused(op, call, base)
        for name, expected in (base or {}).items():
            if what := disagreement(wanted[name].astype(expected.dtype), expected, tolerance):
                raise Finding(f"{op.name}({call}) is not what it is in float32: {name}: {what}")
    return "agreed"


def _clear_unused(op: CustomOp[Any], call: Call, results: Mapping[str, np.ndarray]) -> None:
    """Clear the positions of a cache of keys and values that no key has, whose contents are not specified."""
    if op is composites.group_query_attention and (lengths := call.kwargs.get("lengths")) is not None:
        for batch, length in enumerate(lengths):
            for cache in ("y1", "y2"):
                results[cache][batch, :, length + call.args[0].shape[1] :] = 0


def _computed(
    context: ow.MLContext, graph: Any, arrays: dict[str, np.ndarray], what: str
) -> dict[str, np.ndarray] | None:
    """Compute a graph; None for an error with a message."""
    try:
        with np.errstate(all="ignore"):
            results = compute_again(context, graph, arrays)
    except ow.MLError as error:
        if not str(error).strip() or len(str(error)) > MESSAGE:
            raise Finding(f"{what}: the message is {str(error)[:300]!r}") from error
        return None
    return results


def disagreement(got: np.ndarray, wanted: np.ndarray, tolerance: float) -> str:
    """How results differ; empty where they do not."""
    if INFO[wanted.dtype.name].kind != "f":
        wrong = got != wanted
    else:
        g, w = got.astype(np.float64), wanted.astype(np.float64)
        regular = np.isfinite(w)
        bound = tolerance * (1 + np.max(np.abs(w), where=regular, initial=0))
        with np.errstate(invalid="ignore"):
            wrong = np.where(regular, ~(np.abs(g - w) <= bound), ~((g == w) | (np.isnan(g) & np.isnan(w))))
    if not wrong.any():
        return ""
    at = tuple(int(k) for k in np.argwhere(wrong)[0])
    return f"{int(wrong.sum())} of {wrong.size} elements differ, first at {at}: {got[at]!r}, not {wanted[at]!r}"


def describe(rng: random.Random, number: int) -> str:
    """The call of a case."""
    op, call, kind = case_of(rng)
    return f"{kind} {op.name}({call})"


def obstacle(device: str, backend: str) -> str:
    """Why a device cannot run here; empty if it can."""
    try:
        contexts(device, backend)
    except ow.MLError as error:
        return str(error)
    return ""


def _campaign(name: str, device: str, backend: str, count: int, short: int, **limits: Any) -> Campaign:
    return Campaign(
        name,
        f"calls of every composite, right, wrong, extreme and of further data types: {device} ({backend}) against reference",
        partial(case, device=device, backend=backend),
        count=count,
        short=short,
        outcomes=OUTCOMES,
        describe=describe,
        needs=(backend,) if backend in ("onnxruntime", "openvino") else (),
        obstacle=partial(obstacle, device, backend),
        **limits,
    )


_ALL = (
    _campaign("composites", "cpu", "onnxruntime", 100_000, 100, batch=500, memory=None),
    _campaign("composites-openvino", "cpu", "openvino", 20_000, 40, batch=250, memory=None),
    _campaign("composites-gpu-software", "gpu-software", "webgpu", 20_000, 40, batch=250, memory=None, seconds=120),
    _campaign("composites-cuda", "cuda", "cuda", 10_000, 40, batch=250, memory=None, seconds=120),
)
CAMPAIGNS = {campaign.name: campaign for campaign in _ALL}
