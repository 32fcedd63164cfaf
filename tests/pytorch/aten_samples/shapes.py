"""Sample calls of operators that change shapes."""

from __future__ import annotations

from . import Sample, bools, floats, integers

X, FLAT = floats(2, 3, 4), floats(12)
_VIEWS = [Sample(X, [6, 4]), Sample(X, [-1]), Sample(X, [2, -1]), Sample(X, [2, 3, 2, 2]), Sample(floats(1), [])]
_SWAP = [Sample(X, 0, 2), Sample(X, -1, 1), Sample(X, 1, 1), Sample(integers(2, 3), 0, 1)]
_PARTS = [Sample(FLAT, 5), Sample(X, 2, 2), Sample(X, 2, -2), Sample(X, 9)]

SAMPLES = {
    **{f"aten.{name}.default": _VIEWS for name in ("view", "reshape", "_unsafe_view", "view_copy")},
    "aten.view_as.default": [Sample(X, floats(6, 4))],
    "aten.reshape_as.default": [Sample(X, floats(6, 4))],
    "aten.flatten.using_ints": [Sample(X), Sample(X, 1), Sample(X, 0, 1), Sample(X, 1, -1), Sample(floats())],
    "aten.unflatten.int": [Sample(X, 2, [2, 2]), Sample(X, -1, [2, -1]), Sample(FLAT, 0, [-1, 4])],
    "aten.unsqueeze.default": [Sample(X, 0), Sample(X, -1), Sample(X, 2), Sample(floats(), 0)],
    "aten.unsqueeze_copy.default": [Sample(X, 1)],
    "aten.squeeze.default": [Sample(floats(1, 3, 1), names=False), Sample(X, names=False)],
    "aten.squeeze.dim": [
        Sample(floats(1, 3, 1), 0, names=False),
        Sample(floats(1, 3, 1), -1),
        Sample(X, 1),
        Sample(floats(), 0),
    ],
    "aten.squeeze.dims": [Sample(floats(1, 3, 1), [0, 2], names=False), Sample(X, [1])],
    "aten.squeeze_copy.dim": [Sample(floats(1, 3, 1), 0, names=False)],
    "aten.permute.default": [Sample(X, [2, 0, 1]), Sample(X, [-1, 0, 1]), Sample(X, [0, 1, 2]), Sample(floats(), [])],
    "aten.permute_copy.default": [Sample(X, [2, 0, 1])],
    **dict.fromkeys(
        ("aten.transpose.int", "aten.transpose_copy.int", "aten.swapaxes.default", "aten.swapdims.default"), _SWAP
    ),
    "aten.t.default": [Sample(floats(2, 3)), Sample(floats(3)), Sample(floats())],
    "aten.t_copy.default": [Sample(floats(2, 3))],
    "aten.numpy_T.default": [Sample(floats(2, 3))],
    "aten.mT.default": [Sample(X)],
    "aten.mH.default": [Sample(floats(2, 3))],
    "aten.adjoint.default": [Sample(X)],
    **{f"aten.{name}.int": [Sample(X, 0, 2), Sample(X, -1, 0)] for name in ("movedim", "moveaxis")},
    **{f"aten.{name}.intlist": [Sample(X, [0, 1], [2, 0]), Sample(X, [2], [0])] for name in ("movedim", "moveaxis")},
    "aten.expand.default": [
        Sample(floats(3, 1), [2, 3, 4]),
        Sample(floats(3, 1), [-1, 4]),
        Sample(X, [2, 3, 4]),
        Sample(floats(), [2]),
    ],
    "aten.expand_copy.default": [Sample(floats(3, 1), [2, 3, 4])],
    "aten.expand_as.default": [Sample(floats(3, 1), X)],
    "aten.broadcast_to.default": [Sample(floats(3, 1), [2, 3, 4])],
    **{
        f"aten.{name}.default": [
            Sample([X, X + 1], 1),
            Sample([X, floats(2, 3, 1)], -1),
            Sample([floats(2), integers(3)]),
            Sample([X]),
            Sample([floats(0), X], 1, names=False),
            Sample([bools(2), bools(3)]),
        ]
        for name in ("cat", "concat", "concatenate")
    },
    "aten.stack.default": [Sample([X, X + 1]), Sample([X, X + 1, X], -1), Sample([floats(), floats()]), Sample([X], 1)],
    "aten.split.Tensor": _PARTS,
    "aten.split_copy.Tensor": _PARTS,
    "aten.unsafe_split.Tensor": _PARTS,
    "aten.split_with_sizes.default": [Sample(FLAT, [5, 7]), Sample(X, [1, 3], -1), Sample(X, [4], 2)],
    "aten.split_with_sizes_copy.default": [Sample(FLAT, [5, 7])],
    "aten.split.sizes": [Sample(FLAT, [5, 7])],
    "aten.chunk.default": [Sample(FLAT, 5), Sample(X, 2, 2), Sample(X, 3, 1), Sample(FLAT, 1)],
    "aten.unsafe_chunk.default": [Sample(FLAT, 5)],
    "aten.unbind.int": [Sample(X, names=False), Sample(X, 2, names=False), Sample(floats(1, 3), names=False)],
    "aten.repeat.default": [Sample(X, [1, 2, 3]), Sample(FLAT, [2, 3]), Sample(X, [1, 1, 1]), Sample(X, [2, 1, 1, 1])],
    "aten.tile.default": [Sample(X, [2]), Sample(FLAT, [2, 3])],
    "aten.repeat_interleave.self_int": [Sample(X, 2), Sample(X, 3, 1), Sample(X, 2, -1)],
    "aten.flip.default": [Sample(X, [0]), Sample(X, [0, -1]), Sample(X, [])],
    "aten.roll.default": [Sample(X, [1], [0]), Sample(X, [-2, 5], [1, 2]), Sample(X, [3]), Sample(X, [0], [1])],
    "aten.pixel_shuffle.default": [Sample(floats(2, 8, 3, 4), 2), Sample(floats(9, 2, 2), 3)],
    "aten.pixel_unshuffle.default": [Sample(floats(2, 2, 4, 6), 2), Sample(floats(1, 6, 3), 3)],
    "aten.channel_shuffle.default": [Sample(floats(2, 6, 3, 2), 3)],
}
