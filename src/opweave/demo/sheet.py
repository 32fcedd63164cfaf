"""The before/after sheet: bicubic, Opweave and the original side by side, and two details enlarged below."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from .colours import Pixels, squared_error

BACKGROUND, TEXT, FAINT = "#16181d", "#f2f3f5", "#9aa1ad"
ACCENTS = ("#ffb43a", "#4cc9f0")
MARGIN, GAP, FRAME = 28, 12, 3
PANEL, NARROWEST = 540, 420
"""Maximum and minimum width of a column; pictures are resized to fit."""
ZOOM = 5
"""Screen pixels for each pixel of a detail, unless the picture is very small or very large."""


def compose(title: str, columns: Sequence[tuple[str, str, Pixels]]) -> Image.Image:
    """Lay out three columns of a heading, a note and a picture: bicubic enlargement, the network's, the original."""
    before, after, original = (picture for _, _, picture in columns)
    height, width = original.shape[:2]
    fit = min(PANEL / width, PANEL / height)
    # Enlarge by integer factors only: pixels stay sharp.
    scale = fit if fit < 1 else int(fit)
    shown = max(1, round(width * scale)), max(1, round(height * scale))
    panel = max(shown[0], NARROWEST)
    # Enlarge details of a small picture more; details of a large picture must cover enough of it to be recognised.
    zoom = min(max(2, min(ZOOM, 10 * PANEL // width), round(2 * scale)), NARROWEST // 8)
    detail = min(width, panel // zoom), min(height, panel * 5 // 8 // zoom)
    places = best_places(before, after, original, *detail)

    large, medium, small = (ImageFont.load_default(size) for size in (30, 22, 17))
    top, panels, row = MARGIN + 84, MARGIN + 148, detail[1] * zoom + GAP
    size = (2 * MARGIN + 3 * panel + 2 * GAP, panels + shown[1] + len(places) * row + MARGIN)
    sheet = Image.new("RGB", size, BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    draw.text((MARGIN, MARGIN - 6), title, TEXT, large)
    subtitle = "The photograph was reduced to a third, then enlarged again. PSNR: of luma, against the original."
    draw.text((MARGIN, MARGIN + 38), subtitle, FAINT, small)
    for index, (heading, note, picture) in enumerate(columns):
        left = MARGIN + index * (panel + GAP)
        draw.text((left, top), heading, TEXT, medium)
        draw.text((left, top + 30), note, FAINT, small)
        image = Image.fromarray(picture)
        resample = Image.Resampling.LANCZOS if scale < 1 else Image.Resampling.NEAREST
        x = left + (panel - shown[0]) // 2
        sheet.paste(image.resize(shown, resample), (x, panels))
        for number, ((column, line), accent) in enumerate(zip(places, ACCENTS, strict=False)):
            box = (column, line, column + detail[0], line + detail[1])
            frame = [round(edge * scale) + offset for edge, offset in zip(box, (x, panels) * 2, strict=True)]
            draw.rectangle(frame, outline=accent, width=2)
            crop = image.crop(box).resize((detail[0] * zoom, detail[1] * zoom), Image.Resampling.NEAREST)
            corner = left + (panel - crop.width) // 2, panels + shown[1] + GAP + number * row
            ImageDraw.Draw(crop).rectangle((0, 0, crop.width - 1, crop.height - 1), outline=accent, width=FRAME)
            sheet.paste(crop, corner)
    return sheet


def best_places(before: Pixels, after: Pixels, original: Pixels, width: int, height: int) -> list[tuple[int, int]]:
    """Return left and top of one or two windows, without overlap, where the network gains most."""
    gain = squared_error(before, original) - squared_error(after, original)
    # The gain of whole blocks is precise enough.
    block = max(1, min(width, height) // 16)
    rows, columns = (side // block for side in gain.shape)
    blocks = gain[: rows * block, : columns * block].reshape(rows, block, columns, block).sum((1, 3))
    high, wide = height // block, width // block
    sums = np.pad(blocks.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    windows = sums[high:, wide:] - sums[:-high, wide:] - sums[high:, :-wide] + sums[:-high, :-wide]
    places: list[tuple[int, int]] = []
    while len(places) < len(ACCENTS) and np.isfinite(windows.max()):
        top, left = (int(i) for i in np.unravel_index(windows.argmax(), windows.shape))
        # A window may be slightly larger than its blocks, but must stay inside the picture.
        places.append((min(left * block, original.shape[1] - width), min(top * block, original.shape[0] - height)))
        windows[max(0, top - high) : top + high + 1, max(0, left - wide) : left + wide + 1] = -np.inf
    return places
