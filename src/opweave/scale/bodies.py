"""Bodies of requests and responses beside those of the protocol: pictures, and files of NumPy."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from ..onnx.model.arguments import Argument, shape_text
from ..support import formatting
from ..support.errors import MLError, NotSupportedError, ValidationError, import_extra, require
from ..support.hints import require_names
from ..support.names import short_repr
from .protocol import MAX_DIGITS, MAX_DIMENSIONS, InferenceRequest, Interface, datatype

IMAGES = {"image/jpeg": "JPEG", "image/png": "PNG"}
"""Formats of pictures, as Pillow calls them, by media type."""

NPY, NPZ = "application/x-npy", "application/x-npz"

KINDS = frozenset({*IMAGES, NPY, NPZ})
"""Media types of bodies that `parse` reads."""

ANSWERS = (NPY, NPZ, "image/png")
"""Media types that `respond` writes, if a client asks for them by name."""

FILE_STARTS = (
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"\x89PNG\r\n", "image/png"),
    (b"\x93NUMPY", NPY),
    (b"PK\x03\x04", NPZ),
    (b"GIF8", "image/gif"),
    (b"RIFF", "image/webp"),
    (b"BM", "image/bmp"),
)
"""The first bytes of files that clients send without their media type."""

CHANNELS = {1: "L", 3: "RGB", 4: "RGBA"}
"""Modes of Pillow by the number of channels."""

IMAGE_OPTIONS = ("scale", "mean", "std", "order", "fit", "width", "height", "output")

MAX_SIDE = 1 << 14
"""Maximum of the options `width` and `height`."""


def parse(
    kind: str, body: bytes, interface: Interface, options: Sequence[tuple[str, str]], max_bytes: int
) -> InferenceRequest:
    """Read the body of a request.

    Args:
        kind: the media type, one of `KINDS`.
        body: the uncompressed body.
        interface: the model.
        options: names and values of the URL's query.
        max_bytes: maximum bytes of arrays that the body may expand to.
    """
    names = [name for name, _ in options]
    allowed = IMAGE_OPTIONS if kind in IMAGES else ("output",)
    for name in names:
        require(name in allowed, f"a body of {kind} has the options {list(allowed)}, got {short_repr(name)}")
        require(name == "output" or names.count(name) == 1, f"option {name!r} is given twice")
    if kind in IMAGES:
        feed = {_only_input(interface, kind).name: _image(kind, body, interface.inputs[0], dict(options), max_bytes)}
    elif kind == NPY:
        argument = _only_input(interface, kind)
        feed = {argument.name: _require_type(_array(memoryview(body), "the body"), argument)}
    else:
        feed = _archive(body, interface, max_bytes)
    return InferenceRequest(None, feed, _outputs(interface, [value for name, value in options if name == "output"]))


def refuse_files(kind: str, body: bytes) -> None:
    """Raise an error about a body that is no request of the protocol, but a file, with the header that it lacks.

    Args:
        kind: the media type that the client names; empty for none.
        body: the body, which may be compressed.
    """
    actual = next((media_type for start, media_type in FILE_STARTS if body.startswith(start)), kind)
    if not (actual in KINDS or actual.startswith("image/")):
        return
    sent = f"the header Content-Type: {kind}" if kind else "no header Content-Type"
    rule = f"send Content-Type: {actual}" if actual in KINDS else f"pictures must be {' or '.join(IMAGES)}"
    raise ValidationError(f"the body looks like {actual}, but the request has {short_repr(sent)[1:-1]}; {rule}")


def _only_input(interface: Interface, kind: str) -> Argument:
    count = len(interface.inputs)
    require(count == 1, f"a body of {kind} is for models with one input; this model has {count}")
    return interface.inputs[0]


def _outputs(interface: Interface, wanted: Sequence[str]) -> dict[str, bool]:
    names = [output.name for output in interface.outputs]
    for name in wanted:
        require(name in names, f"there is no output {short_repr(name)}; the model has {names}")
    return dict.fromkeys(wanted or names, False)


def _require_type(array: np.ndarray, argument: Argument) -> np.ndarray:
    """Require the declared data type; the shape is checked with those of all requests."""
    label = f"input {argument.name!r}"
    require(argument.dtype.kind != "O", f"{label} has strings, which files of NumPy cannot hold here")
    # Files of NumPy have no data type for bfloat16: they store it as two bytes of raw data ("V2").
    is_bytes = (
        array.dtype.kind == "V" and argument.dtype.kind == "V" and array.dtype.itemsize == argument.dtype.itemsize
    )
    array = array.view(argument.dtype) if is_bytes else array
    rule = f"{label} must be {datatype(argument)}, which is {argument.type}, got an array of {array.dtype}"
    require(array.dtype == argument.dtype, rule)
    return array


# Files of NumPy ---------------------------------------------------------------------------------------------------------


def _array(data: memoryview, label: str) -> np.ndarray:
    """View the array of an .npy file in the memory of the body. No object is unpickled."""
    file = io.BytesIO(data[: 1 << 16])  # headers are shorter
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    try:
        version = np.lib.format.read_magic(file)
        require(version in read, f"{label}: .npy files must have version 1 or 2, got {version}")
        shape, is_fortran, dtype = read[version](file)
    except MLError:
        raise
    except Exception as error:
        raise ValidationError(f"{label} is not an .npy file: {short_repr(str(error))}") from None
    # Structures and texts are no tensors; bfloat16 is raw data ("V").
    is_plain = dtype.kind in "biufV" and dtype.names is None and dtype.subdtype is None and dtype.isnative
    require(is_plain, f"{label}: arrays must have numbers in the order of this machine, got {short_repr(str(dtype))}")
    # Bound the digits of lengths: the product of huge ones would take seconds, and no message could show it.
    is_short = len(shape) <= MAX_DIMENSIONS and all(0 <= length < 10**MAX_DIGITS for length in shape)
    require(is_short, f"{label}: no array can have the shape {short_repr(list(shape))}")
    start = file.tell()
    size = prod(shape) * dtype.itemsize
    rule = (
        f"{label}: an array of {dtype} and shape {short_repr(list(shape))} needs {size} bytes, got {len(data) - start}"
    )
    require(dtype.itemsize > 0 and size == len(data) - start, rule)
    array = np.frombuffer(data, dtype, prod(shape), start) if size else np.empty(0, dtype)
    try:
        return array.reshape(shape, order="F" if is_fortran else "C")
    except (ValueError, OverflowError):  # too many dimensions
        raise ValidationError(f"{label}: no array can have the shape {short_repr(list(shape))}") from None


def _archive(body: bytes, interface: Interface, max_bytes: int) -> dict[str, np.ndarray]:
    """Read the arrays of an .npz file, one for each input."""
    arguments = {argument.name: argument for argument in interface.inputs}
    feed = {}
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            entries = archive.infolist()
            sizes = sum(entry.file_size for entry in entries)
            if sizes > max_bytes:
                limit = formatting.size(max_bytes)
                raise ValidationError(f"the arrays of the body are larger than the limit of {limit}")
            for entry in entries:
                name = entry.filename.removesuffix(".npy")
                rule = f"there is no input {short_repr(name)}; the model has {list(arguments)}"
                require(name in arguments, rule)
                require(name not in feed, f"input {name!r} is given twice")
                is_bounded = entry.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
                require(is_bounded, f"input {name!r} must be stored or deflated, as NumPy writes it")
                with archive.open(entry) as file:
                    # Without the size, zipfile decompresses more than the entry announces, and cuts it afterwards.
                    data = memoryview(file.read(entry.file_size))
                feed[name] = _require_type(_array(data, f"input {name!r}"), arguments[name])
    except MLError:
        raise
    except Exception as error:  # zipfile and the decompressors raise many types
        raise ValidationError(f"the body is not an .npz file: {short_repr(str(error))}") from None
    require_names("inputs", feed, arguments)
    return feed


# Pictures ---------------------------------------------------------------------------------------------------------------


def _image(kind: str, body: bytes, argument: Argument, options: dict[str, str], max_bytes: int) -> np.ndarray:
    """Decode a picture for an input: with its number of channels, its size, its layout and its data type.

    Floats are `(pixel / scale - mean) / std`, where pixels are 0 to 255.
    """
    is_first, channels, height, width = _layout(argument)
    height, width = height or _side(options, "height"), width or _side(options, "width")
    dtype = argument.dtype
    is_float = dtype.kind == "f"
    label = f"input {argument.name!r}"
    require(dtype == np.uint8 or is_float, f"{label} is {datatype(argument)}; pictures are for UINT8 and floats")
    order, fit = options.get("order", "rgb"), options.get("fit", "stretch")
    require(order in ("rgb", "bgr"), f"order must be rgb or bgr, got {short_repr(order)}")
    require(fit in ("stretch", "crop"), f"fit must be stretch or crop, got {short_repr(fit)}")
    numbers = {
        "scale": _numbers(options, "scale", 255, 1),
        "mean": _numbers(options, "mean", 0, channels),
        "std": _numbers(options, "std", 1, channels),
    }
    require(is_float or not numbers.keys() & options.keys(), f"{label} is UINT8, for which pixels are not scaled")
    for name in ("scale", "std"):
        require(bool((numbers[name] != 0).all()), f"{name} must not be 0")
    pixels = _decode(kind, body, CHANNELS[channels], (width, height), fit, max_bytes // dtype.itemsize)
    pixels = pixels.reshape(*pixels.shape[:2], channels)
    if order == "bgr" and channels > 1:
        pixels = pixels[..., [2, 1, 0, *range(3, channels)]]
    if is_float:
        floats = pixels.astype(np.float32)
        np.divide(floats, numbers["scale"], out=floats)
        np.subtract(floats, numbers["mean"], out=floats)
        values = np.divide(floats, numbers["std"], out=floats)
    else:
        values = pixels
    values = np.moveaxis(values, 2, 0) if is_first else values
    return np.ascontiguousarray(values, dtype).reshape((1,) * (len(argument.dims or ()) - 3) + values.shape)


def _layout(argument: Argument) -> tuple[bool, int, int, int]:
    """Whether channels come first, and the channels, height and width of pictures that an input takes; 0 for any."""
    dims = argument.dims or ()
    label = f"input {argument.name!r} of shape {shape_text(dims)}"
    rule = "takes no picture: it must have 3 axes, or 4 with one row, of which the first or last has 1, 3 or 4 channels"
    require(len(dims) == 3 or (len(dims) == 4 and dims[0] in (1, None, *filter(_is_name, dims))), f"{label} {rule}")
    first, last = dims[-3], dims[-1]
    is_first = isinstance(first, int) and first in CHANNELS
    channels = first if is_first else last
    if not isinstance(channels, int) or channels not in CHANNELS:
        raise ValidationError(f"{label} {rule}")
    height, width = dims[-2:] if is_first else dims[-3:-1]
    return is_first, channels, height if isinstance(height, int) else 0, width if isinstance(width, int) else 0


def _is_name(dim: object) -> bool:
    return isinstance(dim, str)


def _side(options: Mapping[str, str], name: str) -> int:
    text = options.get(name, "0")
    fits = text.isascii() and text.isdecimal() and len(text) < 9 and int(text) <= MAX_SIDE
    require(fits and (name not in options or int(text) > 0), f"{name} must be 1 to {MAX_SIDE}, got {short_repr(text)}")
    return int(text)


def _numbers(options: Mapping[str, str], name: str, default: float, count: int) -> np.ndarray:
    """Numbers of an option, separated by commas: one, or one for each channel."""
    text = options.get(name, str(default))
    try:
        values = [float(part) for part in text[:1000].split(",")]
    except ValueError:
        values = []
    with np.errstate(over="ignore"):
        numbers = np.array(values, np.float32)
    fits = len(values) in (1, count) and bool(np.isfinite(numbers).all())
    rule = "a finite number" if count == 1 else f"one finite number, or {count} separated by commas"
    require(fits, f"{name} must be {rule}, got {short_repr(text)}")
    return numbers


def _decode(kind: str, body: bytes, mode: str, size: tuple[int, int], fit: str, max_values: int) -> np.ndarray:
    """Decode a picture to an array [height, width, …] of uint8; a side of 0 keeps that of the picture."""
    image_module = import_extra("PIL.Image", "server", "reading pictures")
    ops = import_extra("PIL.ImageOps", "server", "reading pictures")
    try:
        with image_module.open(io.BytesIO(body), formats=[IMAGES[kind]]) as image:
            # Before it is decoded: a few bytes can stand for gigabytes.
            require(
                4 * image.width * image.height <= max_values,
                f"a picture of {image.width} x {image.height} is too large",
            )
            image = ops.exif_transpose(image)
            if image.mode in ("I", "I;16", "F"):
                raise NotSupportedError(f"pictures must have 8 bits a channel, got the mode {image.mode}")
            image = image.convert(mode)
            target = size[0] or image.width, size[1] or image.height
            require(4 * prod(target) <= max_values, f"a picture of {target[0]} x {target[1]} is too large")
            if fit == "crop":
                image = ops.fit(image, target, image_module.Resampling.BILINEAR)
            elif image.size != target:
                image = image.resize(target, image_module.Resampling.BILINEAR)
            return np.asarray(image)
    except MLError:
        raise
    except image_module.UnidentifiedImageError:  # whose message has an address of memory
        raise ValidationError(f"the body is not a {IMAGES[kind]} picture: it does not begin as one") from None
    except Exception as error:  # Pillow raises what its decoders raise
        raise ValidationError(f"the body is not a {IMAGES[kind]} picture: {short_repr(str(error))}") from None


# Responses --------------------------------------------------------------------------------------------------------------


def accepted_kind(accept: str) -> str:
    """The first media type of `ANSWERS` that a client names in the header `Accept`; empty if it names none.

    >>> accepted_kind("application/x-npy"), accepted_kind("*/*"), accepted_kind("image/png;q=0, application/x-npz;q=0.9")
    ('application/x-npy', '', 'application/x-npz')
    """
    if "x-np" not in accept and "image/png" not in accept:
        return ""
    parts = [re.sub(r"\s", "", part).lower().partition(";") for part in accept.split(",")]
    kinds = [kind for kind, _, options in parts if not re.search(r"(^|;)q=0(\.0*)?(;|$)", options)]  # 0: not acceptable
    return next((kind for kind in kinds if kind in ANSWERS), "")


def respond(
    kind: str, request: InferenceRequest, results: Mapping[str, np.ndarray], interface: Interface
) -> tuple[bytes, dict[str, str]]:
    """Write outputs as a file: one output as .npy or PNG, several as .npz."""
    arrays = {name: results[name] for name in request.outputs}
    for name, array in arrays.items():
        require(array.dtype.kind not in "OUS", f"output {name!r} has strings, which {kind} cannot hold")
    file = io.BytesIO()
    if kind == NPZ:
        with zipfile.ZipFile(file, "w") as archive:
            for name, array in arrays.items():
                archive.writestr(f"{name}.npy", _npy(array))
        return file.getvalue(), {"Content-Type": kind}
    require(
        len(arrays) == 1, f"{kind} has one output: name it, as in ?output={next(iter(arrays), '')}; got {[*arrays]}"
    )
    ((name, array),) = arrays.items()
    if kind == NPY:
        return _npy(array), {"Content-Type": kind}
    (output,) = [output for output in interface.outputs if output.name == name]
    return _png(array, output), {"Content-Type": kind}


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, np.asarray(array, order="C"), allow_pickle=False)  # `ascontiguousarray` adds an axis to scalars
    return file.getvalue()


def _png(array: np.ndarray, output: Argument) -> bytes:
    """Write an output as a picture: uint8, or floats from 0 to 1, [height, width] with channels first, last, or without.

    Where both axes could be that of the channels, it is the one that the model declares.
    """
    image_module = import_extra("PIL.Image", "server", "writing pictures")
    rule = "a picture: [height, width], [channels, height, width] or [height, width, channels], with 1, 3 or 4 channels"
    picture, declared = array, (output.dims or ())[-3:]
    is_last = len(declared) == 3 and not isinstance(declared[0], int) and declared[2] in CHANNELS
    while picture.ndim > (3 if is_last else 2) and picture.shape[0] == 1:
        picture = picture[0]
    if picture.ndim == 3 and picture.shape[0] in CHANNELS and not is_last:
        picture = np.moveaxis(picture, 0, 2)
    is_picture = picture.ndim == 2 or (picture.ndim == 3 and picture.shape[2] in CHANNELS)
    is_sized = is_picture and picture.size > 0 and max(picture.shape[:2]) <= MAX_SIDE
    require(is_sized and (picture.dtype == np.uint8 or picture.dtype.kind in "fV"),
            f"output {output.name!r} of {array.dtype}, {list(array.shape)}, is not {rule}")  # fmt: skip
    if picture.dtype != np.uint8:
        picture = np.nan_to_num(picture.astype(np.float32)).clip(0, 1) * 255
        picture = picture.round().astype(np.uint8)
    if picture.ndim == 3 and picture.shape[2] == 1:
        picture = picture[..., 0]
    file = io.BytesIO()
    image_module.fromarray(np.ascontiguousarray(picture)).save(file, "PNG", compress_level=1)
    return file.getvalue()
