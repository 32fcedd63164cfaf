"""Image files: read any kind into 8-bit RGB, write one so that no half of it is ever seen."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from ..errors import DataError
from ..files import written
from .colours import Pixels

WITH_ALPHA = {"PNG", "WEBP", "TIFF"}  # formats that keep transparency; others get a white background


@dataclass(frozen=True)
class Picture:
    """A picture in memory, upright.

    Attributes:
        rgb: uint8 [height, width, 3].
        alpha: uint8 [height, width], 255 where opaque; None if it is so everywhere.
        grey: the file has no colours: red, green and blue are equal.
        profile: ICC colour profile that the values refer to, or None.
    """

    rgb: Pixels
    alpha: NDArray[np.uint8] | None = None
    grey: bool = False
    profile: bytes | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels."""
        return self.rgb.shape[1], self.rgb.shape[0]

    def image(self) -> Image.Image:
        """The same as a Pillow image of mode L, LA, RGB or RGBA."""
        image = Image.fromarray(self.rgb)
        if self.grey:
            image = image.getchannel(1)
        if self.alpha is not None:
            image.putalpha(Image.fromarray(self.alpha))
        return image


def read(path: Path, *, limit: int) -> Picture:
    """Read an image file: the first frame, turned upright as its EXIF orientation says, as 8-bit RGB.

    Args:
        path: a file of any format and mode that Pillow reads.
        limit: how many pixels it may have.

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
                return _to_rgb(ImageOps.exif_transpose(file))
    except DataError:
        raise
    except UnidentifiedImageError:
        raise DataError(f"{path}: this is not an image of a known format") from None
    except Image.DecompressionBombError:
        raise DataError(f"{path}: more than {limit:,} pixels") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    except Exception as error:  # what Pillow's decoders raise on broken files is of many kinds
        raise DataError(f"{path}: cannot be read as an image: {error}") from error


def _to_rgb(image: Image.Image) -> Picture:
    if image.mode.startswith(("I", "F")):
        values = np.asarray(image, np.float64)
        if not np.isfinite(values).all():
            raise ValueError("some values are not finite")
        # Nothing in these files says which value is white: the smallest usual one that all values fit below.
        usual = [65535.0] if image.mode.startswith("I;16") else [1.0, 255.0, 65535.0][image.mode == "I" :]
        white = next((most for most in usual if values.max() <= most), values.max())
        grey = np.rint(np.clip(values / white, 0, 1) * 255).astype(np.uint8)
        return Picture(np.stack([grey] * 3, axis=-1), grey=True)
    grey_file = image.mode in ("1", "L", "LA", "La")
    # A profile of other colours (CMYK, grey) would be wrong for the RGB values that come out here.
    profile = image.info.get("icc_profile") if image.mode in ("RGB", "RGBA", "P") else None
    alpha = None
    if image.has_transparency_data:
        image = image.convert("RGBA")
        alpha = np.asarray(image.getchannel("A"))
        alpha = None if alpha.min() == 255 else alpha
    return Picture(np.asarray(image.convert("RGB")), alpha, grey_file, profile)


def check_output(path: Path, photo: Path | None) -> str:
    """The name of the format that the suffix of `path` stands for, checked before any work is done.

    Raises:
        DataError: the suffix is not that of a format that can be written, the folder is missing, or `path` is a
            folder, a device, or the photograph itself.
    """
    format = Image.registered_extensions().get(path.suffix.lower())
    if format is None or format not in Image.SAVE:
        raise DataError(f"{path}: cannot be written: {path.suffix or 'no suffix'} is no image format, try .png")
    if not path.parent.is_dir():
        raise DataError(f"{path}: cannot be written: there is no folder {path.parent}")
    if path.exists() and not path.is_file():
        raise DataError(f"{path}: cannot be written: it exists and is not a file")
    if photo is not None and path.exists() and photo.exists() and path.samefile(photo):
        raise DataError(f"{path}: cannot be written: this is the photograph itself")
    return format


def write(image: Image.Image, path: Path, format: str, profile: bytes | None = None) -> None:
    """Write an image file, wholly or not at all.

    Args:
        image: mode L, LA, RGB or RGBA; transparency that the format cannot keep gets a white background.
        path: the file to write or to replace.
        format: Pillow's name of the format.
        profile: ICC colour profile to store, or None.

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
    """The image without transparency, on a white background; RGB."""
    image = image.convert("RGBA")
    white = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(white, image).convert("RGB")
