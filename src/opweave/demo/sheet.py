"""The before/after sheet: bicubic, Opweave and the original side by side, and two details enlarged below."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from .colours import Pixels, squared_error

BACKGROUND, TEXT, FAINT = "#16181d", "#f2f3f5", "#9aa1ad"
ACCENTS = ("#ffb43a", "#4cc9f0")  # frames of the two details
MARGIN, GAP, FRAME = 28, 12, 3
PANEL, NARROWEST = 540, 420  # width of a column, at most and at least; pictures are made smaller or larger to fit
ZOOM = 5  # screen pixels a pixel of a detail, unless the picture is very small or very large


class Column(NamedTuple):
    """One column of the sheet: a title, a fainter line below it, and a picture, uint8 [height, width, 3]."""

    title: str
    note: str
    picture: Pixels


def compose(title: str, subtitle: str, before: Column, after: Column, original: Column) -> Image.Image:
    """Lay out the bicubic enlargement, the network's, and what both should be; an RGB image, 1340 to 1700 pixels wide."""
    columns = (before, after, original)
    height, width = original.picture.shape[:2]
    fit = min(PANEL / width, PANEL / height)
    scale = fit if fit < 1 else int(fit)  # larger only by whole pixels, which stay sharp
    shown = max(1, round(width * scale)), max(1, round(height * scale))
    panel = max(shown[0], NARROWEST)
    # Details of a small picture, which is shown large itself, are larger still; those of a large picture cover enough of
    # it to be recognised.
    zoom = min(max(2, min(ZOOM, 10 * PANEL // width), round(2 * scale)), NARROWEST // 8)
    detail = min(width, panel // zoom), min(height, panel * 5 // 8 // zoom)
    places = best_places(before.picture, after.picture, original.picture, *detail)

    large, medium, small = (ImageFont.load_default(size) for size in (30, 22, 17))
    top = MARGIN + 84
    panels = top + 64
    row = detail[1] * zoom + GAP
    size = (2 * MARGIN + 3 * panel + 2 * GAP, panels + shown[1] + GAP + len(places) * row - GAP + MARGIN)
    sheet = Image.new("RGB", size, BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    draw.text((MARGIN, MARGIN - 6), title, TEXT, large)
    draw.text((MARGIN, MARGIN + 38), subtitle, FAINT, small)

    for index, column in enumerate(columns):
        left = MARGIN + index * (panel + GAP)
        draw.text((left, top), column.title, TEXT, medium)
        draw.text((left, top + 30), column.note, FAINT, small)
        image = Image.fromarray(column.picture)
        resample = Image.Resampling.LANCZOS if scale < 1 else Image.Resampling.NEAREST
        x = left + (panel - shown[0]) // 2
        sheet.paste(image.resize(shown, resample), (x, panels))
        for place, (column_left, row_top) in enumerate(places):
            box = (column_left, row_top, column_left + detail[0], row_top + detail[1])
            frame = [round(edge * scale) + offset for edge, offset in zip(box, (x, panels) * 2, strict=True)]
            draw.rectangle(frame, outline=ACCENTS[place], width=2)
            # Whole pixels, not smoothed again: what is seen is what was computed.
            crop = image.crop(box).resize((detail[0] * zoom, detail[1] * zoom), Image.Resampling.NEAREST)
            corner = left + (panel - crop.width) // 2, panels + shown[1] + GAP + place * row
            sheet.paste(crop, corner)
            edges = (*corner, corner[0] + crop.width - 1, corner[1] + crop.height - 1)
            draw.rectangle(edges, outline=ACCENTS[place], width=FRAME)
    return sheet


def best_places(before: Pixels, after: Pixels, original: Pixels, width: int, height: int) -> list[tuple[int, int]]:
    """Left and top of one or two windows, of a width and height and without overlap, where the network gains most."""
    gain = squared_error(before, original)
    gain -= squared_error(after, original)
    # In a large picture the gain of small blocks is precise enough.
    block = max(1, min(width, height) // 16)
    rows, columns = (side // block for side in gain.shape)
    high, wide = height // block, width // block
    gain = gain[: rows * block, : columns * block]
    sums = np.zeros((rows + 1, columns + 1))
    sums[1:, 1:] = gain.reshape(rows, block, columns, block).sum((1, 3)).cumsum(0).cumsum(1)
    windows = sums[high:, wide:] - sums[:-high, wide:] - sums[high:, :-wide] + sums[:-high, :-wide]
    places: list[tuple[int, int]] = []
    while len(places) < len(ACCENTS) and np.isfinite(windows.max()):
        top, left = (int(i) for i in np.unravel_index(windows.argmax(), windows.shape))
        # A window may be a little larger than its blocks; it must not reach over the edge.
        places.append((min(left * block, original.shape[1] - width), min(top * block, original.shape[0] - height)))
        windows[max(0, top - high) : top + high + 1, max(0, left - wide) : left + wide + 1] = -np.inf
    return places
