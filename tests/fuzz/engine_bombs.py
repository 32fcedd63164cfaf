"""Nodes of ONNX Runtime's own operators that ended the process; rows of `bombs`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

BOOL, FLOAT, INT8, UINT8 = TensorProto.BOOL, TensorProto.FLOAT, TensorProto.INT8, TensorProto.UINT8
Input = tuple[int, Sequence[int | str]] | None
"""The element type and the shape of an input; None for one that is absent."""


@dataclass(frozen=True)
class EngineBomb:
    """A row: the operator, its inputs, what must come of it, its attributes, and which inputs are constants of zeros."""

    op_type: str
    inputs: Sequence[Input]
    expected: str
    attributes: Sequence[tuple[str, Any]] = ()
    constants: Sequence[int] = ()

    def model(self, folder: Path) -> onnx.ModelProto:
        """A model of this one node."""
        given = {f"x{k}": value for k, value in enumerate(self.inputs) if value is not None}
        names = [f"x{k}" if value is not None else "" for k, value in enumerate(self.inputs)]
        node = helper.make_node(self.op_type, names, ["z"], domain="com.microsoft", **dict(self.attributes))
        constants = {f"x{k}": given.pop(f"x{k}") for k in self.constants}
        arrays = [
            numpy_helper.from_array(np.zeros(shape, helper.tensor_dtype_to_np_dtype(element_type)), name)
            for name, (element_type, shape) in constants.items()
        ]
        infos = [helper.make_tensor_value_info(name, *value) for name, value in given.items()]
        graph = helper.make_graph([node], "bomb", infos, [onnx.ValueInfoProto(name="z")], arrays)
        imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)


_LSTM: list[Input] = [(FLOAT, [2, 1, 2]), (FLOAT, [1, 8, 4]), (FLOAT, [1, 8, 2]), (FLOAT, [1, 16]), None, None, None]
_ONE: Input = (FLOAT, [1])

ROWS = [
    EngineBomb("AttnLSTM", _LSTM, "DataError: AttnLSTM: it needs inputs 8 to 11", [("hidden_size", 2)]),
    EngineBomb(
        "AttnLSTM",
        [(FLOAT, ["n"]), *_LSTM[1:], None, *[(FLOAT, [1, 2, 2])] * 2, (FLOAT, [1, 2]), (FLOAT, [1, 2, 2])],
        "DataError: AttnLSTM: input 0 must have 3 axes",
        [("hidden_size", 2)],
    ),
    *(
        EngineBomb(
            "DynamicQuantizeMatMul",
            [(FLOAT, [1, size]), (INT8, [2, 1]), (FLOAT, [64, 64])],
            "DataError: DynamicQuantizeMatMul: input 2 must be broadcastable to [1, 1]",
        )
        for size in (2, "n")
    ),
    EngineBomb("Inverse", [(FLOAT, [8, 8, "n"])], "DataError: Inverse: input 0 must hold square matrices"),
    EngineBomb("QLinearLeakyRelu", [(UINT8, [4]), _ONE, (UINT8, [1]), _ONE], "result"),
    EngineBomb("QLinearSigmoid", [(INT8, [3]), _ONE, None, _ONE], "result"),
    EngineBomb(
        "QLinearSoftmax",
        [(INT8, [8, 1, 4]), _ONE, (INT8, [1]), (FLOAT, [0, 2, 2]), (INT8, [1])],
        "DataError: QLinearSoftmax: input 3 must hold one value",
        [("opset", 1)],
    ),
    EngineBomb(
        "Attention", [(FLOAT, [2, 1, 2]), (FLOAT, [2, 6])], "DataError: Attention: it needs a bias", [("num_heads", 1)]
    ),
    EngineBomb(
        "QLinearConcat",
        [_ONE, (UINT8, [1]), (UINT8, [1, 1]), (FLOAT, [0]), (UINT8, [1]), (UINT8, [1, 1]), _ONE, (UINT8, [1])],
        "DataError: QLinearConcat: input 3 must hold one value",
        [("axis", 1)],
    ),
    EngineBomb(
        "QLinearSoftmax",
        [(INT8, [0, 8, 1]), _ONE, (INT8, [1]), _ONE, (INT8, [1])],
        "DataError: QLinearSoftmax: input 0 must not be empty",
        [("opset", 1)],
    ),
    *(
        EngineBomb(
            "QLinearWhere",
            [(BOOL, [size]), *[(UINT8, [2]), _ONE, (UINT8, [1])] * 2, _ONE, (UINT8, [1])],
            "DataError: QLinearWhere: inputs 3 and 6 must be constants where 7 and 8 are, and input 3 is not",
            constants=[7, 8],
        )
        for size in (2, "n")
    ),
    EngineBomb(
        "QMoE",
        [(FLOAT, [2, 8]), (FLOAT, [4, 2]), (UINT8, [3]), (FLOAT, [1, 1, 2, 2]), _ONE, (UINT8, [2, 2])],
        "DataError: QMoE: input 2 must have 3 axes",
        [("k", 3)],
        constants=[3, 5],
    ),
]
BUILDS = [(f"{row.op_type}-{k}", partial(EngineBomb.model, row), row.expected) for k, row in enumerate(ROWS)]
