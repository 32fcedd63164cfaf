"""Image functions with NumPy and Pillow: conversion between RGB and YCbCr, bicubic resizing, PSNR.

The colour space is YCbCr of ITU-R BT.601, full range, as in JPEG; pictures are uint8 [height, width, 3].
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]
Plane = NDArray[np.float32]

# Rows: luma (Y), blue difference (Cb), red difference (Cr); columns: red, green, blue.
TO_YCBCR = np.array(
    [[0.299, 0.587, 0.114], [-0.299 / 1.772, -0.587 / 1.772, 0.5], [0.5, -0.587 / 1.402, -0.114 / 1.402]], np.float32
)
FROM_YCBCR = np.linalg.inv(TO_YCBCR.astype(np.float64)).astype(np.float32)


def split(rgb: Pixels) -> tuple[Plane, Plane, Plane]:
    """Split a picture into luma in [0, 1] and two planes of chroma, Cb and Cr, in [-0.5, 0.5]: float32 [height, width]."""
    luma, cb, cr = (_weigh_channels(rgb, row) for row in TO_YCBCR)
    return luma, cb, cr


def _weigh_channels(rgb: Pixels, weights: Plane) -> Plane:
    # One channel at a time saves memory: a float copy is four times as large as the picture.
    plane = np.zeros(rgb.shape[:2], np.float32)
    for channel, weight in enumerate(weights / np.float32(255)):
        plane += rgb[..., channel] * weight
    return plane


def merge(luma: Plane, cb: Plane, cr: Plane) -> Pixels:
    """Invert `split`, with rounding and clipping to 8 bits."""
    rgb = np.empty((*luma.shape, 3), np.uint8)
    for channel, row in enumerate(FROM_YCBCR):
        plane = (row[0] * luma + row[1] * cb + row[2] * cr) * np.float32(255)
        rgb[..., channel] = np.clip(np.rint(plane), 0, 255)
    return rgb


def bicubic(image: NDArray[Any], width: int, height: int) -> NDArray[Any]:
    """Resize a picture or a plane with Pillow's bicubic filter."""
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BICUBIC))


def squared_error(picture: Pixels, original: Pixels) -> NDArray[Any]:
    """Compute the squared difference of the luma of two pictures for each pixel, [height, width]."""
    return np.asarray(np.square(_weigh_channels(picture, TO_YCBCR[0]) - _weigh_channels(original, TO_YCBCR[0])))


def psnr(picture: Pixels, original: Pixels) -> float:
    """Compute the peak signal-to-noise ratio of the luma of two pictures in dB, for a peak of 1; infinite if equal."""
    mean = float(squared_error(picture, original).mean(dtype=np.float64))
    return math.inf if mean == 0 else -10 * math.log10(mean)
