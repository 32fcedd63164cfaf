"""Test whether the engine's 8-bit products saturate on this processor."""

from __future__ import annotations

from functools import cache

import numpy as np

from . import devices

SIZES = (8, 64, 8)


@cache
def saturates() -> bool:
    """Whether sums of uint8 by int8 products saturate at 16 bits, as on processors without VNNI instructions."""
    ops, float32 = devices.operators(), devices.engine().Type.f32
    rows, depth, columns = SIZES
    a, b = ops.parameter([rows, depth], float32), ops.parameter([depth, columns], devices.engine().Type.i8)
    bounds = [ops.constant(np.full((1, 1), end, np.float32)) for end in (0, 255)]
    numbers = ops.convert(ops.fake_quantize(a, *bounds, *bounds, 256), "u8")
    factors = [
        ops.multiply(ops.convert(operand, "f32"), ops.constant(np.ones((1, 1), np.float32))) for operand in (numbers, b)
    ]
    model = devices.engine().Model([ops.result(ops.matmul(*factors, False, False))], [a, b], "products")
    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 0}
    request = devices.core().compile_model(model, "CPU", options).create_infer_request()
    feeds = np.full((rows, depth), 255, np.float32), np.full((depth, columns), 127, np.int8)
    request.infer(dict(enumerate(feeds)))
    return bool((request.get_output_tensor().data != depth * 255 * 127).any())
