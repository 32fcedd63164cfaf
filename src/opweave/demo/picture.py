"""Image files: read any kind as 8-bit colours or grey, and write a file wholly or not at all."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from ..errors import DataError
from ..files import written

WITH_ALPHA = {"PNG", "WEBP", "TIFF"}  # formats that keep transparency; others get a white background


def read(path: Path, limit: int) -> Image.Image:
    """Read an image of at most `limit` pixels, upright, of mode L, LA, RGB or RGBA; `info` holds its colour profile only.

    Raises:
        DataError: the file is missing, no image, broken, too large, or of a mode without a meaning as colours.
    """
    try:
        with warnings.catch_warnings():
            # Pillow's own limit only warns; ours is checked before anything is decoded.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(path) as file:
                if file.width * file.height > limit:
                    raise DataError(f"{path}: {file.width} x {file.height} pixels are more than {limit:,}")
                return _to_8_bits(ImageOps.exif_transpose(file))
    except DataError:
        raise
    except UnidentifiedImageError:
        raise DataError(f"{path}: this is not an image of a known format") from None
    except Exception as error:  # Pillow's decoders raise many kinds of errors on broken files
        raise DataError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _to_8_bits(image: Image.Image) -> Image.Image:
    if image.mode.startswith(("I", "F")):
        values = np.asarray(image, np.float64)
        if not np.isfinite(values).all():
            raise ValueError("some values are not finite")
        # Nothing in these files says which value is white: the smallest usual one that all values fit below.
        usual = [65535.0] if image.mode.startswith("I;16") else [1.0, 255.0, 65535.0][image.mode == "I" :]
        white = next((most for most in usual if values.max() <= most), values.max())
        return Image.fromarray(np.rint(np.clip(values / white, 0, 1) * 255).astype(np.uint8))
    mode = "L" if image.mode in ("1", "L", "LA", "La") else "RGB"
    # A profile of other colours (CMYK, grey) would be wrong for the RGB values that come out here.
    profile = image.info.get("icc_profile") if image.mode in ("RGB", "RGBA", "P") else None
    if image.has_transparency_data:
        image = image.convert(f"{mode}A")
        if image.getchannel("A").getextrema()[0] != 255:
            mode = image.mode
    image = image.convert(mode)
    image.info = {"icc_profile": profile}
    return image


def check_output(path: Path, photo: Path | None) -> str:
    """Pillow's name of the format that the suffix of `path` stands for, checked before any work is done.

    Raises:
        DataError: the suffix is not that of a format that can be written, the folder is missing, or `path` is a
            folder, a device, or the photograph itself.
    """
    format = Image.registered_extensions().get(path.suffix.lower(), "")
    if format not in Image.SAVE:
        reason = f"{path.suffix or 'no suffix'} is no image format, try .png"
    elif not path.parent.is_dir():
        reason = f"there is no folder {path.parent}"
    elif path.exists() and not path.is_file():
        reason = "it exists and is not a file"
    elif photo is not None and path.exists() and photo.exists() and path.samefile(photo):
        reason = "this is the photograph itself"
    else:
        return format
    raise DataError(f"{path}: cannot be written: {reason}")


def write(image: Image.Image, path: Path, format: str, profile: bytes | None = None) -> None:
    """Write an image with its colour profile; transparency that the format cannot keep gets a white background.

    Raises:
        DataError: the file cannot be written, or the format cannot hold this picture.
    """
    if "A" in image.getbands() and format not in WITH_ALPHA:
        image = on_white(image)
    options: dict[str, Any] = {"quality": 95} if format in ("JPEG", "WEBP") else {}
    if profile is not None:
        options["icc_profile"] = profile
    encoded = io.BytesIO()
    try:
        image.save(encoded, format=format, **options)
    except Exception as error:  # encoders raise many kinds
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise DataError(f"{path}: cannot be written: {reason}") from error
    with written(path) as file:
        file.write(encoded.getbuffer())


def on_white(image: Image.Image) -> Image.Image:
    """The image on a white background, RGB."""
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
